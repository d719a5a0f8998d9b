//! `top`: what each vCPU does, how its VM lives, and what that VM's devices take of EL2, over and over.

use std::collections::BTreeMap;
use std::thread;
use std::time::Instant;

use bulkhead_control::failure::Outcome;
use bulkhead_control::port::Access;
use serde_json::{Map, Value, json};

use crate::cli::TopArgs;
use crate::output::{Paint, Printer};
use crate::report;
use crate::sample::{Change, Served, VcpuSample, VmSample, change, look_at_all, served};
use crate::terminal::Keys;
use crate::verb::{Ended, connect};
use crate::words::{count, duration, percent};

/// Columns of a line; a terminal of 80 wraps none.
const WIDTH: usize = 79;
/// Home, and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// A vCPU with what it did.
struct Shown<'a> {
    vm: &'a VmSample,
    vcpu: &'a VcpuSample,
    /// None: it was not there before.
    change: Option<Change>,
}

/// Shows vCPUs until it is ended.
pub fn run(access: &Access, printer: &Printer, args: TopArgs) -> Ended {
    let mut manager = connect(access)?;
    let mut before = look_at_all(&mut manager)?;
    if before.is_empty() && !printer.json {
        printer.text("The description gives this VM the right `stats` over none.\n")?;
        return Ok(Outcome::Done);
    }
    let mut next = Instant::now() + args.interval;
    let keys = (printer.terminal && !args.once).then(Keys::take).flatten();
    loop {
        let rest = next.saturating_duration_since(Instant::now());
        match &keys {
            Some(keys) if keys.ends_within(rest) => return Ok(Outcome::Done),
            Some(_) => {}
            None => thread::sleep(rest),
        }
        next = Instant::now() + args.interval;
        let after = look_at_all(&mut manager)?;
        // They are not looked at here; a daemon's are many.
        manager.connection.forget_events();
        let shown = shown(&before, &after, manager.hello.frequency);
        let lives = lives(&before, &after);
        if printer.json {
            let vcpus: Vec<Value> = shown.iter().map(as_json).collect();
            let vms = lives.iter().map(|(vm, served)| life_json(vm, *served));
            printer.line(&json!({
                "interval": args.interval.as_secs_f64(),
                "vcpus": vcpus,
                "vms": vms.collect::<Vec<Value>>(),
            }))?;
        } else {
            let clear = if printer.terminal && !args.once {
                CLEAR
            } else {
                ""
            };
            let text = clear.to_owned() + &text(printer, &shown);
            let text = text + &lives_text(printer, &lives) + &classes_text(printer, &shown);
            printer.text(&text)?;
        }
        if args.once {
            return Ok(Outcome::Done);
        }
        if !printer.terminal && !printer.json {
            printer.text("\n")?;
        }
        before = after;
    }
}

fn shown<'a>(before: &[VmSample], after: &'a [VmSample], frequency: u64) -> Vec<Shown<'a>> {
    let earlier: BTreeMap<(u16, u16), &VcpuSample> = before
        .iter()
        .flat_map(|vm| {
            vm.vcpus
                .iter()
                .map(|vcpu| ((vm.vm.index, vcpu.number), vcpu))
        })
        .collect();
    let all = after
        .iter()
        .flat_map(|vm| vm.vcpus.iter().map(move |vcpu| (vm, vcpu)));
    all.map(|(vm, vcpu)| Shown {
        vm,
        vcpu,
        change: earlier
            .get(&(vm.vm.index, vcpu.number))
            .map(|before| change(before, vcpu, frequency)),
    })
    .collect()
}

/// What a vCPU does now: as its VM, where that does not run; else as its scheduler says.
fn state(shown: &Shown<'_>) -> &'static str {
    let vm = &shown.vm.vm;
    if !vm.is(bulkhead_abi::control::Phase::Running) {
        return vm.phase_word();
    }
    match &shown.vcpu.time {
        _ if shown.vcpu.state.power != 3 => shown.vcpu.state.power_word(),
        Ok(time) => time.state_word(),
        Err(_) => "on",
    }
}

fn as_json(shown: &Shown<'_>) -> Value {
    let change = shown.change.as_ref();
    let classes = change.map(|change| {
        let classes = change
            .classes
            .iter()
            .map(|(class, rate)| (class.name().to_owned(), json!(rate)));
        classes.collect::<Map<_, _>>()
    });
    json!({
        "vm": shown.vm.vm.name,
        "vcpu": shown.vcpu.number,
        "pcpu": shown.vcpu.state.pcpu,
        "state": state(shown),
        "share": change.and_then(|change| change.share),
        "waiting": change.and_then(|change| change.waiting),
        "longest_wake_ns": change.and_then(|change| change.longest_wake),
        "overruns": change.and_then(|change| change.overruns),
        "exits_per_second": change.and_then(|change| change.exits),
        "classes_per_second": classes,
    })
}

fn text(printer: &Printer, shown: &[Shown<'_>]) -> String {
    let head = format!(
        "{:<16} {:>4} {:>4} {:<13} {:>6} {:>6} {:>7} {:>5} {:>7}",
        "VM", "VCPU", "PCPU", "STATE", "CPU", "WAIT", "WAKE<", "OVER", "EXITS/s"
    );
    let mut text = printer.paint(Paint::Bold, &head) + "\n";
    for one in shown {
        let change = one.change.as_ref();
        let dash = || "-".to_owned();
        let part = |part: Option<f64>| part.map_or_else(dash, percent);
        let over = change.and_then(|change| change.overruns);
        let line = format!(
            "{:<16} {:>4} {:>4} {:<13} {:>6} {:>6} {:>7} {:>5} {:>7}",
            one.vm.vm.name,
            one.vcpu.number,
            one.vcpu.state.pcpu,
            state(one),
            part(change.and_then(|change| change.share)),
            part(change.and_then(|change| change.waiting)),
            change
                .and_then(|change| change.longest_wake)
                .map_or_else(dash, duration),
            over.map_or_else(dash, |over| count(over as f64)),
            change
                .and_then(|change| change.exits)
                .map_or_else(dash, count),
        );
        let paint = match () {
            () if over.is_some_and(|over| over > 0) => Some(Paint::Red),
            () if state(one) == "stopped" || state(one) == "off" => Some(Paint::Dim),
            () => None,
        };
        text += &paint.map_or_else(|| line.clone(), |paint| printer.paint(paint, &line));
        text.push('\n');
    }
    text
}

/// VMs, and what their devices had between the looks.
type Lives<'a> = Vec<(&'a VmSample, Option<Served>)>;

fn lives<'a>(before: &[VmSample], after: &'a [VmSample]) -> Lives<'a> {
    let earlier = |vm: &VmSample| before.iter().find(|it| it.vm.index == vm.vm.index);
    { after.iter() }
        .map(|vm| (vm, earlier(vm).and_then(|earlier| served(earlier, vm))))
        .collect()
}

fn life_json(vm: &VmSample, served: Option<Served>) -> Value {
    let service = served.map(|served| {
        json!({
            "slices_per_second": served.slices,
            "share": served.share,
            "longest_ns": served.longest,
        })
    });
    let vm = &vm.vm;
    json!({
        "name": vm.name,
        "phase": vm.phase_word(),
        "lives": vm.lives,
        "restarts": vm.restarts,
        "end": vm.end.map(|end| end.words()),
        "crash": vm.crash.as_ref().map(report::as_json),
        "service": service,
    })
}

/// A line for each VM: its lives, how the last one ended, and what its devices had of the service thread.
fn lives_text(printer: &Printer, lives: &Lives<'_>) -> String {
    let head = format!(
        "\n{:<16} {:>5} {:>8} {:>7} {:>8} {:>8}  LAST END",
        "VM", "LIVES", "RESTARTS", "DEVICES", "SLICES/s", "LONGEST"
    );
    let mut text = printer.paint(Paint::Bold, &head) + "\n";
    for (sample, served) in lives {
        let vm = &sample.vm;
        let dash = || "-".to_owned();
        let mut line = format!(
            "{:<16} {:>5} {:>8} {:>7} {:>8} {:>8}  ",
            vm.name,
            count(vm.lives as f64),
            count(vm.restarts as f64),
            served.map_or_else(dash, |served| percent(served.share)),
            served.map_or_else(dash, |served| count(served.slices)),
            served.map_or_else(dash, |served| duration(served.longest)),
        );
        // A crash is told as long as no other has come, whatever ended the lives since.
        let end = vm.end.map_or_else(dash, |end| end.words().to_owned());
        line += &match &vm.crash {
            Some(crash) => format!("{end}, crash {}", crash.life),
            None => end,
        };
        let line: String = line.chars().take(WIDTH).collect();
        let line = line.trim_end().to_owned();
        let red = vm.crash.is_some();
        text += &{ red.then(|| printer.paint(Paint::Red, &line)) }.unwrap_or(line);
        text.push('\n');
    }
    text
}

fn classes_text(printer: &Printer, shown: &[Shown<'_>]) -> String {
    let mut text = String::new();
    let mut has_head = false;
    for one in shown {
        let Some(change) = one
            .change
            .as_ref()
            .filter(|change| !change.classes.is_empty())
        else {
            continue;
        };
        if !has_head {
            let head = format!("\n{:<16} {:>4} EXITS/s BY CLASS", "VM", "VCPU");
            text += &printer.paint(Paint::Bold, &head);
            text.push('\n');
            has_head = true;
        }
        let words = change
            .classes
            .iter()
            .map(|(class, rate)| format!("{} {}", class.name(), count(*rate)));
        let head = format!("{:<16} {:>4} ", one.vm.vm.name, one.vcpu.number);
        text += &cut(head, words);
    }
    text
}

/// As many words as there is space for, and how many more there are.
fn cut(mut line: String, words: impl ExactSizeIterator<Item = String>) -> String {
    let all = words.len();
    for (number, word) in words.enumerate() {
        let more = all - number - 1;
        // Space for "+18 more" is kept, unless it is the last one.
        let kept = if more == 0 { 0 } else { 9 };
        if line.len() + word.len() + 2 + kept > WIDTH {
            line += &format!("+{} more", more + 1);
            return line + "\n";
        }
        line += &word;
        line += if more == 0 { "" } else { ", " };
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_between_words_and_says_so() {
        for length in 1..30 {
            let words: Vec<String> = (0..18)
                .map(|number| format!("{number:0>length$}"))
                .collect();
            let line = cut("linux               0 ".to_owned(), words.into_iter());
            let line = line.trim_end();
            assert!(line.len() <= WIDTH, "{line}");
            let told = line[22..]
                .split(", ")
                .filter(|word| !word.contains('+'))
                .count();
            let more: usize = line.split_once('+').map_or(0, |(_, more)| {
                more.trim_end_matches(" more").parse().expect("a number")
            });
            assert_eq!(told + more, 18, "{line}");
        }
    }
}
