//! Companion of `fault-watcher`: a manager that goes away in every way while it has an order in hand. In each of its lives it waits for the word
//! `go` of the page `gate` to reach the number of the life, and then does the next of them. The third word of the page counts the orders of its floods that were taken.
#![no_std]
#![no_main]

use bulkhead_abi::control::{Kind, Status};
use bulkhead_guests::virtio::port::ControlPort;
use bulkhead_guests::{Board, gic, guest, power, println, ruin, shared, timer};
use core::sync::atomic::Ordering::{Acquire, Release};
use zerocopy::IntoBytes;

guest!(main = main);

const TARGET: u16 = 1;
const SELF: u16 = 2;
const NONE: [u64; 4] = [0; 4];
/// Ways to go.
const WAYS: u64 = 8;

fn main(board: &'static Board) {
    gic::init();
    let Some(gate) = board.shared("gate").map(shared::words) else {
        return println!("FAIL faulty-manager: there is no gate");
    };
    let Some(mut port) = ControlPort::of(board) else {
        return println!("FAIL faulty-manager: there is no control port");
    };
    let life = port.about(Kind::Vm, SELF, NONE).1.values[4];
    while gate[0].load(Acquire) < life {
        timer::spin(100);
    }
    let post = |port: &mut ControlPort, kind, bytes: usize| {
        let request = port.request(kind, TARGET, 0, NONE);
        port.post(&request.as_bytes()[..bytes], 1).is_ok()
    };
    let posted = match life % WAYS {
        // Orders whose answers nobody takes.
        1 | 2 => post(&mut port, Kind::Restart, 48),
        3 => post(&mut port, Kind::Pause, 48),
        4 => post(&mut port, Kind::Stop, 48),
        // What is no request yet.
        5 => post(&mut port, Kind::Restart, 20),
        // A question that waits for a vCPU.
        6 => post(&mut port, Kind::Exits, 48),
        // The device is reset below it, and the order given once more.
        7 => {
            let before = post(&mut port, Kind::Restart, 48);
            let Some(again) = ControlPort::of(board) else {
                return println!("FAIL faulty-manager: the port does not come back");
            };
            port = again;
            before && post(&mut port, Kind::Restart, 48)
        }
        // Until somebody stops it.
        _ => {
            gate[1].store(life, Release);
            loop {
                for kind in [Kind::Pause, Kind::Resume, Kind::Restart, Kind::Vm] {
                    let (status, _) = port.about(kind, TARGET, NONE);
                    if kind != Kind::Vm && status == Some(Status::Done) {
                        gate[2].fetch_add(1, Release);
                    }
                }
                port.forget();
            }
        }
    };
    if !posted {
        println!("FAIL faulty-manager: the device takes nothing");
    }
    match life % 3 {
        0 => ruin::crash(),
        1 => power::reset(),
        _ => power::off(),
    }
}
