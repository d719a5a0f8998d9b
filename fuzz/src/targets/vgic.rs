//! The vGIC, on several vCPUs and with either architecture: beside the model of the GIC for a guest that keeps to what
//! is defined, and alone for one that does not.

use bulkhead_gic_check::{Operation, Register, Shape, run as run_beside_model, run_wild};

use crate::Target;
use crate::engine::{Input, Random};

/// This target.
pub const TARGET: Target = Target {
    name: "vgic",
    seeds,
    words: &[],
    run,
};

/// Operations in one input.
const MOST: usize = 200;
/// Seeds: of four kinds, as [`run`] tells them apart.
const SEEDS: u8 = 48;
/// Operations in a seed: as many as some defects need to show at all.
const LONG: usize = 120;

/// Eight bytes for the shape, then eight for each operation: mutations of aligned numbers leave the rest as it is.
fn seeds() -> Vec<Vec<u8>> {
    let seed = |kind: u8| {
        let mut random = Random::new(kind.into());
        let mut bytes: Vec<u8> = (0..=LONG)
            .flat_map(|_| random.number().to_le_bytes())
            .collect();
        bytes[0] = kind;
        bytes
    };
    (0..SEEDS).map(seed).collect()
}

/// Reads an operation of a guest or a device: a kind (frequent operations have several) and arguments.
fn operation(input: &mut Input) -> Operation {
    let [kind, who, a, b] = input.bytes();
    let value = input.u32();
    let cpu = usize::from(who & 7);
    let on = value & 1 != 0;
    match kind % 64 {
        0..=7 => write(kind >> 6, who, a, b, value),
        8..=12 => Operation::Sgi {
            cpu,
            group: usize::from(a & 7 != 0),
            // A target or two; with a GICv2, the same bits as a GICD_SGIR.
            value: u64::from(a >> 4) << 24 | u64::from(b) << 16 | u64::from(b & 15),
        },
        13 => Operation::Sgi {
            cpu,
            group: 1,
            value: u64::from(value) << 24 | u64::from(a),
        },
        14..=19 => Operation::Line {
            seen: (b & 1 != 0).then_some(cpu),
            intid: a.into(),
            up: on,
        },
        20..=22 => Operation::Post { intid: a.into() },
        23..=27 => Operation::Signal {
            cpu,
            link: a.into(),
            up: on,
        },
        28..=38 => Operation::Acknowledge {
            cpu,
            group: usize::from(a & 1),
        },
        39..=46 => Operation::End { cpu },
        47..=49 => Operation::Deactivate {
            cpu,
            which: a.into(),
        },
        50 => Operation::Mask { cpu, value: a },
        51 => Operation::Point {
            cpu,
            group: usize::from(b & 1),
            value: a,
        },
        52 => Operation::Groups {
            cpu,
            enabled: [a & 1 != 0, a & 2 != 0],
        },
        53 => Operation::SplitEnd { cpu, split: on },
        54..=58 => Operation::Deliver { cpu },
        59..=61 => Operation::Settle { first: cpu },
        62 => Operation::Power { cpu, on },
        _ => Operation::Wild {
            cpu,
            deactivate: on,
            intid: a.into(),
        },
    }
}

/// A write to a register, of one bit for the most part, seldom of an unusual size. The distributor mostly stays on.
fn write(style: u8, who: u8, a: u8, b: u8, value: u32) -> Operation {
    let register = Register::ALL[usize::from(a) % Register::ALL.len()];
    let size = if style == 3 {
        [1, 8][usize::from(b >> 7)]
    } else {
        4
    };
    let value = match register {
        Register::Control if value & 4 == 0 => value | 3,
        Register::Route if size == 4 => value % 9,
        _ if style < 2 => 1 << (value % 32),
        _ => value,
    };
    Operation::Write {
        cpu: usize::from(who & 7),
        of: usize::from(who >> 4),
        register,
        // The upper half is for registers by their offset.
        n: u32::from(who) << 8 | u32::from(b),
        value,
        size,
    }
}

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let [kind, cpus, registers, words, ..] = input.bytes::<8>();
    let shape = Shape {
        v2: kind & 1 != 0,
        cpus: 1 + usize::from(cpus) % 4,
        list_registers: [2, 4, 16][usize::from(registers) % 3],
        spis: 32 * (1 + u32::from(words) % 2),
    };
    let mut operations = Vec::new();
    while !input.is_empty() && operations.len() < MOST {
        operations.push(operation(&mut input));
    }
    if kind & 2 == 0 {
        run_beside_model(shape, &operations);
    } else {
        run_wild(shape, &operations);
    }
}
