//! What the profiler writes when QEMU ends.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use bulkhead_plugin::lock;

use crate::cpu::{Exit, Tally};
use crate::plugin::Profiler;
use crate::profile::{self, Boot, Cost, Figure, Longest, Periods, Profile, Visit};

impl Profiler {
    fn name(&self, symbol: u32) -> String {
        let symbol = usize::try_from(symbol)
            .ok()
            .and_then(|index| self.config.symbols.get(index));
        symbol.map_or_else(|| "?".to_owned(), |symbol| symbol.name.clone())
    }

    fn longest(&self, cpu: u64, exit: &Exit) -> Longest {
        let visit = |(symbol, instructions): &(u32, u64)| Visit {
            symbol: self.name(*symbol),
            instructions: *instructions,
        };
        Longest {
            kind: exit.kind.to_string(),
            cost: exit.cost,
            guest_pc: exit.guest_pc,
            esr: exit.esr,
            cpu,
            path: exit.path.iter().map(visit).collect(),
        }
    }

    fn figure(&self, tally: &Tally, figure: &mut Figure) {
        figure.cost.add(tally.cost);
        figure.exits += tally.exits;
        for (address, (symbol, count)) in &tally.addresses {
            *figure.addresses.entry(*address).or_default() += count;
            *figure.symbols.entry(self.name(*symbol)).or_default() += count;
        }
    }

    /// The accounts of all CPUs together.
    pub(crate) fn profile(&self) -> Profile {
        let mut profile = Profile::default();
        for (_, cpu) in lock(&self.cpus).iter() {
            let cpu = cpu.now();
            profile.total.add(cpu.total);
            for (kind, exits) in &cpu.exits {
                let sum = profile.exits.entry(kind.to_string()).or_default();
                sum.count += exits.count;
                sum.total += exits.total;
                sum.max = sum.max.max(exits.max);
            }
            for (kind, lengths) in &cpu.lengths {
                let sum = profile.lengths.entry(kind.to_string()).or_default();
                for (length, count) in lengths {
                    *sum.entry(*length).or_default() += count;
                }
            }
            for (id, tally) in &cpu.figures {
                let marked = lock(&self.marked).get(id).copied();
                let figures = match marked {
                    Some(key) if key != cpu.key => &mut profile.elsewhere,
                    _ => &mut profile.figures,
                };
                self.figure(tally, figures.entry(*id).or_default());
            }
            if let Some(exit) = &cpu.longest {
                let known = profile
                    .longest
                    .as_ref()
                    .map_or(0, |longest| longest.cost.instructions);
                if exit.cost.instructions > known {
                    profile.longest = Some(self.longest(cpu.key, exit));
                }
            }
            if let Some(row) = &cpu.longest_row {
                let known = profile.longest_row.as_ref();
                if row.instructions > known.map_or(0, |row| row.instructions) {
                    let exits = row.exits.iter();
                    profile.longest_row = Some(profile::Row {
                        instructions: row.instructions,
                        exits: exits.map(|(kind, n)| (kind.to_string(), *n)).collect(),
                    });
                }
            }
            if let Some(periods) = &cpu.periods {
                profile.periods = Some(periods.clone());
                let watched = cpu.lengths.iter();
                let watched = watched.map(|(kind, lengths)| (kind.to_string(), lengths.clone()));
                profile.watched = watched.collect();
            }
        }
        for ((id, vmid), count) in lock(&self.guests).iter() {
            let figure = profile.guests.entry(*id).or_default();
            *figure.entry(*vmid).or_default() += count.load(Ordering::Relaxed);
        }
        if self.config.period.is_some() {
            profile.periods.get_or_insert_with(Periods::default);
        }
        if self.config.boot.is_some() {
            let boot = lock(&self.boot);
            let mut symbols: BTreeMap<String, Cost> = BTreeMap::new();
            let mut addresses = BTreeMap::new();
            for (address, (symbol, cost)) in &boot.1 {
                symbols.entry(self.name(*symbol)).or_default().add(*cost);
                addresses.insert(*address, cost.instructions);
            }
            profile.boot = Some(Boot {
                symbols,
                addresses,
                ..boot.0.clone()
            });
        }
        profile
    }
}
