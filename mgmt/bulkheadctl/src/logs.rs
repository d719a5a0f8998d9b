//! `logs`: what a VM has printed.

use std::fs::File;
use std::io::{Write, stderr, stdout};

use bulkhead_abi::control::EVENT_OUTPUT;
use bulkhead_control::board::Vm;
use bulkhead_control::failure::{Failure, Outcome};
use bulkhead_control::manager::Manager;
use bulkhead_control::port::Access;
use serde_json::json;

use crate::cli::LogArgs;
use crate::output::{Broken, Printer};
use crate::verb::{Ended, Stop, connect};

/// Shows what a VM has printed.
pub fn run(access: &Access, printer: &Printer, args: LogArgs) -> Ended {
    let mut manager = connect(access)?;
    let vm = manager.find(&args.vm)?;
    let (text, mut next) = kept(&mut manager, &vm)?;
    let text = args
        .lines
        .map_or(&text[..], |lines| last_lines(&text, lines));
    let mut shown = Shown::new(*printer, &vm.name);
    shown.print(text)?;
    if !args.follow {
        shown.end()?;
        return Ok(Outcome::Done);
    }
    loop {
        let event = manager.connection.event(None).map_err(Failure::from)?;
        if event.is_some_and(|event| event.kind == EVENT_OUTPUT && event.vm == vm.index) {
            next = go_on(&mut manager, &vm, next, &mut |bytes| shown.print(bytes))?;
        }
    }
}

/// All that is kept of what a VM has printed, and the number of the next byte. The next one is an event.
pub fn kept(manager: &mut Manager<File>, vm: &Vm) -> Result<(Vec<u8>, u64), Failure> {
    let (mut text, mut next, mut more) = (Vec::new(), 0, true);
    while more {
        let mut printed = manager.printed(vm, next)?;
        more = printed.more;
        next = printed.next();
        text.append(&mut printed.bytes);
    }
    Ok((text, next))
}

/// Prints what has come since the byte `next`; gives the number of the next one.
pub fn go_on(
    manager: &mut Manager<File>,
    vm: &Vm,
    mut next: u64,
    print: &mut dyn FnMut(&[u8]) -> Result<(), Stop>,
) -> Result<u64, Stop> {
    loop {
        let printed = manager.printed(vm, next)?;
        let lost = printed.first.saturating_sub(next);
        if lost != 0 {
            // The reader has been slower than the VM.
            let _ = write!(stderr(), "\r\n[{lost} bytes were lost]\r\n");
        }
        next = printed.next();
        print(&printed.bytes)?;
        if !printed.more {
            return Ok(next);
        }
    }
}

/// The last lines of a text; one that has not ended counts.
pub fn last_lines(text: &[u8], lines: usize) -> &[u8] {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let mut ends = body
        .iter()
        .enumerate()
        .rev()
        .filter(|(_, byte)| **byte == b'\n');
    match lines.checked_sub(1) {
        None => &[],
        Some(more) => ends.nth(more).map_or(text, |(at, _)| &text[at + 1..]),
    }
}

/// What is printed: the bytes as they are, or a document for each line.
struct Shown<'a> {
    printer: Printer,
    vm: &'a str,
    /// The line that has not ended, for documents.
    line: Vec<u8>,
}

impl<'a> Shown<'a> {
    const fn new(printer: Printer, vm: &'a str) -> Self {
        Self {
            printer,
            vm,
            line: Vec::new(),
        }
    }

    fn print(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        if !self.printer.json {
            return Ok(raw(bytes)?);
        }
        for byte in bytes {
            if *byte == b'\n' {
                self.say_line()?;
            } else {
                self.line.push(*byte);
            }
        }
        Ok(())
    }

    fn say_line(&mut self) -> Result<(), Stop> {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(&line));
        Ok(self.printer.line(&json!({ "vm": self.vm, "line": line }))?)
    }

    fn end(&mut self) -> Result<(), Stop> {
        if self.line.is_empty() {
            return Ok(());
        }
        self.say_line()
    }
}

/// Prints bytes as they are.
///
/// # Errors
/// They cannot be written.
pub fn raw(bytes: &[u8]) -> Result<(), Broken> {
    let mut stdout = stdout().lock();
    let written = stdout.write_all(bytes);
    written.and_then(|()| stdout.flush()).map_err(Broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_whole_ones() {
        let text = b"one\ntwo\nthree\n";
        let last = |lines| last_lines(text, lines);
        assert_eq!(last(0), b"");
        assert_eq!(last(1), b"three\n");
        assert_eq!(last(2), b"two\nthree\n");
        assert_eq!((last(3), last(99)), (&text[..], &text[..]));
        assert_eq!(last_lines(b"one\ntw", 1), b"tw");
        assert_eq!(last_lines(b"", 3), b"");
        assert_eq!(last_lines(b"\n\n", 1), b"\n");
    }
}
