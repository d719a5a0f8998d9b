//! Comparison of the vGIC with the model once everything has been delivered.

use super::*;

impl<const V2: bool> Machine<V2> {
    /// All pCPUs handle all that waits.
    pub(super) fn settle(&mut self, first: usize) {
        let cpus = self.shape.cpus;
        for _ in 0..PATIENCE {
            let mut busy = false;
            for n in 0..cpus {
                busy |= self.step((first + n) % cpus);
            }
            if !busy {
                return;
            }
        }
        let state = self.pcpus.iter().map(|pcpu| &pcpu.interface);
        let state: Vec<_> = state.collect();
        panic!("the machine does not come to rest: {state:?}");
    }

    // --- comparing ------------------------------------------------------------------------------

    /// Compares the interrupts that each vCPU would acknowledge now.
    pub(super) fn compare_signals(&self) {
        for (cpu, pcpu) in self.pcpus.iter().enumerate().filter(|(_, pcpu)| pcpu.on) {
            let candidates = self.model.candidates(cpu);
            match pcpu.interface.signalled() {
                None => assert!(
                    self.model.may_be_silent(cpu),
                    "vCPU {cpu} gets nothing instead of one of {candidates:?}; it has {:?}",
                    pcpu.interface.entries
                ),
                Some(one) => assert!(
                    candidates.contains(&one),
                    "vCPU {cpu} gets {one:?} instead of one of {candidates:?}"
                ),
            }
            assert_eq!(
                pcpu.interface.interface.running(),
                self.model.interfaces[cpu].running()
            );
        }
    }

    /// Compares all that a guest can see.
    pub fn compare(&mut self) {
        self.settle(0);
        let mut held = BTreeSet::new();
        for entry in self
            .pcpus
            .iter()
            .flat_map(|pcpu| pcpu.interface.entries.iter().flatten())
        {
            let valid = entry.intid >= 32 && (entry.pending || entry.active);
            assert!(
                !valid || held.insert(entry.intid),
                "two vCPUs hold SPI {}",
                entry.intid
            );
        }
        if !self.sane {
            return;
        }
        self.compare_signals();
        let words = u64::from(self.shape.spis / 32 + 1);
        for cpu in 0..self.shape.cpus {
            if !self.pcpus[cpu].on {
                continue;
            }
            self.compare_word(cpu, Frame::Distributor, 0);
            let (own, first) = if V2 {
                (Frame::Distributor, 0)
            } else {
                (Frame::Redistributor(cpu), 0x1_0000)
            };
            self.compare_bank(cpu, own, first, 0);
            // The banks of SPIs look the same to all; one reads them, who that is depends on the state.
            if cpu == (self.pcpus[0].taken.len() + self.shape.cpus - 1) % self.shape.cpus
                || cpu == 0
            {
                for word in 1..=words {
                    self.compare_bank(cpu, Frame::Distributor, 0, word);
                }
            }
        }
        self.settle(0);
        self.compare_signals();
    }

    pub(super) fn compare_bank(&mut self, cpu: usize, frame: Frame, first: u64, word: u64) {
        for bits in (0x080..0x400).step_by(0x80) {
            self.compare_word(cpu, frame, first + bits + word * 4);
        }
        for n in 0..8 {
            self.compare_word(cpu, frame, first + 0x400 + word * 32 + n * 4);
            if V2 {
                self.compare_word(cpu, frame, 0x800 + word * 32 + n * 4);
            }
        }
        for n in 0..2 {
            self.compare_word(cpu, frame, first + 0xc00 + word * 8 + n * 4);
        }
        if V2 && word == 0 {
            for offset in (0xf10..0xf30).step_by(4) {
                self.compare_word(cpu, frame, offset);
            }
        }
        if !V2 && word != 0 {
            // IROUTER is one register of 64 bits, or two: in turns, since there are many.
            let size = if self.pcpus[0].taken.len().is_multiple_of(2) {
                8
            } else {
                4
            };
            for offset in (0..256).step_by(size) {
                self.compare_register(cpu, frame, 0x6000 + word * 256 + offset, size as u64);
            }
        }
    }

    /// Compares one register of 32 bits.
    pub fn compare_word(&mut self, cpu: usize, frame: Frame, offset: u64) {
        self.compare_register(cpu, frame, offset, 4);
    }

    /// Compares `size` bytes of registers.
    fn compare_register(&mut self, cpu: usize, frame: Frame, offset: u64, size: u64) {
        let expected = self.model.read(cpu, frame, offset, size);
        let found = self.access(cpu, frame, offset, size, None);
        assert_eq!(
            found, expected,
            "{frame:?} {offset:#x}, read by vCPU {cpu}: {found:#x} instead of {expected:#x}"
        );
    }
}
