//! The plan: whatever bytes EL2 finds behind itself, it refuses or can act on without a question.

use std::sync::LazyLock;

use bulkhead_abi::plan::{ALL_COLOURS, PAGE, RegionKind, UartKind};
use bulkhead_core::boot_tree::BootTree;
use bulkhead_core::colours;
use bulkhead_core::plan::{Plan, seal};
use bulkhead_core::stage2::{Builder, pages_needed};
use zerocopy::IntoBytes;

use super::description;
use bulkhead_fuzz::Target;
use bulkhead_fuzz::engine::Input;

/// This target.
pub const TARGET: Target = Target {
    name: "plan",
    seeds,
    words: &[],
    run,
};

/// The first byte says whether the checksum is made right.
fn seeds() -> Vec<Vec<u8>> {
    let planned = description::seed_plans();
    let sealed = |bytes: &Vec<u8>| [&[1, 0, 0, 0, 0, 0, 0, 0], &bytes[..]].concat();
    planned
        .iter()
        .map(|planned| sealed(&planned.bytes))
        .collect()
}

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let make_right = input.u64() != 0;
    // At EL2 a plan is aligned as its numbers are.
    let mut words: Vec<u64> = Vec::new();
    let length = input.rest().len();
    while !input.is_empty() {
        words.push(input.u64());
    }
    let plan = &mut words.as_mut_bytes()[..length];
    if make_right {
        seal(plan);
    }
    let Ok(plan) = Plan::open(plan) else {
        return;
    };
    if plan.check().is_err() {
        return;
    }
    proven(&plan);
    static TREE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../host/cli/tests/fixtures/virt.dtb"
        );
        std::fs::read(file).unwrap_or_default()
    });
    if let Some(tree) = BootTree::read(&TREE, UartKind::Pl011.words()) {
        // Either way: the question itself must not fail.
        let _ = plan.fits(&tree.found(0, plan.header.image.base));
    }
}

/// Asserts the properties that EL2 relies on once a plan is proven.
fn proven(plan: &Plan) {
    for vm in 0..plan.vms.len() {
        let regions = plan.regions_of(vm);
        assert_eq!(pages_needed(regions), u64::from(plan.vms[vm].s2_pages));
        if plan.vms[vm].s2_pages > 512 {
            continue;
        }
        let most = plan.vms[vm].s2_pages as usize;
        let mut pages = vec![[0; 512]; most];
        let mut builder =
            Builder::new(&mut pages, PAGE, ALL_COLOURS, most).expect("a VM has a root page");
        for region in regions {
            builder.map(region).expect("a proven region can be mapped");
        }
    }
    for (n, one) in plan.regions.iter().enumerate() {
        let span = colours::span(one).expect("a proven range does not wrap");
        for other in &plan.regions[..n] {
            let theirs = colours::span(other).expect("proven");
            let apart = !theirs.overlaps(span) || one.colours & other.colours == 0;
            let shared = one.kind == RegionKind::Shared as u16
                && other.kind == one.kind
                && one.shared == other.shared;
            assert!(apart || shared, "{one:?} and {other:?}");
        }
        let image = &plan.header.image;
        assert!(
            span.end <= image.base || image.base + image.size <= span.start,
            "{one:?} and the image"
        );
    }
}
