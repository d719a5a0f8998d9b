//! The runs as a table and as a picture.

use std::fmt::Write as _;

use bulkhead_runner::columns::{Column, Columns, wrapped};

use super::run::{Latency, Run};
use super::source::BAO;

/// The runs of a work, in the order of its settings.
fn by_work(runs: &[Run]) -> impl Iterator<Item = &[Run]> {
    runs.chunk_by(|a, b| a.work == b.work)
}

/// Misses of the L2 in a thousand instructions.
fn misses(run: &Run) -> f64 {
    1000.0 * run.vm.l2_misses as f64 / run.vm.instructions.max(1) as f64
}

/// Cycles of a run as multiple of those of the work alone.
fn slowdown(run: &Run, alone: &Run) -> f64 {
    run.cycles as f64 / alone.cycles.max(1) as f64
}

/// Tables without and with colours: for each work, the misses of the L2 and the cycles in each setting.
pub fn table(runs: &[Run]) -> String {
    let kept = |coloured| part(runs, coloured);
    let mean = |of: &Run| {
        let alike = runs
            .iter()
            .filter(|run| run.setting.tick == of.setting.tick);
        let turns: Vec<u64> = alike.map(|run| run.turn).collect();
        turns.iter().sum::<u64>() / turns.len().max(1) as u64
    };
    let settings = by_work(runs).next().unwrap_or_default();
    let turns = settings.iter().take(3).skip(1);
    let turns: Vec<String> = turns.map(|run| mean(run).to_string()).collect();
    format!(
        "without colours\n{}\nwith colours: half of the shared cache for the VM, of which EL2 has a quarter, and a quarter for each other\n{}\nmisses: of the shared L2, in a thousand instructions; time: cycles of the model, as a multiple of those alone without colours for \
         `solo`, of `solo` for the others; evicted: lines that left the L2 for another VM's or EL2's, at most; EL2's misses: of the L2, in each setting.\n\
         Beside three VMs that write a word in each line of 512 KiB, with a tick of so many microseconds each: it ends the turns of the emulator's CPUs, which had {} instructions on average.\n",
        kept(false),
        kept(true),
        turns.join(" and ")
    )
}

/// The latency of a timer, a row for who has colours.
pub fn latencies(all: &[Latency], period: u32) -> String {
    let mut table = Columns::new(&[
        Column::Left(0),
        Column::Right(0),
        Column::Right(0),
        Column::Right(0),
        Column::Right(0),
    ]);
    let mut head = vec!["latency of a timer".to_owned()];
    let settings = all.first().map_or(&[][..], |_| &all[..all.len().min(3)]);
    head.extend(settings.iter().map(|latency| short(latency.setting.tick)));
    head.push("interrupts".to_owned());
    table.row(head);
    for row in all.chunks(3) {
        let Some(first) = row.first() else { continue };
        let who = match (first.setting.coloured, first.setting.el2) {
            (false, _) => "without colours",
            (true, false) => "VMs have colours",
            (true, true) => "VMs and EL2 have colours",
        };
        let mut cells = vec![who.to_owned()];
        cells.extend(
            row.iter()
                .map(|latency| format!("{} (most {})", latency.median, latency.most)),
        );
        let fewest = row.iter().map(|latency| latency.interrupts).min();
        cells.push(fewest.unwrap_or(0).to_string());
        table.row(cells);
    }
    format!(
        "{}\nCycles of the model, at half of the interrupts and at most, from the instruction that a timer interrupts, each {period} us, to the first of the guest's handler, while the VM strides through 128 KiB.\n",
        table.text("")
    )
}

/// A column's name.
fn short(tick: Option<u32>) -> String {
    match tick {
        None => "solo".to_owned(),
        Some(tick) => format!("{tick} us"),
    }
}

/// The table of settings with colours or without.
fn part(runs: &[Run], coloured: bool) -> String {
    let chosen = |runs: &'_ [Run]| -> Vec<Run> {
        let chosen = runs.iter().filter(|run| run.setting.coloured == coloured);
        chosen.cloned().collect()
    };
    let settings = chosen(by_work(runs).next().unwrap_or_default());
    let mut columns = vec![Column::Left(0), Column::Right(0)];
    columns.extend(settings.iter().flat_map(|_| [Column::Right(0); 2]));
    columns.extend([Column::Right(0); 2]);
    let mut table = Columns::new(&columns);
    let mut head = vec!["work".to_owned(), "instructions".to_owned()];
    for run in &settings {
        let short = short(run.setting.tick);
        head.extend([format!("misses, {short}"), "time".to_owned()]);
    }
    head.extend(["evicted".to_owned(), "EL2's misses".to_owned()]);
    table.row(head);
    for runs in by_work(runs) {
        let Some(plain) = runs.first() else { continue };
        let runs = chosen(runs);
        let Some(alone) = runs.first() else { continue };
        let mut row = vec![
            alone.work.name.to_owned(),
            alone.vm.instructions.to_string(),
        ];
        for (n, run) in runs.iter().enumerate() {
            let to = if n == 0 { plain } else { alone };
            row.extend([
                format!("{:.2}", misses(run)),
                format!("{:.3}", slowdown(run, to)),
            ]);
        }
        let most = runs.iter().map(|run| run.vm.evicted).max();
        row.push(most.unwrap_or(0).to_string());
        let of_el2 = runs.iter().map(|run| run.el2.l2_misses.to_string());
        row.push(of_el2.collect::<Vec<_>>().join(" / "));
        table.row(row);
    }
    table.text("")
}

const WIDTH: u32 = 860;
const LEFT: u32 = 150;
const RIGHT: u32 = 70;
const TOP: u32 = 90;
const BAR: u32 = 13;
/// Height of a line of the note, and its characters.
const LINE: u32 = 15;
const NOTE: usize = 130;
/// Of the bars: without colours, then with.
const FILLS: [&str; 6] = [
    "#2a8f4f", "#c0392b", "#e59866", "#1f618d", "#5499c7", "#a9cce3",
];

/// An SVG document: the time of each work in each setting as a bar.
pub fn svg(runs: &[Run]) -> String {
    let rows: Vec<&[Run]> = by_work(runs).collect();
    let settings = rows.first().copied().unwrap_or_default();
    let row = BAR * u32::try_from(settings.len()).unwrap_or(0) + 14;
    let notes = wrapped(&BAO.text(), NOTE);
    let bottom = TOP + row * u32::try_from(rows.len()).unwrap_or(0) + 10;
    let height = bottom + LINE * u32::try_from(notes.len()).unwrap_or(0) + 10;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"16\" y=\"24\" font-size=\"16\" font-weight=\"bold\">What VMs do to each other through the shared cache: time by a model of caches, alone = 1</text>\n"
    );
    for ((n, run), colour) in (0..).zip(settings).zip(FILLS) {
        let (x, y) = (16 + 270 * (n % 3), 38 + 20 * (n / 3));
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"{}\">{}</text>",
            x + 18,
            y + 10,
            run.setting.name(),
        );
    }
    let all = rows.iter().filter_map(|runs| Some((runs, runs.first()?)));
    let longest = { all }
        .flat_map(|(runs, alone)| runs.iter().map(|run| slowdown(run, alone)))
        .fold(1.0, f64::max);
    let room = f64::from(WIDTH - LEFT - RIGHT);
    for (index, runs) in (0..).zip(rows) {
        let top = TOP + row * index;
        let Some(alone) = runs.first() else { continue };
        let _ = writeln!(
            text,
            "<text x=\"16\" y=\"{}\">{}</text>",
            top + 12,
            alone.work.name
        );
        for ((n, run), colour) in (0..).zip(runs).zip(FILLS) {
            let (y, times) = (top + BAR * n, slowdown(run, alone));
            let long = times / longest * room;
            let _ = writeln!(
                text,
                "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{long:.1}\" height=\"{}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{}\" fill=\"#222\" font-size=\"11\">{times:.2}</text>",
                BAR - 2,
                f64::from(LEFT) + long + 5.0,
                y + 10,
            );
        }
    }
    for (n, note) in (1..).zip(notes) {
        let _ = writeln!(
            text,
            "<text x=\"16\" y=\"{}\" fill=\"#555\" font-size=\"11\">{note}</text>",
            bottom + LINE * n
        );
    }
    text.push_str("</svg>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::super::run::{Setting, WORKS};
    use super::*;
    use bulkhead_plugin::caches::Counts;

    fn runs() -> Vec<Run> {
        let run = |setting, l2_misses, cycles, evicted| Run {
            work: WORKS[0],
            setting,
            vm: Counts {
                instructions: 2000,
                l2_misses,
                evicted,
                ..Counts::default()
            },
            el2: Counts {
                l2_misses: l2_misses / 2,
                ..Counts::default()
            },
            turn: 500,
            cycles,
        };
        let all = Setting::ALL.into_iter();
        let counts = [
            (1, 1000, 0),
            (50, 3000, 70),
            (20, 1500, 40),
            (4, 1200, 0),
            (6, 1260, 0),
            (4, 1200, 2),
        ];
        { all.zip(counts) }
            .map(|(setting, (misses, cycles, evicted))| run(setting, misses, cycles, evicted))
            .collect()
    }

    #[test]
    fn a_row_has_misses_and_times_of_all_settings() {
        let text = table(&runs());
        let rows = text.lines().filter(|line| line.contains("stride-256k"));
        let rows: Vec<String> = rows
            .map(|row| row.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            rows,
            [
                "stride-256k 2000 0.50 1.000 25.00 3.000 10.00 1.500 70 0 / 25 / 10",
                "stride-256k 2000 2.00 1.200 3.00 1.050 2.00 1.000 2 2 / 3 / 2"
            ]
        );
    }

    #[test]
    fn the_longest_bar_has_all_the_room() {
        let text = svg(&runs());
        assert!(text.contains("measured on hardware"), "{text}");
        assert!(text.contains("width=\"640.0\""), "{text}");
        assert!(
            text.contains("width=\"320.0\"") && text.contains("width=\"213.3\""),
            "{text}"
        );
    }
}
