//! Register reads that depend on the list registers of other vCPUs. EL2 does not wait: it asks
//! those vCPUs, lets the guest repeat the access, and gives the result when all of them have
//! answered.

use super::{Answer, Cpu, Distributor, Host, Notify, VCPUS, each, lr, mask, place};

/// A register access that waits for answers.
#[derive(Clone, Debug)]
pub(super) struct Query {
    /// The key of the access; 0 for none.
    key: u32,
    /// The vCPUs that were asked and had to answer, and those of them that have not.
    asked: u32,
    left: u32,
    tickets: [u32; VCPUS],
}

impl Query {
    pub(super) const fn new() -> Self {
        Self {
            key: 0,
            asked: 0,
            left: 0,
            tickets: [0; VCPUS],
        }
    }
}

/// The state that a register shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Pending,
    Active,
}

impl Cpu {
    /// Asks each vCPU that may have an interrupt of the word, unless this access has asked before.
    /// Returns those that have answered, once none is left that may have one and has not; before
    /// that, as `Err`, the vCPUs to notify.
    fn answers(
        &mut self,
        dist: &Distributor,
        vcpu: usize,
        word: usize,
        key: u32,
    ) -> Result<u32, Notify> {
        let mut notify = Notify::NOBODY;
        if self.query.key != key {
            self.query = Query::new();
            self.query.key = key;
            for v in (0..dist.vcpus()).filter(|v| *v != self.number) {
                let its = if word == 0 {
                    v == vcpu
                } else {
                    dist.vcpu_words(v).concerns(word) != 0
                };
                if its && dist.is_online(v) {
                    let (ticket, more) = dist.ask(v);
                    notify |= more;
                    self.query.tickets[v % VCPUS] = ticket;
                    self.query.asked |= mask(v);
                }
            }
            self.query.left = self.query.asked;
        }
        for v in each(0, self.query.left).map(|v| v as usize % VCPUS) {
            let shared = dist.vcpu_words(v);
            let answered = shared.has_answered(self.query.tickets[v]);
            if !answered && dist.is_online(v) && (word == 0 || shared.concerns(word) != 0) {
                continue;
            }
            self.query.left &= !mask(v);
            if !answered {
                // It has nothing of the word any more, whatever its last answer says.
                self.query.asked &= !mask(v);
            }
        }
        if self.query.left != 0 {
            return Err(notify);
        }
        self.query.key = 0;
        Ok(self.query.asked)
    }

    /// Reads the pending or active bits of a word, as `vcpu` sees it. `key` identifies the access.
    pub(super) fn read_state<H: Host>(
        &mut self,
        dist: &Distributor,
        host: &H,
        vcpu: usize,
        word: usize,
        state: State,
        key: u32,
    ) -> (Answer, Notify) {
        let asked = match self.answers(dist, vcpu, word, key) {
            Ok(asked) => asked,
            Err(notify) => return (Answer::Again, notify),
        };
        let own = word != 0 || vcpu == self.number;
        let bank = dist.bank(vcpu, word);
        let pending = state == State::Pending;
        let seqcst = core::sync::atomic::Ordering::SeqCst;
        let mut bits = if pending {
            let latch = bank.latch.load(seqcst);
            // On a GICv2 a sender sets its bit in `sources` before the latch. If the target takes
            // the SGI in between, the latch is set without a sender: nothing is pending then.
            let stale = if word == 0 && dist.is_v2() {
                let sources = &dist.vcpu_words(vcpu).sources;
                each(0, latch & 0xffff)
                    .filter(|n| sources[*n as usize & 15].load(seqcst) == 0)
                    .fold(0, |all, n| all | mask(n as usize))
            } else {
                0
            };
            latch & !stale | bank.up()
        } else {
            bank.active.load(seqcst)
        };
        for v in (0..dist.vcpus()).filter(|v| *v != self.number && (word != 0 || *v == vcpu)) {
            let shared = dist.vcpu_words(v);
            let (its_pending, its_active) = if asked & mask(v) != 0 {
                (shared.lr_pending.get(word), shared.lr_active.get(word))
            } else {
                (0, 0)
            };
            bits |= if pending { its_pending } else { its_active };
            if pending && word != 0 {
                // Put into a list register after the answer: at the time of the answer it was
                // pending.
                bits |= shared.holds.get(word) & !its_pending & !its_active;
            }
        }
        if own {
            let wanted = if pending { lr::PENDING } else { lr::ACTIVE };
            for n in each(0, !host.empty() & Self::all_lrs(host)) {
                let entry = host.lr(n);
                let (its_word, bit) = place(lr::vintid(entry));
                if its_word == word && entry & wanted != 0 {
                    bits |= bit;
                }
            }
        }
        if own && pending {
            let hw = bank.hw.load(seqcst);
            for intid in each(word, hw & !bits) {
                if host.is_pending(dist.physical(intid)) {
                    bits |= place(intid).1;
                }
            }
        }
        (Answer::Value(u64::from(bits)), Notify::NOBODY)
    }
}
