//! The state machine of one interrupt.

/// An interrupt: for SGIs and PPIs one for each CPU, for SPIs one for all.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    /// May be forwarded.
    pub enabled: bool,
    /// 0 or 1.
    pub group: usize,
    /// 0 is the most urgent.
    pub priority: u8,
    /// Edge-triggered, else level-sensitive.
    pub edge: bool,
    /// The trigger cannot be written.
    pub fixed: bool,
    /// Input signal.
    pub line: bool,
    /// An edge came, or software set it pending.
    pub latch: bool,
    /// GICv2 SGIs: a bit for each CPU whose SGI is pending.
    pub sources: u8,
    /// Active.
    pub active: bool,
    /// The CPU that acknowledged it and has not deactivated it.
    pub taken_by: Option<usize>,
    /// SPIs. GICv2: a bit for each target CPU; GICv3: the affinity.
    pub route: u64,
}

impl Interrupt {
    /// Pending or active and pending (IHI 0069H, 4.1.2; IHI 0048B, 3.2.4).
    pub fn pending(&self) -> bool {
        self.latch || self.sources != 0 || (!self.edge && self.line)
    }

    /// The input signal goes up or down.
    pub fn set_line(&mut self, up: bool) {
        if self.edge && up && !self.line {
            self.latch = true;
        }
        self.line = up;
    }

    /// Pending to active, or active and pending if the signal of a level is up or another CPU's SGI waits.
    pub fn acknowledge(&mut self, source: usize) {
        self.active = true;
        self.latch = false;
        self.sources &= !(1 << source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_pending_while_its_line_is_up() {
        let mut interrupt = Interrupt::default();
        interrupt.set_line(true);
        interrupt.acknowledge(0);
        assert!(interrupt.pending() && interrupt.active);
        interrupt.set_line(false);
        assert!(!interrupt.pending() && interrupt.active);
    }

    #[test]
    fn an_edge_is_pending_once() {
        let mut interrupt = Interrupt {
            edge: true,
            ..Interrupt::default()
        };
        interrupt.set_line(true);
        interrupt.set_line(true);
        interrupt.acknowledge(0);
        assert!(!interrupt.pending());
        interrupt.set_line(false);
        assert!(!interrupt.pending());
        interrupt.set_line(true);
        assert!(interrupt.pending());
    }

    #[test]
    fn software_makes_a_level_pending_until_it_is_taken() {
        let mut interrupt = Interrupt {
            latch: true,
            ..Interrupt::default()
        };
        assert!(interrupt.pending());
        interrupt.acknowledge(0);
        assert!(!interrupt.pending());
    }
}
