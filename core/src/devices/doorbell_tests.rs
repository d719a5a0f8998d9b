//! Tests of doorbells with any pattern of rings. Separate from the module, which is also compiled
//! for loom.

use super::doorbell::*;
use proptest::prelude::*;

fn apart(ticks: u32) -> Doorbell {
    let bell = Doorbell::new();
    bell.set_apart(ticks);
    bell
}

/// Rings, and keeps a ring that came too early.
fn ring(bell: &Doorbell, now: u64) -> Rung {
    let rung = bell.try_ring(now);
    if rung != Rung::Heard {
        bell.wait();
    }
    rung
}

#[test]
fn early_rings_are_heard_together_when_it_is_time() {
    let bell = apart(100);
    assert_eq!(bell.look(50), None);
    assert_eq!(ring(&bell, 50), Rung::Heard);
    assert_eq!(ring(&bell, 51), Rung::Later(150));
    assert_eq!(ring(&bell, 149), Rung::Later(150));
    assert_eq!(bell.look(149), Some(Rung::Later(150)));
    assert_eq!(bell.look(160), Some(Rung::Heard));
    assert_eq!(bell.look(170), None);
    assert_eq!(ring(&bell, 259), Rung::Later(260));
    assert_eq!(ring(&bell, 260), Rung::Heard, "with the one that waits");
    assert_eq!(bell.look(1000), None);
}

#[test]
fn who_comes_again_leaves_nothing_behind() {
    let bell = apart(100);
    assert_eq!(bell.try_ring(0), Rung::Heard);
    assert_eq!(bell.try_ring(99), Rung::Later(100));
    assert_eq!(bell.look(200), None);
    assert_eq!(bell.try_ring(100), Rung::Heard);
}

proptest! {
    /// Any vCPU rings at any time and looks again at its deadline. Each ring is heard when it comes
    /// or at most `apart` later, no more often than that, and not without a ring.
    #[test]
    fn each_ring_is_heard_once_and_in_time(
        steps in proptest::collection::vec((0u64..250, 0usize..3), 1..200),
        apart in 1u64..200,
    ) {
        let bell = self::apart(apart as u32);
        let mut deadlines = [None::<u64>; 3];
        let mut heard = std::vec::Vec::new();
        // Time of the first ring that has not been heard.
        let mut unheard: Option<u64> = None;
        let (mut now, mut rings) = (0u64, 0usize);
        for (step, vcpu) in steps {
            let next = now + step;
            // Deadlines that expire before the next ring.
            while let Some(at) = deadlines.iter().flatten().min().copied().filter(|at| *at <= next) {
                for deadline in &mut deadlines {
                    if *deadline != Some(at) {
                        continue;
                    }
                    *deadline = None;
                    match bell.look(at) {
                        Some(Rung::Heard) => {
                            heard.push(at);
                            let since = unheard.take();
                            prop_assert!(since.is_some_and(|since| at - since <= apart));
                        }
                        Some(Rung::Later(later)) => *deadline = Some(later),
                        None => {}
                    }
                }
            }
            now = next;
            rings += 1;
            match ring(&bell, now) {
                Rung::Heard => {
                    heard.push(now);
                    unheard = None;
                }
                Rung::Later(at) => {
                    prop_assert!(at > now && at - now <= apart);
                    deadlines[vcpu] = Some(at);
                    unheard = unheard.or(Some(now));
                }
            }
        }
        prop_assert!(heard.windows(2).all(|two| two[1] - two[0] >= apart));
        prop_assert!(heard.len() <= rings);
        prop_assert_eq!(unheard.is_some(), deadlines.iter().flatten().any(|at| bell.look(*at).is_some()));
    }
}
