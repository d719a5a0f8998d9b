//! `bulkhead show`: a run that was recorded, once more.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_runner::run::RunSummary;
use bulkhead_runner::run::recording::Recording;
use bulkhead_runner::temp_files;

use crate::recorded_run;

/// Show a run that `bulkhead run --record` has kept
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead run systems/demo.toml --record demo.run
  bulkhead show demo.run
  bulkhead show demo.run --vm linux --vm el2
  bulkhead show demo.run --html demo-run.html
  bulkhead show demo.run --json | jq .tail.exits

Times are seconds of the host's clock since the run began. `el2` are the hypervisor's own lines, `board` what came
before it.")]
pub struct Args {
    /// The recording
    file: PathBuf,
    /// Only what this VM said; may be given several times
    #[arg(long, value_name = "NAME")]
    vm: Vec<String>,
    /// Print as one JSON document
    #[arg(long)]
    json: bool,
    /// Write a page for the browser instead
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    html: Option<PathBuf>,
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    match print(&args) {
        Ok(()) => Outcome::Done,
        Err(failure) => failure.report(),
    }
}

fn print(args: &Args) -> Result<(), Failure> {
    let recording = read(&args.file, &args.vm)?;
    let tables = recording.tail.as_ref().map_or(&[][..], |tail| &tail.exits);
    let summary = RunSummary::new(tables, &recording.head.classes);
    if let Some(page) = &args.html {
        return temp_files::write(page, recorded_run::page(&recording, &summary).as_bytes())
            .map_err(|why| {
                let what = format!("cannot write {}", page.display());
                Failure::environment(what, why, "choose another file")
            });
    }
    let text = if args.json {
        let document = Document {
            recording: &recording,
            summary: &summary,
        };
        format!("{:#}\n", json!(document))
    } else {
        text(&recording, &summary)
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        // A reader that went away, as `head` does, has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::environment("the output is gone", error, ""))
        }
        _ => Ok(()),
    }
}

/// Output of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    recording: &'a Recording,
    summary: &'a RunSummary,
}

/// Reads the recording in a file, and keeps the lines of these VMs.
fn read(file: &Path, vms: &[String]) -> Result<Recording, Failure> {
    let name = file.display();
    let advice = "make one with `bulkhead run SYSTEM.toml --record FILE`";
    let text =
        fs::read(file).map_err(|why| Failure::input(format!("cannot read {name}"), why, advice))?;
    let recording = Recording::parse(&String::from_utf8_lossy(&text));
    let mut recording = recording
        .map_err(|why| Failure::input(format!("{name} is no recording of a run"), why, advice))?;
    recording.keep(vms).map_err(|unknown| {
        let known: Vec<&str> = recording.head.classes.keys().map(String::as_str).collect();
        Failure::input(
            format!("no `{unknown}` in {name}"),
            "",
            format!("there are {}, el2 and board", known.join(", ")),
        )
    })?;
    Ok(recording)
}

fn text(recording: &Recording, summary: &RunSummary) -> String {
    let names = recording.lines.iter().map(|said| said.from.len());
    let wide = names.max().unwrap_or(0);
    let mut text = String::new();
    for said in &recording.lines {
        let seconds = said.ms as f64 / 1000.0;
        text.push_str(&format!(
            "{seconds:9.3}  {:wide$}  {}\n",
            said.from, said.text
        ));
    }
    match &recording.tail {
        None => text.push_str("\nThe recording stops here: the run was killed.\n"),
        Some(tail) => {
            let seconds = tail.ms as f64 / 1000.0;
            text.push_str(&format!(
                "\n{} after {seconds:.3} s: {}\n",
                recording.head.system, tail.ended
            ));
            if let Some((invariant, place)) = &tail.refused {
                text.push_str(&format!("  EL2 refused the plan: {invariant}: {place}\n"));
            }
            for end in &tail.stopped {
                text.push_str(&format!("  {} stopped: {}\n", end.vm, end.reason));
            }
        }
    }
    if !summary.is_empty() {
        text.push_str(&format!(
            "\nWhat EL2 took, of VMs that have stopped\n{}",
            summary.text()
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "{\"bulkhead\":\"recording\",\"version\":1,\"system\":\"two\",\"classes\":{\"a\":\"general\",\"long\":\"general\"}}\n\
        {\"ms\":12,\"from\":\"a\",\"text\":\"one\"}\n{\"ms\":1500,\"from\":\"long\",\"text\":\"<two>\"}\n\
        {\"ended\":\"powered-off\",\"ms\":2000,\"stopped\":[{\"vm\":\"a\",\"reason\":\"power off\"}],\"refused\":null,\"exits\":[]}\n";

    #[test]
    fn lines_stand_below_each_other_and_the_end_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run");
        fs::write(&file, RUN).unwrap();
        let all = read(&file, &[]).unwrap();
        assert_eq!(
            text(&all, &RunSummary::default()),
            "    0.012  a     one\n    1.500  long  <two>\n\ntwo after 2.000 s: powered-off\n  a stopped: power off\n"
        );
        let one = read(&file, &["long".to_owned()]).unwrap();
        assert!(!text(&one, &RunSummary::default()).contains("  a "));
        let failure = read(&file, &["c".to_owned()]).unwrap_err();
        assert!(
            failure.advice.contains("a, long, el2 and board"),
            "{}",
            failure.advice
        );
        let page = recorded_run::page(&all, &RunSummary::default());
        assert!(page.contains("\\u003ctwo>") && !page.contains("<two>"));
    }
}
