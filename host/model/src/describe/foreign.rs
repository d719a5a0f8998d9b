//! Keys of the files of other hypervisors and tools (Xen's `xl.cfg`, Jailhouse's cells, Bao's and seL4's system
//! files, libvirt, QEMU), and what a description says instead.

/// A key that descriptions do not have.
#[derive(Debug)]
pub(super) struct Foreign {
    /// Name of the table in which somebody may write it ([`super::keys::Table::name`]).
    table: &'static str,
    /// Names that it has elsewhere, in small letters.
    names: &'static [&'static str],
    /// The key of that table which stands for it, if there is one: it is not missing then.
    pub(super) key: Option<&'static str>,
    /// Advice to the user.
    pub(super) advice: &'static str,
}

const fn of(
    table: &'static str,
    names: &'static [&'static str],
    key: &'static str,
    advice: &'static str,
) -> Foreign {
    let key = if key.is_empty() { None } else { Some(key) };
    Foreign {
        table,
        names,
        key,
        advice,
    }
}

#[rustfmt::skip]
const FOREIGN: &[Foreign] = &[
    of("system", &["vms", "domain", "domains", "domu", "dom0", "guest", "guests", "cell", "cells", "partition", "partitions", "zone", "zones", "protection_domain", "virtual_machine"], "vm", "each VM is a table [vm.NAME]"),
    of("system", &["machine", "platform", "target", "soc"], "board", "the board is a table [board], with name = \"qemu-virt\", for instance"),
    of("system", &["shmem", "shm", "shmems", "ivshmem", "memory_region", "memory_regions"], "shared", "memory that VMs have together is a table [shared.NAME] with `size`, `ipa` and `vms`"),
    of("system", &["notification", "event", "events"], "doorbell", "an interrupt from one VM to another is a table [doorbell.NAME] with `from` and `to`"),
    of("system", &["channels", "ipc", "rpmsg", "mailbox"], "channel", "messages between two VMs go through a table [channel.NAME] with `ends`"),
    of("system", &["net", "nets", "networks", "bridge", "bridges", "switch"], "network", "a network is a table [network.NAME]; `networks` of a VM names it"),
    of("system", &["disk", "disks", "drive", "drives"], "", "disks belong to a VM: [[vm.NAME.disks]] with `name`, and `size` or `image`"),
    of("system", &["vif", "vifs", "nic", "nics", "netdev"], "", "network cards belong to a VM: [[vm.NAME.networks]] with `name`, and a table [network.NAME]"),
    of("board", &["machine", "platform", "type", "model", "board"], "name", "Bulkhead calls it `name`"),
    of("board", &["device_tree", "devicetree", "fdt"], "dtb", "Bulkhead calls it `dtb`"),
    of("board", &["ram", "mem"], "memory", "Bulkhead calls it `memory`"),
    of("board", &["smp", "cores", "ncpus", "cpu_num", "vcpus"], "cpus", "Bulkhead calls it `cpus`"),
    of("vm", &["cpus", "cores", "smp", "ncpus", "cpu_num", "cpu_count", "num_cpus", "maxvcpus", "vcpu"], "vcpus", "`vcpus` is how many CPUs the VM has, `pcpus` is the board's CPU for each"),
    of("vm", &["affinity", "cpu_affinity", "cpu_set", "cpuset", "vcpu_affinity", "cpus_soft"], "pcpus", "`pcpus` is the board's CPU for each vCPU, `pool` is those among which they may move"),
    of("vm", &["mem", "maxmem", "ram", "memory_mb", "mem_size"], "memory", "Bulkhead calls it `memory`, a size with its unit, such as \"512MiB\""),
    of("vm", &["ramdisk", "initramfs", "rootfs"], "initrd", "Bulkhead calls it `initrd`"),
    of("vm", &["extra", "bootargs", "append", "args", "cmd", "command_line", "root"], "cmdline", "Bulkhead calls it `cmdline`: the whole command line of the kernel"),
    of("vm", &["binary", "program", "elf", "program_image", "executable"], "image", "Bulkhead calls it `image`"),
    of("vm", &["disk", "drive", "drives", "blk", "virtio_blk"], "disks", "Bulkhead calls it `disks`: a list of tables such as { name = \"data\", size = \"64MiB\" }"),
    of("vm", &["vif", "vifs", "net", "nets", "network", "nic", "nics", "netdev", "interface", "virtio_net"], "networks", "Bulkhead calls it `networks`: a list of tables such as { name = \"lan\" }, with a table [network.lan]"),
    of("vm", &["device", "devs", "dtdev", "passthrough", "hostdev", "pci", "irqs", "iomem", "io", "mmio"], "devices", "Bulkhead calls it `devices`: paths in the board's device tree, whose registers and interrupts the VM gets; `bulkhead board show` lists them"),
    of("vm", &["serial", "uart", "vuart", "vpl011"], "console", "Bulkhead calls it `console`: \"pl011\", \"virtio\" or \"none\""),
    of("vm", &["dtb", "device_tree", "devicetree", "fdt"], "", "leave it out: the tool makes the guest's device tree; `overlay` adds to it"),
    of("vm", &["on_crash"], "crash", "Bulkhead calls it `crash`: \"halt\", or such as { restart = 3, within = \"60s\" }"),
    of("vm", &["on_reboot"], "reset", "Bulkhead calls it `reset`: such as { restart = 10, within = \"60s\" }, or \"unlimited\""),
    of("vm", &["on_poweroff", "on_shutdown"], "", "leave it out: a VM that powers off stays off"),
    of("vm", &["name", "id", "uuid"], "", "leave it out: the name of the VM is that of its table, [vm.NAME]"),
    of("vm", &["builder", "type", "virt", "os"], "", "leave it out: `kernel` starts a Linux Image, `image` any other program"),
    of("vm", &["shares", "cpu_weight", "cpu_shares"], "weight", "Bulkhead calls it `weight`"),
    of("vm", &["priority", "prio", "realtime"], "", "a VM has no priority: `class`, and `budget` in each `period`, say what it is promised"),
    of("vm", &["shmem", "shm", "shmems", "ivshmem", "ipc", "ipcs"], "", "memory that VMs have together is a table [shared.NAME], which names them in `vms`"),
    of("vm", &["base_addr", "load_addr", "load_address"], "load", "Bulkhead calls it `load`"),
    of("vm", &["entry_point", "entrypoint", "pc"], "entry", "Bulkhead calls it `entry`"),
    of("memory", &["base", "start", "address", "addr", "virt_start", "gpa"], "ipa", "Bulkhead calls it `ipa`"),
    of("memory", &["length", "len"], "size", "Bulkhead calls it `size`"),
    of("memory", &["phys", "phys_addr", "phys_start", "hpa"], "pa", "Bulkhead calls it `pa`"),
    of("disk", &["path", "file", "source", "src"], "image", "Bulkhead calls it `image`"),
    of("disk", &["target", "vdev", "id", "label", "dev"], "name", "Bulkhead calls it `name`"),
    of("disk", &["capacity", "length"], "size", "Bulkhead calls it `size`"),
    of("disk", &["readonly", "ro", "access", "mode"], "read_only", "Bulkhead calls it `read_only`: true or false"),
    of("disk", &["format"], "", "leave it out: an image is the bytes of the disk as they are"),
    of("port", &["bridge", "network", "switch"], "name", "Bulkhead calls it `name`: one of [network.NAME]"),
    of("port", &["ip", "address"], "", "leave it out: a guest gives its cards their addresses itself"),
    of("shared", &["base", "start", "address", "addr", "gpa"], "ipa", "Bulkhead calls it `ipa`"),
    of("shared", &["length", "len"], "size", "Bulkhead calls it `size`"),
    of("shared", &["peers", "access", "map"], "vms", "Bulkhead calls it `vms`: such as { one = \"rw\", two = \"r\" }"),
    of("doorbell", &["source", "sender", "src"], "from", "Bulkhead calls it `from`"),
    of("doorbell", &["target", "receiver", "dest"], "to", "Bulkhead calls it `to`"),
];

/// What a description says instead of a key that `table` does not have; none: nobody else has it either.
pub(super) fn foreign(table: &str, name: &str) -> Option<&'static Foreign> {
    let name = name.to_ascii_lowercase().replace('-', "_");
    FOREIGN
        .iter()
        .find(|foreign| foreign.table == table && foreign.names.contains(&name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::super::keys::{SYSTEM, TABLES};
    use super::*;

    #[test]
    fn each_is_known_once_is_no_key_and_stands_for_one() {
        let mut seen = Vec::new();
        for foreign in FOREIGN {
            let mut tables = TABLES.into_iter().chain([SYSTEM]);
            let table = tables.find(|table| table.name == foreign.table);
            let table = table.expect("a table");
            for name in foreign.names {
                assert!(table.names().all(|known| known != *name), "{name}");
                assert!(!seen.contains(&(foreign.table, name)), "{name}");
                seen.push((foreign.table, name));
            }
            if let Some(key) = foreign.key {
                assert!(table.names().any(|known| known == key), "{key}");
                let named = foreign.advice.contains(&format!("`{key}`"));
                assert!(
                    named || foreign.advice.contains(&format!("[{key}")),
                    "{key}"
                );
            }
        }
    }

    #[test]
    fn letters_and_hyphens_make_no_difference() {
        let key = |name| foreign("vm", name).and_then(|foreign| foreign.key);
        assert_eq!(key("CPU-affinity"), Some("pcpus"));
        assert_eq!(key("ramdisk"), Some("initrd"));
        assert_eq!(key("vcpus"), None);
    }
}
