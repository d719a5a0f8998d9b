//! Everything that a pCPU owns. Exactly one reference to it exists at a time: the vectors make it.

use bulkhead_abi::plan::{NONE, PAGE, Vcpu};
use bulkhead_core::pl011::Pl011;
use bulkhead_core::report::Report;
use bulkhead_core::stats::ExitStats;
use bulkhead_core::sysreg::{ID_REGISTERS, IdRegisters};
use bulkhead_core::vgic;

use crate::hw::gic::Gic;
use crate::hw::layout::private;
use crate::hw::mmu::{self, Windows};
use crate::hw::uart::Uart;
use crate::service::Service;
use crate::start::plan;
use crate::vm::{Vm, vm as vm_page};

/// General-purpose registers of the guest. The vectors save x0 to x18 and x30 here, and the rest if an
/// access needs it; entry 31 stands for XZR.
#[derive(Debug)]
#[repr(C)]
pub struct Frame([u64; 32]);

impl Frame {
    /// Reads a register.
    #[inline(always)]
    pub fn get(&self, register: u8) -> u64 {
        self.0[usize::from(register & 31)]
    }

    /// Writes a register.
    #[inline(always)]
    pub fn set(&mut self, register: u8, value: u64) {
        self.0[usize::from(register & 31)] = value;
        self.0[31] = 0;
    }

    /// Writes x0.
    #[inline(always)]
    pub fn set_x0(&mut self, value: u64) {
        self.0[0] = value;
    }
}

/// State of a pCPU. The vectors rely on the frame being first.
#[derive(Debug)]
#[repr(C)]
pub struct Pcpu {
    /// Registers of the guest.
    pub frame: Frame,
    /// What exits have cost. Near the frame, where pairs can be loaded and stored.
    pub stats: ExitStats,
    /// The board's virtual timer interrupt.
    pub vtimer_intid: u32,
    /// Affinity that the guest sees.
    pub affinity: u64,
    /// IPAs of what EL2 emulates; `u64::MAX` for what the VM does not have.
    pub places: Places,
    /// Interrupt state of the vCPU.
    pub vgic: vgic::Cpu,
    /// The physical GIC.
    pub gic: Gic,
    /// The emulated UART.
    pub pl011: Pl011,
    /// INTID of the emulated UART.
    pub pl011_intid: u32,
    /// Index of this pCPU in the plan.
    pub index: usize,
    /// Index of the VM that has this pCPU.
    pub vm: Option<usize>,
    /// What the pCPUs share about it.
    pub shared: Option<&'static Vm>,
    /// What the guest reads from ID registers.
    pub ids: IdRegisters,
    /// Windows of this pCPU.
    pub windows: Windows,
    /// The board's UART, on the pCPU that drains the console.
    pub service: Option<Service>,
    /// What is still to be said about the vCPU, once it has stopped.
    pub report: Option<Report>,
}

/// Where a VM finds what EL2 emulates.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Distributor.
    pub gicd: u64,
    /// Redistributor.
    pub gicr: u64,
    /// PL011.
    pub pl011: u64,
}

impl Pcpu {
    /// State of pCPU `index` before it has started anything.
    pub fn new(index: usize) -> Self {
        let uart = mmu::private_frame(index, private::UART, PAGE);
        let plan = plan();
        let row = plan.pcpus.get(index);
        let vcpu: Option<&Vcpu> = row
            .filter(|row| row.vcpu != NONE)
            .and_then(|row| plan.vcpus.get(usize::from(row.vcpu)));
        let vm = vcpu.map(|vcpu| usize::from(vcpu.vm));
        let nowhere = Places {
            gicd: u64::MAX,
            gicr: u64::MAX,
            pl011: u64::MAX,
        };
        let places = vm
            .and_then(|vm| plan.vms.get(vm))
            .map_or(nowhere, |vm| Places {
                gicd: vm.gicd,
                gicr: vm.gicr,
                ..nowhere
            });
        let drains = row.is_some_and(|row| row.service != 0);
        Self {
            frame: Frame([0; 32]),
            stats: ExitStats::new(0),
            vtimer_intid: plan.header.board.vtimer_intid,
            affinity: vcpu.map_or(0, |vcpu| vcpu.mpidr),
            places,
            vgic: vgic::Cpu::new(vcpu.map_or(0, |vcpu| gic_affinity(vcpu.mpidr))),
            gic: Gic::of(index),
            pl011: Pl011::new(),
            pl011_intid: 0,
            index,
            vm,
            shared: vm.map(vm_page),
            ids: IdRegisters::new(&[0; ID_REGISTERS]),
            windows: Windows::of(index),
            service: drains.then(|| Service::new(Uart(uart))),
            report: None,
        }
    }

    /// The shared state of the VM that has this pCPU.
    #[inline(always)]
    pub fn vm(&self) -> Option<&'static Vm> {
        self.shared
    }
}

/// Affinity as GICR_TYPER has it, from MPIDR.
const fn gic_affinity(mpidr: u64) -> u32 {
    ((mpidr >> 32 & 0xff) << 24 | mpidr & 0xff_ffff) as u32
}
