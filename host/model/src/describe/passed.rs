//! `devices` of a VM: devices of the board that it gets.

use super::code::Code;
use super::finding::{Finding, Span};
use super::keys::{DEVICE, VM};
use super::reader::{Placed, Reader, TextOrTable};

/// A device of the board that a VM asks for.
#[derive(Clone, Debug)]
pub struct PassedSpec {
    /// Path in the board's device tree.
    pub path: Placed<String>,
    /// Place at which the description declares that it does no DMA.
    pub no_dma: Option<Span>,
}

/// Reads `devices`. One without a path is left out, which is reported.
pub(super) fn read(reader: &mut Reader) -> Vec<PassedSpec> {
    let mut devices = Vec::new();
    let mut found = Vec::new();
    for (entry, span) in reader.texts_and_tables(const { VM.key("devices") }) {
        let table = match entry {
            TextOrTable::Text(value) => {
                let path = Placed { value, span };
                devices.push(PassedSpec { path, no_dma: None });
                continue;
            }
            TextOrTable::Table(table) => table,
        };
        let mut device = Reader::new(table, "a device", DEVICE, &mut found);
        let path = device.read(const { DEVICE.text("path") });
        let no_dma = device.read(const { DEVICE.word("dma") });
        let missing = device.missing();
        device.finish();
        if !missing.is_empty() {
            found.push(
                Finding::new(Code::DeviceIncomplete, "a device is named by its path")
                    .at(span, format!("needs {}", missing.join(", ")))
                    .help("such as { path = \"/axi/i2c@ff020000\", dma = \"none\" }"),
            );
        }
        devices.extend(path.map(|path| PassedSpec {
            path,
            no_dma: no_dma.map(|word| word.span),
        }));
    }
    found.into_iter().for_each(|finding| reader.report(finding));
    devices
}
