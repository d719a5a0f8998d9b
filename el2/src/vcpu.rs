//! The state of a vCPU that only its pCPU touches, together with the EL2 thread of that vCPU.
//! Exactly one reference to it exists at a time, which the vectors create. The idle thread of a
//! pCPU has such a state too, without a VM.

use core::sync::atomic::AtomicU64;

use bulkhead_abi::plan::{DeviceKind, PAGE, VM_DEBUG, VM_PMU};
use bulkhead_core::bandwidth::Meter;
use bulkhead_core::console::report::{Reason, Report};
use bulkhead_core::console::stats::ExitStats;
use bulkhead_core::cpu::pmu::Pmu;
use bulkhead_core::cpu::pvtime;
use bulkhead_core::cpu::smccc::Workarounds;
use bulkhead_core::cpu::sysreg::IdRegisters;
use bulkhead_core::cpu::trng::Generator;
use bulkhead_core::devices::deadlines::Deadlines;
use bulkhead_core::devices::ptimer::PhysicalTimer;
use bulkhead_core::monitor::Registers;
use bulkhead_core::vgic::{self, GICR_SIZE, Notify};

use crate::console::state::Console;
use crate::gppt::state::Gppt;
use crate::hw::context::Context;
use crate::hw::debug::{self, Debugging};
use crate::hw::gic::{self, Gic};
use crate::hw::mmu::CopyWindows;
use crate::hw::pmu;
use crate::hw::state::{self, IDLE, VcpuState};
use crate::hw::timer;
use crate::pcpu::Pcpu;
use crate::plan::{
    Bells, DeviceFrame, bells_of, device, has_ptimer, plan, service_thread, timer_devices,
};
use crate::profile::{IO, MANAGED};
use crate::vm::{VCPU_LOCATION, Vm, vm as vm_page};
use crate::{mailbox, random};

/// An INTID that no interrupt has.
const NO_INTID: u32 = u32::MAX;

/// The general-purpose registers of the guest. The vectors save x0 to x18 and x30 here, and the
/// rest if an access needs them; entry 31 stands for XZR.
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

/// The state of a vCPU. The vectors rely on the frame being its first field.
#[derive(Debug)]
#[repr(C)]
pub struct Vcpu {
    /// The registers of the guest.
    pub frame: Frame,
    /// The exit statistics. Near the frame, where load-pair and store-pair instructions reach them.
    pub stats: ExitStats,
    /// The INTID of the board's virtual timer interrupt.
    pub vtimer_intid: u32,
    /// The INTID of EL2's timer interrupt where it arrives in Group 1; otherwise [`NO_INTID`].
    pub hyp_timer_intid: u32,
    /// The board's private interrupts that a vCPU can own, which are its timers: one bit for each.
    pub timer_bits: u32,
    /// The IPAs of the emulated devices; [`NOWHERE`] for a device that the VM does not have.
    pub ipas: DeviceIpas,
    /// The doorbells that the VM rings.
    pub bells: Bells,
    /// The virtual interrupt state of the vCPU.
    pub vgic: vgic::Cpu,
    /// The physical GIC.
    pub gic: Gic,
    /// The GIC of a GPPT VM; `None` for a VM with a vGIC.
    pub gppt: Option<Gppt>,
    /// Whether EL2 takes no Group 1 interrupts on this pCPU, because a GPPT VM takes them there.
    pub group0: bool,
    /// The INTID of the emulated UART.
    pub pl011_intid: u32,
    /// The INTID of the SGI by which a sibling notifies this vCPU. [`NO_INTID`] if the vCPU shares
    /// its pCPU: then the slow path finds out for which vCPU the SGI is.
    pub sibling_intid: u32,
    /// Whether there is exit work, to be done before the guest goes on: see
    /// [`crate::lifecycle::do_exit_work`].
    pub exit_work: bool,
    /// The state that the threads of this pCPU share; present while this thread runs.
    pub pcpu: Option<&'static mut Pcpu>,
    /// Whether a switch must save and restore more than most vCPUs have: a GPPT VM's GIC, the
    /// physical timer, a budget of events, debug registers, performance monitors, or the state of a virtual interface that [`Gic::is_fastpath`] excludes. Set
    /// for idle and service threads too, which have no state at all and are a special case for that reason.
    pub needs_full_switch: bool,
    /// Whether the vCPU has the EL1 physical timer to itself.
    pub has_ptimer: bool,
    /// The budget of events of the vCPU.
    pub meter: Meter,
    /// The debug registers of the vCPU, if its VM has any.
    pub debugging: [Option<Debugging>; IO as usize],
    /// The performance monitors of the vCPU, if its VM has any.
    pub pmu: [Option<Pmu>; IO as usize],
    /// The saved registers of the vCPU while another vCPU has the pCPU.
    pub context: Context,
    /// The time at which the vCPU left the pCPU (cycle counter).
    pub left: u64,
    /// The IPA at which the guest reads its stolen time, if it is offered that.
    pub stolen_at: Option<u64>,
    /// The stolen time (ticks) that has been written for the guest or must not be charged to it.
    pub stolen: u64,
    /// The word in which EL2 writes the stolen time.
    pub told: Option<&'static AtomicU64>,
    /// The syndrome of an SError that was pending when the vCPU's turn ended, or 0.
    pub serror: u64,
    /// Whether the run slot of the vCPU holds a time at which to wake it.
    pub sleeps: bool,
    /// The index of the vCPU's run slot on its pCPU, or [`IDLE`]. Changes when the vCPU migrates,
    /// like the other fields that depend on the pCPU ([`crate::balance`]).
    pub slot: usize,
    /// The row of the vCPU in the plan; for the idle thread [`mailbox::of_pcpu`].
    pub id: usize,
    /// The index of the pCPU in the plan.
    pub index: usize,
    /// The index of the service thread that this is, without a VM.
    pub service: Option<usize>,
    /// The index of the VM in the plan.
    pub vm: Option<usize>,
    /// The number of the vCPU in its VM, which is its affinity too.
    pub number: usize,
    /// The number of vCPUs of the VM.
    pub vcpus: usize,
    /// Whether the vCPU is on: its registers are those of a guest.
    pub runs: bool,
    /// Whether the vCPU is stopped because its VM is paused.
    pub paused: bool,
    /// The control registers of the guest's timers (virtual, physical) while the vCPU is paused.
    pub paused_timers: Option<[u64; 2]>,
    /// The deadlines for which the vCPU needs EL2's timer.
    pub deadlines: Deadlines,
    /// The emulated physical timer.
    pub physical_timer: PhysicalTimer,
    /// The answers of this pCPU to the guest's questions about workarounds.
    pub workarounds: Workarounds,
    /// The generator of the guest's random numbers, if the board gives EL2 a seed.
    pub generator: Option<Generator>,
    /// The life of the VM (`Life::number`) whose end this vCPU has reported.
    pub reported: u32,
    /// The reason for the VM's end, if this vCPU is the one to report that, until it does.
    pub reason: Option<Reason>,
    /// The state of the VM that the pCPUs share.
    pub shared: Option<&'static Vm>,
    /// The values that the guest reads from the ID registers.
    pub ids: IdRegisters,
    /// The copy windows of the pCPU.
    pub copy_windows: CopyWindows,
    /// What is kept of the vCPU where managers may ask for it.
    pub kept: [Kept; MANAGED as usize],
    /// The report about the vCPU that is still to be printed, once the vCPU has stopped.
    pub report: Option<Report>,
}

// The vectors save the guest's registers where SP points.
const _: () = assert!(core::mem::offset_of!(Vcpu, frame) == 0);

/// The registers of a vCPU as they were looked at last, also when it went off.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kept {
    /// The life of the VM (`Life::number`) of which they are.
    pub life: u32,
    /// The registers.
    pub registers: Registers,
}

/// The IPA of a device that the VM does not have: as far as possible from every address that a
/// guest can access, in both directions.
pub const NOWHERE: u64 = 1 << 63;

/// The IPAs of the devices that EL2 emulates for a VM.
#[derive(Clone, Copy, Debug)]
pub struct DeviceIpas {
    /// The distributor.
    pub gicd: u64,
    /// The redistributors.
    pub gicr: u64,
    /// The size of all redistributors in bytes.
    pub gicr_size: u64,
    /// The page of GICC_DIR of a GICv2.
    pub gicc_dir: u64,
    /// The PL011.
    pub pl011: u64,
    /// The real-time clock and the watchdog.
    pub timed: [DeviceFrame; 2],
    /// The pages by which the VM rings, and what is between them: doorbells, and the bells of backends.
    pub bells: u64,
    /// The size of that in bytes.
    pub bells_size: u64,
}

impl DeviceIpas {
    /// The addresses of a VM without devices.
    const NOWHERE: Self = Self {
        gicd: NOWHERE,
        gicr: NOWHERE,
        gicr_size: 0,
        gicc_dir: NOWHERE,
        pl011: NOWHERE,
        timed: [DeviceFrame::NOWHERE; 2],
        bells: NOWHERE,
        bells_size: 0,
    };
}

impl Vcpu {
    /// Returns the state of the idle thread of pCPU `index`.
    #[inline(always)]
    pub fn idle(index: usize) -> Self {
        let plan = plan();
        let group0 = gic::gppt::EL2_LEAVES_GROUP1 && gic::gppt::has_gppt_vm(index);
        Self {
            vtimer_intid: plan.header.board.vtimer_intid,
            hyp_timer_intid: if group0 {
                NO_INTID
            } else {
                plan.header.board.hyp_timer_intid
            },
            timer_bits: 1 << (plan.header.board.vtimer_intid % 32)
                | 1 << (plan.header.board.ptimer_intid % 32),
            ipas: DeviceIpas::NOWHERE,
            bells: Bells::default(),
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
            meter: Meter::NONE,
            debugging: [const { None }; IO as usize],
            pmu: [const { None }; IO as usize],
            context: Context::NEW,
            left: 0,
            stolen_at: None,
            stolen: 0,
            told: None,
            serror: 0,
            sleeps: false,
            slot: IDLE,
            id: mailbox::of_pcpu(index),
            index,
            service: None,
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
            reason: None,
            shared: None,
            ids: IdRegisters::NONE,
            copy_windows: CopyWindows::of(index),
            kept: core::array::from_fn(|_| Kept::default()),
            report: None,
            // Last, for the compiler: it makes zeros in place then.
            frame: Frame::default(),
            stats: ExitStats::NONE,
        }
    }

    /// Turns this state into that of vCPU `id` with this `row` of the plan, on the pCPU of `idle`,
    /// which has been started.
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
        self.bells = Bells::of(vm);
        let (first, behind) = self.bell_pages(vm);
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
                bells: first,
                bells_size: behind.saturating_sub(first),
            };
        }
        self.gppt = Gppt::of(vm);
        self.has_ptimer = has_ptimer(vm);
        if IO {
            self.meter = Meter::new(row.events, timer::nanoseconds(row.events_period));
            let flags = plan.vms.get(vm).map_or(0, |row| row.flags);
            let (debugs, counts) = (flags & VM_DEBUG != 0, flags & VM_PMU != 0);
            self.debugging = core::array::from_fn(|_| debugs.then(Debugging::new));
            self.pmu = core::array::from_fn(|_| counts.then(|| Pmu::new(pmu::features())));
        }
        self.sort();
        let told = plan.vms.get(vm).map_or(0, |row| row.stolen_time);
        let place = told.wrapping_add(pvtime::STRIDE.wrapping_mul(number as u64));
        self.stolen_at = (told != 0).then_some(place);
        self.told = (told != 0).then(|| state::stolen_time(vm, number));
        if self.gppt.is_some() {
            self.ipas.gicd = NOWHERE;
            self.ipas.gicr = NOWHERE;
        }
        self.stats.begin();
        self.vgic.set_number(number);
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
        if IO && self.has_debugging() {
            self.ids = self.ids.with_debug(debug::features());
        }
        if IO && self.has_pmu() {
            self.ids = self.ids.with_pmu(pmu::features().seen());
        }
        self.generator = random::generator(id);
    }

    /// The first page by which the VM rings, and what is behind the last.
    fn bell_pages(&self, vm: usize) -> (u64, u64) {
        let backend = bells_of(vm).filter(|_| IO);
        let pages = self.bells.pages().chain(backend);
        pages.fold((NOWHERE, 0), |(first, behind), page| {
            (first.min(page), behind.max(page.wrapping_add(PAGE)))
        })
    }

    /// Turns this state into that of service thread `index`, on the pCPU of `idle`, which has been started.
    pub fn become_service(&mut self, idle: &Self, index: usize, slot: usize) {
        self.gic = idle.gic;
        self.slot = slot;
        self.id = service_thread(index);
        self.service = Some(index);
    }

    /// Makes EL2 ask the scheduler who runs, before a guest goes on.
    pub fn ask_again(&mut self) {
        if let Some(pcpu) = self.pcpu.as_deref_mut() {
            pcpu.look_again = true;
        }
        self.exit_work = true;
    }

    /// Whether the vCPU has debug registers.
    pub fn has_debugging(&self) -> bool {
        self.debugging.iter().any(Option::is_some)
    }

    /// Whether the vCPU has performance monitors.
    pub fn has_pmu(&self) -> bool {
        self.pmu.iter().any(Option::is_some)
    }

    /// Updates [`Self::needs_full_switch`] for the current pCPU.
    pub fn sort(&mut self) {
        self.needs_full_switch = self.gppt.is_some()
            || self.has_ptimer
            || !self.gic.is_fastpath
            || IO && (self.meter.exists() || self.has_debugging() || self.has_pmu());
    }

    /// Notifies the one vCPU of the VM that is in `whom`, if any, so that it looks at its
    /// interrupts. Returns `false` if that takes an SPI, or the vCPU is on this pCPU; the caller then
    /// calls [`crate::sched::notify_one`].
    #[inline(always)]
    pub fn notify_one(&self, whom: Notify) -> bool {
        if whom == Notify::NOBODY {
            return true;
        }
        let place = &self.gic.siblings[whom.0.trailing_zeros() as usize & 7];
        gic::send_sgi_to(gic::SIBLING, place, self.index)
    }

    /// Notifies vCPUs of the VM, so that they look at their interrupts.
    pub fn notify(&self, whom: Notify) {
        for vcpu in whom.iter() {
            if let Some(place) = self.gic.siblings.get(vcpu) {
                gic::send_to(gic::SIBLING, place);
            }
        }
    }

    /// Changes the interrupts of the vCPU, and notifies the vCPUs of its VM that have to look at theirs then.
    #[inline(always)]
    pub fn change_interrupts(
        &mut self,
        change: impl FnOnce(&mut vgic::Cpu, &vgic::Distributor, &mut Gic) -> Notify,
    ) {
        if let Some(vm) = self.vm() {
            let whom = change(&mut self.vgic, &vm.dist, &mut self.gic);
            if !whom.is_empty() {
                self.notify(whom);
            }
        }
    }

    /// Returns the console, if this pCPU drains it.
    pub fn console(&mut self) -> Option<&mut Console> {
        self.pcpu.as_deref_mut()?.console.as_mut()
    }

    /// Returns the shared state of the VM.
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
