//! EL2's own lines as events, and a transcript that collects them.

use bulkhead_abi::call::End;
use bulkhead_abi::console::{self, ALL_STOPPED, Booted, Outcome, Refused};
use bulkhead_model::describe::SERVICE_NAME;
use serde::{Deserialize, Serialize};

use super::{ConsoleLine, ExitTable, Served, Speaker, Splitter};

/// Something that EL2 reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// EL2 runs.
    Booted {
        /// Its version.
        version: String,
        /// pCPUs that it brought up.
        pcpus: u32,
        /// VMs of the plan.
        vms: u32,
    },
    /// EL2 refuses the plan and powers the board off.
    Refused {
        /// Name of the violated invariant.
        invariant: String,
        /// Place in the plan, in EL2's words.
        place: String,
    },
    /// A VM has stopped.
    Stopped {
        /// Its name.
        vm: String,
        /// Reason.
        reason: String,
    },
    /// Nothing is left to run; the board powers off.
    AllStopped,
}

impl Event {
    /// Reads a line that EL2 said.
    pub fn parse(text: &str) -> Option<Self> {
        if text == ALL_STOPPED {
            return Some(Self::AllStopped);
        }
        if let Some(booted) = Booted::parse(text) {
            return Some(Self::Booted {
                version: booted.version.0.to_owned(),
                pcpus: booted.pcpus.try_into().ok()?,
                vms: booted.vms.try_into().ok()?,
            });
        }
        if let Some(refused) = Refused::parse(text) {
            return Some(Self::Refused {
                invariant: refused.rule.to_owned(),
                place: refused.place.to_owned(),
            });
        }
        let end = console::VmEnd::parse(text)?;
        (end.outcome == Outcome::Stopped).then(|| Self::Stopped {
            vm: end.vm.as_str().to_owned(),
            reason: end.why.0.to_owned(),
        })
    }
}

/// End of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmEnd {
    /// Name of the VM.
    pub vm: String,
    /// EL2's words.
    pub reason: String,
}

impl VmEnd {
    /// Whether the guest asked for its end; everything else is a crash.
    pub fn orderly(&self) -> bool {
        End::ALL
            .iter()
            .any(|end| end.is_orderly() && self.reason.starts_with(end.words()))
    }
}

/// Lines of the console, and EL2's reports read from them.
#[derive(Debug, Default)]
pub struct Transcript {
    splitter: Splitter,
    /// All complete lines in the order in which they came. One that was cut is there in pieces: as far as it had
    /// come, each time.
    pub lines: Vec<ConsoleLine>,
    /// Version, pCPUs and VMs of EL2, once it has booted.
    pub booted: Option<(String, u32, u32)>,
    /// Invariant and place, if EL2 refused the plan.
    pub refused: Option<(String, String)>,
    /// VMs that have stopped, in that order.
    pub ended: Vec<VmEnd>,
    /// Exit statistics, one for each vCPU that has stopped.
    pub exits: Vec<ExitTable>,
    /// What disks and ports have done, by what the VM that serves them has said of each last.
    pub served: Served,
    /// EL2 said that nothing is left to run.
    pub all_stopped: bool,
}

impl Transcript {
    /// Takes the next bytes of the console; gives the index of the first line that they completed.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let first = self.lines.len();
        for line in self.splitter.push(bytes) {
            self.take(line);
        }
        first
    }

    /// The stream has ended: a last line without line end counts as a line.
    pub fn finish(&mut self) {
        if let Some(line) = self.splitter.finish() {
            self.take(line);
        }
    }

    /// The line that has begun and not ended.
    pub fn partial(&self) -> Option<ConsoleLine> {
        self.splitter.partial()
    }

    /// Whole lines of one speaker.
    pub fn of<'a>(&'a self, speaker: &'a str) -> impl Iterator<Item = &'a str> {
        let lines = self.lines.iter();
        lines
            .filter(move |line| line.speaker.name() == speaker && !line.is_replaced)
            .map(|line| line.text.as_str())
    }

    /// Returns the end of a VM, if it has ended.
    pub fn end_of(&self, vm: &str) -> Option<&VmEnd> {
        self.ended.iter().find(|end| end.vm == vm)
    }

    fn take(&mut self, line: ConsoleLine) {
        if line.speaker == Speaker::El2 {
            self.el2(&line.text);
        }
        if line.speaker.name() == SERVICE_NAME {
            self.served.take(&line.text);
        }
        if line.goes_on.is_some()
            && let Some(before) = { self.lines.iter_mut() }.rfind(|old| old.speaker == line.speaker)
        {
            before.is_replaced = true;
        }
        self.lines.push(line);
    }

    fn el2(&mut self, text: &str) {
        if let Some(table) = ExitTable::header(text) {
            self.exits.push(table);
            return;
        }
        // Other lines may cut into a table, EL2's own as well: whom input goes to.
        if text.starts_with(' ') {
            if let Some(table) = self.exits.last_mut() {
                table.take(text);
            }
            return;
        }
        match Event::parse(text) {
            Some(Event::Booted {
                version,
                pcpus,
                vms,
            }) => self.booted = Some((version, pcpus, vms)),
            Some(Event::Refused { invariant, place }) => self.refused = Some((invariant, place)),
            Some(Event::Stopped { vm, reason }) => self.ended.push(VmEnd { vm, reason }),
            Some(Event::AllStopped) => self.all_stopped = true,
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "\x1b[37m[el2]\x1b[0m Bulkhead 0.1.0, 4 pCPUs, 2 VMs\r\n\
        \x1b[32m[linux]\x1b[0m [    0.000000] Booting Linux\r\n\
        \x1b[33m[control]\x1b[0m PASS period\r\n";
    const END: &str = "[el2] vm control stopped: power off\r\n\
        [el2] exits vm=control vcpu=0\r\n\
        [el2]   class count min mean max total stddev %time\r\n\
        [el2]   vtimer-irq 600000 80 82 95 49200000 1.5 99.9\r\n\
        [linux] still here\r\n\
        [el2] input goes to linux\r\n\
        [el2]   hvc 2 70 70 70 140 0 0.1\r\n\
        [el2] vm linux stopped: data abort at 0x0\r\n\
        [el2] exits vm=linux vcpu=0\r\n\
        [el2]   uart 7 1 2 3 14 0 1\r\n\
        [el2] all VMs stopped\r\n";

    #[test]
    fn a_whole_session_is_understood() {
        let mut transcript = Transcript::default();
        assert_eq!(transcript.push(BOOT.as_bytes()), 0);
        assert_eq!(transcript.booted, Some(("0.1.0".into(), 4, 2)));
        assert_eq!(transcript.push(END.as_bytes()), 3);
        assert!(transcript.end_of("control").unwrap().orderly());
        assert!(!transcript.end_of("linux").unwrap().orderly());
        assert_eq!(transcript.exits.len(), 2);
        assert_eq!(transcript.exits[0].count("vtimer-irq"), 600_000);
        // A VM may speak in the middle of a table, and EL2 too.
        assert_eq!(transcript.exits[0].exits(), 600_002);
        assert_eq!(transcript.exits[1].rows[0].class, "uart");
        assert!(transcript.all_stopped);
        assert_eq!(
            transcript.of("linux").collect::<Vec<_>>(),
            ["[    0.000000] Booting Linux", "still here"]
        );
    }

    #[test]
    fn what_devices_have_done_is_what_was_said_last() {
        let mut transcript = Transcript::default();
        let disk = |read: u64| {
            format!(
                "disk 0, data of one: read {read} bytes in 12, written 0 in 0, flushed 3, failed 1"
            )
        };
        let port =
            "port 1, two in lan: sent 70 bytes in 1, received 0 in 0, dropped 1: no-buffer 1";
        let lines = [
            format!("[service] {}\r\n", disk(512)),
            // Of somebody else, and one that was cut.
            format!("[one] {}\r\n", disk(7)),
            format!("[service] {port}\r\n[service] disk 0, da\r\n"),
            "[el2] vm one stopped: power off\r\n[service+] ta of one: read 1024".to_owned(),
            " bytes in 13, written 0 in 0, flushed 3, failed 1\r\n".to_owned(),
        ];
        for line in lines {
            transcript.push(line.as_bytes());
        }
        let served = &transcript.served;
        let [disk] = &served.disks[..] else {
            panic!("{served:?}");
        };
        assert_eq!((disk.vm.as_str(), disk.name.as_str()), ("one", "data"));
        assert_eq!((disk.read_bytes, disk.reads, disk.failed), (1024, 13, 1));
        let [port] = &served.ports[..] else {
            panic!("{served:?}");
        };
        assert_eq!((port.sent, port.dropped), (1, 1));
        assert_eq!(port.reasons, [("no-buffer".to_owned(), 1)]);
        let text = served.text();
        assert!(text.contains("no-buffer 1"), "{text}");
        assert!(text.contains("data of one"), "{text}");
    }

    #[test]
    fn a_refusal_names_invariant_and_place() {
        let mut transcript = Transcript::default();
        transcript
            .push(b"[el2] refused: regions-apart: region 3 and region 5: both map 0x5000\r\n");
        assert_eq!(
            transcript.refused,
            Some((
                "regions-apart".into(),
                "region 3 and region 5: both map 0x5000".into()
            ))
        );
    }

    #[test]
    fn lines_that_were_cut_are_whole() {
        let mut transcript = Transcript::default();
        transcript.push(b"[two] h\r\n[el2] exits vm=one vcpu=0\r\n[two+] ello\r\n[two] h\r\n");
        assert_eq!(transcript.of("two").collect::<Vec<_>>(), ["hello", "h"]);
        assert_eq!(transcript.lines.len(), 4);
    }

    #[test]
    fn a_guest_cannot_speak_for_el2() {
        let mut transcript = Transcript::default();
        transcript
            .push(b"[linux] [el2] vm control stopped: crashed\r\n[linux] all VMs stopped\r\n");
        assert!(transcript.ended.is_empty());
        assert!(!transcript.all_stopped);
    }

    #[test]
    fn one_of_each_is_not_plural() {
        assert_eq!(
            Event::parse("Bulkhead 0.1.0, 1 pCPU, 1 VM"),
            Some(Event::Booted {
                version: "0.1.0".into(),
                pcpus: 1,
                vms: 1
            })
        );
    }
}
