//! The figures as a table for a terminal.

use std::fmt::Write as _;

use super::figure::Figure;

/// Width of a bar; the ceiling is its end.
const BAR: usize = 20;
/// Parts of a figure that are shown below the table.
const PARTS: usize = 12;

/// The table; coloured bars if `colours`.
pub fn table(figures: &[Figure], colours: bool) -> String {
    let mut rows = vec![
        [
            "figure",
            "value",
            "ceiling",
            "goal",
            "best peer",
            "sysregs",
            "barriers",
            "memory",
        ]
        .map(str::to_owned),
    ];
    let optional = |value: Option<f64>| value.map_or_else(String::new, number);
    for figure in figures {
        let peer = match (figure.peer, &figure.peer_name) {
            (Some(value), Some(name)) => format!("{value} {name}"),
            _ => String::new(),
        };
        rows.push([
            figure.name.clone(),
            number(figure.value),
            figure.ceiling.to_string(),
            figure.goal.to_string(),
            peer,
            optional(figure.sysregs),
            optional(figure.barriers),
            optional(figure.memory),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..8).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (column, cell) in row.iter().enumerate() {
            // Names read from the left, numbers from the right.
            let _ = match column {
                0 | 4 => write!(text, "{cell:<0$}  ", widths[column]),
                _ => write!(text, "{cell:>0$}  ", widths[column]),
            };
        }
        if let Some(figure) = index.checked_sub(1).and_then(|index| figures.get(index)) {
            text.push_str(&bar(figure, colours));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    for figure in figures.iter().filter(|figure| !figure.parts.is_empty()) {
        let _ = writeln!(text, "\n{}: {}", figure.name, figure.note);
        for part in figure.parts.iter().take(PARTS) {
            let _ = writeln!(text, "  {:>8} {}", part.value, part.name);
        }
        let rest: u64 = figure.parts.iter().skip(PARTS).map(|part| part.value).sum();
        if rest != 0 {
            let _ = writeln!(text, "  {rest:>8} in {} more", figure.parts.len() - PARTS);
        }
    }
    text
}

/// Whole numbers without decimals, others with as many as say something.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn bar(figure: &Figure, colours: bool) -> String {
    let share = figure.value / figure.ceiling as f64;
    let filled = ((share * BAR as f64).round() as usize).min(BAR);
    let (colour, word) = match (figure.reached(), figure.holds()) {
        (true, _) => ("32", ""),
        (_, true) => ("33", " above goal"),
        _ => ("31", " ABOVE CEILING"),
    };
    let bar = format!("{}{}", "█".repeat(filled), "░".repeat(BAR - filled));
    if colours {
        format!("\x1b[{colour}m{bar}\x1b[0m{word}")
    } else {
        format!("{bar}{word}")
    }
}
