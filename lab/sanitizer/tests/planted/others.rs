//! Defects that concern another CPU, and code that the sanitizer cannot follow.

use super::*;

const SYSTEM_OFF: u64 = 0x8400_0008;
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

/// The second CPU stores a message and sends SGI 0; the first, when `configured`, acknowledges it by `read` and reads the
/// message.
fn acknowledge(machine: &mut Machine, configured: &Code, read: &Code, planted: bool) {
    let mut second = Code::default();
    translate(&mut second).store(DATA, 7).ops(&[DSB_ISHST]);
    if machine.gic == 2 {
        // GICD_SGIR: SGI 0 to the first CPU.
        second.store_word(0x0800_0f00, 1 << 16);
    } else {
        second.sys(SGI1R, 1);
    }
    second.store(FLAG, 1).sleep();
    machine.second = Some(second);
    let code = prepare_guest(translate(&mut machine.first));
    code.ops(&configured.0).ops(&[DSB_SY]);
    code.call(CPU_ON, 1, SECOND).wait(FLAG).ops(&read.0);
    code.ops(&[if planted { ISB } else { DSB_SY }]);
    leave(code.load(DATA));
}

#[test]
fn a_message_is_read_before_its_sgi_is_acknowledged() {
    let program: Program = |machine, planted| {
        machine.gic = 2;
        let (mut configured, mut read) = (Code::default(), Code::default());
        // GICD_CTLR, GICD_ISENABLER0, GICC_PMR, GICC_CTLR.
        configured
            .store_word(0x0800_0000, 1)
            .store_word(0x0800_0100, 1)
            .store_word(0x0801_0004, 0xff)
            .store_word(0x0801_0000, 1);
        // GICC_IAR
        read.mov(2, 0x0801_000c).ops(&[LDR_WORD]);
        acknowledge(machine, &configured, &read, planted);
    };
    judge(program, &[Rule::Acknowledge]);
    let program: Program = |machine, planted| {
        let (mut configured, mut read) = (Code::default(), Code::default());
        // GICD_CTLR, GICR_WAKER, GICR_IGROUPR0, GICR_ISENABLER0.
        configured
            .store_word(0x0800_0000, 3)
            .store_word(0x080a_0014, 0)
            .store_word(0x080b_0080, 1)
            .store_word(0x080b_0100, 1)
            .sys(SRE_EL2, 0xf)
            .ops(&[ISB])
            .sys(PMR, 0xff)
            .sys(IGRPEN1, 1)
            .ops(&[ISB]);
        read.ops(&[MRS_IAR1]);
        acknowledge(machine, &configured, &read, planted);
    };
    judge(program, &[Rule::Acknowledge]);
}

#[test]
fn windows_of_cpus_with_maps_of_their_own_do_not_mix() {
    const DROPPED: u64 = FLAG + 0x100;
    const GO_ON: u64 = FLAG + 0x200;
    let program: Program = |machine, planted| {
        let mut second = Code::default();
        prepare_map(&mut second)
            .sys(TTBR0, OTHER_ROOT)
            .ops(&[ISB])
            .sys(SCTLR, SCTLR_VALUE)
            .ops(&[ISB]);
        // It is in the middle of dropping its window while the first CPU drops its own, at the same
        // address, and writes what the other's window showed.
        second
            .store(other_entry(WINDOW), 0)
            .store(DROPPED, 1)
            .wait(GO_ON)
            .ops(&[DSB_ISHST])
            .sys(TLBI_VAE2, page(WINDOW))
            .ops(&[DSB_NSH, ISB])
            .store(FLAG, 1)
            .sleep();
        machine.second = Some(second);
        let code = translate(&mut machine.first);
        code.ops(&[DSB_SY]).call(CPU_ON, 1, SECOND).wait(DROPPED);
        let from = code.0.len();
        drop_copy_window(code);
        if planted {
            let dsb = code.0.iter().rposition(|word| *word == DSB_ISHST);
            code.0
                .remove(dsb.filter(|at| *at > from).expect("there is one"));
        }
        code.store(OTHER_FREE, 7).store(GO_ON, 1).wait(FLAG);
        enter(code);
    };
    judge(program, &[Rule::StaleEntry, Rule::TlbiOrder]);
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

#[test]
fn a_guest_goes_on_while_another_cpu_changes_its_tables() {
    const CHANGED: u64 = FLAG + 0x100;
    let program: Program = |machine, planted| {
        // Taking memory away is under way until its TLBI is complete; what is given has to be there.
        let (block, value) = if planted {
            (0x4140_0000, 0x4140_0000 | GUEST_BLOCK)
        } else {
            (SECOND_BLOCK, 0)
        };
        let mut second = Code::default();
        let code = translate(&mut second).wait(FLAG);
        code.store(guest_entry(block), value)
            .store(CHANGED, 1)
            .sleep();
        machine.second = Some(second);
        let code = translate(&mut machine.first);
        enter(code.ops(&[DSB_SY]).call(CPU_ON, 1, SECOND));
        machine.again.store(FLAG, 1).wait(CHANGED);
    };
    judge(program, &[Rule::NewEntry]);
}

#[test]
fn an_active_state_is_still_being_written_when_the_guest_runs() {
    /// GICD_ISACTIVER1.
    const ISACTIVER1: u64 = 0x0800_0304;
    let program: Program = |machine, planted| {
        let code = translate(&mut machine.first);
        code.store_word(ISACTIVER1, 1 << 8);
        if !planted {
            code.mov(2, ISACTIVER1).ops(&[LDR_WORD]);
        }
        enter(code.ops(&[DSB_SY]));
    };
    judge(program, &[Rule::PostedWrite]);
    // The read alone may be under way, too.
    let program: Program = |machine, planted| {
        let code = prepare_guest(translate(&mut machine.first));
        code.store_word(ISACTIVER1, 1 << 8);
        code.mov(2, ISACTIVER1).ops(&[LDR_WORD]);
        leave(code.ops(if planted { &[ISB] } else { &[DSB_SY] }));
    };
    judge(program, &[Rule::PostedWrite]);
}

#[test]
fn an_serror_of_one_guest_comes_while_the_next_runs() {
    let program: Program = |machine, planted| {
        if !planted {
            machine.again.ops(&[DSB_SY, ISB, MRS_ISR]);
        }
        machine.again.sys(VTTBR, 2 << 48 | STAGE2).ops(&[
            ISB,
            TLBI_VMALLS12E1,
            IC_IALLU,
            DSB_NSH,
            ISB,
        ]);
        enter(translate(&mut machine.first));
    };
    judge_entering(program, &[Rule::Serror], 2);
    // A look that nothing has waited for sees nothing.
    let program: Program = |machine, planted| {
        machine.again.ops(if planted {
            &[ISB, MRS_ISR]
        } else {
            &[DSB_SY, ISB, MRS_ISR]
        });
        machine.again.sys(VTTBR, 2 << 48 | STAGE2).ops(&[
            ISB,
            TLBI_VMALLS12E1,
            IC_IALLU,
            DSB_NSH,
            ISB,
        ]);
        enter(translate(&mut machine.first));
    };
    judge_entering(program, &[Rule::Serror], 2);
}

#[test]
fn a_sibling_runs_with_the_translations_of_another() {
    let program: Program = |machine, planted| {
        // By VMPIDR_EL2 CPUs are told apart only until they have a TPIDR_EL2.
        machine.first.sys(TPIDR, 0x1000);
        machine.again.sys(VMPIDR, 1 << 31 | 1);
        if !planted {
            machine
                .again
                .ops(&[ISB, DSB_ISHST, TLBI_VMALLE1, DSB_NSH, ISB]);
        }
        enter(translate(&mut machine.first));
    };
    judge(program, &[Rule::Siblings]);
}

#[test]
fn a_vcpu_goes_on_elsewhere_before_what_it_has_begun_is_complete() {
    fn migrate(machine: &mut Machine, barrier: Option<u32>) {
        const VCPU: u64 = 1 << 31 | 5;
        let mut second = Code::default();
        prepare_guest(translate(second.sys(TPIDR, 0x2000)).sys(VMPIDR, VCPU))
            // Behind the guest's call.
            .sys(ELR, GUEST + 4)
            .sys(SPSR, 0x3c5)
            .ops(&[ERET]);
        machine.second = Some(second);
        machine.again.ops(barrier.as_slice());
        machine.again.call(CPU_ON, 1, SECOND).sleep();
        let code = translate(machine.first.sys(TPIDR, 0x1000));
        enter(code.sys(VMPIDR, VCPU));
    }
    let programs: [Program; 3] = [
        |machine, planted| migrate(machine, (!planted).then_some(DSB_ISH)),
        // It waits for maintenance of its own CPU only.
        |machine, planted| migrate(machine, Some(if planted { DSB_NSH } else { DSB_SY })),
        // It waits for stores only.
        |machine, planted| migrate(machine, Some(if planted { DSB_ISHST } else { DSB_ISH })),
    ];
    for program in programs {
        judge(program, &[Rule::Migration]);
    }
}

#[test]
fn a_core_that_walks_by_speculation_mixes_two_vcpus() {
    /// TCR_EL1.EPD0 and EPD1, and SCTLR_EL1.M.
    const OFF: u64 = 1 << 7 | 1 << 23;
    const ON: u64 = 1;
    /// A switch, of which one step is left out: no walks, stage 1 on, registers, SCTLR_EL1, TCR_EL1, each behind an ISB.
    fn switch(machine: &mut Machine, left_out: Option<usize>) {
        machine.cpu = "cortex-a72";
        let writes: [&[(u32, u64)]; 5] = [
            &[(TCR1, OFF)],
            &[(SCTLR1, ON)],
            &[(VTTBR, 2 << 48 | STAGE2), (TTBR1, STAGE2)],
            &[(SCTLR1, 0)],
            &[(TCR1, 0)],
        ];
        let again = machine.again.ops(&[DSB_SY, ISB, MRS_ISR]);
        for (n, writes) in writes.into_iter().enumerate() {
            if left_out != Some(2 * n) {
                for (register, value) in writes {
                    again.sys(*register, *value);
                }
            }
            if left_out != Some(2 * n + 1) {
                again.ops(&[ISB]);
            }
        }
        let dropped = [ISB, TLBI_VMALLS12E1, IC_IALLU, DSB_NSH, ISB];
        again.ops(&dropped);
        enter(translate(&mut machine.first));
    }
    let programs: [Program; 6] = [
        |machine, planted| switch(machine, planted.then_some(0)),
        |machine, planted| switch(machine, planted.then_some(1)),
        |machine, planted| switch(machine, planted.then_some(2)),
        |machine, planted| switch(machine, planted.then_some(3)),
        |machine, planted| switch(machine, planted.then_some(5)),
        |machine, planted| switch(machine, planted.then_some(7)),
    ];
    for program in programs {
        judge_entering(program, &[Rule::SpeculativeAt], 2);
    }
    // Nothing is found by a VMID that maps nothing, for which something is dropped, nor by the guest's own.
    let program: Program = |machine, planted| {
        machine.cpu = "cortex-a72";
        let again = &mut machine.again;
        if !planted {
            again.store(guest_entry(GUEST), 0);
            again.store(guest_entry(SECOND_BLOCK), 0);
        }
        again
            .ops(&[DSB_ISHST, TLBI_VMALLS12E1, DSB_ISH])
            .sys(VTTBR, 2 << 48 | STAGE2)
            .ops(&[ISB, TLBI_VMALLS12E1, DSB_ISH])
            .sys(VTTBR, VTTBR_VALUE)
            .ops(&[ISB])
            .call(SYSTEM_OFF, 0, 0);
        enter(translate(&mut machine.first));
    };
    judge(program, &[Rule::SpeculativeAt]);
    // A core that does none may do without.
    let program: Program = |machine, planted| {
        switch(machine, Some(0));
        machine.cpu = if planted { "cortex-a72" } else { "cortex-a53" };
    };
    judge_entering(program, &[Rule::SpeculativeAt], 2);
}
