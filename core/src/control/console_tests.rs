//! What VMs print, as managers read it, and what managers type.

use std::vec::Vec;

use bulkhead_abi::control::{
    EVENT_OUTPUT, EVENT_STATE, INPUT_DATA, Kind, Message, OUTPUT_DATA, Status, right,
};
use bulkhead_abi::plan::Class;

use super::events::Changed;
use super::test_world::{Fake, World, request};
use crate::cpu::power::Phase;

fn world() -> World {
    let world = World::new(Fake::new(right::CONSOLE, Class::General));
    world.board.backlog.keep();
    world
}

fn print(world: &World, text: &[u8]) {
    world.board.backlog.append(text.iter().copied());
}

/// What the manager reads from a byte on: the number of the first, the bytes, the number of the next one.
fn read(world: &mut World, from: u64, most: usize) -> (u64, Vec<u8>, u64) {
    let asked = request(Kind::Output, [from, most as u64, 0, 0]);
    let answer = world.ask(&asked, 48).expect("at once");
    assert_eq!(answer.status, 0);
    assert!(usize::from(answer.data) <= most);
    world.board.written.clear();
    let bytes = u32::from(answer.data);
    // In two buffers.
    let half = bytes / 2;
    world.copy(0, half);
    world.copy(half, bytes - half);
    let [first, next, ..] = answer.values;
    (first, world.board.written.clone(), next)
}

fn type_in(world: &mut World, text: &[u8]) -> Option<Message> {
    let mut bytes = [0; INPUT_DATA];
    bytes[..text.len()].copy_from_slice(text);
    let mut words = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight")));
    let mut word = || words.next().expect("three");
    let values = [text.len() as u64, word(), word(), word()];
    world.ask(&request(Kind::Input, values), 48)
}

#[test]
fn what_was_printed_is_read_whole_wherever_a_reader_begins() {
    let mut world = world();
    let text: Vec<u8> = (0..1000u32).map(|n| (n % 249) as u8).collect();
    print(&world, &text);
    for from in [0, 1, 7, 8, 9, 495, 496, 999, 1000] {
        for most in [0, 1, 8, 13, 503, OUTPUT_DATA] {
            let end = (from + most).min(1000);
            let told = read(&mut world, from as u64, most);
            assert_eq!(told, (from as u64, text[from..end].to_vec(), 1000));
        }
    }
    assert_eq!(read(&mut world, 5000, 10), (1000, Vec::new(), 1000));
    let asked = request(Kind::Output, [0, OUTPUT_DATA as u64 + 1, 0, 0]);
    assert_eq!(world.status(&asked), Some(Status::Value));
}

#[test]
fn who_has_read_all_is_told_once_when_there_is_more() {
    let mut world = world();
    print(&world, b"a");
    assert!(!world.events.heard(0b10), "nobody listens");
    print(&world, b"b");
    assert_eq!(read(&mut world, 0, 1), (0, b"a".to_vec(), 2));
    assert!(!world.events.heard(0b10), "it has not read all");
    assert_eq!(read(&mut world, 1, 10), (1, b"b".to_vec(), 2));
    assert!(!world.events.heard(0b101), "others have printed");
    assert_eq!(world.event(), None);
    assert!(world.events.heard(0b111));
    assert!(!world.events.heard(0b111), "once");
    assert!(
        world.events.mark(1, Changed::State),
        "nobody serves the port"
    );
    assert_eq!(world.event().map(|it| it.kind), Some(EVENT_STATE));
    let event = world.event().expect("an event");
    assert_eq!((event.kind, event.vm, event.number), (EVENT_OUTPUT, 1, 0));
    assert_eq!(world.event(), None);
}

#[test]
fn what_is_printed_behind_the_look_is_found_by_the_second() {
    let mut world = world();
    world.board.prints.set(b"late");
    assert_eq!(read(&mut world, 0, 10), (0, b"late".to_vec(), 4));
    // It is told of what the second look has no room for, too.
    world.board.prints.set(b"and more than that");
    assert_eq!(read(&mut world, 4, 6), (4, b"and mo".to_vec(), 22));
}

#[test]
fn typing_is_answered_when_the_bytes_are_taken() {
    let mut world = world();
    for size in [0, INPUT_DATA as u64 + 1, u64::MAX] {
        let asked = request(Kind::Input, [size, 0, 0, 0]);
        assert_eq!(world.status(&asked), Some(Status::Value));
    }
    assert_eq!(type_in(&mut world, b"reboot the machine, now!"), None);
    assert!(world.session.again().is_some());
    assert_eq!(world.answer(), None);
    let mut got = Vec::new();
    let given = world.board.typed.give(|vm, byte| {
        let fits = got.len() < 20;
        if fits {
            got.push((vm, byte));
        }
        fits
    });
    assert_eq!(given, Some(1));
    assert_eq!(got, b"reboot the machine, ".map(|byte| (1, byte)));
    let answer = world.answer().expect("now");
    assert_eq!((answer.status, answer.values[0]), (0, 20));
    assert_eq!((world.answer(), world.session.again()), (None, None));
}

#[test]
fn a_console_that_nobody_drains_is_silent_and_later_bytes_wait_for_it() {
    let mut world = world();
    assert_eq!(type_in(&mut world, b"x"), None);
    world.board.now = world.session.again().expect("a time");
    assert_eq!(
        world.answer().and_then(|it| Status::of(it.status)),
        Some(Status::Silent)
    );
    assert_eq!(type_in(&mut world, b"y"), None);
    world.board.now = world.session.again().expect("a time");
    assert_eq!(world.answer(), None, "the first one still waits");
    assert_eq!(world.board.typed.give(|_, byte| byte == b'x'), Some(1));
    world.board.now = world.session.again().expect("a time");
    assert_eq!(world.answer(), None);
    assert_eq!(world.board.typed.give(|_, byte| byte == b'y'), Some(1));
    assert_eq!(world.answer().map(|it| it.values[0]), Some(1));
}

#[test]
fn nobody_types_where_a_vm_is_down_or_is_promised_no_exits() {
    for (phase, class, expected) in [
        (Phase::Down, Class::General, Status::Phase),
        (Phase::Ended, Class::General, Status::Phase),
        (Phase::Starting, Class::General, Status::Phase),
        (Phase::Running, Class::HardRealtime, Status::WouldExit),
        (Phase::Down, Class::HardRealtime, Status::Phase),
    ] {
        let mut world = World::new(Fake::new(right::CONSOLE, class));
        world.board.phase = phase;
        let answer = type_in(&mut world, b"x").expect("at once");
        assert_eq!(
            Status::of(answer.status),
            Some(expected),
            "{phase:?} {class:?}"
        );
        assert_eq!(world.board.typed.give(|_, _| true), None);
    }
}

#[test]
fn who_may_only_read_does_not_type() {
    let mut world = World::new(Fake::new(right::LOGS, Class::General));
    world.board.backlog.keep();
    print(&world, b"hello");
    assert_eq!(read(&mut world, 0, 10).1, b"hello");
    let answer = type_in(&mut world, b"x").expect("at once");
    assert_eq!(Status::of(answer.status), Some(Status::Rights));
}
