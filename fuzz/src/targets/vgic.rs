//! The vGIC, on several vCPUs and with either architecture: beside the model of the GIC for a guest that keeps to what
//! is defined, and alone for one that does not.

use bulkhead_gic_check::{Operation, Register, Shape, run as run_beside_model, run_wild};

use crate::Target;
use crate::engine::Input;

pub const TARGET: Target = Target {
    name: "vgic",
    seeds,
    words: &[],
    run,
};

/// Operations in one input.
const MOST: usize = 200;

/// The shape, then 8 bytes for each operation.
fn seeds() -> Vec<Vec<u8>> {
    let all = |shape: [u8; 4]| {
        let mut bytes = shape.to_vec();
        for kind in 0..16_u8 {
            bytes.extend([kind, kind % 3, kind, 1, 3, 0, 1, 0]);
            bytes.extend([8, kind % 3, 1, 0, 0, 0, 0, 0]);
        }
        bytes
    };
    vec![
        all([0, 1, 1, 0]),
        all([1, 2, 0, 0]),
        all([2, 3, 1, 1]),
        all([3, 1, 2, 1]),
    ]
}

fn operation(input: &mut Input) -> Operation {
    let kind = input.u8();
    let cpu = usize::from(input.u8());
    let (a, b) = (input.u8(), input.u8());
    let value = input.u32();
    let on = value & 1 != 0;
    match kind % 17 {
        0..=2 => Operation::Write {
            cpu: cpu & 7,
            of: cpu >> 4,
            register: Register::ALL[usize::from(a) % Register::ALL.len()],
            n: u32::from(b) | u32::from(kind & 0x80) << 8,
            value,
            size: [4, 1, 8, 4][usize::from(kind >> 5) & 3],
        },
        3 => Operation::Sgi {
            cpu,
            group: usize::from(a & 1),
            value: value.into(),
        },
        4 => Operation::Sgi {
            cpu,
            group: 1,
            value: u64::from(a & 15) << 24 | u64::from(b) | u64::from(value) << 32,
        },
        5 => Operation::Line {
            seen: (b & 1 != 0).then_some(cpu),
            intid: a.into(),
            up: on,
        },
        6 => Operation::Post { intid: a.into() },
        7 => Operation::Signal {
            cpu,
            link: a.into(),
            up: on,
        },
        8 => Operation::Acknowledge {
            cpu,
            group: usize::from(a & 1),
        },
        9 => Operation::End { cpu },
        10 => Operation::Deactivate {
            cpu,
            which: a.into(),
        },
        11 => Operation::Mask { cpu, value: a },
        12 => Operation::Point {
            cpu,
            group: usize::from(b & 1),
            value: a,
        },
        13 => Operation::Groups {
            cpu,
            enabled: [a & 1 != 0, a & 2 != 0],
        },
        14 => Operation::SplitEnd { cpu, split: on },
        15 if on => Operation::Deliver { cpu },
        15 => Operation::Settle { first: cpu },
        _ if b & 1 != 0 => Operation::Power { cpu, on },
        _ => Operation::Wild {
            cpu,
            deactivate: on,
            intid: a.into(),
        },
    }
}

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let kind = input.u8();
    let shape = Shape {
        v2: kind & 1 != 0,
        cpus: 1 + input.below(4),
        list_registers: [2, 4, 16][input.below(3)],
        spis: 32 * (1 + input.below(2) as u32),
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
