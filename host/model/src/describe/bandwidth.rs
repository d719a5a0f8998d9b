//! `accesses` and `access_period` of a VM: its part of the memory's bandwidth.

use bulkhead_abi::plan::{MAX_EVENTS, MAX_PERIOD, MIN_PERIOD};

use super::code::Code;
use super::finding::Finding;
use super::keys::VM;
use super::reader::{Placed, Reader};
use super::size::Duration;

/// Period, if the description does not say: 1 ms in nanoseconds.
const PERIOD: u64 = 1_000_000;

/// The part of the memory's bandwidth that each vCPU of a VM has.
#[derive(Clone, Debug)]
pub struct BandwidthSpec {
    /// Accesses in each period.
    pub accesses: Placed<u32>,
    /// Length of the period, in nanoseconds.
    pub period: u64,
}

/// Reads both keys; none: the VM has no limit.
pub(super) fn read(reader: &mut Reader) -> Option<BandwidthSpec> {
    let accesses = reader.read(const { VM.number("accesses") });
    let period = reader.read(const { VM.quantity("access_period") });
    if let Some(accesses) = accesses
        .as_ref()
        .filter(|accesses| !(1..=MAX_EVENTS).contains(&accesses.value))
    {
        reader.report(
            Finding::new(
                Code::BandwidthValue,
                format!("accesses are 1 to {MAX_EVENTS} in a period"),
            )
            .at(accesses.span.clone(), format!("{} here", accesses.value))
            .help("leave it out for no limit; for more than that take a shorter period"),
        );
    }
    if let Some(period) = &period
        && !(MIN_PERIOD..=MAX_PERIOD).contains(&period.value)
    {
        let (least, most) = (Duration(MIN_PERIOD), Duration(MAX_PERIOD));
        let what = format!("accesses are counted in periods of {least} to {most}");
        reader.report(
            Finding::new(Code::BandwidthValue, what)
                .at(period.span.clone(), format!("{} here", Duration(period.value)))
                .help("1ms is usual: in a shorter one EL2 takes more of the CPU, in a longer one more comes at once"),
        );
    }
    if let Some(period) = period.as_ref().filter(|_| accesses.is_none())
        && !reader.has(const { VM.key("accesses") })
    {
        reader.report(
            Finding::new(
                Code::BandwidthValue,
                "there is nothing to count in this period",
            )
            .at(period.span.clone(), "of which accesses?")
            .help("add `accesses`, the most in each period, or leave it out"),
        );
    }
    Some(BandwidthSpec {
        accesses: accesses?,
        period: period.map_or(PERIOD, |period| period.value),
    })
}
