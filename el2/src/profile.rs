//! What this build of EL2 carries ([ADR 22](../../docs/adr/0022-profiles.md)). The host tool chooses
//! the smallest profile that has what the plan uses.

use bulkhead_abi::plan::Profile;

/// The profile of this build.
pub const PROFILE: Profile = if cfg!(feature = "static") {
    Profile::Static
} else if cfg!(feature = "managed") {
    Profile::Managed
} else if cfg!(feature = "io") {
    Profile::Io
} else {
    Profile::Shared
};
/// Whether several vCPUs can share a pCPU, by turns, and migrate.
pub const SHARED: bool = !cfg!(feature = "static");
/// Whether the console has the monitor.
pub const MONITOR: bool = SHARED;
/// Whether VMs can have virtio devices.
pub const IO: bool = cfg!(any(feature = "io", feature = "managed"));
/// Whether VMs can manage others.
pub const MANAGED: bool = cfg!(feature = "managed");
/// [`PROFILE`] as the functions about plans take it.
pub const LEVEL: u32 = PROFILE as u32;
