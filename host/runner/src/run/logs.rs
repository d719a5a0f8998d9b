//! Log files: one for each speaker on the console, and one with everything.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::console::ConsoleLine;

/// A folder of log files, written line by line.
#[derive(Debug)]
pub struct Logs {
    folder: PathBuf,
    all: File,
    speakers: BTreeMap<String, File>,
}

impl Logs {
    /// Makes the folder and its `console.log`; files of an earlier run are overwritten.
    ///
    /// # Errors
    ///
    /// The folder cannot be made or written.
    pub fn create(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            all: File::create(folder.join("console.log"))?,
            speakers: BTreeMap::new(),
        })
    }

    /// The same, without logs of an earlier run: one of a VM that has gone would be taken for this run's.
    ///
    /// # Errors
    ///
    /// The folder cannot be made, emptied of logs or written.
    pub fn renew(folder: &Path) -> io::Result<Self> {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "log") {
                fs::remove_file(path)?;
            }
        }
        Self::create(folder)
    }

    /// Adds a line to the file of its speaker (`<name>.log`) and to `console.log`. The former has whole lines; the
    /// latter has pieces of lines as they came, with the console's labels.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    pub fn add(&mut self, line: &ConsoleLine) -> io::Result<()> {
        let name = line.speaker.name();
        let (mark, piece) = match line.goes_on.and_then(|from| line.text.get(from..)) {
            Some(rest) => ("+", rest),
            None => ("", line.text.as_str()),
        };
        writeln!(self.all, "[{name}{mark}] {piece}")?;
        if !self.speakers.contains_key(name) {
            let file = File::create(self.folder.join(format!("{name}.log")))?;
            self.speakers.insert(name.to_owned(), file);
        }
        match self.speakers.get_mut(name) {
            Some(file) => {
                if line.goes_on.is_some() {
                    // In place of the end of line.
                    file.seek(SeekFrom::Current(-1))?;
                }
                writeln!(file, "{piece}")
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::console::Splitter;

    #[test]
    fn no_log_of_an_earlier_run_is_left() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["gone.log", "kept.txt"] {
            fs::write(folder.path().join(name), "old").unwrap();
        }
        Logs::renew(folder.path()).unwrap();
        let left = |name| folder.path().join(name).exists();
        assert!(!left("gone.log") && left("kept.txt") && left("console.log"));
        Logs::renew(&folder.path().join("new")).unwrap();
    }

    #[test]
    fn a_line_that_was_cut_is_whole_in_the_file_of_its_vm() {
        let folder = tempfile::tempdir().unwrap();
        let mut logs = Logs::create(folder.path()).unwrap();
        let console = b"[two] h\r\n[one] x\r\n[two+] ello\r\n[one] y\r\n[two+]  all\r\n[two] z\r\n";
        for line in Splitter::default().push(console) {
            logs.add(&line).unwrap();
        }
        let read = |name| fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read("two.log"), "hello all\nz\n");
        assert_eq!(read("one.log"), "x\ny\n");
        let all = "[two] h\n[one] x\n[two+] ello\n[one] y\n[two+]  all\n[two] z\n";
        assert_eq!(read("console.log"), all);
    }

    #[test]
    fn each_speaker_has_a_file_and_one_has_all() {
        let folder = tempfile::tempdir().unwrap();
        let mut logs = Logs::create(&folder.path().join("deep/er")).unwrap();
        for raw in ["[linux] up\r\n", "[el2] all VMs stopped\r\n", "noise\r\n"] {
            logs.add(&ConsoleLine::parse(raw.as_bytes())).unwrap();
        }
        let read = |name| fs::read_to_string(folder.path().join("deep/er").join(name)).unwrap();
        assert_eq!(read("linux.log"), "up\n");
        assert_eq!(read("el2.log"), "all VMs stopped\n");
        assert_eq!(read("board.log"), "noise\n");
        assert_eq!(
            read("console.log"),
            "[linux] up\n[el2] all VMs stopped\n[board] noise\n"
        );
    }
}
