//! An ELF core of a VM, as gdb and `crash` read it: its RAM by IPA, registers of its vCPUs as notes, and of a Linux its vmcoreinfo.

use std::io::{self, Seek, SeekFrom, Write};

use bulkhead_abi::control::registers::{PC, PSTATE, SP_EL0, SP_EL1, WORDS, X};

/// Bytes that are written, or left as a hole, at a time.
const PAGE: usize = 4096;
const EHDR: u64 = 64;
const PHDR: u64 = 56;
/// Program headers of a note and of memory.
const PT_NOTE: u32 = 4;
const PT_LOAD: u32 = 1;
/// No alignment. With one `crash` takes the file for a netdump of other kernels, and reads no PHYS_OFFSET in its vmcoreinfo.
const ANY: u64 = 0;
/// PF_R, PF_W and PF_X.
const ALL: u32 = 7;
const ET_CORE: u16 = 4;
const EM_AARCH64: u16 = 183;
const NT_PRSTATUS: u32 = 1;
/// `struct elf_prstatus` of arm64: before the registers a head, in which the pid stands, behind them a word.
const PRSTATUS: usize = 392;
const PID: usize = 32;
const REGS: usize = 112;
/// What the page begins with in which Linux says how its memory is to be read.
const VMCOREINFO: &[u8] = b"OSRELEASE=";
/// Bytes of a note: three words, its name in whole words, its text.
const fn note_bytes(name: &[u8], text: usize) -> u64 {
    12 + (name.len().next_multiple_of(4) + text) as u64
}

/// Name of the notes with registers, and of the one with the vmcoreinfo.
const CORE: &[u8] = b"CORE\0";
const VMCOREINFO_NOTE: &[u8] = b"VMCOREINFO\0";
/// Where it says by how much the addresses of its image differ from physical ones.
const VOFFSET: &str = "NUMBER(kimage_voffset)=0x";

/// Registers of a vCPU, as [`bulkhead_abi::control::registers`] names them.
pub type Registers = [u64; WORDS];

/// A range of RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// IPA.
    pub ipa: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A core that is being written: all of its RAM in order, then what stands before it.
#[derive(Debug)]
pub struct Core<W> {
    to: W,
    ranges: Vec<Range>,
    /// Registers of vCPUs, each with its number.
    vcpus: Vec<(u16, Registers)>,
    /// The page that is being filled.
    page: Vec<u8>,
    /// Bytes of RAM so far, without that.
    written: u64,
    vmcoreinfo: Option<String>,
}

/// Where the notes begin in the file: behind the headers, of which a range has two at most.
const fn notes_at(ranges: usize) -> u64 {
    EHDR + PHDR * (1 + 2 * ranges as u64)
}

impl<W: Write + Seek> Core<W> {
    /// Begins a core of a VM with this RAM, in multiples of a page, and these registers of its vCPUs, each with its number, in a
    /// file that is empty.
    pub const fn new(to: W, ranges: Vec<Range>, vcpus: Vec<(u16, Registers)>) -> Self {
        Self {
            to,
            ranges,
            vcpus,
            page: Vec::new(),
            written: 0,
            vmcoreinfo: None,
        }
    }

    /// Where RAM begins in the file. `crash` reads the notes with the headers, and takes these to end where the first RAM begins, so
    /// that room is left for the longest notes: whether there is a vmcoreinfo shows when all RAM has been seen.
    const fn ram_at(&self) -> u64 {
        let vcpus = note_bytes(CORE, PRSTATUS) * self.vcpus.len() as u64;
        let notes = vcpus + note_bytes(VMCOREINFO_NOTE, PAGE);
        (notes_at(self.ranges.len()) + notes).next_multiple_of(PAGE as u64)
    }

    /// Takes the next bytes of RAM.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn ram(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PAGE - self.page.len()));
            self.page.extend_from_slice(now);
            bytes = later;
            if self.page.len() == PAGE {
                self.put_page()?;
            }
        }
        Ok(())
    }

    fn put_page(&mut self) -> io::Result<()> {
        if self.vmcoreinfo.is_none() && self.page.starts_with(VMCOREINFO) {
            let end = self.page.iter().position(|byte| *byte == 0);
            let text = str::from_utf8(&self.page[..end.unwrap_or(PAGE)]).ok();
            // Somebody's text may begin so, too.
            self.vmcoreinfo = text
                .filter(|it| it.contains("\nPAGESIZE="))
                .map(str::to_owned);
        }
        // Zeros need no room.
        if self.page.iter().any(|byte| *byte != 0) {
            let at = self.ram_at() + self.written;
            self.to.seek(SeekFrom::Start(at))?;
            self.to.write_all(&self.page)?;
        }
        self.written += PAGE as u64;
        self.page.clear();
        Ok(())
    }

    /// What Linux says of its memory, if all of it was there and such a page was in it.
    pub fn vmcoreinfo(&self) -> Option<&str> {
        self.vmcoreinfo.as_deref()
    }

    /// Writes what stands before RAM: headers and notes.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        let mut notes = Vec::new();
        for (number, registers) in &self.vcpus {
            let text = prstatus(*number, registers);
            note(&mut notes, CORE, NT_PRSTATUS, &text);
        }
        if let Some(text) = &self.vmcoreinfo {
            note(&mut notes, VMCOREINFO_NOTE, 0, text.as_bytes());
        }
        let begin = self.ram_at();
        let end = begin + self.written;
        // A hole at the end is one only if the file goes on to there.
        if self.to.seek(SeekFrom::End(0))? < end {
            self.to.seek(SeekFrom::Start(end - 1))?;
            self.to.write_all(&[0])?;
        }
        let mut headers = Vec::new();
        let notes_at = notes_at(self.ranges.len());
        let fields = [notes_at, 0, 0, notes.len() as u64, 4];
        program_header(&mut headers, PT_NOTE, 0, fields);
        // gdb finds memory by IPA, and of a Linux by the addresses of its image, too.
        let offsets = [Some(0), self.vmcoreinfo.as_deref().and_then(voffset)];
        for offset in offsets.into_iter().flatten() {
            let mut at = begin;
            for range in &self.ranges {
                let virtual_address = range.ipa.wrapping_add(offset);
                let fields = [at, virtual_address, range.ipa, range.bytes, ANY];
                program_header(&mut headers, PT_LOAD, ALL, fields);
                at += range.bytes;
            }
        }
        self.to.seek(SeekFrom::Start(0))?;
        self.to
            .write_all(&elf_header(headers.len() as u64 / PHDR))?;
        self.to.write_all(&headers)?;
        self.to.seek(SeekFrom::Start(notes_at))?;
        self.to.write_all(&notes)?;
        Ok(self.to)
    }
}

/// By how much addresses of Linux's image differ from physical ones.
fn voffset(vmcoreinfo: &str) -> Option<u64> {
    let line = vmcoreinfo
        .lines()
        .find_map(|line| line.strip_prefix(VOFFSET))?;
    u64::from_str_radix(line, 16).ok()
}

fn elf_header(headers: u64) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    for half in [ET_CORE, EM_AARCH64] {
        bytes.extend(half.to_le_bytes());
    }
    bytes.extend(1u32.to_le_bytes());
    for word in [0, EHDR, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(0u32.to_le_bytes());
    for half in [EHDR, PHDR, headers, 0, 0, 0] {
        bytes.extend((half as u16).to_le_bytes());
    }
    bytes
}

/// Adds a program header: its place, its addresses, its bytes in the file and its alignment. As many are in memory as in the file.
fn program_header(to: &mut Vec<u8>, kind: u32, flags: u32, fields: [u64; 5]) {
    let [offset, vaddr, paddr, bytes, align] = fields;
    to.extend(kind.to_le_bytes());
    to.extend(flags.to_le_bytes());
    let in_memory = if kind == PT_LOAD { bytes } else { 0 };
    for word in [offset, vaddr, paddr, bytes, in_memory, align] {
        to.extend(word.to_le_bytes());
    }
}

/// Adds a note.
fn note(to: &mut Vec<u8>, name: &[u8], kind: u32, text: &[u8]) {
    for word in [name.len() as u32, text.len() as u32, kind] {
        to.extend(word.to_le_bytes());
    }
    for part in [name, text] {
        to.extend_from_slice(part);
        to.resize(to.len().next_multiple_of(4), 0);
    }
}

/// The registers as the kernel writes them of a thread.
fn prstatus(number: u16, registers: &Registers) -> [u8; PRSTATUS] {
    let mut bytes = [0; PRSTATUS];
    let pid = u32::from(number) + 1;
    bytes[PID..PID + 4].copy_from_slice(&pid.to_le_bytes());
    let pstate = registers[PSTATE];
    // PSTATE.SP at EL1 says which of the two it is; EL0 has one.
    let sp = if pstate & 0b101 == 0b101 {
        registers[SP_EL1]
    } else {
        registers[SP_EL0]
    };
    let all = registers[X..].iter().chain([&sp, &registers[PC], &pstate]);
    for (place, word) in bytes[REGS..].chunks_exact_mut(8).zip(all) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn word(core: &[u8], at: u64) -> u64 {
        let bytes = &core[at as usize..][..8];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    fn core(info: &str, last: u8) -> Vec<u8> {
        core_of(1, info, last)
    }

    /// A core of a VM whose last vCPU has the number `most`.
    fn core_of(most: u16, info: &str, last: u8) -> Vec<u8> {
        let ranges = vec![
            Range {
                ipa: 0x4000_0000,
                bytes: 3 * PAGE as u64,
            },
            Range {
                ipa: 0x8000_0000,
                bytes: PAGE as u64,
            },
        ];
        let mut registers: Registers = core::array::from_fn(|n| 0x100 + n as u64);
        registers[PSTATE] = 0x3c5;
        let vcpus = (1..=most).map(|number| (number, registers)).collect();
        let mut core = Core::new(Cursor::new(Vec::new()), ranges, vcpus);
        let mut ram = vec![0; 4 * PAGE];
        ram[5] = 7;
        ram[2 * PAGE..][..info.len()].copy_from_slice(info.as_bytes());
        ram[4 * PAGE - 1] = last;
        for piece in ram.chunks(1000) {
            core.ram(piece).expect("written");
        }
        core.finish().expect("written").into_inner()
    }

    #[test]
    fn ram_stands_where_its_headers_say() {
        let core = core("no such page", 9);
        assert_eq!(core[..7], *b"\x7fELF\x02\x01\x01");
        assert_eq!(core[16..20], [4, 0, 183, 0]);
        assert_eq!(core[56], 3, "a note, two ranges");
        let header = |n: u64, field: u64| word(&core, EHDR + n * PHDR + 8 * field);
        for (n, ipa, bytes) in [(1, 0x4000_0000, 3), (2, 0x8000_0000, 1)] {
            let fields = [1, 2, 3, 4, 5].map(|field| header(n, field));
            let bytes = bytes * PAGE as u64;
            assert_eq!(fields[1..], [ipa, ipa, bytes, bytes]);
        }
        assert_eq!(core[header(1, 1) as usize + 5], 7);
        assert_eq!(core[header(2, 1) as usize + PAGE - 1], 9);
        assert_eq!(header(2, 1) + header(2, 4), core.len() as u64);
    }

    #[test]
    fn registers_are_those_of_a_thread() {
        let core = core("", 9);
        let note = word(&core, EHDR + 8) + 12 + 8;
        let register = |n: u64| word(&core, note + REGS as u64 + 8 * n);
        assert_eq!(core[note as usize + PID], 2);
        let base = 0x100;
        assert_eq!(
            [register(0), register(30)],
            [base + X as u64, base + X as u64 + 30]
        );
        assert_eq!(
            [31, 32, 33].map(register),
            [base + SP_EL1 as u64, base + PC as u64, 0x3c5]
        );
        let mut registers = [0; WORDS];
        registers[SP_EL0] = 5;
        registers[SP_EL1] = 6;
        for (pstate, sp) in [(0, 5), (4, 5), (5, 6)] {
            registers[PSTATE] = pstate;
            let bytes = prstatus(0, &registers);
            assert_eq!(bytes[REGS + 31 * 8], sp, "{pstate}");
        }
    }

    #[test]
    fn the_vmcoreinfo_of_a_linux_is_found_and_its_image_has_headers() {
        let info = "OSRELEASE=6.1.0\nPAGESIZE=4096\nNUMBER(kimage_voffset)=0xffff800000000000\n";
        let core = core(info, 9);
        assert_eq!(core[56], 5);
        let kernel = word(&core, EHDR + 3 * PHDR + 16);
        assert_eq!(kernel, 0xffff_8000_4000_0000);
        let header = |n: u64, field: u64| word(&core, EHDR + n * PHDR + 8 * field);
        let notes = &core[header(0, 1) as usize..][..header(0, 4) as usize];
        let last = [b"VMCOREINFO\0\0", info.as_bytes()].concat();
        let tail = &notes[notes.len() - last.len().next_multiple_of(4)..];
        assert!(tail.starts_with(&last), "{tail:?}");
    }

    #[test]
    fn notes_stand_before_ram_where_crash_looks_for_them() {
        let longest = format!("OSRELEASE=6.1.0\nPAGESIZE=4096\n{}", "x".repeat(PAGE));
        // So many that the room ends at each place of a page.
        for (info, vcpus) in ["no such page", &longest[..PAGE]]
            .into_iter()
            .flat_map(|info| (1..=1024).map(move |vcpus| (info, vcpus)))
        {
            let core = core_of(vcpus, info, 9);
            let header = |n: u64, field: u64| word(&core, EHDR + n * PHDR + 8 * field);
            assert_eq!(header(0, 1), EHDR + PHDR * 5, "{info}");
            assert!(header(0, 1) + header(0, 4) <= header(1, 1), "{info}");
            assert_eq!(core[header(1, 1) as usize + 5], 7, "{info}");
            assert_eq!(header(1, 6), 0, "an alignment: not a kdump's");
        }
    }

    #[test]
    fn a_file_goes_on_to_the_end_of_its_ram() {
        let full = core("", 9);
        let with_a_hole = core("", 0);
        assert_eq!(full.len(), with_a_hole.len());
        assert_eq!(full[..full.len() - 1], with_a_hole[..full.len() - 1]);
    }
}
