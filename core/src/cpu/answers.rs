//! Calls that are answered at once: they change nothing and need nobody else. Most calls of a guest
//! that runs are of this kind, and so are those that are not supported.

use bulkhead_abi::call;

use super::psci::{self, answer::NOT_SUPPORTED};
use super::pvtime;
use super::smccc::{ARCH_FEATURES, Workaround, Workarounds};

/// Answers a call at once, if that is possible: `set` is told the number and the value of each
/// register of the answer. `function` is w0, `x1` its argument, `stolen_at` the IPA of the vCPU's
/// stolen time. `false`: the call does something, or is of a range in which a plan can allow calls
/// of the board's firmware.
#[inline(always)]
pub fn at_once(
    function: u32,
    x1: u64,
    workarounds: &Workarounds,
    stolen_at: Option<u64>,
    mut set: impl FnMut(u8, u64),
) -> bool {
    let number = function & 0xffff;
    // Bit 31 and the owner (DEN0028E, table 2.1). What acts has the first numbers of its owner, or
    // is named here.
    let owner = function >> 24 & 0xbf;
    // PSCI, and random numbers. First, because guests ask for these most.
    if owner == 0x84 {
        let x0 = match psci::about_itself(function, x1 as u32) {
            Some(x0) => x0,
            None if number < 0x20 || number & !0xf == 0x50 => return false,
            None => NOT_SUPPORTED,
        };
        set(0, x0);
        return true;
    }
    let x0 = match owner {
        // Arm's own.
        0x80 if function == ARCH_FEATURES && x1 as u32 == pvtime::FEATURES => match stolen_at {
            Some(_) => 0,
            None => NOT_SUPPORTED,
        },
        0x80 => match workarounds.about_itself(function, x1 as u32) {
            Some(x0) => x0,
            None if Workaround::of(function).is_some() => return false,
            None => NOT_SUPPORTED,
        },
        // The standard hypervisor's: stolen time.
        0x85 => pvtime::call(function, x1, stolen_at).unwrap_or(NOT_SUPPORTED),
        // The CPU's: none is known.
        0x81 => NOT_SUPPORTED,
        // Bulkhead's.
        0x86 if function == call::CALL_UID => {
            for (register, word) in (1..).zip(&call::UID[1..]) {
                set(register, u64::from(*word));
            }
            u64::from(call::UID[0])
        }
        0x86 if number >= 0x10 && number & !3 != call::CALL_REVISION & 0xfffc => NOT_SUPPORTED,
        _ => return false,
    };
    set(0, x0);
    true
}

#[cfg(test)]
mod tests {
    use super::super::{psci, smccc, trng};
    use super::*;

    fn answer(
        function: u32,
        x1: u64,
        workarounds: &Workarounds,
        place: Option<u64>,
    ) -> Option<u64> {
        let mut x0 = None;
        let set = |register, value| {
            if register == 0 {
                x0 = Some(value);
            }
        };
        let answered = at_once(function, x1, workarounds, place, set);
        assert_eq!(answered, x0.is_some(), "{function:#x}");
        x0
    }

    /// What the rest of EL2 makes of a call, without what answers at once.
    fn acts(function: u32) -> bool {
        let numbers = trng::call(
            function,
            0,
            Some(&mut trng::Generator::new([1; 32])),
            |_| [2; 64],
        );
        let ours = [call::CALL_REVISION, call::CALL_EVENT, call::CALL_YIELD];
        let nobody = psci::Call::Answer(NOT_SUPPORTED);
        numbers.is_some()
            || ours.contains(&function)
            || psci::call(function, [0; 3], 2) != nobody
                && psci::about_itself(function, 0).is_none()
            || smccc::Workaround::of(function).is_some()
    }

    #[test]
    fn what_acts_is_not_answered_at_once_and_what_is_nothing_is() {
        let workarounds = Workarounds::NONE;
        let ranges = [0u32, 1, 2, 3, 4, 5, 6, 0x30, 0x3f].map(|owner| owner << 24);
        for function in ranges.into_iter().flat_map(|range| {
            let bits = [0, 1 << 31, 1 << 30, 1 << 31 | 1 << 30].map(|bits| range | bits);
            bits.into_iter()
                .flat_map(|first| (0..=0xffff).map(move |n| first | n))
        }) {
            let answer = answer(function, 0, &workarounds, Some(0x1000));
            if acts(function) {
                assert_eq!(answer, None, "{function:#x}");
            }
            if answer == Some(NOT_SUPPORTED) {
                // A plan can allow no such call.
                assert!(!crate::plan::may_be_allowed(function), "{function:#x}");
            }
        }
    }

    #[test]
    fn a_guest_is_told_of_stolen_time_if_it_has_a_place() {
        let asked = u64::from(pvtime::FEATURES);
        let told = |place| answer(ARCH_FEATURES, asked, &Workarounds::NONE, place);
        assert_eq!(told(Some(0x1000)), Some(0));
        assert_eq!(told(None), Some(NOT_SUPPORTED));
        let call = |place| answer(pvtime::STOLEN, 0, &Workarounds::NONE, place);
        assert_eq!(call(Some(0x1000)), Some(0x1000));
        assert_eq!(call(None), Some(NOT_SUPPORTED));
    }

    #[test]
    fn calls_about_the_interfaces_are_answered_at_once() {
        let answer = |function, x1| answer(function, x1, &Workarounds::NONE, None);
        assert_eq!(answer(psci::PSCI_VERSION, 0), Some(0x1_0001));
        assert_eq!(answer(0x8400_000a, 0xc400_0003), Some(0));
        assert_eq!(answer(0x8400_000a, 0x8400_00ff), Some(NOT_SUPPORTED));
        assert_eq!(answer(smccc::SMCCC_VERSION, 0), Some(0x1_0002));
        assert_eq!(answer(0x8600_ff42, 0), Some(NOT_SUPPORTED));
        // A yielding call is for the rest of EL2.
        assert_eq!(answer(0x0400_0040, 0), None);
    }
}
