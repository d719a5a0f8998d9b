//! Progress of the demo, from the lines of the console. Pure.

use serde::Serialize;

use bulkhead_runner::run::console::{ConsoleLine, Transcript};

/// The program of the demo in that Linux (`guests/linux/demo`).
const DEMO: &str = "/run/initramfs/bin/demo";
/// What Debian asks before its shell.
const LOGIN: &str = "login: ";
/// Name of the Linux VM in `systems/mixed.toml`.
pub const LINUX: &str = "linux";
/// Name of the VM with the control loop.
pub const CONTROL: &str = "control";
/// Names of the VMs that share a CPU.
pub const CPU_LOAD: [&str; 2] = ["large", "small"];
/// Name of the real-time Linux.
pub const RT: &str = "rt";
/// Names of the VMs with a disk, which move data.
pub const LINUXES: [&str; 2] = [LINUX, RT];
/// All VMs but that which serves the devices of the others: it stops when everybody else has.
pub const VMS: [&str; 5] = [LINUX, CONTROL, CPU_LOAD[0], CPU_LOAD[1], RT];

/// Report of the control loop. Lateness in nanoseconds of the guests' clock.
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
        let value = |key: &str| value(&rest, key);
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

/// Report of cyclictest. Lateness in microseconds of the guest's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Wake-ups, one each millisecond.
    pub wakeups: u64,
    /// Smallest lateness.
    pub late_min: u64,
    /// Mean lateness.
    pub late_avg: u64,
    /// Largest lateness.
    pub late_max: u64,
}

impl Latency {
    /// Reads `cyclictest: wakeups=1 late_us min=2 avg=3 max=4`.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("cyclictest: ")?;
        let value = |key: &str| value(rest, key);
        Some(Self {
            wakeups: value("wakeups")?,
            late_min: value("min")?,
            late_avg: value("avg")?,
            late_max: value("max")?,
        })
    }
}

/// What a Linux has moved through its disk and its network, and compared with what it had sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// KiB written to the disk and read back.
    pub disk_kib: u64,
    /// KiB sent to the other Linux and received back.
    pub net_kib: u64,
    /// How often other data came back.
    pub wrong: u64,
}

impl Traffic {
    /// Reads `traffic: disk_kib=1 net_kib=2 wrong=3`.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("traffic: ")?;
        Some(Self {
            disk_kib: value(rest, "disk_kib")?,
            net_kib: value(rest, "net_kib")?,
            wrong: value(rest, "wrong")?,
        })
    }
}

/// Pings of the control loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pings {
    /// Sent by Linux.
    pub sent: u64,
    /// Answered by the loop.
    pub answered: u64,
}

impl Pings {
    /// Reads `pings: sent=1 answered=2`.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("pings: ")?;
        Some(Self {
            sent: value(rest, "sent")?,
            answered: value(rest, "answered")?,
        })
    }
}

/// The number behind `key=`, among words.
fn value(words: &str, key: &str) -> Option<u64> {
    let mut words = words.split_ascii_whitespace();
    words.find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
}

/// Phase of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Linux boots; the loop runs already.
    Booting,
    /// Linux works hard.
    Working,
    /// The work is done, and without a user the loop has ended; Linux has a shell.
    Shell,
    /// Linux was asked to power off.
    Ending,
}

/// Follows a demo.
#[derive(Debug)]
pub struct Progress {
    /// Phase that it has reached.
    pub phase: Phase,
    /// Everything said.
    pub transcript: Transcript,
    /// Report of the loop that Linux last took from their channel.
    pub seen: Option<Control>,
    /// Report that the loop printed at its end.
    pub last_words: Option<Control>,
    /// Report of cyclictest at its end.
    pub latency: Option<Latency>,
    /// Lines that the VMs that share a CPU printed at their end.
    pub cpu_load: [Option<String>; 2],
    /// What the two Linuxes moved through their devices, by [`LINUXES`].
    pub traffic: [Option<Traffic>; 2],
    /// Pings of the control loop.
    pub pings: Option<Pings>,
    /// Linux has asked who is there, and was told.
    logs_in: bool,
    /// Linux has a shell.
    shell: bool,
    /// The real-time Linux waits for the others, or will not come.
    rt: bool,
    seconds: u64,
    pub(super) stay: bool,
}

impl Progress {
    /// A demo with so many seconds of work. With `stay` the shell is left to the user.
    pub fn new(seconds: u64, stay: bool) -> Self {
        Self {
            phase: Phase::Booting,
            transcript: Transcript::default(),
            seen: None,
            last_words: None,
            latency: None,
            cpu_load: [None, None],
            traffic: [None, None],
            pings: None,
            logs_in: false,
            shell: false,
            rt: false,
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
        // What waits at the end of a line; another VM may speak meanwhile.
        let waits = |end: &str| {
            let partial = self.transcript.partial();
            let linux = |line: &&ConsoleLine| line.speaker.name() == LINUX;
            let partial = partial.as_ref().filter(linux);
            let said = lines.iter().filter(linux).chain(partial);
            { said }.any(|line| line.text.ends_with(end))
        };
        let (asks, prompt) = (waits(LOGIN), waits("# "));
        self.shell |= prompt;
        self.rt |= self.transcript.end_of(RT).is_some();
        if asks && !self.logs_in {
            self.logs_in = true;
            return b"root\n".to_vec();
        }
        match self.phase {
            Phase::Booting if self.shell && self.rt => {
                self.phase = Phase::Working;
                let stays = if self.stay { " stay" } else { "" };
                format!("{DEMO} {}{stays}\n", self.seconds).into_bytes()
            }
            Phase::Shell if prompt && !self.stay => {
                self.phase = Phase::Ending;
                b"poweroff\n".to_vec()
            }
            _ => Vec::new(),
        }
    }

    fn line(&mut self, line: &ConsoleLine) {
        let name = line.speaker.name();
        if let Some(control) = Control::parse(&line.text) {
            if name == CONTROL {
                self.last_words = Some(control);
            } else if name == LINUX {
                self.seen = Some(control);
            }
        }
        if name == RT {
            self.rt |= line.text == "latency: ready";
            self.latency = Latency::parse(&line.text).or(self.latency.take());
        }
        for (vm, said) in CPU_LOAD.iter().zip(&mut self.cpu_load) {
            if let Some(had) = line.text.strip_prefix("cpu-load: ")
                && name == *vm
            {
                *said = Some(had.to_owned());
            }
        }
        for (vm, moved) in LINUXES.iter().zip(&mut self.traffic) {
            if name == *vm {
                *moved = Traffic::parse(&line.text).or(moved.take());
            }
        }
        if name == LINUX {
            self.pings = Pings::parse(&line.text).or(self.pings);
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
        assert_eq!(progress.push(b"\r\n[linux] linux login: "), b"root\n");
        assert_eq!(progress.push(b""), b"", "once");
        assert_eq!(progress.push(b"root\r\n"), b"");
        assert_eq!(progress.push(b"[linux] root@linux:~# "), b"");
        assert_eq!(
            progress.phase,
            Phase::Booting,
            "not without the other Linux"
        );
        assert_eq!(
            progress.push(b"\r\n[rt] latency: ready\r\n"),
            b"/run/initramfs/bin/demo 30\n"
        );
        assert_eq!(progress.push(b"[linux] "), b"");
        progress.push(format!("{WORDS}\r\n").as_bytes());
        assert_eq!(progress.seen.as_ref().unwrap().periods, 5000);
        assert_eq!(progress.last_words, None);
        progress.push(
            b"[control] control: periods=6000 lost=0 doubled=0 late_ns min=1 avg=1 max=1\r\n",
        );
        assert_eq!(progress.last_words.as_ref().unwrap().periods, 6000);
        assert_eq!(progress.push(b"[linux] demo: done\r\n"), b"");
        assert_eq!(progress.phase, Phase::Shell);
        assert_eq!(progress.push(b"[linux] root@linux:~# "), b"poweroff\n");
        assert_eq!(progress.phase, Phase::Ending);
    }

    #[test]
    fn what_the_others_say_at_their_end_is_kept() {
        let mut progress = Progress::new(1, false);
        progress.push(
            b"[large] cpu-load: had 2 ms in 3 ms\r\n[linux] cpu-load: not you\r\n\
              [rt] cyclictest: wakeups=900 late_us min=3 avg=4 max=50\r\n",
        );
        assert_eq!(
            progress.cpu_load,
            [Some("had 2 ms in 3 ms".to_owned()), None]
        );
        let latency = progress.latency.unwrap();
        assert_eq!((latency.wakeups, latency.late_max), (900, 50));
        assert_eq!(Latency::parse("cyclictest: no such file"), None);
    }

    #[test]
    fn what_was_moved_and_answered_is_read() {
        let mut progress = Progress::new(1, false);
        progress.push(
            b"[rt] traffic: disk_kib=512 net_kib=0 wrong=0\r\n[large] traffic: disk_kib=1 net_kib=1 wrong=1\r\n\
              [linux] pings: sent=9 answered=8\r\n[rt] pings: sent=7 answered=7\r\n[rt] traffic: nothing\r\n",
        );
        let moved = Traffic {
            disk_kib: 512,
            ..Traffic::default()
        };
        assert_eq!(progress.traffic, [None, Some(moved)]);
        assert_eq!(
            progress.pings,
            Some(Pings {
                sent: 9,
                answered: 8
            })
        );
    }

    #[test]
    fn a_demo_does_not_wait_for_a_linux_that_has_stopped() {
        let mut progress = Progress::new(1, false);
        progress.push(b"[linux] / # ");
        assert_eq!(
            progress.push(b"\r\n[el2] vm rt stopped: crash\r\n"),
            b"/run/initramfs/bin/demo 1\n"
        );
    }

    #[test]
    fn the_shell_is_left_to_a_user_who_stays() {
        let mut progress = Progress::new(1, true);
        assert_eq!(
            progress.push(b"[rt] latency: ready\r\n[linux] / # "),
            b"/run/initramfs/bin/demo 1 stay\n"
        );
        progress.push(b"\r\n[linux] demo: done\r\n");
        assert_eq!(progress.push(b"[linux] / # "), b"");
        assert_eq!(progress.phase, Phase::Shell);
    }
}
