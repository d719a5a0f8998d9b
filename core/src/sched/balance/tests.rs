//! Several pCPUs with their schedulers and balancers, in steps of 50 us. Ticks are microseconds.

use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::sched::{MigratingSlot, Policy};

const STEP: u64 = 50;
const PERIOD: u64 = PERIOD_MS * 1000;
const PAUSE: u64 = PAUSE_MS * 1000;
const SECOND: u64 = 1_000_000;

/// A vCPU that works and sleeps in turns; without sleep it works for ever.
#[derive(Clone, Copy, Debug)]
struct Task {
    policy: Policy,
    pool: u32,
    work: u64,
    sleep: u64,
}

fn busy(weight: u16, pool: u32) -> Task {
    sleeper(weight, pool, u64::MAX, 0)
}

fn sleeper(weight: u16, pool: u32, work: u64, sleep: u64) -> Task {
    let policy = Policy::Fair {
        weight,
        quota: 1,
        period: 1,
    };
    Task {
        policy,
        pool,
        work,
        sleep,
    }
}

fn server(budget: u64, period: u64) -> Task {
    let policy = Policy::Server { budget, period };
    Task {
        policy,
        ..busy(1, 0)
    }
}

struct Vcpu {
    task: Task,
    left: u64,
    wakes: Option<u64>,
    ran: u64,
    moves: u32,
    latest: Option<u64>,
}

struct Pcpu {
    sched: Scheduler,
    balancer: Balancer,
    seats: [Option<usize>; SLOTS],
    leaves: Option<Move>,
    idle_since: u64,
}

struct World {
    pcpus: Vec<Pcpu>,
    vcpus: Vec<Vcpu>,
    loads: Loads,
    /// vCPUs on their way: the target pCPU, the vCPU, and its state.
    under_way: Vec<(usize, usize, MigratingSlot, LoadTrack)>,
    now: u64,
    /// Longest time for which a pCPU was idle while two vCPUs that may run on it were ready on
    /// another pCPU.
    longest_idle: u64,
}

impl World {
    /// A world in which each task starts on the pCPU given with it.
    fn new(pcpus: usize, tasks: &[(usize, Task)]) -> Self {
        let loads = Loads::new();
        let mut world = Self {
            pcpus: (0..pcpus)
                .map(|own| Pcpu {
                    sched: Scheduler::new(6_000),
                    balancer: Balancer::new(own, 1),
                    seats: [None; SLOTS],
                    leaves: None,
                    idle_since: 0,
                })
                .collect(),
            vcpus: Vec::new(),
            loads,
            under_way: Vec::new(),
            now: 0,
            longest_idle: 0,
        };
        for (own, task) in tasks {
            let who = world.vcpus.len();
            world.vcpus.push(Vcpu {
                task: *task,
                left: task.work,
                wakes: None,
                ran: 0,
                moves: 0,
                latest: None,
            });
            let pcpu = &mut world.pcpus[*own];
            let slot = pcpu.seats.iter().position(Option::is_none).unwrap();
            pcpu.seats[slot] = Some(who);
            pcpu.sched.add(slot, task.policy, who as u16, 0);
            pcpu.sched.wake(slot, 0);
        }
        for pcpu in &mut world.pcpus {
            pcpu.sched.track_sleep();
            for (slot, who) in pcpu.seats.into_iter().enumerate() {
                if let Some(who) = who {
                    let load_track = LoadTrack::new(world.vcpus[who].task.pool, 0);
                    pcpu.balancer.add(slot, load_track);
                }
            }
        }
        world
    }

    fn leave(&mut self, own: usize) {
        let pcpu = &mut self.pcpus[own];
        let Some(Move { slot, to }) = pcpu.leaves else {
            return;
        };
        if pcpu.sched.current() == Some(slot) {
            return;
        }
        pcpu.leaves = None;
        let taken = self.under_way.iter().any(|(there, ..)| *there == to);
        if taken || self.loads.free(to) == 0 {
            pcpu.sched.bar(slot, false);
            return;
        }
        let load_track = pcpu.balancer.load_track(slot).unwrap();
        let migrating_slot = pcpu.sched.detach(slot, self.now).unwrap();
        pcpu.balancer.set(slot, None, &self.loads);
        pcpu.balancer.sent(&load_track, to, &self.loads);
        let who = pcpu.seats[slot].take().unwrap();
        self.vcpus[who].moves += 1;
        self.under_way.push((to, who, migrating_slot, load_track));
    }

    fn attach(&mut self) {
        for (to, who, migrating_slot, load_track) in std::mem::take(&mut self.under_way) {
            let pcpu = &mut self.pcpus[to];
            let slot = pcpu.seats.iter().position(Option::is_none).unwrap();
            pcpu.seats[slot] = Some(who);
            pcpu.sched.attach(slot, migrating_slot, self.now);
            pcpu.balancer.set(slot, Some(load_track), &self.loads);
            self.vcpus[who].wakes = None;
        }
    }

    fn ready(&self, own: usize) -> Vec<usize> {
        let here = self.pcpus[own].seats.iter().flatten();
        here.filter(|who| self.vcpus[**who].wakes.is_none())
            .copied()
            .collect()
    }

    /// Measures the longest time for which a pCPU that could have helped has been idle.
    fn look_for_idle(&mut self) {
        for own in 0..self.pcpus.len() {
            let could = |who: &usize| self.vcpus[*who].task.pool >> own & 1 != 0;
            let helps = (0..self.pcpus.len())
                .any(|other| self.ready(other).iter().filter(|who| could(who)).count() > 1);
            if !helps || !self.ready(own).is_empty() {
                self.pcpus[own].idle_since = self.now;
            }
            let idle = self.now - self.pcpus[own].idle_since;
            self.longest_idle = self.longest_idle.max(idle);
        }
    }

    fn run(&mut self, ticks: u64) {
        let end = self.now + ticks;
        while self.now < end {
            self.attach();
            for own in 0..self.pcpus.len() {
                let pcpu = &mut self.pcpus[own];
                for (slot, who) in pcpu.seats.into_iter().enumerate() {
                    let Some(vcpu) = who.map(|who| &mut self.vcpus[who]) else {
                        continue;
                    };
                    if vcpu.wakes.is_some_and(|at| at <= self.now) {
                        vcpu.wakes = None;
                        pcpu.sched.wake(slot, self.now);
                    }
                }
                if self.now.is_multiple_of(PERIOD) && self.now > 0 {
                    let (sched, now) = (&mut pcpu.sched, self.now);
                    pcpu.balancer.measure(sched, &self.loads, now);
                }
                if self.now % PERIOD == PAUSE && self.now > PERIOD && pcpu.leaves.is_none() {
                    pcpu.leaves = pcpu.balancer.choose(&self.loads);
                    if let Some(Move { slot, .. }) = pcpu.leaves {
                        pcpu.sched.bar(slot, true);
                    }
                }
                pcpu.sched.next(self.now);
                self.leave(own);
            }
            self.look_for_idle();
            self.now += STEP;
            for pcpu in &mut self.pcpus {
                let Some(who) = pcpu.sched.current().map(|slot| pcpu.seats[slot].unwrap()) else {
                    continue;
                };
                let vcpu = &mut self.vcpus[who];
                assert!(vcpu.latest < Some(self.now), "vCPU {who} runs twice");
                vcpu.latest = Some(self.now);
                vcpu.ran += STEP;
                vcpu.left = vcpu.left.saturating_sub(STEP);
                if vcpu.left == 0 {
                    vcpu.left = vcpu.task.work;
                    vcpu.wakes = Some(self.now + vcpu.task.sleep);
                    pcpu.sched.block(self.now);
                }
            }
            self.everybody_is_somewhere();
        }
    }

    fn everybody_is_somewhere(&self) {
        let seated = self.pcpus.iter().flat_map(|pcpu| &pcpu.seats).flatten();
        let under_way = self.under_way.iter().map(|(_, who, ..)| who);
        let mut all: Vec<usize> = seated.chain(under_way).copied().collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..self.vcpus.len()));
    }

    /// Percent of a pCPU that each vCPU has had since `before`.
    fn shares(&self, before: &[u64], ticks: u64) -> Vec<u64> {
        let had = self.vcpus.iter().zip(before);
        had.map(|(vcpu, before)| (vcpu.ran - before) * 100 / ticks)
            .collect()
    }

    fn ran(&self) -> Vec<u64> {
        self.vcpus.iter().map(|vcpu| vcpu.ran).collect()
    }

    fn moves(&self) -> u32 {
        self.vcpus.iter().map(|vcpu| vcpu.moves).sum()
    }

    /// Shares over a second, after half a second of warm-up.
    fn settled(&mut self) -> Vec<u64> {
        self.run(SECOND / 2);
        let before = self.ran();
        self.run(SECOND);
        self.shares(&before, SECOND)
    }
}

#[test]
fn two_that_are_together_beside_an_idle_pcpu_are_parted() {
    let mut world = World::new(2, &[(0, busy(1, 3)), (0, busy(1, 3))]);
    world.run(2 * PERIOD);
    assert_eq!(world.moves(), 1);
    assert_eq!(world.settled(), [100, 100]);
    assert_eq!(world.moves(), 1, "nobody moves who gains nothing");
}

#[test]
fn three_equal_ones_on_two_pcpus_get_two_thirds_each() {
    let mut world = World::new(2, &[(0, busy(1, 3)), (0, busy(1, 3)), (1, busy(1, 3))]);
    let shares = world.settled();
    assert!(
        shares.iter().all(|share| (64..=69).contains(share)),
        "{shares:?}"
    );
    // At most one move in a period.
    assert!(world.moves() <= 75, "{}", world.moves());
}

#[test]
fn many_equal_ones_get_equal_shares_whatever_their_weight() {
    for (pcpus, vcpus, weight) in [(2, 5, 1), (3, 4, 1000), (3, 8, 7), (4, 5, 1)] {
        let pool = (1 << pcpus) - 1;
        let tasks: Vec<_> = (0..vcpus).map(|_| (0, busy(weight, pool))).collect();
        let shares = World::new(pcpus, &tasks).settled();
        let due = 100 * pcpus as u64 / vcpus as u64;
        let fair = |share: &u64| share.abs_diff(due) * 20 <= due + 20;
        assert!(shares.iter().all(fair), "{pcpus} {vcpus}: {shares:?}");
    }
}

#[test]
fn the_heavy_one_gets_a_pcpu_and_stays_there() {
    let mut world = World::new(2, &[(0, busy(4, 3)), (0, busy(1, 3)), (0, busy(2, 3))]);
    let shares = world.settled();
    assert_eq!(shares[0], 100);
    assert!((32..=34).contains(&shares[1]), "{shares:?}");
    let moves = world.moves();
    world.run(SECOND);
    assert_eq!(world.moves(), moves, "what cannot be better stays as it is");
}

#[test]
fn the_room_that_a_server_leaves_is_what_counts() {
    // A server has three quarters of pCPU 1. A vCPU that had only the rest would have too little,
    // so they take turns there.
    let tasks = [(1, server(750, 1_000)), (1, busy(1, 3)), (0, busy(1, 3))];
    let mut world = World::new(2, &tasks);
    world.run(SECOND / 2);
    let before = world.ran();
    world.run(SECOND);
    let shares = world.shares(&before, SECOND);
    assert!((74..=76).contains(&shares[0]), "{shares:?}");
    // Of 1.25 pCPUs: half of the time the whole time and half of the time one.
    assert!(
        shares[1..].iter().all(|share| (54..=60).contains(share)),
        "{shares:?}"
    );
    assert!(world.vcpus[0].moves == 0, "a server stays where it is");
}

#[test]
fn a_cap_goes_along() {
    let capped = Task {
        policy: Policy::Fair {
            weight: 1,
            quota: 3_000,
            period: 10_000,
        },
        ..busy(1, 3)
    };
    let tasks = [(0, capped), (0, busy(1, 3)), (1, busy(1, 3))];
    let mut world = World::new(2, &tasks);
    // Moves by hand, as often as possible.
    for n in 0..200 {
        let own = world
            .pcpus
            .iter()
            .position(|pcpu| pcpu.seats.contains(&Some(0)));
        if let Some(own) = own
            && world.pcpus[own].leaves.is_none()
        {
            let seats = &world.pcpus[own].seats;
            let slot = seats.iter().position(|who| *who == Some(0)).unwrap();
            world.pcpus[own].sched.bar(slot, true);
            world.pcpus[own].leaves = Some(Move { slot, to: 1 - own });
        }
        world.run(1_700 + n * STEP);
    }
    let had = world.vcpus[0].ran * 1000 / world.now;
    assert!(world.vcpus[0].moves > 150);
    assert!((285..=302).contains(&had), "{had} of 1000");
}

#[test]
fn pcpus_are_of_a_kind_if_all_words_are_equal() {
    let words = [0x410f_d034, 0x0000_0022, 0, u64::MAX];
    assert_eq!(kind([].iter()), 0xcbf2_9ce4_8422_2325);
    assert_eq!(kind([1].iter()), 0xaf63_bc4c_8601_b62d);
    let own = kind(words.iter());
    for n in 0..words.len() * 64 {
        let mut other = words;
        other[n / 64] ^= 1 << (n % 64);
        let other = kind(other.iter());
        assert!(other != own && other != 0, "bit {n}");
    }
}

#[test]
fn who_is_outside_its_pool_goes_back() {
    let mut world = World::new(3, &[(0, busy(1, 7)), (1, busy(1, 7)), (2, busy(1, 7))]);
    world.run(SECOND / 2);
    assert_eq!(world.moves(), 0);
    world.pcpus[0].balancer.allow(0, 0b110);
    world.vcpus[0].task.pool = 0b110;
    world.run(SECOND);
    assert!(!world.pcpus[0].seats.contains(&Some(0)));
    assert_eq!(world.settled(), [100; 3]);
}

#[test]
fn a_full_pcpu_takes_nobody_and_another_kind_neither() {
    let full: Vec<_> = (0..8)
        .map(|_| (1, sleeper(1, 2, 100, 900_000)))
        .chain([(0, busy(1, 3)), (0, busy(1, 3))])
        .collect();
    let mut world = World::new(2, &full);
    world.run(SECOND);
    assert_eq!(world.moves(), 0);
    let mut world = World::new(2, &[(0, busy(1, 3)), (0, busy(1, 3))]);
    world.pcpus[1].balancer = Balancer::new(1, 2);
    world.run(SECOND);
    assert_eq!(world.moves(), 0);
}

#[test]
fn guests_that_sleep_so_that_they_are_moved_cost_others_nothing() {
    // They work and sleep for about a period, in opposite phases.
    let alone = [(0, busy(1, 1)), (1, busy(1, 2))];
    let naggers = [
        (0, sleeper(1, 3, 20_000, 20_000)),
        (1, sleeper(1, 3, 20_000, 21_000)),
        (0, sleeper(1, 3, 19_000, 23_000)),
    ];
    let mut world = World::new(2, &[&alone[..], &naggers[..]].concat());
    let shares = world.settled();
    // Five vCPUs that never sleep would have 40 % each.
    assert!(shares[..2].iter().all(|share| *share >= 40), "{shares:?}");
    let periods = world.now / PERIOD * 2;
    assert!(u64::from(world.moves()) <= periods);
}

fn tasks(pcpus: usize) -> impl Strategy<Value = Vec<(usize, Task)>> {
    let pool = 1u32..1 << pcpus;
    let work = prop_oneof![Just(u64::MAX), 100u64..60_000];
    let one = (0..pcpus, 1u16..9, pool, work, 100u64..60_000);
    let one = one.prop_map(|(own, weight, pool, work, sleep)| {
        (own, sleeper(weight, pool | 1 << own, work, sleep))
    });
    prop::collection::vec(one, 1..9)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Each vCPU is on one pCPU, no pCPU is idle for long while two vCPUs that may run on it are
    /// ready on another, and no vCPU that never sleeps is left without time, for any tasks.
    #[test]
    fn work_is_conserved_and_nobody_starves(tasks in tasks(3)) {
        let mut world = World::new(3, &tasks);
        world.run(SECOND);
        prop_assert!(world.longest_idle <= 4 * PERIOD, "{} us", world.longest_idle);
        for vcpu in &world.vcpus {
            // Beside eight other vCPUs of eight times its weight.
            let due = if vcpu.task.work == u64::MAX { SECOND / 80 } else { 1 };
            prop_assert!(vcpu.ran >= due, "{} us of {:?}", vcpu.ran, vcpu.task);
        }
        let looks = world.now / PERIOD * 3;
        prop_assert!(u64::from(world.moves()) <= looks);
    }

    /// A server gets its budget in each period, whatever is moved beside it.
    #[test]
    fn a_server_does_not_notice(tasks in tasks(2)) {
        let mut tasks = tasks;
        tasks.truncate(7);
        tasks.insert(0, (0, server(2_000, 10_000)));
        let mut world = World::new(2, &tasks);
        for _ in 0..100 {
            let before = world.ran()[0];
            world.run(10_000);
            prop_assert_eq!(world.ran()[0] - before, 2_000);
        }
    }
}
