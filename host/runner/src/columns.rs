//! Tables as they are printed: plain text in columns, the same on a terminal and in a file.

use comfy_table::{CellAlignment, ColumnConstraint, Table, Width, presets};

/// Characters between columns.
const GAP: u16 = 2;

/// The words of a text in lines of so many characters at most.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A column: at which end of it cells stand, and how many characters it has at least. With a least width a table that
/// is printed again and again does not move with its numbers, and tables below each other line up.
#[derive(Clone, Copy, Debug)]
pub enum Column {
    /// Names and sentences.
    Left(u16),
    /// Numbers.
    Right(u16),
}

/// Rows whose columns are as wide as their longest cell.
#[derive(Debug)]
pub struct Columns(Table);

impl Columns {
    /// An empty table.
    pub fn new(columns: &[Column]) -> Self {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        // Columns exist once a row has them.
        table.set_header(vec![""; columns.len()]);
        for (column, wanted) in table.column_iter_mut().zip(columns) {
            let (alignment, least) = match *wanted {
                Column::Left(least) => (CellAlignment::Left, least),
                Column::Right(least) => (CellAlignment::Right, least),
            };
            column.set_padding((0, GAP));
            column.set_cell_alignment(alignment);
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least + GAP)));
        }
        Self(table)
    }

    /// Adds a row, with a cell for each column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.0.add_row(cells.into_iter().collect::<Vec<_>>());
    }

    /// The rows, each a line that begins with `indent` and has no blanks at its end.
    pub fn text(&self, indent: &str) -> String {
        // The first line is what made the columns.
        let lines = self.0.lines().skip(1);
        lines
            .map(|line| format!("{}\n", format!("{indent}{line}").trim_end()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(columns: &[Column], indent: &str) -> String {
        let mut table = Columns::new(columns);
        for row in [["VM", "turns", ""], ["linux-é", "7", "ends here"]] {
            table.row(row.map(str::to_owned));
        }
        table.text(indent)
    }

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let columns = [Column::Left(0), Column::Right(0), Column::Left(0)];
        let expected = "  VM       turns\n  linux-é      7  ends here\n";
        assert_eq!(text(&columns, "  "), expected);
    }

    #[test]
    fn a_least_width_holds_and_does_not_cut() {
        let columns = [Column::Left(4), Column::Right(8), Column::Left(0)];
        let expected = "VM          turns\nlinux-é         7  ends here\n";
        assert_eq!(text(&columns, ""), expected);
    }
}
