//! `bulkhead interference`: what VMs do to each other through the shared cache.

use bulkhead_cli::cmd::interference::{Args, Caches};
use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_plugin::caches::Geometry;
use bulkhead_runner::temp_files;

use crate::interference::{
    BAO, Lab, Latency, OnHardware, PERIOD, Run, WORKS, Work, latencies, measure, svg, table,
};

/// The JSON document.
#[derive(serde::Serialize)]
struct Document<'a> {
    caches: Geometry,
    runs: &'a [Run],
    latencies: &'a [Latency],
    /// The same experiment on a board.
    on_hardware: OnHardware,
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    match show(&args) {
        Ok(()) => Outcome::Done,
        Err(failure) => failure.report(),
    }
}

fn show(args: &Args) -> Result<(), Failure> {
    let works = named(&args.work)?;
    let geometry = match args.caches {
        Caches::CortexA53 => Geometry::CORTEX_A53,
        Caches::CortexA72 => Geometry::CORTEX_A72,
    };
    let runs = match args.linux {
        true => Lab::new(geometry)?.linux()?,
        false => measure(&works, geometry)?,
    };
    // Unless only some works are asked for.
    let usual = (args.work.is_empty() && !args.linux).then_some(PERIOD);
    let period = args.timer.or(usual);
    let timer = match period {
        Some(period) => Lab::new(geometry)?.latencies(period)?,
        None => Vec::new(),
    };
    if let Some(path) = &args.svg {
        temp_files::write(path, svg(&runs).as_bytes()).map_err(|error| {
            Failure::environment(format!("cannot write {}", path.display()), error, "")
        })?;
    }
    if args.json {
        let text = serde_json::to_string_pretty(&Document {
            caches: geometry,
            runs: &runs,
            latencies: &timer,
            on_hardware: BAO,
        })
        .map_err(|error| Failure::failed("the runs make no JSON", error, ""))?;
        println!("{text}");
    } else {
        print!("{}", table(&runs));
        if let Some(period) = period {
            print!("\n{}", latencies(&timer, period));
        }
        print!("\n{}", BAO.text());
    }
    Ok(())
}

/// Works by name, in the order in which they are known; all if none is named.
fn named(names: &[String]) -> Result<Vec<Work>, Failure> {
    let known = || WORKS.map(|work| work.name).join(", ");
    if let Some(name) = names
        .iter()
        .find(|name| WORKS.iter().all(|work| work.name != **name))
    {
        let advice = format!("there are {}", known());
        return Err(Failure::input(format!("no work `{name}`"), "", advice));
    }
    let wanted = |work: &Work| names.is_empty() || names.iter().any(|name| name == work.name);
    Ok(WORKS.into_iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn works_are_found_by_name() {
        assert_eq!(named(&[]).unwrap().len(), WORKS.len());
        let names = ["susan-small", "qsort-large"].map(str::to_owned);
        let found: Vec<_> = named(&names)
            .unwrap()
            .iter()
            .map(|work| work.name)
            .collect();
        assert_eq!(found, ["qsort-large", "susan-small"]);
        assert!(named(&["qsort".to_owned()]).is_err());
    }
}
