//! What a board has to say to a policy before anything is moved: who is there, what this VM may do, and which bounds the plan cannot keep.
//! EL2 checks each change again, and its word is final.

use std::collections::BTreeMap;

use bulkhead_abi::control::right;
use bulkhead_abi::plan::{Class, CpuPolicy};
use bulkhead_control::words::cpu_list;
use bulkhead_core::sched::bound::{Promise, WHOLE, worst_load};

use crate::ask::{Facts, Seen, is_measured};
use crate::fault::{Fault, Span};
use crate::rule::{Placed, Policy, Quantity, Rule, Setting};
use crate::table::nearest;

/// The mistakes of a policy on a board, in the order of their places.
pub fn faults(policy: &Policy, facts: &Facts) -> Vec<Fault> {
    let mut faults = Vec::new();
    for rule in &policy.rules {
        for vm in &rule.vms {
            if let Some(seen) = known(facts, vm, &mut faults) {
                moved(rule, vm, seen, facts, &mut faults);
                for condition in rule.conditions() {
                    let measured = match &condition.vm {
                        None => Some(seen),
                        Some(vm) => known(facts, vm, &mut faults),
                    };
                    if let Some(seen) = measured {
                        let span = condition.measure.span.clone();
                        let measure = condition.measure.value;
                        measurable(seen, measure, span, &mut faults);
                    }
                }
            }
        }
    }
    budgets(policy, facts, &mut faults);
    faults.sort_by_key(|fault| fault.places.first().map_or(0, |(span, _)| span.start));
    faults.dedup();
    faults
}

fn known<'a>(facts: &'a Facts, vm: &Placed<String>, faults: &mut Vec<Fault>) -> Option<&'a Seen> {
    let found = facts.vms.iter().find(|seen| seen.vm.name == vm.value);
    if found.is_none() {
        let names = || facts.vms.iter().map(|seen| seen.vm.name.as_str());
        let help = nearest(&vm.value, names()).map_or_else(
            || format!("it sees: {}", names().collect::<Vec<_>>().join(", ")),
            |meant| format!("did you mean `{meant}`?"),
        );
        let message = format!("there is no VM `{}` that this VM may see", vm.value);
        faults.push(Fault::new("policy::vm", message, vm.span.clone(), "not here").help(help));
    }
    found
}

/// Whether this VM may do that.
fn allowed(seen: &Seen, bit: u32, word: &str, span: Span, faults: &mut Vec<Fault>) {
    if seen.vm.allows(bit) {
        return;
    }
    let name = &seen.vm.name;
    let message = format!("this VM has not the right `{word}` over {name}");
    let help = format!(
        "add \"{word}\" for {name} to `manages` of this VM in the description, and build the image anew"
    );
    faults.push(Fault::new("policy::rights", message, span, "needs it").help(help));
}

fn moved(rule: &Rule, vm: &Placed<String>, seen: &Seen, facts: &Facts, faults: &mut Vec<Fault>) {
    allowed(seen, right::LIMITS, "limits", vm.span.clone(), faults);
    let name = &vm.value;
    let quantity = rule.quantity.value;
    let word = quantity.word();
    let is = |policy| seen.vcpus.iter().any(|vcpu| vcpu.is(policy));
    let why = match quantity {
        _ if is(CpuPolicy::Pinned) => Some("it has its pCPUs to itself"),
        Quantity::Budget if is(CpuPolicy::Fair) => Some("it has a weight, and so no budget"),
        Quantity::Weight | Quantity::Cap | Quantity::Pool if is(CpuPolicy::Server) => {
            Some("it has a budget, and so neither weight nor cap nor pool")
        }
        _ => None,
    };
    if let Some(why) = why {
        let message = format!("{name} has no {word} that could be moved");
        let help = "what a VM has is its `cpu` in the description; `bulkheadctl stats` shows it";
        let fault = Fault::new("policy::bounds", message, rule.quantity.span.clone(), why);
        faults.push(fault.help(help));
    }
    let pools = rule.steps.iter().filter_map(|step| match step {
        Setting::Pool(pool) => Some(*pool),
        _ => None,
    });
    let there = u64::MAX.checked_shl(facts.pcpus.into()).unwrap_or(0);
    let outside = pools.fold(0, |all, pool| all | pool) & there;
    if outside != 0 {
        let message = format!("there is no pCPU {}", cpu_list(outside));
        let help = format!("the pCPUs are 0 to {}", facts.pcpus.saturating_sub(1));
        let fault = Fault::new(
            "policy::bounds",
            message,
            rule.quantity.span.clone(),
            "here",
        );
        faults.push(fault.help(help));
    }
}

fn measurable(seen: &Seen, measure: crate::rule::Measure, span: Span, faults: &mut Vec<Fault>) {
    allowed(seen, right::STATS, "stats", span.clone(), faults);
    let (name, word) = (&seen.vm.name, measure.word());
    let is_pinned = seen.vcpus.iter().any(|vcpu| vcpu.is(CpuPolicy::Pinned));
    let (why, help) = if seen.vm.class == Class::HardRealtime as u16 {
        let why = "a hard real-time VM is not asked: the question would be an exit";
        (why, "measure another VM")
    } else if !is_measured(measure, is_pinned) {
        let why = "it has its pCPUs to itself";
        (why, "measure cpu, exits or el2")
    } else {
        return;
    };
    let message = format!("`{word}` of {name} cannot be measured");
    faults.push(Fault::new("policy::measure", message, span, why).help(help));
}

/// The budget of a share, in a list of what servers are promised. Limits of accesses to memory are not known here: EL2 refuses what they leave no room for.
const fn promise(amount: u64, period: u64) -> Promise {
    Promise {
        budget: amount,
        period,
        held: 0,
    }
}

/// The setting of a rule with the greatest share, or with the least.
fn end(rule: &Rule, greatest: bool) -> Setting {
    let (rest, bound) = (rule.rest(), rule.bound());
    if (bound.number() > rest.number()) == greatest {
        bound
    } else {
        rest
    }
}

/// Budgets of the VMs of rules, by name of the VM.
fn ends(policy: &Policy, greatest: bool) -> BTreeMap<&str, Setting> {
    let budgets = policy
        .rules
        .iter()
        .filter(|rule| rule.quantity.value == Quantity::Budget);
    let all = budgets.flat_map(|rule| {
        let setting = end(rule, greatest);
        rule.vms.iter().map(move |vm| (vm.value.as_str(), setting))
    });
    all.collect()
}

/// What the servers that are seen would take of a pCPU, in millionths, with these budgets in place of what they have. Those that are not
/// seen come on top of it, and what draining the console and saving more registers costs.
fn load(facts: &Facts, pcpu: u16, budgets: &BTreeMap<&str, Setting>) -> u64 {
    let servers = facts.vms.iter().flat_map(|seen| {
        let setting = budgets.get(seen.vm.name.as_str()).copied();
        let here = seen.vcpus.iter().filter(move |vcpu| vcpu.pcpu == pcpu);
        let servers = here.filter(|vcpu| vcpu.is(CpuPolicy::Server));
        servers.map(move |vcpu| match setting {
            Some(Setting::Budget(share)) => promise(share.amount, share.period),
            _ => promise(vcpu.amount, vcpu.period),
        })
    });
    worst_load(servers, false, false).unwrap_or(u64::MAX)
}

/// Budgets that the schedulability test refuses even when those of all other rules are at their least.
fn budgets(policy: &Policy, facts: &Facts, faults: &mut Vec<Fault>) {
    let least = ends(policy, false);
    for rule in &policy.rules {
        if rule.quantity.value != Quantity::Budget {
            continue;
        }
        for vm in &rule.vms {
            let mut budgets = least.clone();
            budgets.insert(&vm.value, end(rule, true));
            for pcpu in pcpus_of(facts, &vm.value) {
                let load = load(facts, pcpu, &budgets);
                if load <= WHOLE {
                    continue;
                }
                let greatest = end(rule, true);
                let message = format!(
                    "{} cannot be promised {greatest}: the budgets on pCPU {pcpu} would take {} of it",
                    vm.value,
                    percent(load)
                );
                let label = "also when those of all other rules are at their least";
                let span = rule.quantity.span.clone();
                let fault = Fault::new("policy::bounds", message, span, label);
                faults.push(
                    fault.help("lower the bound; `bulkhead plan` shows what the budgets cost"),
                );
                break;
            }
        }
    }
}

/// What is worth knowing and no mistake: pCPUs on which not all greatest budgets can be promised at once.
pub fn notes(policy: &Policy, facts: &Facts) -> Vec<String> {
    let greatest = ends(policy, true);
    let names = greatest.keys();
    let mut pcpus: Vec<u16> = names.flat_map(|name| pcpus_of(facts, name)).collect();
    pcpus.sort_unstable();
    pcpus.dedup();
    let taken = pcpus
        .into_iter()
        .map(|pcpu| (pcpu, load(facts, pcpu, &greatest)));
    let too_much = taken.filter(|(_, load)| *load > WHOLE);
    too_much
        .map(|(pcpu, load)| {
            format!(
                "the greatest budgets on pCPU {pcpu} would take {} of it together: EL2 refuses what comes last",
                percent(load)
            )
        })
        .collect()
}

fn pcpus_of(facts: &Facts, name: &str) -> Vec<u16> {
    let vm = facts.vms.iter().find(|seen| seen.vm.name == name);
    let mut pcpus: Vec<u16> = vm.map_or_else(Vec::new, |seen| {
        seen.vcpus.iter().map(|vcpu| vcpu.pcpu).collect()
    });
    pcpus.sort_unstable();
    pcpus.dedup();
    pcpus
}

fn percent(millionths: u64) -> String {
    format!("{:.1} %", millionths as f64 / 10_000.0)
}
