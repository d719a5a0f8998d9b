//! U-Boot loads the image: from a disk and over a network, by the very commands that `docs/how-to/boot.md` shows.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bulkhead_model::failure::Failure;
use bulkhead_model::payload::DebianPayload;
use bulkhead_planner::image;
use bulkhead_runner::Effort;
use bulkhead_runner::run::{Qemu, Source, Start, System};
use bulkhead_runner::{fetch, prepare};

use super::judge::Judge;
use super::scenario::Scenario;
use super::suite::{Context, Job, Test};
use super::watch::watch;

/// The system that is loaded.
const SYSTEM: &str = "tests/boot/boot-loader.toml";
/// Name of its FIT in the document.
const FIT: &str = "bulkhead.itb";
/// Name of the image in the document, and the heading below which it is on a disk.
const IMAGE: &str = "bulkhead.img";
const DISK: &str = "From a disk";
/// Path at which the document has it signed, and name of the key.
const SIGNED: &str = "out/hello/bulkhead.itb";
const KEY: &str = "dev";
/// Path of the document with the commands.
const DOCUMENT: &str = "docs/how-to/boot.md";
/// Scenario of the system once it is loaded; the seconds are for the loader, too.
const EXPECTED: &str = "claim = 'It runs.'
system = ''
done = ['counts']
stops = { counts = 'power off', taker = 'power off' }
step = [{ from = 'taker', line = 'hello from EL1, 262144 KiB of memory' }]
guard = 240";

/// A way to load the image.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Name of the test.
    name: &'static str,
    /// Heading in the document, behind `### `.
    heading: &'static str,
    /// Claim that it proves.
    claim: &'static str,
    /// Whether the board has a network instead of a disk.
    network: bool,
    /// Whether the FIT is signed, and U-Boot has the key.
    signed: bool,
}

const WAYS: [Way; 5] = [
    Way {
        name: "disk",
        heading: DISK,
        claim: "U-Boot loads the image from a partition and starts it with booti; the system runs, U-Boot's own memory is a VM's.",
        network: false,
        signed: false,
    },
    Way {
        name: "tftp",
        heading: "Over the network",
        claim: "U-Boot loads the image over TFTP to where it usually puts kernels, and booti moves it to its place.",
        network: true,
        signed: false,
    },
    Way {
        name: "fit",
        heading: "As a FIT",
        claim: "U-Boot checks the sums of a FIT and starts the image in it with bootm and the device tree in it.",
        network: false,
        signed: false,
    },
    Way {
        name: "fit-own-tree",
        heading: "As a FIT, with U-Boot's own device tree",
        claim: "U-Boot starts the image of a FIT with its own device tree.",
        network: false,
        signed: false,
    },
    Way {
        name: "fit-signed",
        heading: "As a signed FIT",
        claim: "U-Boot with a key in its device tree starts a FIT that is signed with it, and none that is unsigned or was changed.",
        network: false,
        signed: true,
    },
];

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let one = |way: Way| {
        let job: Job = Box::new(move |context| boot(context, way));
        let test = Test::parallel(format!("boot/u-boot-{}", way.name), way.claim, job);
        if way.signed {
            test.on_request("it needs Debian's u-boot-tools")
        } else {
            test
        }
    };
    WAYS.into_iter().map(one).collect()
}

fn boot(context: &Context, way: Way) -> Result<String, Vec<String>> {
    let why = |error: &dyn std::fmt::Display| vec![error.to_string()];
    let document = fs::read_to_string(context.root.join(DOCUMENT)).map_err(|e| why(&e))?;
    let commands = below(&document, way.heading, "=> ");
    let scenario = Scenario::made(EXPECTED).map_err(|e| vec![e])?;
    let system = context
        .builds
        .get(&context.root.join(SYSTEM))
        .map_err(|e| why(&e))?;
    let folder = context.logs.join("boot").join(way.name);
    let (fit, board) = fit(&context.root, &system, way.signed).map_err(|e| why(&e))?;
    let files = files(&folder, &system, &fit).map_err(|e| why(&e))?;
    let mut qemu = system.qemu.clone();
    // A busy host must not make the guests slow.
    qemu.clock = scenario.clock.into();
    if way.signed {
        let steps = below(&document, way.heading, "");
        qemu.tree = Some(sign(&folder, (&fit, &board), &steps)?);
    }
    qemu.start = Start::Loader {
        rom: fetch::payload(DebianPayload::UBoot).map_err(|e| why(&e))?,
        source: match way.network {
            true => Source::Network(files.clone()),
            false => Source::Disk(files.clone()),
        },
    };
    if way.signed {
        let signed = fs::read(folder.join(SIGNED)).map_err(|e| why(&e))?;
        let mut changed = signed.clone();
        // In the image, which is most of it.
        if let Some(byte) = changed.get_mut(signed.len() / 10) {
            *byte ^= 1;
        }
        for (fit, answer) in [
            (&fit, "Failed to verify required signature"),
            (&changed, "Bad hash value"),
        ] {
            fs::write(files.join(FIT), fit).map_err(|e| why(&e))?;
            refused(&qemu, &scenario, &commands, answer)?;
        }
        fs::write(files.join(FIT), signed).map_err(|e| why(&e))?;
    }
    let mut judge = Judge::new(&scenario);
    let mut typist = Typist::new(&commands);
    let ended = watch(&qemu, scenario.guard(), |bytes| {
        let (keys, rest) = typist.push(bytes);
        let more = judge.push(&rest);
        ([keys, more].concat(), typist.stuck)
    });
    let ended = ended.map_err(|e| why(&e))?;
    if !typist.started {
        let mut wrong = vec![format!("U-Boot did not start the image by {commands:?}")];
        let said = String::from_utf8_lossy(&typist.said).into_owned();
        wrong.extend(said.lines().map(|line| format!("  {line}")));
        return Err(wrong);
    }
    let (mut wrong, transcript) = judge.verdict(ended.powered_off);
    if let Some((invariant, place)) = &transcript.refused {
        wrong.push(format!("EL2 refused: {invariant}: {place}"));
    }
    if wrong.is_empty() {
        return Ok(format!("{} commands", commands.len()));
    }
    let lines = transcript.lines.iter();
    wrong.extend(lines.map(|line| format!("  [{}] {}", line.speaker, line.text)));
    Err(wrong)
}

/// Puts U-Boot between the Trusted Firmware of a system's board and the image, which is on a disk. Returns who types the
/// commands that load it.
///
/// # Errors
///
/// The board has no such firmware, or it, U-Boot or the disk cannot be had.
pub fn between(
    context: &Context,
    folder: &Path,
    system: &System,
) -> Result<(Start, Typist), String> {
    let firmware = system.firmware.ok_or("its board has no Trusted Firmware")?;
    let firmware = firmware.with_u_boot();
    firmware.make().map_err(|e| e.to_string())?;
    let document = fs::read_to_string(context.root.join(DOCUMENT)).map_err(|e| e.to_string())?;
    let files = folder.join("files");
    fs::create_dir_all(&files).map_err(|e| e.to_string())?;
    fs::copy(&system.qemu.image, files.join(IMAGE)).map_err(|e| e.to_string())?;
    let start = Start::Loader {
        rom: firmware.file(),
        source: Source::Disk(files),
    };
    Ok((start, Typist::new(&below(&document, DISK, "=> "))))
}

/// A folder with what the boot loader can read: the image and its FIT.
fn files(folder: &Path, system: &System, fit: &[u8]) -> std::io::Result<PathBuf> {
    let files = folder.join("files");
    fs::create_dir_all(&files)?;
    fs::copy(&system.qemu.image, files.join(IMAGE))?;
    fs::write(files.join(FIT), fit)?;
    Ok(files)
}

/// The FIT of the system, as `build --fit` writes it, with room for signatures or not, and the board's device tree.
fn fit(root: &Path, system: &System, signed: bool) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let prepared = prepare::prepare(&root.join(SYSTEM), Effort::Everything)?;
    let image = fs::read(&system.qemu.image)
        .map_err(|e| Failure::environment("cannot read the image", e, ""))?;
    let fit = image::fit::of(&prepared.planned, &image, signed.then_some(KEY));
    Ok((fit, prepared.planned.board.dtb))
}

/// Signs a FIT by the steps of the document, and returns a device tree for U-Boot with the key in it.
fn sign(
    folder: &Path,
    (fit, board): (&[u8], &[u8]),
    steps: &[String],
) -> Result<PathBuf, Vec<String>> {
    let why = |error: &dyn std::fmt::Display| vec![error.to_string()];
    let tree = folder.join("u-boot.dtb");
    let place = folder.join(SIGNED);
    fs::create_dir_all(place.parent().unwrap_or(folder)).map_err(|e| why(&e))?;
    fs::write(place, fit).map_err(|e| why(&e))?;
    fs::write(&tree, board).map_err(|e| why(&e))?;
    let programs = ["mkdir ", "openssl ", "mkimage "];
    let steps = steps
        .iter()
        .filter(|step| programs.iter().any(|program| step.starts_with(program)));
    for step in steps {
        let mut command = Command::new("sh");
        command
            .args(["-c", step])
            .current_dir(folder)
            .stdin(Stdio::null());
        let output = command.output().map_err(|e| why(&e))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().map(|line| format!("  {line}"));
            let what = format!(
                "`{step}`: {} (Debian's u-boot-tools and openssl have what it needs)",
                output.status
            );
            return Err([what].into_iter().chain(said).collect());
        }
    }
    Ok(tree)
}

/// Makes sure that U-Boot answers the commands with `answer`, and does not start what it was given.
fn refused(
    qemu: &Qemu,
    scenario: &Scenario,
    commands: &[String],
    answer: &str,
) -> Result<(), Vec<String>> {
    let mut typist = Typist::new(commands);
    let ended = watch(qemu, scenario.guard(), |bytes| {
        let (keys, _) = typist.push(bytes);
        (keys, typist.stuck || typist.started)
    });
    ended.map_err(|error| vec![error.to_string()])?;
    let said = String::from_utf8_lossy(&typist.said).into_owned();
    if typist.stuck && !typist.started && said.contains(answer) {
        return Ok(());
    }
    let what = format!("U-Boot did not refuse it with `{answer}`");
    let said = said.lines().map(|line| format!("  {line}"));
    Err([what].into_iter().chain(said).collect())
}

/// Returns the lines below a heading of the document that begin with `start`, without that.
fn below(document: &str, heading: &str, start: &str) -> Vec<String> {
    let mut lines = document.lines();
    lines.find(|line| line.strip_prefix("### ") == Some(heading));
    lines
        .take_while(|line| !line.starts_with('#'))
        .filter_map(|line| line.strip_prefix(start))
        .map(str::to_owned)
        .collect()
}

/// Types commands at U-Boot's prompt until the image has started.
#[derive(Debug)]
pub struct Typist {
    left: VecDeque<String>,
    /// Everything that was on the console before the image.
    pub said: Vec<u8>,
    /// Whether the countdown to U-Boot's autoboot was stopped.
    stopped: bool,
    /// Whether the image has the board.
    pub started: bool,
    /// Whether all commands are typed, and U-Boot asks for one more.
    stuck: bool,
}

impl Typist {
    const PROMPT: &[u8] = b"\n=> ";
    const COUNTDOWN: &[u8] = b"Hit any key to stop autoboot";
    const STARTED: &[u8] = b"Starting kernel ...\r\n";

    fn new(commands: &[String]) -> Self {
        Self {
            left: commands.iter().cloned().collect(),
            said: Vec::new(),
            stopped: false,
            started: false,
            stuck: false,
        }
    }

    /// Takes what the console says; returns keys to type, and what the image has said.
    pub fn push(&mut self, bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
        if self.started {
            return (Vec::new(), bytes.to_vec());
        }
        let new = self.said.len();
        self.said.extend_from_slice(bytes);
        let find = |text: &[u8]| self.said.windows(text.len()).position(|w| w == text);
        if let Some(at) = find(Self::STARTED) {
            self.started = true;
            let rest = self.said.split_off(at + Self::STARTED.len());
            return (Vec::new(), rest);
        }
        if !self.stopped && find(Self::COUNTDOWN).is_some() {
            self.stopped = true;
            return (b" ".to_vec(), Vec::new());
        }
        // A prompt that was there before is answered already.
        if self.said.len() > new && self.said.ends_with(Self::PROMPT) {
            match self.left.pop_front() {
                Some(command) => return (format!("{command}\n").into_bytes(), Vec::new()),
                None => self.stuck = true,
            }
        }
        (Vec::new(), Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_has_commands_for_each_way() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let document = fs::read_to_string(root.join(DOCUMENT)).unwrap();
        for way in WAYS {
            let commands = below(&document, way.heading, "=> ");
            assert!(commands.len() >= 2, "{way:?}: {commands:?}");
        }
        let text = "### A\n```\n=> a 1\n=> b\nsaid\n```\n## Next\n=> c\n";
        assert_eq!(below(text, "A", "=> "), ["a 1", "b"]);
    }

    #[test]
    fn commands_are_typed_at_prompts_until_the_image_runs() {
        let mut typist = Typist::new(&["a".to_owned(), "b".to_owned()]);
        let keys = |typist: &mut Typist, text: &str| typist.push(text.as_bytes()).0;
        assert_eq!(keys(&mut typist, "Hit any key to stop auto"), b"");
        assert_eq!(keys(&mut typist, "boot:  2"), b" ");
        assert_eq!(keys(&mut typist, "\r\n=> "), b"a\n");
        assert_eq!(keys(&mut typist, ""), b"");
        assert_eq!(keys(&mut typist, "a\r\ndone\r\n=> "), b"b\n");
        let mut failing = Typist::new(&[]);
        assert_eq!(keys(&mut failing, "\n=> "), b"");
        assert!(failing.stuck);
        let (typed, rest) = typist.push(b"b\r\nStarting kernel ...\r\n[el2] up");
        assert_eq!((typed, rest), (Vec::new(), b"[el2] up".to_vec()));
        assert!(typist.started && !typist.stuck);
        assert_eq!(typist.push(b"\n=> "), (Vec::new(), b"\n=> ".to_vec()));
    }
}
