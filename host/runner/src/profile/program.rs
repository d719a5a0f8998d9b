//! Data of linked programs for the profiler: EL2's code and functions, the marks of a guest.

use std::path::Path;

use bulkhead_profiler::{Marks, Symbol};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

use bulkhead_model::failure::Failure;

/// A linked program.
pub struct Program {
    name: String,
    bytes: Vec<u8>,
}

/// EL2 as the profiler sees it.
#[derive(Clone, Debug, Default)]
pub struct El2 {
    /// First address of its code.
    pub text_start: u64,
    /// First address behind it.
    pub text_end: u64,
    /// Address of the vectors.
    pub vectors: u64,
    /// The vectors of a CPU that guards EL2's boundary.
    pub guarded: u64,
    /// Addresses of the code in which a pCPU is that runs no guest: idle, or because of a pause.
    pub idle: [u64; 3],
    /// Addresses at which it looks for something more urgent, or goes on with the work of another vCPU.
    pub looks: [u64; 3],
    /// Its functions.
    pub symbols: Vec<Symbol>,
    /// Bytes of code and read-only data.
    pub image_bytes: ImageBytes,
}

/// Bytes of code and read-only data of EL2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageBytes {
    /// In the image.
    pub all: u64,
    /// That are still mapped when all pCPUs have started.
    pub resident: u64,
}

impl Program {
    /// Reads the ELF file at `path`.
    ///
    /// # Errors
    ///
    /// It can't be read.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path)
            .map_err(|error| Failure::environment(format!("cannot read {name}"), error, ""))?;
        Ok(Self { name, bytes })
    }

    /// The file as it is.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn parse(&self) -> Result<object::File<'_>, Failure> {
        object::File::parse(&*self.bytes)
            .map_err(|error| Failure::failed(format!("{} is no ELF file", self.name), error, ""))
    }

    fn address(&self, file: &object::File<'_>, symbol: &str) -> Result<u64, Failure> {
        let found = file.symbols().find(|known| known.name() == Ok(symbol));
        found.map(|symbol| symbol.address()).ok_or_else(|| {
            let what = format!(
                "{} has no symbol `{symbol}`, which the profiler needs",
                self.name
            );
            Failure::failed(
                what,
                "",
                "link it without stripping, and keep the symbol's name",
            )
        })
    }

    /// The marks around a guest's operations.
    ///
    /// # Errors
    ///
    /// The program has no such symbols.
    pub fn marks(&self, begin: &str, end: &str) -> Result<Marks, Failure> {
        let file = self.parse()?;
        Ok(Marks {
            begin: self.address(&file, begin)?,
            end: self.address(&file, end)?,
            everywhere: false,
        })
    }

    /// The program as EL2.
    ///
    /// # Errors
    ///
    /// It lacks a symbol that the profiler needs.
    pub fn el2(&self) -> Result<El2, Failure> {
        let file = self.parse()?;
        let code = |kind| {
            matches!(
                kind,
                SymbolKind::Text | SymbolKind::Unknown | SymbolKind::Label
            )
        };
        let text_start = self.address(&file, "__el2_start")?;
        let text_end = self.address(&file, "__text_end")?;
        let mut symbols: Vec<Symbol> = file
            .symbols()
            .filter(|symbol| code(symbol.kind()) && !symbol.is_undefined())
            .filter(|symbol| (text_start..text_end).contains(&symbol.address()))
            .filter_map(|symbol| {
                let name = symbol.name().ok().filter(|name| is_function(name))?;
                let name = format!("{:#}", rustc_demangle::demangle(name));
                Some(Symbol {
                    address: symbol.address(),
                    size: symbol.size(),
                    name,
                })
            })
            .collect();
        symbols.sort_by(|a, b| (a.address, b.size, &a.name).cmp(&(b.address, a.size, &b.name)));
        symbols.dedup_by_key(|symbol| symbol.address);
        // Labels of assembly have no size: they reach to the next one.
        let ends: Vec<u64> = symbols
            .iter()
            .skip(1)
            .map(|symbol| symbol.address)
            .collect();
        for (index, symbol) in symbols.iter_mut().enumerate() {
            let next = ends.get(index).copied().unwrap_or(text_end);
            if symbol.size == 0 || symbol.address + symbol.size > next {
                symbol.size = next - symbol.address;
            }
        }
        let start_end = self.address(&file, "__start_end")?;
        let fixed = file.sections().filter(|section| {
            matches!(
                section.kind(),
                SectionKind::Text | SectionKind::ReadOnlyData | SectionKind::ReadOnlyString
            )
        });
        let fixed = fixed.filter(|section| section.address() != 0);
        let mut image_bytes = ImageBytes::default();
        for section in fixed {
            image_bytes.all += section.size();
            if section.address() >= start_end {
                image_bytes.resident += section.size();
            }
        }
        Ok(El2 {
            text_start,
            text_end,
            vectors: self.address(&file, "vectors")?,
            guarded: self.address(&file, "guarded_vectors")?,
            idle: [
                self.address(&file, "el2_idle")?,
                self.address(&file, "el2_paused")?,
                self.address(&file, "el2_wait")?,
            ],
            looks: [
                self.address(&file, "el2_look")?,
                self.address(&file, "el2_poll")?,
                self.address(&file, "switch_stack")?,
            ],
            symbols,
            image_bytes,
        })
    }
}

impl El2 {
    /// Addresses of its functions that have `part` in their names. Names stand in the host's code and in data, where no
    /// compiler sees that a function is called otherwise: what is counted by such a name would silently be less.
    ///
    /// # Errors
    ///
    /// There is none. `who` has the name.
    pub fn functions(&self, part: &str, who: &str) -> Result<Vec<u64>, Failure> {
        let found = self.symbols.iter().filter(|it| it.name.contains(part));
        let found: Vec<u64> = found.map(|symbol| symbol.address).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let what = format!("EL2 has no function `{part}`, by which {who} counts");
        let advice =
            "say what it is called now; a function that is inlined everywhere has no symbol";
        Err(Failure::failed(what, "", advice))
    }
}

/// Whether a symbol names a function: not a mapping symbol, a local label or a bound of the linker.
fn is_function(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(['$', '.'])
        && !["__el2_start", "__start_end"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_no_function_is_said_with_who_has_it() {
        let symbol = |address, name: &str| Symbol {
            address,
            size: 4,
            name: name.to_owned(),
        };
        let el2 = El2 {
            symbols: vec![
                symbol(0, "a::kick"),
                symbol(4, "a::call"),
                symbol(8, "b::kick"),
            ],
            ..El2::default()
        };
        assert_eq!(el2.functions("::kick", "a test").ok(), Some(vec![0, 8]));
        let failure = el2.functions("c::kick", "a test").expect_err("no such");
        let expected = "EL2 has no function `c::kick`, by which a test counts";
        assert_eq!(failure.what, expected);
    }
}
