//! VMs that take their interrupts themselves, as the proof sees them.

use bulkhead_abi::plan::*;

use super::sample::Sample;
use super::tests::verdict;
use super::violation::Invariant;

#[test]
fn a_vm_of_one_vcpu_may_take_its_interrupts_itself() {
    let mut sample = Sample::good();
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

/// Where the firmware gets the pCPU back, EL2 has no interrupt of its own there.
#[test]
fn a_vm_whose_pcpu_the_firmware_gets_back_has_a_quiet_pcpu() {
    let mut sample = Sample::good();
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
