//! The threads of a VM's vCPUs at EL2, for models of its lives.
#![allow(dead_code, reason = "not every file with models has all of it")]

use bulkhead_abi::plan::{Crash, Vm as Row};
use bulkhead_interleave::life::{Life, Printed, Settled, Work};
use bulkhead_interleave::power::{End, Phase};
use loom::sync::Arc;
use zerocopy::FromZeros;

/// The row of a VM that starts again after a crash or a reset.
pub fn row() -> Row {
    Row {
        crash: Crash::Restart as u16,
        restarts: 9,
        restart_seconds: 9,
        resets: 9,
        reset_seconds: 9,
        ..Row::new_zeroed()
    }
}

/// The thread of a vCPU at EL2 (`el2/src/idle.rs`, `el2/src/lifecycle.rs`).
#[derive(Default)]
pub struct Thread {
    pub own: usize,
    pub runs: bool,
    /// Reason of the VM's end: a crash of this vCPU, or something else.
    pub reason: Option<bool>,
    /// Report that it has to print: whether it tells why the VM has ended, and whether the VM starts again.
    pub report: Option<[bool; 2]>,
    pub reported: u32,
    /// Reports that it has printed: reasons of the VM's end, and the number of statistics.
    pub why: Vec<(bool, Settled)>,
    pub statistics: usize,
    pub took_down: bool,
}

impl Thread {
    pub fn new(own: usize) -> Self {
        Self {
            own,
            ..Self::default()
        }
    }

    pub fn leave(&mut self, life: &Life) {
        self.runs = false;
        if life.power.leave(self.own) {
            let (_, leads) = life.settle(&row(), 0, 1).expect("it is being stopped");
            if leads {
                self.reason = Some(false);
            }
        }
    }

    pub fn crash(&mut self, life: &Life) {
        if life.crash() {
            self.reason = Some(true);
        }
        self.leave(life);
    }

    pub fn end(&mut self, life: &Life, end: End) {
        let _ended_already = life.power.stop(end);
        self.leave(life);
    }

    /// One step; whether there was one.
    pub fn step(&mut self, life: &Life) -> bool {
        if self.runs {
            let leaves = matches!(life.power.phase(), Phase::Stopping(_));
            if leaves {
                self.leave(life);
            }
            return leaves;
        }
        if let Some([leads, brief]) = self.report {
            if !life.may_print(leads) {
                return false;
            }
            if leads {
                self.why
                    .push((self.reason.take() == Some(true), life.settled()));
            } else {
                self.statistics += 1;
            }
            self.report = None;
            self.took_down |= life.printed(leads, brief) == Printed::Down;
            return true;
        }
        match life.work(self.own, self.reason.is_some(), self.reported) {
            Work::Nothing => return false,
            Work::Report => {
                let restarts = life.settled().is_restart();
                if !restarts {
                    self.reported = life.number();
                }
                let leads = self.reason.is_some();
                self.report = Some([leads, leads && restarts]);
            }
            Work::Prepare => {
                life.begin(2);
                self.runs = true;
                if !life.power.begin() {
                    self.leave(life);
                }
            }
            Work::Enter(_) => self.runs = true,
        }
        true
    }
}

/// All threads do the work that is left.
pub fn finish(life: &Life, threads: &mut [Thread]) {
    for _ in 0..40 {
        if !threads.iter_mut().any(|thread| thread.step(life)) {
            return;
        }
    }
    panic!("it never ends");
}

/// Returns a life whose words were used once: loom makes a word at its first use, which must not be by two at
/// a time.
pub fn made() -> Life {
    let life = Life::new();
    life.settled();
    life.may_print(false);
    life.number();
    life.power.online();
    for vcpu in 0..3 {
        life.power.state(vcpu);
    }
    life
}

/// A VM whose vCPU 0 runs, and the thread of that.
pub fn running() -> (Arc<Life>, Thread) {
    let life = made();
    assert_eq!(life.start(), Ok(()));
    let mut thread = Thread::new(0);
    assert!(thread.step(&life) && thread.runs);
    (Arc::new(life), thread)
}
