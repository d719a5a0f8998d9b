//! Where the demo is, from what the console says. Pure.

use serde::Serialize;

use crate::run::console::{Line, Transcript};

/// Name of the Linux VM in `systems/demo.toml`.
pub const LINUX: &str = "linux";
/// Name of the VM with the control loop.
pub const CONTROL: &str = "control";

/// What the control loop says about itself. Lateness in nanoseconds of the guests' clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Control {
    /// Periods whose work was done.
    pub periods: u64,
    /// Periods that went by without their work.
    pub lost: u64,
    /// Periods for which the interrupt came more than once.
    pub doubled: u64,
    /// Smallest lateness.
    pub late_min: u64,
    /// Mean lateness.
    pub late_avg: u64,
    /// Largest lateness.
    pub late_max: u64,
}

impl Control {
    /// Reads `control: periods=1 lost=0 doubled=0 late_ns min=1 avg=2 max=3`.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("control: periods=")?;
        let rest = format!("periods={rest}");
        let value = |key: &str| {
            let mut words = rest.split_ascii_whitespace();
            words.find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
        };
        Some(Self {
            periods: value("periods")?,
            lost: value("lost")?,
            doubled: value("doubled")?,
            late_min: value("min").unwrap_or_default(),
            late_avg: value("avg").unwrap_or_default(),
            late_max: value("max").unwrap_or_default(),
        })
    }
}

/// Where the demo is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Linux boots; the loop runs already.
    Booting,
    /// Linux works hard.
    Working,
    /// The work is done and the loop has ended; Linux has a shell.
    Shell,
    /// Linux was asked to power off.
    Ending,
}

/// Follows a demo.
#[derive(Debug)]
pub struct Progress {
    /// Where it is.
    pub phase: Phase,
    /// Everything said.
    pub transcript: Transcript,
    /// What Linux last read on the shared page.
    pub seen: Option<Control>,
    /// What the loop said itself at its end.
    pub last_words: Option<Control>,
    seconds: u64,
    stay: bool,
}

impl Progress {
    /// A demo with so many seconds of work. With `stay` the shell is left to the user.
    pub fn new(seconds: u64, stay: bool) -> Self {
        Self {
            phase: Phase::Booting,
            transcript: Transcript::default(),
            seen: None,
            last_words: None,
            seconds,
            stay,
        }
    }

    /// Seconds of work that were asked for, in the guests' time.
    pub fn seconds(&self) -> u64 {
        self.seconds
    }

    /// Takes the next bytes of the console; gives the keys to type now.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let first = self.transcript.push(bytes);
        let lines = self.transcript.lines[first..].to_vec();
        for line in &lines {
            self.line(line);
        }
        let prompt = self
            .transcript
            .partial()
            .is_some_and(|line| line.speaker.name() == LINUX && line.text.ends_with("# "));
        match self.phase {
            Phase::Booting if prompt => {
                self.phase = Phase::Working;
                format!("demo {}\n", self.seconds).into_bytes()
            }
            Phase::Shell if prompt && !self.stay => {
                self.phase = Phase::Ending;
                b"exit\n".to_vec()
            }
            _ => Vec::new(),
        }
    }

    fn line(&mut self, line: &Line) {
        let name = line.speaker.name();
        if let Some(control) = Control::parse(&line.text) {
            if name == CONTROL {
                self.last_words = Some(control);
            } else if name == LINUX {
                self.seen = Some(control);
            }
        }
        if self.phase == Phase::Working && name == LINUX && line.text == "demo: done" {
            self.phase = Phase::Shell;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = "control: periods=5000 lost=1 doubled=2 late_ns min=100 avg=200 max=3000";

    #[test]
    fn the_loops_words_are_read() {
        let control = Control::parse(WORDS).unwrap();
        assert_eq!(
            (control.periods, control.lost, control.doubled),
            (5000, 1, 2)
        );
        assert_eq!(
            (control.late_min, control.late_avg, control.late_max),
            (100, 200, 3000)
        );
        assert_eq!(Control::parse(&format!("{WORDS} ended")), Some(control));
        assert_eq!(
            Control::parse("control: no answer to the request to stop"),
            None
        );
        assert_eq!(
            Control::parse("control: periods=0 lost=0 doubled=0"),
            Some(Control::default())
        );
    }

    #[test]
    fn linux_is_told_to_work_and_then_to_power_off() {
        let mut progress = Progress::new(30, false);
        assert_eq!(progress.push(b"[linux] Welcome\r\n[control] x # "), b"");
        assert_eq!(progress.push(b"\r\n[linux] / # "), b"demo 30\n");
        assert_eq!(progress.push(b"demo 30\r\n[linux] "), b"");
        progress.push(format!("{WORDS}\r\n").as_bytes());
        assert_eq!(progress.seen.as_ref().unwrap().periods, 5000);
        assert_eq!(progress.last_words, None);
        progress.push(
            b"[control] control: periods=6000 lost=0 doubled=0 late_ns min=1 avg=1 max=1\r\n",
        );
        assert_eq!(progress.last_words.as_ref().unwrap().periods, 6000);
        assert_eq!(progress.push(b"[linux] demo: done\r\n"), b"");
        assert_eq!(progress.phase, Phase::Shell);
        assert_eq!(progress.push(b"[linux] / # "), b"exit\n");
        assert_eq!(progress.phase, Phase::Ending);
    }

    #[test]
    fn the_shell_is_left_to_a_user_who_stays() {
        let mut progress = Progress::new(1, true);
        progress.push(b"[linux] / # ");
        progress.push(b"\r\n[linux] demo: done\r\n");
        assert_eq!(progress.push(b"[linux] / # "), b"");
        assert_eq!(progress.phase, Phase::Shell);
    }
}
