//! The service VM: an Ethernet switch and disks for virtio devices of other VMs. What it does is in the crate
//! `bulkhead-service`; this is what it takes to run that on a machine of its own.
//!
//! Everything that it knows it has from its device tree (`bulkhead_guests::backend`).
#![no_std]
#![no_main]

use arrayvec::ArrayVec;
use bulkhead_guests::area::Area;
use bulkhead_guests::backend::{self, MOST, Port};
use bulkhead_guests::mmio::write32;
use bulkhead_guests::{Board, gic, guest, println, sysreg, timer};
use bulkhead_service::backend::Backend;
use bulkhead_service::disk::Disk;
use bulkhead_service::memory::{Memory, Outside};
use bulkhead_service::store::{AnyStore, Image, Ram};
use bulkhead_service::switch::{Mac, PlanError, PortPlan, Switch};

guest!(main = main);

/// Most bytes behind the Ethernet header of a frame.
const MTU: u16 = 1500;
/// Seconds after which an address that was not seen is forgotten (IEEE 802.1Q, 8.8.3).
const AGE: u64 = 300;
/// What a device may do before it is the next one's turn: requests, frames, and pieces of 4 KiB.
const QUOTA: u32 = 32;

type Served = Backend<Area, AnyStore<Area>, MOST>;

// It lies on the stack (build.rs), once more while it is made.
const _: () = assert!(size_of::<Served>() <= 128 << 10);

fn main(board: &'static Board) {
    let found = match backend::find(board) {
        Ok(found) => found,
        Err(why) => return println!("service: {why}"),
    };
    println!(
        "service: {} disks, {} ports",
        found.disks.len(),
        found.ports.len()
    );
    let served = match set_up(&found) {
        Ok(served) => served,
        Err(PlanError::Ports) => return println!("service: there are too many ports"),
        Err(PlanError::Address) => {
            return println!("service: two ports have one address, or one has a group's");
        }
    };
    gic::init();
    gic::set_edge(found.intid, true);
    gic::enable(found.intid);
    let Err(Outside) = serve(served, found.bell);
    println!("service: the page of news is not there");
}

fn set_up(found: &backend::Backend) -> Result<Served, PlanError> {
    let plan = |port: &Port| PortPlan {
        mac: Mac(port.mac),
        vlan: port.vlan as u16,
        mtu: MTU,
        uplink: false,
    };
    let ports: ArrayVec<PortPlan, MOST> = found.ports.iter().map(plan).collect();
    let switch = Switch::new(&ports, timer::frequency() * AGE)?;
    let disks = found.disks.iter().map(disk).collect();
    let windows = found.windows.clone();
    Ok(Backend::new(found.page, windows, switch, disks, QUOTA))
}

fn disk(disk: &backend::Disk) -> Disk<AnyStore<Area>> {
    let store = if disk.read_only {
        AnyStore::Image(Image::new(disk.memory, disk.memory.bytes()))
    } else {
        AnyStore::Ram(Ram::new(disk.memory))
    };
    let mut name = [0; 20];
    for (to, from) in name.iter_mut().zip(disk.label.bytes()) {
        *to = from;
    }
    Disk::new(store, name)
}

/// Serves for as long as the machine runs.
fn serve(mut served: Served, bell: usize) -> Result<core::convert::Infallible, Outside> {
    loop {
        served.take_told()?;
        let more = served.serve(timer::now());
        ring(bell, served.take_rings());
        if !more && !served.arm()? {
            sleep();
        }
    }
}

/// Tells EL2 which devices have something to do.
fn ring(bell: usize, devices: u64) {
    if devices == 0 {
        return;
    }
    // What was written to the windows is there before.
    sysreg::dsb();
    for (at, word) in [(bell, devices as u32), (bell + 4, (devices >> 32) as u32)] {
        if word != 0 {
            write32(at, word);
        }
    }
}

/// Sleeps until the interrupt is pending, which no handler takes: PSTATE masks it.
fn sleep() {
    sysreg::wfi();
    let taken = gic::acknowledge();
    if !taken.is_none() {
        gic::end(taken);
    }
}
