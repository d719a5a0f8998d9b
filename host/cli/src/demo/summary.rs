//! Result of a demo: what Bulkhead adds, apart from what the emulator adds.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::json;

use bulkhead_planner::show::{Parts, fill};
use bulkhead_runner::profile::Periods;
use bulkhead_runner::run::RunSummary;
use bulkhead_runner::run::console::{ExitTable, Served, VmEnd};

use super::progress::{CPU_LOAD, Control, LINUXES, Latency, Pings, Progress, Traffic, VMS};

/// Most instructions that EL2 may take of one period of the control loop if each of its interrupts is an exit. If it takes
/// them itself, none.
const EL2_BUDGET: u64 = 300;

/// EL2 on the pCPU of the control loop, period by period, counted by the profiler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct El2Periods {
    /// Whole periods seen.
    pub count: u64,
    /// Most EL2 instructions in one.
    pub max: u64,
    /// Exits in all of them together.
    pub exits: u64,
    /// Most EL2 instructions that there may be in one.
    pub allowed: u64,
    /// Number of periods by EL2 instructions in them.
    pub histogram: BTreeMap<u64, u64>,
}

impl El2Periods {
    /// Returns the counts of a loop that is a GPPT VM (`by_guest`), or not.
    pub fn new(periods: Periods, by_guest: bool) -> Self {
        Self {
            count: periods.count,
            max: periods.max,
            exits: periods.exits,
            allowed: if by_guest { 0 } else { EL2_BUDGET },
            histogram: periods.histogram,
        }
    }
}

/// Result of a demo.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Seconds of work that were asked for, in the guests' time.
    pub seconds: u64,
    /// Report of the loop at its end, or the last one that Linux read.
    pub control: Option<Control>,
    /// Report of cyclictest in the real-time Linux.
    pub latency: Option<Latency>,
    /// Share of the CPU of the VMs that share one, in their words.
    pub cpu_load: [Option<String>; 2],
    /// What the two Linuxes moved through their disks and the network.
    pub traffic: [Option<Traffic>; 2],
    /// Pings that the control loop was sent through its polled network.
    pub pings: Option<Pings>,
    /// What disks and ports of the switch have done, in the words of the VM that serves them.
    pub served: Served,
    /// Instructions of EL2 in the loop's periods.
    pub el2: Option<El2Periods>,
    /// Ends of VMs.
    pub ended: Vec<VmEnd>,
    /// EL2's own exit statistics.
    pub exits: Vec<ExitTable>,
    /// The same by VM and by class of VM.
    pub run: RunSummary,
    /// Results that are not as they should be.
    pub findings: Vec<String>,
}

impl Summary {
    /// Judges what the console said and the profiler counted. `classes`: class of each VM by name; `whole` tells whether the demo ran to
    /// the power-off; a user may end it before.
    pub fn new(
        progress: &Progress,
        classes: &BTreeMap<String, String>,
        el2: Option<El2Periods>,
        whole: bool,
    ) -> Self {
        let control = progress
            .last_words
            .clone()
            .or_else(|| progress.seen.clone());
        let mut summary = Self {
            seconds: progress.seconds(),
            control,
            latency: progress.latency.clone(),
            cpu_load: progress.cpu_load.clone(),
            traffic: progress.traffic.clone(),
            pings: progress.pings,
            served: progress.transcript.served.clone(),
            el2,
            ended: progress.transcript.ended.clone(),
            exits: progress.transcript.exits.clone(),
            run: RunSummary::new(&progress.transcript.exits, classes),
            findings: Vec::new(),
        };
        summary.judge(progress, whole);
        summary
    }

    /// Whether nothing is wrong.
    pub fn passed(&self) -> bool {
        self.findings.is_empty()
    }

    fn judge(&mut self, progress: &Progress, whole: bool) {
        let mut wrong = Vec::new();
        if let Some((invariant, place)) = &progress.transcript.refused {
            wrong.push(format!("EL2 refused the plan: {invariant}: {place}"));
        }
        if let Some(control) = &self.control {
            if control.lost > 0 {
                wrong.push(format!("the loop lost {} periods", control.lost));
            }
            if control.doubled > 0 {
                wrong.push(format!("{} periods came twice", control.doubled));
            }
            if whole && control.periods < self.seconds * 1000 {
                let asked = self.seconds * 1000;
                wrong.push(format!(
                    "the loop ran {} periods instead of {asked}",
                    control.periods
                ));
            }
        } else if whole {
            wrong.push("nothing was heard of the control loop".to_owned());
        }
        let counts = |said: &Option<Control>| {
            let said = said.as_ref()?;
            Some((said.periods, said.lost, said.doubled))
        };
        if whole && counts(&progress.seen) != counts(&progress.last_words) {
            wrong.push(
                "what came of the loop's last report by the channel is not what it said".to_owned(),
            );
        }
        match &self.el2 {
            Some(el2) if el2.max > el2.allowed => wrong.push(format!(
                "EL2 took {} instructions of one period; {} are allowed",
                el2.max, el2.allowed
            )),
            Some(el2) if whole && el2.count < self.seconds * 1000 => {
                wrong.push(format!("the profiler saw {} periods only", el2.count));
            }
            None if whole => wrong.push("the profiler counted nothing".to_owned()),
            _ => {}
        }
        if whole && self.latency.is_none() {
            wrong.push("nothing was heard of cyclictest".to_owned());
        }
        for (vm, had) in CPU_LOAD.iter().zip(&self.cpu_load) {
            if whole && had.is_none() {
                wrong.push(format!("nothing was heard of the work of `{vm}`"));
            }
        }
        self.judge_devices(whole, &mut wrong);
        for end in self.ended.iter().filter(|end| !end.orderly()) {
            wrong.push(format!("VM `{}` stopped: {}", end.vm, end.reason));
        }
        if whole {
            for vm in VMS {
                if progress.transcript.end_of(vm).is_none() {
                    wrong.push(format!("VM `{vm}` did not power off"));
                }
            }
        }
        self.findings = wrong;
    }

    /// Everything that was moved came back, and all that was asked was answered.
    fn judge_devices(&self, whole: bool, wrong: &mut Vec<String>) {
        for (vm, moved) in LINUXES.iter().zip(&self.traffic) {
            match moved {
                Some(moved) if moved.wrong > 0 => {
                    wrong.push(format!("`{vm}` got other data {} times", moved.wrong));
                }
                Some(moved) if moved.disk_kib == 0 => {
                    wrong.push(format!("`{vm}` moved nothing through its disk"));
                }
                None if whole => {
                    wrong.push(format!("nothing was heard of the devices of `{vm}`"));
                }
                _ => {}
            }
        }
        match self.pings {
            // The last one may be under way when the count ends.
            Some(pings) if pings.sent > pings.answered + 1 || pings.answered == 0 => {
                wrong.push(format!(
                    "the loop answered {} of {} pings",
                    pings.answered, pings.sent
                ));
            }
            None if whole => wrong.push("nobody has pinged the loop".to_owned()),
            _ => {}
        }
        if whole && self.served.is_empty() {
            wrong.push("nothing was heard of who serves disks and networks".to_owned());
        }
    }

    /// For a terminal or a log.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |words: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{words}");
        };
        line(format!(
            "Summary of {} s of work in Linux beside the others",
            self.seconds
        ));
        if let Some(c) = &self.control {
            line(format!(
                "  control   {} periods at 1 kHz, {} lost, {} doubled",
                c.periods, c.lost, c.doubled
            ));
        }
        if let Some(pings) = &self.pings {
            line(format!(
                "            {} of {} pings answered, by a network at which it looks once in a period",
                pings.answered, pings.sent
            ));
        }
        for (vm, moved) in LINUXES.iter().zip(&self.traffic) {
            if let Some(moved) = moved {
                let through = match moved.net_kib {
                    0 => String::new(),
                    kib => format!(", {kib} KiB to {} and back", LINUXES[1]),
                };
                line(format!(
                    "  {vm:<9} {} KiB to its disk and back{through}, all compared: {} wrong",
                    moved.disk_kib, moved.wrong
                ));
            }
        }
        for (vm, had) in CPU_LOAD.iter().zip(&self.cpu_load) {
            if let Some(had) = had {
                line(format!(
                    "  {vm:<9} {had} of CPU 2; what neither had, the emulator's other CPUs did"
                ));
            }
        }
        if let Some(l) = &self.latency {
            line(format!("  rt        {} wake-ups of cyclictest", l.wakeups));
        }
        line("  What Bulkhead adds".to_owned());
        match &self.el2 {
            Some(el2) => line(format!(
                "    EL2 took at most {} instructions of a period ({} allowed): {} exits in {} periods",
                el2.max, el2.allowed, el2.exits, el2.count
            )),
            None => line(
                "    instructions of EL2 for each period: counted until the end of the run"
                    .to_owned(),
            ),
        }
        let mut tables = String::new();
        if !self.run.is_empty() {
            tables += &self.run.text();
        }
        if !self.served.is_empty() {
            tables += &self.served.text();
        }
        for row in tables.lines() {
            line(format!("  {row}"));
        }
        if let Some(c) = &self.control {
            line(
                "  What the emulator adds (its CPUs take turns; no figure of Bulkhead)".to_owned(),
            );
            line(format!(
                "    lateness of control: min {} ns, mean {} ns, max {} ns",
                c.late_min, c.late_avg, c.late_max
            ));
        }
        if let Some(l) = &self.latency {
            line(format!(
                "    cyclictest of rt, the kernel's own latency included: min {} us, mean {} us, max {} us",
                l.late_min, l.late_avg, l.late_max
            ));
        }
        for finding in &self.findings {
            line(format!("  WRONG: {finding}"));
        }
        text
    }

    /// The same as a page for the browser, in the manner of the page of a plan.
    pub fn html(&self) -> String {
        let verdict = if self.passed() { "passed" } else { "failed" };
        fill(&Parts {
            title: &format!("Bulkhead demo: {verdict}"),
            same: "bulkhead demo",
            data: &json!({ "summary": self, "text": self.text() }),
            script: include_str!("summary.js"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(lost: u64) -> Progress {
        let mut progress = Progress::new(2, false);
        progress.push(b"[rt] latency: ready\r\n[linux] / # ");
        progress.push(
            format!(
                "\r\n[control] control: periods=2005 lost={lost} doubled=0 late_ns min=1 avg=2 max=3000000\r\n\
                 [linux] control: periods=2005 lost={lost} doubled=0 late_ns min=1 avg=2 max=3000000 ended\r\n\
                 [linux] demo: done\r\n[el2] vm control stopped: power off\r\n\
                 [large] cpu-load: had 2 ms in 3 ms\r\n[small] cpu-load: had 1 ms in 3 ms\r\n\
                 [rt] cyclictest: wakeups=2000 late_us min=3 avg=4 max=50\r\n\
                 [rt] traffic: disk_kib=512 net_kib=0 wrong=0\r\n[linux] traffic: disk_kib=256 net_kib=256 wrong=0\r\n\
                 [linux] pings: sent=20 answered=20\r\n\
                 [service] port 0, linux in lan: sent 60 bytes in 1, received 0 in 0, dropped 0\r\n\
                 [el2] vm large stopped: power off\r\n[el2] vm small stopped: power off\r\n\
                 [el2] vm rt stopped: power off\r\n[el2] vm linux stopped: power off\r\n"
            )
            .as_bytes(),
        );
        progress
    }

    fn el2(max: u64) -> Option<El2Periods> {
        Some(El2Periods::new(
            Periods {
                count: 2004,
                max,
                exits: 2004,
                histogram: BTreeMap::from([(82, 2003), (max, 1)]),
            },
            false,
        ))
    }

    #[test]
    fn a_loop_that_takes_its_interrupts_itself_may_lose_nothing_to_el2() {
        let judged = |max, exits| {
            let periods = Periods {
                count: 2004,
                max,
                exits,
                histogram: BTreeMap::from([(max, 2004)]),
            };
            let el2 = Some(El2Periods::new(periods, true));
            Summary::new(&progress(0), &BTreeMap::new(), el2, true)
        };
        let summary = judged(0, 0);
        assert_eq!(summary.findings, [""; 0]);
        assert!(
            summary
                .text()
                .contains("0 instructions of a period (0 allowed): 0 exits in 2004 periods")
        );
        assert_eq!(
            judged(62, 1).findings,
            ["EL2 took 62 instructions of one period; 0 are allowed"]
        );
    }

    #[test]
    fn lateness_alone_is_no_failure() {
        let summary = Summary::new(&progress(0), &BTreeMap::new(), el2(300), true);
        assert_eq!(summary.findings, [""; 0]);
        assert!(summary.text().contains("max 3000000 ns"));
    }

    #[test]
    fn the_page_draws_all_that_the_summary_has_for_any_window() {
        let summary = Summary::new(&progress(1), &BTreeMap::new(), el2(300), true);
        let page = summary.html();
        assert!(page.contains("<title>Bulkhead demo: failed</title>"));
        for words in [
            "name=\"viewport\"",
            "prefers-color-scheme: dark",
            "max-width: 640px",
        ] {
            assert!(page.contains(words), "{words}");
        }
        for word in ["http:", "https:", "@import", "src="] {
            assert!(!page.contains(word), "{word}");
        }
        let data = page.split("id=\"data\">").nth(1).unwrap();
        let data: serde_json::Value =
            serde_json::from_str(data.split("</script>").next().unwrap()).unwrap();
        assert_eq!(data["summary"]["el2"]["histogram"]["82"], 2003);
        assert_eq!(data["summary"]["findings"][0], "the loop lost 1 periods");
        // What the script draws is there by that name.
        for (table, keys) in [
            (
                &data["summary"],
                &[
                    "seconds", "control", "latency", "traffic", "pings", "served", "el2", "ended",
                    "run",
                ][..],
            ),
            (
                &data["summary"]["control"],
                &[
                    "periods", "lost", "doubled", "late_min", "late_avg", "late_max",
                ],
            ),
            (
                &data["summary"]["el2"],
                &["count", "max", "exits", "allowed"],
            ),
            (&data["summary"]["served"], &["disks", "ports"]),
            (
                &data["summary"]["served"]["ports"][0],
                &["vm", "network", "sent", "sent_bytes", "received", "dropped"],
            ),
        ] {
            for key in keys {
                assert!(!table[key].is_null(), "{key}: {table}");
            }
        }
    }

    #[test]
    fn a_lost_period_and_a_budget_overrun_are() {
        let summary = Summary::new(&progress(1), &BTreeMap::new(), el2(301), true);
        assert_eq!(
            summary.findings,
            [
                "the loop lost 1 periods",
                "EL2 took 301 instructions of one period; 300 are allowed"
            ]
        );
    }

    #[test]
    fn silence_is_a_failure_unless_the_user_left_early() {
        let silent = Progress::new(2, false);
        assert_eq!(
            Summary::new(&silent, &BTreeMap::new(), None, true)
                .findings
                .len(),
            14
        );
        assert!(Summary::new(&silent, &BTreeMap::new(), None, false).passed());
    }

    #[test]
    fn data_that_changed_and_pings_without_an_answer_are() {
        let mut bad = progress(0);
        let moved = bad.traffic[1].as_mut().unwrap();
        (moved.wrong, moved.disk_kib) = (2, 0);
        bad.traffic[0].as_mut().unwrap().disk_kib = 0;
        bad.pings = Some(Pings {
            sent: 20,
            answered: 18,
        });
        let summary = Summary::new(&bad, &BTreeMap::new(), el2(300), true);
        assert_eq!(
            summary.findings,
            [
                "`linux` moved nothing through its disk",
                "`rt` got other data 2 times",
                "the loop answered 18 of 20 pings",
            ]
        );
        let text = Summary::new(&progress(0), &BTreeMap::new(), el2(300), true).text();
        for words in [
            "20 of 20 pings answered",
            "linux     256 KiB to its disk and back, 256 KiB to rt and back, all compared: 0 wrong",
            "rt        512 KiB to its disk and back, all compared",
            "linux in lan",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn too_few_periods_prove_nothing() {
        let mut early = progress(0);
        early.last_words = Some(Control {
            periods: 1999,
            ..Control::default()
        });
        early.seen = early.last_words.clone();
        let summary = Summary::new(&early, &BTreeMap::new(), el2(100), true);
        assert_eq!(
            summary.findings,
            ["the loop ran 1999 periods instead of 2000"]
        );
    }

    #[test]
    fn a_last_report_that_did_not_come_by_the_channel_is_one() {
        for seen in [
            None,
            Some(Control {
                periods: 2004,
                ..Control::default()
            }),
        ] {
            let mut lost = progress(0);
            lost.seen = seen;
            let findings = |whole| Summary::new(&lost, &BTreeMap::new(), el2(100), whole).findings;
            let why = "what came of the loop's last report by the channel is not what it said";
            assert_eq!(findings(true), [why]);
            assert_eq!(findings(false), [""; 0], "the user may have left before");
        }
    }
}
