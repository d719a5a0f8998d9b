//! Contents of files, shared by the VMs that have them.

use std::sync::Arc;

/// Bytes that several VMs may have, padded with zeros to a multiple of 8.
pub type Content = Arc<Vec<u8>>;

/// Content with its length without the padding.
#[derive(Clone, Debug)]
pub(super) struct File {
    padded: Content,
    len: usize,
}

impl File {
    pub(super) fn new(mut bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        bytes.resize(len.next_multiple_of(8), 0);
        let padded = Arc::new(bytes);
        Self { padded, len }
    }

    /// The content, padded.
    pub(super) fn content(&self) -> Content {
        Arc::clone(&self.padded)
    }

    /// Bytes of the file, without the padding.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.padded[..self.len]
    }
}
