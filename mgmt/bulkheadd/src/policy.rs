//! The policy at work, as a client of the daemon's own socket: what it asks and orders stands in a row with the requests of others. It has
//! a connection while there is a port, and reads its file again when it is told to.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_control::connection::Connection;
use bulkhead_control::failure::Failure;
use bulkhead_control::manager::Manager;
use bulkhead_policy::engine::{Done, Engine, Reading, Record};
use bulkhead_policy::fault::Fault;
use bulkhead_policy::reader::load;
use bulkhead_policy::rule::{Policy, text_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use crate::cli::PolicyFile;
use crate::journal::{Journal, Priority};
use crate::metrics::{Samples, counter, gauge, label};

/// Time between two attempts to reach EL2.
const AGAIN: Duration = Duration::from_secs(1);
/// Decisions that are kept to be shown.
const KEPT: usize = 64;
/// Time for a client to take what it is shown.
const PATIENCE: Duration = Duration::from_secs(2);

/// What others are told about the policy.
#[derive(Debug, Default)]
pub struct Shown(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The document without decisions.
    document: Value,
    readings: Vec<Reading>,
    decisions: VecDeque<Record>,
    counts: BTreeMap<(String, String, Done), u64>,
    reloads: [u64; 2],
}

impl Shown {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that is known, as JSON.
    pub fn document(&self) -> Value {
        let known = self.known();
        let mut document = known.document.clone();
        let decisions = known.decisions.iter().map(Record::document);
        document["decisions"] = decisions.collect();
        document
    }

    /// Adds what Prometheus is told.
    pub fn add_to(&self, samples: &mut Samples) {
        let known = self.known();
        let decisions = counter(
            "bulkhead_policy_decisions_total",
            "Decisions of the policy, by what has become of them.",
        );
        for ((rule, vm, done), count) in &known.counts {
            let labels = format!("{},outcome=\"{}\"", labels(rule, vm), done.word());
            samples.add(decisions, &labels, *count as f64);
        }
        let value = gauge(
            "bulkhead_policy_value",
            "What a rule has moved: a weight, a part of a pCPU, a number of pCPUs.",
        );
        let measure = gauge(
            "bulkhead_policy_measure",
            "What a rule has measured: a part of the time, or a number in a second.",
        );
        for reading in &known.readings {
            let labels = labels(&reading.rule, &reading.vm);
            if let Some(now) = reading.value {
                let quantity = reading.quantity.word();
                samples.add(value, &format!("{labels},moves=\"{quantity}\""), now);
            }
            for (side, (what, found)) in ["when", "back"].into_iter().zip(reading.measured) {
                if let Some(found) = found {
                    let word = what.word();
                    let labels = format!("{labels},condition=\"{side}\",measure=\"{word}\"");
                    samples.add(measure, &labels, found);
                }
            }
        }
        let reloads = counter(
            "bulkhead_policy_reloads_total",
            "Times that the policy was read again, by whether it was taken.",
        );
        for (taken, count) in ["no", "yes"].into_iter().zip(known.reloads) {
            samples.add(reloads, &format!("taken=\"{taken}\""), count as f64);
        }
    }
}

fn labels(rule: &str, vm: &str) -> String {
    format!("rule=\"{}\",vm=\"{}\"", label(rule), label(vm))
}

/// Shows the policy to whoever connects: a document, and the end. For as long as the process is there.
pub fn show(listener: &UnixListener, shown: &Shown) {
    for mut stream in listener.incoming().flatten() {
        let document = format!("{:#}\n", shown.document());
        // One that goes away does without.
        let _ = stream.set_write_timeout(Some(PATIENCE));
        let _ = stream.write_all(document.as_bytes());
    }
}

/// Reads the policy. None: nobody has named one, and the one that is looked for is not there.
///
/// # Errors
/// Its mistakes, or it cannot be read.
pub fn read(file: &PolicyFile) -> Result<Option<Policy>, Vec<Failure>> {
    let is_there = file.path.try_exists().unwrap_or(true);
    if !file.is_named && !is_there {
        return Ok(None);
    }
    load(&file.path).map(Some)
}

/// The policy at work.
pub struct Keeper<'a> {
    file: PolicyFile,
    is_dry: bool,
    control: PathBuf,
    journal: Journal,
    /// Something can be read from it when the file is to be read again.
    again: UnixStream,
    shown: &'a Shown,
    engine: Option<Engine>,
    /// It has been said what the policy is.
    is_said: bool,
    begin: Instant,
}

/// Why the policy does not go on by itself.
enum Rest {
    /// The file is to be read again.
    Reload,
    /// EL2 does not answer.
    Lost(Failure),
    /// There is nothing to do, until the file is read again.
    Nothing,
}

impl<'a> Keeper<'a> {
    /// A policy, read from `file`, that asks at the socket `control`.
    pub fn new(
        (file, policy): (PolicyFile, Option<Policy>),
        is_dry: bool,
        control: &Path,
        journal: Journal,
        again: UnixStream,
        shown: &'a Shown,
    ) -> Self {
        Self {
            engine: policy.map(|policy| Engine::new(policy, is_dry)),
            file,
            is_dry,
            control: control.to_owned(),
            journal,
            again,
            shown,
            is_said: false,
            begin: Instant::now(),
        }
    }

    /// Works for as long as the process is there, or until nobody can tell it anything any more.
    ///
    /// # Errors
    /// Waiting failed.
    pub fn run(&mut self) -> io::Result<()> {
        loop {
            let timeout = match self.work()? {
                Rest::Reload => {
                    self.reload();
                    continue;
                }
                Rest::Nothing => None,
                Rest::Lost(why) => {
                    self.publish("waits for EL2", &[json!(why.to_string())]);
                    Some(AGAIN)
                }
            };
            if self.wait(timeout)? {
                self.reload();
            }
        }
    }

    /// Works on one connection.
    fn work(&mut self) -> io::Result<Rest> {
        let Some(mut engine) = self.engine.take() else {
            self.publish("none", &[]);
            return Ok(Rest::Nothing);
        };
        let rest = self.work_with(&mut engine);
        self.engine = Some(engine);
        rest
    }

    fn work_with(&mut self, engine: &mut Engine) -> io::Result<Rest> {
        let mut manager = match self.connect() {
            Ok(manager) => manager,
            Err(failure) => return Ok(Rest::Lost(failure)),
        };
        let notes = match engine.meet(&mut manager) {
            Err(failure) => return Ok(Rest::Lost(failure)),
            Ok(Ok(notes)) => notes,
            Ok(Err(faults)) => {
                let text = &engine.policy().text;
                let findings: Vec<Value> = faults.iter().map(|one| text.finding(one)).collect();
                self.say_all(engine.policy(), &faults);
                let nothing = "the board does not allow the policy: nothing is moved";
                self.journal.say(Priority::Error, nothing);
                self.publish_of(Some(engine), "refused", &findings);
                return Ok(Rest::Nothing);
            }
        };
        if !self.is_said {
            self.say_policy(engine, &notes);
        }
        let interval = engine.policy().interval;
        let mut next = Instant::now();
        loop {
            let mut records = Vec::new();
            let looked = engine.look(&mut manager, self.begin.elapsed(), &mut records);
            self.keep(engine, records);
            if let Err(failure) = looked {
                return Ok(Rest::Lost(failure));
            }
            // A look that took longer than the interval is not made up for.
            next = (next + interval).max(Instant::now());
            if self.wait(Some(next.saturating_duration_since(Instant::now())))? {
                return Ok(Rest::Reload);
            }
        }
    }

    fn connect(&self) -> Result<Manager<UnixStream>, Failure> {
        let stream = UnixStream::connect(&self.control).map_err(|error| {
            Failure::environment("control::io", "bulkheadd cannot reach itself", error)
        })?;
        Manager::greet(Connection::new(stream, 0))
    }

    /// Waits; true: the file is to be read again.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let ready = {
            let mut fds = [PollFd::new(&self.again, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(ready) => ready > 0,
                Err(rustix::io::Errno::INTR) => false,
                Err(error) => return Err(error.into()),
            }
        };
        if ready && self.again.read(&mut [0; 64])? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(ready)
    }

    /// Reads the file again. A bad one changes nothing.
    fn reload(&mut self) {
        let taken = match read(&self.file) {
            Ok(None) => Ok(None),
            Ok(Some(policy)) => self.try_on(policy).map(Some),
            Err(failures) => {
                for failure in &failures {
                    self.say_lines(Priority::Error, &failure.to_string());
                }
                Err(())
            }
        };
        let is_taken = taken.is_ok();
        self.shown.known().reloads[usize::from(is_taken)] += 1;
        match taken {
            Ok(engine) => {
                if engine.is_none() {
                    let text = format!("there is no {}", self.file.path.display());
                    self.journal.say(Priority::Notice, &text);
                }
                self.engine = engine;
                self.is_said = false;
                self.shown.known().readings.clear();
            }
            Err(()) if self.engine.is_some() => {
                let stays = "the new policy is not taken: the old one stays";
                self.journal.say(Priority::Error, stays);
            }
            Err(()) => self.journal.say(Priority::Error, "the policy is not taken"),
        }
    }

    /// A new policy, if the board allows it; where EL2 does not answer, that is found out later.
    fn try_on(&mut self, policy: Policy) -> Result<Engine, ()> {
        let mut engine = Engine::new(policy, self.is_dry);
        let Ok(mut manager) = self.connect() else {
            return Ok(engine);
        };
        if let Ok(Err(faults)) = engine.meet(&mut manager) {
            self.say_all(engine.policy(), &faults);
            return Err(());
        }
        Ok(engine)
    }

    fn say_all(&mut self, policy: &Policy, faults: &[Fault]) {
        for fault in faults {
            let text = policy.text.failure(fault).to_string();
            self.say_lines(Priority::Error, &text);
        }
    }

    /// Says text of several lines, each of which has its priority.
    fn say_lines(&mut self, priority: Priority, text: &str) {
        for line in text.lines() {
            self.journal.say(priority, line);
        }
    }

    fn say_policy(&mut self, engine: &Engine, notes: &[String]) {
        let policy = engine.policy();
        let dry = if self.is_dry {
            "; dry run: nothing is moved"
        } else {
            ""
        };
        let text = format!(
            "policy {}: rules: {}, a look each {}{dry}",
            policy.text.name,
            policy.rules.len(),
            text_of(policy.interval)
        );
        self.journal.say(Priority::Info, &text);
        for rule in engine.rules() {
            self.journal.say(Priority::Info, &format!("rule {rule}"));
        }
        for note in notes {
            self.journal.say(Priority::Notice, note);
        }
        self.is_said = true;
    }

    /// Says what was decided, and keeps it to be shown.
    fn keep(&mut self, engine: &Engine, records: Vec<Record>) {
        for record in &records {
            let priority = match record.done {
                Done::Done => Priority::Notice,
                Done::Would => Priority::Info,
                Done::Refused => Priority::Warning,
            };
            self.journal.say(priority, &record.line());
        }
        {
            let mut known = self.shown.known();
            known.readings = engine.readings();
            for record in records {
                let key = (record.rule.clone(), record.vm.clone(), record.done);
                *known.counts.entry(key).or_default() += 1;
                if known.decisions.len() == KEPT {
                    known.decisions.pop_front();
                }
                known.decisions.push_back(record);
            }
        }
        self.publish_of(Some(engine), "works", &[]);
    }

    fn publish(&self, state: &str, findings: &[Value]) {
        self.publish_of(self.engine.as_ref(), state, findings);
    }

    fn publish_of(&self, engine: Option<&Engine>, state: &str, findings: &[Value]) {
        let document = json!({
            "ok": true,
            "file": self.file.path.display().to_string(),
            "dry_run": self.is_dry,
            "state": state,
            "findings": findings,
            "interval_s": engine.map(|engine| engine.policy().interval.as_secs_f64()),
            "rules": engine.map_or_else(|| json!([]), Engine::document),
        });
        self.shown.known().document = document;
    }
}
