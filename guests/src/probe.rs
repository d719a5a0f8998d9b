//! Accesses that may fault: the program goes on and learns what the fault was.

use crate::cpu::{self, MOST};
use crate::sysreg::isb;
use crate::vectors::{FRAME, Frame};
use core::arch::{asm, global_asm};
use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// A synchronous exception that an access brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// ESR_EL1.
    pub esr: u64,
    /// FAR_EL1.
    pub far: u64,
    /// Address of the instruction.
    pub elr: u64,
}

impl Fault {
    /// Exception class.
    pub fn class(self) -> u64 {
        (self.esr >> 26) & 0x3f
    }

    /// Fault status code of an abort.
    pub fn status(self) -> u64 {
        self.esr & 0x3f
    }

    /// A data access was answered by a synchronous external abort, not on a table walk.
    pub fn is_data_external_abort(self) -> bool {
        self.class() == 0x25 && self.status() == 0x10
    }

    /// An instruction fetch was answered by a synchronous external abort, not on a table walk.
    pub fn is_fetch_external_abort(self) -> bool {
        self.class() == 0x21 && self.status() == 0x10
    }

    /// The instruction is undefined here.
    pub fn is_undefined(self) -> bool {
        self.class() == 0
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "fault with ESR {:#x}, FAR {:#x}, pc {:#x}",
            self.esr, self.far, self.elr
        )
    }
}

// Runs the code at x0 with x0..x7 from the eight words at x1, and stores them there afterwards.
// Returns 0, or 1 after a fault. PROBE_SP holds the CPU's stack pointer while the code runs: a fault taken
// with any other one (in an interrupt handler) is not ours.
global_asm!(
    r#"
    .section .text.probe, "ax"
    .global probe_run
probe_run:
    stp     x29, x30, [sp, #-112]!
    stp     x19, x20, [sp, #16]
    stp     x21, x22, [sp, #32]
    stp     x23, x24, [sp, #48]
    stp     x25, x26, [sp, #64]
    stp     x27, x28, [sp, #80]
    str     x1, [sp, #96]
    mov     x16, x0
    mov     x17, sp
    adrp    x2, PROBE_SP
    add     x2, x2, :lo12:PROBE_SP
    mrs     x3, mpidr_el1
    and     x3, x3, #7
    str     x17, [x2, x3, lsl #3]
    mov     x17, x1
    ldp     x0, x1, [x17]
    ldp     x2, x3, [x17, #16]
    ldp     x4, x5, [x17, #32]
    ldp     x6, x7, [x17, #48]
    blr     x16
    mov     w16, #0
    b       1f
    .global probe_fault
probe_fault:
    mov     w16, #1
1:  adrp    x17, PROBE_SP
    add     x17, x17, :lo12:PROBE_SP
    mrs     x18, mpidr_el1
    and     x18, x18, #7
    str     xzr, [x17, x18, lsl #3]
    ldr     x17, [sp, #96]
    stp     x0, x1, [x17]
    stp     x2, x3, [x17, #16]
    stp     x4, x5, [x17, #32]
    stp     x6, x7, [x17, #48]
    mov     w0, w16
    ldp     x19, x20, [sp, #16]
    ldp     x21, x22, [sp, #32]
    ldp     x23, x24, [sp, #48]
    ldp     x25, x26, [sp, #64]
    ldp     x27, x28, [sp, #80]
    ldp     x29, x30, [sp], #112
    ret

    .global probe_accesses
probe_accesses:
    ldrb    w0, [x0]
    ret
    strb    w1, [x0]
    ret
    ldrh    w0, [x0]
    ret
    strh    w1, [x0]
    ret
    ldr     w0, [x0]
    ret
    str     w1, [x0]
    ret
    ldr     x0, [x0]
    ret
    str     x1, [x0]
    ret
"#
);

unsafe extern "C" {
    fn probe_run(code: usize, registers: *mut u64) -> u64;
    fn probe_fault();
    fn probe_accesses();
}

#[unsafe(no_mangle)]
static PROBE_SP: [AtomicUsize; MOST] = [const { AtomicUsize::new(0) }; MOST];

/// The latest fault of each CPU: ESR, FAR, ELR.
static FAULTS: [[AtomicU64; 3]; MOST] = [const { [const { AtomicU64::new(0) }; 3] }; MOST];

/// Called by the vector: takes the fault if `probe_run` was at work.
pub(crate) fn caught(frame: &mut Frame) -> bool {
    let here = cpu::number();
    let expected = PROBE_SP[here].load(Relaxed);
    if expected == 0 || core::ptr::from_ref(frame).addr() + FRAME != expected {
        return false;
    }
    for (word, value) in FAULTS[here].iter().zip([frame.esr, frame.far, frame.elr]) {
        word.store(value, Relaxed);
    }
    frame.elr = probe_fault as *const () as u64;
    true
}

/// Calls the code at `address` with x0 to x7 from `registers`, which hold their last values afterwards.
///
/// The code must return by `ret`, leave SP and x30 alone, and write no memory of the program: tests
/// call what they have generated with [`code`], or addresses where nothing is.
pub fn call(address: usize, registers: &mut [u64; 8]) -> Result<(), Fault> {
    // SAFETY: `registers` is eight words that live through the call; the code keeps the contract
    // above (I-PROBE).
    let failed = unsafe { probe_run(address, registers.as_mut_ptr()) };
    if failed == 0 {
        return Ok(());
    }
    let [esr, far, elr] = &FAULTS[cpu::number()];
    Err(Fault {
        esr: esr.load(Relaxed),
        far: far.load(Relaxed),
        elr: elr.load(Relaxed),
    })
}

/// Width of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 8 bits.
    Byte = 0,
    /// 16 bits.
    Half = 1,
    /// 32 bits.
    Word = 2,
    /// 64 bits.
    Double = 3,
}

impl Width {
    /// All widths, smallest first.
    pub const ALL: [Self; 4] = [Self::Byte, Self::Half, Self::Word, Self::Double];

    /// Bytes.
    pub const fn bytes(self) -> usize {
        1 << self as usize
    }
}

/// Bytes of one access in `probe_accesses`: the instruction and its `ret`.
const ACCESS: usize = 8;

/// Reads `address`.
pub fn read(width: Width, address: usize) -> Result<u64, Fault> {
    let mut registers = [address as u64, 0, 0, 0, 0, 0, 0, 0];
    let code = probe_accesses as *const () as usize + 2 * ACCESS * width as usize;
    call(code, &mut registers)?;
    Ok(registers[0])
}

/// Writes `value` to `address`, which must not be memory that the program uses.
pub fn write(width: Width, address: usize, value: u64) -> Result<(), Fault> {
    let mut registers = [address as u64, value, 0, 0, 0, 0, 0, 0];
    let code = probe_accesses as *const () as usize + 2 * ACCESS * width as usize + ACCESS;
    call(code, &mut registers)
}

/// Fetches an instruction from `address`.
pub fn execute(address: usize) -> Result<(), Fault> {
    call(address, &mut [0; 8])
}

const RET: u32 = 0xd65f_03c0;

/// Most instructions that [`code`] takes.
pub const CODE: usize = 15;

// A page of its own, because an emulator slows down every write to a page that it runs code from.
#[repr(C, align(4096))]
struct Buffer(UnsafeCell<[u32; CODE + 1]>);

// SAFETY: only `code` touches it, each CPU its own, and programs call that never from a handler.
unsafe impl Sync for Buffer {}

static BUFFERS: [Buffer; MOST] = [const { Buffer(UnsafeCell::new([RET; CODE + 1])) }; MOST];

/// Returns the address of the first instruction of [`code`] on this CPU.
pub fn code_address() -> usize {
    BUFFERS[cpu::number()].0.get().addr()
}

/// Runs `instructions`, followed by `ret`; see [`call`].
pub fn code(instructions: &[u32], registers: &mut [u64; 8]) -> Result<(), Fault> {
    let buffer = BUFFERS[cpu::number()].0.get();
    let mut words = [RET; CODE + 1];
    words[..instructions.len()].copy_from_slice(instructions);
    // SAFETY: one caller at a time on each CPU, see above (I-PROBE).
    unsafe { buffer.write_volatile(words) };
    synchronise(buffer.expose_provenance());
    call(buffer.addr(), registers)
}

/// Puts `instructions` where they can be run, at `address` in RAM that the program does not use.
pub fn place(address: usize, instructions: &[u32]) {
    for (n, instruction) in instructions.iter().enumerate() {
        let word = core::ptr::with_exposed_provenance_mut::<u32>(address + 4 * n);
        // SAFETY: a word of RAM that nothing else uses, aligned (I-FREE).
        unsafe { word.write_volatile(*instruction) };
    }
    synchronise(address & !63);
}

/// Makes 64 bytes of new instructions visible to the fetch. The line size of caches is 16 bytes at least.
fn synchronise(start: usize) {
    for line in (start..start + 64).step_by(16) {
        // SAFETY: cleans a line of our own memory to the point of unification.
        unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack)) };
    }
    crate::sysreg::dsb();
    for line in (start..start + 64).step_by(16) {
        // SAFETY: invalidates instructions only; they are fetched again.
        unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack)) };
    }
    crate::sysreg::dsb();
    isb();
}
