//! A CPU interface without its interrupts: priority mask, binary points, running priority.

/// CPU interface of one CPU; the same rules hold for the virtual one (IHI 0069H, 4.8; IHI 0048B, 3.3).
#[derive(Clone, Debug)]
pub struct Interface {
    /// Upper bits of a priority that exist.
    bits: u32,
    mask: u8,
    points: [u8; 2],
    /// ICC_CTLR_EL1.CBPR: the binary point of group 0 counts for both.
    pub common_point: bool,
    /// ICC_CTLR_EL1.EOImode: an end drops the priority only, ICC_DIR_EL1 deactivates.
    pub split_end: bool,
    /// Group enables of the interface.
    pub enabled: [bool; 2],
    /// Group priorities of what is active, the most urgent last.
    active: Vec<u8>,
}

/// Priority of an interface at which nothing is active.
pub const IDLE: u8 = 0xff;

impl Interface {
    /// An interface at reset: everything masked.
    pub fn new(bits: u32) -> Self {
        Self {
            bits,
            mask: 0,
            points: [Self::least(bits), Self::least(bits) + 1],
            common_point: false,
            split_end: false,
            enabled: [false; 2],
            active: Vec::new(),
        }
    }

    /// The smallest binary point of group 0: every bit that exists can pre-empt.
    fn least(bits: u32) -> u8 {
        (7 - bits.min(7)) as u8
    }

    /// Writes ICC_PMR_EL1.
    pub fn set_mask(&mut self, value: u8) {
        self.mask = value & implemented(self.bits);
    }

    /// ICC_PMR_EL1.
    pub fn mask(&self) -> u8 {
        self.mask
    }

    /// Writes ICC_BPR0_EL1 or ICC_BPR1_EL1; too small a value becomes the smallest.
    pub fn set_point(&mut self, group: usize, value: u8) {
        self.points[group] = (value & 7).max(Self::least(self.bits) + group as u8);
    }

    /// ICC_BPR0_EL1 or ICC_BPR1_EL1.
    pub fn point(&self, group: usize) -> u8 {
        if group == 1 && self.common_point {
            return (self.points[0] + 1).min(7);
        }
        self.points[group]
    }

    /// Bits of a priority that decide about pre-emption. A binary point n of group 0 makes them bits 7 to
    /// n + 1, of group 1 bits 7 to n (IHI 0069H, table 4-8).
    fn point_mask(&self, group: usize) -> u8 {
        let lowest = match group {
            1 if !self.common_point => u32::from(self.points[1]),
            _ => u32::from(self.points[0]) + 1,
        };
        (0xff_u32 << lowest) as u8
    }

    /// ICC_RPR_EL1.
    pub fn running(&self) -> u8 {
        self.active.last().copied().unwrap_or(IDLE)
    }

    /// Whether an interrupt is urgent enough to be signalled.
    pub fn signals(&self, group: usize, priority: u8) -> bool {
        self.enabled[group]
            && priority < self.mask
            && (self.active.is_empty()
                || priority & self.point_mask(group) < self.running() & self.point_mask(group))
    }

    /// An interrupt is acknowledged.
    pub fn acknowledge(&mut self, group: usize, priority: u8) {
        self.active.push(priority & self.point_mask(group));
    }

    /// Drops the running priority; `false` if nothing was active.
    pub fn drop_priority(&mut self) -> bool {
        self.active.pop().is_some()
    }
}

/// Bits of a priority that exist.
pub const fn implemented(bits: u32) -> u8 {
    (0xff_u32 << (8 - bits)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Interface {
        let mut interface = Interface::new(5);
        interface.set_mask(0xff);
        interface.enabled = [true; 2];
        interface
    }

    #[test]
    fn bits_that_do_not_exist_read_as_zero() {
        assert_eq!(open().mask(), 0xf8);
        let mut interface = open();
        interface.set_point(0, 0);
        interface.set_point(1, 0);
        assert_eq!((interface.point(0), interface.point(1)), (2, 3));
    }

    #[test]
    fn the_binary_point_decides_about_preemption() {
        let mut interface = open();
        interface.acknowledge(1, 0x50);
        assert!(interface.signals(1, 0x48));
        assert!(!interface.signals(1, 0x50));
        assert!(interface.drop_priority());
        interface.set_point(1, 5);
        interface.acknowledge(1, 0x50);
        assert_eq!(interface.running(), 0x40);
        assert!(!interface.signals(1, 0x48));
        assert!(interface.signals(1, 0x38));
        assert!(interface.drop_priority());
        assert_eq!(interface.running(), IDLE);
        assert!(!interface.drop_priority());
    }

    #[test]
    fn the_mask_hides_its_own_priority() {
        let mut interface = open();
        interface.set_mask(0x80);
        assert!(interface.signals(0, 0x78));
        assert!(!interface.signals(0, 0x80));
        interface.enabled[0] = false;
        assert!(!interface.signals(0, 0x78));
    }
}
