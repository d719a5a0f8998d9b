//! The rules for rights and control ports.

use bulkhead_abi::control::right;
use bulkhead_abi::plan::*;

use super::corrupt::MANAGED_CASES;
use super::sample::Sample;
use super::virtio_tests::{add_registers, judge};
use super::{Invariant, Plan};
use crate::virtio::ports::{CONFIG, MULTIPORT, WITH_CONTROL};
use crate::virtio::transport::feature::{EVENT_IDX, VERSION_1};

/// The sample in which the first VM manages itself and the second.
pub fn managed() -> Sample {
    let mut sample = Sample::good_io();
    sample
        .regions
        .retain(|row| row.kind != RegionKind::VirtioRegisters as u16);
    let mut config = [0; PLAN_CONFIG];
    config[..CONFIG.len()].copy_from_slice(&CONFIG);
    sample.virtio = [VirtioDevice {
        backend: 0,
        id: VIRTIO_CONSOLE,
        config_bytes: CONFIG.len() as u16,
        config,
        window: 0,
        window_size: 0,
        features: VERSION_1 | EVENT_IDX | MULTIPORT,
        ..sample.virtio[0]
    }]
    .into();
    let ipa = sample.virtio[0].ipa;
    add_registers(&mut sample, 0, ipa);
    sample.backends = [Backend {
        vm: NONE,
        vintid: 0,
        service: 0,
        reserved: 0,
        page: 0,
        bell: 0,
    }]
    .into();
    let queue = Virtqueue {
        device: 0,
        size: 16,
        slots: 0,
        flags: 0,
        slot_bytes: 0,
        readable: 0,
        writable: 0,
        ring: 0,
        slots_at: 0,
        reserved: 0,
    };
    sample.queues = [queue; WITH_CONTROL].into();
    let over = |vm| Right {
        manager: 0,
        vm,
        rights: right::LIST | right::STOP,
    };
    sample.rights = [over(0), over(1)].into();
    sample
}

#[test]
fn every_case_breaks_its_invariant() {
    let good = managed().bytes();
    assert_eq!(judge(&managed()), Ok(()));
    for case in MANAGED_CASES {
        let mut plan = good.clone();
        assert!(case.apply(&mut plan), "no row for {case:?}");
        let found = Plan::open(&plan).and_then(|plan| plan.check());
        let found = found.map_err(|violation| violation.invariant);
        assert_eq!(found, Err(case.breaks), "{case:?}");
    }
}

#[test]
fn rights_are_found_by_who_has_them_over_whom() {
    let mut sample = managed();
    sample.rights[1].rights |= right::START;
    let bytes = sample.bytes();
    let plan = Plan::open(&bytes).expect("sound");
    let granted = right::LIST | right::STOP;
    assert_eq!(plan.right(0, 0), granted);
    assert_eq!(plan.right(0, 1), granted | right::START);
    assert_eq!((plan.right(1, 0), plan.right(0, 2)), (0, 0));
    assert_eq!((plan.is_manager(0), plan.is_manager(1)), (true, false));
}

#[test]
fn a_locked_vm_can_be_seen_and_nothing_else() {
    let with = |rights| {
        let mut sample = managed();
        sample.vms[1].flags |= VM_LOCKED;
        sample.rights[1].rights = rights;
        judge(&sample)
    };
    assert_eq!(with(right::LIST), Ok(()));
    assert_eq!(with(right::LIST | right::STATS), Ok(()));
    for (bit, word) in right::ALL {
        let allowed = bit & right::OF_LOCKED != 0;
        assert_eq!(with(right::LIST | bit).is_ok(), allowed, "{word}");
    }
}

#[test]
fn a_control_port_and_rights_go_together() {
    let no_port = Err(Invariant::ManagerPort);
    let mut sample = managed();
    sample.rights.clear();
    assert_eq!(judge(&sample), no_port, "a port of a VM without rights");
    let mut sample = managed();
    sample.virtio[0].id = 2;
    assert_eq!(judge(&sample), Err(Invariant::VirtioConsole));
    let mut sample = managed();
    sample.virtio[0].flags = VIRTIO_NO_CONSOLE;
    assert_eq!(judge(&sample), Ok(()), "one without port 0");
    for queues in [2, 5, 7] {
        let mut sample = managed();
        sample.queues.resize(queues, sample.queues[0]);
        assert_eq!(judge(&sample), Err(Invariant::VirtioConsole), "{queues}");
    }
}

#[test]
fn another_profile_knows_no_rights() {
    const IO: u32 = Profile::Io as u32;
    let bytes = managed().bytes();
    let opened = Plan::open_for::<IO>(&bytes).map_err(|violation| violation.invariant);
    assert!(matches!(opened, Err(Invariant::PlanSize)));
    // Nor a control port.
    let mut sample = managed();
    sample.rights.clear();
    let bytes = sample.bytes();
    let found = Plan::open_for::<IO>(&bytes).and_then(|plan| plan.check_for::<IO>());
    let found = found.map_err(|violation| violation.invariant);
    assert_eq!(found, Err(Invariant::VirtioConsole));
}
