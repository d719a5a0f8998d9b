//! The pmem region of a VM: where its Linux maps channels that are cached, as device-dax (ADR 26). It is a range of the IPA space of which only
//! the block that says what it is, and the channels, have memory.

use bulkhead_abi::plan::PAGE;

use super::vm::{PayloadSpec, VmSpec};
use crate::payload::DebianPayload;

/// A pmem region starts and ends at multiples of this, and so does what is in it: so much Linux adds to its memory at once (SUBSECTION_SIZE in
/// include/linux/mmzone.h).
pub(super) const BLOCK: u64 = 2 << 20;
/// Bytes of the smallest one that Linux takes (ND_MIN_NAMESPACE_SIZE in include/uapi/linux/ndctl.h is 16 MiB).
pub(super) const LEAST: u64 = 16 << 20;
/// Linux maps nothing below the multiple of this at which or before which its RAM starts (ARM64_MEMSTART_ALIGN with pages of 4 KiB, in
/// arch/arm64/include/asm/kernel-pgtable.h).
const START_ALIGN: u64 = 1 << 30;

/// The pmem region of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PmemRegion {
    /// IPA of its first byte.
    pub ipa: u64,
    /// Bytes.
    pub size: u64,
    /// The memory of channels in it: IPA and size, ascending.
    pub channels: Vec<(u64, u64)>,
}

impl PmemRegion {
    /// Bytes at the start that have memory: a page without meaning, and one that says what the pmem region is.
    pub const HEAD: u64 = 2 * PAGE;
    /// Bytes from its start to what programs map.
    pub const DATA: u64 = BLOCK;

    /// That of a VM with this memory of channels, which is cached; none if it is no Linux that maps such, or there is none.
    pub(super) fn around(spec: &VmSpec, mut channels: Vec<(u64, u64)>) -> Option<Self> {
        channels.sort_unstable();
        let lowest = channels.first()?.0;
        if !is_linux(spec) || why_not(spec, lowest).is_some() {
            return None;
        }
        let ends = channels.iter().map(|(ipa, size)| ipa.saturating_add(*size));
        let end = ends.max()?.checked_next_multiple_of(BLOCK)?;
        let ipa = start(lowest)?;
        Some(Self {
            ipa,
            size: (end - ipa).max(LEAST),
            channels,
        })
    }

    /// IPA of the first byte that programs map.
    pub fn data(&self) -> u64 {
        self.ipa + Self::DATA
    }

    /// What has no memory in it: IPA and size. Nothing else may be there.
    pub fn gaps(&self) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut from = self.ipa + Self::HEAD;
        let end = (self.ipa + self.size, 0);
        for (ipa, size) in self.channels.iter().copied().chain([end]) {
            if ipa > from {
                gaps.push((from, ipa - from));
            }
            from = from.max(ipa.saturating_add(size));
        }
        gaps
    }
}

/// Whether a VM is one whose programs map channels.
pub(super) fn is_linux(spec: &VmSpec) -> bool {
    matches!(spec.payload, PayloadSpec::Linux { .. })
}

/// IPA of the pmem region whose first channel is here.
fn start(lowest: u64) -> Option<u64> {
    (lowest - lowest % BLOCK).checked_sub(PmemRegion::DATA)
}

/// Why a Linux does not map a channel at this IPA as cached memory, as far as the description tells, and what to do.
pub(super) fn why_not(spec: &VmSpec, ipa: u64) -> Option<(String, &'static str)> {
    let PayloadSpec::Linux { kernel, .. } = &spec.payload else {
        return None;
    };
    let of_debian = kernel.value.starts_with("debian:");
    let payload = DebianPayload::named(&kernel.value).ok();
    let lacks = match payload.filter(|_| of_debian) {
        Some(DebianPayload::Kernel | DebianPayload::KernelRt) => {
            Some("is Linux 6.1, without ZONE_DEVICE")
        }
        Some(DebianPayload::Kernel612Rt) => Some("is a real-time kernel, without DEV_DAX"),
        _ => None,
    };
    if let Some(lacks) = lacks {
        let help = "leave `cacheable` out, or take debian:kernel-6.12, which maps it";
        return Some((lacks.to_owned(), help));
    }
    let ram = spec.memory.start();
    let least = ram - ram % START_ALIGN;
    let is_below = start(ipa).is_none_or(|start| start < least);
    is_below.then(|| {
        let why = format!(
            "maps nothing below {least:#x}, and its pmem region starts 2 MiB before the channel"
        );
        (why, "leave `ipa` out, or choose one behind its RAM")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::{Text, parse};

    /// A VM of 64 MiB with this kernel.
    fn linux(kernel: &str) -> VmSpec {
        let text = Text {
            name: "t".to_owned(),
            source: format!("[vm.one]\nkernel = \"{kernel}\"\nmemory = \"64MiB\"\n").into(),
        };
        parse(&text, &mut Vec::new()).vms.remove(0)
    }

    fn pmem(channels: &[(u64, u64)]) -> PmemRegion {
        PmemRegion::around(&linux("Image"), channels.to_vec()).expect("a pmem region")
    }

    #[test]
    fn it_has_room_for_its_head_and_is_as_large_as_linux_wants_it() {
        let one = pmem(&[(0x7830_1000, PAGE)]);
        assert_eq!((one.ipa, one.size), (0x7800_0000, LEAST));
        assert_eq!(one.data(), 0x7820_0000);
        let two = pmem(&[(0x7a00_0000, 4 * PAGE), (0x7820_0000, PAGE)]);
        assert_eq!((two.ipa, two.size), (0x7800_0000, 34 << 20));
    }

    #[test]
    fn what_has_no_memory_is_all_but_the_head_and_the_channels() {
        let channels = [
            (0x7820_0000, PAGE),
            (0x7820_1000, 2 * PAGE),
            (0x7820_5000, PAGE),
        ];
        let pmem = pmem(&channels);
        let gaps = pmem.gaps();
        let wanted = [
            (0x7800_2000, BLOCK - 2 * PAGE),
            (0x7820_3000, 2 * PAGE),
            (0x7820_6000, LEAST - BLOCK - 6 * PAGE),
        ];
        assert_eq!(gaps, wanted);
        let bytes: u64 = gaps.iter().chain(&channels).map(|(_, size)| size).sum();
        assert_eq!(bytes + PmemRegion::HEAD, pmem.size);
    }

    #[test]
    fn a_linux_without_device_dax_has_none_and_what_is_not_known_has_one() {
        let at = 0x7820_0000;
        let has = |kernel: &str| {
            let linux = linux(kernel);
            let pmem = PmemRegion::around(&linux, vec![(at, PAGE)]).is_some();
            assert_eq!(pmem, why_not(&linux, at).is_none(), "{kernel}");
            pmem
        };
        let without = ["kernel", "kernel-rt", "kernel-6.12-rt"];
        assert!(without.iter().all(|name| !has(&format!("debian:{name}"))));
        assert!(has("debian:kernel-6.12") && has("Image") && has("kernel"));
    }

    #[test]
    fn there_is_none_below_the_ram() {
        let linux = linux("Image");
        let pmem = |ipa| PmemRegion::around(&linux, vec![(ipa, PAGE)]);
        assert!(pmem(0x4020_0000).is_some());
        for below in [0x401f_f000, 0x1000_0000, 0x1000] {
            assert_eq!(pmem(below), None, "{below:#x}");
            assert!(why_not(&linux, below).is_some(), "{below:#x}");
        }
        assert!(pmem(u64::MAX - PAGE).is_none(), "beyond the last address");
    }
}
