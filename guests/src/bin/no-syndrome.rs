//! Claim: an access that the hardware cannot describe to EL2 (ESR_EL2.ISV clear), and a table walk
//! that leads where the guest has nothing, come back to the guest as an abort that it can
//! understand, and nothing else happens.
//!
//! Runs instructions that leave no valid syndrome on every emulated device and where nothing is,
//! through Device and through Normal memory: each must fault with the right ESR, FAR and ELR and
//! leave its base register alone. Then it points entries of its own tables at themselves, nowhere,
//! at devices and beyond the IPA space, and uses them.
#![no_std]
#![no_main]

use bulkhead_guests::board::Range;
use bulkhead_guests::probe::{self, Fault, Width};
use bulkhead_guests::{Board, alive, check, gic, guest, mmu, msr, println, ruin, sysreg, uart};

guest!(main = main, irq = alive::on_irq);

/// Expected result of an instruction.
#[derive(Clone, Copy, PartialEq)]
enum Must {
    /// A fault of a load so many bytes behind the base register.
    Load(i64),
    /// A fault of a store.
    Store(i64),
    /// A fault of either half, or an undefined instruction: an atomic, which not every CPU has.
    Atomic,
    /// A fault of a store; of Device memory an alignment fault of the guest's own tables.
    Zero,
}

use Must::{Atomic, Load, Store, Zero};

/// Instructions with ISV = 0 (DDI 0487, D24.2.40, "ISS encoding for an exception from a Data Abort").
const ODD: [(&str, u32, Must); 32] = [
    ("ldp x2, x3, [x0]", 0xa940_0c02, Load(0)),
    ("stp x2, x3, [x0]", 0xa900_0c02, Store(0)),
    ("ldp w2, w3, [x0], #8", 0x28c1_0c02, Load(0)),
    ("stp w2, w3, [x0, #-8]!", 0x29bf_0c02, Store(-8)),
    ("ldpsw x2, x3, [x0]", 0x6940_0c02, Load(0)),
    ("ldnp x2, x3, [x0]", 0xa840_0c02, Load(0)),
    ("stnp x2, x3, [x0]", 0xa800_0c02, Store(0)),
    ("ldr x2, [x0], #8", 0xf840_8402, Load(0)),
    ("ldr w2, [x0, #4]!", 0xb840_4c02, Load(4)),
    ("str x2, [x0, #8]!", 0xf800_8c02, Store(8)),
    ("str w2, [x0], #4", 0xb800_4402, Store(0)),
    ("ldrb w2, [x0], #1", 0x3840_1402, Load(0)),
    ("strb w2, [x0, #1]!", 0x3800_1c02, Store(1)),
    ("ldrsh x2, [x0], #2", 0x7880_2402, Load(0)),
    ("strh w2, [x0], #2", 0x7800_2402, Store(0)),
    ("ldxr w2, [x0]", 0x885f_7c02, Load(0)),
    ("ldaxr x2, [x0]", 0xc85f_fc02, Load(0)),
    ("ldxrb w2, [x0]", 0x085f_7c02, Load(0)),
    ("ldxp x2, x3, [x0]", 0xc87f_0c02, Load(0)),
    ("ldr d0, [x0]", 0xfd40_0000, Load(0)),
    ("str d0, [x0]", 0xfd00_0000, Store(0)),
    ("ldr q0, [x0]", 0x3dc0_0000, Load(0)),
    ("str q0, [x0]", 0x3d80_0000, Store(0)),
    ("ld1 {v0.16b}, [x0]", 0x4c40_7000, Load(0)),
    ("st1 {v0.16b}, [x0]", 0x4c00_7000, Store(0)),
    ("stp q0, q1, [x0]", 0xad00_0400, Store(0)),
    ("cas w2, w3, [x0]", 0x88a2_7c03, Atomic),
    ("casp x2, x3, x4, x5, [x0]", 0x4822_7c04, Atomic),
    ("swp w2, w3, [x0]", 0xb822_8003, Atomic),
    ("ldadd x2, x3, [x0]", 0xf822_0003, Atomic),
    ("stset w2, [x0]", 0xb822_301f, Atomic),
    ("dc zva, x0", 0xd50b_7420, Zero),
];

/// Instructions that may work or fault, for what they do at a device is up to the CPU: those on caches,
/// hints, an exclusive store that nothing came before.
const FREE: [(&str, u32); 9] = [
    ("stxr w3, w2, [x0]", 0x8803_7c02),
    ("stlxr w3, x2, [x0]", 0xc803_fc02),
    ("prfm pldl1keep, [x0]", 0xf980_0000),
    ("prfm pstl1strm, [x0]", 0xf980_0011),
    ("dc cvac, x0", 0xd50b_7a20),
    ("dc civac, x0", 0xd50b_7e20),
    ("dc ivac, x0", 0xd508_7620),
    ("ic ivau, x0", 0xd50b_7520),
    ("at s12e1r, x0", 0xd50c_7880),
];

/// Entries of the level-1 table that nothing uses.
const ALIAS: usize = 200;
const TEST_GIB: usize = 201;
const GIB: usize = 1 << 30;
/// A table descriptor; AF, so that the entry also works as a page.
const TABLE: u64 = 3 | 1 << 10;

fn main(board: &'static Board) {
    // FP and SIMD on.
    msr!("cpacr_el1", 3 << 20);
    sysreg::isb();
    mmu::execute_everywhere();
    let device = |device: Option<bulkhead_guests::board::Device>| device.map_or(0, |it| it.base);
    let places = [
        ("PL011", uart::base()),
        ("GICD", board.gicd.base),
        ("GICR", board.gicr.base),
        ("PL031", device(board.rtc)),
        ("watchdog", device(board.watchdog)),
        ("nothing", ruin::NOWHERE),
    ];
    let places = places.into_iter().filter(|(_, base)| *base != 0);
    for (name, base) in places.clone() {
        no_syndrome(name, "Device", base + 0x20);
        mmu::set_gib(ALIAS, (base & !(GIB - 1)) as u64 | mmu::NORMAL);
        let alias = ALIAS * GIB + base % GIB;
        no_syndrome(name, "Normal", alias + 0x20);
        unaligned(name, alias);
        free(name, [base + 0x20, alias + 0x20]);
    }
    alive::check("after odd instructions");
    recursive();
    for (name, base) in places {
        walk(name, base as u64);
    }
    walk("the CPU interface", board.gicc.base as u64);
    for bits in [39, 40, 43, 47] {
        walk("an IPA beyond the space", 1 << bits);
    }
    leaves();
    own_memory_as_table(board.image);
    alive::check("after odd walks");
    check::done();
}

/// Class, length, fault status and WnR of an abort without instruction syndrome.
fn syndrome(write: bool) -> u64 {
    0x25 << 26 | 1 << 25 | u64::from(write) << 6 | 0x10
}

fn no_syndrome(name: &str, memory: &str, address: usize) {
    let mut wrong = 0;
    for (text, instruction, must) in ODD {
        let base = address as u64;
        let mut x = [base, 0, 0, 0, 0, 0, 0, 0];
        let result = probe::code(&[instruction], &mut x);
        let right = match (must, result) {
            (Load(offset), Err(fault)) => {
                fault.esr == syndrome(false) && fault.far == base.wrapping_add_signed(offset)
            }
            (Store(offset), Err(fault)) => {
                fault.esr == syndrome(true) && fault.far == base.wrapping_add_signed(offset)
            }
            (Atomic, Err(fault)) => {
                fault.is_undefined()
                    || fault.esr & !(1 << 6) == syndrome(false) && fault.far == base
            }
            (Zero, Err(fault)) => {
                fault.esr == syndrome(true) && fault.far & !63 == base & !63
                    || memory == "Device" && fault.status() == 0x21
            }
            (_, Ok(())) => false,
        };
        let there = result.is_err_and(|fault| fault.elr == probe::code_address() as u64);
        if !right || !there || x[0] != base {
            wrong += 1;
            let base = x[0];
            match result {
                Err(fault) => println!("  {name}: {text}: {fault}, base {base:#x}"),
                Ok(()) => println!("  {name}: {text}: no fault, base {base:#x}"),
            }
        }
    }
    check::holds(
        format_args!("{name} as {memory} memory: no valid syndrome"),
        wrong == 0,
        format_args!("{wrong} not as they should be"),
    );
}

/// An abort of the kind that EL2 injects, or of the guest's own tables.
fn is_sane(result: Result<(), Fault>) -> bool {
    match result {
        Ok(()) => true,
        Err(fault) => {
            fault.is_undefined()
                || fault.class() == 0x25
                    && matches!(fault.status(), 0x0d..=0x0f | 0x10 | 0x21 | 0x35)
        }
    }
}

/// Through Normal memory an access need not be aligned: nobody may answer it with more than a fault.
fn unaligned(name: &str, alias: usize) {
    let mut verdict = Ok(());
    let page = 4096;
    for width in [Width::Half, Width::Word, Width::Double] {
        for offset in [0x21, 0x23, 0x25, 0x27, page - 1, page - 3, 2 * page - 1] {
            for result in [
                probe::read(width, alias + offset).map(drop),
                probe::write(width, alias + offset, 0),
            ] {
                if let Err(fault) = result
                    && !is_sane(result)
                {
                    verdict = Err(fault);
                }
            }
        }
    }
    check::report(format_args!("{name}: unaligned accesses"), verdict);
}

fn free(name: &str, addresses: [usize; 2]) {
    let mut wrong = 0;
    for (text, instruction) in FREE {
        for address in addresses {
            let base = address as u64;
            let mut x = [base, 0, 0, 0, 0, 0, 0, 0];
            let result = probe::code(&[instruction], &mut x);
            if !is_sane(result) || x[0] != base {
                wrong += 1;
                println!("  {name}: {text}: base {:#x}", x[0]);
            }
        }
    }
    check::holds(
        format_args!("{name}: caches, hints and lone exclusives"),
        wrong == 0,
        format_args!("{wrong} not as they should be"),
    );
}

/// A root whose entry points at the root: the walk ends after its three levels, at the root itself.
fn recursive() {
    let root = mmu::root() as u64;
    mmu::set_gib(TEST_GIB, root | TABLE);
    let index = TEST_GIB;
    let own = index << 30 | index << 21 | index << 12 | index << 3;
    let seen = probe::read(Width::Double, own);
    check::equal(
        "a root that points at itself",
        seen.unwrap_or(0),
        root | TABLE,
    );
    // Entries that are blocks are nothing at level 3.
    let block = index << 30 | index << 21;
    let fault = probe::read(Width::Double, block).err();
    check::holds(
        "its blocks seen from level 3",
        fault.is_some_and(|fault| fault.class() == 0x25 && fault.status() == 7),
        fault.map_or(0, |fault| fault.esr),
    );
    mmu::set_gib(TEST_GIB, 0);
}

/// Times that each access through a table that is not there is tried.
const ROUNDS: usize = 50;

/// An entry that points at a table where there is no memory of ours.
fn walk(name: &str, table: u64) {
    if table == 0 {
        return;
    }
    mmu::set_gib(TEST_GIB, table | TABLE);
    let mut verdict = Ok(());
    for round in 0..ROUNDS {
        let address = TEST_GIB * GIB + round * 0x20_1008;
        for (class, result) in [
            (0x25, probe::read(Width::Word, address).map(drop)),
            (0x25, probe::write(Width::Word, address, 0)),
            (0x21, probe::execute(address)),
        ] {
            // On a walk or not; or the CPU itself says that the address is too large (0 to 3), or that what a
            // device gave is no descriptor (4 to 7).
            let right = |fault: Fault| {
                fault.class() == class
                    && fault.far == address as u64
                    && matches!(fault.status(), 0..=7 | 0x10 | 0x14..=0x17)
            };
            if !result.is_err_and(right) {
                verdict = verdict.and(result.and(Err(Fault {
                    esr: 0,
                    far: address as u64,
                    elr: 0,
                })));
            }
        }
    }
    check::report(format_args!("a table at {table:#x}, {name}"), verdict);
    mmu::set_gib(TEST_GIB, 0);
}

/// Blocks whose output address is beyond the IPA space.
fn leaves() {
    for bits in [39, 40, 43, 47] {
        mmu::set_gib(TEST_GIB, 1 << bits | mmu::NORMAL);
        let address = TEST_GIB * GIB + 0x1238;
        let right =
            |fault: Fault| fault.far == address as u64 && matches!(fault.status(), 0..=3 | 0x10);
        let fine = probe::read(Width::Word, address).is_err_and(right)
            && probe::write(Width::Word, address, 0).is_err_and(right)
            && probe::execute(address).is_err_and(right);
        check::holds(
            format_args!("a block at 1 << {bits}"),
            fine,
            "no fault, or another",
        );
    }
    mmu::set_gib(TEST_GIB, 0);
}

/// Code as a table: whatever its words mean as descriptors, they lead to memory of ours or to an abort.
fn own_memory_as_table(image: Range) {
    mmu::set_gib(TEST_GIB, (image.base as u64 & !0xfff) | TABLE);
    let mut verdict = Ok(());
    for index in 0..512 {
        let address = TEST_GIB * GIB + index * 0x20_0000;
        let result = probe::read(Width::Word, address).map(drop);
        if let Err(fault) = result
            && fault.class() != 0x25
        {
            verdict = Err(fault);
        }
    }
    check::report("code as a table", verdict);
    mmu::set_gib(TEST_GIB, 0);
    gic::wait();
}
