//! RD_base: the first frame of a redistributor (IHI 0069H, 12.11).

use crate::{Frame, Gic};

impl Gic {
    pub(crate) fn read_redistributor(&self, frame: Frame, offset: u64) -> u32 {
        let Frame::Redistributor(of) = frame else {
            return 0;
        };
        let last = of + 1 == self.config.cpus;
        match offset {
            // Processor_Number, Last; no LPIs.
            0x08 => (of as u32) << 8 | u32::from(last) << 4,
            // The affinity.
            0x0c => of as u32,
            // ProcessorSleep, and ChildrenAsleep, which follows at once.
            0x14 => u32::from(self.asleep[of]) * 0b110,
            _ => 0,
        }
    }

    pub(crate) fn write_redistributor(&mut self, frame: Frame, offset: u64, value: u32) {
        if let (Frame::Redistributor(of), 0x14) = (frame, offset) {
            self.asleep[of] = value & 0b10 != 0;
        }
    }
}
