//! Stream that the console goes to: stdout, or stderr if stdout is kept for JSON; without colours where
//! nobody could see them.

use std::io::{self, IsTerminal, Write};

/// A stream that shows the console.
#[derive(Debug)]
pub struct Output {
    to_stderr: bool,
    colours: Option<Colours>,
}

impl Output {
    /// Colours stay if the stream is a terminal and `NO_COLOR` is not set.
    pub fn new(to_stderr: bool) -> Self {
        let terminal = match to_stderr {
            true => io::stderr().is_terminal(),
            false => io::stdout().is_terminal(),
        };
        let wanted = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            to_stderr,
            colours: (!wanted).then(Colours::default),
        }
    }

    /// Shows bytes of the console.
    ///
    /// # Errors
    ///
    /// The stream's.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let plain = self.colours.as_mut().map(|colours| colours.remove(bytes));
        let bytes = plain.as_deref().unwrap_or(bytes);
        if self.to_stderr {
            return io::stderr().write_all(bytes);
        }
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()
    }
}

/// Takes colours (SGR: `ESC [ digits ; .. m`) out of a stream that comes in pieces.
#[derive(Debug, Default)]
struct Colours {
    /// The start of what may become a colour.
    held: Vec<u8>,
}

impl Colours {
    fn remove(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for byte in bytes {
            let more = match self.held.len() {
                0 => *byte == 0x1b,
                1 => *byte == b'[',
                _ => byte.is_ascii_digit() || *byte == b';',
            };
            if more {
                self.held.push(*byte);
            } else if self.held.len() >= 2 && *byte == b'm' {
                self.held.clear();
            } else {
                out.append(&mut self.held);
                match byte {
                    0x1b => self.held.push(*byte),
                    _ => out.push(*byte),
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go_and_everything_else_stays() {
        let text = b"\x1b[36m[linux]\x1b[0m / # \x1b[6n\x1b[1;32mok\x1b[m \x1b\x1b[31m.";
        let whole = Colours::default().remove(text);
        assert_eq!(whole, b"[linux] / # \x1b[6nok \x1b.");
        let mut pieces = Colours::default();
        let parts: Vec<u8> = text
            .iter()
            .flat_map(|byte| pieces.remove(&[*byte]))
            .collect();
        assert_eq!(parts, whole);
    }
}
