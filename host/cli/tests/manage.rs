//! Plans of systems in which VMs manage others.

use std::path::Path;

use bulkhead_abi::control::right;
use bulkhead_abi::plan::{
    ACCESS_READ, Profile, RegionKind, VIRTIO_NO_CONSOLE, VM_LOCKED, VM_WAITS,
};
use bulkhead_abi::shared_page::stop;
use bulkhead_core::plan::Plan;
use bulkhead_core::virtio::ports::{MULTIPORT, WITH_CONTROL};
use bulkhead_model::describe::Text;
use bulkhead_planner::{Planned, show};
use bulkhead_runner::Effort;
use bulkhead_runner::prepare::prepare_text;
use dtoolkit::fdt::Fdt;
use dtoolkit::{Node, Property};

const FIXTURE: &str = "tests/fixtures/good/manage.toml";

/// The plan of the fixture with a part of it replaced.
fn with(part: &str, other: &str) -> Planned {
    let source = std::fs::read_to_string(FIXTURE).expect("a description");
    assert!(source.contains(part), "{part}");
    let text = Text {
        name: Path::new(FIXTURE).display().to_string(),
        source: source.replace(part, other).into(),
    };
    match prepare_text(text, Effort::WhatIsThere) {
        Ok(prepared) => prepared.planned,
        Err(stopped) => panic!("{}", bulkhead_model::failure::Failure::from(stopped)),
    }
}

/// Runs a test on the bytes of a plan, of which core's own proof finds nothing wrong.
fn with_plan(planned: &Planned, test: impl FnOnce(Plan)) {
    let words = planned.bytes.as_chunks::<8>().0.iter();
    let words: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
    let plan = Plan::open(zerocopy::IntoBytes::as_bytes(&words[..])).expect("a plan");
    assert_eq!(plan.check(), Ok(()));
    test(plan);
}

#[test]
fn rights_are_those_of_the_file_and_a_locked_vm_keeps_its_own() {
    with_plan(&with("memory", "memory"), |plan| {
        assert_eq!(plan.header.image.profile, Profile::Managed as u32);
        let pause = right::LIST | right::PAUSE;
        assert_eq!(plan.right(0, 0), pause);
        assert_eq!(plan.right(0, 1), pause | right::START | right::STOP);
        assert_eq!(
            plan.right(0, 2),
            right::LIST | right::STATS,
            "`*` gives no more"
        );
        assert_eq!(plan.rights().len(), 3);
        let flags = plan.vms.iter().map(|vm| vm.flags & (VM_WAITS | VM_LOCKED));
        assert!(flags.eq([0, VM_WAITS, VM_LOCKED]));
    });
}

#[test]
fn a_manager_has_the_control_port_and_a_console_where_it_asks_for_one() {
    let device = |planned: &Planned| {
        let mut found = None;
        with_plan(planned, |plan| {
            let [device] = plan.virtio_devices() else {
                panic!("one device");
            };
            assert_eq!((device.vm, plan.virtqueues().len()), (0, WITH_CONTROL));
            assert_ne!(device.features & MULTIPORT, 0);
            found = Some(device.flags);
        });
        found
    };
    assert_eq!(device(&with("memory", "memory")), Some(VIRTIO_NO_CONSOLE));
    let both = with(
        "class = \"management\"",
        "class = \"management\"\nconsole = \"virtio\"",
    );
    assert_eq!(device(&both), Some(0));
    let none = with("class = \"management\"", "console = \"none\"");
    assert_eq!(device(&none), Some(VIRTIO_NO_CONSOLE));
}

#[test]
fn the_plan_says_who_manages_whom() {
    let planned = with("memory", "memory");
    let text = show::text(&planned);
    for line in [
        "  control    virtio-console without port 0, served by EL2",
        "  manages    boss: list, pause",
        "  manages    waits: list, start, stop, pause",
        "  manages    locked: list, stats",
        "  start      when somebody starts it",
        "  locked     no manager stops, pauses, restarts or changes it",
        "EL2's profile is managed: a VM manages others",
    ] {
        assert!(text.contains(line), "`{line}` is not in\n{text}");
    }
    let json = show::json(&planned);
    let vms = &json["vms"];
    assert_eq!(vms[0]["manages"][1]["vm"], "waits");
    let words = serde_json::json!(["list", "start", "stop", "pause"]);
    assert_eq!(vms[0]["manages"][1]["rights"], words);
    let starts = [0, 1, 2].map(|vm| vms[vm]["autostart"] == true);
    assert_eq!(starts, [true, false, true]);
    assert_eq!(
        (&vms[0]["locked"], &vms[2]["locked"]),
        (&false.into(), &true.into())
    );
}

/// The device tree of a VM that is asked to stop in some way.
fn tree(stop: &str) -> (Planned, Vec<u8>) {
    let waits = "autostart = false";
    let planned = with(waits, &format!("{waits}\nstop = {stop}"));
    let vm = &planned.vms[1];
    let mut payloads = vm.payloads.iter();
    let tree = payloads
        .find(|payload| payload.ipa == vm.tree)
        .expect("a tree");
    // Its own size, without what stands behind it.
    let size: [u8; 4] = tree.bytes[4..8].try_into().expect("four");
    let bytes = tree.bytes[..u32::from_be_bytes(size) as usize].to_vec();
    (planned, bytes)
}

#[test]
fn a_vm_that_is_asked_by_the_power_key_has_one() {
    let (planned, dtb) = tree("\"power-key\"");
    let mut intid = 0;
    with_plan(&planned, |plan| {
        let [stop] = plan.stops() else {
            panic!("one VM is asked");
        };
        assert_eq!((stop.vm, stop.timeout, stop.word), (1, 60_000, 0));
        assert!(u32::from(stop.vintid) < 32 + plan.vms[1].spis);
        intid = u32::from(stop.vintid);
    });
    let fdt = Fdt::new(&dtb).expect("a sound tree");
    let path = format!("/gpio-keys-{intid}");
    let keys = fdt.find_node(&path).expect("keys");
    let words = keys.property("compatible").expect("words").value().to_vec();
    assert_eq!(words, b"gpio-keys\0");
    let key = fdt.find_node(&format!("{path}/power")).expect("a key");
    let cells = |name: &str| -> Vec<u32> {
        let value = key.property(name).expect(name).value().to_vec();
        { value.as_chunks().0.iter() }
            .map(|cell| u32::from_be_bytes(*cell))
            .collect()
    };
    assert_eq!(cells("linux,code"), [116]);
    assert_eq!(cells("interrupts"), [0, intid - 32, 1]);
    assert_eq!(cells("debounce-interval"), [0]);
    let text = show::text(&planned);
    let line = format!("  stop       asked by the power key, INTID {intid}; has 60 s for it");
    assert!(text.contains(&line), "{text}");
    assert_eq!(show::json(&planned)["vms"][1]["stop"]["vintid"], intid);
    assert!(show::json(&planned)["vms"][0]["stop"].is_null());
}

#[test]
fn a_vm_that_is_asked_by_a_word_maps_its_page_and_knows_where_it_is() {
    let (planned, dtb) = tree("{ by = \"word\", timeout = \"10500us\" }");
    let mut page = 0;
    with_plan(&planned, |plan| {
        let [stop] = plan.stops() else {
            panic!("one VM is asked");
        };
        // Whole milliseconds, and not fewer than were asked for.
        assert_eq!((stop.vm, stop.vintid, stop.timeout), (1, 0, 11));
        page = stop.word;
        let kind = RegionKind::StopWord as u16;
        let mapped: Vec<_> = { plan.regions.iter() }
            .filter(|region| region.kind == kind)
            .map(|region| (region.vm, region.ipa, region.access))
            .collect();
        assert_eq!(mapped, [(1, page, ACCESS_READ)]);
    });
    let word = page + stop::WORD;
    let fdt = Fdt::new(&dtb).expect("a sound tree");
    let node = fdt.find_node(&format!("/stop@{word:x}")).expect("a word");
    let reg = node.property("reg").expect("a place").value().to_vec();
    assert_eq!(reg, [word.to_be_bytes(), 8u64.to_be_bytes()].concat());
    let text = show::text(&planned);
    let line = format!("  stop       asked by the word at IPA {word:#x}; has 11 ms for it");
    assert!(text.contains(&line), "{text}");
}
