//! Accesses to registers, in both, as far as the architecture says what they do.

use super::*;

impl<const V2: bool> Machine<V2> {
    /// The SPI of an emulated device: one that is not backed by hardware.
    pub(super) fn device(&self, intid: u32) -> u32 {
        let intid = 32 + intid % self.shape.spis;
        let hw = LINKS.iter().any(|(vintid, _, _)| *vintid == intid);
        if hw { 32 } else { intid }
    }

    // --- registers ------------------------------------------------------------------------------

    /// Frame and offset of a word of a register.
    pub(super) fn place(&self, of: usize, register: Register, n: u32) -> (Frame, u64) {
        // One word more than there is.
        let words = self.shape.spis / 32 + 2;
        let bits = |base: u64| (n.is_multiple_of(words), base + u64::from(n % words) * 4);
        let (private, offset) = match register {
            Register::Control => (false, 0),
            Register::Group => bits(0x080),
            Register::Enable => bits(0x100),
            Register::Disable => bits(0x180),
            Register::SetPending => bits(0x200),
            Register::ClearPending => bits(0x280),
            Register::SetActive => bits(0x300),
            Register::ClearActive => bits(0x380),
            Register::Priority => (n % (words * 8) < 8, 0x400 + u64::from(n % (words * 8)) * 4),
            Register::Config => (n % (words * 2) < 2, 0xc00 + u64::from(n % (words * 2)) * 4),
            Register::Route if V2 => (false, 0x800 + u64::from(n % (words * 8)) * 4),
            Register::Route => (false, 0x6000 + u64::from(n % (words * 32)) * 8),
            Register::ClearSgi => (false, 0xf10 + u64::from(n % 4) * 4),
            Register::SetSgi => (false, 0xf20 + u64::from(n % 4) * 4),
            Register::Any => (n & 0x8000 != 0, u64::from(n & 0x3fff) * 4),
        };
        if private && !V2 {
            (Frame::Redistributor(of), 0x1_0000 + (offset & 0xffff))
        } else {
            (Frame::Distributor, offset)
        }
    }

    pub(super) fn write_register(
        &mut self,
        cpu: usize,
        of: usize,
        register: Register,
        n: u32,
        value: u32,
        size: u64,
    ) {
        let (frame, mut offset) = self.place(of, register, n);
        if let Frame::Redistributor(of) = frame
            && !self.pcpus[of].on
        {
            return;
        }
        let size = match register {
            Register::Priority | Register::Any => size,
            Register::Route if V2 && size == 1 => 1,
            Register::Route if !V2 && size == 8 => 8,
            Register::ClearSgi | Register::SetSgi if size == 1 => 1,
            _ => 4,
        };
        if size == 1 {
            offset += u64::from(value >> 30);
        }
        let bank = if frame == Frame::Distributor {
            offset
        } else {
            offset - 0x1_0000
        };
        let value = if self.sane {
            match self.defined(cpu, frame, bank, value) {
                Some(value) => value,
                None => return,
            }
        } else {
            value
        };
        self.model.write(cpu, frame, offset, size, value.into());
        self.access(cpu, frame, offset, size, Some(value.into()));
    }

    /// Returns the part of a write whose effect the architecture defines; `None` if there is none.
    pub(super) fn defined(
        &mut self,
        cpu: usize,
        frame: Frame,
        bank: u64,
        value: u32,
    ) -> Option<u32> {
        let mut value = value;
        // Each bit of these belongs to an interrupt; a guest that changes the state of one that it is serving, or
        // the trigger of one that is pending, gets what is not defined.
        if (0x300..0x400).contains(&bank) {
            value &= !self.in_use(of_word(frame, cpu), (bank & 0x7f) as u32 / 4);
        }
        if (0xc00..0xd00).contains(&bank)
            && !self.idle(of_word(frame, cpu), (bank - 0xc00) as u32 * 4)
        {
            return None;
        }
        if (0x200..0x280).contains(&bank) || (0x300..0x380).contains(&bank) {
            value &= !self.on_the_way(of_word(frame, cpu), (bank & 0x7f) as u32 / 4);
        }
        Some(value)
    }

    /// Interrupts of a word that some vCPU has acknowledged and not deactivated.
    pub(super) fn in_use(&self, cpu: usize, word: u32) -> u32 {
        let all = self.pcpus.iter().enumerate();
        let mut bits = 0;
        for (n, pcpu) in all {
            let taken = pcpu.taken.iter().map(|entry| &entry.intid);
            for intid in taken.chain(&pcpu.dropped) {
                if intid / 32 == word && (word != 0 || n == cpu) {
                    bits |= 1 << (intid % 32);
                }
            }
        }
        bits
    }

    /// Hardware interrupts of a word that software cannot make pending or active as the architecture says: hardware cannot
    /// merge that with what it has already taken and the guest has not.
    pub(super) fn on_the_way(&mut self, cpu: usize, word: u32) -> u32 {
        let mut bits = 0;
        for (vintid, pintid, _) in LINKS.into_iter().chain([(VTIMER, TIMER, false)]) {
            if vintid / 32 == word {
                self.settle(cpu);
                let active = self.model.interrupt(cpu, vintid).is_some_and(|i| i.active);
                if self.board.at(cpu, pintid).active && !active {
                    bits |= 1 << (vintid % 32);
                }
            }
        }
        bits
    }

    /// All of the 16 interrupts from `first` on are disabled and inactive.
    pub(super) fn idle(&self, cpu: usize, first: u32) -> bool {
        (first..first + 16).all(|intid| {
            let interrupt = self.model.interrupt(cpu, intid);
            interrupt.is_none_or(|i| !i.enabled && !i.pending() && !i.active && !i.line)
        })
    }

    /// An access of the vGIC, repeated until it is done; the others run in between.
    pub(super) fn access(
        &mut self,
        cpu: usize,
        frame: Frame,
        offset: u64,
        size: u64,
        value: Option<u64>,
    ) -> u64 {
        if frame == Frame::Distributor
            && size == 4
            && value.is_none()
            && let Some(value) = self.dist.read_fast(offset)
        {
            return value.into();
        }
        for _ in 0..PATIENCE {
            let (answer, notify) = self.with(cpu, |vcpu, dist, port| match (frame, value) {
                (Frame::Distributor, None) => vcpu.gicd_read(dist, port, offset, size),
                (Frame::Distributor, Some(value)) => {
                    vcpu.gicd_write(dist, port, offset, size, value)
                }
                (Frame::Redistributor(of), None) => {
                    vcpu.gicr_read(dist, port, of as u64 * GICR_SIZE + offset, size)
                }
                (Frame::Redistributor(of), Some(value)) => {
                    vcpu.gicr_write(dist, port, of as u64 * GICR_SIZE + offset, size, value)
                }
            });
            self.tell(notify);
            match answer {
                Answer::Value(value) => return value,
                Answer::Again => self.look(),
            }
        }
        panic!("an access by vCPU {cpu} to {frame:?} {offset:#x} never ends");
    }
}
