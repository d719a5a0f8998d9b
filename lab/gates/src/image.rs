//! The linked image: its code, its functions by address, and the source lines behind addresses.

use std::borrow::Cow;
use std::collections::BTreeMap;

use addr2line::gimli;
use object::{Object, ObjectSection, ObjectSymbol, SectionFlags, SymbolKind, elf};

/// Reason for which an image can't be judged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bytes are no ELF file that can be read.
    #[error("the EL2 image is no readable ELF file: {0}")]
    Unreadable(#[from] object::Error),
    /// The bytes are for another machine.
    #[error(
        "the EL2 image is not little-endian AArch64; build it for aarch64-unknown-none-softfloat"
    )]
    NotAarch64,
    /// There are no function symbols to name the code by.
    #[error(
        "the EL2 image has no symbols in its code; link it without stripping (`strip = \"none\"`)"
    )]
    Stripped,
    /// An entry point that the call graph starts from is missing.
    #[error("the EL2 image has no symbol `{0}` in its code, where the call graph starts")]
    NoRoot(String),
}

/// A range of code under one name.
#[derive(Debug)]
pub struct Function {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Every name it has, demangled, without hashes; the first is the one to print.
    pub names: Vec<String>,
}

type Reader<'data> = gimli::EndianSlice<'data, gimli::LittleEndian>;

/// A linked EL2 image.
pub struct Image<'data> {
    code: Vec<(u64, &'data [u8])>,
    functions: Vec<Function>,
    symbols: Vec<String>,
    addresses: BTreeMap<String, u64>,
    lines: Option<addr2line::Context<Reader<'data>>>,
}

impl<'data> Image<'data> {
    /// Reads the ELF file `bytes`.
    ///
    /// # Errors
    ///
    /// Those of [`Error`], except for a missing entry point.
    pub fn parse(bytes: &'data [u8]) -> Result<Self, Error> {
        let file = object::File::parse(bytes)?;
        if file.architecture() != object::Architecture::Aarch64 || !file.is_little_endian() {
            return Err(Error::NotAarch64);
        }
        let mut code = Vec::new();
        let mut sections = Vec::new();
        for section in file.sections() {
            let executable = match section.flags() {
                SectionFlags::Elf { sh_flags } => sh_flags & u64::from(elf::SHF_EXECINSTR) != 0,
                _ => false,
            };
            if executable && section.size() != 0 {
                code.push((section.address(), section.data()?));
                sections.push(section.index());
            }
        }
        let mut named: Vec<(u64, u64, bool, String)> = Vec::new();
        let mut symbols = Vec::new();
        let mut addresses = BTreeMap::new();
        for symbol in file.symbols() {
            let Ok(name) = symbol.name() else { continue };
            // Mapping symbols ($x, $d) and local labels mark no function.
            let marks = name.is_empty() || name.starts_with('$') || name.starts_with(".L");
            if marks || matches!(symbol.kind(), SymbolKind::File | SymbolKind::Section) {
                continue;
            }
            let readable = format!("{:#}", rustc_demangle::demangle(name));
            symbols.push(readable.clone());
            addresses.insert(readable.clone(), symbol.address());
            if symbol
                .section_index()
                .is_some_and(|index| sections.contains(&index))
            {
                let function = symbol.kind() == SymbolKind::Text && symbol.size() != 0;
                // Bounds of the linker are at addresses of functions, and none.
                if !function && readable.starts_with("__") {
                    continue;
                }
                named.push((symbol.address(), symbol.size(), !function, readable));
            }
        }
        named.sort_by(|a, b| (a.0, a.2, &a.3).cmp(&(b.0, b.2, &b.3)));
        let functions = functions(named, &code);
        if functions.is_empty() {
            return Err(Error::Stripped);
        }
        Ok(Self {
            code,
            functions,
            symbols,
            addresses,
            lines: lines(&file),
        })
    }

    /// The instruction at `pc`, if there is code.
    pub fn word(&self, pc: u64) -> Option<u32> {
        self.code.iter().find_map(|(base, bytes)| {
            let at = usize::try_from(pc.checked_sub(*base)?).ok()?;
            let word = bytes.get(at..at.checked_add(4)?)?;
            Some(u32::from_le_bytes(word.try_into().ok()?))
        })
    }

    /// The function around `pc`.
    pub fn function(&self, pc: u64) -> Option<&Function> {
        let after = self
            .functions
            .partition_point(|function| function.start <= pc);
        self.functions
            .get(after.checked_sub(1)?)
            .filter(|function| pc < function.end)
    }

    /// The function of this name.
    pub fn named(&self, name: &str) -> Option<&Function> {
        self.functions
            .iter()
            .find(|function| function.names.iter().any(|known| known == name))
    }

    /// The address of the symbol of this name.
    pub fn address(&self, name: &str) -> Option<u64> {
        self.addresses.get(name).copied()
    }

    /// Every symbol of the image, demangled.
    pub fn symbols(&self) -> &[String] {
        &self.symbols
    }

    /// Name of the function around `pc`; the address where there is none.
    pub fn name(&self, pc: u64) -> Cow<'_, str> {
        match self.function(pc) {
            Some(function) => Cow::Borrowed(&function.names[0]),
            None => Cow::Owned(format!("{pc:#x}")),
        }
    }

    /// Source lines of `pc`, innermost inlined function first: `core::f (core/src/f.rs:12)`.
    pub fn lines(&self, pc: u64) -> Vec<String> {
        let Some(context) = &self.lines else {
            return Vec::new();
        };
        let Ok(mut frames) = context.find_frames(pc).skip_all_loads() else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let Some(location) = frame.location else {
                continue;
            };
            let (Some(file), Some(line)) = (location.file, location.line) else {
                continue;
            };
            let raw = frame
                .function
                .as_ref()
                .and_then(|name| name.raw_name().ok());
            let name = raw.map_or_else(
                || "?".to_owned(),
                |raw| format!("{:#}", rustc_demangle::demangle(&raw)),
            );
            lines.push(format!("{name} ({}:{line})", shorten(file)));
        }
        lines
    }
}

/// Turns sorted symbols (address, size, not a function, name) into ranges that do not overlap: a symbol ends
/// where its size says, and without a size at the next symbol or the end of its section.
fn functions(named: Vec<(u64, u64, bool, String)>, code: &[(u64, &[u8])]) -> Vec<Function> {
    let mut functions: Vec<Function> = Vec::new();
    for (start, size, _, name) in named {
        let Some(limit) = code.iter().find_map(|(base, bytes)| {
            let end = base + bytes.len() as u64;
            (*base <= start && start < end).then_some(end)
        }) else {
            continue;
        };
        let end = if size == 0 {
            limit
        } else {
            limit.min(start + size)
        };
        match functions.last_mut() {
            Some(last) if last.start == start => {
                last.names.push(name);
                continue;
            }
            // A label inside a sized function names no function of its own.
            Some(last) if size == 0 && start < last.end && last.end < limit => continue,
            Some(last) if start < last.end => last.end = start,
            _ => {}
        }
        functions.push(Function {
            start,
            end,
            names: vec![name],
        });
    }
    functions
}

/// The line tables of `file`, where it has them.
fn lines<'data>(file: &object::File<'data>) -> Option<addr2line::Context<Reader<'data>>> {
    let load = |id: gimli::SectionId| -> Result<Reader<'data>, gimli::Error> {
        let data = file
            .section_by_name(id.name())
            .and_then(|section| section.data().ok());
        Ok(gimli::EndianSlice::new(
            data.unwrap_or_default(),
            gimli::LittleEndian,
        ))
    };
    addr2line::Context::from_dwarf(gimli::Dwarf::load(load).ok()?).ok()
}

/// The last part of a path that tells where in the project or the standard library it lies.
fn shorten(file: &str) -> &str {
    for mark in ["/library/", "/src/"] {
        if let Some(at) = file.rfind(mark) {
            let from = file[..at].rfind('/').map_or(0, |slash| slash + 1);
            return if mark == "/src/" {
                &file[from..]
            } else {
                &file[at + 1..]
            };
        }
    }
    file
}
