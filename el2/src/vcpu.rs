//! Everything about a vCPU that its pCPU alone touches, and the thread of EL2 that it has there. Exactly one reference to it
//! exists at a time: the vectors make it. The thread that waits when no vCPU has anything to do is one without a VM.

use core::sync::atomic::AtomicU64;

use bulkhead_abi::plan::{DeviceKind, PAGE};
use bulkhead_core::console::report::Report;
use bulkhead_core::console::stats::ExitStats;
use bulkhead_core::cpu::pvtime;
use bulkhead_core::cpu::smccc::Workarounds;
use bulkhead_core::cpu::sysreg::IdRegisters;
use bulkhead_core::cpu::trng::Generator;
use bulkhead_core::devices::deadlines::Deadlines;
use bulkhead_core::devices::ptimer::PhysicalTimer;
use bulkhead_core::vgic::{self, GICR_SIZE, Notify};

use crate::console::state::Console;
use crate::gppt::state::Gppt;
use crate::hw::context::Context;
use crate::hw::gic::{self, Gic};
use crate::hw::mmu::Windows;
use crate::hw::state::{self, IDLE, VcpuState};
use crate::pcpu::Pcpu;
use crate::plan::{DeviceFrame, device, has_ptimer, plan, timer_devices};
use crate::vm::{VCPU_LOCATION, Vm, vm as vm_page};
use crate::{mailbox, random};

/// An INTID that nothing has.
const NO_INTID: u32 = u32::MAX;

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

/// State of a vCPU. The vectors rely on the frame being first.
#[derive(Debug)]
#[repr(C)]
pub struct Vcpu {
    /// Registers of the guest.
    pub frame: Frame,
    /// What exits have cost. Near the frame, where pairs can be loaded and stored.
    pub stats: ExitStats,
    /// The board's virtual timer interrupt.
    pub vtimer_intid: u32,
    /// EL2's timer interrupt, where that comes as one of Group 1; else [`NO_INTID`].
    pub hyp_timer_intid: u32,
    /// The private interrupts of the board that a vCPU can own, its timers: a bit for each.
    pub timer_bits: u32,
    /// IPAs of what EL2 emulates; [`NOWHERE`] for what the VM does not have.
    pub ipas: DeviceIpas,
    /// Interrupt state of the vCPU.
    pub vgic: vgic::Cpu,
    /// The physical GIC.
    pub gic: Gic,
    /// Its GIC, if it takes its interrupts itself.
    pub gppt: Option<Gppt>,
    /// EL2 takes no Group 1 interrupts on its pCPU, because a vCPU there does.
    pub group0: bool,
    /// INTID of the emulated UART.
    pub pl011_intid: u32,
    /// INTID of the SGI by which a sibling makes this vCPU look; of one that shares its pCPU [`NO_INTID`], so that it is looked up
    /// whom it is for.
    pub sibling_intid: u32,
    /// Something is to be done before the guest goes on: see [`crate::lifecycle::do_exit_work`].
    pub exit_work: bool,
    /// What the threads of this pCPU share, while this one runs.
    pub pcpu: Option<&'static mut Pcpu>,
    /// What it has that most have not has to be kept and brought, too: a GIC of its own, the physical timer, or what an unusual
    /// interface of the pCPU has. The thread that waits has nothing, which is special as well.
    pub needs_full_switch: bool,
    /// It has the EL1 physical timer to itself.
    pub has_ptimer: bool,
    /// Its registers while another one has the pCPU.
    pub context: Context,
    /// When it left the pCPU (cycle counter).
    pub left: u64,
    /// IPA at which it is told stolen time, if it is; and how much of it (ticks) it has been told or did not have to be.
    pub stolen_at: Option<u64>,
    /// See `stolen_at`.
    pub stolen: u64,
    /// Where it is told.
    pub told: Option<&'static AtomicU64>,
    /// Its seat says when it has something to do by itself.
    pub sleeps: bool,
    /// Its place among the vCPUs of its pCPU, or [`IDLE`]. This and what else is the pCPU's changes when it moves ([`crate::balance`]).
    pub slot: usize,
    /// Row of the plan; of the thread that waits [`mailbox::of_pcpu`].
    pub id: usize,
    /// Index of its pCPU in the plan.
    pub index: usize,
    /// Index of its VM.
    pub vm: Option<usize>,
    /// Number of the vCPU in its VM, which is its affinity too.
    pub number: usize,
    /// How many vCPUs the VM has.
    pub vcpus: usize,
    /// The vCPU is on: it has registers.
    pub runs: bool,
    /// It stands still, because its VM is paused.
    pub paused: bool,
    /// What the guest's timers were while it stands still.
    pub paused_timers: Option<[u64; 2]>,
    /// When it needs EL2's timer.
    pub deadlines: Deadlines,
    /// The emulated physical timer.
    pub physical_timer: PhysicalTimer,
    /// What this pCPU answers about workarounds.
    pub workarounds: Workarounds,
    /// Random numbers for the guest, if the board gives EL2 any.
    pub generator: Option<Generator>,
    /// The life of the VM about whose end this vCPU has reported ([`Vm::life`]).
    pub reported: u32,
    /// What the pCPUs share about its VM.
    pub shared: Option<&'static Vm>,
    /// What the guest reads from ID registers.
    pub ids: IdRegisters,
    /// Windows of its pCPU.
    pub windows: Windows,
    /// What is still to be said about the vCPU, once it has stopped.
    pub report: Option<Report>,
}

/// Place of what a VM does not have: as far as can be from all that a guest can access, on both sides.
pub const NOWHERE: u64 = 1 << 63;

/// Where a VM finds what EL2 emulates.
#[derive(Clone, Copy, Debug)]
pub struct DeviceIpas {
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
    pub timed: [DeviceFrame; 2],
}

impl DeviceIpas {
    /// A VM that has nothing.
    const NOWHERE: Self = Self {
        gicd: NOWHERE,
        gicr: NOWHERE,
        gicr_size: 0,
        gicc_dir: NOWHERE,
        pl011: NOWHERE,
        timed: [DeviceFrame::NOWHERE; 2],
    };
}

impl Vcpu {
    /// The idle thread of pCPU `index`.
    #[inline(always)]
    pub fn idle(index: usize) -> Self {
        let plan = plan();
        let group0 = gic::gppt::EL2_IN_GROUP0 && gic::gppt::is_there(index);
        Self {
            frame: Frame::default(),
            stats: ExitStats::new(0),
            vtimer_intid: plan.header.board.vtimer_intid,
            hyp_timer_intid: if group0 {
                NO_INTID
            } else {
                plan.header.board.hyp_timer_intid
            },
            timer_bits: 1 << (plan.header.board.vtimer_intid % 32)
                | 1 << (plan.header.board.ptimer_intid % 32),
            ipas: DeviceIpas::NOWHERE,
            vgic: vgic::Cpu::new(0),
            gic: Gic::of(index),
            gppt: None,
            group0,
            pl011_intid: 0,
            sibling_intid: NO_INTID,
            exit_work: false,
            pcpu: None,
            needs_full_switch: true,
            has_ptimer: false,
            context: Context::NEW,
            left: 0,
            stolen_at: None,
            stolen: 0,
            told: None,
            sleeps: false,
            slot: IDLE,
            id: mailbox::of_pcpu(index),
            index,
            vm: None,
            number: 0,
            vcpus: 0,
            runs: false,
            paused: false,
            paused_timers: None,
            deadlines: Deadlines::new(),
            physical_timer: PhysicalTimer::new(),
            workarounds: Workarounds::NONE,
            generator: None,
            reported: 0,
            shared: None,
            ids: IdRegisters::NONE,
            windows: Windows::of(index),
            report: None,
        }
    }

    /// Becomes vCPU `id`, which is this row of the plan, on the pCPU of `idle`, which has been started.
    pub fn become_vcpu(
        &mut self,
        idle: &Self,
        id: usize,
        row: &bulkhead_abi::plan::Vcpu,
        slot: usize,
    ) {
        let plan = plan();
        let (vm, number) = (usize::from(row.vm), row.mpidr as usize);
        let vcpus = plan.vcpus_of(vm).len();
        self.gic = idle.gic;
        if let Some(siblings) = VCPU_LOCATION.siblings(id.wrapping_sub(number)) {
            self.gic.siblings = siblings;
        }
        let pl011 = device(vm, DeviceKind::Pl011, PAGE);
        if let Some(row) = plan.vms.get(vm) {
            self.ipas = DeviceIpas {
                gicd: row.gicd,
                gicr: if row.gicr == 0 { NOWHERE } else { row.gicr },
                gicr_size: GICR_SIZE.wrapping_mul(vcpus as u64),
                gicc_dir: if row.gicc == 0 {
                    NOWHERE
                } else {
                    row.gicc.wrapping_add(PAGE)
                },
                pl011: if pl011.size == 0 { NOWHERE } else { pl011.ipa },
                timed: timer_devices(vm),
            };
        }
        self.gppt = Gppt::of(vm);
        self.has_ptimer = has_ptimer(vm);
        self.sort();
        let told = plan.vms.get(vm).map_or(0, |row| row.stolen_time);
        let place = told.wrapping_add(pvtime::STRIDE.wrapping_mul(number as u64));
        self.stolen_at = (told != 0).then_some(place);
        self.told = (told != 0).then(|| state::stolen_time(vm, number));
        if self.gppt.is_some() {
            self.ipas.gicd = NOWHERE;
            self.ipas.gicr = NOWHERE;
        }
        self.vgic = vgic::Cpu::new(number);
        self.pl011_intid = pl011.intid;
        if !idle.pcpu.as_deref().is_some_and(Pcpu::is_shared) {
            self.sibling_intid = gic::gppt::sibling_intid(idle.index);
        }
        self.slot = slot;
        self.id = id;
        self.vm = Some(vm);
        self.number = number;
        self.vcpus = vcpus;
        self.workarounds = idle.workarounds;
        self.shared = Some(vm_page(vm));
        self.ids = idle.ids;
        self.generator = random::generator(vm, number);
    }

    /// Says anew whether it [`Self::needs_full_switch`], on the pCPU where it is now.
    pub fn sort(&mut self) {
        self.needs_full_switch = self.gppt.is_some() || self.has_ptimer || !self.gic.is_fastpath;
    }

    /// Makes the one vCPU of its VM that is in `whom`, if any, look at its interrupts.
    #[inline(always)]
    pub fn notify_one(&self, whom: Notify) {
        if whom != Notify::NOBODY {
            let place = &self.gic.siblings[whom.0.trailing_zeros() as usize & 7];
            gic::send_to(gic::SIBLING, place);
        }
    }

    /// Makes vCPUs of its VM look at their interrupts.
    pub fn notify(&self, whom: Notify) {
        for vcpu in whom.iter() {
            if let Some(place) = self.gic.siblings.get(vcpu) {
                gic::send_to(gic::SIBLING, place);
            }
        }
    }

    /// The console, if its pCPU drains it.
    pub fn console(&mut self) -> Option<&mut Console> {
        self.pcpu.as_deref_mut()?.console.as_mut()
    }

    /// The shared state of its VM.
    #[inline(always)]
    pub fn vm(&self) -> Option<&'static Vm> {
        self.shared
    }
}

impl VcpuState for Vcpu {
    #[inline(always)]
    fn idle(index: usize) -> Self {
        Self::idle(index)
    }

    #[inline(always)]
    fn slot(&self) -> usize {
        self.slot
    }

    #[inline(always)]
    fn id(&self) -> usize {
        self.id
    }

    #[inline(always)]
    fn index(&self) -> usize {
        self.index
    }

    #[inline(always)]
    fn set_pcpu(&mut self, pcpu: &'static mut Pcpu) {
        self.pcpu = Some(pcpu);
    }
}
