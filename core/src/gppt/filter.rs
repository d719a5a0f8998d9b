//! The state of a filter, and the operations that both frames have in common.

use super::{Answer, Board, Form, Frame, GUEST_SGIS, Intids, Read, View, Write, priority};
use crate::vgic::{VCPUS, VTIMER, Version, WORDS};

/// The offset of the frame with SGIs and PPIs in a redistributor.
const SGI_BASE: u64 = 0x1_0000;

/// Offsets of the banks with a bit for each INTID (IHI 0048B, 4.3; IHI 0069H, 12.9).
pub(super) mod bank {
    pub const ENABLE: u64 = 0x100;
    pub const DISABLE: u64 = 0x180;
    pub const CLEAR_PENDING: u64 = 0x280;
    pub const CLEAR_ACTIVE: u64 = 0x380;
    /// GICv2: GICD_CPENDSGIR, a byte for each SGI.
    pub const CLEAR_SGIS: u64 = 0xf10;
}

/// The pCPUs of the VM's vCPUs, as the physical GIC names them.
#[derive(Clone, Copy, Debug)]
pub struct Cpus {
    /// The number of vCPUs, 1 to 8.
    pub count: usize,
    /// The vCPU whose accesses are filtered, which this pCPU runs.
    pub number: usize,
    /// GICv3: the affinity of each vCPU's pCPU, as in `GICD_IROUTER`. GICv2: the bit of its CPU
    /// interface.
    pub names: [u64; VCPUS],
}

/// The architecture of the GIC that is filtered, and how it looks to the guest.
pub trait Kind {
    /// Returns the architecture of the GIC, which is the same for board and guest.
    fn version(&self) -> Version;
    /// Returns the guest's view of the GIC.
    fn view(&self) -> View;
}

/// The kind of all modes of a GICv3. EL2 is built for one version, so that it has no code for the
/// other.
#[derive(Clone, Copy, Debug)]
pub struct V3(pub View);

impl Kind for V3 {
    fn version(&self) -> Version {
        Version::V3
    }
    fn view(&self) -> View {
        self.0
    }
}

/// The kind of a GICv2.
#[derive(Clone, Copy, Debug)]
pub struct PlainV2;

impl Kind for PlainV2 {
    fn version(&self) -> Version {
        Version::V2
    }
    fn view(&self) -> View {
        View::Plain
    }
}

impl Kind for (Version, View) {
    fn version(&self) -> Version {
        self.0
    }
    fn view(&self) -> View {
        self.1
    }
}

/// The filter of a VM's accesses to the physical GIC. Each pCPU has its own, and no other pCPU
/// accesses it.
#[derive(Clone, Debug)]
pub struct Filter<K> {
    pub(super) kind: K,
    pub(super) cpus: Cpus,
    /// The INTIDs of the VM.
    given: Intids,
    /// The number of words of 32 SPIs up to the VM's last one.
    pub(super) lines: usize,
    /// The INTIDs that the guest has enabled. In the physical GIC they are enabled only while
    /// `signals` is true.
    pub(super) enabled: Intids,
    /// The guest's group enable in `GICD_CTLR`. All VMs share the physical one, so the guest's
    /// takes effect through the enables of its interrupts.
    pub(super) signals: bool,
}

impl<K: Kind> Filter<K> {
    /// Creates a filter as after a reset: nothing is enabled. `given` has the SPIs and PPIs of the
    /// VM. Its SGIs are always [`GUEST_SGIS`], and its PPIs include the virtual timer in any case.
    pub fn new(kind: K, given: Intids, cpus: Cpus) -> Self {
        let mut given = given;
        if let Some(private) = given.first_mut() {
            *private = *private & 0xffff_0000 | GUEST_SGIS | 1 << VTIMER;
        }
        Self {
            kind,
            cpus,
            given,
            lines: given.iter().rposition(|word| *word != 0).unwrap_or(0),
            enabled: [0; WORDS],
            signals: false,
        }
    }

    /// Forgets what the guest has enabled. The writes of [`Self::silence`] come before.
    pub fn reset(&mut self) {
        self.enabled = [0; WORDS];
        self.signals = false;
    }

    /// Returns the INTIDs of the VM in a word of 32.
    pub fn given(&self, word: usize) -> u32 {
        self.given.get(word).copied().unwrap_or(0)
    }

    /// Disables, un-pends and deactivates the VM's interrupts of a word: when the VM has stopped, and
    /// before it starts.
    pub fn silence(&self, board: &mut impl Board, word: usize) {
        for bank in [bank::DISABLE, bank::CLEAR_PENDING, bank::CLEAR_ACTIVE] {
            self.write_bits(board, bank, word, self.given(word));
        }
        if word == 0 && self.kind.version() == Version::V2 {
            for first in (0..16).step_by(4) {
                let value = self.vm_bytes(first, 4);
                if value != 0 {
                    board.write(Write {
                        frame: Frame::Distributor,
                        offset: bank::CLEAR_SGIS.wrapping_add(first),
                        size: 4,
                        value,
                    });
                }
            }
        }
    }

    /// Disables in the physical GIC what the guest has enabled (`withheld`), or enables it again.
    /// EL2 does so while it has the pCPU; the guest does not see the effect. (A GICv2 may have its
    /// SGIs permanently enabled.)
    pub fn withhold(&self, board: &mut impl Board, withheld: bool) {
        if self.signals {
            self.write_enabled(board, !withheld);
        }
    }

    /// Enables or disables in the physical GIC all that the guest has enabled.
    fn write_enabled(&self, board: &mut impl Board, on: bool) {
        let bank = if on { bank::ENABLE } else { bank::DISABLE };
        for (word, enabled) in self.enabled.iter().enumerate() {
            self.write_bits(board, bank, word, *enabled);
        }
    }

    /// Whether the INTID is the VM's.
    pub fn owns(&self, intid: u32) -> bool {
        self.given((intid / 32) as usize) >> (intid % 32) & 1 != 0
    }

    /// Sets the priority of four INTIDs from `first` on, as far as they are the VM's, to the highest
    /// that the VM may have.
    pub fn forget_priorities(&self, board: &mut impl Board, first: u64) {
        self.write_priorities(board, first, 4, 0);
    }

    /// Returns the write that deactivates an INTID if it is the VM's.
    pub fn deactivate(&self, intid: u32) -> Option<Write> {
        let bit = 1u32.wrapping_shl(intid % 32);
        self.bits(bank::CLEAR_ACTIVE, (intid / 32) as usize, bit)
    }

    /// Converts `raw`, the value of a read of the physical GIC, to what the guest sees.
    pub fn shown(&self, read: &Read, raw: u64) -> u64 {
        let seen = raw & read.mask;
        let seen = match read.form {
            Form::Plain => seen,
            Form::Priorities => bytes(read.size, seen, priority::to_guest),
            Form::Affinity => {
                let mut vcpus = (0..VCPUS).zip(self.names());
                let whose = vcpus.find(|(_, name)| *name == seen);
                whose.map_or(0, |(vcpu, _)| self.affinity(vcpu))
            }
            Form::Interfaces if self.kind.version() == Version::V2 => {
                bytes(read.size, seen, |byte| self.vcpus_of(byte))
            }
            // A GICv3 has no such masks.
            Form::Interfaces => 0,
        };
        seen | read.or
    }

    fn names(&self) -> impl Iterator<Item = u64> {
        self.cpus.names.into_iter().take(self.cpus.count)
    }

    /// Returns the pCPU of a vCPU, as the physical GIC names it.
    pub(super) fn name(&self, vcpu: usize) -> Option<u64> {
        self.names().nth(vcpu)
    }

    /// Returns the affinity by which the guest of a GICv3 knows a vCPU: its number, or that of its
    /// pCPU where the guest's SGIs go to the physical GIC without a trap.
    pub(super) fn affinity(&self, vcpu: usize) -> u64 {
        match self.kind.view() {
            View::Upper => vcpu as u64,
            View::Plain => self.name(vcpu).unwrap_or(0),
        }
    }

    /// Returns the vCPUs of a mask of CPU interfaces.
    fn vcpus_of(&self, interfaces: u8) -> u8 {
        self.names().zip(0u32..8).fold(0, |all, (name, n)| {
            let there = u64::from(interfaces) & name != 0;
            all | u8::from(there) << (n & 7)
        })
    }

    /// Returns the CPU interfaces of a mask of vCPUs.
    pub(super) fn interfaces_of(&self, vcpus: u8) -> u8 {
        self.names().zip(0u32..8).fold(0, |all, (name, n)| {
            if vcpus >> (n & 7) & 1 != 0 {
                all | name as u8
            } else {
                all
            }
        })
    }

    /// Returns the frame and the offset at which the board has word `word` of a register whose
    /// first word is at `offset` of the distributor.
    pub(super) fn place(&self, offset: u64, word: usize, bytes: u64) -> (Frame, u64) {
        let at = offset.wrapping_add((word as u64).wrapping_mul(bytes));
        if word == 0 && self.kind.version() == Version::V3 {
            (Frame::Redistributor, at.wrapping_add(SGI_BASE))
        } else {
            (Frame::Distributor, at)
        }
    }

    /// Returns the write of `value` to a word of a bank, reduced to the VM's bits; `None` if none
    /// is left.
    #[inline(always)]
    pub(super) fn bits(&self, bank: u64, word: usize, value: u32) -> Option<Write> {
        let own = value & self.given(word);
        let (frame, offset) = self.place(bank, word, 4);
        (own != 0).then_some(Write {
            frame,
            offset,
            size: 4,
            value: u64::from(own),
        })
    }

    /// Returns the read of a word of a bank, reduced to the VM's bits.
    #[inline(never)]
    pub(super) fn see_bits(&self, bank: u64, word: usize) -> Answer {
        let own = self.given(word);
        let (frame, offset) = self.place(bank, word, 4);
        if own == 0 {
            return Answer::ZERO;
        }
        Answer::Read(Read {
            frame,
            offset,
            size: 4,
            mask: u64::from(own),
            or: 0,
            form: Form::Plain,
        })
    }

    /// Writes `value` to a word of a bank, reduced to the VM's bits.
    #[inline(always)]
    pub(super) fn write_bits(&self, board: &mut impl Board, bank: u64, word: usize, value: u32) {
        if let Some(write) = self.bits(bank, word, value) {
            board.write(write);
        }
    }

    /// Enables or disables interrupts of a word, for the guest. What the guest has not let through
    /// by its group enable is disabled already.
    #[inline(always)]
    pub(super) fn enable(&mut self, board: &mut impl Board, word: usize, value: u32, on: bool) {
        let own = value & self.given(word);
        if let Some(enabled) = self.enabled.get_mut(word) {
            *enabled = if on { *enabled | own } else { *enabled & !own };
        }
        if self.signals || !on {
            let bank = if on { bank::ENABLE } else { bank::DISABLE };
            self.write_bits(board, bank, word, own);
        }
    }

    /// Sets the guest's group enable: all interrupts that the guest has enabled follow.
    pub(super) fn signal(&mut self, board: &mut impl Board, on: bool) {
        if on != self.signals {
            self.signals = on;
            self.write_enabled(board, on);
        }
    }
}

/// Returns a value of `size` bytes with each byte changed.
pub(super) fn bytes(size: u64, value: u64, change: impl Fn(u8) -> u8) -> u64 {
    let mut all = value.to_le_bytes();
    for byte in all.iter_mut().take(size as usize) {
        *byte = change(*byte);
    }
    u64::from_le_bytes(all)
}
