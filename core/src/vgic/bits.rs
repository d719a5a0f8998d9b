//! Writes to the registers that have a bit for each interrupt.

use core::sync::atomic::{
    Ordering::{Relaxed, SeqCst},
    fence,
};

use super::shared::{Bank, CONFIG, REQUESTS};
use super::{Cpu, Distributor, Host, Notify, Version, each, mask, place};

/// Returns the interrupts of a bank that are pending, after a write that makes some deliverable: who
/// makes one pending executes a fence, too, before it reads whether it is deliverable.
#[inline(always)]
fn pending(bank: &Bank) -> u32 {
    fence(SeqCst);
    bank.latch.load(SeqCst) | bank.up()
}

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
    /// Writes `value` to a word of SPIs of the registers at `bank` * 0x80.
    #[inline(always)]
    pub(super) fn write_spis<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        bank: u64,
        word: usize,
        value: u32,
    ) -> Notify {
        if word >= dist.words() {
            return Notify::NOBODY;
        }
        match bank {
            2 => self.enable_spis(dist, host, word, value),
            3 => self.disable_spis(dist, host, word, value),
            _ => self.write_others(dist, host, self.number, bank, word, value),
        }
    }

    /// Writes `value` to the word of SGIs and PPIs of the registers at `bank` * 0x80, as `vcpu`
    /// sees them.
    #[inline(always)]
    pub(super) fn write_private<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        bank: u64,
        value: u32,
    ) -> Notify {
        match bank {
            2 => self.enable_private(dist, host, vcpu, value, true),
            3 => self.enable_private(dist, host, vcpu, value, false),
            _ => self.write_others(dist, host, vcpu, bank, 0, value),
        }
    }

    /// Writes registers other than those that enable and disable.
    fn write_others<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        bank: u64,
        word: usize,
        value: u32,
    ) -> Notify {
        // On a GICv2 an SGI is pending for each sender separately, and has registers of its own for
        // that.
        let v2 = matches!(H::VERSION, Version::V2);
        let sgis = if word == 0 && v2 { 0xffff } else { 0 };
        match bank {
            4 => self.set_pending(dist, host, vcpu, word, value & !sgis),
            5 => self.clear_pending(dist, host, vcpu, word, value & !sgis),
            6 => self.set_active(dist, host, vcpu, word, value),
            7 => self.end_active(dist, host, vcpu, word, value),
            _ => self.set_groups(dist, host, vcpu, word, value),
        }
    }

    /// Handles a change to the configuration of the private interrupts of `vcpu`; `off`: one is no
    /// longer enabled.
    pub(super) fn private_config<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        off: bool,
    ) -> Notify {
        if vcpu == self.number {
            // As in [`pending`].
            fence(SeqCst);
            self.private_changed(dist, host);
            self.sync_lrs(dist, host, 1)
        } else if off {
            dist.ask_disabled(vcpu, 1 | CONFIG)
        } else {
            dist.mark(vcpu, 1 | CONFIG)
        }
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
        if bits == 0 {
            return Notify::NOBODY;
        }
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

    /// Enables SPIs of a word.
    #[inline(always)]
    fn enable_spis<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        word: usize,
        bits: u32,
    ) -> Notify {
        let bank = dist.bank(self.number, word);
        let changed = bits & !bank.enable.fetch_or(bits, SeqCst);
        if changed & bank.hw.load(Relaxed) != 0 {
            return self.follow(dist, host, word, changed, true);
        }
        self.enabled(dist, host, word, changed)
    }

    /// Handles the enabling of interrupts, which matters at once for those that are pending.
    #[inline(always)]
    fn enabled<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        word: usize,
        changed: u32,
    ) -> Notify {
        let bank = dist.bank(self.number, word);
        let waits = changed & pending(bank);
        if waits == 0 {
            return Notify::NOBODY;
        }
        self.changed(dist, host, self.number, word, waits)
    }

    /// Disables SPIs of a word.
    #[inline(always)]
    fn disable_spis<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        word: usize,
        bits: u32,
    ) -> Notify {
        let bank = dist.bank(self.number, word);
        let changed = bits & bank.enable.fetch_and(!bits, SeqCst);
        // Who takes an interrupt meanwhile sets `held`, executes a fence and reads `enable`. `held`
        // has every SPI in `holds` that may be pending there and is not backed by hardware.
        fence(SeqCst);
        if changed & (bank.held.load(SeqCst) | bank.hw.load(Relaxed)) == 0 {
            return Notify::NOBODY;
        }
        self.follow(dist, host, word, changed, false)
    }

    /// Handles the enabling of SPIs of which some are backed by hardware, or the disabling of SPIs
    /// that may be in list registers or enabled on the board.
    #[inline(never)]
    fn follow<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        word: usize,
        changed: u32,
        on: bool,
    ) -> Notify {
        let hw = dist.bank(self.number, word).hw.load(Relaxed);
        for intid in each(word, changed & hw) {
            self.follow_one(dist, host, intid);
        }
        if on {
            return self.enabled(dist, host, word, changed);
        }
        let notify = dist.ask_holders(self.number, word, changed);
        if dist.vcpu_words(self.number).holds.get(word) & changed == 0 {
            return notify;
        }
        notify | self.sync_lrs(dist, host, mask(word))
    }

    /// Enables or disables SGIs and PPIs of `vcpu`.
    fn enable_private<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        bits: u32,
        on: bool,
    ) -> Notify {
        let bank = &dist.vcpu_words(vcpu).bank;
        let changed = if on {
            bits & !bank.enable.fetch_or(bits, SeqCst)
        } else {
            bits & bank.enable.fetch_and(!bits, SeqCst)
        };
        if changed == 0 {
            return Notify::NOBODY;
        }
        if vcpu != self.number {
            return self.private_config(dist, host, vcpu, !on);
        }
        if changed & bank.hw.load(Relaxed) != 0 {
            return self.enable_on_board(dist, host, changed, on);
        }
        self.sgis_enabled(dist);
        self.private_enabled(dist, host, changed, on)
    }

    /// Handles the enabling or disabling of private interrupts of which some are backed by hardware.
    #[inline(never)]
    fn enable_on_board<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        changed: u32,
        on: bool,
    ) -> Notify {
        self.enables_changed(dist, host);
        self.private_enabled(dist, host, changed, on)
    }

    /// Handles the enabling or disabling of private interrupts: those that are pending are taken,
    /// and those that have been disabled leave their list registers.
    #[inline(always)]
    fn private_enabled<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        changed: u32,
        on: bool,
    ) -> Notify {
        let settled = if on {
            changed & pending(&dist.vcpu_words(self.number).bank) == 0
        } else {
            !host.empty() & Self::all_lrs(host) == 0 && self.waiting.is_empty()
        };
        if settled {
            return Notify::NOBODY;
        }
        self.sync_lrs(dist, host, 1)
    }

    /// Enables or disables a physical SPI as the virtual SPI is. Repeats if another vCPU changes
    /// the virtual SPI meanwhile.
    fn follow_one<H: Host>(&mut self, dist: &Distributor, host: &mut H, intid: u32) {
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
        if bits & bank.hw.load(Relaxed) != 0 {
            return self.set_pending_on_board(dist, host, vcpu, word, bits);
        }
        self.set_latch(dist, host, vcpu, word, bits)
    }

    /// Makes interrupts pending that are not backed by hardware.
    #[inline(always)]
    fn set_latch<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        word: usize,
        bits: u32,
    ) -> Notify {
        let bank = dist.bank(vcpu, word);
        let fresh = bits & !bank.latch.fetch_or(bits, SeqCst);
        // Who makes it deliverable stores that, executes a fence or marks the owner, and then looks
        // for what is pending.
        fence(SeqCst);
        let due = fresh & bank.deliverable(dist.groups());
        if due == 0 {
            return Notify::NOBODY;
        }
        if word == 0 {
            return self.changed(dist, host, vcpu, word, due);
        }
        self.pended(dist, host, word, due)
    }

    /// Has the owners of SPIs look that have become pending: this vCPU as it would if another pCPU had made them pending.
    #[inline(never)]
    fn pended<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        word: usize,
        bits: u32,
    ) -> Notify {
        let Notify(whom) = dist.mark_owners(self.number, word, bits);
        let me = mask(self.number) as u8;
        if whom & me == 0 {
            return Notify(whom);
        }
        Notify(whom & !me) | self.on_notify_slow(dist, host)
    }

    /// Makes interrupts pending of which some are backed by hardware.
    #[inline(never)]
    fn set_pending_on_board<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &mut H,
        vcpu: usize,
        word: usize,
        bits: u32,
    ) -> Notify {
        let hw = bits & dist.bank(vcpu, word).hw.load(Relaxed);
        let mut notify = Notify::NOBODY;
        if word == 0 && vcpu == self.number {
            self.make_pending(dist, host, hw);
        } else if word != 0 {
            // The mark stops the owners' fast paths, which would take the interrupt by a ready
            // entry without seeing that software made it pending.
            notify |= dist.mark_owners(vcpu, word, hw);
            dist.by_software(vcpu, word).fetch_or(hw, SeqCst);
            for intid in each(word, hw) {
                host.set_pending(dist.physical(intid), true);
            }
        } else {
            dist.vcpu_words(vcpu).set_pending.fetch_or(hw, SeqCst);
            notify |= dist.mark(vcpu, 1 | REQUESTS);
        }
        notify | self.set_latch(dist, host, vcpu, word, bits & !hw)
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
