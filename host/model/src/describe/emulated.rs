//! Devices that EL2 emulates for a VM, and their guest addresses, as far as the description says.

use bulkhead_abi::plan::PAGE;

use super::code::Code;
use super::finding::{Finding, Span};
use super::keys::{EMULATED, Flag, GIC, Key, VM, Word};
use super::reader::{Placed, Reader};
use super::words::{FIRST_INTID, LAST_INTID};

/// Frames of a GIC start at a multiple of this.
const GIC_FRAME: u64 = 64 << 10;

/// A device that EL2 emulates.
#[derive(Clone, Debug, Default)]
pub struct DeviceSpec {
    /// The words that ask for it; none: a VM has it by default.
    pub asked: Option<Span>,
    /// Guest address, if not the default.
    pub ipa: Option<Placed<u64>>,
    /// Its interrupt, if not the default.
    pub intid: Option<Placed<u32>>,
}

/// Guest addresses of the interrupt controller, those that are not the default.
#[derive(Clone, Debug, Default)]
pub struct GicSpec {
    /// Distributor.
    pub gicd: Option<Placed<u64>>,
    /// Redistributors of a GICv3.
    pub gicr: Option<Placed<u64>>,
    /// CPU interface of a GICv2.
    pub gicc: Option<Placed<u64>>,
}

/// `console`: a word, or a table that says where it is. Also the place at which it asks for a virtio-console besides.
pub(super) fn console(reader: &mut Reader) -> (Option<DeviceSpec>, Option<Span>) {
    const KEY: Word = VM.word("console");
    if let Some(device) = table(reader, KEY.0, "`console`") {
        return (Some(device), None);
    }
    match reader.read(KEY) {
        Some(word) if word.value == "none" => (None, None),
        Some(word) if word.value == "virtio" => (Some(DeviceSpec::default()), Some(word.span)),
        word => (Some(asked(word.map(|word| word.span))), None),
    }
}

/// `rtc`: true, or a table that says where it is.
pub(super) fn rtc(reader: &mut Reader) -> Option<DeviceSpec> {
    device(reader, const { VM.flag("rtc") }, "`rtc`")
}

/// `watchdog`: true, or a table that says where it is.
pub(super) fn watchdog(reader: &mut Reader) -> Option<DeviceSpec> {
    device(reader, const { VM.flag("watchdog") }, "`watchdog`")
}

fn device(reader: &mut Reader, key: Flag, what: &'static str) -> Option<DeviceSpec> {
    table(reader, key.0, what).or_else(|| {
        let flag = reader.read(key).filter(|flag| flag.value)?;
        Some(asked(Some(flag.span)))
    })
}

fn asked(asked: Option<Span>) -> DeviceSpec {
    DeviceSpec {
        asked,
        ..DeviceSpec::default()
    }
}

/// Reads a device from a table; none: the description has no table for it.
fn table(reader: &mut Reader, key: &Key, what: &'static str) -> Option<DeviceSpec> {
    let value = reader.value(key)?;
    let table = value.get_ref().as_table()?;
    let mut findings = Vec::new();
    let mut inner = Reader::new(table, what, EMULATED, &mut findings);
    let (ipa, intid) = (
        inner.read(const { EMULATED.quantity("ipa") }),
        inner.read(const { EMULATED.number("intid") }),
    );
    inner.finish();
    let rule = "the registers of an emulated device start at a multiple of 4 KiB";
    findings.extend(unaligned(&ipa, (PAGE, "4 KiB"), rule));
    let intid = intid.filter(|intid| {
        let sound = (FIRST_INTID..=LAST_INTID).contains(&intid.value);
        findings.extend((!sound).then(|| no_spi(intid)));
        sound
    });
    findings
        .into_iter()
        .for_each(|finding| reader.report(finding));
    Some(DeviceSpec {
        asked: Some(value.span()),
        ipa,
        intid,
    })
}

/// Finding for an INTID that no device can have.
fn no_spi(intid: &Placed<u32>) -> Finding {
    Finding::new(
        Code::DeviceIntid,
        format!("INTID {} is that of no device", intid.value),
    )
    .at(
        intid.span.clone(),
        format!("must be {FIRST_INTID} to {LAST_INTID}"),
    )
    .help(format!(
        "the SPI that a device tree calls n has INTID n + {FIRST_INTID}"
    ))
}

/// `gic`.
pub(super) fn gic(reader: &mut Reader) -> GicSpec {
    let Some(value) = reader.value(const { VM.key("gic") }) else {
        return GicSpec::default();
    };
    let Some(table) = value.get_ref().as_table() else {
        reader.report(
            Finding::new(
                Code::ValueType,
                "`gic` must be a table of the frames that are not where they usually are",
            )
            .at(value.span(), "no table")
            .help("such as gic = { gicd = \"0x8000000\", gicr = \"0x80a0000\" }"),
        );
        return GicSpec::default();
    };
    let mut findings = Vec::new();
    let mut inner = Reader::new(table, "`gic`", GIC, &mut findings);
    let gic = GicSpec {
        gicd: inner.read(const { GIC.quantity("gicd") }),
        gicr: inner.read(const { GIC.quantity("gicr") }),
        gicc: inner.read(const { GIC.quantity("gicc") }),
    };
    inner.finish();
    let rule = "the frames of a GIC start at multiples of 64 KiB";
    for frame in [&gic.gicd, &gic.gicr, &gic.gicc] {
        findings.extend(unaligned(frame, (GIC_FRAME, "64 KiB"), rule));
    }
    findings
        .into_iter()
        .for_each(|finding| reader.report(finding));
    gic
}

/// Finding for an address that is not a multiple of `unit`.
fn unaligned(
    address: &Option<Placed<u64>>,
    (unit, shown): (u64, &str),
    rule: &str,
) -> Option<Finding> {
    let address = address
        .as_ref()
        .filter(|address| address.value % unit != 0)?;
    let finding = Finding::new(Code::DeviceAlign, rule)
        .at(address.span.clone(), format!("not a multiple of {shown}"));
    Some(finding.help(format!("{:#x} is one", address.value & !(unit - 1))))
}
