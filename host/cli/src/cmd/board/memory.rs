//! The memory of a board whose device tree leaves it to the firmware, while it is imported.

use std::io::{self, BufRead, Write};

use bulkhead_model::describe::memory_ranges;
use bulkhead_model::failure::Failure;

use crate::question;

/// How memory is stated.
pub(super) const EXAMPLE: &str = "--memory-ranges \"1GiB at 0x40000000\"";

/// The memory of a board whose tree does not tell of any, as whoever imports it says; none of another one. None when the input has
/// ended.
pub(super) fn stated(
    said: &[String],
    lacking: bool,
    terminal: Option<(&mut dyn BufRead, &mut dyn Write)>,
) -> Result<Option<Vec<String>>, Failure> {
    if !said.is_empty() && !lacking {
        return Err(Failure::input(
            "the board's memory is known",
            "the device tree says how much there is",
            "leave --memory-ranges out",
        ));
    }
    if !said.is_empty() {
        return match memory_ranges(said) {
            Ok(_) => Ok(Some(said.to_vec())),
            Err(why) => Err(Failure::input(
                "the memory cannot be understood",
                why,
                format!("such as {EXAMPLE}; several ranges ascend"),
            )),
        };
    }
    match terminal {
        _ if !lacking => Ok(Some(Vec::new())),
        Some(terminal) => ask_memory(terminal).map_err(|why| {
            let help = format!("say {EXAMPLE}");
            Failure::environment("cannot ask on the terminal", why, help)
        }),
        None => Err(Failure::input(
            "the board's device tree does not say how much memory there is",
            "the firmware fills it in",
            format!(
                "say {EXAMPLE} with the size and the address that the board has, or import the tree that the firmware hands over \
                 (/sys/firmware/fdt)"
            ),
        )),
    }
}

/// Asks for the memory until the answer is some. None when the input has ended.
fn ask_memory(
    (input, output): (&mut dyn BufRead, &mut dyn Write),
) -> io::Result<Option<Vec<String>>> {
    writeln!(
        output,
        "The device tree leaves the memory to the firmware. Each range is a size and an address; of several, commas between them:"
    )?;
    let question = "Which memory does it have? (such as 1GiB at 0x40000000)";
    while let Some(said) = question::answer(input, output, question)? {
        let ranges: Vec<String> = said.split(',').map(|one| one.trim().to_owned()).collect();
        match memory_ranges(&ranges) {
            Ok(_) => return Ok(Some(ranges)),
            Err(why) => writeln!(output, "{why}")?,
        }
    }
    Ok(None)
}
