//! What `bulkhead init` asks on a terminal.

use std::io::{self, BufRead, Write};

use super::MOST_CPUS;
use super::guest::{Guest, KINDS};
use crate::failure::Failure;

/// One answer; none when the input has ended.
fn answer(
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    question: &str,
) -> io::Result<Option<String>> {
    write!(output, "{question} ")?;
    output.flush()?;
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        writeln!(output)?;
        return Ok(None);
    }
    Ok(Some(line.trim().to_owned()))
}

/// Asks for a board among `known`; Enter takes `default`. None when the input has ended.
///
/// # Errors
/// The terminal cannot be read or written.
pub fn ask_board(
    (input, output): (&mut dyn BufRead, &mut dyn Write),
    known: &[String],
    default: &str,
) -> io::Result<Option<String>> {
    let question = format!(
        "Which board ({}; or a .dtb file)? [{default}]",
        known.join(", ")
    );
    let said = answer(input, output, &question)?;
    Ok(said.map(|said| {
        if said.is_empty() {
            default.to_owned()
        } else {
            said
        }
    }))
}

/// Asks for guests until an empty answer, a wrong one again; at least one, the `default` if need be. None when the
/// input has ended before an empty answer.
///
/// # Errors
/// The terminal cannot be read or written.
pub fn ask_guests(
    (input, output): (&mut dyn BufRead, &mut dyn Write),
    default: &str,
    parse: impl Fn(&str, &[Guest]) -> Result<Guest, Failure>,
) -> io::Result<Option<Vec<Guest>>> {
    writeln!(output, "A guest is {KINDS}; NAME= before it names its VM.")?;
    let mut guests = Vec::new();
    while guests.len() < MOST_CPUS {
        let question = match guests.len() {
            0 => format!("First guest? [{default}]"),
            _ => "Another guest? [no]".to_owned(),
        };
        let Some(said) = answer(input, output, &question)? else {
            return Ok(None);
        };
        let spec = match (said.as_str(), guests.len()) {
            ("", 0) => default,
            ("" | "no" | "n", _) => break,
            (said, _) => said,
        };
        match parse(spec, &guests) {
            Ok(guest) => guests.push(guest),
            Err(failure) => writeln!(output, "{failure}")?,
        }
    }
    Ok(Some(guests))
}
