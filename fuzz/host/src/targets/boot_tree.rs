//! The boot device tree: whatever firmware leaves in memory is read within its bounds.

use bulkhead_abi::plan::UartKind;
use bulkhead_core::boot_tree::BootTree;

use super::description;
use bulkhead_fuzz::Target;

/// This target.
pub const TARGET: Target = Target {
    name: "boot-tree",
    seeds,
    words: &[
        "arm,pl011",
        "arm,gic-v3",
        "memory",
        "reg\0",
        "/chosen",
        "reserved-memory\0",
        "ranges\0",
        "aliases\0",
        "\0\0\0\x03",
        "\0\0\0\x01",
    ],
    run,
};

fn seeds() -> Vec<Vec<u8>> {
    let planned = description::seed_plans();
    // The board's, and those that the planner makes for guests.
    let boards = planned.iter().map(|planned| planned.board.dtb.clone());
    let guests = planned
        .iter()
        .flat_map(|planned| &planned.vms)
        .flat_map(|vm| &vm.payloads);
    let trees = guests
        .filter(|payload| payload.what == "device tree")
        .map(|payload| payload.bytes.to_vec());
    boards.take(1).chain(trees.take(2)).collect()
}

fn run(bytes: &[u8]) {
    // EL2 maps as much as the head says, and no more than is there.
    let Some(size) = BootTree::size(bytes) else {
        return;
    };
    let tree = bytes
        .get(..usize::try_from(size).unwrap_or(usize::MAX))
        .unwrap_or(bytes);
    let Some(read) = BootTree::read(tree, UartKind::Pl011.words()) else {
        return;
    };
    let found = read.found(0, 0x4020_0000);
    assert!(found.memory.len() <= 64 && found.reserved.len() <= 64 && found.cpus.len() <= 64);
    if let Some(uart) = read.uart() {
        assert_eq!(found.uart.0, uart);
        assert_ne!(found.uart.1, 0);
    }
}
