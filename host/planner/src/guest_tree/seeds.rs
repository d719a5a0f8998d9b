//! Offsets of the seeds in a flattened tree: EL2 writes them there without reading the tree.

use bulkhead_abi::plan::SeedKind;

/// Tokens of the structure block (Devicetree Specification 0.4, 5.4.1).
const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROP: u32 = 3;
const NOP: u32 = 4;

/// A property of /chosen that EL2 fills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeedPlace {
    /// Kind of the seed.
    pub kind: SeedKind,
    /// Bytes from the start of the tree to its FDT_PROP token.
    pub offset: u64,
    /// Bytes of its value.
    pub size: u32,
}

/// The seeds of a tree that `GuestTree` made, in their order.
pub fn places(dtb: &[u8]) -> Vec<SeedPlace> {
    walk(dtb).unwrap_or_default()
}

/// The big-endian word at `offset`.
fn word(dtb: &[u8], offset: usize) -> Option<u32> {
    let bytes = dtb.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// The text that ends with a zero at `offset`.
fn text(dtb: &[u8], offset: usize) -> Option<&[u8]> {
    dtb.get(offset..)?.split(|&byte| byte == 0).next()
}

fn walk(dtb: &[u8]) -> Option<Vec<SeedPlace>> {
    let mut offset = word(dtb, 8)? as usize;
    let strings = word(dtb, 12)? as usize;
    let mut path: Vec<&[u8]> = Vec::new();
    let mut found = Vec::new();
    loop {
        match word(dtb, offset)? {
            BEGIN_NODE => {
                let name = text(dtb, offset + 4)?;
                path.push(name);
                offset += 4 + (name.len() + 1).next_multiple_of(4);
            }
            END_NODE => {
                path.pop();
                offset += 4;
            }
            PROP => {
                let size = word(dtb, offset + 4)?;
                let name = text(dtb, strings + word(dtb, offset + 8)? as usize)?;
                let kind = match name {
                    b"rng-seed" => Some(SeedKind::Rng),
                    b"kaslr-seed" => Some(SeedKind::Kaslr),
                    _ => None,
                };
                if let Some(kind) = kind.filter(|_| path == [&b""[..], &b"chosen"[..]]) {
                    found.push(SeedPlace {
                        kind,
                        offset: offset as u64,
                        size,
                    });
                }
                offset += 12 + (size as usize).next_multiple_of(4);
            }
            NOP => offset += 4,
            _ => return Some(found),
        }
    }
}
