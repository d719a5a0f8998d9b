//! Protocols between pCPUs: words that several of them change, without a lock
//! (`docs/internals/locking.md`).

pub mod mailbox;
pub mod report_turn;
pub mod stage2_claim;
pub mod vcpu_location;

pub use mailbox::Mailboxes;
pub use report_turn::ReportTurn;
pub use stage2_claim::Stage2Claim;
pub use vcpu_location::{Siblings, VcpuLocation};
