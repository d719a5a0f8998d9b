//! Consoles of VMs.

use bulkhead_abi::control::{INPUT_DATA, Message, OUTPUT_DATA, Phase, Request, Status};

use crate::FakeVm;

/// Bytes of a console that are kept.
pub const KEPT: u64 = 1000;

/// What follows a message, of the VM that it is about.
pub(crate) fn data<'a>(vm: &'a FakeVm, message: &Message) -> &'a [u8] {
    let from = vm.printed.get(message.values[0] as usize..);
    from.and_then(|from| from.get(..message.data.into()))
        .unwrap_or_default()
}

/// Answers; gives the values, and how many bytes follow.
pub(crate) fn output(vm: &FakeVm, request: &Request) -> Result<(Vec<u64>, u16), (Status, u64)> {
    let [from, most, ..] = request.values;
    if most > OUTPUT_DATA as u64 {
        return Err((Status::Value, 0));
    }
    let next = vm.printed.len() as u64;
    let first = from.max(next.saturating_sub(KEPT)).min(next);
    Ok((vec![first, next], (next - first).min(most) as u16))
}

/// Types.
pub(crate) fn input(vm: &mut FakeVm, request: &Request) -> Result<Vec<u64>, (Status, u64)> {
    let [bytes, words @ ..] = request.values;
    if bytes == 0 || bytes > INPUT_DATA as u64 {
        return Err((Status::Value, 0));
    }
    if !matches!(vm.phase, Phase::Running | Phase::Asked | Phase::Paused) {
        return Err((Status::Phase, vm.phase as u64));
    }
    if vm.is_undisturbed {
        return Err((Status::WouldExit, 0));
    }
    let taken = vm.takes.min(bytes as usize);
    vm.takes -= taken;
    let given = words.iter().flat_map(|word| word.to_le_bytes());
    vm.typed.extend(given.take(taken));
    Ok(vec![taken as u64])
}
