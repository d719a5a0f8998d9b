//! Claim: what a virtio device costs is a number that anybody can count again.
//!
//! Reads a disk, a read at a time and 32 at once, and sends frames to a VM that sends them back, one at a time and 32 at
//! once; then rings it by a doorbell of a channel and is rung, each time out of sleep, and says how long a message takes; then both poll another channel. With a control port it makes requests there, and nothing else. It marks each as `figures.rs` says, in several runs that differ in what is read and in when they begin. It sleeps for as
//! long as there is nothing to do. With `echo=1` it is the other VM. With `beside=1` it works for as long as the first one
//! does (word 0 of the shared memory `end`), on a CPU that somebody else needs.
//!
//! It knows virtio-mmio and nothing else, so that other hypervisors can be measured by it.
#![no_std]
#![no_main]

use bulkhead_abi::control::Kind;
use bulkhead_channel::{Receiver, Sender, open};
use bulkhead_guests::board::Device;
use bulkhead_guests::figures::{self, DEVICE_RUNS, DEVICES, device_run};
use bulkhead_guests::marks::{mark_begin, mark_end};
use bulkhead_guests::mmio::write32;
use bulkhead_guests::virtio::net::{LONGEST, Net};
use bulkhead_guests::virtio::port::ControlPort;
use bulkhead_guests::virtio::reads::{BYTES, READS, Reads};
use bulkhead_guests::{Board, gic, guest, println, shared, sysreg, timer, virtio};
use core::sync::atomic::Ordering::Relaxed;
use virtio_drivers::transport::DeviceType;
use zerocopy::IntoBytes;

guest!(main = main);

/// Seconds without anything new after which there will be none.
const PATIENCE: u64 = 20;
/// Milliseconds from one attempt to reach the other VM to the next, and for which the last frame is under way.
const RETRY_MS: u64 = 5;
/// Frames of a batch.
const BATCH: u32 = 32;
/// From the start of one run to that of the next, beside what they take, in microseconds.
const APART_US: u64 = 137;
/// Time between two messages that ring, in microseconds: more than is between two interrupts at least.
const BELLS_APART_US: u64 = 15;
/// Sectors of a read, and from the place of one read to that of the next.
const SECTORS: u64 = BYTES as u64 / 512;
const STRIDE: u64 = SECTORS * 5;
/// Times that [`beside`] does some 200 instructions between two looks.
const WORK: u32 = 2;

/// Where a frame has its number, behind addresses and type, and the type (IEEE 802, for experiments).
const NUMBER: usize = 14;
const TYPE: [u8; 2] = [0x88, 0xb5];
/// Number of the frame that ends the other VM.
const END: u32 = u32::MAX;
/// Number of frames that are sent until one comes back.
const HELLO: u32 = u32::MAX - 1;

fn main(board: &'static Board) {
    let end = board.shared("end").map(shared::words);
    if board.argument("beside").is_some() {
        while end.is_some_and(|end| end[0].load(Relaxed) == 0) {
            beside();
        }
        return;
    }
    gic::init();
    gic::enable(timer::INTID);
    let first = |kind| virtio::listen(board, kind).next();
    if let Some(port) = first(DeviceType::Console).and_then(roomy) {
        let mut control = Control { port };
        let done = control.measure();
        // A reset is repeated until the service thread has had its turn, and an emulator whose CPUs take turns gives it none for long.
        core::mem::forget(control);
        return match done {
            Ok(()) => println!("device-cost: all seen"),
            Err(why) => println!("device-cost: {why}"),
        };
    }
    let (disk, card) = (first(DeviceType::Block), first(DeviceType::Network));
    let net = card.and_then(Net::new);
    let bell = Bell::new(board);
    let mut looks = Looks::new(board);
    let done = if board.argument("echo").is_some() {
        net.zip(bell).map(|(net, mut bell)| {
            Port { net }.echo()?;
            timer::arm(timer::now() + timer::frequency() * PATIENCE);
            bell.echo()?;
            looks.as_mut().map_or(Ok(()), Exchange::echo)
        })
    } else {
        let disk = disk.and_then(Reads::new);
        disk.zip(net).zip(bell).map(|((disk, net), mut bell)| {
            Disk { disk, next: 0 }.measure()?;
            Port { net }.measure()?;
            bell.measure()?;
            looks.as_mut().map_or(Ok(()), Looks::measure)
        })
    };
    if let Some(end) = end {
        end[0].store(1, Relaxed);
    }
    match done {
        Some(Ok(())) => println!("device-cost: all seen"),
        Some(Err(why)) => println!("device-cost: {why}"),
        None => println!("device-cost: there is no disk, no network or no channel"),
    }
}

/// Works, and gives CPUs that an emulator runs in turns a turn each. Without branches: who counts pays for each of them.
fn beside() {
    macro_rules! eight_times {
        ($do:expr) => {
            $do;
            $do;
            $do;
            $do;
            $do;
            $do;
            $do;
            $do;
        };
    }
    let mut work = 0u64;
    for _ in 0..WORK {
        eight_times!(eight_times!(
            work = core::hint::black_box(work.wrapping_add(1))
        ));
    }
    sysreg::cpu_yield();
}

type Done = Result<(), &'static str>;

/// The operations of a figure in each run, each of which `operation` does, of figure and operation.
fn runs(id: u64, mut operation: impl FnMut(u64, u32) -> Done, whole: bool) -> Done {
    let operations = DEVICES.iter().find(|figure| figure.id == id);
    let operations = operations.map_or(0, |figure| figure.operations);
    for run in 0..DEVICE_RUNS {
        timer::spin(APART_US * (run + 1));
        let id = device_run(id, run);
        if whole {
            mark_begin(id);
        }
        for number in 0..operations {
            operation(id, number)?;
        }
        if whole {
            mark_end(id);
        }
    }
    Ok(())
}

/// A disk, with the sector that is read next.
struct Disk {
    disk: Reads,
    next: u64,
}

impl Disk {
    fn measure(&mut self) -> Done {
        timer::arm(timer::now() + timer::frequency() * PATIENCE);
        // The first one waits until somebody serves the disk.
        self.read(1, None)?;
        self.read(READS, None)?;
        runs(
            figures::VIRTIO_NOTIFY,
            |id, _| self.read(1, Some(id)),
            false,
        )?;
        runs(figures::BLK, |_, _| self.read(1, None), true)?;
        runs(figures::BLK_D32, |_, _| self.read(READS, None), true)
    }

    /// Reads so often at once, and marks by which operation the device is told.
    fn read(&mut self, count: usize, tells: Option<u64>) -> Done {
        let sectors = self.disk.capacity().saturating_sub(SECTORS).max(1);
        for number in 0..count {
            let begun = self.disk.begin(number, self.next % sectors);
            begun.map_err(|_| "a read does not fit")?;
            self.next += STRIDE;
        }
        if let Some(id) = tells {
            mark_begin(id);
            self.disk.tell();
            mark_end(id);
        } else {
            self.disk.tell();
        }
        let mut left = count;
        while left != 0 {
            while let Some(read) = self.disk.finish() {
                read.map_err(|_| "a read has failed")?;
                left -= 1;
            }
            if left != 0 && !self.disk.has_finished() {
                let intid = self.disk.intid();
                sleep(intid, || self.disk.acknowledge())?;
            }
        }
        Ok(())
    }
}

/// Opens a control port with room for an answer and for events, as a stock driver has.
fn roomy(console: Device) -> Option<ControlPort> {
    ControlPort::with_room(console, 3)
}

/// The control port.
struct Control {
    port: ControlPort,
}

/// Requests in turn: what they ask for, of VM 1, which is fair, and their values. One is not there, and for one there is no right.
const ASKED: [(Kind, u16, [u64; 4]); 8] = [
    (Kind::Hello, 0, [0; 4]),
    (Kind::Vm, 1, [0; 4]),
    (Kind::Vcpu, 1, [0; 4]),
    (Kind::Service, 1, [0; 4]),
    (Kind::Weight, 1, [3, 0, 0, 0]),
    (Kind::Cap, 1, [50_000_000, 100_000_000, 0, 0]),
    (Kind::Stop, 1, [0; 4]),
    (Kind::Vm, 99, [0; 4]),
];

impl Control {
    fn measure(&mut self) -> Done {
        timer::arm(timer::now() + timer::frequency() * PATIENCE);
        for number in 0..ASKED.len() as u32 {
            self.ask(number, false)?;
        }
        runs(
            figures::CONTROL_MESSAGE,
            |_, number| self.ask(number, false),
            true,
        )?;
        self.port.acknowledge();
        runs(
            figures::CONTROL_MESSAGE_INTERRUPT,
            |_, number| self.ask(number, true),
            true,
        )
    }

    /// Makes a request, and waits for its answer: asleep, if it is not there yet, or until the interrupt for it has come all the same, as stock drivers do.
    fn ask(&mut self, number: u32, mut interrupted: bool) -> Done {
        let (kind, vm, values) = ASKED[number as usize % ASKED.len()];
        let request = self.port.request(kind, vm, 0, values);
        let posted = self.port.post(request.as_bytes(), 1);
        posted.map_err(|_| "a request does not fit")?;
        let mut answered = false;
        loop {
            if core::mem::take(&mut interrupted) {
                let intid = self.port.intid();
                sleep(intid, || _ = self.port.acknowledge())?;
            }
            // A change of limits is an event, too. That the request was read may be seen later than the answer.
            while let Some(message) = self.port.message() {
                answered |= message.number == request.number;
            }
            if answered && self.port.is_read() {
                return Ok(());
            }
            if !self.port.has_message() {
                let intid = self.port.intid();
                sleep(intid, || _ = self.port.acknowledge())?;
            }
        }
    }
}

/// A port of the network.
struct Port {
    net: Net,
}

impl Port {
    fn measure(&mut self) -> Done {
        self.reach()?;
        timer::arm(timer::now() + timer::frequency() * PATIENCE);
        runs(
            figures::NET,
            |_, number| self.there_and_back(number, 1),
            true,
        )?;
        runs(
            figures::NET_B32,
            |_, number| self.there_and_back(number * BATCH, BATCH),
            true,
        )?;
        self.send(END)?;
        // For as long as it is under way; nothing else comes.
        timer::arm(timer::now() + timer::ticks(RETRY_MS * 1000));
        let intid = self.net.intid();
        while sleep(intid, || _ = self.net.acknowledge()).is_ok() {}
        Ok(())
    }

    /// Sends until the other VM answers.
    fn reach(&mut self) -> Done {
        for _ in 0..PATIENCE * 1000 / RETRY_MS {
            self.send(HELLO)?;
            timer::arm(timer::now() + timer::ticks(RETRY_MS * 1000));
            let intid = self.net.intid();
            while sleep(intid, || _ = self.net.acknowledge()).is_ok() {
                if self.take() == Some(HELLO) {
                    return Ok(());
                }
            }
        }
        Err("nobody answers")
    }

    /// Sends frames and waits until all have come back.
    fn there_and_back(&mut self, first: u32, count: u32) -> Done {
        for number in first..first + count {
            self.send(number)?;
        }
        let mut next = first;
        while next != first + count {
            match self.take() {
                Some(HELLO) => {}
                Some(number) if number == next => next += 1,
                Some(_) => {
                    return Err("a frame has come that was not sent, or another one is lost");
                }
                None => self.wait()?,
            }
        }
        Ok(())
    }

    /// Sends back what comes, all that is there at once.
    fn echo(&mut self) -> Done {
        timer::arm(timer::now() + timer::frequency() * PATIENCE);
        let mut numbers = [0; BATCH as usize];
        loop {
            let mut count = 0;
            while count < numbers.len()
                && let Some(number) = self.take()
            {
                numbers[count] = number;
                count += 1;
            }
            for number in &numbers[..count] {
                if *number == END {
                    return Ok(());
                }
                self.send(*number)?;
            }
            if !self.net.has_received() {
                self.wait()?;
            }
        }
    }

    fn wait(&mut self) -> Done {
        let intid = self.net.intid();
        sleep(intid, || _ = self.net.acknowledge())
    }

    /// The longest frame, to everybody else: there is one.
    fn send(&mut self, number: u32) -> Done {
        let source = self.net.mac();
        let sent = self.net.send(LONGEST, |frame| {
            frame[..6].fill(0xff);
            frame[6..12].copy_from_slice(&source);
            frame[12..NUMBER].copy_from_slice(&TYPE);
            frame[NUMBER..NUMBER + 4].copy_from_slice(&number.to_le_bytes());
        });
        sent.then_some(()).ok_or("there is no place for a frame")
    }

    /// The number of the next frame that has come.
    fn take(&mut self) -> Option<u32> {
        let number = |frame: &[u8]| {
            let whole = frame.len() == LONGEST && frame.get(12..NUMBER) == Some(&TYPE);
            let bytes = frame.get(NUMBER..)?.first_chunk()?;
            whole.then_some(u32::from_le_bytes(*bytes))
        };
        self.net.look(number)?
    }
}

/// An end of a channel whose messages come back.
trait Exchange {
    fn send(&mut self, number: u32) -> Done;

    /// The number of the next message, which it waits for.
    fn take(&mut self) -> Result<u32, &'static str>;

    fn there_and_back(&mut self, number: u32) -> Done {
        self.send(number)?;
        match self.take()? {
            same if same == number => Ok(()),
            _ => Err("a message has come that was not sent"),
        }
    }

    /// Sends back what comes.
    fn echo(&mut self) -> Done {
        loop {
            match self.take()? {
                END => return Ok(()),
                number => self.send(number)?,
            }
        }
    }
}

/// An end of the channel. Both hear by a doorbell.
struct Bell {
    sender: Sender<'static>,
    receiver: Receiver<'static>,
    page: usize,
    intid: u32,
}

impl Bell {
    fn new(board: &'static Board) -> Option<Self> {
        let channel = board.channels.first()?;
        let [own, peer] = channel.memory.map(shared::words);
        let (sender, receiver) = open(own, peer, channel.shape)?;
        let intid = channel.intid?;
        gic::set_edge(intid, true);
        gic::enable(intid);
        Some(Self {
            sender,
            receiver,
            page: channel.page?,
            intid,
        })
    }

    fn measure(&mut self) -> Done {
        timer::arm(timer::now() + timer::frequency() * PATIENCE);
        // The first one waits until the other VM is there.
        self.there_and_back(0)?;
        let (mut sum, mut count) = (0, 0);
        let (mut least, mut most) = (u64::MAX, 0);
        runs(
            figures::CHANNEL_DOORBELL,
            |_, number| {
                // The last ring is longer ago than two have to be apart.
                timer::spin(BELLS_APART_US);
                let before = timer::now();
                self.there_and_back(number)?;
                let one_way = (timer::now() - before) / 2;
                (sum, count) = (sum + one_way, count + 1);
                (least, most) = (least.min(one_way), most.max(one_way));
                Ok(())
            },
            true,
        )?;
        let mean = sum / count;
        println!("latency channel_doorbell: ticks min={least} avg={mean} max={most}");
        self.send(END)
    }
}

impl Exchange for Bell {
    fn send(&mut self, number: u32) -> Done {
        let ring = self.sender.send(&number.to_le_bytes());
        if ring.map_err(|_| "there is no place for a message")? {
            sysreg::dsb();
            write32(self.page, 0);
        }
        Ok(())
    }

    /// Sleeps meanwhile.
    fn take(&mut self) -> Result<u32, &'static str> {
        let mut bytes = [0; 4];
        loop {
            match self.receiver.look(&mut bytes) {
                Ok(Some(4)) => {
                    self.receiver.take();
                    return Ok(u32::from_le_bytes(bytes));
                }
                Ok(None) if self.receiver.wait() => sleep(self.intid, || ())?,
                Ok(None) => {}
                _ => return Err("a message is not as it was sent"),
            }
        }
    }
}

/// An end of the channel whose ends poll.
struct Looks {
    sender: Sender<'static>,
    receiver: Receiver<'static>,
}

impl Looks {
    fn new(board: &'static Board) -> Option<Self> {
        let channel = board.channels.get(1)?;
        let [own, peer] = channel.memory.map(shared::words);
        let (sender, receiver) = open(own, peer, channel.shape)?;
        Some(Self { sender, receiver })
    }

    fn measure(&mut self) -> Done {
        self.there_and_back(0)?;
        runs(
            figures::CHANNEL_POLLED,
            |_, number| self.there_and_back(number),
            true,
        )?;
        self.send(END)
    }
}

impl Exchange for Looks {
    fn send(&mut self, number: u32) -> Done {
        match self.sender.send(&number.to_le_bytes()) {
            Ok(false) => Ok(()),
            Ok(true) => Err("an end that polls is to be rung"),
            Err(_) => Err("there is no place for a message"),
        }
    }

    /// Looks meanwhile. An emulator that runs CPUs in turns gives the other one its turn meanwhile.
    fn take(&mut self) -> Result<u32, &'static str> {
        let mut bytes = [0; 4];
        loop {
            match self.receiver.look(&mut bytes) {
                Ok(Some(4)) => {
                    self.receiver.take();
                    return Ok(u32::from_le_bytes(bytes));
                }
                Ok(None) => sysreg::cpu_yield(),
                _ => return Err("a message is not as it was sent"),
            }
        }
    }
}

/// Sleeps until the device has interrupted, which `acknowledge` is told; an error when the timer comes first.
fn sleep(intid: u32, acknowledge: impl FnOnce()) -> Done {
    loop {
        sysreg::wfi();
        let taken = gic::acknowledge();
        if taken.is_none() {
            continue;
        }
        if taken.intid() == timer::INTID {
            timer::disarm();
            gic::end(taken);
            return Err("nothing has come for long");
        }
        if taken.intid() == intid {
            acknowledge();
            gic::end(taken);
            return Ok(());
        }
        gic::end(taken);
    }
}
