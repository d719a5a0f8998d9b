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
use bulkhead_guests::{Board, gic, guest, println, sysreg, timer, uart};
use bulkhead_service::backend::{Backend, Units};
use bulkhead_service::counts::Counts;
use bulkhead_service::disk::{self, Disk};
use bulkhead_service::lines::{Counted, Lines, Next};
use bulkhead_service::memory::Outside;
use bulkhead_service::store::{AnyStore, Image, Overlay, Ram};
use bulkhead_service::switch::{self, Mac, PlanError, PortPlan, Switch};

guest!(main = main);

/// Most bytes behind the Ethernet header of a frame.
const MTU: u16 = 1500;
/// Seconds after which an address that was not seen is forgotten (IEEE 802.1Q, 8.8.3).
const AGE: u64 = 300;
/// What a device may do before it is the next one's turn: requests, frames, and pieces of 4 KiB.
const QUOTA: u32 = 32;
/// Bytes of lines that are written between two rounds: each of them leaves this VM twice.
const BYTES: usize = 16;
/// Lines in a second about what devices have done, beyond the first ones.
const LINES: u64 = 10;
/// How long a console without room is left alone, in microseconds.
const NO_ROOM: u64 = 10_000;

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
        Err(why) => return println!("service: {why}"),
    };
    gic::init();
    gic::set_edge(found.intid, true);
    for intid in [found.intid, board.uart_intid, timer::INTID] {
        gic::enable(intid);
    }
    uart::interrupt_for_input();
    let Err(Outside) = serve(served, &found, board.uart_intid);
    println!("service: the page of news is not there");
}

fn set_up(found: &backend::Backend) -> Result<Served, &'static str> {
    let plan = |port: &Port| PortPlan {
        mac: Mac(port.mac),
        vlan: port.vlan as u16,
        mtu: MTU,
        uplink: false,
    };
    let ports: ArrayVec<PortPlan, MOST> = found.ports.iter().map(plan).collect();
    let switch = Switch::new(&ports, timer::frequency() * AGE).map_err(|why| match why {
        PlanError::Ports => "there are too many ports",
        PlanError::Address => "two ports have one address, or one has a group's",
    })?;
    let mut disks = ArrayVec::new();
    for disk in &found.disks {
        disks.push(made(disk)?);
    }
    let windows = found.windows.clone();
    let counts = Counts::new(found.counts);
    Ok(Backend::new(
        found.page, windows, switch, disks, counts, QUOTA,
    ))
}

fn made(disk: &backend::Disk) -> Result<Disk<AnyStore<Area>>, &'static str> {
    let store = match (disk.image, disk.memory) {
        (None, Some(memory)) => AnyStore::Ram(Ram::new(memory)),
        (Some(image), None) => AnyStore::Image(Image::new(image, disk.bytes)),
        (Some(image), Some(memory)) => {
            let overlay = Overlay::new(image, memory, disk.bytes);
            AnyStore::Overlay(overlay.ok_or("a disk has too little memory")?)
        }
        (None, None) => return Err("a disk has no memory"),
    };
    let mut name = [0; 20];
    for (to, from) in name.iter_mut().zip(disk.label.bytes()) {
        *to = from;
    }
    Ok(Disk::new(store, name))
}

/// Serves for as long as the machine runs.
fn serve(
    mut served: Served,
    found: &backend::Backend,
    uart_intid: u32,
) -> Result<core::convert::Infallible, Outside> {
    let mut lines = Lines::new(timer::frequency() / LINES);
    loop {
        served.take_told()?;
        let now = timer::now();
        let more = served.serve(now);
        ring(found.bell, served.take_rings());
        lines.say(served.take_ended());
        let next = say(&mut lines, (&served, found), now);
        if !more && next != Some(0) && !served.arm()? && sleep(next, uart_intid) {
            // Whoever types anything wants to know.
            lines.say(Units::first(found.ports.len(), found.disks.len()));
        }
    }
}

/// Writes some of what is to be said, as far as the console has room. Returns when there is more to write: 0 for at once.
fn say(lines: &mut Lines, (served, found): (&Served, &backend::Backend), now: u64) -> Option<u64> {
    let counted = Names { served, found };
    for _ in 0..BYTES {
        match lines.next(&counted, now) {
            Next::Byte(byte) if uart::offer(byte) => lines.sent(),
            Next::Byte(_) => return Some(now + timer::ticks(NO_ROOM)),
            Next::At(time) => return Some(time),
            Next::Nothing => return None,
        }
    }
    Some(0)
}

/// What is served, with the names of the plan.
struct Names<'a> {
    served: &'a Served,
    found: &'a backend::Backend,
}

impl Counted for Names<'_> {
    fn disk(&self, unit: usize) -> Option<(&str, &str, disk::Counters)> {
        let disk = self.found.disks.get(unit)?;
        let counters = self.served.disks().get(unit)?.counters();
        Some((disk.label, disk.vm, counters))
    }

    fn port(&self, unit: usize) -> Option<(&str, &str, switch::Counters)> {
        let port = self.found.ports.get(unit)?;
        let counters = self.served.switch().counters(unit)?;
        Some((port.network, port.label, counters))
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

/// Sleeps until an interrupt is pending, which no handler takes: PSTATE masks it. At `end` there is one, if there is an end. Returns whether
/// somebody has typed something.
fn sleep(end: Option<u64>, uart_intid: u32) -> bool {
    if let Some(end) = end {
        timer::arm(end);
    }
    sysreg::wfi();
    if end.is_some() {
        timer::disarm();
    }
    let taken = gic::acknowledge();
    if taken.is_none() {
        return false;
    }
    let mut typed = false;
    // Each look at the console is an exit.
    while taken.intid() == uart_intid && uart::get().is_some() {
        typed = true;
    }
    gic::end(taken);
    typed
}
