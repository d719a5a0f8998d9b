//! `[board]`: which board, and with what.

use toml::de::DeTable;

use super::code::Code;
use super::finding::{Finding, Span};
use super::keys::BOARD;
use super::reader::{Placed, Reader};

/// Source of the board's device tree.
#[derive(Clone, Debug)]
pub enum BoardSource {
    /// A folder in `boards/`.
    Named(Placed<String>),
    /// A device tree in a file.
    Tree(Placed<String>),
}

/// `[board]`.
#[derive(Clone, Debug)]
pub struct BoardSpec {
    /// Which board.
    pub source: BoardSource,
    /// CPU type of an emulated board.
    pub cpu: Option<Placed<String>>,
    /// CPUs of an emulated board.
    pub cpus: Option<Placed<u32>>,
    /// Bytes of memory of an emulated board.
    pub memory: Option<Placed<u64>>,
    /// GIC version of an emulated board.
    pub gic: Option<Placed<u32>>,
    /// Firmware of an emulated board.
    pub firmware: Option<Placed<String>>,
    /// PL011s of an emulated board; the first carries the consoles.
    pub uarts: Option<Placed<u32>>,
}

impl BoardSpec {
    /// Place at which the description names the board.
    pub fn place(&self) -> Span {
        match &self.source {
            BoardSource::Named(name) | BoardSource::Tree(name) => name.span.clone(),
        }
    }

    /// Place that states the number of CPUs: `cpus`, else [`Self::place`].
    pub fn cpus_place(&self) -> Span {
        let stated = self.cpus.as_ref().map(|cpus| cpus.span.clone());
        stated.unwrap_or_else(|| self.place())
    }

    /// Place that states the memory of the board: `memory`, else [`Self::place`].
    pub fn memory_place(&self) -> Span {
        let stated = self.memory.as_ref().map(|memory| memory.span.clone());
        stated.unwrap_or_else(|| self.place())
    }

    /// Place that states the GIC of the board: `gic`, else [`Self::place`].
    pub fn gic_place(&self) -> Span {
        let stated = self.gic.as_ref().map(|gic| gic.span.clone());
        stated.unwrap_or_else(|| self.place())
    }

    /// Place that states the firmware of the board: `firmware`, else [`Self::place`].
    pub fn firmware_place(&self) -> Span {
        let stated = self.firmware.as_ref().map(|firmware| firmware.span.clone());
        stated.unwrap_or_else(|| self.place())
    }
}

/// Reads `[board]`, which stands at `place`.
pub(super) fn read(place: Span, table: &DeTable, findings: &mut Vec<Finding>) -> Option<BoardSpec> {
    let mut reader = Reader::new(table, "the board", BOARD, findings);
    let name = reader.read(const { BOARD.text("name") });
    let dtb = reader.read(const { BOARD.text("dtb") });
    let spec = |source| BoardSpec {
        source,
        cpu: None,
        cpus: None,
        memory: None,
        gic: None,
        firmware: None,
        uarts: None,
    };
    let spec = match (name, dtb) {
        (Some(name), None) => Some(spec(BoardSource::Named(name))),
        (None, Some(dtb)) => Some(spec(BoardSource::Tree(dtb))),
        (Some(name), Some(dtb)) => {
            reader.report(
                Finding::new(
                    Code::BoardBoth,
                    "a board has a name or a device tree, not both",
                )
                .at(dtb.span, "a device tree")
                .at(name.span, "a board of boards/")
                .help("leave one of them out"),
            );
            None
        }
        // What cannot be read is an error already.
        (None, None)
            if reader.has(const { BOARD.key("name") })
                || reader.has(const { BOARD.key("dtb") }) =>
        {
            None
        }
        (None, None) => {
            let spans = BOARD.keys.iter().filter_map(|key| reader.key_span(key));
            let span = spans.min_by_key(|span| span.start).unwrap_or(place);
            let finding =
                Finding::new(Code::BoardMissing, "[board] does not say which board it is");
            reader.report(
                finding
                    .at(span, "of which board?")
                    .help("add name = \"qemu-virt\" (a folder in boards/), or dtb = \"FILE\""),
            );
            None
        }
    };
    let cpu = reader.read(const { BOARD.text("cpu") });
    let cpus = reader.read(const { BOARD.number("cpus") });
    let memory = reader.read(const { BOARD.quantity("memory") });
    let gic = reader.read(const { BOARD.number("gic") });
    let firmware = reader.read(const { BOARD.text("firmware") });
    let uarts = reader.read(const { BOARD.number("uarts") });
    reader.finish();
    spec.map(|spec| BoardSpec {
        cpu,
        cpus,
        memory,
        gic,
        firmware,
        uarts,
        ..spec
    })
}
