//! Tests of the registers bit by bit: what reads as what after which write (IHI 0048B, 4.3; IHI
//! 0069H, 12.9 to 12.11).

use super::bench::Vm;
use crate::vgic::*;

type V2 = Vm<true>;
type V3 = Vm<false>;

/// A row: offset, value written (if any), value read afterwards.
type Row = (u64, Option<u32>, u32);

const ALL: Option<u32> = Some(u32::MAX);

fn ends_of_priorities<const V: bool>() {
    let mut vm = Vm::<V>::new(1, 4, &[]);
    for n in 0..8 {
        vm.priority(0, 32 + n, 0x40);
    }
    // Before the first and behind the last register; behind it, a GICv2 has GICD_ITARGETSR0.
    for offset in [0x3fc, 0x7fc, 0x800] {
        vm.gicd(0, offset, 0x5858_5858);
    }
    let private = if V {
        vm.gicd_read(0, 0x400)
    } else {
        vm.gicr_read(0, 0, 0x1_0400)
    };
    assert_eq!(private, 0);
    assert_eq!(vm.gicd_read(0, 0x420), 0x4040_4040);
    // A byte and a word change the priorities that they name, and no neighbour.
    vm.gicd(0, 0x424, 0x4858_6878);
    vm.gicd_sized(0, 0x422, 1, 0x80);
    assert_eq!(vm.gicd_read(0, 0x420), 0x4080_4040);
    assert_eq!(vm.gicd_read(0, 0x424), 0x4858_6878);
    assert_eq!(vm.gicd_read(0, 0x428), 0);
}

#[test]
fn a_write_beside_the_priorities_changes_none() {
    ends_of_priorities::<true>();
    ends_of_priorities::<false>();
}

#[test]
fn distributor_of_a_gicv3() {
    let mut vm = V3::new(4, 4, &[(40, 140, false)]);
    let rows: &[Row] = &[
        (0x0000, None, 0x50),
        (0x0000, ALL, 0x53),
        (0x0000, Some(2), 0x52),
        (0x0004, ALL, 0x0348_0002),
        (0x0008, ALL, 0x4200_1000),
        // Registers that do not exist: GICD_TYPER2, STATUSR, SETSPI and CLRSPI registers.
        (0x000c, ALL, 0),
        (0x0010, ALL, 0),
        (0x0040, ALL, 0),
        (0x0048, ALL, 0),
        // Word 0 is in the redistributor; the VM has words 1 and 2.
        (0x0080, ALL, 0),
        (0x0084, ALL, u32::MAX),
        (0x0088, Some(5), 5),
        (0x008c, ALL, 0),
        (0x0100, ALL, 0),
        (0x0104, Some(0xff), 0xff),
        (0x0104, Some(0xf00), 0xfff),
        (0x0184, Some(0x0ff), 0xf00),
        (0x0108, ALL, u32::MAX),
        (0x0188, None, u32::MAX),
        (0x010c, ALL, 0),
        (0x0188, ALL, 0),
        (0x0184, ALL, 0),
        (0x0204, Some(3), 3),
        (0x0284, None, 3),
        (0x0284, Some(1), 2),
        (0x0204, Some(0), 2),
        (0x020c, ALL, 0),
        (0x0304, Some(6), 6),
        (0x0384, Some(2), 4),
        (0x0384, ALL, 0),
        (0x0284, ALL, 0),
        (0x0400, ALL, 0),
        (0x0420, ALL, 0xf8f8_f8f8),
        (0x045c, Some(0x0102_0304), 0),
        (0x045c, Some(0x1927_3f08), 0x1820_3808),
        (0x0460, ALL, 0),
        // GICD_ITARGETSR, IGRPMODR, NSACR, SGIR, SPENDSGIR do not exist with affinity routing and
        // one Security state.
        (0x0820, ALL, 0),
        (0x0c00, ALL, 0),
        (0x0c04, ALL, 0),
        // 40 is backed by hardware, so the plan sets its trigger.
        (0x0c08, ALL, 0xaaa8_aaaa),
        (0x0c08, Some(0x5555_5555), 0),
        (0x0c14, Some(2), 2),
        (0x0c18, ALL, 0),
        (0x0d04, ALL, 0),
        (0x0e08, ALL, 0),
        (0x0f00, ALL, 0),
        (0x0f20, ALL, 0),
        (0x6000, ALL, 0),
        (0x6100, ALL, 0x00ff_ffff),
        (0x6104, ALL, 0xff),
        (0x6100, Some(0), 0),
        (0x6104, None, 0xff),
        (0x62f8, Some(3), 3),
        (0x6300, ALL, 0),
        (0xffd0, None, 0),
        (0xffe8, ALL, 0x3b),
        (0xfff0, None, 0x0d),
        (0xfff4, None, 0xf0),
        (0xfff8, None, 0x05),
        (0xfffc, None, 0xb1),
    ];
    for (offset, write, read) in rows {
        if let Some(value) = write {
            vm.gicd(1, *offset, *value);
        }
        let found = vm.gicd_read(1, *offset);
        assert_eq!(found, *read, "{offset:#x} {write:x?}: {found:#x}");
    }
    vm.gicd_sized(0, 0x6108, 8, u64::MAX);
    assert_eq!(vm.gicd_read_sized(0, 0x6108, 8), 0xff_00ff_ffff);
    assert_eq!(vm.gicd_read_sized(0, 0x610c, 8), 0, "not aligned");
}

#[test]
fn distributor_of_a_gicv2() {
    let mut vm = V2::new(4, 4, &[(40, 140, false)]);
    let rows: &[Row] = &[
        (0x000, None, 0),
        (0x000, ALL, 3),
        (0x004, ALL, 0x62),
        (0x008, ALL, 0x4200_1000),
        (0x00c, ALL, 0),
        (0x080, Some(0xff00_00ff), 0xff00_00ff),
        (0x084, ALL, u32::MAX),
        (0x08c, ALL, 0),
        (0x100, Some(0x0f), 0x0f),
        (0x180, Some(0x03), 0x0c),
        (0x104, Some(5), 5),
        (0x10c, ALL, 0),
        // The pending state of SGIs is in other registers.
        (0x200, Some(0x0040_00ff), 0x0040_0000),
        (0x280, Some(0x0040_0000), 0),
        (0x208, Some(9), 9),
        (0x288, Some(8), 1),
        (0x300, Some(0x0010_0001), 0x0010_0001),
        (0x380, ALL, 0),
        (0x400, ALL, 0xf8f8_f8f8),
        (0x45c, Some(0x7f00_0000), 0x7800_0000),
        (0x460, ALL, 0),
        // The mask of the vCPU itself, which is read-only; bits of vCPUs that do not exist.
        (0x800, ALL, 0x0202_0202),
        (0x81c, Some(0), 0x0202_0202),
        (0x820, None, 0),
        (0x820, ALL, 0x0f0f_0f0f),
        (0x820, Some(0x0801_0204), 0x0801_0204),
        (0x860, ALL, 0),
        (0xc00, Some(0), 0xaaaa_aaaa),
        (0xc04, ALL, 0xaa2a_aaaa),
        (0xc04, Some(0), 0),
        (0xc08, ALL, 0xaaa8_aaaa),
        (0xc18, ALL, 0),
        (0xd00, ALL, 0),
        (0xe00, ALL, 0),
        (0xf00, None, 0),
        (0x6100, ALL, 0),
        (0xfd0, None, 0),
        (0xfe8, ALL, 0x2b),
        (0xff0, None, 0x0d),
        (0xffc, None, 0xb1),
    ];
    for (offset, write, read) in rows {
        if let Some(value) = write {
            vm.gicd(1, *offset, *value);
        }
        let found = vm.gicd_read(1, *offset);
        assert_eq!(found, *read, "{offset:#x} {write:x?}: {found:#x}");
    }
    // Word 0 is banked.
    for offset in [0x080, 0x100, 0x200, 0x300, 0x400] {
        assert_eq!(vm.gicd_read(0, offset), 0, "{offset:#x}");
    }
    assert_eq!(vm.gicd_read(3, 0x800), 0x0808_0808);
    // Accesses to bytes.
    vm.gicd_sized(1, 0x425, 1, 0x27);
    assert_eq!(vm.gicd_read(1, 0x424), 0x2000);
    vm.gicd_sized(1, 0x827, 1, 0x12);
    assert_eq!(vm.gicd_read(1, 0x824), 0x0200_0000);
    assert_eq!(vm.gicd_read_sized(1, 0x827, 1), 2);
    // With one vCPU there is nothing to choose.
    let mut vm = V2::new(1, 4, &[]);
    vm.gicd(0, 0x820, u32::MAX);
    assert_eq!((vm.gicd_read(0, 0x820), vm.gicd_read(0, 0x800)), (0, 0));
    assert_eq!(vm.gicd_read(0, 4), 2);
}

#[test]
fn redistributor() {
    let mut vm = V3::new(3, 4, &[(30, 30, true)]);
    let rows: &[Row] = &[
        (0x0000, ALL, 0),
        (0x0004, ALL, 0x4200_1000),
        (0x0010, ALL, 0),
        (0x0014, None, 6),
        (0x0014, Some(0), 0),
        (0x0014, ALL, 6),
        (0x0040, ALL, 0),
        (0x0070, ALL, 0),
        (0xffe8, ALL, 0x3b),
        (0xfff4, None, 0xf0),
        (0x1_0080, Some(0x1234_5678), 0x1234_5678),
        (0x1_0084, ALL, 0),
        (0x1_0100, Some(0xf0), 0xf0),
        (0x1_0180, Some(0x30), 0xc0),
        (0x1_0200, Some(0x0040_0003), 0x0040_0003),
        (0x1_0280, Some(0x0040_0001), 2),
        (0x1_0300, Some(0x0100_0001), 0x0100_0001),
        (0x1_0380, ALL, 0),
        (0x1_0400, ALL, 0xf8f8_f8f8),
        (0x1_041c, Some(0x0f), 0x08),
        (0x1_0420, ALL, 0),
        (0x1_0c00, Some(0), 0xaaaa_aaaa),
        // 27 and 30 are backed by hardware.
        (0x1_0c04, ALL, 0xaa2a_aaaa),
        (0x1_0c04, Some(0), 0x2000_0000),
        (0x1_0d00, ALL, 0),
        (0x1_0e00, ALL, 0),
        (0x1_ffe8, None, 0x3b),
    ];
    for (offset, write, read) in rows {
        if let Some(value) = write {
            vm.gicr(1, 1, *offset, *value);
        }
        for reader in [1, 0] {
            let found = vm.gicr_read(reader, 1, *offset);
            assert_eq!(
                found, *read,
                "{offset:#x} {write:x?}: {found:#x} by {reader}"
            );
        }
    }
    for n in 0..3u32 {
        let low = n << 8 | u32::from(n == 2) << 4;
        assert_eq!(vm.gicr_read(0, n as usize, 8), low);
        assert_eq!(vm.gicr_read(0, n as usize, 12), n);
        let at = u64::from(n) * GICR_SIZE + 8;
        let (answer, _) = vm.cpus[0].gicr_read(&vm.dist, &mut vm.boards[0], at, 8);
        assert_eq!(answer, Answer::Value(u64::from(n) << 32 | u64::from(low)));
    }
    assert_eq!(vm.gicr_read(0, 3, 4), 0, "the VM has three");
    vm.gicr(0, 3, 0x1_0100, u32::MAX);
    assert_eq!(vm.gicr_read(0, 0, 0x1_0100), 0);
}

/// All registers with state of a word, each with a different value.
const BANKS: [(u64, u32); 4] = [
    (0x080, 0xf0f0_1234),
    (0x100, 0x0f00_4321),
    (0x200, 0x0030_0000),
    (0x300, 0x0003_0300),
];

#[test]
fn private_state_of_a_gicv3_is_not_in_the_distributor() {
    let mut vm = V3::new(2, 4, &[]);
    for (bank, value) in BANKS {
        vm.gicr(0, 0, 0x1_0000 + bank, value);
    }
    for at in (0..0x20).step_by(4) {
        vm.gicr(0, 0, 0x1_0400 + at, 0x1020_3040);
    }
    for (bank, value) in BANKS {
        assert_eq!(vm.gicr_read(0, 0, 0x1_0000 + bank), value, "{bank:#x}");
        for offset in [bank, bank + 0xc, bank + 0x7c] {
            assert_eq!(vm.gicd_read(0, offset), 0, "{offset:#x}");
            if bank != 0x80 {
                assert_eq!(vm.gicd_read(0, offset + 0x80), 0, "{offset:#x} + 0x80");
            }
        }
        vm.gicd(0, bank, u32::MAX);
        assert_eq!(vm.gicr_read(0, 0, 0x1_0000 + bank), value, "{bank:#x}");
    }
    for bank in [0x180, 0x280, 0x380] {
        vm.gicd(0, bank, u32::MAX);
    }
    for (bank, value) in BANKS {
        assert_eq!(vm.gicr_read(0, 0, 0x1_0000 + bank), value, "{bank:#x}");
    }
    for offset in (0x400..0x420).step_by(4).chain([0xc00, 0xc04]) {
        assert_eq!(vm.gicd_read(0, offset), 0, "{offset:#x}");
        vm.gicd(0, offset, u32::MAX);
    }
    for n in 0..0x20 {
        assert_eq!(vm.gicd_read_sized(0, 0x400 + n, 1), 0, "byte {n}");
        vm.gicd_sized(0, 0x400 + n, 1, 0xff);
    }
    for at in (0..0x20).step_by(4) {
        assert_eq!(vm.gicr_read(0, 0, 0x1_0400 + at), 0x1020_3040);
    }
    assert_eq!(vm.gicr_read(0, 0, 0x1_0c04), 0);
}

fn each_word<const V: bool>() {
    let mut vm = Vm::<V>::new(2, 4, &[]);
    for word in 1..3 {
        for (bank, value) in BANKS {
            vm.bits(0, bank / 0x80, word, value.rotate_left(word as u32));
        }
        for at in 0..2 {
            let value = 0xaaaa_0a0a >> (4 * at) & 0xaaaa_aaaa;
            vm.gicd(0, 0xc00 + 8 * word + 4 * at, value << (2 * (word - 1)));
        }
        for intid in 32 * word as u32..32 * word as u32 + 32 {
            vm.priority(0, intid, (intid % 32) as u8 * 8);
            vm.route(0, intid, intid as usize % 2);
        }
    }
    for word in 1..3 {
        for (bank, value) in BANKS {
            let found = vm.read_bits(1, bank / 0x80, word);
            assert_eq!(found, value.rotate_left(word as u32), "{bank:#x} {word}");
            if bank != 0x80 {
                assert_eq!(vm.read_bits(1, bank / 0x80 + 1, word), found);
            }
        }
        for at in 0..2 {
            let value = (0xaaaa_0a0a_u32 >> (4 * at) & 0xaaaa_aaaa) << (2 * (word - 1));
            assert_eq!(vm.gicd_read(1, 0xc00 + 8 * word + 4 * at), value);
        }
        for n in 32 * word..32 * word + 32 {
            let priority = (n * 8) & 0xf8;
            assert_eq!(vm.gicd_read_sized(1, 0x400 + n, 1), priority, "{n}");
            let route = n % 2;
            if V {
                assert_eq!(vm.gicd_read_sized(1, 0x800 + n, 1), 1 << route, "{n}");
            } else {
                assert_eq!(vm.gicd_read_sized(1, 0x6000 + 8 * n, 8), route, "{n}");
            }
        }
    }
}

#[test]
fn words_of_spis_do_not_mix() {
    each_word::<true>();
    each_word::<false>();
}

/// Reads and writes all offsets in all sizes: each access completes, and unknown registers read as
/// zero.
fn sweep<const V: bool>() {
    let mut vm = Vm::<V>::new(2, 4, &[(40, 140, false)]);
    for offset in (0..0x1_0000).chain(0x1_0000..0x1_1000) {
        for size in [1, 2, 4, 8] {
            for value in [0, u64::MAX] {
                vm.gicd_sized(0, offset, size, value);
                vm.gicd_read_sized(0, offset, size);
            }
            if size == 2 {
                assert_eq!(vm.gicd_read_sized(0, offset, size), 0, "{offset:#x}");
            }
        }
        vm.drain(0);
    }
    for offset in (0..3 * GICR_SIZE).step_by(4) {
        let (cpu, dist, board) = (&mut vm.cpus[1], &vm.dist, &mut vm.boards[1]);
        for size in [1, 2, 4, 8] {
            let (_, notify) = cpu.gicr_write(dist, board, offset, size, u64::MAX);
            vm.inbox |= notify;
            let (_, notify) = cpu.gicr_read(dist, board, offset, size);
            vm.inbox |= notify;
        }
    }
    vm.settle();
}

#[test]
fn every_register_in_every_size() {
    sweep::<true>();
    sweep::<false>();
}
