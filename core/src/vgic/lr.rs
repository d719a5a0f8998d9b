//! List registers, in the format of ICH_LR\<n\>_EL2 (IHI 0069H, 12.4.7). GICH_LR\<n\> of a GICv2
//! (IHI 0048B.b, "GICH_LRn") has the same fields at other positions, and [`super::gich`] converts:
//! virtual INTID [9:0], physical INTID [19:10] (or, without HW, EOI [19] and the source of an SGI
//! [12:10]), priority [27:23], pending [28], active [29], group 1 [30], HW [31].

/// The pending bit of the state.
pub const PENDING: u64 = 1 << 62;
/// The active bit of the state.
pub const ACTIVE: u64 = 1 << 63;
/// Both bits of the state.
pub const STATE: u64 = PENDING | ACTIVE;
/// Backed by a physical interrupt: when the guest deactivates the virtual interrupt, the hardware
/// deactivates the physical one.
pub const HW: u64 = 1 << 61;
/// Group 1; otherwise group 0.
pub const GROUP1: u64 = 1 << 60;
/// The fields that the guest configures: group and priority.
pub const GUEST: u64 = GROUP1 | 0xff << 48;
/// Without [`HW`]: a maintenance interrupt when the guest deactivates the interrupt.
pub const EOI: u64 = 1 << 41;

/// Returns the virtual INTID.
#[inline(always)]
pub const fn vintid(lr: u64) -> u32 {
    lr as u32
}

/// Returns the physical INTID of a hardware interrupt.
#[inline(always)]
pub const fn pintid(lr: u64) -> u32 {
    ((lr >> 32) & 0x3ff) as u32
}

/// Returns the priority; a smaller number is more urgent.
#[inline(always)]
pub const fn priority(lr: u64) -> u8 {
    (lr >> 48) as u8
}

/// Returns an entry without pending and active state.
#[inline(always)]
pub const fn entry(vintid: u32, priority: u8, group1: bool) -> u64 {
    let group = if group1 { GROUP1 } else { 0 };
    group | (priority as u64) << 48 | vintid as u64
}

/// Returns the fields that make an entry backed by a physical interrupt.
#[inline(always)]
pub const fn hw(pintid: u32) -> u64 {
    HW | (pintid as u64 & 0x3ff) << 32
}

/// GICv2: returns the vCPU that sent an SGI.
#[inline(always)]
pub const fn source(lr: u64) -> u32 {
    ((lr >> 32) & 7) as u32
}

/// GICv2: returns the field for an SGI sent by `vcpu`.
#[inline(always)]
pub const fn from(vcpu: u32) -> u64 {
    (vcpu as u64 & 7) << 32
}
