//! One bootable image: EL2, the plan, payloads (`docs/adr/0002-plan-format.md`).

pub mod fit;

use std::fs;
use std::path::Path;

use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};

use bulkhead_model::failure::Failure;

use crate::Planned;

/// First byte of EL2 in memory.
const START: &str = "__el2_start";
/// First byte behind its bss, at a page.
const END: &str = "__el2_end";
/// Offset of `text_offset` in the header of an arm64 image: bytes from the start of memory to the image.
const OFFSET_FIELD: usize = 8;
/// Offset of `image_size` in the header of an arm64 image.
const SIZE_FIELD: usize = 16;
/// Loaders put images at multiples of this, and offsets count from one.
const LOAD_ALIGN: u64 = 2 << 20;
/// Offset of the magic number in the header of an arm64 image, and its value.
const MAGIC: (usize, &[u8; 4]) = (56, b"ARM\x64");

/// EL2 as it lies in memory, bss included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct El2 {
    flat: Vec<u8>,
}

impl El2 {
    /// Reads the linked program.
    ///
    /// # Errors
    /// The file cannot be read, or is not EL2.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let trouble = |why: String| {
            Failure::failed(
                format!("{} is not EL2", path.display()),
                why,
                "build it again; if that does not help, see el2/ and its linker script",
            )
        };
        let bytes = fs::read(path).map_err(|why| trouble(why.to_string()))?;
        Self::from_elf(&bytes).map_err(trouble)
    }

    /// Parses the linked program.
    ///
    /// # Errors
    /// Why it is not EL2.
    pub fn from_elf(bytes: &[u8]) -> Result<Self, String> {
        let wrong = |why: object::Error| why.to_string();
        let file = object::File::parse(bytes).map_err(wrong)?;
        let symbol = |name: &str| {
            file.symbols()
                .find(|symbol| symbol.name() == Ok(name))
                .map(|symbol| symbol.address())
                .ok_or_else(|| format!("it has no symbol {name}"))
        };
        let (start, end) = (symbol(START)?, symbol(END)?);
        let size = end
            .checked_sub(start)
            .filter(|size| *size > 64 && *size % 4096 == 0);
        let size = size.ok_or("its end is not a whole number of pages behind its start")?;
        let mut flat = vec![0; size as usize];
        let header = FileHeader64::<Endianness>::parse(bytes).map_err(wrong)?;
        let endian = header.endian().map_err(wrong)?;
        for segment in header.program_headers(endian, bytes).map_err(wrong)? {
            let data = segment
                .data(endian, bytes)
                .map_err(|()| "a segment lies outside the file")?;
            if segment.p_type(endian) != PT_LOAD || data.is_empty() {
                continue;
            }
            let place = segment
                .p_vaddr(endian)
                .checked_sub(start)
                .and_then(|offset| flat.get_mut(offset as usize..)?.get_mut(..data.len()));
            place
                .ok_or("a segment lies outside of it")?
                .copy_from_slice(data);
        }
        let (offset, magic) = MAGIC;
        if flat.get(offset..offset + 4) != Some(magic.as_slice()) {
            return Err("it does not start with an arm64 image header".to_owned());
        }
        Ok(Self { flat })
    }

    /// Bytes that it takes in memory: whole pages.
    pub fn size(&self) -> u64 {
        self.flat.len() as u64
    }
}

/// Puts EL2, plan and payloads together. The page pool lies behind the end of the file: it starts as
/// whatever the memory holds, and EL2 clears what it takes from it.
pub fn assemble(el2: &El2, planned: &Planned) -> Vec<u8> {
    let image = &planned.image;
    let mut bytes = el2.flat.clone();
    bytes[OFFSET_FIELD..OFFSET_FIELD + 8].copy_from_slice(&load_offset(planned).to_le_bytes());
    bytes[SIZE_FIELD..SIZE_FIELD + 8].copy_from_slice(&image.size.to_le_bytes());
    bytes.resize(image.page_pool_offset as usize, 0);
    let mut put = |offset: u64, content: &[u8]| {
        if let Some(place) = bytes
            .get_mut(offset as usize..)
            .and_then(|rest| rest.get_mut(..content.len()))
        {
            place.copy_from_slice(content);
        }
    };
    put(image.plan_offset, &planned.bytes);
    for payload in planned.vms.iter().flat_map(|vm| &vm.payloads) {
        put(payload.offset, &payload.bytes);
    }
    bytes
}

/// Bytes from the first 2 MiB boundary of the board's memory to the image. A loader that follows the header moves the image
/// there, wherever it was read to, so that it does not lie in the memory of a VM.
fn load_offset(planned: &Planned) -> u64 {
    let first = planned.board.memory.first();
    let start = first.map_or(0, |memory| memory.base.next_multiple_of(LOAD_ALIGN));
    planned.image.base.saturating_sub(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with one page to load, and the symbols of EL2 around it.
    fn elf(magic: &[u8; 4], end: u64) -> Vec<u8> {
        let names = b"\0__el2_start\0__el2_end\0";
        let symbol = |name: u32, value: u64| {
            let head = [name.to_le_bytes().as_slice(), &[0x10, 0], &[0xf1, 0xff]].concat();
            [head, value.to_le_bytes().into(), vec![0; 8]].concat()
        };
        let symbols = [vec![0; 24], symbol(1, 0x1000), symbol(13, end)].concat();
        let mut page = vec![0; 128];
        page[56..60].copy_from_slice(magic);
        let (data, symtab) = (120_u64, 248_u64);
        let strtab = symtab + symbols.len() as u64;
        let sections = strtab + names.len() as u64;
        let words = |words: &[u64]| {
            words
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        let section = |kind: u64, offset: u64, size: u64, link: u64, entry: u64| {
            // Name and type, flags, address, offset, size, link and info, alignment, entry size.
            words(&[kind << 32, 0, 0, offset, size, link, 1, entry])
        };
        [
            b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec(),
            words(&[
                2 | 183 << 16 | 1 << 32,
                0x1000,
                64,
                sections,
                64 << 32 | 56 << 48,
            ]),
            words(&[1 | 64 << 16 | 3 << 32 | 2 << 48]),
            words(&[1 | 7 << 32, data, 0x1000, 0x1000, 128, 128, 4096]),
            page,
            symbols,
            names.to_vec(),
            section(0, 0, 0, 0, 0),
            section(2, symtab, 72, 2 | 1 << 32, 24),
            section(3, strtab, names.len() as u64, 0, 0),
        ]
        .concat()
    }

    #[test]
    fn el2_is_known_by_its_symbols_and_its_header() {
        let el2 = El2::from_elf(&elf(b"ARM\x64", 0x3000)).expect("sound");
        assert_eq!(el2.size(), 0x2000);
        assert_eq!(el2.flat[56..60], *b"ARM\x64");
        let header = El2::from_elf(&elf(b"none", 0x3000)).expect_err("no header");
        assert!(header.contains("header"), "{header}");
        let end = El2::from_elf(&elf(b"ARM\x64", 0x3008)).expect_err("half a page");
        assert!(end.contains("pages"), "{end}");
        assert!(El2::from_elf(b"\x7fELF").is_err());
    }
}
