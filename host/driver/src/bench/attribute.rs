//! Attribution of the instructions of a figure: by function of the source, inlined ones told apart.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bulkhead_gates::Image;
use bulkhead_profiler::{Figure, Profile};

use bulkhead_model::failure::Failure;
use bulkhead_runner::profile::Program;

use super::subject::operations::FIGURES;

/// Text that attributes the figure `name` to functions and lines, those with most first; the longest exit in
/// the order of its path.
///
/// # Errors
///
/// There is no such figure in the profile, or EL2's ELF file can't be read.
pub(super) fn attribute(profile: &Profile, el2: &Program, name: &str) -> Result<String, Failure> {
    if name == "longest_exit" {
        return Ok(longest(profile));
    }
    if let (true, Some(boot)) = (is_boot(name), &profile.boot) {
        let symbols = boot.symbols.iter();
        let counted = Figure {
            cost: boot.cost,
            symbols: symbols
                .map(|(name, cost)| (name.clone(), cost.instructions))
                .collect(),
            addresses: boot.addresses.clone(),
            ..Figure::default()
        };
        return by_place(&counted, 1, el2, name);
    }
    let known = FIGURES.iter().find(|figure| figure.name == name);
    let counted = known.and_then(|figure| Some((figure, profile.figures.get(&figure.id)?)));
    let Some((known, counted)) = counted else {
        let names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
        let names = names.join(", ");
        let advice = format!(
            "these can be attributed: {names}, boot_to_guest, boot_own, boot_total, longest_exit"
        );
        return Err(Failure::input(
            format!("no figure `{name}` that was counted by address"),
            "",
            advice,
        ));
    };
    by_place(counted, known.operations * known.events, el2, name)
}

/// Text that attributes what was counted in so many events.
///
/// # Errors
///
/// EL2's ELF file can't be read.
pub(super) fn by_place(
    counted: &Figure,
    events: u32,
    el2: &Program,
    name: &str,
) -> Result<String, Failure> {
    let image = Image::parse(el2.bytes())
        .map_err(|error| Failure::failed("EL2 has no symbols to attribute to", error, ""))?;
    let mut functions: BTreeMap<String, (u64, BTreeMap<String, u64>)> = BTreeMap::new();
    for (address, count) in &counted.addresses {
        let lines = image.lines(*address);
        let line = lines.into_iter().next();
        let line = line.unwrap_or_else(|| format!("{} (assembly)", image.name(*address)));
        let function = line.split(" (").next().unwrap_or(&line).to_owned();
        let (sum, lines) = functions.entry(function).or_default();
        *sum += count;
        *lines.entry(line).or_default() += count;
    }
    let mut functions: Vec<_> = functions.into_iter().collect();
    functions.sort_by(|a, b| b.1.0.cmp(&a.1.0).then_with(|| a.0.cmp(&b.0)));
    let each = |count: u64| count as f64 / f64::from(events);
    let mut text = format!(
        "{name}: {:.3} instructions\n",
        each(counted.cost.instructions)
    );
    let mut linked: Vec<_> = counted.symbols.iter().collect();
    linked.sort_by(|a, b| b.1.cmp(a.1).then_with(|| a.0.cmp(b.0)));
    text.push_str("by function as linked:\n");
    for (function, sum) in linked {
        let _ = writeln!(text, "{:>9.3}  {function}", each(*sum));
    }
    text.push_str("by function of the source:\n");
    for (function, (sum, lines)) in functions {
        let _ = writeln!(text, "{:>9.3}  {function}", each(sum));
        for (line, count) in lines {
            let place = line
                .rsplit_once(" (")
                .map_or("", |(_, place)| place.trim_end_matches(')'));
            let _ = writeln!(text, "           {:>9.3}  {place}", each(count));
        }
    }
    Ok(text)
}

/// Whether a figure is of the way to the first guest, with copying and scrubbing or without.
fn is_boot(name: &str) -> bool {
    matches!(name, "boot_to_guest" | "boot_own" | "boot_total")
}

/// Whether a figure is of those that [`super::operations`] measures, or of its way to the first guest.
pub(super) fn is_operation(name: &str) -> bool {
    is_boot(name) || FIGURES.iter().any(|figure| figure.name == name)
}

/// The way of the longest exit, function by function.
fn longest(profile: &Profile) -> String {
    let Some(longest) = &profile.longest else {
        return String::new();
    };
    let (kind, pc) = (&longest.kind, longest.guest_pc);
    let mut text = format!("longest_exit: {kind} at guest pc {pc:#x}\n");
    for visit in &longest.path {
        let _ = writeln!(text, "{:>9}  {}", visit.instructions, visit.symbol);
    }
    text
}
