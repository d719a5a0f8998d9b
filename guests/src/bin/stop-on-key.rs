//! Companion of VMs that are to stop in order: a manager that asks the first VM of the description to stop when it receives an `s`, starts it when it
//! receives a `g`, and says what comes of it.
#![no_std]
#![no_main]

use bulkhead_abi::call::End;
use bulkhead_abi::control::{EVENT_STATE, Kind, Message, Phase, Status};
use bulkhead_guests::virtio::port::ControlPort;
use bulkhead_guests::{Board, gic, guest, println, timer, uart};

guest!(main = main);

/// The VM that it is about.
const VM: u16 = 0;

fn main(board: &'static Board) {
    gic::init();
    gic::enable(timer::INTID);
    let Some(mut port) = ControlPort::of(board) else {
        return println!("FAIL stop-on-key: there is no control port");
    };
    loop {
        match uart::get() {
            Some(b's') => order(&mut port, Kind::Shutdown),
            Some(b'g') => order(&mut port, Kind::Start),
            Some(b'x') => return,
            _ => {}
        }
        while let Some(message) = port.message() {
            tell(&message);
        }
        // Asleep it leaves the emulator to the others.
        timer::sleep(2_000);
    }
}

fn order(port: &mut ControlPort, kind: Kind) {
    let (status, message) = port.about(kind, VM, [0; 4]);
    let seconds = message.values[0] / 1_000_000_000;
    match status {
        Some(Status::Done) if kind == Kind::Shutdown => println!("asked, {seconds} s"),
        Some(Status::Done) => println!("ordered"),
        _ => println!("FAIL {kind:?}: {status:?}"),
    }
    while let Ok(message) = port.wait(|it| it.kind == EVENT_STATE) {
        tell(&message);
        if [Phase::Down, Phase::Running]
            .map(|it| it as u64)
            .contains(&message.values[3])
        {
            return;
        }
    }
}

/// Says what an event is about.
fn tell(message: &Message) {
    if message.kind != EVENT_STATE {
        return;
    }
    let phase = Phase::of(message.values[3]).map_or("unknown", Phase::word);
    let end = match message.values[6] {
        0 => "none",
        end => End::of(end as u32).words(),
    };
    println!("{phase}, life {}, last end: {end}", message.values[4]);
}
