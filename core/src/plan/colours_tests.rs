//! The rules for memory that keeps to colours.

use std::vec::Vec;

use bulkhead_abi::plan::*;

use super::sample::Sample;
use super::tests::verdict;
use super::view::MANAGED;
use super::{Invariant, Plan, page_of};

const EVEN: u64 = 0x5555_5555_5555_5555;
const ODD: u64 = !EVEN;
/// Rows of the sample: RAM and shared memory of the first VM, then of the second.
const ROWS: [usize; 4] = [1, 2, 4, 5];

/// The sample, on a board whose CPUs share a cache with all colours that a region can have.
fn coloured() -> Sample {
    let mut sample = Sample::good();
    for pcpu in &mut sample.pcpus {
        pcpu.colours = MAX_COLOURS;
    }
    sample
}

/// The sample, with even colours for the first VM and odd ones for the second among these, and what differs.
fn told(change: impl FnOnce(&mut Sample)) -> Result<(), Invariant> {
    let mut sample = coloured();
    let [ram, _, other, _] = ROWS;
    sample.regions[ram].colours = EVEN;
    sample.regions[other].colours = ODD;
    sample.regions[other].pa = sample.regions[ram].pa;
    change(&mut sample);
    verdict(&sample.bytes()).map_err(|violation| violation.invariant)
}

fn share(sample: &mut Sample, vms: &[usize]) {
    for vm in vms {
        sample.vms[*vm].flags |= VM_SHARES_COLOURS;
    }
}

#[test]
fn vms_lie_among_each_other_and_have_no_page_together() {
    let [ram, _, other, _] = ROWS;
    assert_eq!(told(|_| ()), Ok(()));
    let one_more = |sample: &mut Sample| {
        share(sample, &[0, 1]);
        sample.regions[other].colours |= 1 << 62;
    };
    assert_eq!(told(one_more), Err(Invariant::PaOverlap));
    let not_a_group = |sample: &mut Sample| sample.regions[ram].pa += PAGE;
    assert_eq!(told(not_a_group), Err(Invariant::RegionColours));
    // Its size fits, but it lies in twice as much.
    let beyond = |sample: &mut Sample| {
        let memory = sample.memory[sample.memory.len() - 1];
        sample.regions[ram].pa = memory.base + memory.size - sample.regions[ram].size;
    };
    assert_eq!(told(beyond), Err(Invariant::RegionMemory));
}

#[test]
fn tables_have_the_colours_of_ram() {
    let mut sample = coloured();
    let [ram, _, other, _] = ROWS;
    let roots = |sample: &Sample| {
        let bytes = sample.bytes();
        let plan = Plan::open(&bytes).expect("the frame is sound");
        plan.check().expect("it is sound");
        let places: Vec<Region> = (0..2).filter_map(|vm| plan.tables_of(vm)).collect();
        (
            plan.vms[0].s2_root / PAGE,
            plan.vms[1].s2_root / PAGE,
            places,
        )
    };
    let (first, second, places) = roots(&sample);
    assert_eq!(second - first, places[0].size / PAGE);
    sample.regions[ram].colours = EVEN;
    sample.regions[other].colours = ODD;
    sample.regions[other].pa = sample.regions[ram].pa;
    let (first, second, places) = roots(&sample);
    assert_eq!((first % 64, second), (0, first + 1));
    assert_eq!((places[0].colours, places[1].colours), (EVEN, ODD));
    assert_eq!(places[0].pa, places[1].pa);
}

#[test]
fn el2_has_colours_that_vms_have_if_they_say_so() {
    const HALF: u64 = 0x1111_1111_1111_1111;
    let [ram, shared, other, theirs] = ROWS;
    // The shared memory has its two VMs' colours, and only these.
    let own = |change: &dyn Fn(&mut Sample)| {
        told(|sample| {
            sample.colours = HALF;
            for row in [ram, shared, other, theirs] {
                sample.regions[row].colours &= !HALF;
            }
            change(sample);
        })
    };
    for row in [shared, theirs] {
        assert_ne!(Sample::good().regions[row].shared, NONE);
    }
    let groups = |sample: &mut Sample| {
        for row in [shared, theirs] {
            sample.regions[row].pa = sample.regions[shared].pa.next_multiple_of(COLOUR_GROUP);
        }
    };
    assert_eq!(own(&groups), Ok(()));
    let one = |sample: &mut Sample| {
        groups(sample);
        sample.regions[ram].colours |= 1 << 60;
    };
    assert_eq!(own(&one), Err(Invariant::El2Colours));
    let says = |sample: &mut Sample| {
        one(sample);
        share(sample, &[0]);
    };
    assert_eq!(own(&says), Ok(()));
    assert_eq!(
        own(&|sample| sample.colours = 0),
        Err(Invariant::El2Colours)
    );
}

#[test]
fn el2_lies_among_the_tables_of_vms_and_has_all_its_parts() {
    const HALF: u64 = 0x1111_1111_1111_1111;
    let mut sample = coloured();
    let [ram, shared, other, theirs] = ROWS;
    sample.colours = HALF;
    for row in [ram, shared, other, theirs] {
        sample.regions[row].colours = EVEN & !HALF;
    }
    share(&mut sample, &[0, 1]);
    sample.regions[other].pa = 0x4300_0000;
    for row in [shared, theirs] {
        sample.regions[row].pa = sample.regions[shared].pa.next_multiple_of(COLOUR_GROUP);
    }
    let bytes = sample.bytes();
    let plan = Plan::open(&bytes).expect("the frame is sound");
    plan.check().expect("it is sound");
    let mut tables = Vec::new();
    let page_pool = plan
        .page_pool::<MANAGED>(|_, place| tables.push(*place))
        .expect("it fits");
    // Each VM's lie among pages of EL2.
    assert_eq!(page_pool.threads.pa, tables[0].pa);
    assert_eq!(page_pool.threads.pa % COLOUR_GROUP, 0);
    assert!(tables[1].pa > tables[0].pa);
    assert_eq!(page_pool.image.pa, tables[1].pa);
    let image = &plan.header.image;
    assert_eq!(
        page_pool.image.size,
        (image.plan_offset + plan.header.size).next_multiple_of(PAGE)
    );
    assert_eq!(page_pool.end, image.size);
    for part in [page_pool.threads, page_pool.image] {
        for page in 0..part.size / PAGE {
            assert_ne!(HALF >> (page_of(&part, page) / PAGE % 64) & 1, 0);
        }
    }
}

#[test]
fn a_colour_is_shared_if_both_say_so() {
    let [_, _, other, _] = ROWS;
    for colours in [ODD | 1 << 62, ALL_COLOURS] {
        let say = |vms: &'static [usize]| {
            told(move |sample| {
                sample.regions[other].pa = 0x4300_0000;
                sample.regions[other].colours = colours;
                share(sample, vms);
            })
        };
        assert_eq!(say(&[0, 1]), Ok(()));
        for vms in [&[][..], &[0], &[1]] {
            assert_eq!(say(vms), Err(Invariant::VmColours), "{vms:?}");
        }
    }
}

#[test]
fn shared_memory_has_colours_of_those_who_map_it() {
    let [ram, shared, _, theirs] = ROWS;
    // The second VM maps it no longer.
    let alone = |colours: u64| {
        told(move |sample| {
            sample.regions[shared].colours = colours;
            sample.regions.remove(theirs);
        })
    };
    assert_eq!(alone(EVEN), Ok(()));
    assert_eq!(alone(EVEN | 2), Err(Invariant::VmColours));
    assert_eq!(alone(ALL_COLOURS), Err(Invariant::VmColours));
    // With other colours it would be other memory to each of them.
    let differs = |sample: &mut Sample| sample.regions[theirs].colours = EVEN;
    assert_eq!(told(differs), Err(Invariant::RegionShared));
    // One that has all is no business of colours.
    let plain = |sample: &mut Sample| {
        for row in ROWS {
            sample.regions[row].colours = ALL_COLOURS;
        }
        sample.regions[ram].pa = 0x4300_0000;
    };
    assert_eq!(told(plain), Ok(()));
}

/// The sample with two clusters: the first VM has vCPUs on pCPUs 0 and 2, the second on pCPU 1. pCPUs from `second` on have the second cache, with so
/// many colours.
fn clusters(sample: &mut Sample, second: usize, colours: u32) {
    for pcpu in &mut sample.pcpus[second..] {
        (pcpu.cache, pcpu.colours) = (1, colours);
    }
}

#[test]
fn vms_that_meet_in_no_cache_may_have_the_same_colours() {
    let [ram, shared, other, theirs] = ROWS;
    let both_even = |second: usize| {
        told(move |sample| {
            // The second VM runs behind the first one.
            (
                sample.vcpus[0].pcpu,
                sample.vcpus[1].pcpu,
                sample.vcpus[2].pcpu,
            ) = (0, 1, 2);
            clusters(sample, second, MAX_COLOURS);
            sample.regions[other].pa = 0x4300_0000;
            for row in [ram, shared, other, theirs] {
                sample.regions[row].colours = EVEN;
                let pa = sample.regions[row].pa;
                sample.regions[row].pa = pa.next_multiple_of(COLOUR_GROUP);
            }
        })
    };
    assert_eq!(both_even(2), Ok(()));
    // The first one is in both caches.
    assert_eq!(both_even(1), Err(Invariant::VmColours));
    assert_eq!(both_even(4), Err(Invariant::VmColours));
    assert_eq!(both_even(3), Err(Invariant::VmColours));
}

#[test]
fn a_cache_that_is_not_known_may_be_anybodys() {
    let [ram, shared, other, theirs] = ROWS;
    let beside = |known: bool| {
        told(move |sample| {
            (
                sample.vcpus[0].pcpu,
                sample.vcpus[1].pcpu,
                sample.vcpus[2].pcpu,
            ) = (2, 3, 0);
            clusters(sample, 2, MAX_COLOURS);
            if !known {
                for pcpu in &mut sample.pcpus[..2] {
                    pcpu.colours = 0;
                }
            }
            // The second VM has all colours, the first one alone maps the shared memory.
            sample.regions[other].colours = ALL_COLOURS;
            sample.regions[other].pa = 0x4300_0000;
            sample.regions[shared].colours = sample.regions[ram].colours;
            sample.regions.remove(theirs);
        })
    };
    assert_eq!(beside(true), Ok(()));
    assert_eq!(beside(false), Err(Invariant::VmColours));
}

#[test]
fn a_vm_is_in_the_caches_of_its_pool() {
    let [ram, shared, other, theirs] = ROWS;
    let pooled = |pool: u32| {
        told(move |sample| {
            (
                sample.vcpus[0].pcpu,
                sample.vcpus[1].pcpu,
                sample.vcpus[2].pcpu,
            ) = (0, 1, 2);
            clusters(sample, 2, MAX_COLOURS);
            let vcpu = &mut sample.vcpus[1];
            (vcpu.policy, vcpu.weight) = (CpuPolicy::Fair as u16, 10);
            (vcpu.budget, vcpu.period, vcpu.pool) = (MIN_PERIOD, MIN_PERIOD, pool);
            sample.irqs.retain(|irq| irq.vm != 0);
            sample.regions[other].pa = 0x4300_0000;
            for row in [ram, shared, other, theirs] {
                sample.regions[row].colours = EVEN;
                let pa = sample.regions[row].pa;
                sample.regions[row].pa = pa.next_multiple_of(COLOUR_GROUP);
            }
        })
    };
    assert_eq!(pooled(0b0010), Ok(()));
    assert_eq!(pooled(0b1010), Err(Invariant::VmColours));
}

#[test]
fn colours_are_the_same_part_of_each_cache() {
    let eighth = 0x0101_0101_0101_0101_u64;
    let small = |colours: u32, own: u64| {
        told(move |sample| {
            // The second VM is on pCPU 1.
            clusters(sample, 1, colours);
            share(sample, &[0, 1]);
            sample.regions[ROWS[2]].colours = own;
            sample.regions[ROWS[2]].pa = 0x4300_0000;
        })
    };
    for colours in [8, 16, 32, 64] {
        assert_eq!(small(colours, eighth), Ok(()), "{colours}");
    }
    assert_eq!(small(4, eighth), Err(Invariant::RegionCaches));
    assert_eq!(
        small(32, eighth & u64::from(u32::MAX)),
        Err(Invariant::RegionCaches)
    );
    assert_eq!(small(2, ODD), Ok(()));
    // Nobody has said how many there are.
    let unknown = |sample: &mut Sample| {
        for pcpu in &mut sample.pcpus {
            pcpu.colours = 0;
        }
    };
    assert_eq!(told(unknown), Err(Invariant::RegionCaches));
}

#[test]
fn el2_has_the_same_part_of_each_cache() {
    let own = |colours: u32, mask: u64| {
        told(move |sample| {
            clusters(sample, 3, colours);
            sample.colours = mask;
            share(sample, &[0, 1]);
        })
    };
    let eighth = 0x8080_8080_8080_8080;
    assert_eq!(own(4, eighth), Err(Invariant::El2Colours));
    assert_eq!(own(8, eighth), Ok(()));
}

#[test]
fn a_vm_is_in_the_cache_of_the_service_thread_that_reaches_its_memory() {
    let served = |thread: usize, devices: bool| {
        let mut sample = Sample::good_io();
        for pcpu in &mut sample.pcpus {
            pcpu.colours = MAX_COLOURS;
        }
        // The two VMs are in clusters of their own.
        (
            sample.vcpus[0].pcpu,
            sample.vcpus[1].pcpu,
            sample.vcpus[2].pcpu,
        ) = (0, 1, 2);
        clusters(&mut sample, 2, MAX_COLOURS);
        for thread_ in &mut sample.threads {
            thread_.pcpu = thread as u16;
        }
        if !devices {
            sample.virtio.clear();
            sample.queues.clear();
            sample.backends.clear();
        }
        let mut at = 0x4300_0000;
        for region in &mut sample.regions {
            if region.kind == RegionKind::Ram as u16 || region.kind == RegionKind::Shared as u16 {
                region.colours = EVEN;
                if region.kind == RegionKind::Ram as u16 {
                    (region.pa, at) = (at, at + 0x100_0000);
                } else {
                    region.pa = region.pa.next_multiple_of(COLOUR_GROUP);
                }
            }
        }
        verdict(&sample.bytes()).map_err(|violation| violation.invariant)
    };
    for thread in [1, 3] {
        assert_eq!(served(thread, true), Err(Invariant::VmColours));
        assert_ne!(served(thread, false), Err(Invariant::VmColours));
    }
}
