//! Memory and registers of VMs that do not run.

use bulkhead_abi::control::{Kind, Message, Phase, Request, Status, VALUES, registers};

use crate::FakeVm;

/// What follows a message, of the VM that it is about.
pub(crate) fn data<'a>(vm: &'a FakeVm, message: &Message) -> &'a [u8] {
    let ipa = message.values[0];
    let found = vm.ram.iter().find(|(first, bytes)| {
        let at = ipa.checked_sub(*first);
        at.is_some_and(|at| at < bytes.len() as u64)
    });
    let from = found.map_or(&[][..], |(first, bytes)| &bytes[(ipa - first) as usize..]);
    &from[..from.len().min(message.data.into())]
}

/// Bytes that are told at once: as if windows ended there.
const WINDOW: u64 = 10_000;

/// Answers; gives the values, and how many bytes follow.
pub(crate) fn perform(
    vm: &FakeVm,
    kind: Kind,
    request: &Request,
) -> Result<(Vec<u64>, u64), (Status, u64)> {
    if !matches!(vm.phase, Phase::Down | Phase::Ended | Phase::Paused) {
        return Err((Status::Phase, vm.phase as u64));
    }
    let [first, second, ..] = request.values;
    if kind == Kind::Registers {
        if vm.is_undisturbed && vm.phase == Phase::Paused {
            return Err((Status::WouldExit, 0));
        }
        // x5 is 0x1005.
        let word = |n: u64| match n as usize {
            registers::STATE => 4,
            registers::PSTATE => 0x3c5,
            n if n < registers::WORDS => 0x1000 + n as u64 - registers::X as u64,
            _ => 0,
        };
        return Ok(((first..).take(VALUES).map(word).collect(), 0));
    }
    if vm.lives == 0 {
        return Err((Status::Nothing, 0));
    }
    let found = vm
        .ram
        .iter()
        .find(|(ipa, bytes)| first < ipa + bytes.len() as u64);
    let Some((ipa, bytes)) = found else {
        return Ok((vec![0, 0, vm.lives], 0));
    };
    let at = first.max(*ipa);
    let left = ipa + bytes.len() as u64 - at;
    let data = left.min(second).min(WINDOW - at % WINDOW);
    Ok((vec![at, left, vm.lives], data))
}
