//! ICH_LR\<n\>_EL2 (IHI 0069H, 12.4.7).

/// State bits: pending.
pub const PENDING: u64 = 1 << 62;
/// State bits: active.
pub const ACTIVE: u64 = 1 << 63;
/// Linked to a physical interrupt, which the guest's deactivation deactivates.
pub const HW: u64 = 1 << 61;
/// Group 1.
pub const GROUP1: u64 = 1 << 60;
/// Without [`HW`]: maintenance interrupt when the guest deactivates it.
pub const EOI: u64 = 1 << 41;

/// The virtual INTID.
#[inline(always)]
pub const fn vintid(lr: u64) -> u32 {
    lr as u32
}

/// The physical INTID of a linked interrupt.
#[inline(always)]
pub const fn pintid(lr: u64) -> u32 {
    ((lr >> 32) & 0x3ff) as u32
}

/// Priority; a smaller number is more urgent.
#[inline(always)]
pub const fn priority(lr: u64) -> u8 {
    (lr >> 48) as u8
}

/// An entry without state.
#[inline(always)]
pub const fn entry(vintid: u32, priority: u8, group1: bool) -> u64 {
    let group = if group1 { GROUP1 } else { 0 };
    group | (priority as u64) << 48 | vintid as u64
}

/// The link to a physical interrupt.
#[inline(always)]
pub const fn link(pintid: u32) -> u64 {
    HW | (pintid as u64 & 0x3ff) << 32
}
