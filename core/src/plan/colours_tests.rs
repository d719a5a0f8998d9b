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

/// The sample, with even colours for the first VM and odd ones for the second among these, and what differs.
fn told(change: impl FnOnce(&mut Sample)) -> Result<(), Invariant> {
    let mut sample = Sample::good();
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
    let mut sample = Sample::good();
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
    let mut sample = Sample::good();
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
