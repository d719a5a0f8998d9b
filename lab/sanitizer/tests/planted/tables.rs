//! Descriptors: break-before-make, new entries, stale ones.

use super::*;

#[test]
fn a_window_is_moved_without_being_closed() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.load(WINDOW);
        if !planted {
            drop_copy_window(code);
        }
        code.store(entry(WINDOW), 0x4060_0000 | BLOCK)
            .ops(&[DSB_ISHST, ISB])
            .load(WINDOW);
        enter(code);
    };
    judge(program, &[Rule::BreakBeforeMake]);
}

#[test]
fn a_window_is_opened_before_the_old_one_is_gone() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.store(entry(WINDOW), 0)
            .ops(&[DSB_ISHST])
            .sys(TLBI_VAE2, page(WINDOW));
        if !planted {
            code.ops(&[DSB_NSH, ISB]);
        }
        code.store(entry(WINDOW), 0x4060_0000 | BLOCK)
            .ops(&[DSB_ISH, ISB])
            .load(WINDOW);
        enter(code);
    };
    judge(program, &[Rule::BreakBeforeMake]);
}

#[test]
fn rights_change_in_place_but_memory_does_not() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        let other = if planted { 2 << 20 } else { 0 };
        code.store(entry(WINDOW), (FREE + other) | BLOCK | READ_ONLY)
            .ops(&[DSB_ISHST])
            .sys(TLBI_VAE2, page(WINDOW))
            .ops(&[DSB_NSH, ISB])
            .load(WINDOW);
        enter(code);
    };
    judge(program, &[Rule::BreakBeforeMake]);
}

#[test]
fn stage_2_of_a_guest_that_ran_changes_in_place() {
    let program: Program = |machine, planted| {
        enter(translate(&mut machine.first));
        let code = &mut machine.again;
        if !planted {
            code.store(guest_entry(SECOND_BLOCK), 0)
                .ops(&[DSB_ISHST])
                .sys(TLBI_IPAS2E1, page(SECOND_BLOCK))
                .ops(&[DSB_ISH, TLBI_VMALLE1, DSB_ISH]);
        }
        code.store(guest_entry(SECOND_BLOCK), GUEST | GUEST_BLOCK)
            .ops(&[DSB_ISHST]);
    };
    judge(program, &[Rule::BreakBeforeMake]);
}

#[test]
fn stage_2_alone_is_not_all_that_tlbs_hold() {
    let program: Program = |machine, planted| {
        enter(translate(&mut machine.first));
        let code = &mut machine.again;
        code.store(guest_entry(SECOND_BLOCK), 0)
            .ops(&[DSB_ISHST])
            .sys(TLBI_IPAS2E1, page(SECOND_BLOCK))
            .ops(&[DSB_ISH]);
        if !planted {
            code.ops(&[TLBI_VMALLE1, DSB_ISH]);
        }
    };
    judge(program, &[Rule::StaleEntry]);
}

#[test]
fn a_new_window_is_used_without_isb() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.store(entry(CLOSED), FREE | BLOCK).ops(&[DSB_ISHST]);
        if !planted {
            code.ops(&[ISB]);
        }
        enter(code.load(CLOSED));
    };
    judge(program, &[Rule::NewEntry]);
}

#[test]
fn a_new_window_is_used_without_dsb() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.store(entry(CLOSED), FREE | BLOCK);
        code.ops(if planted { &[ISB] } else { &[DSB_ISHST, ISB] });
        enter(code.load(CLOSED));
    };
    judge(program, &[Rule::NewEntry]);
}

#[test]
fn a_guest_is_entered_with_tables_that_no_dsb_followed() {
    let program: Program = |machine, planted| {
        enter(translate(&mut machine.first));
        let code = &mut machine.again;
        code.store(guest_entry(0x4140_0000), 0x4140_0000 | GUEST_BLOCK);
        if !planted {
            code.ops(&[DSB_ISHST]);
        }
    };
    judge(program, &[Rule::NewEntry]);
}

#[test]
fn memory_is_taken_from_a_guest_without_tlbi() {
    let program: Program = |machine, planted| {
        enter(translate(&mut machine.first));
        let code = &mut machine.again;
        code.store(guest_entry(SECOND_BLOCK), 0).ops(&[DSB_ISHST]);
        if !planted {
            code.ops(&[TLBI_VMALLS12E1, DSB_ISH]);
        }
    };
    judge(program, &[Rule::StaleEntry]);
}

#[test]
fn memory_is_used_again_before_tlbs_have_forgotten_it() {
    let program: Program = |machine, planted| {
        enter(translate(&mut machine.first));
        let code = &mut machine.again;
        code.store(guest_entry(SECOND_BLOCK), 0).ops(&[DSB_ISHST]);
        if planted {
            code.store(SECOND_BLOCK, 0);
        }
        code.ops(&[TLBI_VMALLS12E1, DSB_ISH]).store(SECOND_BLOCK, 0);
    };
    judge(program, &[Rule::StaleEntry]);
}
