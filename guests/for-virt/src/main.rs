//! Claim: a program that was not made for Bulkhead runs by a description alone. It is for a bare board: it reads no device tree, shares
//! no line with the other guests, and knows by itself where its RAM, its PL011 and its GICv3 are (`board.ld`). It takes interrupts of
//! its timer and of its UART, says so, and switches itself off. `for-versal` is the same program for another board.
#![no_std]
#![no_main]
#![allow(unsafe_code)]

use core::arch::{asm, global_asm};
use core::panic::PanicInfo;
use core::ptr::{read_volatile, write_volatile};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// INTID of the EL1 virtual timer.
const TIMER: u32 = 27;
/// No interrupt comes that late.
const SECONDS: u64 = 2;

// MMU and caches stay off.
global_asm!(
    r#"
    .section .text.start, "ax"
    .global _start
_start:
    mrs     x0, currentel
    cmp     x0, #12
    b.ne    1f
    // A board without firmware starts it at EL3. It wants one Security state, and EL1.
    ldr     x0, =GICD
    mov     w1, #1 << 6             // GICD_CTLR.DS
    str     w1, [x0]
    mov     x0, #15
    msr     S3_6_C12_C12_5, x0      // ICC_SRE_EL3
    mov     x0, #1 << 10 | 1        // SCR_EL3: RW, NS
    msr     scr_el3, x0
    isb
    mov     x0, #15
    msr     S3_4_C12_C9_5, x0       // ICC_SRE_EL2
    mov     x0, #1 << 31            // HCR_EL2.RW
    msr     hcr_el2, x0
    mov     x0, #0x3c5              // EL1h, all masked
    msr     spsr_el3, x0
    adr     x0, 1f
    msr     elr_el3, x0
    eret
1:  adrp    x0, __stack_top
    add     x0, x0, :lo12:__stack_top
    mov     sp, x0
    adr     x0, vectors
    msr     vbar_el1, x0
    isb
    bl      run
1:  wfi
    b       1b

    .balign 2048
vectors:
    .rept   5
    .balign 128
    mov     x0, #1
    b       lost
    .endr
    .balign 128                     // IRQ at EL1 with its own stack
    stp     x0, x1, [sp, #-160]!
    stp     x2, x3, [sp, #16]
    stp     x4, x5, [sp, #32]
    stp     x6, x7, [sp, #48]
    stp     x8, x9, [sp, #64]
    stp     x10, x11, [sp, #80]
    stp     x12, x13, [sp, #96]
    stp     x14, x15, [sp, #112]
    stp     x16, x17, [sp, #128]
    stp     x18, x30, [sp, #144]
    bl      interrupt
    ldp     x2, x3, [sp, #16]
    ldp     x4, x5, [sp, #32]
    ldp     x6, x7, [sp, #48]
    ldp     x8, x9, [sp, #64]
    ldp     x10, x11, [sp, #80]
    ldp     x12, x13, [sp, #96]
    ldp     x14, x15, [sp, #112]
    ldp     x16, x17, [sp, #128]
    ldp     x18, x30, [sp, #144]
    ldp     x0, x1, [sp], #160
    eret
    .rept   10
    .balign 128
    mov     x0, #2
    b       lost
    .endr
"#
);

unsafe extern "C" {
    /// Symbols of `board.ld`: their addresses are what they mean.
    static UART: [u32; 18];
    static UART_INTID: u8;
    static GICD: [u32; 1024];
    static GICR: [u32; 0x8000];
}

/// Counts of the timer's and of the UART's interrupt. Others count as neither.
static TAKEN: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];

/// Returns the address that `board.ld` gives a symbol.
fn at<T>(symbol: *const T) -> usize {
    symbol as usize
}

fn uart() -> usize {
    at(&raw const UART)
}

fn uart_intid() -> u32 {
    at(&raw const UART_INTID) as u32
}

fn gicd() -> usize {
    at(&raw const GICD)
}

/// The second frame of the redistributor, that of SGIs and PPIs.
fn private() -> usize {
    at(&raw const GICR) + 0x1_0000
}

fn get(address: usize) -> u32 {
    // SAFETY: a register of the board, at which reads harm nobody.
    unsafe { read_volatile(address as *const u32) }
}

fn set(address: usize, value: u32) {
    // SAFETY: a register of the board, and no DMA master.
    unsafe { write_volatile(address as *mut u32, value) }
}

fn taken(which: usize) -> u32 {
    TAKEN[which].load(Relaxed)
}

fn count() -> u64 {
    let count: u64;
    // SAFETY: reads the virtual counter.
    unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack)) };
    count
}

fn frequency() -> u64 {
    let frequency: u64;
    // SAFETY: reads a register without effects.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) frequency, options(nomem, nostack)) };
    frequency
}

fn say(text: &str) {
    for byte in text.bytes() {
        while get(uart() + 0x18) & 1 << 5 != 0 {}
        set(uart(), byte.into());
    }
}

fn say_number(number: u32) {
    if number >= 10 {
        say_number(number / 10);
    }
    while get(uart() + 0x18) & 1 << 5 != 0 {}
    set(uart(), u32::from(b'0') + number % 10);
}

/// The program.
#[unsafe(no_mangle)]
extern "C" fn run() {
    set(uart() + 0x30, 0x301);
    say("a program that knows its board\n");
    start_gic();
    let mut failed = 0;

    // SAFETY: arms the virtual timer, for 5 ms.
    unsafe {
        asm!("msr cntv_tval_el0, {}", "msr cntv_ctl_el0, {}", in(reg) frequency() / 200, in(reg) 1_u64, options(nomem, nostack));
    }
    failed += u32::from(!came("timer", 0, TIMER));

    set(uart() + 0x38, 1 << 5);
    say("the transmitter has something to tell\n");
    failed += u32::from(!came("uart", 1, uart_intid()));

    say("DONE ");
    say_number(2 - failed);
    say(" passed, ");
    say_number(failed);
    say(" failed\n");
    // SAFETY: PSCI SYSTEM_OFF.
    unsafe { asm!("hvc #0", in("x0") 0x8400_0008_u64, options(nomem, nostack)) };
}

/// Affinity routing and Group 1; the timer's PPI and the UART's SPI for this CPU.
fn start_gic() {
    set(gicd(), 0x12);
    let redistributor = private() - 0x1_0000;
    set(redistributor + 0x14, 0);
    while get(redistributor + 0x14) & 1 << 2 != 0 {}
    let (word, bit) = (uart_intid() as usize / 32 * 4, 1 << (uart_intid() % 32));
    for (frame, word, bit) in [(private(), 0, 1 << TIMER), (gicd(), word, bit)] {
        set(frame + 0x80 + word, get(frame + 0x80 + word) | bit);
        set(frame + 0x100 + word, bit);
    }
    // GICD_IROUTER: the CPU with all affinities 0.
    let route = gicd() + 0x6000 + 8 * uart_intid() as usize;
    set(route, 0);
    set(route + 4, 0);
    // SAFETY: the system registers of the CPU interface; the vectors are there.
    unsafe {
        asm!(
            "msr S3_0_C12_C12_5, {one}", // ICC_SRE_EL1
            "isb",
            "msr S3_0_C4_C6_0, {all}", // ICC_PMR_EL1
            "msr S3_0_C12_C12_7, {one}", // ICC_IGRPEN1_EL1
            "isb",
            "msr daifclr, #2",
            one = in(reg) 1_u64, all = in(reg) 0xff_u64, options(nostack)
        );
    }
}

/// Waits for an interrupt, and says whether it came, and with this INTID.
fn came(name: &str, which: usize, intid: u32) -> bool {
    let end = count() + SECONDS * frequency();
    while taken(which) == 0 && count() < end {}
    let passed = taken(which) != 0 && taken(2) == 0;
    say(if passed { "PASS " } else { "FAIL " });
    say(name);
    say(if passed { ": INTID " } else { ": not INTID " });
    say_number(intid);
    say("\n");
    passed
}

/// An interrupt: quiets whose it is.
#[unsafe(no_mangle)]
extern "C" fn interrupt() {
    let intid: u64;
    // SAFETY: ICC_IAR1_EL1 acknowledges it.
    unsafe { asm!("mrs {}, S3_0_C12_C12_0", "dsb sy", out(reg) intid, options(nostack)) };
    let which = match intid as u32 {
        TIMER => {
            // SAFETY: the timer is off.
            unsafe { asm!("msr cntv_ctl_el0, xzr", "isb", options(nomem, nostack)) };
            0
        }
        intid if intid == uart_intid() => {
            set(uart() + 0x38, 0);
            1
        }
        // Spurious.
        1023 => return,
        _ => 2,
    };
    // Nobody else writes it, and without caches nothing more than loads and stores is to be had.
    TAKEN[which].store(taken(which) + 1, Relaxed);
    // SAFETY: ICC_EOIR1_EL1 ends what was acknowledged.
    unsafe { asm!("msr S3_0_C12_C12_1, {}", in(reg) intid, options(nostack)) };
}

/// Reports an unexpected exception, and sleeps for ever.
#[unsafe(no_mangle)]
extern "C" fn lost() -> ! {
    say("FAIL exception\n");
    loop {
        // SAFETY: sleeps.
        unsafe { asm!("wfi", options(nomem, nostack)) };
    }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    lost()
}
