//! What the filter promises, on a board of arrays ([`board`]).

mod board;
mod hostile;
mod modes;
mod registers;

use super::{Cpus, Filter, Intids, View};
use crate::vgic::{VCPUS, Version};

/// INTIDs of the VM in most tests: PPI 30 besides the timer; SPIs 33, 34, 47 and 95.
const GIVEN: Intids = [
    1 << 30,
    1 << 1 | 1 << 2 | 1 << 15,
    1 << 31,
    0,
    0,
    0,
    0,
    0,
    0,
];

/// pCPUs of two vCPUs; this one runs vCPU `number`.
fn cpus(version: Version, count: usize, number: usize) -> Cpus {
    let mut names = [0; VCPUS];
    let there: [u64; 2] = match version {
        Version::V3 => [0x1_0003, 0x2],
        Version::V2 => [0x10, 0x02],
    };
    for (name, own) in names.iter_mut().zip(there) {
        *name = own;
    }
    Cpus {
        count,
        number,
        names,
    }
}

fn filter(version: Version, view: View, count: usize) -> Filter<(Version, View)> {
    Filter::new((version, view), GIVEN, cpus(version, count, 0))
}

/// Every kind of filter: version and view as the modes have them, one vCPU and two.
fn kinds() -> impl Iterator<Item = (Version, View, usize)> {
    [
        (Version::V3, View::Upper),
        (Version::V3, View::Plain),
        (Version::V2, View::Plain),
    ]
    .into_iter()
    .flat_map(|(version, view)| [1, 2].map(|count| (version, view, count)))
}

/// INTIDs that are the VM's with [`GIVEN`].
fn is_of_vm(intid: usize) -> bool {
    matches!(intid, 0..8 | 27 | 30 | 33 | 34 | 47 | 95)
}
