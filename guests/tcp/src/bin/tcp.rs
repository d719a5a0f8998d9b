//! Claim: a bare-metal guest with a TCP/IP stack of others, smoltcp, talks to stock Linuxes over a virtio network.
//!
//! Its address is 10.0.0.x with x from `host=`. It answers pings. What comes to port 7, one connection after the other, it sends back when the other side
//! has said all: who sends first and reads then needs no room for both. Who connects to port 98 ends it. The stack looks at each checksum, and makes each.
#![no_std]
#![no_main]

use bulkhead_guest_tcp::{Wire, address, interface, now};
use bulkhead_guests::virtio::net::Net;
use bulkhead_guests::{Board, check, gic, guest, println, timer, virtio};
use smoltcp::iface::{SocketSet, SocketStorage};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use virtio_drivers::transport::DeviceType;

guest!(main = main);

/// Ports: that on which it sends back, and that by which it is told to end.
const BACK: u16 = 7;
const END: u16 = 98;
/// Bytes of a connection that wait in each direction.
const BUFFER: usize = 16 * 1024;
/// Most bytes that it keeps of a connection (build.rs).
const MOST: usize = 1 << 20;
/// Milliseconds after which it looks, whatever the stack says.
const LOOK: u64 = 1000;

fn main(board: &'static Board) {
    gic::init();
    gic::enable(timer::INTID);
    let Some(device) = virtio::listen(board, DeviceType::Network).next() else {
        return println!("FAIL tcp: there is no network");
    };
    let Some(net) = Net::new(device) else {
        return println!("FAIL tcp: the network cannot be driven");
    };
    let mut wire = Wire::new(net);
    let address = address(board);
    let mut interface = interface(&mut wire, address);

    let (mut received, mut sent) = ([0; BUFFER], [0; BUFFER]);
    let (mut word, mut answer) = ([0; 64], [0; 64]);
    let mut places = [SocketStorage::EMPTY; 2];
    let mut sockets = SocketSet::new(&mut places[..]);
    let back = Socket::new(
        SocketBuffer::new(&mut received[..]),
        SocketBuffer::new(&mut sent[..]),
    );
    let end = Socket::new(
        SocketBuffer::new(&mut word[..]),
        SocketBuffer::new(&mut answer[..]),
    );
    let (back, end) = (sockets.add(back), sockets.add(end));
    println!("tcp: listens at {address}");

    let mut kept = [0; MOST];
    let mut served = Served::new(&mut kept);
    loop {
        interface.poll(now(), &mut wire, &mut sockets);
        let moved = served.serve(sockets.get_mut(back));
        if served.is_told(sockets.get_mut(end)) {
            break;
        }
        if !moved && !wire.net.has_received() {
            let delay = interface.poll_delay(now(), &sockets);
            let ms = delay.map_or(LOOK, |delay| delay.total_millis().clamp(1, LOOK));
            wire.sleep(ms);
        }
    }
    println!(
        "tcp: {} connections, {} bytes",
        served.connections, served.bytes
    );
    check::holds("connections", served.connections > 0, "none");
    check::holds("bytes sent back", served.bytes > 0, "none");
    check::equal("bytes without room", served.over, 0);
    // Such as a buffer that comes back without a frame.
    check::equal("broken", wire.net.broken(), 0);
    check::equal("interrupts of nobody", wire.of_nobody, 0);
    check::done();
}

/// What was served.
struct Served<'a> {
    connections: u64,
    bytes: u64,
    /// Bytes for which there was no room.
    over: u64,
    /// What has come by the connection that there is, its bytes, and how many of them were sent back.
    kept: &'a mut [u8],
    came: usize,
    sent: usize,
    /// Somebody has said that it is to end.
    told: bool,
}

impl<'a> Served<'a> {
    fn new(kept: &'a mut [u8]) -> Self {
        Self {
            connections: 0,
            bytes: 0,
            over: 0,
            kept,
            came: 0,
            sent: 0,
            told: false,
        }
    }

    /// Takes what has come, and sends it back when that is all. Returns whether there was something to do.
    fn serve(&mut self, socket: &mut Socket) -> bool {
        if !socket.is_open() {
            (self.came, self.sent) = (0, 0);
            // The port is not 0, and the socket is closed: there is nothing that could be wrong.
            return socket.listen(BACK).is_ok();
        }
        if socket.can_recv() {
            let room = &mut self.kept[self.came..];
            if room.is_empty() {
                let lost = socket.recv(|bytes| (bytes.len(), bytes.len()));
                self.over += lost.unwrap_or(0) as u64;
            } else {
                self.came += socket.recv_slice(room).unwrap_or(0);
            }
            return true;
        }
        if socket.state() != State::CloseWait {
            return false;
        }
        if self.sent == self.came {
            self.connections += 1;
            self.bytes += self.came as u64;
            socket.close();
            return true;
        }
        let rest = &self.kept[self.sent..self.came];
        let bytes = socket.send_slice(rest).unwrap_or(0);
        self.sent += bytes;
        bytes != 0
    }

    /// Whether it is to end, and the other one knows that it was heard.
    fn is_told(&mut self, socket: &mut Socket) -> bool {
        if !socket.is_open() {
            return self.told || socket.listen(END).is_err();
        }
        if socket.state() == State::CloseWait {
            self.told = true;
            socket.close();
        }
        false
    }
}
