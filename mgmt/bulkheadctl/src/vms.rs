//! `list`, and the orders `start`, `stop`, `restart`, `pause`, `resume`.

use bulkhead_abi::control::{Kind, Phase};
use bulkhead_control::board::Vm;
use bulkhead_control::failure::Outcome;
use bulkhead_control::port::Access;
use serde_json::{Value, json};

use crate::cli::{OrderArgs, StopArgs};
use crate::output::{Paint, Printer};
use crate::report;
use crate::table::Table;
use crate::verb::{Ended, connect};
use crate::words::duration;

/// A VM as JSON.
pub fn as_json(vm: &Vm, manager: u16) -> Value {
    json!({
        "name": vm.name,
        "index": vm.index,
        "manager": vm.index == manager,
        "phase": vm.phase_word(),
        "class": vm.class_word(),
        "vcpus": vm.vcpus,
        "lives": vm.lives,
        "restarts": vm.restarts,
        "end": vm.end.map(|end| end.words()),
        "follows": vm.follows_words(),
        "crash": vm.crash.as_ref().map(report::as_json),
        "rights": vm.rights_words(),
        "stop": vm.stop_word(),
        "stop_timeout_ms": vm.stop_timeout_ms(),
    })
}

/// Colour of a VM in its phase.
pub fn paint(vm: &Vm) -> Option<Paint> {
    match Phase::of(vm.phase) {
        Some(Phase::Running) => Some(Paint::Green),
        Some(Phase::Down)
            if vm
                .end
                .is_some_and(|end| !end.is_orderly() && !end.is_order()) =>
        {
            Some(Paint::Red)
        }
        Some(Phase::Down) => Some(Paint::Dim),
        _ => Some(Paint::Yellow),
    }
}

/// Shows the VMs.
pub fn list(access: &Access, printer: &Printer) -> Ended {
    let mut manager = connect(access)?;
    let vms = manager.vms()?;
    let own = manager.hello.manager;
    if printer.json {
        let vms: Vec<Value> = vms.iter().map(|vm| as_json(vm, own)).collect();
        printer.document(&json!({ "ok": true, "pcpus": manager.hello.pcpus, "vms": vms }))?;
        return Ok(Outcome::Done);
    }
    let mut table = Table::new(&[
        "VM", "STATE", "CLASS", ">VCPUS", ">LIVES", "LAST END", "RIGHTS",
    ]);
    for vm in &vms {
        let mark = if vm.index == own { " (this)" } else { "" };
        let rights = vm.rights_words();
        let rights = if rights.len() == bulkhead_abi::control::right::ALL.len() {
            "all".to_owned()
        } else {
            rights.join(",")
        };
        let cells = [
            format!("{}{mark}", vm.name),
            vm.phase_word().to_owned(),
            vm.class_word().to_owned(),
            vm.vcpus.to_string(),
            vm.lives.to_string(),
            vm.end.map_or("-", |end| end.words()).to_owned(),
            rights,
        ];
        table.row(paint(vm), cells);
    }
    printer.text(&table.text(printer))?;
    if vms.is_empty() {
        printer.text("The description gives this VM no right over any.\n")?;
    }
    Ok(Outcome::Done)
}

/// Orders.
pub fn order(access: &Access, printer: &Printer, kind: Kind, args: OrderArgs) -> Ended {
    let mut manager = connect(access)?;
    let done = manager.order(kind, &args.vm, args.wait)?;
    if printer.json {
        let vm = as_json(&done.vm, manager.hello.manager);
        printer.document(&json!({ "ok": true, "changed": done.changed, "vm": vm }))?;
        return Ok(Outcome::Done);
    }
    let vm = &done.vm;
    let already = if done.changed { "" } else { "already " };
    let mut text = format!(
        "{}: {already}{}, life {}",
        vm.name,
        vm.phase_word(),
        vm.lives
    );
    if args.wait.is_some()
        && vm.is(Phase::Down)
        && let Some(end) = vm.end
    {
        text = format!("{text}: {}", end.words());
    }
    if args.wait.is_none()
        && let Some(left) = done.left
    {
        let left = duration(left.as_nanos() as u64);
        text = format!("{text}; ended in {left} if it does not");
    }
    printer.text(&(text + "\n"))?;
    Ok(Outcome::Done)
}

/// Stops a VM: asks it, or ends it.
pub fn stop(access: &Access, printer: &Printer, args: StopArgs) -> Ended {
    let kind = if args.force {
        Kind::Stop
    } else {
        Kind::Shutdown
    };
    order(access, printer, kind, args.order)
}
