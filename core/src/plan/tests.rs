//! Each invariant is broken by a case that breaks no earlier one, and each field is part of some
//! invariant.

use std::collections::BTreeSet;
use std::vec::Vec;

use bulkhead_abi::plan::*;
use proptest::prelude::*;

use super::corrupt::{CASES, GICV2_CASES, IO_CASES, MANAGED_CASES};
use super::fields::fields;
use super::sample::Sample;
use super::{Found, Invariant, Plan, Violation, checksum, seal};

pub(super) fn verdict(bytes: &[u8]) -> Result<(), Violation> {
    Plan::open(bytes)?.check()
}

/// The boards of both samples, as their trees describe them.
fn board(sample: &Sample) -> Found<'static> {
    const MEMORY: [Memory; 2] = [
        Memory {
            base: 0x4000_0000,
            size: 0x4000_0000,
        },
        Memory {
            base: 0x8000_0000,
            size: 0x4000_0000,
        },
    ];
    let board = &sample.board;
    Found {
        memory: &MEMORY,
        reserved: &[],
        more_reserved: false,
        cpus: &[(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)],
        boot_cpu: 0,
        gicd: (board.gicd, board.gicd_size),
        gicr: (board.gicr, board.gicr_size),
        gicc: (board.gicc, board.gicc_size),
        gich: (board.gich, board.gich_size),
        gicv: (board.gicv, board.gicv_size),
        uart: (0x900_0000, 0x1000),
        uart_intid: 33,
        rtc: 0x901_0000,
        vtimer_intid: 27,
        ptimer_intid: 30,
        hyp_timer_intid: 26,
        maintenance_intid: 25,
        gic_version: board.gic_version,
        image: 0x4020_0000,
    }
}

#[test]
fn the_samples_are_good() {
    for sample in [Sample::good(), Sample::good_v2(), Sample::good_io()] {
        let bytes = sample.bytes();
        assert_eq!(verdict(&bytes), Ok(()));
        let plan = Plan::open(&bytes).expect("sound");
        assert_eq!(plan.fits(&board(&sample)), Ok(()));
    }
}

#[test]
fn every_case_breaks_its_invariant() {
    for (sample, cases) in [
        (Sample::good(), CASES),
        (Sample::good_v2(), GICV2_CASES),
        (Sample::good_io(), IO_CASES),
    ] {
        let good = sample.bytes();
        let board = board(&sample);
        for case in cases {
            let mut plan = good.clone();
            assert!(case.apply(&mut plan), "no row for {case:?}");
            let found = verdict(&plan)
                .and_then(|()| Plan::open(&plan)?.fits(&board))
                .map_err(|violation| violation.invariant);
            assert_eq!(found, Err(case.breaks), "{case:?}");
            let itself = verdict(&plan).is_err();
            assert_eq!(itself, case.breaks.is_of_plan(), "{case:?}");
        }
    }
}

#[test]
fn every_field_is_altered_by_a_case() {
    let cases = CASES.iter().chain(IO_CASES).chain(MANAGED_CASES);
    let altered: BTreeSet<_> = cases.map(|case| case.changes[0].0).collect();
    let missing: Vec<_> = fields()
        .map(|field| field.name)
        .filter(|name| !altered.contains(name))
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn every_invariant_has_a_case_or_a_test() {
    // These cannot be broken by altering fields in place; tests below break them.
    let elsewhere = [
        Invariant::PlanLength,
        Invariant::TableCount,
        Invariant::PcpuVcpus,
    ];
    for invariant in Invariant::OF_PLAN {
        let mut cases = CASES.iter().chain(IO_CASES).chain(MANAGED_CASES);
        let known = elsewhere.contains(invariant) || cases.any(|case| case.breaks == *invariant);
        assert!(known, "{}", invariant.name());
    }
}

#[test]
fn names_are_unique_and_in_kebab_case() {
    let names: BTreeSet<_> = Invariant::ALL
        .iter()
        .map(|invariant| invariant.name())
        .collect();
    assert_eq!(names.len(), Invariant::ALL.len());
    for name in names {
        assert!(
            name.bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'),
            "{name}"
        );
    }
}

#[test]
fn a_short_plan_is_refused_wherever_it_ends() {
    let good = Sample::good().bytes();
    for length in 0..good.len() {
        let invariant = Plan::open(&good[..length])
            .map_err(|violation| violation.invariant)
            .err();
        let header = length < size_of::<Header>();
        let expected = if header {
            Invariant::PlanLength
        } else {
            Invariant::PlanSize
        };
        assert_eq!(invariant, Some(expected), "{length} bytes");
    }
}

#[test]
fn bytes_behind_the_plan_do_not_matter() {
    let mut bytes = Sample::good().bytes();
    bytes.extend([0xaa; 64]);
    assert_eq!(verdict(&bytes), Ok(()));
}

#[test]
fn tables_have_limits() {
    let count = |change: &dyn Fn(&mut Sample)| {
        let mut sample = Sample::good();
        change(&mut sample);
        verdict(&sample.bytes()).map_err(|violation| (violation.invariant, violation.table))
    };
    let refused = |table| Err((Invariant::TableCount, Some(table)));
    assert_eq!(count(&|s| s.memory.clear()), refused(TableId::Memory));
    assert_eq!(count(&|s| s.pcpus.clear()), refused(TableId::Pcpus));
    assert_eq!(
        count(&|s| s.pcpus = [s.pcpus[0]; 9].into()),
        refused(TableId::Pcpus)
    );
    assert_eq!(
        count(&|s| s.vms = [s.vms[0]; 65].into()),
        refused(TableId::Vms)
    );
    assert_eq!(
        count(&|s| s.vcpus = [s.vcpus[0]; 65].into()),
        refused(TableId::Vcpus)
    );
    assert_eq!(
        count(&|s| s.regions = [s.regions[0]; 513].into()),
        refused(TableId::Regions)
    );
}

#[test]
fn limits_can_be_reached() {
    let mut sample = Sample::good();
    sample.board.uart_intid = 32;
    sample.board.vtimer_intid = 16;
    sample.board.ptimer_intid = 31;
    sample.vms[0].class = Class::HardRealtime as u16;
    sample.vms[0].spis = MAX_SPIS;
    sample.irqs[1].pintid = 31 + MAX_SPIS as u16;
    sample.irqs[1].vintid = 31 + MAX_SPIS as u16;
    for row in [2, 5] {
        sample.regions[row].ipa = (1 << IPA_BITS) - PAGE;
    }
    sample.regions[3].pa = (1 << 48) - PAGE;
    sample.quiets[2] = Quiet {
        width: 2,
        value: 0xffff,
        pa: (1 << 48) - 2,
        ..sample.quiets[2]
    };
    sample.calls[0].function = 0xb200_0000;
    sample.calls[1].function = 0xff00_ff03;
    let idle = sample.pcpus[3];
    for mpidr in [4, 5, 6, 7] {
        sample.pcpus.push(Pcpu {
            mpidr,
            service: 0,
            ..idle
        });
    }
    assert_eq!(verdict(&sample.bytes()), Ok(()));
}

/// Makes a vCPU one that can share its pCPU.
pub(super) fn with(
    vcpu: Vcpu,
    policy: CpuPolicy,
    weight: u16,
    (budget, period): (u64, u64),
) -> Vcpu {
    let fair = policy == CpuPolicy::Fair;
    Vcpu {
        policy: policy as u16,
        weight,
        budget,
        period,
        pool: if fair { 1 << vcpu.pcpu } else { 0 },
        ..vcpu
    }
}

/// The sample with all its vCPUs on pCPU 0: a server and a fair one of one VM, and a fair one of
/// the other.
pub(super) fn shared_pcpu() -> Sample {
    let mut sample = Sample::good();
    for vcpu in &mut sample.vcpus {
        vcpu.pcpu = 0;
    }
    let [first, second, third] = [0, 1, 2].map(|row| sample.vcpus[row]);
    sample.vcpus = [
        with(first, CpuPolicy::Server, 0, (400_000, 1_000_000)),
        with(second, CpuPolicy::Fair, 1000, (300, MIN_PERIOD)),
        with(third, CpuPolicy::Fair, 1, (MAX_PERIOD, MAX_PERIOD)),
    ]
    .into();
    sample
}

#[test]
fn a_pcpu_may_be_shared_by_servers_and_fair_vcpus() {
    let mut sample = shared_pcpu();
    assert_eq!(verdict(&sample.bytes()), Ok(()));
    // The balancer may move one to pCPUs that have no pinned vCPU.
    sample.vcpus[2].pool = 0b1011;
    assert_eq!(verdict(&sample.bytes()), Ok(()));
    let beyond = sample.vcpus[2].pool | 1 << sample.pcpus.len();
    sample.vcpus[2].pool = beyond;
    let found = verdict(&sample.bytes()).map_err(|violation| violation.invariant);
    assert_eq!(found, Err(Invariant::VcpuPool));
}

#[test]
fn servers_of_a_pcpu_are_counted_together() {
    let mut sample = shared_pcpu();
    let verdict_with = |sample: &mut Sample, budget| {
        sample.vcpus[1] = with(sample.vcpus[1], CpuPolicy::Server, 0, (budget, 1_000_000));
        verdict(&sample.bytes())
    };
    // Two switches for each server, and the longest exit once: 0.4 + 0.591 + 0.0034 + 0.0050 of a
    // whole.
    assert_eq!(verdict_with(&mut sample, 591_600), Ok(()));
    let refused = Violation {
        invariant: Invariant::PcpuSchedulable,
        table: Some(TableId::Pcpus),
        row: 0,
        other: None,
    };
    assert_eq!(verdict_with(&mut sample, 591_601), Err(refused));
    sample.vcpus[1].pcpu = 1;
    assert_eq!(verdict(&sample.bytes()), Ok(()), "not on the same pCPU");
}

#[test]
fn a_pcpu_has_as_many_vcpus_as_its_scheduler() {
    let mut sample = shared_pcpu();
    // All of them belong to the second VM, which then has as many as a VM may have.
    let third = sample.vcpus[2];
    let fair = |mpidr, pcpu| Vcpu {
        pcpu,
        mpidr,
        pool: 1 << pcpu,
        ..third
    };
    sample.vcpus.truncate(2);
    sample.vcpus.extend((0..6).map(|mpidr| fair(mpidr, 0)));
    sample.vcpus.push(fair(6, 1));
    assert_eq!(verdict(&sample.bytes()), Ok(()));
    sample.vcpus[8] = fair(6, 0);
    let found = verdict(&sample.bytes()).map_err(|violation| (violation.invariant, violation.row));
    assert_eq!(found, Err((Invariant::PcpuVcpus, 0)));
}

#[test]
fn stolen_time_is_one_page_that_the_plan_gives_no_place() {
    let place = 0x900_2000;
    let told = |change: &dyn Fn(&mut Sample)| {
        let mut sample = Sample::good();
        sample.vms[0].stolen_time = place;
        let at = (place, 0, PAGE);
        let page = super::sample::region(0, RegionKind::StolenTime, 1, NONE, at);
        sample.regions.insert(0, page);
        change(&mut sample);
        verdict(&sample.bytes()).map_err(|violation| violation.invariant)
    };
    assert_eq!(told(&|_| ()), Ok(()));
    // The second VM has another page, with the same 0 in the plan.
    let both = |sample: &mut Sample| {
        sample.vms[1].stolen_time = place;
        let second = Region {
            vm: 1,
            ..sample.regions[0]
        };
        sample.regions.insert(4, second);
    };
    assert_eq!(told(&both), Ok(()));
    let refused = |change: &dyn Fn(&mut Sample)| told(change).expect_err("refused");
    let stolen = Invariant::VmStolenTime;
    assert_eq!(refused(&|s| s.regions[0].pa = PAGE), stolen);
    assert_eq!(refused(&|s| s.regions[0].size = 2 * PAGE), stolen);
    assert_eq!(refused(&|s| s.vms[0].stolen_time = place + PAGE), stolen);
    assert_eq!(refused(&|s| s.vms[0].stolen_time = 0), stolen);
    let access = refused(&|s| s.regions[0].access = 3);
    assert_eq!(access, Invariant::RegionAccess);
    let taken = refused(&|s| {
        s.vms[0].stolen_time = 0x900_0000;
        s.regions[0].ipa = 0x900_0000;
    });
    assert_eq!(taken, Invariant::IpaOverlap, "where the PL011 is");
}

#[test]
fn shared_memory_is_memory() {
    let sample = Sample::good();
    let bytes = sample.bytes();
    let plan = Plan::open(&bytes).expect("sound");
    let shared = sample.regions[2].pa;
    let on_it = Found {
        image: shared,
        ..board(&sample)
    };
    let seen = plan.fits(&on_it).map_err(|violation| violation.invariant);
    assert_eq!(seen, Err(Invariant::BoardImage));
    let reserved = [Memory {
        base: shared,
        size: PAGE,
    }];
    let kept = Found {
        reserved: &reserved,
        ..board(&sample)
    };
    let seen = plan.fits(&kept).map_err(|violation| violation.invariant);
    assert_eq!(seen, Err(Invariant::BoardReserved));
}

#[test]
fn a_conflict_names_both_rows() {
    let mut sample = Sample::good();
    sample.regions[4].pa = sample.regions[1].pa + 0x20_0000;
    let violation = verdict(&sample.bytes()).expect_err("two owners");
    assert_eq!(
        violation,
        Violation {
            invariant: Invariant::PaOverlap,
            table: Some(TableId::Regions),
            row: 4,
            other: Some(1),
        }
    );
}

#[test]
fn checksum_ignores_itself_and_alignment() {
    let good = Sample::good().bytes();
    let sum = checksum(&good);
    let mut shifted = std::vec![0; 1];
    shifted.extend(&good);
    assert_eq!(checksum(&shifted[1..]), sum);
    let mut other = good.clone();
    seal(&mut other);
    assert_eq!(other, good);
    for bit in 0..64 {
        let mut changed = good.clone();
        changed[40 + bit / 8] ^= 1 << (bit % 8);
        assert_ne!(checksum(&changed), sum);
    }
}

#[test]
fn the_board_must_be_the_one_of_the_plan() {
    let sample = Sample::good();
    let bytes = sample.bytes();
    let plan = Plan::open(&bytes).expect("sound");
    let found = board(&sample);
    let kept = [Memory {
        base: 0x4110_0000,
        size: 0x1000,
    }];
    let under = [Memory {
        base: 0x4020_0000,
        size: 0x1000,
    }];
    let differences = [
        (
            Found {
                gic_version: 4,
                ..found
            },
            Invariant::GicVersion,
        ),
        (
            Found {
                gicd: (0x900_0000, 0x1_0000),
                ..found
            },
            Invariant::BoardGicd,
        ),
        (
            Found {
                gicr: (0x80a_0000, 0x2_0000),
                ..found
            },
            Invariant::BoardGicr,
        ),
        (
            Found {
                gicc: (0x801_0000, 0x1_0000),
                ..found
            },
            Invariant::BoardGicc,
        ),
        (
            Found {
                gich: (0x803_0000, 0x1_0000),
                ..found
            },
            Invariant::BoardGich,
        ),
        (
            Found {
                gicv: (0x804_0000, 0x1_0000),
                ..found
            },
            Invariant::BoardGicv,
        ),
        (Found { rtc: 0, ..found }, Invariant::BoardRtc),
        (
            Found {
                ptimer_intid: 29,
                ..found
            },
            Invariant::BoardTimer,
        ),
        (
            Found {
                hyp_timer_intid: 29,
                ..found
            },
            Invariant::BoardTimer,
        ),
        (
            Found {
                more_reserved: true,
                ..found
            },
            Invariant::BoardTree,
        ),
        (
            Found {
                uart: (0x901_0000, 0x1000),
                ..found
            },
            Invariant::BoardUart,
        ),
        (
            Found {
                uart_intid: 34,
                ..found
            },
            Invariant::BoardUart,
        ),
        (
            Found {
                vtimer_intid: 26,
                ..found
            },
            Invariant::BoardTimer,
        ),
        (
            Found {
                maintenance_intid: 24,
                ..found
            },
            Invariant::BoardTimer,
        ),
        (
            Found {
                memory: &found.memory[..1],
                ..found
            },
            Invariant::BoardMemory,
        ),
        (
            Found {
                reserved: &kept,
                ..found
            },
            Invariant::BoardReserved,
        ),
        (
            Found {
                reserved: &under,
                ..found
            },
            Invariant::BoardReserved,
        ),
        (
            Found {
                cpus: &[(0, 0), (1, 0xd8), (2, 0), (3, 0)],
                ..found
            },
            Invariant::BoardCpu,
        ),
        (
            Found {
                cpus: &[(0, 0), (2, 0)],
                ..found
            },
            Invariant::BoardCpu,
        ),
        (
            Found {
                boot_cpu: 4,
                ..found
            },
            Invariant::BoardCpu,
        ),
        (
            Found {
                image: 0x4100_0000,
                ..found
            },
            Invariant::BoardImage,
        ),
        (
            Found {
                image: 0x1000_0000,
                ..found
            },
            Invariant::BoardImage,
        ),
    ];
    for (other, expected) in differences {
        let seen = plan.fits(&other).map_err(|violation| violation.invariant);
        assert_eq!(seen, Err(expected), "{other:?}");
    }
}

proptest! {
    /// Reading and checking any bytes ends with a result.
    #[test]
    fn any_change_gets_an_answer(
        virtio in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let sample = if virtio { Sample::good_io() } else { Sample::good() };
        let mut bytes = sample.bytes();
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        let _ = verdict(&bytes);
        seal(&mut bytes);
        if let Ok(plan) = Plan::open(&bytes) {
            // A plan that passes gives every VM what its row says, and nothing else.
            if plan.check().is_ok() {
                for vm in 0..plan.vms.len() {
                    let numbers: Vec<_> = plan.vcpus_of(vm).iter().map(|vcpu| vcpu.mpidr).collect();
                    prop_assert!(!numbers.is_empty());
                    prop_assert!(numbers.iter().copied().eq(0..numbers.len() as u64));
                    prop_assert!(plan.regions_of(vm).iter().all(|region| usize::from(region.vm) == vm));
                }
            }
        }
    }
}
