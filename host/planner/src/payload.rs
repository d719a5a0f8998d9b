//! Files that VMs run: finding them, and understanding that they are what they claim to be.

use std::fs;
use std::path::Path;

use object::elf::{EM_AARCH64, FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endian, Endianness};

use bulkhead_model::board::PlanError;
use bulkhead_model::checkout;
use bulkhead_model::describe::{Code, Finding, Placed, nearest};
use bulkhead_model::payload::DebianPayload;

use super::file::{Content, File};
use super::sources::Sources;

/// Bytes of a file, or a mark that it has not been built or fetched yet.
pub(super) enum Bytes {
    /// Content.
    There(Vec<u8>),
    /// `build` and `fetch` get it.
    Absent,
}

/// Reads what a description names: a path, `debian:NAME` or `guest:NAME`.
pub(super) fn read(
    source: &Placed<String>,
    folder: &Path,
    sources: &dyn Sources,
    findings: &mut Vec<Finding>,
) -> Result<Bytes, PlanError> {
    let name = source.value.as_str();
    let file = if let Some(guest) = name.strip_prefix("guest:") {
        known_guest(guest, source, findings)?;
        sources.guest(guest)?
    } else if name.starts_with("debian:") {
        let Ok(payload) = DebianPayload::named(name) else {
            let known = DebianPayload::ALL.map(|payload| format!("debian:{}", payload.name()));
            findings.push(
                Finding::new(Code::ImageUnknown, format!("there is no payload `{name}`"))
                    .at(
                        source.span.clone(),
                        format!("must be one of: {}", known.join(", ")),
                    )
                    .help(match nearest(name, known.iter().map(String::as_str)) {
                        Some(known) => format!("did you mean `{known}`?"),
                        None => "name a file, by its path, for anything else".to_owned(),
                    }),
            );
            return Err(PlanError::Description);
        };
        sources.debian(payload)?
    } else {
        Some(folder.join(name))
    };
    let Some(file) = file else {
        let help = if name.starts_with("guest:") {
            "`bulkhead build` makes it"
        } else {
            "`bulkhead fetch` gets it"
        };
        findings.push(
            Finding::new(
                Code::ImageAbsent,
                format!("`{name}` is not there yet, so it is not checked"),
            )
            .at(source.span.clone(), "taken on trust")
            .help(help),
        );
        return Ok(Bytes::Absent);
    };
    fs::read(&file).map(Bytes::There).map_err(|why| {
        findings.push(
            Finding::new(Code::ImageUnreadable, format!("`{name}` cannot be read"))
                .at(source.span.clone(), why.to_string())
                .help("paths start at the folder of the description"),
        );
        PlanError::Description
    })
}

/// Checks that there is a program of that name.
fn known_guest(
    guest: &str,
    source: &Placed<String>,
    findings: &mut Vec<Finding>,
) -> Result<(), PlanError> {
    if checkout::is_guest(guest) {
        return Ok(());
    }
    let names = checkout::guest_names();
    let finding = Finding::new(
        Code::ImageUnknown,
        format!("there is no guest program `{guest}`"),
    )
    .at(
        source.span.clone(),
        "no such program in guests/, channel/ or mgmt/",
    );
    findings.push(match nearest(guest, names.iter().map(String::as_str)) {
        Some(name) => finding.help(format!("did you mean `guest:{name}`?")),
        None => finding.help(format!("the guests are {}", names.join(", "))),
    });
    Err(PlanError::Description)
}

/// A Linux Image (Documentation/arch/arm64/booting.rst).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinuxImage {
    /// Bytes from a 2 MiB boundary to the Image.
    pub text_offset: u64,
    /// Bytes that it takes in memory.
    pub memory: u64,
}

/// Reads the header of a Linux Image.
///
/// # Errors
/// Why it is none.
pub(super) fn linux(bytes: &[u8]) -> Result<LinuxImage, String> {
    let word = |offset: usize| {
        let bytes = bytes.get(offset..offset + 8).unwrap_or(&[0; 8]);
        u64::from_le_bytes(bytes.try_into().unwrap_or_default())
    };
    if bytes.len() < 64 || bytes[56..60] != *b"ARM\x64" {
        return Err("it has no arm64 Image header".to_owned());
    }
    let (text_offset, size, flags) = (word(8), word(16), word(24));
    if flags & 1 != 0 {
        return Err("it is a big-endian kernel".to_owned());
    }
    if size == 0 {
        return Err("it does not tell its size: a kernel before 3.17".to_owned());
    }
    if text_offset >= 2 << 20 || text_offset % 8 != 0 || size > 1 << 30 {
        return Err("its Image header makes no sense".to_owned());
    }
    Ok(LinuxImage {
        text_offset,
        memory: size.max(bytes.len() as u64),
    })
}

/// Whether this looks like an initial RAM disk: cpio, or one of the compressions that kernels know.
pub(super) fn is_initrd(bytes: &[u8]) -> bool {
    let starts: [&[u8]; 8] = [
        b"070701",
        b"070702",
        b"\x1f\x8b",
        b"\x28\xb5\x2f\xfd",
        b"\xfd7zXZ",
        b"BZh",
        b"\x02\x21\x4c\x18",
        b"\x89LZO",
    ];
    starts.iter().any(|start| bytes.starts_with(start))
}

/// A program ready to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    /// Pieces: IPA and content, ascending.
    pub pieces: Vec<(u64, Content)>,
    /// First instruction.
    pub entry: u64,
    /// Memory that it takes, memory without content included: first address and the one behind.
    pub memory: Vec<(u64, u64)>,
}

/// Whether the bytes claim to be an ELF file.
pub(super) fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF")
}

/// Pieces nearer than this become one, so that each takes a page of the image at least once.
const GAP: u64 = 4096;

/// Reads an ELF program by the physical addresses of its segments. Its entry point may be a virtual one, as in programs that are linked
/// where they run with their own tables: it is then where the segment of that virtual address is loaded.
///
/// # Errors
/// Why it is none.
pub(super) fn elf(bytes: &[u8]) -> Result<Program, String> {
    let wrong = |why: object::Error| format!("it is not a sound ELF file: {why}");
    let header = FileHeader64::<Endianness>::parse(bytes).map_err(wrong)?;
    let endian = header.endian().map_err(wrong)?;
    if endian.is_big_endian() || header.e_machine(endian) != EM_AARCH64 {
        return Err("it is not a little-endian AArch64 program".to_owned());
    }
    let mut segments = Vec::new();
    let (mut memory, mut entry) = (Vec::new(), header.e_entry(endian));
    let mut virtual_entry = None;
    for segment in header.program_headers(endian, bytes).map_err(wrong)? {
        if segment.p_type(endian) != PT_LOAD || segment.p_memsz(endian) == 0 {
            continue;
        }
        let start = segment.p_paddr(endian);
        let last = start.checked_add(segment.p_memsz(endian));
        memory.push((start, last.ok_or("a segment runs past the last address")?));
        let into = header.e_entry(endian).wrapping_sub(segment.p_vaddr(endian));
        if into < segment.p_filesz(endian) {
            virtual_entry = virtual_entry.or(Some(start.wrapping_add(into)));
        }
        let data = segment
            .data(endian, bytes)
            .map_err(|()| "a segment lies outside the file")?;
        if !data.is_empty() {
            segments.push((start, data.to_vec()));
        }
    }
    segments.sort_by_key(|(start, _)| *start);
    let mut pieces: Vec<(u64, Vec<u8>)> = Vec::new();
    for (start, data) in segments {
        // Pieces start at multiples of 8, as EL2 copies words.
        let lead = start % 8;
        match pieces.last_mut() {
            Some((first, content)) if start < *first + content.len() as u64 => {
                return Err("two of its segments overlap".to_owned());
            }
            Some((first, content)) if start - (*first + content.len() as u64) < GAP => {
                content.resize((start - *first) as usize, 0);
                content.extend(data);
            }
            _ => pieces.push((start - lead, [vec![0; lead as usize], data].concat())),
        }
    }
    if pieces.is_empty() {
        return Err("it has nothing to load".to_owned());
    }
    let inside = |entry: u64| {
        pieces
            .iter()
            .any(|(start, data)| *start <= entry && entry < start + data.len() as u64)
    };
    if !inside(entry) {
        entry = virtual_entry.unwrap_or(entry);
    }
    if entry % 4 != 0 || !inside(entry) {
        return Err("its entry point is not in what is loaded".to_owned());
    }
    let content = |(start, data)| (start, File::new(data).content());
    let pieces = pieces.into_iter().map(content).collect();
    Ok(Program {
        pieces,
        entry,
        memory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(text_offset: u64, size: u64, flags: u64) -> Vec<u8> {
        let mut bytes = vec![0; 128];
        bytes[8..16].copy_from_slice(&text_offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&size.to_le_bytes());
        bytes[24..32].copy_from_slice(&flags.to_le_bytes());
        bytes[56..60].copy_from_slice(b"ARM\x64");
        bytes
    }

    #[test]
    fn linux_images_are_known_by_their_header() {
        let good = linux(&image(0, 0x10_0000, 0xa)).expect("sound");
        assert_eq!(
            good,
            LinuxImage {
                text_offset: 0,
                memory: 0x10_0000
            }
        );
        assert!(linux(&image(0, 0, 0xa)).is_err());
        assert!(linux(&image(0, 0x10_0000, 1)).is_err());
        assert!(linux(&image(4 << 20, 0x10_0000, 0)).is_err());
        assert!(linux(&[0; 256]).is_err());
    }

    #[test]
    fn initial_ram_disks_are_known_by_their_start() {
        assert!(is_initrd(b"070701000"));
        assert!(is_initrd(b"\x1f\x8b\x08"));
        assert!(!is_initrd(b"hello"));
    }

    /// An ELF file with these segments (virtual and physical address, bytes, bytes in memory) and this entry point.
    fn elf_of(entry: u64, segments: &[(u64, u64, u64, u64)]) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(16, &2_u16.to_le_bytes());
        put(18, &183_u16.to_le_bytes());
        put(20, &1_u32.to_le_bytes());
        put(24, &entry.to_le_bytes());
        put(32, &64_u64.to_le_bytes());
        put(52, &64_u16.to_le_bytes());
        put(54, &56_u16.to_le_bytes());
        put(56, &(segments.len() as u16).to_le_bytes());
        let mut offset = 64 + 56 * segments.len() as u64;
        for (virt, phys, bytes, memory) in segments {
            file.extend(1_u32.to_le_bytes());
            file.extend(5_u32.to_le_bytes());
            for word in [offset, *virt, *phys, *bytes, *memory, 8] {
                file.extend(word.to_le_bytes());
            }
            offset += bytes;
        }
        file.resize(offset as usize, 0x1f);
        file
    }

    #[test]
    fn entry_points_may_be_virtual() {
        const HIGH: u64 = 0xffff_ff80_0000_0000;
        let two = [
            (HIGH, 0x4008_0000, 64, 64),
            (HIGH + 0x20_0000, 0x4030_0000, 32, 0x1000),
        ];
        for (entry, wanted) in [
            (HIGH + 8, 0x4008_0008),
            (HIGH + 0x20_001c, 0x4030_001c),
            (0x4008_0010, 0x4008_0010),
        ] {
            let program = elf(&elf_of(entry, &two)).expect("sound");
            assert_eq!(program.entry, wanted, "{entry:#x}");
            let memory = [(0x4008_0000, 0x4008_0040), (0x4030_0000, 0x4030_1000)];
            assert_eq!(program.memory, memory);
        }
        // Behind what is in the file, not at a multiple of 4, nowhere.
        for entry in [HIGH + 64, HIGH + 2, HIGH - 4, 0x4030_0020] {
            assert!(elf(&elf_of(entry, &two)).is_err(), "{entry:#x}");
        }
        // Physical addresses win where both could be meant.
        let crossed = [
            (0x4030_0000, 0x4008_0000, 64, 64),
            (0x4008_0000, 0x4030_0000, 64, 64),
        ];
        let program = elf(&elf_of(0x4008_0000, &crossed)).expect("sound");
        assert_eq!(program.entry, 0x4008_0000);
    }

    #[test]
    fn broken_elf_files_are_refused() {
        assert!(elf(b"\x7fELF").is_err());
        assert!(elf(&[0x7f; 200]).is_err());
    }
}
