//! The monitor on the console: what every vCPU does, its registers and exits, and why a silent guest is
//! silent. One vCPU at a time is asked, several times; each line is made when the console has room for
//! it, so that a report of any length costs nobody more than its share.
//!
//! Pure: [`Monitor::next`] says what is to be done, `el2` does it.

mod diagnosis;
mod snapshot;
mod text;

use bulkhead_abi::plan::{Vcpu, Vm};

pub use diagnosis::{Activity, Barrier, Diagnosis, SAMPLES, barrier, diagnose};
pub use snapshot::{
    EL1, EL1_COUNT, Gate, PENDING, Pending, Published, Question, Sample, Snapshot, State, Timer,
    UNREADABLE, Wish,
};
pub use text::{Said, Subject};

/// Milliseconds between two samples of a vCPU.
const INTERVAL_MS: u64 = 2;
/// Milliseconds in which a pCPU answers, unless EL2 itself fails there.
const PATIENCE_MS: u64 = 100;

/// What the monitor does when its next line is wanted.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// It says this.
    Say(Said),
    /// This pCPU has been asked and must be told ([`Published::question`]).
    Ask(usize),
    /// Nothing before the counter reads this, or an answer comes.
    Wait(u64),
    /// Nothing before the next key.
    Nothing,
}

/// What a key asks for beyond text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// The vCPUs of this VM stand still.
    Pause(usize),
    /// They go on.
    Resume(usize),
    /// This VM stops.
    Stop(usize),
    /// It starts again.
    Restart(usize),
    /// The monitor is closed: keys are for VMs again.
    Leave,
}

/// What is under way about the vCPU in turn.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// It is to be asked.
    Ask,
    /// It has been asked; it counts as lost when the counter reads this.
    Asked(u64),
    /// It is to be asked again when the counter reads this.
    Between(u64),
    /// This line is next.
    Lines(usize),
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Monitor {
    /// The VM that keys are about.
    selected: usize,
    /// What is said next, before everything else.
    notice: Option<Said>,
    /// Rows of the vCPU table that are still to be reported about.
    row: usize,
    end: usize,
    /// One line for each vCPU.
    brief: bool,
    turn: Turn,
    samples: [Sample; SAMPLES],
    taken: usize,
    diagnosis: Diagnosis,
}

impl Default for Monitor {
    fn default() -> Self {
        Self::new()
    }
}

const KEYS: &str = "1-9 n: VM, d: its details, a: all VMs, l: list; p: pause, c: go on, s: stop, r: restart; q: leave";

impl Monitor {
    /// Nothing to say.
    pub const fn new() -> Self {
        Self {
            selected: 0,
            notice: None,
            row: 0,
            end: 0,
            brief: false,
            turn: Turn::Ask,
            samples: [Sample {
                pc: 0,
                before: 0,
                exits: 0,
            }; SAMPLES],
            taken: 0,
            diagnosis: Diagnosis::Not(State::Off),
        }
    }

    /// Begins a report about these rows of the vCPU table.
    fn begin(&mut self, rows: core::ops::Range<usize>, brief: bool) {
        self.row = rows.start;
        self.end = rows.end;
        self.brief = brief;
        self.turn = Turn::Ask;
        self.taken = 0;
    }

    /// The key that opens the monitor: everything about all vCPUs. `vm` is what the keys are about.
    pub fn open(&mut self, vm: usize, vms: &[Vm], vcpus: &[Vcpu]) {
        self.selected = vm;
        let mut line = Said::new();
        line.text("keys go to the monitor, about ")
            .name(name(vms, vm))
            .text(" (? shows them)");
        self.notice = Some(line);
        self.begin(0..vcpus.len(), false);
    }

    /// A key while the monitor is open.
    pub fn key(&mut self, key: u8, vms: &[Vm], vcpus: &[Vcpu]) -> Action {
        let of_selected = rows(vcpus, self.selected);
        let selected = self.selected;
        let mut line = Said::new();
        let action = match key {
            b'1'..=b'9' => self.select(usize::from(key.wrapping_sub(b'1')), vms, &mut line),
            b'n' => {
                let next = selected.wrapping_add(1).checked_rem(vms.len());
                self.select(next.unwrap_or(0), vms, &mut line)
            }
            b'd' => {
                self.begin(of_selected, false);
                return Action::Nothing;
            }
            b'a' | b'l' => {
                self.begin(0..vcpus.len(), key == b'l');
                return Action::Nothing;
            }
            b'p' => {
                line.text("pause ");
                Action::Pause(selected)
            }
            b'c' => {
                line.text("go on with ");
                Action::Resume(selected)
            }
            b's' => {
                line.text("stop ");
                Action::Stop(selected)
            }
            b'r' => {
                line.text("restart ");
                Action::Restart(selected)
            }
            b'q' => {
                self.end = self.row;
                line.text("keys go to VMs again");
                Action::Leave
            }
            b'?' | b'h' => {
                line.text(KEYS);
                Action::Nothing
            }
            _ => return Action::Nothing,
        };
        if matches!(
            action,
            Action::Pause(_) | Action::Resume(_) | Action::Stop(_) | Action::Restart(_)
        ) {
            line.name(name(vms, selected));
        }
        self.notice = Some(line);
        action
    }

    fn select(&mut self, vm: usize, vms: &[Vm], line: &mut Said) -> Action {
        if vm < vms.len() {
            self.selected = vm;
            line.text("about ").name(name(vms, vm));
        } else {
            line.text("there is no such VM");
        }
        Action::Nothing
    }

    /// Says this before everything else.
    pub fn notice(&mut self, line: Said) {
        self.notice = Some(line);
    }

    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.notice.is_none() && self.row >= self.end
    }

    /// What is next. `now` and `frequency` are of the physical counter.
    pub fn next(
        &mut self,
        vms: &[Vm],
        vcpus: &[Vcpu],
        published: &Published,
        now: u64,
        frequency: u64,
    ) -> Step {
        if let Some(line) = self.notice.take() {
            return Step::Say(line);
        }
        // Each round finishes a vCPU, or returns; there are at most as many as vCPUs and lines of each.
        while self.row < self.end {
            let Some(vcpu) = vcpus.get(self.row) else {
                self.end = self.row;
                break;
            };
            let in_ticks = |milliseconds| (frequency / 1000).saturating_mul(milliseconds);
            match self.turn {
                Turn::Ask => {
                    let last = self.taken.wrapping_add(1) >= SAMPLES;
                    published.ask(
                        usize::from(vcpu.pcpu),
                        if last { Wish::All } else { Wish::Sample },
                    );
                    self.turn = Turn::Asked(now.saturating_add(in_ticks(PATIENCE_MS)));
                    return Step::Ask(usize::from(vcpu.pcpu));
                }
                Turn::Asked(until) if published.is_answered() => {
                    self.take(&published.snapshot());
                    let pause = in_ticks(INTERVAL_MS);
                    if self.taken < SAMPLES {
                        self.turn = Turn::Between(now.saturating_add(pause).min(until));
                        continue;
                    }
                    self.diagnosis = diagnose(&self.samples, &published.snapshot());
                    self.turn = Turn::Lines(0);
                }
                Turn::Asked(until) if now < until => return Step::Wait(until),
                Turn::Asked(_) => {
                    let mut line = Said::new();
                    subject(vms, vcpus, self.row).begin(&mut line);
                    line.text("its pcpu does not answer");
                    self.next_vcpu();
                    return Step::Say(line);
                }
                Turn::Between(until) if now < until => return Step::Wait(until),
                Turn::Between(_) => self.turn = Turn::Ask,
                Turn::Lines(n) => {
                    let lines = if self.brief { 1 } else { text::LINES };
                    if n >= lines {
                        self.next_vcpu();
                        continue;
                    }
                    self.turn = Turn::Lines(n.wrapping_add(1));
                    let mut line = Said::new();
                    let subject = subject(vms, vcpus, self.row);
                    text::write(n, &subject, &self.diagnosis, published, &mut line);
                    if !line.as_bytes().is_empty() {
                        return Step::Say(line);
                    }
                }
            }
        }
        Step::Nothing
    }

    fn next_vcpu(&mut self) {
        self.row = self.row.wrapping_add(1);
        self.turn = Turn::Ask;
        self.taken = 0;
    }

    /// Takes a sample. What does not run need not be looked at twice.
    fn take(&mut self, snapshot: &Snapshot) {
        if let Some(slot) = self.samples.get_mut(self.taken) {
            *slot = snapshot.sample;
        }
        self.taken = self.taken.wrapping_add(1);
    }
}

/// Name of a VM, padded with 0.
fn name(vms: &[Vm], vm: usize) -> &[u8] {
    vms.get(vm).map_or(&[], |vm| &vm.name)
}

/// Rows of a VM in the vCPU table, which is sorted.
fn rows(vcpus: &[Vcpu], vm: usize) -> core::ops::Range<usize> {
    let first = vcpus.iter().take_while(|row| usize::from(row.vm) < vm);
    let first = first.count();
    let of_vm = vcpus.iter().skip(first);
    let count = of_vm.take_while(|row| usize::from(row.vm) == vm).count();
    first..first.wrapping_add(count)
}

fn subject(vms: &[Vm], vcpus: &[Vcpu], row: usize) -> Subject {
    let vcpu = vcpus.get(row);
    let vm = vcpu.map_or(0, |vcpu| usize::from(vcpu.vm));
    let first = rows(vcpus, vm).start;
    Subject {
        name: vms.get(vm).map_or([0; 16], |vm| vm.name),
        vcpu: row.wrapping_sub(first) as u64,
        pcpu: vcpu.map_or(0, |vcpu| u64::from(vcpu.pcpu)),
    }
}

#[cfg(test)]
mod tests;
