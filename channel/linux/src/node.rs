//! What a channel's node says in the device tree that the kernel shows.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use bulkhead_channel::Shape;

/// Where the kernel shows the tree.
pub const TREE: &str = "/proc/device-tree";
/// Bytes of a range in `reg`: two cells of address, two of size.
const RANGE: usize = 16;

/// A range of addresses: where it starts, and how many bytes it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub start: u64,
    pub bytes: usize,
}

/// A channel, as this VM's tree describes it.
#[derive(Debug, PartialEq, Eq)]
pub struct Node {
    pub own: Range,
    pub peer: Range,
    /// Address of the doorbell to the other end, if that one hears.
    pub doorbell: Option<u64>,
    /// This end hears.
    pub hears: bool,
    pub memory: Memory,
    pub shape: Shape,
}

/// How a program maps the memory of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Nobody caches it: by `/dev/mem`.
    Uncached,
    /// It is cached, by the device-dax of the pmem region that starts at `start` and whose file starts at `data`.
    Cached { start: u64, data: u64 },
    /// Not at all: it is cached, and this VM has no pmem region for it.
    OfKernel,
}

impl Node {
    /// Finds the channel with this name. None if the tree has no such node, or not all that belongs into it.
    pub fn find(tree: &Path, name: &str) -> Option<Self> {
        let nodes = tree.read_dir().ok()?.flatten();
        let mut nodes = nodes.map(|entry| entry.path()).filter(|path| is_node(path));
        let node = nodes.find(|node| {
            let label = fs::read(node.join("label")).unwrap_or_default();
            label.strip_suffix(&[0]) == Some(name.as_bytes())
        })?;
        Self::read(&node)
    }

    fn read(node: &Path) -> Option<Self> {
        let reg = fs::read(node.join("reg")).ok()?;
        let (ranges, _) = reg.as_chunks::<RANGE>();
        let (own, peer) = (range(ranges.first()?)?, range(ranges.get(1)?)?);
        let number = |name: &str| {
            let cell = fs::read(node.join(name)).ok()?;
            usize::try_from(u32::from_be_bytes(cell.try_into().ok()?)).ok()
        };
        let shape = Shape::new(
            number("bulkhead,message-size")?,
            number("bulkhead,messages")?,
        )?;
        Some(Self {
            own,
            peer,
            doorbell: ranges.get(2).and_then(range).map(|range| range.start),
            hears: node.join("interrupts").exists(),
            memory: memory(node)?,
            shape,
        })
    }
}

fn is_node(path: &Path) -> bool {
    let name = path.file_name().unwrap_or(OsStr::new(""));
    name.to_string_lossy().starts_with("channel@")
}

/// How the channel of a node is mapped. None if it has half a pmem region.
fn memory(node: &Path) -> Option<Memory> {
    if node.join("bulkhead,uncached").exists() {
        return Some(Memory::Uncached);
    }
    let Ok(pmem) = fs::read(node.join("bulkhead,pmem")) else {
        return Some(Memory::OfKernel);
    };
    let [start, data] = halves(pmem.as_slice().try_into().ok()?);
    Some(Memory::Cached { start, data })
}

fn range(cells: &[u8; RANGE]) -> Option<Range> {
    let [start, bytes] = halves(cells);
    let bytes = usize::try_from(bytes).ok()?;
    Some(Range { start, bytes })
}

fn halves(cells: &[u8; RANGE]) -> [u64; 2] {
    let (halves, _) = cells.as_chunks::<8>();
    [0, 1].map(|half| u64::from_be_bytes(halves[half]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(values: &[u64]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_be_bytes()).collect()
    }

    /// A tree with the channels `other` and `report`, whose `reg` has these cells.
    fn tree(reg: &[u64]) -> tempfile::TempDir {
        let tree = tempfile::tempdir().expect("a folder");
        for (node, label) in [
            ("channel@60000000", "other"),
            ("channel@70000000", "report"),
        ] {
            let node = tree.path().join(node);
            fs::create_dir(&node).expect("a folder");
            let file =
                |name: &str, bytes: &[u8]| fs::write(node.join(name), bytes).expect("a file");
            file("label", format!("{label}\0").as_bytes());
            file("reg", &cells(reg));
            file("bulkhead,message-size", &24u32.to_be_bytes());
            file("bulkhead,messages", &64u32.to_be_bytes());
            if label == "report" {
                file("interrupts", &[0; 12]);
                file("bulkhead,uncached", &[]);
            }
        }
        // A shared region of the same name is no channel.
        let shared = tree.path().join("shared@50000000");
        fs::create_dir(&shared).expect("a folder");
        fs::write(shared.join("label"), "alone\0").expect("a file");
        tree
    }

    const REG: [u64; 6] = [
        0x7000_0000,
        0x3000,
        0x7000_3000,
        0x2000,
        0x7000_9000,
        0x1000,
    ];

    #[test]
    fn a_channel_is_found_by_its_name() {
        let tree = tree(&REG);
        let found = Node::find(tree.path(), "report").expect("it is there");
        let wanted = Node {
            own: Range {
                start: 0x7000_0000,
                bytes: 0x3000,
            },
            peer: Range {
                start: 0x7000_3000,
                bytes: 0x2000,
            },
            doorbell: Some(0x7000_9000),
            hears: true,
            memory: Memory::Uncached,
            shape: Shape::new(24, 64).expect("a channel"),
        };
        assert_eq!(found, wanted);
        let other = Node::find(tree.path(), "other").expect("it is there");
        assert!(!other.hears && other.memory == Memory::OfKernel);
        for none in ["repor", "report\0", "", "alone"] {
            assert_eq!(Node::find(tree.path(), none), None, "{none}");
        }
        assert_eq!(Node::find(Path::new("/nonexistent"), "report"), None);
    }

    #[test]
    fn a_cached_channel_is_in_a_pmem_region() {
        let tree = tree(&REG);
        let pmem = tree.path().join("channel@60000000/bulkhead,pmem");
        fs::write(&pmem, cells(&[0x5e00_0000, 0x5e20_0000])).expect("a file");
        let found = Node::find(tree.path(), "other").expect("it is there");
        let (start, data) = (0x5e00_0000, 0x5e20_0000);
        assert_eq!(found.memory, Memory::Cached { start, data });
        fs::write(&pmem, cells(&[0x5e00_0000])).expect("a file");
        assert_eq!(Node::find(tree.path(), "other"), None, "half a pmem region");
    }

    #[test]
    fn without_a_third_range_nobody_is_to_be_rung() {
        let found = Node::find(tree(&REG[..4]).path(), "report").expect("it is there");
        assert_eq!(found.doorbell, None);
    }

    #[test]
    fn a_node_that_lacks_something_is_no_channel() {
        assert_eq!(Node::find(tree(&REG[..3]).path(), "report"), None);
        for (file, bytes) in [
            ("bulkhead,messages", &[0, 0, 0, 3][..]),
            ("bulkhead,messages", &[0, 64]),
            ("bulkhead,message-size", &[0, 1, 0, 0]),
        ] {
            let tree = tree(&REG);
            fs::write(tree.path().join("channel@70000000").join(file), bytes).expect("a file");
            assert_eq!(Node::find(tree.path(), "report"), None, "{file} {bytes:?}");
        }
    }
}
