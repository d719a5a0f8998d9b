//! A FIT of the image: what U-Boot's `bootm` takes (U-Boot, `doc/usage/fit/source_file_format.rst`, or the Flattened Image
//! Tree Specification). It carries the board's device tree and SHA-256 sums of both. With the name of a key it has a place for the signature
//! of each configuration (`doc/usage/fit/signature.rst`), which `mkimage -F` fills in.

use dtoolkit::model::{DeviceTree, DeviceTreeNode, DeviceTreeProperty};
use sha2::{Digest, Sha256};

use crate::Planned;
use crate::guest_tree;

/// Name of the configuration with the board's device tree, the default.
pub const WITH_TREE: &str = "board";
/// Name of the configuration for loaders that have a tree of their own.
pub const WITHOUT_TREE: &str = "own-tree";
/// Data behind the tree starts at multiples of this: a device tree must.
const ALIGN: usize = 8;
/// Signature algorithm of configurations, which every U-Boot that checks signatures knows.
const ALGORITHM: &str = "sha256,rsa2048";
/// Bytes of `totalsize` in the header of a flattened device tree.
const SIZE_FIELD: std::ops::Range<usize> = 4..8;

/// The FIT of a planned system and its image. The tree is the board's without seeds of random numbers: they would be the same
/// at each boot. A loader puts its own there, if it has some.
/// `key` is the name of the key that it will be signed with, if it will be.
pub fn of(planned: &Planned, image: &[u8], key: Option<&str>) -> Vec<u8> {
    let mut tree = planned.board.dtb.clone();
    for seed in guest_tree::places(&tree) {
        let start = seed.offset as usize;
        // Token, length and name, then the value.
        let end = start + 12 + (seed.size as usize).next_multiple_of(4);
        for word in tree[start..end].chunks_exact_mut(4) {
            word.copy_from_slice(&NOP);
        }
    }
    let fit = Fit {
        name: &planned.name,
        image,
        load: planned.image.base,
        tree: &tree,
        key,
    };
    fit.to_bytes()
}

/// A token of a device tree that means nothing.
const NOP: [u8; 4] = 4_u32.to_be_bytes();

/// Contents of a FIT.
#[derive(Clone, Copy, Debug)]
pub struct Fit<'a> {
    /// Name of the system.
    pub name: &'a str,
    /// The image.
    pub image: &'a [u8],
    /// Physical address that it was made for.
    pub load: u64,
    /// The board's flattened device tree.
    pub tree: &'a [u8],
    /// Name of the key for signatures.
    pub key: Option<&'a str>,
}

impl Fit<'_> {
    /// The file: a tree that describes the data behind it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let behind = self.image.len().next_multiple_of(ALIGN);
        let load = [(self.load >> 32) as u32, self.load as u32];
        let kernel = data("kernel", "kernel", self.image, 0)
            .with("os", &text("linux"))
            .with("load", &cells(&load))
            .with("entry", &cells(&load));
        let tree = data("fdt", "flat_dt", self.tree, behind);
        let configuration = |name, what: &str, images: &[u8]| {
            let node = Node::new(name)
                .with("description", &text(what))
                .with("kernel", &text("kernel"));
            let Some(key) = self.key else {
                return node;
            };
            let signature = Node::new("signature-1")
                .with("algo", &text(ALGORITHM))
                .with("key-name-hint", &text(key))
                .with("sign-images", images);
            node.child(signature)
        };
        let configurations = Node::new("configurations")
            .with("default", &text(WITH_TREE))
            .child(
                configuration(
                    WITH_TREE,
                    "with the device tree that the plan was made for",
                    b"fdt\0kernel\0",
                )
                .with("fdt", &text("fdt")),
            )
            .child(configuration(
                WITHOUT_TREE,
                "with the loader's device tree",
                b"kernel\0",
            ));
        let root = Node::new("")
            // U-Boot wants a timestamp; it is the same at each build.
            .with("timestamp", &cells(&[0]))
            .with("description", &text(&format!("Bulkhead: {}", self.name)))
            .with("#address-cells", &cells(&[2]))
            .child(Node::new("images").child(kernel).child(tree))
            .child(configurations);
        let mut all = DeviceTree::new();
        all.root = root.0;
        let mut bytes = all.to_dtb();
        // Data is counted from the end of the tree.
        let size = bytes.len().next_multiple_of(ALIGN);
        bytes.resize(size, 0);
        bytes[SIZE_FIELD].copy_from_slice(&(size as u32).to_be_bytes());
        bytes.extend_from_slice(self.image);
        bytes.resize(size + behind, 0);
        bytes.extend_from_slice(self.tree);
        bytes
    }
}

/// A node under construction. All names are literals of this file, which dtoolkit takes.
struct Node(DeviceTreeNode);

impl Node {
    fn new(name: &str) -> Self {
        Self(DeviceTreeNode::new(name).unwrap_or_default())
    }

    fn with(mut self, name: &str, value: &[u8]) -> Self {
        if let Ok(property) = DeviceTreeProperty::new(name, value) {
            self.0.add_property(property);
        }
        self
    }

    fn child(mut self, child: Self) -> Self {
        self.0.add_child(child.0);
        self
    }
}

/// A node for `bytes`, which lie so many bytes behind the tree.
fn data(name: &str, kind: &str, bytes: &[u8], offset: usize) -> Node {
    let sum = Node::new("hash-1")
        .with("algo", &text("sha256"))
        .with("value", &Sha256::digest(bytes));
    Node::new(name)
        .with("description", &text(name))
        .with("type", &text(kind))
        .with("arch", &text("arm64"))
        .with("compression", &text("none"))
        .with("data-offset", &cells(&[offset as u32]))
        .with("data-size", &cells(&[bytes.len() as u32]))
        .child(sum)
}

fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

fn cells(cells: &[u32]) -> Vec<u8> {
    cells.iter().flat_map(|cell| cell.to_be_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use dtoolkit::fdt::Fdt;
    use dtoolkit::{Node as _, Property as _};

    use super::*;

    #[test]
    fn the_data_is_where_the_tree_says() {
        let (image, tree) = ([1; 1001], [2; 77]);
        let fit = Fit {
            name: "demo",
            image: &image,
            load: 0x12_4020_0000,
            tree: &tree,
            key: None,
        };
        let bytes = fit.to_bytes();
        let size = u32::from_be_bytes(bytes[4..8].try_into().unwrap()) as usize;
        let fdt = Fdt::new(&bytes[..size]).expect("a device tree");
        assert_eq!(size % ALIGN, 0);
        for (path, content) in [("/images/kernel", &image[..]), ("/images/fdt", &tree)] {
            let node = fdt.find_node(path).expect(path);
            let number = |name: &str| {
                let property = node.property(name).expect(name);
                u32::from_be_bytes(property.value().try_into().expect("a cell")) as usize
            };
            let start = size + number("data-offset");
            assert_eq!(start % ALIGN, 0, "{path}");
            assert_eq!(&bytes[start..start + number("data-size")], content);
            let sum = fdt.find_node(&format!("{path}/hash-1")).expect("hash");
            let value = sum.property("value").expect("value");
            assert_eq!(value.value(), &Sha256::digest(content)[..]);
        }
        let kernel = fdt.find_node("/images/kernel").expect("kernel");
        for name in ["load", "entry"] {
            let value = kernel.property(name).expect(name);
            assert_eq!(value.value(), 0x12_4020_0000_u64.to_be_bytes());
        }
        let own = fdt.find_node("/configurations/own-tree").expect("own-tree");
        assert!(own.property("fdt").is_none() && own.property("kernel").is_some());
        assert!(own.children().next().is_none());
        let signed = Fit {
            key: Some("dev"),
            ..fit
        };
        let bytes = signed.to_bytes();
        let size = u32::from_be_bytes(bytes[4..8].try_into().unwrap()) as usize;
        let fdt = Fdt::new(&bytes[..size]).expect("a device tree");
        let own = fdt.find_node("/configurations/own-tree/signature-1");
        let hint = own.and_then(|node| node.property("key-name-hint"));
        assert_eq!(hint.expect("a place to sign").value(), b"dev\0");
    }
}
