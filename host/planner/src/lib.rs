//! From a description and a board to a plan: who gets which CPU, page, interrupt and address; the device trees of the
//! guests; one image with all of it; and the plan as text, JSON and a page.
#![forbid(unsafe_code)]

mod bandwidth;
mod caches;
mod capacity;
mod colours;
mod consoles;
mod contents;
pub mod cpio;
mod cpus;
mod dax;
mod doorbells;
mod emulated;
mod file;
mod gppt;
mod guest;
mod guest_tree;
pub mod image;
mod io;
mod ipa;
mod overlay;
mod passthrough;
mod payload;
mod place;
mod plan;
mod planned;
mod pmu;
mod profile;
pub mod recover;
mod root_disk;
mod share;
pub mod show;
mod sources;
mod spis;
mod start;
mod store;
mod tables;
mod unpack;

pub use file::Content;
pub use io::{DeviceUse, PlannedDevice, PlannedImage, PlannedIo, PlannedThread, ServiceVm};
pub use plan::{Planned, plan};
pub use planned::{
    EmulatedDevice, Mapped, PlannedChannel, PlannedCpu, PlannedDoorbell, PlannedEnd,
    PlannedPayload, PlannedStop, PlannedVm, StopWay,
};
pub use profile::{expected_size, profile};
pub use share::{Runs, Server, Share, Usage, costs, percent, usage};
pub use sources::Sources;
pub use store::Reads;
