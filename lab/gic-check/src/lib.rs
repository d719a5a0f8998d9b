//! The vGIC of [`bulkhead_core`] beside the model of [`bulkhead_gic_model`]: both get the same operations,
//! and whenever all messages between vCPUs have been delivered both must give the same answers.
//!
//! Between those points messages and physical interrupts wait, for as long and in the order that the
//! operations say. What a guest acknowledges and ends comes at such points only: what it would get
//! earlier depends on a race that the architecture leaves open.

mod board;
mod machine;
mod operation;
mod port;

pub use machine::{Machine, Shape};
pub use operation::{Operation, Register};

/// Runs operations on a machine of this shape and compares at the end.
///
/// # Panics
///
/// The vGIC and the model differ, or the vGIC breaks a rule of its hardware.
pub fn run(shape: Shape, operations: &[Operation]) {
    run_on(shape, operations, false);
}

/// The same for a guest that does not keep to what the architecture defines: nothing is compared, but the vGIC keeps to the
/// rules of its hardware, gives no interrupt to two vCPUs, and comes to rest.
///
/// # Panics
///
/// It does not.
pub fn run_wild(shape: Shape, operations: &[Operation]) {
    run_on(shape, operations, true);
}

fn run_on(shape: Shape, operations: &[Operation], wild: bool) {
    if shape.v2 {
        run_version::<true>(shape, operations, wild);
    } else {
        run_version::<false>(shape, operations, wild);
    }
}

fn run_version<const V2: bool>(shape: Shape, operations: &[Operation], wild: bool) {
    let mut machine = Machine::<V2>::new(shape);
    if wild {
        machine.go_wild();
    }
    for operation in operations {
        machine.apply(operation);
    }
    machine.compare();
}
