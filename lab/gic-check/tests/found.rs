//! x
use bulkhead_gic_check::{Operation, Register, Shape, run};
#[test]
fn rest() {
    let shape = Shape {
        v2: false,
        cpus: 3,
        list_registers: 2,
        spis: 32,
    };
    run(
        shape,
        &[
            Operation::Sgi {
                cpu: 0,
                group: 0,
                value: 10817555301767577600,
            },
            Operation::Acknowledge { cpu: 2, group: 0 },
            Operation::Sgi {
                cpu: 3,
                group: 0,
                value: 5422542026077896704,
            },
            Operation::Settle { first: 0 },
            Operation::Write {
                cpu: 0,
                of: 0,
                register: Register::SetPending,
                n: 1,
                value: 1,
                size: 4,
            },
        ],
    );
}
