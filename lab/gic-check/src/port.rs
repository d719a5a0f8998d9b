//! The vGIC's view of a pCPU: list registers of the model's virtual CPU interface in the format of the
//! hardware, and the board. Every rule that hardware sets for their use is checked at each write.

use bulkhead_core::vgic::{Host, Maintenance, VTIMER, VTIMER_LR, Version};
use bulkhead_gic_model::{Entry, Source, VirtualInterface};

use crate::board::Board;

/// The interrupt hardware of a pCPU.
pub struct Port<'a, const V2: bool> {
    /// The pCPU.
    pub pcpu: usize,
    /// Its virtual CPU interface.
    pub interface: &'a mut VirtualInterface,
    /// The board.
    pub board: &'a mut Board,
}

/// ICH_LR\<n\>_EL2 (IHI 0069H, 12.4.7); the source of an SGI lies where the physical INTID would.
fn encode(entry: &Entry) -> u64 {
    let source = match entry.source {
        Source::Physical(pintid) => 1 << 61 | u64::from(pintid) << 32,
        Source::Software { tell, sender } => u64::from(tell) << 41 | (sender as u64) << 32,
    };
    u64::from(entry.active) << 63
        | u64::from(entry.pending) << 62
        | source
        | (entry.group as u64) << 60
        | u64::from(entry.priority) << 48
        | u64::from(entry.intid)
}

fn decode(value: u64) -> Entry {
    let physical = value >> 61 & 1 != 0;
    Entry {
        intid: value as u32,
        pending: value >> 62 & 1 != 0,
        active: value >> 63 & 1 != 0,
        group: (value >> 60 & 1) as usize,
        priority: (value >> 48) as u8,
        source: if physical {
            Source::Physical((value >> 32 & 0x1fff) as u32)
        } else {
            Source::Software {
                tell: value >> 41 & 1 != 0,
                sender: (value >> 32 & 7) as usize,
            }
        },
    }
}

impl<const V2: bool> Port<'_, V2> {
    /// Asserts the demands of hardware and of the plan on a list register.
    fn judge(&self, n: u32, entry: &Entry) {
        assert!(entry.priority & 7 == 0, "priority of {entry:?}");
        assert!(entry.intid < 288, "{entry:?}");
        if n == VTIMER_LR {
            assert_eq!(
                entry.intid, VTIMER,
                "the virtual timer's register: {entry:?}"
            );
        }
        for (other, held) in self.interface.entries.iter().enumerate() {
            if let Some(held) = held
                && other != n as usize
                && (held.pending || held.active)
            {
                assert_ne!(
                    held.intid, entry.intid,
                    "two list registers: {entry:?} {held:?}"
                );
            }
        }
        if let Source::Physical(pintid) = entry.source {
            assert!(
                !(entry.pending && entry.active),
                "both states of a hw {entry:?}"
            );
            let physical = self.board.get(self.pcpu, pintid);
            assert!(physical.given, "not the VM's: {entry:?}");
            assert!(
                physical.active,
                "the physical interrupt can fire again: {entry:?}"
            );
        }
    }
}

impl<const V2: bool> Host for Port<'_, V2> {
    const VERSION: Version = if V2 { Version::V2 } else { Version::V3 };

    fn list_registers(&self) -> u32 {
        self.interface.entries.len() as u32
    }

    fn usable(&self) -> u32 {
        (1 << self.interface.entries.len()) - 2
    }

    fn lr(&self, n: u32) -> u64 {
        self.interface.entries[n as usize]
            .as_ref()
            .map_or(0, encode)
    }

    fn set_lr(&mut self, n: u32, value: u64) {
        let entry = decode(value);
        if entry.pending || entry.active {
            self.judge(n, &entry);
        }
        self.interface.entries[n as usize] = (value != 0).then_some(entry);
    }

    fn empty(&self) -> u32 {
        self.interface.empty()
    }

    fn eoi_count(&mut self) -> u32 {
        // Five bits.
        std::mem::take(&mut self.interface.uncounted) & 31
    }

    fn groups(&self) -> u32 {
        let enabled = self.interface.interface.enabled;
        u32::from(enabled[0]) | u32::from(enabled[1]) << 1
    }

    fn ask(&mut self, what: Maintenance) {
        self.interface.ask_none_pending = what.refill;
        self.interface.ask_unlike = what.refill.then_some(self.interface.interface.enabled);
        self.interface.ask_ends = what.eoi;
    }

    fn enable(&mut self, pintid: u32) {
        let physical = self.board.at(self.pcpu, pintid);
        assert!(physical.given, "{pintid} is not the VM's");
        physical.enabled = true;
    }

    fn disable(&mut self, pintid: u32) {
        let physical = self.board.at(self.pcpu, pintid);
        assert!(physical.given, "{pintid} is not the VM's");
        physical.enabled = false;
    }

    fn deactivate(&mut self, pintid: u32) {
        let physical = self.board.at(self.pcpu, pintid);
        assert!(physical.given, "{pintid} is not the VM's");
        physical.active = false;
    }

    fn set_active(&mut self, pintid: u32) {
        let physical = self.board.at(self.pcpu, pintid);
        assert!(physical.given, "{pintid} is not the VM's");
        physical.active = true;
    }

    fn set_pending(&mut self, pintid: u32, pending: bool) {
        let physical = self.board.at(self.pcpu, pintid);
        assert!(physical.given, "{pintid} is not the VM's");
        physical.latch = pending;
    }

    fn is_pending(&self, pintid: u32) -> bool {
        self.board.get(self.pcpu, pintid).pending()
    }

    fn route(&mut self, pintid: u32, vcpu: usize) {
        let physical = self.board.at(self.pcpu, pintid);
        assert!(physical.given && pintid >= 32, "{pintid} is not the VM's");
        physical.target = vcpu;
    }
}
