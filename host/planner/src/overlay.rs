//! Overlays that a description merges into the device tree of a guest (Devicetree Specification 0.4 has none of them;
//! Linux, Documentation/devicetree/overlay-notes.rst, and dtc, Documentation/dt-object-internal.txt).

use std::collections::BTreeSet;

use dtoolkit::fdt::Fdt;
use dtoolkit::model::overlay::OverlayApplier;
use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use dtoolkit::{Node, Property};

use bulkhead_model::board::{self, Entry, PlanError, Tree, intid};
use bulkhead_model::describe::{Code, Finding, Placed, VmSpec, nearest};

use super::file::File;
use super::store::Store;
use crate::guest_tree::GIC;

/// Longest name of a property, so of a label.
const LABEL: usize = 31;

/// Most bytes of a tree: what lies behind it in the RAM of a Linux begins there.
const MOST_BYTES: usize = 2 << 20;

/// An overlay: its name in the description, its bytes.
pub(super) type Overlay = (Placed<String>, File);

/// Reads the overlays of a VM; those that are not there yet are left out, which is reported.
pub(super) fn read(
    spec: &VmSpec,
    store: &mut Store,
    findings: &mut Vec<Finding>,
) -> Result<Vec<Overlay>, PlanError> {
    let mut overlays = Vec::new();
    for name in &spec.overlays {
        match store.file(name, findings) {
            Ok(Some(file)) => overlays.push((name.clone(), file)),
            Ok(None) | Err(PlanError::Description) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(overlays)
}

/// Merges overlays into the tree `dtb` of VM `vm`, one after the other; those that cannot be are reported and left out.
/// Warns if a merged one names memory or interrupts that the VM does not have.
pub(super) fn merge(
    dtb: Vec<u8>,
    vm: &str,
    overlays: &[Overlay],
    findings: &mut Vec<Finding>,
) -> Vec<u8> {
    let Ok(fdt) = Fdt::new(&dtb) else {
        return dtb;
    };
    if overlays.is_empty() {
        return dtb;
    }
    let mut merged = DeviceTree::from_fdt(&fdt);
    let known = Tree::new(fdt);
    for (name, file) in overlays {
        let before = merged.clone();
        label(&mut merged);
        if let Err(found) = apply(&mut merged, vm, name, file.bytes()) {
            findings.extend(found);
            merged = before;
            continue;
        }
        let bytes = merged.to_dtb();
        let tree = Fdt::new(&bytes).map(Tree::new);
        if let Some(why) = tree
            .as_ref()
            .map_or(Some("the result cannot be read"), |tree| {
                spoilt(&known, tree, bytes.len())
            })
        {
            findings.extend(broken(vm, name, why.to_owned()));
            merged = before;
        } else if let Ok(tree) = tree {
            claims(&known, &tree, vm, name, findings);
        }
    }
    merged.to_dtb()
}

/// Finding that a file is no overlay, or none that can be merged.
fn broken(vm: &str, name: &Placed<String>, why: String) -> Vec<Finding> {
    let what = format!(
        "`{}` cannot be merged into the device tree of `{vm}`",
        name.value
    );
    let finding = Finding::new(Code::OverlayBroken, what).at(name.span.clone(), why);
    vec![finding.help("make it with `dtc -@ -I dts -O dtb -o FILE.dtbo FILE.dtso`")]
}

/// Reason why a VM cannot be started with a merged tree, if there is one.
fn spoilt(known: &Tree, merged: &Tree, bytes: usize) -> Option<&'static str> {
    let seed = |tree: &Tree, name: &str| tree.find("/chosen").and_then(|chosen| chosen.bytes(name));
    if bytes > MOST_BYTES {
        return Some("the tree would be larger than 2 MiB");
    }
    let seeds = ["rng-seed", "kaslr-seed"];
    let changed = seeds
        .iter()
        .any(|name| seed(known, name) != seed(merged, name));
    changed.then_some("it changes a seed in /chosen, which EL2 fills in")
}

/// Merges one, or says what is wrong with it.
fn apply(
    merged: &mut DeviceTree,
    vm: &str,
    name: &Placed<String>,
    bytes: &[u8],
) -> Result<(), Vec<Finding>> {
    let broken = |why| broken(vm, name, why);
    let open = board::open(bytes.to_vec()).map_err(|why| broken(format!("it is {why}")))?;
    if !bytes.starts_with(&open) {
        let why = "a name in it is longer than 31 characters, or has letters that no name may have";
        return Err(broken(why.to_owned()));
    }
    let fdt = Fdt::new(&open).map_err(|why| broken(why.to_string()))?;
    let tree = Tree::new(fdt);
    let is_fragment = |entry: &&Entry| {
        let content = format!("{}/__overlay__", entry.path);
        let direct = entry.path.rfind('/') == Some(0);
        direct && tree.entries.iter().any(|inner| inner.path == content)
    };
    let fragments: Vec<&Entry> = tree.entries.iter().filter(is_fragment).collect();
    if fragments.is_empty() {
        return Err(broken(
            "it has no fragment: no node with `__overlay__`".to_owned(),
        ));
    }
    let mut found = labels(merged, &tree, vm, name);
    let targets = fragments
        .iter()
        .filter_map(|fragment| target(merged, fragment, vm, name));
    found.extend(targets);
    if !found.is_empty() {
        return Err(found);
    }
    number(merged, &tree);
    let mut applier = OverlayApplier::new(merged);
    applier
        .apply_overlay(&fdt)
        .map_err(|why| broken(why.to_string()))
}

/// Gives a phandle to the nodes whose labels the overlay refers to. The library would do so, with numbers that it also
/// gives to nodes of the overlay.
fn number(merged: &mut DeviceTree, overlay: &Tree) {
    let mut next = highest(&merged.root);
    let fixups = overlay.find("/__fixups__").into_iter();
    for fixup in fixups.flat_map(|node| node.node.properties()) {
        let label: &str = fixup.name();
        let symbols = merged.root.child("__symbols__");
        let path = symbols.and_then(|node| node.property(label)?.value_as::<&str>().ok());
        let path = path.map(str::to_owned);
        let node = path.and_then(|path| merged.find_node_mut(&path));
        let Some(node) = node.filter(|node| (**node).property("phandle").is_none()) else {
            continue;
        };
        next = next.saturating_add(1);
        if let Ok(property) = DeviceTreeProperty::new("phandle", next.to_be_bytes().to_vec()) {
            node.add_property(property);
        }
    }
}

/// The highest phandle at and below a node.
fn highest(node: &DeviceTreeNode) -> u32 {
    let own = node
        .property("phandle")
        .and_then(|one| one.value_as::<u32>().ok());
    let below = node.children().map(highest).max();
    own.max(below).unwrap_or(0)
}

/// Findings for labels that an overlay refers to and the tree does not have.
fn labels(merged: &DeviceTree, overlay: &Tree, vm: &str, name: &Placed<String>) -> Vec<Finding> {
    let symbols = merged.root.child("__symbols__");
    let known: Vec<String> = symbols
        .map(|node| node.properties().map(|one| one.name().to_owned()).collect())
        .unwrap_or_default();
    let Some(fixups) = overlay.find("/__fixups__") else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for fixup in fixups.node.properties() {
        let label: &str = fixup.name();
        if known.iter().any(|known| known == label) {
            continue;
        }
        // PATH:PROPERTY:OFFSET, several of them with zeros between.
        let place = String::from_utf8_lossy(fixup.value()).into_owned();
        let place = place.split('\0').next().unwrap_or_default();
        let mut parts = place.split(':');
        let node = parts.next().unwrap_or_default().to_owned();
        let property = parts.next().unwrap_or_default();
        let finding = Finding::new(
            Code::OverlayLabel,
            format!("the device tree of `{vm}` has no label `{label}`"),
        )
        .at(
            name.span.clone(),
            format!("{node} of it wants it (`{property}`)"),
        );
        let near = nearest(label, known.iter().map(String::as_str));
        found.push(finding.help(near.map_or_else(
            || format!("the labels are {}", known.join(", ")),
            |near| format!("did you mean `{near}`? the labels are {}", known.join(", ")),
        )));
    }
    found
}

/// Finding for a fragment whose target is wrong; labels are checked elsewhere.
fn target(
    merged: &DeviceTree,
    fragment: &Entry,
    vm: &str,
    name: &Placed<String>,
) -> Option<Finding> {
    let wrong = |what: String, why: String| {
        let finding = Finding::new(Code::OverlayTarget, what).at(name.span.clone(), why);
        Some(finding.help(format!("`bulkhead dtb FILE {vm}` shows the tree")))
    };
    let Some(path) = fragment.text("target-path") else {
        let why = format!("{} has neither `target` nor `target-path`", fragment.path);
        let stated = fragment.cell("target").is_some();
        return (!stated)
            .then(|| wrong("a fragment goes nowhere".to_owned(), why))
            .flatten();
    };
    if merged.find_node(&path).is_some() {
        return None;
    }
    wrong(
        format!("the device tree of `{vm}` has no node `{path}`"),
        format!("{} goes there", fragment.path),
    )
}

/// Gives every node a label: its name with `_` for what no label has, and `gic` and `console` besides.
fn label(tree: &mut DeviceTree) {
    let mut labels = Vec::new();
    let stdout = tree.root.child("chosen").and_then(|chosen| {
        let property = chosen.property("stdout-path")?;
        Some(property.value_as::<&str>().ok()?.to_owned())
    });
    labels.extend(stdout.map(|path| ("console".to_owned(), path)));
    collect(&tree.root, "", &mut labels);
    if tree.root.child("__symbols__").is_none() {
        tree.root
            .add_child(DeviceTreeNode::new("__symbols__").unwrap_or_default());
    }
    let Some(symbols) = tree.root.child_mut("__symbols__") else {
        return;
    };
    for (label, path) in labels {
        let known = symbols.properties().any(|one| one.name() == label);
        let value = [path.as_bytes(), b"\0"].concat();
        if let Ok(property) = DeviceTreeProperty::new(label, value)
            && !known
        {
            symbols.add_property(property);
        }
    }
}

/// The labels of all nodes below `node`, whose path is `above`.
fn collect(node: &DeviceTreeNode, above: &str, labels: &mut Vec<(String, String)>) {
    for child in node.children() {
        let name = child.name();
        let path = format!("{above}/{name}");
        if name.starts_with("__") {
            continue;
        }
        if child.property("interrupt-controller").is_some()
            && child
                .property("phandle")
                .is_some_and(|one| one.value() == GIC.to_be_bytes())
        {
            labels.push(("gic".to_owned(), path.clone()));
        }
        let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        labels.push((name.chars().map(letter).take(LABEL).collect(), path.clone()));
        collect(child, &path, labels);
    }
}

/// INTIDs of the GIC that a node names.
fn intids(entry: &Entry) -> Vec<u32> {
    let own = entry
        .cells("interrupts")
        .filter(|_| entry.interrupt_parent == Some(GIC));
    let own = own.unwrap_or_default();
    let extended = entry.cells("interrupts-extended").unwrap_or_default();
    let named = extended
        .chunks(4)
        .filter(|cells| cells.first() == Some(&GIC));
    let named = named.filter_map(|cells| intid(cells.get(1..)?));
    own.chunks(3).filter_map(intid).chain(named).collect()
}

/// Warns of registers and interrupts of new or changed nodes that the tree before, which is the VM's, does not have.
fn claims(
    known: &Tree,
    merged: &Tree,
    vm: &str,
    name: &Placed<String>,
    findings: &mut Vec<Finding>,
) {
    let ranges: Vec<(u64, u64)> = known
        .entries
        .iter()
        .flat_map(|entry| entry.registers.clone())
        .collect();
    let has = |base: u64, size: u64| {
        let end = base.saturating_add(size);
        ranges
            .iter()
            .any(|&(start, len)| start <= base && end <= start.saturating_add(len))
    };
    let interrupts: BTreeSet<u32> = known.entries.iter().flat_map(intids).collect();
    let mut warn = |code: Code, path: &str, what: String, help: &str| {
        let there = |one: &Finding| one.code == code && one.message == what;
        if findings.iter().any(there) {
            return;
        }
        let label = format!("{path} says so");
        findings.push(
            Finding::new(code, what)
                .at(name.span.clone(), label)
                .help(help),
        );
    };
    for entry in &merged.entries {
        for &(base, size) in entry
            .registers
            .iter()
            .filter(|(base, size)| *size > 0 && !has(*base, *size))
        {
            warn(
                Code::OverlayAddress,
                &entry.path,
                format!("`{vm}` has nothing at {base:#x}, {size:#x} bytes"),
                "an access there is a fault: give the VM a device, memory or [shared] there, and mind `ranges`",
            );
        }
        for intid in intids(entry)
            .into_iter()
            .filter(|intid| !interrupts.contains(intid))
        {
            warn(
                Code::OverlayInterrupt,
                &entry.path,
                format!("`{vm}` has no interrupt with INTID {intid}"),
                "it never comes: give the VM the device with `devices`",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    use bulkhead_model::describe::{self, Text};
    use bulkhead_model::failure::Failure;
    use bulkhead_model::payload::DebianPayload;

    use crate::Sources;

    /// Sources that are never asked: the VM names files only.
    struct Files;

    impl Sources for Files {
        fn guest(&self, name: &str) -> Result<Option<PathBuf>, Failure> {
            unreachable!("{name} is no file")
        }

        fn debian(&self, payload: DebianPayload) -> Result<Option<PathBuf>, Failure> {
            unreachable!("{payload:?} is no file")
        }
    }

    /// Device tree of a VM with these overlays, and the findings.
    fn planned(overlays: &str) -> (Vec<u8>, Vec<Finding>) {
        let source = format!(
            "[board]\ndtb = \"virt.dtb\"\n[vm.one]\nmemory = \"4MiB\"\nimage = \"raw.bin\"\nload = \"0x40080000\"\noverlay = {overlays}\n"
        );
        let text = Text {
            name: "../cli/tests/fixtures/one.toml".to_owned(),
            source: source.into(),
        };
        let mut findings = Vec::new();
        let system = describe::parse(&text, &mut findings);
        let board = board::load(&system, &|_| unreachable!("it has a tree"), &mut findings);
        let board = board.ok().expect("a board");
        let Ok(planned) = crate::plan(&system, board, None, &Files, &mut findings) else {
            panic!("{}", text.render(&findings, false));
        };
        let payloads = &planned.vms[0].payloads;
        let tree = payloads
            .iter()
            .find(|payload| payload.what == "device tree");
        let mut bytes = tree.expect("a tree").bytes.to_vec();
        let size = bytes[4..8]
            .try_into()
            .map(u32::from_be_bytes)
            .expect("four bytes");
        bytes.truncate(size as usize);
        (bytes, findings)
    }

    #[test]
    fn an_overlay_adds_nodes_and_properties_and_its_labels_lead_where_they_should() {
        let (dtb, findings) = planned("\"overlays/sensor.dtbo\"");
        assert!(findings.is_empty(), "{findings:?}");
        let fdt = Fdt::new(&dtb).expect("a tree");
        let tree = Tree::new(fdt);
        let sensor = tree.find("/sensor").expect("added");
        assert_eq!(sensor.cell("interrupt-parent"), Some(GIC));
        let supply = tree.find("/supply").expect("added");
        assert_eq!(sensor.cell("vcc-supply"), supply.cell("phandle"));
        let mut others = tree.entries.iter().filter(|entry| entry.path != "/supply");
        assert!(others.all(|entry| entry.cell("phandle") != supply.cell("phandle")));
        let chosen = tree.find("/chosen").expect("chosen");
        let console = tree.find(&chosen.text("stdout-path").expect("a console"));
        assert_eq!(
            console.and_then(|one| one.text("label")).as_deref(),
            Some("front panel")
        );
        // Seeds are where EL2 fills them in.
        assert_eq!(crate::guest_tree::places(&dtb).len(), 2);
    }

    #[test]
    fn what_a_vm_does_not_have_is_noticed_and_what_it_has_is_not() {
        let (_, findings) = planned("[\"overlays/sensor.dtbo\", \"overlays/claims.dtbo\"]");
        let said: Vec<&str> = findings.iter().map(|one| one.message.as_str()).collect();
        assert_eq!(
            said,
            [
                "`one` has nothing at 0x80000000, 0x1000000 bytes",
                "`one` has nothing at 0xfe000000, 0x1000 bytes",
                "`one` has no interrupt with INTID 109",
            ]
        );
        assert!(
            findings
                .iter()
                .all(|one| !one.is_error() && one.help.is_some())
        );
    }

    /// The second overlay finds what the first has brought by its label.
    #[test]
    fn overlays_are_merged_in_their_order() {
        let (dtb, _) = planned("[\"overlays/sensor.dtbo\", \"overlays/sensor.dtbo\"]");
        let fdt = Fdt::new(&dtb).expect("a tree");
        let symbols = fdt.find_node("/__symbols__").expect("labels");
        let supply = symbols.property("supply").expect("the overlay's own label");
        assert_eq!(supply.value(), b"/supply\0");
    }
}
