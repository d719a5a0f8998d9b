//! The runs as a table and as a picture.

use std::fmt::Write as _;

use bulkhead_runner::columns::{Column, Columns};

use super::run::{Run, Setting};

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

/// A table: for each work, the misses of the L2 and the cycles in each setting.
pub fn table(runs: &[Run]) -> String {
    let settings = runs.chunk_by(|a, b| a.work == b.work).next();
    let settings = settings.unwrap_or_default();
    let mut columns = vec![Column::Left(0), Column::Right(0)];
    columns.extend(settings.iter().flat_map(|_| [Column::Right(0); 2]));
    columns.push(Column::Right(0));
    let mut table = Columns::new(&columns);
    let short = |setting: Setting| match setting {
        Setting::Solo => "solo".to_owned(),
        Setting::Beside { tick } => format!("{tick} us"),
    };
    let mut head = vec!["work".to_owned(), "instructions".to_owned()];
    for run in settings {
        head.extend([format!("misses, {}", short(run.setting)), "time".to_owned()]);
    }
    head.push("evicted".to_owned());
    table.row(head);
    for runs in by_work(runs) {
        let Some(alone) = runs.first() else { continue };
        let mut row = vec![
            alone.work.name.to_owned(),
            alone.vm.instructions.to_string(),
        ];
        for run in runs {
            row.extend([
                format!("{:.2}", misses(run)),
                format!("{:.3}", slowdown(run, alone)),
            ]);
        }
        let most = runs.iter().map(|run| run.vm.evicted).max();
        row.push(most.unwrap_or(0).to_string());
        table.row(row);
    }
    let mean = |of: &Run| {
        let alike = runs.iter().filter(|run| run.setting == of.setting);
        let turns: Vec<u64> = alike.map(|run| run.turn).collect();
        turns.iter().sum::<u64>() / turns.len().max(1) as u64
    };
    let turns = settings.iter().skip(1).map(|run| mean(run).to_string());
    format!(
        "{}\nmisses: of the shared L2, in a thousand instructions; time: cycles of the model, alone = 1; evicted: lines that left the L2 for another VM's or EL2's, at most.\n\
         Beside three VMs that write a word in each line of 512 KiB, with a tick of so many microseconds each: it ends the turns of the emulator's CPUs, which had {} instructions on average.\n",
        table.text(""),
        turns.collect::<Vec<_>>().join(" and ")
    )
}

const WIDTH: u32 = 860;
const LEFT: u32 = 150;
const RIGHT: u32 = 70;
const TOP: u32 = 70;
const BAR: u32 = 13;
const COLOURS: [&str; 3] = ["#2a8f4f", "#c0392b", "#e59866"];

/// An SVG document: the time of each work in each setting as a bar.
pub fn svg(runs: &[Run]) -> String {
    let rows: Vec<&[Run]> = by_work(runs).collect();
    let settings = rows.first().copied().unwrap_or_default();
    let row = BAR * u32::try_from(settings.len()).unwrap_or(0) + 14;
    let height = TOP + row * u32::try_from(rows.len()).unwrap_or(0) + 10;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"16\" y=\"24\" font-size=\"16\" font-weight=\"bold\">What VMs do to each other through the shared cache: time by a model of caches, alone = 1</text>\n"
    );
    for ((n, run), colour) in (0..).zip(settings).zip(COLOURS) {
        let x = 16 + 240 * n;
        let _ = writeln!(
            text,
            "<rect x=\"{x}\" y=\"38\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{}\" y=\"48\">{}</text>",
            x + 18,
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
        for ((n, run), colour) in (0..).zip(runs).zip(COLOURS) {
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
    text.push_str("</svg>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::super::run::WORKS;
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
            el2: Counts::default(),
            turn: 500,
            cycles,
        };
        let [solo, short, long] = Setting::ALL;
        vec![
            run(solo, 1, 1000, 0),
            run(short, 50, 3000, 70),
            run(long, 20, 1500, 40),
        ]
    }

    #[test]
    fn a_row_has_misses_and_times_of_all_settings() {
        let text = table(&runs());
        let row = text.lines().nth(1).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(
            words,
            [
                "stride-256k",
                "2000",
                "0.50",
                "1.000",
                "25.00",
                "3.000",
                "10.00",
                "1.500",
                "70"
            ]
        );
    }

    #[test]
    fn the_longest_bar_has_all_the_room() {
        let text = svg(&runs());
        assert!(text.contains("width=\"640.0\""), "{text}");
        assert!(
            text.contains("width=\"320.0\"") && text.contains("width=\"213.3\""),
            "{text}"
        );
    }
}
