//! The pages about exit classes and about the calls that a guest may make.

use std::fmt::Write;

use bulkhead_abi::call;
use bulkhead_abi::exit::ExitClass;
use bulkhead_core::cpu::psci;

use super::source::{Item, Kind, items};

/// The page about exit classes.
pub fn exit_classes() -> String {
    let items = items("abi/src/exit.rs");
    let classes = items.iter().find(|item| item.name == "ExitClass");
    let classes = &classes.expect("the classes").entries;
    assert_eq!(classes.len(), ExitClass::COUNT);
    let mut text = "# Exit classes\n\nWhy a vCPU left its guest, as reports, the monitor and `--json` name it. Each exit is counted in one class, with its cycles.\n\n\
        | number | name | what it was |\n| ---: | --- | --- |\n"
        .to_owned();
    for (class, entry) in ExitClass::ALL.into_iter().zip(classes) {
        assert_eq!(entry.value, (class as u8).to_string(), "{class:?}");
        assert_eq!(entry.name, format!("{class:?}"));
        let _ = writeln!(
            text,
            "| {} | `{}` | {} |",
            entry.value,
            class.name(),
            entry.says
        );
    }
    text
}

/// Constants of a file that are identifiers of functions: name and number.
fn functions(path: &str) -> Vec<(String, u32)> {
    let constants = items(path)
        .into_iter()
        .filter(|item| item.kind == Kind::Const);
    let number = |item: &Item| {
        let digits = item.entries[0].value.strip_prefix("0x")?.replace('_', "");
        // Fast calls have the highest bit.
        u32::from_str_radix(&digits, 16)
            .ok()
            .filter(|number| number >> 31 == 1)
    };
    // The comment has the name of the document, where that is another one.
    let name = |item: &Item| {
        let word = item.says.split(['.', ',', ' ']).next().unwrap_or_default();
        let full = word.contains('_')
            && word
                .chars()
                .all(|c| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit());
        // The two forms of a call have one name there.
        let form = ["32", "64"]
            .into_iter()
            .find(|form| item.name.ends_with(form));
        match (full, form) {
            (false, _) => item.name.clone(),
            (true, Some(form)) => format!("{word}_{form}"),
            (true, None) => word.to_owned(),
        }
    };
    constants
        .filter_map(|item| Some((name(&item), number(&item)?)))
        .collect()
}

/// The page about calls.
pub fn page() -> String {
    let mut text = "# Calls\n\n\
        What a guest may ask EL2 for, by HVC or SMC with immediate 0, after the SMC Calling Convention (DEN0028): the identifier in w0, arguments from x1, the answer in x0. A call that is not here is answered with -1, \
        \"not supported\", and costs an exit. No call takes an address at which EL2 would read or write. There is no call by which a VM reaches another one.\n\n"
        .to_owned();
    let mut table = |title: &str, about: &str, rows: &[(String, u32)]| {
        assert!(!rows.is_empty(), "{title}");
        let _ = write!(
            text,
            "## {title}\n\n{about}\n\n| identifier | function |\n| --- | --- |\n"
        );
        for (name, number) in rows {
            let _ = writeln!(
                text,
                "| 0x{:04x}_{:04x} | `{name}` |",
                number >> 16,
                number & 0xffff
            );
        }
        text.push('\n');
    };
    let offered = |number: u32| {
        let asked = psci::call(0x8400_000a, [number.into(), 0, 0], 1);
        matches!(asked, psci::Call::Answer(answer) if answer as i64 >= 0)
    };
    let power: Vec<_> = functions("core/src/cpu/psci.rs").into_iter().collect();
    assert!(
        power.iter().all(|(_, number)| offered(*number)),
        "{power:?}"
    );
    let own = |(name, _): &(String, u32)| !name.starts_with("SMCCC_");
    let power: Vec<_> = power.into_iter().filter(own).collect();
    table(
        "PSCI 1.1 (DEN0022E)",
        "CPUs are the vCPUs of the VM. `SYSTEM_OFF` and `SYSTEM_RESET` are about the VM; a suspended CPU goes on at once.",
        &power,
    );
    let convention: Vec<_> = functions("core/src/cpu/smccc.rs");
    let convention: Vec<_> = convention
        .into_iter()
        .filter(|(name, _)| !name.starts_with("PSCI_"))
        .collect();
    let workarounds = bulkhead_core::cpu::smccc::Workaround::ALL
        .into_iter()
        .zip(1..);
    let workarounds = workarounds
        .map(|(one, number)| (format!("SMCCC_ARCH_WORKAROUND_{number}"), one.function()));
    let convention: Vec<_> = convention.into_iter().chain(workarounds).collect();
    table(
        "SMCCC 1.2 (DEN0028E)",
        "The workarounds are those of the board's firmware, and \"not supported\" where it has none and the CPU needs them.",
        &convention,
    );
    table(
        "TRNG 1.0 (DEN0098)",
        "Where the board's firmware gave EL2 a seed.",
        &functions("core/src/cpu/trng.rs"),
    );
    table(
        "Stolen time (DEN0057A)",
        "For VMs that are not pinned: where the page is.",
        &functions("core/src/cpu/pvtime.rs"),
    );
    text.push_str("## Bulkhead's own\n\nIn the range of the hypervisor's vendor; x0 to x3 have the answer.\n\n| identifier | function | |\n| --- | --- | --- |\n");
    let own = functions("abi/src/call.rs");
    assert!(
        own.iter().any(|(_, number)| *number == call::CALL_EVENT),
        "{own:?}"
    );
    for item in items("abi/src/call.rs")
        .iter()
        .filter(|item| item.kind == Kind::Const)
    {
        let number = own.iter().find(|(name, _)| *name == item.name);
        let id = number.map_or(String::new(), |(_, number)| {
            format!("0x{:04x}_{:04x}", number >> 16, number & 0xffff)
        });
        let id = if id.is_empty() {
            format!("`{}`", item.entries[0].value)
        } else {
            id
        };
        let _ = writeln!(text, "| {id} | `{}` | {} |", item.name, item.says);
    }
    text.push('\n');
    text.push_str("## The board's\n\nCalls of the SoC's or board's vendor, or of a trusted OS, that the description lists in `smc` go to the firmware by SMC.\n");
    text
}
