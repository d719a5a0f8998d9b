//! Every interleaving of two vCPUs of a VM at its interrupts. The code is that of EL2 ([`bulkhead_interleave::vgic`]), whole: only
//! the list registers are an array. No physical interrupt is behind the VM's.
//!
//! Planted there, one at a time, and found:
//!
//! | protocol | planted | fails |
//! | --- | --- | --- |
//! | marks | the mark before the change; the mark taken by a load and a store, or behind the look; a latch set by a load and a store | [`a_change_is_seen_or_notified`] |
//! | requests | the request before the latch; `holds` after the latch; the latch taken by a load and a store; a request not served | [`what_is_cleared_after_it_was_posted_does_not_come`] |
//! | answers | the ticket answered before what it is about is published, or relaxed; the ticket read behind the marks, or last; the last answer of a vCPU that has nothing any more | [`an_answer_does_not_show_what_was_cleared_before_it_was_asked_for`] |
//! | disables | no fence on either side; either side's load before its store; the ticket drawn before the mark; a ticket that came late not answered | [`what_is_disabled_is_not_there_once_rwp_is_clear`] |
//! | two owners | no `held` | [`an_spi_is_in_one_place_whoever_believes_to_own_it`] |
//! | | given up without a word to the owner | [`an_spi_goes_where_it_is_routed`] |
//! | | the latch read before `held` is given up | [`what_comes_again_while_another_has_it_is_not_lost_at_its_end`] |
//! | routes | no fence behind the new owner, or before the owners are read | [`an_spi_that_is_posted_while_it_is_routed_elsewhere_is_not_lost`] |
//! | | no fence in `changed` | [`what_is_made_pending_by_a_register_while_it_is_routed_elsewhere_is_not_lost`] |
//! | pending by a register | whether it is deliverable read before the latch is set, or without a fence between; no fence behind the group enables | [`what_a_register_makes_pending_while_it_becomes_deliverable_comes`] |
//! | | no fence behind a group of an SGI | [`an_sgi_that_a_sibling_makes_pending_while_it_becomes_deliverable_comes`] |
//! | configuration | no fence behind an enable | [`what_is_enabled_while_it_is_posted_comes`] |
//! | | no fence behind a priority or a group | [`what_is_configured_while_it_is_taken_is_as_configured`] |
//! | active state | a request to clear taken with the one before it | [`of_two_writes_about_active_state_the_last_counts`] |
//! | | `holds` read before the request | [`what_a_write_makes_active_is_active_in_one_place`] |
//! | SGIs | the latch set by a load and a store; on a GICv2 the latch before the sender | [`sgis_come`] |

use bulkhead_interleave::vgic::{Answer, Notify, lr};
use loom::thread;
use trying::model_of;
use vms::*;

mod trying;
mod vms;

/// The SPI is pending on vCPU 0, once.
fn is_first<const V2: bool>([first, second]: &mut [Vcpu<V2>; 2]) {
    assert_eq!((first.has(SPI), second.has(SPI)), (lr::PENDING, 0));
}

fn is_second<const V2: bool>([first, second]: &mut [Vcpu<V2>; 2]) {
    assert_eq!((first.has(SPI), second.has(SPI)), (0, lr::PENDING));
}

fn is_nowhere<const V2: bool>(vcpus: &mut [Vcpu<V2>; 2]) {
    for vcpu in vcpus {
        assert_eq!(vcpu.has(SPI), 0);
    }
}

#[test]
fn a_change_is_seen_or_notified() {
    // The owner looks; and it looks because of a mark for another, which is there already.
    at_once::<false>(|_| (), Vcpu::look, post, is_first);
    at_once::<false>(
        |vcpus| {
            let _on_its_way = vcpus[0].dist.post(OTHER, 0);
        },
        Vcpu::look,
        post,
        is_first,
    );
}

#[test]
fn what_is_cleared_after_it_was_posted_does_not_come() {
    at_once::<false>(
        |_| (),
        Vcpu::look,
        |second| {
            post(second);
            second.write(ICPENDR, BIT);
        },
        is_nowhere,
    );
}

#[test]
fn an_answer_tells_what_was_there_when_it_was_asked_for() {
    at_once::<false>(
        |_| (),
        Vcpu::look,
        |second| {
            post(second);
            for _ in 0..2 {
                let pending = second.read(ISPENDR);
                assert!(pending.is_none_or(|bits| bits & BIT != 0), "not shown");
            }
        },
        is_first,
    );
}

#[test]
fn an_answer_does_not_show_what_was_cleared_before_it_was_asked_for() {
    at_once::<false>(
        |vcpus| {
            for spi in [SPI, OTHER] {
                let whom = vcpus[0].dist.post(spi, 0);
                settle(vcpus, whom.0);
            }
            // The last answer says that it is pending.
            assert_eq!(vcpus[1].read(ISPENDR), None);
            settle(vcpus, 0);
            assert_eq!(vcpus[1].read(ISPENDR), Some(BIT | OTHER_BIT));
            // It has been asked for another answer, which it has not given yet.
            vcpus[1].write(ICENABLER, OTHER_BIT);
            assert_eq!(std::mem::take(&mut vcpus[1].told), 1, "on its way");
        },
        Vcpu::look,
        |second| {
            second.write(ICPENDR, BIT);
            for _ in 0..2 {
                let pending = second.read(ISPENDR);
                assert!(pending.is_none_or(|bits| bits & BIT == 0), "still shown");
            }
        },
        |vcpus| {
            is_nowhere(vcpus);
            // Whatever was asked for is answered in the end.
            if vcpus[1].read(ISPENDR).is_none() {
                settle(vcpus, 0);
                assert!(vcpus[1].read(ISPENDR).is_some(), "no answer");
            }
        },
    );
}

/// vCPU 1 disables an SPI while vCPU 0 looks, which `has` it in a list register and has been asked for something else, or does
/// not and is about to take it.
fn disabled(has: bool) {
    model_of(BRANCHES, Some(3), move || {
        let mut vcpus = vm::<false>();
        let whom = vcpus[0].dist.post(SPI, 0);
        if has {
            settle(&mut vcpus, whom.0);
            assert_eq!(vcpus[1].read(ISACTIVER), None);
            vcpus[1].told = 0;
        }
        let [mut first, mut second] = vcpus;
        let thread = thread::spawn(move || {
            second.write(ICENABLER, BIT);
            let done = second.read(CTLR).is_some_and(|ctlr| ctlr & RWP == 0);
            (second, done)
        });
        first.look();
        let (second, done) = thread.join().unwrap();
        assert!(
            !done || first.has(SPI) == 0,
            "it is there, and RWP is clear"
        );
        let mut vcpus = [first, second];
        settle(&mut vcpus, 0);
        is_nowhere(&mut vcpus);
        assert_eq!(vcpus[1].read(CTLR).map(|ctlr| ctlr & RWP), Some(0));
    });
}

#[test]
fn what_is_disabled_is_not_there_once_rwp_is_clear() {
    disabled(false);
    disabled(true);
}

#[test]
fn an_spi_goes_where_it_is_routed() {
    // From vCPU 0 to 1, which looks, and back.
    at_once::<false>(
        |vcpus| {
            let _on_its_way = vcpus[0].dist.post(SPI, 0);
        },
        Vcpu::look,
        |second| {
            second.route(SPI, 1);
            second.look();
        },
        is_second,
    );
    at_once::<false>(
        |vcpus| {
            vcpus[0].route(SPI, 1);
            settle(vcpus, 0);
            let _on_its_way = vcpus[0].dist.post(SPI, 0);
        },
        |first| {
            first.route(SPI, 0);
            first.look();
        },
        Vcpu::look,
        is_first,
    );
}

#[test]
fn an_spi_is_in_one_place_whoever_believes_to_own_it() {
    model_of(BRANCHES, Some(3), || {
        let mut vcpus = vm::<false>();
        vcpus[0].route(SPI, 1);
        settle(&mut vcpus, 0);
        let _on_its_way = vcpus[0].dist.post(SPI, 0);
        let [mut first, mut second] = vcpus;
        let thread = thread::spawn(move || {
            first.route(SPI, 0);
            post(&mut first);
            first.look();
            first
        });
        second.look();
        if second.has(SPI) == lr::PENDING {
            second.acknowledge(SPI);
        }
        let mut vcpus = [thread.join().unwrap(), second];
        settle(&mut vcpus, 0);
        let active = vcpus[1].has(SPI) == lr::ACTIVE;
        assert_eq!(vcpus[0].has(SPI), if active { 0 } else { lr::PENDING });
    });
}

#[test]
fn an_spi_that_is_posted_while_it_is_routed_elsewhere_is_not_lost() {
    at_once::<false>(
        |_| (),
        post,
        |second| {
            second.route(SPI, 1);
            second.look();
        },
        is_second,
    );
}

#[test]
fn what_is_made_pending_by_a_register_while_it_is_routed_elsewhere_is_not_lost() {
    at_once::<false>(
        |_| (),
        |first| first.write(ISPENDR, BIT),
        |second| second.route(SPI, 1),
        is_second,
    );
}

#[test]
fn what_is_enabled_while_it_is_posted_comes() {
    model_of(BRANCHES, None, || {
        let mut vcpus = vm::<false>();
        vcpus[0].write(ICENABLER, BIT);
        settle(&mut vcpus, 0);
        let [mut first, mut second] = vcpus;
        let thread = thread::spawn(move || {
            second.write(ISENABLER, BIT);
            second
        });
        post(&mut first);
        first.look();
        let mut vcpus = [first, thread.join().unwrap()];
        settle(&mut vcpus, 0);
        is_first(&mut vcpus);
    });
}

#[test]
fn what_a_register_makes_pending_while_it_becomes_deliverable_comes() {
    fn disabled(vcpus: &mut [Vcpu; 2]) {
        vcpus[0].write(ICENABLER, BIT);
    }
    fn in_a_group_that_is_off(vcpus: &mut [Vcpu; 2]) {
        vcpus[0].write(CTLR, 2);
        settle(vcpus, 0);
    }
    fn pend(vcpu: &mut Vcpu) {
        vcpu.write(ISPENDR, BIT);
    }
    fn enable(vcpu: &mut Vcpu) {
        vcpu.write(ISENABLER, BIT);
    }
    // Either may be the owner. The group that is off is enabled, or the SPI moves to the other.
    at_once::<false>(disabled, pend, enable, is_first);
    at_once::<false>(disabled, enable, pend, is_first);
    at_once::<false>(
        in_a_group_that_is_off,
        pend,
        |second| second.write(IGROUPR, BIT),
        is_first,
    );
    at_once::<false>(
        in_a_group_that_is_off,
        |first| first.write(CTLR, 3),
        pend,
        is_first,
    );
    at_once::<false>(
        in_a_group_that_is_off,
        pend,
        |second| second.write(CTLR, 3),
        is_first,
    );
}

#[test]
fn an_sgi_that_a_sibling_makes_pending_while_it_becomes_deliverable_comes() {
    const SGI: u32 = 7;
    fn private(vcpu: &mut Vcpu, offset: u64) {
        let Vcpu {
            dist, cpu, board, ..
        } = vcpu;
        let (answer, whom) = cpu.gicr_write(dist, board, 0x1_0000 + offset, 4, 1 << SGI);
        assert_eq!(answer, Answer::Value(0));
        vcpu.tell(whom);
    }
    fn is_pending(vcpus: &mut [Vcpu; 2]) {
        assert_eq!(vcpus[0].has(SGI), lr::PENDING);
    }
    at_once::<false>(
        |_| (),
        |first| private(first, 0x100),
        |second| private(second, 0x200),
        is_pending,
    );
    at_once::<false>(
        |vcpus| {
            private(&mut vcpus[0], 0x100);
            vcpus[0].write(CTLR, 2);
            settle(vcpus, 0);
        },
        |first| private(first, 0x80),
        |second| private(second, 0x200),
        is_pending,
    );
}

#[test]
fn what_is_configured_while_it_is_taken_is_as_configured() {
    // Its priority, and its group.
    at_once::<false>(
        |_| (),
        |first| {
            post(first);
            first.look();
        },
        |second| second.write(PRIORITY, 0x50),
        |[first, _]| assert_eq!(lr::priority(first.entry(SPI)), 0x50),
    );
    at_once::<false>(
        |_| (),
        |first| {
            post(first);
            first.look();
        },
        |second| second.write(IGROUPR, BIT),
        |[first, _]| assert_ne!(first.entry(SPI) & lr::GROUP1, 0),
    );
}

#[test]
fn what_comes_again_while_another_has_it_is_not_lost_at_its_end() {
    at_once::<false>(
        |vcpus| {
            post(&mut vcpus[0]);
            settle(vcpus, 0);
            vcpus[0].acknowledge(SPI);
            vcpus[0].route(SPI, 1);
            settle(vcpus, 0);
        },
        |first| first.end(SPI),
        |second| {
            post(second);
            second.look();
        },
        is_second,
    );
}

/// vCPU 1 sends vCPU 0 an SGI while that takes another, and both come.
fn sgis_come_to_a_vcpu<const V2: bool>(before: fn(&mut Vcpu<V2>)) {
    fn send<const V2: bool>(from: &mut Vcpu<V2>, intid: u64) -> Notify {
        let Vcpu {
            dist, cpu, board, ..
        } = from;
        let whom = if V2 {
            cpu.send_sgir_fast(dist, board, 1 << 16 | intid as u32)
        } else {
            cpu.send_sgi_fast(dist, board, intid << 24 | 1)
        };
        whom.expect("the fast path takes it")
    }
    model_of(BRANCHES, Some(3), move || {
        let [mut first, mut second] = vm::<V2>();
        before(&mut first);
        let _on_its_way = send(&mut second, 7);
        let thread = thread::spawn(move || {
            let whom = send(&mut second, 8);
            second.tell(whom);
            second
        });
        first.look();
        let mut vcpus = [first, thread.join().unwrap()];
        settle(&mut vcpus, 0);
        assert_eq!([7, 8].map(|intid| vcpus[0].has(intid)), [lr::PENDING; 2]);
    });
}

#[test]
fn sgis_come() {
    sgis_come_to_a_vcpu::<true>(|first| first.write(ISENABLER - 4, 3 << 7));
    sgis_come_to_a_vcpu::<false>(|first| {
        let Vcpu {
            dist, cpu, board, ..
        } = first;
        let (answer, _) = cpu.gicr_write(dist, board, 0x1_0100, 4, 3 << 7);
        assert_eq!(answer, Answer::Value(0));
    });
}

#[test]
fn of_two_that_route_an_spi_the_last_does() {
    at_once::<false>(
        |_| (),
        |first| first.route(SPI, 1),
        |second| second.route(SPI, 0),
        |vcpus| {
            let route = vcpus[0].read(0x6000 + 8 * u64::from(SPI)).unwrap();
            post(&mut vcpus[0]);
            settle(vcpus, 0);
            if route == 0 {
                is_first(vcpus);
            } else {
                is_second(vcpus);
            }
        },
    );
}

#[test]
fn of_two_writes_about_active_state_the_last_counts() {
    at_once::<false>(
        |vcpus| vcpus[1].write(ISACTIVER, BIT),
        Vcpu::look,
        |second| second.write(ICACTIVER, BIT),
        is_nowhere,
    );
    at_once::<false>(
        |vcpus| {
            vcpus[1].write(ISACTIVER, BIT);
            settle(vcpus, 0);
            vcpus[1].write(ICACTIVER, BIT);
        },
        Vcpu::look,
        |second| second.write(ISACTIVER, BIT),
        |[first, second]| {
            assert_eq!((first.has(SPI), second.has(SPI)), (lr::ACTIVE, 0));
        },
    );
}

#[test]
fn what_a_write_makes_active_is_active_in_one_place() {
    at_once::<false>(
        |vcpus| {
            let _on_its_way = vcpus[0].dist.post(SPI, 0);
        },
        Vcpu::look,
        |second| {
            second.write(ISACTIVER, BIT);
            for _ in 0..2 {
                let active = second.read(ISACTIVER);
                assert!(active.is_none_or(|bits| bits & BIT != 0), "not shown");
            }
        },
        |[first, second]| {
            assert_ne!(first.has(SPI) & lr::ACTIVE, 0);
            assert_eq!(second.has(SPI), 0);
        },
    );
}
