//! A VM on a board: the vGIC with its pCPUs on one side, the model of the GIC on the other.

mod compare;
mod registers;

use std::collections::BTreeSet;

use bulkhead_core::vgic::{Answer, Cpu, Distributor, GICR_SIZE, Notify, VTIMER, VTIMER_LR};
use bulkhead_core::vgic::{Host, Version as CoreVersion};
use bulkhead_gic_model::{Config, Deactivated, Entry, Frame, Gic, Version, VirtualInterface};

use crate::board::Board;
use crate::operation::{Operation, Register};
use crate::port::Port;

/// Bits of a priority that the vGIC has.
const PRIORITY_BITS: u32 = 5;
/// Hardware interrupts besides the virtual timer: virtual INTID, physical INTID, edge. The first one is private.
const LINKS: [(u32, u32, bool); 4] = [
    (30, 30, false),
    (40, 140, false),
    (41, 141, true),
    (55, 33, true),
];
/// The board's PPI behind the virtual timer.
const TIMER: u32 = 28;
/// Steps after which a machine must have come to rest, and turns after which an access must be over.
const PATIENCE: usize = 4000;

/// Configuration of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// GICv2, else GICv3.
    pub v2: bool,
    /// vCPUs, 1 to 8.
    pub cpus: usize,
    /// List registers, 2 to 16.
    pub list_registers: usize,
    /// SPIs, 32 to 256, a multiple of 32.
    pub spis: u32,
}

/// A pCPU with its vCPU.
struct Pcpu {
    vcpu: Cpu,
    interface: VirtualInterface,
    on: bool,
    /// A message waits.
    told: bool,
    /// Interrupts that the guest has acknowledged, as they were then, the last one last.
    taken: Vec<Entry>,
    /// INTIDs that it has ended and not deactivated (EOImode 1).
    dropped: Vec<u32>,
}

/// The VM, its board, and the model.
pub struct Machine<const V2: bool> {
    shape: Shape,
    dist: Distributor,
    pcpus: Vec<Pcpu>,
    board: Board,
    model: Gic,
    /// The guest keeps to what the architecture defines, and is shown what the model says.
    sane: bool,
}

impl<const V2: bool> Machine<V2> {
    /// A VM that has just started: all vCPUs on, everything enabled, with priorities and groups of all kinds.
    pub fn new(shape: Shape) -> Self {
        let version = if V2 { Version::V2 } else { Version::V3 };
        let core_version = if V2 { CoreVersion::V2 } else { CoreVersion::V3 };
        let mut model = Gic::new(Config {
            version,
            cpus: shape.cpus,
            spis: shape.spis,
            priority_bits: PRIORITY_BITS,
            sgis_always_enabled: false,
            fixed_ppis: 1 << VTIMER | 1 << LINKS[0].0,
        });
        let dist = Distributor::new();
        dist.reset(core_version, shape.cpus, shape.spis, TIMER);
        let mut board = Board::new(shape.cpus);
        for (vintid, pintid, edge) in LINKS {
            dist.link(vintid, pintid, edge);
            for pcpu in 0..shape.cpus {
                let physical = board.at(pcpu, pintid);
                (physical.given, physical.edge) = (true, edge);
            }
            if vintid >= 32 {
                model.fix_trigger(vintid, edge);
            }
        }
        let pcpu = |n| Pcpu {
            vcpu: Cpu::new(n),
            interface: VirtualInterface::new(shape.list_registers, PRIORITY_BITS),
            on: false,
            told: false,
            taken: Vec::new(),
            dropped: Vec::new(),
        };
        for n in 0..shape.cpus {
            board.at(n, TIMER).given = true;
        }
        let pcpus = (0..shape.cpus).map(pcpu).collect();
        let mut machine = Self {
            shape,
            dist,
            pcpus,
            board,
            model,
            sane: true,
        };
        for cpu in 0..shape.cpus {
            machine.power(cpu, true);
        }
        machine.prepare();
        machine
    }

    /// From now on the guest does what it likes, and nothing is compared: what holds for the hardware and for other
    /// VMs still must.
    pub fn go_wild(&mut self) {
        self.sane = false;
    }

    /// Sets up the GIC as a guest does first.
    fn prepare(&mut self) {
        let words = 1 + self.shape.spis / 32;
        for cpu in 0..self.shape.cpus {
            let mut write = |register, n, value| {
                self.apply(&Operation::Write {
                    cpu,
                    of: cpu,
                    register,
                    n,
                    value,
                    size: 4,
                });
            };
            for n in 0..words {
                write(Register::Group, n, 0xb6db_6db6);
                write(Register::Enable, n, u32::MAX);
            }
            for n in 0..words * 8 {
                write(Register::Priority, n, 0x8060_9840_u32.rotate_left(3 * n));
            }
            self.apply(&Operation::Mask { cpu, value: 0xff });
            self.apply(&Operation::Groups {
                cpu,
                enabled: [true; 2],
            });
        }
        for intid in 32..32 + self.shape.spis {
            let (n, value) = if V2 {
                (intid / 4, 0x0804_0201)
            } else {
                (intid, intid % 3)
            };
            let all = ((1 << self.shape.cpus) - 1) * 0x0101_0101;
            let value = if V2 {
                value & all
            } else {
                value % self.shape.cpus as u32
            };
            self.apply(&Operation::Write {
                cpu: 0,
                of: 0,
                register: Register::Route,
                n,
                value,
                size: 4,
            });
        }
        self.apply(&Operation::Write {
            cpu: 0,
            of: 0,
            register: Register::Control,
            n: 0,
            value: 3,
            size: 4,
        });
    }

    /// Lets a vCPU do something with its hardware.
    fn with<T>(
        &mut self,
        cpu: usize,
        act: impl FnOnce(&mut Cpu, &Distributor, &mut Port<'_, V2>) -> T,
    ) -> T {
        let pcpu = &mut self.pcpus[cpu];
        let mut port = Port {
            pcpu: cpu,
            interface: &mut pcpu.interface,
            board: &mut self.board,
        };
        act(&mut pcpu.vcpu, &self.dist, &mut port)
    }

    fn tell(&mut self, who: Notify) {
        for cpu in who.iter() {
            assert!(self.pcpus[cpu].on, "vCPU {cpu} is off and was notified");
            self.pcpus[cpu].told = true;
        }
    }

    /// Does one step in both.
    pub fn apply(&mut self, operation: &Operation) {
        let cpus = self.shape.cpus;
        match *operation {
            Operation::Write {
                cpu,
                of,
                register,
                n,
                value,
                size,
            } => {
                let (cpu, of) = (cpu % cpus, of % cpus);
                if self.pcpus[cpu].on {
                    self.write_register(cpu, of, register, n, value, size);
                }
            }
            Operation::Sgi { cpu, group, value } => self.send(cpu % cpus, group % 2, value),
            Operation::Line { seen, intid, up } => self.line(seen.map(|cpu| cpu % cpus), intid, up),
            Operation::Post { intid } => {
                let intid = self.device(intid);
                self.model.pulse(0, intid);
                let notify = self.dist.post(intid, 0);
                self.tell(notify);
            }
            Operation::Signal { cpu, link, up } => self.signal(cpu % cpus, link, up),
            Operation::Acknowledge { cpu, group } => self.acknowledge(cpu % cpus, group % 2),
            Operation::End { cpu } => self.end(cpu % cpus),
            Operation::Deactivate { cpu, which } => self.deactivate(cpu % cpus, which),
            Operation::Mask { cpu, value } => {
                self.model.interfaces[cpu % cpus].set_mask(value);
                self.pcpus[cpu % cpus].interface.interface.set_mask(value);
            }
            Operation::Point { cpu, group, value } => {
                self.model.interfaces[cpu % cpus].set_point(group % 2, value);
                self.pcpus[cpu % cpus]
                    .interface
                    .interface
                    .set_point(group % 2, value);
            }
            Operation::Groups { cpu, enabled } => {
                self.model.interfaces[cpu % cpus].enabled = enabled;
                self.pcpus[cpu % cpus].interface.interface.enabled = enabled;
            }
            Operation::SplitEnd { cpu, split } => {
                let pcpu = &mut self.pcpus[cpu % cpus];
                if pcpu.taken.is_empty() && pcpu.dropped.is_empty() {
                    self.model.interfaces[cpu % cpus].split_end = split;
                    pcpu.interface.interface.split_end = split;
                }
            }
            Operation::Deliver { cpu } => {
                self.step(cpu % cpus);
            }
            Operation::Settle { first } => {
                self.settle(first % cpus);
                self.compare();
            }
            Operation::Power { cpu, on } => self.power(cpu % cpus, on),
            Operation::Wild {
                cpu,
                deactivate,
                intid,
            } => self.wild(cpu % cpus, deactivate, intid),
        }
    }

    /// Every pCPU that has been told looks once.
    fn look(&mut self) {
        for cpu in 0..self.shape.cpus {
            if std::mem::take(&mut self.pcpus[cpu].told) {
                let notify = self.with(cpu, |vcpu, dist, port| vcpu.on_notify(dist, port));
                self.tell(notify);
            }
        }
    }

    // --- signals --------------------------------------------------------------------------------

    fn send(&mut self, cpu: usize, group: usize, value: u64) {
        if !self.pcpus[cpu].on {
            return;
        }
        let notify = if V2 {
            self.model.write(cpu, Frame::Distributor, 0xf00, 4, value);
            let usual = self.with(cpu, |vcpu, dist, port| {
                vcpu.send_sgir_fast(dist, port, value as u32)
            });
            match usual {
                Some(notify) => notify,
                None if self.with(cpu, |vcpu, dist, port| {
                    vcpu.send_sgir_beside(dist, port, value as u32)
                }) =>
                {
                    Notify::NOBODY
                }
                None => {
                    self.access(cpu, Frame::Distributor, 0xf00, 4, Some(value & 0xffff_ffff));
                    Notify::NOBODY
                }
            }
        } else {
            self.model.send_sgi(cpu, group, value);
            self.with(cpu, |vcpu, dist, port| {
                let usual = (group == 1)
                    .then(|| vcpu.send_sgi_fast(dist, port, value))
                    .flatten();
                match usual {
                    Some(notify) => notify,
                    None if group == 1 && vcpu.send_sgi_beside(dist, port, value) => Notify::NOBODY,
                    None => vcpu.send_sgi(dist, port, value, group == 1),
                }
            })
        };
        self.tell(notify);
    }

    fn line(&mut self, seen: Option<usize>, intid: u32, up: bool) {
        let intid = self.device(intid);
        self.model.set_line(0, intid, up);
        let notify = match seen.filter(|cpu| self.pcpus[*cpu].on) {
            Some(cpu) => self.with(cpu, |vcpu, dist, port| vcpu.set_line(dist, port, intid, up)),
            None => self.dist.post_line(intid, up, 0),
        };
        self.tell(notify);
    }

    /// The input signal of a hardware interrupt. What a pCPU has acknowledged is on its way to the guest: hardware can
    /// neither take it back nor merge it with what comes now. So the signal of a level falls, and a second edge comes,
    /// only when the guest has seen the first, as with a device that was served.
    fn signal(&mut self, cpu: usize, link: usize, up: bool) {
        let (vintid, pintid) = match link % (LINKS.len() + 1) {
            0 => (VTIMER, TIMER),
            n => (LINKS[n - 1].0, LINKS[n - 1].1),
        };
        if vintid < 32 && !self.pcpus[cpu].on || vintid >= 32 + self.shape.spis {
            return;
        }
        let edge = self.board.at(cpu, pintid).edge;
        if edge == up && self.sane {
            self.settle(cpu);
            let active = self.model.interrupt(cpu, vintid).is_some_and(|i| i.active);
            if self.board.at(cpu, pintid).active && !active {
                return;
            }
        }
        self.model.set_line(cpu, vintid, up);
        self.board.at(cpu, pintid).set_line(up);
    }

    // --- what the guest does at its CPU interface -----------------------------------------------

    fn acknowledge(&mut self, cpu: usize, group: usize) {
        if self.sane {
            self.settle(cpu);
            self.compare_signals();
        }
        let pcpu = &mut self.pcpus[cpu];
        let Some(what) = pcpu.interface.acknowledge(group) else {
            return;
        };
        let mut entries = pcpu.interface.entries.iter().flatten();
        let entry = entries.find(|entry| entry.active && entry.intid == what.intid);
        pcpu.taken.push(*entry.expect("it was acknowledged"));
        if self.sane {
            self.model.acknowledge(cpu, what);
        }
    }

    fn end(&mut self, cpu: usize) {
        let Some(taken) = self.pcpus[cpu].taken.pop() else {
            return;
        };
        let intid = taken.intid;
        self.model.end(cpu, intid);
        let pcpu = &mut self.pcpus[cpu];
        let mut entries = pcpu.interface.entries.iter().flatten();
        if let Some(entry) = entries.find(|entry| entry.active && entry.intid == intid)
            && self.sane
        {
            // Hardware ends no other (IHI 0069H, pseudocode of ICV_EOIR1_EL1).
            assert_eq!(
                (entry.group, entry.priority),
                (taken.group, taken.priority),
                "{intid} is active with another group or priority than it was taken with"
            );
        }
        match pcpu.interface.end(intid) {
            None => pcpu.dropped.push(intid),
            Some(Deactivated::Physical(pintid)) => self.board.at(cpu, pintid).active = false,
            Some(_) => {}
        }
    }

    fn deactivate(&mut self, cpu: usize, which: usize) {
        let pcpu = &mut self.pcpus[cpu];
        if pcpu.dropped.is_empty() {
            return;
        }
        let intid = pcpu.dropped.remove(which % pcpu.dropped.len());
        self.model.deactivate(cpu, intid);
        let notify = self.with(cpu, |vcpu, dist, port| vcpu.deactivate(dist, port, intid));
        self.tell(notify);
    }

    /// Ends or deactivates whatever comes to mind.
    fn wild(&mut self, cpu: usize, deactivate: bool, intid: u32) {
        if self.sane || !self.pcpus[cpu].on {
            return;
        }
        let pcpu = &mut self.pcpus[cpu];
        // In EOImode 0 such a write does nothing.
        if deactivate && !pcpu.interface.interface.split_end {
            return;
        }
        if deactivate {
            let notify = self.with(cpu, |vcpu, dist, port| vcpu.deactivate(dist, port, intid));
            self.tell(notify);
            return;
        }
        if let Some(Deactivated::Physical(pintid)) = pcpu.interface.end(intid) {
            self.board.at(cpu, pintid).active = false;
        }
    }

    /// CPU_OFF and CPU_ON.
    fn power(&mut self, cpu: usize, on: bool) {
        if self.pcpus[cpu].on == on {
            return;
        }
        if !on {
            // What the guest itself made active belongs to no vCPU that could end it.
            let spis = 32..32 + self.shape.spis;
            let mut active = spis
                .filter_map(|intid| self.model.interrupt(0, intid))
                .filter(|i| i.active);
            if self.sane && active.any(|i| i.taken_by.is_none()) {
                return;
            }
            self.settle(cpu);
            let notify = self.with(cpu, |vcpu, dist, port| vcpu.leave(dist, port));
            self.pcpus[cpu].on = false;
            self.tell(notify);
            let held = self.pcpus[cpu].interface.entries.iter().flatten();
            assert_eq!(
                held.filter(|e| e.pending || e.active).count(),
                0,
                "vCPU {cpu} is off"
            );
            self.pcpus[cpu].told = false;
            self.pcpus[cpu].taken.clear();
            self.pcpus[cpu].dropped.clear();
            for (vintid, pintid) in [(VTIMER, TIMER), (LINKS[0].0, LINKS[0].1)] {
                let physical = self.board.at(cpu, pintid);
                assert!(
                    !physical.active && !physical.enabled,
                    "{vintid} of vCPU {cpu}, which is off"
                );
                physical.latch = false;
                physical.line = false;
            }
            self.model.restart(cpu);
            return;
        }
        self.model.restart(cpu);
        let registers = self.shape.list_registers;
        self.pcpus[cpu].interface = VirtualInterface::new(registers, PRIORITY_BITS);
        self.pcpus[cpu].on = true;
        let notify = self.with(cpu, |vcpu, dist, port| vcpu.reset(dist, port));
        self.tell(notify);
    }

    // --- what EL2 does --------------------------------------------------------------------------

    /// A pCPU handles one thing that waits for it; `false` if nothing does.
    fn step(&mut self, cpu: usize) -> bool {
        if !self.pcpus[cpu].on {
            return false;
        }
        let notify = if std::mem::take(&mut self.pcpus[cpu].told) {
            self.with(cpu, |vcpu, dist, port| vcpu.on_notify(dist, port))
        } else if let Some(pintid) = self.board.signalled(cpu) {
            self.take(cpu, pintid)
        } else if self.pcpus[cpu].interface.maintenance() {
            self.with(cpu, |vcpu, dist, port| vcpu.handle_maintenance(dist, port))
        } else {
            return false;
        };
        self.tell(notify);
        true
    }

    /// A physical interrupt is acknowledged and its priority dropped.
    fn take(&mut self, cpu: usize, pintid: u32) -> Notify {
        let physical = self.board.at(cpu, pintid);
        (physical.active, physical.latch) = (true, false);
        self.with(cpu, |vcpu, dist, port| {
            if pintid == TIMER {
                let entry = vcpu.vtimer_entry();
                if entry == 0 {
                    return vcpu.raise(dist, port, VTIMER);
                }
                port.set_lr(VTIMER_LR, entry);
                return Notify::NOBODY;
            }
            if pintid >= 32 && vcpu.raise_fast(dist, port, pintid) {
                return Notify::NOBODY;
            }
            let link = LINKS.iter().find(|(_, physical, _)| *physical == pintid);
            vcpu.raise(dist, port, link.map_or(0, |(vintid, _, _)| *vintid))
        })
    }
}

/// Returns the vCPU whose interrupts word 0 of a frame means.
fn of_word(frame: Frame, cpu: usize) -> usize {
    match frame {
        Frame::Distributor => cpu,
        Frame::Redistributor(of) => of,
    }
}
