//! The monitor against pCPUs that answer as the test says.

use super::*;
use crate::stats::ExitStats;
use bulkhead_abi::exit::ExitClass;
use std::{string::String, vec::Vec};
use zerocopy::FromZeros;

const HZ: u64 = 1_000_000;

/// alpha with two vCPUs on pCPUs 0 and 2, beta with one on pCPU 1.
fn tables() -> (Vec<Vm>, Vec<Vcpu>) {
    let vms = ["alpha", "beta"].map(|name| {
        let mut vm = Vm::new_zeroed();
        vm.name[..name.len()].copy_from_slice(name.as_bytes());
        vm
    });
    let vcpus = [(0, 0), (0, 2), (1, 1)].map(|(vm, pcpu)| Vcpu {
        vm,
        pcpu,
        ..Vcpu::new_zeroed()
    });
    (vms.into(), vcpus.into())
}

/// A monitor, its pCPUs and a counter.
struct Desk {
    monitor: Monitor,
    published: Published,
    vms: Vec<Vm>,
    vcpus: Vec<Vcpu>,
    now: u64,
    asked: Vec<(usize, Wish)>,
    /// pCPUs that answer, and what: state and the exits that each sample finds.
    answers: fn(usize) -> Option<(State, u64)>,
}

impl Desk {
    fn new(answers: fn(usize) -> Option<(State, u64)>) -> Self {
        let (vms, vcpus) = tables();
        Self {
            monitor: Monitor::new(),
            published: Published::new(),
            vms,
            vcpus,
            now: 1_000,
            asked: Vec::new(),
            answers,
        }
    }

    fn key(&mut self, key: u8) -> Action {
        self.monitor.key(key, &self.vms, &self.vcpus)
    }

    fn answer(&self, row: usize) {
        let (Some(question), Some((state, exits))) = (
            self.published.question(row),
            (self.answers)(usize::from(self.vcpus[row].pcpu)),
        ) else {
            return;
        };
        let samples = self.asked.iter().filter(|(of, _)| *of == row).count() as u64;
        let sample = Sample {
            pc: 0x1000 * u64::from(self.vcpus[row].pcpu),
            before: 0,
            exits: samples * exits,
        };
        let mut stats = ExitStats::new(0);
        stats.count(ExitClass::Hvc, 0, 1, 0, 0);
        match question.wish {
            Wish::Sample => self.published.answer_sample(question, state, &sample),
            Wish::Registers => {
                let registers = Registers {
                    state: state as u64,
                    sample,
                    ..Registers::default()
                };
                self.published.answer_registers(question, &registers);
            }
            Wish::Interrupts => {
                let none = Interrupts::default();
                self.published.answer_interrupts(question, &none);
            }
            Wish::Exits => self.published.answer_exits(question, &stats),
        }
    }

    /// Everything that is said until the monitor waits for a key.
    fn say(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        for _ in 0..1_000 {
            let mut line = Said::new();
            let step = self.monitor.next(
                &self.vms,
                &self.vcpus,
                &self.published,
                [self.now, HZ],
                &mut line,
            );
            assert_eq!(step == Step::Say, !line.as_bytes().is_empty());
            match step {
                Step::Say => {
                    said.push(String::from_utf8(line.as_bytes().to_vec()).unwrap());
                }
                Step::Ask(row) => {
                    let wish = self.published.question(row).unwrap().wish;
                    self.asked.push((row, wish));
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
    let mut desk = Desk::new(|_| Some((State::On, 1)));
    let (_, vcpus) = tables();
    desk.monitor.open(1, &vcpus);
    let said = desk.say();
    assert_eq!(said[0], "keys go to the monitor, about beta (? shows them)");
    let heads: Vec<_> = said.iter().filter(|line| line.contains(" vcpu ")).collect();
    assert_eq!(
        heads,
        [
            "alpha vcpu 0 on pcpu 0: spinning on 0x0",
            "alpha vcpu 1 on pcpu 2: spinning on 0x2000",
            "beta vcpu 0 on pcpu 1: spinning on 0x1000"
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
    let mut desk = Desk::new(|_| Some((State::On, 1)));
    assert_eq!(desk.key(b'n'), Action::Nothing);
    desk.key(b'd');
    desk.say();
    let asked: Vec<_> = desk.asked.iter().map(|(_, wish)| *wish).collect();
    assert_eq!(asked, QUESTIONS);
    assert!(desk.asked.iter().all(|(row, _)| *row == 2));
    let ticks = INTERVAL_MS * HZ / 1000 * (SAMPLES as u64 - 1);
    assert_eq!(desk.now, 1_000 + ticks);
}

#[test]
fn a_list_is_a_line_for_each() {
    let mut desk = Desk::new(|pcpu| Some((State::On, if pcpu == 0 { 9 } else { 1 })));
    desk.key(b'l');
    assert_eq!(
        desk.say(),
        [
            "alpha vcpu 0 on pcpu 0: runs",
            "alpha vcpu 1 on pcpu 2: spinning on 0x2000",
            "beta vcpu 0 on pcpu 1: spinning on 0x1000"
        ]
    );
}

#[test]
fn a_pcpu_that_is_lost_holds_nothing_up() {
    let mut desk = Desk::new(|pcpu| (pcpu != 2).then_some((State::Paused, 0)));
    desk.key(b'l');
    assert_eq!(
        desk.say(),
        [
            "alpha vcpu 0 on pcpu 0: paused",
            "alpha vcpu 1 on pcpu 2: its pcpu does not answer",
            "beta vcpu 0 on pcpu 1: paused"
        ]
    );
}

#[test]
fn keys_are_about_the_vm_that_is_selected() {
    let mut desk = Desk::new(|_| None);
    assert_eq!(desk.key(b'p'), Action::Pause(0));
    assert_eq!(desk.say(), ["pause alpha"]);
    assert_eq!(desk.key(b'2'), Action::Nothing);
    assert_eq!(desk.say(), ["about beta"]);
    assert_eq!(desk.key(b'c'), Action::Resume(1));
    assert_eq!(desk.say(), ["go on with beta"]);
    assert_eq!(desk.key(b's'), Action::Stop(1));
    assert_eq!(desk.key(b'r'), Action::Restart(1));
    assert_eq!(desk.say(), ["restart beta"], "the last one is enough");
    assert_eq!(desk.key(b'3'), Action::Nothing);
    assert_eq!(desk.say(), ["there is no such VM"]);
    assert_eq!(desk.key(b'p'), Action::Pause(1));
    assert_eq!(desk.key(b'n'), Action::Nothing);
    assert_eq!(desk.say(), ["about alpha"]);
    assert_eq!(desk.key(b'z'), Action::Nothing);
    assert_eq!(desk.say(), [""; 0]);
    assert_eq!(desk.key(b'?'), Action::Nothing);
    assert_eq!(desk.say(), [KEYS]);
}

#[test]
fn leaving_ends_a_report() {
    let mut desk = Desk::new(|_| Some((State::On, 1)));
    desk.key(b'a');
    assert_eq!(desk.key(b'q'), Action::Leave);
    assert_eq!(desk.say(), ["keys go to VMs again"]);
}
