//! U-Boot loads the image: from a disk and over a network, by the very commands that `docs/boot.md` shows.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use super::judge::Judge;
use super::scenario::Scenario;
use super::suite::{Context, Job, Test};
use super::systems::watch;
use crate::failure::Failure;
use crate::planner::Effort;
use crate::run::{Source, Start, System};
use crate::{fetch, image, system};

/// The system that is loaded.
const SYSTEM: &str = "tests/systems/boot-loader.toml";
/// Name of its FIT in the document.
const FIT: &str = "bulkhead.itb";
/// Where the commands are.
const DOCUMENT: &str = "docs/boot.md";
/// What the system has to do once it was loaded; the seconds are for the loader, too.
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
    /// What it proves.
    claim: &'static str,
    /// The board has a network instead of a disk.
    network: bool,
}

const WAYS: [Way; 4] = [
    Way {
        name: "disk",
        heading: "From a disk",
        claim: "U-Boot loads the image from a partition and starts it with booti; the system runs, U-Boot's own memory is a VM's.",
        network: false,
    },
    Way {
        name: "tftp",
        heading: "Over the network",
        claim: "U-Boot loads the image over TFTP to where it usually puts kernels, and booti moves it to its place.",
        network: true,
    },
    Way {
        name: "fit",
        heading: "As a FIT",
        claim: "U-Boot checks the sums of a FIT and starts the image in it with bootm and the device tree in it.",
        network: false,
    },
    Way {
        name: "fit-own-tree",
        heading: "As a FIT, with U-Boot's own device tree",
        claim: "U-Boot starts the image of a FIT with its own device tree.",
        network: false,
    },
];

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let one = |way: Way| {
        let job: Job = Box::new(move |context| boot(context, way));
        Test::parallel(format!("boot/u-boot-{}", way.name), way.claim, job)
    };
    WAYS.into_iter().map(one).collect()
}

fn boot(context: &Context, way: Way) -> Result<String, Vec<String>> {
    let why = |error: &dyn std::fmt::Display| vec![error.to_string()];
    let document = fs::read_to_string(context.root.join(DOCUMENT)).map_err(|e| why(&e))?;
    let commands = commands(&document, way.heading);
    let scenario = Scenario::made(EXPECTED).map_err(|e| vec![e])?;
    let system = context
        .builds
        .get(&context.root.join(SYSTEM))
        .map_err(|e| why(&e))?;
    let folder = context.logs.join("boot").join(way.name);
    let fit = fit(&context.root, &system).map_err(|e| why(&e))?;
    let files = files(&folder, &system, &fit).map_err(|e| why(&e))?;
    let mut qemu = system.qemu.clone();
    // A busy host must not make the guests slow.
    qemu.clock = scenario.clock.into();
    qemu.start = Start::Loader {
        rom: fetch::payload("u-boot").map_err(|e| why(&e))?,
        source: match way.network {
            true => Source::Network(files),
            false => Source::Disk(files),
        },
    };
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

/// A folder with what the boot loader can read: the image and its FIT.
fn files(folder: &Path, system: &System, fit: &[u8]) -> std::io::Result<PathBuf> {
    let files = folder.join("files");
    fs::create_dir_all(&files)?;
    fs::copy(&system.qemu.image, files.join("bulkhead.img"))?;
    fs::write(files.join(FIT), fit)?;
    Ok(files)
}

/// The FIT of the system, as `build --fit` writes it.
fn fit(root: &Path, system: &System) -> Result<Vec<u8>, Failure> {
    let prepared = system::prepare(&root.join(SYSTEM), Effort::Everything)?;
    let image = fs::read(&system.qemu.image)
        .map_err(|e| Failure::environment("cannot read the image", e, ""))?;
    Ok(image::fit::of(&prepared.planned, &image, None))
}

/// The lines with U-Boot's prompt below a heading of the document.
fn commands(document: &str, heading: &str) -> Vec<String> {
    let mut lines = document.lines();
    lines.find(|line| line.strip_prefix("### ") == Some(heading));
    lines
        .take_while(|line| !line.starts_with('#'))
        .filter_map(|line| line.strip_prefix("=> "))
        .map(str::to_owned)
        .collect()
}

/// Types commands at U-Boot's prompt until the image has started.
#[derive(Debug)]
struct Typist {
    left: VecDeque<String>,
    said: Vec<u8>,
    /// The count-down to what U-Boot would do by itself was stopped.
    stopped: bool,
    /// The image has the board.
    started: bool,
    /// All commands are typed, and U-Boot asks for one more.
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

    /// Takes what the console says; gives keys to type, and what the image has said.
    fn push(&mut self, bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
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
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let document = fs::read_to_string(root.join(DOCUMENT)).unwrap();
        for way in WAYS {
            let commands = commands(&document, way.heading);
            assert!(commands.len() >= 2, "{way:?}: {commands:?}");
        }
        let text = "### A\n```\n=> a 1\n=> b\nsaid\n```\n## Next\n=> c\n";
        assert_eq!(super::commands(text, "A"), ["a 1", "b"]);
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
