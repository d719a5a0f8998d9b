//! Claim: a manager whose CPUs all tell of requests at once is answered as one whose CPU does that alone.
//!
//! One CPU orders the VM `worker` to restart, changes its weight and asks about it, `rounds=` times, and looks that each answer and each event comes, once and
//! in order. The others notify the device all the time, of queues where there is something to do and of others.
#![no_std]
#![no_main]

use bulkhead_abi::control::{EVENT_LIMITS, EVENT_STATE, Kind, Phase, Status};
use bulkhead_guests::mmio::write32;
use bulkhead_guests::virtio::port::{ControlPort, expect};
use bulkhead_guests::virtio::raw::register;
use bulkhead_guests::{Board, check, cpu, gic, guest, println, timer, virtio};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use virtio_drivers::transport::DeviceType;

guest!(main = main);

const WORKER: u16 = 1;
const NONE: [u64; 4] = [0; 4];
/// Queues of the device.
const QUEUES: u32 = 6;
/// Microseconds from one notification to the next.
const APART_US: u64 = 20;

/// The first CPU has done its work.
static DONE: AtomicBool = AtomicBool::new(false);
/// Notifications of the others.
static NOTIFIED: AtomicU64 = AtomicU64::new(0);

fn main(board: &'static Board) {
    gic::init();
    let found = virtio::devices(board, DeviceType::Console).next();
    let Some((device, mut port)) = found.zip(ControlPort::of(board)) else {
        return println!("FAIL manager-vcpus: there is no control port");
    };
    check::equal("CPUs", board.cpus as u64, 3);
    cpu::hire_all(1..board.cpus);
    for cpu in 1..board.cpus {
        cpu::give(cpu, notify, device.base as u64);
    }
    let rounds = board.argument("rounds").unwrap_or(200);
    for round in 1..=rounds {
        if !work(&mut port, round) {
            check::holds("each round", false, format_args!("round {round}"));
            break;
        }
    }
    DONE.store(true, Relaxed);
    while !(1..board.cpus).all(cpu::is_done) {}
    let (status, _) = port.about(Kind::Stop, WORKER, NONE);
    expect("the last order", status, Status::Done);
    check::holds("the device works", !port.has_failed(), "it needs a reset");
    let notified = NOTIFIED.load(Relaxed);
    println!("manager-vcpus: {notified} notifications beside {rounds} rounds");
    check::holds(
        "the other CPUs were at it",
        notified > 4 * rounds,
        "they were not",
    );
    check::done();
}

/// Orders, changes and asks once. Returns whether all has come of it.
fn work(port: &mut ControlPort, round: u64) -> bool {
    let lives = |port: &mut ControlPort| {
        let (status, state) = port.about(Kind::Vm, WORKER, NONE);
        (status == Some(Status::Done)).then_some(state.values[4])
    };
    let before = lives(port);
    let weight = [1 + round % 900, 0, 0, 0];
    let (changed, _) = port.about(Kind::Weight, WORKER, weight);
    let limits = port.wait(|it| it.kind == EVENT_LIMITS && it.vm == WORKER);
    let (_, vcpu) = port.about(Kind::Vcpu, WORKER, NONE);
    let (restarted, _) = port.about(Kind::Restart, WORKER, NONE);
    let runs = Phase::Running as u64;
    let born = port.wait(|it| {
        it.kind == EVENT_STATE
            && it.values[3] == runs
            && Some(it.values[4]) == before.map(|life| life + 1)
    });
    port.forget();
    changed == Some(Status::Done)
        && restarted == Some(Status::Done)
        && limits.is_ok()
        && born.is_ok()
        && vcpu.values[3] == weight[0]
        && lives(port) == before.map(|life| life + 1)
}

/// Notifies the device of each of its queues, and of one that it does not have.
fn notify(base: u64) -> u64 {
    let mut queue = 0;
    while !DONE.load(Relaxed) {
        write32(base as usize + register::QUEUE_NOTIFY, queue);
        NOTIFIED.fetch_add(1, Relaxed);
        queue = (queue + 1) % (QUEUES + 1);
        timer::spin(APART_US);
    }
    0
}
