//! One bootable image: EL2, the plan, payloads (`docs/adr/0002-plan-format.md`).

use std::fs;
use std::path::Path;

use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};

use bulkhead_core::plan::alter::Case;

use crate::failure::Failure;
use crate::planner::Planned;

/// First byte of EL2 in memory.
const START: &str = "__el2_start";
/// First byte behind its bss, at a page.
const END: &str = "__el2_end";
/// Where the header of an arm64 image has its size.
const SIZE_FIELD: usize = 16;
/// Where it has its magic number, and that.
const MAGIC: (usize, &[u8; 4]) = (56, b"ARM\x64");

/// EL2 as it lies in memory, bss included.
#[derive(Clone, Debug)]
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

    /// Understands the linked program.
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

/// Puts EL2, plan and payloads together. The pool lies behind the end of the file: it starts as
/// whatever the memory holds, and EL2 clears what it takes from it.
pub fn assemble(el2: &El2, planned: &Planned) -> Vec<u8> {
    let image = &planned.image;
    let mut bytes = el2.flat.clone();
    bytes[SIZE_FIELD..SIZE_FIELD + 8].copy_from_slice(&image.size.to_le_bytes());
    bytes.resize(image.pool_offset as usize, 0);
    let mut put = |offset: u64, content: &[u8]| {
        if let Some(place) = bytes
            .get_mut(offset as usize..)
            .and_then(|rest| rest.get_mut(..content.len()))
        {
            place.copy_from_slice(content);
        }
    };
    put(image.plan_offset, &planned.bytes);
    for load in planned.vms.iter().flat_map(|vm| &vm.loads) {
        put(load.offset, &load.bytes);
    }
    bytes
}

/// An image whose plan `case` altered, with the checksum right again; none if the plan has no row that
/// the case could alter. EL2 must refuse it with the name of `case.breaks`.
pub fn altered(image: &[u8], planned: &Planned, case: &Case) -> Option<Vec<u8>> {
    let mut image = image.to_vec();
    let start = usize::try_from(planned.image.plan_offset).ok()?;
    let plan = image.get_mut(start..start.checked_add(planned.bytes.len())?)?;
    case.apply(plan).then_some(image)
}
