//! Lines about what devices have done: what they say is what a tool reads, and there are not too many of them.

use bulkhead_abi::console::{DiskDid, PortDid, REASONS};
use bulkhead_service::backend::Units;
use bulkhead_service::lines::{BURST, Counted, Lines, Next};
use bulkhead_service::{disk, switch};

const REST: u64 = 100;

/// A disk and a port, both of number 3.
#[derive(Default)]
struct Devices {
    disk: disk::Counters,
    port: switch::Counters,
}

impl Counted for Devices {
    fn disk(&self, unit: usize) -> Option<(&str, &str, disk::Counters)> {
        (unit == 3).then_some(("data", "one", self.disk))
    }

    fn port(&self, unit: usize) -> Option<(&str, &str, switch::Counters)> {
        (unit == 3).then_some(("lan", "two", self.port))
    }
}

/// All that is said at a time, and what comes then.
fn said(lines: &mut Lines, devices: &Devices, now: u64) -> (String, Next) {
    let mut all = Vec::new();
    loop {
        match lines.next(devices, now) {
            Next::Byte(byte) => {
                // Without room the same one comes again.
                assert_eq!(lines.next(devices, now), Next::Byte(byte));
                all.push(byte);
                lines.sent();
            }
            other => return (String::from_utf8(all).unwrap(), other),
        }
    }
}

const BOTH: Units = Units { ports: 8, disks: 8 };

#[test]
fn lines_say_what_tools_read() {
    let mut devices = Devices::default();
    devices.disk.read_bytes = u64::MAX;
    devices.disk.reads = 10;
    devices.disk.written_bytes = 2048;
    devices.disk.flushes = 3;
    (devices.disk.failed, devices.disk.mute) = (4, 1);
    devices.port.from_guest.frames = 12;
    devices.port.to_guest.bytes = 512;
    let mut lines = Lines::new(REST);
    // Who asks for what there is not gets nothing.
    lines.say(Units::first(64, 64));
    let (text, next) = said(&mut lines, &devices, 0);
    assert_eq!(next, Next::Nothing);
    let [disk, port] = text.lines().collect::<Vec<_>>()[..] else {
        panic!("{text}");
    };
    assert_eq!(
        disk,
        "disk 3, data of one: read 18446744073709551615 bytes in 10, written 2048 in 0, flushed 3, failed 5"
    );
    let read = DiskDid::parse(disk).unwrap();
    assert_eq!((read.unit, read.vm.as_str(), read.failed), (3, "one", 5));
    assert_eq!(
        port,
        "port 3, two in lan: sent 0 bytes in 12, received 512 in 0, dropped 0"
    );
    let read = PortDid::parse(port).unwrap();
    assert_eq!((read.network.as_str(), read.sent), ("lan", 12));
    assert_eq!(read.dropped.total(), 0);
}

#[test]
fn reasons_are_read_as_they_are_written() {
    let line = |dropped: &str| {
        let line = format!("port 0, a in b: sent 1 bytes in 2, received 3 in 4, dropped {dropped}");
        PortDid::parse(&line).map(|did| did.dropped.0)
    };
    assert_eq!(line("0"), Some([0; REASONS.len()]));
    assert_eq!(
        line("6: short 1, source 2, small 3"),
        Some([1, 0, 0, 0, 2, 0, 0, 0, 0, 3])
    );
    assert_eq!(line("6: short 1"), None, "another sum");
    assert_eq!(line("1: nobody 1"), None, "no such reason");
}

#[test]
fn who_asks_all_the_time_gets_a_line_now_and_then() {
    let devices = Devices::default();
    let mut lines = Lines::new(REST);
    let mut count = 0;
    let now = 1_000_000;
    loop {
        lines.say(BOTH);
        let (text, next) = said(&mut lines, &devices, now);
        count += text.lines().count() as u64;
        match next {
            Next::Nothing => {}
            Next::At(time) => {
                assert!(time > now && time <= now + REST, "{time}");
                break;
            }
            Next::Byte(_) => unreachable!(),
        }
        assert!(count < 10 * BURST);
    }
    assert!((BURST..=BURST + 1).contains(&count), "{count}");
    // One for each rest, and what was due is said in the end.
    let later = now + 10 * REST;
    for _ in 0..50 {
        lines.say(BOTH);
        count += said(&mut lines, &devices, later).0.lines().count() as u64;
    }
    assert!((BURST + 10..=BURST + 11).contains(&count), "{count}");
    let (text, next) = said(&mut lines, &devices, later + 2 * REST);
    assert_eq!((text.lines().count(), next), (2, Next::Nothing));
}
