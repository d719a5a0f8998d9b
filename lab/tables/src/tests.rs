//! The walker on tables written by hand.

use crate::Pages;
use crate::stage2::{covered, reaches};
use crate::walk::{Walk, walk};

/// VTCR_EL2 for 39 bits, 4 KiB, from level 1.
const VTCR: u64 = 0x8002_3559;
const ROOT: u64 = 0x4100_0000;
const SECOND: u64 = 0x4100_1000;
const THIRD: u64 = 0x4100_2000;
/// Normal memory, read and write, accessed, executable.
const RAM: u64 = 0x7fc;
const HINT: u64 = 1 << 52;

/// A block of 1 GiB at 0x4000_0000, one of 2 MiB at 0x8000_0000, a run of sixteen pages at 0x8020_0000.
fn pages() -> Pages {
    let mut root = vec![0; 512];
    (root[1], root[2]) = (0x8000_0001 | RAM, SECOND | 3);
    let mut second = vec![0; 512];
    (second[0], second[1]) = (0x6000_0001 | RAM, THIRD | 3);
    let mut third = vec![0; 512];
    for (n, entry) in (0..).zip(&mut third[..16]) {
        *entry = (0x5000_0003 + n * 4096) | RAM | HINT;
    }
    Pages::from([(ROOT, root), (SECOND, second), (THIRD, third)])
}

fn of(pages: &Pages) -> Walk {
    let mut read = |pa| pages.get(&pa).cloned().ok_or_else(|| format!("{pa:#x}"));
    walk(VTCR, 1 << 48 | ROOT, &mut read).unwrap()
}

fn wrong(change: impl FnOnce(&mut Pages)) -> String {
    let mut pages = pages();
    change(&mut pages);
    of(&pages).wrong.join("; ")
}

fn entry(pages: &mut Pages, table: u64, index: usize) -> &mut u64 {
    &mut pages.get_mut(&table).unwrap()[index]
}

#[test]
fn every_level_is_followed() {
    let found = of(&pages());
    assert_eq!(found.wrong, [""; 0]);
    assert_eq!(found.tables, [ROOT, SECOND, THIRD]);
    let shapes: Vec<_> = found
        .leaves
        .iter()
        .map(|leaf| (leaf.ipa, leaf.pa, leaf.size))
        .collect();
    assert_eq!(shapes[0], (0x4000_0000, 0x8000_0000, 1 << 30));
    assert_eq!(shapes[1], (0x8000_0000, 0x6000_0000, 2 << 20));
    assert_eq!(shapes[2], (0x8020_0000, 0x5000_0000, 4096));
    assert_eq!(shapes[17], (0x8020_f000, 0x5000_f000, 4096));
    assert_eq!(shapes.len(), 18);
}

#[test]
fn a_hint_that_lies_is_found() {
    let hint = "the contiguous hint at IPA";
    assert!(wrong(|pages| *entry(pages, THIRD, 7) ^= HINT).contains(hint));
    assert!(wrong(|pages| *entry(pages, THIRD, 7) = 0).contains(hint));
    assert!(wrong(|pages| *entry(pages, THIRD, 15) += 0x1000).contains(hint));
    let one_page_on = |pages: &mut Pages| {
        (0..16).for_each(|n| *entry(pages, THIRD, n) += 0x1000);
    };
    assert!(wrong(one_page_on).contains(hint));
}

#[test]
fn what_no_table_should_hold_is_found() {
    let reserved = wrong(|pages| *entry(pages, THIRD, 20) = 0x5010_0001 | RAM);
    assert!(reserved.contains("reserved kind"), "{reserved}");
    let invalid = wrong(|pages| *entry(pages, SECOND, 9) = 2);
    assert!(invalid.contains("invalid and yet"), "{invalid}");
    let crooked = wrong(|pages| *entry(pages, SECOND, 0) |= 0x1000);
    assert!(crooked.contains("must be 0"), "{crooked}");
    let more = wrong(|pages| *entry(pages, SECOND, 1) |= 1 << 59);
    assert!(more.contains("more than an address"), "{more}");
    let round = wrong(|pages| *entry(pages, SECOND, 5) = ROOT | 3);
    assert!(round.contains("used twice"), "{round}");
}

#[test]
fn other_translations_are_refused() {
    let mut read = |_| Ok(vec![0; 512]);
    for vtcr in [
        VTCR | 1 << 14,
        VTCR | 1 << 32,
        VTCR ^ 1 << 6,
        VTCR | 1 << 21,
    ] {
        assert!(walk(vtcr, ROOT, &mut read).is_err(), "{vtcr:#x}");
    }
    // 31 bits: two of the root's entries count.
    let root = |_| Ok(vec![0x8000_0001 | RAM; 512]);
    let found = walk(VTCR + 8, ROOT, &mut { root }).unwrap();
    assert_eq!(found.leaves.len(), 2);
    assert!(found.wrong[0].contains("beyond the address space"));
}

#[test]
fn memory_of_others_is_found_to_the_byte() {
    let found = covered(&of(&pages()));
    assert_eq!(
        found,
        [
            (0x5000_0000, 0x5001_0000),
            (0x6000_0000, 0x6020_0000),
            (0x8000_0000, 0xc000_0000),
        ]
    );
    for (start, size, hit) in [
        (0x4fff_f000, 0x1000, false),
        (0x4fff_f000, 0x1001, true),
        (0x5000_f000, 0x1000, true),
        (0x5001_0000, 0x1000, false),
        (0x4000_0000, 0x4000_0000, true),
        (0x601f_f000, 0x2000_1000, true),
        (0xc000_0000, 0x1000, false),
    ] {
        assert_eq!(reaches(&found, start, size), hit, "{start:#x} {size:#x}");
    }
    assert!(!reaches(&[], 0, u64::MAX));
}
