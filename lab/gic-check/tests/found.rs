//! Findings of the random search, made small: each was a difference between the vGIC and the model once.

use bulkhead_gic_check::{Operation, Operation::*, Register::*, Shape, run};

fn shape(v2: bool, cpus: usize, list_registers: usize, spis: u32) -> Shape {
    Shape {
        v2,
        cpus,
        list_registers,
        spis,
    }
}

fn write(cpu: usize, register: bulkhead_gic_check::Register, n: u32, value: u32) -> Operation {
    Write {
        cpu,
        of: cpu,
        register,
        n,
        value,
        size: 4,
    }
}

fn acknowledge(cpu: usize) -> [Operation; 2] {
    [0, 1].map(|group| Acknowledge { cpu, group })
}

/// An interrupt is spilled while the guest serves it, another one too; then the guest writes priorities or groups.
fn written_while_served(register: bulkhead_gic_check::Register, value: u32) {
    for v2 in [false, true] {
        let mut steps = Vec::new();
        // 40 to 42 by falling priority; each is acknowledged before the next one comes.
        steps.extend([
            write(0, Priority, 11, 0x8080_8080),
            write(0, Priority, 12, 0x2040_6080),
        ]);
        for spi in [12, 17, 18, 19] {
            steps.push(Post { intid: spi });
            steps.extend(acknowledge(0));
        }
        steps.push(write(
            0,
            register,
            if register == Group { 1 } else { 12 },
            value,
        ));
        steps.push(write(
            0,
            register,
            if register == Group { 1 } else { 11 },
            value,
        ));
        for _ in 0..4 {
            steps.extend([End { cpu: 0 }, Settle { first: 0 }]);
        }
        run(shape(v2, 1, 2, 32), &steps);
    }
}

#[test]
fn interrupts_nest_by_the_priority_that_they_were_taken_with() {
    written_while_served(Priority, 0xc0a0_8060);
    written_while_served(Priority, 0x0808_0808);
}

#[test]
fn interrupts_end_with_the_group_that_they_were_taken_with() {
    written_while_served(Group, 0);
    written_while_served(Group, u32::MAX);
}

#[test]
fn what_comes_again_while_active_has_the_group_of_now() {
    let sgi = Sgi {
        cpu: 0,
        group: 1,
        value: 5 << 24 | 2,
    };
    let change = |n, cpu| Write {
        cpu: 0,
        of: cpu,
        register: Group,
        n,
        value: 0,
        size: 4,
    };
    let [settle, post] = [Settle { first: 0 }, Post { intid: 15 }];
    let end = End { cpu: 1 };
    // The SGI twice, SPI 47 twice.
    for (again, n) in [(sgi, 0), (post, 1)] {
        let mut steps = vec![write(0, Priority, 11, 0), again];
        steps.extend(acknowledge(1));
        steps.extend(acknowledge(0));
        steps.extend([change(n, 1), settle, again, settle, end, End { cpu: 0 }]);
        for list_registers in [2, 4] {
            run(shape(false, 2, list_registers, 32), &steps);
        }
    }
}

/// Link 0 is the virtual timer, a PPI; link 2 is SPI 40, a level too. How to write one of their bits.
fn hw(link: usize) -> impl Fn(bulkhead_gic_check::Register) -> Operation {
    let (n, bit) = if link == 0 { (0, 27) } else { (1, 8) };
    move |register| write(0, register, n, 1 << bit)
}

/// Made pending by a register, taken by the board, disabled, and perhaps enabled again. The line never rises.
#[test]
fn a_linked_level_made_pending_by_a_register_outlives_a_disable() {
    for (v2, link) in [(false, 0), (false, 2), (true, 0), (true, 2)] {
        let set = hw(link);
        let settle = Settle { first: 0 };
        let mut steps = vec![set(SetPending), settle, set(Disable), settle];
        run(shape(v2, 1, 16, 64), &steps);
        steps.extend([set(Enable), settle]);
        steps.extend(acknowledge(0));
        steps.push(End { cpu: 0 });
        run(shape(v2, 1, 16, 64), &steps);
    }
}

/// Once the guest has taken that, its line alone counts.
#[test]
fn a_linked_level_is_not_pending_by_a_register_for_ever() {
    for (v2, link) in [(false, 0), (false, 2), (true, 0), (true, 2)] {
        let set = hw(link);
        let line = |up| Signal { cpu: 0, link, up };
        let settle = Settle { first: 0 };
        let mut steps = vec![set(SetPending)];
        // The third time it may go the short way again.
        for _ in 0..3 {
            steps.extend(acknowledge(0));
            steps.extend([End { cpu: 0 }, settle, line(true), settle]);
            let mut disabled = steps.clone();
            disabled.extend([set(Disable), settle, line(false), settle]);
            run(shape(v2, 1, 4, 32), &disabled);
            steps.extend(acknowledge(0));
            steps.push(line(false));
        }
    }
}

#[test]
fn what_was_active_by_a_register_once_ends_like_others() {
    for v2 in [false, true] {
        let steps = [
            Line {
                seen: None,
                intid: 31,
                up: true,
            },
            write(0, SetActive, 1, 1 << 31),
            Settle { first: 0 },
            write(0, ClearActive, 1, 1 << 31),
            Post { intid: 22 },
            Acknowledge { cpu: 0, group: 1 },
            Settle { first: 0 },
            End { cpu: 0 },
        ];
        run(shape(v2, 1, 2, 32), &steps);
    }
}

/// A request to clear it waits at its vCPU while a more urgent one takes its list register.
#[test]
fn what_is_cleared_does_not_come_back_by_losing_its_list_register() {
    for v2 in [false, true] {
        let steps = [
            write(0, Priority, 8, 0),
            Post { intid: 45 },
            Deliver { cpu: 0 },
            write(1, ClearPending, 2, u32::MAX),
            Post { intid: 0 },
            write(0, Group, 0, 1),
        ];
        run(shape(v2, 2, 2, 64), &steps);
    }
}

/// Each of two vCPUs waits for an interrupt of the same word that the other one has: they ask each other once, not for ever.
#[test]
fn vcpus_that_wait_for_each_other_come_to_rest() {
    let steps = [
        Write {
            cpu: 7,
            of: 8,
            register: SetActive,
            n: 36640,
            value: 28187,
            size: 1,
        },
        write(0, SetPending, 118, 16911),
        Write {
            cpu: 5,
            of: 13,
            register: Route,
            n: 56576,
            value: 4,
            size: 4,
        },
        Write {
            cpu: 6,
            of: 8,
            register: Route,
            n: 36491,
            value: 4_259_840,
            size: 8,
        },
    ];
    run(shape(true, 4, 2, 32), &steps);
}
