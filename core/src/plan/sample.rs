//! A good plan with at least a row in each table.

use std::vec::Vec;

use bulkhead_abi::plan::*;
use zerocopy::{Immutable, IntoBytes};

use super::seal;
use crate::stage2::pages_needed;

/// The rows of a plan, to be written.
#[derive(Clone)]
pub struct Sample {
    pub board: Board,
    pub memory: Vec<Memory>,
    pub pcpus: Vec<Pcpu>,
    pub vms: Vec<Vm>,
    pub vcpus: Vec<Vcpu>,
    pub regions: Vec<Region>,
    pub loads: Vec<Load>,
    pub seeds: Vec<Seed>,
    pub irqs: Vec<Irq>,
    pub devices: Vec<Device>,
}

/// Where the plan lies in the image.
const PLAN: u64 = 0x8000;

fn region(vm: u16, kind: RegionKind, access: u16, shared: u16, at: (u64, u64, u64)) -> Region {
    Region {
        vm,
        kind: kind as u16,
        access,
        shared,
        ipa: at.0,
        pa: at.1,
        size: at.2,
    }
}

impl Sample {
    /// Two VMs that share a page; the first has a device.
    pub fn good() -> Self {
        let vm = |name: &[u8], vmid, ram: u64| {
            let mut padded = [0; NAME];
            padded[..name.len()].copy_from_slice(name);
            Vm {
                name: padded,
                class: Class::General as u16,
                crash: 0,
                flags: 0,
                vmid,
                entry: ram + 0x8_0000,
                boot_arg: ram,
                gicd: 0x800_0000,
                gicr: 0x80a_0000,
                spis: 32,
                s2_pages: 0,
            }
        };
        let pcpu = |mpidr, vcpu, service| Pcpu {
            mpidr,
            vcpu,
            service,
            reserved: 0,
        };
        let vcpu = |vm, pcpu| Vcpu {
            vm,
            pcpu,
            reserved: 0,
            mpidr: 0,
        };
        let load = |vm, offset, ipa| Load {
            vm,
            reserved: [0; 3],
            offset,
            size: 1024,
            ipa,
        };
        let seed = |vm, kind, size, ipa| Seed {
            vm,
            kind,
            size,
            ipa,
        };
        let device = |vm| Device {
            vm,
            kind: 0,
            vintid: 33,
            reserved: 0,
            ipa: 0x900_0000,
            size: PAGE,
        };
        Self {
            board: Board {
                gicd: 0x800_0000,
                gicd_size: 0x1_0000,
                gicr: 0x80a_0000,
                gicr_size: 0xf6_0000,
                uart: 0x900_0000,
                uart_size: 0x1000,
                uart_intid: 33,
                vtimer_intid: 27,
                maintenance_intid: 25,
                gic_version: 3,
            },
            memory: [Memory {
                base: 0x4000_0000,
                size: 0x8000_0000,
            }]
            .into(),
            pcpus: [pcpu(0, 0, 1), pcpu(1, 1, 0)].into(),
            vms: [vm(b"one", 1, 0x4000_0000), vm(b"two", 2, 0x4000_0000)].into(),
            vcpus: [vcpu(0, 0), vcpu(1, 1)].into(),
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
            loads: [
                load(0, 0, 0x4000_0000),
                load(0, 0, 0x4008_0000),
                load(1, 0, 0x4000_0000),
                load(1, 0, 0x4008_0000),
            ]
            .into(),
            seeds: [
                seed(0, 0, 64, 0x4000_0100),
                seed(0, 1, 8, 0x4000_0200),
                seed(1, 0, 64, 0x4000_0100),
                seed(1, 1, 8, 0x4000_0200),
            ]
            .into(),
            irqs: [Irq {
                vm: 0,
                vintid: 39,
                pintid: 39,
                flags: 0,
            }]
            .into(),
            devices: [device(0), device(1)].into(),
        }
    }

    /// The plan, sealed.
    pub fn bytes(&self) -> Vec<u8> {
        let mut sample = self.clone();
        let mut tables = 0;
        for (index, vm) in sample.vms.iter_mut().enumerate() {
            let own: Vec<Region> = self
                .regions
                .iter()
                .filter(|region| usize::from(region.vm) == index)
                .copied()
                .collect();
            vm.s2_pages = pages_needed(&own) as u32;
            tables += vm.s2_pages;
        }
        let body = |offset: Option<u64>| {
            let mut loads = self.loads.clone();
            for (number, load) in loads.iter_mut().enumerate() {
                load.offset = offset.unwrap_or(0) + number as u64 * PAGE;
            }
            let mut writer = Writer {
                body: Vec::new(),
                tables: Vec::new(),
            };
            writer.table(&self.memory);
            writer.table(&self.pcpus);
            writer.table(&sample.vms);
            writer.table(&self.vcpus);
            writer.table(&self.regions);
            writer.table(&loads);
            writer.table(&self.seeds);
            writer.table(&self.irqs);
            writer.table(&self.devices);
            writer
        };
        let size = (size_of::<Header>() + body(None).body.len()) as u64;
        let payloads = (PLAN + size).next_multiple_of(PAGE);
        let writer = body(Some(payloads));
        let pool_offset = payloads + self.loads.len() as u64 * PAGE;
        let pool_pages = self.pcpus.len() as u32 * PCPU_POOL_PAGES
            + self.vms.len() as u32 * VM_POOL_PAGES
            + tables;
        let mut places = [Table::default(); TABLES];
        places.copy_from_slice(&writer.tables);
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            header_size: size_of::<Header>() as u32,
            size,
            checksum: 0,
            board: self.board,
            image: Image {
                base: 0x4020_0000,
                size: pool_offset + u64::from(pool_pages) * PAGE,
                plan_offset: PLAN,
                pool_offset,
                pool_pages,
                reserved: 0,
            },
            tables: places,
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
