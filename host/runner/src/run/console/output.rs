//! Stream that the console goes to: stdout, or stderr if stdout is kept for JSON; without colours where
//! nobody could see them. Questions to the terminal (where is the cursor, what are you) are left out: its answer
//! would be typed into whichever VM has the input, once for each terminal that is attached.

use std::io::{self, IsTerminal, Write};

/// A stream that shows the console.
#[derive(Debug)]
pub struct Output {
    to_stderr: bool,
    sequences: Sequences,
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
            sequences: Sequences::new(wanted),
        }
    }

    /// Shows bytes of the console: whole characters and escape sequences, so that others may write in between, and
    /// without questions to the terminal.
    ///
    /// # Errors
    ///
    /// The stream's.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let bytes = &*self.sequences.pass(bytes);
        if self.to_stderr {
            return io::stderr().write_all(bytes);
        }
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        out.flush()
    }
}

const ESC: u8 = 0x1b;
const BEL: u8 = 0x07;
/// Asks a terminal for its answerback.
const ENQ: u8 = 0x05;

/// Escape sequences (ECMA-48, 5.4 and 8.3; xterm, "Control Sequences") in a stream that comes in pieces.
#[derive(Debug)]
struct Sequences {
    colours: bool,
    /// The start of a sequence or of a character.
    held: Vec<u8>,
}

impl Sequences {
    /// Sequences that are longer pass as they are.
    const LONGEST: usize = 512;

    fn new(colours: bool) -> Self {
        let held = Vec::new();
        Self { colours, held }
    }

    /// The bytes that are to be shown now.
    fn pass(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            if !self.held.is_empty() && !goes_on(&self.held, byte) {
                out.append(&mut self.held);
            }
            match (self.held.is_empty(), byte) {
                (true, ENQ) => {}
                (true, ESC | 0xc2..=0xf4) | (false, _) => self.held.push(byte),
                (true, _) => out.push(byte),
            }
            if ends(&self.held) {
                let colour = is_colour(&self.held) && !self.colours;
                if !colour && !is_question(&self.held) {
                    out.extend_from_slice(&self.held);
                }
                self.held.clear();
            } else if self.held.len() > Self::LONGEST {
                out.append(&mut self.held);
            }
        }
        out
    }
}

/// Whether `held` is the start of a string: an operating system command, a device control string, and so on.
fn is_string(held: &[u8]) -> bool {
    matches!(held, [ESC, b']' | b'P' | b'_' | b'^' | b'X', ..])
}

/// Whether a byte may come next in what is held.
fn goes_on(held: &[u8], byte: u8) -> bool {
    match held {
        [ESC] => (0x20..=0x7e).contains(&byte),
        [.., ESC] => byte == b'\\',
        _ if is_string(held) => byte >= 0x20 || byte == BEL || byte == ESC,
        [ESC, ..] => (0x20..=0x7e).contains(&byte),
        _ => (0x80..=0xbf).contains(&byte),
    }
}

/// Whether that is a whole sequence, or a whole character of UTF-8.
fn ends(held: &[u8]) -> bool {
    match held {
        [] | [ESC] => false,
        _ if is_string(held) => {
            held.ends_with(&[BEL]) || held.len() > 2 && held.ends_with(b"\x1b\\")
        }
        [ESC, b'[', .., last] => held.len() > 2 && (0x40..=0x7e).contains(last),
        [ESC, b'['] => false,
        [ESC, .., last] => (0x30..=0x7e).contains(last),
        [0xc2..=0xdf, ..] => held.len() == 2,
        [0xe0..=0xef, ..] => held.len() == 3,
        _ => held.len() == 4,
    }
}

/// Whether that is a colour (SGR: `ESC [ digits ; .. m`).
fn is_colour(held: &[u8]) -> bool {
    let plain = |byte: &u8| byte.is_ascii_digit() || *byte == b';';
    matches!(held, [ESC, b'[', parameters @ .., b'm'] if parameters.iter().all(plain))
}

/// Whether a terminal would answer that on its input.
fn is_question(held: &[u8]) -> bool {
    // Reports of a window: its state, place, size, and titles.
    const WINDOW: [&[u8]; 9] = [
        b"11", b"13", b"14", b"15", b"16", b"18", b"19", b"20", b"21",
    ];
    match held {
        [ESC, b'Z'] => true,
        [ESC, b'[', b'>', .., b'q'] | [ESC, b'[', b'?', .., b'u' | b'S'] => true,
        [ESC, b'[', .., b'c'] | [ESC, b'[', .., b'$', b'p'] => true,
        [ESC, b'[', parameters @ .., b'n'] => parameters.first() != Some(&b'>'),
        [ESC, b'[', parameters @ .., b'x'] => parameters.iter().all(u8::is_ascii_digit),
        [ESC, b'[', parameters @ .., b't'] => {
            let first = parameters.split(|byte| *byte == b';').next();
            WINDOW.iter().any(|report| Some(*report) == first)
        }
        [ESC, b'P', b'$' | b'+', b'q', ..] => true,
        [ESC, b']', text @ ..] => {
            let end = |byte: &u8| [b';', BEL, ESC].contains(byte);
            text.split(end).any(|part| part == b"?")
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go_and_everything_else_stays() {
        let text = b"\x1b[36m[linux]\x1b[0m / # \x1b[2K\x1b[1;32mok\x1b[m \x1b\x1b[31m.\x1b[>4;2m";
        let whole = Sequences::new(false).pass(text);
        assert_eq!(whole, b"[linux] / # \x1b[2Kok \x1b.\x1b[>4;2m");
        let mut pieces = Sequences::new(false);
        let parts: Vec<u8> = text.iter().flat_map(|byte| pieces.pass(&[*byte])).collect();
        assert_eq!(parts, whole);
    }

    #[test]
    fn a_terminal_is_asked_nothing() {
        for asked in [
            "\x1b[6n",
            "\x1b[?6n",
            "\x1b[5n",
            "\x1b[c",
            "\x1b[>0c",
            "\x1bZ",
            "\x05",
            "\x1b[?2026$p",
            "\x1b[>q",
            "\x1b[18t",
            "\x1b]11;?\x07",
            "\x1b]52;c;?\x1b\\",
            "\x1bP+q544e\x1b\\",
            "\x1b[?u",
        ] {
            let text = format!("/ # {asked}ls");
            let shown = Sequences::new(true).pass(text.as_bytes());
            assert_eq!(shown, b"/ # ls", "{asked:?}");
        }
        for kept in [
            "\x1b[2J",
            "\x1b[1;31m",
            "\x1b]0;what?\x07",
            "\x1b(B",
            "\x1b7",
            "\x1b[22;0t",
            "\x1b[>4n",
            "\u{e9}\u{20ac}",
        ] {
            let shown = Sequences::new(true).pass(kept.as_bytes());
            assert_eq!(shown, kept.as_bytes(), "{kept:?}");
        }
    }

    #[test]
    fn what_is_shown_ends_with_a_whole_sequence() {
        let mut sequences = Sequences::new(true);
        for (piece, shown) in [
            (&b"[linux] \x1b[3"[..], &b"[linux] "[..]),
            (b"6mok \xe2\x82", b"\x1b[36mok "),
            (b"\xac\x1b]0;ti", b"\xe2\x82\xac"),
            (b"tle\x07.", b"\x1b]0;title\x07."),
            (b"\x1b", b""),
            (b"\n", b"\x1b\n"),
        ] {
            assert_eq!(sequences.pass(piece), shown);
        }
    }
}
