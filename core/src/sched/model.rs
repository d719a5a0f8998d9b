//! Properties that hold whatever vCPUs do, checked over random loads.

use std::format;
use std::vec::Vec;

use proptest::prelude::*;

use super::bound::{Costs, Promise, bound};
use super::*;

/// The next step of a vCPU: it runs for so long, then sleeps for so long; 0 is a short spin instead
/// of a sleep.
#[derive(Clone, Copy, Debug)]
struct Burst {
    work: u64,
    sleep: u64,
}

struct Vcpu {
    bursts: Vec<Burst>,
    at: usize,
    /// Time left of the burst.
    left: u64,
    /// Time at which it wakes; `None` if it is awake.
    wakes: Option<u64>,
}

impl Vcpu {
    fn new(bursts: Vec<Burst>) -> Self {
        let left = bursts[0].work;
        Self {
            bursts,
            at: 0,
            left,
            wakes: Some(0),
        }
    }
}

/// One pCPU and its vCPUs, and the properties that must hold at each step.
struct World {
    scheduler: Scheduler,
    vcpus: Vec<Vcpu>,
    now: u64,
    /// Delay of the timer.
    late: u64,
    idle: u64,
    /// Number of turns that [`Scheduler::end_turn`] ended.
    handed: usize,
    /// Number of wake-ups by [`Scheduler::wake_fair`] beside which the current vCPU went on, and of sleeps by [`Scheduler::slept`].
    kept: usize,
    slept: usize,
    /// Number of turns that ended by [`Scheduler::block_for_heir`].
    inherited: usize,
    /// Number of wake-ups by [`Scheduler::wake_fair`].
    woken: usize,
    /// The scheduler before the last one awake fell asleep, and when it did.
    asleep: Option<(Scheduler, u64)>,
}

impl World {
    fn new(loads: Vec<(Policy, Vec<Burst>)>, late: u64) -> Self {
        let mut scheduler = Scheduler::new(6_000);
        for (slot, (policy, _)) in loads.iter().enumerate() {
            scheduler.add(slot, *policy, slot as u16 / 2, 0);
        }
        Self {
            scheduler,
            vcpus: loads
                .into_iter()
                .map(|(_, bursts)| Vcpu::new(bursts))
                .collect(),
            now: 0,
            late,
            idle: 0,
            handed: 0,
            kept: 0,
            slept: 0,
            inherited: 0,
            woken: 0,
            asleep: None,
        }
    }

    fn awake(&self) -> impl Iterator<Item = usize> {
        (0..self.vcpus.len()).filter(|n| self.vcpus[*n].wakes.is_none())
    }

    /// Runs until `end`; `each` sees each turn before it begins.
    fn run(&mut self, end: u64, mut each: impl FnMut(&World, Turn)) {
        let mut turn = None;
        while self.now < end {
            // vCPUs that wake now.
            for n in 0..self.vcpus.len() {
                if self.vcpus[n].wakes.is_some_and(|at| at <= self.now) {
                    self.vcpus[n].wakes = None;
                    let others = self.scheduler.awake != 0;
                    let slept = self
                        .asleep
                        .take()
                        .filter(|(was, _)| was.current == n && !others);
                    if let Some((mut was, from)) = slept {
                        self.sleeps(&mut was, from, n);
                        turn = None;
                        continue;
                    }
                    if self.wakes(n) {
                        turn = None;
                    }
                }
            }
            let now = match turn {
                Some(turn) => turn,
                None => {
                    let next = self.next();
                    each(self, next);
                    assert!(
                        next.until > self.now,
                        "a turn of no length: {next:?} at {}",
                        self.now
                    );
                    next
                }
            };
            turn = Some(now);
            assert_eq!(now.slot, self.scheduler.current());
            let timer = now.until.saturating_add(self.late);
            let wakes = self
                .vcpus
                .iter()
                .filter_map(|vcpu| vcpu.wakes)
                .min()
                .unwrap_or(u64::MAX);
            let mut then = timer.min(wakes).min(end);
            let Some(slot) = now.slot else {
                assert_ne!(
                    then,
                    u64::MAX,
                    "asleep for ever with {} awake",
                    self.awake().count()
                );
                self.idle += then - self.now;
                self.now = then;
                if then == timer {
                    turn = None;
                }
                continue;
            };
            assert!(self.vcpus[slot].wakes.is_none(), "{slot} runs in its sleep");
            then = then.min(self.now + self.vcpus[slot].left);
            self.vcpus[slot].left -= then - self.now;
            self.now = then;
            if self.vcpus[slot].left == 0 {
                let vcpu = &mut self.vcpus[slot];
                let sleep = vcpu.bursts[vcpu.at].sleep;
                vcpu.at = (vcpu.at + 1) % vcpu.bursts.len();
                vcpu.left = vcpu.bursts[vcpu.at].work;
                if sleep > 0 {
                    vcpu.wakes = Some(self.now + sleep);
                    let last = self.scheduler.is_last().then(|| self.scheduler.clone());
                    self.asleep = last.map(|was| (was, self.now));
                    self.blocks();
                } else if now.trap_wfe {
                    self.scheduler.yield_cpu();
                }
                turn = None;
            } else if self.now >= timer {
                turn = None;
            }
        }
        self.scheduler.next(self.now);
    }

    /// Wakes a vCPU, by the fast path as well where there is one: it must agree in everything.
    fn wakes(&mut self, slot: usize) -> bool {
        let mut short = self.scheduler.clone();
        let woken = short.wake_fair(only(slot), self.now);
        if woken.is_none() {
            assert_eq!(format!("{short:?}"), format!("{:?}", self.scheduler));
        }
        let looks = self.scheduler.wake(slot, self.now);
        let Some(woken) = woken else { return looks };
        self.woken += 1;
        assert!(looks, "the decision is simple, and not taken yet");
        let mut long = self.scheduler.clone();
        let next = long.next(self.now);
        match woken {
            Woken::Keeps(until) => {
                self.kept += 1;
                assert_eq!((short.current(), until), (next.slot, next.until));
                assert!(next.trap_wfi && next.trap_wfe);
            }
            _ => assert_eq!(short.next(self.now), next),
        }
        assert_eq!(format!("{short:?}"), format!("{long:?}"));
        true
    }

    /// Blocks the current vCPU, and asks for the next turn as well where both are possible in one: that must agree with the long way in
    /// everything.
    fn blocks(&mut self) {
        let mut short = self.scheduler.clone();
        let before = format!("{short:?}");
        let inherited = short.block_for_heir(self.now);
        self.scheduler.block(self.now);
        let Some(turn) = inherited else {
            assert_eq!(format!("{short:?}"), before);
            return;
        };
        self.inherited += 1;
        let mut long = self.scheduler.clone();
        assert_eq!(turn, long.next(self.now));
        assert_eq!(format!("{short:?}"), format!("{long:?}"));
    }

    /// Asks for the next turn, by the fast and the slow path where both are possible: they must
    /// agree in everything.
    fn next(&mut self) -> Turn {
        let mut short = self.scheduler.clone();
        let is_over = self.now >= self.scheduler.ends;
        let handed = is_over.then(|| short.end_turn(self.now)).flatten();
        let next = self.scheduler.next(self.now);
        if let Some((slot, until)) = handed {
            self.handed += 1;
            assert_eq!((Some(slot), until), (next.slot, next.until));
            assert!(next.trap_wfi && next.trap_wfe);
            assert_eq!(format!("{short:?}"), format!("{:?}", self.scheduler));
        }
        next
    }

    /// The sleep of `slot`, which began at `from` when the scheduler was `was`, ends: by the fast and
    /// the slow path, which must agree in everything that counts.
    fn sleeps(&mut self, was: &mut Scheduler, from: u64, slot: usize) {
        self.slept += 1;
        let until = was.slept(from, self.now);
        assert!(self.scheduler.wake(slot, self.now));
        let (short, next) = (was.next(self.now), self.scheduler.next(self.now));
        assert_eq!(short, next);
        match until {
            Some(until) => assert_eq!((Some(slot), until), (next.slot, next.until)),
            None => assert_eq!(next.slot, None),
        }
        assert_eq!(format!("{was:?}"), format!("{:?}", self.scheduler));
    }

    fn ran(&self, slot: usize) -> u64 {
        self.scheduler.account(slot).unwrap().ran
    }
}

fn bursts() -> impl Strategy<Value = Vec<Burst>> {
    let sleep = prop_oneof![Just(0u64), 1u64..20_000];
    prop::collection::vec(
        (1u64..5_000, sleep).prop_map(|(work, sleep)| Burst { work, sleep }),
        1..6,
    )
}

fn fair() -> impl Strategy<Value = Policy> {
    (1u16..=8).prop_map(|weight| Policy::Fair {
        weight,
        quota: 1,
        period: 1,
    })
}

fn capped() -> impl Strategy<Value = Policy> {
    (1u16..=8, 100u64..9_000).prop_map(|(weight, quota)| Policy::Fair {
        weight,
        quota,
        period: 10_000,
    })
}

fn server() -> impl Strategy<Value = Policy> {
    (100u64..2_000, 2_000u64..20_000).prop_map(|(budget, period)| Policy::Server { budget, period })
}

fn any_policy() -> impl Strategy<Value = Policy> {
    prop_oneof![fair(), capped(), server()]
}

fn busy() -> Vec<Burst> {
    Vec::from([Burst {
        work: 1 << 40,
        sleep: 0,
    }])
}

/// Each turn of vCPUs that never sleep ends by the fast path, whatever their weights and however
/// late the timer is.
#[test]
fn busy_ones_hand_over_without_a_look() {
    for (weights, late) in [
        (&[1u16, 1][..], 0),
        (&[1, 2, 4], 0),
        (&[3, 1], 70),
        (&[1; SLOTS], 7),
    ] {
        let fair = |weight: &u16| Policy::Fair {
            weight: *weight,
            quota: 1,
            period: 1,
        };
        let loads = weights.iter().map(|weight| (fair(weight), busy()));
        let mut world = World::new(loads.collect(), late);
        let mut turns = 0;
        world.run(1_000_000, |_, _| turns += 1);
        // The first turn, and a few where a slice that was a little too long is given back, take
        // the slow path.
        assert!(
            world.handed * 10 >= turns * 9,
            "{} of {turns}",
            world.handed
        );
    }
}

/// A vCPU that wakes as soon as it sleeps preempts one that never sleeps once in the shortest
/// slice, not each time.
#[test]
fn who_naps_does_not_leave_others_nothing_but_switches() {
    let fair = Policy::Fair {
        weight: 1,
        quota: 1,
        period: 1,
    };
    let nap = Vec::from([Burst { work: 1, sleep: 1 }]);
    let mut world = World::new(Vec::from([(fair, busy()), (fair, nap)]), 0);
    world.run(600_000, |_, _| {});
    let turns = world.scheduler.account(1).unwrap().turns;
    let most = 600_000 / (6_000 / 16);
    assert!((most / 4..=most + 1).contains(&turns), "{turns} of {most}");
}

/// A million periods of the fastest of three servers that the bound only just accepts, all of them
/// overrunning, beside vCPUs that never sleep and one that sleeps at odd times: each server gets
/// its budget in each of its periods.
#[test]
fn no_period_of_a_million_is_missed() {
    const LATE: u64 = 5;
    let promises = [(400, 1_000), (900, 3_000), (1_400, 5_000)];
    let promises = promises.map(|(budget, period)| Promise {
        budget,
        period,
        held: 0,
    });
    let costs = Costs {
        switch: 0,
        longest: LATE,
        drain: 0,
    };
    let holds = |promises: &[Promise]| {
        (0..promises.len()).all(|which| bound(promises, which, costs).unwrap().holds())
    };
    assert!(holds(&promises));
    let mut more = promises;
    more[2].budget += 100;
    assert!(!holds(&more), "it takes a bound that is near");
    let fair = |weight, quota| Policy::Fair {
        weight,
        quota,
        period: 10_000,
    };
    let odd =
        Vec::from([(777, 3_333), (1, 1), (2_500, 0)].map(|(work, sleep)| Burst { work, sleep }));
    let servers =
        promises.map(|Promise { budget, period, .. }| (Policy::Server { budget, period }, busy()));
    let mut loads = Vec::from(servers);
    loads.extend([
        (fair(1, 10_000), busy()),
        (fair(4, 300), busy()),
        (fair(2, 10_000), odd),
    ]);
    let mut world = World::new(loads, LATE);
    for period in 1..=1_000_000u64 {
        world.run(period * 1_000, |_, _| {});
        for (slot, Promise { budget, period, .. }) in promises.iter().enumerate() {
            let due = world.now / period * budget;
            assert!(
                world.ran(slot) + LATE * 2 >= due,
                "server {slot} at {}",
                world.now
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Time is never lost or given twice, no vCPU runs asleep, no turn has length 0, no vCPU that
    /// may run waits while the pCPU idles, and each vCPU is charged exactly what it runs.
    #[test]
    fn the_books_balance(loads in prop::collection::vec((any_policy(), bursts()), 1..=SLOTS), late in 0u64..50) {
        let n = loads.len();
        let mut world = World::new(loads, late);
        world.run(300_000, |world, turn| {
            if turn.slot.is_none() {
                for slot in world.awake() {
                    // A vCPU that is awake on an idle pCPU has no budget left.
                    assert!(!world.scheduler.slots[slot].may_run());
                }
            }
        });
        let ran: u64 = (0..n).map(|slot| world.ran(slot)).sum();
        prop_assert_eq!(ran + world.idle, 300_000);
        for slot in 0..n {
            let account = world.scheduler.account(slot).unwrap();
            prop_assert!(account.ran + account.stolen <= 300_000);
            prop_assert!(account.waits.iter().map(|count| u64::from(*count)).sum::<u64>() <= account.turns);
        }
    }

    /// Servers that the bound accepts get their budget in each period, beside any other load.
    #[test]
    fn accepted_servers_never_miss(
        servers in prop::collection::vec((100u64..3_000, 3_000u64..20_000), 1..=4),
        others in prop::collection::vec((prop_oneof![fair(), capped()], bursts()), 0..=4),
        late in 0u64..20,
    ) {
        let promises: Vec<Promise> = servers.iter().map(|(budget, period)| Promise { budget: *budget, period: *period, held: 0 }).collect();
        // A turn ends late by that much, which its server pays; a server that waited was blocked
        // once.
        let costs = Costs { switch: 0, longest: late, drain: 0 };
        prop_assume!((0..promises.len()).all(|which| bound(&promises, which, costs).unwrap().holds()));
        let mut loads: Vec<(Policy, Vec<Burst>)> = servers
            .iter()
            .map(|(budget, period)| (Policy::Server { budget: *budget, period: *period }, busy()))
            .collect();
        loads.extend(others);
        let mut world = World::new(loads, late);
                for step in 1..=40u64 {
            world.run(step * 10_000, |_, _| {});
            for (slot, promise) in promises.iter().enumerate() {
                // All whole periods since it woke, less what a late timer took from it or gave it.
                let due = (world.now / promise.period) * promise.budget;
                prop_assert!(world.ran(slot) + late * 2 >= due, "server {slot} had {} of {due} at {}", world.ran(slot), world.now);
                let most = (world.now / promise.period + 1) * promise.budget;
                prop_assert!(world.ran(slot) <= most + late, "server {slot} had {} of {most}", world.ran(slot));
            }
        }
    }

    /// Fair vCPUs that are always busy have their shares by weight, whatever servers and others
    /// leave them.
    #[test]
    fn busy_ones_share_by_weight(
        weights in prop::collection::vec(1u16..=8, 2..=4),
        others in prop::collection::vec((server(), bursts()), 0..=2),
    ) {
        let mut loads: Vec<(Policy, Vec<Burst>)> = weights
            .iter()
            .map(|weight| (Policy::Fair { weight: *weight, quota: 1, period: 1 }, busy()))
            .collect();
        loads.extend(others);
        let mut world = World::new(loads, 0);
        world.run(1_000_000, |_, _| {});
        let each: Vec<u64> = (0..weights.len()).map(|slot| world.ran(slot)).collect();
        let all: u64 = each.iter().sum();
        let sum: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        for (slot, weight) in weights.iter().enumerate() {
            let share = all * u64::from(*weight) / sum;
            // One round at most.
            prop_assert!(each[slot].abs_diff(share) <= 6_000, "{:?} of {all} by {:?}", each, weights);
        }
    }

    /// A fair vCPU that is awake runs again if servers leave time. At worst the lightest of eight
    /// has just had half of a round when seven of weight 8 wake: each may then have eight times
    /// that before its turn comes.
    #[test]
    fn nobody_starves(loads in prop::collection::vec((fair(), bursts()), 1..=SLOTS)) {
        let n = loads.len();
        let mut world = World::new(loads, 0);
        let mut waiting = [None; SLOTS];
        world.run(300_000, |world, turn| {
            for (slot, since) in waiting.iter_mut().enumerate().take(n) {
                let waits = world.vcpus[slot].wakes.is_none() && turn.slot != Some(slot);
                *since = if waits { Some(since.unwrap_or(world.now)) } else { None };
                let waited = world.now - since.unwrap_or(world.now);
                assert!(waited <= 6_000 * 30, "{slot} waits since {since:?}, at {}", world.now);
            }
        });
    }

    /// Caps hold in each period, over the whole run.
    #[test]
    fn caps_hold(loads in prop::collection::vec((capped(), bursts()), 1..=4), late in 0u64..20) {
        let quotas: Vec<u64> = loads.iter().map(|(policy, _)| match policy {
            Policy::Fair { quota, .. } => *quota,
            _ => 0,
        }).collect();
        let mut world = World::new(loads, late);
        for period in 1..=30u64 {
            world.run(period * 10_000, |_, _| {});
            for (slot, quota) in quotas.iter().enumerate() {
                prop_assert!(world.ran(slot) <= period * quota + late, "{slot}: {} in {period} periods of {quota}", world.ran(slot));
            }
        }
    }
}

#[test]
fn wake_ups_that_end_no_turn_and_sleeps_alone_take_the_short_paths() {
    let sleepy = |work, sleep| Vec::from([Burst { work, sleep }]);
    let fair = Policy::Fair {
        weight: 1,
        quota: 1,
        period: 1,
    };
    let server = Policy::Server {
        budget: 500,
        period: 2_000,
    };
    let capped = Policy::Fair {
        weight: 1,
        quota: 500,
        period: 2_000,
    };
    let mut beside = World::new(Vec::from([(fair, busy()), (fair, sleepy(10, 50))]), 0);
    beside.run(100_000, |_, _| ());
    assert!(beside.kept > 100, "{}", beside.kept);
    // One, two and more that wait when one falls asleep.
    for sleepers in 1..SLOTS {
        let all = (0..SLOTS).map(|n| {
            if n < sleepers {
                sleepy(10 + n as u64, 50)
            } else {
                busy()
            }
        });
        let mut many = World::new(all.map(|load| (fair, load)).collect(), 0);
        many.run(100_000, |_, _| ());
        assert!(many.inherited > 100, "{sleepers}: {}", many.inherited);
        assert!(many.woken > 100, "{sleepers}: {}", many.woken);
    }
    // Of the last two, some sleeps end with the budget used up.
    for (policy, work) in [(fair, 70), (server, 70), (server, 500), (capped, 500)] {
        let mut alone = World::new(Vec::from([(policy, sleepy(work, 300))]), 0);
        alone.run(100_000, |_, _| ());
        assert!(alone.slept > 40, "{policy:?}: {}", alone.slept);
    }
}
