//! `weights`, `caps`, `budgets`, `pools`: how much of their pCPUs the vCPUs of a VM get.

use bulkhead_abi::control::Kind;
use bulkhead_control::failure::Outcome;
use bulkhead_control::port::Access;
use serde_json::{Value, json};

use crate::cli::{BudgetArgs, CapArgs, PoolArgs, WeightArgs};
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
        (Kind::Weight, &args.vm, &[weight]),
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
        (Kind::Cap, &args.vm, &[amount, period]),
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
        (Kind::Budget, &args.vm, &[amount, period]),
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
        (Kind::Pool, &args.vm, &[args.cpus]),
        (&text, json!({ "pool": cpus })),
    )
}

fn set(
    access: &Access,
    printer: &Printer,
    order: (Kind, &str, &[u64]),
    said: (&str, Value),
) -> Ended {
    let (kind, name, values) = order;
    let (text, mut document) = said;
    let mut manager = connect(access)?;
    let vm = manager.find(name)?;
    manager.ask(kind, (vm.index, &vm.name), 0, values)?;
    if printer.json {
        document["ok"] = json!(true);
        document["vm"] = json!(vm.name);
        printer.document(&document)?;
    } else {
        printer.text(&format!("{}: {text}\n", vm.name))?;
    }
    Ok(Outcome::Done)
}
