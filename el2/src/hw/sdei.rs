//! Events of the board's firmware (SDEI, DEN0054C), by which EL2 gets the pCPU of a VM back that takes its interrupts itself where
//! Group 0 is the firmware's: event 0, which one pCPU signals on another, and which nothing at EL1 or EL2 masks.

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

/// Functions (DEN0054C, 5.1).
const VERSION: u64 = 0xc400_0020;
const EVENT_REGISTER: u64 = 0xc400_0021;
const EVENT_ENABLE: u64 = 0xc400_0022;
const EVENT_UNREGISTER: u64 = 0xc400_0027;
const PE_UNMASK: u64 = 0xc400_002c;
const EVENT_SIGNAL: u64 = 0xc400_002f;
/// The event that software signals.
const EVENT: u64 = 0;
/// MDCR_EL2.TDE: debug exceptions of EL1 and EL0 come to EL2.
const TDE: u64 = 1 << 8;

/// What the handler knows of a pCPU, which alone uses it.
#[repr(C, align(64))]
struct Note {
    /// 1 from when the handler was there until what the pCPU is wanted for is looked at.
    came: AtomicU32,
    /// ELR_EL2 and SPSR_EL2, where the handler wakes EL2.
    registers: [AtomicU64; 2],
}

static NOTES: [Note; MAX_PCPUS] = [const {
    Note {
        came: AtomicU32::new(0),
        registers: [const { AtomicU64::new(0) }; 2],
    }
}; MAX_PCPUS];
const _: () = assert!(core::mem::offset_of!(Note, came) == 0);
const _: () = assert!(core::mem::offset_of!(Note, registers) == 8);

/// That of pCPU `index`.
fn note(index: usize) -> &'static Note {
    const _: () = assert!(MAX_PCPUS == 8);
    &NOTES[index & 7]
}

/// That of this pCPU.
fn this_pcpu() -> &'static Note {
    let offset = sysreg::thread().wrapping_sub(layout::private(0, 0));
    note((offset / layout::SLOT) as usize)
}

/// The firmware's answer, which is negative if it does not do it.
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

/// What the firmware lacks, if it does: found by registering the event on this pCPU, and taking that back.
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

/// Lets this pCPU, number `index`, be interrupted by events from now on. `false`: the firmware does not.
pub fn start(index: usize) -> bool {
    // OSLAR_EL1: stepping needs the OS lock open.
    write!("oslar_el1", 0);
    calm();
    register(note(index))
        && call(EVENT_ENABLE, [EVENT, 0, 0, 0]) >= 0
        && call(PE_UNMASK, [0; 4]) >= 0
}

/// Interrupts what runs on a pCPU, whatever it is.
pub fn signal(pcpu: usize) {
    if let Some(row) = plan().pcpus.get(pcpu) {
        // Before the pCPU has started its events this fails, and nothing is lost: it looks when it does.
        call(EVENT_SIGNAL, [EVENT, row.mpidr, 0, 0]);
    }
}

/// The guest is not stepped. An event that comes meanwhile has it stepped again, or was signalled before what follows this.
fn calm() {
    write!("mdscr_el1", 0);
    write!("mdcr_el2", read!("mdcr_el2") & !TDE);
    isb();
}

/// This pCPU is about to look what it is wanted for.
pub fn answer() {
    calm();
    this_pcpu().came.store(0, Relaxed);
}

/// An event has come to this pCPU, and nobody has looked yet what for.
pub fn came() -> bool {
    this_pcpu().came.load(Relaxed) != 0
}

/// The guest leaves the pCPU to EL2: what is kept of its registers knows of no event.
pub fn leave() {
    calm();
}

/// The guest has the pCPU again: if an event has come that nobody has looked at, it comes back at once.
pub fn arrive() {
    calm();
    if came() {
        write!("mdcr_el2", read!("mdcr_el2") | TDE);
        write!("mdscr_el1", 1);
    }
}

/// Waits for an event, unless one has come.
pub fn wait() {
    // SAFETY: [R-SYSREG] it reads the note and sleeps; x0 to x17 may change.
    unsafe { sdei_wait(core::ptr::from_ref(this_pcpu())) }
}
