//! Memory for guests, instructions, and memory past the caches.

use super::*;

#[test]
fn a_page_goes_to_a_guest_uncleaned() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.store(SECOND_BLOCK + 0x1fc0, 7);
        if !planted {
            code.sys(DC_CVAC, SECOND_BLOCK + 0x1ff8);
        }
        enter(code.ops(&[DSB_SY]));
    };
    judge(program, &[Rule::Clean]);
}

#[test]
fn a_page_is_zeroed_by_dc_zva_through_a_window_and_not_cleaned() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.store(entry(CLOSED), SECOND_BLOCK | BLOCK)
            .ops(&[DSB_ISHST, ISB])
            .sys(DC_ZVA, CLOSED + 0x40);
        code.sys(if planted { DC_ZVA } else { DC_CIVAC }, CLOSED + 0x40);
        enter(code.ops(&[DSB_SY]));
    };
    judge(program, &[Rule::Clean]);
}

#[test]
fn a_line_of_a_cache_is_written_past_it_by_another_mapping() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.store(SECOND_BLOCK, 7);
        if !planted {
            code.sys(DC_CIVAC, SECOND_BLOCK).ops(&[DSB_SY]);
        }
        // What is written past the caches needs no clean.
        enter(code.store(UNCACHED, 8).ops(&[DSB_SY]));
    };
    judge(program, &[Rule::Clean, Rule::PastCaches]);
}

#[test]
fn a_clean_is_not_waited_for() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.sys(HCR, HCR_VALUE)
            .sys(VTCR, VTCR_VALUE)
            .sys(VTTBR, VTTBR_VALUE)
            .ops(&[ISB, TLBI_VMALLS12E1, DSB_NSH, ISB]);
        code.store(SECOND_BLOCK, 7).sys(DC_CVAC, SECOND_BLOCK);
        // A barrier of this pCPU alone does not reach the point of coherency.
        code.ops(&[if planted { DSB_NSH } else { DSB_SY }]);
        leave(code.ops(&[IC_IALLU, DSB_NSH, ISB]));
    };
    judge(program, &[Rule::Clean]);
}

#[test]
fn memory_of_a_guest_that_ran_is_written_uncleaned() {
    let program: Program = |machine, planted| {
        enter(translate(&mut machine.first));
        let code = &mut machine.again;
        if planted {
            code.store(GUEST + 0x1000, 7).ops(&[DSB_SY]);
        } else {
            write_guest(code).ops(&[IC_IALLU, DSB_NSH, ISB]);
        }
    };
    judge(program, &[Rule::Clean]);
}

#[test]
fn old_instructions_are_not_dropped() {
    let program: Program = |machine, planted| {
        let code = write_guest(translate(&mut machine.first));
        code.sys(HCR, HCR_VALUE)
            .sys(VTCR, VTCR_VALUE)
            .sys(VTTBR, VTTBR_VALUE)
            .ops(&[ISB, TLBI_VMALLS12E1]);
        if !planted {
            code.ops(&[IC_IALLUIS]);
        }
        leave(code.ops(&[DSB_ISH, ISB]));
    };
    judge(program, &[Rule::Instructions]);
}

#[test]
fn instructions_are_dropped_before_the_clean_is_complete() {
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        if planted {
            enter(code.store(SECOND_BLOCK, 7).sys(DC_CVAC, SECOND_BLOCK));
            // The last DSB in there is NSH: make it one that completes the clean, too late.
            let dsb = code.0.iter().rposition(|word| *word == DSB_NSH);
            code.0[dsb.expect("there is one")] = DSB_ISH;
        } else {
            enter(write_guest(code));
        }
    };
    judge(program, &[Rule::Instructions]);
}

/// Stores two instructions of EL2 and calls them.
fn call_stored(machine: &mut Machine, clean: bool, drop: bool) {
    let code =
        translate(&mut machine.first).store(STORED, u64::from(RET) << 32 | u64::from(DSB_SY));
    if clean {
        code.sys(DC_CVAC, STORED);
    }
    code.ops(&[DSB_SY]);
    if drop {
        code.ops(&[IC_IALLU]);
    }
    enter(code.ops(&[DSB_NSH, ISB]).mov(4, STORED).ops(&[BLR_X4]));
}

#[test]
fn el2_executes_what_it_has_stored_and_not_cleaned() {
    judge(
        |machine, planted| call_stored(machine, !planted, true),
        &[Rule::Instructions],
    );
}

#[test]
fn el2_executes_what_its_instruction_cache_may_have_otherwise() {
    judge(
        |machine, planted| call_stored(machine, true, !planted),
        &[Rule::Instructions],
    );
}

#[test]
fn what_was_written_past_the_cache_is_read_through_it() {
    let program: Program = |machine, planted| {
        let code = &mut machine.first;
        code.store(FREE, 7);
        if !planted {
            code.sys(DC_IVAC, FREE).ops(&[DSB_SY]);
        }
        enter(translate(code).load(FREE));
    };
    judge(program, &[Rule::PastCaches]);
}

#[test]
fn tables_written_past_the_cache_are_walked_through_it() {
    let program: Program = |machine, planted| {
        let code = &mut machine.first;
        code.store(entry(CLOSED), FREE | BLOCK);
        if !planted {
            code.sys(DC_IVAC, entry(CLOSED));
        }
        enter(translate(code.ops(&[DSB_SY])));
    };
    judge(program, &[Rule::PastCaches]);
}
