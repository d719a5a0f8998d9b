//! The file of the run's records.

use std::path::PathBuf;

use bulkhead_plugin::sanitizer::Record;

/// File of the records. Each is written at once: an emulator that is killed takes nothing with it.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
}

impl Output {
    /// Starts the file.
    ///
    /// # Errors
    ///
    /// It can't be written.
    pub fn create(path: PathBuf) -> Result<Self, String> {
        let written = std::fs::write(&path, b"");
        written.map_err(|error| format!("can't write {}: {error}", path.display()))?;
        let output = Self { path };
        output.add(&Record::Watching);
        Ok(output)
    }

    /// Adds a record. One that can't be written goes to the standard error.
    pub fn add(&self, record: &Record) {
        use std::io::Write;
        let text = serde_json::to_string(record).unwrap_or_default();
        let file = std::fs::OpenOptions::new().append(true).open(&self.path);
        let written = file.and_then(|mut file| file.write_all(format!("{text}\n").as_bytes()));
        if let Err(error) = written {
            eprintln!(
                "bulkhead-sanitizer: can't write {}: {error}; lost: {text}",
                self.path.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_plugin::sanitizer::read;

    #[test]
    fn records_are_in_the_file_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.jsonl");
        std::fs::write(&path, "old").unwrap();
        let output = Output::create(path.clone()).unwrap();
        output.add(&Record::Entered(3));
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(read(&text), Ok((1, Vec::new())));
        let nowhere = folder.path().join("none/x");
        assert!(
            Output::create(nowhere)
                .unwrap_err()
                .starts_with("can't write")
        );
    }
}
