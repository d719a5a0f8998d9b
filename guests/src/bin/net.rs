//! Claim: frames of all sizes go between VMs by a virtio network, each once, unaltered, and to nobody else.
//!
//! Each VM finds `peers=` others by broadcasts, sends each of them `frames=` requests of sizes from the shortest to the
//! longest frame, a few at a time, and gets each back as an answer. It also sends frames that nobody must get: to an address
//! that nobody has, to `foreign=` (an address in another VLAN), and with a source address that is not its own; a VM that gets
//! such a frame says so. With `lossy=1` frames may be lost, and are sent again. With `peers=0` it is alone in its VLAN: it
//! calls, and hears nothing for `ms=`.
//!
//! `native=1` leaves out what a network without a switch does: it has no VLANs, and looks at no address.
#![no_std]
#![no_main]

use arrayvec::ArrayVec;
use bulkhead_guests::virtio::net::{DEPTH, LONGEST, Net};
use bulkhead_guests::{Board, check, gic, guest, println, sysreg, timer, virtio};
use virtio_drivers::transport::DeviceType;

guest!(main = main);

type Mac = [u8; 6];

/// Most others.
const PEERS: usize = 8;
const BROADCAST: Mac = [0xff; 6];
/// Nobody's, and of the kind that each may choose.
const NOBODY: Mac = [0x02, 0xde, 0xad, 0, 0, 1];
/// Ethernet: for experiments (IEEE 802, 9.2.3).
const TYPE: [u8; 2] = [0x88, 0xb5];
/// Bytes of the shortest frame.
const SHORTEST: usize = 60;
/// Sizes of frames; from one frame to the next the size grows by [`STEP`] around them, which have no divisor in common.
const SIZES: u64 = (LONGEST - SHORTEST + 1) as u64;
const STEP: u64 = 727;
/// Milliseconds from one call to the next; without an answer until it is lost, and until it is lost where that may be;
/// without any frame until nobody is there any more.
const CALL: u64 = 10;
const PATIENCE: u64 = 500;
const LOSSY_PATIENCE: u64 = 100;
const END: u64 = 10_000;

/// What a frame is.
mod kind {
    /// A call to all: how many the caller has heard.
    pub(super) const CALL: u8 = 1;
    pub(super) const REQUEST: u8 = 2;
    pub(super) const ANSWER: u8 = 3;
    /// To all: the sender needs nobody any more.
    pub(super) const BYE: u8 = 4;
    /// What nobody must get.
    pub(super) const STRAY: u8 = 5;
}

/// Where a frame has what, behind the Ethernet header: kind, whether it is sent again, its length, its number, a sum of
/// everything else.
const KIND: usize = 14;
const AGAIN: usize = 15;
const LENGTH: usize = 16;
const NUMBER: usize = 18;
const SUM: usize = 22;
const FILLING: usize = 30;

fn main(board: &'static Board) {
    gic::init();
    gic::enable(timer::INTID);
    let Some(device) = virtio::listen(board, DeviceType::Network).next() else {
        return println!("FAIL net: there is none");
    };
    let Some(net) = Net::new(device) else {
        return println!("FAIL net: it cannot be driven");
    };
    let argument = |name, usual| board.argument(name).unwrap_or(usual);
    let others = argument("peers", 1).min(PEERS as u64) as usize;
    let mac = net.mac();
    println!("net: {mac:02x?}, {others} others");
    let mut station = Station {
        net,
        mac,
        peers: ArrayVec::new(),
        others,
        frames: argument("frames", SIZES) as u32,
        // What is on its way to one VM has two buffers there for each frame.
        ahead: (DEPTH / 4 / others.max(1)).max(1) as u32,
        foreign: board.argument("foreign").map(address),
        lossy: board.argument("lossy").is_some(),
        has_switch: board.argument("native").is_none(),
        moved: timer::now(),
        counts: Counts::default(),
    };
    if others == 0 {
        station.alone(argument("ms", 100));
    } else {
        station.run();
    }
    station.report();
}

fn address(number: u64) -> Mac {
    let [_, _, mac @ ..] = number.to_be_bytes();
    mac
}

/// Another VM.
#[derive(Debug)]
struct Peer {
    mac: Mac,
    /// It has heard all of its others.
    hears: bool,
    /// It needs nobody any more.
    bye: bool,
    /// Number of its next request.
    expected: u32,
    /// Number of the next request to it, of the first one that was never sent, and of the first one without an answer.
    next: u32,
    fresh: u32,
    answered: u32,
    /// When something came of the requests to it.
    since: u64,
}

#[derive(Debug, Default)]
struct Counts {
    interrupts: u64,
    /// Interrupts that are of neither device nor timer.
    of_nobody: u64,
    /// Frames that were found when there was no interrupt for them.
    unsaid: u64,
    altered: u64,
    doubled: u64,
    lost: u64,
    /// Frames that this VM should not have got.
    strays: u64,
    /// VMs that it should not have heard.
    strangers: u64,
    sent_strays: u64,
}

struct Station {
    net: Net,
    mac: Mac,
    peers: ArrayVec<Peer, PEERS>,
    others: usize,
    frames: u32,
    /// Most requests to one VM without an answer.
    ahead: u32,
    foreign: Option<Mac>,
    lossy: bool,
    has_switch: bool,
    /// When a frame came that brought something on.
    moved: u64,
    counts: Counts,
}

/// Size of the frame with this number.
fn size(number: u32) -> usize {
    SHORTEST + (u64::from(number) * STEP % SIZES) as usize
}

fn milliseconds(ms: u64) -> u64 {
    timer::frequency() / 1000 * ms
}

/// A sum of all bytes but the addresses and those of the sum.
fn sum(frame: &[u8]) -> u64 {
    let bytes = frame[12..SUM].iter().chain(&frame[FILLING..]);
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum: u64, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A frame as far as it is one of these programs.
struct Content {
    kind: u8,
    again: bool,
    number: u32,
}

/// Reads a frame; `None` if it is not as it was sent.
fn read(frame: &[u8]) -> Option<Content> {
    let length = u16::from_be_bytes(frame.get(LENGTH..NUMBER)?.try_into().ok()?);
    let number = u32::from_be_bytes(frame.get(NUMBER..SUM)?.try_into().ok()?);
    let stated = u64::from_be_bytes(frame.get(SUM..FILLING)?.try_into().ok()?);
    let whole = usize::from(length) == frame.len() && stated == sum(frame);
    whole.then_some(Content {
        kind: frame[KIND],
        again: frame[AGAIN] != 0,
        number,
    })
}

impl Station {
    /// Sends a frame; returns whether there was a place for it.
    fn send(&mut self, from: Mac, to: Mac, content: Content, bytes: usize) -> bool {
        self.net.send(bytes, |frame| {
            frame[0..6].copy_from_slice(&to);
            frame[6..12].copy_from_slice(&from);
            frame[12..14].copy_from_slice(&TYPE);
            frame[KIND] = content.kind;
            frame[AGAIN] = content.again.into();
            frame[LENGTH..NUMBER].copy_from_slice(&(bytes as u16).to_be_bytes());
            frame[NUMBER..SUM].copy_from_slice(&content.number.to_be_bytes());
            let mut filling = u64::from(content.number) << 16 | u64::from(from[5]);
            for byte in &mut frame[FILLING..] {
                filling = filling.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                *byte = (filling >> 56) as u8;
            }
            let sum = sum(frame);
            frame[SUM..FILLING].copy_from_slice(&sum.to_be_bytes());
        })
    }

    fn say(&mut self, to: Mac, kind: u8, number: u32) {
        let content = Content {
            kind,
            again: false,
            number,
        };
        self.send(self.mac, to, content, SHORTEST);
    }

    /// Calls, and hears nothing.
    fn alone(&mut self, ms: u64) {
        let end = timer::now() + milliseconds(ms);
        while timer::now() < end {
            self.say(BROADCAST, kind::CALL, 0);
            self.stray();
            self.sleep(CALL);
            self.take_all();
        }
    }

    /// Calls, sends and answers until nobody needs this VM any more.
    fn run(&mut self) {
        let (mut tick, mut last_words) = (0, 3);
        while last_words > 0 && timer::now() - self.moved < milliseconds(END) {
            self.take_all();
            if self.is_heard() {
                self.send_requests();
            }
            if timer::now() >= tick {
                tick = timer::now() + milliseconds(CALL);
                self.speak();
                let byes = self.peers.iter().filter(|peer| peer.bye).count();
                last_words -= u32::from(self.is_done() && byes == self.others);
            }
            if !self.net.has_received() {
                self.sleep(CALL);
            }
        }
    }

    /// What all are told from time to time.
    fn speak(&mut self) {
        if self.is_done() {
            self.say(BROADCAST, kind::BYE, 0);
            return;
        }
        let heard = self.peers.len() as u32;
        self.say(BROADCAST, kind::CALL, heard);
        self.stray();
        let patience = if self.lossy { LOSSY_PATIENCE } else { PATIENCE };
        for peer in &mut self.peers {
            let waits = peer.answered < peer.next;
            if waits && timer::now() - peer.since > milliseconds(patience) {
                self.counts.lost += u64::from(peer.next - peer.answered);
                peer.next = peer.answered;
                peer.since = timer::now();
            }
        }
    }

    /// Sends what nobody must get.
    fn stray(&mut self) {
        if !self.has_switch {
            return;
        }
        let content = || Content {
            kind: kind::STRAY,
            again: false,
            number: 0,
        };
        self.counts.sent_strays += 1;
        self.send(self.mac, NOBODY, content(), SHORTEST);
        if let Some(foreign) = self.foreign {
            self.send(self.mac, foreign, content(), SHORTEST);
        }
        // As if it were nobody, and as if it were the other.
        self.send(NOBODY, BROADCAST, content(), SHORTEST);
        if let Some(peer) = self.peers.first().map(|peer| peer.mac) {
            self.send(peer, BROADCAST, content(), SHORTEST);
        }
    }

    /// Whether all others have heard all that they should hear.
    fn is_heard(&self) -> bool {
        self.peers.len() == self.others && self.peers.iter().all(|peer| peer.hears)
    }

    /// Whether all requests are answered.
    fn is_done(&self) -> bool {
        let all = |peer: &Peer| peer.answered == self.frames;
        self.is_heard() && self.peers.iter().all(all)
    }

    fn send_requests(&mut self) {
        for number in 0..self.peers.len() {
            loop {
                let peer = &self.peers[number];
                let open = peer.next < self.frames && peer.next - peer.answered < self.ahead;
                if !open || !self.net.can_send() {
                    break;
                }
                let request = Content {
                    kind: kind::REQUEST,
                    again: peer.next < peer.fresh,
                    number: peer.next,
                };
                let (to, bytes) = (peer.mac, size(peer.next));
                if !self.send(self.mac, to, request, bytes) {
                    break;
                }
                let peer = &mut self.peers[number];
                if peer.next == peer.answered {
                    peer.since = timer::now();
                }
                peer.next += 1;
                peer.fresh = peer.fresh.max(peer.next);
            }
        }
    }

    /// Takes all frames that have come, as long as there is a place for an answer.
    fn take_all(&mut self) {
        let mut frame = [0; LONGEST];
        while self.net.can_send() {
            let Some(bytes) = self.net.receive(&mut frame) else {
                break;
            };
            self.take(&frame[..bytes]);
        }
    }

    fn take(&mut self, frame: &[u8]) {
        let addressed = |mac: Mac| frame.get(..6) == Some(&mac);
        if !addressed(self.mac) && !addressed(BROADCAST) {
            self.counts.strays += u64::from(self.has_switch);
            return;
        }
        let (Some(source), Some(content)) = (frame.get(6..12), read(frame)) else {
            self.counts.altered += 1;
            return;
        };
        if content.kind == kind::STRAY {
            self.counts.strays += 1;
            return;
        }
        let Some(number) = self.peer(source.try_into().unwrap_or_default()) else {
            self.counts.strangers += 1;
            return;
        };
        let others = self.others as u32;
        let peer = &mut self.peers[number];
        match content.kind {
            kind::CALL => peer.hears |= content.number == others,
            kind::BYE => (peer.hears, peer.bye) = (true, true),
            kind::REQUEST => self.answer(number, &content, frame),
            kind::ANSWER => self.take_answer(number, &content, frame.len()),
            _ => self.counts.altered += 1,
        }
    }

    /// The other with this address, if it is one of those that this VM should hear.
    fn peer(&mut self, mac: Mac) -> Option<usize> {
        if let Some(known) = self.peers.iter().position(|peer| peer.mac == mac) {
            return Some(known);
        }
        if self.peers.len() == self.others {
            return None;
        }
        self.peers.push(Peer {
            mac,
            hears: false,
            bye: false,
            expected: 0,
            next: 0,
            fresh: 0,
            answered: 0,
            since: 0,
        });
        Some(self.peers.len() - 1)
    }

    fn answer(&mut self, number: usize, request: &Content, frame: &[u8]) {
        let peer = &mut self.peers[number];
        // It sends no request before it is heard by all.
        peer.hears = true;
        self.moved = timer::now();
        if request.number < peer.expected && !request.again {
            self.counts.doubled += 1;
        }
        if request.number > peer.expected {
            self.counts.lost += u64::from(request.number - peer.expected);
        }
        peer.expected = peer.expected.max(request.number + 1);
        self.counts.altered += u64::from(frame.len() != size(request.number));
        let answer = Content {
            kind: kind::ANSWER,
            again: request.again,
            number: request.number,
        };
        let to = peer.mac;
        self.send(self.mac, to, answer, frame.len());
    }

    fn take_answer(&mut self, number: usize, answer: &Content, bytes: usize) {
        let peer = &mut self.peers[number];
        self.counts.altered += u64::from(bytes != size(answer.number));
        if answer.number == peer.answered && answer.number < peer.next {
            peer.answered += 1;
            peer.since = timer::now();
            self.moved = peer.since;
        } else if answer.number < peer.answered {
            self.counts.doubled += u64::from(!answer.again);
        }
        // One that comes before its time: another one is lost, and all from that one on are sent again.
    }

    /// Sleeps until a frame has come, or something is sent, or it is time.
    fn sleep(&mut self, ms: u64) {
        timer::arm(timer::now() + milliseconds(ms));
        let mut woken = false;
        while !woken {
            sysreg::wfi();
            let taken = gic::acknowledge();
            match taken.intid() {
                _ if taken.is_none() => continue,
                intid if intid == self.net.intid() => {
                    self.counts.interrupts += 1;
                    self.net.acknowledge();
                }
                timer::INTID => {
                    timer::disarm();
                    if self.net.has_received() {
                        // Its interrupt may be on its way.
                        timer::spin(1000);
                        let pending = gic::bit(gic::ISPENDR, self.net.intid());
                        self.counts.unsaid += u64::from(!pending);
                    }
                }
                _ => self.counts.of_nobody += 1,
            }
            gic::end(taken);
            woken = true;
        }
        timer::disarm();
    }

    fn report(&self) {
        let counts = &self.counts;
        println!("net: {counts:?}");
        check::equal("others found", self.peers.len() as u64, self.others as u64);
        for peer in &self.peers {
            let name = format_args!("answers of {:02x?}", peer.mac);
            check::same(name, peer.answered, self.frames);
            let name = format_args!("requests of {:02x?}", peer.mac);
            check::same(name, peer.expected, self.frames);
        }
        check::equal("altered", counts.altered, 0);
        check::equal("doubled", counts.doubled, 0);
        if !self.lossy {
            check::equal("lost", counts.lost, 0);
        }
        check::equal("what nobody must get", counts.strays, 0);
        check::equal("VMs that must not be heard", counts.strangers, 0);
        check::equal("broken", self.net.broken(), 0);
        let strays = counts.sent_strays > 0 || !self.has_switch;
        check::holds("strays were sent", strays, "none");
        let interrupts = counts.interrupts > 0 || self.others == 0;
        check::holds("it interrupts", interrupts, "it did not");
        check::equal("frames without an interrupt", counts.unsaid, 0);
        check::equal("interrupts of nobody", counts.of_nobody, 0);
        check::done();
    }
}
