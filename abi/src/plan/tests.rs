//! The layout that both sides count on.

use super::*;

/// Sizes as `docs/adr/0002-plan-format.md` fixes them: a change of one makes another version.
#[test]
fn rows_have_the_sizes_that_both_sides_count_on() {
    let sizes = [
        size_of::<Board>(),
        size_of::<Image>(),
        size_of::<Header>(),
        size_of::<Memory>(),
        size_of::<Pcpu>(),
        size_of::<Vm>(),
        size_of::<Vcpu>(),
        size_of::<Region>(),
        size_of::<Payload>(),
        size_of::<Seed>(),
        size_of::<Irq>(),
        size_of::<Device>(),
        size_of::<Quiet>(),
        size_of::<Call>(),
        size_of::<Doorbell>(),
        size_of::<ServiceThread>(),
        size_of::<Backend>(),
        size_of::<VirtioDevice>(),
        size_of::<Virtqueue>(),
        size_of::<Right>(),
        size_of::<Stop>(),
    ];
    assert_eq!(
        sizes,
        [
            136, 48, 360, 16, 32, 104, 48, 40, 32, 16, 8, 24, 16, 8, 24, 32, 24, 128, 32, 8, 16
        ]
    );
}

#[test]
fn the_magic_reads_as_text() {
    assert_eq!(&MAGIC.to_le_bytes(), b"BULKHEAD");
}
