//! What `plan` says of the priorities of a GPPT VM: how many there are, what masks them, and what the running one reads as.

use std::path::Path;

use bulkhead_model::describe::Text;
use bulkhead_planner::show;
use bulkhead_runner::Effort;
use bulkhead_runner::prepare::prepare_text;

/// Boards: the fixture of its tree, and its firmware.
const NONE: [&str; 2] = ["virt.dtb", "none"];
const EL3: [&str; 2] = ["virt.dtb", "el3"];
const V2: [&str; 2] = ["virt-v2.dtb", "none"];
const V2_EL3: [&str; 2] = ["virt-v2.dtb", "el3"];

const HALF: &str =
    "half of the GIC's priorities, 16 where there are 32, the lowest of which is never signalled";
const QUARTER: &str = "a quarter of the GIC's priorities, 8 where there are 32, the lowest of which is never signalled";
const ALL: &str = "all of the GIC's priorities, the lowest of which is never signalled";
const V2_ALL: &str = "all of the GIC's priorities, or half of them beside firmware at EL3, the lowest of which is never signalled";

const DAIF: &str =
    "PSTATE.DAIF masks them; ICC_RPR_EL1 reads 0xff, as with no interrupt active, in handlers, too";
const TRAPPED: &str =
    "PSTATE.DAIF and ICC_PMR_EL1 mask them; ICC_RPR_EL1 reads the handler's priority, by an exit";
const DIRECT: &str =
    "PSTATE.DAIF and ICC_PMR_EL1 mask them; ICC_RPR_EL1 reads the handler's priority";
const FRAME: &str = "PSTATE.DAIF and GICC_PMR mask them; GICC_RPR reads the handler's priority";

/// Each mode: its board, `interrupts`, its name, its levels, what masks.
const MODES: [([&str; 2], &str, &str, &str, &str); 7] = [
    (NONE, "gppt", "recoverable", HALF, DAIF),
    (NONE, "gppt-pmr-trapped", "pmr-trapped", HALF, TRAPPED),
    (NONE, "gppt-pmr-direct", "pmr-direct", ALL, DIRECT),
    (EL3, "gppt", "revocable", QUARTER, DAIF),
    (
        EL3,
        "gppt-pmr-trapped",
        "revocable-pmr-trapped",
        QUARTER,
        TRAPPED,
    ),
    (V2, "gppt", "gicv2", V2_ALL, FRAME),
    (V2_EL3, "gppt", "gicv2", V2_ALL, FRAME),
];

/// The text of a plan with one VM, which has this line more, and what it says of how that takes its interrupts.
fn shown([tree, firmware]: [&str; 2], line: &str) -> (String, Vec<String>) {
    let source = format!(
        "[board]\ndtb = \"{tree}\"\nfirmware = \"{firmware}\"\n\n[vm.one]\n{line}\npcpus = [1]\n\
         memory = \"4MiB\"\nimage = \"raw.bin\"\nload = \"0x40080000\"\n"
    );
    let text = Text {
        name: Path::new("tests/fixtures/mode.toml").display().to_string(),
        source: source.into(),
    };
    let prepared = prepare_text(text, Effort::WhatIsThere);
    let prepared = prepared.unwrap_or_else(|stopped| {
        panic!("{}", bulkhead_model::failure::Failure::from(stopped));
    });
    let text = show::text(&prepared.planned);
    let lines = text
        .lines()
        .skip_while(|line| !line.starts_with("  interrupts "));
    let lines = lines.enumerate();
    let lines = lines.take_while(|(n, line)| *n == 0 || line.starts_with("             "));
    let lines = lines
        .map(|(_, line)| line.trim_start().to_owned())
        .collect();
    (text, lines)
}

#[test]
fn the_plan_says_for_each_mode_how_many_priorities_there_are_and_what_masks() {
    for (board, interrupts, name, levels, masks) in MODES {
        let (_, lines) = shown(board, &format!("interrupts = \"{interrupts}\""));
        assert!(lines[0].contains(&format!("GPPT, {name} (")), "{lines:?}");
        let one = |end: &str| lines.iter().filter(|line| line.ends_with(end)).count();
        assert_eq!(one(&format!("it has {levels}")), 1, "{name}: {lines:?}");
        let whole = lines.iter().filter(|line| **line == masks).count();
        assert_eq!(whole, 1, "{name}: {lines:?}");
    }
}

#[test]
fn the_plan_says_nothing_of_priorities_where_all_are_there_and_masked_as_on_the_board() {
    for board in [NONE, EL3, V2] {
        let (text, lines) = shown(board, "");
        assert_eq!(lines.len(), 1, "{lines:?}");
        for word in ["priorities", "RPR", "DAIF"] {
            assert!(!text.contains(word), "{text}");
        }
    }
}
