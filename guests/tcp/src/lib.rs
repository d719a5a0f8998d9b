//! smoltcp on the network card of a guest.
#![cfg_attr(target_os = "none", no_std)]

mod wire;

use bulkhead_guests::{Board, timer};
use smoltcp::iface::{Config, Interface};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

pub use wire::Wire;

/// The time as smoltcp has it.
pub fn now() -> Instant {
    Instant::from_micros((timer::nanoseconds(timer::now()) / 1000) as i64)
}

/// 10.0.0.x with x from `host=`, and how many bits of it say which network that is.
pub fn address(board: &Board) -> IpCidr {
    let host = board.argument("host").unwrap_or(3) as u8;
    IpCidr::new(IpAddress::v4(10, 0, 0, host), 24)
}

/// The stack on the card, with an address.
pub fn interface(wire: &mut Wire, address: IpCidr) -> Interface {
    let mut config = Config::new(EthernetAddress(wire.net.mac()).into());
    config.random_seed = timer::now();
    let mut interface = Interface::new(config, wire, now());
    interface.update_ip_addrs(|all| all.push(address).expect("room for one"));
    interface
}
