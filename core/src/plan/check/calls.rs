//! Rules about devices and firmware: the writes that quiet devices, and the allowed calls.

use bulkhead_abi::plan::TableId;

use super::regions::{is_device, region_pa};
use crate::plan::span::{Span, aligned};
use crate::plan::view::Plan;
use crate::plan::violation::{At, Check, Invariant};

/// Bit 31 of a function identifier: a fast call (DEN0028, function identifiers and their ranges,
/// also for the bits below).
const FAST: u32 = 1 << 31;
/// Bits 23 to 16, which are 0 in a fast call; bit 16 is a hint about SVE and not part of the
/// identifier.
const MUST_BE_ZERO: u32 = 0x00ff_0000;

/// Whether a plan may allow `function`: fast calls of the SiP, OEM and trusted-OS services. EL2
/// itself answers the architecture, CPU, standard (PSCI, TRNG) and hypervisor services; trusted
/// applications (owners 48 and 49) are called through their trusted OS.
pub const fn may_be_allowed(function: u32) -> bool {
    let owner = function.wrapping_shr(24) & 0x3f;
    let known = owner == 2 || owner == 3 || (50 <= owner && owner <= 63);
    known && function & FAST != 0 && function & MUST_BE_ZERO == 0
}

impl Plan<'_> {
    /// Checks the writes that quiet passed-through devices.
    pub(super) fn check_quiets(&self) -> Check {
        for (row, quiet) in self.quiets.iter().enumerate() {
            let at = At::row(TableId::Quiets, row);
            let most = match quiet.width {
                1 => 0xff,
                2 => 0xffff,
                4 => u32::MAX,
                _ => return Err(at.breaks(Invariant::QuietWidth)),
            };
            at.ensure(quiet.value <= most, Invariant::QuietWidth)?;
            let width = u64::from(quiet.width);
            let register = Span::new(quiet.pa, width).filter(|span| aligned(span.start, width));
            let inside = register.is_some_and(|register| {
                self.regions_of(usize::from(quiet.vm))
                    .iter()
                    .filter(|region| is_device(region))
                    .filter_map(region_pa)
                    .any(|device| device.contains(register))
            });
            at.ensure(inside, Invariant::QuietTarget)?;
        }
        Ok(())
    }

    /// Checks the calls that VMs may make.
    pub(super) fn check_calls(&self) -> Check {
        let mut before = None;
        for (row, call) in self.calls.iter().enumerate() {
            let at = At::row(TableId::Calls, row);
            at.ensure(call.reserved == 0, Invariant::ReservedZero)?;
            at.ensure(may_be_allowed(call.function), Invariant::CallFunction)?;
            let place = (call.vm, call.function);
            let ascends = before.is_none_or(|before| before < place);
            at.ensure(ascends, Invariant::CallOrder)?;
            before = Some(place);
        }
        Ok(())
    }
}
