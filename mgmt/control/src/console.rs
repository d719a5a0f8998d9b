//! The console of a VM: what it has printed, and keys for it.

use std::io::{Read, Write};
use std::os::fd::AsFd;

use bulkhead_abi::control::{INPUT_DATA, Kind, OUTPUT_DATA, Status};

use crate::board::Vm;
use crate::failure::Failure;
use crate::manager::Manager;
use crate::refusal;

/// Bytes that a VM has printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Printed {
    /// Number of the first one, since the board started; greater than was asked for where older ones are lost.
    pub first: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// There are more that can be read now; else there is an event when there are.
    pub more: bool,
}

impl Printed {
    /// Number of the byte behind them.
    pub fn next(&self) -> u64 {
        self.first + self.bytes.len() as u64
    }
}

impl<T: Read + Write + AsFd> Manager<T> {
    /// What a VM has printed from a byte on.
    ///
    /// # Errors
    /// EL2 does not tell it.
    pub fn printed(&mut self, vm: &Vm, from: u64) -> Result<Printed, Failure> {
        let given = [from, OUTPUT_DATA as u64];
        let (answer, bytes) = self.request_data(Kind::Output, vm.index, &given)?;
        if answer.status != Status::Done as u16 {
            return Err(refusal::failure(Kind::Output, &vm.name, &answer));
        }
        let [first, next, ..] = answer.values;
        let end = first.checked_add(bytes.len() as u64);
        let Some(end) = end.filter(|end| *end <= next) else {
            let what = format!("cannot read the console of {}", vm.name);
            return Err(Failure::failed(
                "control::console",
                what,
                "EL2 tells more than the VM has printed",
            ));
        };
        Ok(Printed {
            first,
            bytes,
            more: end < next,
        })
    }

    /// Types on the console of a VM. Gives how many bytes were taken, the first ones: there is no room for others until the VM has read.
    ///
    /// # Errors
    /// EL2 refuses.
    pub fn type_on(&mut self, vm: &Vm, bytes: &[u8]) -> Result<usize, Failure> {
        let bytes = &bytes[..bytes.len().min(INPUT_DATA)];
        let mut given = [bytes.len() as u64, 0, 0, 0];
        for (word, eight) in given[1..].iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..eight.len()].copy_from_slice(eight);
            *word = u64::from_le_bytes(whole);
        }
        let answer = self.ask(Kind::Input, (vm.index, &vm.name), 0, &given)?;
        Ok((answer.values[0] as usize).min(bytes.len()))
    }
}
