//! Software-generated interrupts: ICC_SGI1R_EL1, ICC_SGI0R_EL1 and ICC_ASGI1R_EL1, GICD_SGIR, and
//! the pending registers that a GICv2 has for SGIs.

use core::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};

use super::{Cpu, Distributor, Host, Notify, VCPUS, Version, each, lr, mask, numbers, place};

/// The fields of ICC_SGI1R_EL1 that select targets: affinities, range, "all but self", target list.
const SGI_TARGETS: u64 = 0xff << 48 | 0xf << 44 | 1 << 40 | 0xff << 32 | 0xff << 16 | 0xffff;
/// The fields of GICD_SGIR that select targets: filter and target list.
const SGIR_TARGETS: u32 = 3 << 24 | 0xff << 16;

impl Cpu {
    /// The fast path of a write to ICC_SGI1R_EL1: the only target is a sibling, or this vCPU with
    /// empty list registers. Returns `None` if nothing has been done; the caller then calls
    /// [`Self::send_sgi`].
    #[inline(always)]
    pub fn send_sgi_fast<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        value: u64,
    ) -> Option<Notify> {
        let targets = value & SGI_TARGETS;
        // At most one target, and no other affinity or range.
        if targets & targets.wrapping_sub(1) != 0 {
            return None;
        }
        let target = targets.trailing_zeros() as usize;
        let intid = ((value >> 24) & 15) as usize;
        self.send_fast(dist, host, target, intid, 0)
    }

    /// The fast path of a 32-bit write to GICD_SGIR (0xf00), as [`Self::send_sgi_fast`]. Returns
    /// `None` if nothing has been done; the caller then calls [`Self::gicd_write`].
    #[inline(always)]
    pub fn send_sgir_fast<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        value: u32,
    ) -> Option<Notify> {
        let targets = value & SGIR_TARGETS;
        if targets & targets.wrapping_sub(1) != 0 {
            return None;
        }
        // Bit 16 is vCPU 0; an empty list and the filters give numbers above 7.
        let target = targets.trailing_zeros().wrapping_sub(16) as usize;
        let intid = (value & 15) as usize;
        self.send_fast(dist, host, target, intid, lr::from(self.number as u32))
    }

    /// Handles a write to ICC_SGI1R_EL1 that sends an SGI to this vCPU alone, while its list
    /// registers hold only SGIs. Returns `false` if nothing has been done; the caller then calls
    /// [`Self::send_sgi`].
    #[inline(always)]
    pub fn send_sgi_beside<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        value: u64,
    ) -> bool {
        value & SGI_TARGETS == u64::from(mask(self.number))
            && self.send_beside_sgis(dist, host, (value >> 24) as u32 & 15, 0)
    }

    /// Handles a write to GICD_SGIR that sends an SGI to this vCPU alone, as
    /// [`Self::send_sgi_beside`]. Returns `false` if nothing has been done; the caller then calls
    /// [`Self::gicd_write`].
    #[inline(always)]
    pub fn send_sgir_beside<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        value: u32,
    ) -> bool {
        let from = lr::from(self.number as u32);
        value & SGIR_TARGETS == mask(self.number) << 16
            && self.send_beside_sgis(dist, host, value & 15, from)
    }

    #[inline(always)]
    fn send_fast<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        target: usize,
        intid: usize,
        from: u64,
    ) -> Option<Notify> {
        let intid = intid & 15;
        let bit = 1u32 << intid;
        if target == self.number {
            // Uses the first list register that is not the timer's. Earlier requests must be served
            // first.
            if self.direct & bit == 0
                || dist.vcpu_words(target).busy.load(Acquire) != 0
                || !host.empty() & host.usable() != 0
            {
                return None;
            }
            host.set_lr(1, self.sgis[intid] | from);
            self.inside = bit;
            return Some(Notify::NOBODY);
        }
        if target >= VCPUS || dist.online() >> target & 1 == 0 {
            return None;
        }
        let shared = dist.vcpu_words(target);
        if matches!(H::VERSION, Version::V2) {
            let before = shared.sources[intid].fetch_or(mask(self.number) as u8, SeqCst);
            shared.bank.latch.fetch_or(bit, AcqRel);
            let fresh = u32::from(before & mask(self.number) as u8 == 0) << target;
            return Some(Notify(fresh as u8));
        }
        // The vCPU that found the bit clear has notified the target, and the target has not acted
        // on that yet.
        let before = shared.bank.latch.fetch_or(bit, AcqRel);
        let fresh = u32::from(before & bit == 0) << target;
        Some(Notify(fresh as u8))
    }

    /// Handles a write to ICC_SGI1R_EL1 (`group1`), or to ICC_SGI0R_EL1 or ICC_ASGI1R_EL1, which
    /// reach only SGIs of group 0 (IHI 0069H, "Forwarding an SGI to a target PE", for one Security
    /// state).
    pub fn send_sgi<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        value: u64,
        group1: bool,
    ) -> Notify {
        let intid = ((value >> 24) & 15) as u32;
        let me = mask(self.number);
        let targets = if value >> 40 & 1 != 0 {
            dist.all_vcpus() & !me
        } else if value & (0xff << 48 | 0xf << 44 | 0xff << 32 | 0xff << 16) != 0 {
            // Other affinities, and Aff0 from 16 on: the VM has no such vCPUs.
            0
        } else {
            value as u32 & dist.all_vcpus()
        };
        let bit = 1u32 << intid;
        let reached = each(0, targets)
            .filter(|v| group1 || dist.vcpu_words(*v as usize).bank.group.load(SeqCst) & bit == 0)
            .fold(0, |all, v| all | mask(v as usize));
        self.deliver(dist, host, reached, intid)
    }

    /// Handles a write to GICD_SGIR (IHI 0048B, 4.3.15).
    pub(super) fn write_sgir<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        value: u32,
    ) -> Notify {
        let me = mask(self.number);
        let targets = match value >> 24 & 3 {
            0 => value >> 16 & 0xff & dist.all_vcpus(),
            1 => dist.all_vcpus() & !me,
            2 => me,
            _ => 0,
        };
        self.deliver(dist, host, targets, value & 15)
    }

    /// Makes an SGI pending on those of `targets` that are on.
    fn deliver<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        targets: u32,
        intid: u32,
    ) -> Notify {
        let mut notify = Notify::NOBODY;
        let mut mine = false;
        for v in numbers(targets & dist.online()) {
            let shared = dist.vcpu_words(v);
            if v == self.number && self.send_to_self(dist, host, intid) {
                continue;
            }
            let bit = mask(intid as usize & 15);
            let fresh = if matches!(H::VERSION, Version::V2) {
                // The latch may be set for other senders, each of which has notified for itself.
                let me = mask(self.number) as u8;
                let before = shared.sources[intid as usize & 15].fetch_or(me, SeqCst);
                shared.bank.latch.fetch_or(bit, SeqCst);
                before & me == 0
            } else {
                shared.bank.latch.fetch_or(bit, SeqCst) & bit == 0
            };
            if v == self.number {
                mine = true;
            } else if fresh {
                notify |= Notify(mask(v) as u8);
            }
        }
        if mine {
            notify |= self.sync_lrs(dist, host, 1);
        }
        notify
    }

    /// Reads a byte of GICD_CPENDSGIR or GICD_SPENDSGIR: the vCPUs from which the SGI is pending.
    pub(super) fn sgi_sources<H: Host>(&self, dist: &Distributor, host: &H, intid: u32) -> u8 {
        let senders = &dist.vcpu_words(self.number).sources[intid as usize & 15];
        let inside = match self.find(host, intid) {
            Some((_, entry)) if entry & lr::PENDING != 0 => 1 << lr::source(entry),
            _ => 0,
        };
        senders.load(SeqCst) | inside
    }

    /// Writes a byte of GICD_SPENDSGIR: makes an SGI pending on this vCPU, from the vCPUs in
    /// `from`.
    pub(super) fn set_sgi_sources<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        intid: u32,
        from: u8,
    ) -> Notify {
        let from = from & dist.all_vcpus() as u8;
        if from == 0 {
            return Notify::NOBODY;
        }
        let shared = dist.vcpu_words(self.number);
        shared.sources[intid as usize & 15].fetch_or(from, SeqCst);
        shared.bank.latch.fetch_or(1 << (intid & 15), SeqCst);
        self.sync_lrs(dist, host, 1)
    }

    /// Writes a byte of GICD_CPENDSGIR: the SGI is no longer pending from the vCPUs in `from`.
    pub(super) fn clear_sgi_sources<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        intid: u32,
        from: u8,
    ) -> Notify {
        if from == 0 {
            return Notify::NOBODY;
        }
        let shared = dist.vcpu_words(self.number);
        let (_, bit) = place(intid & 15);
        // The latch first, since a sender sets its source before the latch.
        shared.bank.latch.fetch_and(!bit, SeqCst);
        let senders = &shared.sources[intid as usize & 15];
        if senders.fetch_and(!from, SeqCst) & !from != 0 {
            shared.bank.latch.fetch_or(bit, SeqCst);
        }
        if let Some((n, entry)) = self.find(host, intid)
            && entry & lr::PENDING != 0
            && from >> lr::source(entry) & 1 != 0
        {
            let rest = entry & !lr::PENDING;
            host.set_lr(n, if rest & lr::STATE == 0 { 0 } else { rest });
        }
        self.sync_lrs(dist, host, 1)
    }
}
