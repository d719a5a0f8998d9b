//! The monitor on the console: the state, registers and exits of every vCPU, and the reason why a
//! silent guest is silent. The first pass of a report looks at the CPU time of all, the second one tells about each what it is, and
//! what it had in between. One vCPU at a time is queried, several times; each line is written when
//! the console has room for it, so that a report of any length costs no vCPU more than its share.
//!
//! The monitor is pure: [`Monitor::next`] returns what is to be done, `el2` does it.

mod cpu_time;
mod diagnosis;
mod entry;
mod published;
mod snapshot;
mod text;

use bulkhead_abi::console::{Condition, Name, Order, Ordered, Percent, label};
use bulkhead_abi::plan::{Vcpu, Vm};

use crate::console::keys::Choice;
use crate::console::text::TextLine;
use crate::cpu::power::Phase;
use crate::plan::rows_of;
use crate::sched::{Limits, Refusal};
use crate::sync::VcpuLocation;
use entry::{Entry, What};

pub use cpu_time::Shares;
pub use diagnosis::{Activity, Barrier, Diagnosis, SAMPLES, barrier, diagnose};
pub use published::{Published, Question, Request};
pub use snapshot::{
    EL1, EL1_COUNT, Gate, Interrupts, PENDING, Pending, Registers, Sample, Snapshot, State, Timer,
    UNREADABLE, may_read,
};
pub use text::Subject;

/// Milliseconds between two samples of a vCPU.
const INTERVAL_MS: u64 = 2;
/// Milliseconds from the first look at CPU time to the second.
const SECOND_MS: u64 = 1000;
/// Milliseconds within which a pCPU answers, unless EL2 itself fails there.
const PATIENCE_MS: u64 = 100;

/// Next step of the caller of [`Monitor::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Print the line that was written.
    Say,
    /// Notify this vCPU (row of the plan), for which a question waits ([`Published::question`]).
    Ask(usize),
    /// Let the pCPU of this vCPU (row of the plan) answer a question about it.
    AskPcpu(usize),
    /// Wait until the counter reads this, or an answer comes.
    Wait(u64),
    /// Wait for the next key.
    Nothing,
}

/// Action of the caller after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Carry out an order about this VM, or [refuse](Monitor::refuse) it.
    Order(Order, usize),
    /// Notify the vCPUs of this VM that their scheduling parameters have changed ([`Limits`]).
    Follow(usize),
    /// Close the monitor: keys go to VMs again.
    Leave,
}

/// A single line outside a report.
#[derive(Clone, Copy, Debug)]
enum Notice {
    Opened,
    Looks,
    Left,
    Keys,
    About,
    NoVm,
    /// The order was carried out, unless the VM does not fit it.
    Ordered(Order, Option<Condition>),
    /// The instructions for typing a value.
    Prompt(What),
    /// The value was typed wrongly.
    Again(What),
    Changed(What),
    Refused(Refusal),
    Kept,
}

/// Kind of a report about a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Report {
    Everything,
    /// The activity of the vCPU, in one line.
    Brief,
    /// The CPU time of the vCPU.
    Time,
}

/// Progress of the report about the current vCPU.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// The next question is to be asked.
    Ask,
    /// The question has been asked; if the counter reads this before the answer, the pCPU counts as
    /// lost.
    Asked(u64),
    /// The next question is to be asked when the counter reads this.
    Between(u64),
    /// The state is complete, and the diagnosis is to be made when the counter reads this: it takes
    /// long, and gets an exit of its own.
    Diagnose(u64),
    /// This line is next.
    Lines(usize),
}

/// Questions about a vCPU, in their order: CPU time first, because the other questions wake the
/// vCPU; then samples, the last of them with the registers.
const QUESTIONS: [Request; 7] = [
    Request::Time,
    Request::Sample,
    Request::Sample,
    Request::Sample,
    Request::Registers,
    Request::Interrupts,
    Request::Exits,
];
/// Number of questions before the first sample.
const BEFORE: usize = 1;
const _: () = assert!(matches!(
    QUESTIONS[BEFORE + SAMPLES - 1],
    Request::Registers
));
/// Number of questions up to the interrupts.
const STATE: usize = BEFORE + SAMPLES + 1;
/// Number of lines of [`Report::Time`] after the first.
const TIME_LINES: usize = 3;

/// The state of the monitor.
#[derive(Clone, Copy, Debug)]
pub struct Monitor {
    /// Index of the VM to which keys apply.
    selected: usize,
    /// Line to be printed before everything else.
    notice: Option<Notice>,
    /// Rows of the vCPU table that are still to be reported, and the first one of the report.
    row: usize,
    end: usize,
    first: usize,
    report: Report,
    /// Whether this is the first pass of the report, which only looks at CPU time, and when the second one begins: 0 before the
    /// first question.
    looks: bool,
    second_at: u64,
    shares: &'static Shares,
    /// Share of the current vCPU, in hundredths of a percent.
    share: Option<u16>,
    /// Column behind the longest name of a VM.
    names_end: usize,
    /// The number that is being typed.
    entry: Option<Entry>,
    choice: Choice,
    turn: Turn,
    samples: [Sample; SAMPLES],
    /// Number of questions about the current vCPU that have been answered.
    answered: usize,
    diagnosis: Diagnosis,
}

const KEYS: &str = "1-9, 017, n: VM, d: details, a: all, l: list, t: CPU time; p: pause, c: go on, s: stop, r: restart; w: weight, m: cap, b: budget, o: pool; q: leave";

const _: () =
    assert!(label::MONITOR.len() + "\r\n".len() + KEYS.len() <= crate::console::mux::LINE);

impl Monitor {
    /// A monitor with nothing to print.
    /// `shares`: what it keeps of CPU time.
    pub const fn new(shares: &'static Shares) -> Self {
        Self {
            selected: 0,
            notice: None,
            row: 0,
            end: 0,
            first: 0,
            report: Report::Everything,
            looks: false,
            second_at: 0,
            shares,
            share: None,
            names_end: 0,
            entry: None,
            choice: Choice::new(),
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

    /// Starts a report about these rows of the vCPU table.
    fn begin(&mut self, rows: core::ops::Range<usize>, report: Report) {
        self.row = rows.start;
        self.first = rows.start;
        self.end = rows.end;
        self.report = report;
        self.looks = true;
        self.second_at = 0;
        self.turn = Turn::Ask;
        self.answered = 0;
    }

    /// Handles the key that opens the monitor: starts the list of all vCPUs. Keys apply to `vm`.
    pub fn open(&mut self, vm: usize, vms: &[Vm], vcpus: &[Vcpu]) {
        self.selected = vm;
        self.entry = None;
        let lengths = vms.iter().map(|vm| {
            let blanks = u128::from_le_bytes(vm.name).leading_zeros() / 8;
            vm.name.len().saturating_sub(blanks as usize)
        });
        self.names_end = lengths.max().unwrap_or(0).wrapping_add(cpu_time::SHARE);
        self.begin(0..vcpus.len(), Report::Brief);
        self.notice = Some(Notice::Opened);
    }

    /// Handles a key while the monitor is open.
    pub fn key(&mut self, key: u8, vms: &[Vm], vcpus: &[Vcpu], limits: &Limits) -> Action {
        let vm = self.selected;
        if let Some(entry) = self.entry {
            return self.typed(entry, key, vcpus, limits);
        }
        let chosen = self.choice.key(key, vm, vms.len());
        let prompt = match key {
            b'w' => Some(What::Weight),
            b'm' => Some(What::Cap),
            b'b' => Some(What::Budget),
            b'o' => Some(What::Pool),
            _ => None,
        };
        if let Some(what) = prompt {
            self.entry = Some(Entry::new(what));
            self.notice = Some(Notice::Prompt(what));
            return Action::Nothing;
        }
        let (notice, action) = match key {
            b'd' => {
                self.begin(rows(vcpus, vm), Report::Everything);
                (Notice::Looks, Action::Nothing)
            }
            b'a' | b'l' | b't' => {
                let report = match key {
                    b'a' => Report::Everything,
                    b'l' => Report::Brief,
                    _ => Report::Time,
                };
                self.begin(0..vcpus.len(), report);
                (Notice::Looks, Action::Nothing)
            }
            b'p' | b'c' | b's' | b'r' => {
                let order = match key {
                    b'p' => Order::Pause,
                    b'c' => Order::Resume,
                    b's' => Order::Stop,
                    _ => Order::Restart,
                };
                (Notice::Ordered(order, None), Action::Order(order, vm))
            }
            b'q' => {
                self.end = self.row;
                (Notice::Left, Action::Leave)
            }
            b'?' | b'h' => (Notice::Keys, Action::Nothing),
            _ => match chosen {
                Some(vm) => (self.select(vm, vms), Action::Nothing),
                None => return Action::Nothing,
            },
        };
        self.notice = Some(notice);
        action
    }

    /// Handles a key of a number that is being typed.
    fn typed(&mut self, mut entry: Entry, key: u8, vcpus: &[Vcpu], limits: &Limits) -> Action {
        let vm = self.selected;
        self.entry = None;
        match entry.key(key) {
            entry::Typed::More => self.entry = Some(entry),
            entry::Typed::Wrong => {
                self.entry = Some(Entry::new(entry.what));
                self.notice = Some(Notice::Again(entry.what));
            }
            entry::Typed::Left => self.notice = Some(Notice::Kept),
            entry::Typed::Done => {
                let now = limits.of(vcpus, rows(vcpus, vm).start);
                let change = entry.change(now.map_or(0, |row| row.period));
                let done = limits.change(vcpus, vm, change);
                self.notice =
                    Some(done.map_or_else(Notice::Refused, |()| Notice::Changed(entry.what)));
                if done.is_ok() {
                    return Action::Follow(vm);
                }
            }
        }
        Action::Nothing
    }

    /// Says that the order of the last key does not fit the phase that the VM is in.
    pub fn refuse(&mut self, phase: Phase) {
        if let Some(Notice::Ordered(_, condition)) = &mut self.notice {
            *condition = Some(match phase {
                Phase::Down => Condition::Stopped,
                Phase::Starting => Condition::Starting,
                Phase::Running => Condition::Running,
                Phase::Asked(_) => Condition::Asked,
                Phase::Paused => Condition::Paused,
                Phase::Stopping(_) | Phase::Ended => Condition::Stopping,
            });
        }
    }

    fn select(&mut self, vm: usize, vms: &[Vm]) -> Notice {
        if vm >= vms.len() {
            return Notice::NoVm;
        }
        self.selected = vm;
        Notice::About
    }

    /// Writes the line of a notice.
    fn write_notice(&self, notice: Notice, vms: &[Vm], line: &mut TextLine) {
        let name = vms.get(self.selected).map_or(&[][..], |vm| &vm.name);
        match notice {
            Notice::Opened => line
                .text("keys go to the monitor, about ")
                .name(name)
                .text(" (? shows them); CPU time of a second:"),
            Notice::Looks => line.text("CPU time of a second:"),
            Notice::Left => line.text("keys go to VMs again"),
            Notice::Keys => line.text(KEYS),
            Notice::About => line.text("about ").name(name),
            Notice::NoVm => line.text("there is no such VM"),
            Notice::Ordered(order, refused) => {
                let vm = Name(name);
                Ordered { order, vm, refused }.write(line);
                line
            }
            Notice::Prompt(what) => line
                .text(what.name())
                .text(" of ")
                .name(name)
                .text("? ")
                .text(what.form()),
            Notice::Again(what) => line.text(what.form()),
            Notice::Changed(what) => line.text("new ").text(what.name()).text(" of ").name(name),
            Notice::Refused(why) => {
                line.text("refused: ");
                why.write(line);
                line
            }
            Notice::Kept => line.text("as it was"),
        };
    }

    /// Whether there is nothing to print.
    pub fn is_idle(&self) -> bool {
        self.notice.is_none() && self.row >= self.end
    }

    /// Returns the next step; a line is appended to `line`. `now` and `frequency` are of the
    /// physical counter.
    pub fn next(
        &mut self,
        vms: &[Vm],
        vcpus: &[Vcpu],
        locations: &VcpuLocation,
        published: &Published,
        [now, frequency]: [u64; 2],
        line: &mut TextLine,
    ) -> Step {
        if let Some(notice) = self.notice.take() {
            self.write_notice(notice, vms, line);
            return Step::Say;
        }
        let ticks = |milliseconds| (frequency / 1000).saturating_mul(milliseconds);
        // More than an exit takes.
        let pause = frequency / 10_000;
        // Each iteration advances the turn or its line, finishes a vCPU, or returns.
        while self.row < self.end {
            if self.row >= vcpus.len() {
                self.end = self.row;
                break;
            }
            match self.turn {
                Turn::Ask => {
                    if self.second_at == 0 {
                        self.second_at = now.saturating_add(ticks(SECOND_MS));
                    }
                    let Some(request) = QUESTIONS.get(self.answered) else {
                        self.turn = Turn::Lines(0);
                        continue;
                    };
                    if self.looks {
                        self.shares.forget(self.row);
                    }
                    published.ask(self.row, *request);
                    self.turn = Turn::Asked(now.saturating_add(ticks(PATIENCE_MS)));
                    return match request {
                        Request::Time => Step::AskPcpu(self.row),
                        _ => Step::Ask(self.row),
                    };
                }
                Turn::Asked(_) if published.is_answered() => {
                    if self.looks {
                        self.shares.keep(self.row, published);
                        self.next_vcpu();
                        continue;
                    }
                    self.take(published);
                    self.turn = if self.report == Report::Time {
                        Turn::Lines(0)
                    } else if self.answered == STATE {
                        Turn::Diagnose(now.saturating_add(pause))
                    } else if self.answered > BEFORE && self.answered < BEFORE + SAMPLES {
                        Turn::Between(now.saturating_add(ticks(INTERVAL_MS)))
                    } else {
                        Turn::Ask
                    };
                }
                Turn::Diagnose(until) if now < until => return Step::Wait(until),
                Turn::Diagnose(_) => {
                    self.diagnosis = diagnose(&self.samples, &published.snapshot());
                    self.turn = if self.report == Report::Brief {
                        Turn::Lines(0)
                    } else {
                        Turn::Between(now.saturating_add(pause))
                    };
                }
                Turn::Asked(until) if now < until => return Step::Wait(until),
                Turn::Asked(_) if self.looks => self.next_vcpu(),
                Turn::Asked(_) => {
                    // A pCPU that answers later has not had its share told.
                    if self.answered == 0 {
                        self.share = None;
                    }
                    self.begin_line(vms, vcpus, locations, line);
                    line.text("its pcpu does not answer");
                    self.next_vcpu();
                    return Step::Say;
                }
                Turn::Between(until) if now < until => return Step::Wait(until),
                Turn::Between(_) => self.turn = Turn::Ask,
                Turn::Lines(0) => {
                    self.begin_line(vms, vcpus, locations, line);
                    self.turn = Turn::Lines(1);
                    if self.report == Report::Time {
                        text::stands(published, line);
                        // Line 1 repeats what this line says.
                        self.turn = Turn::Lines(2);
                    } else {
                        self.diagnosis.write(published.frequency(), line);
                    }
                    return Step::Say;
                }
                Turn::Lines(n) if n >= self.lines() => self.next_vcpu(),
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

    /// Number of lines of the report about a vCPU; some may be empty.
    fn lines(&self) -> usize {
        match self.report {
            Report::Everything => text::LINES,
            Report::Brief => 1,
            Report::Time => 1 + TIME_LINES,
        }
    }

    fn next_vcpu(&mut self) {
        self.row = self.row.wrapping_add(1);
        self.turn = Turn::Ask;
        self.answered = 0;
        if self.looks && self.row >= self.end {
            self.looks = false;
            self.row = self.first;
            self.turn = Turn::Between(self.second_at);
        }
    }

    /// Writes the share of the current vCPU, and which one it is.
    fn begin_line(
        &self,
        vms: &[Vm],
        vcpus: &[Vcpu],
        locations: &VcpuLocation,
        line: &mut TextLine,
    ) {
        let share = self.share.map(|part| Percent {
            part: part.into(),
            of: 10_000,
        });
        cpu_time::share(share, line);
        subject(vms, vcpus, locations, self.row).begin(self.names_end, line);
    }

    /// Reads the answer to a question.
    fn take(&mut self, published: &Published) {
        if self.answered == 0 {
            let share = self.shares.of(self.row, published);
            self.share = share.map(|share| share.hundredths() as u16);
        }
        let sample = self.answered.checked_sub(BEFORE);
        if let Some(place) = sample.and_then(|n| self.samples.get_mut(n)) {
            *place = published.sample().1;
        }
        self.answered = self.answered.wrapping_add(1);
    }
}

/// The rows of a VM in the vCPU table, which is sorted by VM.
fn rows(vcpus: &[Vcpu], vm: usize) -> core::ops::Range<usize> {
    let first = vcpus.partition_point(|row| usize::from(row.vm) < vm);
    first..first.wrapping_add(rows_of(vcpus, vm).len())
}

fn subject(vms: &[Vm], vcpus: &[Vcpu], locations: &VcpuLocation, row: usize) -> Subject {
    let vcpu = vcpus.get(row);
    let vm = vcpu.map_or(0, |vcpu| usize::from(vcpu.vm));
    let first = rows(vcpus, vm).start;
    Subject {
        name: vms.get(vm).map_or([0; 16], |vm| vm.name),
        vcpu: row.wrapping_sub(first) as u64,
        pcpu: locations.of(row) as u64,
    }
}

#[cfg(test)]
mod tests;
