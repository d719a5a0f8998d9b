//! Mailboxes for messages between the threads of pCPUs: a word of message bits for each vCPU, by
//! its row in the plan, and for each pCPU itself.
//!
//! A sender that sets a bit which was clear sends an SGI; if the bit was set, the SGI sent for it
//! has not been handled yet. The receiver takes all bits at once, and then reads the state that the
//! messages are about.

use core::sync::atomic::{AtomicU32, Ordering};

use bulkhead_abi::plan::{MAX_PCPUS, MAX_VCPUS};

use super::vcpu_location::VcpuLocation;

/// Means of making a pCPU look at its mailboxes: an SGI, on the hardware.
pub trait Kick {
    /// Makes a pCPU look, after everything that was written before.
    fn kick(&self, pcpu: usize);
}

/// The mailboxes of all vCPUs, then those of the pCPUs.
#[derive(Debug)]
pub struct Mailboxes([AtomicU32; MAX_VCPUS + MAX_PCPUS]);

impl Default for Mailboxes {
    fn default() -> Self {
        Self::new()
    }
}

impl Mailboxes {
    /// Empty mailboxes.
    pub const fn new() -> Self {
        Self([const { AtomicU32::new(0) }; MAX_VCPUS + MAX_PCPUS])
    }

    /// The index of the mailbox of a pCPU itself, which is read by whichever of its threads runs.
    pub const fn of_pcpu(index: usize) -> usize {
        MAX_VCPUS.wrapping_add(index)
    }

    /// Leaves a message, and makes the receiver's pCPU look at it.
    #[inline(always)]
    pub fn post(&self, to: usize, message: u32, locations: &VcpuLocation, by: &impl Kick) {
        if self.send(to, message) {
            // The message is there before the location is read: whoever takes the vCPU in meanwhile
            // sees the one, or this sees the other.
            let pcpu = if to < MAX_VCPUS {
                locations.of(to)
            } else {
                to.wrapping_sub(MAX_VCPUS)
            };
            by.kick(pcpu);
        }
    }

    /// Leaves a message for a receiver that gets no other, so that nobody else's bits are in the word and a store does. The caller makes the
    /// receiver's pCPU look at it.
    #[inline(always)]
    pub fn put_only(&self, to: usize, message: u32) {
        if let Some(mailbox) = self.0.get(to) {
            mailbox.store(message, Ordering::Release);
        }
    }

    /// Leaves a message. Returns `true` if the receiver's pCPU has to be notified.
    #[inline(always)]
    fn send(&self, to: usize, message: u32) -> bool {
        self.0
            .get(to)
            .is_some_and(|mailbox| mailbox.fetch_or(message, Ordering::AcqRel) & message == 0)
    }

    /// Whether the mailbox has a message.
    #[inline(always)]
    pub fn has_mail(&self, id: usize) -> bool {
        self.0
            .get(id)
            .is_some_and(|mailbox| mailbox.load(Ordering::Acquire) != 0)
    }

    /// Takes all messages of a mailbox.
    #[inline(always)]
    pub fn take(&self, id: usize) -> u32 {
        self.0
            .get(id)
            .filter(|mailbox| mailbox.load(Ordering::Acquire) != 0)
            .map_or(0, |mailbox| mailbox.swap(0, Ordering::AcqRel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_of_a_message_has_to_be_told() {
        let mailboxes = Mailboxes::new();
        let pcpu = Mailboxes::of_pcpu(1);
        assert!(mailboxes.send(pcpu, 1));
        assert!(!mailboxes.send(pcpu, 1));
        assert!(mailboxes.send(pcpu, 4));
        assert!(mailboxes.has_mail(pcpu));
        assert!(!mailboxes.has_mail(1), "that of vCPU 1 is another one");
        assert_eq!(mailboxes.take(pcpu), 5);
        assert_eq!(mailboxes.take(pcpu), 0);
        assert!(mailboxes.send(pcpu, 1));
    }

    #[test]
    fn the_only_message_is_there_however_often_it_is_put() {
        let mailboxes = Mailboxes::new();
        mailboxes.put_only(3, 4);
        mailboxes.put_only(3, 4);
        assert!(mailboxes.has_mail(3));
        assert_eq!(mailboxes.take(3), 4);
        assert_eq!(mailboxes.take(3), 0);
        let none = Mailboxes::of_pcpu(MAX_PCPUS);
        mailboxes.put_only(none, 4);
        assert!(!mailboxes.has_mail(none));
    }

    #[test]
    fn nobody_is_beyond_the_last_pcpu() {
        let mailboxes = Mailboxes::new();
        let none = Mailboxes::of_pcpu(MAX_PCPUS);
        assert!(!mailboxes.send(none, 1));
        assert!(!mailboxes.has_mail(none));
        assert_eq!(mailboxes.take(none), 0);
    }
}
