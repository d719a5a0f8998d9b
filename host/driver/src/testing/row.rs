//! Rows of numbered lines, of which none may lack a byte.

use serde::Deserialize;

/// Lines that differ in a number of four digits, from 0000 on.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The words before the number.
    pub before: String,
    /// The words behind it.
    pub behind: String,
    /// Number of lines.
    pub lines: usize,
}

impl Row {
    /// Returns what is wrong with the lines of a VM, of which others may be in between.
    pub fn flaw<'a>(&self, mut said: impl Iterator<Item = &'a str>) -> Option<String> {
        (0..self.lines).find_map(|n| {
            let line = format!("{}{n:04}{}", self.before, self.behind);
            let came = said.any(|text| text.trim_end() == line);
            (!came).then(|| format!("`{line}` did not come whole, or not in order"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_lines_is_whole_and_in_order() {
        let row = Row {
            before: "line ".to_owned(),
            behind: " end".to_owned(),
            lines: 2,
        };
        let flaw = |said: &[&str]| row.flaw(said.iter().copied());
        assert_eq!(flaw(&["line 0000 end", "other", "line 0001 end\r"]), None);
        for said in [
            &["line 0000 end"][..],
            &["line 0001 end", "line 0000 end"],
            &["line 0000 end", "line 0001 nd"],
        ] {
            let flaw = flaw(said).unwrap();
            assert!(flaw.starts_with("`line 0001 end` did not"), "{flaw}");
        }
    }
}
