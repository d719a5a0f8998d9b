//! Claim: calls of the SMC Calling Convention and for random numbers do what DEN0028 and DEN0098
//! say, by HVC and by SMC; the firmware's events are not for a guest.
#![no_std]
#![no_main]

use bulkhead_guests::{Board, check, guest, power};

guest!(main = main);

const SMCCC_VERSION: u32 = 0x8000_0000;
const ARCH_FEATURES: u32 = 0x8000_0001;
const WORKAROUNDS: [u32; 3] = [0x8000_8000, 0x8000_7fff, 0x8000_3fff];
const TRNG_VERSION: u32 = 0x8400_0050;
const TRNG_FEATURES: u32 = 0x8400_0051;
const TRNG_GET_UUID: u32 = 0x8400_0052;
const TRNG_RND32: u32 = 0x8400_0053;
const TRNG_RND64: u32 = 0xc400_0053;
/// SDEI (DEN0054C, 5.1), which is for whoever has the board: version, register, complete, complete and resume, unmask, signal, reset.
const EVENTS: [u32; 7] = [
    0xc400_0020,
    0xc400_0021,
    0xc400_0025,
    0xc400_0026,
    0xc400_002c,
    0xc400_002f,
    0xc400_0031,
];
const NOT_SUPPORTED: u64 = -1i64 as u64;
const INVALID: u64 = -2i64 as u64;

type Conduit = fn(u32, [u64; 7]) -> [u64; 4];

fn main(_board: &'static Board) {
    let conduits: [(&str, Conduit); 2] = [("HVC", power::hvc), ("SMC", power::smc)];
    for (name, call) in conduits {
        convention(name, call);
        random(name, call);
        for function in EVENTS {
            check::equal(
                format_args!("{function:#x} by {name}"),
                one(call, function, 0),
                NOT_SUPPORTED,
            );
        }
    }
    check::done();
}

fn one(call: Conduit, function: u32, x1: u64) -> u64 {
    call(function, [x1, 0, 0, 0, 0, 0, 0])[0]
}

fn convention(name: &str, call: Conduit) {
    check::equal(
        format_args!("SMCCC_VERSION by {name}"),
        one(call, SMCCC_VERSION, 0),
        0x1_0002,
    );
    for (function, expected) in [(SMCCC_VERSION, 0), (ARCH_FEATURES, 0), (0x8000_0002, -1)] {
        let seen = one(call, ARCH_FEATURES, function.into()) as i32;
        check::holds(
            format_args!("SMCCC_ARCH_FEATURES {function:#x} by {name}"),
            seen == expected,
            format_args!("{seen}"),
        );
    }
    for function in WORKAROUNDS {
        let offered = one(call, ARCH_FEATURES, function.into()) as i32;
        check::holds(
            format_args!("SMCCC_ARCH_FEATURES {function:#x} by {name}"),
            (-2..=1).contains(&offered),
            format_args!("{offered}"),
        );
        // One that is offered returns and leaves the rest alone; the answer itself means nothing.
        let before = [function.into(), 2, 3, 4, 5, 6, 7];
        let answers = call(function, before);
        check::holds(
            format_args!("{function:#x} by {name}"),
            offered >= 0 || answers[0] == NOT_SUPPORTED,
            format_args!("{answers:x?}"),
        );
    }
}

fn random(name: &str, call: Conduit) {
    check::equal(
        format_args!("TRNG_VERSION by {name}"),
        one(call, TRNG_VERSION, 0),
        0x1_0000,
    );
    for function in [
        TRNG_VERSION,
        TRNG_FEATURES,
        TRNG_GET_UUID,
        TRNG_RND32,
        TRNG_RND64,
    ] {
        check::equal(
            format_args!("TRNG_FEATURES {function:#x} by {name}"),
            one(call, TRNG_FEATURES, function.into()),
            0,
        );
    }
    let uuid = call(TRNG_GET_UUID, [0; 7]);
    check::holds(
        format_args!("TRNG_GET_UUID by {name}"),
        uuid.iter().all(|word| *word < 0xffff_ffff) && uuid != [0; 4],
        format_args!("{uuid:x?}"),
    );
    for (function, bits) in [
        (TRNG_RND32, 0),
        (TRNG_RND32, 97),
        (TRNG_RND64, 0),
        (TRNG_RND64, 193),
    ] {
        check::equal(
            format_args!("{bits} bits of {function:#x} by {name}"),
            one(call, function, bits),
            INVALID,
        );
    }
    let [x0, x1, x2, x3] = call(TRNG_RND64, [65, 0, 0, 0, 0, 0, 0]);
    check::holds(
        format_args!("65 bits by {name}"),
        x0 == 0 && x1 == 0 && x2 <= 1 && x3 != 0,
        format_args!("{x0:x} {x1:x} {x2:x} {x3:x}"),
    );
    let first = call(TRNG_RND64, [192, 0, 0, 0, 0, 0, 0]);
    let second = call(TRNG_RND64, [192, 0, 0, 0, 0, 0, 0]);
    let differ = first.iter().zip(&second).skip(1).all(|(a, b)| a != b);
    check::holds(
        format_args!("192 bits, and others the next time, by {name}"),
        first[0] == 0 && second[0] == 0 && differ,
        format_args!("{first:x?} {second:x?}"),
    );
}
