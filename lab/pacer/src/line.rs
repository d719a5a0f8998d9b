//! The line that is being said, and the marks in it.

/// Most bytes of a line that are kept: a longer one has its marks before.
const LONGEST: usize = 4096;

/// Finds marks in a console's output, a byte at a time.
#[derive(Debug, Default)]
pub struct MarkFinder {
    marks: Vec<String>,
    said: Vec<u8>,
}

impl MarkFinder {
    /// Looks for these.
    pub fn new(marks: Vec<String>) -> Self {
        let said = Vec::new();
        Self { marks, said }
    }

    /// A byte was said: whether the line now ends with a mark that it did not have before.
    pub fn push(&mut self, byte: u8) -> bool {
        if byte == b'\n' || self.said.len() >= LONGEST {
            self.said.clear();
        }
        if byte != b'\n' {
            self.said.push(byte);
        }
        let said = &self.said;
        let ends = |mark: &&String| !mark.is_empty() && said.ends_with(mark.as_bytes());
        let before = said.get(..said.len().saturating_sub(1)).unwrap_or_default();
        let is_new = |mark: &String| !before.windows(mark.len()).any(|at| at == mark.as_bytes());
        self.marks.iter().filter(ends).any(is_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(marks: &[&str], said: &str) -> Vec<usize> {
        let mut line = MarkFinder::new(marks.iter().map(|mark| (*mark).to_owned()).collect());
        let bytes = said.bytes().enumerate();
        let held = bytes.filter_map(|(at, byte)| line.push(byte).then_some(at));
        held.collect()
    }

    #[test]
    fn a_mark_holds_once_in_a_line_at_its_last_byte() {
        assert_eq!(at(&["ab"], "xab ab\nab"), [2, 8]);
        assert_eq!(at(&["~ # ", ""], "[linux] ~ # "), [11]);
        assert_eq!(at(&["ab"], "a\nb"), [0; 0]);
        assert_eq!(at(&["ab", "b"], "ab b"), [1]);
        let long = format!("{}ab", "x".repeat(2 * LONGEST));
        assert_eq!(at(&["ab"], &long), [2 * LONGEST + 1]);
    }
}
