//! Everything that holds a value of a CPU at EL1: one table of system registers, one of what the
//! interrupt controller's CPU interface has, and the general and SIMD registers. [`pattern`] says
//! what each is given; nothing else in a program may use these registers meanwhile.

use crate::mmio::{read32, write32};
use crate::{gic, sysreg};
use core::arch::global_asm;
use core::cell::UnsafeCell;

/// A register, and what of it can have any value.
pub struct Register {
    /// Its name in the Arm ARM.
    pub name: &'static str,
    /// Bits that get a pattern; [`PROBED`] if that differs from CPU to CPU. The other bits would
    /// change what the program itself relies on, or are not there.
    pub mask: u64,
    /// Value after a reset, of the bits in `known`; None if it has none that is known (DDI 0487, the
    /// register's own page: EL2 gives those that it owns the value here).
    pub reset: Option<u64>,
    read: fn() -> u64,
    write: fn(u64),
}

/// The mask of a register of which an implementation may have all bits or none.
const PROBED: u64 = 0;

impl Register {
    /// Reads it.
    pub fn read(&self) -> u64 {
        (self.read)()
    }

    /// Writes it.
    pub fn write(&self, value: u64) {
        (self.write)(value);
        sysreg::isb();
    }

    /// The bits that get a pattern on this CPU.
    pub fn bits(&self) -> u64 {
        if self.mask != PROBED {
            return self.mask;
        }
        let before = self.read();
        self.write(u64::MAX);
        let held = self.read();
        self.write(before);
        held
    }
}

macro_rules! table {
    ($($name:literal $mask:literal $reset:expr;)*) => {
        [$(Register {
            name: $name,
            mask: $mask,
            reset: $reset,
            read: || mrs!($name),
            write: |value| msr!($name, value),
        }),*]
    };
}

/// The system registers of EL1 and EL0 that keep what is written to them. Translation stays on, so
/// TTBR0_EL1 has a pattern in its ASID only (all descriptors are global), TCR_EL1 in what concerns
/// TTBR1_EL1 (whose walks are off), MAIR_EL1 in attributes that no descriptor names; SCTLR_EL1
/// and CPACR_EL1 have one in what concerns EL0. VBAR_EL1 is free while no exception is taken.
/// Not here: MDSCR_EL1, which traps, and what EL2 hides.
#[rustfmt::skip]
pub static SYSTEM: [Register; 26] = table! {
    "sctlr_el1"      0x0505_c330           Some(0x30d0_0800);
    "tcr_el1"        0x0000_0060_2f07_0000 Some(0);
    "ttbr0_el1"      0x00ff_0000_0000_0000 Some(0);
    "ttbr1_el1"      0x00ff_00ff_ffff_f000 Some(0);
    "mair_el1"       0xffff_ffff_ff00_0000 Some(0);
    "vbar_el1"       0x0000_ffff_ffff_f800 Some(0);
    "cpacr_el1"      0x0000_0000_0020_0000 Some(0);
    "contextidr_el1" 0x0000_0000_ffff_ffff Some(0);
    "esr_el1"        0x0000_0000_ffff_ffff Some(0);
    "far_el1"        0xffff_ffff_ffff_ffff Some(0);
    "elr_el1"        0xffff_ffff_ffff_fffc Some(0);
    "spsr_el1"       0x0000_0000_f030_03cf Some(0);
    "sp_el0"         0xffff_ffff_ffff_ffff Some(0);
    "tpidr_el0"      0xffff_ffff_ffff_ffff Some(0);
    "tpidrro_el0"    0xffff_ffff_ffff_ffff Some(0);
    "tpidr_el1"      0xffff_ffff_ffff_ffff Some(0);
    "par_el1"        0xff00_00ff_ffff_f380 Some(0);
    "csselr_el1"     0x0000_0000_0000_0002 Some(0);
    "cntkctl_el1"    0x0000_0000_0000_03ff Some(0);
    "afsr0_el1"      0x0000_0000_0000_0000 Some(0);
    "afsr1_el1"      0x0000_0000_0000_0000 Some(0);
    "amair_el1"      0x0000_0000_0000_0000 Some(0);
    "cntv_cval_el0"  0x0fff_ffff_ffff_ffff Some(0);
    "cntv_ctl_el0"   0x0000_0000_0000_0001 Some(0);
    "cntp_cval_el0"  0x0fff_ffff_ffff_ffff None;
    "cntp_ctl_el0"   0x0000_0000_0000_0001 Some(0);
};

/// Bits that are set beside the pattern: timers that are on are masked and due in centuries, of
/// TTBR1_EL1 nothing is walked.
pub fn fixed(name: &str) -> u64 {
    match name {
        "cntv_cval_el0" | "cntp_cval_el0" => 1 << 60,
        "cntv_ctl_el0" | "cntp_ctl_el0" => 2,
        _ => 0,
    }
}

fn cpu_interface(offset: usize) -> u64 {
    read32(gic::v2::cpu_interface() + offset).into()
}

fn set_cpu_interface(offset: usize, value: u64) {
    write32(gic::v2::cpu_interface() + offset, value as u32);
}

macro_rules! interface {
    ($($name:literal $offset:literal $mask:literal;)*) => {
        [$(Register {
            name: $name,
            mask: $mask,
            reset: None,
            read: || cpu_interface($offset),
            write: |value| set_cpu_interface($offset, value),
        }),*]
    };
}

/// The CPU interface of a GICv3 (IHI 0069H, 12.2), for what an interrupt that is active leaves
/// writable: a binary point of 4 and more keeps priority 0 apart from 0x80.
#[rustfmt::skip]
static INTERFACE_V3: [Register; 5] = table! {
    "icc_pmr_el1"     0xf0 None;
    "icc_bpr0_el1"    0x3 None;
    "icc_bpr1_el1"    0x3 None;
    "icc_ctlr_el1"    0x2 None;
    "icc_igrpen0_el1" 0x1 None;
};

/// The CPU interface of a GICv2 (IHI 0048B, 4.4): control, mask, the two binary points.
#[rustfmt::skip]
static INTERFACE_V2: [Register; 4] = interface! {
    "GICC_CTLR" 0x00 0x200;
    "GICC_PMR"  0x04 0xf0;
    "GICC_BPR"  0x08 0x2;
    "GICC_ABPR" 0x1c 0x3;
};

/// The registers of this GIC's CPU interface that keep what is written.
pub fn interface() -> &'static [Register] {
    if gic::version() == 2 {
        &INTERFACE_V2
    } else {
        &INTERFACE_V3
    }
}

/// The bits of a register of [`interface`] that are set beside the pattern.
pub fn fixed_interface(name: &str) -> u64 {
    match name {
        "icc_pmr_el1" | "GICC_PMR" => 0x08,
        "icc_bpr0_el1" | "icc_bpr1_el1" | "GICC_BPR" | "GICC_ABPR" => 4,
        "GICC_CTLR" => 1,
        _ => 0,
    }
}

/// Active priorities: what an interrupt that is being handled leaves there.
pub fn active_priorities() -> [u64; 2] {
    if gic::version() == 2 {
        [cpu_interface(gic::v2::APR), 0]
    } else {
        [mrs!("icc_ap0r0_el1"), mrs!("icc_ap1r0_el1")]
    }
}

/// A value that differs in about half of its bits for each register, and for each of what `seed` is
/// made of.
pub fn pattern(seed: u64, register: u64) -> u64 {
    crate::random::Random::new(seed ^ register.wrapping_mul(0xd6e8_feb8_6659_fd93)).draw()
}

/// General, SIMD and control registers. The assembly below knows this layout.
#[repr(C, align(16))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Values {
    /// x0 to x30.
    pub general: [u64; 31],
    /// SP.
    pub stack: u64,
    /// v0 to v31, two words each.
    pub vectors: [u64; 64],
    /// FPCR, FPSR, NZCV, DAIF.
    pub control: [u64; 4],
    unused: [u64; 28],
}

/// Bits of FPCR, FPSR, NZCV and DAIF that may be set: FPCR without its traps and the bits of newer
/// CPUs; FPSR without the flags of AArch32. IRQ stays masked.
pub const CONTROL_BITS: [u64; 4] = [0x07c0_0000, 0x0800_009f, 0xf000_0000, 0x340];
/// PSTATE.I in DAIF.
const MASKED: u64 = 0x80;

impl Values {
    const ZERO: Self = Self {
        general: [0; 31],
        stack: 0,
        vectors: [0; 64],
        control: [0; 4],
        unused: [0; 28],
    };

    /// A pattern for each.
    pub fn of(seed: u64) -> Self {
        let mut values = Self::ZERO;
        for (n, place) in (100..).zip(&mut values.general) {
            *place = pattern(seed, n);
        }
        for (n, place) in (200..).zip(&mut values.vectors) {
            *place = pattern(seed, n);
        }
        for (n, place) in values.control.iter_mut().enumerate() {
            *place = pattern(seed, 300 + n as u64) & CONTROL_BITS[n];
        }
        values.control[3] |= MASKED;
        values
    }

    /// The first value that is not that of `other`.
    pub fn first_other(&self, other: &Self) -> Option<Other> {
        let differs = |name, own: &[u64], others: &[u64]| {
            let n = own.iter().zip(others).position(|(a, b)| a != b)?;
            Some(Other {
                name,
                number: n,
                seen: own[n],
                expected: others[n],
            })
        };
        differs("x", &self.general, &other.general)
            .or_else(|| differs("half v", &self.vectors, &other.vectors))
            .or_else(|| differs("FPCR, FPSR, NZCV, DAIF:", &self.control, &other.control))
    }
}

/// A value that is not what was given: kind, number among those of its kind.
#[derive(Clone, Copy, Debug)]
pub struct Other {
    /// Name of its kind.
    pub name: &'static str,
    /// Its number among those of its kind.
    pub number: usize,
    /// The value that was found.
    pub seen: u64,
    /// The expected value.
    pub expected: u64,
}

/// Values that are loaded, and values that were found afterwards. SP is the address of the area in
/// use, so that the values of two programs' SP differ.
#[repr(C, align(16))]
struct Area {
    given: Values,
    found: Values,
}

/// Areas: of each CPU of each VM others.
const AREAS: usize = 32;

struct Areas([UnsafeCell<Area>; AREAS]);

// SAFETY: each area belongs to one CPU, `hold` sees to that (I-ONCE).
unsafe impl Sync for Areas {}

static PLACES: Areas = Areas(
    [const {
        UnsafeCell::new(Area {
            given: Values::ZERO,
            found: Values::ZERO,
        })
    }; AREAS],
);

// state_*(area): loads everything from the area, waits, and stores everything there. SP is the
// address of the area meanwhile, so that it needs no register; interrupts have to be masked.
global_asm!(
    r#"
    .arch_extension fp
    .arch_extension simd
    .macro state_all what, base, offset
    .irp    n, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28
    state_pair \what, \n, \base, \offset
    .endr
    .endm
    .macro state_pair what, n, base, offset
    .altmacro
    state_next \what, \n, %(\n + 1), \base, \offset
    .noaltmacro
    .endm
    .macro state_next what, n, next, base, offset
    \what   x\n, x\next, [\base, #\offset + 8 * \n]
    .endm
    .macro state_vectors what, base
    .irp    n, 0, 4, 8, 12, 16, 20, 24, 28
    state_four \what, \n, \base
    .endr
    .endm
    .macro state_four what, n, base
    .altmacro
    state_three \what, \n, %(\n + 1), %(\n + 2), %(\n + 3), \base
    .noaltmacro
    .endm
    .macro state_three what, a, b, c, d, base
    \what   {{v\a\().2d, v\b\().2d, v\c\().2d, v\d\().2d}}, [\base], #64
    .endm

    .macro state_load
    stp     x29, x30, [sp, #-96]!
    stp     x19, x20, [sp, #16]
    stp     x21, x22, [sp, #32]
    stp     x23, x24, [sp, #48]
    stp     x25, x26, [sp, #64]
    stp     x27, x28, [sp, #80]
    mov     x1, sp
    str     x1, [x0, #248]
    add     x1, x0, #256
    state_vectors ld1, x1
    ldp     x2, x3, [x1]
    msr     fpcr, x2
    msr     fpsr, x3
    ldp     x2, x3, [x1, #16]
    msr     nzcv, x2
    msr     daif, x3
    mov     sp, x0
    state_all ldp, sp, 0
    ldr     x30, [sp, #240]
    .endm

    .macro state_store
    add     sp, sp, #1024           // `found`
    state_all stp, sp, 0
    str     x30, [sp, #240]
    sub     sp, sp, #1024
    mov     x0, sp
    str     x0, [x0, #1024 + 248]
    add     x1, x0, #1024 + 256
    state_vectors st1, x1
    mrs     x2, fpcr
    mrs     x3, fpsr
    stp     x2, x3, [x1]
    mrs     x2, nzcv
    mrs     x3, daif
    stp     x2, x3, [x1, #16]
    msr     daifset, #15
    ldr     x1, [x0, #248]
    mov     sp, x1
    ldp     x19, x20, [sp, #16]
    ldp     x21, x22, [sp, #32]
    ldp     x23, x24, [sp, #48]
    ldp     x25, x26, [sp, #64]
    ldp     x27, x28, [sp, #80]
    ldp     x29, x30, [sp], #96
    ret
    .endm

    .section .text.state, "ax"
    // Counts in x0, or in x30: so each register is looked at by one of them at least.
    .global state_spin, state_spin_last, state_sleep, state_call
state_spin:
    state_load
1:  sub     x0, x0, #1
    cbnz    x0, 1b
    state_store
state_spin_last:
    state_load
1:  sub     x30, x30, #1
    cbnz    x30, 1b
    state_store
state_sleep:
    state_load
    wfi
    state_store
state_call:
    state_load
    hvc     #0
    state_store

    // The first instructions of a CPU of a program that looks at what it finds (`guest!` with
    // `begin`): stores what start-up changes in the lowest part of the stack of CPU 7, which such a
    // program does not have, and which is not cleared. x27 to x30 go there as one value.
    .global state_begin
state_begin:
    orr     x30, x30, x29
    orr     x30, x30, x28
    orr     x30, x30, x27
    mov     x29, sp
    mrs     x27, mpidr_el1
    and     x27, x27, #7
    adrp    x28, __stack_top
    add     x28, x28, :lo12:__stack_top
    add     x28, x28, #{begun}
    add     x28, x28, x27, lsl #10
    .irp    n, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24
    state_pair stp, \n, x28, 0
    .endr
    stp     x26, x30, [x28, #208]
    mrs     x1, daif
    stp     x29, x1, [x28, #224]
    mrs     x1, sctlr_el1
    mrs     x2, tcr_el1
    stp     x1, x2, [x28, #240]
    mrs     x1, ttbr0_el1
    mrs     x2, mair_el1
    stp     x1, x2, [x28, #256]
    mrs     x1, vbar_el1
    mrs     x2, cpacr_el1
    stp     x1, x2, [x28, #272]
    mov     x1, #3 << 20
    msr     cpacr_el1, x1
    isb
    mrs     x1, fpcr
    mrs     x3, fpsr
    stp     x1, x3, [x28, #288]
    add     x3, x28, #304
    state_vectors st1, x3
    msr     cpacr_el1, x2
    isb
    cbnz    x27, secondary_goes_on
    b       start_goes_on
"#,
    begun = const BEGUN,
);

/// Offset from the boot CPU's stack to the one in which `state_begin` stores: CPU 7's own.
const BEGUN: usize = 6 << crate::start::STACK_SHIFT;

unsafe extern "C" {
    fn state_spin(area: *mut Area);
    fn state_spin_last(area: *mut Area);
    fn state_sleep(area: *mut Area);
    fn state_call(area: *mut Area);
    static __stack_top: u8;
}

/// Activity of a CPU while its registers have patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Goes round a loop of two instructions so often, counting in x0.
    Spin(u64),
    /// The same, counting in x30.
    SpinLast(u64),
    /// Sleeps until an interrupt is pending, once.
    Sleep,
    /// HVC with this function.
    Call(u32),
}

/// Loads `given` into all registers, waits, and gives what they are then; a register that counts has
/// become 0, and that is what is expected of it. `place` names an area that only this CPU uses.
/// Interrupts have to be masked, FP and SIMD open to EL1.
pub fn hold(place: usize, mut given: Values, wait: Wait) -> Result<(), Other> {
    let code = match wait {
        Wait::Spin(count) => {
            given.general[0] = count;
            state_spin
        }
        Wait::SpinLast(count) => {
            given.general[30] = count;
            state_spin_last
        }
        Wait::Sleep => state_sleep,
        Wait::Call(function) => {
            given.general[0] = function.into();
            state_call
        }
    };
    let area = PLACES.0[place % AREAS].get();
    // SAFETY: the area is this CPU's own, and nothing refers to it.
    unsafe {
        (*area).given = given;
    }
    // SAFETY: [I-EL1] the code gives all registers back that Rust expects to be kept, and no exception
    // is taken meanwhile that would need a stack.
    unsafe { code(area) }
    // SAFETY: as above.
    let found = unsafe { (*area).found };
    match wait {
        Wait::Spin(_) => given.general[0] = 0,
        Wait::SpinLast(_) => given.general[30] = 0,
        _ => {}
    }
    if found.stack != area.addr() as u64 {
        return Err(Other {
            name: "SP",
            number: 0,
            seen: found.stack,
            expected: area.addr() as u64,
        });
    }
    found.first_other(&given).map_or(Ok(()), Err)
}

/// Passes `each` the registers that a CPU had at its first instruction and that start-up has changed
/// since: name, value, expected value.
pub fn begun(cpu: usize, mut each: impl FnMut(&'static str, u64, u64)) {
    let base = (&raw const __stack_top).addr() + BEGUN + (cpu << 10);
    let word = |offset: usize| crate::mmio::read64(base + offset);
    for n in 1..27 {
        each("x1 to x26", word(8 * n), 0);
    }
    each("x27 to x30", word(216), 0);
    each("SP", word(224), 0);
    each("DAIF", word(232), 0x3c0);
    let names = [
        "sctlr_el1",
        "tcr_el1",
        "ttbr0_el1",
        "mair_el1",
        "vbar_el1",
        "cpacr_el1",
    ];
    for (n, name) in names.into_iter().enumerate() {
        each(
            name,
            word(240 + 8 * n),
            if n == 0 { 0x30d0_0800 } else { 0 },
        );
    }
    each("FPCR", word(288), 0);
    each("FPSR", word(296), 0);
    for n in 0..64 {
        each("v0 to v31", word(304 + 8 * n), 0);
    }
}

/// Calls `each` for what start-up leaves as it is: name, value, what it has to be.
pub fn untouched(mut each: impl FnMut(&'static str, u64, u64)) {
    let changed = [
        "sctlr_el1",
        "tcr_el1",
        "ttbr0_el1",
        "mair_el1",
        "vbar_el1",
        "cpacr_el1",
    ];
    for register in SYSTEM
        .iter()
        .filter(|register| !changed.contains(&register.name))
    {
        if let Some(reset) = register.reset {
            each(register.name, register.read(), reset);
        }
    }
    for (name, value) in ["active priorities, group 0", "active priorities"]
        .into_iter()
        .zip(active_priorities())
    {
        each(name, value, 0);
    }
}

/// Opens FP and SIMD registers to EL1, and leaves what is in them.
pub fn open_vectors() {
    let open = mrs!("cpacr_el1") | 3 << 20;
    msr!("cpacr_el1", open);
    sysreg::isb();
}
