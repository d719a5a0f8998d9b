//! A card that is the console of an emulated board: its node in the board's tree, and the program that does for it what the firmware of a board would do.

use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};

use bulkhead_abi::plan::PAGE;
use bulkhead_model::board::Card;

/// Offset of the program from the start of the memory: behind QEMU's own instructions, before the image.
const OFFSET: u64 = 1 << 20;
/// Bytes of the header of an arm64 image (Linux, Documentation/arch/arm64/booting.rst).
const HEADER: usize = 64;

/// What the program does behind its header, with x0 as it was: it writes the words of the table behind it, up to an address 0, and goes on where the
/// last entry says.
const CODE: [u32; 8] = [
    0x1000_0101, // adr  x1, table
    0xf840_8422, // ldr  x2, [x1], #8
    0xf840_8423, // ldr  x3, [x1], #8
    0xb400_0062, // cbz  x2, go
    0xb900_0043, // str  w3, [x2]
    0x17ff_fffc, // b    to the first load
    0xd503_3f9f, // go: dsb sy
    0xd61f_0060, // br   x3
];

/// An arm64 image that writes words to physical addresses and goes on to the image at `base`.
pub fn program(writes: &[(u64, u32)], base: u64) -> Vec<u8> {
    let entries = writes.iter().map(|&(at, word)| (at, u64::from(word)));
    let table = entries.chain([(0, base)]);
    let table = table.flat_map(|(at, word)| [at.to_le_bytes(), word.to_le_bytes()].concat());
    let code = CODE.iter().flat_map(|word| word.to_le_bytes());
    let rest: Vec<u8> = code.chain(table).collect();
    let size = HEADER + rest.len();
    let mut bytes = Vec::with_capacity(size);
    // b HEADER; and a word that is not executed.
    bytes.extend(0x1400_0010_u64.to_le_bytes());
    bytes.extend(OFFSET.to_le_bytes());
    bytes.extend((size as u64).to_le_bytes());
    bytes.resize(HEADER - 8, 0);
    bytes.extend(b"ARM\x64\0\0\0\0");
    bytes.extend(rest);
    bytes
}

/// Adds the card to the tree of its board, and makes it the console there.
pub fn add(card: &Card, tree: &mut DeviceTree) -> Result<(), String> {
    let cells = |cells: &[u32]| -> Vec<u8> {
        let bytes = cells.iter().flat_map(|cell| cell.to_be_bytes());
        bytes.collect()
    };
    let [high, low] = [card.registers >> 32, card.registers & 0xffff_ffff].map(|half| half as u32);
    let properties = [
        ("compatible", format!("{}\0", card.compatible).into_bytes()),
        ("reg", cells(&[high, low, 0, PAGE as u32])),
        // An SPI whose level is high.
        ("interrupts", cells(&[0, card.spi, 4])),
    ];
    let mut node = DeviceTreeNode::new(&*card.node).map_err(|why| why.to_string())?;
    for (name, value) in properties {
        let property = DeviceTreeProperty::new(name, value);
        node.add_property(property.map_err(|why| why.to_string())?);
    }
    tree.root.add_child(node);
    name_console(tree, &format!("/{}", card.node))
}

/// Names the console of a board in its tree, as firmware does it.
pub fn name_console(tree: &mut DeviceTree, console: &str) -> Result<(), String> {
    let path = DeviceTreeProperty::new("stdout-path", format!("{console}\0").into_bytes());
    let path = path.map_err(|why| why.to_string())?;
    let chosen = tree.find_node_mut("/chosen").ok_or("it has no /chosen")?;
    chosen.add_property(path);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"))
    }

    #[test]
    fn the_program_has_the_header_of_an_image_and_a_table_with_an_end() {
        let bytes = program(
            &[(0x40_1000_8010, 0x1001), (0x40_1000_8004, 1)],
            0x4020_0000,
        );
        assert_eq!(
            (word(&bytes, 8), word(&bytes, 16)),
            (OFFSET, bytes.len() as u64)
        );
        assert_eq!(&bytes[56..60], b"ARM\x64");
        let table = HEADER + 4 * CODE.len();
        let table: Vec<u64> = (table..bytes.len())
            .step_by(8)
            .map(|at| word(&bytes, at))
            .collect();
        assert_eq!(
            table,
            [0x40_1000_8010, 0x1001, 0x40_1000_8004, 1, 0, 0x4020_0000]
        );
        // ADR: 8 words from itself. CBZ, to DSB: 3; B, to the first LDR: 4 back.
        assert_eq!(CODE[0] >> 5 & 0x7ffff, CODE.len() as u32 * 4 / 4);
        assert_eq!(CODE[3] >> 5 & 0x7ffff, 3);
        assert_eq!(CODE[5] | 0xfc00_0000, 4_u32.wrapping_neg());
    }
}
