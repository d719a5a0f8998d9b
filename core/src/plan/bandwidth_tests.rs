//! The rules about budgets of events that single fields do not show.

use bulkhead_abi::plan::*;

use super::Invariant;
use super::gppt_tests::direct;
use super::sample::Sample;
use super::tests::{verdict, with};

/// A plan in which the first vCPU has a budget and its pCPU this interrupt, as it is judged.
fn judged(pmu_intid: u32, change: impl FnOnce(&mut Sample)) -> Result<(), Invariant> {
    let mut sample = Sample::good_io();
    sample.board.event = 0x17;
    sample.vcpus[0].events = 1000;
    sample.vcpus[0].events_period = 1_000_000;
    sample.pcpus[usize::from(sample.vcpus[0].pcpu)].pmu_intid = pmu_intid;
    change(&mut sample);
    verdict(&sample.bytes()).map_err(|violation| violation.invariant)
}

const TAKEN: Result<(), Invariant> = Err(Invariant::PmuInterrupt);

#[test]
fn an_interrupt_of_monitors_is_nobody_elses() {
    let good = Sample::good_io();
    assert_eq!(judged(23, |_| {}), Ok(()));
    assert_eq!(judged(200, |_| {}), Ok(()));
    let board = &good.board;
    let lent = u32::from(good.irqs[0].pintid);
    for intid in [
        15,
        board.vtimer_intid,
        board.ptimer_intid,
        board.hyp_timer_intid,
        board.maintenance_intid,
        board.uart_intid,
        lent,
        32 + MAX_SPIS,
    ] {
        assert_eq!(judged(intid, |_| {}), TAKEN, "{intid}");
    }
    // A private one is each pCPU's own, an SPI is not.
    assert_eq!(judged(23, |s| s.pcpus[1].pmu_intid = 23), Ok(()));
    assert_eq!(judged(200, |s| s.pcpus[1].pmu_intid = 201), Ok(()));
    assert_eq!(judged(200, |s| s.pcpus[1].pmu_intid = 200), TAKEN);
}

#[test]
fn who_may_come_anywhere_is_counted_there() {
    // Fair, and moved by the balancer between two pCPUs.
    let moves = |s: &mut Sample| {
        s.irqs.clear();
        for vcpu in &mut s.vcpus {
            *vcpu = with(*vcpu, CpuPolicy::Fair, 1, (MAX_PERIOD, MAX_PERIOD));
        }
        let own = usize::from(s.vcpus[0].pcpu);
        s.vcpus[0].events = 1000;
        s.vcpus[0].events_period = 1_000_000;
        s.vcpus[0].pool |= 1 << (own ^ 1);
        own
    };
    let alone = judged(23, |s| {
        moves(s);
    });
    assert_eq!(alone, TAKEN);
    let both = judged(23, |s| {
        let own = moves(s);
        s.pcpus[own ^ 1].pmu_intid = 23;
    });
    assert_eq!(both, Ok(()));
}

#[test]
fn an_spi_by_which_pcpus_call_is_no_interrupt_of_monitors() {
    let judged = |pmu_intid| {
        let mut sample = direct();
        sample.board.event = 0x17;
        sample.vcpus[0].events = 1000;
        sample.vcpus[0].events_period = 1_000_000;
        sample.pcpus[usize::from(sample.vcpus[0].pcpu)].pmu_intid = pmu_intid;
        verdict(&sample.bytes()).map_err(|violation| violation.invariant)
    };
    assert_eq!(judged(200), Ok(()));
    let called = u32::from(direct().pcpus[1].call_spi);
    for intid in [called, called + 1] {
        assert_eq!(judged(intid), TAKEN, "{intid}");
    }
}

#[test]
fn a_switch_takes_longer_where_more_is_saved() {
    let server = |flags: u16, counts: bool| {
        let mut sample = Sample::good_io();
        let own = usize::from(sample.vcpus[0].pcpu);
        for vcpu in sample.vcpus.iter_mut() {
            if usize::from(vcpu.pcpu) == own {
                *vcpu = with(*vcpu, CpuPolicy::Server, 0, (100_000, 1_000_000));
            }
        }
        let here = sample
            .vcpus
            .iter()
            .filter(|vcpu| usize::from(vcpu.pcpu) == own);
        let others = here.count() as u64 - 1;
        // With the switches of most vCPUs it just fits.
        let drain = if sample.pcpus[own].service != 0 {
            20_000
        } else {
            0
        };
        sample.vcpus[0].budget = 990_000 - drain - others * 101_700;
        sample.vms[0].flags |= flags;
        if counts {
            sample.pcpus[own].pmu_intid = 23;
        }
        verdict(&sample.bytes()).map_err(|violation| violation.invariant)
    };
    assert_eq!(server(0, false), Ok(()));
    let late = Err(Invariant::PcpuSchedulable);
    assert_eq!(server(VM_PMU, true), late);
    assert_eq!(server(VM_DEBUG, false), late);
}
