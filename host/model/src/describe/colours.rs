//! `colours`, `cache` and `share_colours` of a VM and of EL2: which pages of memory it has, so that others do not evict what it keeps in the cache that
//! all share.

use bulkhead_abi::plan::MAX_COLOURS;

use super::code::Code;
use super::finding::{Finding, Span};
use super::keys::{EL2, SERVICE, VM};
use super::reader::{Placed, Reader};

/// The colours of a VM.
#[derive(Clone, Debug, Default)]
pub struct ColoursSpec {
    /// A bit for each; none: all that the board has.
    pub mask: Option<Placed<u64>>,
    /// The part of the cache that it has, of which the planner chooses the colours: so many of so many parts.
    pub part: Option<Placed<(u32, u32)>>,
    /// Place at which the description says that others may have the same.
    pub shared: Option<Span>,
    /// Numbers of the board's caches in which that memory can be, once the planner knows.
    pub caches: Vec<usize>,
}

/// Reads both of a VM.
pub(super) fn of_vm(reader: &mut Reader) -> ColoursSpec {
    let text = reader.read(const { VM.text("colours") });
    let part = reader.read(const { VM.text("cache") });
    let shared = reader.read(const { VM.flag("share_colours") });
    spec(text, part, shared, reader)
}

/// Reads both of the VM that serves devices.
pub(super) fn of_service(reader: &mut Reader) -> ColoursSpec {
    let text = reader.read(const { SERVICE.text("colours") });
    let part = reader.read(const { SERVICE.text("cache") });
    let shared = reader.read(const { SERVICE.flag("share_colours") });
    spec(text, part, shared, reader)
}

/// Reads those of EL2.
pub(super) fn of_el2(reader: &mut Reader) -> ColoursSpec {
    let text = reader.read(const { EL2.text("colours") });
    let part = reader.read(const { EL2.text("cache") });
    spec(text, part, None, reader)
}

fn spec(
    text: Option<Placed<String>>,
    part: Option<Placed<String>>,
    shared: Option<Placed<bool>>,
    reader: &mut Reader,
) -> ColoursSpec {
    let mask = text.and_then(|text| match numbers(&text.value) {
        Ok(mask) => Some(text.map(|_| mask)),
        Err(why) => {
            reader.report(
                Finding::new(
                    Code::ColoursValue,
                    format!("`{}` are no colours", text.value),
                )
                .at(text.span.clone(), why)
                .help("such as \"0-7\" or \"0-3, 8\": numbers from 0 to 63 and ranges of them"),
            );
            None
        }
    });
    if let (Some(mask), Some(part)) = (&mask, &part) {
        reader.report(
            Finding::new(
                Code::ColoursValue,
                "`colours` names them, or `cache` the part of the cache",
            )
            .at(part.span.clone(), "the planner chooses them")
            .at(mask.span.clone(), "these are chosen")
            .help("leave one of them out"),
        );
    }
    let part = part.and_then(|text| match parse_part(&text.value) {
        Some(part) => Some(text.map(|_| part)),
        None => {
            reader.report(
                Finding::new(
                    Code::ColoursValue,
                    format!("`{}` is no part of a cache", text.value),
                )
                .at(text.span.clone(), "two numbers, of which the second is a power of two up to 64 and the first is less")
                .help("such as \"1/4\" or \"3/8\""),
            );
            None
        }
    });
    ColoursSpec {
        mask,
        part,
        shared: shared.filter(|flag| flag.value).map(|flag| flag.span),
        caches: Vec::new(),
    }
}

/// Two numbers of a part, less than the whole.
fn parse_part(text: &str) -> Option<(u32, u32)> {
    let (part, of) = text.split_once('/')?;
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let (part, of) = (number(part)?, number(of)?);
    (of.is_power_of_two() && of <= MAX_COLOURS && (1..of).contains(&part)).then_some((part, of))
}

/// The bits of numbers from 0 to 63 and ranges of them.
pub(super) fn numbers(text: &str) -> Result<u64, String> {
    let mut mask = 0;
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let number = text.trim().parse::<u32>();
            let number = number.map_err(|_| format!("`{part}` is no number or range"))?;
            match number {
                0..MAX_COLOURS => Ok(number),
                _ => Err(format!(
                    "no board has a number {number} here: they end at 63"
                )),
            }
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("`{part}` ends before it begins"));
        }
        mask |= u64::MAX >> (MAX_COLOURS - 1 - (last - first)) << first;
    }
    Ok(mask)
}

/// The colours of a mask as a description has them.
pub fn colours_text(mask: u64) -> String {
    let mut parts = Vec::new();
    let mut at = 0;
    while at < MAX_COLOURS && mask >> at != 0 {
        at += (mask >> at).trailing_zeros();
        let run = (!(mask >> at)).trailing_zeros().min(MAX_COLOURS - at);
        parts.push(match run {
            1 => at.to_string(),
            _ => format!("{at}-{}", at + run - 1),
        });
        at += run;
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_are_bits() {
        assert_eq!(numbers("0-3, 8"), Ok(0x10f));
        assert_eq!(numbers("63"), Ok(1 << 63));
        assert_eq!(numbers("0-63"), Ok(u64::MAX));
        for wrong in ["", "4-3", "64", "1,,2", "a", "-1", "1-", "0x3"] {
            assert!(numbers(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_part_is_less_than_the_whole() {
        assert_eq!(parse_part("1/4"), Some((1, 4)));
        assert_eq!(parse_part(" 63 / 64 "), Some((63, 64)));
        for wrong in [
            "", "1", "1/3", "0/4", "4/4", "1/128", "-1/4", "1/4/2", "a/2", "25%",
        ] {
            assert_eq!(parse_part(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(mask in 1..u64::MAX) {
            prop_assert_eq!(numbers(&colours_text(mask)), Ok(mask));
        }
    }
}
