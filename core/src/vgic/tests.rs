//! The vGIC against a list-register file in memory and a physical GIC that only remembers.

use std::{vec, vec::Vec};

use super::*;

/// Hardware of a pCPU as far as the vGIC sees it.
struct Board {
    lrs: Vec<u64>,
    refill: bool,
    enabled: Vec<u32>,
    deactivated: Vec<u32>,
}

impl Board {
    fn new(lrs: usize) -> Self {
        Self {
            lrs: vec![0; lrs],
            refill: false,
            enabled: Vec::new(),
            deactivated: Vec::new(),
        }
    }

    /// The guest acknowledges its most urgent pending interrupt.
    fn acknowledge(&mut self) -> Option<u32> {
        let pending = |lr: &&mut u64| **lr & lr::PENDING != 0 && **lr & lr::ACTIVE == 0;
        let lr = self
            .lrs
            .iter_mut()
            .filter(pending)
            .min_by_key(|lr| lr::priority(**lr))?;
        *lr ^= lr::PENDING | lr::ACTIVE;
        Some(lr::vintid(*lr))
    }

    /// The guest ends an interrupt; the numbers of list registers that ask to be told.
    fn end(&mut self, intid: u32) -> u32 {
        for (n, lr) in self.lrs.iter_mut().enumerate() {
            if *lr & lr::ACTIVE != 0 && lr::vintid(*lr) == intid {
                *lr &= !lr::ACTIVE;
                if *lr & lr::HW != 0 {
                    self.deactivated.push(lr::pintid(*lr));
                } else if *lr & (lr::PENDING | lr::EOI) == lr::EOI {
                    return 1 << n;
                }
                return 0;
            }
        }
        panic!("{intid} is not active");
    }
}

impl Host for Board {
    fn list_registers(&self) -> u32 {
        self.lrs.len() as u32
    }
    fn usable(&self) -> u32 {
        (1 << self.lrs.len()) - 2
    }
    fn lr(&self, n: u32) -> u64 {
        self.lrs[n as usize]
    }
    fn set_lr(&mut self, n: u32, value: u64) {
        self.lrs[n as usize] = value;
    }
    fn empty(&self) -> u32 {
        let empty = |lr: &u64| lr & (lr::PENDING | lr::ACTIVE) == 0;
        self.lrs
            .iter()
            .enumerate()
            .filter(|(_, lr)| empty(lr))
            .fold(0, |all, (n, _)| all | 1 << n)
    }
    fn ask_refill(&mut self, on: bool) {
        self.refill = on;
    }
    fn enable(&mut self, pintid: u32) {
        self.enabled.push(pintid);
    }
    fn disable(&mut self, pintid: u32) {
        self.enabled.retain(|p| *p != pintid);
    }
    fn deactivate(&mut self, pintid: u32) {
        self.deactivated.push(pintid);
    }
    fn set_pending(&mut self, _: u32, _: bool) {}
    fn is_pending(&self, _: u32) -> bool {
        false
    }
}

struct Vm {
    dist: Distributor,
    cpu: Cpu,
    board: Board,
}

impl Vm {
    /// Everything enabled, group 1, SGI n at priority 0x80 - 8n.
    fn new(lrs: usize) -> Self {
        let dist: Distributor = Distributor::new();
        dist.reset(64, 27);
        dist.link(40, 140, false);
        let mut vm = Self {
            dist,
            cpu: Cpu::new(0),
            board: Board::new(lrs),
        };
        vm.gicd(0, 2);
        vm.gicr(0x1_0080, u32::MAX);
        for n in 0..4 {
            let four = (0..4).fold(0, |all, i| all | (0x80 - 8 * (n * 4 + i)) << (8 * i));
            vm.gicr(0x1_0400 + u64::from(n) * 4, four);
        }
        vm.gicr(0x1_0100, 0xffff);
        vm.gicd(0x84, u32::MAX);
        vm
    }
    fn gicd(&mut self, offset: u64, value: u32) {
        self.cpu
            .gicd_write(&self.dist, &mut self.board, offset, 4, value.into());
    }
    fn gicr(&mut self, offset: u64, value: u32) {
        self.cpu
            .gicr_write(&self.dist, &mut self.board, offset, 4, value.into());
    }
    fn gicd_read(&self, offset: u64) -> u32 {
        self.cpu.gicd_read(&self.dist, &self.board, offset, 4) as u32
    }
    fn gicr_read(&self, offset: u64) -> u32 {
        self.cpu.gicr_read(&self.dist, &self.board, offset, 4) as u32
    }
    fn sgi(&mut self, intid: u64) {
        if self.cpu.send_sgi_to_self(&mut self.board, intid << 24 | 1) {
            return;
        }
        self.cpu
            .send_sgi(&self.dist, &mut self.board, intid << 24 | 1, true);
    }
    fn maintain(&mut self, ended: u32) {
        self.cpu.maintain(&self.dist, &mut self.board, ended);
    }
}

#[test]
fn more_interrupts_than_list_registers_arrive_most_urgent_first() {
    let mut vm = Vm::new(4);
    for intid in [3, 1, 7, 2, 15, 9, 0, 12] {
        vm.sgi(intid);
    }
    assert!(vm.board.refill);
    let mut order = Vec::new();
    while let Some(intid) = vm.board.acknowledge() {
        let ended = vm.board.end(intid);
        order.push(intid);
        if vm.board.refill {
            vm.maintain(ended);
        }
    }
    assert_eq!(order, [15, 12, 9, 7, 3, 2, 1, 0]);
    assert!(!vm.board.refill);
}

#[test]
fn an_sgi_sent_again_while_active_comes_again_once() {
    let mut vm = Vm::new(4);
    vm.sgi(5);
    vm.sgi(5);
    assert_eq!(vm.board.acknowledge(), Some(5));
    vm.sgi(5);
    vm.sgi(5);
    assert_eq!(vm.gicr_read(0x1_0300) & 0xffff, 1 << 5);
    assert_eq!(vm.gicr_read(0x1_0200) & 0xffff, 1 << 5);
    vm.board.end(5);
    assert_eq!(vm.board.acknowledge(), Some(5));
    vm.board.end(5);
    assert_eq!(vm.board.acknowledge(), None);
}

#[test]
fn the_timer_has_its_list_register_ready_and_follows_the_guest() {
    let mut vm = Vm::new(4);
    assert_eq!(vm.cpu.vtimer_entry(), 0);
    vm.gicr(0x1_0418, 0x2000_0000);
    vm.gicr(0x1_0100, 1 << 27);
    assert_eq!(vm.board.enabled, [27]);
    let entry = vm.cpu.vtimer_entry();
    assert_eq!(
        (lr::vintid(entry), lr::pintid(entry), lr::priority(entry)),
        (27, 27, 0x20)
    );
    assert_ne!(entry & lr::HW & lr::HW, 0);
    // Fires, and the guest disables it before it takes it.
    vm.board.lrs[0] = entry;
    vm.gicr(0x1_0180, 1 << 27);
    assert_eq!((vm.board.lrs[0], vm.cpu.vtimer_entry()), (0, 0));
    assert_eq!(
        (vm.board.enabled.len(), vm.board.deactivated.as_slice()),
        (0, &[27][..])
    );
}

#[test]
fn a_level_stays_pending_until_the_line_falls() {
    let mut vm = Vm::new(4);
    vm.gicd(0x104, 2);
    vm.cpu.set_line(&vm.dist, &mut vm.board, 33, true);
    assert_eq!(vm.board.acknowledge(), Some(33));
    let ended = vm.board.end(33);
    assert_ne!(ended, 0, "the end of a level must be told");
    vm.maintain(ended);
    assert_eq!(vm.board.acknowledge(), Some(33), "the line is still up");
    vm.cpu.set_line(&vm.dist, &mut vm.board, 33, false);
    let ended = vm.board.end(33);
    vm.maintain(ended);
    assert_eq!(vm.board.acknowledge(), None);
    assert_eq!(vm.gicd_read(0x204), 0);
}

#[test]
fn disabled_interrupts_wait() {
    let mut vm = Vm::new(4);
    vm.gicr(0x1_0180, 1 << 4);
    vm.sgi(4);
    assert_eq!(vm.board.acknowledge(), None);
    assert_eq!(vm.gicr_read(0x1_0200) & 0x10, 0x10);
    vm.gicr(0x1_0100, 1 << 4);
    assert_eq!(vm.board.acknowledge(), Some(4));
    vm.board.end(4);
    // The same by the group enable of the distributor.
    vm.sgi(6);
    vm.gicd(0, 0);
    assert_eq!(vm.board.acknowledge(), None);
    vm.gicd(0, 2);
    assert_eq!(vm.board.acknowledge(), Some(6));
}

#[test]
fn a_linked_interrupt_follows_the_guest_to_the_board() {
    let mut vm = Vm::new(4);
    vm.gicd(0x104, 1 << 8);
    assert_eq!(vm.board.enabled, [140]);
    vm.cpu.raise(&vm.dist, &mut vm.board, 40);
    assert_eq!(vm.board.acknowledge(), Some(40));
    vm.board.end(40);
    assert_eq!(vm.board.deactivated, [140]);
    vm.gicd(0x184, 1 << 8);
    assert!(vm.board.enabled.is_empty());
}

#[test]
fn registers_read_as_the_architecture_says() {
    let mut vm = Vm::new(4);
    assert_eq!(vm.gicd_read(0) & 0x57, 0x52, "DS, ARE, group 1");
    assert_eq!(vm.gicd_read(4) & 0x1f, 2, "64 SPIs");
    assert_eq!(vm.gicd_read(0xffe8) & 0xf0, 0x30);
    assert_eq!(vm.gicr_read(0x1_0c00), 0xaaaa_aaaa);
    vm.gicd(0x104, u32::MAX);
    assert_eq!(vm.gicd_read(0x104), u32::MAX);
    vm.gicd(0x184, 0xff);
    assert_eq!(vm.gicd_read(0x184), !0xff);
    vm.gicd(0x100, u32::MAX);
    assert_eq!(
        vm.gicd_read(0x100),
        0,
        "word 0 belongs to the redistributor"
    );
    vm.gicd(0x10c, u32::MAX);
    assert_eq!(vm.gicd_read(0x10c), 0, "the VM has 64 SPIs");
    vm.gicd(0x424, 0xffff_ffff);
    assert_eq!(vm.gicd_read(0x424), 0xf8f8_f8f8, "five bits of priority");
    vm.cpu.gicd_write(&vm.dist, &mut vm.board, 0x425, 1, 0x20);
    assert_eq!(vm.gicd_read(0x424), 0xf8f8_20f8);
    vm.gicd(0xc08, 0xffff_ffff);
    assert_eq!(
        vm.gicd_read(0xc08),
        0xaaa8_aaaa,
        "a linked interrupt keeps its trigger"
    );
    vm.gicr(0x14, 2);
    assert_eq!(vm.gicr_read(0x14), 6);
    vm.gicr(0x14, 0);
    assert_eq!(vm.gicr_read(0x14), 0);
    for offset in (0..0x1_0000).step_by(4) {
        vm.gicd_read(offset);
        vm.gicr_read(offset + 0x1_0000);
    }
}

#[test]
fn sgis_to_others_are_ignored() {
    let mut vm = Vm::new(4);
    let mut send = |value| vm.cpu.send_sgi(&vm.dist, &mut vm.board, value, true);
    send(3 << 24 | 2);
    send(3 << 24 | 1 | 1 << 16);
    send(3 << 24 | 1 | 1 << 32);
    send(3 << 24 | 1 | 1 << 44);
    send(3 << 24 | 1 | 1 << 40);
    vm.cpu.send_sgi(&vm.dist, &mut vm.board, 3 << 24 | 1, false);
    assert_eq!(vm.board.acknowledge(), None);
}
