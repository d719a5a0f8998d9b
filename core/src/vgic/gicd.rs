//! The registers of the distributor frame. Both architectures have the same registers at the same
//! offsets up to 0xcff. On a GICv2 word 0 of each bank is banked for the vCPU that accesses it; on
//! a GICv3 word 0 is in the redistributor and reads as zero here (IHI 0048B, 4.3; IHI 0069H, 12.8
//! and 12.9).

use core::sync::atomic::{
    Ordering::{Relaxed, SeqCst},
    fence,
};

use super::bits::BANKS;
use super::query::State;
use super::shared::{ALL, REQUESTS};
use super::{Answer, Cpu, Distributor, Host, Notify, Version, each, mask, place};

/// The value of `GICD_IIDR` and `GICR_IIDR`: no implementer, product 'B', revision 1.
pub(crate) const IIDR: u32 = 0x4200_1000;
/// The peripheral and component identification registers from 0x...d0 on: `PIDR2` has the
/// architecture version in \[7:4\], and its bits \[3:0\] say that Arm assigned the scheme; then
/// `CIDR0` to 3.
const PIDR2: u32 = 0x0b;
const CIDR: [u32; 4] = [0x0d, 0xf0, 0x05, 0xb1];
/// The constant bits of `GICD_CTLR` of a GICv3 with one Security state: DS and ARE read as one and
/// cannot be written.
const CTLR_FIXED: u32 = 1 << 6 | 1 << 4;
/// `GICD_CTLR.RWP`.
const RWP: u32 = 1 << 31;

const DONE: (Answer, Notify) = (Answer::Value(0), Notify::NOBODY);

/// Reads an identification register; `offset` is within the last 0x100 bytes of the frame, from
/// 0xd0 on.
pub(crate) fn identification(offset: u64, architecture: u32) -> u32 {
    match offset {
        0xe8 => architecture << 4 | PIDR2,
        0xf0..0x100 => CIDR.get((offset & 0xc) as usize / 4).copied().unwrap_or(0),
        _ => 0,
    }
}

/// Moves each of the low 16 bits to the upper bit of a pair (in `GICD_ICFGR` the upper bit says
/// edge).
pub(crate) const fn spread(bits: u32) -> u32 {
    let mut x = bits & 0xffff;
    x = (x | x << 8) & 0x00ff_00ff;
    x = (x | x << 4) & 0x0f0f_0f0f;
    x = (x | x << 2) & 0x3333_3333;
    x = (x | x << 1) & 0x5555_5555;
    x << 1
}

/// Collects the upper bit of each pair into the low 16 bits.
pub(super) const fn gather(pairs: u32) -> u32 {
    let mut x = (pairs >> 1) & 0x5555_5555;
    x = (x | x >> 1) & 0x3333_3333;
    x = (x | x >> 2) & 0x0f0f_0f0f;
    x = (x | x >> 4) & 0x00ff_00ff;
    (x | x >> 8) & 0xffff
}

fn value(bits: u32) -> (Answer, Notify) {
    (Answer::Value(u64::from(bits)), Notify::NOBODY)
}

/// Builds a register value from bytes, lowest address first.
fn bytes(size: u64, mut byte: impl FnMut(u32) -> u8) -> (Answer, Notify) {
    value((0..size as u32 & 7).fold(0, |all, n| {
        all | u32::from(byte(n)) << (n.wrapping_mul(8) & 31)
    }))
}

impl Cpu {
    /// Reads `size` bytes (1, 2, 4, 8) at `offset` of the distributor frame. Registers that the
    /// architecture does not have read as zero.
    pub fn gicd_read<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        offset: u64,
        size: u64,
    ) -> (Answer, Notify) {
        let v2 = matches!(H::VERSION, Version::V2);
        let by_byte = size == 1 || size == 4 && offset & 3 == 0;
        let first = offset as u32 & 0x3ff;
        match offset {
            0x400..0x800 if by_byte => {
                return bytes(size, |n| {
                    self.shown_priority(dist, v2, first.wrapping_add(n))
                });
            }
            0x800..0xc00 if by_byte && v2 => {
                return bytes(size, |n| self.shown_targets(dist, first.wrapping_add(n)));
            }
            0xf10..0xf30 if by_byte && v2 => {
                let first = offset as u32 & 0xf;
                return bytes(size, |n| {
                    self.sgi_sources(dist, host, first.wrapping_add(n) & 15)
                });
            }
            0x6000..0x8000 if !v2 && size == 8 && offset & 7 == 0 => {
                let route = dist.route((offset / 8) as u32 & 0x3ff);
                let low = u64::from(route & 0xff_ffff);
                return (
                    Answer::Value(low | u64::from(route >> 24) << 32),
                    Notify::NOBODY,
                );
            }
            _ if size != 4 || offset & 3 != 0 => return DONE,
            _ => {}
        }
        let word = (offset as usize & 0x7f) / 4;
        let exists = word < dist.words() && (v2 || word != 0);
        let bank = dist.bank(self.number, word);
        match offset {
            0x000 if v2 => value(dist.groups()),
            0x000 => {
                let rwp = if dist.disabling() { RWP } else { 0 };
                value(dist.groups() | CTLR_FIXED | rwp)
            }
            0x004 => value(dist.typer()),
            0x008 => value(IIDR),
            0x080..0x100 if exists => value(bank.group.load(Relaxed)),
            0x100..0x200 if exists => value(bank.enable.load(Relaxed)),
            0x200..0x300 if exists => {
                let key = offset as u32 & !0x80;
                self.read_state(dist, host, self.number, word, State::Pending, key)
            }
            0x300..0x400 if exists => {
                let key = offset as u32 & !0x80;
                self.read_state(dist, host, self.number, word, State::Active, key)
            }
            0xc00..0xd00 => value(self.shown_config(dist, v2, (offset as usize & 0xff) / 4)),
            0x6000..0x8000 if !v2 => {
                let route = dist.route((offset / 8) as u32 & 0x3ff);
                value(if offset & 4 == 0 {
                    route & 0xff_ffff
                } else {
                    route >> 24
                })
            }
            0xfd0..0x1000 if v2 => value(identification(offset & 0xff, 2)),
            0xffd0..0x1_0000 if !v2 => value(identification(offset & 0xff, 3)),
            _ => DONE,
        }
    }

    /// Writes `size` bytes at `offset` of the distributor frame. Writes to read-only registers, and
    /// to those that the architecture does not have, are ignored.
    pub fn gicd_write<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        offset: u64,
        size: u64,
        value: u64,
    ) -> (Answer, Notify) {
        let notify = if size == 4 && offset & 3 == 0 {
            self.gicd_write_word(dist, host, offset, value as u32)
        } else {
            self.gicd_write_other(dist, host, offset, size, value)
        };
        if Self::is_open::<H>(dist, offset) {
            return (Answer::Again, notify);
        }
        (Answer::Value(0), notify)
    }

    /// Whether the guest has to repeat a write at `offset` of the distributor frame. A GICv2 has no
    /// RWP to show that a disable is not in effect yet, so the guest repeats the write until it is.
    #[inline(always)]
    pub fn is_open<H: Host>(dist: &Distributor, offset: u64) -> bool {
        let disables = offset == 0 || offset >> 7 == 3;
        matches!(H::VERSION, Version::V2) && disables && dist.disabling()
    }

    /// Writes the word at `offset`, a multiple of 4, of the distributor frame, otherwise like
    /// [`Self::gicd_write`]. The caller looks at [`Self::is_open`] afterwards. The registers that
    /// guests write most come first; they need no stack unless another vCPU or a list register is
    /// concerned.
    #[inline(never)]
    pub fn gicd_write_word<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        offset: u64,
        value: u32,
    ) -> Notify {
        let (bank, word) = (offset >> 7, (offset as usize & 0x7f) / 4);
        if BANKS.contains(&bank) {
            return if word != 0 {
                self.write_spis(dist, host, bank, word, value)
            } else if matches!(H::VERSION, Version::V2) {
                self.write_private(dist, host, self.number, bank, value)
            } else {
                Notify::NOBODY
            };
        }
        if let 0x420..0x800 = offset {
            let first = offset as u32 & 0x3ff;
            let (word, _) = place(first);
            if word >= dist.words() {
                return Notify::NOBODY;
            }
            let priorities = dist.priorities(self.number, word);
            let changed = priorities.set_word(first % 32, value);
            return self.spi_config(dist, host, word, changed);
        }
        self.gicd_write_rare(dist, host, offset, value)
    }

    /// Writes a word of the registers that [`Self::gicd_write_word`] leaves.
    #[inline(never)]
    fn gicd_write_rare<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        offset: u64,
        value: u32,
    ) -> Notify {
        let v2 = matches!(H::VERSION, Version::V2);
        let first = offset as u32 & 0x3ff;
        match offset {
            0x000 => self.write_ctlr(dist, host, value),
            0x400..0x420 if v2 => {
                let changed = dist.priorities(self.number, 0).set_word(first, value);
                self.private_priorities(dist, host, self.number, changed)
            }
            0x800..0xc00 if v2 => self.write_targets(dist, host, first, 4, value),
            0xc00..0xd00 => {
                let n = (offset as usize & 0xff) / 4;
                if n >= 2 {
                    self.write_config(dist, host, n, value)
                } else if n == 1 && v2 {
                    self.write_private_config(dist, host, self.number, value)
                } else {
                    Notify::NOBODY
                }
            }
            0xf00 if v2 => self.write_sgir(dist, host, value),
            0xf10..0xf30 if v2 => self.write_sources(dist, host, offset as u32 & 0x3f, 4, value),
            0x6000..0x8000 if !v2 => self.write_route(dist, host, offset, 4, u64::from(value)),
            _ => Notify::NOBODY,
        }
    }

    /// Writes bytes, or a double word, to the registers that can be written so.
    #[inline(never)]
    fn gicd_write_other<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        offset: u64,
        size: u64,
        value: u64,
    ) -> Notify {
        let v2 = matches!(H::VERSION, Version::V2);
        let first = offset as u32 & 0x3ff;
        match offset {
            0x400..0x800 if size == 1 => self.write_priority(dist, host, first, value as u8),
            0x800..0xc00 if size == 1 && v2 => {
                self.write_targets(dist, host, first, 1, value as u32)
            }
            0xf10..0xf30 if size == 1 && v2 => {
                self.write_sources(dist, host, offset as u32 & 0x3f, 1, value as u32)
            }
            0x6000..0x8000 if !v2 && size == 8 => self.write_route(dist, host, offset, 8, value),
            _ => Notify::NOBODY,
        }
    }

    fn write_ctlr<H: Host>(&mut self, dist: &Distributor, host: &mut H, value: u32) -> Notify {
        let before = dist.set_groups(value);
        let now = dist.groups();
        if before == now {
            return Notify::NOBODY;
        }
        // Who makes an interrupt pending executes a fence, too, before it reads whether its group is
        // enabled.
        fence(SeqCst);
        let notify = dist.mark_groups(self.number, before & !now != 0);
        self.hot_changed(dist);
        notify | self.sync_lrs(dist, host, ALL)
    }

    fn shown_priority(&self, dist: &Distributor, v2: bool, intid: u32) -> u8 {
        let (word, _) = place(intid);
        if word < dist.words() && (v2 || word != 0) {
            dist.priority(self.number, intid)
        } else {
            0
        }
    }

    /// Writes the priority of an interrupt.
    fn write_priority<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        intid: u32,
        value: u8,
    ) -> Notify {
        let (word, _) = place(intid);
        if word >= dist.words() || word == 0 && matches!(H::VERSION, Version::V3) {
            return Notify::NOBODY;
        }
        let changed = dist.priorities(self.number, word).set(intid % 32, value);
        if word == 0 {
            return self.private_priorities(dist, host, self.number, changed);
        }
        self.spi_config(dist, host, word, changed)
    }

    /// Handles a change to the priorities of SGIs or PPIs, if there is one.
    pub(super) fn private_priorities<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        changed: u32,
    ) -> Notify {
        if changed == 0 {
            return Notify::NOBODY;
        }
        self.private_config(dist, host, vcpu, false)
    }

    /// Returns a byte of `GICD_ITARGETSR`: for an SGI or PPI the mask of the reading vCPU. With one
    /// vCPU there is nothing to choose, and all bytes read as zero.
    fn shown_targets(&self, dist: &Distributor, intid: u32) -> u8 {
        let (word, _) = place(intid);
        if dist.vcpus() == 1 || word >= dist.words() {
            0
        } else if word == 0 {
            mask(self.number) as u8
        } else {
            dist.route(intid) as u8
        }
    }

    fn write_targets<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        first: u32,
        size: u64,
        value: u32,
    ) -> Notify {
        let (word, _) = place(first);
        if dist.vcpus() == 1 || word == 0 || word >= dist.words() {
            return Notify::NOBODY;
        }
        let mut notify = Notify::NOBODY;
        for (byte, n) in value.to_le_bytes().iter().zip(0..4u32).take(size as usize) {
            let mask = u32::from(*byte) & dist.all_vcpus();
            notify |= self.reroute(dist, host, first.wrapping_add(n), mask);
        }
        notify
    }

    /// Writes `GICD_IROUTER<n>`. The affinities are kept as written. The routing mode reads as
    /// zero, since 1-of-N is not offered (`GICD_TYPER.No1N`).
    fn write_route<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        offset: u64,
        size: u64,
        value: u64,
    ) -> Notify {
        let intid = (offset / 8) as u32 & 0x3ff;
        let (word, _) = place(intid);
        if word == 0 || word >= dist.words() {
            return Notify::NOBODY;
        }
        let before = dist.route(intid);
        let low = value as u32 & 0xff_ffff;
        let route = match (size, offset & 7) {
            (8, 0) => low | ((value >> 32) as u32) << 24,
            (4, 0) => low | before & 0xff00_0000,
            (4, 4) => before & 0xff_ffff | (value as u32) << 24,
            _ => return Notify::NOBODY,
        };
        self.reroute(dist, host, intid, route)
    }

    /// Routes an SPI to another vCPU. The old owner gives back the pending state in its list
    /// registers; active state stays there until the guest ends it.
    fn reroute<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        intid: u32,
        route: u32,
    ) -> Notify {
        let Some((before, after)) = dist.set_route(intid, route) else {
            return Notify::NOBODY;
        };
        let (word, bit) = place(intid);
        if let Some(vcpu) = after
            && dist.bank(self.number, word).hw.load(Relaxed) & bit != 0
        {
            host.route(dist.physical(intid), vcpu);
        }
        let mut notify = Notify::NOBODY;
        let mut mine = false;
        for vcpu in [before, after].into_iter().flatten() {
            if vcpu == self.number {
                mine = true;
            } else {
                notify |= dist.mark(vcpu, mask(word) | REQUESTS);
            }
        }
        if mine {
            notify |= self.sync_lrs(dist, host, mask(word) | REQUESTS);
        }
        notify
    }

    /// Returns `GICD_ICFGR<n>`: two bits for each of 16 INTIDs, of which the upper says edge. SGIs
    /// are edge-triggered.
    fn shown_config(&self, dist: &Distributor, v2: bool, n: usize) -> u32 {
        let word = n / 2;
        if word >= dist.words() || word == 0 && !v2 {
            return 0;
        }
        spread(dist.bank(self.number, word).edge.load(Relaxed) >> (n % 2 * 16))
    }

    fn write_config<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        n: usize,
        value: u32,
    ) -> Notify {
        let word = n / 2;
        if word >= dist.words() {
            return Notify::NOBODY;
        }
        let shift = n % 2 * 16;
        let changed = store_edges(dist, 0, word, gather(value) << shift, 0xffff << shift);
        self.spi_config(dist, host, word, changed)
    }

    /// Writes the PPIs' triggers: `GICD_ICFGR1`, or `GICR_ICFGR1` of a vCPU.
    pub(super) fn write_private_config<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        value: u32,
    ) -> Notify {
        if store_edges(dist, vcpu, 0, gather(value) << 16, 0xffff_0000) == 0 {
            return Notify::NOBODY;
        }
        self.changed(dist, host, vcpu, 0, 0)
    }

    fn write_sources<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        at: u32,
        size: u64,
        value: u32,
    ) -> Notify {
        let mut notify = Notify::NOBODY;
        for (byte, n) in value.to_le_bytes().iter().zip(0..4u32).take(size as usize) {
            let at = at.wrapping_add(n);
            notify |= if at < 0x20 {
                self.clear_sgi_sources(dist, host, at & 15, *byte)
            } else {
                self.set_sgi_sources(dist, host, at & 15, *byte)
            };
        }
        notify
    }
}

/// Stores the triggers in `mask`; returns those that have changed. The trigger of a hardware
/// interrupt is set by the plan and stays.
fn store_edges(dist: &Distributor, vcpu: usize, word: usize, edges: u32, mask: u32) -> u32 {
    let bank = dist.bank(vcpu, word);
    let mask = mask & !bank.hw.load(Relaxed);
    let before = bank.edge.load(Relaxed);
    let changed = (before ^ edges) & mask;
    for intid in each(0, changed) {
        let bit = 1u32 << (intid & 31);
        if edges & bit != 0 {
            bank.edge.fetch_or(bit, SeqCst);
        } else {
            bank.edge.fetch_and(!bit, SeqCst);
        }
    }
    changed
}
