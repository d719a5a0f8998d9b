//! The rules for consoles, which EL2 serves itself.

use std::collections::BTreeSet;
use std::vec::Vec;

use bulkhead_abi::plan::*;

use super::sample::Sample;
use super::service_tests::fair;
use super::virtio_tests::{add_registers, judge};
use super::{Invariant, Plan};
use crate::virtio::pages::reached;
use crate::virtio::transport::feature::{EVENT_IDX, VERSION_1};

/// The sample in which EL2 serves a console of the second VM, and of the first.
fn with_consoles() -> Sample {
    let mut sample = Sample::good_io();
    sample.backends.push(Backend {
        vm: NONE,
        vintid: 0,
        reserved: 0,
        page: 0,
        bell: 0,
    });
    let console = VirtioDevice {
        vm: 0,
        backend: 1,
        id: VIRTIO_CONSOLE,
        vintid: 45,
        unit: 0,
        index: 0,
        config_bytes: 0,
        config: [0; PLAN_CONFIG],
        ipa: 0xa00_2000,
        window: 0,
        window_size: 0,
        features: VERSION_1 | EVENT_IDX,
        ..sample.virtio[0]
    };
    let second = VirtioDevice {
        vm: 1,
        unit: 1,
        index: 1,
        ..console
    };
    for device in [console, second] {
        let row = sample.virtio.len() as u16;
        sample.virtio.push(device);
        add_registers(&mut sample, device.vm, device.ipa);
        let queue = Virtqueue {
            device: row,
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
        sample.queues.extend([queue; 2]);
    }
    sample
}

#[test]
fn el2_serves_consoles_and_nothing_else() {
    assert_eq!(judge(&with_consoles()), Ok(()));
    let refused = |change: &dyn Fn(&mut Sample)| {
        let mut sample = with_consoles();
        change(&mut sample);
        judge(&sample).expect_err("refused")
    };
    let not = Invariant::VirtioConsole;
    for id in [1, 2, 4] {
        assert_eq!(refused(&|s| s.virtio[2].id = id), not, "{id}");
    }
    assert_eq!(refused(&|s| s.virtio[2].window = PAGE), not);
    assert_eq!(refused(&|s| s.virtio[2].window_size = PAGE), not);
    assert_eq!(refused(&|s| s.virtio[2].config_bytes = 1), not);
    assert_eq!(refused(&|s| s.virtio[2].flags = VIRTIO_RESETS), not);
    // SIZE, MULTIPORT.
    assert_eq!(refused(&|s| s.virtio[2].features |= 1), not);
    let port = refused(&|s| s.virtio[2].features |= 2);
    assert_eq!(port, Invariant::ManagerPort);
    let a_queue_less = refused(&|s| {
        s.queues.pop();
    });
    assert_eq!(a_queue_less, not);
    let a_queue_more = refused(&|s| s.queues.push(s.queues[s.queues.len() - 1]));
    assert_eq!(a_queue_more, not);
    let two = refused(&|s| {
        s.virtio[3].vm = 0;
        s.virtio[3].vintid = 46;
        s.virtio[3].ipa = 0xa00_3000;
        s.regions.retain(|row| (row.vm, row.ipa) != (1, 0xa00_2000));
        add_registers(s, 0, 0xa00_3000);
    });
    assert_eq!(two, not, "two of one VM");
}

#[test]
fn a_queue_of_el2_has_a_size_and_nothing_else() {
    let refused = |change: &dyn Fn(&mut Virtqueue)| {
        let mut sample = with_consoles();
        change(sample.queues.last_mut().expect("a queue"));
        judge(&sample)
    };
    let not = Err(Invariant::VirtqueueSize);
    assert_eq!(refused(&|queue| queue.size = 256), Ok(()));
    assert_eq!(refused(&|queue| queue.size = 48), not);
    assert_eq!(refused(&|queue| queue.slots = 16), not);
    assert_eq!(refused(&|queue| queue.slot_bytes = 16), not);
    assert_eq!(refused(&|queue| queue.readable = 1), not);
    assert_eq!(refused(&|queue| queue.writable = 1), not);
    assert_eq!(refused(&|queue| queue.ring = 16), not);
    assert_eq!(refused(&|queue| queue.slots_at = 16), not);
    let flags = refused(&|queue| queue.flags = QUEUE_EXACT);
    assert_eq!(flags, not);
}

#[test]
fn el2_as_a_backend_is_told_by_nothing() {
    let refused = |change: &dyn Fn(&mut Backend)| {
        let mut sample = with_consoles();
        change(&mut sample.backends[1]);
        judge(&sample)
    };
    let not = Err(Invariant::Backend);
    assert_eq!(refused(&|row| row.vintid = 50), not);
    assert_eq!(refused(&|row| row.page = 0x403f_f000), not);
    assert_eq!(refused(&|row| row.bell = PAGE), not);
    // Last, and once.
    let order = Err(Invariant::TableOrder);
    let mut sample = with_consoles();
    sample.backends.swap(0, 1);
    assert_eq!(judge(&sample), order);
    let mut sample = with_consoles();
    sample.backends.push(sample.backends[1]);
    assert_eq!(judge(&sample), order);
}

#[test]
fn a_service_thread_reaches_the_vms_of_its_devices_and_no_others() {
    let mut sample = with_consoles();
    sample.vcpus[2] = fair(sample.vcpus[2]);
    let second = ServiceThread {
        pcpu: 1,
        policy: CpuPolicy::Fair as u16,
        weight: 1,
        ..sample.threads[0]
    };
    sample.threads.push(second);
    // By thread 1: the VMs whose memory it reaches.
    let reached_by = |sample: &Sample| {
        assert_eq!(judge(sample), Ok(()));
        let bytes = sample.bytes();
        let plan = Plan::open(&bytes).expect("sound");
        [0, 1].map(|service| {
            let vms = reached(&plan, service).map(|reached| reached.region.vm);
            vms.collect::<BTreeSet<u16>>()
        })
    };
    assert_eq!(reached_by(&sample), [[0, 1].into(), [].into()]);
    // Nobody serves the console of VM 0 but EL2.
    let consoles: Vec<usize> = (0..sample.virtio.len())
        .filter(|row| sample.virtio[*row].id == VIRTIO_CONSOLE)
        .collect();
    let of = |sample: &Sample, vm| {
        let mut rows = consoles.iter().copied();
        rows.find(|row| sample.virtio[*row].vm == vm).expect("one")
    };
    let (first, last) = (of(&sample, 0), of(&sample, 1));
    sample.virtio[first].service = 1;
    assert_eq!(reached_by(&sample), [[0, 1].into(), [0].into()]);
    sample.virtio[last].service = 1;
    assert_eq!(reached_by(&sample), [[0, 1].into(), [0, 1].into()]);
    // The disk of VM 0 alone: its windows are memory of VM 1.
    for row in [first, last] {
        sample.virtio[row].service = 0;
    }
    sample.virtio[0].service = 1;
    assert_eq!(reached_by(&sample), [[0, 1].into(), [0, 1].into()]);
    sample.virtio[0].service = 2;
    assert_eq!(judge(&sample), Err(Invariant::VirtioService));
}
