//! The disk with the root file system that the command line of a Linux guest names.

use bulkhead_model::describe::{Code, Finding, PayloadSpec, VmSpec};

/// Number of the virtio disk that a device name of Linux means, from 0: `vda` and `vdb2` are the first and the second.
fn virtio_disk(name: &str) -> Option<usize> {
    let letters = name.strip_prefix("vd")?;
    let letters = letters.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = letters.chars().try_fold(0usize, |number, letter| {
        let digit = u32::from(letter).checked_sub(u32::from('a'))?;
        (digit < 26).then_some(number.checked_mul(26)? + digit as usize + 1)
    })?;
    number.checked_sub(1)
}

/// Warns of a command line that names a disk which the guest does not have: its kernel would wait for it.
pub(super) fn check(spec: &VmSpec, findings: &mut Vec<Finding>) {
    let (PayloadSpec::Linux { .. }, Some(cmdline)) = (&spec.payload, &spec.cmdline) else {
        return;
    };
    // Of several the kernel takes the last.
    let mut words = cmdline.value.split_whitespace().rev();
    let root = words.find_map(|word| word.strip_prefix("root="));
    let Some(disk) = root.and_then(|root| root.strip_prefix("/dev/")) else {
        return;
    };
    let count = spec.disks.len();
    let Some(number) = virtio_disk(disk).filter(|number| *number >= count) else {
        return;
    };
    let message = format!(
        "the Linux of `{}` does not find its root file system",
        spec.name.value
    );
    let has = match count {
        0 => "this VM has no disk".to_owned(),
        1 => "this VM has one disk, vda".to_owned(),
        _ => format!("this VM has {count} disks"),
    };
    let what = format!("/dev/{disk} is on disk number {}, and {has}", number + 1);
    let help = if count == 0 {
        "give it one, such as disks = [{ name = \"root\", image = \"debian:rootfs\" }]"
    } else {
        "vda is the first of its `disks`, vdb the second"
    };
    findings.push(
        Finding::new(Code::DiskRoot, message)
            .at(cmdline.span.clone(), what)
            .help(help),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_are_counted_as_linux_does() {
        for (name, number) in [
            ("vda", Some(0)),
            ("vda1", Some(0)),
            ("vdb12", Some(1)),
            ("vdz", Some(25)),
            ("vdaa", Some(26)),
            ("vd", None),
            ("vd1", None),
            ("sda", None),
            ("vdA", None),
            ("mmcblk0p2", None),
        ] {
            assert_eq!(virtio_disk(name), number, "{name}");
        }
    }
}
