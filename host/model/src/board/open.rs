//! Opens what should be a flattened device tree. It comes from somebody else's board or file, so nothing about it is
//! trusted (Devicetree Specification 0.4, chapter 5).

use dtoolkit::fdt::Fdt;

/// First word of a tree.
const MAGIC: u32 = 0xd00d_feed;
const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROP: u32 = 3;
const NOP: u32 = 4;
/// Most bytes of a tree: EL2 reads no more of that of its board.
pub(crate) const MOST_BYTES: usize = 2 << 20;
/// Deepest node; real trees have about ten levels.
const DEPTH: usize = 64;
/// Longest name of a property or node, without its unit address, in the specification (2.2.1, 2.2.4.1).
const NAME: usize = 31;

/// A tree that can be read: cut to the length that it names, no deeper than can be walked, without properties
/// whose names the specification does not allow, and with names of nodes cut to the 31 characters that it does. Half
/// of Linux's own trees have such properties, and a few such nodes; they mean nothing to this tool.
///
/// # Errors
/// Why it is no tree, in words that go on after "it is".
pub fn open(mut bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    if word(&bytes, 0) != Some(MAGIC) {
        return Err(format!("no device tree: {}", likely(&bytes)));
    }
    let size = word(&bytes, 4).map_or(0, |size| size as usize);
    if size > bytes.len() {
        return Err(format!(
            "cut off: its head says {size} bytes, and there are {}",
            bytes.len()
        ));
    }
    if size > MOST_BYTES {
        return Err(format!(
            "too large: {size} bytes, and EL2 reads {MOST_BYTES} at most"
        ));
    }
    bytes.truncate(size);
    if let Some(deep) = tidy(&mut bytes).filter(|depth| *depth > DEPTH) {
        return Err(format!(
            "no sound device tree: its nodes are {deep} levels deep, and {DEPTH} is the most"
        ));
    }
    match Fdt::new(&bytes) {
        Ok(_) => Ok(bytes),
        Err(why) => Err(format!("a broken device tree: {why}")),
    }
}

/// Description of bytes that are not a device tree, by their content, for a message.
fn likely(bytes: &[u8]) -> &'static str {
    let text = std::str::from_utf8(bytes.get(..4096).unwrap_or(bytes)).unwrap_or_default();
    if bytes.is_empty() {
        "it is empty"
    } else if text.contains("/dts-v1/") {
        "it is the source of one, which `dtc -I dts -O dtb -o BOARD.dtb BOARD.dts` compiles"
    } else if bytes.starts_with(&[0x1f, 0x8b]) {
        "it is compressed by gzip"
    } else if bytes.starts_with(&[0xd7, 0xb7, 0xab, 0x1e]) {
        "it is a table of several (Android's dtbo image)"
    } else {
        "it does not begin with d0 0d fe ed"
    }
}

/// The big-endian word at `at`.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*four))
}

/// Replaces properties whose names are not allowed by FDT_NOP; gives the depth of the deepest node. Stops where the
/// tree is broken: the next reader reports it.
fn tidy(bytes: &mut [u8]) -> Option<usize> {
    let mut at = word(bytes, 8)? as usize;
    let strings = word(bytes, 12)? as usize;
    let (mut depth, mut deepest) = (0usize, 0);
    loop {
        match word(bytes, at) {
            Some(BEGIN_NODE) => {
                depth += 1;
                deepest = deepest.max(depth);
                let name = bytes.get(at + 4..)?;
                let length = name.iter().position(|byte| *byte == 0);
                let Some(length) = length else {
                    return Some(deepest);
                };
                let end = (at + 4 + length + 1).next_multiple_of(4);
                if let Some(name) = bytes.get_mut(at + 4..end) {
                    shorten(name, length);
                }
                at = end;
            }
            Some(END_NODE) if depth > 0 => {
                depth -= 1;
                at += 4;
            }
            Some(PROP) => {
                let (Some(length), Some(name)) = (word(bytes, at + 4), word(bytes, at + 8)) else {
                    return Some(deepest);
                };
                let end = (at + 12 + length as usize).next_multiple_of(4);
                let unusual = !is_allowed(bytes.get(strings + name as usize..).unwrap_or(&[]));
                if let Some(whole) = bytes.get_mut(at..end).filter(|_| unusual) {
                    whole.as_chunks_mut().0.fill(NOP.to_be_bytes());
                }
                at = end;
            }
            Some(NOP) => at += 4,
            _ => return Some(deepest),
        }
    }
}

/// Cuts the name of a node of `length` bytes to the longest that is allowed, before its unit address. `room` is whole
/// words, and what is left over of them becomes gaps.
fn shorten(room: &mut [u8], length: usize) {
    let Some(name) = room.get(..length) else {
        return;
    };
    let plain = name.iter().position(|byte| *byte == b'@').unwrap_or(length);
    if plain <= NAME {
        return;
    }
    let short = [&name[..NAME], &name[plain..]].concat();
    let (head, rest) = room.split_at_mut((short.len() + 1).next_multiple_of(4));
    head.fill(0);
    head[..short.len()].copy_from_slice(&short);
    rest.as_chunks_mut().0.fill(NOP.to_be_bytes());
}

/// Whether the name of a property at the start of `bytes` is one that the specification allows.
fn is_allowed(bytes: &[u8]) -> bool {
    let Some(length) = bytes.iter().position(|byte| *byte == 0) else {
        // Not even a string: the next reader reports it.
        return true;
    };
    let letter = |byte: &u8| byte.is_ascii_alphanumeric() || b",._+-?#".contains(byte);
    (1..=NAME).contains(&length) && bytes.iter().take(length).all(letter)
}

#[cfg(test)]
mod tests {
    use dtoolkit::Node;

    use super::*;

    fn virt() -> Vec<u8> {
        std::fs::read("../cli/tests/fixtures/virt.dtb").expect("fixture")
    }

    /// A tree of nested nodes.
    fn nested(depth: usize) -> Vec<u8> {
        let mut structure = Vec::new();
        for level in 0..depth {
            structure.extend(BEGIN_NODE.to_be_bytes());
            structure.extend(if level == 0 {
                *b"\0\0\0\0"
            } else {
                *b"n\0\0\0"
            });
        }
        structure.extend(END_NODE.to_be_bytes().repeat(depth));
        structure.extend(9_u32.to_be_bytes());
        whole(&structure)
    }

    /// A tree with this structure, and no strings.
    fn whole(structure: &[u8]) -> Vec<u8> {
        let strings = 56 + structure.len() as u32;
        let head = [
            MAGIC,
            strings,
            56,
            strings,
            40,
            17,
            16,
            0,
            0,
            structure.len() as u32,
        ];
        let mut bytes: Vec<u8> = head.iter().flat_map(|word| word.to_be_bytes()).collect();
        bytes.extend([0; 16]);
        bytes.extend(structure);
        bytes
    }

    #[test]
    fn what_is_no_tree_is_said_to_be_what_it_is() {
        let refused = |bytes: &[u8]| open(bytes.to_vec()).expect_err("no tree");
        assert!(refused(b"").contains("empty"));
        assert!(refused(b"/dts-v1/;\n/ {};").contains("dtc -I dts"));
        assert!(refused(&[0x1f, 0x8b, 8, 0, 0]).contains("gzip"));
        assert!(refused(b"hello").contains("d0 0d fe ed"));
        let whole = virt();
        assert!(refused(&whole[..whole.len() - 1]).starts_with("cut off"));
        assert!(refused(&whole[..30]).starts_with("cut off"));
        let mut large = whole;
        large[4..8].copy_from_slice(&(3_u32 << 20).to_be_bytes());
        large.resize(3 << 20, 0);
        assert!(refused(&large).starts_with("too large"));
    }

    #[test]
    fn what_stands_behind_a_tree_is_cut_off() {
        let tree = virt();
        let mut longer = tree.clone();
        longer.extend([0xff; 100]);
        assert_eq!(open(longer), Ok(tree));
    }

    #[test]
    fn a_tree_as_deep_as_its_file_allows_is_refused_before_anybody_walks_it() {
        assert!(open(nested(DEPTH)).is_ok());
        let why = open(nested(100_000)).expect_err("too deep");
        assert!(why.contains("100000 levels"), "{why}");
    }

    #[test]
    fn a_property_with_a_long_name_is_left_out_and_the_rest_kept() {
        let mut tree = virt();
        // "linux,pci-domain" with a letter that no name may have.
        let name = b"linux,pci-domain\0";
        let at = tree.windows(name.len()).position(|part| part == name);
        tree[at.expect("the fixture has it")] = b'!';
        assert!(Fdt::new(&tree).is_err());
        let open = open(tree).expect("readable");
        let fdt = Fdt::new(&open).expect("sound");
        let pcie = fdt.find_node("/pcie@10000000").expect("the node is there");
        assert!(pcie.property("bus-range").is_some());
        assert!(pcie.property("linux,pci-domain").is_none());
    }

    #[test]
    fn a_long_name_of_a_node_is_cut_and_what_follows_is_found() {
        let long = b"a-name-of-more-than-thirty-one-letters@12345678";
        let mut structure = BEGIN_NODE.to_be_bytes().to_vec();
        structure.extend([0; 4]);
        structure.extend(BEGIN_NODE.to_be_bytes());
        structure.extend(long);
        structure.extend([0; 1]);
        structure.extend(BEGIN_NODE.to_be_bytes());
        structure.extend(b"in\0\0");
        for token in [END_NODE, END_NODE, END_NODE, 9] {
            structure.extend(token.to_be_bytes());
        }
        let open = open(whole(&structure)).expect("readable");
        let fdt = Fdt::new(&open).expect("sound");
        let cut = "/a-name-of-more-than-thirty-one-@12345678/in";
        assert!(fdt.find_node(cut).is_some(), "{fdt}");
    }

    #[test]
    fn any_wrong_byte_is_survived() {
        let tree = virt();
        for at in (0..tree.len()).step_by(3) {
            for change in [1, 0xff] {
                let mut wrong = tree.clone();
                wrong[at] ^= change;
                if let Ok(open) = open(wrong) {
                    assert!(Fdt::new(&open).is_ok());
                }
            }
        }
    }
}
