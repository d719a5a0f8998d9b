//! EL2's stage-2 tables and its own maps, read from the memory of a running board and compared with the plan: when all VMs
//! run, and when all have stopped. Each reading is then altered bit by bit, and each alteration must be
//! found: a comparison that overlooks something would be worth nothing.

use std::io;

use bulkhead_core::plan::Plan;
use zerocopy::IntoBytes;

use bulkhead_model::failure::Failure;
use bulkhead_runner::run::console::{Speaker, Transcript};
use bulkhead_runner::run::{Debugger, Qemu, System};

use bulkhead_tables::{Cpu, PAGE, Pages, Reader, el2, overlooked, stage2};

use super::watch::Next;

/// Most findings that are shown.
const SHOWN: usize = 10;

/// Reads and judges the tables of one run.
#[derive(Debug)]
pub struct Tables {
    /// Folder of the debugger's socket.
    folder: tempfile::TempDir,
    plan: Vec<u64>,
    base: u64,
    parts: el2::Parts,
    /// Whether the tables of stage 2 are judged, besides EL2's maps.
    stage2: bool,
    debugger: Option<Debugger>,
    readings: Vec<Reading>,
    wrong: Vec<String>,
}

/// Contents of registers and memory at one time.
#[derive(Debug)]
struct Reading {
    cpus: Vec<Cpu>,
    /// Tables of stage 2.
    pages: Pages,
    /// Tables of EL2, and what they map.
    el2: Pages,
}

impl Tables {
    /// Has QEMU wait for a debugger.
    ///
    /// # Errors
    ///
    /// There is no folder for its socket.
    pub fn attach(qemu: &mut Qemu, system: &System, stage2: bool) -> Result<Self, Failure> {
        let folder = tempfile::tempdir().map_err(|error| {
            Failure::environment("cannot make a folder for a socket", error, "")
        })?;
        qemu.debugger = Some(folder.path().join("debugger"));
        let elf = std::fs::read(&system.el2).map_err(|error| {
            Failure::environment(format!("cannot read {}", system.el2.display()), error, "")
        })?;
        // A vector of bytes need not be aligned as a plan is.
        let words = system.plan.as_chunks().0.iter();
        let plan: Vec<u64> = words.map(|word| u64::from_le_bytes(*word)).collect();
        let parts = Plan::open(plan.as_bytes())
            .map_err(|_| "the plan is broken".to_owned())
            .and_then(|opened| {
                let offset = opened.header.image.plan_offset;
                el2::Parts::of(&elf, offset, system.plan.len() as u64)
            })
            .map_err(|why| Failure::environment("cannot tell EL2's parts", why, ""))?;
        Ok(Self {
            folder,
            plan,
            base: system.base,
            parts,
            stage2,
            debugger: None,
            readings: Vec::new(),
            wrong: Vec::new(),
        })
    }

    /// Looks whether it is time to read, and reads: when each VM has said something, and when the board
    /// has been powered off.
    pub fn look(&mut self, transcript: &Transcript) -> Next {
        self.step(transcript).unwrap_or_else(|error| {
            self.wrong
                .push(format!("the tables cannot be read: {error}"));
            Next::Kill
        })
    }

    fn step(&mut self, transcript: &Transcript) -> io::Result<Next> {
        match self.debugger.take() {
            None if self.readings.is_empty() && self.all_have_spoken(transcript) => {
                let mut debugger = Debugger::connect(&self.folder.path().join("debugger"))?;
                self.read(&mut debugger)?;
                debugger.resume()?;
                self.debugger = Some(debugger);
            }
            Some(mut debugger) => {
                if debugger.has_stopped()? {
                    self.read(&mut debugger)?;
                    return Ok(Next::Release);
                }
                self.debugger = Some(debugger);
            }
            None => {}
        }
        Ok(Next::Watch)
    }

    fn all_have_spoken(&self, transcript: &Transcript) -> bool {
        let Ok(plan) = Plan::open(self.plan.as_bytes()) else {
            return false;
        };
        plan.vms.iter().all(|vm| {
            let name = stage2::name(vm);
            let said = |speaker: &Speaker| speaker.name() == name;
            transcript.lines.iter().any(|line| said(&line.speaker))
        })
    }

    fn read(&mut self, debugger: &mut Debugger) -> io::Result<()> {
        let names = [
            "VTTBR_EL2",
            "VTCR_EL2",
            "HCR_EL2",
            "TTBR0_EL2",
            "TCR_EL2",
            "SCTLR_EL2",
        ];
        let cpu = |[vttbr, vtcr, hcr, ttbr0, tcr, sctlr]: [u64; 6]| Cpu {
            vttbr,
            vtcr,
            hcr,
            ttbr0,
            tcr,
            sctlr,
        };
        let registers = debugger.registers(names)?;
        let mut reading = Reading {
            cpus: registers.into_iter().map(cpu).collect(),
            pages: Pages::new(),
            el2: Pages::new(),
        };
        let Ok(plan) = Plan::open(self.plan.as_bytes()) else {
            return Err(io::Error::other("the plan is broken"));
        };
        let (base, cpus) = (self.base, &reading.cpus);
        let when = ["while all VMs ran", "after the end"][self.readings.len().min(1)];
        if self.stage2 {
            let mut read = reader(debugger, &mut reading.pages);
            let wrong = stage2::judge(&plan, base, cpus, &mut read);
            let wrong = wrong.iter().take(SHOWN);
            self.wrong
                .extend(wrong.map(|why| format!("stage 2 {when}: {why}")));
        }
        let mut read = reader(debugger, &mut reading.el2);
        let maps = el2::judge(&plan, base, self.parts, cpus, &mut read);
        // Boards whose trees have no random bytes are among those whose stage 2 is judged.
        let keys = el2::keys(&plan, base, cpus, !self.stage2, &mut read);
        let wrong = maps.iter().chain(&keys).take(SHOWN);
        self.wrong
            .extend(wrong.map(|why| format!("EL2's maps {when}: {why}")));
        drop(read);
        self.readings.push(reading);
        Ok(())
    }

    /// Returns what was wrong.
    pub fn verdict(mut self) -> Vec<String> {
        let Ok(plan) = Plan::open(self.plan.as_bytes()) else {
            return vec!["the plan is broken".to_owned()];
        };
        let [first, last] = &self.readings[..] else {
            self.wrong.push(format!(
                "the tables were read {} times instead of twice",
                self.readings.len()
            ));
            return self.wrong;
        };
        if first.pages != last.pages {
            self.wrong
                .push("the stage-2 tables changed while the VMs ran".to_owned());
        }
        if self.wrong.is_empty() {
            let tables: Vec<u64> = last.pages.keys().copied().collect();
            let judge = |read: &mut Reader<'_>| stage2::judge(&plan, self.base, &last.cpus, read);
            self.wrong.extend(overlooked(&tables, &last.pages, &judge));
            let tables = el2::tables(&plan, self.base, &last.el2);
            let judge =
                |read: &mut Reader<'_>| el2::judge(&plan, self.base, self.parts, &last.cpus, read);
            self.wrong.extend(overlooked(&tables, &last.el2, &judge));
        }
        self.wrong
    }
}

/// Reads pages of the board by its debugger, each once.
fn reader<'a>(
    debugger: &'a mut Debugger,
    pages: &'a mut Pages,
) -> impl FnMut(u64) -> Result<Vec<u64>, String> + 'a {
    move |pa| {
        if let Some(page) = pages.get(&pa) {
            return Ok(page.clone());
        }
        let bytes = debugger
            .read(pa, PAGE as usize)
            .map_err(|error| error.to_string())?;
        let words = bytes.as_chunks().0.iter();
        let page: Vec<_> = words.map(|word| u64::from_le_bytes(*word)).collect();
        pages.insert(pa, page.clone());
        Ok(page)
    }
}
