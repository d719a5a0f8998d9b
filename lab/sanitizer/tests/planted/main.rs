//! Each rule against a small program for EL2 with one planted defect, and against the same program
//! without it, in QEMU. The sound ones must stay silent and reach their end.
#![forbid(unsafe_code)]
// The words of programs and what tests read of them.
#![allow(missing_docs, clippy::unusual_byte_groupings)]

mod caches;
mod code;
mod machine;
mod others;
mod registers;
mod tables;
mod tlbs;

use bulkhead_plugin::sanitizer::Rule;
use code::*;
use machine::*;

/// CPUs take turns, as in most system tests.
const TURNS: [&str; 2] = ["-icount", "shift=0,sleep=off"];

/// A program, sound or with its defect.
type Program = fn(&mut Machine, bool);

/// Checks a pair of programs: the planted defect gives exactly `rules`, the sound program nothing.
fn judge(program: Program, rules: &[Rule]) {
    judge_entering(program, rules, 1);
}

/// [`judge`] for a sound program that enters this many guests.
fn judge_entering(program: Program, rules: &[Rule], guests: usize) {
    let made = |planted| {
        let mut machine = Machine::default();
        program(&mut machine, planted);
        run(&machine, &TURNS)
    };
    let sound = made(false);
    assert!(
        sound.findings.is_empty(),
        "without defect: {:#?}",
        sound.findings
    );
    assert_eq!(sound.entered, guests, "the sound program enters its guests");
    let found = made(true).findings;
    let mut broken: Vec<Rule> = found.iter().map(|finding| finding.rule).collect();
    broken.sort();
    broken.dedup();
    assert_eq!(broken, rules, "{found:#?}");
    for finding in &found {
        assert!(finding.place.starts_with("sample+0x"), "{finding}");
    }
}

/// Drops EL2's window as the architecture asks.
fn drop_copy_window(code: &mut Code) -> &mut Code {
    code.store(entry(WINDOW), 0)
        .ops(&[DSB_ISHST])
        .sys(TLBI_VAE2, page(WINDOW))
        .ops(&[DSB_NSH, ISB])
}

/// Writes guest memory and cleans it.
fn write_guest(code: &mut Code) -> &mut Code {
    code.store(SECOND_BLOCK, 7)
        .sys(DC_CVAC, SECOND_BLOCK)
        .ops(&[DSB_SY])
}
