//! TLBI: its order, its completion, and old entries.

use super::*;

#[test]
fn a_tlbi_does_not_wait_for_the_store() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.store(entry(WINDOW), 0);
        if !planted {
            code.ops(&[DSB_ISHST]);
        }
        code.sys(TLBI_VAE2, page(WINDOW)).ops(&[DSB_NSH, ISB]);
        enter(code);
    };
    // The entry was not dropped, then, when the guest is entered.
    judge(program, &[Rule::StaleEntry, Rule::TlbiOrder]);
}

#[test]
fn a_tlbi_is_not_waited_for() {
    let program: Program = |machine, planted| {
        enter(translate(&mut machine.first));
        let code = &mut machine.again;
        code.store(guest_entry(SECOND_BLOCK), 0)
            .ops(&[DSB_ISHST, TLBI_VMALLS12E1]);
        if !planted {
            code.ops(&[DSB_ISH]);
        }
    };
    judge(program, &[Rule::StaleEntry, Rule::TlbiCompletion]);
}

#[test]
fn a_tlbi_is_not_synchronised() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.store(entry(WINDOW), 0)
            .ops(&[DSB_ISHST, TLBI_ALLE2, DSB_NSH]);
        if !planted {
            code.ops(&[ISB]);
        }
        enter(code.load(FREE));
    };
    judge(program, &[Rule::TlbiCompletion]);
}

#[test]
fn the_mmu_is_turned_on_with_old_entries() {
    let program: Program = |machine, planted| {
        let code = &mut machine.first;
        code.sys(TCR, TCR_VALUE)
            .sys(MAIR, MAIR_VALUE)
            .sys(TTBR0, ROOT)
            .ops(&[ISB]);
        if !planted {
            code.ops(&[TLBI_ALLE2, DSB_NSH, ISB]);
        }
        code.sys(VBAR, 0x4010_8000)
            .sys(SCTLR, SCTLR_VALUE)
            .ops(&[ISB]);
        enter(code);
    };
    judge(program, &[Rule::OldEntries]);
}

#[test]
fn another_map_is_used_with_entries_of_the_old() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.load(WINDOW).sys(TTBR0, OTHER_ROOT).ops(&[ISB]);
        if !planted {
            code.ops(&[TLBI_ALLE2, DSB_NSH, ISB]);
        }
        enter(code.load(FREE).load(WINDOW));
    };
    judge(program, &[Rule::OldEntries]);
}

#[test]
fn a_vmid_is_entered_with_old_entries() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.sys(HCR, HCR_VALUE)
            .sys(VTCR, VTCR_VALUE)
            .sys(VTTBR, VTTBR_VALUE)
            .ops(&[ISB]);
        if !planted {
            code.ops(&[TLBI_VMALLS12E1]);
        }
        leave(code.ops(&[IC_IALLU, DSB_NSH, ISB]));
    };
    judge(program, &[Rule::OldEntries]);
}
