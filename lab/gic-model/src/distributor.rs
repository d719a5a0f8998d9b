//! Registers of the distributor that are its own, or of one version of the architecture.

use crate::{Frame, Gic, Version};

/// GICD_CTLR on GICv3 with one Security state: DS and ARE read as one.
const CTLR_V3: u32 = 1 << 6 | 1 << 4;

impl Gic {
    pub(crate) fn read_distributor(&self, cpu: usize, offset: u64) -> u32 {
        let v2 = self.config.version == Version::V2;
        match offset {
            0x000 => {
                let groups = u32::from(self.groups[0]) | u32::from(self.groups[1]) << 1;
                groups | if v2 { 0 } else { CTLR_V3 }
            }
            0x004 => self.typer(),
            0x800..0xc00 if v2 => (0..4).fold(0, |word, n| {
                word | u32::from(self.targets(cpu, (offset - 0x800 + n) as u32)) << (8 * n)
            }),
            0xf10..0xf30 if v2 => (0..4).fold(0, |word, n| {
                let sgi = ((offset & 0xf) + n) as u32;
                word | u32::from(self.interrupt(cpu, sgi).map_or(0, |i| i.sources)) << (8 * n)
            }),
            0x6000..0x8000 if !v2 => {
                let intid = ((offset - 0x6000) / 8) as u32;
                let route = match self.owner(cpu, Frame::Distributor, intid) {
                    Some(_) => self.interrupt(cpu, intid).map_or(0, |i| i.route),
                    None => 0,
                };
                (route >> (8 * (offset & 4))) as u32
            }
            _ => 0,
        }
    }

    /// GICD_TYPER without SecurityExtn, message-based SPIs, LPIs and extended ranges.
    fn typer(&self) -> u32 {
        let lines = self.config.spis / 32;
        match self.config.version {
            Version::V2 => lines | (self.config.cpus as u32 - 1) << 5,
            // IDbits: 10-bit INTIDs; A3V; No1N. CPUNumber counts CPUs without affinity routing: none.
            Version::V3 => lines | 9 << 19 | 1 << 24 | 1 << 25,
        }
    }

    /// GICD_ITARGETSR (IHI 0048B, 4.3.12). Those of SGIs and PPIs show the CPU that reads; on a
    /// uniprocessor there are none.
    fn targets(&self, cpu: usize, intid: u32) -> u8 {
        if self.config.cpus == 1 {
            return 0;
        }
        match self.interrupt(cpu, intid) {
            Some(_) if intid < 32 => 1 << cpu,
            Some(spi) => spi.route as u8,
            None => 0,
        }
    }

    pub(crate) fn write_distributor(&mut self, cpu: usize, offset: u64, value: u32) {
        let v2 = self.config.version == Version::V2;
        match offset {
            0x000 => self.groups = [value & 1 != 0, value & 2 != 0],
            0x800..0xc00 | 0xf10..0xf30 if v2 => {
                for n in 0..4 {
                    self.write_distributor_byte(cpu, offset + n, (value >> (8 * n)) as u8);
                }
            }
            0xf00 if v2 => self.sgir(cpu, value),
            0x6000..0x8000 if !v2 => {
                let intid = ((offset - 0x6000) / 8) as u32;
                let shift = 8 * (offset & 4);
                // Affinity 3 in the upper half; 2, 1 and 0 in the lower one. The routing mode is RES0: no
                // interrupt goes to whoever is free (GICD_TYPER.No1N).
                let mask = if shift == 0 { 0x00ff_ffff } else { 0xff };
                self.change(cpu, Frame::Distributor, intid, |i| {
                    i.route = i.route & !(0xffff_ffff << shift) | u64::from(value & mask) << shift;
                });
            }
            _ => {}
        }
    }

    /// GICv2: the registers with a byte for each INTID but priorities.
    pub(crate) fn write_distributor_byte(&mut self, cpu: usize, offset: u64, value: u8) {
        let sgi = (offset & 0xf) as u32;
        match offset {
            0x820..0xc00 if self.config.cpus > 1 => {
                let existing = value & ((1_u16 << self.config.cpus) - 1) as u8;
                let intid = (offset - 0x800) as u32;
                self.change(cpu, Frame::Distributor, intid, |i| {
                    i.route = existing.into();
                });
            }
            0xf10..0xf20 => self.change(cpu, Frame::Distributor, sgi, |i| i.sources &= !value),
            0xf20..0xf30 => {
                let existing = value & ((1_u16 << self.config.cpus) - 1) as u8;
                self.change(cpu, Frame::Distributor, sgi, |i| i.sources |= existing);
            }
            _ => {}
        }
    }
}
