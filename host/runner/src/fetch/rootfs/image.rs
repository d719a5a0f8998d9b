//! From a folder to an ext4 image with the owners that the packages say, by the programs of e2fsprogs, none of which needs root for that.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use bulkhead_model::failure::Failure;

use super::tree::Owner;
use crate::command::run;
use crate::progress::Step;

/// Room behind the packages: what they write when they configure themselves, the journal, and space for the guest.
const ROOM: u64 = 40 << 20;
/// The size of an image is a multiple of this.
const UNIT: u64 = 16 << 20;
/// A file takes whole blocks.
const BLOCK: u64 = 4096;
/// What an inode takes.
const INODE: u64 = 256;
/// What the file system can do, said one by one: the host's e2fsprogs and its settings may be newer than the guest's.
const FEATURES: &str = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,\
                        large_file,huge_file,dir_nlink,extra_isize,metadata_csum";

/// Makes the image of a folder. Everything in it is root's but for `owners`, whoever has unpacked it.
pub fn make(root: &Path, owners: &[Owner], image: &Path) -> Result<(), Failure> {
    let step = Step::start("making an ext4 image of them");
    let failed = || "cannot make an ext4 image of the root file system".to_owned();
    let advice = "see that the disk has room, some 600 MB";
    let mut commands = String::new();
    let mut bytes = 0;
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let read = || fs::read_dir(&folder)?.collect::<std::io::Result<Vec<_>>>();
        let entries = read().map_err(|e| Failure::environment(failed(), e, advice))?;
        for entry in entries {
            let path = entry.path();
            let meta = fs::symlink_metadata(&path);
            let meta = meta.map_err(|e| Failure::environment(failed(), e, advice))?;
            bytes += meta.size().next_multiple_of(BLOCK) + INODE;
            let inside = path.strip_prefix(root).unwrap_or(&path);
            give(&mut commands, &inside.to_string_lossy(), 0, 0)?;
            if meta.is_dir() {
                folders.push(path);
            }
        }
    }
    for owner in owners {
        let path = owner.path.trim_start_matches('/');
        give(&mut commands, path, owner.uid, owner.gid)?;
    }

    let size = size(bytes);
    let mut mkfs = tool("mke2fs");
    mkfs.args([
        "-q", "-F", "-t", "ext4", "-L", "root", "-m", "1", "-i", "16384",
    ]);
    mkfs.args(["-b", "4096", "-I", "256", "-J", "size=4", "-O", FEATURES]);
    mkfs.args(["-E", "root_owner=0:0,lazy_itable_init=0", "-d"]);
    mkfs.arg(root).arg(image).arg(format!("{}k", size / 1024));
    run(
        &mut mkfs,
        failed,
        "install e2fsprogs, or see that the disk has room, some 600 MB",
    )?;

    // mke2fs takes the owners of the files on the host, where all are the user's.
    let script = image.with_extension("owners");
    fs::write(&script, commands).map_err(|e| Failure::environment(failed(), e, advice))?;
    let mut debugfs = tool("debugfs");
    let debugfs = debugfs.arg("-w").arg("-f").arg(&script).arg(image);
    let output = debugfs.output().map_err(|e| {
        Failure::environment(failed(), format!("debugfs: {e}"), "install e2fsprogs")
    })?;
    // It ends well whatever it says; its first line is its version.
    let said = String::from_utf8_lossy(&output.stderr);
    let wrong: Vec<&str> = said.lines().skip(1).take(10).collect();
    if !output.status.success() || !wrong.is_empty() {
        return Err(Failure::environment(failed(), wrong.join("\n"), advice));
    }
    drop(step);
    Ok(())
}

/// The size of an image with so many bytes in it.
fn size(bytes: u64) -> u64 {
    (bytes + ROOM).next_multiple_of(UNIT)
}

/// Adds commands for debugfs that give a file an owner.
fn give(commands: &mut String, path: &str, uid: u32, gid: u32) -> Result<(), Failure> {
    if path.contains(['"', '\n']) {
        let what = format!("a package has a file whose name cannot be used: {path:?}");
        return Err(Failure::environment(what, "", ""));
    }
    for (field, number) in [("uid", uid), ("gid", gid)] {
        // A String takes whatever is written to it.
        let _written = writeln!(commands, "set_inode_field \"/{path}\" {field} {number}");
    }
    Ok(())
}

/// Looks through an image that was written in the emulator: what is not sound is not kept.
pub fn check(image: &Path, log: &Path) -> Result<(), Failure> {
    let mut fsck = tool("e2fsck");
    fsck.args(["-f", "-n"]).arg(image);
    let advice = format!("fetch it again; the emulator's log is {}", log.display());
    run(
        &mut fsck,
        || "the file system that the emulator has written is not sound",
        &advice,
    )?;
    Ok(())
}

/// A program that the search path of a user who is not root may not lead to.
fn tool(name: &str) -> Command {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    let mut command = Command::new(name);
    command.env("PATH", path).env("LC_ALL", "C");
    command
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// What debugfs says about a file of an image.
    fn stat(image: &Path, path: &str) -> String {
        let mut debugfs = tool("debugfs");
        let debugfs = debugfs.args(["-R", &format!("stat {path}")]).arg(image);
        let said = debugfs.output().expect("debugfs").stdout;
        String::from_utf8_lossy(&said).into_owned()
    }

    #[test]
    fn files_are_roots_but_for_those_that_are_not() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("usr/sbin")).expect("folders");
        for name in ["plain", "unix_chkpwd", "with space"] {
            let file = root.join("usr/sbin").join(name);
            fs::write(&file, "x").expect("file");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o2755)).expect("mode");
        }
        // Whoever runs the test: these are nobody's of the image.
        if rustix::process::getuid().is_root() {
            std::os::unix::fs::chown(root.join("usr/sbin/plain"), Some(70000), Some(1000))
                .expect("root may");
        }
        let image = folder.path().join("image");
        let owner = Owner {
            path: "/usr/sbin/unix_chkpwd".to_owned(),
            uid: 7,
            gid: 42,
        };
        make(&root, std::slice::from_ref(&owner), &image).expect("made");
        check(&image, Path::new("log")).expect("sound");
        for (path, user, group) in [
            ("/usr/sbin/plain", 0, 0),
            ("\"/usr/sbin/with space\"", 0, 0),
            ("/usr", 0, 0),
            ("/", 0, 0),
            ("/usr/sbin/unix_chkpwd", 7, 42),
        ] {
            let said = stat(&image, path);
            let expected = format!("User: {user:5}   Group: {group:5}");
            assert!(said.contains(&expected), "{path}: {said}");
        }
        assert!(stat(&image, "/usr/sbin/unix_chkpwd").contains("Mode:  02755"));
        assert_eq!(fs::metadata(&image).expect("there").len(), 48 << 20);

        let gone = Owner {
            path: "/gone".to_owned(),
            ..owner
        };
        let failure = make(&root, &[gone], &folder.path().join("other")).expect_err("no such file");
        assert!(failure.why.contains("gone"), "{failure}");
    }

    #[test]
    fn a_file_system_that_is_not_sound_is_refused() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let image = folder.path().join("image");
        fs::write(&image, vec![0; 1 << 20]).expect("file");
        let failure = check(&image, Path::new("the/log")).expect_err("no file system");
        assert!(failure.advice.contains("the/log"), "{failure}");
    }
}
