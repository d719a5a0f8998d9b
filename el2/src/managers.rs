//! Who manages others ([ADR 27](../../docs/adr/0027-control.md)), and what of it other pCPUs than that of the service thread touch: events, and
//! answers to questions.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bulkhead_abi::control::right;
use bulkhead_abi::plan::{MAX_MANAGERS, MAX_VMS, NONE, VIRTIO_CONSOLE, VirtioDevice};
use bulkhead_core::console::backlog::Backlog;
use bulkhead_core::control::events::{Changed, Events};
use bulkhead_core::control::{LastCrash, Typed};
use bulkhead_core::monitor::Published;
use bulkhead_core::virtio::ports::MULTIPORT;

use crate::plan::plan;
use crate::virtio;

/// A manager. All zeros is the value of one that is not there.
#[derive(Debug)]
pub struct Manager {
    /// Its VM and 1, and its console (row of the plan). Set when the board starts.
    vm: AtomicU32,
    device: AtomicU32,
    /// What it has not been told yet.
    pub events: Events,
    /// What it types on consoles.
    pub typed: Typed,
    /// Its questions to vCPUs and pCPUs, and their answers.
    pub published: Published,
    /// When the service thread has to look again (physical counter); 0 for never.
    again: AtomicU64,
}

static MANAGERS: [Manager; MAX_MANAGERS] = [const {
    Manager {
        vm: AtomicU32::new(0),
        device: AtomicU32::new(0),
        events: Events::new(),
        typed: Typed::new(),
        published: Published::new(),
        again: AtomicU64::new(0),
    }
}; MAX_MANAGERS];

/// The last crash of each VM.
static LAST_CRASHES: [LastCrash; MAX_VMS] = [const { LastCrash::new() }; MAX_VMS];

/// The last crash of a VM.
pub fn last_crash(vm: usize) -> &'static LastCrash {
    &LAST_CRASHES[vm % MAX_VMS]
}

/// What each VM has printed last, if a manager may read it.
static BACKLOGS: [Backlog<256>; MAX_VMS] = [const { Backlog::new() }; MAX_VMS];

/// What a VM has printed last. The pCPU that drains the console writes it.
pub fn backlog(vm: usize) -> &'static Backlog<256> {
    &BACKLOGS[vm % MAX_VMS]
}

impl Manager {
    /// Its VM.
    pub fn vm(&self) -> usize {
        self.vm.load(Ordering::Relaxed).wrapping_sub(1) as usize
    }

    /// Its console (row of the plan).
    fn device(&self) -> usize {
        self.device.load(Ordering::Relaxed) as usize
    }

    /// Makes the service thread look at its port.
    fn wake(&self) {
        virtio::wake(self.device());
    }

    /// Sets when the service thread has to look again without being told (physical counter).
    pub fn look_again(&self, at: Option<u64>) {
        self.again.store(at.unwrap_or(0), Ordering::Relaxed);
    }
}

/// The managers of the plan.
fn all() -> impl Iterator<Item = &'static Manager> {
    let is = |it: &&Manager| it.vm.load(Ordering::Relaxed) != 0;
    MANAGERS.iter().take_while(is)
}

/// The manager whose console a device is, and its number.
#[inline(always)]
pub fn of_device(device: usize) -> Option<(usize, &'static Manager)> {
    let number = virtio::shared(device).manager()?;
    Some((number, MANAGERS.get(number)?))
}

/// The consoles that have a control port, with their rows.
pub fn consoles() -> impl Iterator<Item = (u32, &'static VirtioDevice)> {
    (0u32..).zip(plan().virtio_devices()).filter(|(_, row)| {
        let backend = plan().backends().get(usize::from(row.backend));
        let of_el2 = backend.is_some_and(|backend| backend.vm == NONE);
        row.id == VIRTIO_CONSOLE && row.features & MULTIPORT != 0 && of_el2
    })
}

/// Notes who manages, when the board starts. `each` has the number of each of them, and its console.
pub fn start(mut each: impl FnMut(usize, &VirtioDevice)) {
    let places = (0..MAX_MANAGERS).zip(&MANAGERS);
    for ((number, manager), (device, row)) in places.zip(consoles()) {
        manager.device.store(device, Ordering::Relaxed);
        let vm = u32::from(row.vm).wrapping_add(1);
        manager.vm.store(vm, Ordering::Relaxed);
        virtio::shared(device as usize).set_manager(number);
        each(number, row);
        for grant in plan().rights_of(row.vm.into()) {
            if grant.rights & (right::LOGS | right::CONSOLE) != 0 {
                backlog(grant.vm.into()).keep();
            }
        }
    }
}

/// Tells the managers that listen that VMs, one bit for each, have printed something, which has been kept.
pub fn heard(vms: u64) {
    for manager in all() {
        if manager.events.heard(vms) {
            manager.wake();
        }
    }
}

/// Gives VMs what managers have typed, by `push`; `wake` is told which VMs have got something to read, and the managers how much was taken. Returns whether
/// there was something.
pub fn give_typed(mut push: impl FnMut(usize, u8) -> bool, mut wake: impl FnMut(usize)) -> bool {
    let mut given = false;
    for manager in all() {
        if let Some(vm) = manager.typed.give(&mut push) {
            wake(vm);
            manager.wake();
            given = true;
        }
    }
    given
}

/// Tells the managers of a VM that something about it has changed. Called after the change.
#[inline(never)]
pub fn changed(vm: usize, changed: Changed) {
    for manager in all() {
        let listens = plan().right(manager.vm(), vm) & right::LIST != 0;
        if listens && manager.events.mark(vm, changed) {
            manager.wake();
        }
    }
}

/// The questions of managers to vCPUs and pCPUs, to be [`answered`].
pub fn questions() -> impl Iterator<Item = &'static Published> {
    all().map(|it| &it.published)
}

/// A question has been answered.
pub fn answered(published: &Published) {
    if let Some(manager) = all().find(|it| core::ptr::eq(&raw const it.published, published)) {
        manager.wake();
    }
}

/// The managers whose consoles a service thread serves, and who wait for a moment.
fn waiting(service: usize) -> impl Iterator<Item = (&'static Manager, u64)> {
    let own = all().filter(move |it| virtio::service_of(it.device()) == service);
    own.map(|it| (it, it.again.load(Ordering::Relaxed)))
        .filter(|(_, again)| *again != 0)
}

/// When a service thread has to look again without being told (physical counter).
pub fn again(service: usize) -> Option<u64> {
    waiting(service).map(|(_, again)| again).min()
}

/// The consoles that a service thread has to look at now, a bit for each.
pub fn due(service: usize, now: u64) -> u64 {
    let mut devices = 0;
    for (manager, again) in waiting(service) {
        if again <= now {
            manager.look_again(None);
            devices |= 1u64.wrapping_shl(manager.device() as u32);
        }
    }
    devices
}
