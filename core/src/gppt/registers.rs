//! The registers of the distributor frame and of the two frames of a redistributor.
//!
//! Sources: IHI 0048B, 4.3; IHI 0069H, 12.8 to 12.11. Registers without a case below are reserved
//! here: those of LPIs and MSIs, of the other Security state, of extended ranges. They read as zero
//! and ignore writes.

use super::filter::{Filter, Kind};
use super::{Answer, Board, Form, Frame, Read, View, Write, priority, sgi};
use crate::vgic::{GICR_SIZE, IIDR, Version, identification, spread};

/// `GICD_CTLR.RWP`.
const RWP: u64 = 1 << 31;
/// `GICD_CTLR.DS` and `ARE`, which are constant.
const DS: u64 = 1 << 6;
const ARE: u64 = 1 << 4;
/// `GICD_TYPER.SecurityExtn`.
const TWO_STATES: u64 = 1 << 10;
/// `GICD_TYPER.No1N`, and `IDbits` for ten bits of INTID.
const V3_TYPER: u64 = 1 << 25 | 9 << 19;
/// The affinity fields of `GICD_IROUTER`, without the routing mode.
const AFFINITY: u64 = 0xff_00ff_ffff;

impl<K: Kind> Filter<K> {
    /// Filters a read by the guest of `size` bytes (1, 2, 4, 8) at `offset` of its distributor.
    pub fn gicd_read(&self, offset: u64, size: u64) -> Answer {
        let v2 = self.kind.version() == Version::V2;
        let word = (offset as usize & 0x7f) / 4;
        let by_byte = size == 1 || size == 4 && offset & 3 == 0;
        match offset {
            0x004 if size == 4 => return Answer::Value(self.typer()),
            0x008 if size == 4 => return Answer::Value(u64::from(IIDR)),
            0x400..0x800 if by_byte => {
                let intid = offset & 0x3ff;
                return if v2 || intid >= 32 {
                    self.see_priorities(intid, size)
                } else {
                    Answer::ZERO
                };
            }
            0x800..0xc00 if by_byte && v2 => return self.see_targets(offset & 0x3ff, size),
            0xf10..0xf30 if by_byte && v2 => return self.see_sources(offset, size),
            0x6000..0x8000 if !v2 => return self.see_route(offset, size),
            _ if size != 4 || offset & 3 != 0 => return Answer::ZERO,
            _ => {}
        }
        match offset {
            0x000 => self.see_control(),
            0x080..0x400 | 0xc00..0xd00 if !v2 && self.is_private(offset) => Answer::ZERO,
            0x080..0x100 => self.see_groups(word),
            0x100..0x200 => Answer::Value(u64::from(self.is_enabled(word))),
            0x200..0x400 => self.see_bits(offset & !0x7f, word),
            0xc00..0xd00 => self.see_config((offset as usize & 0xff) / 4),
            0xfd0..0x1000 if v2 => Answer::Value(u64::from(identification(offset & 0xff, 2))),
            0xffd0..0x1_0000 if !v2 => Answer::Value(u64::from(identification(offset & 0xff, 3))),
            _ => Answer::ZERO,
        }
    }

    /// Filters a write by the guest of `size` bytes at `offset` of its distributor.
    pub fn gicd_write(&mut self, board: &mut impl Board, offset: u64, size: u64, value: u64) {
        let v2 = self.kind.version() == Version::V2;
        let word = (offset as usize & 0x7f) / 4;
        if size == 4 && offset & 3 == 0 && matches!(offset, 0x100..0x400) {
            if v2 || word != 0 {
                self.write_bank(board, offset & !0x7f, word, value as u32);
            }
            return;
        }
        let by_byte = size == 1 || size == 4 && offset & 3 == 0;
        let first = offset & 0x3ff;
        let group = if v2 { 1 } else { 1 << 1 };
        match offset {
            0x400..0x800 if by_byte && (v2 || first >= 32) => {
                self.write_priorities(board, first, size, value);
            }
            0x800..0xc00 if by_byte && v2 => self.write_targets(board, first, size, value),
            0xf10..0xf30 if by_byte && v2 => self.write_sources(board, offset, size, value),
            0x6000..0x8000 if !v2 => self.write_route(board, offset, size, value),
            _ if size != 4 => {}
            0x000 => self.signal(board, value & group != 0),
            0xf00 if v2 => self.write_sgir(board, value as u32),
            _ => {}
        }
    }

    /// Filters a read by the guest of `size` bytes at `offset` of its redistributors: those of vCPU
    /// n begin at n * [`GICR_SIZE`]. The redistributor of another vCPU shows only its
    /// identification. GICv3 only.
    pub fn gicr_read(&self, offset: u64, size: u64) -> Answer {
        let vcpu = offset / GICR_SIZE;
        if vcpu >= self.cpus.count as u64 {
            return Answer::ZERO;
        }
        let at = offset % GICR_SIZE;
        let whose = self.gicr_typer(vcpu);
        match (at, size) {
            (0x0004, 4) => return Answer::Value(u64::from(IIDR)),
            (0x0008, 8) => return Answer::Value(whose),
            (0x0008, 4) => return Answer::Value(whose & 0xffff_ffff),
            (0x000c, 4) => return Answer::Value(whose >> 32),
            (0xffd0..0x1_0000 | 0x1_ffd0..0x2_0000, 4) if at & 3 == 0 => {
                return Answer::Value(u64::from(identification(at & 0xff, 3)));
            }
            _ if vcpu != self.cpus.number as u64 => return Answer::ZERO,
            (0x1_0400..0x1_0420, 1) => return self.see_priorities(at & 0x1f, size),
            _ if size != 4 || at & 3 != 0 => return Answer::ZERO,
            _ => {}
        }
        match at {
            // GICR_CTLR.RWP. There are no LPIs to enable.
            0x0000 => Answer::Read(Read {
                frame: Frame::Redistributor,
                offset: 0,
                size: 4,
                mask: 1 << 3,
                or: 0,
                form: Form::Plain,
            }),
            0x1_0080 => self.see_groups(0),
            0x1_0100 | 0x1_0180 => Answer::Value(u64::from(self.is_enabled(0))),
            0x1_0200 | 0x1_0280 | 0x1_0300 | 0x1_0380 => self.see_bits(at & 0xfff, 0),
            0x1_0400..0x1_0420 => self.see_priorities(at & 0x1f, size),
            0x1_0c00 | 0x1_0c04 => self.see_config((at as usize & 0xff) / 4),
            _ => Answer::ZERO,
        }
    }

    /// Filters a write by the guest of `size` bytes at `offset` of its redistributors.
    pub fn gicr_write(&mut self, board: &mut impl Board, offset: u64, size: u64, value: u64) {
        let at = offset % GICR_SIZE;
        if offset / GICR_SIZE != self.cpus.number as u64 {
            return;
        }
        match (at, size) {
            (0x1_0400..0x1_0420, 1 | 4) if size == 1 || at & 3 == 0 => {
                self.write_priorities(board, at & 0x1f, size, value);
            }
            (0x1_0100 | 0x1_0180 | 0x1_0200 | 0x1_0280 | 0x1_0300 | 0x1_0380, 4) => {
                self.write_bank(board, at & 0xfff, 0, value as u32);
            }
            _ => {}
        }
    }

    /// Returns `GICR_TYPER` of a vCPU: affinity, processor number, Last.
    fn gicr_typer(&self, vcpu: u64) -> u64 {
        let last = u64::from(vcpu.wrapping_add(1) == self.cpus.count as u64);
        let affinity = self.affinity(vcpu as usize);
        let affinity = (affinity >> 32 & 0xff) << 24 | affinity & 0xff_ffff;
        affinity << 32 | vcpu << 8 | last << 4
    }

    fn typer(&self) -> u64 {
        let lines = self.lines as u64;
        let more = match (self.kind.version(), self.kind.view()) {
            (Version::V2, _) => (self.cpus.count as u64).saturating_sub(1) << 5,
            (Version::V3, View::Upper) => V3_TYPER | TWO_STATES,
            (Version::V3, View::Plain) => V3_TYPER,
        };
        lines | more
    }

    /// Whether `offset` is in word 0 of a bank, or in one of the first two words of triggers.
    fn is_private(&self, offset: u64) -> bool {
        if offset < 0xc00 {
            offset & 0x7c == 0
        } else {
            offset & 0xff < 8
        }
    }

    fn is_enabled(&self, word: usize) -> u32 {
        self.enabled.get(word).copied().unwrap_or(0)
    }

    /// Reads `GICD_CTLR`: the guest's own group enable, and RWP of the physical register, which
    /// says that a write is not in effect yet.
    fn see_control(&self) -> Answer {
        let on = u64::from(self.signals);
        let or = match (self.kind.version(), self.kind.view()) {
            (Version::V2, _) => return Answer::Value(on),
            (Version::V3, View::Upper) => ARE | on << 1,
            (Version::V3, View::Plain) => DS | ARE | on << 1,
        };
        Answer::Read(Read {
            frame: Frame::Distributor,
            offset: 0,
            size: 4,
            mask: RWP,
            or,
            form: Form::Plain,
        })
    }

    /// Reads `IGROUPR`, which the guest cannot change. To Non-secure software it reads as zero, and
    /// so it does on a GICv2, where the guest has the only group that it can enable.
    fn see_groups(&self, word: usize) -> Answer {
        match (self.kind.version(), self.kind.view()) {
            (Version::V3, View::Plain) => Answer::Value(u64::from(self.given(word))),
            _ => Answer::ZERO,
        }
    }

    /// Writes a word of a bank, from those that enable on.
    fn write_bank(&mut self, board: &mut impl Board, bank: u64, word: usize, value: u32) {
        match bank {
            0x100 => self.enable(board, word, value, true),
            0x180 => self.enable(board, word, value, false),
            // Pending bits of SGIs are read-only on a GICv2 (IHI 0048B, 4.3.7 and 4.3.8).
            0x200 | 0x280 if word == 0 && self.kind.version() == Version::V2 => {
                self.write_bits(board, bank, word, value & 0xffff_0000);
            }
            _ => self.write_bits(board, bank, word, value),
        }
    }

    /// Reads `ICFGR` number `n`, two bits for each of 16 INTIDs. The guest cannot change triggers:
    /// the plan sets them, since a word of them may have several owners.
    #[inline(never)]
    fn see_config(&self, n: usize) -> Answer {
        let (word, half) = (n / 2, n % 2);
        let own = self.given(word) >> (half as u32 & 1).wrapping_mul(16);
        let mask = u64::from(spread(own));
        if mask == 0 {
            return Answer::ZERO;
        }
        let (frame, first) = self.place(0xc00, word, 8);
        let offset = first.wrapping_add((half as u64).wrapping_mul(4));
        Answer::Read(Read {
            frame,
            offset,
            size: 4,
            mask,
            or: 0,
            form: Form::Plain,
        })
    }

    /// Returns a mask of bytes: all ones for each INTID from `first` on that is the VM's.
    pub(super) fn vm_bytes(&self, first: u64, size: u64) -> u64 {
        (0..size & 7).fold(0, |all, n| {
            let intid = first.wrapping_add(n);
            let own = self.given((intid / 32) as usize) >> (intid % 32) & 1 != 0;
            all | if own {
                0xff << (n.wrapping_mul(8) & 63)
            } else {
                0
            }
        })
    }

    /// Iterates over the VM's INTIDs from `first` on, each with its byte of `value`.
    fn vm_values(&self, first: u64, size: u64, value: u64) -> impl Iterator<Item = (u64, u8)> {
        let mask = self.vm_bytes(first, size);
        (0..size & 7)
            .filter(move |n| mask >> (n.wrapping_mul(8) & 63) & 1 != 0)
            .map(move |n| {
                let byte = (value >> (n.wrapping_mul(8) & 63)) as u8;
                (first.wrapping_add(n), byte)
            })
    }

    #[inline(never)]
    fn see_priorities(&self, first: u64, size: u64) -> Answer {
        let mask = self.vm_bytes(first, size);
        if mask == 0 {
            return Answer::ZERO;
        }
        let form = match self.kind.view() {
            View::Upper => Form::Priorities,
            View::Plain => Form::Plain,
        };
        let (frame, offset) = self.byte_place(0x400, first);
        Answer::Read(Read {
            frame,
            offset,
            size,
            mask,
            or: 0,
            form,
        })
    }

    pub(super) fn write_priorities(
        &self,
        board: &mut impl Board,
        first: u64,
        size: u64,
        value: u64,
    ) {
        for (intid, byte) in self.vm_values(first, size, value) {
            let value = match self.kind.view() {
                View::Upper => priority::to_board(byte),
                View::Plain => byte,
            };
            let (frame, offset) = self.byte_place(0x400, intid);
            board.write(Write {
                frame,
                offset,
                size: 1,
                value: u64::from(value),
            });
        }
    }

    /// Returns the frame and the offset of the byte of an INTID in a register that begins at
    /// `offset` of the distributor.
    fn byte_place(&self, offset: u64, intid: u64) -> (Frame, u64) {
        let (frame, word) = self.place(offset, (intid / 32) as usize, 32);
        (frame, word.wrapping_add(intid % 32))
    }

    /// Reads `GICD_ITARGETSR`. With one vCPU there is nothing to choose, and all bytes read as
    /// zero.
    fn see_targets(&self, first: u64, size: u64) -> Answer {
        let mask = self.vm_bytes(first, size);
        if self.cpus.count == 1 || mask == 0 {
            return Answer::ZERO;
        }
        Answer::Read(Read {
            frame: Frame::Distributor,
            offset: first.wrapping_add(0x800),
            size,
            mask,
            or: 0,
            form: Form::Interfaces,
        })
    }

    fn write_targets(&self, board: &mut impl Board, first: u64, size: u64, value: u64) {
        if self.cpus.count == 1 || first < 32 {
            return;
        }
        for (intid, byte) in self.vm_values(first, size, value) {
            board.write(Write {
                frame: Frame::Distributor,
                offset: intid.wrapping_add(0x800),
                size: 1,
                value: u64::from(self.interfaces_of(byte)),
            });
        }
    }

    /// Reads `GICD_CPENDSGIR` or `GICD_SPENDSGIR`: the senders of each SGI, as vCPUs.
    fn see_sources(&self, offset: u64, size: u64) -> Answer {
        let mask = self.vm_bytes(offset & 15, size);
        if mask == 0 {
            return Answer::ZERO;
        }
        Answer::Read(Read {
            frame: Frame::Distributor,
            offset,
            size,
            mask,
            or: 0,
            form: Form::Interfaces,
        })
    }

    fn write_sources(&self, board: &mut impl Board, offset: u64, size: u64, value: u64) {
        for (intid, byte) in self.vm_values(offset & 15, size, value) {
            let value = self.interfaces_of(byte);
            if value != 0 {
                board.write(Write {
                    frame: Frame::Distributor,
                    offset: (offset & !15).wrapping_add(intid),
                    size: 1,
                    value: u64::from(value),
                });
            }
        }
    }

    /// Writes `GICD_SGIR`, with the CPU interfaces of the vCPUs that the guest names as the target
    /// list.
    fn write_sgir(&self, board: &mut impl Board, value: u32) {
        if let Some(sgi) = sgi::by_distributor(value, self.cpus.number, self.cpus.count) {
            let list = u64::from(self.interfaces_of(sgi.vcpus.0));
            board.write(Write {
                frame: Frame::Distributor,
                offset: 0xf00,
                size: 4,
                value: list << 16 | u64::from(sgi.intid),
            });
        }
    }

    /// Whether the INTID of the `GICD_IROUTER` at an offset is the VM's.
    fn routed(&self, offset: u64) -> bool {
        let intid = (offset / 8) & 0x3ff;
        intid >= 32 && self.given((intid / 32) as usize) >> (intid % 32) & 1 != 0
    }

    /// Reads `GICD_IROUTER`: the vCPU to whose pCPU the SPI is routed.
    fn see_route(&self, offset: u64, size: u64) -> Answer {
        let whole = (size == 8 || size == 4) && offset & 7 == 0;
        if !whole || !self.routed(offset) {
            return Answer::ZERO;
        }
        Answer::Read(Read {
            frame: Frame::Distributor,
            offset,
            size: 8,
            mask: AFFINITY,
            or: 0,
            form: Form::Affinity,
        })
    }

    /// Writes `GICD_IROUTER`. A route to no vCPU of the VM is ignored, and the routing mode is not
    /// written: 1-of-N is not offered.
    fn write_route(&self, board: &mut impl Board, offset: u64, size: u64, value: u64) {
        let affinity = match (size, offset & 7) {
            (8, 0) => value & AFFINITY,
            (4, 0) => value & AFFINITY & 0xffff_ffff,
            _ => return,
        };
        if !self.routed(offset) {
            return;
        }
        let vcpu = (0..self.cpus.count).find(|vcpu| self.affinity(*vcpu) == affinity);
        if let Some(value) = vcpu.and_then(|vcpu| self.name(vcpu)) {
            board.write(Write {
                frame: Frame::Distributor,
                offset,
                size: 8,
                value,
            });
        }
    }
}
