//! The service task in its smallest form: the pCPU that the plan names moves bytes between the board's
//! UART and the VMs' streams, a FIFO's worth at a time, by interrupt.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use bulkhead_abi::plan::Vm;
use bulkhead_core::console::{FLUSH_MS, Key, Keys, Mux, Next, Sources, Streams};
use bulkhead_core::power::Phase;
use bulkhead_core::text::Line;

use crate::hw::timer;
use crate::hw::uart::Uart;
use crate::mailbox;
use crate::start::plan;
use crate::vm;

/// Bytes that go out in one turn: a PL011 FIFO.
const BATCH: u32 = 16;

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

/// State of the console, on the pCPU that drains it.
#[derive(Debug)]
pub struct Service {
    /// The board's UART.
    pub uart: Uart,
    mux: Mux,
    keys: Keys,
}

impl Service {
    /// Input goes to the first VM.
    pub const fn new(uart: Uart) -> Self {
        Self {
            uart,
            mux: Mux::new(),
            keys: Keys::new(0),
        }
    }

    /// Sends what there is, at most [`BATCH`] bytes; the UART's interrupt asks for more. `true` if the
    /// VM of this pCPU (`own`) has room for output that it has asked for.
    pub fn drain(&mut self, flush: bool, own: usize) -> bool {
        let vms = Vms(plan().vms);
        let mut waits = true;
        for _ in 0..BATCH {
            if !self.uart.has_room() {
                break;
            }
            match self.mux.next(&vms, flush) {
                Next::Byte(byte) => self.uart.send(byte),
                other => {
                    // Going to sleep: whoever adds something from now on tells. What was added just
                    // before is seen by the second look.
                    AWAKE.store(false, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                    match self.mux.next(&vms, flush) {
                        Next::Byte(byte) => {
                            AWAKE.store(true, Ordering::Relaxed);
                            self.uart.send(byte);
                            continue;
                        }
                        Next::Held => timer::arm(timer::milliseconds(FLUSH_MS)),
                        Next::Empty => {}
                    }
                    debug_assert!(!matches!(other, Next::Byte(_)));
                    waits = false;
                    break;
                }
            }
        }
        self.uart.ask_room(waits);
        self.offer_room(own)
    }

    /// Tells the VMs that wait for room. `true` if one of them is that of the pCPU `own`.
    fn offer_room(&mut self, own: usize) -> bool {
        let mut mine = false;
        for index in 0..plan().vms.len() {
            let vm = vm::vm(index);
            let streams = &vm.streams;
            if streams.output.room() < 512 || streams.wants_room.swap(0, Ordering::AcqRel) == 0 {
                continue;
            }
            // While the VM runs its UART waits, which any of its pCPUs can serve; later it is a report.
            let whom = if vm.power.phase() == Phase::Running {
                1
            } else {
                usize::MAX
            };
            for pcpu in vm::pcpus_of(index).take(whom) {
                if pcpu == own {
                    mine = true;
                } else {
                    mailbox::send(pcpu, mailbox::UART);
                }
            }
        }
        mine
    }

    /// Takes received bytes to the VM that has the input. `true` if that is the VM of the pCPU `own`.
    pub fn keys(&mut self, own: usize) -> bool {
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
                    line.text("input goes to ")
                        .name(vms.get(index).map_or(&[], |vm| &vm.name));
                    self.mux.notice(&line);
                }
                Key::Help => {
                    let mut line = Line::new();
                    line.text(
                        "Ctrl-T then: 1-9 input to VM n, n next VM, Ctrl-T itself, ? this help",
                    );
                    self.mux.notice(&line);
                }
                Key::Nothing => {}
            }
        }
        if !sent {
            return false;
        }
        let Some(target) = vm::pcpu_of(self.keys.focus, 0) else {
            return false;
        };
        if target == own {
            return true;
        }
        mailbox::send(target, mailbox::UART);
        false
    }

    /// Nothing is left to say and everything has left the UART.
    pub fn is_done(&self) -> bool {
        self.mux.is_done(&Vms(plan().vms)) && self.uart.is_idle()
    }
}
