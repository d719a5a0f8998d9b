//! Reading a VM that does not run.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;

use bulkhead_abi::control::registers::{PC, STATE, WORDS};
use bulkhead_abi::control::{DATA, Kind, Message, Phase, Status};

use crate::board::Vm;
use crate::core_file::{Core, Range, Registers};
use crate::failure::Failure;
use crate::manager::Manager;
use crate::refusal;

/// Attempts at a vCPU that is not paused yet.
const TRIES: u32 = 20;
/// How long to wait between two of them.
const BETWEEN: std::time::Duration = std::time::Duration::from_millis(50);

/// What was dumped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dumped {
    /// Number of the life.
    pub life: u64,
    /// Bytes of RAM.
    pub bytes: u64,
    /// vCPUs whose registers are there.
    pub vcpus: Vec<u16>,
    /// Why those of the others are not.
    pub untold: Option<&'static str>,
    /// Release of a Linux whose vmcoreinfo was found.
    pub linux: Option<String>,
    /// By how much its image lies elsewhere than it was linked for (KASLR), if it says so.
    pub kernel_offset: Option<u64>,
}

fn wrong(name: &str, why: impl std::fmt::Display) -> Failure {
    Failure::failed("control::dump", format!("cannot dump {name}"), why)
}

impl<T: Read + Write + AsFd> Manager<T> {
    /// Reads a VM that is paused, or has ended, into an empty file, as an ELF core.
    ///
    /// # Errors
    /// EL2 refuses, the VM runs meanwhile, or the file cannot be written.
    pub fn dump(&mut self, vm: &Vm, to: File) -> Result<Dumped, Failure> {
        self.connection.forget_events();
        let (ranges, life) = self.layout(vm)?;
        let mut vcpus = Vec::new();
        let mut untold = None;
        for number in 0..vm.vcpus {
            match self.registers(vm, number)? {
                // One that has not been on has nothing to say.
                Ok(registers) if registers[STATE] == 0 && registers[PC] == 0 => {}
                Ok(registers) => vcpus.push((number, registers)),
                Err(why) => untold = Some(why),
            }
        }
        let cannot = |error| Failure::environment("control::io", "cannot write the dump", error);
        let told = vcpus.iter().map(|(number, _)| *number).collect();
        let mut core = Core::new(to, ranges.clone(), vcpus);
        for range in &ranges {
            let (mut next, end) = (range.ipa, range.ipa + range.bytes);
            while next < end {
                let most = (end - next).min(DATA as u64);
                let (answer, bytes) = self.memory(vm, next, most)?;
                self.is_same(vm, life, &answer)?;
                if answer.values[0] != next || bytes.is_empty() || bytes.len() as u64 > most {
                    return Err(wrong(&vm.name, "EL2 tells other memory than was asked for"));
                }
                core.ram(&bytes).map_err(cannot)?;
                next += bytes.len() as u64;
            }
        }
        // What was read last is of this life if the next answer is.
        let (answer, _) = self.memory(vm, 0, 0)?;
        self.is_same(vm, life, &answer)?;
        let said = |key: &str| {
            let mut lines = core.vmcoreinfo()?.lines();
            lines.find_map(|line| line.strip_prefix(key))
        };
        let linux = said("OSRELEASE=").map(str::to_owned);
        let kernel_offset =
            said("KERNELOFFSET=").and_then(|text| u64::from_str_radix(text, 16).ok());
        core.finish().map_err(cannot)?;
        Ok(Dumped {
            life,
            bytes: ranges.iter().map(|range| range.bytes).sum(),
            vcpus: told,
            untold,
            linux,
            kernel_offset,
        })
    }

    /// RAM of a VM, and the number of its life.
    fn layout(&mut self, vm: &Vm) -> Result<(Vec<Range>, u64), Failure> {
        let mut ranges: Vec<Range> = Vec::new();
        let mut next = 0;
        loop {
            let (answer, _) = self.memory(vm, next, 0)?;
            let [ipa, bytes, life, ..] = answer.values;
            if bytes == 0 {
                return Ok((ranges, life));
            }
            let end = ipa.checked_add(bytes).filter(|_| ipa >= next);
            next = end.ok_or_else(|| wrong(&vm.name, "EL2 tells no sensible memory"))?;
            ranges.push(Range { ipa, bytes });
        }
    }

    /// RAM of a VM at an IPA or behind it.
    fn memory(&mut self, vm: &Vm, ipa: u64, most: u64) -> Result<(Message, Vec<u8>), Failure> {
        for _ in 0..TRIES {
            let (answer, bytes) = self.request_data(Kind::Memory, vm.index, &[ipa, most])?;
            match Status::of(answer.status) {
                Some(Status::Done) => return Ok((answer, bytes)),
                Some(Status::Silent) => std::thread::sleep(BETWEEN),
                Some(Status::Nothing) => {
                    let why = "it has had no life: what is in its memory is not its own";
                    return Err(wrong(&vm.name, why));
                }
                _ => return Err(refusal::failure(Kind::Memory, &vm.name, &answer)),
            }
        }
        Err(wrong(&vm.name, "its vCPUs are not paused yet").advise("try again, or stop it"))
    }

    /// Whether an answer is of the life that is being dumped, which did not run meanwhile.
    fn is_same(&mut self, vm: &Vm, life: u64, answer: &Message) -> Result<(), Failure> {
        // A paused one that has gone on, and is paused again, is in the same life.
        let was_paused = vm.is(Phase::Paused);
        let has_run = |event: &Message| event.vm == vm.index && was_paused;
        let moved = self
            .connection
            .events()
            .any(|event| has_run(event) && event.kind == bulkhead_abi::control::EVENT_STATE);
        if answer.values[2] == life && !moved {
            return Ok(());
        }
        let why = "it has run meanwhile, and its memory is no longer what was read before";
        Err(wrong(&vm.name, why).advise("keep others from starting it, and try again"))
    }

    /// Registers of a vCPU whose VM does not run; why not, if EL2 does not tell them.
    fn registers(
        &mut self,
        vm: &Vm,
        vcpu: u16,
    ) -> Result<Result<Registers, &'static str>, Failure> {
        let mut words = Vec::new();
        while words.len() < WORDS {
            let given = [words.len() as u64, u64::from(!words.is_empty())];
            let answer = self.request(Kind::Registers, vm.index, vcpu, &given)?;
            match Status::of(answer.status) {
                Some(Status::Done) => words.extend(answer.values),
                // Somebody else has asked meanwhile.
                Some(Status::Nothing) if !words.is_empty() => words.clear(),
                Some(status @ (Status::WouldExit | Status::Silent)) => {
                    return Ok(Err(status.words()));
                }
                _ => return Err(refusal::failure(Kind::Registers, &vm.name, &answer)),
            }
        }
        words.truncate(WORDS);
        words
            .try_into()
            .map(Ok)
            .map_err(|_| wrong(&vm.name, "EL2 tells too few registers"))
    }
}
