//! Walks of EL1&0 on cores that do some by speculation, with whatever the registers hold at that moment, and keep the result: a switch changes
//! those registers one by one, and a result of some of one vCPU and some of another stays in the TLB under the name of one of them.
//!
//! The order that keeps such walks off is that of the workaround for the errata: no walks (TCR_EL1.EPD0, EPD1), then stage 1 on (SCTLR_EL1.M),
//! so that nothing is translated at all; the registers; SCTLR_EL1 of the next vCPU; its TCR_EL1. An ISB stands between each two.

use bulkhead_plugin::sanitizer::Rule;

use crate::cpu::ROOT;
use crate::decode::Register;
use crate::model::{At, Machine, Model};
use crate::tables::{Root, Stage};

/// TCR_EL1.EPD0 and EPD1
const OFF: u64 = 1 << 7 | 1 << 23;
/// SCTLR_EL1.M
const ON: u64 = 1;

/// A condition that the last write of a register has brought about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Holds {
    /// It does not hold, as far as is known.
    #[default]
    No,
    /// It was written, and no context synchronization event has followed.
    Written,
    /// It holds.
    Yes,
}

impl Holds {
    const fn written(holds: bool) -> Self {
        if holds { Self::Written } else { Self::No }
    }
}

/// What EL2 has made of the registers of EL1 since the last guest ran.
#[derive(Clone, Copy, Debug, Default)]
pub struct Walks {
    /// Walks are off.
    off: Holds,
    /// Stage 1 is on.
    on: Holds,
    /// Address of the last write of a register that is not synchronised.
    written: Option<u64>,
    /// Registers of another vCPU than the last guest's were written.
    mixed: bool,
}

impl Walks {
    /// A context synchronization event.
    pub fn synchronize(&mut self) {
        for holds in [&mut self.off, &mut self.on] {
            if *holds == Holds::Written {
                *holds = Holds::Yes;
            }
        }
        self.written = None;
    }
}

/// Whether a core walks by speculation: Cortex-A55, A57, A72, and A76 to r2p0.
const fn by_speculation(midr: u64) -> bool {
    const ARM: u64 = 0x41;
    let (variant, revision) = (midr >> 20 & 15, midr & 15);
    midr >> 24 == ARM
        && match midr >> 4 & 0xfff {
            0xd05 | 0xd07 | 0xd08 => true,
            0xd0b => variant < 2 || (variant == 2 && revision == 0),
            _ => false,
        }
}

impl Model {
    /// Whether walks of the CPU matter: until a guest has run there is nothing to mix.
    fn watches_walks(&self, cpu: usize) -> bool {
        let cpu = &self.cpus[cpu];
        by_speculation(cpu.now.midr) && cpu.last_guest.is_some()
    }

    /// Registers of EL1 are the guest's again.
    pub(crate) fn forget_walks(&mut self, cpu: usize) {
        self.cpus[cpu].walks = Walks::default();
    }

    /// VTTBR_EL2 gets another VMID. Where nothing is mapped a walk leaves nothing in the TLB; and what is in the registers is of the guest that has run last.
    pub(crate) fn change_vmid(&mut self, at: At, vttbr: u64, machine: &dyn Machine) {
        if !self.watches_walks(at.cpu) {
            return;
        }
        let cpu = &self.cpus[at.cpu];
        let vmid = (vttbr >> 48) as u16;
        if !cpu.walks.mixed && cpu.last_guest == Some(vmid) {
            return;
        }
        let named = |root: &Root| root.stage == Stage::Guest && root.pa == vttbr & ROOT;
        let known = self.roots.iter().position(named);
        if let Some(index) = known {
            self.walk(at, index, machine);
        }
        if known.is_none_or(|index| self.roots[index].maps()) {
            self.changes_vcpu(at, Register::Vttbr);
        }
    }

    /// A register is written that belongs to one vCPU.
    fn changes_vcpu(&mut self, at: At, register: Register) {
        if !self.watches_walks(at.cpu) {
            return;
        }
        let walks = self.cpus[at.cpu].walks;
        if (walks.off, walks.on) != (Holds::Yes, Holds::Yes) {
            let what = format!(
                "writes {} of another vCPU while walks of EL1 are not off, with stage 1 on",
                register.name()
            );
            self.report(at, Rule::SpeculativeAt, what);
        }
        let walks = &mut self.cpus[at.cpu].walks;
        (walks.written, walks.mixed) = (Some(at.pc), true);
    }

    /// A write of a register of stage 1 of EL1.
    pub(crate) fn write_stage1(&mut self, at: At, register: Register, value: u64) {
        if !self.watches_walks(at.cpu) {
            return;
        }
        let walks = self.cpus[at.cpu].walks;
        let (becomes, relies) = match register {
            Register::El1Tcr => (value & OFF == OFF, "walks go on again"),
            Register::El1Sctlr => (value & ON == ON, "SCTLR_EL1 changes"),
            _ => return self.changes_vcpu(at, register),
        };
        let is_off = register == Register::El1Tcr && becomes;
        if let Some(pc) = walks.written.filter(|_| !is_off) {
            let what = format!("{relies} before the write at pc {pc:#x} is synchronised");
            self.report(at, Rule::SpeculativeAt, what);
        }
        if register == Register::El1Sctlr && becomes && walks.off != Holds::Yes {
            let what = "stage 1 goes on before walks are off".to_owned();
            self.report(at, Rule::SpeculativeAt, what);
        }
        let walks = &mut self.cpus[at.cpu].walks;
        if register == Register::El1Tcr {
            walks.off = Holds::written(becomes);
        } else {
            walks.on = Holds::written(becomes);
        }
        if !is_off {
            walks.written = Some(at.pc);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::by_speculation;

    #[test]
    fn cores_are_told_apart() {
        let arm = |part: u64, variant: u64, revision: u64| {
            0x410f_0000 | variant << 20 | part << 4 | revision
        };
        let known = [
            (0xd05, 2, 0),
            (0xd07, 1, 3),
            (0xd08, 0, 3),
            (0xd0b, 1, 1),
            (0xd0b, 2, 0),
        ];
        assert!(
            known
                .iter()
                .all(|(part, variant, revision)| by_speculation(arm(*part, *variant, *revision)))
        );
        let others = [(0xd03, 0, 4), (0xd0b, 2, 1), (0xd0b, 4, 0), (0xd0c, 4, 1)];
        assert!(
            !others
                .iter()
                .any(|(part, variant, revision)| by_speculation(arm(*part, *variant, *revision)))
        );
        assert!(!by_speculation(0x510f_d083), "another implementer");
    }
}
