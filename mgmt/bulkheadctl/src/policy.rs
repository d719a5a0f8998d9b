//! `policy`: what bulkheadd follows, whether a file is sound, and what it would do.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bulkhead_control::failure::{Failure, Outcome};
use bulkhead_control::port::{Access, SOCKET};
use bulkhead_policy::engine::{Engine, rules};
use bulkhead_policy::fault::{Fault, Text};
use bulkhead_policy::reader::{open, read};
use bulkhead_policy::rule::{Policy, text_of};
use serde_json::{Value, json};

use crate::cli::{CheckArgs, DryRunArgs, PolicyArgs, PolicyVerb};
use crate::events::clock;
use crate::output::{Paint, Printer};
use crate::table::Table;
use crate::verb::{Ended, Stop, connect};

/// Decisions that are shown to people.
const LAST: usize = 10;
/// Time within which the daemon says what it follows.
const PATIENCE: Duration = Duration::from_secs(5);

/// Does it.
pub fn run(access: &Access, printer: &Printer, args: PolicyArgs) -> Ended {
    match args.verb {
        None | Some(PolicyVerb::Show) => show(access, printer),
        Some(PolicyVerb::Check(args)) => check(access, printer, &args),
        Some(PolicyVerb::DryRun(args)) => dry_run(access, printer, &args),
    }
}

fn show(access: &Access, printer: &Printer) -> Ended {
    let control = access.socket.as_deref().unwrap_or(Path::new(SOCKET));
    let text = told(&control.with_file_name("policy.sock"))?;
    let document: Value = serde_json::from_str(&text).map_err(|why| {
        Failure::environment(
            "policy::told",
            "bulkheadd says nothing that can be read",
            why,
        )
        .advise("install the programs of one bulkhead-mgmt package, and restart bulkheadd")
    })?;
    if printer.json {
        printer.document(&document)?;
    } else {
        printer.text(&shown(printer, &document))?;
    }
    Ok(Outcome::Done)
}

/// What the daemon says at its socket.
fn told(socket: &Path) -> Result<String, Failure> {
    let ask = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    ask().map_err(|why: std::io::Error| {
        let what = format!("nobody follows a policy at {}", socket.display());
        Failure::environment("policy::nobody", what, why).advise(
            "write /etc/bulkhead/policy.toml, then: systemctl restart bulkheadd; and be root",
        )
    })
}

/// The text of a value that is a string.
fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn shown(printer: &Printer, document: &Value) -> String {
    let mut text = format!(
        "policy {}: {}",
        word(&document["file"]),
        word(&document["state"])
    );
    if let Some(seconds) = document["interval_s"].as_f64() {
        text += &format!(
            ", a look each {}",
            text_of(Duration::from_secs_f64(seconds))
        );
    }
    if document["dry_run"] == true {
        text += ", dry run: nothing is moved";
    }
    text.push('\n');
    let list = |key: &str| document[key].as_array().cloned().unwrap_or_default();
    for finding in list("findings") {
        let message = finding.as_str().unwrap_or(word(&finding["message"]));
        text += &printer.paint(Paint::Red, message);
        text.push('\n');
    }
    let rules = list("rules");
    if !rules.is_empty() {
        let mut table = Table::new(&[
            "RULE", "VM", "MOVES", ">NOW", ">FROM", ">TO", "WHEN", "BACK", "STATE",
        ]);
        for rule in &rules {
            let condition = |which: &str| {
                let condition = &rule[which];
                let found = word(&condition["measured_text"]);
                format!("{}, now {found}", word(&condition["text"]))
            };
            let cell = |key: &str| word(&rule[key]).to_owned();
            let cells = [
                cell("rule"),
                cell("vm"),
                cell("moves"),
                cell("now_text"),
                cell("from_text"),
                cell("to_text"),
                condition("when"),
                condition("back"),
                cell("state"),
            ];
            table.row(None, cells);
        }
        text += &table.text(printer);
    }
    let decisions = list("decisions");
    let last = decisions.len().saturating_sub(LAST);
    for decision in decisions.iter().skip(last) {
        let time = Duration::from_secs_f64(decision["time"].as_f64().unwrap_or(0.0));
        text += &format!("{}  {}\n", clock(time), word(&decision["text"]));
    }
    text
}

/// Prints mistakes of a file.
fn faults(printer: &Printer, text: &Text, faults: &[Fault]) -> Ended {
    if printer.json {
        let findings: Vec<Value> = faults.iter().map(|fault| text.finding(fault)).collect();
        printer.document(&json!({ "ok": false, "findings": findings }))?;
    } else {
        for fault in faults {
            printer.failure(&text.failure(fault));
        }
    }
    Ok(Outcome::BadInput)
}

fn check(access: &Access, printer: &Printer, args: &CheckArgs) -> Ended {
    let text = open(&args.file)?;
    let policy = match read(&text) {
        Ok(policy) => policy,
        Err(found) => return faults(printer, &text, &found),
    };
    let lines = rules(&policy);
    let mut notes = Vec::new();
    if !args.offline {
        let mut manager = connect(access).map_err(|failure| {
            let advice = "--offline looks at the file only";
            Failure {
                advice: format!("{}; {advice}", failure.advice),
                ..failure
            }
        })?;
        match Engine::new(policy, true).meet(&mut manager)? {
            Ok(found) => notes = found,
            Err(found) => return faults(printer, &text, &found),
        }
    }
    if printer.json {
        let document = json!({ "ok": true, "rules": lines, "notes": notes, "findings": [] });
        printer.document(&document)?;
        return Ok(Outcome::Done);
    }
    let mut said = String::new();
    for line in lines.iter().chain(&notes) {
        said += line;
        said.push('\n');
    }
    let of = if args.offline {
        "the file is sound"
    } else {
        "sound, and the board allows it"
    };
    printer.text(&format!("{said}{}: {of}\n", text.name))?;
    Ok(Outcome::Done)
}

fn dry_run(access: &Access, printer: &Printer, args: &DryRunArgs) -> Ended {
    let text = open(&args.file)?;
    let policy = match read(&text) {
        Ok(policy) => policy,
        Err(found) => return faults(printer, &text, &found),
    };
    let mut manager = connect(access)?;
    let mut engine = Engine::new(policy, true);
    match engine.meet(&mut manager)? {
        Ok(notes) => say_begin(printer, engine.policy(), &notes)?,
        Err(found) => return faults(printer, &text, &found),
    }
    let (begin, interval) = (Instant::now(), engine.policy().interval);
    let mut next = begin;
    loop {
        let mut records = Vec::new();
        engine.look(&mut manager, begin.elapsed(), &mut records)?;
        for record in records {
            if printer.json {
                printer.line(&record.document())?;
            } else {
                printer.text(&format!("{}  {}\n", clock(record.time), record.line()))?;
            }
        }
        next = (next + interval).max(Instant::now());
        let end = args.time.map(|time| begin + time);
        if end.is_some_and(|end| next > end) {
            return Ok(Outcome::Done);
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Says what is followed, to people.
fn say_begin(printer: &Printer, policy: &Policy, notes: &[String]) -> Result<(), Stop> {
    if printer.json {
        return Ok(());
    }
    let lines = [rules(policy), notes.to_vec()].concat();
    let every = text_of(policy.interval);
    printer.text(&format!(
        "{}\na look each {every}; nothing is moved\n",
        lines.join("\n")
    ))?;
    Ok(())
}
