//! A valid plan with at least one row in each table.

use std::vec::Vec;

use bulkhead_abi::plan::*;
use zerocopy::{Immutable, IntoBytes};

use super::{Plan, seal};
use crate::stage2::{Placement, pages_needed, root};
use crate::virtio::pages::pages;
use crate::virtio::transport::feature::{EVENT_IDX, INDIRECT_DESC, RING_RESET, VERSION_1};

/// The rows of a plan, for tests to alter and write.
#[derive(Clone)]
pub struct Sample {
    pub board: Board,
    pub memory: Vec<Memory>,
    pub pcpus: Vec<Pcpu>,
    pub vms: Vec<Vm>,
    pub vcpus: Vec<Vcpu>,
    pub regions: Vec<Region>,
    pub payloads: Vec<Payload>,
    pub seeds: Vec<Seed>,
    pub irqs: Vec<Irq>,
    pub devices: Vec<Device>,
    pub quiets: Vec<Quiet>,
    pub calls: Vec<Call>,
    pub doorbells: Vec<Doorbell>,
    /// The pages are counted by [`Sample::bytes`].
    pub threads: Vec<ServiceThread>,
    pub backends: Vec<Backend>,
    pub virtio: Vec<VirtioDevice>,
    pub queues: Vec<Virtqueue>,
    pub rights: Vec<Right>,
    pub stops: Vec<Stop>,
    /// EL2's.
    pub colours: u64,
}

/// Offset of the plan in the image.
const PLAN: u64 = 0x8000;

/// A region of a VM; `at` is IPA, PA and size.
pub fn region(vm: u16, kind: RegionKind, access: u16, shared: u16, at: (u64, u64, u64)) -> Region {
    Region {
        vm,
        kind: kind as u16,
        access,
        shared,
        ipa: at.0,
        pa: at.1,
        size: at.2,
        colours: ALL_COLOURS,
    }
}

impl Sample {
    /// A plan for a GICv3: two VMs that share a page. The first has two vCPUs, a device of the
    /// board and one emulated device of each kind, may call the firmware, restarts after a crash,
    /// and is notified of crashes of the second, which has the board's clock. They have doorbells
    /// into each other. A pCPU without a vCPU drains the console.
    pub fn good() -> Self {
        let vm = |name: &[u8], vmid, ram: u64| {
            let mut padded = [0; NAME];
            padded[..name.len()].copy_from_slice(name);
            Vm {
                name: padded,
                class: Class::General as u16,
                crash: Crash::Halt as u16,
                flags: 0,
                vmid,
                restarts: 0,
                restart_seconds: 0,
                notify: NONE,
                event_intid: 0,
                interrupts: InterruptMode::Vgic as u16,
                reclaim: Reclaim::Always as u16,
                resets: 0,
                reset_seconds: 0,
                entry: ram + 0x8_0000,
                boot_arg: ram,
                gicd: 0x800_0000,
                gicr: 0x80a_0000,
                gicc: 0,
                stolen_time: 0,
                spis: 32,
                s2_pages: 0,
                s2_root: 0,
            }
        };
        let pcpu = |mpidr, service| Pcpu {
            mpidr,
            service,
            call_spi: 0,
            pmu_intid: 0,
            release: 0,
            cache: 0,
            cache_level: 0,
            colours: 0,
        };
        let vcpu = |vm, pcpu, mpidr| Vcpu {
            vm,
            pcpu,
            policy: CpuPolicy::Pinned as u16,
            weight: 0,
            mpidr,
            budget: 0,
            period: 0,
            pool: 0,
            events: 0,
            events_period: 0,
        };
        let payload = |vm, size, ipa| Payload {
            vm,
            reserved: [0; 3],
            offset: 0,
            size,
            ipa,
        };
        let seed = |vm, kind, size, ipa| Seed {
            vm,
            kind,
            size,
            ipa,
        };
        let device = |vm, kind, vintid, ipa, pages| Device {
            vm,
            kind: kind as u16,
            vintid,
            reserved: 0,
            ipa,
            size: pages * PAGE,
        };
        let irq = |vm, vintid, pintid| Irq {
            vm,
            vintid,
            pintid,
            flags: 0,
        };
        let quiet = |vm, pa| Quiet {
            vm,
            width: 4,
            value: 0,
            pa,
        };
        let call = |function| Call {
            vm: 0,
            reserved: 0,
            function,
        };
        let doorbell = |vm, vintid, ipa| Doorbell {
            vm,
            to: 1 - vm,
            vintid,
            pintid: 0,
            ipa,
            apart: 100_000,
        };
        let first = Vm {
            crash: Crash::Restart as u16,
            restarts: 3,
            restart_seconds: 60,
            resets: 10,
            reset_seconds: 60,
            event_intid: 36,
            ..vm(b"one", 1, 0x4000_0000)
        };
        let second = Vm {
            crash: Crash::Notify as u16,
            notify: 0,
            ..vm(b"two", 2, 0x4000_0000)
        };
        Self {
            board: Board {
                gicd: 0x800_0000,
                gicd_size: 0x1_0000,
                gicr: 0x80a_0000,
                gicr_size: 0xf6_0000,
                gicc: 0,
                gicc_size: 0,
                gich: 0,
                gich_size: 0,
                gicv: 0,
                gicv_size: 0,
                uart: 0x900_0000,
                uart_size: 0x1000,
                rtc: 0x901_0000,
                uart_intid: 33,
                vtimer_intid: 27,
                ptimer_intid: 30,
                hyp_timer_intid: 26,
                maintenance_intid: 25,
                gic_version: 3,
                uart_kind: 0,
                event: 0,
            },
            memory: [Memory {
                base: 0x4000_0000,
                size: 0x8000_0000,
            }]
            .into(),
            pcpus: [pcpu(0, 0), pcpu(1, 0), pcpu(2, 0), pcpu(3, 1)].into(),
            vms: [first, second].into(),
            vcpus: [vcpu(0, 0, 0), vcpu(0, 2, 1), vcpu(1, 1, 0)].into(),
            regions: [
                region(
                    0,
                    RegionKind::Device,
                    3,
                    NONE,
                    (0x903_0000, 0x903_0000, 0x1000),
                ),
                region(
                    0,
                    RegionKind::Ram,
                    7,
                    NONE,
                    (0x4000_0000, 0x4100_0000, 0x40_0000),
                ),
                region(
                    0,
                    RegionKind::Shared,
                    3,
                    0,
                    (0x7000_0000, 0x4200_0000, 0x1000),
                ),
                region(
                    1,
                    RegionKind::Device,
                    3,
                    NONE,
                    (0x901_0000, 0x901_0000, 0x1000),
                ),
                region(
                    1,
                    RegionKind::Ram,
                    7,
                    NONE,
                    (0x4000_0000, 0x4140_0000, 0x40_0000),
                ),
                region(
                    1,
                    RegionKind::Shared,
                    1,
                    0,
                    (0x7000_0000, 0x4200_0000, 0x1000),
                ),
            ]
            .into(),
            payloads: [
                payload(0, 1024, 0x4000_0000),
                payload(0, 2048, 0x4008_0000),
                payload(1, 1024, 0x4000_0000),
                payload(1, 2048, 0x4008_0000),
            ]
            .into(),
            seeds: [
                seed(0, 0, 64, 0x4000_0100),
                seed(0, 1, 8, 0x4000_0200),
                seed(1, 0, 64, 0x4000_0100),
                seed(1, 1, 8, 0x4000_0200),
            ]
            .into(),
            irqs: [irq(0, 39, 39), irq(0, 40, 40), irq(1, 39, 34)].into(),
            devices: [
                device(0, DeviceKind::Pl011, 33, 0x900_0000, 1),
                device(0, DeviceKind::Pl031, 34, 0x901_0000, 1),
                device(0, DeviceKind::Watchdog, 35, 0x901_1000, 2),
                device(1, DeviceKind::Pl011, 33, 0x900_0000, 1),
            ]
            .into(),
            quiets: [
                quiet(0, 0x903_0410),
                quiet(0, 0x903_041c),
                quiet(1, 0x901_0010),
            ]
            .into(),
            calls: [call(0x8200_0001), call(0xc300_0001)].into(),
            doorbells: [
                doorbell(0, 37, 0x920_0000),
                doorbell(0, 38, 0x920_1000),
                doorbell(1, 37, 0x920_0000),
            ]
            .into(),
            threads: Vec::new(),
            backends: Vec::new(),
            virtio: Vec::new(),
            queues: Vec::new(),
            rights: Vec::new(),
            stops: Vec::new(),
            colours: ALL_COLOURS,
        }
    }

    /// The plan of [`Self::good`] with a service thread on the pCPU that drains the console; the second VM is the backend of a
    /// disk and a network port of the first.
    pub fn good_io() -> Self {
        let mut sample = Self::good();
        sample.threads = [ServiceThread {
            pcpu: 3,
            policy: CpuPolicy::Server as u16,
            weight: 0,
            reserved: 0,
            budget: 400_000,
            period: 1_000_000,
            pages: 0,
            reserved2: 0,
        }]
        .into();
        sample.backends = [Backend {
            vm: 1,
            vintid: 41,
            reserved: 0,
            page: 0x403f_f000,
            bell: 0xb00_0000,
        }]
        .into();
        let device = |index, id, config_bytes, ipa, window| VirtioDevice {
            vm: 0,
            backend: 0,
            id,
            vintid: 41 + index,
            unit: 0,
            flags: 0,
            index,
            config_bytes,
            service: 0,
            reserved: 0,
            reserved2: 0,
            ipa,
            window,
            window_size: 0x4_2000,
            features: VERSION_1 | EVENT_IDX | INDIRECT_DESC | RING_RESET,
            poll: 0,
            config: [0; PLAN_CONFIG],
        };
        sample.virtio = [
            device(0, 2, 24, 0xa00_0000, 0x403b_d000),
            device(1, 1, 12, 0xa00_1000, 0x4037_b000),
        ]
        .into();
        for device in &mut sample.virtio {
            device.config[..usize::from(device.config_bytes)].fill(2);
        }
        let queue = |device, flags, bytes: (u32, u32), ring, slots_at| Virtqueue {
            device,
            size: 256,
            slots: 64,
            flags,
            slot_bytes: if device == 0 { 4096 } else { 2048 },
            readable: bytes.0,
            writable: bytes.1,
            ring,
            slots_at,
            reserved: 0,
        };
        sample.queues = [
            queue(0, QUEUE_REPLAY, (0x1_e010, 0x1_e001), 0x1000, 0x2000),
            queue(1, QUEUE_EXACT, (0, 1526), 0x1000, 0x2000),
            queue(1, 0, (1526, 0), 0x1800, 0x2_2000),
        ]
        .into();
        for device in (0..2).rev() {
            let at = (sample.virtio[device].ipa, 0, PAGE);
            let registers = region(0, RegionKind::VirtioRegisters, ACCESS_READ, NONE, at);
            sample.regions.insert(1, registers);
        }
        sample
    }

    /// The plan of [`Self::good`] for a GICv2.
    pub fn good_v2() -> Self {
        let mut sample = Self::good();
        sample.board = Board {
            gicd_size: 0x1000,
            gicr: 0,
            gicr_size: 0,
            gicc: 0x801_0000,
            gicc_size: 0x2000,
            gich: 0x803_0000,
            gich_size: 0x1000,
            gicv: 0x804_0000,
            gicv_size: 0x1_0000,
            gic_version: 2,
            ..sample.board
        };
        for vm in &mut sample.vms {
            vm.gicr = 0;
            vm.gicc = 0x801_0000;
        }
        for (vm, row) in [(0, 0), (1, 4)] {
            let at = (0x801_0000, 0x804_0000, 0x1000);
            let interface = region(vm, RegionKind::Gicv, 3, NONE, at);
            sample.regions.insert(row, interface);
        }
        sample
    }

    /// The bytes of the plan, with its checksum.
    pub fn bytes(&self) -> Vec<u8> {
        let mut sample = self.clone();
        if !sample.threads.is_empty() {
            let without = sample.bytes_as_counted();
            if let Ok(plan) = Plan::open(&without) {
                for (row, thread) in sample.threads.iter_mut().enumerate() {
                    thread.pages = pages(&plan, row).map_or(0, |pages| pages as u32);
                }
            }
        }
        sample.bytes_as_counted()
    }

    /// The bytes of the plan, with the pages of service threads as they are.
    fn bytes_as_counted(&self) -> Vec<u8> {
        let mut sample = self.clone();
        for (index, vm) in sample.vms.iter_mut().enumerate() {
            let own: Vec<Region> = self
                .regions
                .iter()
                .filter(|region| usize::from(region.vm) == index)
                .copied()
                .collect();
            vm.s2_pages = pages_needed(&own) as u32;
        }
        let body = |vms: &[Vm], offset: Option<u64>| {
            let mut payloads = self.payloads.clone();
            // The third payload is the first again: two VMs that run the same program.
            for (payload, page) in payloads.iter_mut().zip([0, 1, 0, 2]) {
                payload.offset = offset.unwrap_or(0) + page * PAGE;
            }
            let mut writer = Writer {
                body: Vec::new(),
                tables: Vec::new(),
            };
            writer.table(&self.memory);
            writer.table(&self.pcpus);
            writer.table(vms);
            writer.table(&self.vcpus);
            writer.table(&self.regions);
            writer.table(&payloads);
            writer.table(&self.seeds);
            writer.table(&self.irqs);
            writer.table(&self.devices);
            writer.table(&self.quiets);
            writer.table(&self.calls);
            writer.table(&self.doorbells);
            writer.table(&self.threads);
            writer.table(&self.backends);
            writer.table(&self.virtio);
            writer.table(&self.queues);
            writer.table(&self.rights);
            writer.table(&self.stops);
            writer
        };
        let size = (size_of::<Header>() + body(&sample.vms, None).body.len()) as u64;
        let first = (PLAN + size).next_multiple_of(PAGE);
        let page_pool_offset = first + (self.payloads.len() as u64 - 1) * PAGE;
        let before = self.pcpus.len() as u32 * PCPU_PAGES
            + (self.vcpus.len() + self.threads.len()) as u32 * VCPU_PAGES
            + self.vms.len() as u32 * VM_PAGES;
        let own = self.colours;
        let mut places = Placement::from(page_pool_offset);
        // Without a colour it is refused.
        let _ = places.next(before.into(), own);
        for (index, vm) in sample.vms.iter_mut().enumerate() {
            let ram = self.regions.iter().find(|region| {
                usize::from(region.vm) == index && region.kind == RegionKind::Ram as u16
            });
            let colours = ram.map_or(ALL_COLOURS, |ram| ram.colours);
            let place = places.next(vm.s2_pages.into(), colours);
            vm.s2_root = place.map_or(0, |place| root(&place));
        }
        if own != ALL_COLOURS {
            assert!(
                self.virtio.is_empty(),
                "the places of devices are not known here"
            );
            let _ = places.next((PLAN + size).div_ceil(PAGE), own);
        }
        let writer = body(&sample.vms, Some(first));
        let page_pool_pages = ((places.end() - page_pool_offset) / PAGE) as u32
            + self.virtio.len() as u32 * VIRTIO_PAGES
            + self.threads.iter().map(|thread| thread.pages).sum::<u32>();
        let has_virtio = !self.threads.is_empty();
        let profile = if !self.rights.is_empty() {
            Profile::Managed
        } else if has_virtio || self.vcpus.iter().any(|vcpu| vcpu.events != 0) {
            Profile::Io
        } else {
            Profile::Shared
        };
        let mut tables = [Table::default(); TABLES];
        tables.copy_from_slice(&writer.tables);
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            header_size: size_of::<Header>() as u32,
            size,
            checksum: 0,
            board: self.board,
            image: Image {
                base: 0x4020_0000,
                size: page_pool_offset + u64::from(page_pool_pages) * PAGE,
                plan_offset: PLAN,
                page_pool_offset,
                colours: own,
                page_pool_pages,
                profile: profile as u32,
            },
            tables,
        };
        let mut bytes = [header.as_bytes(), &writer.body].concat();
        seal(&mut bytes);
        bytes
    }
}

struct Writer {
    body: Vec<u8>,
    tables: Vec<Table>,
}

impl Writer {
    fn table<T: IntoBytes + Immutable>(&mut self, rows: &[T]) {
        let offset = (size_of::<Header>() + self.body.len()) as u32;
        self.tables.push(Table {
            offset,
            count: rows.len() as u32,
        });
        self.body.extend_from_slice(rows.as_bytes());
    }
}
