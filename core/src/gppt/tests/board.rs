//! A physical GIC as arrays: what each register access does to each interrupt, as simple as
//! possible.

use std::vec::Vec;

use super::super::{self as gppt, Answer, Filter, Frame, Kind, Read, Write};
use crate::vgic::Version;

/// The number of INTIDs of the board.
pub const INTIDS: usize = 320;

/// An interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Irq {
    pub enabled: bool,
    pub pending: bool,
    pub active: bool,
    pub edge: bool,
    pub priority: u8,
    pub route: u64,
    pub targets: u8,
    pub sources: u8,
}

/// The physical GIC: all interrupts, and the state that belongs to none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Board {
    pub version: Version,
    pub irqs: Vec<Irq>,
    pub rwp: bool,
    /// The writes to `GICD_SGIR`.
    pub sgis: Vec<u32>,
}

impl Board {
    pub fn new(version: Version) -> Self {
        Self {
            version,
            irqs: std::vec![Irq { priority: 0x80, route: 0x1_0003, targets: 0x10, ..Irq::default() }; INTIDS],
            rwp: false,
            sgis: Vec::new(),
        }
    }

    /// Returns the offset in the distributor of what an access hits; the redistributor's interrupts
    /// are word 0 of it.
    fn flat(&self, frame: Frame, offset: u64) -> u64 {
        match frame {
            Frame::Distributor => {
                let private = self.version == Version::V3
                    && match offset {
                        0x80..0x400 => offset & 0x7c == 0,
                        0x400..0x800 => offset & 0x3ff < 32,
                        0xc00..0xd00 => offset & 0xff < 8,
                        _ => false,
                    };
                assert!(!private, "word 0 of the distributor at {offset:#x}");
                offset
            }
            Frame::Redistributor => {
                assert_eq!(self.version, Version::V3);
                if offset == 0 {
                    return 0;
                }
                let at = offset - 0x1_0000;
                assert!(
                    matches!(at, 0x100..0x104 | 0x180..0x184 | 0x200..0x204 | 0x280..0x284 | 0x300..0x304
                    | 0x380..0x384 | 0x400..0x420 | 0xc00..0xc08),
                    "{offset:#x}"
                );
                at
            }
        }
    }

    pub fn read(&self, read: &Read) -> u64 {
        assert_eq!(read.offset % read.size, 0, "{read:?}");
        let at = self.flat(read.frame, read.offset);
        let bits = |f: fn(&Irq) -> bool| {
            let first = (at as usize & 0x7f) * 8;
            (0..32)
                .filter(|n| f(&self.irqs[first + n]))
                .fold(0, |all, n| all | 1 << n)
        };
        let bytes = |first: u64, f: fn(&Irq) -> u8| {
            (0..read.size).fold(0, |all, n| {
                all | u64::from(f(&self.irqs[(first + n) as usize])) << (8 * n)
            })
        };
        match at {
            0 if read.frame == Frame::Distributor => u64::from(self.rwp) << 31 | 0x13,
            0 => u64::from(self.rwp) << 3 | 0x10,
            0x200..0x300 => bits(|irq| irq.pending),
            0x300..0x400 => bits(|irq| irq.active),
            0x400..0x800 => bytes(at & 0x3ff, |irq| irq.priority),
            0x800..0xc00 => bytes(at & 0x3ff, |irq| irq.targets),
            0xc00..0xd00 => (0..16).fold(0, |all, n| {
                let irq = &self.irqs[(at as usize & 0xff) * 4 + n];
                all | u64::from(irq.edge) << (2 * n + 1)
            }),
            0xf10..0xf30 => bytes(at & 15, |irq| irq.sources),
            0x6000..0x8000 => self.irqs[(at as usize - 0x6000) / 8].route | 1 << 31,
            _ => panic!("{read:?}"),
        }
    }

    fn perform(&mut self, write: &Write) {
        assert_eq!(write.offset % write.size, 0, "{write:?}");
        let at = self.flat(write.frame, write.offset);
        let value = write.value;
        let each = |irqs: &mut [Irq], f: fn(&mut Irq)| {
            let first = (at as usize & 0x7f) * 8;
            (0..32)
                .filter(|n| value >> n & 1 != 0)
                .for_each(|n| f(&mut irqs[first + n]));
        };
        match at {
            0x100..0x180 => each(&mut self.irqs, |irq| irq.enabled = true),
            0x180..0x200 => each(&mut self.irqs, |irq| irq.enabled = false),
            0x200..0x280 => each(&mut self.irqs, |irq| irq.pending = true),
            0x280..0x300 => each(&mut self.irqs, |irq| irq.pending = false),
            0x300..0x380 => each(&mut self.irqs, |irq| irq.active = true),
            0x380..0x400 => each(&mut self.irqs, |irq| irq.active = false),
            0x400..0x800 if write.size == 1 => {
                self.irqs[at as usize & 0x3ff].priority = value as u8
            }
            0x800..0xc00 if write.size == 1 => self.irqs[at as usize & 0x3ff].targets = value as u8,
            0xf00 => self.sgis.push(value as u32),
            0xf10..0xf20 => {
                for n in 0..write.size {
                    self.irqs[(at + n) as usize & 15].sources &= !((value >> (8 * n)) as u8);
                }
            }
            0xf20..0xf30 if write.size == 1 => self.irqs[at as usize & 15].sources |= value as u8,
            0x6000..0x8000 if write.size == 8 => {
                self.irqs[(at as usize - 0x6000) / 8].route = value
            }
            _ => panic!("{write:?}"),
        }
    }

    /// Returns what the guest reads in the end.
    pub fn answer(&self, filter: &Filter<impl Kind>, answer: Answer) -> u64 {
        match answer {
            Answer::Value(value) => value,
            Answer::Read(read) => filter.shown(&read, self.read(&read)),
        }
    }
}

impl gppt::Board for Board {
    fn write(&mut self, write: Write) {
        self.perform(&write);
    }
}

/// Two boards that get the same writes.
impl gppt::Board for (&mut Board, &mut Board) {
    fn write(&mut self, write: Write) {
        self.0.perform(&write);
        self.1.perform(&write);
    }
}
