//! From the first instruction to `main`: vectors, bss, stack, translation, device tree.

use crate::board::{self, Board};
use crate::{check, gic, mmu, power, println, ruin, uart};
use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Binary logarithm of the bytes of a stack, except the boot CPU's (`guest.ld` has the room).
pub(crate) const STACK_SHIFT: u32 = 14;

// Entered at EL1 with x0 = device tree (or 0), MMU and caches off. The tables are filled here, not in
// Rust, because a compiler may use unaligned accesses, which need translation to be on.
global_asm!(
    r#"
    .macro mmu_on
    ldr     x2, ={mair}
    msr     mair_el1, x2
    ldr     x2, ={tcr}
    mrs     x3, id_aa64mmfr0_el1    // physical address size, at most 48 bits
    and     x3, x3, #15
    mov     x4, #5
    cmp     x3, x4
    csel    x3, x3, x4, lo
    orr     x2, x2, x3, lsl #32
    msr     tcr_el1, x2
    adrp    x1, MMU_LEVEL1
    add     x1, x1, :lo12:MMU_LEVEL1
    msr     ttbr0_el1, x1
    dsb     sy
    tlbi    vmalle1
    ic      iallu
    dsb     sy
    isb
    ldr     x2, ={sctlr}
    msr     sctlr_el1, x2
    isb
    .endm

    // x0 is kept in x19 until Rust is called with it.
    .macro entry
    mov     x19, x0
    adrp    x1, guest_vectors
    add     x1, x1, :lo12:guest_vectors
    msr     vbar_el1, x1
    msr     daifset, #15
    msr     spsel, #1
    .endm

    .macro call_rust function
    mov     x0, x19
    mov     x29, xzr
    mov     x30, xzr
    b       \function
    .endm

    // A program that looks at its registers before anything changes has `guest_begin` (`guest!`);
    // in others the linker makes this branch to nowhere one to the next instruction.
    .weak   guest_begin

    .section .text.start, "ax"
    .global _start, start_goes_on
_start:
    b       guest_begin
start_goes_on:
    mrs     x20, cntvct_el0
    entry
    adrp    x1, __stack_top
    add     x1, x1, :lo12:__stack_top
    mov     sp, x1
    adrp    x1, __bss_start
    add     x1, x1, :lo12:__bss_start
    adrp    x2, __bss_end
    add     x2, x2, :lo12:__bss_end
1:  cmp     x1, x2
    b.hs    2f
    stp     xzr, xzr, [x1], #16
    b       1b
2:  adrp    x1, GUEST_ENTERED
    str     x20, [x1, :lo12:GUEST_ENTERED]
    adrp    x1, GUEST_MMU
    ldrb    w1, [x1, :lo12:GUEST_MMU]
    cbz     w1, 5f

    adrp    x1, MMU_LEVEL1          // whole 39-bit space: 1 GiB blocks of Device memory
    add     x1, x1, :lo12:MMU_LEVEL1
    ldr     x2, ={device}
    mov     x3, #0
3:  orr     x4, x2, x3, lsl #30
    str     x4, [x1, x3, lsl #3]
    add     x3, x3, #1
    cmp     x3, #512
    b.lo    3b
    adr     x3, _start              // the GiB of this image: 2 MiB blocks of Normal memory
    lsr     x3, x3, #30
    adrp    x2, MMU_LEVEL2
    add     x2, x2, :lo12:MMU_LEVEL2
    orr     x4, x2, #3
    str     x4, [x1, x3, lsl #3]
    ldr     x4, ={normal}
    orr     x4, x4, x3, lsl #30
    mov     x3, #0
4:  orr     x5, x4, x3, lsl #21
    str     x5, [x2, x3, lsl #3]
    add     x3, x3, #1
    cmp     x3, #512
    b.lo    4b

    mmu_on
5:  call_rust start_rust

    // Another CPU, started by PSCI: x0 = context. The tables are there already.
    .section .text.secondary, "ax"
    .global secondary_start, secondary_goes_on
secondary_start:
    b       guest_begin
secondary_goes_on:
    entry
    mrs     x2, mpidr_el1
    and     x2, x2, #7
    adrp    x1, __stack_top         // a stack for each, above the boot CPU's
    add     x1, x1, :lo12:__stack_top
    add     x1, x1, x2, lsl #{stack}
    mov     sp, x1
    adrp    x2, GUEST_MMU
    ldrb    w2, [x2, :lo12:GUEST_MMU]
    cbz     w2, 6f
    mmu_on
6:  call_rust secondary_rust
"#,
    device = const mmu::DEVICE,
    normal = const mmu::NORMAL,
    mair = const mmu::MAIR,
    tcr = const mmu::TCR,
    sctlr = const mmu::SCTLR,
    stack = const STACK_SHIFT,
);

/// The counter at the first instruction.
#[unsafe(no_mangle)]
static GUEST_ENTERED: AtomicU64 = AtomicU64::new(0);

/// The counter at the first instruction of the program.
pub fn entered() -> u64 {
    GUEST_ENTERED.load(Relaxed)
}

/// Room for the one [`Board`] that every part of the program may look at.
struct Place(UnsafeCell<MaybeUninit<Board>>);

// SAFETY: written once by `start_rust`, before anything else runs; read only afterwards.
unsafe impl Sync for Place {}

static BOARD: Place = Place(UnsafeCell::new(MaybeUninit::uninit()));

unsafe extern "Rust" {
    safe fn guest_main(board: &'static Board);
}

#[unsafe(no_mangle)]
extern "C" fn start_rust(tree: usize) -> ! {
    let found = if mmu::is_on() {
        board::discover(tree)
    } else {
        Board::default()
    };
    // SAFETY: nothing else runs yet, so this is the only reference to the cell (I-ONCE).
    let board: &'static Board = unsafe { (*BOARD.0.get()).write(found) };
    uart::set_base(board.uart.map_or(0, |uart| uart.base));
    gic::set_board(board);
    if mmu::is_on() {
        mmu::refine(board);
    }
    uart::init();
    guest_main(board);
    power::off()
}

static PANIC_IS_CRASH: AtomicBool = AtomicBool::new(false);

/// From now on a panic is no failed test but what the program wants: it ends in a crash of the machine.
pub fn crash_on_panic() {
    PANIC_IS_CRASH.store(true, Relaxed);
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    if PANIC_IS_CRASH.load(Relaxed) {
        println!("panic: {}", info.message());
        ruin::crash();
    }
    println!("FAIL panic: {}", info.message());
    if let Some(location) = info.location() {
        println!("  at {location}");
    }
    check::done();
    power::off()
}
