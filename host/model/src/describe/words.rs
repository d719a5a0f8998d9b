//! Words and limits of a description, shared by the tables of keys and the readers of their values.

use bulkhead_abi::console::label;
use bulkhead_abi::plan::{Class, MAX_SPIS};

/// Names of the classes in descriptions, by number.
pub(super) const CLASSES: [(&str, Class); 4] = [
    ("management", Class::Management),
    ("general", Class::General),
    ("soft-realtime", Class::SoftRealtime),
    ("hard-realtime", Class::HardRealtime),
];
/// Names of the classes.
pub(super) const CLASS_NAMES: [&str; 4] = [CLASSES[0].0, CLASSES[1].0, CLASSES[2].0, CLASSES[3].0];

/// Value of `reclaim`: by an event of the firmware.
pub(super) const SDEI: &str = "sdei";
/// Values of `reclaim`.
pub(super) const RECLAIM: [&str; 3] = ["guaranteed", "cooperative", SDEI];

/// Value of `control`: no control port.
pub(super) const NO_CONTROL: &str = "none";

/// Value of `interrupts`: the vGIC.
pub(super) const VGIC: &str = "vgic";
/// Value of `interrupts`: at EL1, and EL2 can take them back.
pub(super) const GPPT: &str = "gppt";
/// Value of `interrupts`: at EL1, with a trapped priority mask.
pub(super) const PMR_TRAPPED: &str = "gppt-pmr-trapped";
/// Value of `interrupts`: at EL1, with the priority mask itself.
pub(super) const PMR_DIRECT: &str = "gppt-pmr-direct";
/// Value of `interrupts`: at EL1, with a GICv2.
pub(super) const GICV2: &str = "gppt-gicv2";
/// Values of `interrupts`.
pub(super) const INTERRUPTS: [&str; 5] = [VGIC, GPPT, PMR_TRAPPED, PMR_DIRECT, GICV2];

/// Value of `stop`: by a key.
pub(super) const POWER_KEY: &str = "power-key";
/// Value of `stop`: by a word in memory.
pub(super) const WORD: &str = "word";
/// Values of `stop`.
pub(super) const STOPS: [&str; 2] = [POWER_KEY, WORD];

/// Values of `cpu`.
pub(super) const CPU: [&str; 3] = ["pinned", "rt", "fair"];

/// The least INTID that a device can have: the first SPI.
pub(super) const FIRST_INTID: u32 = 32;
/// The greatest INTID that a device can have.
pub(super) const LAST_INTID: u32 = FIRST_INTID + MAX_SPIS - 1;

/// Labels of lines that are no VM's.
pub const RESERVED: [&str; 2] = [label::EL2_NAME, label::MONITOR_NAME];

/// Events that boards count, by the names that the architecture has for them (DDI 0487, D13.12), and their numbers.
pub const EVENTS: [(&str, u32); 7] = [
    ("l2d_cache_refill", 0x17),
    ("l3d_cache_refill", 0x2a),
    ("ll_cache_miss_rd", 0x37),
    ("bus_access", 0x19),
    ("mem_access", 0x13),
    ("inst_retired", 0x08),
    ("cpu_cycles", 0x11),
];
/// The names alone.
pub(super) const EVENT_NAMES: [&str; EVENTS.len()] = {
    let mut names = [""; EVENTS.len()];
    let mut n = 0;
    while n < names.len() {
        names[n] = EVENTS[n].0;
        n += 1;
    }
    names
};
