//! Screen of a demo: the console, and below it both guests at a glance.

use std::io::{self, IsTerminal};
use std::time::Instant;

use bulkhead_runner::run::console::Output;
use bulkhead_runner::run::{Flow, View};

use super::footer::Footer;
use super::progress::{CONTROL, CPU_LOAD, LINUX, Phase, Progress, RT};

/// Shows a demo.
pub struct Screen {
    /// Progress of the demo.
    pub progress: Progress,
    footer: Option<Footer>,
    started: Instant,
    output: Output,
    /// Makes the text that is printed once the work is done, from the progress.
    summary: Box<dyn Fn(&Progress) -> String>,
    summed_up: bool,
}

impl Screen {
    /// With a live picture on a terminal; the console goes to stderr if stdout is kept for JSON.
    pub fn new(
        progress: Progress,
        live: bool,
        to_stderr: bool,
        summary: Box<dyn Fn(&Progress) -> String>,
    ) -> Self {
        let live = live && !to_stderr && io::stdout().is_terminal();
        Self {
            progress,
            footer: live.then(|| Footer::new(7)),
            started: Instant::now(),
            output: Output::new(to_stderr),
            summary,
            summed_up: false,
        }
    }

    /// Gives the terminal back.
    pub fn close(&mut self) {
        self.footer = None;
    }

    /// The fixed lines of the picture.
    fn lines(&self) -> Vec<String> {
        let progress = &self.progress;
        let linux = match (progress.transcript.end_of(LINUX), progress.phase) {
            (Some(end), _) => format!("stopped: {}", end.reason),
            (None, Phase::Booting) => "booting Debian".to_owned(),
            (None, Phase::Working) => {
                format!("working hard for {} s of its time", progress.seconds())
            }
            (None, Phase::Shell) => {
                "a shell for you; `/run/initramfs/bin/demo end` ends all".to_owned()
            }
            (None, Phase::Ending) => "powering off".to_owned(),
        };
        let seen = progress.last_words.as_ref().or(progress.seen.as_ref());
        let control = match seen {
            Some(c) => format!(
                "{} periods at 1 kHz, {} lost, {} doubled; late {} / {} / {} ns (min/avg/max: the emulator's turns)",
                c.periods, c.lost, c.doubled, c.late_min, c.late_avg, c.late_max
            ),
            None => "running at 1 kHz; Linux will take its reports when it is up".to_owned(),
        };
        let ended_or = |vm: &str, words: String| match progress.transcript.end_of(vm) {
            Some(end) => format!("{words} (stopped: {})", end.reason),
            None => words,
        };
        let working = progress.phase > Phase::Booting;
        let cpu_load = |n: usize| {
            let words = match &progress.cpu_load[n] {
                Some(had) => had.clone(),
                None if working => format!("all it can get of CPU 2, weight {}", 2 - n),
                None => "asleep until there is work".to_owned(),
            };
            ended_or(CPU_LOAD[n], words)
        };
        let rt = match &progress.latency {
            Some(l) => format!(
                "{} wake-ups, late {} / {} / {} us (min/avg/max: the emulator's turns)",
                l.wakeups, l.late_min, l.late_avg, l.late_max
            ),
            None if working => "cyclictest each millisecond".to_owned(),
            None => "booting Debian's real-time kernel".to_owned(),
        };
        let ended = progress
            .transcript
            .end_of(CONTROL)
            .map_or("", |_| " (ended)");
        vec![
            format!(
                " Bulkhead: five VMs and one for their devices on four CPUs, {} s",
                self.started.elapsed().as_secs()
            ),
            format!(" {LINUX:<8} {linux}"),
            format!(" {CONTROL:<8} {control}{ended}"),
            format!(" {:<8} {}", CPU_LOAD[0], cpu_load(0)),
            format!(" {:<8} {}", CPU_LOAD[1], cpu_load(1)),
            format!(" {RT:<8} {}", ended_or(RT, rt)),
            " Ctrl-T q quit   Ctrl-T n next VM   Ctrl-T ? help".to_owned(),
        ]
    }
}

impl View for Screen {
    fn console(&mut self, bytes: &[u8], keys: &mut Vec<u8>) -> io::Result<Flow> {
        self.output.write(bytes)?;
        keys.extend(self.progress.push(bytes));
        // Without a user the end is near, and the whole summary with it.
        if self.progress.phase == Phase::Shell && self.progress.stay && !self.summed_up {
            self.summed_up = true;
            let text = (self.summary)(&self.progress);
            self.output.write(format!("\n{text}\n").as_bytes())?;
        }
        Ok(Flow::Continue)
    }

    fn tick(&mut self, _: &mut Vec<u8>) -> io::Result<Flow> {
        let lines = self.lines();
        if let Some(footer) = &mut self.footer {
            footer.draw(&lines)?;
        }
        Ok(Flow::Continue)
    }
}
