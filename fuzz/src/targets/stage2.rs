//! Stage-2 tables: as many pages as were counted, and a walk finds what was mapped.

use bulkhead_abi::plan::{
    ACCESS_READ, ACCESS_WRITE, ALL_COLOURS, COLOUR_GROUP, IPA_BITS, NONE, PAGE, Region, RegionKind,
};
use bulkhead_core::stage2::{Builder, pages_needed, walk};

use crate::Target;
use crate::engine::Input;

/// This target.
pub const TARGET: Target = Target {
    name: "stage2",
    seeds,
    words: &[],
    run,
};

/// Address of the tables.
const BASE: u64 = 0x4100_0000;
/// Most pages for tables here.
const MOST_TABLES: usize = 160;

fn seeds() -> Vec<Vec<u8>> {
    // Gap, offset between IPA and PA, size: each a number of bits and a factor.
    vec![
        [[30, 1, 0, 0, 21, 32, 0], [12, 1, 12, 3, 12, 1, 15]].concat(),
        [
            [21, 2, 21, 1, 21, 16, 3],
            [21, 1, 12, 5, 12, 16, 0],
            [30, 1, 30, 1, 30, 2, 0],
        ]
        .concat(),
    ]
}

/// A multiple of a page: a factor shifted to a page, 64 KiB, 2 MiB, 32 MiB or 1 GiB.
fn distance(input: &mut Input) -> u64 {
    let shift = [12, 16, 21, 25, 30][input.below(5)];
    u64::from(input.u8() & 0x3f) << shift
}

/// Where a byte of a region is, by the definition of its colours.
fn place(region: &Region, offset: u64) -> Option<u64> {
    let page = offset / PAGE;
    if region.colours == ALL_COLOURS {
        return Some(region.pa + offset);
    }
    let each = u64::from(region.colours.count_ones());
    let mut own = (0..64).filter(|bit| region.colours >> bit & 1 != 0);
    let bit = own.nth((page % each) as usize)?;
    Some(region.pa + page / each * COLOUR_GROUP + bit * PAGE + offset % PAGE)
}

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut regions = Vec::new();
    let mut ipa = 0_u64;
    while !input.is_empty() && regions.len() < 24 {
        ipa += distance(&mut input);
        let pa = (ipa.wrapping_add(distance(&mut input))) & ((1 << 40) - PAGE);
        let size = distance(&mut input).max(PAGE);
        // One of four keeps to some colours.
        let colours = match input.u8() {
            mask @ 1..64 => u64::from(mask) << mask | u64::from(mask) << 40,
            _ => ALL_COLOURS,
        };
        let pa = if colours == ALL_COLOURS {
            pa
        } else {
            pa & !(COLOUR_GROUP - 1)
        };
        if ipa + size > 1 << IPA_BITS {
            break;
        }
        regions.push(Region {
            vm: 0,
            kind: RegionKind::Ram as u16,
            access: ACCESS_READ | ACCESS_WRITE,
            shared: NONE,
            ipa,
            pa,
            size,
            colours,
        });
        ipa += size;
    }
    let needed = pages_needed(&regions);
    if needed > MOST_TABLES as u64 {
        return;
    }
    let mut pages = vec![[0; 512]; needed as usize];
    let mut builder =
        Builder::new(&mut pages, BASE, ALL_COLOURS, needed as usize).expect("there is a page");
    for region in &regions {
        builder.map(region).expect("there are enough pages");
    }
    assert_eq!(builder.used() as u64, needed);
    for region in &regions {
        for offset in [0, PAGE - 1, region.size / 2, region.size - 1] {
            let found = walk(&pages, BASE, region.ipa + offset).map(|(pa, _)| pa);
            assert_eq!(found, place(region, offset));
        }
        let mapped = |ipa: u64| {
            regions
                .iter()
                .any(|r| (r.ipa..r.ipa + r.size).contains(&ipa))
        };
        for beside in [region.ipa.wrapping_sub(1), region.ipa + region.size] {
            if beside < 1 << IPA_BITS {
                assert_eq!(walk(&pages, BASE, beside).is_some(), mapped(beside));
            }
        }
    }
}
