//! Payloads that a description can name as `debian:NAME`.

use crate::failure::Failure;

/// A payload that a description can name as `debian:NAME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DebianPayload {
    /// Debian's stock kernel: an arm64 Image.
    Kernel,
    /// Debian's real-time kernel.
    KernelRt,
    /// The stock kernel of the release after, from backports.
    Kernel612,
    /// The real-time kernel of the release after, from backports.
    Kernel612Rt,
    /// An initramfs of Debian's busybox, rt-tests and stress-ng, with this project's `/init`.
    Initramfs,
    /// An archive to go behind the initramfs: the real-time kernel's modules, without which it has no disk and no network.
    ModulesRt,
    /// The same of the stock kernel of the release after.
    Modules612,
    /// The same of the real-time kernel of the release after.
    Modules612Rt,
    /// An archive to go behind the initramfs: Debian's fio and iperf3 with their libraries.
    IoTools,
    /// An archive to go behind the initramfs: Debian's gdb and perf with their libraries.
    DebugTools,
    /// Debian's U-Boot for QEMU's `virt`: loads the image as boards do, and runs as a guest.
    UBoot,
    /// A root file system of Debian's packages for a guest's disk: ext4, with systemd.
    Rootfs,
}

impl DebianPayload {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Kernel,
        Self::KernelRt,
        Self::Kernel612,
        Self::Kernel612Rt,
        Self::Initramfs,
        Self::ModulesRt,
        Self::Modules612,
        Self::Modules612Rt,
        Self::IoTools,
        Self::DebugTools,
        Self::UBoot,
        Self::Rootfs,
    ];
    /// Payloads that the example systems need.
    pub const USUAL: [Self; 4] = [
        Self::Kernel,
        Self::KernelRt,
        Self::Initramfs,
        Self::ModulesRt,
    ];

    /// The name in a description, without `debian:`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::KernelRt => "kernel-rt",
            Self::Kernel612 => "kernel-6.12",
            Self::Kernel612Rt => "kernel-6.12-rt",
            Self::Initramfs => "initramfs",
            Self::ModulesRt => "modules-rt",
            Self::Modules612 => "modules-6.12",
            Self::Modules612Rt => "modules-6.12-rt",
            Self::IoTools => "io-tools",
            Self::DebugTools => "debug-tools",
            Self::UBoot => "u-boot",
            Self::Rootfs => "rootfs",
        }
    }

    /// Reads a name, with or without `debian:`.
    pub fn named(name: &str) -> Result<Self, Failure> {
        let plain = name.strip_prefix("debian:").unwrap_or(name);
        let found = Self::ALL
            .into_iter()
            .find(|payload| payload.name() == plain);
        found.ok_or_else(|| {
            let names = Self::ALL.map(|payload| format!("debian:{}", payload.name()));
            let help = format!("the payloads are {}", names.join(", "));
            Failure::input(format!("there is no payload `{name}`"), "", help)
        })
    }
}
