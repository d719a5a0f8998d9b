//! Stolen time (DEN0057A, "Paravirtualized Time for Arm-based Systems"): the guest asks for the
//! address of a structure in which EL2 publishes, for each of its vCPUs, how long it was ready to
//! run and did not run.

pub use bulkhead_abi::shared_page::stolen_time::{STRIDE, TIME};

use crate::cpu::psci::answer;

/// PV_TIME_FEATURES.
pub const FEATURES: u32 = 0xc500_0020;
/// PV_TIME_ST.
pub const STOLEN: u32 = 0xc500_0021;

/// Decides a call; `function` is w0, `x1` its argument, `place` the IPA of the calling vCPU's
/// structure if its VM has stolen time. `None`: not a call of this interface, or the VM has no
/// stolen time.
#[inline(always)]
pub fn call(function: u32, x1: u64, place: Option<u64>) -> Option<u64> {
    let place = place?;
    match function {
        FEATURES if matches!(x1 as u32, FEATURES | STOLEN) => Some(0),
        FEATURES => Some(answer::NOT_SUPPORTED),
        STOLEN => Some(place),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_told_finds_the_place() {
        let place = Some(0x900_0040);
        for function in [FEATURES, STOLEN] {
            assert_eq!(call(FEATURES, function.into(), place), Some(0));
        }
        assert_eq!(call(STOLEN, 0, place), place);
        assert_eq!(call(FEATURES, 0x84, place), Some(answer::NOT_SUPPORTED));
        // The upper half of x1 is not part of the function identifier.
        assert_eq!(call(FEATURES, 1 << 32 | u64::from(STOLEN), place), Some(0));
        assert_eq!(call(0xc500_0022, 0, place), None);
    }

    #[test]
    fn who_is_not_told_finds_no_such_call() {
        assert_eq!(call(FEATURES, FEATURES.into(), None), None);
        assert_eq!(call(STOLEN, 0, None), None);
    }
}
