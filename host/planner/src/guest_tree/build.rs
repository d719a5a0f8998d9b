//! Nodes of a device tree while they are put together.

use dtoolkit::model::{DeviceTreeNode, DeviceTreeProperty};

/// Interrupt flags of the GIC binding: rising edge.
pub(super) const EDGE: u32 = 1;

/// A node under construction. Names are either literals or come from a checked tree, so that what
/// dtoolkit refuses cannot occur; such a part would be left out.
pub(super) struct Build(pub(super) DeviceTreeNode);

impl Build {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self(DeviceTreeNode::new(name).unwrap_or_default())
    }

    pub(super) fn bytes(mut self, name: &str, value: &[u8]) -> Self {
        if let Ok(property) = DeviceTreeProperty::new(name, value) {
            self.0.add_property(property);
        }
        self
    }

    pub(super) fn cells(self, name: &str, cells: &[u32]) -> Self {
        let bytes: Vec<u8> = cells.iter().flat_map(|cell| cell.to_be_bytes()).collect();
        self.bytes(name, &bytes)
    }

    pub(super) fn wide(self, name: &str, values: &[u64]) -> Self {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_be_bytes())
            .collect();
        self.bytes(name, &bytes)
    }

    pub(super) fn texts(self, name: &str, texts: &[&str]) -> Self {
        let bytes: Vec<u8> = texts
            .iter()
            .flat_map(|text| text.bytes().chain([0]))
            .collect();
        self.bytes(name, &bytes)
    }

    pub(super) fn child(mut self, child: Self) -> Self {
        self.0.add_child(child.0);
        self
    }
}
