//! A line for each event, with a priority in front as journald takes it from stdout.

use std::collections::BTreeMap;
use std::io::Write;

use bulkhead_abi::call::End;
use bulkhead_abi::control::{EVENT_LIMITS, EVENT_STATE, Follows, Message, Phase};
use bulkhead_control::board::Vm;
use bulkhead_control::crash::Report;

/// Priorities of syslog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Something does not work.
    Error = 3,
    /// Something may be wrong.
    Warning = 4,
    /// Of interest.
    Notice = 5,
    /// For the record.
    Info = 6,
}

/// The log.
pub struct Journal {
    to: Box<dyn Write + Send>,
    known: BTreeMap<u16, Vm>,
}

impl Journal {
    /// A log into `to`.
    pub fn new(to: impl Write + Send + 'static) -> Self {
        Self {
            to: Box::new(to),
            known: BTreeMap::new(),
        }
    }

    /// Writes a line.
    pub fn say(&mut self, priority: Priority, text: &str) {
        // A log that nobody takes is no reason to end.
        let _ = writeln!(self.to, "<{}>{text}", priority as u8);
        let _ = self.to.flush();
    }

    /// Takes the state of a VM in, as an answer tells it; says it if that is new.
    pub fn state(&mut self, vm: Vm) {
        if self.known.get(&vm.index) == Some(&vm) {
            return;
        }
        let (priority, text) = line(&vm, self.known.get(&vm.index));
        self.say(priority, &text);
        self.known.insert(vm.index, vm);
    }

    /// Whether what is known of a VM's crash is older than this.
    pub fn is_new_crash(&self, vm: &Vm) -> bool {
        let known = self.known.get(&vm.index).and_then(|known| known.crash);
        vm.crash.is_some() && vm.crash != known
    }

    /// Says what EL2 reports of a crash.
    pub fn crash(&mut self, vm: u16, report: &Report) {
        let known = self.known.get(&vm);
        let name = known.map_or_else(|| format!("VM {vm}"), |vm| vm.name.clone());
        let (life, vcpu, crash) = (report.crash.life, report.vcpu, &report.crash);
        let words = report.words();
        let text = format!("{name}: crash of life {life}, vCPU {vcpu}: {words}, {crash}");
        self.say(Priority::Warning, &text);
        for (n, exit) in (1..).zip(&report.last) {
            let text = format!("{name}: exit {n} before it: {exit}");
            self.say(Priority::Info, &text);
        }
    }

    /// Says a line of a VM's console.
    pub fn console(&mut self, vm: u16, line: &str) {
        let name = self
            .known
            .get(&vm)
            .map_or_else(|| format!("VM {vm}"), |vm| vm.name.clone());
        self.say(Priority::Info, &format!("{name}| {line}"));
    }

    /// Says an event.
    pub fn event(&mut self, event: &Message) {
        if event.kind == EVENT_STATE {
            return self.state(Vm::of(event));
        }
        let known = self.known.get(&event.vm);
        let name = known.map_or_else(|| format!("VM {}", event.vm), |vm| vm.name.clone());
        if event.kind == EVENT_LIMITS {
            let text = format!("{name}: its weights, caps, budgets or pools have changed");
            return self.say(Priority::Notice, &text);
        }
        let text = format!(
            "{name}: event {:#x}, which this bulkheadd does not know",
            event.kind
        );
        self.say(Priority::Warning, &text);
    }
}

/// The line about a VM, and how much it matters.
fn line(vm: &Vm, before: Option<&Vm>) -> (Priority, String) {
    let mut text = format!("{}: {}, life {}", vm.name, vm.phase_word(), vm.lives);
    // An end that was told before is not told again with what comes after it.
    let told = before.is_some_and(|before| {
        (before.end, before.follows, before.lives) == (vm.end, vm.follows, vm.lives)
    });
    let has_ended = [Phase::Ended, Phase::Down]
        .iter()
        .any(|phase| vm.is(*phase));
    let (Some(end), Some(follows)) = (vm.end.filter(|_| has_ended && !told), vm.follows_words())
    else {
        return (Priority::Info, text);
    };
    text = format!("{text}; {}, {follows}", end.words());
    let priority = match end {
        _ if vm.follows == Follows::Exhausted as u64 => Priority::Error,
        End::Crash | End::Watchdog | End::Overdue => Priority::Warning,
        _ => Priority::Notice,
    };
    (priority, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(phase: Phase, end: Option<End>, follows: Follows) -> Vm {
        Vm {
            index: 1,
            name: "linux".to_owned(),
            rights: 1,
            phase: phase as u64,
            lives: 2,
            class: 1,
            vcpus: 1,
            end,
            follows: follows as u64,
            ..Vm::default()
        }
    }

    #[test]
    fn a_crash_is_a_warning_and_the_last_one_an_error() {
        let running = vm(Phase::Running, Some(End::Off), Follows::Stays);
        assert_eq!(
            line(&running, None),
            (Priority::Info, "linux: running, life 2".to_owned())
        );
        let crashed = vm(Phase::Ended, Some(End::Crash), Follows::Retries);
        let (priority, text) = line(&crashed, Some(&running));
        assert_eq!(priority, Priority::Warning);
        assert_eq!(
            text,
            "linux: ended, life 2; crash, starts again, which its policy counts"
        );
        let exhausted = vm(Phase::Down, Some(End::Crash), Follows::Exhausted);
        assert_eq!(line(&exhausted, Some(&running)).0, Priority::Error);
        let down = vm(Phase::Down, Some(End::Crash), Follows::Retries);
        assert_eq!(
            line(&down, Some(&crashed)),
            (Priority::Info, "linux: stopped, life 2".to_owned())
        );
        let asked = vm(Phase::Asked, Some(End::Off), Follows::Stays);
        assert_eq!(
            line(&asked, Some(&running)),
            (Priority::Info, "linux: asked, life 2".to_owned())
        );
        let forced = vm(Phase::Ended, Some(End::Overdue), Follows::Stays);
        assert_eq!(
            line(&forced, Some(&asked)),
            (
                Priority::Warning,
                "linux: ended, life 2; asked to stop, and did not in time, stays down".to_owned()
            )
        );
        let off = vm(Phase::Down, Some(End::Off), Follows::Stays);
        assert_eq!(line(&off, None).0, Priority::Notice);
    }
}
