//! Modules of the project's core that several pCPUs work on at a time, compiled with loom's atomics. The tests run
//! them under every interleaving and every outcome that the memory model allows (`docs/internals/locking.md`).
// Their unit tests run where they live; those who check all targets find nothing here.
#![cfg(not(test))]

// `core` in the modules below is loom's.
extern crate bulkhead_loom_atomics as core;

#[path = "../../../core/src/control/asked.rs"]
pub mod asked;
#[path = "../../../core/src/sync/awake.rs"]
pub mod awake;
#[path = "../../../core/src/console/backlog.rs"]
pub mod backlog;
#[path = "../../../core/src/bandwidth.rs"]
pub mod bandwidth;
#[allow(unsafe_code, reason = "it is that of EL2")]
#[path = "../../../el2/src/hw/claim.rs"]
pub mod claim;
#[path = "../../../core/src/devices/doorbell.rs"]
pub mod doorbell;
#[path = "../../../core/src/control/events.rs"]
pub mod events;
#[path = "../../../core/src/sync/inbox.rs"]
pub mod inbox;
#[path = "../../../core/src/virtio/interrupt.rs"]
pub mod interrupt;
#[path = "../../../core/src/cpu/life.rs"]
pub mod life;
#[path = "../../../core/src/sync/mailbox.rs"]
pub mod mailbox;
#[path = "../../../core/src/virtio/pending.rs"]
pub mod pending;
#[path = "../../../core/src/cpu/power.rs"]
pub mod power;
#[path = "../../../core/src/sync/report_turn.rs"]
pub mod report_turn;
#[path = "../../../core/src/virtio/requests.rs"]
pub mod requests;
#[path = "../../../core/src/console/ring.rs"]
pub mod ring;
#[path = "../../../core/src/sync/said.rs"]
pub mod said;
#[path = "../../../core/src/sched/mod.rs"]
pub mod sched;
#[path = "../../../core/src/virtio/served.rs"]
pub mod served;
#[path = "../../../core/src/sync/stage2_claim.rs"]
pub mod stage2_claim;
#[path = "../../../core/src/virtio/told.rs"]
pub mod told;
#[path = "../../../core/src/control/typed.rs"]
pub mod typed;
#[path = "../../../core/src/sync/vcpu_location.rs"]
pub mod vcpu_location;
#[expect(unused_imports, reason = "what it shows to the rest of `core`")]
#[path = "../../../core/src/vgic/mod.rs"]
pub mod vgic;
pub mod virtio;
#[path = "../../../core/src/sync/wants_space.rs"]
pub mod wants_space;

#[path = "../../../channel/src/queue/mod.rs"]
pub mod channel;
#[path = "../../../poll/src/word.rs"]
pub mod word;

#[path = "../../../core/src/console/text.rs"]
pub mod text;

/// The part of the console that schedulers need.
mod console {
    pub use super::text;
}

pub mod sgis;
