//! Software-generated interrupts: by GICD_SGIR on GICv2, by ICC_SGI0R_EL1 and ICC_SGI1R_EL1 on GICv3.

use crate::Gic;

impl Gic {
    /// GICD_SGIR (IHI 0048B, 4.3.15).
    pub(crate) fn sgir(&mut self, cpu: usize, value: u32) {
        let all = (1_u32 << self.config.cpus) - 1;
        let own = 1 << cpu;
        let targets = match value >> 24 & 3 {
            0 => value >> 16 & 0xff & all,
            1 => all & !own,
            2 => own,
            _ => 0,
        };
        let intid = (value & 15) as usize;
        for target in (0..self.config.cpus).filter(|n| targets >> n & 1 != 0) {
            self.private[target][intid].sources |= 1 << cpu;
        }
    }

    /// A write to ICC_SGI1R_EL1 (`group` 1) or ICC_SGI0R_EL1 (`group` 0). With one Security state the former
    /// reaches SGIs of both groups, the latter those of group 0 (IHI 0069H, "Forwarding an SGI to a target PE").
    pub fn send_sgi(&mut self, cpu: usize, group: usize, value: u64) {
        let intid = (value >> 24 & 15) as usize;
        let to_others = value >> 40 & 1 != 0;
        let affinity = [value >> 48 & 0xff, value >> 32 & 0xff, value >> 16 & 0xff];
        let range = value >> 44 & 15;
        for target in 0..self.config.cpus {
            let listed = affinity == [0; 3] && range == 0 && value >> target & 1 != 0;
            let meant = if to_others { target != cpu } else { listed };
            let sgi = &mut self.private[target][intid];
            if meant && (group == 1 || sgi.group == 0) {
                sgi.latch = true;
            }
        }
    }
}
