//! A sample of the mutants that are known to die: each has to die again.

use crate::mutants::{self, Bench, Fate, Tables, Work};

use super::suite::{Context, Job, Test};
use super::trial_tests;

/// Number of mutants that are drawn.
const COUNT: usize = 3;

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let claim = "Defects planted in EL2 are noticed: mutants drawn by what its sources are, from those that a test has \
                 killed, are killed by it again.";
    let job: Job = Box::new(sample);
    vec![Test::parallel("mutants/sample", claim, job).long()]
}

fn sample(context: &Context) -> Result<String, Vec<String>> {
    let root = &context.root;
    let why = |failure: bulkhead_model::failure::Failure| vec![failure.to_string()];
    let tables = Tables::load(root).map_err(why)?;
    let sources = mutants::sources(root, &tables).map_err(why)?;
    let mut known = mutants::mutants(&sources).map_err(why)?;
    known.retain(|mutant| tables.killer(mutant).is_some());
    let drawn = mutants::draw(known, COUNT, mutants::seed(&sources));
    if drawn.len() < COUNT {
        let advice = "try mutants and keep which die: ./bulkhead mutants FILE --record";
        return Err(vec![
            format!("{} mutants are known to die", drawn.len()),
            advice.to_owned(),
        ]);
    }
    let work = drawn.into_iter().map(|mutant| {
        let tests = tables.killer(&mutant).map(str::to_owned);
        Work {
            tests: tests.into_iter().collect(),
            mutant,
        }
    });
    let work: Vec<Work> = work.collect();
    let tests = trial_tests::tests(root).map_err(why)?;
    let mut bench = Bench::new(root.clone(), &tests, &sources);
    let fates = bench.run(&work, 1, &mut |_| {}).map_err(why)?;
    let mut wrong = Vec::new();
    let mut killed = 0;
    for (Work { mutant, tests }, fate) in work.iter().zip(fates) {
        match fate {
            Fate::Killed { .. } => killed += 1,
            // The code around it has changed what it means.
            Fate::Unviable | Fate::Equal => {}
            Fate::Survived => {
                let test = tests.join(", ");
                wrong.push(format!("{test} no longer notices {mutant}"));
            }
            Fate::Undecided { why } => wrong.push(format!("{mutant}: {why}")),
        }
    }
    if killed == 0 {
        wrong.push("none of those that were drawn has died".to_owned());
    }
    if wrong.is_empty() {
        return Ok(format!("{killed} of {COUNT} killed"));
    }
    wrong.push("try all tests for it: ./bulkhead mutants FILE --only TEXT".to_owned());
    Err(wrong)
}
