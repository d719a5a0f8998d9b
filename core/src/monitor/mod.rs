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
    EL1, EL1_COUNT, Gate, Interrupts, PENDING, Pending, Published, Question, Registers, Sample,
    Snapshot, State, Timer, UNREADABLE, Wish,
};
pub use text::{Said, Subject};

/// Milliseconds between two samples of a vCPU.
const INTERVAL_MS: u64 = 2;
/// Milliseconds in which a pCPU answers, unless EL2 itself fails there.
const PATIENCE_MS: u64 = 100;

/// What the monitor does when its next line is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It has made a line.
    Say,
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

/// A line by itself.
#[derive(Clone, Copy, Debug)]
enum Notice {
    Opened,
    Left,
    Keys,
    About,
    NoVm,
    Ordered(&'static str),
}

/// What is under way about the vCPU in turn.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// The next question is to be asked.
    Ask,
    /// It has been asked; its pCPU counts as lost when the counter reads this.
    Asked(u64),
    /// The next one is to be asked when the counter reads this.
    Between(u64),
    /// This line is next.
    Lines(usize),
}

/// Questions about a vCPU, in their order: samples first, the last of them with the registers.
const QUESTIONS: [Wish; 6] = [
    Wish::Sample,
    Wish::Sample,
    Wish::Sample,
    Wish::Registers,
    Wish::Interrupts,
    Wish::Exits,
];
const _: () = assert!(matches!(QUESTIONS[SAMPLES - 1], Wish::Registers));

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Monitor {
    /// The VM that keys are about.
    selected: usize,
    /// What is said next, before everything else.
    notice: Option<Notice>,
    /// Rows of the vCPU table that are still to be reported about.
    row: usize,
    end: usize,
    /// One line for each vCPU.
    brief: bool,
    turn: Turn,
    samples: [Sample; SAMPLES],
    /// Questions about the vCPU in turn that have been answered.
    answered: usize,
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
            answered: 0,
            diagnosis: Diagnosis::Not(State::Off),
        }
    }

    /// Begins a report about these rows of the vCPU table.
    fn begin(&mut self, rows: core::ops::Range<usize>, brief: bool) {
        self.row = rows.start;
        self.end = rows.end;
        self.brief = brief;
        self.turn = Turn::Ask;
        self.answered = 0;
    }

    /// The key that opens the monitor: everything about all vCPUs. `vm` is what the keys are about.
    pub fn open(&mut self, vm: usize, vcpus: &[Vcpu]) {
        self.selected = vm;
        self.notice = Some(Notice::Opened);
        self.begin(0..vcpus.len(), false);
    }

    /// A key while the monitor is open.
    pub fn key(&mut self, key: u8, vms: &[Vm], vcpus: &[Vcpu]) -> Action {
        let vm = self.selected;
        let (notice, action) = match key {
            b'1'..=b'9' => (
                self.select(usize::from(key.wrapping_sub(b'1')), vms),
                Action::Nothing,
            ),
            b'n' => {
                let next = vm.wrapping_add(1).checked_rem(vms.len());
                (self.select(next.unwrap_or(0), vms), Action::Nothing)
            }
            b'd' => {
                self.begin(rows(vcpus, vm), false);
                return Action::Nothing;
            }
            b'a' | b'l' => {
                self.begin(0..vcpus.len(), key == b'l');
                return Action::Nothing;
            }
            b'p' => (Notice::Ordered("pause "), Action::Pause(vm)),
            b'c' => (Notice::Ordered("go on with "), Action::Resume(vm)),
            b's' => (Notice::Ordered("stop "), Action::Stop(vm)),
            b'r' => (Notice::Ordered("restart "), Action::Restart(vm)),
            b'q' => {
                self.end = self.row;
                (Notice::Left, Action::Leave)
            }
            b'?' | b'h' => (Notice::Keys, Action::Nothing),
            _ => return Action::Nothing,
        };
        self.notice = Some(notice);
        action
    }

    fn select(&mut self, vm: usize, vms: &[Vm]) -> Notice {
        if vm >= vms.len() {
            return Notice::NoVm;
        }
        self.selected = vm;
        Notice::About
    }

    /// Writes a line by itself.
    fn write_notice(&self, notice: Notice, vms: &[Vm], line: &mut Said) {
        let name = vms.get(self.selected).map_or(&[][..], |vm| &vm.name);
        match notice {
            Notice::Opened => line
                .text("keys go to the monitor, about ")
                .name(name)
                .text(" (? shows them)"),
            Notice::Left => line.text("keys go to VMs again"),
            Notice::Keys => line.text(KEYS),
            Notice::About => line.text("about ").name(name),
            Notice::NoVm => line.text("there is no such VM"),
            Notice::Ordered(what) => line.text(what).name(name),
        };
    }

    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.notice.is_none() && self.row >= self.end
    }

    /// What is next; a line is appended to `line`. `now` and `frequency` are of the physical counter.
    pub fn next(
        &mut self,
        vms: &[Vm],
        vcpus: &[Vcpu],
        published: &Published,
        [now, frequency]: [u64; 2],
        line: &mut Said,
    ) -> Step {
        if let Some(notice) = self.notice.take() {
            self.write_notice(notice, vms, line);
            return Step::Say;
        }
        let ticks = |milliseconds| (frequency / 1000).saturating_mul(milliseconds);
        // Each round but a few finishes a vCPU or returns.
        while self.row < self.end {
            if self.row >= vcpus.len() {
                self.end = self.row;
                break;
            }
            match self.turn {
                Turn::Ask => {
                    let Some(wish) = QUESTIONS.get(self.answered) else {
                        self.turn = Turn::Lines(0);
                        continue;
                    };
                    published.ask(self.row, *wish);
                    self.turn = Turn::Asked(now.saturating_add(ticks(PATIENCE_MS)));
                    return Step::Ask(self.row);
                }
                Turn::Asked(_) if published.is_answered() => {
                    self.take(published);
                    self.turn = if self.answered < SAMPLES {
                        Turn::Between(now.saturating_add(ticks(INTERVAL_MS)))
                    } else if self.brief && self.answered > SAMPLES {
                        Turn::Lines(0)
                    } else {
                        Turn::Ask
                    };
                }
                Turn::Asked(until) if now < until => return Step::Wait(until),
                Turn::Asked(_) => {
                    subject(vms, vcpus, self.row).begin(line);
                    line.text("its pcpu does not answer");
                    self.next_vcpu();
                    return Step::Say;
                }
                Turn::Between(until) if now < until => return Step::Wait(until),
                Turn::Between(_) => self.turn = Turn::Ask,
                Turn::Lines(0) => {
                    subject(vms, vcpus, self.row).begin(line);
                    self.diagnosis.write(published.frequency(), line);
                    self.turn = Turn::Lines(1);
                    return Step::Say;
                }
                Turn::Lines(n) if self.brief || n >= text::LINES => self.next_vcpu(),
                Turn::Lines(n) => {
                    self.turn = Turn::Lines(n.wrapping_add(1));
                    if !text::is_empty(n, published) {
                        text::write(n, published, line);
                        return Step::Say;
                    }
                }
            }
        }
        Step::Nothing
    }

    fn next_vcpu(&mut self) {
        self.row = self.row.wrapping_add(1);
        self.turn = Turn::Ask;
        self.answered = 0;
    }

    /// Takes an answer.
    fn take(&mut self, published: &Published) {
        if let Some(slot) = self.samples.get_mut(self.answered) {
            *slot = published.sample().1;
        }
        self.answered = self.answered.wrapping_add(1);
        // Registers and interrupts are there.
        if self.answered == SAMPLES.wrapping_add(1) {
            self.diagnosis = diagnose(&self.samples, &published.snapshot());
        }
    }
}

/// Rows of a VM in the vCPU table, which is sorted.
fn rows(vcpus: &[Vcpu], vm: usize) -> core::ops::Range<usize> {
    let first = vcpus.partition_point(|row| usize::from(row.vm) < vm);
    let end = vcpus.partition_point(|row| usize::from(row.vm) <= vm);
    first..end
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
