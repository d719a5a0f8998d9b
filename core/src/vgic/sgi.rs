//! Software-generated interrupts: ICC_SGI1R_EL1 and its kin, GICD_SGIR, and the pending registers that a GICv2
//! has for them.

use core::sync::atomic::Ordering::SeqCst;

use super::{Cpu, Distributor, Host, Notify, Version, each, lr, mask, numbers, place};

impl Cpu {
    /// Write to ICC_SGI1R_EL1 (`group1`), or to ICC_SGI0R_EL1 or ICC_ASGI1R_EL1, which reach only SGIs of group 0
    /// (IHI 0069H, "Forwarding an SGI to a target PE", for one Security state).
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
            // Other affinities, and those from 16 on: the VM has none.
            0
        } else {
            value as u32 & dist.all_vcpus()
        };
        let bit = 1u32 << intid;
        let reached = each(0, targets)
            .filter(|v| group1 || dist.line(*v as usize).bank.group.load(SeqCst) & bit == 0)
            .fold(0, |all, v| all | mask(v as usize));
        self.deliver(dist, host, reached, intid)
    }

    /// Write to GICD_SGIR (IHI 0048B, 4.3.15).
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

    /// Makes an SGI pending on `targets`, those that run.
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
            let line = dist.line(v);
            if v == self.number && self.send_to_self(dist, host, intid) {
                continue;
            }
            let bit = mask(intid as usize & 15);
            let fresh = if matches!(H::VERSION, Version::V2) {
                // The latch may be set for other senders, who have notified for themselves.
                let me = mask(self.number) as u8;
                let before = line.sources[intid as usize & 15].fetch_or(me, SeqCst);
                line.bank.latch.fetch_or(bit, SeqCst);
                before & me == 0
            } else {
                line.bank.latch.fetch_or(bit, SeqCst) & bit == 0
            };
            if v == self.number {
                mine = true;
            } else if fresh {
                notify |= Notify(mask(v) as u8);
            }
        }
        if mine {
            notify |= self.attend(dist, host, 1);
        }
        notify
    }

    /// Reads a byte of GICD_CPENDSGIR or GICD_SPENDSGIR: the vCPUs from which the SGI is pending.
    pub(super) fn sgi_sources<H: Host>(&self, dist: &Distributor, host: &H, intid: u32) -> u8 {
        let slot = &dist.line(self.number).sources[intid as usize & 15];
        let inside = match self.find(host, intid) {
            Some((_, entry)) if entry & lr::PENDING != 0 => 1 << lr::source(entry),
            _ => 0,
        };
        slot.load(SeqCst) | inside
    }

    /// Writes a byte of GICD_SPENDSGIR: makes an SGI pending here, from those vCPUs.
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
        let line = dist.line(self.number);
        line.sources[intid as usize & 15].fetch_or(from, SeqCst);
        line.bank.latch.fetch_or(1 << (intid & 15), SeqCst);
        self.attend(dist, host, 1)
    }

    /// Writes a byte of GICD_CPENDSGIR: the SGI is no longer pending from those vCPUs.
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
        let line = dist.line(self.number);
        let (_, bit) = place(intid & 15);
        // The latch first: a sender sets its source, then the latch.
        line.bank.latch.fetch_and(!bit, SeqCst);
        let slot = &line.sources[intid as usize & 15];
        if slot.fetch_and(!from, SeqCst) & !from != 0 {
            line.bank.latch.fetch_or(bit, SeqCst);
        }
        if let Some((n, entry)) = self.find(host, intid)
            && entry & lr::PENDING != 0
            && from >> lr::source(entry) & 1 != 0
        {
            let rest = entry & !lr::PENDING;
            host.set_lr(n, if rest & lr::STATE == 0 { 0 } else { rest });
        }
        self.attend(dist, host, 1)
    }
}
