//! From bytes of the board's UART to labelled lines.

use std::collections::BTreeMap;
use std::fmt;

use bulkhead_abi::console::label;

/// Speaker of a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Speaker {
    /// The hypervisor.
    El2,
    /// A VM, by name.
    Vm(String),
    /// Nobody that the console names: firmware, or noise before EL2 has the UART.
    Unlabelled,
}

impl Speaker {
    /// Name for labels and for the names of log files.
    pub fn name(&self) -> &str {
        match self {
            Self::El2 => label::EL2_NAME,
            Self::Vm(name) => name,
            Self::Unlabelled => "board",
        }
    }
}

impl fmt::Display for Speaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One line of the console, without label, escape sequences and line end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleLine {
    /// Its speaker.
    pub speaker: Speaker,
    /// Text of the line. Of a line that another speaker had cut, everything so far.
    pub text: String,
    /// Bytes of `text` that were in an earlier [`ConsoleLine`] of this speaker, which this one replaces; `None`: it is
    /// another line.
    pub goes_on: Option<usize>,
    /// A later [`ConsoleLine`] replaces this one.
    pub is_replaced: bool,
}

impl ConsoleLine {
    /// Takes the label off a raw line.
    pub fn parse(raw: &[u8]) -> Self {
        Self::piece(raw).0
    }

    /// Takes the label off a raw line; whether the label says that it goes on with the speaker's line before.
    fn piece(raw: &[u8]) -> (Self, bool) {
        let text = strip_escapes(&String::from_utf8_lossy(raw));
        let text = text.trim_end_matches(['\r', '\n']);
        let labelled = label::parse(text);
        let speaker = match labelled.map(|line| line.name) {
            Some(label::EL2_NAME) => Speaker::El2,
            Some(name) => Speaker::Vm(name.to_owned()),
            None => Speaker::Unlabelled,
        };
        let line = Self {
            speaker,
            text: labelled.map_or(text, |line| line.text).to_owned(),
            goes_on: None,
            is_replaced: false,
        };
        (line, labelled.is_some_and(|line| line.goes_on))
    }
}

/// Removes control sequences (CSI, OSC and two-character escapes) and control characters that only
/// move the cursor.
pub fn strip_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => match chars.next() {
                // CSI: parameters, then one final byte from '@' to '~'.
                Some('[') => {
                    for c in chars.by_ref() {
                        if ('@'..='~').contains(&c) {
                            break;
                        }
                    }
                }
                // OSC: up to BEL or ESC \.
                Some(']') => {
                    while let Some(c) = chars.next() {
                        if c == '\u{7}' || (c == '\u{1b}' && chars.next_if_eq(&'\\').is_some()) {
                            break;
                        }
                    }
                }
                _ => {}
            },
            '\t' => out.push(c),
            '\r' | '\n' => out.push(c),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    // A carriage return inside a line is a guest that ends its lines with "\r\r\n" or rewrites them.
    out.replace('\r', "")
}

/// Cuts a stream of bytes into lines, whatever pieces it comes in, and joins lines that speakers have cut.
#[derive(Debug, Default)]
pub struct Splitter {
    partial: Vec<u8>,
    /// The last line of each VM, which may go on.
    last: BTreeMap<String, String>,
}

impl Splitter {
    /// A line that never ends is cut here, so that a guest cannot make the tool grow without bound.
    const LONGEST: usize = 64 * 1024;

    /// Takes the next bytes and gives the lines that they complete.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<ConsoleLine> {
        let mut lines = Vec::new();
        for piece in bytes.split_inclusive(|&b| b == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial.len() > Self::LONGEST {
                let line = {
                    let raw = std::mem::take(&mut self.partial);
                    self.read(&raw)
                };
                if let Speaker::Vm(name) = &line.speaker {
                    self.last.insert(name.clone(), line.text.clone());
                }
                lines.push(line);
            }
        }
        lines
    }

    /// The line that has begun and not ended: a prompt, for instance.
    pub fn partial(&self) -> Option<ConsoleLine> {
        (!self.partial.is_empty()).then(|| self.read(&self.partial))
    }

    /// Reads a raw line, and puts what came before in front of what goes on.
    fn read(&self, raw: &[u8]) -> ConsoleLine {
        let (mut line, goes_on) = ConsoleLine::piece(raw);
        let last = self.last.get(line.speaker.name());
        if let Some(last) = last.filter(|last| goes_on && last.len() <= Self::LONGEST) {
            line.text.insert_str(0, last);
            line.goes_on = Some(last.len());
        }
        line
    }

    /// The last line of a stream that ended without a line end.
    pub fn finish(&mut self) -> Option<ConsoleLine> {
        let last = self.partial();
        self.partial.clear();
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vm(name: &str, text: &str) -> ConsoleLine {
        ConsoleLine {
            speaker: Speaker::Vm(name.into()),
            text: text.into(),
            goes_on: None,
            is_replaced: false,
        }
    }

    #[test]
    fn what_was_cut_is_joined() {
        let mut splitter = Splitter::default();
        let lines = splitter
            .push(b"[two] h\r\n[one] all\r\n[\x1b[3mtwo+] ello \r\n[el2] x\r\n[two+] from EL1\r\n");
        let texts: Vec<_> = lines
            .iter()
            .map(|line| (line.text.as_str(), line.goes_on))
            .collect();
        let expected = [
            ("h", None),
            ("all", None),
            ("hello ", Some(1)),
            ("x", None),
            ("hello from EL1", Some(6)),
        ];
        assert_eq!(texts, expected);
        assert_eq!(lines[4].speaker, Speaker::Vm("two".into()));
        assert_eq!(splitter.push(b"[two] next\r\n[two+] "), [vm("two", "next")]);
        assert_eq!(splitter.partial().unwrap().text, "next");
        assert_eq!(
            Splitter::default().push(b"[a+] alone\n"),
            [vm("a", "alone")]
        );
    }

    #[test]
    fn a_coloured_label_names_the_speaker() {
        assert_eq!(
            ConsoleLine::parse(b"\x1b[32m[linux]\x1b[0m Debian GNU/Linux\r\n"),
            vm("linux", "Debian GNU/Linux")
        );
        assert_eq!(
            ConsoleLine::parse(b"\x1b[37m[el2]\x1b[0m all VMs stopped\r\n"),
            ConsoleLine {
                speaker: Speaker::El2,
                text: "all VMs stopped".into(),
                goes_on: None,
                is_replaced: false,
            }
        );
    }

    #[test]
    fn indentation_behind_the_label_is_kept_and_an_empty_line_is_a_line() {
        assert_eq!(
            ConsoleLine::parse(b"[a]   two more\n"),
            vm("a", "  two more")
        );
        assert_eq!(ConsoleLine::parse(b"[a]\r\n"), vm("a", ""));
        assert_eq!(ConsoleLine::parse(b"[a] \r\n"), vm("a", ""));
    }

    #[test]
    fn a_kernel_time_stamp_is_no_label() {
        let line = ConsoleLine::parse(b"[    0.000000] Booting Linux\r\n");
        assert_eq!(line.speaker, Speaker::Unlabelled);
        assert_eq!(line.text, "[    0.000000] Booting Linux");
        let line = ConsoleLine::parse(b"[linux] [    0.5] ok\r\n");
        assert_eq!(line, vm("linux", "[    0.5] ok"));
    }

    #[test]
    fn sequences_of_a_guest_do_not_reach_the_text() {
        assert_eq!(
            ConsoleLine::parse(b"[a] \x1b[1;31mred\x1b[m \x1b]0;title\x07end\x08\x1b7\r\r\n"),
            vm("a", "red end")
        );
        assert_eq!(
            ConsoleLine::parse(b"[a] \xff\xfe broken"),
            vm("a", "\u{fffd}\u{fffd} broken")
        );
    }

    #[test]
    fn a_prompt_is_visible_before_its_line_ends() {
        let mut splitter = Splitter::default();
        assert_eq!(splitter.push(b"[a] one\r\n[a] ~ # "), [vm("a", "one")]);
        assert_eq!(splitter.partial(), Some(vm("a", "~ # ")));
        assert_eq!(splitter.push(b"ls\r\n"), [vm("a", "~ # ls")]);
        assert_eq!(splitter.finish(), None);
    }

    #[test]
    fn an_endless_line_is_cut() {
        let mut splitter = Splitter::default();
        let lines = splitter.push(&vec![b'x'; 3 * Splitter::LONGEST]);
        assert!(!lines.is_empty());
        assert!(splitter.partial.len() <= Splitter::LONGEST);
    }

    proptest! {
        #[test]
        fn the_cut_of_the_stream_does_not_matter(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'\n'), Just(0x1b)], 0..300),
            cut in 0usize..300,
        ) {
            let cut = cut.min(bytes.len());
            let mut whole = Splitter::default();
            let mut halves = Splitter::default();
            let all = whole.push(&bytes);
            let mut parts = halves.push(&bytes[..cut]);
            parts.extend(halves.push(&bytes[cut..]));
            prop_assert_eq!(all, parts);
            prop_assert_eq!(whole.finish(), halves.finish());
        }
    }
}
