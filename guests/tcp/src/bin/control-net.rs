//! Claim: a 1 kHz loop that has a polled network keeps its periods, and answers the pings of others, without an exit.
//!
//! The loop is that of `control`. Between two periods the stack, smoltcp, looks what has come. Its address is 10.0.0.x with x from `host=`.
#![no_std]
#![no_main]

use bulkhead_guest_tcp::{Wire, address, interface, now};
use bulkhead_guests::virtio::net::Net;
use bulkhead_guests::{Board, control, guest, println, virtio};
use smoltcp::iface::SocketSet;
use virtio_drivers::transport::DeviceType;

guest!(main = main, irq = control::on_irq);

fn main(board: &'static Board) {
    let Some(device) = virtio::devices(board, DeviceType::Network).next() else {
        return println!("FAIL control: there is no network");
    };
    let Some(net) = Net::new(device) else {
        return println!("FAIL control: the network cannot be driven");
    };
    let mut wire = Wire::new(net);
    let mut interface = interface(&mut wire, address(board));
    let mut sockets = SocketSet::new(&mut [][..]);
    control::run(board, || {
        interface.poll(now(), &mut wire, &mut sockets);
    });
    // Such as a buffer that comes back without a frame.
    let broken = wire.net.broken();
    if broken != 0 {
        println!("FAIL control: {broken} frames are not as they should be");
    }
}
