//! What a board has to say to a policy.

use bulkhead_abi::control::{Phase, right};
use bulkhead_abi::plan::{Class, CpuPolicy};
use bulkhead_control::board::{Vcpu, Vm};
use bulkhead_policy::ask::{Facts, Needs, Seen, needs};
use bulkhead_policy::check::{faults, notes};
use bulkhead_policy::fault::Text;
use bulkhead_policy::reader::read;
use bulkhead_policy::rule::Policy;

fn seen(name: &str, policy: CpuPolicy, pcpu: u16, share: (u64, u64)) -> Seen {
    let vm = Vm {
        index: 0,
        name: name.to_owned(),
        rights: right::LIST | right::STATS | right::LIMITS,
        phase: Phase::Running as u64,
        lives: 1,
        class: Class::General as u16,
        vcpus: 1,
        ..Vm::default()
    };
    let us = |us: u64| us * 1000;
    let vcpu = Vcpu {
        pcpu,
        power: 3,
        policy: policy as u64,
        weight: 100,
        amount: us(share.0),
        period: us(share.1),
        pool: 0b11,
    };
    Seen {
        vm,
        vcpus: vec![vcpu],
    }
}

/// Four pCPUs: two servers on 1, a third on 2, a fair VM, and one that is pinned on 3.
fn facts() -> Facts {
    Facts {
        pcpus: 4,
        vms: vec![
            seen("one", CpuPolicy::Server, 1, (2000, 10_000)),
            seen("two", CpuPolicy::Server, 1, (3000, 10_000)),
            seen("three", CpuPolicy::Server, 2, (9000, 10_000)),
            seen("fair", CpuPolicy::Fair, 1, (10_000, 10_000)),
            seen("pinned", CpuPolicy::Pinned, 3, (0, 0)),
        ],
    }
}

fn policy(rules: &[(&str, &str, &str)]) -> Policy {
    let source: String = rules
        .iter()
        .enumerate()
        .map(|(at, (vm, moved, measure))| {
            let above = if *measure == "exits" { "9" } else { "\"9%\"" };
            let below = if *measure == "exits" { "1" } else { "\"1%\"" };
            format!(
                "[rule.r{at}]\nvms = [\"{vm}\"]\n{moved}\nwhen = {{ measure = \"{measure}\", above = {above} }}\nback = {{ below = {below} }}\n"
            )
        })
        .collect();
    let name = String::new();
    read(&Text { name, source }).unwrap_or_else(|faults| panic!("{faults:?}"))
}

const WEIGHT: &str = "weight = { from = 100, to = 400, step = 100 }";

fn budget(from: &str, to: &str) -> String {
    format!("budget = {{ from = \"{from}/10ms\", to = \"{to}/10ms\", step = \"1ms\" }}")
}

/// Codes and messages of what is wrong.
fn said(policy: &Policy, facts: &Facts) -> Vec<String> {
    let faults = faults(policy, facts);
    faults
        .iter()
        .map(|fault| format!("{}: {}", fault.code, fault.message))
        .collect()
}

#[test]
fn what_the_board_allows_has_no_faults() {
    let one = budget("2ms", "6ms");
    let policy = policy(&[("one", &one, "used"), ("fair", WEIGHT, "waiting")]);
    assert_eq!(said(&policy, &facts()), [""; 0]);
    assert_eq!(notes(&policy, &facts()), [""; 0]);
}

#[test]
fn rights_are_needed_for_what_is_moved_and_for_what_is_measured() {
    let policy = policy(&[("fair", WEIGHT, "waiting")]);
    let mut facts = facts();
    facts.vms[3].vm.rights = right::LIST | right::STATS;
    assert_eq!(
        said(&policy, &facts),
        ["policy::rights: this VM has not the right `limits` over fair"]
    );
    facts.vms[3].vm.rights = right::LIST | right::LIMITS;
    let found = said(&policy, &facts);
    assert!(
        found[0].starts_with("policy::rights: this VM has not the right `stats` over fair"),
        "{found:?}"
    );
}

#[test]
fn a_vm_has_only_the_limits_of_its_policy() {
    let budgets = budget("2ms", "6ms");
    let cap = "cap = { from = \"2ms/10ms\", to = \"none\", step = \"1ms\" }";
    for (vm, moved, why) in [
        ("one", WEIGHT, "one has no weight that could be moved"),
        ("one", cap, "one has no cap that could be moved"),
        ("fair", &budgets, "fair has no budget that could be moved"),
        ("pinned", WEIGHT, "pinned has no weight that could be moved"),
        (
            "nobody",
            WEIGHT,
            "there is no VM `nobody` that this VM may see",
        ),
        ("fair", "pool = [\"1\", \"1-5\"]", "there is no pCPU 4-5"),
    ] {
        let found = said(&policy(&[(vm, moved, "cpu")]), &facts());
        assert!(found.len() == 1 && found[0].ends_with(why), "{found:?}");
    }
}

#[test]
fn some_vms_cannot_be_measured() {
    let source = |measure| {
        let mut policy = policy(&[("fair", WEIGHT, measure)]);
        let rule = &mut policy.rules[0];
        let mut vm = rule.vms[0].clone();
        vm.value = "pinned".to_owned();
        rule.when.vm = Some(vm.clone());
        rule.back.vm = Some(vm);
        policy
    };
    for (measure, faults) in [
        ("cpu", 0),
        ("exits", 0),
        ("el2", 0),
        ("waiting", 2),
        ("used", 2),
    ] {
        let found = said(&source(measure), &facts());
        assert_eq!(found.len(), faults, "{measure}: {found:?}");
    }
    let mut facts = facts();
    facts.vms[4].vm.class = Class::HardRealtime as u16;
    let found = said(&source("cpu"), &facts);
    assert!(
        found[0].ends_with("`cpu` of pinned cannot be measured"),
        "{found:?}"
    );
}

#[test]
fn a_budget_that_cannot_be_promised_even_alone_is_refused() {
    // Two has 3 ms of each 10, and no rule.
    let eight = budget("2ms", "8ms");
    let found = said(&policy(&[("one", &eight, "used")]), &facts());
    assert!(
        found.len() == 1
            && found[0].starts_with(
                "policy::bounds: one cannot be promised 8ms/10ms: the budgets on pCPU 1 would take 110"
            ),
        "{found:?}"
    );
    // With a rule it can have less, and the two take turns.
    let least = budget("1ms", "3ms");
    let both = policy(&[("one", &eight, "used"), ("two", &least, "used")]);
    assert_eq!(said(&both, &facts()), [""; 0]);
    let found = notes(&both, &facts());
    assert!(
        found.len() == 1 && found[0].starts_with("the greatest budgets on pCPU 1 would take 110"),
        "{found:?}"
    );
    // A whole pCPU cannot be promised: EL2 itself costs something. A budget that shrinks is greatest at its begin.
    let shrinks = budget("10ms", "2ms");
    let found = said(&policy(&[("three", &shrinks, "used")]), &facts());
    assert!(
        found[0].contains("three cannot be promised 10ms/10ms"),
        "{found:?}"
    );
    let fits = budget("9ms", "2ms");
    assert_eq!(
        said(&policy(&[("three", &fits, "used")]), &facts()),
        [""; 0]
    );
}

#[test]
fn no_more_is_asked_than_is_measured() {
    let mut policy = policy(&[
        ("fair", WEIGHT, "waiting"),
        ("one", &budget("2ms", "6ms"), "exits"),
    ]);
    let mut vm = policy.rules[0].vms[0].clone();
    vm.value = "two".to_owned();
    policy.rules[0].when.vm = Some(vm);
    let needs = needs(&policy);
    let of = |time, exits| Needs { time, exits };
    assert_eq!(needs["fair"], of(true, false));
    assert_eq!(needs["two"], of(true, false));
    assert_eq!(needs["one"], of(false, true));
    assert_eq!(needs.len(), 3);
}
