//! The virtual CPU interface: what hardware does with list registers (IHI 0069H, chapter 6 and 12.4;
//! IHI 0048B, chapter 5).

use crate::{Acknowledged, Interface};

/// Source of a list register's interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// HW = 1: a physical interrupt, deactivated together with the virtual one.
    Physical(u32),
    /// HW = 0; `tell` asks for a maintenance interrupt at the end, `sender` is the CPU that sent an SGI
    /// (GICv2).
    Software {
        /// The EOI bit.
        tell: bool,
        /// The CPUID field.
        sender: usize,
    },
}

/// A list register that is not all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// INTID for the guest.
    pub intid: u32,
    /// State: pending.
    pub pending: bool,
    /// State: active. With `pending`: both.
    pub active: bool,
    /// 0 or 1.
    pub group: usize,
    /// Priority.
    pub priority: u8,
    /// Its source.
    pub source: Source,
}

impl Entry {
    /// Neither pending nor active, of software, and asked to tell.
    fn tells(&self) -> bool {
        !self.pending && !self.active && matches!(self.source, Source::Software { tell: true, .. })
    }
}

/// Effect of a deactivation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deactivated {
    /// A list register's interrupt; the hardware deactivates this physical one.
    Physical(u32),
    /// A list register's interrupt, and that is all.
    Virtual,
    /// No list register has it: it was counted in EOIcount.
    Counted,
    /// No list register has it, and nothing was active: nothing happens.
    Ignored,
}

/// The virtual CPU interface of a pCPU.
#[derive(Clone, Debug)]
pub struct VirtualInterface {
    /// List registers.
    pub entries: Vec<Option<Entry>>,
    /// Settings of the guest: mask, binary points, enables, EOImode.
    pub interface: Interface,
    /// ICH_HCR_EL2.EOIcount.
    pub uncounted: u32,
    /// ICH_HCR_EL2.NPIE: ask for a maintenance interrupt when nothing is pending in list registers.
    pub ask_none_pending: bool,
    /// ICH_HCR_EL2.VGrp0EIE or VGrp0DIE, VGrp1EIE or VGrp1DIE: ask for one while the guest's group enables are
    /// not these.
    pub ask_unlike: Option<[bool; 2]>,
    /// ICH_HCR_EL2.LRENPIE.
    pub ask_ends: bool,
}

impl VirtualInterface {
    /// As after a reset.
    pub fn new(list_registers: usize, priority_bits: u32) -> Self {
        Self {
            entries: vec![None; list_registers],
            interface: Interface::new(priority_bits),
            uncounted: 0,
            ask_none_pending: false,
            ask_unlike: None,
            ask_ends: false,
        }
    }

    /// The list register that would be presented: the most urgent one that is pending and of a group that
    /// the guest has on.
    pub fn highest(&self) -> Option<usize> {
        let mut best: Option<(u8, usize)> = None;
        for (n, entry) in self.entries.iter().enumerate() {
            if let Some(entry) = entry
                && entry.pending
                && !entry.active
                && self.interface.enabled[entry.group]
                && best.is_none_or(|(priority, _)| entry.priority < priority)
            {
                best = Some((entry.priority, n));
            }
        }
        best.map(|(_, n)| n)
    }

    /// Returns the interrupt that is signalled: group, and the value that an acknowledge would return.
    pub fn signalled(&self) -> Option<(usize, Acknowledged)> {
        let entry = self.entries[self.highest()?]?;
        if !self.interface.signals(entry.group, entry.priority) {
            return None;
        }
        let source = match entry.source {
            Source::Software { sender, .. } => sender,
            Source::Physical(_) => 0,
        };
        let intid = entry.intid;
        Some((entry.group, Acknowledged { intid, source }))
    }

    /// The guest reads the acknowledge register of a group; `None` is the special INTID 1023.
    pub fn acknowledge(&mut self, group: usize) -> Option<Acknowledged> {
        let (its_group, what) = self.signalled()?;
        if its_group != group {
            return None;
        }
        let n = self.highest()?;
        let entry = self.entries[n].as_mut()?;
        (entry.pending, entry.active) = (false, true);
        let priority = entry.priority;
        self.interface.acknowledge(group, priority);
        Some(what)
    }

    /// End of interrupt: `None` if ends are split and the priority alone dropped.
    pub fn end(&mut self, intid: u32) -> Option<Deactivated> {
        let was_active = self.interface.drop_priority();
        if self.interface.split_end {
            return None;
        }
        Some(if was_active || self.holds_active(intid) {
            self.deactivate(intid)
        } else {
            Deactivated::Ignored
        })
    }

    fn holds_active(&self, intid: u32) -> bool {
        let mut held = self.entries.iter().flatten();
        held.any(|entry| entry.intid == intid && entry.active)
    }

    /// ICV_DIR_EL1.
    pub fn deactivate(&mut self, intid: u32) -> Deactivated {
        let mut held = self.entries.iter_mut().flatten();
        let Some(entry) = held.find(|entry| entry.intid == intid && entry.active) else {
            self.uncounted += 1;
            return Deactivated::Counted;
        };
        entry.active = false;
        match entry.source {
            Source::Physical(pintid) => Deactivated::Physical(pintid),
            Source::Software { .. } => Deactivated::Virtual,
        }
    }

    /// ICH_EISR_EL2: inactive, of software, and asked to tell.
    pub fn ended(&self) -> u32 {
        self.select(Entry::tells)
    }

    /// ICH_ELRSR_EL2: holds nothing and has nothing to tell.
    pub fn empty(&self) -> u32 {
        let all = (1_u32 << self.entries.len()) - 1;
        all & !self.select(|entry| entry.pending | entry.active || entry.tells())
    }

    /// A bit for each list register that is as is asked, the first one lowest.
    fn select(&self, want: impl Fn(&Entry) -> bool) -> u32 {
        let mut bits = 0;
        for entry in self.entries.iter().rev() {
            bits = bits << 1 | u32::from(entry.as_ref().is_some_and(&want));
        }
        bits
    }

    /// The maintenance interrupt is asserted (ICH_MISR_EL2: EOI, NP, VGrp0E and so on, LRENP).
    pub fn maintenance(&self) -> bool {
        let enabled = self.interface.enabled;
        self.ended() != 0
            || self.ask_none_pending && self.select(|entry| entry.pending && !entry.active) == 0
            || self.ask_unlike.is_some_and(|groups| groups != enabled)
            || self.ask_ends && self.uncounted != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(intid: u32, priority: u8) -> Option<Entry> {
        Some(Entry {
            intid,
            pending: true,
            active: false,
            group: 1,
            priority,
            source: Source::Software {
                tell: false,
                sender: 0,
            },
        })
    }

    fn open() -> VirtualInterface {
        let mut interface = VirtualInterface::new(2, 5);
        interface.interface.set_mask(0xff);
        interface.interface.enabled = [true; 2];
        interface
    }

    #[test]
    fn the_most_urgent_comes_first_and_preempts() {
        let mut cpu = open();
        cpu.entries[0] = entry(40, 0x80);
        assert_eq!(cpu.acknowledge(0), None, "group 1");
        assert_eq!(cpu.acknowledge(1).unwrap().intid, 40);
        cpu.entries[1] = entry(41, 0x80);
        assert_eq!(cpu.acknowledge(1), None);
        cpu.entries[1] = entry(41, 0x40);
        assert_eq!(cpu.acknowledge(1).unwrap().intid, 41);
        assert_eq!(cpu.interface.running(), 0x40);
        assert_eq!(cpu.end(41), Some(Deactivated::Virtual));
        assert_eq!((cpu.empty(), cpu.interface.running()), (2, 0x80));
    }

    #[test]
    fn an_end_that_must_be_told_keeps_its_register() {
        let mut cpu = open();
        cpu.entries[0] = entry(40, 0x80);
        cpu.entries[0].as_mut().unwrap().source = Source::Software {
            tell: true,
            sender: 0,
        };
        cpu.acknowledge(1);
        assert!(!cpu.maintenance());
        cpu.end(40);
        assert_eq!((cpu.ended(), cpu.empty()), (1, 2));
        assert!(cpu.maintenance());
    }

    #[test]
    fn an_end_without_a_register_is_counted() {
        let mut cpu = open();
        cpu.entries[0] = entry(40, 0x80);
        cpu.acknowledge(1);
        cpu.entries[0] = None;
        cpu.ask_ends = true;
        assert_eq!(cpu.end(40), Some(Deactivated::Counted));
        assert!(cpu.maintenance());
        assert_eq!(cpu.end(40), Some(Deactivated::Ignored));
        assert_eq!(cpu.uncounted, 1);
    }
}
