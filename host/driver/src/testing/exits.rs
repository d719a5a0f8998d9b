//! Exits as EL2 counts them, beside those that the profiler has seen.

use std::collections::BTreeMap;

use bulkhead_runner::profile::Profile;
use bulkhead_runner::run::console::Transcript;

/// Compares how many exits EL2 has counted with how many there were, as the profiler has seen them: an exit that a path forgets to count, or counts
/// twice, shows in no other way. VMs of these that EL2 has not reported, or that do not keep the board on, have still run when it was switched off,
/// and had more.
pub fn uncounted(
    vms: &[(String, bool)],
    transcript: &Transcript,
    profile: &Profile,
) -> Option<String> {
    // A report is of all lives until then, and one that is asked for on the way need not be whole.
    let mut most: BTreeMap<(&str, u16), u64> = BTreeMap::new();
    for table in &transcript.exits {
        let exits = most.entry((&table.vm, table.vcpu)).or_default();
        *exits = table.exits().max(*exits);
    }
    let counted: u64 = most.values().sum();
    let seen = profile.exits.iter().filter(|(kind, _)| *kind != "slice");
    let seen: u64 = seen.map(|(_, exits)| exits.count).sum();
    let reported = |name: &String| most.keys().any(|(vm, _)| vm == name);
    let all = vms
        .iter()
        .all(|(name, stays_on)| *stays_on && reported(name));
    let wrong = if all { counted != seen } else { counted > seen };
    wrong.then(|| format!("EL2 has counted {counted} exits, and there were {seen}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_runner::profile::Exits;

    #[test]
    fn exits_are_counted_each_once() {
        let row = |count: u64| format!("[el2]   uart {count} 400 400 400 400 0 0.1 1\r\n");
        let table = |vm: &str, count| format!("[el2] exits vm={vm} vcpu=0\r\n{}", row(count));
        let console = table("a", 3) + &table("b", 4) + &table("a", 5);
        let mut transcript = Transcript::default();
        transcript.push(console.as_bytes());
        let flaw = |vms: &[&str], seen: u64| {
            let kinds = [("irq 7", 1), ("sync EC 0x24", seen - 1), ("slice", 7)];
            let kinds = kinds.map(|(kind, count)| {
                let exits = Exits {
                    count,
                    ..Exits::default()
                };
                (kind.to_owned(), exits)
            });
            let profile = Profile {
                exits: kinds.into(),
                ..Profile::default()
            };
            let vms: Vec<_> = { vms.iter() }
                .map(|vm| ((*vm).to_owned(), *vm != "background"))
                .collect();
            uncounted(&vms, &transcript, &profile)
        };
        assert_eq!(flaw(&["a", "b"], 9), None);
        let forgotten = "EL2 has counted 9 exits, and there were 10";
        assert_eq!(flaw(&["a", "b"], 10).as_deref(), Some(forgotten));
        assert_eq!(flaw(&["a", "b", "c"], 10), None, "c has not been reported");
        assert_eq!(flaw(&["a", "b", "background"], 10), None);
        let twice = "EL2 has counted 9 exits, and there were 8";
        assert_eq!(flaw(&["a", "b", "c"], 8).as_deref(), Some(twice));
    }
}
