//! Protocols between pCPUs: words that several of them change, without a lock
//! (`docs/internals/locking.md`).

pub mod awake;
pub mod inbox;
pub mod mailbox;
pub mod report_turn;
pub mod said;
pub mod stage2_claim;
pub mod vcpu_location;
pub mod wants_space;

pub use awake::Awake;
pub use inbox::TryUse;
pub use mailbox::{Kick, Mailboxes};
pub use report_turn::ReportTurn;
pub use said::Said;
pub use stage2_claim::Stage2Claim;
pub use vcpu_location::{Siblings, VcpuLocation};
pub use wants_space::WantsSpace;
