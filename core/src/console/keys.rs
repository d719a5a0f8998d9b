//! Keys of the console: the VM to which a byte goes, and the choice of a VM by its number.

/// Ctrl-T: the next key is for the console itself.
pub const ESCAPE: u8 = 0x14;

/// Meaning of a key from the UART.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A byte for the VM that has the focus.
    Send(u8),
    /// Move the focus to another VM.
    Focus(usize),
    /// Show the keys.
    Help,
    /// Open the monitor, or repeat its full report.
    Monitor,
    /// A key for the monitor, which is open.
    Command(u8),
    /// Nothing (yet).
    Nothing,
}

/// The choice of a VM by keys: its number, from 1, or `n` for the next one. A number is one digit,
/// or 0 and then two digits.
///
/// The value is 0, or while such a number is typed its digits so far after a 1, which stands for
/// the leading 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice(u32);

impl Choice {
    /// No digit has been typed.
    pub const fn new() -> Self {
        Self(0)
    }

    /// Whether more digits are to come.
    pub const fn is_open(self) -> bool {
        self.0 != 0
    }

    /// Handles a key while VM `now` of `vms` VMs is chosen. Returns the index of the VM chosen by
    /// the key, which may not exist. A key that is not part of a choice discards the digits typed
    /// so far.
    #[inline(never)]
    pub fn key(&mut self, key: u8, now: usize, vms: usize) -> Option<usize> {
        let before = core::mem::take(&mut self.0);
        if key == b'n' {
            return now.wrapping_add(1).checked_rem(vms);
        }
        let digit = u32::from(key).wrapping_sub(u32::from(b'0'));
        let value = before.wrapping_mul(10).wrapping_add(digit);
        if digit > 9 {
            return None;
        }
        if value == 0 || value.wrapping_sub(10) < 10 {
            self.0 = value.max(1);
            return None;
        }
        // A number typed with a leading 0 carries 100 for it.
        let number = value.checked_sub(100).unwrap_or(value);
        Some((number as usize).wrapping_sub(1))
    }
}

/// Milliseconds for which input stays in the UART while its VM makes no room for more.
pub const HOLD_MS: u64 = 1000;
/// Bytes for which a VM has to make room in that time. One that reads less cannot keep the operator
/// from switching to another VM.
pub const HOLD_ROOM: u32 = 16;

/// Input that stays in the UART, because its VM has no room for it. A VM that makes none for
/// [`HOLD_MS`] loses what comes from then on, so that keys for the console are seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hold {
    /// End of the time that the VM has to make room (ticks); `None`: there is room.
    until: Option<u64>,
    loses: bool,
    told: bool,
}

impl Hold {
    /// There is room.
    pub const fn new() -> Self {
        Self {
            until: None,
            loses: false,
            told: false,
        }
    }

    /// Whether bytes stay in the UART.
    pub const fn is_on(&self) -> bool {
        self.until.is_some() && !self.loses
    }

    /// Before a byte is taken from the UART: whether it stays there. `free`: bytes that fit for its
    /// VM; `hold`: the ticks of [`HOLD_MS`].
    pub fn stays(&mut self, free: u32, now: u64, hold: u64) -> bool {
        let Some(until) = self.until else {
            if free == 0 {
                self.until = Some(now.wrapping_add(hold));
            }
            return free == 0;
        };
        if free >= HOLD_ROOM {
            *self = Self::new();
        } else if now >= until {
            self.loses = true;
        }
        self.is_on()
    }

    /// A byte was lost: whether to say so.
    pub fn is_new_loss(&mut self) -> bool {
        !core::mem::replace(&mut self.told, true)
    }
}

/// The state of the console keys, which separates keys for the console from bytes for VMs.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// The VM that gets the input.
    pub focus: usize,
    escaped: bool,
    choice: Choice,
    /// Whether the monitor is open, so that keys go to it.
    monitor: bool,
}

impl Keys {
    /// The initial state, in which input goes to the VM `focus`.
    pub const fn new(focus: usize) -> Self {
        Self {
            focus,
            escaped: false,
            choice: Choice::new(),
            monitor: false,
        }
    }

    /// Handles a byte from the UART; `vms` is the number of VMs.
    pub fn take(&mut self, byte: u8, vms: usize) -> Key {
        if !self.escaped {
            if byte == ESCAPE {
                self.escaped = true;
                return Key::Nothing;
            }
            return if self.monitor {
                Key::Command(byte)
            } else {
                Key::Send(byte)
            };
        }
        let chosen = self.choice.key(byte, self.focus, vms);
        self.escaped = self.choice.is_open();
        let focus = match byte {
            ESCAPE => return Key::Send(ESCAPE),
            b'?' | b'h' => return Key::Help,
            b'm' => {
                self.monitor = true;
                return Key::Monitor;
            }
            _ => chosen.filter(|vm| *vm < vms),
        };
        let Some(focus) = focus else {
            return Key::Nothing;
        };
        self.focus = focus;
        self.monitor = false;
        Key::Focus(focus)
    }

    /// Whether the next byte may be for a VM, and not for the console or the monitor.
    pub const fn needs_room(&self) -> bool {
        !self.escaped && !self.choice.is_open() && !self.monitor
    }

    /// Closes the monitor: keys go to VMs again.
    pub fn leave_monitor(&mut self) {
        self.monitor = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_switch_and_pass() {
        let mut keys = Keys::new(0);
        assert_eq!(keys.take(b'a', 2), Key::Send(b'a'));
        let mut after = |byte| {
            assert_eq!(keys.take(ESCAPE, 2), Key::Nothing);
            keys.take(byte, 2)
        };
        assert_eq!(after(b'2'), Key::Focus(1));
        assert_eq!(after(b'n'), Key::Focus(0));
        assert_eq!(after(b'3'), Key::Nothing, "there is no third VM");
        assert_eq!(after(b'?'), Key::Help);
        assert_eq!(after(ESCAPE), Key::Send(ESCAPE));
        assert_eq!(after(b'x'), Key::Nothing);
        assert_eq!(keys.focus, 0);
    }

    #[test]
    fn keys_go_to_the_monitor_while_it_is_open() {
        let mut keys = Keys::new(0);
        let open = |keys: &mut Keys| {
            assert_eq!(keys.take(ESCAPE, 2), Key::Nothing);
            assert_eq!(keys.take(b'm', 2), Key::Monitor);
        };
        open(&mut keys);
        assert_eq!(keys.take(b'2', 2), Key::Command(b'2'));
        open(&mut keys);
        keys.leave_monitor();
        assert_eq!(keys.take(b'q', 2), Key::Send(b'q'));
        open(&mut keys);
        assert_eq!(keys.take(ESCAPE, 2), Key::Nothing);
        assert_eq!(keys.take(b'2', 2), Key::Focus(1));
        assert_eq!(keys.take(b'2', 2), Key::Send(b'2'), "focus leaves it");
    }

    #[test]
    fn input_waits_for_room_but_not_for_ever() {
        let mut hold = Hold::new();
        assert!(!hold.stays(1, 0, 100));
        assert!(hold.stays(0, 5, 100) && hold.is_on());
        assert!(hold.stays(HOLD_ROOM - 1, 104, 100), "too little room");
        assert!(!hold.stays(HOLD_ROOM, 104, 100) && !hold.is_on());
        // Each time anew.
        assert!(hold.stays(0, 104, 100) && hold.stays(0, 203, 100));
        assert!(!hold.stays(0, 204, 100), "keys for the console are seen");
        assert!(!hold.is_on());
        assert!(hold.is_new_loss() && !hold.is_new_loss());
        assert!(!hold.stays(0, 1000, 100), "what comes is lost");
        assert!(!hold.stays(HOLD_ROOM, 1001, 100), "it reads again");
        assert!(hold.stays(0, 1002, 100) && hold.is_new_loss());
    }

    #[test]
    fn keys_of_the_console_need_no_room() {
        let mut keys = Keys::new(0);
        assert!(keys.needs_room());
        keys.take(ESCAPE, 64);
        assert!(!keys.needs_room());
        keys.take(b'0', 64);
        assert!(!keys.needs_room(), "in the middle of a number");
        keys.take(b'1', 64);
        keys.take(b'7', 64);
        assert!(keys.needs_room());
        keys.take(ESCAPE, 64);
        keys.take(b'm', 64);
        assert!(!keys.needs_room(), "the monitor's");
    }

    #[test]
    fn two_digits_behind_a_zero_are_a_vm() {
        let mut keys = Keys::new(0);
        let mut after = |typed: &str| {
            assert_eq!(keys.take(ESCAPE, 64), Key::Nothing);
            let last = typed.bytes().map(|byte| keys.take(byte, 64)).last();
            (last, keys.take(b'x', 64))
        };
        let sent = Key::Send(b'x');
        for vm in 1..100 {
            let expected = if vm <= 64 {
                Key::Focus(vm - 1)
            } else {
                Key::Nothing
            };
            assert_eq!(
                after(&std::format!("0{vm:02}")),
                (Some(expected), sent),
                "{vm}"
            );
        }
        assert_eq!(
            after("000"),
            (Some(Key::Nothing), sent),
            "they count from 1"
        );
        assert_eq!(
            after("0n"),
            (Some(Key::Focus(0)), sent),
            "what is no digit means itself"
        );
        assert_eq!(after("01?"), (Some(Key::Help), sent));
        assert_eq!(
            after("9"),
            (Some(Key::Focus(8)), sent),
            "nothing is left of that"
        );
        assert_eq!(
            after("01"),
            (Some(Key::Nothing), Key::Nothing),
            "the second is awaited"
        );
    }
}
