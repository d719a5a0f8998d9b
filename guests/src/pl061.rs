//! PL061: QEMU's GPIO controller, whose interrupt a program raises by itself: a pin that nothing drives is low, and
//! level-sensitive low it asks.

/// Address of the PL061 of QEMU's `virt`.
pub const PL061: usize = 0x0903_0000;
/// INTID of [`PL061`].
pub const PL061_INTID: u32 = 39;

/// Register offsets (DDI 0190, 3.3): direction.
pub const GPIODIR: usize = 0x400;
/// Level-sensitive or edge-triggered.
pub const GPIOIS: usize = 0x404;
/// High or low, rising or falling.
pub const GPIOIEV: usize = 0x40c;
/// Interrupt enable.
pub const GPIOIE: usize = 0x410;
/// Masked interrupt status: pending and enabled.
pub const GPIOMIS: usize = 0x418;
