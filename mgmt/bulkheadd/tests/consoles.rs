//! The daemon keeps what VMs print, and answers clients as EL2 would.

mod daemon;

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bulkhead_abi::control::{EVENT_OUTPUT, Kind, Request, Status, right};
use bulkhead_control::board::Vm;
use bulkhead_control::connection::Connection;
use bulkhead_control::manager::Manager;
use bulkhead_fake_el2::Fake;

use daemon::Daemon;

const SOON: Option<Duration> = Some(Duration::from_secs(5));
/// Long enough for what must not come.
const A_WHILE: Option<Duration> = Some(Duration::from_millis(100));

fn manager(daemon: &Daemon) -> Manager<File> {
    let stream = UnixStream::connect(daemon.socket()).expect("it listens");
    let connection = Connection::new(File::from(OwnedFd::from(stream)), 0);
    Manager::greet(connection).expect("EL2 answers")
}

/// Reads all that there is from a byte on; gives the number of the first, and the bytes.
fn read(manager: &mut Manager<File>, vm: &Vm, from: u64) -> (u64, Vec<u8>) {
    let first = manager.printed(vm, from).expect("it tells").first;
    let (mut all, mut next) = (Vec::new(), first);
    loop {
        let printed = manager.printed(vm, next).expect("it tells");
        assert_eq!(printed.first, next, "nothing is lost on the way");
        if printed.bytes.is_empty() {
            assert!(!printed.more);
            return (first, all);
        }
        next = printed.next();
        all.extend(printed.bytes);
    }
}

#[test]
fn more_is_kept_than_el2_has_and_all_clients_read_it() {
    let daemon = Daemon::start();
    let el2 = daemon.plug(Fake::default());
    let text: String = (0..400).map(|n| format!("line {n} of many\r\n")).collect();
    for (number, piece) in text.as_bytes().chunks(500).enumerate() {
        el2.print(1, piece);
        let line = String::from_utf8_lossy(&text.as_bytes()[..500 * (number + 1).min(14)])
            .lines()
            .count();
        // It has read that before the next piece overwrites what EL2 keeps.
        let told = line.saturating_sub(3);
        daemon.wait_for(|log| log.contains(&format!("linux| line {told} of many\n")));
    }
    daemon.wait_for(|log| log.contains("linux| line 399 of many\n"));
    assert_eq!(daemon.logged().matches("linux| ").count(), 400);
    for _ in 0..2 {
        let mut manager = manager(&daemon);
        let vm = manager.find("linux").expect("it is there");
        assert_eq!(read(&mut manager, &vm, 0), (0, text.clone().into_bytes()));
        assert_eq!(
            read(&mut manager, &vm, 6000),
            (6000, text.as_bytes()[6000..].to_vec())
        );
    }
}

#[test]
fn who_has_read_all_is_told_and_nobody_else() {
    let daemon = Daemon::start();
    let el2 = daemon.plug(Fake::default());
    let (mut reads, mut other) = (manager(&daemon), manager(&daemon));
    let vm = reads.find("linux").expect("it is there");
    assert_eq!(read(&mut reads, &vm, 0), (0, Vec::new()));
    el2.print(1, b"one\n");
    let event = reads
        .connection
        .event(SOON)
        .expect("it lives")
        .expect("an event");
    assert_eq!((event.kind, event.vm), (EVENT_OUTPUT, 1));
    el2.print(1, b"two\n");
    daemon.wait_for(|log| log.contains("linux| two"));
    assert!(
        reads.connection.event(A_WHILE).expect("it lives").is_none(),
        "once"
    );
    assert_eq!(read(&mut reads, &vm, 0), (0, b"one\ntwo\n".to_vec()));
    el2.print(1, b"three\n");
    assert!(reads.connection.event(SOON).expect("it lives").is_some());
    assert!(other.connection.event(A_WHILE).expect("it lives").is_none());
}

#[test]
fn el2_refuses_whom_it_would_refuse() {
    let mut fake = Fake::default();
    fake.vms[1].rights = right::LIST | right::DUMP;
    let daemon = Daemon::start();
    let _el2 = daemon.plug(fake);
    let mut client = daemon.client();
    let asked = |kind: Kind, values| Request {
        kind: kind as u16,
        vm: 1,
        values,
        ..Request::default()
    };
    for request in [
        asked(Kind::Output, [0, 10, 0, 0]),
        asked(Kind::Input, [1, 0x61, 0, 0]),
    ] {
        let answer = client.call(request).expect("answered");
        assert_eq!(Status::of(answer.status), Some(Status::Rights));
    }
    let mut request = asked(Kind::Output, [0, 5000, 0, 0]);
    request.vm = 2;
    let answer = client.call(request).expect("answered");
    assert_eq!(
        Status::of(answer.status),
        Some(Status::Value),
        "of a VM whose console it keeps"
    );
}

#[test]
fn what_is_kept_outlives_the_port() {
    let daemon = Daemon::start();
    let el2 = daemon.plug(Fake::default());
    el2.print(1, b"before\n");
    daemon.wait_for(|log| log.contains("linux| before"));
    let mut board = el2.board().clone();
    el2.unplug();
    daemon.wait_for(|log| log.contains("the port is gone"));
    board.vms[1].printed.extend(b"meanwhile\n");
    let el2 = daemon.plug(board);
    daemon.wait_for(|log| log.contains("linux| meanwhile"));
    el2.print(1, b"after\n");
    daemon.wait_for(|log| log.contains("linux| after"));
    let mut manager = manager(&daemon);
    let vm = manager.find("linux").expect("it is there");
    let text = b"before\nmeanwhile\nafter\n".to_vec();
    assert_eq!(read(&mut manager, &vm, 0), (0, text));
}

#[test]
fn who_asks_and_does_not_read_stops_nobody() {
    let daemon = Daemon::start();
    let el2 = daemon.plug(Fake::default());
    el2.print(1, &[b'x'; 900]);
    let mut silent = UnixStream::connect(daemon.socket()).expect("it listens");
    silent.set_nonblocking(true).expect("a socket");
    let mut connection = Connection::new(silent.try_clone().expect("a socket"), 0);
    connection.patience = Duration::from_millis(300);
    let ask = Request {
        kind: Kind::Output as u16,
        vm: 1,
        values: [0, 500, 0, 0],
        ..Request::default()
    };
    let mut sent = 0;
    while connection.send(ask).is_ok() {
        sent += 1;
        assert!(sent < 1_000_000, "it takes whatever comes");
    }
    let mut manager = manager(&daemon);
    let vm = manager.find("linux").expect("others are served");
    assert_eq!(read(&mut manager, &vm, 0).1.len(), 900);
    // What was answered is there for who reads at last.
    let mut bytes = [0; 1000];
    assert!(silent.read(&mut bytes).is_ok_and(|read| read > 0));
}
