//! Descriptions: whatever the file says, the tool plans it or says what is wrong with it.

use std::path::{Path, PathBuf};

use bulkhead_model::describe::Text;
use bulkhead_planner::Planned;
use bulkhead_runner::Effort;
use bulkhead_runner::prepare::{Stopped, prepare_text};

use bulkhead_fuzz::Target;

/// This target.
pub const TARGET: Target = Target {
    name: "description",
    seeds,
    // No board by name and no payload by name: those start other programs.
    words: &[
        "[vm.x]\n",
        "[shared.x]\n",
        "[board]\n",
        "memory = ",
        "image = ",
        "\"1MiB\"",
        "\"0\"",
        "4KiB",
        "\"raw.bin\"",
        "class = ",
        "\"hard\"",
        "\"soft\"",
        "\"general\"",
        "pcpus = ",
        "devices = [",
        "\"/pl061@9030000\"",
        "ipa = ",
        "load = ",
        "\"0x40080000\"",
        "\"0x70000000\"",
        "vms = { a = \"rw\" }",
        "size = ",
        "[console]\n",
        "service = ",
        "= ",
        "{",
        "}",
        "[[",
        "]]",
        "\n",
        "-1",
        "1_000",
        "0x",
        "1e9",
        "true",
        "\\u0000",
        "é",
    ],
    run,
};

/// Folder of the device tree and of payloads.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../host/cli/tests/fixtures")
}

const BOARD: &str = "[board]\ndtb = \"virt.dtb\"\n";

fn seeds() -> Vec<Vec<u8>> {
    let vms = [
        "[vm.a]\nmemory = \"2MiB\"\nimage = \"raw.bin\"\nload = \"0x40080000\"\n",
        "[vm.a]\nmemory = \"4MiB\"\nimage = \"raw.bin\"\nload = \"0x40080000\"\npcpus = [0]\n[vm.b]\nmemory = \"2MiB\"\nimage = \"raw.bin\"\nload = \"0x40080000\"\n\
         [shared.page]\nsize = \"4KiB\"\nipa = \"0x70000000\"\nvms = { a = \"rw\", b = \"r\" }\n[console]\nservice = 1\n",
        "[vm.a]\nmemory = \"2MiB\"\nimage = \"raw.bin\"\nload = \"0x40080000\"\ndevices = [\"/pl061@9030000\"]\n",
    ];
    vms.iter()
        .map(|vms| format!("{BOARD}{vms}").into_bytes())
        .collect()
}

/// Plans a text; `None` if it is refused.
pub fn plan(source: &str) -> Option<Planned> {
    let text = Text {
        name: folder().join("fuzz.toml").display().to_string(),
        source: source.into(),
    };
    match prepare_text(text, Effort::WhatIsThere) {
        Ok(prepared) => Some(prepared.planned),
        Err(Stopped::Description(text, findings)) => {
            assert!(
                findings.iter().any(|finding| finding.is_error()),
                "refused without an error"
            );
            assert!(!text.render(&findings, false).is_empty());
            None
        }
        Err(Stopped::Failure(failure)) => {
            let words = failure.to_string();
            assert!(!words.contains("internal error"), "{words}");
            None
        }
    }
}

/// The plans of the seeds.
pub fn seed_plans() -> Vec<Planned> {
    let texts = seeds();
    texts
        .iter()
        .filter_map(|text| plan(&String::from_utf8_lossy(text)))
        .collect()
}

fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    // A board by name would start QEMU, a payload by name cargo.
    if ["name", "guest", "debian", "/dev", "/proc"]
        .iter()
        .any(|word| text.contains(word))
    {
        return;
    }
    plan(&text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_planned() {
        assert_eq!(seed_plans().len(), seeds().len());
    }
}
