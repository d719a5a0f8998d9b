//! A writer of cpio archives in the `newc` format, as the kernel unpacks them
//! (Documentation/driver-api/early-userspace/buffer-format.rst). Same entries, same bytes: no times,
//! owners or inode numbers of the host get in.

use std::collections::BTreeMap;

/// Entry of one path in the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A folder.
    Folder,
    /// A file with its permission bits.
    File(u32, Vec<u8>),
    /// A symbolic link and its target.
    Link(String),
    /// A character device: major and minor number.
    Character(u32, u32),
}

/// The tree of an archive: absolute paths without the leading slash. Sorted, so that a folder comes
/// before what is in it.
#[derive(Clone, Debug, Default)]
pub struct Tree(BTreeMap<String, Entry>);

impl Tree {
    /// Adds an entry and the folders that lead to it; a second entry of the same path replaces the first.
    pub fn add(&mut self, path: &str, entry: Entry) {
        for (at, _) in path.match_indices('/') {
            self.0.entry(path[..at].to_owned()).or_insert(Entry::Folder);
        }
        self.0.insert(path.to_owned(), entry);
    }

    /// Whether `path` is there.
    pub fn has(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// Files and their contents, in order.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().filter_map(|(path, entry)| match entry {
            Entry::File(_, data) => Some((path.as_str(), data.as_slice())),
            _ => None,
        })
    }

    /// The archive, trailer included.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (inode, (path, entry)) in (1..).zip(&self.0) {
            let (mode, device, data): (u32, (u32, u32), &[u8]) = match entry {
                Entry::Folder => (0o040_755, (0, 0), &[]),
                Entry::File(mode, data) => (0o100_000 | mode, (0, 0), data),
                Entry::Link(target) => (0o120_777, (0, 0), target.as_bytes()),
                Entry::Character(major, minor) => (0o020_600, (*major, *minor), &[]),
            };
            record(&mut out, inode, mode, device, path, data);
        }
        record(&mut out, 0, 0, (0, 0), "TRAILER!!!", &[]);
        out
    }
}

/// Appends one member: the magic, thirteen fields of eight hexadecimal digits, the name with its NUL,
/// the data; name and data each padded to four bytes.
fn record(out: &mut Vec<u8>, inode: u32, mode: u32, device: (u32, u32), name: &str, data: &[u8]) {
    let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let links = if mode & 0o170_000 == 0o040_000 { 2 } else { 1 };
    let fields = [
        inode,
        mode,
        0, // owner
        0, // group
        links,
        0, // time
        length(data.len()),
        0, // device of the file: major
        0, // and minor
        device.0,
        device.1,
        length(name.len() + 1),
        0, // checksum: unused in this format
    ];
    out.extend_from_slice(b"070701");
    for field in fields {
        out.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(4), 0);
}

/// An archive with nothing but a program: `init` as its `/init`, with the console that the kernel opens for it; another one in `/bin`.
pub fn of_program(name: &str, program: Vec<u8>) -> Vec<u8> {
    let mut tree = Tree::default();
    if name == "init" {
        tree.add("dev/console", Entry::Character(5, 1));
        tree.add("init", Entry::File(0o755, program));
    } else {
        tree.add(&format!("bin/{name}"), Entry::File(0o755, program));
    }
    tree.to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_first_and_every_member_is_aligned() {
        let mut tree = Tree::default();
        tree.add("dev/console", Entry::Character(5, 1));
        tree.add("bin/sh", Entry::Link("busybox".into()));
        tree.add("init", Entry::File(0o755, b"#!/bin/sh\n".to_vec()));
        let bytes = tree.to_bytes();
        let text = String::from_utf8_lossy(&bytes);
        let at = |name: &str| text.find(&format!("{name}\0")).expect("member");
        assert!(at("bin") < at("bin/sh") && at("dev") < at("dev/console"));
        assert_eq!(bytes.len() % 4, 0);
        // magic, inode 5, mode of an executable file, ..., 10 bytes of data, a name of 5 with its NUL
        let header = "070701000000050000 81ed000000000000000000000001000000000000000a\
                      0000000000000000000000000000000000000005 00000000"
            .replace(' ', "");
        assert!(text.contains(&format!("{header}init\0")), "{text}");
        assert_eq!(bytes, tree.clone().to_bytes());
    }
}
