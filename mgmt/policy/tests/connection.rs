//! A policy on a connection to an EL2.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use bulkhead_control::connection::Connection;
use bulkhead_control::manager::Manager;
use bulkhead_fake_el2::{El2, Fake};
use bulkhead_policy::engine::{Done, Engine};
use bulkhead_policy::fault::Text;
use bulkhead_policy::reader::read;

fn engine(is_dry: bool) -> Engine {
    let source = "
[rule.any]
vms = [\"linux\"]
pool = [\"0-1\", \"1\"]
when = { measure = \"waiting\", above = \"1%\", for = \"0s\" }
back = { measure = \"cpu\", below = \"1%\" }
pause = \"0s\"
";
    let text = Text {
        name: String::new(),
        source: source.to_owned(),
    };
    Engine::new(read(&text).expect("sound"), is_dry)
}

fn manager(port: UnixStream) -> Manager<UnixStream> {
    Manager::greet(Connection::new(port, 0)).expect("it answers")
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn what_lies_between_two_connections_is_not_measured() {
    let mut engine = engine(true);
    let (el2, port) = El2::start(Fake::default());
    let mut first = manager(port);
    let mut records = Vec::new();
    engine
        .meet(&mut first)
        .expect("it answers")
        .expect("allowed");
    engine.look(&mut first, s(0), &mut records).expect("looked");
    let fake = el2.board().clone();
    el2.unplug();
    engine
        .look(&mut first, s(1), &mut records)
        .expect_err("gone");
    let (_el2, port) = El2::start(fake);
    let mut second = manager(port);
    engine
        .meet(&mut second)
        .expect("it answers")
        .expect("allowed");
    engine
        .look(&mut second, s(100), &mut records)
        .expect("looked");
    assert_eq!(records, []);
    assert_eq!(engine.readings()[0].measured[0].1, None);
    engine
        .look(&mut second, s(101), &mut records)
        .expect("looked");
    assert_eq!(records.len(), 1);
}

#[test]
fn a_refusal_that_does_not_depend_on_others_lasts() {
    let mut engine = engine(false);
    let mut fake = Fake::default();
    fake.vms[1].pool = 0b11;
    let (el2, port) = El2::start(fake);
    let mut manager = manager(port);
    engine
        .meet(&mut manager)
        .expect("it answers")
        .expect("allowed");
    // From now on its pool of the plan is another one.
    el2.board().pool = 0b1;
    let mut records = Vec::new();
    for second in 0..10 {
        engine
            .look(&mut manager, s(second), &mut records)
            .expect("looked");
        el2.say(&bulkhead_abi::control::Message {
            version: bulkhead_abi::control::VERSION,
            kind: bulkhead_abi::control::EVENT_LIMITS,
            vm: 2,
            ..Default::default()
        });
    }
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!(records[0].done, Done::Refused);
    assert!(
        records[0]
            .line()
            .ends_with("refusal=\"each is to be a CPU of the pool in the description\"")
    );
}
