//! Tests of register accesses that concern several vCPUs: the answer, the vCPUs that are notified,
//! and when the access is done.

use super::bench::Vm;
use crate::vgic::*;

type V2 = Vm<true>;
type V3 = Vm<false>;

fn read<const V: bool>(vm: &mut Vm<V>, n: usize, offset: u64) -> (Answer, Notify) {
    vm.cpus[n].gicd_read(&vm.dist, &mut vm.boards[n], offset, 4)
}

fn write<const V: bool>(vm: &mut Vm<V>, n: usize, offset: u64, value: u64) -> (Answer, Notify) {
    vm.cpus[n].gicd_write(&vm.dist, &mut vm.boards[n], offset, 4, value)
}

fn on_notify<const V: bool>(vm: &mut Vm<V>, n: usize) {
    let _nobody = vm.cpus[n].on_notify(&vm.dist, &mut vm.boards[n]);
}

const DONE: Answer = Answer::Value(0);

fn taken_up_late<const V: bool>() {
    let mut vm = Vm::<V>::ready(3, 4, &[]);
    vm.bits(0, 2, 1, 0xff);
    vm.gicd(0, 0xc08, 0xaaaa);
    // vCPU 1 has 33 active, 34 active and pending, 35 pending.
    for intid in 33..38 {
        vm.route(0, intid, 1);
    }
    for intid in [33, 34] {
        vm.post(intid);
        assert_eq!(vm.acknowledge(1), Some(intid));
        vm.boards[1].running.clear();
    }
    vm.post(34);
    vm.post(35);
    for (offset, before, after) in [(0x204, 0b1100, 0b11_1100), (0x304, 0b110, 0b110)] {
        assert_eq!(read(&mut vm, 0, offset).0, Answer::Again);
        on_notify(&mut vm, 1);
        assert_eq!(read(&mut vm, 0, offset).0, Answer::Value(before));
        // Two more become pending after the answer: one is put into a list register, one is not.
        assert_eq!(read(&mut vm, 0, offset).0, Answer::Again);
        on_notify(&mut vm, 1);
        let _one = vm.dist.post(36, 0);
        on_notify(&mut vm, 1);
        let _one = vm.dist.post(37, 0);
        assert_eq!(read(&mut vm, 0, offset).0, Answer::Value(after));
        vm.inbox = Notify(2);
        vm.bits(0, 5, 1, 0x30);
    }
}

#[test]
fn an_interrupt_that_is_taken_up_after_the_answer_shows_as_pending() {
    taken_up_late::<true>();
    taken_up_late::<false>();
}

#[test]
fn the_line_of_another_vcpus_ppi_shows() {
    let mut vm = V3::ready(3, 4, &[(30, 26, false), (29, 28, true)]);
    vm.wire(1, 26, true);
    vm.wire(2, 28, true);
    assert_eq!(vm.gicr_read(0, 1, 0x1_0200), 1 << 30);
    assert_eq!(vm.gicr_read(0, 2, 0x1_0200), 1 << 29);
    assert_eq!(vm.gicr_read(0, 0, 0x1_0200), 0);
    for n in 0..3 {
        assert_eq!(vm.gicr_read(n, 1, 0x1_0200), 1 << 30);
    }
}

fn fresh<const V: bool>() {
    let mut vm = Vm::<V>::ready(4, 4, &[]);
    let mut send = |n: usize| {
        if V {
            let (answer, notify) = write(&mut vm, n, 0xf00, 0b111 << 16 | 6);
            assert_eq!(answer, DONE);
            notify
        } else {
            let (cpu, dist, board) = (&mut vm.cpus[n], &vm.dist, &mut vm.boards[n]);
            cpu.send_sgi(dist, board, 6 << 24 | 0b111, true)
        }
    };
    assert_eq!(send(0), Notify(0b110));
    assert_eq!(send(0), Notify::NOBODY);
    // On a GICv2 the SGI of another sender is separate.
    assert_eq!(send(3), Notify(if V { 0b111 } else { 0b001 }));
    assert_eq!(send(3), Notify::NOBODY);
    vm.inbox = Notify(0b111);
    vm.settle();
    for n in 0..3 {
        let times = if V { 2 } else { 1 };
        assert_eq!(vm.drain(n).len(), times, "vCPU {n}");
    }
    assert_eq!(vm.drain(3), []);
}

#[test]
fn an_sgi_to_several_notifies_each_of_them_once() {
    fresh::<true>();
    fresh::<false>();
}

#[test]
fn an_sgi_is_no_longer_pending_from_whom_the_register_names() {
    for (clear, expected) in [(1u64, 4), (2, 4), (4, 0), (5, 0), (8, 4), (0xff, 0), (0, 4)] {
        let mut vm = V2::ready(4, 4, &[]);
        vm.sgi(2, 1, 7);
        vm.sgi(2, 1, 6);
        vm.gicd_sized(0, 0xf17, 1, clear);
        assert_eq!(vm.gicd_read_sized(0, 0xf17, 1), expected, "{clear:#b}");
        assert_eq!(vm.gicd_read_sized(0, 0xf27, 1), expected, "{clear:#b}");
        assert_eq!(vm.gicd_read_sized(0, 0xf16, 1), 4, "another SGI");
        let mut order = vm.drain(0);
        order.sort();
        let expected: &[u32] = if expected == 0 { &[6] } else { &[6, 7] };
        assert_eq!(order, expected, "{clear:#b}");
    }
    // Two senders, one of whose SGIs is in a list register.
    for clear in [2u64, 4] {
        let mut vm = V2::ready(4, 4, &[]);
        vm.sgi(1, 1, 7);
        vm.sgi(2, 1, 7);
        assert_eq!(vm.gicd_read_sized(0, 0xf17, 1), 6);
        vm.gicd_sized(0, 0xf17, 1, clear);
        assert_eq!(vm.gicd_read_sized(0, 0xf17, 1), 6 & !clear);
        let entry = vm.boards[0].acknowledge().unwrap();
        assert_eq!(1 << lr::source(entry), 6 & !clear);
        // Active is not pending.
        assert_eq!(vm.gicd_read_sized(0, 0xf17, 1), 0);
        vm.gicd_sized(0, 0xf17, 1, 0xff);
        assert_eq!(vm.read_bits(0, 6, 0), 1 << 7);
        vm.end(0, 7);
        assert_eq!(vm.drain(0), []);
    }
}

#[test]
fn an_sgi_that_is_cleared_leaves_an_empty_list_register() {
    for senders in [&[1][..], &[1, 2]] {
        let mut vm = V2::ready(3, 4, &[]);
        for n in senders {
            vm.sgi(*n, 1, 7);
        }
        let before = vm.maintenances;
        vm.gicd_sized(0, 0xf17, 1, 6);
        assert_eq!(vm.boards[0].lrs, [0; 4]);
        assert_eq!(vm.maintenances, before, "nothing has ended");
    }
}

#[test]
fn a_disabled_sgi_that_is_cleared_leaves_nothing_to_look_at() {
    let mut vm = V2::ready(3, 4, &[]);
    vm.bits(0, 3, 0, 1 << 7);
    vm.sgi(1, 1, 7);
    vm.sgi(2, 1, 7);
    vm.gicd_sized(0, 0xf17, 1, 2);
    assert!(vm.dist.calls(0), "that of vCPU 2 is left");
    vm.gicd_sized(0, 0xf17, 1, 4);
    assert!(!vm.dist.calls(0));
}

#[test]
fn an_sgi_made_pending_by_a_register_comes_from_whom_it_names() {
    let mut vm = V2::ready(3, 4, &[]);
    vm.gicd_sized(0, 0xf2f, 1, 0b1010_0110);
    assert_eq!(vm.gicd_read_sized(0, 0xf2f, 1), 0b110, "the VM has three");
    let mut senders = 0;
    while let Some(entry) = vm.boards[0].acknowledge() {
        assert_eq!(lr::vintid(entry), 15);
        senders |= 1 << lr::source(entry);
        vm.end(0, 15);
    }
    assert_eq!(senders, 0b110);
    vm.gicd_sized(0, 0xf2f, 1, 0b1111_1000);
    assert_eq!(vm.drain(0), []);
    assert_eq!((vm.drain(1), vm.drain(2)), ([].into(), [].into()));
}

#[test]
fn on_a_gicv2_only_writes_that_disable_wait() {
    let mut vm = V2::ready(3, 4, &[]);
    vm.bits(0, 2, 1, 6);
    vm.route(0, 33, 1);
    vm.post(33);
    assert_eq!(write(&mut vm, 0, 0x184, 2), (Answer::Again, Notify(2)));
    for offset in [0x084, 0x104, 0x204, 0x304, 0x384, 0x420, 0xc08, 0xf00] {
        assert_eq!(write(&mut vm, 2, offset, 0).0, DONE, "{offset:#x}");
    }
    for (offset, value) in [(0x180, 0), (0x184, 0), (0x1fc, 0), (0, 3)] {
        let answer = write(&mut vm, 2, offset, value).0;
        assert_eq!(answer, Answer::Again, "{offset:#x}");
    }
    on_notify(&mut vm, 1);
    assert_eq!(write(&mut vm, 0, 0x184, 2), (DONE, Notify::NOBODY));
    assert_eq!(vm.acknowledge(1), None);
}

fn groups<const V: bool>() {
    let mut vm = Vm::<V>::ready(3, 4, &[]);
    for (value, others, disables) in [
        (3, 0, false),
        (1, 0b110, true),
        (1, 0, false),
        (3, 0b110, false),
        (2, 0b110, true),
        (1, 0b110, true),
        (0xffff_fffd, 0, false),
        (0, 0b110, true),
        (2, 0b110, false),
    ] {
        let (answer, notify) = write(&mut vm, 0, 0, value);
        assert_eq!(notify.0 & 0b110, others, "{value:#x}");
        let again = if V && disables { Answer::Again } else { DONE };
        assert_eq!(answer, again, "{value:#x}");
        if !V {
            let rwp = vm.gicd_read(1, 0) >> 31;
            assert_eq!(rwp, u32::from(disables), "{value:#x}");
        }
        vm.inbox |= notify;
        vm.settle();
        assert_eq!(vm.gicd_read(0, 0) & 3, value as u32 & 3);
        assert_eq!(vm.gicd_read(0, 0) >> 31, 0);
    }
}

#[test]
fn a_change_of_the_group_enables_concerns_all() {
    groups::<true>();
    groups::<false>();
}

fn routes<const V: bool>() {
    let mut vm = Vm::<V>::ready(4, 4, &[(40, 140, true)]);
    let route = |vm: &mut Vm<V>, intid: u64, to: u64| {
        let (cpu, dist, board) = (&mut vm.cpus[0], &vm.dist, &mut vm.boards[0]);
        let notify = if V {
            cpu.gicd_write(dist, board, 0x800 + intid, 1, 1 << to).1
        } else {
            cpu.gicd_write(dist, board, 0x6000 + 8 * intid, 8, to).1
        };
        vm.inbox |= notify;
        vm.settle();
        notify
    };
    // The vCPU that writes need not be notified.
    for (to, told) in [(1, 0b0010), (1, 0), (3, 0b1010), (2, 0b1100), (0, 0b0100)] {
        for intid in [33, 40, 95] {
            assert_eq!(route(&mut vm, intid, to), Notify(told), "{intid} to {to}");
            let (word, bit) = place(intid as u32);
            for n in 0..4 {
                let owns = vm.dist.owns(n, word) & bit != 0;
                assert_eq!(owns, n as u64 == to, "{intid} of {n}");
            }
        }
        assert_eq!(vm.wires.borrow_mut().at(0, 140).vcpu as u64, to);
    }
    assert!(route(&mut vm, 96, 1).is_empty(), "the VM has 64 SPIs");
    assert!(route(&mut vm, 31, 1).is_empty(), "private");
}

#[test]
fn a_route_is_told_to_the_old_owner_and_the_new_one() {
    routes::<true>();
    routes::<false>();
}
