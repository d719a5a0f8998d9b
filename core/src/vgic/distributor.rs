//! What the vCPUs of a VM share about its interrupts: atomic words.

use super::{Host, Notify, Version};

/// See the module. All zero is a valid value, that of a VM that has not been set up.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Distributor {}

impl Distributor {
    /// A distributor that has nothing; see [`Self::reset`].
    pub const fn new() -> Self {
        Self {}
    }

    /// The distributor of a VM at reset: `vcpus` (1 to 8) vCPUs, all off, `spis` SPIs (a multiple of 32, at most
    /// 256), its virtual timer on the board's PPI `vtimer`. Only while none of its vCPUs runs.
    pub fn reset(&self, _version: Version, _vcpus: usize, _spis: u32, _vtimer: u32) {}

    /// Links an SPI of the VM to a physical SPI, or a PPI of every vCPU to the PPI of its pCPU. After
    /// [`Self::reset`], before the VM runs.
    pub fn link(&self, _vintid: u32, _pintid: u32, _edge: bool) {}

    /// Reads the 32-bit registers that guests read most, without a look at the rest.
    #[inline(always)]
    pub fn usual_read(&self, _offset: u64) -> Option<u32> {
        None
    }

    /// Whether a 32-bit write enables what is enabled already.
    #[inline(always)]
    pub fn changes_nothing(&self, _offset: u64, _value: u32) -> bool {
        false
    }

    /// All vCPUs that run.
    pub fn notify_all(&self) -> Notify {
        Notify::NOBODY
    }

    /// Makes an interrupt pending, from any pCPU (an event, a doorbell). `vcpu` is whose it is if it is a PPI.
    pub fn post(&self, _intid: u32, _vcpu: usize) -> Notify {
        let _ = super::place(_intid);
        Notify::NOBODY
    }

    /// The line of an emulated device goes up or down, seen by any pCPU. `vcpu` is whose it is if it is a PPI.
    pub fn post_line(&self, _intid: u32, _up: bool, _vcpu: usize) -> Notify {
        Notify::NOBODY
    }

    pub(super) fn shutdown(&self, _host: &mut impl Host) {}
}
