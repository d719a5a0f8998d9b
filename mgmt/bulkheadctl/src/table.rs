//! Tables: columns as wide as their longest cell, two blanks between them.

use crate::output::{Paint, Printer};

/// A table.
#[derive(Debug)]
pub struct Table {
    /// Numbers stand at the right end of their column.
    numbers: Vec<bool>,
    rows: Vec<(Option<Paint>, Vec<String>)>,
}

impl Table {
    /// A table with these headings; those that begin with `>` are of numbers.
    pub fn new(headings: &[&str]) -> Self {
        let words = headings
            .iter()
            .map(|heading| heading.trim_start_matches('>').to_owned());
        Self {
            numbers: headings
                .iter()
                .map(|heading| heading.starts_with('>'))
                .collect(),
            rows: vec![(Some(Paint::Bold), words.collect())],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, paint: Option<Paint>, cells: impl IntoIterator<Item = String>) {
        self.rows.push((paint, cells.into_iter().collect()));
    }

    /// Its lines, without blanks at their ends.
    pub fn text(&self, printer: &Printer) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|(_, row)| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.numbers.len()).map(width).collect();
        let mut text = String::new();
        for (paint, row) in &self.rows {
            let mut line = String::new();
            for ((cell, width), number) in row.iter().zip(&widths).zip(&self.numbers) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                let blanks = " ".repeat(width - cell.chars().count());
                let (before, behind) = if *number {
                    (blanks, String::new())
                } else {
                    (String::new(), blanks)
                };
                line = line + &before + cell + &behind;
            }
            let line = line.trim_end();
            text += &paint.map_or_else(|| line.to_owned(), |paint| printer.paint(paint, line));
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_at_the_right_and_lines_end_without_blanks() {
        let printer = Printer {
            json: false,
            terminal: false,
            colours: false,
        };
        let mut table = Table::new(&["VM", ">LIVES", "END"]);
        table.row(None, ["linux-é", "7", ""].map(str::to_owned));
        table.row(Some(Paint::Dim), ["rt", "12", "crash"].map(str::to_owned));
        assert_eq!(
            table.text(&printer),
            "VM       LIVES  END\nlinux-é      7\nrt          12  crash\n"
        );
        let painted = Printer {
            colours: true,
            ..printer
        };
        assert!(
            table
                .text(&painted)
                .ends_with("\x1b[2mrt          12  crash\x1b[0m\n")
        );
    }
}
