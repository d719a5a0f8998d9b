//! The state of a filter, and what of it is common to both frames.

use super::{Answer, Form, Frame, GUEST_SGIS, Intids, Read, View, Write, Writes, priority};
use crate::vgic::{VCPUS, VTIMER, Version, WORDS};

/// Offset of the frame with SGIs and PPIs in a redistributor.
const SGI_BASE: u64 = 0x1_0000;

/// Banks with a bit for each INTID (IHI 0048B, 4.3; IHI 0069H, 12.9).
pub(super) mod bank {
    pub const ENABLE: u64 = 0x100;
    pub const DISABLE: u64 = 0x180;
    pub const CLEAR_PENDING: u64 = 0x280;
    pub const CLEAR_ACTIVE: u64 = 0x380;
    /// GICv2: a byte for each SGI.
    pub const CLEAR_SGIS: u64 = 0xf10;
}

/// pCPUs of the VM's vCPUs, as the board's GIC names them.
#[derive(Clone, Copy, Debug)]
pub struct Cpus {
    /// How many vCPUs there are, 1 to 8.
    pub count: usize,
    /// The vCPU whose accesses are filtered, which this pCPU runs.
    pub number: usize,
    /// GICv3: affinity of each one's pCPU, as `GICD_IROUTER` has it. GICv2: the bit of its CPU interface.
    pub names: [u64; VCPUS],
}

/// Which GIC is filtered, and how it looks to the guest.
pub trait Kind {
    /// Architecture of the GIC, the same on both sides.
    fn version(&self) -> Version;
    /// What the guest sees of it.
    fn view(&self) -> View;
}

/// The kind of all modes of a GICv3. Versions are known when EL2 is built, so that it has no code for the other.
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

/// What a VM may do to the board's GIC. One for its pCPU, which alone has it.
#[derive(Clone, Debug)]
pub struct Filter<K> {
    pub(super) kind: K,
    pub(super) cpus: Cpus,
    /// INTIDs that are the VM's.
    given: Intids,
    /// Those that it has enabled: on the board they are only while `signals`.
    pub(super) enabled: Intids,
    /// The group enable of `GICD_CTLR`: the board's is everybody's, so this one acts by the enables.
    pub(super) signals: bool,
}

impl<K: Kind> Filter<K> {
    /// As after a reset: nothing enabled. `given` has SPIs and PPIs of the VM; of the SGIs it gets those that guests
    /// have ([`GUEST_SGIS`]), of the PPIs the virtual timer in any case.
    pub fn new(kind: K, given: Intids, cpus: Cpus) -> Self {
        let mut given = given;
        if let Some(private) = given.first_mut() {
            *private = *private & 0xffff_0000 | GUEST_SGIS | 1 << VTIMER;
        }
        Self {
            kind,
            cpus,
            given,
            enabled: [0; WORDS],
            signals: false,
        }
    }

    /// Forgets what the guest has enabled. What is to be written first is [`Self::silence`].
    pub fn reset(&mut self) {
        self.enabled = [0; WORDS];
        self.signals = false;
    }

    /// INTIDs of the VM in a word of 32.
    pub fn given(&self, word: usize) -> u32 {
        self.given.get(word).copied().unwrap_or(0)
    }

    /// Disables, un-pends and deactivates what of a word is the VM's: when it has stopped, and before it starts.
    pub fn silence(&self, word: usize) -> Writes {
        let mut writes = Writes::NONE;
        for bank in [bank::DISABLE, bank::CLEAR_PENDING, bank::CLEAR_ACTIVE] {
            if let Some(write) = self.bits(bank, word, self.given(word)) {
                writes.push(write);
            }
        }
        if word == 0 && self.kind.version() == Version::V2 {
            for first in (0..16).step_by(4) {
                let value = self.vm_bytes(first, 4);
                if value != 0 {
                    writes.push(Write {
                        frame: Frame::Distributor,
                        offset: bank::CLEAR_SGIS.wrapping_add(first),
                        size: 4,
                        value,
                    });
                }
            }
        }
        writes
    }

    /// Keeps what the guest has enabled from being signalled, or no longer: while EL2 has the pCPU. The guest sees nothing of it.
    /// (SGIs of a GICv2 may be enabled for good.)
    pub fn withhold(&self, withheld: bool) -> Writes {
        let mut writes = Writes::NONE;
        if self.signals {
            let bank = if withheld {
                bank::DISABLE
            } else {
                bank::ENABLE
            };
            for (word, enabled) in self.enabled.iter().enumerate() {
                if let Some(write) = self.bits(bank, word, *enabled) {
                    writes.push(write);
                }
            }
        }
        writes
    }

    /// INTID is the VM's.
    pub fn owns(&self, intid: u32) -> bool {
        self.given((intid / 32) as usize) >> (intid % 32) & 1 != 0
    }

    /// Gives four INTIDs from `first` on, of those that are the VM's, the highest priority that it may have.
    pub fn forget_priorities(&self, first: u64) -> Writes {
        self.write_priorities(first, 4, 0)
    }

    /// Deactivates an INTID if it is the VM's.
    pub fn deactivate(&self, intid: u32) -> Option<Write> {
        let bit = 1u32.wrapping_shl(intid % 32);
        self.bits(bank::CLEAR_ACTIVE, (intid / 32) as usize, bit)
    }

    /// What the guest sees of what a read has given.
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
            Form::Interfaces => bytes(read.size, seen, |byte| self.vcpus_of(byte)),
        };
        seen | read.or
    }

    /// Words of 32 INTIDs that the VM has: up to its last SPI.
    pub(super) fn words(&self) -> usize {
        self.given
            .iter()
            .rposition(|word| *word != 0)
            .map_or(1, |last| last.saturating_add(1))
    }

    fn names(&self) -> impl Iterator<Item = u64> {
        self.cpus.names.into_iter().take(self.cpus.count)
    }

    /// The pCPU of a vCPU, as the board's GIC names it.
    pub(super) fn name(&self, vcpu: usize) -> Option<u64> {
        self.names().nth(vcpu)
    }

    /// The affinity by which the guest of a GICv3 knows a vCPU: its number; that of its pCPU where it sends SGIs to the board's.
    pub(super) fn affinity(&self, vcpu: usize) -> u64 {
        match self.kind.view() {
            View::Upper => vcpu as u64,
            View::Plain => self.name(vcpu).unwrap_or(0),
        }
    }

    /// vCPUs behind a mask of CPU interfaces.
    fn vcpus_of(&self, interfaces: u8) -> u8 {
        self.names().zip(0u32..8).fold(0, |all, (name, n)| {
            let there = u64::from(interfaces) & name != 0;
            all | u8::from(there) << (n & 7)
        })
    }

    /// CPU interfaces of a mask of vCPUs.
    pub(super) fn interfaces_of(&self, vcpus: u8) -> u8 {
        self.names().zip(0u32..8).fold(0, |all, (name, n)| {
            if vcpus >> (n & 7) & 1 != 0 {
                all | name as u8
            } else {
                all
            }
        })
    }

    /// Frame and offset at which the board has word `word` of a register whose first word is at `offset` of the
    /// distributor.
    pub(super) fn place(&self, offset: u64, word: usize, bytes: u64) -> (Frame, u64) {
        let at = offset.wrapping_add((word as u64).wrapping_mul(bytes));
        if word == 0 && self.kind.version() == Version::V3 {
            (Frame::Redistributor, at.wrapping_add(SGI_BASE))
        } else {
            (Frame::Distributor, at)
        }
    }

    /// Writes bits of a word of a bank that are the VM's; `None` if there is none.
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

    /// A read of the bits of a word of a bank that are the VM's.
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

    /// The guest changes what is enabled in a word.
    pub(super) fn enable(&mut self, word: usize, value: u32, on: bool) -> Writes {
        let own = value & self.given(word);
        if let Some(enabled) = self.enabled.get_mut(word) {
            *enabled = if on { *enabled | own } else { *enabled & !own };
        }
        let write = if on && self.signals {
            self.bits(bank::ENABLE, word, own)
        } else if on {
            None
        } else {
            self.bits(bank::DISABLE, word, own)
        };
        write.map_or(Writes::NONE, Writes::one)
    }

    /// The guest switches its group on or off: all that it has enabled follows.
    pub(super) fn signal(&mut self, on: bool) -> Writes {
        let mut writes = Writes::NONE;
        if on != self.signals {
            self.signals = on;
            let bank = if on { bank::ENABLE } else { bank::DISABLE };
            for (word, enabled) in self.enabled.iter().enumerate() {
                if let Some(write) = self.bits(bank, word, *enabled) {
                    writes.push(write);
                }
            }
        }
        writes
    }
}

/// Bytes of a value of `size` bytes, each changed.
pub(super) fn bytes(size: u64, value: u64, change: impl Fn(u8) -> u8) -> u64 {
    let mut all = value.to_le_bytes();
    for byte in all.iter_mut().take(size as usize) {
        *byte = change(*byte);
    }
    u64::from_le_bytes(all)
}
