//! The codes of findings.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// Prefix of the names of all codes.
const PREFIX: &str = "bulkhead::";

/// Whether a description with a finding is still good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It is not.
    Error,
    /// It is.
    Warning,
}

/// Stable name of each kind of finding: something wrong with a description, or worth knowing about
/// it. The variants are in the order of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
#[expect(
    missing_docs,
    reason = "`explain` has a text for each, which a test demands"
)]
pub enum Code {
    BoardBoth,
    BoardDtb,
    BoardFirmware,
    BoardMemory,
    BoardMissing,
    BoardParameter,
    BoardUnfit,
    BoardUnknown,
    BoardValue,
    ChannelCached,
    ChannelEnds,
    ChannelIncomplete,
    ChannelName,
    ChannelShape,
    ChannelUnknownVm,
    ClassLacking,
    ClassSuperfluous,
    ConsoleMonitor,
    ConsoleRealtime,
    ConsoleService,
    ConsoleUnheard,
    CpuBudget,
    CpuIncomplete,
    CpuOverload,
    CpuOwnTimer,
    CpuPeriod,
    CpuPool,
    CpuStray,
    CpuWeight,
    CrashBoth,
    CrashIncomplete,
    CrashItself,
    CrashLimit,
    CrashUnknownVm,
    DeviceAlign,
    DeviceDma,
    DeviceGic,
    DeviceIncomplete,
    DeviceIntid,
    DeviceIntidTaken,
    DeviceRefused,
    DeviceResets,
    DeviceShared,
    DiskBoth,
    DiskImage,
    DiskIncomplete,
    DiskLarge,
    DiskName,
    DiskShared,
    DiskSize,
    DiskSmall,
    DiskStray,
    DiskTwice,
    DoorbellApart,
    DoorbellIncomplete,
    DoorbellItself,
    DoorbellMany,
    DoorbellName,
    DoorbellNotShared,
    DoorbellSpi,
    DoorbellUnknownShared,
    DoorbellUnknownVm,
    ImageAbsent,
    ImageInitrd,
    ImageKernel,
    ImagePlace,
    ImageProgram,
    ImageTree,
    ImageUnknown,
    ImageUnreadable,
    InterruptsEvents,
    InterruptsMask,
    InterruptsOwn,
    InterruptsReclaim,
    InterruptsWatchdog,
    KeyUnknown,
    ManagesLocked,
    ManagesMany,
    ManagesPort,
    ManagesRight,
    ManagesUnknownVm,
    MemoryAlign,
    MemoryFull,
    MemoryImage,
    MemoryIpa,
    MemoryOutside,
    MemoryOverlap,
    MemorySmall,
    MemoryTaken,
    NetworkAlone,
    NetworkIncomplete,
    NetworkMac,
    NetworkMacTwice,
    NetworkName,
    NetworkUnknown,
    NetworkUnused,
    NetworkVlan,
    OverlayAddress,
    OverlayBroken,
    OverlayInterrupt,
    OverlayLabel,
    OverlayTarget,
    PcpuCount,
    PcpuFull,
    PcpuShared,
    PcpuTooFew,
    PcpuUnknown,
    PlanLarge,
    ResetLimit,
    ServiceBoth,
    ServiceIdle,
    ServiceIncomplete,
    ServiceName,
    ServicePcpu,
    ServicePolls,
    ServiceRoom,
    SharedAccess,
    SharedAlone,
    SharedIncomplete,
    SharedName,
    SharedUnknownVm,
    SmcFunction,
    SmcTwice,
    TimeOwnTimer,
    TomlSyntax,
    TomlTwice,
    ValueAddress,
    ValuePart,
    ValueSize,
    ValueTime,
    ValueType,
    ValueWord,
    VcpuCount,
    VirtioConsole,
    VirtioIdle,
    VirtioMany,
    VirtioPoll,
    VirtioVm,
    VmImage,
    VmMany,
    VmMemory,
    VmName,
    VmNobodyStarts,
    VmNone,
    VmStray,
}

impl Code {
    /// All codes.
    pub const ALL: [Self; 145] = [
        Self::BoardBoth,
        Self::BoardDtb,
        Self::BoardFirmware,
        Self::BoardMemory,
        Self::BoardMissing,
        Self::BoardParameter,
        Self::BoardUnfit,
        Self::BoardUnknown,
        Self::BoardValue,
        Self::ChannelCached,
        Self::ChannelEnds,
        Self::ChannelIncomplete,
        Self::ChannelName,
        Self::ChannelShape,
        Self::ChannelUnknownVm,
        Self::ClassLacking,
        Self::ClassSuperfluous,
        Self::ConsoleMonitor,
        Self::ConsoleRealtime,
        Self::ConsoleService,
        Self::ConsoleUnheard,
        Self::CpuBudget,
        Self::CpuIncomplete,
        Self::CpuOverload,
        Self::CpuOwnTimer,
        Self::CpuPeriod,
        Self::CpuPool,
        Self::CpuStray,
        Self::CpuWeight,
        Self::CrashBoth,
        Self::CrashIncomplete,
        Self::CrashItself,
        Self::CrashLimit,
        Self::CrashUnknownVm,
        Self::DeviceAlign,
        Self::DeviceDma,
        Self::DeviceGic,
        Self::DeviceIncomplete,
        Self::DeviceIntid,
        Self::DeviceIntidTaken,
        Self::DeviceRefused,
        Self::DeviceResets,
        Self::DeviceShared,
        Self::DiskBoth,
        Self::DiskImage,
        Self::DiskIncomplete,
        Self::DiskLarge,
        Self::DiskName,
        Self::DiskShared,
        Self::DiskSize,
        Self::DiskSmall,
        Self::DiskStray,
        Self::DiskTwice,
        Self::DoorbellApart,
        Self::DoorbellIncomplete,
        Self::DoorbellItself,
        Self::DoorbellMany,
        Self::DoorbellName,
        Self::DoorbellNotShared,
        Self::DoorbellSpi,
        Self::DoorbellUnknownShared,
        Self::DoorbellUnknownVm,
        Self::ImageAbsent,
        Self::ImageInitrd,
        Self::ImageKernel,
        Self::ImagePlace,
        Self::ImageProgram,
        Self::ImageTree,
        Self::ImageUnknown,
        Self::ImageUnreadable,
        Self::InterruptsEvents,
        Self::InterruptsMask,
        Self::InterruptsOwn,
        Self::InterruptsReclaim,
        Self::InterruptsWatchdog,
        Self::KeyUnknown,
        Self::ManagesLocked,
        Self::ManagesMany,
        Self::ManagesPort,
        Self::ManagesRight,
        Self::ManagesUnknownVm,
        Self::MemoryAlign,
        Self::MemoryFull,
        Self::MemoryImage,
        Self::MemoryIpa,
        Self::MemoryOutside,
        Self::MemoryOverlap,
        Self::MemorySmall,
        Self::MemoryTaken,
        Self::NetworkAlone,
        Self::NetworkIncomplete,
        Self::NetworkMac,
        Self::NetworkMacTwice,
        Self::NetworkName,
        Self::NetworkUnknown,
        Self::NetworkUnused,
        Self::NetworkVlan,
        Self::OverlayAddress,
        Self::OverlayBroken,
        Self::OverlayInterrupt,
        Self::OverlayLabel,
        Self::OverlayTarget,
        Self::PcpuCount,
        Self::PcpuFull,
        Self::PcpuShared,
        Self::PcpuTooFew,
        Self::PcpuUnknown,
        Self::PlanLarge,
        Self::ResetLimit,
        Self::ServiceBoth,
        Self::ServiceIdle,
        Self::ServiceIncomplete,
        Self::ServiceName,
        Self::ServicePcpu,
        Self::ServicePolls,
        Self::ServiceRoom,
        Self::SharedAccess,
        Self::SharedAlone,
        Self::SharedIncomplete,
        Self::SharedName,
        Self::SharedUnknownVm,
        Self::SmcFunction,
        Self::SmcTwice,
        Self::TimeOwnTimer,
        Self::TomlSyntax,
        Self::TomlTwice,
        Self::ValueAddress,
        Self::ValuePart,
        Self::ValueSize,
        Self::ValueTime,
        Self::ValueType,
        Self::ValueWord,
        Self::VcpuCount,
        Self::VirtioConsole,
        Self::VirtioIdle,
        Self::VirtioMany,
        Self::VirtioPoll,
        Self::VirtioVm,
        Self::VmImage,
        Self::VmMany,
        Self::VmMemory,
        Self::VmName,
        Self::VmNobodyStarts,
        Self::VmNone,
        Self::VmStray,
    ];

    /// The whole name, such as `bulkhead::pcpu::shared`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BoardBoth => "bulkhead::board::both",
            Self::BoardDtb => "bulkhead::board::dtb",
            Self::BoardFirmware => "bulkhead::board::firmware",
            Self::BoardMemory => "bulkhead::board::memory",
            Self::BoardMissing => "bulkhead::board::missing",
            Self::BoardParameter => "bulkhead::board::parameter",
            Self::BoardUnfit => "bulkhead::board::unfit",
            Self::BoardUnknown => "bulkhead::board::unknown",
            Self::BoardValue => "bulkhead::board::value",
            Self::ChannelCached => "bulkhead::channel::cached",
            Self::ChannelEnds => "bulkhead::channel::ends",
            Self::ChannelIncomplete => "bulkhead::channel::incomplete",
            Self::ChannelName => "bulkhead::channel::name",
            Self::ChannelShape => "bulkhead::channel::shape",
            Self::ChannelUnknownVm => "bulkhead::channel::unknown-vm",
            Self::ClassLacking => "bulkhead::class::lacking",
            Self::ClassSuperfluous => "bulkhead::class::superfluous",
            Self::ConsoleMonitor => "bulkhead::console::monitor",
            Self::ConsoleRealtime => "bulkhead::console::realtime",
            Self::ConsoleService => "bulkhead::console::service",
            Self::ConsoleUnheard => "bulkhead::console::unheard",
            Self::CpuBudget => "bulkhead::cpu::budget",
            Self::CpuIncomplete => "bulkhead::cpu::incomplete",
            Self::CpuOverload => "bulkhead::cpu::overload",
            Self::CpuOwnTimer => "bulkhead::cpu::own-timer",
            Self::CpuPeriod => "bulkhead::cpu::period",
            Self::CpuPool => "bulkhead::cpu::pool",
            Self::CpuStray => "bulkhead::cpu::stray",
            Self::CpuWeight => "bulkhead::cpu::weight",
            Self::CrashBoth => "bulkhead::crash::both",
            Self::CrashIncomplete => "bulkhead::crash::incomplete",
            Self::CrashItself => "bulkhead::crash::itself",
            Self::CrashLimit => "bulkhead::crash::limit",
            Self::CrashUnknownVm => "bulkhead::crash::unknown-vm",
            Self::DeviceAlign => "bulkhead::device::align",
            Self::DeviceDma => "bulkhead::device::dma",
            Self::DeviceGic => "bulkhead::device::gic",
            Self::DeviceIncomplete => "bulkhead::device::incomplete",
            Self::DeviceIntid => "bulkhead::device::intid",
            Self::DeviceIntidTaken => "bulkhead::device::intid-taken",
            Self::DeviceRefused => "bulkhead::device::refused",
            Self::DeviceResets => "bulkhead::device::resets",
            Self::DeviceShared => "bulkhead::device::shared",
            Self::DiskBoth => "bulkhead::disk::both",
            Self::DiskImage => "bulkhead::disk::image",
            Self::DiskIncomplete => "bulkhead::disk::incomplete",
            Self::DiskLarge => "bulkhead::disk::large",
            Self::DiskName => "bulkhead::disk::name",
            Self::DiskShared => "bulkhead::disk::shared",
            Self::DiskSize => "bulkhead::disk::size",
            Self::DiskSmall => "bulkhead::disk::small",
            Self::DiskStray => "bulkhead::disk::stray",
            Self::DiskTwice => "bulkhead::disk::twice",
            Self::DoorbellApart => "bulkhead::doorbell::apart",
            Self::DoorbellIncomplete => "bulkhead::doorbell::incomplete",
            Self::DoorbellItself => "bulkhead::doorbell::itself",
            Self::DoorbellMany => "bulkhead::doorbell::many",
            Self::DoorbellName => "bulkhead::doorbell::name",
            Self::DoorbellNotShared => "bulkhead::doorbell::not-shared",
            Self::DoorbellSpi => "bulkhead::doorbell::spi",
            Self::DoorbellUnknownShared => "bulkhead::doorbell::unknown-shared",
            Self::DoorbellUnknownVm => "bulkhead::doorbell::unknown-vm",
            Self::ImageAbsent => "bulkhead::image::absent",
            Self::ImageInitrd => "bulkhead::image::initrd",
            Self::ImageKernel => "bulkhead::image::kernel",
            Self::ImagePlace => "bulkhead::image::place",
            Self::ImageProgram => "bulkhead::image::program",
            Self::ImageTree => "bulkhead::image::tree",
            Self::ImageUnknown => "bulkhead::image::unknown",
            Self::ImageUnreadable => "bulkhead::image::unreadable",
            Self::InterruptsEvents => "bulkhead::interrupts::events",
            Self::InterruptsMask => "bulkhead::interrupts::mask",
            Self::InterruptsOwn => "bulkhead::interrupts::own",
            Self::InterruptsReclaim => "bulkhead::interrupts::reclaim",
            Self::InterruptsWatchdog => "bulkhead::interrupts::watchdog",
            Self::KeyUnknown => "bulkhead::key::unknown",
            Self::ManagesLocked => "bulkhead::manages::locked",
            Self::ManagesMany => "bulkhead::manages::many",
            Self::ManagesPort => "bulkhead::manages::port",
            Self::ManagesRight => "bulkhead::manages::right",
            Self::ManagesUnknownVm => "bulkhead::manages::unknown-vm",
            Self::MemoryAlign => "bulkhead::memory::align",
            Self::MemoryFull => "bulkhead::memory::full",
            Self::MemoryImage => "bulkhead::memory::image",
            Self::MemoryIpa => "bulkhead::memory::ipa",
            Self::MemoryOutside => "bulkhead::memory::outside",
            Self::MemoryOverlap => "bulkhead::memory::overlap",
            Self::MemorySmall => "bulkhead::memory::small",
            Self::MemoryTaken => "bulkhead::memory::taken",
            Self::NetworkAlone => "bulkhead::network::alone",
            Self::NetworkIncomplete => "bulkhead::network::incomplete",
            Self::NetworkMac => "bulkhead::network::mac",
            Self::NetworkMacTwice => "bulkhead::network::mac-twice",
            Self::NetworkName => "bulkhead::network::name",
            Self::NetworkUnknown => "bulkhead::network::unknown",
            Self::NetworkUnused => "bulkhead::network::unused",
            Self::NetworkVlan => "bulkhead::network::vlan",
            Self::OverlayAddress => "bulkhead::overlay::address",
            Self::OverlayBroken => "bulkhead::overlay::broken",
            Self::OverlayInterrupt => "bulkhead::overlay::interrupt",
            Self::OverlayLabel => "bulkhead::overlay::label",
            Self::OverlayTarget => "bulkhead::overlay::target",
            Self::PcpuCount => "bulkhead::pcpu::count",
            Self::PcpuFull => "bulkhead::pcpu::full",
            Self::PcpuShared => "bulkhead::pcpu::shared",
            Self::PcpuTooFew => "bulkhead::pcpu::too-few",
            Self::PcpuUnknown => "bulkhead::pcpu::unknown",
            Self::PlanLarge => "bulkhead::plan::large",
            Self::ResetLimit => "bulkhead::reset::limit",
            Self::ServiceBoth => "bulkhead::service::both",
            Self::ServiceIdle => "bulkhead::service::idle",
            Self::ServiceIncomplete => "bulkhead::service::incomplete",
            Self::ServiceName => "bulkhead::service::name",
            Self::ServicePcpu => "bulkhead::service::pcpu",
            Self::ServicePolls => "bulkhead::service::polls",
            Self::ServiceRoom => "bulkhead::service::room",
            Self::SharedAccess => "bulkhead::shared::access",
            Self::SharedAlone => "bulkhead::shared::alone",
            Self::SharedIncomplete => "bulkhead::shared::incomplete",
            Self::SharedName => "bulkhead::shared::name",
            Self::SharedUnknownVm => "bulkhead::shared::unknown-vm",
            Self::SmcFunction => "bulkhead::smc::function",
            Self::SmcTwice => "bulkhead::smc::twice",
            Self::TimeOwnTimer => "bulkhead::time::own-timer",
            Self::TomlSyntax => "bulkhead::toml::syntax",
            Self::TomlTwice => "bulkhead::toml::twice",
            Self::ValueAddress => "bulkhead::value::address",
            Self::ValuePart => "bulkhead::value::part",
            Self::ValueSize => "bulkhead::value::size",
            Self::ValueTime => "bulkhead::value::time",
            Self::ValueType => "bulkhead::value::type",
            Self::ValueWord => "bulkhead::value::word",
            Self::VcpuCount => "bulkhead::vcpu::count",
            Self::VirtioConsole => "bulkhead::virtio::console",
            Self::VirtioIdle => "bulkhead::virtio::idle",
            Self::VirtioMany => "bulkhead::virtio::many",
            Self::VirtioPoll => "bulkhead::virtio::poll",
            Self::VirtioVm => "bulkhead::virtio::vm",
            Self::VmImage => "bulkhead::vm::image",
            Self::VmMany => "bulkhead::vm::many",
            Self::VmMemory => "bulkhead::vm::memory",
            Self::VmName => "bulkhead::vm::name",
            Self::VmNobodyStarts => "bulkhead::vm::nobody-starts",
            Self::VmNone => "bulkhead::vm::none",
            Self::VmStray => "bulkhead::vm::stray",
        }
    }

    /// The name as `bulkhead explain` takes it, such as `pcpu::shared`.
    pub fn short(self) -> &'static str {
        self.name().trim_start_matches(PREFIX)
    }

    /// Subject of the finding: the first part of the short name, such as `pcpu`.
    pub fn subject(self) -> &'static str {
        let (subject, _) = self.short().split_once("::").unwrap_or_default();
        subject
    }

    /// The code of this name, whole or short.
    pub fn named(name: &str) -> Option<Self> {
        let short = name.strip_prefix(PREFIX).unwrap_or(name);
        Self::ALL.into_iter().find(|code| code.short() == short)
    }

    /// Whether a description with such a finding is still good.
    pub const fn severity(self) -> Severity {
        match self {
            Self::BoardFirmware
            | Self::ChannelCached
            | Self::ConsoleRealtime
            | Self::ConsoleUnheard
            | Self::ImageAbsent
            | Self::InterruptsEvents
            | Self::InterruptsMask
            | Self::InterruptsWatchdog
            | Self::NetworkAlone
            | Self::OverlayAddress
            | Self::OverlayInterrupt
            | Self::TimeOwnTimer => Severity::Warning,
            _ => Severity::Error,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl TryFrom<String> for Code {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::named(&name).ok_or_else(|| format!("there is no code `{name}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_stand_in_the_order_of_their_names_and_are_found_by_them() {
        assert!(Code::ALL.is_sorted_by(|one, next| one.name() < next.name()));
        for code in Code::ALL {
            assert_eq!(Code::named(code.name()), Some(code));
            assert_eq!(Code::named(code.short()), Some(code));
            assert_eq!(code.name(), format!("{PREFIX}{}", code.short()));
            assert!(code.short().starts_with(&format!("{}::", code.subject())));
        }
        assert_eq!(Code::named("pcpu"), None);
    }
}
