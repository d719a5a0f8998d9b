//! Performance monitors of a VM with `pmu`: event counters and a cycle counter of its own (DDI 0487, D13).
//!
//! All accesses trap (MDCR_EL2.TPM and TPMCR), and this is what they read. Event counter `n` of the guest is the CPU's; its cycle counter is an
//! event counter of the CPU, too, which counts cycles, since the CPU's own is EL2's clock. The CPU has what the guest counts as long as the vCPU has
//! the pCPU. Nothing counts at EL2 or EL3.

use crate::cpu::exit::sysreg;

/// The most event counters that a CPU has.
pub const MOST: usize = 31;
/// The event counters that a guest does not have: the last one, by which EL2 keeps budgets, and the one before, which counts its cycles.
pub const KEPT_BACK: u32 = 2;
/// The most event counters of a guest: what is taken and given at a switch has a bound, whatever the CPU has.
const MOST_GIVEN: u32 = 8;
/// The bit of the cycle counter in the sets of counters, and its number in PMSELR_EL0.
const CYCLES: u32 = 31;
/// The event that the guest's cycle counter counts: CPU_CYCLES.
const CPU_CYCLES: u32 = 0x11;
/// The event that a write to PMSWINC_EL0 counts: SW_INCR.
const SW_INCR: u32 = 0;
/// The event of an odd counter that extends the one before: CHAIN.
const CHAIN: u32 = 0x1e;

/// A register of a guest's performance monitors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// PMCR_EL0.
    Control,
    /// PMCNTENSET_EL0, PMINTENSET_EL1 or PMOVSSET_EL0: a 1 sets.
    Set(Word),
    /// PMCNTENCLR_EL0, PMINTENCLR_EL1 or PMOVSCLR_EL0: a 1 clears.
    Clear(Word),
    /// PMSWINC_EL0.
    Increment,
    /// PMSELR_EL0.
    Select,
    /// PMCEID0_EL0 or PMCEID1_EL0.
    Events(usize),
    /// PMCCNTR_EL0.
    Cycles,
    /// PMXEVTYPER_EL0.
    SelectedType,
    /// PMXEVCNTR_EL0.
    SelectedValue,
    /// PMUSERENR_EL0.
    User,
    /// PMEVCNTR<n>_EL0.
    Value(u32),
    /// PMEVTYPER<n>_EL0, or PMCCFILTR_EL0, as which number 31 is known.
    Type(u32),
}

/// A set of counters, one bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Those that count.
    Enabled,
    /// Those whose overflow interrupts.
    Interrupts,
    /// Those that have overflowed.
    Overflows,
}

/// Finds a register by its encoding.
pub const fn register(encoding: u32) -> Option<Register> {
    // Those of a list first; the rest by the fields of the encoding.
    const INTERRUPTS_SET: u32 = sysreg(3, 0, 9, 14, 1);
    const INTERRUPTS_CLEAR: u32 = sysreg(3, 0, 9, 14, 2);
    match encoding {
        INTERRUPTS_SET => return Some(Register::Set(Word::Interrupts)),
        INTERRUPTS_CLEAR => return Some(Register::Clear(Word::Interrupts)),
        _ => {}
    }
    let (crn, crm, op2) = (encoding >> 10 & 15, encoding >> 1 & 15, encoding >> 17 & 7);
    if encoding & !(15 << 10 | 15 << 1 | 7 << 17) != sysreg(3, 3, 0, 0, 0) {
        return None;
    }
    let n = (crm & 3) << 3 | op2;
    Some(match (crn, crm, op2) {
        (9, 12, 0) => Register::Control,
        (9, 12, 1) => Register::Set(Word::Enabled),
        (9, 12, 2) => Register::Clear(Word::Enabled),
        (9, 12, 3) => Register::Clear(Word::Overflows),
        (9, 12, 4) => Register::Increment,
        (9, 12, 5) => Register::Select,
        (9, 12, 6) => Register::Events(0),
        (9, 12, 7) => Register::Events(1),
        (9, 13, 0) => Register::Cycles,
        (9, 13, 1) => Register::SelectedType,
        (9, 13, 2) => Register::SelectedValue,
        (9, 14, 0) => Register::User,
        (9, 14, 3) => Register::Set(Word::Overflows),
        (14, 8..=11, _) if n < CYCLES => Register::Value(n),
        (14, 12..=15, _) => Register::Type(n),
        _ => return None,
    })
}

/// Bits of PMCR_EL0 (D24.5.7).
mod pmcr {
    pub const E: u64 = 1;
    pub const P: u64 = 1 << 1;
    pub const C: u64 = 1 << 2;
    pub const X: u64 = 1 << 4;
    pub const DP: u64 = 1 << 5;
    pub const LC: u64 = 1 << 6;
    /// X and DP have no effect: no event is exported, and counting is prohibited nowhere. D, by which a counter of 32 bits counts every
    /// 64th cycle, is not there.
    pub const KEPT: u64 = E | X | DP | LC;
    /// IMP and IDCODE, which are the CPU's.
    pub const CPU: u64 = 0xffff << 16;
}

/// Bits of PMEVTYPER<n>_EL0 and PMCCFILTR_EL0 (D24.5.3). A guest has neither EL3 nor EL2, so that the bits about these are 0.
mod filter {
    /// Do not count at EL1.
    pub const P: u32 = 1 << 31;
    /// Do not count at EL0.
    pub const U: u32 = 1 << 30;
    /// Count at EL3 if equal to [`P`].
    pub const M: u32 = 1 << 26;
}

/// Bits of PMUSERENR_EL0.
mod user {
    pub const EN: u32 = 1;
    pub const SW: u32 = 1 << 1;
    pub const CR: u32 = 1 << 2;
    pub const ER: u32 = 1 << 3;
    pub const ALL: u32 = 15;
}

/// What this CPU says of its performance monitors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// PMCR_EL0.
    pub control: u64,
    /// PMCEID0_EL0 and PMCEID1_EL0: the events that it counts.
    pub events: [u64; 2],
    /// ID_AA64DFR0_EL1.PMUVer.
    pub version: u64,
}

impl Features {
    /// The PMUVer that guests see: what comes after PMUv3 for Armv8.1 changes how wide counters are, and adds registers.
    pub const fn seen(self) -> u64 {
        match self.version {
            0 | 15 => 0,
            1..4 => 1,
            _ => 4,
        }
    }

    /// The event counters that a guest has.
    pub const fn counters(self) -> u32 {
        let left = ((self.control >> 11 & 31) as u32).saturating_sub(KEPT_BACK);
        if left < MOST_GIVEN { left } else { MOST_GIVEN }
    }
}

/// A counter of the CPU, with what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Number of the event counter.
    pub number: u32,
    /// PMEVTYPER<n>_EL0.
    pub kind: u32,
    /// PMEVCNTR<n>_EL0.
    pub value: u32,
}

/// The state of a vCPU's performance monitors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pmu {
    control: u64,
    enabled: u32,
    interrupts: u32,
    overflows: u32,
    select: u32,
    user: u32,
    /// By counter; the last one is the filter of the cycle counter.
    kinds: [u32; MOST + 1],
    /// By counter; the last one is the lower half of the cycle counter.
    values: [u32; MOST + 1],
    /// The upper half of the cycle counter.
    upper: u32,
    features: Features,
}

impl Pmu {
    /// The state after a reset, on a CPU with these features: nothing counts, and EL0 has nothing.
    pub const fn new(features: Features) -> Self {
        Self {
            control: 0,
            enabled: 0,
            interrupts: 0,
            overflows: 0,
            select: 0,
            user: 0,
            kinds: [0; MOST + 1],
            values: [0; MOST + 1],
            upper: 0,
            features,
        }
    }

    /// Resets the registers.
    pub const fn reset(&mut self) {
        *self = Self::new(self.features);
    }

    /// Whether EL0 has any of the registers: PMUSERENR_EL0 of the CPU, where all accesses from EL0 come to EL2 or none does. QEMU takes
    /// the bits that give single registers before the trap, by which a program would see EL2's clock.
    pub const fn user(&self) -> bool {
        self.user != 0
    }

    /// Whether PMUSERENR_EL0 gives EL0 an access (D24.5.20). What of the registers is EL1's does not come to EL2 from EL0.
    pub const fn is_user(&self, register: Register, read: bool) -> bool {
        let given = match register {
            Register::User => return true,
            Register::Increment => user::EN | user::SW,
            Register::Cycles if read => user::EN | user::CR,
            Register::Select => user::EN | user::ER,
            Register::Value(_) | Register::SelectedValue if read => user::EN | user::ER,
            _ => user::EN,
        };
        self.user & given != 0
    }

    /// The counters that count.
    pub const fn counting(&self) -> u32 {
        if self.control & pmcr::E != 0 {
            self.enabled
        } else {
            0
        }
    }

    /// The counters whose overflow EL2 must be told of: those that interrupt, and the cycle counter, whose upper half is here.
    pub const fn telling(&self) -> u32 {
        self.interrupts | 1 << CYCLES
    }

    /// Whether the interrupt is pending.
    pub const fn line(&self) -> bool {
        self.control & pmcr::E != 0 && self.overflows & self.interrupts != 0
    }

    /// Counters that the guest has.
    const fn there(&self) -> u32 {
        1 << CYCLES | (1u32.wrapping_shl(self.features.counters())).wrapping_sub(1)
    }

    /// Takes the first of `rest`, counters that count, off it. Returns it by the number that the guest knows it by, and what of a CPU
    /// with `all` counters is to count. One that the CPU does not have is left out.
    pub fn next_of(&self, rest: &mut u32, all: u32) -> Option<(u32, Counter)> {
        let given = all.saturating_sub(KEPT_BACK);
        while *rest != 0 {
            let n = rest.trailing_zeros();
            *rest &= rest.wrapping_sub(1);
            if n < given || n == CYCLES && all >= KEPT_BACK {
                return Some((n, self.counter(n, given)));
            }
        }
        None
    }

    fn counter(&self, n: u32, given: u32) -> Counter {
        let kind = self.kinds.get(n as usize).copied().unwrap_or_default();
        let (number, event) = if n == CYCLES {
            (given, CPU_CYCLES)
        } else {
            (n, kind & self.event_bits())
        };
        let kept = kind & (filter::P | filter::U);
        // Not at EL3, which belongs to nobody's VM.
        let not_el3 = if kind & filter::P == 0 { filter::M } else { 0 };
        Counter {
            number,
            kind: kept | not_el3 | event,
            value: self.values.get(n as usize).copied().unwrap_or_default(),
        }
    }

    /// The counters whose state in the CPU a read of a register depends on, of those that count.
    pub fn read_by(&self, register: Register) -> u32 {
        let concerned = match self.selected(register) {
            Register::Value(n) => 1u32.wrapping_shl(n),
            Register::Cycles => 1 << CYCLES,
            Register::Set(Word::Overflows) | Register::Clear(Word::Overflows) => u32::MAX,
            _ => 0,
        };
        concerned & self.counting()
    }

    /// Takes a value from the CPU; `overflowed`: the counter has overflowed since it was given it.
    pub fn take(&mut self, n: u32, value: u32, overflowed: bool) {
        self.set_value(n, value);
        if overflowed {
            self.overflow(n);
        }
    }

    fn set_value(&mut self, n: u32, value: u32) {
        if let Some(place) = self.values.get_mut(n as usize) {
            *place = value;
        }
    }

    fn set_cycles(&mut self, value: u64) {
        self.set_value(CYCLES, value as u32);
        self.upper = (value >> 32) as u32;
    }

    /// The register behind one that is selected by PMSELR_EL0.
    const fn selected(&self, register: Register) -> Register {
        match register {
            Register::SelectedType => Register::Type(self.select),
            Register::SelectedValue => Register::Value(self.select),
            other => other,
        }
    }

    fn overflow(&mut self, n: u32) {
        if n == CYCLES {
            self.upper = self.upper.wrapping_add(1);
            if self.control & pmcr::LC != 0 && self.upper != 0 {
                return;
            }
        }
        self.overflows |= 1u32.wrapping_shl(n);
    }

    const fn event_bits(&self) -> u32 {
        if self.features.seen() < 4 {
            0x3ff
        } else {
            0xffff
        }
    }

    const fn word(&mut self, word: Word) -> &mut u32 {
        match word {
            Word::Enabled => &mut self.enabled,
            Word::Interrupts => &mut self.interrupts,
            Word::Overflows => &mut self.overflows,
        }
    }

    /// Whether the guest has event counter `n`.
    const fn has(&self, n: u32) -> bool {
        n < self.features.counters()
    }

    /// Reads a register; `None`: it is undefined.
    pub fn read(&self, register: Register) -> Option<u64> {
        let features = &self.features;
        Some(match self.selected(register) {
            Register::Control => {
                let count = u64::from(features.counters());
                features.control & pmcr::CPU | count << 11 | self.control
            }
            Register::Set(Word::Enabled) | Register::Clear(Word::Enabled) => self.enabled.into(),
            Register::Set(Word::Interrupts) | Register::Clear(Word::Interrupts) => {
                self.interrupts.into()
            }
            Register::Set(Word::Overflows) | Register::Clear(Word::Overflows) => {
                self.overflows.into()
            }
            Register::Select => self.select.into(),
            Register::Events(n) => {
                let all = features.events.get(n).copied().unwrap_or_default();
                // Those from 0x4000 on came with the version for Armv8.1.
                if features.seen() < 4 {
                    all & 0xffff_ffff
                } else {
                    all
                }
            }
            Register::Cycles => {
                let lower = self.values.get(CYCLES as usize).copied();
                u64::from(self.upper) << 32 | u64::from(lower.unwrap_or_default())
            }
            Register::User => self.user.into(),
            Register::Value(n) if self.has(n) => u64::from(*self.values.get(n as usize)?),
            Register::Type(n) if self.has(n) || n == CYCLES => {
                u64::from(*self.kinds.get(n as usize)?)
            }
            _ => return None,
        })
    }

    /// Writes a register, at EL0 or EL1, while no counter of the guest is in the CPU. `None`: it is undefined.
    pub fn write(&mut self, register: Register, value: u64, at_el0: bool) -> Option<()> {
        let bits = value as u32 & self.there();
        match self.selected(register) {
            Register::Control => {
                self.control = value & pmcr::KEPT;
                if value & pmcr::P != 0 {
                    for place in self.values.iter_mut().take(MOST) {
                        *place = 0;
                    }
                }
                if value & pmcr::C != 0 {
                    self.set_cycles(0);
                }
            }
            Register::Set(word) => *self.word(word) |= bits,
            Register::Clear(word) => *self.word(word) &= !bits,
            Register::Increment => self.increment(bits, at_el0),
            Register::Select => self.select = value as u32 & 31,
            Register::Cycles => self.set_cycles(value),
            Register::User => self.user = value as u32 & user::ALL,
            Register::Value(n) if self.has(n) => self.set_value(n, value as u32),
            Register::Type(n) if self.has(n) || n == CYCLES => {
                let event = if n == CYCLES { 0 } else { self.event_bits() };
                let kept = filter::P | filter::U | event;
                *self.kinds.get_mut(n as usize)? = value as u32 & kept;
            }
            _ => return None,
        }
        Some(())
    }

    /// PMSWINC_EL0: the CPU would count the write at EL2, where nothing counts.
    fn increment(&mut self, bits: u32, at_el0: bool) {
        let filter = if at_el0 { filter::U } else { filter::P };
        let bits = bits & self.counting();
        for n in 0..MOST as u32 {
            let kind = self.kinds.get(n as usize).copied().unwrap_or_default();
            let counts = kind & self.event_bits() == SW_INCR && kind & filter == 0;
            if bits >> n & 1 == 0 || !counts || !self.add_one(n) {
                continue;
            }
            // An even counter has overflowed: the odd one behind it may extend it.
            let next = n | 1;
            let kind = self.kinds.get(next as usize).copied().unwrap_or_default();
            let chained = kind & self.event_bits() == CHAIN && kind & filter == 0;
            if n & 1 == 0 && chained && self.counting() >> next & 1 != 0 {
                self.add_one(next);
            }
        }
    }

    /// Counts one event. Returns whether the counter has overflowed.
    fn add_one(&mut self, n: u32) -> bool {
        let value = self.values.get(n as usize).copied().unwrap_or_default();
        let value = value.wrapping_add(1);
        self.take(n, value, value == 0);
        value == 0
    }
}
