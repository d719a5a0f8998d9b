//! Plans of VMs and of an EL2 that keep to colours.

use std::collections::BTreeSet;

use bulkhead_abi::plan::{ALL_COLOURS, PAGE, Profile, RegionKind};
use bulkhead_core::plan::page_of;
use bulkhead_planner::show;

use super::{planned, with_plan};

#[test]
fn parts_of_the_cache_are_the_first_colours_that_nobody_names() {
    with_plan(&planned("cache.toml"), |plan| {
        let ram = |region: &&bulkhead_abi::plan::Region| region.kind == RegionKind::Ram as u16;
        let colours = plan.regions.iter().filter(ram);
        // 16 of them are repeated in the 64 bits of a region.
        let colours: Vec<u64> = colours.map(|region| region.colours & 0xffff).collect();
        // 0, 1, 3 and 4; 2, 6 and 7; 5 and 8 to 14; 15.
        assert_eq!(colours, [0x001b, 0x00c4, 0x7f20, 0x8000]);
    });
}

#[test]
fn who_is_in_two_caches_has_the_same_part_of_both() {
    let planned = planned("clusters.toml");
    with_plan(&planned, |plan| {
        let caches: Vec<_> = plan
            .pcpus
            .iter()
            .map(|pcpu| (pcpu.cache, pcpu.cache_level, pcpu.colours))
            .collect();
        assert_eq!(caches, [(0, 2, 16), (1, 2, 8)]);
        let ram = |region: &&bulkhead_abi::plan::Region| region.kind == RegionKind::Ram as u16;
        let colours = plan.regions.iter().filter(ram);
        let colours: Vec<u64> = colours.map(|region| region.colours & 0xffff).collect();
        // EL2 has the first of eight. Both others have half of their own cache, of the same colours, and leave the same two of eight.
        assert_eq!(plan.header.image.colours & 0xffff, 0x0101);
        assert_eq!(colours, [0x1e1e, 0x1e1e, 0x6060]);
    });
    let text = show::text(&planned);
    let line = "  CPU 0 has a cache of 16 colours\n  CPU 1 has a cache of 8 colours\n";
    assert!(text.contains(line), "{text}");
    let cpus = &show::json(&planned)["cpus"];
    assert_eq!(
        (&cpus[1]["cache"]["number"], &cpus[1]["cache"]["colours"]),
        (&1.into(), &8.into())
    );
}

#[test]
fn who_serves_vms_with_colours_has_tables_for_each_of_their_pages() {
    with_plan(&planned("colours-served.toml"), |plan| {
        // That nobody's RAM lies in the image, for which they were forgotten, the planner has proven.
        // A table of pages maps 2 MiB.
        assert!(plan.service_threads()[0].pages > 2 * 768 / 2);
        // One VM's stage-2 tables lie among the other's.
        let roots: Vec<u64> = plan.vms.iter().map(|vm| vm.s2_root / 4096 % 16).collect();
        assert_eq!(roots, [0, 7, 14]);
    });
    // What colours cost: tables that map 2 MiB each in place of blocks; 12 instructions for each page; seven colours of sixteen.
    let planned = planned("colours-served.toml");
    let text = show::text(&planned);
    let line = "colours    cost 384 pages of tables more, an entry of the TLB for each page, 2359296 instructions more at most at each start; its pages lie in ";
    assert!(text.contains(line), "{text}");
    let cost = &show::json(&planned)["vms"][0]["colours"];
    assert_eq!(
        (&cost["tables"], &cost["hint"]),
        (&384.into(), &false.into())
    );
    let span = cost["span"].as_u64().expect("bytes");
    assert!((768..800).contains(&((span * 7 / 16) >> 20)), "{span}");
}

#[test]
fn el2_keeps_to_its_colours_and_tables_of_vms_lie_among_its_pages() {
    const OWN: u64 = 0x0240_0240_0240_0240;
    let planned = planned("el2-colours.toml");
    with_plan(&planned, |plan| {
        let image = &plan.header.image;
        assert_eq!(image.colours, OWN);
        let mut tables = Vec::new();
        let parts = plan.page_pool::<{ Profile::Managed as u32 }>(|_, place| tables.push(*place));
        let parts = parts.expect("it was proven");
        let (state, service) = plan.service_of(&parts, 0).expect("there is one");
        let devices = plan.virtio_devices().len() as u64;
        assert!(devices > 2);
        assert_eq!(
            (parts.virtio.size / PAGE, parts.registers.size / PAGE),
            (devices, devices)
        );
        // Nobody caches these.
        assert_eq!(parts.registers.colours, ALL_COLOURS);
        let own = [parts.threads, parts.virtio, state, service, parts.image];
        let mut seen = BTreeSet::new();
        for (part, colours) in own.iter().map(|part| (part, OWN)).chain(
            tables
                .iter()
                .chain([&parts.registers])
                .map(|table| (table, table.colours)),
        ) {
            for n in 0..part.size / PAGE {
                let page = page_of(part, n) / PAGE;
                assert_ne!(colours >> (page % 64) & 1, 0, "{page:#x} is in its colour");
                assert!(page * PAGE < image.size && page * PAGE >= image.page_pool_offset);
                assert!(seen.insert(page), "{page:#x} is somebody else's, too");
            }
        }
        assert_eq!(
            parts.image.size / PAGE,
            (image.plan_offset + plan.header.size).div_ceil(PAGE)
        );
        // Among those of EL2.
        assert!(tables[0].pa == parts.threads.pa && tables[0].colours & OWN == 0);
    });
    let text = show::text(&planned);
    assert!(
        text.contains("\nEL2 keeps to colours 6, 9 of 16: it copies "),
        "{text}"
    );
    assert_eq!(show::json(&planned)["image"]["colours"], "6, 9 of 16");
    let bytes = show::bytes::read(&planned.bytes).expect("a plan");
    assert_eq!(bytes["image"]["colours"], "6, 9 of 16");
}
