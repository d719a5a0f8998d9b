//! `[board]`: which board, and with what.

use bulkhead_abi::plan::{MAX_COLOURS, Memory, PAGE};
use toml::de::DeTable;

use super::code::Code;
use super::colours::numbers;
use super::finding::{Finding, Span};
use super::keys::BOARD;
use super::reader::{Placed, Reader};
use super::size::{parse_address, parse_size};

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
    /// Ranges of memory of a board whose device tree does not tell of any, as they stand there.
    pub ram: Vec<Placed<String>>,
    /// GIC version of an emulated board.
    pub gic: Option<Placed<u32>>,
    /// Firmware of an emulated board.
    pub firmware: Option<Placed<String>>,
    /// PL011s of an emulated board; the first carries the consoles.
    pub uarts: Option<Placed<u32>>,
    /// Colours of the last cache of each of its CPUs.
    pub colours: Option<Placed<u32>>,
    /// The same where clusters have caches of their own.
    pub caches: Vec<Placed<CacheSpec>>,
    /// Name of the event that counts accesses to memory.
    pub access_event: Option<Placed<&'static str>>,
}

/// A cache that the description tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// CPUs that share it, ascending.
    pub cpus: Vec<u32>,
    /// Its colours.
    pub colours: u32,
}

impl BoardSpec {
    /// [`Self::ram`]; what is no range is reported already.
    pub fn ram_ranges(&self) -> Vec<Memory> {
        { self.ram.iter() }
            .filter_map(|text| range(&text.value).ok())
            .collect()
    }

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

/// Reads `1GiB at 0x40000000`.
fn range(text: &str) -> Result<Memory, String> {
    let (size, base) = text.split_once(" at ").ok_or("it is no SIZE at ADDRESS")?;
    let (size, base) = (parse_size(size)?, parse_address(base)?);
    if size % PAGE != 0 || base % PAGE != 0 {
        return Err("memory comes in pages of 4 KiB".to_owned());
    }
    base.checked_add(size)
        .map(|_| Memory { base, size })
        .ok_or_else(|| "its end is beyond all addresses".to_owned())
}

/// Reads a range that begins at `end` at the earliest, and moves that behind it.
fn next_range(text: &str, end: &mut u64) -> Result<Memory, String> {
    let range = range(text)?;
    if range.base < *end {
        return Err("the one before does not end below it".to_owned());
    }
    *end = range.base.saturating_add(range.size);
    Ok(range)
}

/// Reads ranges of memory as `memory_ranges` has them.
///
/// # Errors
/// Which is none, or lies below the one before, and why.
pub fn memory_ranges(texts: &[String]) -> Result<Vec<Memory>, String> {
    let mut end = 0;
    let each = texts.iter().map(|text| {
        next_range(text, &mut end).map_err(|why| format!("`{text}` is no range of memory: {why}"))
    });
    each.collect()
}

/// Reports ranges that are none, or that do not ascend.
fn check_ram(ram: &[Placed<String>], reader: &mut Reader) {
    let mut end = 0;
    for text in ram {
        if let Err(why) = next_range(&text.value, &mut end) {
            reader.report(
                Finding::new(
                    Code::BoardMemory,
                    format!("`{}` is no range of memory", text.value),
                )
                .at(text.span.clone(), why)
                .help("such as \"1GiB at 0x40000000\""),
            );
        }
    }
}

/// Reads `0-3: 16`.
fn cache(text: &str) -> Result<CacheSpec, String> {
    let (cpus, colours) = text.split_once(':').ok_or("it is no CPUS: COLOURS")?;
    let cpus = numbers(cpus)?;
    let colours = colours.trim().parse::<u32>().ok();
    let colours = colours.filter(|it| it.is_power_of_two() && (2..=MAX_COLOURS).contains(it));
    let colours = colours.ok_or("the number of colours is a power of two from 2 to 64")?;
    let cpus = (0..MAX_COLOURS)
        .filter(|cpu| cpus >> cpu & 1 != 0)
        .collect();
    Ok(CacheSpec { cpus, colours })
}

/// Reads caches; reports what is none.
fn read_caches(texts: Vec<Placed<String>>, reader: &mut Reader) -> Vec<Placed<CacheSpec>> {
    let mut caches = Vec::new();
    for text in texts {
        match cache(&text.value) {
            Ok(cache) => caches.push(text.map(|_| cache)),
            Err(why) => reader.report(
                Finding::new(
                    Code::ColoursValue,
                    format!("`{}` is no cache of some CPUs", text.value),
                )
                .at(text.span, why)
                .help("such as \"0-3: 16\": CPUs that share a cache, and its colours, which are its size by its ways by 4 KiB"),
            ),
        }
    }
    caches
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
        ram: Vec::new(),
        gic: None,
        firmware: None,
        uarts: None,
        colours: None,
        caches: Vec::new(),
        access_event: None,
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
    let ram = reader
        .read(const { BOARD.text_or_texts("memory_ranges") })
        .unwrap_or_default();
    check_ram(&ram, &mut reader);
    let gic = reader.read(const { BOARD.number("gic") });
    let firmware = reader.read(const { BOARD.text("firmware") });
    let uarts = reader.read(const { BOARD.number("uarts") });
    let access_event = reader.read(const { BOARD.word("access_event") });
    let colours = reader.read(const { BOARD.number("colours") });
    if let Some(colours) = colours.as_ref().filter(|it| !it.value.is_power_of_two()) {
        reader.report(
            Finding::new(
                Code::ColoursValue,
                "the number of colours is a power of two",
            )
            .at(colours.span.clone(), "not one")
            .help("it is the size of the cache, by its ways, by 4 KiB: 16 for 1 MiB of 16 ways"),
        );
    }
    let caches = reader
        .read(const { BOARD.text_or_texts("caches") })
        .unwrap_or_default();
    if let (Some(colours), Some(cache)) = (&colours, caches.first()) {
        reader.report(
            Finding::new(
                Code::ColoursValue,
                "`colours` is the number of all caches, or `caches` says that of each",
            )
            .at(cache.span.clone(), "of each")
            .at(colours.span.clone(), "of all")
            .help("leave one of them out"),
        );
    }
    let caches = read_caches(caches, &mut reader);
    reader.finish();
    spec.map(|spec| BoardSpec {
        cpu,
        cpus,
        memory,
        ram,
        gic,
        firmware,
        uarts,
        colours: colours.filter(|colours| colours.value.is_power_of_two()),
        caches,
        access_event,
        ..spec
    })
}
