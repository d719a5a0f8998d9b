//! Each rule against a small program for EL2 with one planted defect, and against the same program
//! without it, in QEMU. The sound ones must stay silent and reach their end.
#![forbid(unsafe_code)]
// The words of programs and what tests read of them.
#![allow(missing_docs, clippy::unusual_byte_groupings)]

mod code;
mod machine;

use bulkhead_plugin::sanitizer::Rule;
use code::*;
use machine::*;

/// CPUs take turns, as in most system tests.
const TURNS: [&str; 2] = ["-icount", "shift=0,sleep=off"];

/// A program, sound or with its defect.
type Program = fn(&mut Machine, bool);

/// Checks a pair of programs: the planted defect gives exactly `rules`, the sound program nothing.
fn judge(program: Program, rules: &[Rule]) {
    let made = |planted| {
        let mut machine = Machine::default();
        program(&mut machine, planted);
        run(&machine, &TURNS)
    };
    let sound = made(false);
    assert!(
        sound.findings.is_empty(),
        "without defect: {:#?}",
        sound.findings
    );
    assert_eq!(sound.entered, 1, "the sound program enters its guest");
    let found = made(true).findings;
    let mut broken: Vec<Rule> = found.iter().map(|finding| finding.rule).collect();
    broken.sort();
    broken.dedup();
    assert_eq!(broken, rules, "{found:#?}");
    for finding in &found {
        assert!(finding.place.starts_with("sample+0x"), "{finding}");
    }
}

/// Drops EL2's window as the architecture asks.
fn drop_window(code: &mut Code) -> &mut Code {
    code.store(entry(WINDOW), 0)
        .ops(&[DSB_ISHST])
        .sys(TLBI_VAE2, page(WINDOW))
        .ops(&[DSB_NSH, ISB])
}

/// Writes guest memory and cleans it.
fn write_guest(code: &mut Code) -> &mut Code {
    code.store(SECOND_BLOCK, 7)
        .sys(DC_CVAC, SECOND_BLOCK)
        .ops(&[DSB_SY])
}

mod tables {
    use super::*;

    #[test]
    fn a_window_is_moved_without_being_closed() {
        let program: Program = |machine, planted| {
            let code = translate(&mut machine.first);
            code.load(WINDOW);
            if !planted {
                drop_window(code);
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
}

mod tlbs {
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
}

mod registers {
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
}

mod caches {
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
}

mod others {
    use super::*;

    /// PSCI CPU_ON for 64 bits.
    const CPU_ON: u64 = 0xc400_0003;
    const FLAG: u64 = FREE + 0x1000;
    const DATA: u64 = FREE + 0x2000;

    /// The second CPU says that it is there and waits.
    fn present() -> Code {
        let mut code = Code::default();
        translate(&mut code).store(FLAG, 1).sleep();
        code
    }

    #[test]
    fn a_cpu_reads_with_caches_off_what_was_not_cleaned() {
        let program: Program = |machine, planted| {
            let mut second = Code::default();
            translate(second.load(DATA)).store(FLAG, 1).sleep();
            machine.second = Some(second);
            let code = translate(&mut machine.first);
            code.store(DATA, 7);
            if !planted {
                code.sys(DC_CVAC, DATA);
            }
            code.ops(&[DSB_SY]).call(CPU_ON, 1, SECOND);
            enter(code.wait(FLAG));
        };
        judge(program, &[Rule::PastCaches]);
    }

    #[test]
    fn a_cpu_is_started_before_its_data_is_there() {
        let program: Program = |machine, planted| {
            let mut second = Code::default();
            translate(&mut second).load(DATA).store(FLAG, 1).sleep();
            machine.second = Some(second);
            let code = translate(&mut machine.first);
            code.store(DATA, 7);
            if !planted {
                code.ops(&[DSB_ISHST]);
            }
            enter(code.call(CPU_ON, 1, SECOND).wait(FLAG));
        };
        judge(program, &[Rule::Signal]);
    }

    fn message(machine: &mut Machine, barrier: Option<u32>) -> &mut Code {
        machine.second = Some(present());
        let code = translate(&mut machine.first);
        code.call(CPU_ON, 1, SECOND).wait(FLAG).store(DATA, 7);
        code.ops(barrier.as_slice())
    }

    #[test]
    fn a_message_is_signalled_before_it_is_there() {
        let program: Program = |machine, planted| {
            let barrier = if planted { DMB_ISHST } else { DSB_ISHST };
            let code = message(machine, Some(barrier));
            // SGI 0 to the second CPU; one to itself needs nothing.
            code.sys(SGI1R, 1 << 1);
            enter(code.store(DATA, 8).sys(SGI1R, 1 << 0));
        };
        judge(program, &[Rule::Signal]);
    }

    #[test]
    fn a_message_is_signalled_by_gicv2_before_it_is_there() {
        let program: Program = |machine, planted| {
            machine.gic = 2;
            let code = message(machine, (!planted).then_some(DMB_ISHST));
            // GICD_SGIR: SGI 0 to the second CPU.
            enter(code.store_word(0x0800_0f00, 1 << 17));
        };
        judge(program, &[Rule::Signal]);
    }

    #[test]
    fn what_cannot_be_followed_is_told() {
        let program: Program = |machine, planted| {
            machine.cpu = "max";
            let code = translate(&mut machine.first);
            if planted {
                code.sys(TLBI_RVAE2, page(WINDOW));
            } else {
                code.sys(TLBI_VAE2, page(WINDOW));
            }
            enter(code.ops(&[DSB_NSH, ISB]));
        };
        judge(program, &[Rule::Unfollowed]);
    }

    #[test]
    fn cpus_in_parallel_are_told_apart() {
        for timing in [&TURNS[..], &["-accel", "tcg,thread=multi"]] {
            let mut machine = Machine::default();
            enter(message(&mut machine, None).sys(SGI1R, 1 << 1));
            let found = run(&machine, timing).findings;
            assert_eq!(found.len(), 1, "{found:#?}");
            assert_eq!((found[0].rule, found[0].cpu & 0xff), (Rule::Signal, 0));
        }
    }
}
