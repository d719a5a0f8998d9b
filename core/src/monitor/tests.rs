//! The monitor against simulated pCPUs.

use super::*;
use crate::console::stats::ExitStats;
use crate::cpu::power::End;
use crate::sched::{Account, Policy, RunState, Usage};
use bulkhead_abi::exit::ExitClass;
use std::{string::String, vec::Vec};
use zerocopy::FromZeros;

const HZ: u64 = 1_000_000;

/// alpha with two vCPUs on pCPUs 0 and 2, beta with one vCPU on pCPU 1.
fn tables() -> (Vec<Vm>, Vec<Vcpu>) {
    let vms = ["alpha", "beta"].map(|name| {
        let mut vm = Vm::new_zeroed();
        vm.name[..name.len()].copy_from_slice(name.as_bytes());
        vm
    });
    let vcpus = [(0, 0), (0, 2), (1, 1)].map(|(vm, pcpu)| Vcpu {
        vm,
        pcpu,
        policy: if vm == 0 { 1 } else { 2 },
        weight: vm,
        budget: 1_000_000,
        period: 1_000_000 * (2 - u64::from(vm)),
        ..Vcpu::new_zeroed()
    });
    (vms.into(), vcpus.into())
}

/// A monitor, its pCPUs and a counter.
struct Desk {
    monitor: Monitor,
    published: Published,
    limits: Limits,
    vms: Vec<Vm>,
    vcpus: Vec<Vcpu>,
    locations: VcpuLocation,
    now: u64,
    asked: Vec<(usize, Request)>,
    /// pCPUs that answer, and their answers: state and the exits that the guest makes
    /// between two samples.
    answers: fn(usize) -> Option<(State, u64)>,
    /// Until when pCPU 0 does not.
    silent_until: u64,
}

impl Desk {
    fn new(answers: fn(usize) -> Option<(State, u64)>) -> Self {
        let (vms, vcpus) = tables();
        let locations = VcpuLocation::new();
        locations.start(&vcpus);
        Self {
            locations,
            monitor: Monitor::new(std::boxed::Box::leak(std::boxed::Box::default())),
            published: Published::new(),
            limits: Limits::new(),
            vms,
            vcpus,
            now: 1_000,
            asked: Vec::new(),
            answers,
            silent_until: 0,
        }
    }

    fn key(&mut self, key: u8) -> Action {
        self.monitor.key(key, &self.vms, &self.vcpus, &self.limits)
    }

    fn answer(&self, row: usize) {
        if self.vcpus[row].pcpu == 0 && self.now < self.silent_until {
            return;
        }
        let (Some(question), Some((state, exits))) = (
            self.published.question(row),
            (self.answers)(usize::from(self.vcpus[row].pcpu)),
        ) else {
            return;
        };
        let samples = self.asked.iter().filter(|(of, _)| *of == row);
        let samples = samples.count().saturating_sub(BEFORE + 1) as u64;
        let sample = Sample {
            pc: 0x1000 * u64::from(self.vcpus[row].pcpu),
            before: 0,
            exits: samples * exits,
        };
        let mut stats = ExitStats::new(0);
        stats.count(ExitClass::Hvc, 0, 1, 0, 0);
        match question.request {
            Request::Sample => self.published.answer_sample(question, state, &sample),
            Request::Registers => {
                let registers = Registers {
                    state: state as u64,
                    sample,
                    ..Registers::default()
                };
                self.published.answer_registers(question, &registers);
            }
            Request::Interrupts => {
                let none = Interrupts::default();
                self.published.answer_interrupts(question, &none);
            }
            Request::Exits => self.published.answer_exits(question, &stats, None),
            Request::Time => {
                let usage = (row != 1).then_some(Usage {
                    policy: Policy::Fair {
                        weight: 2,
                        quota: 1,
                        period: 1,
                    },
                    run_state: RunState::Blocked,
                    account: Account {
                        ran: self.now / 5,
                        ..Account::new(0)
                    },
                    passed: self.now,
                });
                self.published
                    .answer_time(question, state, usage.as_ref(), HZ);
            }
        }
    }

    /// Everything that is printed until the monitor waits for a key.
    fn say(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        for _ in 0..1_000 {
            let mut line = TextLine::new();
            let step = self.monitor.next(
                &self.vms,
                &self.vcpus,
                &self.locations,
                &self.published,
                [self.now, HZ],
                &mut line,
            );
            assert_eq!(step == Step::Say, !line.as_bytes().is_empty());
            match step {
                Step::Say => {
                    said.push(String::from_utf8(line.as_bytes().to_vec()).unwrap());
                }
                Step::Ask(row) | Step::AskPcpu(row) => {
                    let request = self.published.question(row).unwrap().request;
                    assert_eq!(step == Step::AskPcpu(row), request == Request::Time);
                    self.asked.push((row, request));
                    self.answer(row);
                }
                Step::Wait(until) => {
                    assert!(until > self.now, "a wait that is over");
                    self.now = until;
                }
                Step::Nothing => return said,
            }
        }
        panic!("it never ends: {said:?}");
    }
}

#[test]
fn one_key_tells_everything_about_all() {
    let mut desk = Desk::new(|_| Some((State::On, 0)));
    assert_eq!(desk.key(b'a'), Action::Nothing);
    let said = desk.say();
    let heads: Vec<_> = said.iter().filter(|line| line.contains(" vcpu ")).collect();
    assert_eq!(
        heads,
        [
            " 20.00%  alpha vcpu 0 on pcpu 0: spinning on 0x0",
            "         alpha vcpu 1 on pcpu 2: spinning on 0x2000",
            " 20.00%  beta vcpu 0 on pcpu 1: spinning on 0x1000"
        ]
    );
    assert_eq!(said.iter().filter(|line| line.contains("  x0=")).count(), 3);
    assert_eq!(
        said.iter()
            .filter(|line| line.starts_with("  hvc "))
            .count(),
        3
    );
}

#[test]
fn samples_are_taken_with_time_between() {
    let mut desk = Desk::new(|_| Some((State::On, 0)));
    assert_eq!(desk.key(b'n'), Action::Nothing);
    desk.key(b'd');
    desk.say();
    let asked: Vec<_> = desk.asked.iter().map(|(_, request)| *request).collect();
    assert_eq!(asked[0], Request::Time, "the first look");
    assert_eq!(asked[1..], QUESTIONS);
    assert!(desk.asked.iter().all(|(row, _)| *row == 2));
    let ticks = INTERVAL_MS * HZ / 1000 * (SAMPLES as u64 - 1);
    // Before and after the diagnosis.
    let pauses = 2 * (HZ / 10_000);
    assert_eq!(desk.now, 1_000 + HZ + ticks + pauses);
}

#[test]
fn a_list_is_a_line_for_each() {
    let mut desk = Desk::new(|pcpu| Some((State::On, u64::from(pcpu == 0))));
    let (vms, vcpus) = tables();
    desk.monitor.open(1, &vms, &vcpus);
    let list = [
        " 20.00%  alpha vcpu 0 on pcpu 0: runs",
        "         alpha vcpu 1 on pcpu 2: spinning on 0x2000",
        " 20.00%  beta  vcpu 0 on pcpu 1: spinning on 0x1000",
    ];
    let said = desk.say();
    assert_eq!(
        said[0],
        "keys go to the monitor, about beta (? shows them); CPU time of a second:"
    );
    assert_eq!(said[1..], list, "the list comes first");
    let began = desk.now;
    desk.key(b'l');
    assert_eq!(desk.say()[1..], list);
    let took = desk.now - began;
    assert!((HZ..HZ + HZ / 20).contains(&took), "{took}");
}

#[test]
fn a_pcpu_that_is_lost_holds_nothing_up() {
    let mut desk = Desk::new(|pcpu| (pcpu != 2).then_some((State::Paused, 0)));
    desk.key(b'l');
    assert_eq!(
        desk.say(),
        [
            "CPU time of a second:",
            " 20.00%  alpha vcpu 0 on pcpu 0: paused",
            "         alpha vcpu 1 on pcpu 2: its pcpu does not answer",
            " 20.00%  beta vcpu 0 on pcpu 1: paused"
        ]
    );
}

#[test]
fn keys_are_about_the_vm_that_is_selected() {
    let mut desk = Desk::new(|_| None);
    assert_eq!(desk.key(b'p'), Action::Order(Order::Pause, 0));
    assert_eq!(desk.say(), ["pause alpha"]);
    assert_eq!(desk.key(b'2'), Action::Nothing);
    assert_eq!(desk.say(), ["about beta"]);
    assert_eq!(desk.key(b'c'), Action::Order(Order::Resume, 1));
    assert_eq!(desk.say(), ["go on with beta"]);
    assert_eq!(desk.key(b's'), Action::Order(Order::Stop, 1));
    assert_eq!(desk.key(b'r'), Action::Order(Order::Restart, 1));
    assert_eq!(desk.say(), ["restart beta"], "the last one is enough");
    assert_eq!(desk.key(b'3'), Action::Nothing);
    assert_eq!(desk.say(), ["there is no such VM"]);
    for key in *b"00" {
        assert_eq!(desk.key(key), Action::Nothing);
    }
    assert_eq!(desk.say(), [""; 0], "the last digit is awaited");
    assert_eq!(desk.key(b'1'), Action::Nothing);
    assert_eq!(desk.say(), ["about alpha"]);
    assert_eq!(desk.key(b'p'), Action::Order(Order::Pause, 0));
    desk.key(b'2');
    assert_eq!(desk.key(b'p'), Action::Order(Order::Pause, 1));
    assert_eq!(desk.key(b'n'), Action::Nothing);
    assert_eq!(desk.say(), ["about alpha"]);
    assert_eq!(desk.key(b'z'), Action::Nothing);
    assert_eq!(desk.say(), [""; 0]);
    assert_eq!(desk.key(b'?'), Action::Nothing);
    assert_eq!(desk.say(), [KEYS]);
}

#[test]
fn what_is_refused_is_said_and_not_claimed() {
    let mut desk = Desk::new(|_| None);
    for (phase, is) in [
        (Phase::Down, "stopped"),
        (Phase::Starting, "starting"),
        (Phase::Running, "running"),
        (Phase::Asked(End::Ordered), "asked to stop"),
        (Phase::Paused, "paused"),
        (Phase::Stopping(End::Crash), "stopping"),
        (Phase::Ended, "stopping"),
    ] {
        for (key, order) in [
            (b'p', "pause"),
            (b'c', "go on with"),
            (b's', "stop"),
            (b'r', "restart"),
        ] {
            desk.key(key);
            desk.monitor.refuse(phase);
            assert_eq!(
                desk.say(),
                [std::format!("cannot {order} alpha: it is {is}")]
            );
        }
    }
    desk.key(b'2');
    desk.monitor.refuse(Phase::Down);
    assert_eq!(desk.say(), ["about beta"], "that is no order");
}

#[test]
fn leaving_ends_a_report() {
    let mut desk = Desk::new(|_| Some((State::On, 0)));
    desk.key(b'a');
    assert_eq!(desk.key(b'q'), Action::Leave);
    assert_eq!(desk.say(), ["keys go to VMs again"]);
}

#[test]
fn cpu_time_is_told_of_all_without_waking_them() {
    let mut desk = Desk::new(|_| Some((State::On, 0)));
    desk.key(b't');
    assert_eq!(
        desk.say(),
        [
            "CPU time of a second:",
            " 20.00%  alpha vcpu 0 on pcpu 0: asleep         fair weight 2",
            "  time ran=200200000 of=1001000000 stolen=0 longest=0",
            "  time turns=0 overruns=0",
            "         alpha vcpu 1 on pcpu 2: not there",
            " 20.00%  beta vcpu 0 on pcpu 1: asleep         fair weight 2",
            "  time ran=200200000 of=1001000000 stolen=0 longest=0",
            "  time turns=0 overruns=0",
        ]
    );
    assert!(
        desk.asked
            .iter()
            .all(|(_, request)| *request == Request::Time)
    );
    assert_eq!(desk.now, 1_000 + HZ, "a second apart");
}

/// Types keys; returns the action of the last one and what was printed.
fn type_keys(desk: &mut Desk, keys: &str) -> (Action, Vec<String>) {
    let mut action = Action::Nothing;
    let mut said = Vec::new();
    for key in keys.bytes() {
        action = desk.key(key);
        said.extend(desk.say());
    }
    (action, said)
}

#[test]
fn weights_caps_and_budgets_are_typed() {
    let mut desk = Desk::new(|_| None);
    let of = |desk: &Desk, row| {
        let vcpu = desk.limits.of(&desk.vcpus, row).unwrap();
        (vcpu.weight, vcpu.budget, vcpu.period)
    };
    let (action, said) = type_keys(&mut desk, "2w12\r");
    assert_eq!(action, Action::Follow(1));
    assert_eq!(
        said,
        [
            "about beta",
            "weight of beta? type N, then Enter; Esc leaves it",
            "new weight of beta"
        ]
    );
    assert_eq!(of(&desk, 2), (12, 1_000_000, 1_000_000));
    assert_eq!(type_keys(&mut desk, "m30\r").0, Action::Follow(1));
    assert_eq!(of(&desk, 2), (12, 300_000, 1_000_000));
    assert_eq!(type_keys(&mut desk, "m5/20000\n").0, Action::Follow(1));
    assert_eq!(of(&desk, 2), (12, 1_000_000, 20_000_000));
    assert_eq!(type_keys(&mut desk, "1b500/4000\r").0, Action::Follow(0));
    assert_eq!(of(&desk, 0), (0, 500_000, 4_000_000));
    assert_eq!(of(&desk, 1), (0, 500_000, 4_000_000));
    assert_eq!(type_keys(&mut desk, "b600\r").0, Action::Follow(0));
    assert_eq!(of(&desk, 0), (0, 600_000, 4_000_000));
}

#[test]
fn what_is_typed_wrongly_or_refused_changes_nothing() {
    let mut desk = Desk::new(|_| None);
    let plan = desk.limits.of(&desk.vcpus, 0);
    for (keys, last) in [
        (
            "b9000/4000\r",
            "refused: it is to be more than nothing and at most the whole period",
        ),
        (
            "b4000/4000\r",
            "refused: the budgets on pcpu 0 would take 100.",
        ),
        ("b1/99\r", "refused: a period is 100 to 10000000 us"),
        (
            "w4\r",
            "refused: it has a budget, and so neither weight nor cap nor pool",
        ),
        ("2o01\r1", "about alpha"),
        ("2w99999999999999\r1", "about alpha"),
        ("b7\u{1b}", "as it was"),
        // A key that is no number restarts the input; it must not act as a command that stops the
        // VM.
        (
            "bs",
            "type BUDGET or BUDGET/PERIOD in us, then Enter; Esc leaves it",
        ),
        ("\u{1b}", "as it was"),
        ("b\r\u{1b}", "as it was"),
        ("b/\u{1b}", "as it was"),
    ] {
        let (action, said) = type_keys(&mut desk, keys);
        assert_eq!(action, Action::Nothing, "{keys:?}");
        assert!(said.last().unwrap().starts_with(last), "{keys:?}: {said:?}");
        assert_eq!(desk.limits.of(&desk.vcpus, 0), plan, "{keys:?}");
    }
    assert_eq!(desk.limits.of(&desk.vcpus, 2).unwrap().weight, 1);
    // What would just fit elsewhere does not where the console is drained.
    for (drainer, seen) in [(1, Action::Follow(0)), (0, Action::Nothing)] {
        desk.limits.set_drainer(drainer);
        assert_eq!(type_keys(&mut desk, "b3990/4000\r").0, seen, "{drainer}");
    }
}

#[test]
fn a_pool_is_typed_as_the_numbers_of_its_cpus() {
    let mut desk = Desk::new(|_| Some((State::On, 0)));
    desk.vcpus[2].pool = 0b1011;
    let (action, said) = type_keys(&mut desk, "2o02\r");
    assert_eq!(action, Action::Nothing);
    let last = "refused: each is to be a cpu of the pool in the description";
    assert_eq!(said.last().unwrap(), last);
    let (action, said) = type_keys(&mut desk, "o03\r");
    assert_eq!(action, Action::Follow(1));
    assert_eq!(said.last().unwrap(), "new pool of beta");
    assert_eq!(desk.limits.of(&desk.vcpus, 2).unwrap().pool, 0b1001);
    desk.locations.set(2, 3);
    let (_, said) = type_keys(&mut desk, "l");
    assert!(
        said.iter()
            .any(|line| line.contains("beta vcpu 0 on pcpu 3")),
        "{said:?}"
    );
}

#[test]
fn a_report_that_is_ended_in_its_first_second_says_no_more() {
    let mut desk = Desk::new(|_| Some((State::On, 0)));
    desk.key(b'l');
    let mut line = TextLine::new();
    for _ in 0..2 {
        desk.monitor.next(
            &desk.vms,
            &desk.vcpus,
            &desk.locations,
            &desk.published,
            [desk.now, HZ],
            &mut line,
        );
    }
    assert_eq!(desk.key(b'q'), Action::Leave);
    assert_eq!(desk.say(), ["keys go to VMs again"]);
}

#[test]
fn who_stops_is_not_asleep() {
    let mut desk = Desk::new(|_| Some((State::Stopped, 0)));
    desk.key(b't');
    assert_eq!(
        desk.say()[1],
        " 20.00%  alpha vcpu 0 on pcpu 0: stopped        fair weight 2"
    );
}

#[test]
fn one_that_was_not_there_at_the_first_look_has_no_share() {
    let mut desk = Desk::new(|_| Some((State::On, 1)));
    for (silent, begins) in [(0, " 20.00%  alpha"), (HZ / 2, "         alpha")] {
        desk.silent_until = desk.now + silent;
        desk.key(b'l');
        let said = desk.say();
        assert!(said[1].starts_with(begins), "{said:?}");
        assert!(said[3].starts_with(" 20.00%  beta"), "{said:?}");
    }
}
