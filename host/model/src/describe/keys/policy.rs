//! Keys about how a VM ends.

use crate::describe::size::{DURATION, TIME};
use crate::describe::words::STOPS;

use super::parts::{Kind, Rule, Table, key, plain, words};

/// `crash`.
#[rustfmt::skip]
pub const CRASH: &Table = &Table {
    name: "crash",
    heading: "`crash`",
    about: "Of a VM, as a table.",
    keys: &[
        key("restart", Kind::Number(1, u16::MAX as u32), "3", "Start again, so often at most."),
        plain("within", Kind::Quantity(&TIME), "In this time."),
        key("notify", Kind::Text, "\"one\"", "Stay stopped, and tell this VM."),
    ],
    rules: &[
        Rule::Either(&[&["restart", "within"], &["notify"]]),
        Rule::Both("restart", "within"),
    ],
};

/// `reset`.
#[rustfmt::skip]
pub const RESET: &Table = &Table {
    name: "reset",
    heading: "`reset`",
    about: "Of a VM, as a table. The reset after the last one leaves the VM stopped.",
    keys: &[
        key("restart", Kind::Number(1, u16::MAX as u32), "10", "Start again, so often at most."),
        plain("within", Kind::Quantity(&TIME), "In this time."),
    ],
    rules: &[Rule::Has(&["restart", "within"])],
};

/// `stop`.
#[rustfmt::skip]
pub const STOP: &Table = &Table {
    name: "stop",
    heading: "`stop`",
    about: "Of a VM, as a table: how it is asked to end, and what time it has for it.",
    keys: &[
        plain("by", words(&STOPS), "power-key: the device tree has a key for the driver gpio-keys. word: it says where the word is, by a node with compatible = \"bulkhead,stop\"; the only way for a VM that takes its interrupts itself."),
        plain("timeout", Kind::Quantity(&DURATION), "The VM is ended if it has not by then: 10ms to 3600s. Default: 60s."),
    ],
    rules: &[Rule::Has(&["by"])],
};
