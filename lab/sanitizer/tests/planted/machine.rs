//! A board for small programs: its addresses, and a run of QEMU under the sanitizer.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bulkhead_plugin::Symbol;
use bulkhead_plugin::sanitizer::{Active, Code as Range, Config, Finding, read};

use crate::code::*;

/// Address at which the program is loaded.
const BASE: u64 = 0x4010_0000;
const VECTORS: u64 = BASE + 0x8000;
/// Address of the code that EL2 executes when the guest has called it.
const AGAIN: u64 = BASE + 0x9000;
/// Address of the code that the second CPU executes.
pub const SECOND: u64 = BASE + 0xa000;
/// Where EL2 stores code of its own.
pub const STORED: u64 = BASE + 0xb000;
const END: u64 = BASE + 0x10_0000;

/// EL2's map: a root, and the gigabyte of the board's RAM.
pub const ROOT: u64 = 0x4020_0000;
const LEVEL2: u64 = ROOT + 0x1000;
/// Another root, with another gigabyte of RAM.
pub const OTHER_ROOT: u64 = ROOT + 0x2000;
const OTHER_LEVEL2: u64 = ROOT + 0x3000;
/// The guest's stage 2.
pub const STAGE2: u64 = ROOT + 0x4000;
const STAGE2_LEVEL2: u64 = ROOT + 0x5000;
/// Free memory of EL2.
pub const FREE: u64 = 0x4040_0000;
/// Memory that the window of the other map shows.
pub const OTHER_FREE: u64 = FREE + (2 << 20);
/// Memory of the guest, with its program, and a second block.
pub const GUEST: u64 = 0x4100_0000;
pub const SECOND_BLOCK: u64 = 0x4120_0000;
/// A mapped window of EL2, and one that is not mapped.
pub const WINDOW: u64 = 0x4c80_0000;
pub const CLOSED: u64 = 0x4ca0_0000;
/// A window on [`SECOND_BLOCK`] that is not cacheable.
pub const UNCACHED: u64 = 0x4cc0_0000;

/// A block of EL2: valid, accessed, inner shareable, read and write, Normal memory.
pub const BLOCK: u64 = 0x741;
pub const READ_ONLY: u64 = 1 << 7;
/// A block of stage 2: the same, with instructions.
pub const GUEST_BLOCK: u64 = 0x7fd;

pub const TCR_VALUE: u64 = 0x8082_3519;
pub const MAIR_VALUE: u64 = 0x4404ff;
pub const SCTLR_VALUE: u64 = 0x30c5_183d;
/// SCTLR_EL2.EOS
pub const EXIT_SYNCHRONIZES: u64 = 1 << 11;
pub const VTCR_VALUE: u64 = 1 << 31 | 2 << 16 | 3 << 12 | 1 << 10 | 1 << 8 | 1 << 6 | 25;
/// HCR_EL2: VM, SWIO, RW
pub const HCR_VALUE: u64 = 1 | 1 << 1 | 1 << 31;
/// VTTBR_EL2: VMID 1
pub const VTTBR_VALUE: u64 = 1 << 48 | STAGE2;
/// CPTR_EL2: nothing of FP traps.
pub const CPTR_VALUE: u64 = 0x32ff;

/// The descriptor in EL2's map for an address in its gigabyte.
pub fn entry(va: u64) -> u64 {
    LEVEL2 + (va - 0x4000_0000) / (2 << 20) * 8
}

/// The descriptor in the other map.
pub fn other_entry(va: u64) -> u64 {
    entry(va) + OTHER_LEVEL2 - LEVEL2
}

/// The descriptor in stage 2.
pub fn guest_entry(ipa: u64) -> u64 {
    STAGE2_LEVEL2 + (ipa - 0x4000_0000) / (2 << 20) * 8
}

/// The operand of a TLBI by address.
pub fn page(address: u64) -> u64 {
    address >> 12
}

/// Code that runs, and the machine that it runs on.
pub struct Machine {
    /// EL2 from its reset to its first ERET.
    pub first: Code,
    /// EL2 when the guest has called it.
    pub again: Code,
    /// The second CPU, if there is one.
    pub second: Option<Code>,
    /// Value of `-cpu`.
    pub cpu: &'static str,
    /// GIC architecture version.
    pub gic: u32,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            first: Code::default(),
            again: Code::default(),
            second: None,
            cpu: "cortex-a53",
            gic: 3,
        }
    }
}

/// Writes the registers of EL2's map and drops old entries.
pub fn prepare_map(code: &mut Code) -> &mut Code {
    code.sys(VBAR, VECTORS)
        .sys(TCR, TCR_VALUE)
        .sys(MAIR, MAIR_VALUE)
        .sys(TTBR0, ROOT)
        .ops(&[ISB, TLBI_ALLE2, DSB_NSH, ISB])
}

/// Turns the MMU on.
pub fn translate(code: &mut Code) -> &mut Code {
    prepare_map(code).sys(SCTLR, SCTLR_VALUE).ops(&[ISB])
}

/// Sets the registers of the guest's context.
pub fn prepare_guest(code: &mut Code) -> &mut Code {
    code.sys(HCR, HCR_VALUE)
        .sys(VTCR, VTCR_VALUE)
        .sys(VTTBR, VTTBR_VALUE)
        .ops(&[ISB, TLBI_VMALLS12E1, IC_IALLU, DSB_NSH, ISB])
}

/// Enters the guest.
pub fn leave(code: &mut Code) -> &mut Code {
    code.sys(ELR, GUEST).sys(SPSR, 0x3c5).ops(&[ERET])
}

/// Prepares the guest and enters it.
pub fn enter(code: &mut Code) -> &mut Code {
    leave(prepare_guest(code))
}

/// The program and its tables as they lie in memory from [`BASE`] on.
fn image(machine: &Machine) -> Vec<u8> {
    let mut bytes = vec![0; (ROOT - BASE + 0x6000) as usize];
    let mut put = |address: u64, data: &[u8]| {
        let at = (address - BASE) as usize;
        bytes[at..at + data.len()].copy_from_slice(data);
    };
    put(BASE, &machine.first.bytes());
    // From the guest, synchronous: to `AGAIN`.
    let branch = 0x1400_0000 | ((AGAIN - VECTORS - 0x400) / 4) as u32;
    put(VECTORS + 0x400, &branch.to_le_bytes());
    let mut again = machine.again.clone();
    again.ops(&[ERET]);
    put(AGAIN, &again.bytes());
    if let Some(second) = &machine.second {
        put(SECOND, &second.bytes());
    }
    for (root, level2) in [(ROOT, LEVEL2), (OTHER_ROOT, OTHER_LEVEL2)] {
        // Devices, and a table for the gigabyte of RAM: 64 MiB of it are there.
        put(root, &(BLOCK | 1 << 2 | 1 << 54).to_le_bytes());
        put(root + 8, &(level2 | 3).to_le_bytes());
        for n in 0..32u64 {
            let block = (0x4000_0000 + n * (2 << 20)) | BLOCK;
            put(level2 + n * 8, &block.to_le_bytes());
        }
    }
    put(entry(WINDOW), &(FREE | BLOCK).to_le_bytes());
    put(
        entry(UNCACHED),
        &(SECOND_BLOCK | BLOCK | 2 << 2).to_le_bytes(),
    );
    put(other_entry(WINDOW), &(OTHER_FREE | BLOCK).to_le_bytes());
    put(STAGE2 + 8, &(STAGE2_LEVEL2 | 3).to_le_bytes());
    for block in [GUEST, SECOND_BLOCK] {
        put(guest_entry(block), &(block | GUEST_BLOCK).to_le_bytes());
    }
    bytes
}

/// The guest: calls EL2 once, then switches the board off.
fn guest() -> Vec<u8> {
    let mut code = Code::default();
    code.ops(&[HVC]).call(0x8400_0008, 0, 0);
    code.bytes()
}

/// The plugin as cargo built it beside this test.
fn plugin() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let folders = test.ancestors().skip(1).take(2);
    let mut files = folders.map(|folder| folder.join("libbulkhead_sanitizer.so"));
    files
        .find(|file| file.is_file())
        .expect("cargo builds the plugin before its tests")
}

/// Result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// VMIDs that were entered.
    pub entered: usize,
    /// Findings.
    pub findings: Vec<Finding>,
}

/// Runs the machine to its end.
pub fn run(machine: &Machine, timing: &[&str]) -> Outcome {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("written");
        path
    };
    let config = Config {
        output: folder.path().join("found.jsonl"),
        code: vec![Range {
            start: BASE,
            end: END,
            linked: BASE,
        }],
        symbols: vec![Symbol {
            address: BASE,
            size: END - BASE,
            name: "sample".to_owned(),
        }],
        iar: (machine.gic == 2).then_some(0x0801_000c),
        sgir: (machine.gic == 2).then_some(0x0800_0f00),
        active: vec![Active {
            base: 0x0800_0000,
            size: 0x1_0000,
            offset: 0x300,
        }],
    };
    let file = write(
        "config.json",
        &serde_json::to_vec(&config).expect("serialises"),
    );
    let loader = |path: &Path, address: u64, more: &str| {
        format!("loader,file={},addr={address:#x}{more}", path.display())
    };
    let program = loader(&write("el2.bin", &image(machine)), BASE, ",cpu-num=0");
    let guest = loader(&write("guest.bin", &guest()), GUEST, "");
    let cpus = if machine.second.is_some() { "2" } else { "1" };
    let board = format!("virt,virtualization=on,gic-version={}", machine.gic);
    let output = Command::new("qemu-system-aarch64")
        .args(["-machine", &board, "-cpu", machine.cpu, "-smp", cpus])
        .args(["-m", "64M", "-display", "none", "-net", "none"])
        .args(["-monitor", "none", "-serial", "none", "-no-reboot"])
        .args(timing)
        .args(["-device", &program, "-device", &guest, "-plugin"])
        .arg(format!("{},config={}", plugin().display(), file.display()))
        .stdin(Stdio::null())
        .output()
        .expect("qemu-system-aarch64 is installed");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = std::fs::read_to_string(&config.output).expect("the plugin wrote");
    let (entered, findings) = read(&text).expect("records");
    Outcome { entered, findings }
}
