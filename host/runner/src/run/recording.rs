//! A run in one file: what was said, when and by whom, how it ended, and what EL2 took of it.
//!
//! The file has one JSON document in each line, so that one whose run was killed can be read as far as it goes: first
//! [`Head`], then a [`Said`] for each line of the console, at last [`Tail`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::console::{ConsoleLine, ExitTable, VmEnd};

/// Kind in the first line of every recording.
const KIND: &str = "recording";
/// Version of the format. A tool reads no other.
const VERSION: u32 = 1;

/// First line: what ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// "recording".
    pub bulkhead: String,
    /// Version of the format.
    pub version: u32,
    /// Name of the system.
    pub system: String,
    /// Class of each VM by name.
    pub classes: BTreeMap<String, String>,
}

/// A line of the console.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// Milliseconds of the host's clock from the start of the run to its end of line.
    pub ms: u64,
    /// Who: a VM, `el2` or `board`.
    pub from: String,
    /// What. A line that another speaker has cut is there in pieces, each with everything so far.
    pub text: String,
}

/// Last line: how the run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tail {
    /// "powered-off", "quit", "signal", "timed-out".
    pub ended: String,
    /// Milliseconds that it took.
    pub ms: u64,
    /// VMs that stopped, in that order.
    pub stopped: Vec<VmEnd>,
    /// Invariant and place, if EL2 refused the plan.
    pub refused: Option<(String, String)>,
    /// Exits by vCPU, as EL2 reported them.
    pub exits: Vec<ExitTable>,
}

/// A recording under way.
#[derive(Debug)]
pub struct Recorder {
    file: BufWriter<File>,
    start: Instant,
}

impl Recorder {
    /// Makes the file and writes its head; time counts from now.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(
        path: &Path,
        system: &str,
        classes: &BTreeMap<String, String>,
    ) -> io::Result<Self> {
        let mut recorder = Self {
            file: BufWriter::new(File::create(path)?),
            start: Instant::now(),
        };
        recorder.put(&Head {
            bulkhead: KIND.to_owned(),
            version: VERSION,
            system: system.to_owned(),
            classes: classes.clone(),
        })?;
        Ok(recorder)
    }

    fn put(&mut self, document: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.file, document)?;
        self.file.write_all(b"\n")
    }

    fn ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Adds lines that have just been said.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, lines: &[ConsoleLine]) -> io::Result<()> {
        let ms = self.ms();
        for line in lines {
            self.put(&Said {
                ms,
                from: line.speaker.name().to_owned(),
                text: line.text.clone(),
            })?;
        }
        // What is not in the file when the tool is killed is lost.
        self.file.flush()
    }

    /// Ends the recording; `ms` of the tail is set here.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn end(mut self, mut tail: Tail) -> io::Result<()> {
        tail.ms = self.ms();
        self.put(&tail)?;
        self.file.flush()
    }
}

/// A recording that was read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recording {
    /// First line: what ran.
    pub head: Head,
    /// Lines of the console.
    pub lines: Vec<Said>,
    /// Last line: the end of the run; none: the tool was killed before.
    pub tail: Option<Tail>,
}

impl Recording {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// Why it is no recording, with the number of the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().enumerate();
        let (_, first) = lines.next().ok_or("it is empty")?;
        let head: Head = serde_json::from_str(first)
            .map_err(|why| format!("its first line is no head: {why}"))?;
        if head.bulkhead != KIND || head.version != VERSION {
            let (kind, version) = (&head.bulkhead, head.version);
            return Err(format!(
                "it is a {kind} of version {version}, this tool reads version {VERSION}"
            ));
        }
        let mut recording = Self {
            head,
            lines: Vec::new(),
            tail: None,
        };
        let last = text.lines().count() - 1;
        for (number, line) in lines {
            if let Ok(said) = serde_json::from_str(line) {
                recording.lines.push(said);
                continue;
            }
            match serde_json::from_str(line) {
                Ok(tail) if number == last => recording.tail = Some(tail),
                // The tool was killed in the middle of it.
                _ if number == last && !text.ends_with('\n') => {}
                _ => return Err(format!("line {} is no line of a recording", number + 1)),
            }
        }
        Ok(recording)
    }

    /// Leaves only what these have said; without names, everything.
    ///
    /// # Errors
    /// A name that neither the system has nor the console.
    pub fn keep(&mut self, names: &[String]) -> Result<(), String> {
        let known = |name: &String| {
            ["el2", "board"].contains(&name.as_str()) || self.head.classes.contains_key(name)
        };
        if let Some(unknown) = names.iter().find(|name| !known(name)) {
            return Err(unknown.clone());
        }
        if !names.is_empty() {
            self.lines.retain(|said| names.contains(&said.from));
            if let Some(tail) = &mut self.tail {
                tail.stopped.retain(|end| names.contains(&end.vm));
                tail.exits.retain(|table| names.contains(&table.vm));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::console::Transcript;

    fn recorded() -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let classes = BTreeMap::from([
            ("a".to_owned(), "general".to_owned()),
            ("b".to_owned(), "general".to_owned()),
        ]);
        let mut recorder = Recorder::create(&path, "demo", &classes).unwrap();
        let mut transcript = Transcript::default();
        transcript.push(b"[a] hello \"you\"\r\n[b] \xff\r\n[el2] vm a stopped: power off\r\n");
        recorder.add(&transcript.lines).unwrap();
        let tail = Tail {
            ended: "powered-off".to_owned(),
            ms: 0,
            stopped: transcript.ended.clone(),
            refused: None,
            exits: vec![ExitTable {
                vm: "a".to_owned(),
                ..ExitTable::default()
            }],
        };
        recorder.end(tail).unwrap();
        std::fs::read_to_string(&path).unwrap()
    }

    #[test]
    fn what_was_recorded_is_read_and_one_vm_can_be_picked_out() {
        let mut recording = Recording::parse(&recorded()).unwrap();
        assert_eq!(recording.head.system, "demo");
        let said: Vec<_> = recording
            .lines
            .iter()
            .map(|said| (said.from.as_str(), said.text.as_str()))
            .collect();
        assert_eq!(
            said,
            [
                ("a", "hello \"you\""),
                ("b", "\u{fffd}"),
                ("el2", "vm a stopped: power off")
            ]
        );
        assert_eq!(recording.tail.as_ref().unwrap().stopped[0].vm, "a");
        assert_eq!(recording.keep(&["c".to_owned()]), Err("c".to_owned()));
        recording.keep(&["b".to_owned()]).unwrap();
        assert_eq!(recording.lines.len(), 1);
        let tail = recording.tail.unwrap();
        assert!(tail.stopped.is_empty() && tail.exits.is_empty());
    }

    #[test]
    fn a_recording_that_was_cut_is_read_as_far_as_it_goes_and_others_are_refused() {
        let whole = recorded();
        let cut = Recording::parse(&whole[..whole.len() - 20]).unwrap();
        assert_eq!((cut.lines.len(), cut.tail), (3, None));
        assert!(Recording::parse("").unwrap_err().contains("empty"));
        assert!(
            Recording::parse("[a] text\n")
                .unwrap_err()
                .contains("first line")
        );
        let newer = whole.replacen("\"version\":1", "\"version\":2", 1);
        assert!(Recording::parse(&newer).unwrap_err().contains("version 2"));
        let broken = whole.replacen("{\"ms\"", "{\"m\"", 1);
        assert_eq!(
            Recording::parse(&broken).unwrap_err(),
            "line 2 is no line of a recording"
        );
    }
}
