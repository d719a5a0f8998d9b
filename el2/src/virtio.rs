//! Virtio devices as vCPUs and the threads of VMs see them: writes to the registers, rings of backends, and the ends of lives.
//! `bulkhead_core::virtio` decides; a service thread ([`crate::service`]) does what takes time.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use bulkhead_abi::console::ServiceTime;
use bulkhead_abi::device::MAX_QUEUES;
use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::{
    Backend, MAX_SERVICE_THREADS, MAX_VIRTIO_DEVICES, MAX_VMS, NONE, PAGE, VIRTIO_NO_CONSOLE,
    VirtioDevice,
};
use bulkhead_core::console::cpu_time::nanoseconds;
use bulkhead_core::cpu::exit::{self, Mmio};
use bulkhead_core::virtio::interrupt::{self as interrupts, Copied, InterruptStatus};
use bulkhead_core::virtio::pending::PendingDevices;
use bulkhead_core::virtio::ports::FIRST_OF_MESSAGES;
use bulkhead_core::virtio::requests::{Release, Requests};
use bulkhead_core::virtio::served::ServedWord;
use bulkhead_core::virtio::transport::{Effect, Offer, Page, Transport, register};

use crate::emulated::Done;
use crate::hw::claim::Claim;
use crate::hw::gic::Gic;
use crate::hw::mmio::Registers;
use crate::hw::{cpu, mmu, state, timer};
use crate::plan::{self, plan};
use crate::profile::MANAGED;
use crate::vcpu::Vcpu;
use crate::{mailbox, vm};

/// The state of a device that pCPUs share. All zeros is its value before its VM starts.
#[derive(Debug)]
#[repr(C)]
pub struct Shared {
    /// What vCPUs ask of the service thread.
    pub requests: Requests,
    /// The interrupt status.
    pub status: InterruptStatus,
    /// The registers.
    pub transport: Claim<Transport>,
    /// What the backend's VM does with the window.
    pub served: ServedWord,
    /// 1 if the service thread has let go of the queues at the end of a life of the guest's VM.
    let_go: AtomicU32,
    /// The service thread (row of the plan).
    service: AtomicU32,
    /// The number of the manager whose console it is, and 1; 0 for any other device.
    manager: AtomicU32,
    /// What the service thread has done for the device: slices, their time and the longest of them (physical counter). Only it writes.
    slices: AtomicU64,
    time: AtomicU64,
    longest: AtomicU64,
}

impl Shared {
    /// Notes whose console it is, when the board starts.
    pub fn set_manager(&self, number: usize) {
        let number = (number as u32).wrapping_add(1);
        self.manager.store(number, Ordering::Relaxed);
    }

    /// The number of the manager whose console it is.
    pub fn manager(&self) -> Option<usize> {
        let number = self.manager.load(Ordering::Relaxed);
        number.checked_sub(1).map(|number| number as usize)
    }

    /// The service thread has given the device a slice of `ticks`.
    pub fn count(&self, ticks: u64) {
        let add = |sum: &AtomicU64, more: u64| {
            sum.store(
                sum.load(Ordering::Relaxed).wrapping_add(more),
                Ordering::Relaxed,
            );
        };
        add(&self.slices, 1);
        add(&self.time, ticks);
        if ticks > self.longest.load(Ordering::Relaxed) {
            self.longest.store(ticks, Ordering::Relaxed);
        }
    }
}

/// The page of registers.
#[derive(Clone, Copy, Debug)]
pub struct RegisterPage(Registers);

impl Page for RegisterPage {
    fn set(&self, offset: u64, value: u32) {
        self.0.write(offset, value);
    }

    fn get(&self, offset: u64) -> u32 {
        self.0.read(offset)
    }
}

impl Copied for RegisterPage {
    fn store(&self, bits: u32) {
        self.0.write(register::INTERRUPT_STATUS, bits);
    }
}

/// What a service thread has to look at, and where it is told: all that a notification reads, in a line of a cache.
#[derive(Debug)]
#[repr(align(32))]
struct Pending {
    devices: PendingDevices,
    /// The number of the thread among the vCPUs' rows, and its pCPU.
    thread: AtomicU8,
    pcpu: AtomicU8,
}

/// What each service thread has to look at.
static PENDING: [Pending; MAX_SERVICE_THREADS] = [const {
    Pending {
        devices: PendingDevices::new(),
        thread: AtomicU8::new(0),
        pcpu: AtomicU8::new(0),
    }
}; MAX_SERVICE_THREADS];

/// Returns what a service thread has to look at.
pub fn pending(service: usize) -> &'static PendingDevices {
    &PENDING[service % MAX_SERVICE_THREADS].devices
}

/// Returns the shared state of a device (row of the plan).
pub fn shared(device: usize) -> &'static Shared {
    state::virtio_page(device)
}

/// Returns the page of registers of a device.
pub const fn page(device: usize) -> RegisterPage {
    RegisterPage(mmu::virtio_registers(device))
}

/// Returns the service thread of a device (row of the plan).
pub fn service_of(device: usize) -> usize {
    shared(device).service.load(Ordering::Relaxed) as usize
}

/// Tells the service thread of a device (row of the plan) that there is something to do.
pub fn wake(device: usize) {
    if let Some(pcpu) = tell(device) {
        mailbox::call_service(pcpu);
    }
}

/// [`wake`], unless an SPI replaces the SGI for that: returns the pCPU to be called, then.
#[inline(always)]
fn tell(device: usize) -> Option<usize> {
    let pending = &PENDING[service_of(device) % MAX_SERVICE_THREADS];
    if !pending.devices.mark(device) {
        return None;
    }
    let thread = pending.thread.load(Ordering::Relaxed);
    let pcpu = usize::from(pending.pcpu.load(Ordering::Relaxed));
    let told = mailbox::send_to_service(thread.into(), pcpu);
    (!told).then_some(pcpu)
}

/// Notes where a service thread (row of the plan, and number among the vCPUs' rows) is.
pub fn place(service: usize, thread: usize, pcpu: u16) {
    if let Some(pending) = PENDING.get(service) {
        pending.thread.store(thread as u8, Ordering::Relaxed);
        pending.pcpu.store(pcpu as u8, Ordering::Relaxed);
    }
}

/// Notes which service thread serves each device, when the board starts.
pub fn start() {
    for (device, row) in devices() {
        let service = &shared(device).service;
        service.store(row.service.into(), Ordering::Relaxed);
    }
}

/// What the plan offers to the driver of a device, with the sizes of its queues.
struct Offered {
    queues: [u16; MAX_QUEUES],
    count: usize,
}

impl Offered {
    fn of(device: usize) -> Self {
        let mut queues = [0; MAX_QUEUES];
        let rows = plan().virtqueues_of(device);
        for (place, row) in queues.iter_mut().zip(rows) {
            *place = row.size;
        }
        Self {
            queues,
            count: rows.len(),
        }
    }

    fn offer<'a>(&'a self, row: &'a VirtioDevice) -> Offer<'a> {
        Offer {
            device: row.id.into(),
            features: row.features,
            queues: self.queues.get(..self.count).unwrap_or_default(),
            config: row
                .config
                .get(..usize::from(row.config_bytes))
                .unwrap_or_default(),
        }
    }
}

/// All devices, with their rows in the plan.
fn devices() -> impl Iterator<Item = (usize, &'static VirtioDevice)> {
    (0..MAX_VIRTIO_DEVICES).zip(plan().virtio_devices())
}

/// The devices of a VM, with their rows in the plan.
pub fn of_vm(vm: usize) -> impl Iterator<Item = (usize, &'static VirtioDevice)> {
    devices().filter(move |(_, row)| usize::from(row.vm) == vm)
}

/// Tells the service thread that there is input for the virtio-console of a VM, or room for its output. `true`: its driver drives it.
#[inline(never)]
pub fn wake_console(vm: usize) -> bool {
    let served_by_el2 = |row: &VirtioDevice| {
        if MANAGED && row.flags & VIRTIO_NO_CONSOLE != 0 {
            return false;
        }
        let backend = plan().backends().get(usize::from(row.backend));
        backend.is_some_and(|backend| backend.vm == NONE)
    };
    let Some((device, _)) = of_vm(vm).find(|(_, row)| served_by_el2(row)) else {
        return false;
    };
    wake(device);
    let driven = shared(device).transport.try_use(|it| it.is_driven());
    driven == Some(true)
}

/// What the devices of a VM have had of the service thread.
pub fn service_time(vm: usize) -> ServiceTime {
    let (mut slices, mut time, mut longest) = (0u64, 0u64, 0);
    for (device, _) in of_vm(vm) {
        let shared = shared(device);
        slices = slices.wrapping_add(shared.slices.load(Ordering::Relaxed));
        time = time.wrapping_add(shared.time.load(Ordering::Relaxed));
        longest = longest.max(shared.longest.load(Ordering::Relaxed));
    }
    let ns = |ticks| nanoseconds(ticks, timer::frequency());
    ServiceTime {
        slices,
        ns: ns(time),
        longest: ns(longest),
    }
}

/// The devices that a VM serves.
fn served_by(vm: usize) -> impl Iterator<Item = (usize, &'static VirtioDevice)> {
    let backends = plan().backends();
    let own = backends
        .iter()
        .position(|backend| usize::from(backend.vm) == vm);
    devices().filter(move |(_, row)| Some(usize::from(row.backend)) == own)
}

/// What is left of a write to a page that the guest may only read, for [`write`].
pub enum Rest {
    /// A pCPU is to be called.
    Call(usize),
    /// A manager has told of a request, or of room for a message, by this device.
    Serve(usize),
    /// Somebody else has changed a device's InterruptStatus meanwhile: the copy is to be made true.
    Publish(usize),
    /// All of it: its offset from the registers of the first device.
    All(u64),
}

/// Performs what drivers write for each request, without a call: QueueNotify, and InterruptACK, whose two bits lie in its first byte. HPFAR_EL2 is UNKNOWN after
/// a permission fault (DDI 0487, D24.2.67), so the page is found by a translation. The registers of a device are in its own VM's stage 2 only.
/// Returns whether it is done; the guest repeats it otherwise.
#[inline(always)]
pub fn write_fast(vcpu: &Vcpu, esr: u64, far: u64) -> Result<bool, Rest> {
    let Some(pa) = cpu::translate(far, cpu::came_from_el0()) else {
        // It takes the fault itself.
        return Ok(false);
    };
    let place = mmu::virtio_place_of(pa);
    let (device, offset) = device_at(place);
    // Another page that the guest may only read can be anywhere.
    if device >= plan().virtio_devices().len() {
        return Err(Rest::All(place));
    }
    match offset {
        register::QUEUE_NOTIFY
            if MANAGED
                && shared(device).manager.load(Ordering::Relaxed) != 0
                && vcpu.frame.get(exit::access_register(esr)) as u32 >= FIRST_OF_MESSAGES =>
        {
            Err(Rest::Serve(device))
        }
        // Whatever queue it names, the service thread looks at all of them.
        register::QUEUE_NOTIFY => tell(device).map_or(Ok(true), |pcpu| Err(Rest::Call(pcpu))),
        register::INTERRUPT_ACK => {
            let status = &shared(device).status;
            status.clear(vcpu.frame.get(exit::access_register(esr)) as u32);
            if status.publish_once(&page(device)) {
                Ok(true)
            } else {
                Err(Rest::Publish(device))
            }
        }
        _ => Err(Rest::All(place)),
    }
}

/// Shows the driver of a device that a buffer was used. Returns whether it is to be interrupted, by [`interrupt`], and whether it was shown: others have
/// changed InterruptStatus all the time otherwise, and nothing was done.
pub fn show_used(device: usize) -> (bool, bool) {
    let status = &shared(device).status;
    if !status.set(interrupts::USED) {
        return (false, true);
    }
    let shown = status.publish(&page(device));
    if !shown {
        status.clear(interrupts::USED);
    }
    (shown, shown)
}

/// Interrupts the driver of a device.
pub fn interrupt(device: usize, gic: &Gic) {
    let row = plan().virtio_devices().get(device);
    // The driver of a polled device, which has no interrupt, finds in the registers what there is.
    if let Some(row) = row.filter(|row| row.vintid != 0) {
        vm::interrupt(vm::vm(row.vm.into()), gic, row.vintid.into());
    }
}

/// Returns the device, if it is one, and the offset in its registers.
const fn device_at(place: u64) -> (usize, u64) {
    ((place / PAGE) as usize, place % PAGE)
}

/// Performs what [`write_fast`] has left of a write.
pub fn write(vcpu: &mut Vcpu, esr: u64, rest: Rest) -> Done {
    let done = match rest {
        Rest::Call(pcpu) => {
            mailbox::call_service(pcpu);
            true
        }
        // The caller has done it.
        Rest::Serve(_) => true,
        Rest::Publish(device) => shared(device).status.publish(&page(device)),
        Rest::All(place) => {
            let (device, offset) = device_at(place);
            if device >= plan().virtio_devices().len() {
                return Done::Nothing;
            }
            let mmio = Mmio::at_offset(offset, esr);
            let value = mmio.stored(vcpu.frame.get(mmio.register())) as u32;
            write_register(device, (offset, mmio.size() as u32), value)
        }
    };
    Done::of(ExitClass::Device, done)
}

/// Performs a write of another register. `false`: the guest has to repeat it.
#[inline(never)]
fn write_register(device: usize, place: (u64, u32), value: u32) -> bool {
    let (offset, bytes) = place;
    let Some(row) = plan().virtio_devices().get(device) else {
        return true;
    };
    let (shared, page) = (shared(device), page(device));
    let offered = Offered::of(device);
    let offer = offered.offer(row);
    let done = shared.transport.try_use(|transport| {
        match transport.write(&offer, &page, offset, bytes, value) {
            Effect::Start | Effect::Enable(_) => {
                shared.requests.start();
                wake(device);
            }
            Effect::Reset => {
                if !shared.requests.release(Release::All) {
                    wake(device);
                    return false;
                }
                reset(transport, &offer, device);
            }
            Effect::Release(queue) => {
                if !shared.requests.release(Release::Queue(queue)) {
                    wake(device);
                    return false;
                }
                transport.release(queue, &offer, &page);
            }
            Effect::Nothing => {}
        }
        true
    });
    done == Some(true)
}

/// Resets the registers of a device of which nobody uses the queues.
fn reset(transport: &mut Transport, offer: &Offer, device: usize) {
    let (shared, page) = (shared(device), page(device));
    transport.reset(offer, &page);
    shared.status.clear(u32::MAX);
    // Nobody sets a bit meanwhile: the service thread has let go.
    let _shown = shared.status.publish(&page);
}

/// Performs a word written to a page by which the VM rings as a backend: it has a bit for each device with something to do. `false`: the
/// VM has no such page there.
#[inline(never)]
pub fn write_bell(vcpu: &Vcpu, ipa: u64, esr: u64) -> bool {
    let all = (0..MAX_VMS).zip(plan().backends());
    let offset = |row: &Backend| ipa.wrapping_sub(row.bell);
    let mut own = all.filter(|(_, row)| Some(usize::from(row.vm)) == vcpu.vm && offset(row) < PAGE);
    let Some((backend, row)) = own.next() else {
        return false;
    };
    let mmio = Mmio::at_offset(offset(row), esr);
    let value = mmio.stored(vcpu.frame.get(mmio.register()));
    let bits = match mmio.ipa {
        0 => value,
        4 => value << 32,
        _ => return true,
    };
    for (device, row) in devices() {
        if usize::from(row.backend) == backend && bits.wrapping_shr(row.index.into()) & 1 != 0 {
            wake(device);
        }
    }
    true
}

/// Performs another access to such a page: it reads as zero and ignores writes. `false`: the VM has no such page there.
#[inline(never)]
pub fn is_bell(vcpu: &mut Vcpu, mmio: &Mmio) -> bool {
    let Some(vm) = vcpu.vm else { return false };
    let found = plan::bells_of(vm).any(|page| mmio.ipa.wrapping_sub(page) < PAGE);
    if found && !mmio.is_write() {
        vcpu.frame.set(mmio.register(), 0);
    }
    found
}

/// Whether a VM can be prepared for another life: nobody uses the queues of its devices, and the memory of the windows that it serves.
/// Otherwise the service threads are told, and tell its boot vCPU.
pub fn has_let_go(vm: usize) -> bool {
    let mut free = true;
    for (device, _) in of_vm(vm) {
        let shared = shared(device);
        if shared.let_go.load(Ordering::Relaxed) == 0 {
            if shared.requests.release(Release::All) {
                shared.let_go.store(1, Ordering::Relaxed);
            } else {
                wake(device);
                free = false;
            }
        }
    }
    for (device, _) in served_by(vm) {
        if !shared(device).served.has_gone() {
            wake(device);
            free = false;
        }
    }
    free
}

/// Resets the devices of a VM that is being prepared, after [`has_let_go`], and lets the windows that it serves be made: its memory is
/// zero.
pub fn prepare(vm: usize) {
    for (device, row) in of_vm(vm) {
        let shared = shared(device);
        let offered = Offered::of(device);
        let offer = offered.offer(row);
        // Nobody else uses them: the VM's vCPUs are off, and the service thread has let go.
        let _done = shared.transport.try_use(|transport| {
            reset(transport, &offer, device);
            transport.show(&offer, &page(device));
        });
        shared.let_go.store(0, Ordering::Relaxed);
        // Its backend may have given a config before there was a page for it.
        wake(device);
    }
    for (device, _) in served_by(vm) {
        shared(device).served.comes();
        wake(device);
    }
}
