//! Tests of the registers one by one: what the guest reads, and what happens in the physical GIC.

use super::board::Board;
use super::{filter, is_of_vm, kinds};
use crate::gppt::{Answer, Filter, View};
use crate::vgic::Version::{self, V2, V3};

/// A guest and a physical GIC behind its filter.
struct Machine {
    filter: Filter<(Version, View)>,
    board: Board,
}

impl Machine {
    fn new(version: Version, view: View, count: usize) -> Self {
        Self {
            filter: filter(version, view, count),
            board: Board::new(version),
        }
    }

    fn read(&self, offset: u64, size: u64) -> u64 {
        self.board
            .answer(&self.filter, self.filter.gicd_read(offset, size))
    }

    fn write(&mut self, offset: u64, size: u64, value: u64) {
        self.filter.gicd_write(&mut self.board, offset, size, value);
    }

    /// Reads a word of a bank; on a GICv3 word 0 is in the redistributor.
    fn word(&self, offset: u64) -> u64 {
        if self.board.version == V3 && offset & 0x7f == 0 {
            return self.private(0x1_0000 + offset, 4);
        }
        self.read(offset, 4)
    }

    fn set_word(&mut self, offset: u64, value: u64) {
        if self.board.version == V3 && offset & 0x7f == 0 {
            return self.set_private(0x1_0000 + offset, 4, value);
        }
        self.write(offset, 4, value);
    }

    fn private(&self, offset: u64, size: u64) -> u64 {
        self.board
            .answer(&self.filter, self.filter.gicr_read(offset, size))
    }

    fn set_private(&mut self, offset: u64, size: u64, value: u64) {
        self.filter.gicr_write(&mut self.board, offset, size, value);
    }
}

fn machines() -> impl Iterator<Item = Machine> {
    kinds().map(|(version, view, count)| Machine::new(version, view, count))
}

fn vm_words() -> [u64; 4] {
    let mut words = [0; 4];
    for intid in (0..128).filter(|intid| is_of_vm(*intid)) {
        words[intid / 32] |= 1 << (intid % 32);
    }
    words
}

#[test]
fn enables_act_on_the_board_while_the_guests_group_is_on() {
    for mut guest in machines() {
        let group = if guest.board.version == V2 { 1 } else { 2 };
        let on = |guest: &Machine| {
            (0..320)
                .filter(|intid| guest.board.irqs[*intid].enabled)
                .collect::<std::vec::Vec<_>>()
        };
        guest.set_word(0x100, 0xffff_ffff);
        guest.set_word(0x104, 1 << 2 | 1 << 3);
        assert_eq!(on(&guest), [], "the group is off");
        assert_eq!(guest.word(0x100), vm_words()[0]);
        assert_eq!(guest.word(0x184), 1 << 2);
        guest.write(0, 4, group);
        assert_eq!(on(&guest), [0, 1, 2, 3, 4, 5, 6, 7, 27, 30, 34]);
        assert_eq!(guest.read(0, 4) & 3, group);
        guest.set_word(0x10c, 0xffff_ffff);
        guest.set_word(0x108, 0xffff_ffff);
        guest.set_word(0x180, !(1 << 27));
        assert_eq!(on(&guest), [27, 34, 95]);
        guest.write(0, 4, 0);
        assert_eq!(on(&guest), []);
        assert_eq!(
            guest.word(0x108),
            1 << 31,
            "kept for the time when the group is on again"
        );
        guest.set_word(0x188, 1 << 31);
        guest.write(0, 4, group);
        assert_eq!(on(&guest), [27, 34]);
        guest.filter.reset();
        assert_eq!(guest.word(0x100), 0);
        assert_eq!(guest.read(0, 4) & 3, 0);
    }
}

#[test]
fn pending_and_active_bits_are_the_boards() {
    for mut guest in machines() {
        for irq in &mut guest.board.irqs {
            irq.pending = true;
            irq.active = true;
        }
        for (word, own) in vm_words().into_iter().enumerate() {
            let at = 4 * word as u64;
            for bank in [0x200, 0x280, 0x300, 0x380] {
                assert_eq!(guest.word(bank + at), own, "{bank:#x} {word}");
            }
            guest.set_word(0x280 + at, 0xffff_ffff);
            guest.set_word(0x380 + at, 0xffff_ffff);
        }
        // On a GICv2 pending bits of SGIs cannot be written.
        let is_fixed = |intid: usize| guest.board.version == V2 && intid < 16;
        for (intid, irq) in guest.board.irqs.iter().enumerate() {
            assert_eq!(irq.pending, !is_of_vm(intid) || is_fixed(intid), "{intid}");
            assert_eq!(irq.active, !is_of_vm(intid), "{intid}");
        }
        guest.set_word(0x204, 0xffff_ffff);
        guest.set_word(0x304, 0xffff_ffff);
        assert_eq!(guest.word(0x284), vm_words()[1]);
        assert_eq!(guest.word(0x384), vm_words()[1]);
        assert!(!guest.board.irqs[63].active || guest.board.irqs[63].pending);
    }
}

#[test]
fn priorities_of_the_upper_half_look_whole() {
    let mut guest = Machine::new(V3, View::Upper, 1);
    guest.write(0x420, 4, 0x50_40_30_20);
    let on_board = [32, 33, 34, 35].map(|n| guest.board.irqs[n].priority);
    assert_eq!(
        on_board,
        [0x80, 0x98, 0xa0, 0x80],
        "33 and 34 are the guest's"
    );
    assert_eq!(guest.read(0x420, 4), 0x00_40_30_00);
    guest.write(0x421, 1, 0xff);
    assert_eq!(guest.board.irqs[33].priority, 0xff);
    assert_eq!(guest.read(0x421, 1), 0xfe, "a bit of precision is EL2's");
    guest.set_private(0x1_041b, 1, 0);
    assert_eq!(guest.board.irqs[27].priority, 0x80);
    guest.set_private(0x1_0418, 4, 0x1000_0000);
    assert_eq!(guest.board.irqs[27].priority, 0x88);
    assert_eq!(guest.private(0x1_0418, 4), 0x1000_0000);
    assert_eq!(guest.private(0x1_041b, 1), 0x10);
    // The distributor of a GICv3 has no priorities of private interrupts.
    guest.write(0x418, 4, 0);
    assert_eq!(guest.board.irqs[27].priority, 0x88);
    // A priority of EL2 does not show.
    guest.board.irqs[33].priority = 0;
    assert_eq!(guest.read(0x421, 1), 0);
    for (size, offset) in [(2, 0x420), (8, 0x420), (4, 0x421)] {
        guest.write(offset, size, u64::MAX);
        assert_eq!(guest.read(offset, size), 0);
        assert_eq!(guest.board.irqs[34].priority, 0xa0);
    }
}

#[test]
fn plain_priorities_are_those_of_the_board() {
    for version in [V2, V3] {
        let mut guest = Machine::new(version, View::Plain, 1);
        guest.write(0x420, 4, 0x50_40_30_20);
        assert_eq!(guest.board.irqs[33].priority, 0x30);
        assert_eq!(guest.read(0x420, 4), 0x0040_3000);
        guest.write(0x41b, 1, 0x70);
        assert_eq!(guest.board.irqs[27].priority == 0x70, version == V2);
    }
}

#[test]
fn triggers_are_the_plans() {
    for mut guest in machines() {
        guest.board.irqs[33].edge = true;
        guest.board.irqs[35].edge = true;
        guest.write(0xc08, 4, 0xffff_ffff);
        assert_eq!(guest.read(0xc08, 4), 1 << 3, "INTID 33 alone");
        assert!(!guest.board.irqs[34].edge);
        guest.board.irqs[3].edge = true;
        let sgis = if guest.board.version == V2 {
            guest.read(0xc00, 4)
        } else {
            assert_eq!(guest.read(0xc00, 4), 0);
            guest.private(0x1_0c00, 4)
        };
        assert_eq!(sgis, 1 << 7);
    }
}

#[test]
fn routes_lead_to_the_vms_own_pcpus() {
    let mut guest = Machine::new(V3, View::Upper, 2);
    let at = 0x6000 + 8 * 33;
    assert_eq!(guest.read(at, 8), 0);
    guest.write(at, 8, 1);
    assert_eq!(guest.board.irqs[33].route, 2);
    assert_eq!(guest.read(at, 8), 1);
    assert_eq!(guest.read(at, 4), 1);
    assert_eq!(guest.read(at + 4, 4), 0);
    // 1-of-N, a vCPU that does not exist, a physical affinity, and the upper half of the register.
    for (size, offset, value) in [
        (8, at, 2),
        (8, at, 0x1_0003),
        (8, at, 1 << 32),
        (4, at + 4, 0),
    ] {
        guest.write(offset, size, value);
        assert_eq!(guest.board.irqs[33].route, 2, "{value:#x}");
    }
    guest.write(at, 8, 1 << 31);
    assert_eq!(
        guest.board.irqs[33].route, 0x1_0003,
        "without its routing mode"
    );
    guest.write(at, 4, 1);
    assert_eq!(guest.board.irqs[33].route, 2);
    guest.write(0x6000 + 8 * 35, 8, 1);
    assert_eq!(guest.board.irqs[35].route, 0x1_0003, "not the VM's");
    guest.write(0x6000 + 8 * 27, 8, 1);
    assert_eq!(guest.board.irqs[27].route, 0x1_0003, "PPIs have no route");
}

#[test]
fn who_sends_sgis_to_the_boards_cpus_knows_them_by_the_boards_names() {
    let mut guest = Machine::new(V3, View::Plain, 2);
    let at = 0x6000 + 8 * 33;
    assert_eq!(guest.read(at, 8), 0x1_0003);
    guest.write(at, 8, 2);
    assert_eq!(guest.board.irqs[33].route, 2);
    assert_eq!(guest.read(at, 8), 2);
    for stranger in [0, 1, 3, 0x1_0002] {
        guest.write(at, 8, stranger);
        assert_eq!(guest.board.irqs[33].route, 2, "{stranger:#x}");
    }
    let typer = |machine: &Machine| {
        let vcpus = [0, 0x2_0000].map(|frame| machine.filter.gicr_read(frame + 8, 8));
        vcpus.map(|answer| match answer {
            crate::gppt::Answer::Value(value) => value >> 32,
            crate::gppt::Answer::Read(_) => panic!("it is made up"),
        })
    };
    assert_eq!(typer(&guest), [0x1_0003, 2]);
    assert_eq!(typer(&Machine::new(V3, View::Upper, 2)), [0, 1]);
}

#[test]
fn targets_of_a_gicv2_are_vcpus() {
    let mut guest = Machine::new(V2, View::Plain, 2);
    assert_eq!(guest.read(0x820, 4), 0x0001_0100);
    guest.write(0x820, 4, 0x0703_0202);
    assert_eq!(guest.board.irqs[33].targets, 0x02);
    assert_eq!(guest.board.irqs[34].targets, 0x12);
    assert_eq!(guest.read(0x820, 4), 0x0003_0200);
    assert_eq!(guest.board.irqs[35].targets, 0x10);
    guest.write(0x81b, 1, 2);
    assert_eq!(
        guest.board.irqs[27].targets, 0x10,
        "those of private interrupts are fixed"
    );
    let mut alone = Machine::new(V2, View::Plain, 1);
    alone.write(0x820, 4, 0);
    assert_eq!(alone.read(0x820, 4), 0);
    assert_eq!(alone.board.irqs[33].targets, 0x10);
}

#[test]
fn sgis_of_a_gicv2_keep_their_senders() {
    let mut guest = Machine::new(V2, View::Plain, 2);
    guest.write(0xf24, 4, 0x0000_0301);
    assert_eq!(guest.board.irqs[4].sources, 0x10);
    assert_eq!(guest.board.irqs[5].sources, 0x12);
    assert_eq!(guest.read(0xf14, 4), 0x0000_0301);
    guest.write(0xf15, 1, 2);
    assert_eq!(guest.read(0xf24, 4), 0x0000_0101);
    guest.write(0xf2f, 1, 0xff);
    assert_eq!(guest.board.irqs[15].sources, 0, "EL2's");
    guest.write(0xf00, 4, 0x0002_0003);
    guest.write(0xf00, 4, 0x0100_0003);
    guest.write(0xf00, 4, 0x0200_0003);
    guest.write(0xf00, 4, 0x00ff_000f);
    guest.write(0xf00, 4, 0x0300_0003);
    assert_eq!(guest.board.sgis, [0x0002_0003, 0x0002_0003, 0x0010_0003]);
}

#[test]
fn identification_and_control_are_those_of_the_view() {
    let upper = Machine::new(V3, View::Upper, 2);
    assert_eq!(upper.read(0, 4), 0x10);
    assert_eq!(upper.read(4, 4), 2 | 1 << 10 | 9 << 19 | 1 << 25);
    assert_eq!(upper.read(0xffe8, 4), 0x3b);
    assert_eq!(upper.word(0x80), 0);
    assert_eq!(upper.private(0x8, 8), 0);
    assert_eq!(upper.private(0x2_0008, 8), 1 << 32 | 1 << 8 | 1 << 4);
    assert_eq!(upper.private(0x2_000c, 4), 1);
    assert_eq!(upper.private(0x4_0008, 8), 0);
    assert_eq!(
        upper.private(0x14, 4),
        0,
        "GICR_WAKER belongs to the Secure side"
    );
    let plain = Machine::new(V3, View::Plain, 1);
    assert_eq!(plain.read(0, 4), 0x50);
    assert_eq!(plain.read(4, 4), 2 | 9 << 19 | 1 << 25);
    assert_eq!(plain.word(0x80), vm_words()[0]);
    let second = Machine::new(V2, View::Plain, 2);
    assert_eq!(second.read(0, 4), 0);
    assert_eq!(second.read(4, 4), 2 | 1 << 5);
    assert_eq!(second.read(0xfe8, 4), 0x2b);
    assert_eq!(second.read(0xffe8, 4), 0);
    for mut guest in machines() {
        for offset in [4, 8, 0x40, 0x48, 0x80, 0x84] {
            let before = guest.read(offset, 4);
            guest.write(offset, 4, 0xffff_ffff);
            assert_eq!(guest.read(offset, 4), before);
        }
    }
}

#[test]
fn a_write_that_is_not_in_effect_shows() {
    let mut guest = Machine::new(V3, View::Upper, 1);
    guest.board.rwp = true;
    assert_eq!(guest.read(0, 4), 1 << 31 | 0x10);
    assert_eq!(guest.private(0, 4), 1 << 3);
}

#[test]
fn a_siblings_redistributor_says_whose_it_is_and_no_more() {
    let mut guest = Machine::new(V3, View::Upper, 2);
    guest.board.irqs[27].pending = true;
    guest.set_private(0x3_0100, 4, 0xffff_ffff);
    assert_eq!(guest.private(0x3_0100, 4), 0);
    assert_eq!(guest.private(0x1_0100, 4), 0);
    assert_eq!(guest.private(0x3_0200, 4), 0);
    assert_eq!(guest.private(0x1_0200, 4), 1 << 27);
    assert_eq!(guest.private(0x2_ffe8, 4), 0x3b);
}

#[test]
fn what_is_not_the_guests_does_not_ask_the_board() {
    let guest = Machine::new(V3, View::Upper, 1);
    for offset in [0x20c, 0x304 + 8, 0x440, 0xc20, 0x6000 + 8 * 40] {
        assert_eq!(
            guest.filter.gicd_read(offset, 4),
            Answer::ZERO,
            "{offset:#x}"
        );
    }
}

#[test]
fn private_interrupts_of_a_gicv3_are_in_the_redistributor_alone() {
    let mut guest = Machine::new(V3, View::Upper, 1);
    guest.write(0, 4, 2);
    guest.set_private(0x1_0100, 4, 0xffff_ffff);
    for offset in [0x180, 0x200, 0x300] {
        guest.write(offset, 4, 0xffff_ffff);
        assert_eq!(guest.read(offset, 4), 0);
    }
    let timer = guest.board.irqs[27];
    assert!(timer.enabled && !timer.pending && !timer.active);
}
