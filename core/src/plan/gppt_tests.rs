//! The rules for GPPT VMs.

use bulkhead_abi::plan::*;

use super::sample::Sample;
use super::tests::verdict;
use super::violation::Invariant;

#[test]
fn a_vm_of_one_vcpu_may_take_its_interrupts_itself() {
    let mut sample = Sample::good();
    sample.doorbells.clear();
    let vm = 1;
    sample.vms[vm].interrupts = InterruptMode::GpptRecoverable as u16;
    let built = |sample: &Sample| verdict(&sample.bytes()).map_err(|violation| violation.invariant);
    assert_eq!(
        built(&sample),
        Err(Invariant::VmInterruptsBuilt),
        "its timer"
    );
    sample.vms[vm].flags |= VM_OWN_PTIMER;
    let own = sample
        .irqs
        .iter()
        .position(|irq| usize::from(irq.vm) == vm)
        .expect("one");
    sample.irqs[own].vintid = sample.irqs[own].pintid;
    assert_eq!(built(&sample), Ok(()));
    sample.vms[vm].interrupts = InterruptMode::GpptPmrTrapped as u16;
    assert_eq!(built(&sample), Ok(()));
    sample.irqs[own].vintid += 1;
    assert_eq!(built(&sample), Err(Invariant::VmInterruptsBuilt), "INTIDs");
}

/// EL2 must not need an interrupt on a pCPU that the firmware reclaims.
#[test]
fn a_vm_whose_pcpu_the_firmware_gets_back_has_a_quiet_pcpu() {
    let mut sample = Sample::good();
    sample.doorbells.clear();
    let vm = 1;
    sample.vms[vm].flags |= VM_OWN_PTIMER;
    sample.vms[vm].reclaim = Reclaim::Sdei as u16;
    for irq in &mut sample.irqs {
        if usize::from(irq.vm) == vm {
            irq.vintid = irq.pintid;
        }
    }
    let built = |sample: &Sample| verdict(&sample.bytes()).map_err(|violation| violation.invariant);
    assert_eq!(built(&sample), Err(Invariant::VmReclaim), "with a vGIC");
    let own = sample
        .vcpus
        .iter()
        .find(|vcpu| usize::from(vcpu.vm) == vm)
        .expect("one");
    let pcpu = usize::from(own.pcpu);
    for mode in [
        InterruptMode::GpptRecoverable,
        InterruptMode::GpptPmrTrapped,
    ] {
        sample.vms[vm].interrupts = mode as u16;
        for row in 0..sample.pcpus.len() {
            let mut there = sample.clone();
            for (other, pcpu) in there.pcpus.iter_mut().enumerate() {
                pcpu.service = u16::from(row == other);
            }
            let noisy = Err(Invariant::VmInterruptsBuilt);
            assert_eq!(built(&there), if row == pcpu { noisy } else { Ok(()) });
        }
    }
}

#[test]
fn on_a_gicv2_it_has_the_cpu_interface_and_a_quiet_pcpu() {
    let mut sample = Sample::good_v2();
    sample.doorbells.clear();
    let vm = 1;
    let built = |sample: &Sample| verdict(&sample.bytes()).map_err(|violation| violation.invariant);
    sample.vms[vm].interrupts = InterruptMode::GpptV2 as u16;
    sample.vms[vm].flags |= VM_OWN_PTIMER;
    for irq in &mut sample.irqs {
        if usize::from(irq.vm) == vm {
            irq.vintid = irq.pintid;
        }
    }
    sample.vms[vm].reclaim = Reclaim::Cooperative as u16;
    assert_eq!(
        built(&sample),
        Err(Invariant::RegionGicv),
        "the virtual one"
    );
    let interface = |region: &&mut Region| {
        usize::from(region.vm) == vm && region.kind == RegionKind::Gicv as u16
    };
    let region = sample.regions.iter_mut().find(interface).expect("one");
    region.pa = sample.board.gicc;
    assert_eq!(built(&sample), Ok(()));
    sample.vms[vm].reclaim = Reclaim::Guaranteed as u16;
    assert_eq!(built(&sample), Ok(()));
    sample.vms[vm].reclaim = Reclaim::Always as u16;
    assert_eq!(built(&sample), Err(Invariant::VmReclaim));
    sample.vms[vm].reclaim = Reclaim::Cooperative as u16;
    let mut noisy = sample.clone();
    let own = noisy.vcpus.iter().find(|vcpu| usize::from(vcpu.vm) == vm);
    let pcpu = usize::from(own.expect("one").pcpu);
    for (row, other) in noisy.pcpus.iter_mut().enumerate() {
        other.service = u16::from(row == pcpu);
    }
    assert_eq!(
        built(&noisy),
        Err(Invariant::VmInterruptsBuilt),
        "the console"
    );
    let watchdog = sample
        .devices
        .iter()
        .find(|device| device.kind == DeviceKind::Watchdog as u16);
    let mut watched = sample.clone();
    watched.devices.push(Device {
        vm: vm as u16,
        ..*watchdog.expect("one")
    });
    assert_eq!(
        built(&watched),
        Err(Invariant::VmInterruptsBuilt),
        "the watchdog"
    );
}

/// Gives a GPPT VM SPIs of the board for its doorbells.
fn hear(sample: &mut Sample, vm: usize) {
    sample.vms[vm].spis = 64;
    for (row, intid) in [(0, 94), (1, 95)] {
        sample.doorbells[row].vintid = intid;
        sample.doorbells[row].pintid = intid;
        sample.irqs.push(Irq {
            vm: vm as u16,
            vintid: intid,
            pintid: intid,
            flags: IRQ_EDGE | IRQ_DOORBELL,
        });
    }
}

#[test]
fn it_hears_doorbells_by_spis_of_the_board_that_are_theirs() {
    let mut sample = Sample::good();
    let vm = 1;
    sample.vms[vm].interrupts = InterruptMode::GpptRecoverable as u16;
    sample.vms[vm].flags |= VM_OWN_PTIMER;
    for irq in &mut sample.irqs {
        if usize::from(irq.vm) == vm {
            irq.vintid = irq.pintid;
        }
    }
    let found = |sample: &Sample| verdict(&sample.bytes()).map_err(|violation| violation.invariant);
    assert_eq!(
        found(&sample),
        Err(Invariant::DoorbellPhysical),
        "none of the board's"
    );
    hear(&mut sample, vm);
    assert_eq!(found(&sample), Ok(()));
    let broken = |change: &dyn Fn(&mut Sample)| {
        let mut sample = sample.clone();
        change(&mut sample);
        found(&sample)
    };
    let physical = Err(Invariant::DoorbellPhysical);
    let last = sample.irqs.len() - 1;
    assert_eq!(
        broken(&|sample| sample.irqs[last].flags = IRQ_EDGE),
        physical,
        "a device's"
    );
    assert_eq!(
        broken(&|sample| sample.doorbells[1].vintid = 93),
        physical,
        "another number"
    );
    assert_eq!(
        broken(&|sample| sample.doorbells[1].pintid = 0),
        physical,
        "nobody's"
    );
    assert_eq!(
        broken(&|sample| {
            let (intid, pintid) = (sample.doorbells[0].vintid, sample.doorbells[0].pintid);
            sample.doorbells[1].vintid = intid;
            sample.doorbells[1].pintid = pintid;
        }),
        Err(Invariant::VintidShared),
        "another one's"
    );
    assert_eq!(
        broken(&|sample| {
            let own = sample.irqs[0].pintid;
            sample.doorbells[1].vintid = own;
            sample.doorbells[1].pintid = own;
        }),
        physical,
        "another VM's"
    );
}

/// A plan in which a VM sends SGIs that EL2 does not trap.
pub(super) fn direct() -> Sample {
    let mut sample = Sample::good();
    let vm = 1;
    sample.vms[vm].interrupts = InterruptMode::GpptPmrDirect as u16;
    sample.vms[vm].reclaim = Reclaim::Cooperative as u16;
    sample.vms[vm].flags |= VM_OWN_PTIMER;
    for irq in &mut sample.irqs {
        if usize::from(irq.vm) == vm {
            irq.vintid = irq.pintid;
        }
    }
    hear(&mut sample, vm);
    for (n, pcpu) in (0..).zip(&mut sample.pcpus) {
        pcpu.call_spi = 280 - 2 * n;
    }
    sample
}

/// Where EL2 shares Group 1 with a VM, the pCPU of that VM is called by SPIs, and no other pCPU is.
#[test]
fn the_pcpu_of_a_vm_that_shares_group_1_is_called_by_spis() {
    for mode in [
        InterruptMode::GpptRevocable,
        InterruptMode::GpptRevocableTrapped,
    ] {
        shares_group_1(mode);
    }
    let mut none = direct();
    none.vms[1].interrupts = InterruptMode::GpptRevocableTrapped as u16 + 1;
    let none = verdict(&none.bytes()).map_err(|violation| violation.invariant);
    assert_eq!(none, Err(Invariant::VmInterrupts));
}

fn shares_group_1(mode: InterruptMode) {
    let built = |sample: &Sample| verdict(&sample.bytes()).map_err(|violation| violation.invariant);
    let mut good = direct();
    good.vms[1].interrupts = mode as u16;
    let own = good.vcpus.iter().find(|vcpu| vcpu.vm == 1);
    let pcpu = usize::from(own.expect("one").pcpu);
    for (row, other) in good.pcpus.iter_mut().enumerate() {
        if row != pcpu {
            other.call_spi = 0;
        }
    }
    assert_eq!(built(&good), Ok(()));
    let calls = Err(Invariant::PcpuCallSpi);
    let with = |pcpu: usize, spi: u16| {
        let mut sample = good.clone();
        sample.pcpus[pcpu].call_spi = spi;
        built(&sample)
    };
    assert_eq!(with(pcpu, 0), calls, "SGIs, which the guest has");
    for other in (0..good.pcpus.len()).filter(|other| *other != pcpu) {
        assert_eq!(with(other, 200), calls, "SGIs are free there");
    }
    let mut always = good.clone();
    always.vms[1].reclaim = Reclaim::Always as u16;
    assert_eq!(built(&always), Err(Invariant::VmReclaim));
    let mut events = good.clone();
    events.vms[1].reclaim = Reclaim::Sdei as u16;
    assert_eq!(built(&events), Err(Invariant::VmReclaim));
    let mut drains = good.clone();
    for (row, other) in drains.pcpus.iter_mut().enumerate() {
        other.service = u16::from(row == pcpu);
    }
    assert_eq!(built(&drains), Err(Invariant::VmInterruptsBuilt));
}

#[test]
fn where_sgis_are_not_seen_nobody_else_uses_them() {
    let built = |sample: &Sample| verdict(&sample.bytes()).map_err(|violation| violation.invariant);
    let good = direct();
    assert_eq!(built(&good), Ok(()));
    let calls = Err(Invariant::PcpuCallSpi);
    let with = |pcpu: usize, spi: u32| {
        let mut sample = good.clone();
        sample.pcpus[pcpu].call_spi = spi as u16;
        built(&sample)
    };
    assert_eq!(with(1, 0), calls, "SGIs");
    assert_eq!(with(1, 31), calls, "a PPI");
    assert_eq!(with(1, 32 + MAX_SPIS - 1), calls, "the second is too large");
    assert_eq!(with(1, 32 + MAX_SPIS - 2), Ok(()));
    let uart = good.board.uart_intid;
    let lent = u32::from(good.irqs[0].pintid);
    let doorbell = u32::from(good.doorbells[0].pintid);
    for theirs in [uart, lent, doorbell] {
        assert_eq!(with(1, theirs), calls);
        assert_eq!(with(1, theirs - 1), calls, "the second");
    }
    for off in [279, 280, 281] {
        assert_eq!(with(1, off), calls, "that of another pCPU");
    }
    assert_eq!(with(1, 282), Ok(()));

    // The VM with untrapped SGIs comes first here, and is checked first.
    let mut other = good.clone();
    other.vms[0].interrupts = InterruptMode::GpptPmrDirect as u16;
    other.vms[0].reclaim = Reclaim::Cooperative as u16;
    other.vms[1].interrupts = InterruptMode::GpptRecoverable as u16;
    assert_eq!(built(&other), Err(Invariant::VmInterruptsAlone));
    let mut drains = good.clone();
    let own = drains.vcpus.iter().find(|vcpu| vcpu.vm == 1);
    let pcpu = usize::from(own.expect("one").pcpu);
    for (row, other) in drains.pcpus.iter_mut().enumerate() {
        other.service = u16::from(row == pcpu);
    }
    assert_eq!(built(&drains), Err(Invariant::VmInterruptsBuilt));
    let mut always = good.clone();
    always.vms[1].reclaim = Reclaim::Always as u16;
    assert_eq!(built(&always), Err(Invariant::VmReclaim));
}

#[test]
fn a_vgic_hears_a_doorbell_by_an_spi_of_the_board_that_is_its_own_or_by_none() {
    let mut sample = Sample::good();
    let found = |sample: &Sample| verdict(&sample.bytes()).map_err(|violation| violation.invariant);
    assert_eq!(found(&sample), Ok(()), "by none");
    let bell = sample.doorbells[0];
    sample.doorbells[0].pintid = 95;
    let physical = Err(Invariant::DoorbellPhysical);
    assert_eq!(found(&sample), physical, "nobody's");
    let irq = Irq {
        vm: bell.to,
        vintid: bell.vintid,
        pintid: 95,
        flags: IRQ_EDGE | IRQ_DOORBELL,
    };
    let behind = |sample: &Sample| sample.irqs.partition_point(|irq| irq.vm <= bell.to);
    let at = behind(&sample);
    sample.irqs.insert(at, irq);
    assert_eq!(found(&sample), Ok(()), "its own");
    let broken = |change: &dyn Fn(&mut Sample)| {
        let mut sample = sample.clone();
        change(&mut sample);
        found(&sample)
    };
    let device = |sample: &mut Sample| sample.irqs[at].flags = IRQ_EDGE;
    assert_eq!(broken(&device), physical, "a device's");
    let other = |sample: &mut Sample| sample.irqs[at].vintid += 1;
    assert_eq!(broken(&other), physical, "another interrupt's");
    let unused = |sample: &mut Sample| sample.doorbells[0].pintid = 0;
    assert!(broken(&unused).is_err(), "that no doorbell has");
    let shared = |sample: &mut Sample| {
        let irq = Irq { pintid: 94, ..irq };
        sample.irqs.insert(at, irq);
    };
    assert!(broken(&shared).is_err(), "and another one's");
    let twice = |sample: &mut Sample| sample.doorbells[1].pintid = 95;
    assert_eq!(broken(&twice), physical, "of two doorbells");
}
