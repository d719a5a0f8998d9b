//! Accesses to the distributor and redistributor frames of a VM, decoded to the state that they mean.
//!
//! Both frames lay a bank of the same registers over INTIDs: the distributor over SPIs (word 1 and
//! up; word 0 reads as zero because affinity routing is on), the redistributor's second frame over
//! word 0.

use core::sync::atomic::Ordering::Relaxed;

use super::{Cpu, Distributor, Host, IIDR, PIDR2, VTIMER, distributor};

/// `GICR_WAKER.ProcessorSleep`; ChildrenAsleep is the bit above and follows it.
const SLEEP: u32 = 1 << 1;

impl Cpu {
    /// Reads `size` bytes at `offset` of the distributor.
    #[inline]
    pub fn gicd_read(&self, dist: &Distributor, host: &impl Host, offset: u64, size: u64) -> u64 {
        if size != 4 || offset & 3 != 0 {
            return self.gicd_read_odd(dist, offset, size);
        }
        let word = ((offset & 0x7f) / 4) as usize;
        u64::from(match offset >> 7 {
            0x02 | 0x03 => dist.enable.get(word).map_or(0, |bits| bits.load(Relaxed)),
            0x00 | 0x1ff => dist.identification(offset).unwrap_or(0),
            0x01 => dist.group.get(word).map_or(0, |bits| bits.load(Relaxed)),
            0x04 | 0x05 if dist.has_word(word) => self.pending(dist, host, word),
            0x06 | 0x07 if dist.has_word(word) => self.active(host, word),
            0x08..=0x0f => dist.priorities(((offset & 0x3ff) / 4) as usize),
            0x18 | 0x19 => dist.config(((offset & 0xff) / 4) as usize),
            0xc0..=0xff => self.route_word(dist, offset),
            _ => 0,
        })
    }

    /// Byte reads of priorities and doubleword reads of routes; the architecture has no others.
    fn gicd_read_odd(&self, dist: &Distributor, offset: u64, size: u64) -> u64 {
        match (offset, size) {
            (0x400..0x800, 1) => u64::from(dist.priority((offset & 0x3ff) as u32)),
            (0x6000..0x8000, 8) if offset & 7 == 0 => u64::from(self.route_word(dist, offset)),
            _ => 0,
        }
    }

    /// `GICD_IROUTER<n>`: every SPI goes to the one vCPU there is, whatever the guest writes. The upper
    /// word is affinity 3, which is 0.
    fn route_word(&self, dist: &Distributor, offset: u64) -> u32 {
        let intid = (offset & 0x1fff) / 8;
        let low = offset & 4 == 0;
        if low && dist.has_word((intid / 32) as usize) {
            self.affinity()
        } else {
            0
        }
    }

    /// Writes `size` bytes at `offset` of the distributor.
    #[inline]
    pub fn gicd_write(
        &mut self,
        dist: &Distributor,
        host: &mut impl Host,
        offset: u64,
        size: u64,
        value: u64,
    ) {
        let value = value as u32;
        if size == 1 && (0x400..0x800).contains(&offset) {
            let shift = (offset & 3) * 8;
            let n = ((offset & 0x3ff) / 4) as usize;
            if dist.has_word(n / 8) {
                dist.set_priorities(n, (value & 0xff) << shift, 0xff << shift);
            }
            return;
        }
        if size != 4 || offset & 3 != 0 {
            return;
        }
        let word = ((offset & 0x7f) / 4) as usize;
        match offset >> 7 {
            0x00 if offset == 0 && dist.set_ctlr(value) => {
                self.groups_changed(dist, host);
            }
            0x01..=0x07 if dist.has_word(word) => {
                self.bank_write(dist, host, offset >> 7, word, value);
            }
            0x08..=0x0f => {
                let n = ((offset & 0x3ff) / 4) as usize;
                if dist.has_word(n / 8) {
                    dist.set_priorities(n, value, u32::MAX);
                }
            }
            0x18 | 0x19 => {
                let n = ((offset & 0xff) / 4) as usize;
                if dist.has_word(n / 2) {
                    dist.set_config(n, value);
                }
            }
            _ => {}
        }
    }

    /// The registers that come as one bit for each INTID; `bank` is the offset divided by 0x80.
    fn bank_write(
        &mut self,
        dist: &Distributor,
        host: &mut impl Host,
        bank: u64,
        word: usize,
        value: u32,
    ) {
        match bank {
            0x01 => self.set_groups(dist, host, word, value),
            0x02 => self.enable(dist, host, word, value),
            0x03 => self.disable(dist, host, word, value),
            0x04 => self.set_pending(dist, host, word, value),
            0x05 => self.clear_pending(dist, host, word, value),
            0x06 => self.set_active(dist, host, word, value),
            _ => self.clear_active(dist, host, word, value),
        }
    }

    /// Reads `size` bytes at `offset` of the redistributor.
    #[inline]
    pub fn gicr_read(&self, dist: &Distributor, host: &impl Host, offset: u64, size: u64) -> u64 {
        // GICR_TYPER: affinity, processor number 0, Last: the only redistributor of the VM.
        let typer = u64::from(self.affinity()) << 32 | 1 << 4;
        if size == 8 && offset == 0x8 {
            return typer;
        }
        if size == 1 && (0x1_0400..0x1_0420).contains(&offset) {
            return u64::from(self.priority(dist, (offset & 0x1f) as u32));
        }
        if size != 4 || offset & 3 != 0 {
            return 0;
        }
        u64::from(match offset {
            0x0004 | 0x1_0004 => IIDR,
            0x0008 => typer as u32,
            0x000c => (typer >> 32) as u32,
            0x0014 => self.waker,
            0xffe8 | 0x1_ffe8 => PIDR2,
            0x1_0080 => self.group,
            0x1_0100 | 0x1_0180 => self.enable,
            0x1_0200 | 0x1_0280 => self.pending(dist, host, 0),
            0x1_0300 | 0x1_0380 => self.active(host, 0),
            0x1_0400..0x1_0420 => {
                let first = (offset & 0x1c) as usize;
                self.priorities
                    .get(first..)
                    .and_then(|rest| rest.first_chunk())
                    .map_or(0, |four| u32::from_le_bytes(*four))
            }
            // SGIs are edge-triggered, PPIs as `edge` says.
            0x1_0c00 => distributor::spread(0xffff),
            0x1_0c04 => distributor::spread(self.edge >> 16),
            _ => 0,
        })
    }

    /// Writes `size` bytes at `offset` of the redistributor.
    #[inline]
    pub fn gicr_write(
        &mut self,
        dist: &Distributor,
        host: &mut impl Host,
        offset: u64,
        size: u64,
        value: u64,
    ) {
        let value = value as u32;
        let bytes = match size {
            1 | 4 => size,
            _ => return,
        };
        if (0x1_0400..0x1_0420).contains(&offset) && offset.is_multiple_of(bytes) {
            let first = (offset & 0x1f) as usize;
            let new = value.to_le_bytes();
            if let Some(slots) = self.priorities.get_mut(first..) {
                for (slot, byte) in slots.iter_mut().zip(new).take(bytes as usize) {
                    *slot = byte & 0xf8;
                }
            }
            self.hot_changed(dist);
            return;
        }
        if size != 4 || offset & 3 != 0 {
            return;
        }
        match offset {
            0x0014 => {
                let sleep = value & SLEEP;
                self.waker = sleep | sleep << 1;
            }
            0x1_0080 | 0x1_0100 | 0x1_0180 | 0x1_0200 | 0x1_0280 | 0x1_0300 | 0x1_0380 => {
                self.bank_write(dist, host, (offset & 0xffff) >> 7, 0, value);
            }
            0x1_0c04 => {
                // The timer is level-sensitive on the board; its trigger is not the guest's to choose.
                let edges = distributor::gather(value) << 16 & !(1 << VTIMER);
                self.edge = edges | 0xffff;
            }
            _ => {}
        }
    }
}
