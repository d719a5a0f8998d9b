//! `bulkhead mutants`: plants defects in EL2 and sees whether a system test fails.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;

use bulkhead_cli::cmd::mutants::Args;
use bulkhead_model::checkout;
use bulkhead_model::failure::{Failure, Outcome};

use crate::mutants::{Bench, Fate, Mutant, Source, Tables, Told, Work, draw, mutants, sources};
use crate::testing::{RunCost, trial_tests};

/// Number of mutants that are drawn if the command line does not say it.
const SAMPLE: usize = 10;

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    act(&args).unwrap_or_else(Failure::report)
}

fn act(args: &Args) -> Result<Outcome, Failure> {
    let root = checkout::root();
    let mut tables = Tables::load(&root)?;
    let sources = sources(&root, &tables)?;
    let all = mutants(&sources)?;
    let mut chosen = named(args, &sources, &all)?;
    if !args.only.is_empty() {
        chosen.retain(|mutant| {
            let line = mutant.to_string();
            args.only.iter().any(|text| line.contains(text))
        });
    }
    if args.new {
        chosen.retain(|mutant| tables.killer(mutant).is_none() && tables.why(mutant).is_none());
    }
    if args.known {
        chosen.retain(|mutant| tables.killer(mutant).is_some());
    }
    let few =
        args.files.is_empty() && args.only.is_empty() && !(args.all || args.known || args.list);
    if let Some(count) = args.sample.or(few.then_some(SAMPLE)) {
        chosen = draw(chosen, count, args.seed);
    }
    if args.list {
        if args.json {
            println!("{}", json!({ "mutants": chosen }));
        } else {
            for mutant in &chosen {
                println!("{mutant}");
            }
            println!("{} mutants", chosen.len());
        }
        return Ok(Outcome::Done);
    }
    let work = chosen.into_iter().map(|mutant| {
        let killer = tables.killer(&mutant).filter(|_| args.known);
        let tests = match killer {
            Some(test) => vec![test.to_owned()],
            None => tables.tests(&mutant.file).to_vec(),
        };
        Work { mutant, tests }
    });
    let work: Vec<Work> = work.collect();
    let tests = trial_tests(&root)?;
    let say = |text: String| match args.json {
        true => eprintln!("{text}"),
        false => println!("{text}"),
    };
    let mut bench = Bench::new(root.clone(), &tests, &sources);
    let mut unwritten = Ok(());
    let fates = bench.run(&work, args.jobs.max(1), &mut |told| match told {
        Told::Unchanged(name, RunCost { cpu_time, .. }) => say(format!(
            "as it is   {name}: {:.1} s of CPU time",
            cpu_time.as_secs_f32()
        )),
        Told::Tried(mutant, fate) => {
            say(line(mutant, fate, &tables));
            if args.record {
                // Each at once: whoever ends a long run keeps what it has found.
                match fate {
                    Fate::Killed { by, .. } => tables.note(mutant, Some(by)),
                    Fate::Undecided { .. } => {}
                    _ => tables.note(mutant, None),
                }
                unwritten = tables.write_killed(&root, &all);
            }
        }
    })?;
    unwritten?;
    let tried: Vec<_> = work.iter().map(|work| &work.mutant).zip(&fates).collect();
    let unexplained = |(mutant, fate): &&(&Mutant, &Fate)| {
        **fate == Fate::Survived && tables.why(mutant).is_none()
    };
    let survived = tried.iter().filter(unexplained).count();
    if args.json {
        println!("{}", document(&tried, &tables));
    } else {
        print!("{}", table(&tried, &tables));
    }
    Ok(match survived {
        0 => Outcome::Done,
        _ => Outcome::Failed,
    })
}

/// Returns the mutants of the files and folders that were named; all if none was.
fn named(args: &Args, sources: &[Source], all: &[Mutant]) -> Result<Vec<Mutant>, Failure> {
    let is_in = |file: &str, name: &str| {
        let rest = file.strip_prefix(name.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    for name in &args.files {
        if !sources.iter().any(|source| is_in(&source.file, name)) {
            let what = format!("no mutant is made in `{name}`");
            let advice =
                "name files or folders of el2/src or core/src, from the root of the checkout";
            return Err(Failure::input(what, "", advice));
        }
    }
    let wanted = |mutant: &&Mutant| {
        args.files.is_empty() || args.files.iter().any(|name| is_in(&mutant.file, name))
    };
    Ok(all.iter().filter(wanted).cloned().collect())
}

fn line(mutant: &Mutant, fate: &Fate, tables: &Tables) -> String {
    match fate {
        Fate::Unviable => format!("unviable   {mutant}"),
        Fate::Equal => format!("equal      {mutant}"),
        Fate::Killed { by, how } => format!("killed     {mutant}\n           {by}: {how}"),
        Fate::Survived => match tables.why(mutant) {
            Some(why) => format!("survived   {mutant}\n           {why}"),
            None => format!("SURVIVED   {mutant}"),
        },
        Fate::Undecided { why } => format!("undecided  {mutant}\n           {why}"),
    }
}

/// Number of mutants of each fate.
#[derive(Debug, Default, Serialize)]
struct Count {
    mutants: usize,
    unviable: usize,
    equal: usize,
    killed: usize,
    explained: usize,
    survived: usize,
    undecided: usize,
}

impl Count {
    fn add(&mut self, fate: &Fate, is_explained: bool) {
        self.mutants += 1;
        *match fate {
            Fate::Unviable => &mut self.unviable,
            Fate::Equal => &mut self.equal,
            Fate::Killed { .. } => &mut self.killed,
            Fate::Survived if is_explained => &mut self.explained,
            Fate::Survived => &mut self.survived,
            Fate::Undecided { .. } => &mut self.undecided,
        } += 1;
    }

    /// Number of mutants of which something is known, and that are other programs.
    const fn viable(&self) -> usize {
        self.killed + self.explained + self.survived
    }

    fn row(&self, name: &str) -> String {
        let rate = match self.viable() {
            0 => String::new(),
            viable => format!("{:.0} %", self.killed as f64 * 100.0 / viable as f64),
        };
        let Self {
            mutants,
            unviable,
            equal,
            killed,
            explained,
            survived,
            undecided,
        } = self;
        let viable = self.viable();
        format!(
            "{name:34} {mutants:>7} {unviable:>8} {equal:>5} {undecided:>9} {viable:>6} {killed:>6} {rate:>5} {explained:>9} {survived:>8}\n"
        )
    }
}

fn counts<'a>(tried: &[(&'a Mutant, &Fate)], tables: &Tables) -> (BTreeMap<&'a str, Count>, Count) {
    let mut files: BTreeMap<&str, Count> = BTreeMap::new();
    let mut all = Count::default();
    for (mutant, fate) in tried {
        let is_explained = tables.why(mutant).is_some();
        let count = files.entry(&mutant.file).or_default();
        count.add(fate, is_explained);
        all.add(fate, is_explained);
    }
    (files, all)
}

fn table(tried: &[(&Mutant, &Fate)], tables: &Tables) -> String {
    let (files, all) = counts(tried, tables);
    let mut text = format!(
        "\n{:34} {:>7} {:>8} {:>5} {:>9} {:>6} {:>6} {:>5} {:>9} {:>8}\n",
        "file",
        "mutants",
        "unviable",
        "equal",
        "undecided",
        "viable",
        "killed",
        "",
        "explained",
        "survived"
    );
    for (file, count) in &files {
        text.push_str(&count.row(file));
    }
    if files.len() > 1 {
        text.push_str(&all.row("all"));
    }
    text
}

fn document(tried: &[(&Mutant, &Fate)], tables: &Tables) -> serde_json::Value {
    let (files, all) = counts(tried, tables);
    let mutants: Vec<_> = tried
        .iter()
        .map(|(mutant, fate)| {
            let mut entry = json!(mutant);
            let more = json!({ "result": fate, "why": tables.why(mutant) });
            if let (Some(entry), Some(more)) = (entry.as_object_mut(), more.as_object()) {
                entry.extend(more.clone());
            }
            entry
        })
        .collect();
    json!({ "all": all, "files": files, "mutants": mutants })
}
