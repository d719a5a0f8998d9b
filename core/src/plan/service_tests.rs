//! The rules for service threads, and how much of everything a plan with virtio devices can have.

use bulkhead_abi::plan::*;

use super::sample::Sample;
use super::tests::{verdict, with};
use super::virtio_tests::{add_registers, found, judge};
use super::{Invariant, Plan, Violation, table_name, table_name_for};

/// A server with this budget in a period of 1 ms.
fn server(vcpu: Vcpu, budget: u64) -> Vcpu {
    with(vcpu, CpuPolicy::Server, 0, (budget, 1_000_000))
}

/// A fair vCPU without a cap.
pub(super) fn fair(vcpu: Vcpu) -> Vcpu {
    with(vcpu, CpuPolicy::Fair, 1, (MAX_PERIOD, MAX_PERIOD))
}

#[test]
fn tables_have_limits() {
    let count = |change: &dyn Fn(&mut Sample)| {
        let mut sample = Sample::good_io();
        change(&mut sample);
        verdict(&sample.bytes()).map_err(|violation| (violation.invariant, violation.table))
    };
    let refused = |table| Err((Invariant::TableCount, Some(table)));
    let threads = refused(TableId::ServiceThreads);
    assert_eq!(count(&|s| s.threads = [s.threads[0]; 9].into()), threads);
    // With the vCPUs they are not more than those may be.
    assert_eq!(count(&|s| s.vcpus = [s.vcpus[0]; 64].into()), threads);
    let one_less = count(&|s| s.vcpus = [s.vcpus[0]; 63].into());
    assert_ne!(one_less, threads);
    assert_eq!(
        count(&|s| s.backends = [s.backends[0]; 65].into()),
        refused(TableId::Backends)
    );
    assert_eq!(
        count(&|s| s.virtio = [s.virtio[0]; 65].into()),
        refused(TableId::VirtioDevices)
    );
    assert_eq!(
        count(&|s| s.queues = [s.queues[0]; 513].into()),
        refused(TableId::Virtqueues)
    );
}

#[test]
fn limits_can_be_reached() {
    let mut sample = Sample::good_io();
    for mpidr in 4..8 {
        let idle = sample.pcpus[0];
        sample.pcpus.push(Pcpu { mpidr, ..idle });
    }
    for vcpu in &mut sample.vcpus {
        *vcpu = fair(*vcpu);
    }
    let thread = sample.threads[0];
    sample.threads = (0..8)
        .map(|pcpu| ServiceThread { pcpu, ..thread })
        .collect();
    sample.vms[0].spis = MAX_SPIS;
    let (device, queue) = (sample.virtio[0], sample.queues[1]);
    sample.regions.drain(1..3);
    sample.virtio.clear();
    sample.queues.clear();
    for index in 0..64 {
        let ipa = 0xa00_0000 + u64::from(index) * PAGE;
        add_registers(&mut sample, 0, ipa);
        sample.virtio.push(VirtioDevice {
            index,
            unit: index,
            vintid: 31 + MAX_SPIS as u16 - index,
            ipa,
            window: 0x4010_0000 + u64::from(index) * 2 * PAGE,
            window_size: 2 * PAGE,
            config_bytes: PLAN_CONFIG as u16,
            config: [0xff; PLAN_CONFIG],
            ..device
        });
        for number in 0..8 {
            sample.queues.push(Virtqueue {
                device: index,
                size: 2,
                slots: 2,
                slot_bytes: 16,
                readable: 16,
                writable: 16,
                ring: 0x1000 + number * 0x100,
                slots_at: 0x1080 + number * 0x100,
                ..queue
            });
        }
    }
    assert_eq!(judge(&sample), Ok(()));
    sample.queues[63 * 8].device = 62;
    assert_eq!(judge(&sample), Err(Invariant::VirtioQueues), "nine");
}

#[test]
fn a_service_thread_keeps_away_from_hard_real_time() {
    let place = Err(Invariant::ServicePlacement);
    for pcpu in 0..9 {
        let expected = if pcpu == 3 { Ok(()) } else { place };
        assert_eq!(found(|s| s.threads[0].pcpu = pcpu), expected);
    }
    // A vCPU that shares its pCPU shares it with a service thread, too.
    let beside = |class: Class, pool: u32, pcpu: u16| {
        found(|s| {
            s.vms[1].class = class as u16;
            s.vcpus[2] = fair(s.vcpus[2]);
            s.vcpus[2].pool = pool;
            s.threads[0].pcpu = pcpu;
        })
    };
    assert_eq!(beside(Class::SoftRealtime, 0b1010, 1), Ok(()));
    assert_eq!(beside(Class::SoftRealtime, 0b1010, 3), Ok(()));
    assert_eq!(beside(Class::HardRealtime, 0b0010, 1), place);
    assert_eq!(beside(Class::HardRealtime, 0b1010, 3), place);
    assert_eq!(beside(Class::HardRealtime, 0b0010, 3), Ok(()));
}

#[test]
fn a_pcpu_has_one_service_thread() {
    let mut sample = Sample::good_io();
    sample.threads.push(sample.threads[0]);
    let violation = verdict(&sample.bytes()).expect_err("two");
    assert_eq!(
        violation,
        Violation {
            invariant: Invariant::ServicePlacement,
            table: Some(TableId::ServiceThreads),
            row: 1,
            other: Some(0),
        }
    );
    sample.vcpus[2] = server(sample.vcpus[2], 400_000);
    sample.threads[1].pcpu = 1;
    assert_eq!(judge(&sample), Ok(()));
}

#[test]
fn a_service_thread_is_scheduled_as_a_vcpu() {
    let mut sample = Sample::good_io();
    sample.vcpus[2] = server(sample.vcpus[2], 400_000);
    let verdict_with = |sample: &mut Sample, pcpu, budget| {
        sample.threads[0].pcpu = pcpu;
        sample.threads[0].budget = budget;
        verdict(&sample.bytes())
    };
    // As two servers of VMs.
    assert_eq!(verdict_with(&mut sample, 1, 591_600), Ok(()));
    let refused = Violation {
        invariant: Invariant::PcpuSchedulable,
        table: Some(TableId::Pcpus),
        row: 1,
        other: None,
    };
    assert_eq!(verdict_with(&mut sample, 1, 591_601), Err(refused));
    // Where nobody else is, it has the costs of the drain to bear.
    assert_eq!(verdict_with(&mut sample, 3, 591_601), Ok(()));
    let alone = verdict_with(&mut sample, 3, 990_000);
    assert!(alone.is_err_and(|found| found.row == 3));
    // A fair one has no promise.
    sample.threads[0].policy = CpuPolicy::Fair as u16;
    for weight in [1, MAX_WEIGHT] {
        sample.threads[0].weight = weight;
        assert_eq!(verdict_with(&mut sample, 1, 1_000_000), Ok(()));
    }
}

#[test]
fn a_service_thread_takes_a_slot_of_its_pcpu() {
    let mut sample = Sample::good_io();
    let vcpu = fair(sample.vcpus[2]);
    sample.vcpus.truncate(2);
    let own = (0..8).map(|mpidr| Vcpu { mpidr, ..vcpu });
    sample.vcpus.extend(own);
    sample.threads[0].pcpu = 1;
    let violation = verdict(&sample.bytes()).expect_err("nine");
    assert_eq!(
        (violation.invariant, violation.row),
        (Invariant::PcpuVcpus, 1)
    );
    sample.vcpus[9] = fair(Vcpu { pcpu: 3, ..vcpu });
    sample.vcpus[9].mpidr = 7;
    assert_eq!(judge(&sample), Ok(()));
}

#[test]
fn another_profile_has_no_virtio_devices() {
    let bytes = Sample::good_io().bytes();
    const SHARED: u32 = Profile::Shared as u32;
    let opened = Plan::open_for::<SHARED>(&bytes).map_err(|violation| violation.invariant);
    assert!(matches!(opened, Err(Invariant::PlanSize)));
    let bytes = Sample::good().bytes();
    let plan = Plan::open_for::<SHARED>(&bytes).expect("sound");
    assert_eq!(plan.check_for::<SHARED>().map(|_| ()), Ok(()));
    // Nor a page for the registers of one.
    let mut sample = Sample::good();
    add_registers(&mut sample, 0, 0xa00_0000);
    let bytes = sample.bytes();
    let found =
        Plan::open_for::<SHARED>(&bytes).and_then(|plan| plan.check_for::<SHARED>().map(|_| ()));
    let found = found.map_err(|violation| violation.invariant);
    assert_eq!(found, Err(Invariant::RegionKind));
}

/// EL2 of each profile has the names of what it can find broken.
fn names_are_known<const PROFILE: u32>(invariants: usize, tables: TableId) {
    for (number, invariant) in Invariant::ALL.iter().enumerate() {
        assert_eq!(*invariant as usize, number);
        let name = invariant.name().as_bytes();
        let known: &[u8] = if number < invariants { name } else { b"" };
        assert_eq!(invariant.name_for::<PROFILE>(), known);
    }
    for table in [
        TableId::Memory,
        TableId::Pcpus,
        TableId::Vms,
        TableId::Vcpus,
        TableId::Regions,
        TableId::Payloads,
        TableId::Seeds,
        TableId::Irqs,
        TableId::Devices,
        TableId::Quiets,
        TableId::Calls,
        TableId::Doorbells,
        TableId::ServiceThreads,
        TableId::Backends,
        TableId::VirtioDevices,
        TableId::Virtqueues,
        TableId::Rights,
    ] {
        let name = table_name(table).as_bytes();
        let known = table as usize <= tables as usize;
        let name: &[u8] = if known { name } else { b"" };
        assert_eq!(table_name_for::<PROFILE>(table), name);
    }
}

#[test]
fn el2_has_the_names_that_it_can_need() {
    let of_io = Invariant::ServicePlacement as usize;
    let of_rights = Invariant::Rights as usize;
    let all = Invariant::ALL.len();
    names_are_known::<{ Profile::Shared as u32 }>(of_io, TableId::Doorbells);
    names_are_known::<{ Profile::Io as u32 }>(of_rights, TableId::Virtqueues);
    names_are_known::<{ Profile::Managed as u32 }>(all, TableId::Rights);
}
