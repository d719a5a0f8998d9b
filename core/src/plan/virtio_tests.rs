//! The rules for virtio devices and backends.

use std::vec::Vec;

use bulkhead_abi::device::ring::Ring;
use bulkhead_abi::plan::*;
use proptest::prelude::*;

use super::Invariant;
use super::sample::{Sample, region};
use super::tests::verdict;
use crate::virtio::transport::feature::{EVENT_IDX, INDIRECT_DESC, RING_RESET, VERSION_1};

/// What is found in the sample with a change.
pub(super) fn found(change: impl FnOnce(&mut Sample)) -> Result<(), Invariant> {
    let mut sample = Sample::good_io();
    change(&mut sample);
    judge(&sample)
}

pub(super) fn judge(sample: &Sample) -> Result<(), Invariant> {
    verdict(&sample.bytes()).map_err(|violation| violation.invariant)
}

/// Puts a page of registers among the regions of a VM.
pub(super) fn add_registers(sample: &mut Sample, vm: u16, ipa: u64) {
    let before = |row: &&Region| (row.vm, row.ipa) < (vm, ipa);
    let row = sample.regions.iter().take_while(before).count();
    let at = (ipa, 0, PAGE);
    let registers = region(vm, RegionKind::VirtioRegisters, ACCESS_READ, NONE, at);
    sample.regions.insert(row, registers);
}

/// The sample in which the first VM also is a backend: it serves a disk of the second.
fn both_ways() -> Sample {
    let mut sample = Sample::good_io();
    let second = sample.backends[0];
    sample.backends = [
        Backend {
            vm: 0,
            vintid: 43,
            ..second
        },
        second,
    ]
    .into();
    for device in &mut sample.virtio {
        device.backend = 1;
    }
    let disk = sample.virtio[0];
    sample.virtio.push(VirtioDevice {
        vm: 1,
        backend: 0,
        vintid: 42,
        ..disk
    });
    add_registers(&mut sample, 1, disk.ipa);
    let queue = sample.queues[0];
    sample.queues.push(Virtqueue { device: 2, ..queue });
    sample
}

#[test]
fn vms_can_serve_each_other() {
    // With the same numbers, units, windows and pages of registers.
    let sample = both_ways();
    assert_eq!(judge(&sample), Ok(()));
    // Of the virtio devices of another VM none is an obstacle.
    let refused = |change: &dyn Fn(&mut Sample)| {
        let mut sample = both_ways();
        change(&mut sample);
        judge(&sample).expect_err("refused")
    };
    let shared = Invariant::VintidShared;
    assert_eq!(refused(&|s| s.backends[0].vintid = 41), shared);
    assert_eq!(refused(&|s| s.virtio[1].vintid = 43), shared);
    assert_eq!(refused(&|s| s.virtio[2].vintid = 41), shared);
    assert_eq!(refused(&|s| s.backends[1].vintid = 42), shared);
    let itself = refused(&|s| s.virtio[2].backend = 1);
    assert_eq!(itself, Invariant::VirtioVms);
    let order = Invariant::TableOrder;
    assert_eq!(refused(&|s| s.backends.swap(0, 1)), order);
    assert_eq!(refused(&|s| s.backends[1].vm = 0), order, "two alike");
    assert_eq!(refused(&|s| s.virtio.swap(0, 1)), order);
    assert_eq!(refused(&|s| s.virtio.swap(1, 2)), order);
    assert_eq!(refused(&|s| s.queues.swap(2, 3)), order);
}

/// A device that is looked at every so often, and the verdict.
fn polled(poll: u64, vintid: u16) -> Result<(), Invariant> {
    found(|s| {
        s.virtio[0].poll = poll;
        s.virtio[0].vintid = vintid;
        s.virtio[0].features &= !EVENT_IDX;
    })
}

#[test]
fn a_polled_device_has_a_period_and_no_interrupt() {
    for poll in [MIN_POLL, 1_000_000, MAX_POLL] {
        assert_eq!(polled(poll, 0), Ok(()), "{poll}");
        assert_eq!(polled(poll, 41), Err(Invariant::VirtioPoll), "{poll}");
    }
    for poll in [1, MIN_POLL - 1, MAX_POLL + 1, u64::MAX] {
        assert_eq!(polled(poll, 0), Err(Invariant::VirtioPoll), "{poll}");
    }
    assert_eq!(polled(0, 0), Err(Invariant::IrqVintid), "not polled");
}

#[test]
fn an_spi_of_the_board_that_no_device_has_is_for_one_virtio_device() {
    let linked = |change: &dyn Fn(&mut Sample, usize)| {
        found(|sample| {
            let device = sample.virtio[0];
            let irq = Irq {
                vm: device.vm,
                vintid: device.vintid,
                pintid: 95,
                flags: IRQ_EDGE | IRQ_DOORBELL,
            };
            let at = sample.irqs.partition_point(|irq| irq.vm <= device.vm);
            sample.irqs.insert(at, irq);
            change(sample, at);
        })
    };
    assert_eq!(linked(&|_, _| {}), Ok(()));
    assert_eq!(
        linked(&|sample, at| sample.irqs[at].flags = IRQ_EDGE),
        Err(Invariant::VintidShared),
        "a device of the board has it, too"
    );
    assert_eq!(
        linked(&|sample, at| sample.irqs[at].vintid += 8),
        Err(Invariant::DoorbellPhysical),
        "for no device"
    );
    assert_eq!(
        linked(&|sample, at| {
            let (vm, vintid) = (sample.irqs[at].vm, sample.irqs[at].vintid);
            let row = sample.doorbells.iter_mut().find(|bell| bell.to == vm);
            let bell = row.expect("one");
            (bell.vintid, bell.pintid) = (vintid, 95);
        }),
        Err(Invariant::VintidShared),
        "for a doorbell as well"
    );
}

/// A GPPT VM takes no interrupts that EL2 generates, so that its devices are polled, and it serves none.
#[test]
fn neither_side_of_a_virtio_device_that_interrupts_is_a_gppt_vm() {
    let mut sample = Sample::good_io();
    sample.doorbells.clear();
    sample.devices.clear();
    for irq in &mut sample.irqs {
        irq.vintid = irq.pintid;
    }
    sample.vcpus.remove(1);
    sample.vms[0].event_intid = 0;
    sample.vms[1].crash = Crash::Halt as u16;
    sample.vms[1].notify = NONE;
    assert_eq!(judge(&sample), Ok(()));
    for (vm, invariant) in [(0, Invariant::VirtioVms), (1, Invariant::Backend)] {
        let mut sample = sample.clone();
        sample.vms[vm].interrupts = InterruptMode::GpptRecoverable as u16;
        sample.vms[vm].flags |= VM_OWN_PTIMER;
        assert_eq!(judge(&sample), Err(invariant));
        let mut polled = sample.clone();
        for device in &mut polled.virtio {
            (device.poll, device.vintid) = (MIN_POLL, 0);
            device.features &= !EVENT_IDX;
        }
        let expected = if vm == 0 { Ok(()) } else { Err(invariant) };
        assert_eq!(judge(&polled), expected, "polled");
        sample.threads.clear();
        sample.backends.clear();
        sample.virtio.clear();
        sample.queues.clear();
        sample.regions.drain(1..3);
        assert_eq!(judge(&sample), Ok(()), "without");
    }
}

#[test]
fn an_interrupt_has_one_source() {
    let shared = Err(Invariant::VintidShared);
    // Emulated devices, an event, the doorbell of the second VM, interrupts of the board.
    for vintid in [33, 34, 35, 36, 37, 39, 40] {
        assert_eq!(found(|s| s.virtio[0].vintid = vintid), shared, "{vintid}");
    }
    // The doorbells of the first VM are among them.
    for vintid in [33, 37, 38, 39] {
        assert_eq!(found(|s| s.backends[0].vintid = vintid), shared, "{vintid}");
    }
    let last = 31 + 32;
    assert_eq!(found(|s| s.virtio[0].vintid = last), Ok(()));
    assert_eq!(found(|s| s.backends[0].vintid = last), Ok(()));
    let beyond = Err(Invariant::IrqVintid);
    assert_eq!(found(|s| s.virtio[0].vintid = last + 1), beyond);
    assert_eq!(found(|s| s.backends[0].vintid = last + 1), beyond);
}

#[test]
fn a_backend_rings_by_a_page_of_its_own() {
    let overlap = Err(Invariant::IpaOverlap);
    // A device of the board, the virtual GIC, an emulated device, a doorbell, the page with the page.
    for bell in [0x901_0000, 0x80b_0000, 0x900_0000, 0x920_0000, 0x403f_f000] {
        assert_eq!(found(|s| s.backends[0].bell = bell), overlap, "{bell:#x}");
    }
    // A doorbell and a page of registers of the other VM.
    for bell in [0x920_1000, 0xa00_0000, (1 << IPA_BITS) - PAGE] {
        assert_eq!(found(|s| s.backends[0].bell = bell), Ok(()), "{bell:#x}");
    }
}

#[test]
fn the_news_lie_in_memory_that_is_the_backends() {
    let page = Err(Invariant::BackendNews);
    // Shared memory is not RAM of the VM; something is loaded there; behind the RAM; no page.
    for ipa in [
        0x7000_0000,
        0x4000_0000,
        0x4008_0000,
        0x4040_0000,
        0x4007_e800,
    ] {
        assert_eq!(found(|s| s.backends[0].page = ipa), page, "{ipa:#x}");
    }
    for ipa in [0x4000_1000, 0x4007_f000, 0x4008_1000, 0x4037_a000] {
        assert_eq!(found(|s| s.backends[0].page = ipa), Ok(()), "{ipa:#x}");
    }
    let window = Err(Invariant::VirtioWindow);
    for ipa in [0x4037_b000, 0x403b_c000, 0x403b_d000, 0x403f_e000] {
        assert_eq!(found(|s| s.backends[0].page = ipa), window, "{ipa:#x}");
    }
}

#[test]
fn some_types_can_be_served_by_nobody() {
    let refused: Vec<u16> = (0..=64)
        .filter(|id| found(|s| s.virtio[0].id = *id) == Err(Invariant::VirtioType))
        .collect();
    assert_eq!(refused, [0, 5, 8, 13, 16, 18, 23, 24, 27]);
}

#[test]
fn numbers_are_those_of_a_backend() {
    let number = Err(Invariant::VirtioNumber);
    assert_eq!(found(|s| s.virtio[1].index = 63), Ok(()));
    assert_eq!(found(|s| s.virtio[1].index = 64), number);
    assert_eq!(found(|s| s.virtio[1].index = 0), number);
    assert_eq!(found(|s| s.virtio[1].id = 2), number, "the same unit");
    let another = found(|s| {
        s.virtio[1].id = 2;
        s.virtio[1].unit = 1;
    });
    assert_eq!(another, Ok(()));
}

#[test]
fn features_are_those_that_the_transport_has() {
    let known = INDIRECT_DESC | EVENT_IDX | VERSION_1 | RING_RESET;
    let offers = |id, poll, features| {
        found(|s| {
            s.virtio[0].id = id;
            // The other device is a network port, too.
            s.virtio[0].unit = 1;
            s.virtio[0].flags = VIRTIO_RESETS;
            s.virtio[0].poll = poll;
            if poll != 0 {
                s.virtio[0].vintid = 0;
            }
            s.virtio[0].features = features;
        })
    };
    let not = Err(Invariant::VirtioFeatures);
    for bit in 0..64 {
        let feature = 1_u64 << bit;
        let known = !(24..50).contains(&bit) || known & feature != 0;
        let expected = if known { Ok(()) } else { not };
        assert_eq!(offers(1, 0, VERSION_1 | feature), expected, "{bit}");
        // CONFIG_WCE of a disk, EMERG_WRITE of a console.
        let disk = if bit == 11 { not } else { expected };
        assert_eq!(offers(2, 0, VERSION_1 | feature), disk, "{bit}");
        let console = if bit == 2 { not } else { expected };
        assert_eq!(offers(3, 0, VERSION_1 | feature), console, "{bit}");
        let polled = if feature == EVENT_IDX { not } else { expected };
        assert_eq!(offers(1, MAX_POLL, VERSION_1 | feature), polled, "{bit}");
    }
    assert_eq!(offers(1, 0, known & !VERSION_1), not);
    assert_eq!(offers(1, 0, known), Ok(()));
}

#[test]
fn nothing_is_hidden_behind_the_config() {
    let config = |bytes, at: usize| {
        found(|s| {
            s.virtio[0].config = [0; PLAN_CONFIG];
            s.virtio[0].config[at] = 1;
            s.virtio[0].config_bytes = bytes;
        })
    };
    let not = Err(Invariant::VirtioConfig);
    assert_eq!(config(12, 11), Ok(()));
    assert_eq!(config(12, 12), not);
    assert_eq!(config(0, 0), not);
    assert_eq!(config(63, 63), not);
    assert_eq!(config(64, 63), Ok(()));
    assert_eq!(config(65, 63), not);
}

#[test]
fn each_device_has_its_page_of_registers() {
    let not = Err(Invariant::VirtioRegisters);
    let without = found(|s| {
        s.regions.remove(2);
    });
    assert_eq!(without, not, "a device without a page");
    let spare = found(|s| add_registers(s, 0, 0xa00_2000));
    assert_eq!(spare, not, "a page without a device");
    let other = found(|s| add_registers(s, 1, 0xa00_0000));
    assert_eq!(other, not, "of another VM");
    let device = found(|s| s.virtio[0].ipa = 0x903_0000);
    assert_eq!(device, not, "another region");
    let ram = found(|s| {
        s.regions.remove(2);
        s.virtio[1].ipa = 0x4000_0000;
    });
    assert_eq!(ram, not, "another region in place of the page");
    let taken = found(|s| {
        s.regions.remove(2);
        add_registers(s, 0, 0x900_0000);
        s.virtio[1].ipa = 0x900_0000;
        s.virtio.swap(0, 1);
    });
    assert_eq!(taken, Err(Invariant::IpaOverlap), "where the PL011 is");
}

#[test]
fn a_window_is_ram_of_the_backend() {
    let not = Err(Invariant::VirtioWindow);
    let (least, most) = (0x4000_1000, 0x4040_0000 - 0x4_2000);
    let at = |window| {
        found(|s| {
            s.backends[0].page = 0x4007_f000;
            s.virtio[0].window = window;
        })
    };
    assert_eq!(at(most), Ok(()));
    assert_eq!(at(most + PAGE), not, "behind the end");
    assert_eq!(at(0x7000_0000), not, "shared memory");
    // Payloads of one page each, the page, and the other window.
    assert_eq!(at(least - PAGE), not);
    let below = |end: u64| end - 0x4_2000;
    assert_eq!(at(least), Ok(()));
    assert_eq!(at(below(0x4007_f000)), Ok(()));
    assert_eq!(at(below(0x4008_0000)), not);
    assert_eq!(at(0x4008_0000), not);
    assert_eq!(at(0x4008_1000), Ok(()));
    assert_eq!(at(below(0x4037_b000)), Ok(()));
    assert_eq!(at(below(0x4037_c000)), not);
    assert_eq!(at(0x403b_c000), not);
    // Whole pages.
    assert_eq!(at(0x4010_0000), Ok(()));
    assert_eq!(at(0x4010_0800), not);
    let shorter = |more| found(|s| s.virtio[1].window_size -= more);
    assert_eq!(shorter(0), Ok(()));
    assert_eq!(shorter(0x800), not);
}

#[test]
fn offsets_in_a_window_have_32_bits() {
    let size = |window_size| {
        found(|s| {
            s.memory[0].size = 64 << 30;
            s.regions[6].pa = 8 << 30;
            s.regions[6].size = 8 << 30;
            s.regions[7].ipa = 64 << 30;
            s.virtio[0].window = 1 << 32;
            s.virtio[0].window_size = window_size;
        })
    };
    assert_eq!(size((1 << 32) - PAGE), Ok(()));
    assert_eq!(size(1 << 32), Err(Invariant::VirtioWindow));
}

#[test]
fn sizes_of_queues_are_powers_of_two() {
    let with = |change: &dyn Fn(&mut Virtqueue)| {
        found(|s| {
            s.queues[0].readable = 1;
            s.queues[0].writable = 1;
            s.queues[0].slots_at = 0x3000;
            s.queues[0].slot_bytes = 16;
            change(&mut s.queues[0]);
        })
    };
    for size in 0..=1024 {
        let sound = [2, 4, 8, 16, 32, 64, 128, 256].contains(&size);
        let expected = if sound {
            Ok(())
        } else {
            Err(Invariant::VirtqueueSize)
        };
        assert_eq!(with(&|queue| queue.size = size), expected, "{size}");
        assert_eq!(with(&|queue| queue.slots = size), expected, "{size}");
        let bytes = u32::from(size);
        let sound = bytes != 0 && bytes.is_multiple_of(16);
        let expected = if sound {
            Ok(())
        } else {
            Err(Invariant::VirtqueueSize)
        };
        assert_eq!(with(&|queue| queue.slot_bytes = bytes), expected, "{bytes}");
    }
}

#[test]
fn the_largest_request_fits_the_slots() {
    let request = |readable, writable| {
        found(|s| {
            s.queues[0].readable = readable;
            s.queues[0].writable = writable;
        })
    };
    let not = Err(Invariant::VirtqueueRequest);
    let all = 64 * 4096;
    for (readable, writable, expected) in [
        (0, 0, not),
        (1, 0, Ok(())),
        (0, 1, Ok(())),
        (all, 0, Ok(())),
        (0, all, Ok(())),
        (all + 1, 0, not),
        (0, all + 1, not),
        (all, 1, not),
        (1, all, not),
        (all - 4096, 4096, Ok(())),
        (all - 4095, 4096, not),
        (all - 4096, 4097, not),
        (u32::MAX, u32::MAX, not),
    ] {
        assert_eq!(
            request(readable, writable),
            expected,
            "{readable} {writable}"
        );
    }
}

/// A size of a queue.
fn sizes() -> impl Strategy<Value = u16> {
    (1_u32..=8).prop_map(|bits| 1 << bits)
}

/// A queue in a window of 16 pages.
fn queues() -> impl Strategy<Value = Virtqueue> {
    let parts = (sizes(), 1..=8_u32, 0..=0x1010_u32, 0..=0x1010_u32);
    parts.prop_map(|(slots, units, ring, slots_at)| Virtqueue {
        device: 1,
        size: 256,
        slots,
        flags: 0,
        slot_bytes: units * 16,
        readable: 16,
        writable: 0,
        ring: ring * 16,
        slots_at: slots_at * 16,
        reserved: 0,
    })
}

/// What there is in a window: `false` where two have the same.
fn take(taken: &mut [bool], start: u32, bytes: u64) -> bool {
    let start = start as usize;
    let Some(part) = taken.get_mut(start..start + bytes as usize) else {
        return false;
    };
    let free = part.iter().all(|byte| !byte);
    part.fill(true);
    free
}

proptest! {
    /// Parts of queues are accepted where no byte of the window is used twice, and only there.
    #[test]
    fn no_byte_of_a_window_is_used_twice(pair in [queues(), queues()]) {
        const SIZE: u64 = 16 * PAGE;
        let mut taken = std::vec![false; SIZE as usize];
        let mut apart = take(&mut taken, 0, PAGE);
        for queue in &pair {
            let ring = Ring::new(u64::from(queue.ring), queue.slots);
            apart &= take(&mut taken, queue.ring, ring.end - ring.table);
            let bytes = u64::from(queue.slots) * u64::from(queue.slot_bytes);
            apart &= take(&mut taken, queue.slots_at, bytes);
        }
        let found = found(|s| {
            s.virtio[1].window_size = SIZE;
            s.queues.splice(1.., pair);
        });
        let expected = if apart { Ok(()) } else { Err(Invariant::VirtqueueWindow) };
        prop_assert_eq!(found, expected);
    }

    /// The same for the windows of a backend, its page and what is loaded for it.
    #[test]
    fn no_page_of_a_backend_is_used_twice(
        places in [(0x80_u64..0x180, 2_u64..0x60), (0x80_u64..0x180, 2_u64..0x60)],
        page in 0x80_u64..0x180,
    ) {
        const RAM: u64 = 0x4000_0000;
        // The end of the memory is at page 0x170.
        let mut taken = std::vec![false; 0x170];
        let mut apart = take(&mut taken, 0x80, 1);
        let alone = page < 0x170 && page != 0x80;
        apart &= take(&mut taken, page as u32, 1);
        for (start, pages) in places {
            apart &= take(&mut taken, start as u32, pages);
        }
        let found = found(|s| {
            s.regions[6].size = 0x17_0000;
            s.backends[0].page = RAM + page * PAGE;
            s.queues.pop();
            for queue in &mut s.queues {
                (queue.slots, queue.slot_bytes, queue.slots_at) = (2, 16, 0x1800);
                (queue.readable, queue.writable) = (16, 16);
            }
            for (device, (start, pages)) in s.virtio.iter_mut().zip(places) {
                device.window = RAM + start * PAGE;
                device.window_size = pages * PAGE;
            }
        });
        let expected = match (alone, apart) {
            (false, _) => Err(Invariant::BackendNews),
            (true, false) => Err(Invariant::VirtioWindow),
            (true, true) => Ok(()),
        };
        prop_assert_eq!(found, expected);
    }
}
