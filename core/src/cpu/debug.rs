//! Debug registers of a VM with `debug`: breakpoints, watchpoints and software step inside it (DDI 0487, D2).
//!
//! All accesses trap (MDCR_EL2.TDA and TDOSA), and this is what they read. The hardware has what the guest has written as long as
//! the vCPU has its pCPU and anything of it is on ([`Debug::is_active`]); debug exceptions go to EL1, and none is taken at EL2 (D2.4). What
//! is for external debuggers has no effect: the channel, halting, power.

use crate::cpu::exit::sysreg;

/// The most breakpoints and the most watchpoints that a CPU has.
pub const MOST: usize = 16;

/// A debug register of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// MDSCR_EL1.
    Control,
    /// OSLAR_EL1.
    Lock,
    /// OSLSR_EL1.
    LockStatus,
    /// DBGBVR<n>_EL1 and DBGWVR<n>_EL1.
    Value(Kind, usize),
    /// DBGBCR<n>_EL1 and DBGWCR<n>_EL1.
    Matches(Kind, usize),
    /// One that reads as zero and ignores writes.
    Zero,
}

/// What a pair of registers is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A breakpoint.
    Breakpoint,
    /// A watchpoint.
    Watchpoint,
}

/// Finds a register by its encoding.
pub const fn register(encoding: u32) -> Option<Register> {
    const CONTROL: u32 = sysreg(2, 0, 0, 2, 2);
    const CHANNEL_INTERRUPT: u32 = sysreg(2, 0, 0, 2, 0);
    const LOCK: u32 = sysreg(2, 0, 1, 0, 4);
    const LOCK_STATUS: u32 = sysreg(2, 0, 1, 1, 4);
    const DOUBLE_LOCK: u32 = sysreg(2, 0, 1, 3, 4);
    const POWER: u32 = sysreg(2, 0, 1, 4, 4);
    match encoding {
        CONTROL => return Some(Register::Control),
        LOCK => return Some(Register::Lock),
        LOCK_STATUS => return Some(Register::LockStatus),
        CHANNEL_INTERRUPT | DOUBLE_LOCK | POWER => return Some(Register::Zero),
        _ => {}
    }
    let (n, op2) = ((encoding >> 1 & 15) as usize, encoding >> 17 & 7);
    if encoding & !(15 << 1 | 7 << 17) != sysreg(2, 0, 0, 0, 0) {
        return None;
    }
    match op2 {
        4 => Some(Register::Value(Kind::Breakpoint, n)),
        5 => Some(Register::Matches(Kind::Breakpoint, n)),
        6 => Some(Register::Value(Kind::Watchpoint, n)),
        7 => Some(Register::Matches(Kind::Watchpoint, n)),
        _ => None,
    }
}

/// Bits of MDSCR_EL1 (D24.3.20).
mod mdscr {
    pub const SS: u64 = 1;
    pub const KDE: u64 = 1 << 13;
    pub const MDE: u64 = 1 << 15;
    /// TDCC traps what is undefined for guests anyway; the others are for external debuggers.
    pub const KEPT: u64 = SS | 1 << 12 | KDE | MDE;
}

/// Bits of DBGBCR<n>_EL1: E, PMC, BAS, LBN and BT (D24.3.2). HMC and SSC, which are about EL2 and Secure state, are 0: there is neither in a
/// VM.
const BREAKPOINT: u64 = 7 | 15 << 5 | 15 << 16 | 15 << 20;
/// The types of breakpoints that a guest has: by address or CONTEXTIDR_EL1, linked or not. Others match what EL2 or AArch32 has.
const TYPES: u64 = 3;
/// Bits of DBGWCR<n>_EL1: E, PAC, LSC, BAS, LBN, WT and MASK (D24.3.14).
const WATCHPOINT: u64 = 7 | 3 << 3 | 0xff << 5 | 15 << 16 | 1 << 20 | 31 << 24;

/// The value and the control register of a breakpoint or watchpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// The address, or the context.
    pub value: u64,
    /// What matches it.
    pub control: u64,
}

/// The state of a vCPU's debug registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debug {
    control: u64,
    locked: bool,
    /// By [`Kind`].
    pairs: [[Pair; MOST]; 2],
    /// How many of them the CPU has.
    counts: [u8; 2],
}

impl Debug {
    /// The state after a reset, on a CPU with this ID_AA64DFR0_EL1: the OS lock is locked, and all else that matters is 0.
    pub const fn new(dfr0: u64) -> Self {
        let none = Pair {
            value: 0,
            control: 0,
        };
        Self {
            control: 0,
            locked: true,
            pairs: [[none; MOST]; 2],
            counts: [(dfr0 >> 12 & 15) as u8 + 1, (dfr0 >> 20 & 15) as u8 + 1],
        }
    }

    /// Resets the registers.
    pub const fn reset(&mut self) {
        let counts = self.counts;
        *self = Self::new(0);
        self.counts = counts;
    }

    /// Whether the hardware must have the registers: it may take a debug exception because of them.
    pub const fn is_active(&self) -> bool {
        self.effective() != 0
    }

    /// Whether the guest steps through a program.
    pub const fn steps(&self) -> bool {
        self.effective() & mdscr::SS != 0
    }

    /// What the hardware's MDSCR_EL1 must have. The OS lock holds back all debug exceptions; the hardware's stays open, since others use it.
    pub const fn effective(&self) -> u64 {
        let is_on = !self.locked && self.control & (mdscr::SS | mdscr::MDE) != 0;
        if is_on { self.control } else { 0 }
    }

    /// The pairs of a kind that the CPU has.
    pub fn pairs(&self, kind: Kind) -> &[Pair] {
        let (all, count) = (&self.pairs[kind as usize], self.counts[kind as usize]);
        all.get(..usize::from(count)).unwrap_or_default()
    }

    fn pair(&mut self, kind: Kind, n: usize) -> Option<&mut Pair> {
        let (all, count) = (&mut self.pairs[kind as usize], self.counts[kind as usize]);
        if n < usize::from(count) {
            all.get_mut(n)
        } else {
            None
        }
    }

    /// Reads a register; `None`: it is undefined.
    pub fn read(&self, register: Register) -> Option<u64> {
        Some(match register {
            Register::Control => self.control,
            // OSLM 0b10: there is an OS lock. OSLK.
            Register::LockStatus => 1 << 3 | (self.locked as u64) << 1,
            Register::Value(kind, n) => self.pairs(kind).get(n)?.value,
            Register::Matches(kind, n) => self.pairs(kind).get(n)?.control,
            Register::Zero => 0,
            Register::Lock => return None,
        })
    }

    /// Writes a register; `None`: it is undefined.
    pub fn write(&mut self, register: Register, value: u64) -> Option<()> {
        match register {
            Register::Control => self.control = value & mdscr::KEPT,
            Register::Lock => self.locked = value & 1 != 0,
            Register::Value(kind, n) => self.pair(kind, n)?.value = value,
            Register::Matches(kind, n) => {
                self.pair(kind, n)?.control = match kind {
                    Kind::Breakpoint if value >> 20 & 15 > TYPES => value & BREAKPOINT & !1,
                    Kind::Breakpoint => value & BREAKPOINT,
                    Kind::Watchpoint => value & WATCHPOINT,
                }
            }
            Register::Zero => {}
            Register::LockStatus => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// ID_AA64DFR0_EL1 of a Cortex-A53: 6 breakpoints, 4 watchpoints, 2 of the breakpoints for contexts.
    const A53: u64 = 0x1030_5106;

    #[test]
    fn registers_are_found_by_encoding() {
        let all = [
            ((0, 2, 2), Some(Register::Control)),
            ((1, 0, 4), Some(Register::Lock)),
            ((1, 1, 4), Some(Register::LockStatus)),
            ((1, 3, 4), Some(Register::Zero)),
            ((1, 4, 4), Some(Register::Zero)),
            ((0, 2, 0), Some(Register::Zero)),
            ((0, 0, 4), Some(Register::Value(Kind::Breakpoint, 0))),
            ((0, 15, 5), Some(Register::Matches(Kind::Breakpoint, 15))),
            ((0, 3, 6), Some(Register::Value(Kind::Watchpoint, 3))),
            ((0, 7, 7), Some(Register::Matches(Kind::Watchpoint, 7))),
            // OSDTRRX_EL1, MDRAR_EL1, DBGCLAIMSET_EL1, OSECCR_EL1.
            ((0, 0, 2), None),
            ((1, 0, 0), None),
            ((7, 8, 6), None),
            ((0, 6, 2), None),
        ];
        for ((crn, crm, op2), expected) in all {
            assert_eq!(register(sysreg(2, 0, crn, crm, op2)), expected);
        }
        // Those of EL0, and what is no debug register.
        assert_eq!(register(sysreg(2, 3, 0, 4, 0)), None);
        assert_eq!(register(sysreg(3, 0, 0, 0, 4)), None);
    }

    #[test]
    fn a_cpu_has_so_many_and_no_more() {
        let mut debug = Debug::new(A53);
        for (kind, count) in [(Kind::Breakpoint, 6), (Kind::Watchpoint, 4)] {
            assert_eq!(debug.pairs(kind).len(), count);
            for n in 0..20 {
                let there = (n < count).then_some(());
                assert_eq!(debug.write(Register::Value(kind, n), 7 + n as u64), there);
                assert_eq!(debug.write(Register::Matches(kind, n), 1), there);
                let read = debug.read(Register::Value(kind, n));
                assert_eq!(read, there.map(|()| 7 + n as u64));
            }
        }
        assert_eq!(Debug::new(u64::MAX).pairs(Kind::Watchpoint).len(), MOST);
        debug.reset();
        assert_eq!(debug, Debug::new(A53));
    }

    #[test]
    fn nothing_is_on_until_the_lock_is_open_and_one_of_both_bits_is_set() {
        let mut debug = Debug::new(A53);
        assert_eq!(debug.read(Register::LockStatus), Some(0b1010));
        debug.write(Register::Control, u64::MAX).unwrap();
        assert!(!debug.is_active() && !debug.steps());
        debug.write(Register::Lock, 2).unwrap();
        assert_eq!(debug.read(Register::LockStatus), Some(0b1000));
        // Neither halting nor anything for external debuggers.
        assert_eq!(debug.effective(), 0xb001);
        assert!(debug.steps());
        debug.write(Register::Control, 1 << 15).unwrap();
        assert!(debug.is_active() && !debug.steps());
        debug.write(Register::Control, 1 << 13).unwrap();
        assert!(!debug.is_active());
        debug.write(Register::Control, 1).unwrap();
        debug.write(Register::Lock, 1).unwrap();
        assert!(!debug.steps());
        assert_eq!(debug.read(Register::Lock), None);
        assert_eq!(debug.write(Register::LockStatus, 0), None);
    }

    #[test]
    fn a_breakpoint_of_what_a_vm_does_not_have_is_off() {
        let mut debug = Debug::new(A53);
        let first = Register::Matches(Kind::Breakpoint, 0);
        for kind in 0..16 {
            debug.write(first, kind << 20 | 15 << 5 | 7).unwrap();
            let read = debug.read(first).unwrap();
            assert_eq!(read & 1 == 1, kind < 4, "type {kind}");
        }
    }

    proptest! {
        /// Whatever a guest writes, no breakpoint or watchpoint is about EL2 or Secure state, and none halts the CPU.
        #[test]
        fn nothing_is_about_el2(writes in prop::collection::vec((0u32..1 << 22, any::<u64>()), 0..200)) {
            let mut debug = Debug::new(A53);
            for (encoding, value) in writes {
                if let Some(register) = register(encoding & !(1 | 31 << 5) | 2 << 20) {
                    let done = debug.write(register, value);
                    prop_assert!(done.is_some() || !matches!(register, Register::Control | Register::Lock));
                }
                prop_assert_eq!(debug.effective() & !(1 | 1 << 12 | 1 << 13 | 1 << 15), 0);
                for kind in [Kind::Breakpoint, Kind::Watchpoint] {
                    // HMC and SSC.
                    prop_assert!(debug.pairs(kind).iter().all(|pair| pair.control & (7 << 13) == 0));
                }
            }
        }
    }
}
