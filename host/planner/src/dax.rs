//! The block by which Linux takes a pmem region of channels for device-dax: `struct nd_pfn_sb` (drivers/nvdimm/pfn.h), little-endian, one page
//! behind the start of the pmem region (nd_pfn_validate and nd_dax_probe in drivers/nvdimm).

use bulkhead_abi::plan::PAGE;
use bulkhead_model::describe::PmemRegion;

/// Signature of device-dax.
const SIGNATURE: &[u8; 16] = b"NVDIMM_DAX_INFO\0";
/// UUID of the block: any but zeros.
const UUID: &[u8; 16] = b"bulkhead channel";
/// Version 1.4, from which on it says sizes of pages.
const VERSION: (u16, u16) = (1, 4);
/// What describes the pmem region's pages is in Linux' own memory (PFN_MODE_RAM).
const MODE_RAM: u32 = 1;
/// Bytes of `struct page` on arm64.
const PAGE_STRUCT: u16 = 64;
/// Offset of the sum, in the last word.
const SUM: usize = PAGE as usize - 8;

/// The block of a pmem region.
pub(super) fn block(pmem: &PmemRegion) -> Vec<u8> {
    let mut block = vec![0; PAGE as usize];
    let mut put = |offset: usize, bytes: &[u8]| {
        block[offset..offset + bytes.len()].copy_from_slice(bytes);
    };
    put(0, SIGNATURE);
    put(16, UUID);
    // The UUID of the parent, zeros, and flags; a pmem region from a device tree has no label.
    put(52, &VERSION.0.to_le_bytes());
    put(54, &VERSION.1.to_le_bytes());
    put(56, &PmemRegion::DATA.to_le_bytes());
    put(64, &((pmem.size - PmemRegion::DATA) / PAGE).to_le_bytes());
    put(72, &MODE_RAM.to_le_bytes());
    // Paddings at both ends, then what programs map at least at once.
    put(84, &(PAGE as u32).to_le_bytes());
    put(88, &(PAGE as u32).to_le_bytes());
    put(92, &PAGE_STRUCT.to_le_bytes());
    let sum = sum(&block);
    block[SUM..].copy_from_slice(&sum.to_le_bytes());
    block
}

/// Fletcher's sum of words of 32 bits (nd_fletcher64).
fn sum(block: &[u8]) -> u64 {
    let (words, _) = block.as_chunks();
    let words = words.iter().map(|word| u32::from_le_bytes(*word));
    let (low, high) = words.fold((0_u32, 0_u64), |(low, high), word| {
        let low = low.wrapping_add(word);
        (low, high.wrapping_add(low.into()))
    });
    high << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block that Linux 6.12.95 took, in words that are not zero.
    #[test]
    fn a_block_is_one_that_linux_took() {
        let block = block(&PmemRegion {
            ipa: 0x9000_0000,
            size: 16 << 20,
            channels: Vec::new(),
        });
        let (words, _) = block.as_chunks();
        let words = words.iter().map(|word| u32::from_le_bytes(*word));
        let words: Vec<_> = words.zip(0..).filter(|(word, _)| *word != 0).collect();
        let text = [
            (0x4944_564e, 0),
            (0x445f_4d4d, 1),
            (0x495f_5841, 2),
            (0x004f_464e, 3),
            (0x6b6c_7562, 4),
            (0x6461_6568, 5),
            (0x6168_6320, 6),
            (0x6c65_6e6e, 7),
        ];
        let numbers = [
            (0x4_0001, 13),
            (0x20_0000, 14),
            (0xe00, 16),
            (1, 18),
            (0x1000, 21),
            (0x1000, 22),
            (0x40, 23),
        ];
        let sum = [(0x7512_1cc4, 1022), (0x8b9e_8116, 1023)];
        assert_eq!(words, [&text[..], &numbers, &sum].concat());
    }
}
