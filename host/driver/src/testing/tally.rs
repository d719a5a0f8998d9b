//! A guest's own counts against EL2's statistics.
//!
//! The guest says `TALLY class=N class~N class>=N ...`, once, near its end: how often it did what EL2 counts in that
//! class, on all its CPUs. `=` is the same number; `~` is at least that many and hardly more, for a guest that goes on
//! after it has counted; `>=` is at least that many. Two are no classes: `characters` is what it has said before, white space
//! left out (a line that waits too long for its end comes in two); `elapsed-us` is how long its first CPU has run.

use bulkhead_runner::run::console::Transcript;

/// Allowance of `~` above the number that was said: a hundredth, and this.
const SLACK: u64 = 1000;
/// Cycles in a microsecond: QEMU's cycle counter counts nanoseconds of the guests' clock.
const CYCLES: u64 = 1000;

/// Returns the counts that do not agree.
pub fn flaws(transcript: &Transcript, vm: &str) -> Vec<String> {
    let mut lines = transcript.of(vm);
    let (mut before, mut said) = (0, None);
    for line in &mut lines {
        said = line.trim_end().strip_prefix("TALLY ");
        if said.is_some() {
            break;
        }
        let visible = line.chars().filter(|c| !c.is_whitespace());
        before += visible.count() as u64;
    }
    let Some(said) = said else {
        return vec![format!("`{vm}` never said TALLY")];
    };
    let flaw = |word: &str| {
        let Some((name, how, guest)) = parse(word) else {
            return Some(format!("`{vm}` said `{word}` in its TALLY"));
        };
        let mut tables = transcript.exits.iter().filter(|table| table.vm == vm);
        let el2 = match name {
            "characters" => before,
            "elapsed-us" => {
                let first = tables.find(|table| table.vcpu == 0);
                first.map_or(0, |table| table.elapsed / CYCLES)
            }
            class => tables.map(|table| table.count(class)).sum(),
        };
        let most = match how {
            "=" => guest,
            "~" => guest + guest / 100 + SLACK,
            _ => u64::MAX,
        };
        let whose = if name == "characters" {
            "came"
        } else {
            "at EL2"
        };
        (!(guest..=most).contains(&el2))
            .then(|| format!("`{vm}` counts {how}{guest} {name}, but {el2} {whose}"))
    };
    said.split_ascii_whitespace().filter_map(flaw).collect()
}

/// Name, sign and number of a word.
fn parse(word: &str) -> Option<(&str, &str, u64)> {
    let end = word.find(|c: char| !c.is_ascii_lowercase() && c != '-')?;
    let (name, rest) = word.split_at(end);
    let digits = rest.find(|c: char| c.is_ascii_digit())?;
    let (how, number) = rest.split_at(digits);
    let known = ["=", "~", ">="].contains(&how) && !name.is_empty();
    known.then_some((name, how, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(tally: &str) -> Vec<String> {
        let mut transcript = Transcript::default();
        let console = format!(
            "[a] one\r\n[a] t o\r\n[a] x\r\n[b] three\r\n[a] TALLY {tally}\r\n[a] DONE\r\n\
             [el2] exits vm=a vcpu=0\r\n[el2]   sgi 3000 1 1 1 3 0 0.1\r\n\
             [el2]   all 3000 exits, guest 1 of 5000999 cycles (0.1%), away 0 (0.0%), per s 599880\r\n\
             [el2] exits vm=a vcpu=1\r\n[el2]   sgi 4000 1 1 1 4 0 0.1\r\n"
        );
        transcript.push(console.as_bytes());
        transcript.finish();
        flaws(&transcript, "a")
    }

    #[test]
    fn counts_are_held_against_the_sums_over_vcpus() {
        assert_eq!(seen("sgi=7000 characters=6 hvc=0"), [""; 0]);
        assert_eq!(seen("sgi=6999"), ["`a` counts =6999 sgi, but 7000 at EL2"]);
        assert_eq!(seen("sgi=7001"), ["`a` counts =7001 sgi, but 7000 at EL2"]);
        assert_eq!(seen("hvc=1"), ["`a` counts =1 hvc, but 0 at EL2"]);
        assert_eq!(
            seen("characters=7"),
            ["`a` counts =7 characters, but 6 came"]
        );
    }

    #[test]
    fn a_guest_that_goes_on_may_have_more_but_never_less() {
        assert_eq!(seen("sgi~7000"), [""; 0]);
        assert_eq!(seen("sgi~5950"), [""; 0]);
        assert_eq!(seen("sgi~5900"), ["`a` counts ~5900 sgi, but 7000 at EL2"]);
        assert_eq!(seen("sgi~7001"), ["`a` counts ~7001 sgi, but 7000 at EL2"]);
        assert_eq!(seen("sgi>=1"), [""; 0]);
        assert_eq!(
            seen("sgi>=7001"),
            ["`a` counts >=7001 sgi, but 7000 at EL2"]
        );
    }

    #[test]
    fn time_is_that_of_the_first_vcpu() {
        assert_eq!(seen("elapsed-us=5000"), [""; 0]);
        assert_eq!(seen("elapsed-us~4100"), [""; 0]);
        assert_eq!(
            seen("elapsed-us~3900"),
            ["`a` counts ~3900 elapsed-us, but 5000 at EL2"]
        );
    }

    #[test]
    fn what_cannot_be_read_counts_as_wrong() {
        for word in ["sgi", "sgi=", "=5", "sgi=x", "sgi<=5"] {
            assert_eq!(seen(word), [format!("`a` said `{word}` in its TALLY")]);
        }
        assert_eq!(flaws(&Transcript::default(), "a"), ["`a` never said TALLY"]);
    }
}
