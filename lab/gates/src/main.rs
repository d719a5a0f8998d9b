//! `bulkhead-gates EL2.ELF`: judges an image by hand. Options name more roots and another stack limit.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use bulkhead_gates::{Limits, judge};

const USAGE: &str =
    "usage: bulkhead-gates EL2.ELF [--entry SYMBOL].. [--stack-setter SYMBOL].. [--stack BYTES]
example: bulkhead-gates out/demo/el2.elf --stack 8192";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether the image named by the arguments passes.
fn run() -> Result<bool, String> {
    let mut limits = Limits::default();
    let mut file = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .ok_or_else(|| format!("{argument} needs a value\n{USAGE}"))
        };
        match argument.as_str() {
            "--entry" => limits.entries.push(value()?),
            "--stack-setter" => limits.stack_setters.push(value()?),
            "--stack" => {
                let bytes = value()?;
                limits.stack = bytes
                    .parse()
                    .map_err(|_| format!("--stack {bytes}: not a number of bytes"))?;
            }
            _ if argument.starts_with('-') || file.is_some() => {
                return Err(format!("{argument}: unexpected\n{USAGE}"));
            }
            _ => file = Some(argument),
        }
    }
    let file = file.ok_or(USAGE)?;
    let elf = std::fs::read(&file).map_err(|error| format!("can't read {file}: {error}"))?;
    let report = judge(&elf, &limits).map_err(|error| format!("{file}: {error}"))?;
    print!("{report}");
    Ok(report.passed())
}
