//! Registers that lay a field over INTIDs, and how accesses of each size reach them.

use crate::{Frame, Gic, Interrupt, Version, interface::implemented};

impl Gic {
    /// Reads `size` bytes (1, 2, 4 or 8) at `offset` of a frame. An offset without a register, or an
    /// access that the architecture does not offer, reads as zero.
    pub fn read(&self, cpu: usize, frame: Frame, offset: u64, size: u64) -> u64 {
        match size {
            4 if offset.is_multiple_of(4) => self.read_word(cpu, frame, offset).into(),
            1 if self.has_bytes(frame, offset) => {
                let word = self.read_word(cpu, frame, offset & !3);
                u64::from(word >> (8 * (offset % 4)) & 0xff)
            }
            8 if offset.is_multiple_of(8) && self.has_doublewords(frame, offset) => {
                let low = self.read_word(cpu, frame, offset);
                let high = self.read_word(cpu, frame, offset + 4);
                u64::from(high) << 32 | u64::from(low)
            }
            _ => 0,
        }
    }

    /// Writes `size` bytes at `offset` of a frame. An offset without such a register is left alone.
    pub fn write(&mut self, cpu: usize, frame: Frame, offset: u64, size: u64, value: u64) {
        match size {
            4 if offset.is_multiple_of(4) => self.write_word(cpu, frame, offset, value as u32),
            1 if self.has_bytes(frame, offset) => self.write_byte(cpu, frame, offset, value as u8),
            8 if offset.is_multiple_of(8) && self.has_doublewords(frame, offset) => {
                self.write_word(cpu, frame, offset, value as u32);
                self.write_word(cpu, frame, offset + 4, (value >> 32) as u32);
            }
            _ => {}
        }
    }

    /// Returns `offset` from the start of the registers of INTIDs in a frame; `None` if it is less.
    fn bank_offset(frame: Frame, offset: u64) -> Option<u64> {
        match frame {
            Frame::Distributor => Some(offset),
            Frame::Redistributor(_) => offset.checked_sub(0x1_0000),
        }
    }

    /// Whether a register has byte accesses: IPRIORITYR, and on GICv2 ITARGETSR, CPENDSGIR and
    /// SPENDSGIR.
    fn has_bytes(&self, frame: Frame, offset: u64) -> bool {
        match Self::bank_offset(frame, offset) {
            Some(0x400..0x800) => true,
            Some(0x800..0xc00 | 0xf10..0xf30) => self.config.version == Version::V2,
            _ => false,
        }
    }

    /// Whether a register has 64-bit accesses: IROUTER and GICR_TYPER.
    fn has_doublewords(&self, frame: Frame, offset: u64) -> bool {
        match frame {
            Frame::Distributor => {
                self.config.version == Version::V3 && (0x6000..0x8000).contains(&offset)
            }
            Frame::Redistributor(_) => offset == 8,
        }
    }

    fn read_word(&self, cpu: usize, frame: Frame, offset: u64) -> u32 {
        let Some(bank) = Self::bank_offset(frame, offset) else {
            return self.read_redistributor(frame, offset);
        };
        match bank {
            0x080..0x100 => self.bits(cpu, frame, bank, |i| i.group != 0),
            0x100..0x200 => self.bits(cpu, frame, bank, |i| i.enabled),
            0x200..0x300 => self.bits(cpu, frame, bank, Interrupt::pending),
            0x300..0x400 => self.bits(cpu, frame, bank, |i| i.active),
            0x400..0x800 => {
                let first = (bank - 0x400) as u32;
                self.gather(cpu, frame, first, 4, |i| i.priority.into())
            }
            // The upper bit of two says edge, the lower one is reserved.
            0xc00..0xd00 => {
                let first = (bank - 0xc00) as u32 * 4;
                self.gather(cpu, frame, first, 16, |i| u32::from(i.edge) << 1)
            }
            _ if frame == Frame::Distributor => self.read_distributor(cpu, offset),
            _ => 0,
        }
    }

    /// A register with a bit for each INTID.
    fn bits(&self, cpu: usize, frame: Frame, bank: u64, get: impl Fn(&Interrupt) -> bool) -> u32 {
        self.gather(cpu, frame, (bank & 0x7f) as u32 * 8, 32, |i| get(i).into())
    }

    /// A register of fields of equal width for the `count` INTIDs from `first` on.
    fn gather(
        &self,
        cpu: usize,
        frame: Frame,
        first: u32,
        count: u32,
        get: impl Fn(&Interrupt) -> u32,
    ) -> u32 {
        // A register has private interrupts or SPIs, never both.
        let Some(owner) = self.owner(cpu, frame, first) else {
            return 0;
        };
        let (all, first) = match first {
            0..32 => (&self.private[owner], first),
            _ => (&self.spis, first - 32),
        };
        let (first, count) = (first as usize, count as usize);
        let fields = all.get(first..).unwrap_or_default();
        let fields = &fields[..count.min(fields.len())];
        let last_first = fields.iter().rev();
        last_first.fold(0, |value, one| value << (32 / count) | get(one))
    }

    fn write_word(&mut self, cpu: usize, frame: Frame, offset: u64, value: u32) {
        let Some(bank) = Self::bank_offset(frame, offset) else {
            return self.write_redistributor(frame, offset, value);
        };
        match bank {
            0x080..0x400 => self.write_bits(cpu, frame, bank, value),
            0x400..0x800 => {
                for n in 0..4 {
                    self.write_byte(cpu, frame, offset + n, (value >> (8 * n)) as u8);
                }
            }
            0xc00..0xd00 => {
                let first = (bank - 0xc00) as u32 * 4;
                for n in 0..16 {
                    self.change(cpu, frame, first + n, |i| {
                        if !i.fixed {
                            i.edge = value >> (2 * n + 1) & 1 != 0;
                        }
                    });
                }
            }
            _ if frame == Frame::Distributor => self.write_distributor(cpu, offset, value),
            _ => {}
        }
    }

    fn write_byte(&mut self, cpu: usize, frame: Frame, offset: u64, value: u8) {
        match Self::bank_offset(frame, offset) {
            Some(bank @ 0x400..0x800) => {
                let value = value & implemented(self.config.priority_bits);
                self.change(cpu, frame, (bank - 0x400) as u32, |i| i.priority = value);
            }
            _ => self.write_distributor_byte(cpu, offset, value),
        }
    }

    /// The registers with a bit for each INTID.
    fn write_bits(&mut self, cpu: usize, frame: Frame, bank: u64, value: u32) {
        let first = (bank & 0x7f) as u32 * 8;
        let version = self.config.version;
        let sgis_fixed = version == Version::V2 && self.config.sgis_always_enabled;
        for n in 0..32 {
            let intid = first + n;
            let set = value >> n & 1 != 0;
            // On GICv2 SGIs are made pending by GICD_SGIR and SPENDSGIR alone.
            let sgi = intid < 16;
            let sgi_of_v2 = sgi && version == Version::V2;
            self.change(cpu, frame, intid, |i| match bank & !0x7f {
                0x080 => i.group = usize::from(set),
                0x100 if set && !(sgi && sgis_fixed) => i.enabled = true,
                0x180 if set && !(sgi && sgis_fixed) => i.enabled = false,
                0x200 if set && !sgi_of_v2 => i.latch = true,
                0x280 if set && !sgi_of_v2 => i.latch = false,
                0x300 if set => i.active = true,
                0x380 if set => (i.active, i.taken_by) = (false, None),
                _ => {}
            });
        }
    }

    pub(crate) fn change(
        &mut self,
        cpu: usize,
        frame: Frame,
        intid: u32,
        change: impl FnOnce(&mut Interrupt),
    ) {
        if let Some(owner) = self.owner(cpu, frame, intid)
            && let Some(interrupt) = self.interrupt_mut(owner, intid)
        {
            change(interrupt);
        }
    }
}
