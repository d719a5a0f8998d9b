//! Tests of the multiplexer with VMs that say when they have added something.

use super::mux::*;
use super::mux_tests::{at, drain, drain_at};
use crate::sync::Said;
use core::sync::atomic::Ordering;
use proptest::prelude::*;

/// VMs that say when they have added something that may be printed.
#[derive(Default)]
struct Telling {
    streams: [Streams; 3],
    said: Said,
    searched: std::cell::Cell<u64>,
}

impl Telling {
    fn push(&self, vm: usize, byte: u8) {
        let output = &self.streams[vm].output;
        output.push(byte);
        if Stream::<{ OUTPUT as usize }>::is_news(byte, output.len())
            || self.streams[vm].eager.load(Ordering::Relaxed) != 0
        {
            self.said.say(vm);
        }
    }

    fn log(&self, vm: usize, line: &[u8]) {
        self.streams[vm].log.push_all(line);
        self.said.say(vm);
    }
}

impl Sources for Telling {
    fn count(&self) -> usize {
        self.streams.len()
    }
    fn streams(&self, vm: usize) -> Option<&Streams> {
        self.searched.set(self.searched.get() | 1 << vm);
        self.streams.get(vm)
    }
    fn said(&self) -> u64 {
        self.said.take()
    }
    fn name(&self, vm: usize) -> &[u8] {
        [b"a\0", b"b\0", b"c\0"][vm]
    }
}

/// The same VMs, all of which are searched each time.
struct All<'a>(&'a Telling);

impl Sources for All<'_> {
    fn count(&self) -> usize {
        3
    }
    fn streams(&self, vm: usize) -> Option<&Streams> {
        self.0.streams.get(vm)
    }
    fn said(&self) -> u64 {
        0b111
    }
    fn name(&self, vm: usize) -> &[u8] {
        self.0.name(vm)
    }
}

#[test]
fn who_has_said_nothing_is_not_searched() {
    let (vms, mut mux) = (Telling::default(), Mux::new());
    vms.log(2, b"vm c stopped\r\n");
    assert_eq!(drain(&mut mux, &vms, false), "[el2] vm c stopped\r\n");
    assert_eq!(vms.searched.take(), 1 << 2);
    assert_eq!(drain(&mut mux, &vms, true), "");
    assert_eq!(vms.searched.take(), 0, "it was found without output");
    b"part".iter().for_each(|byte| vms.push(1, *byte));
    for _ in 0..2 {
        assert_eq!(mux.next(&vms, false, at(0)), Next::Held);
        assert_eq!(vms.searched.take(), 1 << 1, "a part stays to be looked at");
    }
    assert!(drain(&mut mux, &vms, true).contains("part"));
}

proptest! {
    /// A multiplexer that searches only VMs that have said something prints what one prints that searches all.
    #[test]
    fn who_says_something_is_heard(steps in prop::collection::vec((0usize..3, 0u8..9, 0u64..400), 0..200)) {
        let (vms, all) = (Telling::default(), Telling::default());
        let (mut mux, mut other) = (Mux::new(), Mux::new());
        let mut now = 0;
        for (vm, what, time) in steps {
            match what {
                0..=4 => for vms in [&vms, &all] {
                    vms.push(vm, *b"xyz \n".get(usize::from(what)).unwrap());
                },
                5 => for vms in [&vms, &all] {
                    vms.log(vm, b"ends\r\n");
                },
                6 => now += time,
                _ => {
                    let ours = drain_at(&mut mux, &vms, what == 8, now);
                    prop_assert_eq!(ours, drain_at(&mut other, &All(&all), what == 8, now));
                }
            }
        }
        now += 2 * TURN_MS;
        let ours = drain_at(&mut mux, &vms, true, now);
        prop_assert_eq!(ours, drain_at(&mut other, &All(&all), true, now));
    }
}
