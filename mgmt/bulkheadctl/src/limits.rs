//! `weights`, `caps`, `budgets`, `pools`: how much of their pCPUs the vCPUs of a VM get.

use bulkhead_abi::control::{Kind, Status, TRIAL};
use bulkhead_control::failure::{Failure, Outcome};
use bulkhead_control::port::Access;
use bulkhead_control::refusal;
use serde_json::{Value, json};

use crate::cli::{BudgetArgs, CapArgs, LimitArgs, PoolArgs, WeightArgs};
use crate::output::Printer;
use crate::verb::{Ended, connect};
use crate::words::{Share, cpu_list, share_text};

/// Sets weights.
pub fn weights(access: &Access, printer: &Printer, args: WeightArgs) -> Ended {
    let weight = args.weight;
    let text = format!("weight {weight}");
    set(
        access,
        printer,
        (Kind::Weight, &args.order, &[weight]),
        (&text, json!({ "weight": weight })),
    )
}

/// Sets caps.
pub fn caps(access: &Access, printer: &Printer, args: CapArgs) -> Ended {
    let Share { amount, period } = args.cap;
    let text = if amount == period {
        "no cap".to_owned()
    } else {
        format!("cap {}", share_text(amount, period))
    };
    let document = json!({ "quota_ns": amount, "period_ns": period });
    set(
        access,
        printer,
        (Kind::Cap, &args.order, &[amount, period]),
        (&text, document),
    )
}

/// Sets budgets.
pub fn budgets(access: &Access, printer: &Printer, args: BudgetArgs) -> Ended {
    let Share { amount, period } = args.budget;
    let text = format!("budget {}", share_text(amount, period));
    let document = json!({ "budget_ns": amount, "period_ns": period });
    set(
        access,
        printer,
        (Kind::Budget, &args.order, &[amount, period]),
        (&text, document),
    )
}

/// Sets pools.
pub fn pools(access: &Access, printer: &Printer, args: PoolArgs) -> Ended {
    let text = format!("pool {}", cpu_list(args.cpus));
    let cpus: Vec<u32> = (0..64).filter(|cpu| args.cpus >> cpu & 1 == 1).collect();
    set(
        access,
        printer,
        (Kind::Pool, &args.order, &[args.cpus]),
        (&text, json!({ "pool": cpus })),
    )
}

fn set(
    access: &Access,
    printer: &Printer,
    order: (Kind, &LimitArgs, &[u64]),
    said: (&str, Value),
) -> Ended {
    let (kind, args, values) = order;
    let (text, mut document) = said;
    let mut manager = connect(access)?;
    let vm = manager.find(&args.vm)?;
    let flags = if args.dry_run { TRIAL } else { 0 };
    let answer = manager.change(kind, vm.index, values, flags);
    let answer = answer.map_err(Failure::from)?;
    if answer.status != Status::Done as u16 {
        return Err(refusal::failure(kind, &vm.name, &answer).into());
    }
    if printer.json {
        document["ok"] = json!(true);
        document["vm"] = json!(vm.name);
        document["dry_run"] = json!(args.dry_run);
        printer.document(&document)?;
    } else {
        let would = if args.dry_run { "could have " } else { "" };
        printer.text(&format!("{}: {would}{text}\n", vm.name))?;
    }
    Ok(Outcome::Done)
}
