//! The page of a plan in a browser: Debian's Chromium without a window, on request.
//!
//! The conditions are checked inside the page by [a script](probe.js): nothing on the console, nothing wider than the
//! window, every text readable against its ground, details for the keyboard. The places of its parts are held against
//! `tests/page/layout.json`, coarsely, because fonts differ from one machine to the next; pictures are left in
//! `out/test/page/` for people.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bulkhead_abi::plan::MAX_VMS;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use bulkhead_model::describe::Text;
use bulkhead_model::failure::Failure;
use bulkhead_planner::show;
use bulkhead_runner::Effort;
use bulkhead_runner::prepare;
use bulkhead_runner::run::RunSummary;
use bulkhead_runner::run::recording::{Head, Recording, Said};

use super::suite::{Context, Job, Test};

/// Path of the layout that the page had when somebody looked at it and liked it.
const KEPT: &str = "tests/page/layout.json";
/// Largest sideways move of a part, and largest difference of its width: hundredths of the window.
const SIDEWAYS: i64 = 3;
/// Largest difference of a height: percent of it. Fonts decide where lines break.
const HEIGHT: i64 = 20;
/// Windows: width, height, dark.
const WINDOWS: [(u32, u32, bool); 4] = [
    (1280, 1800, false),
    (1280, 1800, true),
    (390, 2400, false),
    (390, 2400, true),
];

/// Place of a part: left, top, width, height in hundredths of the window's width.
type Boxes = BTreeMap<String, [i64; 4]>;

/// Report of the page about itself.
#[derive(Debug, Deserialize, Serialize)]
struct Answer {
    width: u32,
    wrong: Vec<String>,
    texts: u32,
    least: f64,
    vms: usize,
    boxes: Boxes,
}

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let job: Job = Box::new(browse);
    let test = Test::parallel(
        "page/browser",
        "The page of a plan says nothing on the browser's console, fits a phone and a desk, and can be read in light \
         and dark, for few VMs and for 64; its parts stand where they stood.",
        job,
    );
    vec![test.on_request("it needs Chromium")]
}

/// Returns the first browser of these that there is.
fn browser() -> Result<PathBuf, String> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let files = names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    files.into_iter().find(|file| file.is_file()).ok_or_else(|| {
        "skipped, which counts as failed: there is no Chromium; `apt-get install chromium` brings it".to_owned()
    })
}

fn browse(context: &Context) -> Result<String, Vec<String>> {
    let browser = browser().map_err(|why| vec![why])?;
    let why = |error: &dyn std::fmt::Display| vec![error.to_string()];
    let out = context.logs.join("page");
    fs::create_dir_all(&out).map_err(|error| why(&error))?;
    let mut wrong = Vec::new();
    let mut found = BTreeMap::new();
    let mut least = f64::INFINITY;
    for (name, page) in pages(&context.root)? {
        let file = out.join(format!("{name}.html"));
        let probed = page.replace(
            "</body>",
            &format!("<script>{}</script></body>", include_str!("probe.js")),
        );
        fs::write(&file, probed).map_err(|error| why(&error))?;
        for (width, height, dark) in WINDOWS {
            let shown = format!("{name}-{width}{}", if dark { "-dark" } else { "" });
            let window = (width, height, dark);
            match ask(&browser, &file, &out.join(format!("{shown}.png")), window) {
                Ok(answer) => {
                    wrong.extend(answer.wrong.iter().map(|what| format!("{shown}: {what}")));
                    if answer.texts < 50 {
                        wrong.push(format!("{shown}: it has {} texts only", answer.texts));
                    }
                    if name == "many" && answer.vms != MAX_VMS {
                        wrong.push(format!("{shown}: it has {} VMs only", answer.vms));
                    }
                    if answer.width != width {
                        wrong.push(format!("{shown}: the window is {} wide", answer.width));
                    }
                    least = least.min(answer.least);
                    found.insert(shown, answer.boxes);
                }
                Err(said) => wrong.extend(said.iter().map(|what| format!("{shown}: {what}"))),
            }
        }
    }
    let seen = out.join("layout.json");
    let text = serde_json::to_string(&found).map_err(|error| why(&error))?;
    fs::write(&seen, text + "\n").map_err(|error| why(&error))?;
    let kept =
        fs::read(context.root.join(KEPT)).map_err(|error| vec![format!("{KEPT}: {error}")])?;
    let kept: BTreeMap<String, Boxes> =
        serde_json::from_slice(&kept).map_err(|error| vec![format!("{KEPT}: {error}")])?;
    let moved = moved(&kept, &found);
    if !moved.is_empty() {
        wrong.extend(moved);
        wrong.push(format!(
            "if the pictures in {} are as they should be, copy {} to {KEPT}",
            out.display(),
            seen.display()
        ));
    }
    if wrong.is_empty() {
        Ok(format!(
            "{} windows, least contrast {least:.1} to 1",
            found.len()
        ))
    } else {
        Err(wrong)
    }
}

/// The pages that are looked at: their names and texts. They come from fixtures with boards of their own, so that
/// nothing need be built.
fn pages(root: &Path) -> Result<Vec<(&'static str, String)>, Vec<String>> {
    let plan = |name: &str| {
        let path = root.join("host/cli/tests/fixtures/good").join(name);
        plan_of(prepare::prepare(&path, Effort::WhatIsThere))
    };
    let (bells, shared) = (plan("doorbells.toml")?, plan("shared.toml")?);
    let differences = show::compare("doorbells.toml", &bells, &shared);
    Ok(vec![
        ("doorbells", show::html(&bells, None)),
        ("gicv2", show::html(&plan("gicv2.toml")?, None)),
        ("shared", show::html(&shared, Some(&differences))),
        ("many", show::html(&many(root)?, None)),
        (
            "run",
            bulkhead_cli::recorded_run_page(&recording(), &RunSummary::default()),
        ),
    ])
}

/// A run of one VM that has said many lines, one of them long.
fn recording() -> Recording {
    let said = |number: u64| Said {
        ms: number * 100,
        from: if number % 4 == 2 { "el2" } else { "a" }.to_owned(),
        text: match number {
            5 => "0123456789".repeat(40),
            _ => format!("line {number} of <b>the</b> console"),
        },
    };
    Recording {
        head: Head {
            bulkhead: "recording".to_owned(),
            version: 1,
            system: "one".to_owned(),
            classes: BTreeMap::from([("a".to_owned(), "general".to_owned())]),
        },
        lines: (0..80).map(said).collect(),
        tail: None,
    }
}

/// The plan of as many VMs as there may be, eight on each CPU: of all ways to get CPU time that can be shared, with memory and
/// doorbells between neighbours.
fn many(root: &Path) -> Result<Value, Vec<String>> {
    let mut source = "[board]\nname = \"qemu-virt\"\ncpus = 8\nmemory = \"1GiB\"\n".to_owned();
    let name = |number: usize| match number % 8 {
        0 => format!("loop-{number}"),
        4 => format!("a-long-name-{number:04}"),
        _ => format!("worker-{number}"),
    };
    for number in 0..MAX_VMS {
        let time = match number % 8 {
            0 => "class = \"soft-realtime\"\nbudget = \"400us\"\nperiod = \"1ms\"\n",
            4 => "cap = \"10%\"\nperiod = \"10ms\"\n",
            _ => "",
        };
        source += &format!(
            "[vm.{}]\n{time}pcpus = [{}]\nmemory = \"{}MiB\"\nimage = \"../raw.bin\"\nload = \"0x40080000\"\n",
            name(number),
            number / 8,
            4 << (number % 3),
        );
        if number % 8 == 7 {
            let (first, last) = (name(number - 7), name(number));
            source += &format!(
                "[shared.report-{number}]\nsize = \"64KiB\"\nipa = \"0x70000000\"\nvms = {{ {first} = \"rw\", {last} = \"r\" }}\n\
                 [doorbell.bell-{number}]\nfrom = \"{first}\"\nto = \"{last}\"\nshared = \"report-{number}\"\n"
            );
        }
    }
    let text = Text {
        name: root
            .join("host/cli/tests/fixtures/good/many.toml")
            .display()
            .to_string(),
        source: source.into(),
    };
    plan_of(prepare::prepare_text(text, Effort::WhatIsThere))
}

/// A plan as the page gets it.
fn plan_of(prepared: Result<prepare::Prepared, prepare::Stopped>) -> Result<Value, Vec<String>> {
    let prepared = prepared.map_err(|stopped| vec![Failure::from(stopped).to_string()])?;
    let mut plan = show::json(&prepared.planned);
    // Whether EL2 is built is not the page's doing.
    plan["provisional"] = json!(false);
    Ok(plan)
}

/// Opens a page in a window, leaves a picture, and returns what the page says about itself.
fn ask(
    browser: &Path,
    page: &Path,
    picture: &Path,
    (width, height, dark): (u32, u32, bool),
) -> Result<Answer, Vec<String>> {
    let why = |error: &dyn std::fmt::Display| vec![error.to_string()];
    // No window of the browser is as narrow as a phone; a frame is.
    let frame = format!(
        "<!doctype html><meta name=\"color-scheme\" content=\"light dark\"><style>body {{ margin: 0 }} \
         iframe {{ border: 0; width: {width}px; height: {height}px }}</style><script>onmessage = (event) => {{ \
         const answer = document.createElement('script'); answer.type = 'application/json'; answer.id = 'answer'; \
         answer.textContent = event.data; document.body.append(answer); }};</script><iframe src=\"{}\"></iframe>",
        page.file_name().unwrap_or_default().display()
    );
    let framed = page.with_extension("frame.html");
    fs::write(&framed, frame).map_err(|error| why(&error))?;
    let profile = tempfile::tempdir().map_err(|error| why(&error))?;
    // 0 is dark, 1 is light (blink::mojom::PreferredColorScheme).
    let scheme = if dark { 0 } else { 1 };
    // A guard against hanging; nothing is measured.
    let mut command = Command::new("timeout");
    command
        .arg("120")
        .arg(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--dump-dom",
        ])
        .args([
            "--enable-logging=stderr",
            "--force-device-scale-factor=1",
            "--virtual-time-budget=3000",
        ])
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("--window-size={},{height}", width.max(500)))
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--screenshot={}", picture.display()))
        .arg(format!("file://{}", framed.display()));
    let ran = command.output().map_err(|error| why(&error))?;
    let (dom, log) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    let console: Vec<String> = log
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .map(|line| format!("on the browser's console: {line}"))
        .collect();
    if !console.is_empty() {
        return Err(console);
    }
    let answer = dom.split("id=\"answer\">").nth(1);
    let answer = answer.and_then(|rest| rest.split("</script>").next());
    let answer =
        answer.ok_or_else(|| vec![format!("the page did not answer; {}: {log}", ran.status)])?;
    serde_json::from_str(answer).map_err(|error| why(&error))
}

/// Returns the parts that do not stand where they stood, or are not there on one side.
fn moved(kept: &BTreeMap<String, Boxes>, found: &BTreeMap<String, Boxes>) -> Vec<String> {
    let mut moved = Vec::new();
    let windows = kept
        .keys()
        .chain(found.keys().filter(|name| !kept.contains_key(*name)));
    for window in windows {
        let (Some(old), Some(new)) = (kept.get(window), found.get(window)) else {
            moved.push(format!("{window}: not in both layouts"));
            continue;
        };
        let parts = old
            .keys()
            .chain(new.keys().filter(|name| !old.contains_key(*name)));
        for part in parts {
            let (Some(was), Some(is)) = (old.get(part), new.get(part)) else {
                moved.push(format!("{window}: `{part}` is not in both layouts"));
                continue;
            };
            let aside = (was[0] - is[0]).abs().max((was[2] - is[2]).abs());
            // A few lines more above move everything below: only the part's own height counts, and the order.
            let grown = (was[3] - is[3]).abs();
            if aside > SIDEWAYS || grown > (was[3] * HEIGHT / 100).max(SIDEWAYS) {
                moved.push(format!("{window}: `{part}` was at {was:?}, is at {is:?}"));
            }
        }
        let order = |boxes: &Boxes| {
            let mut parts: Vec<_> = boxes
                .iter()
                .map(|(name, place)| (place[1], name.clone()))
                .collect();
            parts.sort();
            parts.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
        };
        if order(old) != order(new) {
            moved.push(format!("{window}: the parts come in another order"));
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_may_grow_a_little_and_not_move() {
        let layout = |place: [i64; 4]| {
            let boxes = Boxes::from([
                ("memory".to_owned(), place),
                ("vms".to_owned(), [5, 900, 90, 100]),
            ]);
            BTreeMap::from([("few-390".to_owned(), boxes)])
        };
        let kept = layout([5, 100, 90, 50]);
        assert_eq!(moved(&kept, &layout([6, 140, 88, 58])), [""; 0]);
        assert_eq!(moved(&kept, &layout([15, 100, 90, 50])).len(), 1);
        assert_eq!(moved(&kept, &layout([5, 100, 90, 65])).len(), 1);
        assert_eq!(
            moved(&kept, &layout([5, 1000, 90, 50])),
            ["few-390: the parts come in another order"]
        );
        assert_eq!(moved(&kept, &BTreeMap::new()).len(), 1);
    }
}
