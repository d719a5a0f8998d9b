//! The redistributor frames of a GICv3 VM, two for each vCPU (IHI 0069H, 12.10 and 12.11). Any vCPU
//! may access the frames of any other.

use core::sync::atomic::Ordering::Relaxed;

use super::bits::BANKS;
use super::gicd::{IIDR, identification, spread};
use super::query::State;
use super::{Answer, Cpu, Distributor, GICR_SIZE, Host, Notify};

/// The offset of the frame with SGIs and PPIs, in which banks are where the distributor has them.
const SGI_BASE: u64 = 0x1_0000;
/// `GICR_CTLR.RWP`.
const RWP: u32 = 1 << 3;
/// `GICR_WAKER.ProcessorSleep`. `ChildrenAsleep` is the bit above it and always has the same value.
const SLEEP: u32 = 1 << 1;
/// A bit of the key of a query that distinguishes reads of the redistributor from those of the
/// distributor.
const KEY: u32 = 1 << 31;

const DONE: (Answer, Notify) = (Answer::Value(0), Notify::NOBODY);

fn value(bits: u32) -> (Answer, Notify) {
    (Answer::Value(u64::from(bits)), Notify::NOBODY)
}

/// The value of `GICR_TYPER`: affinity, processor number, Last.
fn typer(dist: &Distributor, vcpu: usize) -> u64 {
    let n = vcpu as u64;
    let last = u64::from(vcpu.wrapping_add(1) == dist.vcpus());
    n << 32 | n << 8 | last << 4
}

impl Cpu {
    /// Reads `size` bytes at `offset` of the redistributor frames of the VM: those of vCPU n begin
    /// at n * [`super::GICR_SIZE`]. Registers that the architecture does not have read as zero.
    pub fn gicr_read<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        offset: u64,
        size: u64,
    ) -> (Answer, Notify) {
        let vcpu = (offset / GICR_SIZE) as usize;
        if vcpu >= dist.vcpus() {
            return DONE;
        }
        let at = offset % GICR_SIZE;
        if size == 8 && at == 0x8 {
            return (Answer::Value(typer(dist, vcpu)), Notify::NOBODY);
        }
        if size == 1 && (0x1_0400..0x1_0420).contains(&at) {
            return value(u32::from(dist.priority(vcpu, at as u32 & 0x1f)));
        }
        if size != 4 || at & 3 != 0 {
            return DONE;
        }
        let bank = dist.bank(vcpu, 0);
        let key = KEY | (vcpu as u32) << 20 | at as u32 & !0x80;
        match at {
            0x0000 => value(if dist.disabling_on(vcpu) { RWP } else { 0 }),
            0x0004 => value(IIDR),
            0x0008 => value(typer(dist, vcpu) as u32),
            0x000c => value((typer(dist, vcpu) >> 32) as u32),
            0x0014 => value(dist.vcpu_words(vcpu).waker.load(Relaxed)),
            0xffd0..0x1_0000 | 0x1_ffd0..0x2_0000 => value(identification(at & 0xff, 3)),
            0x1_0080 => value(bank.group.load(Relaxed)),
            0x1_0100 | 0x1_0180 => value(bank.enable.load(Relaxed)),
            0x1_0200 | 0x1_0280 => self.read_state(dist, host, vcpu, 0, State::Pending, key),
            0x1_0300 | 0x1_0380 => self.read_state(dist, host, vcpu, 0, State::Active, key),
            0x1_0400..0x1_0420 => value(dist.priorities(vcpu, 0).word(at as u32 & 0x1c)),
            0x1_0c00 => value(spread(0xffff)),
            0x1_0c04 => value(spread(bank.edge.load(Relaxed) >> 16)),
            _ => DONE,
        }
    }

    /// Writes `size` bytes at `offset` of the redistributor frames of the VM. Writes to read-only
    /// registers, and to those that the architecture does not have, are ignored.
    pub fn gicr_write<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        offset: u64,
        size: u64,
        value: u64,
    ) -> (Answer, Notify) {
        let notify = if size == 4 && offset & 3 == 0 {
            self.gicr_write_word(dist, host, offset, value as u32)
        } else if size == 1 {
            self.gicr_write_byte(dist, host, offset, value as u8)
        } else {
            Notify::NOBODY
        };
        (Answer::Value(0), notify)
    }

    /// Writes the word at `offset`, a multiple of 4, of the redistributor frames of the VM,
    /// otherwise like [`Self::gicr_write`].
    #[inline(never)]
    pub fn gicr_write_word<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        offset: u64,
        value: u32,
    ) -> Notify {
        let vcpu = (offset / GICR_SIZE) as usize;
        if vcpu >= dist.vcpus() {
            return Notify::NOBODY;
        }
        let at = (offset % GICR_SIZE).wrapping_sub(SGI_BASE);
        let bank = at >> 7;
        if at & 0x7f == 0 && BANKS.contains(&bank) {
            return self.write_private(dist, host, vcpu, bank, value);
        }
        self.gicr_write_rare(dist, host, vcpu, offset % GICR_SIZE, value)
    }

    /// Writes a word of the registers that [`Self::gicr_write_word`] leaves.
    #[inline(never)]
    fn gicr_write_rare<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        at: u64,
        value: u32,
    ) -> Notify {
        match at {
            0x1_0400..0x1_0420 => {
                let changed = dist.priorities(vcpu, 0).set_word(at as u32 & 0x1f, value);
                self.private_priorities(dist, host, vcpu, changed)
            }
            0x0014 => {
                let sleep = value & SLEEP;
                let waker = &dist.vcpu_words(vcpu).waker;
                waker.store(sleep | sleep << 1, Relaxed);
                Notify::NOBODY
            }
            0x1_0c04 => self.write_private_config(dist, host, vcpu, value),
            _ => Notify::NOBODY,
        }
    }

    /// Writes a byte, which only priorities are.
    fn gicr_write_byte<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        offset: u64,
        value: u8,
    ) -> Notify {
        let vcpu = (offset / GICR_SIZE) as usize;
        let at = offset % GICR_SIZE;
        if vcpu >= dist.vcpus() || !(0x1_0400..0x1_0420).contains(&at) {
            return Notify::NOBODY;
        }
        let changed = dist.priorities(vcpu, 0).set(at as u32 & 0x1f, value);
        self.private_priorities(dist, host, vcpu, changed)
    }
}
