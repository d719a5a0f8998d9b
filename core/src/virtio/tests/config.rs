//! A config that a backend changes, as a driver reads it.

use std::cell::RefCell;
use std::vec::Vec;

use proptest::prelude::*;

use bulkhead_abi::device::device_page;
use bulkhead_abi::plan::PLAN_CONFIG;

use super::parts::{Ram, WINDOW};
use crate::virtio::config::Config;
use crate::virtio::memory::{At, Memory};
use crate::virtio::transport::{Offer, Page, Transport, register};

/// The page of registers, and every write to it.
struct Registers {
    words: RefCell<Vec<u32>>,
    writes: RefCell<Vec<(u64, u32)>>,
}

impl Registers {
    fn new() -> Self {
        Self {
            words: RefCell::new(std::vec![0; 0x80]),
            writes: RefCell::default(),
        }
    }

    fn config(&self) -> [u8; PLAN_CONFIG] {
        let words = self.words.borrow();
        let words = &words[register::CONFIG as usize / 4..][..PLAN_CONFIG / 4];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.try_into().unwrap()
    }
}

impl Page for Registers {
    fn set(&self, offset: u64, value: u32) {
        self.words.borrow_mut()[offset as usize / 4] = value;
        self.writes.borrow_mut().push((offset, value));
    }

    fn get(&self, offset: u64) -> u32 {
        self.words.borrow()[offset as usize / 4]
    }
}

/// An address, a link that is down, something behind it.
const PLAN: [u8; 12] = [2, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0xdc, 5];

fn planned() -> [u8; PLAN_CONFIG] {
    let mut config = [0; PLAN_CONFIG];
    config[..PLAN.len()].copy_from_slice(&PLAN);
    config
}

fn with(at: usize, value: u8) -> [u8; PLAN_CONFIG] {
    let mut config = planned();
    config[at] = value;
    config
}

struct World {
    ram: Ram,
    page: Registers,
    config: Config,
}

impl World {
    fn new() -> Self {
        Self {
            ram: Ram::new(),
            page: Registers::new(),
            config: Config::new(),
        }
    }

    /// The VM is prepared for a life.
    fn show(&self) {
        let offer = Offer {
            device: 1,
            features: 0,
            queues: &[],
            config: &PLAN,
        };
        Transport::new().show(&offer, &self.page);
    }

    fn generation(&self, value: u32) {
        let at = WINDOW.start + device_page::GENERATION as u64;
        self.ram.write(at, &value.to_le_bytes());
    }

    fn give(&self, config: &[u8; PLAN_CONFIG], generation: u32) {
        let at = WINDOW.start + device_page::BACKEND_CONFIG as u64;
        self.ram.write(at, config);
        self.generation(generation);
    }

    fn follow(&mut self, is_up: bool) -> bool {
        let window = is_up.then_some(At::new(WINDOW.start));
        self.config
            .follow(&self.ram, window, &planned(), &self.page)
    }
}

#[test]
fn a_link_goes_up_and_down() {
    let mut world = World::new();
    world.show();
    assert_eq!(world.page.config(), planned());
    assert!(!world.follow(true), "there is no config yet");
    assert!(!world.config.tells(true));
    let up = with(6, 1);
    world.give(&up, 2);
    let before = world.page.get(register::CONFIG_GENERATION);
    assert!(world.follow(true));
    assert_eq!(world.page.config(), up);
    let changed = world.page.get(register::CONFIG_GENERATION);
    assert_ne!(changed, before);
    assert!(!world.follow(true), "nothing new");
    assert!(!world.config.tells(false), "nobody drives it");
    assert!(world.config.tells(true));
    assert!(!world.config.tells(true), "once");
    world.generation(3);
    assert!(!world.follow(true), "it is being changed");
    assert_eq!(world.page.config(), up);
    assert!(world.follow(false), "its backend has ended");
    assert_eq!(world.page.config(), planned());
    assert_ne!(world.page.get(register::CONFIG_GENERATION), changed);
    assert!(world.config.tells(true));
    assert!(!world.follow(false));
}

/// Whichever of the two VMs is prepared first, and however often.
#[test]
fn a_life_of_the_guest_finds_the_config_that_holds() {
    let mut world = World::new();
    let up = with(6, 1);
    world.give(&up, 2);
    assert!(!world.follow(true), "there is no page yet");
    world.show();
    assert_eq!(world.page.config(), planned());
    assert!(world.follow(true), "and now there is");
    world.show();
    assert_eq!(world.page.config(), up);
    assert!(world.follow(false));
    world.show();
    assert_eq!(world.page.config(), planned());
}

/// The first word that says that there is a device is the last one that is written.
#[test]
fn a_page_is_whole_when_it_is_there() {
    let world = World::new();
    world.show();
    let writes = world.page.writes.borrow();
    let magic = writes
        .iter()
        .position(|(offset, _)| *offset == register::MAGIC_VALUE);
    assert_eq!(magic, Some(writes.len() - 1));
}

/// Memory whose generation changes as soon as the last word of the config has been read.
struct Changing<'a>(&'a Ram);

impl Memory for Changing<'_> {
    fn load8(&self, at: At) -> u8 {
        self.0.load8(at)
    }
    fn load16(&self, at: At) -> u16 {
        self.0.load16(at)
    }
    fn load32(&self, at: At) -> u32 {
        let last = device_page::BACKEND_CONFIG + PLAN_CONFIG - 4;
        let value = self.0.load32(at);
        if at.address() == WINDOW.start + last as u64 {
            let at = WINDOW.start + device_page::GENERATION as u64;
            let next = self.0.get32(at) + 1;
            self.0.write(at, &next.to_le_bytes());
        }
        value
    }
    fn load64(&self, at: At) -> u64 {
        self.0.load64(at)
    }
    fn store8(&self, _: At, _: u8) {
        unreachable!("it is the backend's half");
    }
    fn store16(&self, _: At, _: u16) {
        unreachable!("it is the backend's half");
    }
    fn store32(&self, _: At, _: u32) {
        unreachable!("it is the backend's half");
    }
    fn store64(&self, _: At, _: u64) {
        unreachable!("it is the backend's half");
    }
    fn copy(&self, _: At, _: At, _: u64) {
        unreachable!("words are read one by one");
    }
}

#[test]
fn half_a_config_is_none() {
    let World {
        ram,
        page,
        mut config,
    } = World::new();
    let world = World { ram, page, config };
    world.show();
    world.give(&with(6, 1), 2);
    let window = Some(At::new(WINDOW.start));
    assert!(!config.follow(&Changing(&world.ram), window, &planned(), &world.page));
    assert_eq!(world.page.config(), planned());
    assert!(!config.tells(true));
}

/// What a driver reads that reads the generation, two words and the generation again while the page is written, at any time each.
/// Returns the pairs that it believes, with the number of the last write that it has seen.
fn believed(world: &World, first: u64, second: u64) -> Vec<([u32; 2], usize)> {
    let writes = world.page.writes.borrow();
    let initial = World::new();
    initial.show();
    let value = |offset: u64, after: usize| {
        let last = writes[..after].iter().rev().find(|write| write.0 == offset);
        last.map_or(initial.page.get(offset), |write| write.1)
    };
    let mut found = Vec::new();
    let count = writes.len();
    for before in 0..=count {
        for one in before..=count {
            for two in one..=count {
                for behind in two..=count {
                    let generation = register::CONFIG_GENERATION;
                    if value(generation, before) == value(generation, behind) {
                        found.push(([value(first, one), value(second, two)], behind));
                    }
                }
            }
        }
    }
    found
}

fn changed_to(config: &[u8; PLAN_CONFIG]) -> World {
    let mut world = World::new();
    world.show();
    world.page.writes.borrow_mut().clear();
    world.give(config, 2);
    assert!(world.follow(true));
    world
}

#[test]
fn a_driver_that_reads_while_a_link_changes_believes_one_of_the_two() {
    let world = changed_to(&with(6, 1));
    let words = |status: u32| [0x0000_0002, 0x0100 | status << 16];
    let (first, second) = (register::CONFIG, register::CONFIG + 4);
    let found = believed(&world, first, second);
    assert!(found.iter().any(|(pair, _)| *pair == words(1)));
    assert!(found.iter().any(|(pair, _)| *pair == words(0)));
    for (pair, _) in found {
        assert!(pair == words(0) || pair == words(1), "{pair:x?}");
    }
}

#[test]
fn a_driver_that_believes_half_a_config_is_told_afterwards() {
    let mut new = with(0, 9);
    new[4] = 9;
    let world = changed_to(&new);
    let (first, second) = (register::CONFIG, register::CONFIG + 4);
    let mixed = |pair: [u32; 2]| (pair[0] & 0xff == 9) != (pair[1] & 0xff == 9);
    let last = world.page.writes.borrow().len();
    for (pair, behind) in believed(&world, first, second) {
        // Not once the last word is written: that is when the driver is told.
        assert!(!mixed(pair) || behind < last, "{pair:x?} at {behind}");
    }
}

#[derive(Clone, Debug)]
enum Event {
    Gives(u8),
    Begins,
    Ends,
    Comes,
    Prepared,
    Slice,
}

proptest! {
    /// After a slice the page has what the backend says, or the plan; and whoever drives it was told of each change.
    #[test]
    fn the_page_follows(
        events in proptest::collection::vec(prop_oneof![
            2 => any::<u8>().prop_map(Event::Gives),
            1 => Just(Event::Begins),
            1 => Just(Event::Ends),
            1 => Just(Event::Comes),
            1 => Just(Event::Prepared),
            4 => Just(Event::Slice),
        ], 1..60),
    ) {
        let mut world = World::new();
        let (mut is_up, mut is_there, mut generation) = (true, false, 0u32);
        // The next backend comes when a slice has seen that the one before has ended.
        let mut is_seen = false;
        // What holds, and what the driver has read when it was told last.
        let (mut holds, mut read) = (planned(), planned());
        for event in events {
            match event {
                Event::Gives(value) if is_up => {
                    generation = (generation | 1) + 1;
                    holds = with(5, value);
                    world.give(&holds, generation);
                }
                Event::Begins if is_up => {
                    generation |= 1;
                    world.generation(generation);
                }
                Event::Ends => {
                    (is_up, is_seen) = (false, false);
                    holds = planned();
                }
                Event::Comes if !is_up && is_seen => {
                    is_up = true;
                    generation = 0;
                    world.give(&[0; PLAN_CONFIG], 0);
                }
                Event::Prepared => {
                    is_there = true;
                    world.show();
                }
                Event::Slice => {
                    world.follow(is_up);
                    is_seen = !is_up;
                    if world.config.tells(is_there) {
                        read = world.page.config();
                    }
                    if is_there && (!is_up || generation & 1 == 0) {
                        prop_assert_eq!(world.page.config(), holds);
                        prop_assert_eq!(read, holds, "it was told of the last change");
                    }
                }
                Event::Gives(_) | Event::Begins | Event::Comes => {}
            }
        }
    }
}
