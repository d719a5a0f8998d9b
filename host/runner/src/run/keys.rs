//! Keys on their way to the board: the tool keeps its own commands, everything else passes.

/// Ctrl-T: starts a command to the console multiplexer in EL2, or to this tool.
pub const ESCAPE: u8 = 0x14;

/// Command of the user to the tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `Ctrl-T q`: end the run (or, attached, this console).
    Quit,
    /// `Ctrl-T d`: leave the console, the system runs on.
    Detach,
}

/// Splits a stream of keys. `Ctrl-T` is held back until its second key tells whose command it is.
#[derive(Debug, Default)]
pub struct Keys {
    escaped: bool,
    help: bool,
}

impl Keys {
    /// Gives the bytes for the board and the first command for the tool, if there is one; keys
    /// behind that are dropped.
    pub fn filter(&mut self, typed: &[u8]) -> (Vec<u8>, Option<Action>) {
        let mut pass = Vec::with_capacity(typed.len() + 1);
        for &key in typed {
            if !self.escaped {
                match key {
                    ESCAPE => self.escaped = true,
                    _ => pass.push(key),
                }
                continue;
            }
            self.escaped = false;
            match key {
                b'q' | b'Q' => return (pass, Some(Action::Quit)),
                b'd' | b'D' => return (pass, Some(Action::Detach)),
                _ => {
                    self.help |= key == b'?';
                    pass.extend([ESCAPE, key]);
                }
            }
        }
        (pass, None)
    }

    /// Whether `Ctrl-T ?` has passed since this was asked last: the board's help does not know the tool's commands.
    pub fn asks_for_help(&mut self) -> bool {
        std::mem::take(&mut self.help)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_the_multiplexer_pass_and_those_of_the_tool_do_not() {
        let mut keys = Keys::default();
        assert_eq!(keys.filter(b"ls\r\x03"), (b"ls\r\x03".to_vec(), None));
        assert_eq!(keys.filter(b"\x142a"), (b"\x142a".to_vec(), None));
        assert_eq!(keys.filter(b"\x14\x14"), (b"\x14\x14".to_vec(), None));
        assert_eq!(keys.filter(b"x\x14qy"), (b"x".to_vec(), Some(Action::Quit)));
        assert_eq!(keys.filter(b"\x14d"), (vec![], Some(Action::Detach)));
    }

    #[test]
    fn the_help_of_the_board_is_asked_for_and_the_tool_hears_of_it() {
        let mut keys = Keys::default();
        assert_eq!(keys.filter(b"?\x14"), (b"?".to_vec(), None));
        assert!(!keys.asks_for_help());
        assert_eq!(keys.filter(b"?"), (b"\x14?".to_vec(), None));
        assert!(keys.asks_for_help() && !keys.asks_for_help());
    }

    #[test]
    fn the_two_keys_of_a_command_may_come_apart() {
        let mut keys = Keys::default();
        assert_eq!(keys.filter(b"a\x14"), (b"a".to_vec(), None));
        assert_eq!(keys.filter(b"n"), (b"\x14n".to_vec(), None));
        assert_eq!(keys.filter(b"\x14"), (vec![], None));
        assert_eq!(keys.filter(b"q"), (vec![], Some(Action::Quit)));
    }
}
