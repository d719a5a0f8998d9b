//! `stop` of a VM: how it is asked to end, and what time it has for it.

use bulkhead_abi::plan::{MAX_STOP, MIN_STOP};
use toml::de::{DeTable, DeValue};

use super::code::Code;
use super::finding::{Finding, Span};
use super::keys::{STOP, VM};
use super::reader::{Placed, Reader};
use super::size::Duration;
use super::words::WORD;

/// Milliseconds that a VM has, if the description does not say: what a Debian takes to end its services.
pub const TIMEOUT: u32 = 60_000;
/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;

/// Example for messages.
const EXAMPLE: &str = "such as stop = \"power-key\", or stop = { by = \"word\", timeout = \"5s\" }";

/// The way in which a VM is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopBy {
    /// By a key that its kernel knows, which is an interrupt.
    PowerKey,
    /// By a word that it reads.
    Word,
}

/// `stop`.
#[derive(Clone, Debug)]
pub struct StopSpec {
    /// The way.
    pub by: StopBy,
    /// Where that stands.
    pub span: Span,
    /// Milliseconds after which it is ended.
    pub timeout: u32,
}

/// Reads `stop`.
pub(super) fn read(reader: &mut Reader) -> Option<StopSpec> {
    let value = reader.value(const { VM.key("stop") })?;
    let DeValue::Table(table) = value.get_ref() else {
        let word = reader.read(const { VM.word("stop") })?;
        return Some(spec(&word, TIMEOUT));
    };
    let mut inner = Vec::new();
    let stop = read_table(table, value.span(), &mut inner);
    inner.into_iter().for_each(|finding| reader.report(finding));
    stop
}

fn spec(by: &Placed<&'static str>, timeout: u32) -> StopSpec {
    StopSpec {
        by: if by.value == WORD {
            StopBy::Word
        } else {
            StopBy::PowerKey
        },
        span: by.span.clone(),
        timeout,
    }
}

/// `stop = { by = "WORD", timeout = "TIME" }`.
fn read_table(table: &DeTable, span: Span, findings: &mut Vec<Finding>) -> Option<StopSpec> {
    let mut reader = Reader::new(table, "`stop`", STOP, findings);
    let by = reader.read(const { STOP.word("by") });
    let timeout = reader.read(const { STOP.quantity("timeout") });
    if let Some(timeout) = &timeout
        && !(u64::from(MIN_STOP) * MS..=u64::from(MAX_STOP) * MS).contains(&timeout.value)
    {
        let (least, most) = (
            Duration(u64::from(MIN_STOP) * MS),
            Duration(u64::from(MAX_STOP) * MS),
        );
        reader.report(
            Finding::new(
                Code::StopTimeout,
                format!("a VM that is asked to stop has {least} to {most} for it"),
            )
            .at(
                timeout.span.clone(),
                format!("{} here", Duration(timeout.value)),
            )
            .help(format!(
                "leave `timeout` out: {} is the default",
                Duration(u64::from(TIMEOUT) * MS)
            )),
        );
    }
    // A key that is spelled wrong is the fault; that it is missing only follows from that.
    if reader.unknown().next().is_none() && !reader.missing().is_empty() {
        reader.report(
            Finding::new(
                Code::StopIncomplete,
                "a VM is asked to stop in one of two ways",
            )
            .at(span, "needs `by`")
            .help(EXAMPLE),
        );
    }
    reader.finish();
    let timeout = timeout.map_or(TIMEOUT, |timeout| {
        u32::try_from(timeout.value.div_ceil(MS)).unwrap_or(TIMEOUT)
    });
    by.map(|by| spec(&by, timeout))
}
