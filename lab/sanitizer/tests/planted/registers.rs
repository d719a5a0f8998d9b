//! Register writes and what relies on them.

use super::*;

#[test]
fn a_tlbi_takes_the_vmid_before_isb() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.sys(HCR, HCR_VALUE)
            .sys(VTCR, VTCR_VALUE)
            .sys(VTTBR, VTTBR_VALUE);
        if !planted {
            code.ops(&[ISB]);
        }
        leave(code.ops(&[TLBI_VMALLS12E1, IC_IALLU, DSB_NSH, ISB]));
    };
    judge(program, &[Rule::RegisterWrite]);
}

#[test]
fn eret_is_judged_by_a_hcr_that_is_not_synchronised() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        prepare_guest(code).sys(HCR, 0).ops(&[ISB]);
        code.sys(HCR, HCR_VALUE);
        if !planted {
            code.ops(&[ISB]);
        }
        leave(code);
    };
    judge(program, &[Rule::RegisterWrite]);
}

#[test]
fn eret_need_not_synchronise() {
    // With SCTLR_EL2.EOS = 1 it does, so that the sound program needs no ISB.
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        prepare_guest(code);
        let eos = if planted { EXIT_SYNCHRONIZES } else { 0 };
        code.sys(SCTLR, SCTLR_VALUE & !eos)
            .ops(&[ISB])
            .sys(VTTBR, VTTBR_VALUE);
        leave(code);
    };
    judge(program, &[Rule::RegisterWrite]);
}

#[test]
fn the_mmu_is_turned_on_before_its_registers_are() {
    let program: Program = |machine, planted| {
        let code = &mut machine.first;
        prepare_map(code).sys(MAIR, MAIR_VALUE);
        if !planted {
            code.ops(&[ISB]);
        }
        enter(code.sys(SCTLR, SCTLR_VALUE).ops(&[ISB]));
    };
    judge(program, &[Rule::RegisterWrite]);
}

#[test]
fn memory_is_accessed_while_the_map_changes() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.sys(TTBR0, OTHER_ROOT);
        if planted {
            code.load(FREE);
        }
        enter(code.ops(&[ISB, TLBI_ALLE2, DSB_NSH, ISB]).load(FREE));
    };
    judge(program, &[Rule::RegisterWrite]);
}

#[test]
fn an_fp_instruction_comes_before_its_trap_is_off() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.sys(CPTR, CPTR_VALUE);
        if !planted {
            code.ops(&[ISB]);
        }
        enter(code.ops(&[FMOV_D0]));
    };
    judge(program, &[Rule::RegisterWrite]);
}

#[test]
fn a_counter_is_accessed_before_it_is_selected() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.sys(PMSELR, 0);
        if !planted {
            code.ops(&[ISB]);
        }
        enter(code.sys(PMXEVCNTR, 0));
    };
    judge(program, &[Rule::RegisterWrite]);
}

#[test]
fn a_translation_is_read_before_isb() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.sys(AT_S1E2R, WINDOW);
        if !planted {
            code.ops(&[ISB]);
        }
        enter(code.ops(&[MRS_PAR]));
    };
    judge(program, &[Rule::TranslationResult]);
}

/// ESR_EL2 as if the exit had been an abort of the guest's data, by a fault of this status; 1 << 7: on a walk of its stage 1.
fn aborted(machine: &mut Machine, statuses: &[u64]) {
    translate(&mut machine.first);
    for status in statuses {
        let code = machine.first.sys(ESR, 0x24 << 26 | status);
        code.ops(&[ISB, MRS_HPFAR]);
    }
    enter(&mut machine.first);
}

#[test]
fn the_address_of_a_permission_fault_is_read() {
    // Address size, translation and access flag faults of level 3, and a permission fault on a walk.
    const KNOWN: [u64; 4] = [0x03, 0x07, 0x0b, 1 << 7 | 0x0f];
    let program: Program = |machine, planted| {
        aborted(machine, if planted { &[0x0f] } else { &KNOWN });
    };
    judge(program, &[Rule::FaultAddress]);
}

#[test]
fn the_address_of_a_fault_is_read_where_there_was_none() {
    let program: Program = |machine, planted| {
        if planted {
            // What the guest does is a call.
            machine.again.ops(&[MRS_HPFAR]);
        }
        enter(translate(&mut machine.first));
    };
    judge(program, &[Rule::FaultAddress]);
}
