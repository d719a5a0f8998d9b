//! Events of the board's firmware (SDEI, DEN0054C), by which EL2 reclaims the pCPU of a GPPT VM
//! where Group 0 is the firmware's: event 0, which one pCPU signals to another, and which nothing
//! at EL1 or EL2 masks.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use bulkhead_abi::plan::MAX_PCPUS;

use super::plan::plan;
use super::sysreg::{isb, read, write};
use super::{firmware, layout, sysreg};

core::arch::global_asm!(include_str!("sdei.s"));

unsafe extern "C" {
    fn sdei_event();
    fn sdei_wait(note: *const Note);
}

/// Function IDs (DEN0054C, 5.1).
const VERSION: u64 = 0xc400_0020;
const EVENT_REGISTER: u64 = 0xc400_0021;
const EVENT_ENABLE: u64 = 0xc400_0022;
const EVENT_UNREGISTER: u64 = 0xc400_0027;
const PE_UNMASK: u64 = 0xc400_002c;
const EVENT_SIGNAL: u64 = 0xc400_002f;
/// The event that software signals.
const EVENT: u64 = 0;
/// MDCR_EL2.TDE: debug exceptions of EL1 and EL0 are routed to EL2.
const TDE: u64 = 1 << 8;

/// The state that the event handler of a pCPU shares with EL2 there. Only that pCPU uses it.
#[repr(C, align(64))]
struct Note {
    /// 1 from the time when the handler runs until EL2 looks for the reason of the event.
    signalled: AtomicU32,
    /// ELR_EL2 and SPSR_EL2, saved where the handler wakes EL2.
    registers: [AtomicU64; 2],
}

static NOTES: [Note; MAX_PCPUS] = [const {
    Note {
        signalled: AtomicU32::new(0),
        registers: [const { AtomicU64::new(0) }; 2],
    }
}; MAX_PCPUS];
const _: () = assert!(core::mem::offset_of!(Note, signalled) == 0);
const _: () = assert!(core::mem::offset_of!(Note, registers) == 8);

/// Returns the note of pCPU `index`.
fn note(index: usize) -> &'static Note {
    const _: () = assert!(MAX_PCPUS == 8);
    &NOTES[index & 7]
}

/// Returns the note of this pCPU.
fn this_pcpu() -> &'static Note {
    layout::of_pcpu(&NOTES, sysreg::thread())
}

/// Calls the firmware and returns its answer, which is negative if the call fails.
fn call(function: u64, arguments: [u64; 4]) -> i64 {
    let [x1, x2, x3, x4] = arguments;
    let [answer, ..] = firmware::forward([function, x1, x2, x3, x4, 0, 0, 0]);
    answer as i64
}

fn register(note: &'static Note) -> bool {
    let entry = sdei_event as *const () as u64;
    call(
        EVENT_REGISTER,
        [EVENT, entry, core::ptr::from_ref(note) as u64, 0],
    ) >= 0
}

/// Returns the name of what the firmware lacks, if anything: found by registering the event on this
/// pCPU and unregistering it.
pub fn missing() -> Option<&'static str> {
    let version = call(VERSION, [0; 4]);
    if version < 0 || version >> 48 != 1 {
        Some("the firmware has no SDEI 1")
    } else if !register(note(0)) || call(EVENT_UNREGISTER, [EVENT, 0, 0, 0]) < 0 {
        Some("the firmware does not let event 0 be registered")
    } else {
        None
    }
}

/// Enables events on this pCPU, number `index`. `false`: the firmware refuses.
pub fn start(index: usize) -> bool {
    // OSLAR_EL1: software step needs the OS lock open.
    write!("oslar_el1", 0);
    stop_step();
    register(note(index))
        && call(EVENT_ENABLE, [EVENT, 0, 0, 0]) >= 0
        && call(PE_UNMASK, [0; 4]) >= 0
}

/// Signals the event to a pCPU, which interrupts whatever runs there.
pub fn signal(pcpu: usize) {
    if let Some(row) = plan().pcpus.get(pcpu) {
        // Before the pCPU has started its events this fails. Nothing is lost: the pCPU looks for
        // messages when it starts them.
        call(EVENT_SIGNAL, [EVENT, row.mpidr, 0, 0]);
    }
}

/// Stops software step of the guest. An event that arrives meanwhile starts it again, or was
/// signalled before the check that follows.
fn stop_step() {
    write!("mdscr_el1", 0);
    write!("mdcr_el2", read!("mdcr_el2") & !TDE);
    isb();
}

/// Clears the event of this pCPU, which looks for its reason next.
pub fn answer() {
    stop_step();
    this_pcpu().signalled.store(0, Relaxed);
}

/// Whether an event has arrived on this pCPU whose reason has not been looked for.
pub fn is_signalled() -> bool {
    this_pcpu().signalled.load(Relaxed) != 0
}

/// Stops software step when the guest leaves the pCPU, so that its saved registers have no trace of
/// an event.
pub fn put() {
    stop_step();
}

/// Starts software step when the guest gets the pCPU back and an event has arrived whose reason has
/// not been looked for: then the guest enters EL2 again at once.
pub fn load() {
    stop_step();
    if is_signalled() {
        write!("mdcr_el2", read!("mdcr_el2") | TDE);
        write!("mdscr_el1", 1);
    }
}

/// Waits for an event, unless one has arrived.
pub fn wait() {
    // SAFETY: [R-SYSREG] it reads the note and sleeps; x0 to x17 may change.
    unsafe { sdei_wait(core::ptr::from_ref(this_pcpu())) }
}
