//! `stats`: what VMs have done so far.

use std::fmt::Write;

use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::CpuPolicy;
use bulkhead_control::board::{Exits, Time, Vcpu, Waits};
use bulkhead_control::failure::Outcome;
use bulkhead_control::port::Access;
use serde_json::{Map, Value, json};

use crate::cli::StatsArgs;
use crate::output::{Paint, Printer};
use crate::sample::{VcpuSample, VmSample, bound, look, look_at_all};
use crate::verb::{Ended, connect};
use crate::vms::as_json;
use crate::words::{cpu_list, duration, percent, share_text};

/// Shows statistics.
pub fn run(access: &Access, printer: &Printer, args: StatsArgs) -> Ended {
    let mut manager = connect(access)?;
    let samples = match &args.vm {
        Some(name) => {
            let vm = manager.find(name)?;
            vec![look(&mut manager, vm)?]
        }
        None => look_at_all(&mut manager)?,
    };
    let frequency = manager.hello.frequency;
    if printer.json {
        let own = manager.hello.manager;
        let vms: Vec<Value> = samples
            .iter()
            .map(|sample| vm_json(sample, own, frequency))
            .collect();
        printer.document(&json!({ "ok": true, "vms": vms }))?;
        return Ok(Outcome::Done);
    }
    let texts = samples
        .iter()
        .map(|sample| text(printer, sample, frequency));
    printer.text(&texts.collect::<Vec<_>>().join("\n"))?;
    if samples.is_empty() {
        printer.text("The description gives this VM the right `stats` over none.\n")?;
    }
    Ok(Outcome::Done)
}

fn vm_json(sample: &VmSample, own: u16, frequency: u64) -> Value {
    let mut vm = as_json(&sample.vm, own);
    let vcpus: Vec<Value> = sample
        .vcpus
        .iter()
        .map(|vcpu| vcpu_json(vcpu, frequency))
        .collect();
    vm["vcpus"] = json!(vcpus);
    vm["service"] = match &sample.service {
        Ok(service) => json!({
            "slices": service.slices,
            "time_ns": service.time,
            "longest_ns": service.longest,
        }),
        Err(_) => Value::Null,
    };
    vm
}

fn vcpu_json(vcpu: &VcpuSample, frequency: u64) -> Value {
    let state = &vcpu.state;
    let time = vcpu.time.as_ref().ok().map(|time| {
        json!({
            "state": time.state_word(),
            "cpu_ns": time.cpu_time,
            "since_ns": time.since,
            "waited_ns": time.waited,
            "longest_wait_ns": time.longest_wait,
            "turns": time.turns,
            "overruns": time.overruns,
            "moves": time.moves,
        })
    });
    let exits = vcpu.exits.as_ref().ok().map(exits_json);
    let waits = vcpu.waits.as_ref().ok().map(|waits| {
        let classes = classes(waits)
            .map(|(class, count)| json!({ "below_ns": bound(class, frequency), "count": count }));
        classes.collect::<Vec<_>>()
    });
    json!({
        "number": vcpu.number,
        "pcpu": state.pcpu,
        "power": state.power_word(),
        "policy": state.policy_word(),
        "weight": state.weight,
        "amount_ns": state.amount,
        "period_ns": state.period,
        "pool": (0..64).filter(|cpu| state.pool >> cpu & 1 == 1).collect::<Vec<u32>>(),
        "time": time,
        "exits": exits,
        "waits": waits,
        "exits_untold": vcpu.exits.as_ref().err(),
        "time_untold": vcpu.time.as_ref().err(),
    })
}

fn exits_json(exits: &Exits) -> Value {
    let mut classes = Map::new();
    for (class, one) in ExitClass::ALL
        .iter()
        .zip(&exits.classes)
        .filter(|(_, one)| one.count > 0)
    {
        let row = json!({
            "count": one.count,
            "cycles": one.cycles,
            "squares": one.squares,
            "shortest": one.shortest,
            "longest": one.longest,
        });
        classes.insert(class.name().to_owned(), row);
    }
    json!({
        "total": exits.total,
        "cycles_in_guest": exits.in_guest,
        "cycles_on": exits.on,
        "cycles_away": exits.away,
        "classes": classes,
    })
}

/// Classes of waits in which there are some.
fn classes(waits: &Waits) -> impl Iterator<Item = (usize, u32)> + '_ {
    let classes = waits.0.iter().copied().enumerate();
    classes.filter(|(_, count)| *count > 0)
}

fn text(printer: &Printer, sample: &VmSample, frequency: u64) -> String {
    let vm = &sample.vm;
    let head = format!(
        "{}  {}, {}, life {}",
        vm.name,
        vm.class_word(),
        vm.phase_word(),
        vm.lives
    );
    let mut text = printer.paint(Paint::Bold, &head) + "\n";
    for vcpu in &sample.vcpus {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  vCPU {}  {}", vcpu.number, limits_text(&vcpu.state));
        match &vcpu.time {
            Ok(time) => text += &time_text(time),
            Err(why) => text += &wrapped("time", &[(*why).to_owned()]),
        }
        match &vcpu.waits {
            Ok(waits) if classes(waits).next().is_some() => {
                let words = classes(waits).map(|(class, count)| {
                    format!("<{} {count}", duration(bound(class, frequency)))
                });
                text += &wrapped("wakes", &words.collect::<Vec<_>>());
            }
            _ => {}
        }
        match &vcpu.exits {
            Ok(exits) => text += &exits_text(exits),
            Err(why) => text += &wrapped("exits", &[(*why).to_owned()]),
        }
    }
    if let Ok(service) = &sample.service
        && service.slices > 0
    {
        let (time, longest) = (duration(service.time), duration(service.longest));
        let _ = writeln!(
            text,
            "  devices  {} slices of the service thread, {time}, longest {longest}",
            service.slices
        );
    }
    text
}

fn limits_text(state: &Vcpu) -> String {
    let mut text = format!("{}, {}", state.power_word(), state.policy_word());
    if state.is(CpuPolicy::Fair) {
        text = format!("{text}, weight {}", state.weight);
        if state.amount < state.period {
            text = format!("{text}, cap {}", share_text(state.amount, state.period));
        }
        text = format!("{text}, pCPU {} of {}", state.pcpu, cpu_list(state.pool));
    } else {
        if state.is(CpuPolicy::Server) {
            text = format!("{text}, budget {}", share_text(state.amount, state.period));
        }
        text = format!("{text}, pCPU {}", state.pcpu);
    }
    text
}

fn time_text(time: &Time) -> String {
    let part = |part: u64| percent(part as f64 / time.since.max(1) as f64);
    let words = [
        format!(
            "{} of {} ({})",
            duration(time.cpu_time),
            duration(time.since),
            part(time.cpu_time)
        ),
        format!("{} turns", time.turns),
        format!("{} overruns", time.overruns),
        format!("{} moves", time.moves),
        format!("waited {} ({})", duration(time.waited), part(time.waited)),
        format!("longest wait {}", duration(time.longest_wait)),
        time.state_word().to_owned(),
    ];
    wrapped("time", &words)
}

fn exits_text(exits: &Exits) -> String {
    let mut classes: Vec<_> = ExitClass::ALL
        .iter()
        .zip(&exits.classes)
        .filter(|(_, one)| one.count > 0)
        .collect();
    classes.sort_by_key(|(_, one)| std::cmp::Reverse(one.count));
    let words = classes.iter().map(|(class, one)| {
        let average = one.cycles / one.count;
        format!(
            "{} {} ({average}, at most {})",
            class.name(),
            one.count,
            one.longest
        )
    });
    let words: Vec<String> = [exits.total.to_string()].into_iter().chain(words).collect();
    wrapped("exits", &words)
}

/// Words behind a label, with commas, in lines of 80 columns.
fn wrapped(label: &str, words: &[String]) -> String {
    const WIDTH: usize = 79;
    let mut text = format!("    {label:<7}");
    let mut column = text.len();
    for (number, word) in words.iter().enumerate() {
        let comma = if number + 1 < words.len() { "," } else { "" };
        if number > 0 {
            if column + 1 + word.len() + comma.len() > WIDTH {
                text += "\n           ";
                column = 11;
            } else {
                text.push(' ');
                column += 1;
            }
        }
        text += word;
        text += comma;
        column += word.len() + comma.len();
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_80_columns_at_most() {
        let words: Vec<String> = (0..30)
            .map(|number| format!("word-{number} 123456"))
            .collect();
        let text = wrapped("exits", &words);
        assert!(text.lines().count() > 3);
        for line in text.lines() {
            assert!(line.len() < 80, "{line}");
            assert!(
                line.starts_with("    exits") || line.starts_with("           w"),
                "{line}"
            );
        }
        assert!(text.ends_with("word-29 123456\n"), "{text}");
    }
}
