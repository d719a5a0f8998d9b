//! The service task in its smallest form: the pCPU that the plan names moves bytes between the
//! board's UART and the VMs' streams, at most a FIFO's worth per interrupt.

use bulkhead_abi::console::{InputLost, InputTo, Name, label};
use bulkhead_abi::plan::Vm;
use bulkhead_core::console::keys::{HOLD_MS, Key};
use bulkhead_core::console::mux::{FLUSH_MS, Next, Now, Sources, Streams};
use bulkhead_core::console::text::TextLine;
use bulkhead_core::monitor::{Action, Step};

use crate::console::other_cache;
use crate::console::state::{AWAKE, Console, SAID};
use crate::hw::timer;
use crate::mailbox;
use crate::managers;
use crate::monitor::PUBLISHED;
use crate::orders::{ManageVms, follow_limits, tell_pcpu, try_manage};
use crate::plan::plan;
use crate::profile::{IO, MANAGED, MONITOR};
use crate::virtio;
use crate::vm::{self, LIMITS, VCPU_LOCATION};

/// The bytes that are sent in one turn: a PL011 FIFO.
const BATCH: u32 = 16;
/// The number of looks for a stream with something to send, in one exit, at
/// [`LOOK`](bulkhead_core::console::mux::LOOK) VMs each.
const LOOKS: u32 = 2;
/// How many times as long as a turn has taken the guest of this pCPU has before the next one.
const REST: u64 = 2;

/// The VMs of the plan as the multiplexer sees them.
struct Vms<'a>(&'a [Vm]);

impl Sources for Vms<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn said(&self) -> u64 {
        SAID.take()
    }
    fn streams(&self, index: usize) -> Option<&Streams> {
        (index < self.0.len()).then(|| &vm::vm(index).streams)
    }
    fn name(&self, index: usize) -> &[u8] {
        self.0.get(index).map_or(&[], |vm| &vm.name)
    }
    #[inline(always)]
    fn leave(&self, index: usize, bytes: impl ExactSizeIterator<Item = u8>) {
        if MANAGED {
            managers::backlog(index).append(bytes);
        }
    }
}

/// The times at which the console has to look again without being told (physical counter).
#[derive(Clone, Copy, Debug, Default)]
pub struct Again {
    /// The time at which incomplete lines have waited long enough.
    pub flush: Option<u64>,
    /// The time at which the monitor has waited long enough for an answer or between two questions,
    /// or at which there is more to look at.
    pub monitor: Option<u64>,
}

impl Again {
    /// Has it look at `time` at the latest, whatever else it waits for: the monitor waits for a second between two looks at CPU time.
    fn look_at(&mut self, time: u64) {
        self.monitor = Some(self.monitor.map_or(time, |at| at.min(time)));
    }
}

fn now() -> Now {
    Now {
        ticks: timer::now(),
        millisecond: timer::milliseconds(1),
    }
}

/// The earliest time of the turn behind one that began at `began` and ends now.
fn rest_until(began: Now) -> u64 {
    let end = timer::now();
    end.saturating_add(end.wrapping_sub(began.ticks).saturating_mul(REST))
}

impl Console {
    /// Lets the monitor print its next line, or ask for the data it needs for that; `true` if it
    /// printed a line.
    #[inline(always)]
    fn monitor_turn(&mut self, now: Now, again: &mut Again) -> bool {
        MONITOR && !self.monitor.is_idle() && self.monitor_says(now, again)
    }

    #[inline(never)]
    fn monitor_says(&mut self, now: Now, again: &mut Again) -> bool {
        if !self.mux.is_free(&Vms(plan().vms), now) {
            return false;
        }
        let time = [timer::now(), timer::frequency()];
        // After a question the monitor waits for the answer.
        for _ in 0..2 {
            let (vms, vcpus) = (plan().vms, plan().vcpus);
            let mut step = Step::Nothing;
            let said = self.mux.say(label::MONITOR, |line| {
                step = self
                    .monitor
                    .next(vms, vcpus, &VCPU_LOCATION, &PUBLISHED, time, line);
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

    /// Sends a byte for which there is room. After each line of a VM, the monitor's next line goes
    /// first.
    fn send(&mut self, byte: u8) {
        self.uart.send(byte);
        if byte == b'\n' {
            self.monitor_first = !self.monitor_speaks;
            self.monitor_speaks = false;
        }
    }

    /// Takes what was received, if something was (`received`) or had to wait, and sends the pending
    /// output, at most [`BATCH`] bytes each. Looks at [`LOOKS`] times [`LOOK`] VMs at most. The rest follows
    /// after a while ([`REST`]), or when the UART asks for it.
    ///
    /// [`LOOK`]: bulkhead_core::console::mux::LOOK
    pub fn drain(&mut self, flush: bool, received: bool) -> Again {
        other_cache::look();
        let (vms, now) = (Vms(plan().vms), now());
        let mut again = Again::default();
        self.input |= received;
        let early = now.ticks < self.not_before;
        let mut commanded = false;
        let typed_before = MANAGED && !early && core::mem::take(&mut self.typed);
        if !early {
            let looks = core::mem::take(&mut self.input) || self.hold.is_on();
            commanded = looks && self.keys();
            // Of two turns one is for output, whatever managers type.
            if MANAGED && !commanded && !typed_before {
                let push = |vm, byte| vm::vm(vm).streams.input.push(byte);
                self.typed = managers::give_typed(push, has_input);
                commanded = self.typed;
            }
        }
        if early || commanded {
            self.flush |= flush;
            if !early {
                self.not_before = rest_until(now);
            }
            again.monitor = Some(self.not_before);
            self.uart.ask(false, !self.input && !self.hold.is_on());
            return again;
        }
        let mut waits = true;
        let mut looks = 0u32;
        let flush = core::mem::take(&mut self.flush) | flush;
        let mut spoke = 0u64;
        // Another pCPU has added output meanwhile.
        self.sleeps &= !AWAKE.is_set();
        let mut room = BATCH;
        while room != 0 && self.uart.has_space() {
            room = room.wrapping_sub(1);
            // Nor does a line that never ends keep the monitor waiting.
            if MONITOR
                && !self.monitor.is_idle()
                && (self.monitor_first || self.mux.is_over(&vms, now))
            {
                self.monitor_turn(now, &mut again);
            }
            let next = self.mux.next(&vms, flush, now);
            if let Next::Byte(byte) = next {
                if core::mem::take(&mut self.sleeps) {
                    AWAKE.stay();
                }
                self.send(byte);
                let uart = self.uart;
                self.mux.go_on_line(&vms, now, |byte| {
                    let sends = room != 0 && uart.has_space();
                    if sends {
                        room = room.wrapping_sub(1);
                        uart.send(byte);
                    }
                    sends
                });
                if let Some(vm) = self.mux.last_speaker() {
                    spoke |= 1u64.wrapping_shl(vm as u32);
                }
                continue;
            }
            looks = looks.wrapping_add(1);
            if next != Next::Later {
                if self.monitor_turn(now, &mut again) {
                    continue;
                }
                if self.sleeps {
                    if next == Next::Held {
                        again.flush = Some(self.mux.again_at(now));
                    }
                    waits = false;
                    break;
                }
                // The drainer goes to sleep: whoever adds output from now on sends it a message.
                AWAKE.sleep();
                self.sleeps = true;
            }
            if looks >= LOOKS {
                self.flush = flush;
                room = 0;
                break;
            }
        }
        let held = self.hold.is_on();
        if typed_before {
            again.look_at(now.ticks);
        }
        if held {
            // The guest does not say when it has read.
            let look = now.ticks.saturating_add(timer::milliseconds(FLUSH_MS));
            again.look_at(look);
        }
        // The UART does not ask for the next turn where servers count on the time between two, nor where it has room still: one that is
        // fast would take the whole pCPU, by exits one behind the other.
        self.not_before = rest_until(now).max(now.ticks.saturating_add(self.pace));
        let soon = room == 0 || self.pace != 0;
        if self.input || waits && soon {
            again.look_at(self.not_before);
        }
        again.monitor = again.monitor.map(|at| at.max(self.not_before));
        self.uart.ask(waits && !soon, !self.input && !held);
        if MANAGED && spoke != 0 {
            managers::heard(spoke);
        }
        offer_space(spoke);
        again
    }

    /// Says which VM has the input, or that it loses it.
    #[inline(never)]
    fn tell(&mut self, lost: bool) {
        let mut line = TextLine::new();
        let vm = plan().vms.get(self.keys.focus);
        let vm = Name(vm.map_or(&[], |vm| &vm.name));
        if lost {
            InputLost { vm }.write(&mut line);
        } else {
            InputTo { vm }.write(&mut line);
        }
        self.mux.notice(&line);
    }

    /// Passes received bytes to the VM that has the input, unless it has no room for them: see
    /// [`Hold`](bulkhead_core::console::keys::Hold). Ends behind a command, which may order something
    /// of each vCPU of a VM, and returns `true` then: what follows gets an exit of its own. Behind a batch or a command there may be
    /// more `input`.
    #[inline(never)]
    fn keys(&mut self) -> bool {
        let vms = plan().vms;
        let (mut sent, mut commanded) = (false, false);
        let (now, hold) = (timer::now(), timer::milliseconds(HOLD_MS));
        self.input = true;
        if MANAGED && let Some(key) = self.kept.take() {
            self.command(key);
            return true;
        }
        for _ in 0..BATCH {
            let input = &vm::vm(self.keys.focus).streams.input;
            let waits = self.keys.needs_room() && self.hold.stays(input.free(), now, hold);
            let byte = (!waits).then(|| self.uart.receive()).flatten();
            let Some(byte) = byte else {
                self.input = false;
                break;
            };
            match self.keys.take(byte, vms.len()) {
                Key::Send(byte) => {
                    sent = true;
                    if !input.push(byte) && self.hold.is_new_loss() {
                        self.tell(true);
                    }
                }
                Key::Nothing => {}
                Key::Monitor | Key::Command(_) if !MONITOR => {}
                Key::Focus(_) => {
                    self.tell(false);
                    commanded = true;
                }
                Key::Help => {
                    let mut line = TextLine::new();
                    line.text("Ctrl-T then: 1-9 or 017 input to that VM, n next, ");
                    line.text(if MONITOR { "m monitor, " } else { "" });
                    line.text("Ctrl-T itself, ? help");
                    self.mux.notice(&line);
                    commanded = true;
                }
                Key::Monitor => {
                    self.monitor.open(self.keys.focus, vms, plan().vcpus);
                    commanded = true;
                }
                Key::Command(key) => {
                    self.command(key);
                    commanded = true;
                }
            }
            if commanded {
                break;
            }
        }
        if sent {
            has_input(self.keys.focus);
        }
        commanded
    }

    /// Passes a key to the monitor and carries out what the monitor decides. While a manager gives an order the key waits.
    fn command(&mut self, key: u8) {
        if !MANAGED {
            let mut manage = ManageVms::of_console();
            return self.perform(key, &mut manage);
        }
        if try_manage(|manage| self.perform(key, manage)).is_none() {
            self.kept = Some(key);
        }
    }

    /// The same, with the authority for orders.
    fn perform(&mut self, key: u8, manage: &mut ManageVms) {
        let (vms, vcpus) = (plan().vms, plan().vcpus);
        match self.monitor.key(key, vms, vcpus, &LIMITS) {
            Action::Nothing => {}
            Action::Order(order, vm) => {
                if let Err(phase) = manage.carry_out(order, vm) {
                    self.monitor.refuse(phase);
                }
            }
            Action::Follow(vm) => follow_limits(vm),
            Action::Leave => self.keys.leave_monitor(),
        }
    }

    /// Whether there is nothing left to send and the UART has sent everything.
    pub fn is_done(&self) -> bool {
        (!MONITOR || self.monitor.is_idle())
            && self.mux.is_done(&Vms(plan().vms))
            && self.uart.is_idle()
    }
}

/// Notifies a VM that there is input for it.
fn has_input(vm: usize) {
    if !(IO && virtio::wake_console(vm))
        && let Some(id) = vm::id_of(vm, 0)
    {
        mailbox::send(id, mailbox::UART);
    }
}

/// Notifies those of `vms`, one bit for each, that wait for room: VMs whose bytes have just been
/// sent, at most [`BATCH`]. No other VM can have got any.
fn offer_space(vms: u64) {
    let mut rest = vms;
    for _ in 0..BATCH {
        if rest == 0 {
            break;
        }
        let index = rest.trailing_zeros() as usize;
        let vm = vm::vm(index);
        rest &= rest.wrapping_sub(1);
        if vm.streams.output.free() < 512 {
            continue;
        }
        if IO && vm.streams.device_wants_space.made() {
            virtio::wake_console(index);
        }
        if !vm.streams.wants_space.made() {
            continue;
        }
        // While the VM runs, its emulated UART waits, which any of its vCPUs can serve; later its
        // vCPUs wait to print their reports.
        let whom = if vm.life.power.is_up() { 1 } else { usize::MAX };
        for id in vm::ids_of(index).take(whom) {
            mailbox::send(id, mailbox::UART);
        }
    }
}
