//! As many VMs as a plan holds: each payload is read once, and nothing of it is copied.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use bulkhead_abi::plan::MAX_VMS;
use bulkhead_core::plan::Plan;
use zerocopy::IntoBytes;

use bulkhead_model::describe::Text;
use bulkhead_planner::show;
use bulkhead_planner::{Planned, Reads};
use bulkhead_runner::Effort;
use bulkhead_runner::prepare::prepare_text;

/// A Linux Image of so many bytes, as far as its header goes.
fn kernel(size: usize) -> Vec<u8> {
    let mut image = vec![0x5a; size];
    image[8..16].fill(0);
    image[16..24].copy_from_slice(&(size as u64).to_le_bytes());
    image[24..32].fill(0);
    image[56..60].copy_from_slice(b"ARM\x64");
    image
}

/// Plans 64 VMs, eight on each CPU; every second one is a Linux with a RAM disk of two parts, the others run a program.
fn planned(folder: &Path) -> Planned {
    let mut disk = b"070701".to_vec();
    disk.resize(5001, 0);
    let raw = Path::new("tests/fixtures/raw.bin");
    for (name, bytes) in [
        ("kernel", kernel(300_001)),
        ("disk", disk.clone()),
        ("more", disk),
        ("raw", fs::read(raw).expect("a fixture")),
    ] {
        fs::write(folder.join(name), bytes).expect("a folder to write to");
    }
    let mut source = "[board]\nname = \"qemu-virt\"\ncpus = 8\nmemory = \"2GiB\"\n".to_owned();
    for number in 0..MAX_VMS {
        let runs = if number % 2 == 0 {
            "kernel = \"kernel\"\ninitrd = [\"disk\", \"more\"]\n"
        } else {
            "image = \"raw\"\nload = \"0x40080000\"\n"
        };
        let _ = write!(
            source,
            "[vm.v{number}]\nmemory = \"16MiB\"\npcpus = [{}]\n{runs}",
            number / 8
        );
    }
    let text = Text {
        name: folder.join("many.toml").display().to_string(),
        source: source.into(),
    };
    match prepare_text(text, Effort::WhatIsThere) {
        Ok(prepared) => prepared.planned,
        Err(stopped) => panic!("{}", bulkhead_model::failure::Failure::from(stopped)),
    }
}

#[test]
fn many_vms_read_each_payload_once_and_share_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let planned = planned(folder.path());
    let sizes = ["kernel", "disk", "more", "raw"].map(|name| {
        let file = fs::metadata(folder.path().join(name));
        file.expect("just written").len()
    });
    // One kernel, and one RAM disk of two files; a raw program is as it is.
    let expected = Reads {
        files: 4,
        bytes: sizes.iter().sum(),
        understood: 2,
    };
    assert_eq!(planned.reads, expected, "for {MAX_VMS} VMs");
    for what in ["kernel", "initial RAM disk", "program"] {
        let payloads = planned.vms.iter().flat_map(|vm| &vm.payloads);
        let payloads: Vec<_> = payloads.filter(|payload| payload.what == what).collect();
        assert_eq!(payloads.len(), MAX_VMS / 2, "{what}");
        for payload in &payloads {
            assert!(
                Arc::ptr_eq(&payload.bytes, &payloads[0].bytes),
                "{what}: a copy"
            );
            assert_eq!(
                payload.offset, payloads[0].offset,
                "{what}: twice in the image"
            );
        }
    }
}

#[test]
fn the_plan_of_many_vms_is_proven_and_listed_by_keys() {
    let folder = tempfile::tempdir().expect("a folder");
    let planned = planned(folder.path());
    let (words, _) = planned.bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let plan = Plan::open(words.as_bytes()).expect("a plan");
    assert_eq!(plan.check(), Ok(()));
    assert_eq!((plan.vms.len(), plan.vcpus.len()), (MAX_VMS, MAX_VMS));
    let text = show::text(&planned);
    for line in [
        "         fair    v0, v1, v2, v3, v4, v5, v6 and v7: each weight 1, 12.50 % while all others here want theirs",
        "    1  v0      16 MiB  general        CPU 0",
        "    9  v8      16 MiB  general        CPU 1",
        "  010  v9      16 MiB  general        CPU 1",
        "  064  v63     16 MiB  general        CPU 7",
    ] {
        assert!(text.lines().any(|said| said == line), "{line}\n{text}");
    }
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(120), "{widest:?}\n{text}");
}
