//! Reads a policy from its file. What the file alone can have wrong is found here, all of it at once; what the board has to say to it is
//! found by [`check`](crate::check).

use std::fs;
use std::path::Path;
use std::time::Duration;

use bulkhead_abi::plan::{MAX_PERIOD, MAX_WEIGHT, MIN_PERIOD};
use bulkhead_control::failure::Failure;
use bulkhead_control::words::{self, Share};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::fault::{Fault, Span, Text};
use crate::rule::{Condition, Measure, Placed, Policy, Quantity, Rule, Setting, Side};
use crate::table::{Reader, Value, kind, nearest};

/// Most values between two bounds.
const STEPS: u64 = 1000;
/// Shortest and longest time between two looks.
const INTERVALS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(3600)];
/// Longest time for which a condition has to hold, and between two moves.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// What is not stated: between looks, for a condition, and between moves.
const DEFAULTS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
];

/// Words of the parser for a key that is there already.
const TWICE: &str = "duplicate key";

const KEYS: &[&str] = &["interval", "rule"];
const KEYS_OF_RULE: &[&str] = &[
    "vms", "weight", "cap", "budget", "pool", "when", "back", "pause", "priority",
];
const KEYS_OF_RANGE: &[&str] = &["from", "to", "step"];
const KEYS_OF_WHEN: &[&str] = &["measure", "above", "below", "for", "vm"];

const WHEN: &str = "{ measure = \"waiting\", above = \"30%\", for = \"3s\" }";
const BACK: &str = "{ measure = \"waiting\", below = \"5%\", for = \"10s\" }";

/// Reads a file.
///
/// # Errors
/// It cannot be read, or has mistakes: one failure for each.
pub fn load(path: &Path) -> Result<Policy, Vec<Failure>> {
    let text = open(path).map_err(|failure| vec![failure])?;
    read(&text).map_err(|faults| faults.iter().map(|fault| text.failure(fault)).collect())
}

/// The text of a file.
///
/// # Errors
/// It cannot be read.
pub fn open(path: &Path) -> Result<Text, Failure> {
    let name = path.display().to_string();
    match fs::read_to_string(path) {
        Ok(source) => Ok(Text { name, source }),
        Err(why) => Err(
            Failure::environment("policy::file", format!("cannot read {name}"), why)
                .advise("name a file that is there and may be read"),
        ),
    }
}

/// Reads the text of a file.
///
/// # Errors
/// Its mistakes, in the order of their places.
pub fn read(text: &Text) -> Result<Policy, Vec<Fault>> {
    let mut faults = Vec::new();
    let (root, errors) = DeTable::parse_recoverable(&text.source);
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        if error.message() == TWICE {
            let word = text.source.get(span.clone()).unwrap_or_default();
            let message = format!("`{word}` is there twice");
            let fault = Fault::new("policy::syntax", message, span, "again");
            faults.push(fault.help("leave one of the two out"));
            continue;
        }
        let fault = Fault::new("policy::syntax", "this is not TOML", span, error.message());
        faults.push(fault.help("strings stand in quotes; see https://toml.io"));
    }
    let whole = 0..0;
    let mut reader = Reader::new(root.get_ref(), whole, "a policy", KEYS, &mut faults);
    let [interval, ..] = DEFAULTS;
    let interval = reader.time("interval", INTERVALS[0], INTERVALS[1], interval);
    let mut rules = Vec::new();
    let table = reader.get("rule");
    if let Some(table) = table.and_then(|value| {
        reader.table(
            "rule",
            value,
            "{ busy = { ... } }`, or begin each rule with a line `[rule.busy]",
        )
    }) {
        for (name, value) in table {
            rules.extend(rule(name, value, &mut faults));
        }
    }
    twice(&rules, &mut faults);
    faults.sort_by_key(|fault| fault.places.first().map_or(0, |(span, _)| span.start));
    if !errors.is_empty() {
        // What could not be read is not missing.
        faults.retain(|fault| fault.code != "policy::missing");
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(Policy {
        text: text.clone(),
        interval,
        rules,
    })
}

/// Two rules that move the same of one VM.
fn twice(rules: &[Rule], faults: &mut Vec<Fault>) {
    let all = || {
        rules
            .iter()
            .enumerate()
            .flat_map(|(at, rule)| rule.vms.iter().map(move |vm| (at, rule, vm)))
    };
    for (number, (_, rule, vm)) in all().enumerate() {
        let first = all().take(number).find(|(_, other, before)| {
            (before.value == vm.value) && other.quantity.value == rule.quantity.value
        });
        let Some((_, other, before)) = first else {
            continue;
        };
        let word = rule.quantity.value.word();
        let message = format!(
            "the {word} of {} is moved by the rule `{}` too",
            vm.value, other.name.value
        );
        let fault = Fault::new("policy::twice", message, vm.span.clone(), "again");
        faults.push(
            fault
                .also(before.span.clone(), "the first")
                .help("leave it to one rule: two would move it to and fro"),
        );
    }
}

/// Reads a rule; none: with mistakes.
fn rule(
    name: &Spanned<toml::de::DeString<'_>>,
    value: Value<'_, '_>,
    faults: &mut Vec<Fault>,
) -> Option<Rule> {
    let word: &str = name.get_ref();
    let before = faults.len();
    let what = format!("the rule `{word}`");
    let DeValue::Table(table) = value.get_ref() else {
        let fault = Fault::new(
            "policy::value",
            format!("{what} is a table"),
            value.span(),
            kind(value.get_ref()),
        );
        faults.push(fault.help(format!("begin it with the line [rule.{word}]")));
        return None;
    };
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if word.is_empty() || word.len() > 32 || !word.chars().all(letters) {
        let message = format!("`{word}` cannot be the name of a rule");
        let label = "1 to 32 of the characters a-z A-Z 0-9 - _";
        faults.push(
            Fault::new("policy::value", message, name.span(), label).help("choose another name"),
        );
    }
    let mut reader = Reader::new(table, name.span(), what, KEYS_OF_RULE, faults);
    let vms = reader.need("vms", "[\"linux\"]");
    let vms =
        vms.and_then(|value| reader.list("vms", value, "[\"linux\"]", |text| Ok(text.to_owned())));
    let moved = moved(&mut reader);
    let [_, held, pause] = DEFAULTS;
    let when = reader.need("when", WHEN);
    let when = when.and_then(|value| condition(&mut reader, "when", value, None, held));
    let held = when.as_ref().map_or(held, |when| when.held);
    let back = reader.need("back", BACK);
    let measure = when.as_ref();
    let back = back.and_then(|value| condition(&mut reader, "back", value, measure, held));
    let pause = reader.time("pause", Duration::ZERO, LONGEST, pause);
    let priority = reader.get("priority");
    let priority = priority.and_then(|value| reader.number("priority", value, 0, 100));
    if let (Some(when), Some(back)) = (&when, &back) {
        hysteresis(&mut reader, when, back);
    }
    let (quantity, steps) = moved?;
    let rule = Rule {
        name: Placed {
            value: word.to_owned(),
            span: name.span(),
        },
        vms: vms?,
        quantity,
        steps,
        when: when?,
        back: back?,
        pause,
        priority: priority.unwrap_or(0) as u8,
    };
    (faults.len() == before).then_some(rule)
}

/// Both conditions at once, or one right behind the other: it would go to and fro.
fn hysteresis(reader: &mut Reader<'_, '_, '_>, when: &Condition, back: &Condition) {
    let same = when.measure.value == back.measure.value
        && when.vm.as_ref().map(|vm| &vm.value) == back.vm.as_ref().map(|vm| &vm.value);
    let is_apart = match (when.side, back.side) {
        (Side::Above, Side::Below) => back.threshold < when.threshold,
        (Side::Below, Side::Above) => back.threshold > when.threshold,
        _ => false,
    };
    if same && !is_apart {
        let measure = when.measure.value;
        let message = format!(
            "there is nothing between {} {} and {} {}",
            when.side.word(),
            measure.text(when.threshold),
            back.side.word(),
            measure.text(back.threshold)
        );
        let fault = Fault::new(
            "policy::hysteresis",
            message,
            back.measure.span.clone(),
            "this one",
        );
        let fault = fault.also(when.measure.span.clone(), "and this one");
        reader.faults().push(fault.help(
            "leave a part between the two thresholds, wider than what one step changes, or it goes to and fro",
        ));
    }
}

/// Reads what is moved, and by which steps.
fn moved(reader: &mut Reader<'_, '_, '_>) -> Option<(Placed<Quantity>, Vec<Setting>)> {
    let found: Vec<(Quantity, Value<'_, '_>)> = Quantity::ALL
        .iter()
        .filter_map(|quantity| Some((*quantity, reader.get(quantity.word())?)))
        .collect();
    let [(quantity, value)] = found[..] else {
        let (message, span) = match found.get(1) {
            None => ("a rule moves something", reader.span()),
            Some((_, value)) => ("a rule moves one thing", value.span()),
        };
        let label = if found.is_empty() {
            "nothing"
        } else {
            "a second one"
        };
        let help = "give it one of weight, cap, budget and pool: `weight = { from = 100, to = 400, step = 100 }`";
        reader.wrong(span, message, label, help);
        return None;
    };
    let span = value.span();
    let steps = match quantity {
        Quantity::Pool => pools(reader, value),
        Quantity::Weight => weights(reader, value),
        Quantity::Cap | Quantity::Budget => shares(reader, quantity, value),
    }?;
    let placed = Placed {
        value: quantity,
        span: span.clone(),
    };
    if steps.len() < 2 {
        let message = format!("the {} has one value only", quantity.word());
        reader.wrong(
            span,
            message,
            "from here to here",
            "make `to` another value than `from`",
        );
        return None;
    }
    Some((placed, steps))
}

fn pools(reader: &mut Reader<'_, '_, '_>, value: Value<'_, '_>) -> Option<Vec<Setting>> {
    let pools = reader.list("pool", value, "[\"1\", \"1-3\"]", words::cpus)?;
    for (at, pool) in pools.iter().enumerate() {
        if pools
            .iter()
            .take(at)
            .any(|before| before.value == pool.value)
        {
            reader.wrong(
                pool.span.clone(),
                "a pool is there twice",
                "again",
                "leave one out",
            );
            return None;
        }
    }
    Some(pools.iter().map(|pool| Setting::Pool(pool.value)).collect())
}

const WEIGHT: &str = "{ from = 100, to = 400, step = 100 }";
const SHARE: &str = "{ from = \"2ms/10ms\", to = \"6ms/10ms\", step = \"1ms\" }";

/// A table with both ends and a step.
fn range<'v, 'w, 'f>(
    reader: &'f mut Reader<'_, '_, '_>,
    quantity: Quantity,
    value: Value<'v, 'w>,
    example: &str,
) -> Option<Reader<'v, 'w, 'f>> {
    let table = reader.table(quantity.word(), value, example)?;
    let what = format!("a {}", quantity.word());
    Some(Reader::new(
        table,
        value.span(),
        what,
        KEYS_OF_RANGE,
        reader.faults(),
    ))
}

fn weights(reader: &mut Reader<'_, '_, '_>, value: Value<'_, '_>) -> Option<Vec<Setting>> {
    let mut range = range(reader, Quantity::Weight, value, WEIGHT)?;
    let [from, to, step] = KEYS_OF_RANGE else {
        return None;
    };
    let most = MAX_WEIGHT.into();
    let mut number = |key: &str, least| {
        let value = range.need(key, "100")?;
        range.number(key, value, least, most)
    };
    let (from, to, step) = (number(from, 1), number(to, 1), number(step, 1));
    let values = steps(from?, to?, step?);
    Some(values.into_iter().map(Setting::Weight).collect())
}

fn shares(
    reader: &mut Reader<'_, '_, '_>,
    quantity: Quantity,
    value: Value<'_, '_>,
) -> Option<Vec<Setting>> {
    let mut range = range(reader, quantity, value, SHARE)?;
    let mut end = |key: &str| {
        let value = range.need(key, "\"2ms/10ms\"")?;
        let read = |text: &str| match text {
            "none" if quantity == Quantity::Cap => Ok(None),
            _ => share(text).map(Some),
        };
        range.read(key, value, "\"2ms/10ms\"", read)
    };
    let (from, to) = (end("from"), end("to"));
    let step = range.need("step", "\"1ms\"");
    let step = step.and_then(|value| range.read("step", value, "\"1ms\"", words::time));
    let (from, to, step) = (from?, to?, step?);
    let given = from.value.or(to.value);
    let Some(period) = given.map(|share| share.period) else {
        let (message, help) = (
            "the cap has one value only",
            "give one of the two a quota: \"3ms/10ms\"",
        );
        range.wrong(to.span, message, "none, too", help);
        return None;
    };
    let whole = Share {
        amount: period,
        period,
    };
    let [first, last] = [from.value, to.value].map(|share| share.unwrap_or(whole));
    if first.period != last.period {
        let message = "both ends have the same period";
        range.wrong(
            to.span,
            message,
            "another one",
            "a step changes the time in each period, not the period",
        );
        return None;
    }
    if step.value == 0 {
        range.wrong(
            step.span,
            "a step is more than nothing",
            "nothing",
            "such as `step = \"1ms\"`",
        );
        return None;
    }
    if first.amount.abs_diff(last.amount) / step.value > STEPS {
        let message = format!("there are more than {STEPS} steps from one end to the other");
        range.wrong(step.span, message, "too short", "make the step longer");
        return None;
    }
    let setting = |amount| {
        let share = Share { amount, period };
        match quantity {
            Quantity::Budget => Setting::Budget(share),
            _ => Setting::Cap(share),
        }
    };
    let values = steps(first.amount, last.amount, step.value);
    Some(values.into_iter().map(setting).collect())
}

/// A share within what a plan allows.
fn share(text: &str) -> Result<Share, String> {
    let share = words::share(text)?;
    if !(MIN_PERIOD..=MAX_PERIOD).contains(&share.period) {
        return Err("a period is 100us to 10s".to_owned());
    }
    Ok(share)
}

/// Values from one end to the other, both included; the last step may be shorter.
fn steps(from: u64, to: u64, step: u64) -> Vec<u64> {
    let mut values = vec![from];
    let mut now = from;
    while now != to {
        now = if now < to {
            now.saturating_add(step).min(to)
        } else {
            now.saturating_sub(step).max(to)
        };
        values.push(now);
    }
    values
}

/// Reads a condition. `other`: the one whose measure it has if it names none.
fn condition(
    reader: &mut Reader<'_, '_, '_>,
    key: &'static str,
    value: Value<'_, '_>,
    other: Option<&Condition>,
    held: Duration,
) -> Option<Condition> {
    let is_first = key == "when";
    let (example, usual_side) = if is_first {
        (WHEN, Side::Above)
    } else {
        (BACK, Side::Below)
    };
    let table = reader.table(key, value, example)?;
    let mut reader = Reader::new(
        table,
        value.span(),
        format!("`{key}`"),
        KEYS_OF_WHEN,
        reader.faults(),
    );
    let held = reader.time("for", Duration::ZERO, LONGEST, held);
    let vm = reader.get("vm");
    let vm = vm.and_then(|value| reader.read("vm", value, "\"linux\"", |text| Ok(text.to_owned())));
    let measure = match (reader.get("measure"), other) {
        (None, Some(other)) => Some((
            Placed {
                value: other.measure.value,
                span: value.span(),
            },
            other.vm.clone(),
        )),
        // The first one has mistakes of its own.
        (None, None) if !is_first => None,
        (stated, _) => {
            let stated = stated.or_else(|| reader.need("measure", "\"waiting\""));
            let read =
                stated.and_then(|value| reader.read("measure", value, "\"waiting\"", measure_of));
            read.map(|measure| (measure, None))
        }
    };
    let (measure, others_vm) = measure?;
    let (side, value) = match (reader.get("above"), reader.get("below")) {
        (Some(value), None) => (Side::Above, value),
        (None, Some(value)) => (Side::Below, value),
        (Some(_), Some(value)) => {
            let help = "leave one of the two out";
            reader.wrong(
                value.span(),
                format!("`{key}` has one threshold"),
                "a second one",
                help,
            );
            return None;
        }
        (None, None) => (usual_side, reader.need(usual_side.word(), "\"30%\"")?),
    };
    let threshold = threshold(&mut reader, side, value, measure.value)?;
    let never = match side {
        Side::Above => !measure.value.is_rate() && threshold >= 1.0,
        Side::Below => threshold <= 0.0,
    };
    if never {
        let message = format!(
            "nothing is {} {}",
            side.word(),
            measure.value.text(threshold)
        );
        reader.wrong(
            value.span(),
            message,
            "never",
            "choose a threshold that can be passed",
        );
        return None;
    }
    Some(Condition {
        vm: vm.or(others_vm),
        measure,
        side,
        threshold,
        held,
    })
}

fn measure_of(text: &str) -> Result<Measure, String> {
    let found = Measure::ALL.iter().find(|measure| measure.word() == text);
    found.copied().ok_or_else(|| {
        let words = || Measure::ALL.iter().map(|measure| measure.word());
        nearest(text, words()).map_or_else(
            || {
                format!(
                    "the measures are {}",
                    words().collect::<Vec<_>>().join(", ")
                )
            },
            |meant| format!("did you mean `{meant}`?"),
        )
    })
}

/// Reads a threshold: a part of a whole in percent, a rate as a number.
fn threshold(
    reader: &mut Reader<'_, '_, '_>,
    side: Side,
    value: Value<'_, '_>,
    measure: Measure,
) -> Option<f64> {
    let key = side.word();
    let (span, word): (Span, _) = (value.span(), measure.word());
    if !measure.is_rate() {
        let part = |text: &str| {
            let number = text
                .strip_suffix('%')
                .and_then(|text| text.trim_end().parse::<f64>().ok());
            let number = number.filter(|number| (0.0..=100.0).contains(number));
            number
                .map(|number| number / 100.0)
                .ok_or_else(|| format!("{word} is a part of the time: 0% to 100%"))
        };
        return Some(reader.read(key, value, "\"30%\"", part)?.value);
    }
    let number = match value.get_ref() {
        DeValue::Integer(number) => number.as_str().parse().ok(),
        DeValue::Float(number) => number.as_str().parse().ok(),
        _ => None,
    };
    let number = number.filter(|number: &f64| number.is_finite() && *number >= 0.0);
    if number.is_none() {
        let message = format!("{word} are a number in a second");
        let label = match value.get_ref() {
            DeValue::Integer(_) | DeValue::Float(_) => "out of range",
            other => kind(other),
        };
        reader.wrong(span, message, label, &format!("such as `{key} = 10`"));
    }
    number
}
