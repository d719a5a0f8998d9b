//! The whole GIC: which CPU gets which interrupt, and what a CPU acknowledges and ends.

use crate::{Config, Frame, Interface, Interrupt, Version};

/// Value that a CPU got from its interrupt acknowledge register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Acknowledged {
    /// INTID.
    pub intid: u32,
    /// GICv2 SGIs: the CPU that sent it; else 0.
    pub source: usize,
}

/// A GIC.
#[derive(Clone, Debug)]
pub struct Gic {
    /// Choices of its implementer.
    pub config: Config,
    /// GICD_CTLR.EnableGrp0 and EnableGrp1.
    pub(crate) groups: [bool; 2],
    pub(crate) spis: Vec<Interrupt>,
    pub(crate) private: Vec<Vec<Interrupt>>,
    pub(crate) asleep: Vec<bool>,
    /// CPU interfaces.
    pub interfaces: Vec<Interface>,
}

impl Gic {
    /// A GIC at reset. Registers whose value at reset is unknown are zero.
    pub fn new(config: Config) -> Self {
        let interface = Interface::new(config.priority_bits);
        Self {
            config,
            groups: [false; 2],
            spis: vec![Interrupt::default(); config.spis as usize],
            private: (0..config.cpus).map(|_| private_bank(&config)).collect(),
            asleep: vec![true; config.cpus],
            interfaces: vec![interface; config.cpus],
        }
    }

    /// The interrupt with this INTID as a CPU sees it.
    pub fn interrupt(&self, cpu: usize, intid: u32) -> Option<&Interrupt> {
        match intid {
            0..32 => self.private[cpu].get(intid as usize),
            _ => self.spis.get(intid as usize - 32),
        }
    }

    pub(crate) fn interrupt_mut(&mut self, cpu: usize, intid: u32) -> Option<&mut Interrupt> {
        match intid {
            0..32 => self.private[cpu].get_mut(intid as usize),
            _ => self.spis.get_mut(intid as usize - 32),
        }
    }

    /// Whether registers of a frame that lay a field over INTIDs have one for this INTID when `cpu`
    /// accesses them; and whose interrupt it is.
    pub(crate) fn owner(&self, cpu: usize, frame: Frame, intid: u32) -> Option<usize> {
        match (self.config.version, frame) {
            // With affinity routing they are in the redistributors, and RES0 here.
            (Version::V3, Frame::Distributor) if intid < 32 => None,
            (_, Frame::Distributor) => (intid < 32 + self.config.spis).then_some(cpu),
            (_, Frame::Redistributor(of)) => (intid < 32).then_some(of),
        }
    }

    /// The trigger of an SPI is given by the board and cannot be written.
    pub fn fix_trigger(&mut self, intid: u32, edge: bool) {
        if let Some(interrupt) = self.interrupt_mut(0, intid) {
            (interrupt.fixed, interrupt.edge) = (true, edge);
        }
    }

    /// The input signal of an interrupt; `cpu` counts for PPIs.
    pub fn set_line(&mut self, cpu: usize, intid: u32, up: bool) {
        if let Some(interrupt) = self.interrupt_mut(cpu, intid) {
            interrupt.set_line(up);
        }
    }

    /// An edge; `cpu` counts for PPIs.
    pub fn pulse(&mut self, cpu: usize, intid: u32) {
        if let Some(interrupt) = self.interrupt_mut(cpu, intid) {
            interrupt.latch = true;
        }
    }

    /// Whether an SPI goes to a CPU. On GICv2 the first of several targets takes it: which one does is
    /// not defined.
    fn routed(&self, interrupt: &Interrupt, cpu: usize) -> bool {
        match self.config.version {
            // On a uniprocessor all go to the one CPU.
            Version::V2 if self.config.cpus == 1 => true,
            Version::V2 => interrupt.route.trailing_zeros() as usize == cpu,
            Version::V3 => interrupt.route == cpu as u64,
        }
    }

    /// Returns the interrupts that are forwarded to a CPU: INTID, group, priority.
    fn forwarded(&self, cpu: usize) -> impl Iterator<Item = (u32, usize, u8)> {
        let private = self.private[cpu].iter().enumerate();
        let spis = (32..).zip(&self.spis);
        // Few are enabled and pending: who looks often asks that first.
        let waits = |i: &Interrupt| i.enabled && i.pending() && !i.active && self.groups[i.group];
        let routed = spis.filter(move |(_, spi)| waits(spi) && self.routed(spi, cpu));
        private
            .map(|(n, interrupt)| (n as u32, interrupt))
            .filter(move |(_, interrupt)| waits(interrupt))
            .chain(routed)
            .map(|(intid, i)| (intid, i.group, i.priority))
    }

    /// Returns the most urgent of the interrupts that are forwarded to a CPU and of a group that its interface
    /// has on: a group that is off does not keep the other from it (IHI 0069H, 4.8.2).
    fn most_urgent(&self, cpu: usize) -> Vec<(u32, usize, u8)> {
        let enabled = self.interfaces[cpu].enabled;
        let mut seen = Vec::new();
        let mut most = u8::MAX;
        for one in self.forwarded(cpu).filter(|(_, group, _)| enabled[*group]) {
            if one.2 < most {
                most = one.2;
                seen.clear();
            }
            if one.2 == most {
                seen.push(one);
            }
        }
        seen
    }

    /// Returns the interrupts that a CPU may acknowledge: group, and the value that it would get. The choice
    /// among several equally urgent ones, and among several senders of an SGI, is left to the implementer.
    pub fn candidates(&self, cpu: usize) -> Vec<(usize, Acknowledged)> {
        let interface = &self.interfaces[cpu];
        let mut candidates = Vec::new();
        for (intid, group, priority) in self.most_urgent(cpu) {
            if interface.signals(group, priority) {
                let senders = self.senders(cpu, intid).into_iter();
                candidates.extend(senders.map(|source| (group, Acknowledged { intid, source })));
            }
        }
        candidates
    }

    /// A CPU may see nothing signalled: one of the most urgent interrupts is not. (Another one of the same
    /// priority may be: the groups have binary points of their own.)
    pub fn may_be_silent(&self, cpu: usize) -> bool {
        let interface = &self.interfaces[cpu];
        let urgent = self.most_urgent(cpu);
        urgent.is_empty()
            || urgent
                .iter()
                .any(|(_, group, priority)| !interface.signals(*group, *priority))
    }

    fn senders(&self, cpu: usize, intid: u32) -> Vec<usize> {
        let sources = self.interrupt(cpu, intid).map_or(0, |i| i.sources);
        if sources == 0 {
            return vec![0];
        }
        (0..8).filter(|n| sources >> n & 1 != 0).collect()
    }

    /// A CPU acknowledges one of its candidates.
    ///
    /// # Panics
    ///
    /// It is none of them.
    pub fn acknowledge(&mut self, cpu: usize, what: Acknowledged) {
        let known = self.candidates(cpu).iter().any(|(_, one)| *one == what);
        assert!(known, "{what:?} is not signalled to CPU {cpu}");
        if let Some(interrupt) = self.interrupt_mut(cpu, what.intid) {
            interrupt.acknowledge(what.source);
            interrupt.taken_by = Some(cpu);
            let (group, priority) = (interrupt.group, interrupt.priority);
            self.interfaces[cpu].acknowledge(group, priority);
        }
    }

    /// End of interrupt: drops the priority, and deactivates if ends are not split.
    pub fn end(&mut self, cpu: usize, intid: u32) {
        self.interfaces[cpu].drop_priority();
        if !self.interfaces[cpu].split_end {
            self.deactivate(cpu, intid);
        }
    }

    /// A CPU goes off and comes back later as after a reset. What it had taken counts as ended, so that no SPI
    /// stays active for ever.
    pub fn restart(&mut self, cpu: usize) {
        self.private[cpu] = private_bank(&self.config);
        self.asleep[cpu] = true;
        self.interfaces[cpu] = Interface::new(self.config.priority_bits);
        for spi in self.spis.iter_mut().filter(|spi| spi.taken_by == Some(cpu)) {
            spi.active = false;
            spi.taken_by = None;
        }
    }

    /// ICC_DIR_EL1.
    pub fn deactivate(&mut self, cpu: usize, intid: u32) {
        if let Some(interrupt) = self.interrupt_mut(cpu, intid) {
            interrupt.active = false;
            interrupt.taken_by = None;
        }
    }
}

pub(crate) fn private_bank(config: &Config) -> Vec<Interrupt> {
    let one = |intid: u32| Interrupt {
        edge: intid < 16,
        fixed: intid < 16 || config.fixed_ppis >> intid & 1 != 0,
        enabled: intid < 16 && config.version == Version::V2 && config.sgis_always_enabled,
        ..Interrupt::default()
    };
    (0..32).map(one).collect()
}
