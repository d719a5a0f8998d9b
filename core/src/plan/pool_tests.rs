//! Where vCPUs may run.

use std::vec::Vec;

use super::Plan;
use super::sample::Sample;
use super::tests::shared_pcpu;

/// The pool and the pCPUs on which it may run, of each vCPU.
fn places(sample: &Sample) -> Vec<(u32, u32)> {
    let bytes = sample.bytes();
    let plan = Plan::open(&bytes).expect("sound");
    let rows = plan.vcpus.iter();
    rows.map(|row| (plan.pool_of(row), plan.may_run_on(row)))
        .collect()
}

#[test]
fn a_vcpu_may_run_in_its_pool_or_where_it_stays() {
    // Pinned: each on its own.
    let mut sample = Sample::good();
    sample.irqs.clear();
    let own: Vec<_> = sample.vcpus.iter().map(|row| (0, 1 << row.pcpu)).collect();
    assert_eq!(places(&sample), own);
    // A server stays, whatever stands there; a fair one has its pool.
    let mut sample = shared_pcpu();
    sample.irqs.clear();
    sample.vcpus[0].pool = 0b110;
    sample.vcpus[2].pool = 0b1011;
    assert_eq!(places(&sample), [(0, 1), (1, 1), (0b1011, 0b1011)]);
    // Interrupts of the board keep a VM where they are routed.
    let vm = sample.vcpus[2].vm;
    sample.irqs = Sample::good().irqs;
    sample.irqs.truncate(1);
    sample.irqs[0].vm = vm;
    assert_eq!(places(&sample)[2], (0, 1));
}
