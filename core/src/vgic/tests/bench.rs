//! The simulated machine of the vGIC tests: the list registers and the CPU interface of each vCPU
//! as the architecture describes them, and a physical distributor that they share. [`Vm::settle`]
//! plays the part of EL2.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    vec,
    vec::Vec,
};

use crate::vgic::*;

/// The number of turns after which the machine must have come to rest.
const PATIENCE: usize = 2_000;

/// A physical interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    pub enabled: bool,
    pub pending: bool,
    pub active: bool,
    /// The device's line is up. With `edge`, it makes the interrupt pending once.
    pub line: bool,
    pub edge: bool,
    pub vcpu: usize,
}

impl Wire {
    fn is_pending(&self) -> bool {
        self.pending || self.line && !self.edge
    }
}

/// All physical interrupts; those below 32 exist for each pCPU.
#[derive(Debug)]
pub struct Wires {
    ppis: Vec<[Wire; 32]>,
    spis: Vec<Wire>,
}

impl Wires {
    pub fn at(&mut self, pcpu: usize, pintid: u32) -> &mut Wire {
        if pintid < 32 {
            &mut self.ppis[pcpu][pintid as usize]
        } else {
            &mut self.spis[pintid as usize - 32]
        }
    }
}

/// The interrupt hardware of a pCPU; `V2` is whether it is a GICv2.
#[derive(Debug)]
pub struct Board<const V2: bool> {
    pub lrs: Vec<u64>,
    pub asked: Maintenance,
    /// The groups that were enabled when maintenance interrupts were requested.
    asked_groups: u32,
    pub wires: Rc<RefCell<Wires>>,
    pcpu: usize,
    pub eoi_count: u32,
    /// ICV_IGRPEN0_EL1 and ICV_IGRPEN1_EL1.
    pub groups: u32,
    /// ICV_PMR_EL1, ICV_CTLR_EL1.EOImode, binary point (the number of priority bits that do not
    /// pre-empt).
    pub mask: u32,
    pub split: bool,
    pub point: u32,
    /// The active priorities, most urgent last.
    pub running: Vec<u32>,
    /// The number of ICH_LR writes and reads.
    pub writes: usize,
    pub reads: Cell<usize>,
}

impl<const V2: bool> Board<V2> {
    fn new(pcpu: usize, lrs: usize, wires: Rc<RefCell<Wires>>) -> Self {
        Self {
            lrs: vec![0; lrs],
            asked: Maintenance::default(),
            asked_groups: 0,
            wires,
            pcpu,
            eoi_count: 0,
            groups: 3,
            mask: 0x100,
            split: false,
            point: 3,
            running: Vec::new(),
            writes: 0,
            reads: Cell::new(0),
        }
    }

    fn preemption(&self, priority: u32) -> u32 {
        priority >> self.point << self.point
    }

    /// Returns the list register whose interrupt the guest would take now.
    pub fn best(&self) -> Option<usize> {
        let running = self.running.last().copied().unwrap_or(0x100);
        (0..self.lrs.len())
            .filter(|n| self.lrs[*n] & lr::STATE == lr::PENDING)
            .filter(|n| {
                let group = if self.lrs[*n] & lr::GROUP1 != 0 { 2 } else { 1 };
                self.groups & group != 0
            })
            .min_by_key(|n| lr::priority(self.lrs[*n]))
            .filter(|n| {
                let priority = u32::from(lr::priority(self.lrs[*n]));
                priority < self.mask && self.preemption(priority) < running
            })
    }

    /// Acknowledges an interrupt as the guest does (ICC_IAR0_EL1 or ICC_IAR1_EL1), and returns its
    /// entry.
    pub fn acknowledge(&mut self) -> Option<u64> {
        let n = self.best()?;
        self.lrs[n] ^= lr::STATE;
        let priority = u32::from(lr::priority(self.lrs[n]));
        self.running.push(self.preemption(priority));
        Some(self.lrs[n])
    }

    fn deactivate_here(&mut self, intid: u32) -> bool {
        let active = |lr: &&mut u64| **lr & lr::ACTIVE != 0 && lr::vintid(**lr) == intid;
        let Some(entry) = self.lrs.iter_mut().find(active) else {
            return false;
        };
        *entry &= !lr::ACTIVE;
        if *entry & lr::HW != 0 {
            self.wires
                .borrow_mut()
                .at(self.pcpu, lr::pintid(*entry))
                .active = false;
        }
        true
    }

    /// Writes ICC_EOIR0_EL1 or ICC_EOIR1_EL1 as the guest does.
    pub fn end(&mut self, intid: u32) {
        if self.running.pop().is_some() && !self.split && !self.deactivate_here(intid) {
            self.eoi_count = (self.eoi_count + 1) % 32;
        }
    }

    /// Returns the list registers whose interrupt has ended and that request a maintenance
    /// interrupt for it (ICH_EISR_EL2).
    pub fn ended(&self) -> u32 {
        let ended = |lr: &u64| lr & lr::STATE == 0 && lr & (lr::HW | lr::EOI) == lr::EOI;
        (0..self.lrs.len())
            .filter(|n| ended(&self.lrs[*n]))
            .fold(0, |all, n| all | 1 << n)
    }

    /// Whether the maintenance interrupt is signalled (ICH_MISR_EL2).
    pub fn maintenance(&self) -> bool {
        let none_pending = self.lrs.iter().all(|lr| lr & lr::PENDING == 0);
        self.ended() != 0
            || self.asked.refill && (none_pending || self.groups != self.asked_groups)
            || self.asked.eoi && self.eoi_count != 0
    }

    /// Iterates over the entries of list registers that are pending or active.
    pub fn held(&self) -> impl Iterator<Item = u64> {
        self.lrs.iter().copied().filter(|lr| lr & lr::STATE != 0)
    }
}

impl<const V2: bool> Host for Board<V2> {
    const VERSION: Version = if V2 { Version::V2 } else { Version::V3 };
    fn list_registers(&self) -> u32 {
        self.lrs.len() as u32
    }
    fn usable(&self) -> u32 {
        (1 << self.lrs.len()) - 2
    }
    fn lr(&self, n: u32) -> u64 {
        self.reads.set(self.reads.get() + 1);
        self.lrs[n as usize]
    }
    fn set_lr(&mut self, n: u32, value: u64) {
        assert_ne!(
            value & (lr::HW | lr::STATE),
            lr::HW | lr::STATE,
            "both states of a hardware one"
        );
        self.writes += 1;
        self.lrs[n as usize] = value;
    }
    fn empty(&self) -> u32 {
        (0..self.lrs.len())
            .filter(|n| self.lrs[*n] & lr::STATE == 0)
            .fold(0, |all, n| all | 1 << n)
            & !self.ended()
    }
    fn eoi_count(&mut self) -> u32 {
        core::mem::take(&mut self.eoi_count)
    }
    fn groups(&self) -> u32 {
        self.groups
    }
    fn ask(&mut self, what: Maintenance) {
        self.asked = what;
        self.asked_groups = self.groups;
    }
    fn enable(&mut self, pintid: u32) {
        self.wires.borrow_mut().at(self.pcpu, pintid).enabled = true;
    }
    fn disable(&mut self, pintid: u32) {
        self.wires.borrow_mut().at(self.pcpu, pintid).enabled = false;
    }
    fn deactivate(&mut self, pintid: u32) {
        self.wires.borrow_mut().at(self.pcpu, pintid).active = false;
    }
    fn set_active(&mut self, pintid: u32) {
        self.wires.borrow_mut().at(self.pcpu, pintid).active = true;
    }
    fn set_pending(&mut self, pintid: u32, pending: bool) {
        self.wires.borrow_mut().at(self.pcpu, pintid).pending = pending;
    }
    fn is_pending(&self, pintid: u32) -> bool {
        self.wires.borrow_mut().at(self.pcpu, pintid).is_pending()
    }
    fn route(&mut self, pintid: u32, vcpu: usize) {
        assert!(pintid >= 32);
        self.wires.borrow_mut().at(self.pcpu, pintid).vcpu = vcpu;
    }
}

/// A VM with its pCPUs.
pub struct Vm<const V2: bool> {
    pub dist: Distributor,
    pub cpus: Vec<Cpu>,
    pub boards: Vec<Board<V2>>,
    pub wires: Rc<RefCell<Wires>>,
    /// The hardware interrupts: virtual and physical INTID.
    links: Vec<(u32, u32)>,
    /// The interrupts that the guest on each vCPU has acknowledged and not ended.
    pub taken: Vec<Vec<u32>>,
    /// The vCPUs that have been notified and have not called `on_notify` yet.
    pub inbox: Notify,
    /// The number of maintenance interrupts so far, and of [`Answer::Again`].
    pub maintenances: usize,
    pub repeats: usize,
}

impl<const V2: bool> Vm<V2> {
    /// Creates a VM that has just started. `links` are the hardware interrupts: virtual INTID,
    /// physical INTID, whether edge-triggered.
    pub fn new(vcpus: usize, lrs: usize, links: &[(u32, u32, bool)]) -> Self {
        let wires = Rc::new(RefCell::new(Wires {
            ppis: vec![[Wire::default(); 32]; vcpus],
            spis: vec![Wire::default(); 256],
        }));
        let dist = Distributor::new();
        dist.reset(Board::<V2>::VERSION, vcpus, 64, 27);
        for (vintid, pintid, edge) in links {
            dist.link(*vintid, *pintid, *edge);
            for pcpu in 0..vcpus {
                wires.borrow_mut().at(pcpu, *pintid).edge = *edge;
            }
        }
        let mut vm = Self {
            dist,
            cpus: (0..vcpus).map(Cpu::new).collect(),
            boards: (0..vcpus)
                .map(|n| Board::new(n, lrs, wires.clone()))
                .collect(),
            wires,
            links: links.iter().map(|l| (l.0, l.1)).chain([(27, 27)]).collect(),
            taken: vec![Vec::new(); vcpus],
            inbox: Notify::NOBODY,
            maintenances: 0,
            repeats: 0,
        };
        for n in 0..vcpus {
            vm.start(n);
        }
        vm
    }

    /// Creates a VM as [`Self::new`] does, with everything that the guest would set up: groups and
    /// SGIs enabled, SPIs routed to the first vCPU, group 1 on a GICv3.
    pub fn ready(vcpus: usize, lrs: usize, links: &[(u32, u32, bool)]) -> Self {
        let mut vm = Self::new(vcpus, lrs, links);
        vm.gicd(0, 0, 3);
        for n in 0..vcpus {
            if V2 {
                vm.gicd(n, 0x100, 0xffff);
            } else {
                vm.gicr(0, n, 0x1_0080, u32::MAX);
                vm.gicr(0, n, 0x1_0100, 0xffff);
            }
        }
        for word in 1..3 {
            if V2 {
                for at in 0..8 {
                    vm.gicd(0, 0x800 + 0x20 * word + 4 * at, 0x0101_0101);
                }
            } else {
                vm.gicd(0, 0x80 + 4 * word, u32::MAX);
            }
        }
        vm
    }

    pub fn start(&mut self, n: usize) {
        self.boards[n].running.clear();
        self.inbox |= self.cpus[n].reset(&self.dist, &mut self.boards[n]);
    }

    pub fn leave(&mut self, n: usize) {
        self.inbox |= self.cpus[n].leave(&self.dist, &mut self.boards[n]);
    }

    pub fn stop(mut self) -> Rc<RefCell<Wires>> {
        for n in 0..self.cpus.len() {
            self.leave(n);
        }
        shutdown(&self.dist, &mut self.boards[0]);
        self.wires
    }

    /// Repeats an access until it is done; the other vCPUs run in between.
    fn repeat(&mut self, mut access: impl FnMut(&mut Self) -> (Answer, Notify)) -> u64 {
        for _ in 0..PATIENCE {
            let (answer, notify) = access(self);
            self.inbox |= notify;
            match answer {
                Answer::Value(value) => return value,
                Answer::Again => {
                    self.repeats += 1;
                    self.on_notify();
                }
            }
        }
        panic!("an access never ends");
    }

    pub fn gicd(&mut self, n: usize, offset: u64, value: u32) {
        self.gicd_sized(n, offset, 4, value.into());
    }

    pub fn gicd_sized(&mut self, n: usize, offset: u64, size: u64, value: u64) {
        self.repeat(|vm| vm.cpus[n].gicd_write(&vm.dist, &mut vm.boards[n], offset, size, value));
        self.settle();
    }

    pub fn gicd_read(&mut self, n: usize, offset: u64) -> u32 {
        self.gicd_read_sized(n, offset, 4) as u32
    }

    pub fn gicd_read_sized(&mut self, n: usize, offset: u64, size: u64) -> u64 {
        self.repeat(|vm| vm.cpus[n].gicd_read(&vm.dist, &mut vm.boards[n], offset, size))
    }

    /// Writes, as vCPU `n`, to the redistributor of vCPU `of`.
    pub fn gicr(&mut self, n: usize, of: usize, offset: u64, value: u32) {
        let at = of as u64 * GICR_SIZE + offset;
        self.repeat(|vm| vm.cpus[n].gicr_write(&vm.dist, &mut vm.boards[n], at, 4, value.into()));
        self.settle();
    }

    pub fn gicr_read(&mut self, n: usize, of: usize, offset: u64) -> u32 {
        let at = of as u64 * GICR_SIZE + offset;
        self.repeat(|vm| vm.cpus[n].gicr_read(&vm.dist, &mut vm.boards[n], at, 4)) as u32
    }

    /// Writes to a register with a bit for each interrupt, in the frame where the architecture has
    /// it; for private interrupts, those of vCPU `n`.
    pub fn bits(&mut self, n: usize, bank: u64, word: u64, value: u32) {
        if V2 || word != 0 {
            self.gicd(n, bank * 0x80 + word * 4, value);
        } else {
            self.gicr(n, n, 0x1_0000 + bank * 0x80, value);
        }
    }

    pub fn read_bits(&mut self, n: usize, bank: u64, word: u64) -> u32 {
        if V2 || word != 0 {
            self.gicd_read(n, bank * 0x80 + word * 4)
        } else {
            self.gicr_read(n, n, 0x1_0000 + bank * 0x80)
        }
    }

    pub fn priority(&mut self, n: usize, intid: u32, priority: u8) {
        let at = u64::from(intid);
        let value = priority.into();
        if V2 || intid >= 32 {
            self.gicd_sized(n, 0x400 + at, 1, value);
        } else {
            let offset = n as u64 * GICR_SIZE + 0x1_0400 + at;
            self.repeat(|vm| vm.cpus[n].gicr_write(&vm.dist, &mut vm.boards[n], offset, 1, value));
            self.settle();
        }
    }

    pub fn route(&mut self, n: usize, intid: u32, to: usize) {
        let at = u64::from(intid);
        if V2 {
            self.gicd_sized(n, 0x800 + at, 1, 1 << to);
        } else {
            self.gicd_sized(n, 0x6000 + at * 8, 8, to as u64);
        }
    }

    /// Sends an SGI from vCPU `n` to the vCPUs of `targets`, by the fast path if it takes the SGI.
    /// No target acts on it yet.
    pub fn post_sgi(&mut self, n: usize, targets: u32, intid: u32) {
        let (cpu, dist, board) = (&mut self.cpus[n], &self.dist, &mut self.boards[n]);
        let notify = if V2 {
            let value = targets << 16 | intid;
            let fast = cpu.send_sgir_fast(dist, board, value);
            fast.unwrap_or_else(|| {
                if cpu.send_sgir_beside(dist, board, value) {
                    return Notify::NOBODY;
                }
                let (answer, notify) = cpu.gicd_write(dist, board, 0xf00, 4, value.into());
                assert_eq!(answer, Answer::Value(0));
                notify
            })
        } else {
            let value = u64::from(targets) | u64::from(intid) << 24;
            let fast = cpu.send_sgi_fast(dist, board, value);
            fast.unwrap_or_else(|| {
                if cpu.send_sgi_beside(dist, board, value) {
                    return Notify::NOBODY;
                }
                cpu.send_sgi(dist, board, value, true)
            })
        };
        self.inbox |= notify;
    }

    pub fn sgi(&mut self, n: usize, targets: u32, intid: u32) {
        self.post_sgi(n, targets, intid);
        self.settle();
    }

    pub fn post(&mut self, intid: u32) {
        self.inbox |= self.dist.post(intid, 0);
        self.settle();
    }

    /// Moves a line of an emulated device, on vCPU `n`.
    pub fn line(&mut self, n: usize, intid: u32, up: bool) {
        self.inbox |= self.cpus[n].set_line(&self.dist, &mut self.boards[n], intid, up);
        self.settle();
    }

    /// Moves the line of a physical device.
    pub fn wire(&mut self, pcpu: usize, pintid: u32, up: bool) {
        {
            let mut wires = self.wires.borrow_mut();
            let wire = wires.at(pcpu, pintid);
            if up && !wire.line && wire.edge {
                wire.pending = true;
            }
            wire.line = up;
        }
        self.settle();
    }

    /// Calls `on_notify` for the vCPUs that have been notified.
    pub fn on_notify(&mut self) {
        for n in core::mem::take(&mut self.inbox).iter() {
            if self.dist.is_online(n) {
                self.inbox |= self.cpus[n].on_notify(&self.dist, &mut self.boards[n]);
            }
        }
    }

    /// Takes one physical interrupt as EL2 does; returns whether there was one.
    fn take_physical(&mut self, n: usize) -> bool {
        let due = |wire: &Wire| wire.enabled && wire.is_pending() && !wire.active;
        let found = self.links.iter().copied().find(|(_, pintid)| {
            let wire = *self.wires.borrow_mut().at(n, *pintid);
            due(&wire) && (*pintid < 32 || wire.vcpu == n)
        });
        let Some((vintid, pintid)) = found else {
            return false;
        };
        {
            let mut wires = self.wires.borrow_mut();
            let wire = wires.at(n, pintid);
            wire.active = true;
            wire.pending = false;
        }
        let (cpu, board) = (&mut self.cpus[n], &mut self.boards[n]);
        if pintid == 27 && cpu.vtimer_entry() != 0 {
            assert_ne!(
                board.empty() & 1,
                0,
                "the timer's list register is free when it fires"
            );
            board.set_lr(VTIMER_LR, cpu.vtimer_entry());
        } else if !cpu.raise_fast(&self.dist, board, pintid) {
            self.inbox |= cpu.raise(&self.dist, board, vintid);
        }
        true
    }

    /// Does everything that is due at EL2, until nothing is.
    pub fn settle(&mut self) {
        for _ in 0..PATIENCE {
            let mut rest = self.inbox.is_empty();
            self.on_notify();
            for n in 0..self.cpus.len() {
                if !self.dist.is_online(n) {
                    continue;
                }
                if self.boards[n].maintenance() {
                    self.maintenances += 1;
                    self.inbox |= self.cpus[n].handle_maintenance(&self.dist, &mut self.boards[n]);
                    rest = false;
                }
                rest &= !self.take_physical(n);
            }
            if rest && self.inbox.is_empty() {
                return;
            }
        }
        panic!("EL2 never comes to rest");
    }

    /// Acknowledges the most urgent interrupt of vCPU `n` as the guest does; returns its INTID.
    pub fn acknowledge(&mut self, n: usize) -> Option<u32> {
        let taken = self.boards[n].acknowledge().map(lr::vintid);
        self.settle();
        taken
    }

    /// Writes EOIR as the guest on vCPU `n` does, and DIR if its EOImode is 1.
    pub fn end(&mut self, n: usize, intid: u32) {
        self.boards[n].end(intid);
        self.settle();
        if self.boards[n].split {
            self.deactivate(n, intid);
        }
    }

    /// Writes DIR as the guest on vCPU `n` does.
    pub fn deactivate(&mut self, n: usize, intid: u32) {
        self.inbox |= self.cpus[n].deactivate(&self.dist, &mut self.boards[n], intid);
        self.settle();
    }

    /// Acknowledges and ends everything on vCPU `n`; returns the INTIDs in order.
    pub fn drain(&mut self, n: usize) -> Vec<u32> {
        let mut order = Vec::new();
        while let Some(intid) = self.acknowledge(n) {
            self.end(n, intid);
            order.push(intid);
            assert!(order.len() < PATIENCE, "interrupts never end");
        }
        order
    }
}
