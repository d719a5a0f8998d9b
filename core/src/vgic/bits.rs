//! Writes to the registers that have a bit for each interrupt.

use core::sync::atomic::{
    Ordering::{Relaxed, SeqCst},
    fence,
};

use super::shared::{CONFIG, REQUESTS};
use super::{Cpu, Distributor, Host, Notify, each, mask, place};

/// The registers with a bit for each interrupt, in the order of their offsets: GICD_IGROUPR begins
/// at 0x80, the next bank 0x80 after it, and so on.
pub(super) const BANKS: core::ops::RangeInclusive<u64> = 1..=7;

/// The vCPUs that a register access leaves requests for.
#[derive(Default)]
struct Asked {
    /// This vCPU, which serves its requests itself.
    mine: bool,
    /// The others.
    notify: Notify,
}

impl Cpu {
    /// Writes `value` to a word of the registers at `bank` * 0x80, as `vcpu` sees them.
    pub(super) fn write_bits<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        bank: u64,
        word: usize,
        value: u32,
    ) -> Notify {
        if word >= dist.words() {
            return Notify::NOBODY;
        }
        // On a GICv2 an SGI is pending for each sender separately, and has registers of its own for
        // that.
        let sgis = if word == 0 && dist.is_v2() { 0xffff } else { 0 };
        match bank {
            1 => self.set_groups(dist, host, vcpu, word, value),
            2 => self.set_enable(dist, host, vcpu, word, value, true),
            3 => self.set_enable(dist, host, vcpu, word, value, false),
            4 => self.set_pending(dist, host, vcpu, word, value & !sgis),
            5 => self.clear_pending(dist, host, vcpu, word, value & !sgis),
            6 => self.set_active(dist, host, vcpu, word, value),
            7 => self.end_active(dist, host, vcpu, word, value),
            _ => Notify::NOBODY,
        }
    }

    /// Handles a change to the configuration of the private interrupts of `vcpu`; `off`: one is no
    /// longer enabled.
    fn private_config<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        off: bool,
    ) -> Notify {
        if vcpu == self.number {
            self.private_changed(dist, host);
            self.sync_lrs(dist, host, 1)
        } else if off {
            dist.ask_disabled(vcpu, 1 | CONFIG)
        } else {
            dist.mark(vcpu, 1 | CONFIG)
        }
    }

    /// Writes priorities of SGIs and PPIs.
    pub(super) fn write_private_priorities<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        first: u32,
        size: u64,
        value: u32,
    ) -> Notify {
        if self.store_priorities(dist, vcpu, first, size, value) == 0 {
            return Notify::NOBODY;
        }
        self.private_config(dist, host, vcpu, false)
    }

    /// Handles a change to the configuration of SPIs. It matters only for those that are pending,
    /// held or backed by hardware.
    pub(super) fn spi_config<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        word: usize,
        bits: u32,
    ) -> Notify {
        let bank = dist.bank(self.number, word);
        // Who takes it meanwhile sets `held`, executes a fence and reads the configuration.
        fence(SeqCst);
        let live = bank.latch.load(SeqCst)
            | bank.level.load(SeqCst)
            | bank.held.load(SeqCst)
            | bank.hw.load(Relaxed);
        if bits & live == 0 {
            return Notify::NOBODY;
        }
        self.changed(dist, host, self.number, word, bits & live)
    }

    fn set_groups<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        word: usize,
        value: u32,
    ) -> Notify {
        let changed = dist.bank(vcpu, word).group.swap(value, SeqCst) ^ value;
        if changed == 0 {
            Notify::NOBODY
        } else if word == 0 {
            self.private_config(dist, host, vcpu, false)
        } else {
            self.spi_config(dist, host, word, changed)
        }
    }

    fn set_enable<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        word: usize,
        bits: u32,
        on: bool,
    ) -> Notify {
        let bank = dist.bank(vcpu, word);
        let changed = if on {
            bits & !bank.enable.fetch_or(bits, SeqCst)
        } else {
            bits & bank.enable.fetch_and(!bits, SeqCst)
        };
        if changed == 0 {
            return Notify::NOBODY;
        }
        // Who makes it pending executes a fence before it marks the owner, which then reads `enable`.
        let pending = || {
            fence(SeqCst);
            changed & (bank.latch.load(SeqCst) | bank.up())
        };
        if word == 0 {
            if vcpu != self.number {
                return self.private_config(dist, host, vcpu, !on);
            }
            self.enables_changed(dist, host);
            if on && pending() == 0 {
                return Notify::NOBODY;
            }
            return self.sync_lrs(dist, host, 1);
        }
        for intid in each(word, changed & bank.hw.load(Relaxed)) {
            self.follow(dist, host, intid);
        }
        if on {
            let waits = pending();
            return if waits == 0 {
                Notify::NOBODY
            } else {
                self.changed(dist, host, vcpu, word, waits)
            };
        }
        let mut notify = dist.ask_holders(self.number, word, changed);
        if dist.vcpu_words(self.number).holds.get(word) & changed != 0 {
            notify |= self.sync_lrs(dist, host, mask(word));
        }
        notify
    }

    /// Enables or disables a physical SPI as the virtual SPI is. Repeats if another vCPU changes
    /// the virtual SPI meanwhile.
    fn follow<H: Host>(&mut self, dist: &Distributor, host: &mut H, intid: u32) {
        let (word, bit) = place(intid);
        let enabled = || dist.bank(self.number, word).enable.load(SeqCst) & bit != 0;
        for _ in 0..super::VCPUS {
            let on = enabled();
            if on {
                host.enable(dist.physical(intid));
            } else {
                host.disable(dist.physical(intid));
            }
            if enabled() == on {
                return;
            }
        }
    }

    fn set_pending<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        word: usize,
        bits: u32,
    ) -> Notify {
        let bank = dist.bank(vcpu, word);
        let hw = bits & bank.hw.load(Relaxed);
        let mut notify = Notify::NOBODY;
        if word == 0 && vcpu == self.number {
            self.make_pending(dist, host, hw);
        } else if word != 0 && hw != 0 {
            // The mark stops the owners' fast paths, which would take the interrupt by a ready
            // entry without seeing that software made it pending.
            notify |= dist.mark_owners(vcpu, word, hw);
            dist.by_software(vcpu, word).fetch_or(hw, SeqCst);
            for intid in each(word, hw) {
                host.set_pending(dist.physical(intid), true);
            }
        } else if hw != 0 {
            dist.vcpu_words(vcpu).set_pending.fetch_or(hw, SeqCst);
            notify |= dist.mark(vcpu, 1 | REQUESTS);
        }
        let plain = bits & !hw;
        let fresh = plain & !bank.latch.fetch_or(plain, SeqCst);
        if fresh != 0 {
            notify |= self.changed(dist, host, vcpu, word, fresh);
        }
        notify
    }

    /// Makes hardware PPIs of this vCPU pending in the physical GIC.
    pub(super) fn make_pending<H: Host>(&mut self, dist: &Distributor, host: &mut H, bits: u32) {
        if bits == 0 {
            return;
        }
        dist.by_software(self.number, 0).fetch_or(bits, SeqCst);
        self.direct_changed(dist);
        for intid in each(0, bits) {
            host.set_pending(dist.physical(intid), true);
        }
    }

    /// Tells vCPU `v` of the requests about a word that were left for it.
    #[inline(always)]
    fn request(&self, dist: &Distributor, v: usize, word: usize, asked: &mut Asked) {
        if v == self.number {
            asked.mine = true;
        } else {
            asked.notify |= dist.mark(v, mask(word) | REQUESTS);
        }
    }

    /// Serves the requests that are this vCPU's; the others are to be notified.
    #[inline(always)]
    fn serve<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        word: usize,
        asked: Asked,
    ) -> Notify {
        if asked.mine {
            asked.notify | self.sync_lrs(dist, host, mask(word) | REQUESTS)
        } else {
            asked.notify
        }
    }

    fn clear_pending<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        word: usize,
        bits: u32,
    ) -> Notify {
        let bank = dist.bank(vcpu, word);
        let hw = bits & bank.hw.load(Relaxed);
        if word != 0 {
            for intid in each(word, hw) {
                host.set_pending(dist.physical(intid), false);
            }
        }
        if word == 0 {
            // A request to make it pending that has not been served yet is void too.
            dist.vcpu_words(vcpu).set_pending.fetch_and(!bits, SeqCst);
        }
        dist.by_software(vcpu, word).fetch_and(!hw, SeqCst);
        // The latch first, then the request to the vCPU that has taken the interrupt from the
        // latch.
        bank.latch.fetch_and(!(bits & !hw), SeqCst);
        let mut asked = Asked::default();
        let mut left = hw & bank.latch.load(SeqCst);
        for v in 0..dist.vcpus() {
            let its = if word == 0 {
                if v == vcpu { bits } else { 0 }
            } else {
                bits & dist.vcpu_words(v).holds.get(word) | left & dist.owns(v, word)
            };
            if its == 0 || !dist.is_online(v) {
                continue;
            }
            left &= !its;
            dist.vcpu_words(v).clear_pending.add(word, its);
            self.request(dist, v, word, &mut asked);
        }
        if word != 0 && left != 0 {
            // Acknowledged by a pCPU, but routed to no vCPU.
            let gone = bank.latch.fetch_and(!left, SeqCst) & left;
            for intid in each(word, gone) {
                host.deactivate(dist.physical(intid));
            }
        }
        self.serve(dist, host, word, asked)
    }

    fn set_active<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        word: usize,
        bits: u32,
    ) -> Notify {
        let bank = dist.bank(vcpu, word);
        let mut left = bits;
        let mut asked = Asked::default();
        // The vCPU that holds it, or else the vCPU that owns it.
        for holders in [true, false] {
            for v in 0..dist.vcpus() {
                let its = left
                    & match (word, holders) {
                        (0, _) if v == vcpu => u32::MAX,
                        (0, _) => 0,
                        (_, true) => dist.vcpu_words(v).holds.get(word),
                        (_, false) => dist.owns(v, word),
                    };
                if its == 0 || !dist.is_online(v) {
                    continue;
                }
                left &= !its;
                // A request to clear it that has not been served yet is void.
                dist.vcpu_words(v).clear_active.remove(word, its);
                dist.vcpu_words(v).set_active.add(word, its);
                self.request(dist, v, word, &mut asked);
            }
        }
        if word != 0 {
            let hw = left & bank.hw.load(Relaxed);
            let latched = bank.latch.fetch_and(!hw, SeqCst) & hw;
            for intid in each(word, hw) {
                if latched & place(intid).1 != 0 {
                    let soft = dist.by_software(vcpu, word).load(SeqCst);
                    self.leave_to_gic(dist, host, intid, soft);
                }
                host.set_active(dist.physical(intid));
            }
            bank.active.fetch_or(left, SeqCst);
        }
        self.serve(dist, host, word, asked)
    }

    /// Clears active state, on a write to GICD_ICACTIVER or ICC_DIR_EL1.
    pub(super) fn end_active<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        word: usize,
        bits: u32,
    ) -> Notify {
        let bank = dist.bank(vcpu, word);
        let mut left = bits;
        let mut asked = Asked::default();
        for v in 0..dist.vcpus() {
            let its = match word {
                0 if v == vcpu => bits,
                0 => 0,
                _ => bits & dist.vcpu_words(v).has_active(word),
            };
            left &= !its;
            if its == 0 || !dist.is_online(v) {
                continue;
            }
            // A request to make it active that has not been served yet is void too.
            dist.vcpu_words(v).set_active.remove(word, its);
            dist.vcpu_words(v).clear_active.add(word, its);
            self.request(dist, v, word, &mut asked);
        }
        if word != 0 {
            // Made active by a register write while routed to no vCPU.
            let gone = bank.active.fetch_and(!left, SeqCst) & left & bank.hw.load(Relaxed);
            for intid in each(word, gone) {
                host.deactivate(dist.physical(intid));
            }
        }
        self.serve(dist, host, word, asked)
    }
}
