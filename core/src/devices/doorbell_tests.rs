//! Tests of doorbells with any pattern of rings. Separate from the module, which is also compiled
//! for loom.

use super::doorbell::*;
use proptest::prelude::*;

#[test]
fn early_rings_are_heard_together_when_it_is_time() {
    let bell = Doorbell::new();
    assert_eq!(bell.look(50, 100), None);
    assert_eq!(bell.ring(50, 100), Rung::Heard);
    assert_eq!(bell.ring(51, 100), Rung::Later(150));
    assert_eq!(bell.ring(149, 100), Rung::Later(150));
    assert_eq!(bell.look(149, 100), Some(Rung::Later(150)));
    assert_eq!(bell.look(160, 100), Some(Rung::Heard));
    assert_eq!(bell.look(170, 100), None);
    assert_eq!(bell.ring(259, 100), Rung::Later(260));
    assert_eq!(bell.ring(260, 100), Rung::Heard, "with the one that waits");
    assert_eq!(bell.look(1000, 100), None);
}

#[test]
fn who_comes_again_leaves_nothing_behind() {
    let bell = Doorbell::new();
    assert_eq!(bell.try_ring(0, 100), Rung::Heard);
    assert_eq!(bell.try_ring(99, 100), Rung::Later(100));
    assert_eq!(bell.look(200, 100), None);
    assert_eq!(bell.try_ring(100, 100), Rung::Heard);
}

proptest! {
    /// Any vCPU rings at any time and looks again at its deadline. Each ring is heard when it comes
    /// or at most `apart` later, no more often than that, and not without a ring.
    #[test]
    fn each_ring_is_heard_once_and_in_time(
        steps in proptest::collection::vec((0u64..250, 0usize..3), 1..200),
        apart in 1u64..200,
    ) {
        let bell = Doorbell::new();
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
                    match bell.look(at, apart) {
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
            match bell.ring(now, apart) {
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
        prop_assert_eq!(unheard.is_some(), deadlines.iter().flatten().any(|at| bell.look(*at, apart).is_some()));
    }
}
