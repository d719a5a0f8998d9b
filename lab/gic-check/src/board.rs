//! The physical GIC of the board, as far as the vGIC has to do with it.

/// A physical interrupt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Physical {
    /// May be signalled.
    pub enabled: bool,
    /// Edge-triggered, else level-sensitive.
    pub edge: bool,
    /// Input signal.
    pub line: bool,
    /// An edge came, or it was set pending.
    pub latch: bool,
    /// Acknowledged and not deactivated.
    pub active: bool,
    /// SPIs: the pCPU that it goes to.
    pub target: usize,
    /// The plan gave it to the VM.
    pub given: bool,
}

impl Physical {
    /// Pending, or active and pending.
    pub fn pending(&self) -> bool {
        self.latch || (!self.edge && self.line)
    }

    /// The input signal goes up or down.
    pub fn set_line(&mut self, up: bool) {
        self.latch |= self.edge && up && !self.line;
        self.line = up;
    }
}

/// The interrupts of the board.
#[derive(Clone, Debug)]
pub struct Board {
    private: Vec<[Physical; 32]>,
    spis: Vec<Physical>,
    /// INTIDs that were ever touched, in order: nothing is the matter with the others, and each step looks at all.
    touched: Vec<u32>,
}

impl Board {
    /// Interrupts for so many pCPUs, none of them given to the VM.
    pub fn new(pcpus: usize) -> Self {
        Self {
            private: vec![[Physical::default(); 32]; pcpus],
            spis: vec![Physical::default(); 512],
            touched: Vec::new(),
        }
    }

    /// The interrupt with this physical INTID, as a pCPU sees it.
    pub fn at(&mut self, pcpu: usize, pintid: u32) -> &mut Physical {
        if let Err(place) = self.touched.binary_search(&pintid) {
            self.touched.insert(place, pintid);
        }
        match pintid {
            0..32 => &mut self.private[pcpu][pintid as usize],
            _ => &mut self.spis[pintid as usize - 32],
        }
    }

    /// The same to look at.
    pub fn get(&self, pcpu: usize, pintid: u32) -> &Physical {
        match pintid {
            0..32 => &self.private[pcpu][pintid as usize],
            _ => &self.spis[pintid as usize - 32],
        }
    }

    /// The interrupt that a pCPU would take now. All have one priority: the lowest number wins.
    pub fn signalled(&self, pcpu: usize) -> Option<u32> {
        let mut touched = self.touched.iter().copied();
        touched.find(|&pintid| {
            let one = self.get(pcpu, pintid);
            let here = pintid < 32 || one.target == pcpu;
            here && one.enabled && one.pending() && !one.active
        })
    }
}
