//! `events`: how VMs stand, and what becomes of them.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bulkhead_abi::control::{EVENT_LIMITS, EVENT_STATE, Message};
use bulkhead_control::board::Vm;
use bulkhead_control::failure::{Failure, Outcome};
use bulkhead_control::port::Access;
use serde_json::{Value, json};

use crate::cli::EventArgs;
use crate::output::Printer;
use crate::verb::{Ended, Stop, connect};
use crate::vms::{as_json, paint};

/// Time between two attempts to find EL2 again.
const AGAIN: Duration = Duration::from_secs(1);

/// Shows events.
pub fn run(access: &Access, printer: &Printer, args: EventArgs) -> Ended {
    let mut known = BTreeMap::new();
    loop {
        let stop = match watch(access, printer, &args, &mut known) {
            Ok(outcome) => return Ok(outcome),
            Err(stop) => stop,
        };
        // A daemon that starts anew is waited for; events that it missed show as new states.
        match &stop {
            Stop::Failure(failure) if args.follow && !known.is_empty() && is_passing(failure) => {
                thread::sleep(AGAIN);
            }
            _ => return Err(stop),
        }
    }
}

/// Whether a failure may be one of a daemon that starts anew.
fn is_passing(failure: &Failure) -> bool {
    ["control::gone", "control::no-port", "control::busy"].contains(&failure.code)
}

/// States by index of the VM.
type Known = BTreeMap<u16, Vm>;

fn watch(access: &Access, printer: &Printer, args: &EventArgs, known: &mut Known) -> Ended {
    let mut manager = connect(access)?;
    let own = manager.hello.manager;
    for vm in manager.vms()? {
        if known.get(&vm.index) != Some(&vm) {
            say_state(printer, &vm, own)?;
            known.insert(vm.index, vm);
        }
    }
    if !args.follow {
        return Ok(Outcome::Done);
    }
    loop {
        let event = manager.connection.event(None).map_err(Failure::from)?;
        let Some(event) = event else { continue };
        match event.kind {
            EVENT_STATE => {
                let vm = Vm::of(&event);
                say_state(printer, &vm, own)?;
                known.insert(vm.index, vm);
            }
            _ => say_other(printer, &event, known)?,
        }
    }
}

fn say_state(printer: &Printer, vm: &Vm, own: u16) -> Result<(), Stop> {
    let now = now();
    if printer.json {
        let document =
            json!({ "time": now.as_secs_f64(), "event": "state", "vm": as_json(vm, own) });
        return Ok(printer.line(&document)?);
    }
    let phase = vm.phase_word();
    let phase = paint(vm).map_or_else(|| phase.to_owned(), |paint| printer.paint(paint, phase));
    let mut text = format!(
        "{}  {:<16}  {phase}, life {}",
        clock(now),
        vm.name,
        vm.lives
    );
    if let (Some(end), Some(follows)) = (vm.end, vm.follows_words()) {
        text = format!("{text}; last end: {}, {follows}", end.words());
    }
    if let Some(crash) = vm.crash {
        let (life, words) = (crash.life, crash.words());
        text = format!("{text}; crash of life {life}: {words}, {crash}");
    }
    Ok(printer.text(&(text + "\n"))?)
}

fn say_other(printer: &Printer, event: &Message, known: &Known) -> Result<(), Stop> {
    let now = now();
    let name = known.get(&event.vm).map_or("?", |vm| vm.name.as_str());
    let (word, text) = match event.kind {
        EVENT_LIMITS => (
            json!("limits"),
            "weights, caps, budgets or pools have changed".to_owned(),
        ),
        // An EL2 that says more than this program knows.
        kind => (Value::from(kind), format!("event {kind:#x}")),
    };
    if printer.json {
        let vm = json!({ "name": name, "index": event.vm });
        let document = json!({ "time": now.as_secs_f64(), "event": word, "vm": vm });
        return Ok(printer.line(&document)?);
    }
    Ok(printer.text(&format!("{}  {name:<16}  {text}\n", clock(now)))?)
}

/// Time since 1970.
fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Time of the day in UTC, to the millisecond.
pub fn clock(now: Duration) -> String {
    let seconds = now.as_secs();
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!(
        "{hours:02}:{minutes:02}:{:02}.{:03}",
        seconds % 60,
        now.subsec_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_day_is_that_of_utc() {
        assert_eq!(
            clock(Duration::from_millis(1_000_000_000_123)),
            "01:46:40.123"
        );
    }
}
