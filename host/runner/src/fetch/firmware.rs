//! Trusted Firmware-A for QEMU's `virt`, built from Debian's source package: what runs at EL3 on most boards. Each kind is built once
//! and kept in the cache; nothing of it is part of an image.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use bulkhead_model::board::{Emulated, Firmware};
use bulkhead_model::failure::Failure;
use bulkhead_model::payload::DebianPayload;

use super::apt::Apt;
use super::cache::{self, Cache};
use crate::command::run;
use crate::progress::Step;
use crate::temp_files;

/// Debian's source package, and the first release whose version has SDEI on this board.
const PACKAGE: &str = "arm-trusted-firmware";
const SUITE: &str = "trixie";
/// Address at which it starts the image: the same as QEMU's.
pub const ENTRY: u64 = 0x4020_0000;
/// Offset in the flash at which BL1 looks for the package of the other images (`PLAT_QEMU_FIP_BASE`).
const PACKAGE_AT: usize = 0x4_0000;
/// BL2 and BL31 as the package names them (`firmware_image_package.h`).
const BL2: u128 = 0x5ff9_ec0b_4d22_3e4d_a544_c39d_81c7_3f0a;
const BL31: u128 = 0x47d4_086d_4cfe_9846_9b95_2950_cbbd_5a00;
/// BL33: what BL31 starts on the Non-secure side.
const BL33: u128 = 0xd6d0_eea7_fcea_d54b_9782_9934_f234_b6e4;
/// Advice to the user.
const ADVICE: &str = "install make, xz-utils and gcc-aarch64-linux-gnu, and see that the network reaches a Debian mirror";

/// The kind of a Trusted Firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustedFirmware {
    /// Version of the GIC that it drives.
    gic: u32,
    /// It has events.
    sdei: bool,
    /// It loads and starts U-Boot, from behind the first 512 MiB of the memory on, instead of the image.
    u_boot: bool,
}

impl TrustedFirmware {
    /// That of a board, if it has one. With a GICv2 it has no events: EL2 asks for none there.
    pub fn of(board: &Emulated) -> Option<Self> {
        let Firmware::TrustedFirmware { sdei } = board.firmware else {
            return None;
        };
        let gic = board.gic;
        Some(Self {
            gic,
            sdei: sdei && gic == 3,
            u_boot: false,
        })
    }

    /// The same with U-Boot, which loads the image.
    pub const fn with_u_boot(self) -> Self {
        Self {
            u_boot: true,
            ..self
        }
    }

    /// Place in the cache.
    fn name(self) -> String {
        let events = if self.sdei { "-sdei" } else { "" };
        let loader = if self.u_boot { "-u-boot" } else { "" };
        format!("firmware/tf-a-gicv{}{events}{loader}.bin", self.gic)
    }

    /// Returns the path of the file with the content of the board's flash, once it is made.
    pub fn file(self) -> PathBuf {
        cache::folder().join(self.name())
    }

    /// Makes it, if the cache does not have it. That takes a minute or two, a network, and a compiler.
    ///
    /// # Errors
    ///
    /// The source cannot be had, or a tool is missing.
    pub fn make(self) -> Result<(), Failure> {
        if self.file().is_file() {
            return Ok(());
        }
        make(self)
    }
}

fn make(kind: TrustedFirmware) -> Result<(), Failure> {
    let u_boot = kind.u_boot.then(u_boot).transpose()?;
    let cache = Cache::open()?;
    let step = Step::start("building Debian's Trusted Firmware for QEMU");
    let folder = temp_files::folder("bulkhead-").map_err(|e| failed(e.to_string()))?;
    let archive = Apt::source(folder.value.path(), PACKAGE, SUITE)?;
    let source = folder.value.path().join("source");
    fs::create_dir(&source).map_err(|e| failed(e.to_string()))?;
    let mut tar = Command::new("tar");
    tar.args(["--strip-components=1", "-xf"]).arg(&archive);
    run(
        tar.arg("-C").arg(&source),
        || "cannot unpack Trusted Firmware",
        ADVICE,
    )?;
    let built = compile(&source, kind)?;
    let part = |name: &str| fs::read(built.join(name)).map_err(|e| failed(format!("{name}: {e}")));
    let mut images = vec![(BL2, part("bl2.bin")?), (BL31, part("bl31.bin")?)];
    images.extend(u_boot.map(|image| (BL33, image)));
    let package = package(&images);
    let mut flash = part("bl1.bin")?;
    if flash.len() > PACKAGE_AT {
        return Err(failed("BL1 is larger than its place".to_owned()));
    }
    flash.resize(PACKAGE_AT, 0);
    flash.extend(package);
    cache.write(Path::new(&kind.name()), &flash)?;
    drop(step);
    Ok(())
}

/// Debian's U-Boot. It runs wherever it is, and finds the device tree where QEMU puts it.
fn u_boot() -> Result<Vec<u8>, Failure> {
    let file = super::payload(DebianPayload::UBoot)?;
    fs::read(&file).map_err(|why| failed(format!("{}: {why}", file.display())))
}

fn failed(why: String) -> Failure {
    Failure::environment("Trusted Firmware cannot be built", why, ADVICE)
}

/// Compiles the three images; the folder that they are in.
fn compile(source: &Path, kind: TrustedFirmware) -> Result<PathBuf, Failure> {
    let base = source.join("out");
    let mut build = OsString::from("BUILD_BASE=");
    build.push(&base);
    let mut make = Command::new("make");
    make.arg("-C").arg(source).arg(build);
    make.args([
        "-j2",
        "CROSS_COMPILE=aarch64-linux-gnu-",
        "PLAT=qemu",
        "DEBUG=0",
        // Not a word on the console, which is EL2's.
        "LOG_LEVEL=0",
        &format!("SDEI_SUPPORT={}", u32::from(kind.sdei)),
        &format!("EL3_EXCEPTION_HANDLING={}", u32::from(kind.sdei)),
        &format!("QEMU_USE_GIC_DRIVER=QEMU_GICV{}", kind.gic),
    ]);
    if !kind.u_boot {
        // The image is in memory already, and wants the device tree in x0.
        make.args([
            "ARM_LINUX_KERNEL_AS_BL33=1",
            &format!("PRELOADED_BL33_BASE={ENTRY:#x}"),
        ]);
    }
    make.args(["bl1", "bl2", "bl31"]);
    run(&mut make, || "Trusted Firmware cannot be built", ADVICE)?;
    Ok(base.join("qemu/release"))
}

/// A firmware image package: a table of contents, closed by an empty entry, and the images.
fn package(images: &[(u128, Vec<u8>)]) -> Vec<u8> {
    const HEADER: usize = 16;
    const ENTRY: usize = 40;
    let mut offset = HEADER + ENTRY * (images.len() + 1);
    let mut bytes = Vec::new();
    bytes.extend(0xaa64_0001_u32.to_le_bytes());
    // A serial number, which must not be 0, and flags.
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    let entry = |name: u128, at: usize, size: usize| {
        let numbers = [at as u64, size as u64, 0].map(u64::to_le_bytes);
        name.to_be_bytes()
            .into_iter()
            .chain(numbers.into_iter().flatten())
    };
    for (name, image) in images {
        bytes.extend(entry(*name, offset, image.len()));
        offset += image.len();
    }
    bytes.extend(entry(0, offset, 0));
    bytes.extend(images.iter().flat_map(|(_, image)| image));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_a_place_of_its_own() {
        let kind = |gic, sdei| TrustedFirmware {
            gic,
            sdei,
            u_boot: false,
        };
        let plain = [kind(2, false), kind(3, false), kind(3, true)];
        let all = plain.into_iter().flat_map(|it| [it, it.with_u_boot()]);
        let names: std::collections::BTreeSet<_> = all.map(TrustedFirmware::name).collect();
        assert_eq!(names.len(), 6, "{names:?}");
    }

    #[test]
    fn a_package_says_where_its_images_are() {
        let bytes = package(&[(BL2, vec![2; 5]), (BL31, vec![3; 7])]);
        assert_eq!(bytes[..4], [0x01, 0x00, 0x64, 0xaa]);
        for (n, name, image) in [(0, BL2, [2; 5].as_slice()), (1, BL31, &[3; 7])] {
            let entry = &bytes[16 + 40 * n..][..40];
            assert_eq!(entry[..16], name.to_be_bytes());
            let number =
                |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap()) as usize;
            assert_eq!(&bytes[number(16)..][..number(24)], image);
        }
        let end = &bytes[16 + 80..][..40];
        assert!(end[..16].iter().all(|byte| *byte == 0));
        assert_eq!(bytes.len(), 16 + 120 + 12);
    }
}
