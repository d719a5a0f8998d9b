//! Claim: whatever a guest asks for, it gets an answer, an injected fault or nothing; it never brings
//! EL2 down, and its own interrupts work again once it puts things right.
//!
//! Random calls by HVC and SMC; reads and writes of every offset of the emulated devices, in all sizes
//! and by instructions that leave no syndrome; random register writes; storms of WFI, WFE and SGIs.
#![no_std]
#![no_main]

use bulkhead_guests::gic::CTLR;
use bulkhead_guests::gic::v3::{self, SGI_FRAME};
use bulkhead_guests::probe::{self, Fault, Width};
use bulkhead_guests::random::Random;
use bulkhead_guests::{Board, alive, calls, check, gic, guest, mmu, println, sysreg, timer, uart};

guest!(main = main, irq = alive::on_irq);

const CALLS: u32 = 6000;
const RANDOM_WRITES: u32 = 5000;
const STORM: u32 = 2000;
const SEED: u64 = 0xb01d_face;

fn main(board: &'static Board) {
    let mut random = Random::new(SEED);
    mmu::execute_everywhere();
    alive::check("at the start");
    random_calls(&mut random);
    alive::check("after the calls");
    let frames = [
        ("GICD", board.gicd.base, 0x1_0000),
        ("GICR", board.gicr.base, 0x2_0000),
        ("GICC", board.gicc.base, 0x2000),
        ("PL011", uart::base(), 0x1000),
    ];
    let frames = frames.into_iter().filter(|(_, base, _)| *base != 0);
    for (name, base, size) in frames.clone() {
        reads(name, base, size);
        writes(name, base, size, &mut random);
        odd_instructions(name, base);
        uart::init();
        alive::check("after a device");
    }
    random_writes(board, &mut random);
    alive::check("after random register writes");
    sleep_storm();
    sgi_storm();
    alive::check("after the storms");
    // Last, because an emulator without a hypervisor may run such instructions and hang.
    frames.for_each(|(name, base, size)| fetches(name, base, size));
    alive::check("at the end");
    check::done();
}

fn random_calls(random: &mut Random) {
    const HVC: u32 = 0xd400_0002;
    const SMC: u32 = 0xd400_0003;
    let (mut lost, mut refused) = (0u32, Ok(()));
    for _ in 0..CALLS {
        let mut x: [u64; 8] = core::array::from_fn(|_| random.draw());
        x[0] = random.draw() << 32 | u64::from(calls::function(random));
        let before = x;
        let conduit = if random.below(3) == 0 { SMC } else { HVC };
        let immediate = if random.below(4) == 0 {
            random.below(1 << 16) as u32
        } else {
            0
        };
        match probe::code(&[conduit | immediate << 5], &mut x) {
            // SMCCC 1.1: x4 and above come back as they were.
            Ok(()) if x[4..] == before[4..] => {}
            Ok(()) => lost += 1,
            // Without EL2 and EL3 these instructions are undefined.
            Err(fault) if fault.is_undefined() => {}
            Err(fault) => refused = refused.and(Err(fault)),
        }
    }
    check::report(format_args!("{CALLS} random calls"), refused);
    check::equal("registers kept by random calls", lost.into(), 0);
}

/// A device access may work, or be answered by an external abort, an alignment fault, a fault of an
/// exclusive access, or (LDTR, STTR) our own tables, which give EL0 nothing; by nothing else.
fn is_sane(result: Result<(), Fault>) -> Result<(), Fault> {
    match result {
        Err(fault)
            if fault.class() != 0x25
                || !matches!(fault.status(), 0x0d | 0x0e | 0x10 | 0x21 | 0x35) =>
        {
            Err(fault)
        }
        _ => Ok(()),
    }
}

fn reads(name: &str, base: usize, size: usize) {
    let mut verdict = Ok(());
    for width in Width::ALL {
        for offset in (0..size).step_by(width.bytes()) {
            verdict = verdict.and(is_sane(probe::read(width, base + offset).map(drop)));
        }
    }
    for offset in (1..size).step_by(0x101) {
        for width in Width::ALL {
            verdict = verdict.and(is_sane(probe::read(width, base + offset).map(drop)));
        }
    }
    check::report(format_args!("{name}: reads of every offset"), verdict);
}

/// Writes every offset, but does not print rubbish or write the data register of the console.
fn writes(name: &str, base: usize, size: usize, random: &mut Random) {
    let mut verdict = Ok(());
    for width in Width::ALL {
        for offset in (0..size).step_by(width.bytes()) {
            if base != uart::base() || offset >= 8 {
                let value = random.draw();
                verdict = verdict.and(is_sane(probe::write(width, base + offset, value)));
            }
        }
    }
    uart::init();
    check::report(format_args!("{name}: writes of every offset"), verdict);
}

/// Accesses that come to EL2 without a syndrome that says what they were, and others that are rare.
const ODD: [(&str, u32); 34] = [
    ("ldp x2, x3, [x0]", 0xa940_0c02),
    ("stp x2, x3, [x0]", 0xa900_0c02),
    ("ldr x2, [x0], #8", 0xf840_8402),
    ("str x2, [x0, #8]!", 0xf800_8c02),
    ("ldrb w2, [x0], #1", 0x3840_1402),
    ("strh w2, [x0], #2", 0x7800_2402),
    ("ldp w2, w3, [x0], #8", 0x28c1_0c02),
    ("stp w2, w3, [x0, #-8]!", 0x29bf_0c02),
    ("ldnp x2, x3, [x0]", 0xa840_0c02),
    ("ldxr w2, [x0]", 0x885f_7c02),
    ("stxr w3, w2, [x0]", 0x8803_7c02),
    ("ldxp x2, x3, [x0]", 0xc87f_0c02),
    ("ldaxr x2, [x0]", 0xc85f_fc02),
    ("ldar w2, [x0]", 0x88df_fc02),
    ("stlr w2, [x0]", 0x889f_fc02),
    ("ldrsw x2, [x0]", 0xb980_0002),
    ("ldrsb x2, [x0]", 0x3980_0002),
    ("ldrsh w2, [x0]", 0x79c0_0002),
    ("ldur x2, [x0, #1]", 0xf840_1002),
    ("stur w2, [x0, #3]", 0xb800_3002),
    ("ldtr w2, [x0]", 0xb840_0802),
    ("sttr w2, [x0]", 0xb800_0802),
    ("prfm pldl1keep, [x0]", 0xf980_0000),
    ("ldr wzr, [x0]", 0xb940_001f),
    ("str wzr, [x0]", 0xb900_001f),
    ("dc zva, x0", 0xd50b_7420),
    ("dc civac, x0", 0xd50b_7e20),
    ("dc cvac, x0", 0xd50b_7a20),
    ("dc ivac, x0", 0xd508_7620),
    ("ic ivau, x0", 0xd50b_7520),
    ("at s1e1r, x0", 0xd508_7800),
    ("cas w2, w3, [x0]", 0x88a2_7c03),
    ("swp w2, w3, [x0]", 0xb822_8003),
    ("ldadd w2, w3, [x0]", 0xb822_0003),
];

fn odd_instructions(name: &str, base: usize) {
    let mut wrong = 0;
    for (text, instruction) in ODD {
        // A register that may be written without harm: GICD_STATUSR or GICR_STATUSR, UARTILPR.
        let address = (base + 0x20) as u64;
        let mut x = [address, 0, 0, 0, 0, 0, 0, 0];
        match probe::code(&[instruction], &mut x) {
            // Atomics that this CPU does not have are undefined.
            Err(fault) if fault.is_undefined() => {}
            Err(fault) if is_sane(Err(fault)).is_err() => {
                wrong += 1;
                println!("  {name}: {text}: {fault}");
            }
            Err(_) if x[0] != address => {
                wrong += 1;
                println!(
                    "  {name}: {text}: faulted, and yet changed its base to {:#x}",
                    x[0]
                );
            }
            _ => {}
        }
    }
    let why = format_args!("{wrong} not as they should be");
    check::holds(format_args!("{name}: rare instructions"), wrong == 0, why);
}

fn fetches(name: &str, base: usize, size: usize) {
    let mut verdict = Ok(());
    for address in [base, base + 0x100, base + size - 4] {
        verdict = verdict.and(match probe::execute(address) {
            Err(fault) if fault.is_fetch_external_abort() => Ok(()),
            Err(fault) => Err(Some(fault)),
            Ok(()) => Err(None),
        });
    }
    let name = format_args!("{name}: instruction fetch");
    match verdict {
        Ok(()) => check::holds(name, true, ""),
        Err(Some(fault)) => check::holds(name, false, fault),
        Err(None) => check::holds(name, false, "no fault"),
    }
}

fn random_writes(board: &Board, random: &mut Random) {
    let others = if gic::version() == 3 {
        [
            (v3::redistributor(), 0x100),
            (v3::redistributor() + SGI_FRAME, 0x1000),
        ]
    } else {
        [(board.gicc.base, 0x100), (board.gicc.base + 0x1000, 0x100)]
    };
    let frames = [
        (gic::distributor(), 0x1000),
        (gic::distributor() + 0x6000, 0x2000),
        others[0],
        others[1],
    ];
    let mut verdict = Ok(());
    for _ in 0..RANDOM_WRITES {
        let (base, size) = frames[random.below(4) as usize];
        let address = base + random.below(size / 4) as usize * 4;
        verdict = verdict.and(is_sane(probe::write(Width::Word, address, random.draw())));
    }
    check::report(format_args!("{RANDOM_WRITES} random GIC writes"), verdict);
    // Leave nothing pending that the next test would take for its own.
    verdict = is_sane(probe::write(Width::Word, gic::distributor() + CTLR, 0));
    check::report("GICD_CTLR after random writes", verdict);
}

/// Sleeps that cannot last: an interrupt is pending, but masked; an event is set.
fn sleep_storm() {
    gic::init();
    gic::enable(timer::INTID);
    timer::arm(timer::now());
    for _ in 0..STORM {
        sysreg::wfi();
    }
    for _ in 0..STORM {
        sysreg::sev();
        sysreg::wfe();
    }
    timer::disarm();
    check::holds("WFI and WFE storm", true, "");
}

fn sgi_storm() {
    gic::init();
    (0..16).for_each(gic::enable);
    alive::take_sgis();
    // Masked: they pile up. Open: each is taken at once.
    for n in 0..STORM {
        gic::send_to_self(n % 16);
    }
    sysreg::irq_on();
    sysreg::isb();
    for n in 0..STORM {
        gic::send_to_self(n % 16);
    }
    let complete = alive::wait(|| gic::pending_sgis() == 0);
    sysreg::irq_off();
    check::equal("SGI storm", alive::take_sgis().into(), 0xffff);
    check::holds(
        "nothing left of the SGI storm",
        complete,
        "SGIs are still pending",
    );
}
