//! `report`: what EL2 says of the last crash of a VM.

use bulkhead_control::crash::{Crash, Report};
use bulkhead_control::failure::Outcome;
use bulkhead_control::port::Access;
use serde_json::{Value, json};

use crate::cli::VmArgs;
use crate::output::{Paint, Printer};
use crate::verb::{Ended, connect};

/// What the state of a VM tells of a crash, as JSON.
pub fn as_json(crash: &Crash) -> Value {
    json!({
        "life": crash.life,
        "words": crash.words(),
        "pc": crash.pc,
        "syndrome": crash.syndrome,
        "address": crash.address,
    })
}

/// Shows the report.
pub fn run(access: &Access, printer: &Printer, args: VmArgs) -> Ended {
    let mut manager = connect(access)?;
    let vm = manager.find(&args.vm)?;
    let report = manager.report(&vm)?;
    let frequency = manager.hello.frequency;
    if printer.json {
        let report = report.map(|report| whole_as_json(&report, frequency));
        printer.document(&json!({ "ok": true, "vm": vm.name, "report": report }))?;
        return Ok(Outcome::Done);
    }
    let Some(report) = report else {
        printer.text(&format!("{}: it has not crashed\n", vm.name))?;
        return Ok(Outcome::Done);
    };
    let crash = &report.crash;
    let head = format!("crash of life {}, vCPU {}", crash.life, report.vcpu);
    let head = printer.paint(Paint::Red, &head);
    let mut text = format!("{}: {head}: {}\n", vm.name, report.words());
    text += &format!("{crash}\n");
    text += &format!(
        "{:.3} s on the board's counter, {} exits, the last ones, newest first:\n",
        report.at as f64 / frequency as f64,
        report.exits
    );
    for exit in &report.last {
        text += &format!("{exit}\n");
    }
    printer.text(&text)?;
    Ok(Outcome::Done)
}

fn whole_as_json(report: &Report, frequency: u64) -> Value {
    let exits = report.last.iter().map(|exit| {
        json!({
            "class": exit.class_word(),
            "pc": exit.pc,
            "syndrome": exit.syndrome,
            "at": exit.at,
        })
    });
    let mut value = as_json(&report.crash);
    value["words"] = report.words().into();
    value["vcpu"] = report.vcpu.into();
    value["at_s"] = (report.at as f64 / frequency as f64).into();
    value["exits"] = report.exits.into();
    value["last"] = exits.collect();
    value
}
