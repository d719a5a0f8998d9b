//! What the pCPU of a vCPU knows about its interrupts and nobody else touches.

use super::{Answer, Distributor, Host, Notify};

/// See the module.
#[derive(Clone, Debug)]
pub struct Cpu {
    number: usize,
}

impl Cpu {
    /// The vCPU `number` of its VM (0 to 7, which is its affinity too), off.
    pub const fn new(number: usize) -> Self {
        Self { number }
    }

    /// The vCPU starts (VM start, CPU_ON): list registers empty, private interrupts as after a reset. SPIs
    /// that wait for this vCPU are taken up at once.
    pub fn reset(&mut self, _dist: &Distributor, _host: &mut impl Host) -> Notify {
        Notify::NOBODY
    }

    /// What EL2 writes into [`super::VTIMER_LR`] when the virtual timer fires, or 0: the guest does not want it
    /// now; then [`Self::raise`].
    #[inline(always)]
    pub const fn vtimer_entry(&self) -> u64 {
        0
    }

    /// The usual case of a write to ICC_SGI1R_EL1: one target, which is a sibling, or this vCPU with nothing in
    /// its list registers. `None`: nothing has been done, take [`Self::send_sgi`].
    #[inline(always)]
    pub fn send_sgi_usual<H: Host>(
        &mut self,
        _dist: &Distributor,
        _host: &mut H,
        _value: u64,
    ) -> Option<Notify> {
        None
    }

    /// The same for a 32-bit write to GICD_SGIR (0xf00). `None`: take [`Self::gicd_write`].
    #[inline(always)]
    pub fn send_sgir_usual<H: Host>(
        &mut self,
        _dist: &Distributor,
        _host: &mut H,
        _value: u32,
    ) -> Option<Notify> {
        None
    }

    /// Write to ICC_SGI1R_EL1 (`group1`), or to ICC_SGI0R_EL1 or ICC_ASGI1R_EL1, which reach only SGIs of group 0.
    pub fn send_sgi<H: Host>(
        &mut self,
        _dist: &Distributor,
        _host: &mut H,
        _value: u64,
        _group1: bool,
    ) -> Notify {
        Notify::NOBODY
    }

    /// Takes up what others have left for this vCPU. To be called when it has been notified, and when it goes
    /// on after a while in which notifications were not acted on (a paused VM).
    #[inline(always)]
    pub fn look<H: Host>(&mut self, _dist: &Distributor, _host: &mut H) -> Notify {
        Notify::NOBODY
    }

    /// The usual case of [`Self::raise`] for an SPI, by its physical INTID. `false`: nothing has been done, look up
    /// the virtual INTID and take [`Self::raise`].
    #[inline(always)]
    pub fn raise_usual<H: Host>(&mut self, _host: &mut H, _pintid: u32) -> bool {
        false
    }

    /// A linked interrupt (virtual INTID) has been acknowledged on this pCPU and its priority dropped. It stays
    /// active on the board until the guest deactivates it.
    pub fn raise<H: Host>(&mut self, _dist: &Distributor, _host: &mut H, _intid: u32) -> Notify {
        Notify::NOBODY
    }

    /// The line of an emulated device goes up or down, seen by this pCPU.
    pub fn set_line<H: Host>(
        &mut self,
        _dist: &Distributor,
        _host: &mut H,
        _intid: u32,
        _up: bool,
    ) -> Notify {
        Notify::NOBODY
    }

    /// Maintenance interrupt.
    pub fn maintain<H: Host>(&mut self, _dist: &Distributor, _host: &mut H) -> Notify {
        Notify::NOBODY
    }

    /// A write to ICC_DIR_EL1 or GICV_DIR that trapped.
    pub fn deactivate<H: Host>(
        &mut self,
        _dist: &Distributor,
        _host: &mut H,
        _value: u32,
    ) -> Notify {
        Notify::NOBODY
    }

    /// Reads `size` bytes (1, 2, 4, 8) at `offset` of the distributor frame.
    pub fn gicd_read<H: Host>(
        &mut self,
        _dist: &Distributor,
        _host: &mut H,
        _offset: u64,
        _size: u64,
    ) -> (Answer, Notify) {
        (Answer::Value(0), Notify::NOBODY)
    }

    /// Writes `size` bytes at `offset` of the distributor frame.
    pub fn gicd_write<H: Host>(
        &mut self,
        _dist: &Distributor,
        _host: &mut H,
        _offset: u64,
        _size: u64,
        _value: u64,
    ) -> (Answer, Notify) {
        (Answer::Value(0), Notify::NOBODY)
    }

    /// Reads `size` bytes at `offset` of the redistributor frames of the VM: those of vCPU n begin at
    /// n * [`super::GICR_SIZE`].
    pub fn gicr_read<H: Host>(
        &mut self,
        _dist: &Distributor,
        _host: &mut H,
        _offset: u64,
        _size: u64,
    ) -> (Answer, Notify) {
        (Answer::Value(0), Notify::NOBODY)
    }

    /// Writes `size` bytes at `offset` of the redistributor frames of the VM.
    pub fn gicr_write<H: Host>(
        &mut self,
        _dist: &Distributor,
        _host: &mut H,
        _offset: u64,
        _size: u64,
        _value: u64,
    ) -> (Answer, Notify) {
        (Answer::Value(0), Notify::NOBODY)
    }

    /// The vCPU goes off, or its VM stops: SPIs that were pending in list registers wait for whoever they are
    /// routed to, what was active has ended, its physical interrupts are deactivated, its private ones
    /// disabled, and its private state is dropped.
    pub fn leave<H: Host>(&mut self, _dist: &Distributor, _host: &mut H) -> Notify {
        let _ = self.number;
        Notify::NOBODY
    }
}
