//! The debug registers of this pCPU, which has those of the vCPU that runs (DDI 0487, D2). What is in them is without effect at EL2, where no
//! debug exception is taken (D2.4.1), and while MDSCR_EL1 is 0.

use bulkhead_core::cpu::debug::{Debug, Kind, Pair, Register};

use super::cpu;
use super::sysreg::{isb, read, write};

#[cfg(any(feature = "io", feature = "managed"))]
core::arch::global_asm!(include_str!("step.s"));

/// Writes the pairs of a kind that there are.
macro_rules! pairs {
    ($pairs:expr, $(($number:literal, $value:literal, $control:literal))*) => {
        $(if let Some(Pair { value, control }) = $pairs.get($number) {
            write!($value, *value);
            write!($control, *control);
        })*
    };
}

/// ID_AA64DFR0_EL1.
pub fn features() -> u64 {
    read!("id_aa64dfr0_el1")
}

/// Opens the OS lock of this pCPU, which holds back all debug exceptions (D2.4.2). Nothing is on.
pub fn open() {
    write!("mdscr_el1", 0);
    write!("oslar_el1", 0);
    isb();
}

/// Gives the pCPU the registers of a vCPU. They are in effect when its guest is entered.
#[inline(never)]
fn load(debug: &Debug) {
    let breakpoints = debug.pairs(Kind::Breakpoint);
    pairs!(
        breakpoints,
        (0, "dbgbvr0_el1", "dbgbcr0_el1")(1, "dbgbvr1_el1", "dbgbcr1_el1")(
            2,
            "dbgbvr2_el1",
            "dbgbcr2_el1"
        )(3, "dbgbvr3_el1", "dbgbcr3_el1")(4, "dbgbvr4_el1", "dbgbcr4_el1")(
            5,
            "dbgbvr5_el1",
            "dbgbcr5_el1"
        )(6, "dbgbvr6_el1", "dbgbcr6_el1")(7, "dbgbvr7_el1", "dbgbcr7_el1")(
            8,
            "dbgbvr8_el1",
            "dbgbcr8_el1"
        )(9, "dbgbvr9_el1", "dbgbcr9_el1")(10, "dbgbvr10_el1", "dbgbcr10_el1")(
            11,
            "dbgbvr11_el1",
            "dbgbcr11_el1"
        )(12, "dbgbvr12_el1", "dbgbcr12_el1")(13, "dbgbvr13_el1", "dbgbcr13_el1")(
            14,
            "dbgbvr14_el1",
            "dbgbcr14_el1"
        )(15, "dbgbvr15_el1", "dbgbcr15_el1")
    );
    let watchpoints = debug.pairs(Kind::Watchpoint);
    pairs!(
        watchpoints,
        (0, "dbgwvr0_el1", "dbgwcr0_el1")(1, "dbgwvr1_el1", "dbgwcr1_el1")(
            2,
            "dbgwvr2_el1",
            "dbgwcr2_el1"
        )(3, "dbgwvr3_el1", "dbgwcr3_el1")(4, "dbgwvr4_el1", "dbgwcr4_el1")(
            5,
            "dbgwvr5_el1",
            "dbgwcr5_el1"
        )(6, "dbgwvr6_el1", "dbgwcr6_el1")(7, "dbgwvr7_el1", "dbgwcr7_el1")(
            8,
            "dbgwvr8_el1",
            "dbgwcr8_el1"
        )(9, "dbgwvr9_el1", "dbgwcr9_el1")(10, "dbgwvr10_el1", "dbgwcr10_el1")(
            11,
            "dbgwvr11_el1",
            "dbgwcr11_el1"
        )(12, "dbgwvr12_el1", "dbgwcr12_el1")(13, "dbgwvr13_el1", "dbgwcr13_el1")(
            14,
            "dbgwvr14_el1",
            "dbgwcr14_el1"
        )(15, "dbgwvr15_el1", "dbgwcr15_el1")
    );
    write!("mdscr_el1", debug.effective());
}

/// The debug registers of a vCPU, and the vectors of its pCPU while they are not the usual ones.
#[derive(Debug)]
pub struct Debugging {
    registers: Debug,
    usual_vectors: Option<u64>,
}

impl Debugging {
    /// Those of a vCPU on this pCPU, as after a reset.
    pub fn new() -> Self {
        Self {
            registers: Debug::new(features()),
            usual_vectors: None,
        }
    }

    /// Gives the pCPU what is on.
    pub fn load(&mut self) {
        if self.registers.is_active() {
            load(&self.registers);
        }
        if self.registers.steps() {
            self.usual_vectors = Some(read!("vbar_el2"));
            // In effect with the next exception from the guest, which is behind an ERET.
            cpu::use_guarded_vectors();
        }
    }

    /// Leaves the pCPU with nothing on.
    pub fn put(&mut self) {
        if self.registers.is_active() {
            write!("mdscr_el1", 0);
        }
        if let Some(usual) = self.usual_vectors.take() {
            write!("vbar_el2", usual);
        }
    }

    /// Resets the registers of the vCPU that runs.
    pub fn reset(&mut self) {
        self.put();
        self.registers.reset();
    }

    /// Reads a register; `None`: it is undefined.
    pub fn read(&self, register: Register) -> Option<u64> {
        self.registers.read(register)
    }

    /// Writes a register of the vCPU that runs. `false`: it is undefined.
    pub fn write(&mut self, register: Register, value: u64) -> bool {
        self.put();
        let done = self.registers.write(register, value);
        self.load();
        done.is_some()
    }
}
