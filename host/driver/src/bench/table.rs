//! The figures as a table for a terminal.

use std::fmt::Write as _;

use bulkhead_runner::columns::{Column, Columns};

use super::figure::Figure;

/// Width of a bar; the ceiling is its end.
const BAR: usize = 20;
/// Names read from the left, numbers from the right. The bar is the last: codes of colours have no width.
const COLUMNS: [Column; 9] = [
    Column::Left(0),
    Column::Right(0),
    Column::Right(0),
    Column::Right(0),
    Column::Left(0),
    Column::Right(0),
    Column::Right(0),
    Column::Right(0),
    Column::Left(0),
];
/// Parts of a figure that are shown below the table.
const PARTS: usize = 12;

/// The table; coloured bars if `colours`.
pub fn table(figures: &[Figure], colours: bool) -> String {
    let head = [
        "figure",
        "value",
        "ceiling",
        "goal",
        "best peer",
        "sysregs",
        "barriers",
        "memory",
        "",
    ];
    let mut columns = Columns::new(&COLUMNS);
    columns.row(head.map(str::to_owned));
    let optional = |value: Option<f64>| value.map_or_else(String::new, number);
    for figure in figures {
        let peer = match (figure.peer, &figure.peer_name) {
            (Some(value), Some(name)) => format!("{value} {name}"),
            _ => String::new(),
        };
        columns.row([
            figure.name.clone(),
            number(figure.value),
            ceiling(figure),
            figure.goal.to_string(),
            peer,
            optional(figure.sysregs),
            optional(figure.barriers),
            optional(figure.memory),
            bar(figure, colours),
        ]);
    }
    let mut text = columns.text("");
    for figure in figures.iter().filter(|figure| !figure.parts.is_empty()) {
        let _ = writeln!(text, "\n{}: {}", figure.name, figure.note);
        let parts = by_function(figure);
        for (name, value, times) in parts.iter().take(PARTS) {
            let times = if *times > 1 {
                format!(" ({times} times)")
            } else {
                String::new()
            };
            let _ = writeln!(text, "  {value:>8} {name}{times}");
        }
        let rest: u64 = parts.iter().skip(PARTS).map(|part| part.1).sum();
        if rest != 0 {
            let _ = writeln!(text, "  {rest:>8} in {} more", parts.len() - PARTS);
        }
    }
    text
}

/// Parts of a figure: name, sum, and how often it came. In the order of the first visit if all can be shown,
/// else by size.
fn by_function(figure: &Figure) -> Vec<(&str, u64, usize)> {
    let mut parts: Vec<(&str, u64, usize)> = Vec::new();
    for part in &figure.parts {
        match parts.iter_mut().find(|known| known.0 == part.name) {
            Some(known) => {
                known.1 += part.value;
                known.2 += 1;
            }
            None => parts.push((&part.name, part.value, 1)),
        }
    }
    if parts.len() > PARTS {
        parts.sort_by_key(|part| std::cmp::Reverse(part.1));
    }
    parts
}

/// The ceiling, and in brackets the one that was asked for if it does not hold yet.
fn ceiling(figure: &Figure) -> String {
    match figure.asked {
        Some(asked) => format!("{} ({asked})", figure.ceiling),
        None => figure.ceiling.to_string(),
    }
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

#[cfg(test)]
mod tests {
    use super::super::figure::Part;
    use super::*;

    fn figure(value: f64) -> Figure {
        Figure {
            name: "hvc_null".to_owned(),
            operation: "PSCI_VERSION by HVC".to_owned(),
            value,
            unit: "instructions".to_owned(),
            ceiling: 90,
            asked: None,
            goal: 60,
            peer: Some(126),
            peer_name: Some("hvisor".to_owned()),
            sysregs: Some(4.0),
            barriers: Some(0.0),
            memory: Some(38.5),
            exits: Some(1.0),
            parts: Vec::new(),
            note: String::new(),
        }
    }

    #[test]
    fn a_row_says_all_and_how_it_stands() {
        let row = |value| {
            table(&[figure(value)], false)
                .lines()
                .nth(1)
                .unwrap_or("")
                .to_owned()
        };
        let cells: Vec<String> = row(45.0).split_whitespace().map(str::to_owned).collect();
        let expected = [
            "hvc_null", "45", "90", "60", "126", "hvisor", "4", "0", "38.5",
        ];
        assert_eq!(cells[..9], expected);
        assert_eq!(cells[9], format!("{}{}", "█".repeat(10), "░".repeat(10)));
        assert!(row(60.001).ends_with("above goal"));
        assert!(row(90.0).ends_with("above goal"));
        assert!(row(90.001).ends_with("ABOVE CEILING"));
    }

    #[test]
    fn colours_only_where_they_are_wanted() {
        assert!(!table(&[figure(95.0)], false).contains('\x1b'));
        assert!(table(&[figure(95.0)], true).contains("\x1b[31m"));
        assert!(table(&[figure(60.0)], true).contains("\x1b[32m"));
    }

    #[test]
    fn a_path_is_summed_by_function() {
        let part = |name: &str, value| Part {
            name: name.to_owned(),
            value,
        };
        let mut long = figure(100.0);
        long.note = "irq 33".to_owned();
        long.parts = vec![
            part("vectors", 13),
            part("drain", 32),
            part("next", 50),
            part("drain", 20),
        ];
        let text = table(&[long], false);
        let tail: Vec<&str> = text.lines().skip(3).collect();
        assert_eq!(
            tail,
            [
                "hvc_null: irq 33",
                "        13 vectors",
                "        52 drain (2 times)",
                "        50 next"
            ]
        );
    }
}
