//! Payloads from Debian: packages of another architecture, unpacked and made into what a guest boots.
//!
//! `bulkhead fetch` chooses the packages and writes the choice down in the cache; everything else uses
//! what was chosen, so that a system does not change between two builds because an archive did.

pub mod apt;
mod archive;
pub mod cache;
pub mod closure;
pub mod deb;
pub mod firmware;
pub mod folder;
pub mod initramfs;
pub mod modules;
mod rootfs;
pub mod rust_std;
mod trees;

use std::path::PathBuf;

use bulkhead_model::failure::Failure;
use bulkhead_model::payload::DebianPayload;

use archive::{missing, need, unpacked};
use cache::{Cache, Unpacked};

pub use archive::{Archive, Suite};
pub use trees::{device_tree, device_trees};

/// A kernel of Debian.
#[derive(Clone, Copy, Debug)]
struct Kernel {
    /// The meta-package that depends on the newest one.
    meta: &'static str,
    /// First two numbers of its version.
    series: &'static str,
    /// Suite that both come from.
    suite: Suite,
}

impl Kernel {
    /// Returns the kernel that a payload is; none for other payloads.
    const fn of(payload: DebianPayload) -> Option<Self> {
        let (meta, series, suite) = match payload {
            DebianPayload::Kernel => ("linux-image-arm64", "6.1", Suite::Stable),
            DebianPayload::KernelRt => ("linux-image-rt-arm64", "6.1", Suite::Stable),
            DebianPayload::Kernel612 => ("linux-image-arm64", "6.12", Suite::Backports),
            DebianPayload::Kernel612Rt => ("linux-image-rt-arm64", "6.12", Suite::Backports),
            DebianPayload::Initramfs
            | DebianPayload::ModulesRt
            | DebianPayload::Modules612
            | DebianPayload::Modules612Rt
            | DebianPayload::IoTools
            | DebianPayload::DebugTools
            | DebianPayload::UBoot
            | DebianPayload::Rootfs => return None,
        };
        Some(Self {
            meta,
            series,
            suite,
        })
    }

    /// Whether it has some of [`modules::WANTED`] built in: 6.12 the console.
    fn builds_some_in(self) -> bool {
        self.suite == Suite::Backports
    }

    /// Whether it has device-dax: 6.1 lacks `ZONE_DEVICE`, the real-time kernel of 6.12 `DEV_DAX`.
    fn has_dax(self) -> bool {
        self.suite == Suite::Backports && !self.meta.contains("-rt-")
    }

    /// The modules that go into archives for it, whether it has them as files or built in.
    fn modules(self) -> impl Iterator<Item = &'static str> {
        let dax = modules::WANTED_FOR_DAX.into_iter();
        let wanted = modules::WANTED.into_iter();
        wanted.chain(dax.filter(move |_| self.has_dax()))
    }

    /// Those that its package has as files.
    fn module_files(self) -> impl Iterator<Item = &'static str> {
        let built_in = move |module: &str| self.builds_some_in() && module == "virtio_console";
        self.modules().filter(move |module| !built_in(module))
    }

    /// Whether `name` is a package of this kernel: `linux-image-6.1.0-50-arm64` for 6.1 and
    /// `linux-image-arm64`.
    fn is(self, name: &str) -> bool {
        let (Some(rest), Some(flavour)) = (
            name.strip_prefix("linux-image-"),
            self.meta.strip_prefix("linux-image-"),
        ) else {
            return false;
        };
        let version = rest
            .strip_suffix(flavour)
            .and_then(|rest| rest.strip_suffix('-'))
            .and_then(|rest| rest.strip_prefix(self.series))
            .and_then(|rest| rest.strip_prefix('.'));
        // 6.12.30+deb12: a backport says for which release it is.
        let version = version.map(|text| text.replace("+deb", ""));
        version.is_some_and(|text| !text.contains(|c: char| c.is_ascii_alphabetic()))
    }
}

/// The file of a payload, fetched first if the cache lacks it.
pub fn payload(payload: DebianPayload) -> Result<PathBuf, Failure> {
    let cache = Cache::open()?;
    if let Some(file) = cached(&cache, payload)? {
        return Ok(file);
    }
    let mut apt = apt::Apt::new(&cache.folder().join("apt"))?;
    choose(&cache, payload, &mut apt)?;
    made(&cache, payload)
}

/// The file of a payload whose packages are chosen and unpacked; none if they are not.
pub fn cached(cache: &Cache, payload: DebianPayload) -> Result<Option<PathBuf>, Failure> {
    if payload == DebianPayload::Rootfs {
        return rootfs::cached(cache);
    }
    let kernel = match kernel_of(payload) {
        Some(kernel) => kernel_with_modules(cache, kernel)?,
        None => Some(Vec::new()),
    };
    let Some((packages, kernel)) = cache.chosen(payload)?.zip(kernel) else {
        return Ok(None);
    };
    if let Some(programs) = closure::tools(payload) {
        return initramfs::make_programs(cache, &packages, programs).map(Some);
    }
    let file = match payload {
        DebianPayload::Initramfs => initramfs::make(cache, &kernel, &packages)?,
        _ if kernel_of(payload).is_some() => initramfs::make_modules(cache, &kernel)?,
        DebianPayload::UBoot => uboot_image(&packages)?,
        _ => kernel_image(&packages)?,
    };
    Ok(Some(file))
}

/// The kernel whose modules are in an archive.
const fn kernel_of(archive: DebianPayload) -> Option<DebianPayload> {
    match archive {
        DebianPayload::Initramfs => Some(DebianPayload::Kernel),
        DebianPayload::ModulesRt => Some(DebianPayload::KernelRt),
        DebianPayload::Modules612 => Some(DebianPayload::Kernel612),
        DebianPayload::Modules612Rt => Some(DebianPayload::Kernel612Rt),
        _ => None,
    }
}

/// A kernel, if it is chosen and unpacked with all modules that are wanted.
fn kernel_with_modules(
    cache: &Cache,
    kernel: DebianPayload,
) -> Result<Option<Vec<Unpacked>>, Failure> {
    let wanted = Kernel::of(kernel);
    let has_all = |one: &Unpacked| {
        let wanted = wanted.into_iter().flat_map(Kernel::modules);
        modules::are_all_in(&one.folder, wanted)
    };
    let kernel = cache.chosen(kernel)?;
    Ok(kernel.filter(|kernel| kernel.iter().all(has_all)))
}

/// The file of a payload that [`choose`] has just provided for.
pub fn made(cache: &Cache, payload: DebianPayload) -> Result<PathBuf, Failure> {
    cached(cache, payload)?.ok_or_else(|| {
        let what = format!(
            "the cache {} does not keep what is put there",
            cache.folder().display()
        );
        Failure::environment(what, "", "set BULKHEAD_CACHE to a folder of a local disk")
    })
}

/// Finds out the packages of a payload, gets and unpacks them, and writes the choice down.
pub fn choose(
    cache: &Cache,
    payload: DebianPayload,
    archive: &mut dyn Archive,
) -> Result<(), Failure> {
    if payload == DebianPayload::Rootfs {
        // It is made with both, and has the kernel's modules.
        for part in [DebianPayload::Kernel, DebianPayload::Initramfs] {
            if cached(cache, part)?.is_none() {
                choose(cache, part, archive)?;
            }
        }
        let kernel = made(cache, DebianPayload::Kernel)?;
        let initramfs = made(cache, DebianPayload::Initramfs)?;
        return rootfs::choose(cache, archive, (&kernel, &initramfs));
    }
    // The modules belong to the kernel.
    if let Some(kernel) = kernel_of(payload)
        && kernel_with_modules(cache, kernel)?.is_none()
    {
        choose(cache, kernel, archive)?;
    }
    let packages = match Kernel::of(payload) {
        Some(wanted) => vec![kernel(cache, wanted, archive)?],
        None if payload == DebianPayload::UBoot => {
            let package = need(archive, UBOOT_PACKAGE, Suite::Stable)?;
            let image = format!("./{UBOOT_IMAGE}");
            unpacked(cache, archive, vec![package], &[&image])?
        }
        None if kernel_of(payload).is_some() && payload != DebianPayload::Initramfs => Vec::new(),
        None => {
            let programs = closure::tools(payload).unwrap_or(&closure::PROGRAMS);
            closure::gather(cache, archive, programs)?
        }
    };
    cache.choose(payload, &packages)
}

/// Gets a kernel; of its files, the Image and a few modules.
fn kernel(cache: &Cache, wanted: Kernel, archive: &mut dyn Archive) -> Result<Unpacked, Failure> {
    let stands_for = |p: deb::Package| p.depends.into_iter().find(|name| wanted.is(name));
    let name = archive
        .find(wanted.meta, wanted.suite)?
        .and_then(stands_for);
    // A folder of packages may hold the kernel without the package that stands for the newest.
    let name = name.or_else(|| archive.names().into_iter().rfind(|name| wanted.is(name)));
    let name = name.ok_or_else(|| missing(&format!("{} {}", wanted.meta, wanted.series)))?;
    let modules = wanted
        .module_files()
        .map(|module| format!("*/{module}.ko*"));
    let list = wanted
        .builds_some_in()
        .then(|| format!("*/{}", modules::BUILTIN));
    let whole = ["./boot".to_owned()].into_iter().chain(list);
    let patterns: Vec<String> = whole.chain(modules).collect();
    let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
    let package = need(archive, &name, wanted.suite)?;
    let place = cache.place(&package);
    if place.is_dir() && !modules::are_all_in(&place, wanted.modules()) {
        std::fs::remove_dir_all(&place).map_err(|e| {
            let what = format!("cannot unpack {name} once more, with more modules");
            Failure::environment(what, e, format!("delete {}", place.display()))
        })?;
    }
    unpacked(cache, archive, vec![package], &patterns)?
        .pop()
        .ok_or_else(|| missing(&name))
}

/// The Image in an unpacked kernel package.
fn kernel_image(packages: &[Unpacked]) -> Result<PathBuf, Failure> {
    let folder = packages.first().map(|p| p.folder.join("boot"));
    let files = folder.iter().flat_map(|boot| boot.read_dir()).flatten();
    let mut images = files.flatten().map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().map(|name| name.to_string_lossy());
        name.is_some_and(|name| name.starts_with("vmlinuz-"))
    });
    images.next().ok_or_else(|| missing("linux-image-arm64"))
}

/// Debian's package of U-Boot for QEMU, and the image for arm64 in it.
const UBOOT_PACKAGE: &str = "u-boot-qemu";
const UBOOT_IMAGE: &str = "usr/lib/u-boot/qemu_arm64/u-boot.bin";

/// The image in the unpacked package of U-Boot.
fn uboot_image(packages: &[Unpacked]) -> Result<PathBuf, Failure> {
    let image = packages.first().map(|one| one.folder.join(UBOOT_IMAGE));
    image
        .filter(|file| file.is_file())
        .ok_or_else(|| missing(UBOOT_PACKAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_of_its_series_and_flavour_only() {
        let names = [
            (DebianPayload::Kernel, "linux-image-6.1.0-50-arm64"),
            (DebianPayload::KernelRt, "linux-image-6.1.0-50-rt-arm64"),
            (DebianPayload::Kernel612, "linux-image-6.12.30+deb12-arm64"),
            (
                DebianPayload::Kernel612Rt,
                "linux-image-6.12.30+deb12-rt-arm64",
            ),
        ];
        for (payload, own) in names {
            let kernel = Kernel::of(payload).expect("a kernel");
            for (_, name) in names {
                assert_eq!(kernel.is(name), name == own, "{payload:?}: {name}");
            }
            for other in [
                "linux-image-6.1.0-50-cloud-arm64",
                "linux-image-6.12.30+deb12-cloud-arm64",
                "linux-image-6.12.30+deb12-arm64-unsigned",
                "linux-image-6.10.0-1-arm64",
                "linux-image-arm64",
                "libc6",
            ] {
                assert!(!kernel.is(other), "{payload:?}: {other}");
            }
        }
    }
}
