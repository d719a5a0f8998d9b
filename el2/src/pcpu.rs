//! Everything that a pCPU owns. Exactly one reference to it exists at a time: the vectors make it.

use bulkhead_abi::plan::{NONE, PAGE, Vcpu};
use bulkhead_core::deadlines::Deadlines;
use bulkhead_core::ptimer::PhysicalTimer;
use bulkhead_core::report::Report;
use bulkhead_core::smccc::Workarounds;
use bulkhead_core::stats::ExitStats;
use bulkhead_core::sysreg::IdRegisters;
use bulkhead_core::trng::Generator;
use bulkhead_core::vgic::{self, GICR_SIZE, Notify};

use crate::hw::gic::{self, Gic};
use crate::hw::layout::private;
use crate::hw::mmu::{self, Windows};
use crate::hw::uart::Uart;
use crate::service::Service;
use crate::start::plan;
use crate::timed::Place;
use crate::vm::{Vm, pcpus_of, vm as vm_page};

/// General-purpose registers of the guest. The vectors save x0 to x18 and x30 here, and the rest if an
/// access needs it; entry 31 stands for XZR.
#[derive(Debug, Default)]
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
    /// IPAs of what EL2 emulates; [`NOWHERE`] for what the VM does not have.
    pub places: Places,
    /// Interrupt state of the vCPU.
    pub vgic: vgic::Cpu,
    /// The physical GIC.
    pub gic: Gic,
    /// INTID of the emulated UART.
    pub pl011_intid: u32,
    /// Index of this pCPU in the plan.
    pub index: usize,
    /// Index of the VM that has this pCPU.
    pub vm: Option<usize>,
    /// Number of the vCPU in its VM, which is its affinity too.
    pub number: usize,
    /// How many vCPUs the VM has.
    pub vcpus: usize,
    /// The vCPU is on: its registers are in the hardware.
    pub runs: bool,
    /// It stands still, because its VM is paused.
    pub stands: bool,
    /// [`crate::mailbox::POWER`] came and has not been acted on.
    pub power_event: bool,
    /// What the guest's timers were while it stands still.
    pub held: Option<[u64; 2]>,
    /// What EL2's timer is for.
    pub deadlines: Deadlines,
    /// The emulated physical timer.
    pub physical_timer: PhysicalTimer,
    /// What this pCPU answers about workarounds.
    pub workarounds: Workarounds,
    /// Random numbers for the guest, if the board gives EL2 any.
    pub generator: Option<Generator>,
    /// The life of the VM about whose end this pCPU has reported ([`Vm::life`]).
    pub reported: u32,
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

/// Place of what a VM does not have: as far as can be from all that a guest can access, on both sides.
pub const NOWHERE: u64 = 1 << 63;

/// Where a VM finds what EL2 emulates.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// Distributor.
    pub gicd: u64,
    /// Redistributor.
    pub gicr: u64,
    /// Bytes of all redistributors.
    pub gicr_size: u64,
    /// GICC_DIR of a GICv2.
    pub gicc_dir: u64,
    /// PL011.
    pub pl011: u64,
    /// Clock and watchdog.
    pub timed: [Place; 2],
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
            gicd: NOWHERE,
            gicr: NOWHERE,
            gicr_size: 0,
            gicc_dir: NOWHERE,
            pl011: NOWHERE,
            timed: [Place::NOWHERE; 2],
        };
        let vcpus = vm.map_or(0, |vm| plan.vcpus_of(vm).len());
        let places = vm
            .and_then(|vm| plan.vms.get(vm))
            .map_or(nowhere, |vm| Places {
                gicd: vm.gicd,
                gicr: if vm.gicr == 0 { NOWHERE } else { vm.gicr },
                gicr_size: GICR_SIZE.wrapping_mul(vcpus as u64),
                gicc_dir: if vm.gicc == 0 {
                    NOWHERE
                } else {
                    vm.gicc.wrapping_add(PAGE)
                },
                ..nowhere
            });
        let mut gic = Gic::of(index);
        if let Some(vm) = vm {
            for (sibling, pcpu) in gic.siblings.iter_mut().zip(pcpus_of(vm)) {
                *sibling = pcpu as u8;
            }
        }
        let number = vcpu.map_or(0, |vcpu| vcpu.mpidr as usize);
        let drains = row.is_some_and(|row| row.service != 0);
        Self {
            frame: Frame::default(),
            stats: ExitStats::new(0),
            vtimer_intid: plan.header.board.vtimer_intid,
            places,
            vgic: vgic::Cpu::new(number),
            gic,
            pl011_intid: 0,
            index,
            vm,
            number,
            vcpus,
            runs: false,
            stands: false,
            power_event: false,
            held: None,
            deadlines: Deadlines::new(),
            physical_timer: PhysicalTimer::new(),
            workarounds: Workarounds::NONE,
            generator: None,
            reported: 0,
            shared: vm.map(vm_page),
            ids: IdRegisters::NONE,
            windows: Windows::of(index),
            service: drains.then(|| Service::new(Uart(uart))),
            report: None,
        }
    }

    /// Makes the one vCPU of this VM that is in `whom`, if any, look at its interrupts.
    #[inline(always)]
    pub fn notify_one(&self, whom: Notify) {
        if whom != Notify::NOBODY {
            let pcpu = self.gic.siblings[whom.0.trailing_zeros() as usize & 7];
            gic::send(gic::SIBLING, usize::from(pcpu));
        }
    }

    /// Makes vCPUs of this VM look at their interrupts.
    pub fn notify(&self, whom: Notify) {
        for vcpu in whom.iter() {
            if let Some(pcpu) = self.gic.siblings.get(vcpu) {
                gic::send(gic::SIBLING, usize::from(*pcpu));
            }
        }
    }

    /// The shared state of the VM that has this pCPU.
    #[inline(always)]
    pub fn vm(&self) -> Option<&'static Vm> {
        self.shared
    }
}
