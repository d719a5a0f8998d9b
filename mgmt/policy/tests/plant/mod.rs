//! VMs whose load a test chooses, and a controller that follows it.

use std::time::Duration;

use bulkhead_abi::control::Phase;
use bulkhead_abi::plan::CpuPolicy;
use bulkhead_control::board::{Time, Vcpu};
use bulkhead_policy::controller::{Controller, Decision, Outcome};
use bulkhead_policy::fault::Text;
use bulkhead_policy::meter::{Look, Meter, VcpuLook, VmLook};
use bulkhead_policy::reader::read;
use bulkhead_policy::rule::{Policy, Setting};

const NS: u64 = 1_000_000_000;

pub fn policy(source: &str) -> Policy {
    let text = Text {
        name: "policy.toml".to_owned(),
        source: source.to_owned(),
    };
    read(&text).unwrap_or_else(|faults| panic!("{faults:?}"))
}

/// What a VM does in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Second {
    /// It waits for this part of the time.
    Waits(f64),
    /// It does, and nobody answers for it.
    Silent,
    /// It is stopped.
    Down,
    /// It is paused.
    Paused,
    /// It starts anew.
    Starts,
}

/// A VM, its counters and what it has.
#[derive(Clone, Debug)]
pub struct Vm {
    pub name: &'static str,
    pub state: Vcpu,
    pub phase: Phase,
    pub lives: u64,
    pub time: Time,
}

impl Vm {
    pub fn new(name: &'static str) -> Self {
        let state = Vcpu {
            pcpu: 1,
            power: 3,
            policy: CpuPolicy::Fair as u64,
            weight: 100,
            amount: 10_000_000,
            period: 10_000_000,
            pool: 0b10,
        };
        Self {
            name,
            state,
            phase: Phase::Running,
            lives: 1,
            time: Time::default(),
        }
    }

    /// Goes on for a second.
    pub fn go(&mut self, second: Second) -> VmLook {
        self.phase = match second {
            Second::Down => Phase::Down,
            Second::Paused => Phase::Paused,
            _ => Phase::Running,
        };
        if second == Second::Starts {
            self.lives += 1;
            self.time = Time::default();
        }
        if let Second::Waits(part) = second {
            self.time.waited += (part * NS as f64) as u64;
            self.time.cpu_time += ((1.0 - part) * NS as f64) as u64;
        }
        self.time.since += NS;
        let answers = !matches!(second, Second::Silent);
        VmLook {
            phase: self.phase as u64,
            lives: self.lives,
            vcpus: vec![VcpuLook {
                state: self.state,
                time: if answers {
                    Ok(self.time)
                } else {
                    Err("silent")
                },
                exits: Err("not asked"),
            }],
        }
    }
}

/// A board with a controller.
pub struct Board {
    pub controller: Controller,
    pub meter: Meter,
    pub vms: Vec<Vm>,
    pub second: u64,
}

impl Board {
    pub fn new(source: &str, vms: &[&'static str]) -> Self {
        let mut board = Self {
            controller: Controller::new(&policy(source)),
            meter: Meter::default(),
            vms: vms.iter().map(|name| Vm::new(name)).collect(),
            second: 0,
        };
        // The first look has nothing to compare with.
        let idle = vec![Second::Waits(0.2); vms.len()];
        assert_eq!(board.decide(&idle), []);
        board
    }

    /// What is decided after a second in which the VMs do this.
    pub fn decide(&mut self, seconds: &[Second]) -> Vec<Decision> {
        self.second += 1;
        let vms = self.vms.iter_mut().zip(seconds);
        let look = Look {
            at: Duration::from_secs(self.second),
            vms: vms
                .map(|(vm, second)| (vm.name.to_owned(), vm.go(*second)))
                .collect(),
        };
        let between = self.meter.take(&look);
        self.controller.look(&look, &between)
    }

    /// The same with everything done.
    pub fn go(&mut self, seconds: &[Second]) -> Vec<Decision> {
        let decisions = self.decide(seconds);
        for decision in &decisions {
            self.tell(decision, Outcome::Done);
        }
        decisions
    }

    pub fn tell(&mut self, decision: &Decision, outcome: Outcome) {
        let at = Duration::from_secs(self.second);
        if outcome == Outcome::Done {
            let vm = { self.vms.iter_mut() }.find(|vm| vm.name == decision.vm);
            let state = &mut vm.expect("there").state;
            match decision.to {
                Setting::Weight(weight) => state.weight = weight,
                Setting::Pool(pool) => state.pool = pool,
                Setting::Cap(share) | Setting::Budget(share) => {
                    (state.amount, state.period) = (share.amount, share.period);
                }
            }
        }
        self.controller.told(decision, outcome, at);
        if outcome == Outcome::Done {
            self.controller.changed(&decision.vm);
        }
    }

    pub fn weight(&self) -> u64 {
        self.vms[0].state.weight
    }

    /// Seconds at which something was decided while the first VM waits for a part that its weight leads to.
    pub fn moves(&mut self, seconds: u64, waits: impl Fn(u64) -> f64) -> Vec<(u64, u64)> {
        let mut moves = Vec::new();
        for _ in 0..seconds {
            let part = waits(self.weight());
            if !self.go(&[Second::Waits(part)]).is_empty() {
                moves.push((self.second, self.weight()));
            }
        }
        moves
    }
}
