//! Device trees of boards, and broken ones.

use super::*;
use bulkhead_abi::plan::UartKind;
use std::vec::Vec;

/// Reads a tree as a build of EL2 with the PL011 driver.
fn read(tree: &[u8]) -> Option<BootTree<'_>> {
    BootTree::read(tree, UartKind::Pl011.words())
}

/// A writer of flattened trees, as far as the tests need it.
#[derive(Default)]
struct Writer {
    structure: Vec<u8>,
    strings: Vec<u8>,
}

impl Writer {
    fn word(&mut self, value: u32) {
        self.structure.extend(value.to_be_bytes());
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.structure.extend(bytes);
        self.structure
            .resize(self.structure.len().next_multiple_of(4), 0);
    }

    fn node(&mut self, name: &str, inside: impl FnOnce(&mut Self)) {
        self.word(BEGIN_NODE);
        self.padded(&[name.as_bytes(), &[0]].concat());
        inside(self);
        self.word(END_NODE);
    }

    fn property(&mut self, name: &str, value: &[u8]) {
        self.word(PROP);
        self.word(value.len() as u32);
        self.word(self.strings.len() as u32);
        self.strings.extend(name.as_bytes());
        self.strings.push(0);
        self.padded(value);
    }

    fn cells(&mut self, name: &str, cells: &[u32]) {
        let value: Vec<u8> = cells.iter().flat_map(|cell| cell.to_be_bytes()).collect();
        self.property(name, &value);
    }

    fn finish(mut self) -> Vec<u8> {
        self.word(9);
        let (structure, strings) = (56, 56 + self.structure.len());
        let words = [
            0xd00d_feed,
            strings + self.strings.len(),
            structure,
            strings,
            40,
            17,
            16,
            0,
        ];
        let mut tree: Vec<u8> = words
            .iter()
            .flat_map(|word| (*word as u32).to_be_bytes())
            .collect();
        tree.extend((self.strings.len() as u32).to_be_bytes());
        tree.extend((self.structure.len() as u32).to_be_bytes());
        tree.resize(56, 0);
        tree.extend(self.structure);
        tree.extend(self.strings);
        tree
    }
}

/// The tree of QEMU's `virt` with a GIC of this version.
fn virt(version: u32) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.node("", |w| {
        w.cells("#address-cells", &[2]);
        w.cells("#size-cells", &[2]);
        w.node("pl011@9000000", |w| {
            w.property("compatible", b"arm,pl011\0arm,primecell\0");
            w.cells("reg", &[0, 0x900_0000, 0, 0x1000]);
            w.cells("interrupts", &[0, 1, 4]);
        });
        w.node("pl011@9040000", |w| {
            w.property("compatible", b"arm,pl011\0arm,primecell\0");
            w.cells("reg", &[0, 0x904_0000, 0, 0x1000]);
            w.cells("interrupts", &[0, 8, 4]);
        });
        w.node("memory@40000000", |w| {
            w.cells("reg", &[0, 0x4000_0000, 0, 0x8000_0000]);
            w.property("device_type", b"memory\0");
        });
        w.node("reserved-memory", |w| {
            w.cells("#address-cells", &[1]);
            w.cells("#size-cells", &[1]);
            w.node("secure@4e000000", |w| {
                w.cells("reg", &[0x4e00_0000, 0x10_0000])
            });
        });
        w.node("intc@8000000", |w| {
            w.cells("interrupts", &[1, 9, 4]);
            if version == 2 {
                w.property("compatible", b"arm,cortex-a15-gic\0");
                let frames = [0x800_0000, 0x801_0000, 0x803_0000, 0x804_0000];
                w.cells("reg", &frames.map(|base| [0, base, 0, 0x1_0000]).concat());
                return;
            }
            w.property("compatible", b"arm,gic-v3\0");
            w.cells(
                "reg",
                &[0, 0x800_0000, 0, 0x1_0000, 0, 0x80a_0000, 0, 0xf6_0000],
            );
            w.node("its@8080000", |w| {
                w.property("compatible", b"arm,gic-v3-its\0")
            });
        });
        w.node("pl031@9010000", |w| {
            w.property("compatible", b"arm,pl031\0arm,primecell\0");
            w.cells("reg", &[0, 0x901_0000, 0, 0x1000]);
            w.cells("interrupts", &[0, 2, 4]);
        });
        w.node("pl031@9990000", |w| {
            w.property("compatible", b"arm,pl031\0");
            w.cells("reg", &[0, 0x999_0000, 0, 0x1000]);
        });
        w.node("cpus", |w| {
            w.cells("#address-cells", &[1]);
            w.cells("#size-cells", &[0]);
            for n in 0..2 {
                w.node("cpu", |w| {
                    w.property("device_type", b"cpu\0");
                    w.cells("reg", &[0x8000_0000 | n]);
                });
            }
        });
        w.node("timer", |w| {
            w.property("compatible", b"arm,armv8-timer\0arm,armv7-timer\0");
            w.cells("interrupts", &[1, 13, 4, 1, 14, 4, 1, 11, 4, 1, 10, 4]);
        });
        w.node("chosen", |w| {
            w.property("stdout-path", b"/pl011@9040000:115200\0");
            w.property("rng-seed", &[7; 32]);
            w.property("serial", b"/pl011@9000000\0");
            w.property("random", &[8; 32]);
        });
        w.node("firmware", |w| {
            w.property("stdout-path", b"/pl011@9000000\0");
            w.property("rng-seed", &[9; 32]);
        });
    });
    writer.finish()
}

#[test]
fn one_pass_finds_what_the_plan_is_compared_with() {
    let bytes = virt(3);
    let tree = read(&bytes).unwrap();
    let found = tree.found(0, 0x4020_0000);
    assert_eq!(
        found.memory,
        [Memory {
            base: 0x4000_0000,
            size: 0x8000_0000
        }]
    );
    assert_eq!(
        found.reserved,
        [Memory {
            base: 0x4e00_0000,
            size: 0x10_0000
        }]
    );
    assert_eq!(found.cpus, [(0, 0), (1, 0)], "affinity fields only");
    assert_eq!(found.gicd, (0x800_0000, 0x1_0000));
    assert_eq!(found.gicr, (0x80a_0000, 0xf6_0000));
    let none = [found.gicc, found.gich, found.gicv];
    assert_eq!((found.gic_version, none), (3, [(0, 0); 3]));
    let ppis = [
        found.maintenance_intid,
        found.hyp_timer_intid,
        found.vtimer_intid,
        found.ptimer_intid,
    ];
    assert_eq!(ppis, [25, 26, 27, 30]);
    assert!(!found.more_reserved);
    assert_eq!(found.rtc, 0x901_0000);
    assert_eq!((found.uart, found.uart_intid), ((0x904_0000, 0x1000), 40));
    assert_eq!(
        (tree.uart(), tree.rng_seed),
        (Some(0x904_0000), &[7; 32][..])
    );
}

#[test]
fn a_gicv2_has_other_frames() {
    let bytes = virt(2);
    let tree = read(&bytes).unwrap();
    let found = tree.found(0, 0x4020_0000);
    assert_eq!((found.gic_version, found.maintenance_intid), (2, 25));
    assert_eq!(found.gicd, (0x800_0000, 0x1_0000));
    assert_eq!(found.gicr, (0, 0));
    assert_eq!(found.gicc, (0x801_0000, 0x1_0000));
    assert_eq!(found.gich, (0x803_0000, 0x1_0000));
    assert_eq!(found.gicv, (0x804_0000, 0x1_0000));
}

/// A tree with `block` reserved ranges in its reservation block and `nodes` of them in nodes.
fn reserving(block: usize, nodes: usize) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.node("", |w| {
        w.cells("#address-cells", &[2]);
        w.cells("#size-cells", &[2]);
        w.node("reserved-memory", |w| {
            w.cells("#address-cells", &[1]);
            w.cells("#size-cells", &[1]);
            for n in 0..nodes {
                w.node("kept", |w| w.cells("reg", &[0x4e00_0000 + n as u32, 1]));
            }
        });
    });
    let mut tree = writer.finish();
    // A separate reservation block at the end.
    let at = tree.len() as u32;
    tree[16..20].copy_from_slice(&at.to_be_bytes());
    for n in 0..block as u64 {
        tree.extend((0x4000_0000 + n).to_be_bytes());
        tree.extend(1_u64.to_be_bytes());
    }
    tree.extend([0; 16]);
    tree
}

#[test]
fn more_reserved_ranges_than_are_kept_are_not_forgotten() {
    for (block, nodes, more) in [
        (KEPT, 0, false),
        (0, KEPT, false),
        (KEPT / 2, KEPT / 2, false),
        (KEPT + 1, 0, true),
        (0, KEPT + 1, true),
        (KEPT, 1, true),
    ] {
        let bytes = reserving(block, nodes);
        let tree = read(&bytes).unwrap();
        let found = tree.found(0, 0);
        assert_eq!(found.more_reserved, more, "{block} and {nodes}");
        assert_eq!(found.reserved.len(), (block + nodes).min(KEPT));
    }
}

#[test]
fn a_broken_tree_is_no_tree() {
    let good = virt(2);
    assert!(read(&[]).is_none());
    assert!(read(&[0; 64]).is_none());
    for cut in 0..good.len() {
        // A truncated tree may still have a whole structure block; it must never fail in another
        // way.
        let _ = read(&good[..cut]);
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0xff;
        let _ = read(&bad);
    }
}

/// A bus: cells of an address and of a size below it, and its ranges as cells, if it has any.
type Bus<'a> = (u32, u32, Option<&'a [u32]>);

/// A tree with these buses, each below the one before, and a UART and a clock below the last, with
/// these cells as registers.
fn behind(buses: &[Bus], registers: &[u32], stdout: &str) -> Vec<u8> {
    fn below(w: &mut Writer, buses: &[Bus], registers: &[u32]) {
        let Some(((address, size, ranges), rest)) = buses.split_first() else {
            w.node("serial@0", |w| {
                w.property("compatible", b"vendor,uart\0arm,pl011\0");
                w.cells("reg", registers);
                w.cells("interrupts", &[0, 8, 4]);
            });
            return w.node("rtc@0", |w| {
                w.cells("reg", registers);
                w.property("compatible", b"arm,pl031\0");
            });
        };
        w.node("bus", |w| {
            w.cells("#address-cells", &[*address]);
            w.cells("#size-cells", &[*size]);
            if let Some(ranges) = ranges {
                w.cells("ranges", ranges);
            }
            below(w, rest, registers);
        });
    }
    let mut writer = Writer::default();
    writer.node("", |w| {
        w.cells("#address-cells", &[2]);
        w.cells("#size-cells", &[2]);
        w.node("chosen", |w| {
            w.property("stdout-path", &[stdout.as_bytes(), &[0]].concat());
        });
        w.node("aliases", |w| {
            w.property("serial10", b"/bus/other@0\0");
            w.word(NOP);
            w.property("serial1", b"/bus/serial@0\0");
            w.property("short", b"/serial\0");
        });
        below(w, buses, registers);
        // Not the aliases of the board.
        w.node("bus", |w| {
            w.node("aliases", |w| w.property("serial2", b"/serial@0\0"))
        });
    });
    writer.finish()
}

/// The frames of the UART and the clock of such a tree.
fn found(buses: &[Bus], registers: &[u32]) -> ((u64, u64), u64) {
    let bytes = behind(buses, registers, "/bus/serial@0");
    let tree = read(&bytes).unwrap();
    let found = tree.found(0, 0);
    (found.uart, found.rtc)
}

#[test]
fn addresses_go_through_the_ranges_of_all_buses_above() {
    let identity: Bus = (2, 2, Some(&[]));
    assert_eq!(
        found(&[], &[0, 0x9000, 0, 0x1000]),
        ((0x9000, 0x1000), 0x9000)
    );
    assert_eq!(
        found(&[identity], &[0, 0x9000, 0, 0x1000]),
        ((0x9000, 0x1000), 0x9000)
    );
    // As on a Raspberry Pi 4: the second of three ranges.
    let pi: Bus = (
        1,
        1,
        Some(&[
            0x7e00_0000,
            0,
            0xfe00_0000,
            0x180_0000,
            0x7c00_0000,
            0,
            0xfc00_0000,
            0x200_0000,
            0x4000_0000,
            0,
            0xff80_0000,
            0x80_0000,
        ]),
    );
    // A UART of 512 bytes gets its whole page.
    let uart = (0xfe20_1000, 0x1000);
    assert_eq!(found(&[pi], &[0x7e20_1000, 0x200]), (uart, uart.0));
    assert_eq!(found(&[pi], &[0x4001_0000, 0x1000]).1, 0xff81_0000);
    // Two buses, each with its own cells, and one without translation between them.
    let outer: Bus = (1, 1, Some(&[0x1000, 0x8, 0, 0x10_0000]));
    let inner: Bus = (2, 1, Some(&[0xa, 0, 0x2000, 0x4000]));
    let between: Bus = (1, 1, Some(&[]));
    let registers = [0xa, 0x3000, 0x1000];
    assert_eq!(
        found(&[outer, between, inner], &registers).0,
        (0x8_0000_4000, 0x1000)
    );
}

#[test]
fn what_no_bus_maps_has_no_address() {
    let registers = [0, 0x9000, 0, 0x1000];
    let nowhere = ((0, 0), 0);
    assert_eq!(found(&[(2, 2, None)], &registers), nowhere);
    let identity: Bus = (2, 2, Some(&[]));
    assert_eq!(found(&[(2, 2, None), identity], &registers), nowhere);
    for ranges in [
        // The range begins after the registers, ends in the middle of them, is empty.
        &[0, 0xa000, 0, 0, 0, 0x1000][..],
        &[0, 0x9000, 0, 0, 0, 0xfff],
        &[0, 0, 0, 0, 0, 0],
        // At the parent's address the registers go beyond the last address.
        &[0, 0, u32::MAX, u32::MAX, 0, 0x1_0000],
        // An incomplete range does not count.
        &[0, 0x9000, 0, 0, 0],
    ] {
        assert_eq!(
            found(&[(2, 2, Some(ranges))], &registers),
            nowhere,
            "{ranges:?}"
        );
    }
    let end = [u32::MAX, 0xffff_f000, 0, 0x2000];
    let all: Bus = (2, 2, Some(&[0, 0, 0, 0, u32::MAX, u32::MAX]));
    assert_eq!(found(&[all], &end), nowhere);
    // More cells than an address can have; no cells at all, which would be an endless list of
    // ranges.
    for cells in [3, 4, u32::MAX] {
        let bus: Bus = (cells, 2, Some(&[0; 32]));
        assert_eq!(found(&[bus], &[0; 8]), nowhere);
        let bus: Bus = (2, cells, Some(&[0; 32]));
        assert_eq!(found(&[bus], &[0; 8]), nowhere);
    }
    let none: Bus = (0, 0, Some(&[1]));
    assert_eq!(found(&[none, none], &registers), nowhere);
}

#[test]
fn the_first_range_that_has_it_counts() {
    let ranges = [
        0, 0x9000, 1, 0, 0, 0x800, 0, 0x8000, 2, 0, 0, 0x4000, 0, 0x9000, 3, 0, 0, 0x1000,
    ];
    let registers = [0, 0x9000, 0, 0x1000];
    let (uart, _) = found(&[(2, 2, Some(&ranges))], &registers);
    assert_eq!(uart, (0x2_0000_1000, 0x1000));
}

#[test]
fn a_console_may_be_named_by_an_alias() {
    let console = |stdout: &str| {
        let bytes = behind(&[], &[0, 0x9000, 0, 0x1000], stdout);
        let tree = read(&bytes).unwrap();
        tree.uart()
    };
    assert_eq!(console("serial1:115200n8"), Some(0x9000));
    assert_eq!(console("serial1"), Some(0x9000));
    assert_eq!(console("/bus/serial@0:115200"), Some(0x9000));
    for other in ["serial", "serial10", "serial2", "short", "", ":", "/"] {
        assert_eq!(console(other), None, "{other}");
    }
}

#[test]
fn a_build_sees_uarts_of_its_kind_alone() {
    let bytes = behind(&[], &[0, 0x9000, 0, 0x1000], "serial1");
    for kind in UartKind::ALL {
        let tree = BootTree::read(&bytes, kind.words()).unwrap();
        assert_eq!(tree.uart().is_some(), kind == UartKind::Pl011, "{kind:?}");
    }
}

#[test]
fn a_cpu_waits_for_its_address_where_its_method_says_so() {
    let mut writer = Writer::default();
    writer.node("", |w| {
        w.node("cpus", |w| {
            w.cells("#address-cells", &[1]);
            w.cells("#size-cells", &[0]);
            for (n, method) in ["spin-table", "psci", "spin-table-2", ""]
                .iter()
                .enumerate()
            {
                w.node("cpu", |w| {
                    w.property("device_type", b"cpu\0");
                    w.cells("cpu-release-addr", &[1, 0xd8 + 8 * n as u32]);
                    w.property("enable-method", &[method.as_bytes(), &[0]].concat());
                    w.cells("reg", &[n as u32]);
                });
            }
            // Without a release address, and with half of one.
            for cells in [&[][..], &[0xd8]] {
                w.node("cpu", |w| {
                    w.property("device_type", b"cpu\0");
                    w.property("enable-method", b"spin-table\0");
                    w.cells("cpu-release-addr", cells);
                    w.cells("reg", &[9]);
                });
            }
        });
    });
    let bytes = writer.finish();
    let tree = read(&bytes).unwrap();
    let cpus = [(0, 0x1_0000_00d8), (1, 0), (2, 0), (3, 0), (9, 0), (9, 0)];
    assert_eq!(tree.found(0, 0).cpus, cpus);
}

#[test]
fn interrupts_of_a_timer_have_three_cells_or_four() {
    for (cells, interrupts) in [(3, 4), (3, 5), (4, 4), (4, 5)] {
        let one = |n: u32| [1, 10 + n, 4, 0].into_iter().take(cells);
        let all: Vec<u8> = (0..interrupts)
            .flat_map(one)
            .flat_map(u32::to_be_bytes)
            .collect();
        for n in 0..interrupts {
            let found = super::intid(&all, n as usize);
            assert_eq!(found, Some(26 + n), "{cells} cells, {interrupts}");
        }
    }
}
