//! Whose turn it is in the service thread: deficit round robin between VMs (Shreedhar and Varghese, 1995), and round robin between the
//! devices of one VM. A VM that floods its queues waits for itself. Nothing here depends on the number of VMs or devices.

use super::queue::{Budget, DESCRIPTOR};

/// Most devices of a service thread.
pub const MAX_DEVICES: usize = 64;
/// What a slice may do, so that it is no longer than the longest exit, with the 600 instructions that it takes besides: descriptors
/// or bytes, whatever there is.
pub const SLICE: Budget = Budget::of(12, 2 * 4096);
/// What a VM may use in a turn: a few slices. Not less than one, so that a VM which has used more than was left has something in its
/// next turn.
const QUANTUM: i32 = 4 * SLICE.left() as i32;
/// The devices of a service thread.
#[derive(Debug)]
pub struct Round {
    /// For each device its VM, a number below 64, and for each VM its devices.
    owner: [u8; MAX_DEVICES],
    devices: [u64; 64],
    /// Devices that have something to do, and VMs that have such devices.
    ready: u64,
    vms: u64,
    /// What each VM has left of its turn, or has used of the next one.
    left: [i32; 64],
    /// The VM that has the turn, and for each VM the device that comes first.
    vm: u32,
    first: [u8; 64],
}

impl Default for Round {
    fn default() -> Self {
        Self::new()
    }
}

/// The first bit of `set` from `from` on, around the end.
const fn next(set: u64, from: u32) -> Option<u32> {
    if set == 0 {
        return None;
    }
    let turned = set.rotate_right(from);
    Some(turned.trailing_zeros().wrapping_add(from) % 64)
}

const fn bit(number: u32) -> u64 {
    1u64.wrapping_shl(number)
}

impl Round {
    /// No device.
    pub const fn new() -> Self {
        Self {
            owner: [0; MAX_DEVICES],
            devices: [0; 64],
            ready: 0,
            vms: 0,
            left: [0; 64],
            vm: 0,
            first: [0; 64],
        }
    }

    /// Adds a device of a VM.
    pub fn add(&mut self, device: usize, vm: u8) {
        if let (Some(owner), Some(devices)) = (
            self.owner.get_mut(device),
            self.devices.get_mut(usize::from(vm)),
        ) {
            *owner = vm;
            *devices |= bit(device as u32);
        }
    }

    /// A device has something to do.
    pub fn wake(&mut self, device: usize) {
        let Some(vm) = self.owner.get(device) else {
            return;
        };
        self.ready |= bit(device as u32);
        self.vms |= bit(u32::from(*vm));
    }

    /// Whether no device has anything to do.
    pub const fn is_idle(&self) -> bool {
        self.ready == 0
    }

    /// The device that is served next. [`Self::did`] follows.
    pub fn pick(&mut self) -> Option<usize> {
        let has_turn = self.vms & bit(self.vm) != 0;
        let left = self.left.get(self.vm as usize).copied().unwrap_or(0);
        if !has_turn || left <= 0 {
            self.vm = next(self.vms, self.vm.wrapping_add(1) % 64)?;
            let left = self.left.get_mut(self.vm as usize)?;
            *left = left.saturating_add(QUANTUM);
        }
        let own = self.devices.get(self.vm as usize)? & self.ready;
        let first = self.first.get_mut(self.vm as usize)?;
        let device = next(own, u32::from(*first))?;
        *first = (device.wrapping_add(1) % 64) as u8;
        Some(device as usize)
    }

    /// A device has had a slice, and this is left of its budget. `more`: it has more to do.
    pub fn did(&mut self, device: usize, rest: Budget, more: bool) {
        let Some(vm) = self.owner.get(device).copied() else {
            return;
        };
        let (Some(left), Some(own)) = (
            self.left.get_mut(usize::from(vm)),
            self.devices.get(usize::from(vm)),
        ) else {
            return;
        };
        // At least something, so that a device which says "more" and does nothing loses its turn as well.
        let done = SLICE.left().saturating_sub(rest.left()).max(DESCRIPTOR);
        *left = left.saturating_sub(done as i32);
        if !more {
            self.ready &= !bit(device as u32);
        }
        if own & self.ready == 0 {
            self.vms &= !bit(u32::from(vm));
            // What a VM does not use is not kept; what it has used too much is.
            *left = (*left).min(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec::Vec;

    use super::*;

    /// What a whole slice takes.
    const ALL: i32 = SLICE.left() as i32;

    /// What is left of a slice that has taken so much.
    fn done(instructions: i32) -> Budget {
        let mut rest = SLICE;
        rest.spend(instructions as u32);
        rest
    }

    #[test]
    fn devices_of_a_vm_take_turns() {
        let mut round = Round::new();
        for device in [3, 5, 63] {
            round.add(device, 7);
            round.wake(device);
        }
        let picked: Vec<usize> = (0..6)
            .map(|_| {
                let device = round.pick().unwrap();
                round.did(device, done(1), true);
                device
            })
            .collect();
        assert_eq!(picked, [3, 5, 63, 3, 5, 63]);
        for device in [3, 5, 63] {
            round.did(device, done(1), false);
        }
        assert!(round.is_idle());
        assert_eq!(round.pick(), None);
    }

    #[test]
    fn a_device_that_only_says_more_loses_its_turn() {
        let mut round = Round::new();
        for device in 0..2 {
            round.add(device, device as u8);
            round.wake(device);
        }
        let mut other = 0;
        for _ in 0..1000 {
            let device = round.pick().unwrap();
            round.did(device, done(0), true);
            other += usize::from(device == 1);
        }
        assert!((400..600).contains(&other), "{other}");
    }

    /// Two VMs with one device each, both awake.
    fn two() -> Round {
        let mut round = Round::new();
        for device in 0..2 {
            round.add(device, device as u8);
            round.wake(device);
        }
        round
    }

    /// A VM whose last slice in a turn is more than it has left, and which then has nothing to do for a moment.
    #[test]
    fn what_was_used_too_much_is_not_forgiven() {
        let mut round = two();
        let mut had = [0i64; 2];
        for _ in 0..10_000 {
            let device = round.pick().unwrap();
            let used = if device == 0 { ALL - 1 } else { ALL };
            had[device] += i64::from(used);
            let more = device == 1 || round.left[0] > used;
            round.did(device, done(used), more);
            round.wake(device);
        }
        let apart = (had[0] - had[1]).abs();
        assert!(apart <= i64::from(2 * QUANTUM), "{had:?}");
    }

    /// A VM that has used little for long has no more than its turn when it wants all.
    #[test]
    fn what_was_not_used_is_not_kept() {
        let mut round = two();
        for _ in 0..1000 {
            let device = round.pick().unwrap();
            let used = if device == 0 { 1 } else { ALL };
            round.did(device, done(used), device == 1);
            // It has nothing to do until the other one has had a slice.
            if device == 1 {
                round.wake(0);
            }
        }
        round.wake(0);
        while round.pick() == Some(1) {
            round.did(1, Budget::SPENT, true);
        }
        // It has been picked.
        round.did(0, Budget::SPENT, true);
        let mut waited = ALL;
        while round.pick() == Some(0) {
            round.did(0, Budget::SPENT, true);
            waited += ALL;
        }
        assert!(waited <= QUANTUM + ALL, "{waited}");
    }

    proptest! {
        /// VMs that always have something to do get the same, whatever their devices are and a slice does: never more apart than
        /// a turn and a slice. One that has something now and then waits for one turn of each other at most.
        #[test]
        fn vms_that_are_always_busy_get_the_same(
            owners in proptest::collection::vec(0u8..6, 2..20),
            slices in proptest::collection::vec(DESCRIPTOR as i32..=ALL, 200..600),
        ) {
            let mut round = Round::new();
            for (device, owner) in owners.iter().enumerate() {
                round.add(device, *owner);
                round.wake(device);
            }
            let mut had = [0i64; 6];
            for used in slices {
                let device = round.pick().unwrap();
                had[usize::from(owners[device])] += i64::from(used);
                round.did(device, done(used), true);
                let busy = (0..6u8).filter(|vm| owners.contains(vm));
                let each: Vec<i64> = busy.map(|vm| had[usize::from(vm)]).collect();
                let apart = each.iter().max().unwrap() - each.iter().min().unwrap();
                prop_assert!(apart <= i64::from(QUANTUM + 2 * ALL), "{apart}");
            }
        }

        /// A VM with one small request waits for no more than a turn of each other.
        #[test]
        fn who_comes_waits_for_a_turn_of_each_other(
            others in 1u8..8,
            before in 0usize..200,
        ) {
            let mut round = Round::new();
            for device in 0..=usize::from(others) {
                round.add(device, device as u8);
            }
            (1..=usize::from(others)).for_each(|device| round.wake(device));
            for _ in 0..before {
                let device = round.pick().unwrap();
                round.did(device, Budget::SPENT, true);
            }
            round.wake(0);
            let mut waited = 0;
            loop {
                let device = round.pick().unwrap();
                if device == 0 {
                    break;
                }
                round.did(device, Budget::SPENT, true);
                waited += ALL;
            }
            prop_assert!(waited <= i32::from(others) * (QUANTUM + ALL), "{waited}");
        }
    }
}
