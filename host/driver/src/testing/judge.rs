//! Compares what a console says with what a scenario expects. Pure: bytes in, keys and verdicts out.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_abi::console::ALL_STOPPED;
use bulkhead_abi::exit::ExitClass;
use bulkhead_runner::run::console::{ConsoleLine, ExitTable, Transcript};

use super::scenario::{Exits, Scenario, ScenarioEnd, Step};
use super::tally;

/// Watches one run of a scenario.
#[derive(Debug)]
pub struct Judge<'a> {
    scenario: &'a Scenario,
    /// Steps that have come, as indices.
    came: BTreeSet<usize>,
    /// Of each speaker the step that its line matched before the line was whole, and the line as it was.
    begun: BTreeMap<String, (usize, String)>,
    /// Index of the first step whose keys were not typed yet.
    typed: usize,
    /// Everything said so far.
    pub transcript: Transcript,
    broken: Vec<String>,
}

impl<'a> Judge<'a> {
    /// Returns a judge before the first byte.
    pub fn new(scenario: &'a Scenario) -> Self {
        Self {
            scenario,
            came: BTreeSet::new(),
            begun: BTreeMap::new(),
            typed: 0,
            transcript: Transcript::default(),
            broken: Vec::new(),
        }
    }

    /// Takes the next bytes of the console; returns the keys to type now.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        if bytes.is_empty() {
            return Vec::new();
        }
        let first = self.transcript.push(bytes);
        let lines = self.transcript.lines[first..].to_vec();
        for line in &lines {
            self.judge(line, false);
        }
        if let Some(line) = self.transcript.partial() {
            self.judge(&line, true);
        }
        self.keys()
    }

    /// Returns the keys that are typed now: in the order of the file, since which of two speakers is first may be the
    /// host's choice, and there is one keyboard.
    fn keys(&mut self) -> Vec<u8> {
        let mut keys = Vec::new();
        for (index, step) in self.scenario.steps.iter().enumerate().skip(self.typed) {
            if step.keys.is_some() && !self.came.contains(&index) {
                break;
            }
            keys.extend(step.keys.iter().flat_map(|keys| keys.bytes()));
            self.typed = index + 1;
        }
        keys
    }

    /// Whether the scenario ends here rather than with the power-off.
    pub fn finished(&self) -> bool {
        self.scenario.end == ScenarioEnd::LastStep && self.came.len() == self.scenario.steps.len()
    }

    /// Whether a line with this text has come.
    pub fn heard(&self, text: &str) -> bool {
        let lines = &self.transcript.lines;
        lines.iter().any(|line| line.text.contains(text))
    }

    /// Whether a line that has come fails the test already.
    pub fn has_failed(&self) -> bool {
        let lines = &self.transcript.lines;
        !self.broken.is_empty() || lines.iter().any(|line| line.text.starts_with("FAIL "))
    }

    /// Returns what did not come as it must; empty if the test passed. `powered_off` tells whether the emulator ended
    /// by itself and with success.
    pub fn verdict(mut self, powered_off: bool) -> (Vec<String>, Transcript) {
        self.transcript.finish();
        let mut wrong = std::mem::take(&mut self.broken);
        for (index, step) in self.scenario.steps.iter().enumerate() {
            if !self.came.contains(&index) {
                wrong.push(format!("`{}` never said `{}`", step.from, step.line));
            }
        }
        for vm in &self.scenario.done {
            wrong.extend(self.not_done(vm));
        }
        for (vm, names) in &self.scenario.passes {
            for name in names {
                let pass = format!("PASS {name}");
                if !self.transcript.of(vm).any(|text| text.trim_end() == pass) {
                    wrong.push(format!("`{vm}` never said `{pass}`"));
                }
            }
        }
        for (vm, line) in shown(self.scenario) {
            if !self.transcript.of(vm).any(|text| text.contains(line)) {
                wrong.push(format!("`{vm}` never said `{line}`"));
            }
        }
        for (vm, row) in &self.scenario.rows {
            let flaw = row.flaw(self.transcript.of(vm));
            wrong.extend(flaw.map(|flaw| format!("`{vm}`: {flaw}")));
        }
        for (vm, reason) in &self.scenario.stops {
            match self.transcript.end_of(vm) {
                Some(end) if end.reason.contains(reason) => {}
                Some(end) => wrong.push(format!(
                    "`{vm}` stopped with `{}` instead of `{reason}`",
                    end.reason
                )),
                None => wrong.push(format!("`{vm}` never stopped; expected: `{reason}`")),
            }
        }
        for expected in &self.scenario.exits {
            wrong.extend(self.not_so_many(expected));
        }
        for (vm, limits) in &self.scenario.shares {
            wrong.extend(self.not_its_share(vm, *limits));
        }
        for (vm, [least, most]) in &self.scenario.moves {
            let tables = self.transcript.exits.iter().filter(|table| table.vm == *vm);
            let moves: u64 = tables
                .filter_map(|table| table.time.as_ref())
                .map(|time| time.moves)
                .sum();
            if !(least..=most).contains(&&moves) {
                wrong.push(format!(
                    "`{vm}` was moved {moves} times instead of {least} to {most}"
                ));
            }
        }
        for (vm, [least, most]) in &self.scenario.slices {
            let tables = self.transcript.exits.iter().filter(|table| table.vm == *vm);
            let slices: u64 = tables
                .filter_map(|table| table.service)
                .map(|service| service.slices)
                .sum();
            if !(least..=most).contains(&&slices) {
                wrong.push(format!(
                    "`{vm}` had {slices} slices of the service thread instead of {least} to {most}"
                ));
            }
        }
        wrong.extend(self.transcript.exits.iter().filter_map(nonsense));
        for vm in &self.scenario.tally {
            wrong.extend(tally::flaws(&self.transcript, vm));
        }
        let said = self.transcript.of("el2").count();
        if let Some(most) = self.scenario.words
            && said > most
        {
            wrong.push(format!("EL2 said {said} lines, more than {most}"));
        }
        let stopped = self.transcript.of("el2");
        let stopped = stopped
            .filter(|text| text.trim_end() == ALL_STOPPED)
            .count();
        if stopped > 1 {
            wrong.push(format!("EL2 said `{ALL_STOPPED}` {stopped} times"));
        }
        // A guest's own failure counts whether or not the scenario asks for its DONE line.
        for line in &self.transcript.lines {
            if line.text.starts_with("FAIL ") {
                wrong.push(format!("`{}` said `{}`", line.speaker, line.text));
            }
        }
        if self.scenario.end == ScenarioEnd::PowerOff && !powered_off {
            wrong.push("the board was not powered off".to_owned());
        }
        (wrong, self.transcript)
    }

    fn judge(&mut self, line: &ConsoleLine, partial: bool) {
        let speaker = line.speaker.name();
        for never in &self.scenario.never {
            let from = never.from.as_deref().is_none_or(|from| from == speaker);
            if !partial && from && line.text.contains(&never.line) {
                self.broken
                    .push(format!("`{speaker}` said `{}`", line.text));
            }
        }
        // A line of which a part has matched a step does not match the same words of the next step once more.
        let begun = self.begun.get(speaker).cloned();
        let begun = begun.filter(|(_, text)| line.text.starts_with(text.as_str()));
        if !partial {
            self.begun.remove(speaker);
        }
        let mut steps = self.scenario.steps.iter().enumerate();
        let next = steps.find(|(index, step)| step.from == speaker && !self.came.contains(index));
        let Some((index, step)) = next else {
            return;
        };
        let same = |before: usize| self.scenario.steps[before].line == step.line;
        if Self::matches(step, line, partial) && !begun.is_some_and(|(before, _)| same(before)) {
            self.came.insert(index);
            if partial {
                let text = (index, line.text.clone());
                self.begun.insert(speaker.to_owned(), text);
            }
        }
    }

    fn matches(step: &Step, line: &ConsoleLine, partial: bool) -> bool {
        (!partial || step.keys.is_some()) && line.text.contains(&step.line)
    }

    fn not_so_many(&self, expected: &Exits) -> Option<String> {
        let Exits {
            vm,
            class,
            least,
            most,
        } = expected;
        let tables = || self.transcript.exits.iter().filter(|table| table.vm == *vm);
        if tables().next().is_none() {
            return Some(format!("there are no statistics of `{vm}`"));
        }
        let count: u64 = tables()
            .map(|table| match class {
                Some(class) => table.count(class),
                None => table.exits(),
            })
            .sum();
        let class = class.as_deref().unwrap_or("exits in all");
        if expected.class.is_some() && ExitClass::of_name(class).is_none() {
            return Some(format!("there is no class of exits `{class}`"));
        }
        if count < *least {
            return Some(format!("`{vm}` has {count} {class}, less than {least}"));
        }
        let most = most.filter(|most| count > *most)?;
        Some(format!("`{vm}` has {count} {class}, more than {most}"))
    }

    fn not_its_share(&self, vm: &str, [least, most]: [f64; 2]) -> Option<String> {
        let mut tables = self.transcript.exits.iter().filter(|table| table.vm == vm);
        let Some(time) = tables.find_map(|table| table.time.as_ref()) else {
            return Some(format!("EL2 said nothing about the CPU time of `{vm}`"));
        };
        let had = time.percent();
        (!(least..=most).contains(&had))
            .then(|| format!("`{vm}` had {had:.2} % of its pCPU instead of {least} to {most} %"))
    }

    fn not_done(&self, vm: &str) -> Option<String> {
        let Some(done) = self
            .transcript
            .of(vm)
            .find_map(|text| text.strip_prefix("DONE "))
        else {
            return Some(format!("`{vm}` never said DONE"));
        };
        // "<passed> passed, <failed> failed"
        let words: Vec<_> = done.split_ascii_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u32>().ok());
        match (number(0), number(2)) {
            (Some(1..), Some(0)) => None,
            _ => Some(format!("`{vm}` said `DONE {done}`")),
        }
    }
}

/// The lines that are shown with the result, each with its VM.
fn shown(scenario: &Scenario) -> impl Iterator<Item = (&String, &String)> {
    let shows = scenario.shows.iter();
    shows.flat_map(|(vm, lines)| lines.iter().map(move |line| (vm, line)))
}

/// Returns what a run has said that is shown with its result: a text behind it, or nothing.
pub fn results(scenario: &Scenario, transcript: &Transcript) -> String {
    let lines = shown(scenario).flat_map(|(vm, line)| {
        let said = transcript.of(vm).filter(move |text| text.contains(line));
        said.map(|text| format!("; {}", text.trim()))
    });
    lines.collect()
}

/// Returns what cannot be in a vCPU's report of CPU time, whatever ran.
fn nonsense(table: &ExitTable) -> Option<String> {
    let time = table.time.as_ref()?;
    let waits: u64 = time.waits.iter().map(|waits| waits.count).sum();
    let why = if time.ran_ns + time.stolen_ns > time.of_ns {
        "more time than there was"
    } else if waits > time.turns {
        "more waits than turns"
    } else if time.longest_ns > time.stolen_ns {
        "a wait longer than all waits"
    } else {
        return None;
    };
    Some(format!("EL2 reports {why} of `{}`: {time:?}", table.vm))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(text: &str) -> Scenario {
        toml::from_str(&format!("claim = \"c.\"\nsystem = \"s\"\n{text}")).unwrap()
    }

    fn wrong(scenario: &Scenario, console: &str, powered_off: bool) -> Vec<String> {
        let mut judge = Judge::new(scenario);
        judge.push(console.as_bytes());
        judge.verdict(powered_off).0
    }

    const SHELL: &str = "[[step]]\nfrom = \"linux\"\nline = \"~ # \"\nkeys = \"poweroff\\n\"\n\
        [[step]]\nfrom = \"linux\"\nline = \"Power down\"\n";

    #[test]
    fn a_prompt_is_answered_once() {
        let scenario = scenario(SHELL);
        let mut judge = Judge::new(&scenario);
        assert_eq!(judge.push(b"[linux] Power down is not now\r\n"), b"");
        assert_eq!(judge.push(b"[linux] ~ # "), b"poweroff\n");
        assert_eq!(judge.push(b"poweroff\r\n[linux] ~ # "), b"");
        assert_eq!(judge.push(b"\r\n[linux] reboot: Power down\r\n"), b"");
        assert_eq!(judge.verdict(true).0, [""; 0]);
    }

    #[test]
    fn keys_are_typed_in_the_order_of_the_file() {
        let scenario = scenario(
            "[[step]]\nfrom = \"a\"\nline = \"one\"\nkeys = \"1\"\n\
             [[step]]\nfrom = \"c\"\nline = \"three\"\n\
             [[step]]\nfrom = \"b\"\nline = \"two\"\nkeys = \"2\"\n",
        );
        let mut judge = Judge::new(&scenario);
        assert_eq!(judge.push(b"[b] two\n"), b"");
        assert_eq!(judge.push(b"[a] one\n"), b"12");
        assert_eq!(judge.push(b"[a] one\n[c] three\n"), b"");
    }

    #[test]
    fn a_prompt_and_the_line_that_it_becomes_are_one_step() {
        let step = "[[step]]\nfrom = \"a\"\nline = \"# \"\nkeys = \"x\"\n";
        let scenario = scenario(&step.repeat(2));
        let mut judge = Judge::new(&scenario);
        assert_eq!(judge.push(b"[a] # "), b"x");
        assert_eq!(judge.push(b"l"), b"");
        assert_eq!(judge.push(b"s\n[a] file\n"), b"");
        assert_eq!(judge.push(b"[a] # "), b"x");
        assert_eq!(wrong(&scenario, "[a] # ls\n", true).len(), 1);
        assert_eq!(wrong(&scenario, "[a] # ls\n[a] # \n", true), [""; 0]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let scenario = scenario(SHELL);
        assert_eq!(
            wrong(&scenario, "[linux] ~ # \r\n[control] Power down\r\n", false),
            [
                "`linux` never said `Power down`",
                "the board was not powered off"
            ]
        );
    }

    #[test]
    fn a_failure_is_known_before_the_end() {
        let text = "done = [\"a\"]\n[[never]]\nline = \"bad\"\n";
        let scenario = scenario(text);
        for (said, failed) in [("PASS x", false), ("FAIL x: y", true), ("a bad end", true)] {
            let mut judge = Judge::new(&scenario);
            judge.push(format!("[a] {said}\r\n").as_bytes());
            assert_eq!(judge.has_failed(), failed, "{said}");
        }
    }

    #[test]
    fn speakers_do_not_wait_for_each_other() {
        let scenario = scenario(
            "[[step]]\nfrom = \"a\"\nline = \"one\"\n[[step]]\nfrom = \"b\"\nline = \"two\"\n",
        );
        assert_eq!(wrong(&scenario, "[b] two\n[a] one\n", true), [""; 0]);
    }

    #[test]
    fn a_guests_failure_counts_and_so_does_silence() {
        let scenario = scenario("done = [\"a\"]");
        assert_eq!(
            wrong(&scenario, "[a] PASS x\n[a] DONE 1 passed, 0 failed\n", true),
            [""; 0]
        );
        assert_eq!(
            wrong(
                &scenario,
                "[a] FAIL x: 1 is not 2\n[a] DONE 0 passed, 1 failed\n",
                true
            ),
            [
                "`a` said `DONE 0 passed, 1 failed`",
                "`a` said `FAIL x: 1 is not 2`"
            ]
        );
        assert_eq!(
            wrong(&scenario, "[b] DONE 1 passed, 0 failed\n", true),
            ["`a` never said DONE"]
        );
        assert_eq!(
            wrong(&scenario, "[a] DONE 0 passed, 0 failed\n", true),
            ["`a` said `DONE 0 passed, 0 failed`"]
        );
    }

    #[test]
    fn what_was_measured_is_shown_and_missed() {
        let scenario = scenario("shows = { a = [\"waited\"] }");
        let mut judge = Judge::new(&scenario);
        judge.push(b"[a] 7 waited\r\n[b] 8 waited\r\n[a] none\r\n[a] 9 waited\r\n");
        let (wrong_then, transcript) = judge.verdict(true);
        assert_eq!(wrong_then, [""; 0]);
        assert_eq!(results(&scenario, &transcript), "; 7 waited; 9 waited");
        assert_eq!(
            wrong(&scenario, "[b] 8 waited\n", true),
            ["`a` never said `waited`"]
        );
    }

    #[test]
    fn a_check_that_no_longer_runs_is_missed() {
        let scenario = scenario("done = [\"a\"]\npasses = { a = [\"x\", \"y\"] }");
        assert_eq!(
            wrong(&scenario, "[a] PASS x\n[a] DONE 1 passed, 0 failed\n", true),
            ["`a` never said `PASS y`"]
        );
    }

    #[test]
    fn the_reason_of_a_stop_counts() {
        let scenario = scenario("stops = { bad = \"data abort\", good = \"power off\" }");
        assert_eq!(
            wrong(&scenario, "[el2] vm bad stopped: power off\r\n", true),
            [
                "`bad` stopped with `power off` instead of `data abort`",
                "`good` never stopped; expected: `power off`"
            ]
        );
    }

    #[test]
    fn a_forbidden_line_fails_the_test() {
        let scenario = scenario("done = [\"a\"]\nnever = [{ line = \"panic\" }]");
        assert_eq!(
            wrong(
                &scenario,
                "[b] kernel panic\n[a] DONE 1 passed, 0 failed\n",
                true
            ),
            ["`b` said `kernel panic`"]
        );
    }

    #[test]
    fn el2_may_not_say_more_than_so_many_lines() {
        let scenario = scenario("done = [\"a\"]\nwords = 1");
        let done = "[a] PASS x\n[a] DONE 1 passed, 0 failed\n";
        let console = format!("[el2] one\n{done}");
        assert_eq!(wrong(&scenario, &console, true), [""; 0]);
        assert_eq!(
            wrong(&scenario, &format!("[el2] two\n{console}"), true),
            ["EL2 said 2 lines, more than 1"]
        );
    }

    #[test]
    fn the_last_step_may_be_the_end() {
        let scenario = scenario("end = \"last-step\"\n[[step]]\nfrom = \"a\"\nline = \"x\"\n");
        let mut judge = Judge::new(&scenario);
        assert!(!judge.finished());
        judge.push(b"[a] x\n");
        assert!(judge.finished());
        assert_eq!(judge.verdict(false).0, [""; 0]);
    }

    #[test]
    fn the_last_vm_stops_once() {
        let scenario = scenario("done = []");
        let line = format!("[el2] {ALL_STOPPED}\r\n");
        assert_eq!(wrong(&scenario, &line, true), [""; 0]);
        assert_eq!(
            wrong(&scenario, &line.repeat(2), true),
            ["EL2 said `all VMs stopped` 2 times"]
        );
    }

    #[test]
    fn moves_are_those_of_all_vcpus_of_a_vm() {
        let scenario = scenario("done = []\nmoves = { a = [5, 6] }");
        let console = |moves: [u64; 2]| {
            let one = |vcpu: usize| {
                let times = "ran=1 of=9 stolen=1 longest=1 turns=4 overruns=0";
                format!(
                    "[el2] exits vm=a vcpu={vcpu}\r\n[el2]   time {times} moves={}\r\n",
                    moves[vcpu]
                )
            };
            one(0) + &one(1)
        };
        assert_eq!(wrong(&scenario, &console([2, 3]), true), [""; 0]);
        assert_eq!(
            wrong(&scenario, &console([4, 3]), true),
            ["`a` was moved 7 times instead of 5 to 6"]
        );
        assert_eq!(
            wrong(&scenario, "", true),
            ["`a` was moved 0 times instead of 5 to 6"]
        );
    }

    #[test]
    fn time_on_a_shared_pcpu_is_held_against_its_limits() {
        let scenario = scenario("done = []\nshares = { a = [20, 30] }");
        let console = |times: &str| {
            format!("[el2] exits vm=a vcpu=0\r\n[el2]   time {times}\r\n[el2]   waits 16=4\r\n")
        };
        let verdict = |times: &str| wrong(&scenario, &console(times), true);
        let sound = "of=100 stolen=70 longest=9 turns=4";
        assert_eq!(verdict(&format!("ran=25 {sound}")), [""; 0]);
        assert_eq!(
            verdict(&format!("ran=19 {sound}")),
            ["`a` had 19.00 % of its pCPU instead of 20 to 30 %"]
        );
        assert_eq!(
            wrong(&scenario, "", true),
            ["EL2 said nothing about the CPU time of `a`"]
        );
        for (times, why) in [
            ("ran=30 of=100 stolen=71 longest=9 turns=4", "more time"),
            ("ran=25 of=100 stolen=70 longest=9 turns=3", "more waits"),
            (
                "ran=25 of=100 stolen=70 longest=71 turns=4",
                "a wait longer",
            ),
        ] {
            let wrong = verdict(times);
            assert!(wrong.len() == 1 && wrong[0].contains(why), "{wrong:?}");
        }
    }

    #[test]
    fn statistics_are_added_up_over_vcpus() {
        let scenario =
            |limits: &str| scenario(&format!("[[exits]]\nvm = \"a\"\nclass = \"sgi\"\n{limits}"));
        let console = "[el2] exits vm=a vcpu=0\r\n[el2]   sgi 3 1 1 1 3 0 0.1\r\n\
            [el2] exits vm=a vcpu=1\r\n[el2]   sgi 4 1 1 1 4 0 0.1\r\n";
        let verdict = |limits: &str| wrong(&scenario(limits), console, true);
        assert_eq!(verdict("least = 7\nmost = 7"), [""; 0]);
        assert_eq!(verdict("least = 8"), ["`a` has 7 sgi, less than 8"]);
        assert_eq!(verdict("most = 6"), ["`a` has 7 sgi, more than 6"]);
        assert_eq!(
            wrong(&scenario("most = 6"), "", true),
            ["there are no statistics of `a`"]
        );
        let misspelt = self::scenario("[[exits]]\nvm = \"a\"\nclass = \"sgis\"\nmost = 6");
        let why = ["there is no class of exits `sgis`"];
        assert_eq!(wrong(&misspelt, console, true), why);
    }
}
