//! The rules for rights and control ports.

use bulkhead_abi::control::right;
use bulkhead_abi::plan::*;

use super::corrupt::MANAGED_CASES;
use super::sample::{Sample, region};
use super::virtio_tests::{add_registers, judge};
use super::{Invariant, Plan};
use crate::virtio::ports::{CONFIG, MULTIPORT, WITH_CONTROL};
use crate::virtio::transport::feature::{EVENT_IDX, VERSION_1};

/// The IPA of the page with the word by which the first VM is asked to stop.
const WORD: u64 = 0x90b_0000;

/// The sample in which the first VM manages itself and the second, and is asked to stop by a word, the second by a key.
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
    let stop = |vm, vintid, word| Stop {
        vm,
        vintid,
        timeout: 1500,
        word,
    };
    sample.stops = [stop(0, 0, WORD), stop(1, 60, 0)].into();
    let page = region(0, RegionKind::StopWord, ACCESS_READ, NONE, (WORD, 0, PAGE));
    sample.regions.push(page);
    sample.regions.sort_by_key(|row| (row.vm, row.ipa));
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
fn a_vm_is_asked_to_stop_in_one_way_and_has_time_for_it() {
    let with = |change: &dyn Fn(&mut Sample)| {
        let mut sample = managed();
        change(&mut sample);
        judge(&sample)
    };
    let stop = Err(Invariant::Stop);
    for (timeout, sound) in [
        (9, false),
        (10, true),
        (3_600_000, true),
        (3_600_001, false),
    ] {
        let told = with(&|it| it.stops[1].timeout = timeout);
        assert_eq!(told, if sound { Ok(()) } else { stop }, "{timeout}");
    }
    assert_eq!(with(&|it| it.stops[1].word = WORD), stop, "both ways");
    assert_eq!(with(&|it| it.stops[1].vintid = 0), stop, "no way");
    assert_eq!(with(&|it| it.stops[0].word = WORD + PAGE), stop);
    assert_eq!(
        with(&|it| it.stops.retain(|stop| stop.vm == 1)),
        stop,
        "a page for no word"
    );
    let word = RegionKind::StopWord as u16;
    assert_eq!(
        with(&|it| it.regions.retain(|row| row.kind != word)),
        stop,
        "a word in no page"
    );
    let page = |it: &mut Sample| {
        it.regions
            .iter()
            .position(|row| row.kind == word)
            .expect("a page")
    };
    for access in [
        ACCESS_READ | ACCESS_WRITE,
        ACCESS_READ | ACCESS_EXECUTE,
        ACCESS_READ | ACCESS_UNCACHED,
        0,
    ] {
        let told = with(&|it| {
            let page = page(it);
            it.regions[page].access = access;
        });
        assert_eq!(told, Err(Invariant::RegionAccess), "{access}");
    }
    let placed = with(&|it| {
        let page = page(it);
        it.regions[page].pa = it.board.uart;
    });
    assert_eq!(placed, stop);
    // A GPPT VM gets no interrupt of EL2's, and reads a word.
    let gppt = |it: &mut Sample| {
        it.doorbells.clear();
        it.vms[1].interrupts = InterruptMode::GpptRecoverable as u16;
        it.vms[1].flags |= VM_OWN_PTIMER;
        for irq in it.irqs.iter_mut().filter(|irq| irq.vm == 1) {
            irq.vintid = irq.pintid;
        }
    };
    assert_eq!(with(&gppt), stop);
    let by_word = with(&|it| {
        gppt(it);
        (it.stops[1].vintid, it.stops[1].word) = (0, WORD);
        let page = (WORD, 0, PAGE);
        it.regions
            .push(region(1, RegionKind::StopWord, ACCESS_READ, NONE, page));
        it.regions.sort_by_key(|row| (row.vm, row.ipa));
    });
    assert_eq!(by_word, Ok(()));
    for twice in [0, 1] {
        let told = with(&|it| it.stops.insert(twice, it.stops[twice]));
        assert_eq!(told, Err(Invariant::TableOrder), "{twice}");
    }
    assert_eq!(with(&|it| it.stops.swap(0, 1)), Err(Invariant::TableOrder));
    assert_eq!(with(&|it| it.stops[1].vm = 2), Err(Invariant::TableOrder));
    assert_eq!(
        with(&|it| it.stops[1].vintid = 64),
        Err(Invariant::IrqVintid)
    );
    assert_eq!(
        with(&|it| it.stops[1].vintid = 31),
        Err(Invariant::IrqVintid)
    );
    let sources = [
        managed()
            .doorbells
            .iter()
            .find(|bell| bell.to == 1)
            .map(|bell| bell.vintid),
        managed()
            .irqs
            .iter()
            .find(|irq| irq.vm == 1)
            .map(|irq| irq.vintid),
        managed()
            .devices
            .iter()
            .find(|device| device.vm == 1)
            .map(|device| device.vintid),
    ];
    for vintid in sources.into_iter().flatten() {
        let told = with(&|it| it.stops[1].vintid = vintid);
        assert_eq!(told, Err(Invariant::VintidShared), "{vintid}");
    }
    assert!(sources.iter().any(Option::is_some));
    let bytes = managed().bytes();
    let plan = Plan::open(&bytes).expect("sound");
    assert_eq!(plan.stop_of(0).map(|stop| stop.word), Some(WORD));
    assert_eq!(plan.stop_of(1).map(|stop| stop.vintid), Some(60));
    assert_eq!(plan.stop_of(2), None);
}

#[test]
fn another_profile_knows_no_rights() {
    const IO: u32 = Profile::Io as u32;
    let bytes = managed().bytes();
    let opened = Plan::open_for::<IO>(&bytes).map_err(|violation| violation.invariant);
    assert!(matches!(opened, Err(Invariant::PlanSize)));
    // Nor how VMs are asked to stop, nor the page of a word.
    let mut sample = managed();
    sample.rights.clear();
    let opened = |sample: &Sample| {
        let bytes = sample.bytes();
        let found =
            Plan::open_for::<IO>(&bytes).and_then(|plan| plan.check_for::<IO>().map(|_| ()));
        found.map_err(|violation| violation.invariant)
    };
    assert_eq!(opened(&sample), Err(Invariant::PlanSize));
    sample.stops.clear();
    assert_eq!(opened(&sample), Err(Invariant::RegionKind));
    // Nor a control port.
    let word = RegionKind::StopWord as u16;
    sample.regions.retain(|row| row.kind != word);
    let bytes = sample.bytes();
    let found = Plan::open_for::<IO>(&bytes).and_then(|plan| plan.check_for::<IO>().map(|_| ()));
    let found = found.map_err(|violation| violation.invariant);
    assert_eq!(found, Err(Invariant::VirtioConsole));
}
