//! The page about the plan's format.

use std::collections::BTreeMap;
use std::fmt::Write;

use bulkhead_abi::plan;

use super::source::{Item, Kind, items};

/// Names of the parts of a plan in the code, with what the compiler says about their sizes.
const ROWS: [(&str, usize); 21] = [
    ("Header", size_of::<plan::Header>()),
    ("Board", size_of::<plan::Board>()),
    ("Image", size_of::<plan::Image>()),
    ("Memory", size_of::<plan::Memory>()),
    ("Pcpu", size_of::<plan::Pcpu>()),
    ("Vm", size_of::<plan::Vm>()),
    ("Vcpu", size_of::<plan::Vcpu>()),
    ("Region", size_of::<plan::Region>()),
    ("Payload", size_of::<plan::Payload>()),
    ("Seed", size_of::<plan::Seed>()),
    ("Irq", size_of::<plan::Irq>()),
    ("Device", size_of::<plan::Device>()),
    ("Quiet", size_of::<plan::Quiet>()),
    ("Call", size_of::<plan::Call>()),
    ("Doorbell", size_of::<plan::Doorbell>()),
    ("ServiceThread", size_of::<plan::ServiceThread>()),
    ("Backend", size_of::<plan::Backend>()),
    ("VirtioDevice", size_of::<plan::VirtioDevice>()),
    ("Virtqueue", size_of::<plan::Virtqueue>()),
    ("Right", size_of::<plan::Right>()),
    ("Stop", size_of::<plan::Stop>()),
];

/// The page.
pub fn page() -> String {
    let files = [
        "plan.rs",
        "plan/build.rs",
        "plan/cpus.rs",
        "plan/interrupts.rs",
        "plan/io.rs",
        "plan/control.rs",
    ];
    let items: Vec<Item> = (files.iter())
        .flat_map(|file| items(&format!("abi/src/{file}")))
        .collect();
    let mut text = format!(
        "# Plan format\n\n\
         What the tool proves and EL2 proves again: a block of bytes, little-endian, a multiple of 8 long. The header comes first, then the \
         tables that it names, in the order of `TableId`, each directly behind the one before. There are no pointers, no text of variable \
         length, and no padding that is not a field which must be 0. This is version {}; EL2 takes no other. `./bulkhead build` writes it to \
         `out/NAME/plan.bin`, and the same as JSON to `plan.json`.\n\n\
         Why it is so: [ADR 2](../adr/0002-plan-format.md). What is proven about it: \
         [the rules](../../core/src/plan/check/mod.rs) and [their names](../../core/src/plan/violation.rs).\n\n## Limits and flags\n\n\
         | name | value | meaning |\n| --- | --- | --- |\n",
        plan::VERSION
    );
    for item in items.iter().filter(|item| item.kind == Kind::Const) {
        let entry = &item.entries[0];
        let _ = writeln!(
            text,
            "| `{}` | `{}` | {} |",
            entry.name, entry.value, entry.says
        );
    }
    // Sizes of what a field can be, as far as they are known: parts come before what holds them or not.
    let sizes: BTreeMap<&str, usize> = ROWS
        .into_iter()
        .chain([("Table", size_of::<plan::Table>())])
        .collect();
    for item in items.iter().filter(|item| item.kind != Kind::Const) {
        match item.kind {
            Kind::Struct => structure(&mut text, item, &sizes),
            _ => {
                let _ = write!(
                    text,
                    "\n## {}\n\n{}\n\n| number | name | meaning |\n| ---: | --- | --- |\n",
                    item.name, item.says
                );
                for entry in &item.entries {
                    let _ = writeln!(
                        text,
                        "| {} | `{}` | {} |",
                        entry.value, entry.name, entry.says
                    );
                }
            }
        }
    }
    let named: Vec<&str> = items.iter().map(|item| item.name.as_str()).collect();
    assert!(
        ROWS.iter().all(|(name, _)| named.contains(name)),
        "a part is not in the file"
    );
    text
}

fn structure(text: &mut String, item: &Item, sizes: &BTreeMap<&str, usize>) {
    let size = *sizes
        .get(&*item.name)
        .unwrap_or_else(|| panic!("what is `{}`?", item.name));
    let _ = write!(
        text,
        "\n## {}\n\n{}\n\n{size} bytes.\n\n| offset | bytes | field | meaning |\n| ---: | ---: | --- | --- |\n",
        item.name, item.says
    );
    let mut offset = 0;
    for entry in &item.entries {
        let bytes = bytes(&entry.value, sizes);
        let _ = writeln!(
            text,
            "| {offset} | {bytes} | `{}` | {} |",
            entry.name, entry.says
        );
        offset += bytes;
    }
    // The compiler would put padding where this reading sees none, and the other way round.
    assert_eq!(offset, size, "the fields of `{}` do not fill it", item.name);
}

/// Bytes of a field of this type.
fn bytes(kind: &str, sizes: &BTreeMap<&str, usize>) -> usize {
    let list = kind
        .strip_prefix('[')
        .and_then(|list| list.strip_suffix(']'));
    if let Some((one, count)) = list.and_then(|list| list.split_once("; ")) {
        let count = match count {
            "NAME" => plan::NAME,
            "PLAN_CONFIG" => plan::PLAN_CONFIG,
            "TABLES" => plan::TABLES,
            number => number.parse().expect("a number"),
        };
        return count * bytes(one, sizes);
    }
    match kind {
        "u8" => 1,
        "u16" => 2,
        "u32" => 4,
        "u64" => 8,
        part => *sizes
            .get(part)
            .unwrap_or_else(|| panic!("what is `{part}`?")),
    }
}
