//! The service task in its smallest form: the pCPU that the plan names moves bytes between the board's
//! UART and the VMs' streams, a FIFO's worth at a time, by interrupt.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use bulkhead_abi::console::{InputTo, Name, label};
use bulkhead_abi::plan::Vm;
use bulkhead_core::console::{FLUSH_MS, Mux, Next, Sources, Streams};
use bulkhead_core::keys::{Key, Keys};
use bulkhead_core::monitor::{Action, Monitor, Step};
use bulkhead_core::power::{End, Phase};
use bulkhead_core::text::Line;

use crate::hw::timer;
use crate::hw::uart::Uart;
use crate::sched::WANTED;
use crate::start::plan;
use crate::vm::PLACES;
use crate::watch::PUBLISHED;
use crate::{lifecycle, mailbox, vm};

/// Bytes that go out in one turn: a PL011 FIFO.
const BATCH: u32 = 16;
/// Looks for somebody who has something to say, in one exit. Up to [`LOOK`](bulkhead_core::console::LOOK) VMs that is all it takes
/// to find nothing twice.
const LOOKS: u32 = 3;

/// The drainer knows that there is something to do, and will look again by itself.
static AWAKE: AtomicBool = AtomicBool::new(false);
/// Index of the pCPU that drains the console.
static DRAINER: AtomicU32 = AtomicU32::new(0);

/// Marks that there is output; `true` if the drainer must be told.
pub fn wake() -> bool {
    // What was added must be seen by a drainer whose mark is not: see `Service::drain`.
    fence(Ordering::SeqCst);
    !AWAKE.swap(true, Ordering::AcqRel)
}

/// The pCPU that drains the console.
pub fn drainer() -> usize {
    DRAINER.load(Ordering::Relaxed) as usize
}

/// Start-up says which pCPU drains the console.
pub fn set_drainer(index: usize) {
    DRAINER.store(index as u32, Ordering::Relaxed);
}

/// Seconds since 1970 when the physical counter was 0, modulo 2^32.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// Start-up has read the board's clock: `time` (seconds since 1970) `seconds` after the counter was 0.
pub fn keep_time(time: u32, seconds: u64) {
    EPOCH.store(time.wrapping_sub(seconds as u32), Ordering::Relaxed);
}

/// Seconds since 1970 so many seconds after the physical counter was 0; without a clock on the board those
/// alone.
pub fn time_of_day(seconds: u64) -> u32 {
    EPOCH.load(Ordering::Relaxed).wrapping_add(seconds as u32)
}

/// The VMs of the plan as the multiplexer sees them.
struct Vms<'a>(&'a [Vm]);

impl Sources for Vms<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn streams(&self, index: usize) -> Option<&Streams> {
        (index < self.0.len()).then(|| &vm::vm(index).streams)
    }
    fn name(&self, index: usize) -> &[u8] {
        self.0.get(index).map_or(&[], |vm| &vm.name)
    }
}

/// Tells the pCPU of a vCPU (row of the plan), whichever of its threads runs.
fn tell_pcpu(id: usize, message: u32) {
    mailbox::send(mailbox::of_pcpu(PLACES.of(id)), message);
}

/// State of the console, on the pCPU that drains it.
#[derive(Debug)]
pub struct Service {
    /// The board's UART.
    pub uart: Uart,
    mux: Mux,
    keys: Keys,
    monitor: Monitor,
    /// The monitor has a line before any VM has another one.
    monitor_first: bool,
    /// The line that is going out is the monitor's.
    monitor_speaks: bool,
    /// Nobody had anything to say, and [`AWAKE`] says so; what was added just before that is seen by a second look at all.
    sleeps: bool,
    /// The look that is under way says parts of lines, too.
    flush: bool,
}

/// When the console has to look again by itself (physical counter).
#[derive(Clone, Copy, Debug, Default)]
pub struct Again {
    /// Parts of lines have waited long enough.
    pub flush: Option<u64>,
    /// The monitor has waited long enough for an answer, or between two questions; or there is more to look at.
    pub monitor: Option<u64>,
}

impl Service {
    /// Input goes to the first VM.
    pub const fn new(uart: Uart) -> Self {
        Self {
            uart,
            mux: Mux::new(),
            keys: Keys::new(0),
            monitor: Monitor::new(),
            monitor_first: false,
            monitor_speaks: false,
            sleeps: false,
            flush: false,
        }
    }

    /// Lets the monitor say its next line, or ask for what it needs for that; `true` if it said one.
    fn monitor_turn(&mut self, again: &mut Again) -> bool {
        if self.monitor.is_idle() || !self.mux.is_free(&Vms(plan().vms)) {
            return false;
        }
        let time = [timer::now(), timer::frequency()];
        // What it has asked, it waits for.
        for _ in 0..2 {
            let (vms, vcpus) = (plan().vms, plan().vcpus);
            let mut step = Step::Nothing;
            let said = self.mux.say(label::MONITOR, |line| {
                step = self
                    .monitor
                    .next(vms, vcpus, &PLACES, &PUBLISHED, time, line);
                step == Step::Say
            });
            if said {
                self.monitor_first = false;
                self.monitor_speaks = true;
                return true;
            }
            match step {
                Step::Ask(vcpu) => mailbox::send(vcpu, mailbox::MONITOR),
                Step::AskPcpu(vcpu) => tell_pcpu(vcpu, mailbox::MONITOR),
                Step::Wait(until) => {
                    again.monitor = Some(until);
                    return false;
                }
                Step::Say | Step::Nothing => return false,
            }
        }
        false
    }

    /// A byte for which there is room. Behind each line of a VM the monitor has one, if it has any.
    fn send(&mut self, byte: u8) {
        self.uart.send(byte);
        if byte == b'\n' {
            self.monitor_first = !self.monitor_speaks;
            self.monitor_speaks = false;
        }
    }

    /// Sends what there is, at most [`BATCH`] bytes; the UART's interrupt asks for more. Looks at [`LOOKS`] times [`LOOK`] VMs at
    /// most; the rest comes at once, but in an exit of its own.
    ///
    /// [`LOOK`]: bulkhead_core::console::LOOK
    pub fn drain(&mut self, flush: bool) -> Again {
        let vms = Vms(plan().vms);
        let mut again = Again::default();
        let mut waits = true;
        let mut looks = 0u32;
        let flush = core::mem::take(&mut self.flush) | flush;
        // Somebody has added something meanwhile.
        self.sleeps &= !AWAKE.load(Ordering::Relaxed);
        for _ in 0..BATCH {
            if !self.uart.has_room() {
                break;
            }
            if self.monitor_first && !self.monitor.is_idle() {
                self.monitor_turn(&mut again);
            }
            let next = self.mux.next(&vms, flush);
            if let Next::Byte(byte) = next {
                if core::mem::take(&mut self.sleeps) {
                    AWAKE.store(true, Ordering::Relaxed);
                }
                self.send(byte);
                continue;
            }
            looks = looks.wrapping_add(1);
            if next != Next::Later {
                if self.monitor_turn(&mut again) {
                    continue;
                }
                if self.sleeps {
                    if next == Next::Held {
                        let pause = timer::milliseconds(FLUSH_MS);
                        again.flush = Some(timer::now().saturating_add(pause));
                    }
                    waits = false;
                    break;
                }
                // Going to sleep: whoever adds something from now on tells.
                AWAKE.store(false, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                self.sleeps = true;
            }
            if looks >= LOOKS {
                self.flush = flush;
                again.monitor = Some(timer::now().saturating_add(1));
                waits = false;
                break;
            }
        }
        self.uart.ask_room(waits);
        again
    }

    /// Tells the VMs that wait for room.
    pub fn offer_room(&mut self) {
        for index in 0..plan().vms.len() {
            let vm = vm::vm(index);
            let streams = &vm.streams;
            if streams.output.room() < 512 || streams.wants_room.swap(0, Ordering::AcqRel) == 0 {
                continue;
            }
            // While the VM runs its UART waits, which any of its vCPUs can serve; later it is a report.
            let whom = if vm.power.phase() == Phase::Running {
                1
            } else {
                usize::MAX
            };
            for id in vm::ids_of(index).take(whom) {
                mailbox::send(id, mailbox::UART);
            }
        }
    }

    /// Takes received bytes to the VM that has the input.
    pub fn keys(&mut self) {
        let vms = plan().vms;
        let mut sent = false;
        for _ in 0..BATCH {
            let Some(byte) = self.uart.receive() else {
                break;
            };
            match self.keys.take(byte, vms.len()) {
                Key::Send(byte) => {
                    vm::vm(self.keys.focus).streams.input.push(byte);
                    sent = true;
                }
                Key::Focus(index) => {
                    let mut line = Line::new();
                    let vm = Name(vms.get(index).map_or(&[], |vm| &vm.name));
                    InputTo { vm }.write(&mut line);
                    self.mux.notice(&line);
                }
                Key::Help => {
                    let mut line = Line::new();
                    line.text(
                        "Ctrl-T then: 1-9 or 017 input to that VM, n next, m monitor, Ctrl-T itself, ? help",
                    );
                    self.mux.notice(&line);
                }
                Key::Monitor => self.monitor.open(self.keys.focus, plan().vcpus),
                Key::Command(key) => self.command(key),
                Key::Nothing => {}
            }
        }
        if sent && let Some(id) = vm::id_of(self.keys.focus, 0) {
            mailbox::send(id, mailbox::UART);
        }
    }

    /// A key for the monitor.
    fn command(&mut self, key: u8) {
        let (vms, vcpus) = (plan().vms, plan().vcpus);
        match self.monitor.key(key, vms, vcpus, &WANTED) {
            Action::Nothing => {}
            Action::Pause(vm) => lifecycle::pause(vm, true),
            Action::Resume(vm) => lifecycle::pause(vm, false),
            Action::Stop(vm) => lifecycle::order(vm, End::Ordered),
            Action::Restart(vm) if vm::vm(vm).power.phase() == Phase::Down => lifecycle::start(vm),
            Action::Restart(vm) => lifecycle::order(vm, End::OrderedRestart),
            Action::Follow(vm) => {
                for id in vm::ids_of(vm) {
                    tell_pcpu(id, mailbox::SHARES);
                }
            }
            Action::Leave => self.keys.leave_monitor(),
        }
    }

    /// Nothing is left to say and everything has left the UART.
    pub fn is_done(&self) -> bool {
        self.monitor.is_idle() && self.mux.is_done(&Vms(plan().vms)) && self.uart.is_idle()
    }
}
