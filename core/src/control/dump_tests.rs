//! Memory and registers of VMs that do not run, as managers read them.

use std::vec::Vec;

use bulkhead_abi::control::{DATA, Kind, Message, Status, registers, right};
use bulkhead_abi::plan::{Class, Region, RegionKind};

use super::test_world::{Fake, World, request};
use crate::cpu::power::{End, Phase};
use crate::monitor::{Registers, Sample};

fn down() -> World {
    let mut world = World::new(Fake::new(right::DUMP, Class::General));
    world.board.phase = Phase::Down;
    world
}

fn ask(world: &mut World, kind: Kind, first: u64, second: u64) -> Option<Message> {
    world.ask(&request(kind, [first, second, 0, 0]), 48)
}

fn read(world: &mut World, ipa: u64, most: u64) -> Message {
    ask(world, Kind::Memory, ipa, most).expect("at once")
}

/// The row of its first vCPU.
fn row(world: &World) -> usize {
    let mut rows = world.board.plan.vcpus.iter();
    rows.position(|row| row.vm == 1).expect("it has one")
}

fn ram(world: &World) -> Vec<Region> {
    let rows = world.board.plan.regions_of(1).iter();
    rows.filter(|row| row.kind == RegionKind::Ram as u16)
        .copied()
        .collect()
}

#[test]
fn all_ram_of_a_vm_is_read_and_nothing_else() {
    let mut world = down();
    let rows = ram(&world);
    let others = world.board.plan.regions_of(1).len() - rows.len();
    assert!(!rows.is_empty() && others != 0, "memory of others, too");
    let mut next = 0;
    let mut left: u64 = rows.iter().map(|row| row.size).sum();
    loop {
        let answer = read(&mut world, next, DATA as u64);
        let [ipa, behind, life, ..] = answer.values;
        let data = u64::from(answer.data);
        assert_eq!((answer.status, life), (0, 3));
        if behind == 0 {
            break;
        }
        assert!(data != 0 && data <= DATA as u64 && data <= behind);
        world.copy(16, 8);
        let (pa, to, bytes) = *world.board.copied.last().expect("a copy");
        assert_eq!((to, bytes), (0x9000, 8));
        let first = pa - 16;
        let row = { rows.iter() }.find(|row| (row.ipa..row.ipa + row.size).contains(&ipa));
        let row = row.expect("in its RAM");
        assert_eq!(first, row.pa + (ipa - row.ipa));
        assert_eq!(behind, row.size - (ipa - row.ipa));
        let block = 2 << 20;
        assert_eq!(first / block, (first + data - 1) / block, "in one window");
        left -= data;
        next = ipa + data;
    }
    assert_eq!(left, 0);
    // Where it is can be asked for without bytes of it.
    let answer = read(&mut world, 0, 0);
    assert_eq!((answer.data, answer.values[0]), (0, rows[0].ipa));
    for ipa in [next, u64::MAX] {
        assert_eq!(read(&mut world, ipa, 9).values[1], 0);
    }
    assert_eq!(
        read(&mut world, 0, DATA as u64 + 1).status,
        Status::Value as u16
    );
}

#[test]
fn a_vm_that_runs_is_not_read() {
    for (phase, reads) in [
        (Phase::Down, true),
        (Phase::Ended, true),
        (Phase::Paused, true),
        (Phase::Starting, false),
        (Phase::Running, false),
        (Phase::Asked(End::Ordered), false),
        (Phase::Stopping(End::Crash), false),
    ] {
        let mut world = down();
        world.board.phase = phase;
        let refused = Some(Status::Phase as u16);
        let memory = read(&mut world, 0, 64);
        assert_eq!(Some(memory.status) != refused, reads, "{phase:?}");
        assert_eq!(memory.data != 0, reads, "{phase:?}");
        let asked = ask(&mut world, Kind::Registers, 0, 0).map(|it| it.status);
        assert_eq!(asked != refused, reads, "{phase:?}");
        let row = row(&world);
        assert_eq!(world.board.published.question(row).is_some(), reads);
    }
    let mut world = down();
    world.board.phase = Phase::Paused;
    world.board.paused = false;
    let answer = read(&mut world, 0, 64);
    assert_eq!((answer.status, answer.data), (Status::Silent as u16, 0));
    // What lies in memory before its first life is not its own.
    let mut world = down();
    world.board.lives = 0;
    let answer = read(&mut world, 0, 64);
    assert_eq!((answer.status, answer.data), (Status::Nothing as u16, 0));
}

#[test]
fn registers_come_from_one_question() {
    let mut world = down();
    let goes_on =
        |world: &mut World, first| ask(world, Kind::Registers, first, 1).expect("at once");
    let nothing = goes_on(&mut world, 0);
    assert_eq!(nothing.status, Status::Nothing as u16);
    assert_eq!(ask(&mut world, Kind::Registers, 0, 0), None);
    let row = row(&world);
    let question = world.board.published.question(row).expect("a question");
    let told = Registers {
        state: 4,
        sample: Sample {
            pc: 7,
            before: 8,
            exits: 9,
        },
        spsr: 0x3c5,
        el1: core::array::from_fn(|n| 100 + n as u64),
        x: core::array::from_fn(|n| 200 + n as u64),
        ..Registers::default()
    };
    world.board.published.answer_registers(question, &told);
    let mut words = world.answer().expect("told").values.to_vec();
    while words.len() < registers::WORDS {
        words.extend(goes_on(&mut world, words.len() as u64).values);
    }
    assert_eq!(words[registers::STATE], 4);
    assert_eq!((words[registers::PC], words[registers::PSTATE]), (7, 0x3c5));
    assert_eq!(
        [words[registers::SP_EL1], words[registers::SP_EL0]],
        [110, 111]
    );
    assert_eq!(words[registers::X..registers::WORDS], told.x);
    assert!(words[registers::WORDS..].iter().all(|word| *word == 0));
    // They are no exits, for which there is no right, either.
    let exits = ask(&mut world, Kind::Exits, 0, 1).expect("at once");
    assert_eq!(exits.status, Status::Rights as u16);
    assert_eq!(
        ask(&mut world, Kind::Registers, 0, 2).map(|it| it.status),
        Some(8)
    );
}
