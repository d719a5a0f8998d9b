//! The handshake against a model of EL2 that begins sessions at any time, and of a backend that ends at any time.

use std::cell::RefCell;
use std::rc::Rc;

use bulkhead_abi::device::{Refusal, device_page as page};
use bulkhead_service::memory::Memory;
use bulkhead_service::session::{Description, Session, Step, set_config};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::el2::{self, Device, Plan};
use crate::memory::{Life, TestMemory};

fn device() -> Device {
    let plan = Plan {
        id: 2,
        index: 3,
        unit: 1,
        offered: 0x77,
        config: &[1, 2, 3],
        sizes: &[8, 4],
    };
    Device::new(&el2::backend_page(), &plan)
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Reset,
    El2GoesOn,
    /// The backend looks and does what it finds.
    Look,
    /// It looks, EL2 begins a session, and then it does what it has found.
    LookLate,
    AskForRestart,
    /// The backend's VM starts again, and EL2 has not seen its end before it looks.
    NewLife,
}

fn events() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => Just(Event::Reset),
        5 => Just(Event::El2GoesOn),
        6 => Just(Event::Look),
        1 => Just(Event::LookLate),
        1 => Just(Event::AskForRestart),
        1 => Just(Event::NewLife),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_session_is_served_that_is_older_or_twice(events in vec(events(), 0..80)) {
        let mut el2 = device();
        let memory = el2.memory.clone();
        let mut session = Session::new();
        // What this life serves; what any has begun.
        let mut serves = None;
        let mut begun = 0;
        let mut ready = 0;
        for event in events {
            match event {
                Event::Reset => el2.reset(),
                Event::El2GoesOn => { el2.go_on(0); }
                Event::AskForRestart => {
                    let was = serves.take();
                    session.restart(&memory).unwrap();
                    prop_assert!(was.is_none_or(|was| el2.word(page::RESTART) == was));
                    prop_assert!(!session.is_live());
                }
                Event::NewLife => {
                    session = Session::new();
                    serves = None;
                }
                Event::Look | Event::LookLate => {
                    let step = session.look(&memory).unwrap();
                    if matches!(event, Event::LookLate) {
                        el2.reset();
                    }
                    match step {
                        Step::LetGo(number) => {
                            serves = None;
                            session.let_go(&memory, number).unwrap();
                            prop_assert!(number > ready, "it only grows");
                            ready = number;
                        }
                        Step::Begin => {
                            let live = session.begin(&memory).unwrap();
                            let queues = live.queues.iter().flatten().count();
                            prop_assert!(serves.is_none() && ready > begun);
                            prop_assert_eq!((queues, el2.live), (2, ready));
                            begun = ready;
                            serves = Some(ready);
                        }
                        Step::Tell => prop_assert_eq!(el2.word(page::RESTART), ready),
                        Step::Nothing => {}
                    }
                }
            }
            prop_assert_eq!(session.is_live(), serves.is_some());
            prop_assert_eq!(el2.word(page::READY), ready);
        }
        // From wherever they are, both sides come to serve the present session.
        for _ in 0..5 {
            el2.go_on(0);
            match session.look(&memory).unwrap() {
                Step::LetGo(number) => session.let_go(&memory, number).unwrap(),
                Step::Begin => drop(session.begin(&memory).unwrap()),
                Step::Tell | Step::Nothing => {}
            }
        }
        prop_assert!(session.is_live());
        prop_assert_eq!(el2.live, el2.session);
    }

    /// Whatever is in the page, it is read to an end.
    #[test]
    fn a_page_of_any_bytes_is_read(bytes in vec(any::<u8>(), 0x1000), magic in any::<bool>()) {
        let memory = TestMemory::new(0x2000);
        memory.write(0, &bytes).unwrap();
        if magic {
            memory.store32(0, page::MAGIC_VALUE).unwrap();
            memory.store32(4, page::VERSION_VALUE).unwrap();
        }
        let plan = Description::read(&memory).unwrap();
        prop_assert_eq!(plan.is_some(), magic);
        prop_assert!(plan.is_none_or(|plan| plan.config.len() <= 256));
        let mut session = Session::new();
        for _ in 0..4 {
            match session.look(&memory).unwrap() {
                Step::LetGo(number) => session.let_go(&memory, number).unwrap(),
                Step::Begin => { let _ = session.begin(&memory); }
                _ => {}
            }
            memory.store32(page::LIVE as u64, memory.load32(page::SESSION as u64).unwrap()).unwrap();
        }
    }
}

#[test]
fn a_page_says_what_the_device_is() {
    let el2 = device();
    let plan = Description::read(&el2.memory).unwrap().unwrap();
    assert_eq!(
        (plan.id, plan.index, plan.unit, plan.offered),
        (2, 3, 1, 0x77)
    );
    assert_eq!(plan.bytes, el2.memory.bytes());
    assert_eq!(plan.config.as_slice(), [1, 2, 3]);
    el2.memory.store32(page::VERSION as u64, 2).unwrap();
    assert_eq!(Description::read(&el2.memory), Ok(None));
    assert!(Description::read(&TestMemory::new(0x80)).is_ok_and(|plan| plan.is_none()));
}

#[test]
fn only_enabled_queues_are_served_and_only_where_queues_can_be() {
    let mut el2 = device();
    let memory = el2.memory.clone();
    let mut session = Session::new();
    assert_eq!(session.look(&memory), Ok(Step::LetGo(1)));
    session.let_go(&memory, 1).unwrap();
    assert_eq!(session.look(&memory), Ok(Step::Nothing), "not live");
    assert!(el2.go_on(0));
    let queue = page::QUEUE as u64;
    memory
        .store32(queue + page::QUEUE_ENABLED as u64, 0)
        .unwrap();
    memory.store32(queue + page::QUEUE_SIZE as u64, 7).unwrap();
    assert_eq!(session.look(&memory), Ok(Step::Begin));
    let live = session.begin(&memory).unwrap();
    assert!(live.queues[0].is_none() && live.queues[1].is_some() && live.queues[2].is_none());
    el2.reset();
    assert_eq!(session.look(&memory), Ok(Step::LetGo(2)));
    session.let_go(&memory, 2).unwrap();
    el2.go_on(0);
    memory.store32(queue + page::QUEUE_SIZE as u64, 7).unwrap();
    assert_eq!(session.look(&memory), Ok(Step::Begin));
    assert!(session.begin(&memory).is_err());
    assert!(!session.is_live());
    assert_eq!(
        session.look(&memory),
        Ok(Step::Nothing),
        "it waits for the next session"
    );
}

#[test]
fn a_refused_device_stays_so_and_the_next_life_may_think_otherwise() {
    let mut el2 = device();
    let mut session = Session::new();
    session.refuse(&el2.memory, Refusal::Size).unwrap();
    assert_eq!(el2.word(page::REFUSAL), Refusal::Size as u32);
    el2.reset();
    assert_eq!(session.look(&el2.memory), Ok(Step::Nothing));
    assert_eq!(el2.word(page::READY), 0);
    let mut session = Session::new();
    session.let_go(&el2.memory, 2).unwrap();
    assert_eq!((el2.word(page::REFUSAL), el2.word(page::READY)), (0, 2));
}

/// EL2 reads the config before any one access of the backend: what it believes is one of the two.
#[test]
fn a_config_is_taken_whole() {
    let read = |memory: &TestMemory| {
        let generation = memory.load32(page::GENERATION as u64).unwrap();
        let even = generation != 0 && generation.is_multiple_of(2);
        even.then(|| memory.bytes_of(page::BACKEND_CONFIG as u64, 250))
    };
    for step in 0..10 {
        let memory = TestMemory::new(0x1000);
        set_config(&memory, &[1; 250]).unwrap();
        let life = Rc::new(Life::default());
        let seen = Rc::new(RefCell::new(None));
        let (other, found) = (memory.clone(), seen.clone());
        life.at(step, move || *found.borrow_mut() = read(&other));
        set_config(&memory.with(&life), &[2; 250]).unwrap();
        if let Some(config) = seen.borrow().as_deref() {
            assert!(config == [1; 250] || config == [2; 250], "step {step}");
        }
        assert_eq!(read(&memory).unwrap(), [2; 250]);
    }
    // A life that ended in the middle has left an odd number; the last is followed by the first that is valid.
    let memory = TestMemory::new(0x1000);
    for (before, after) in [(0, 2), (3, 4), (4, 6), (u32::MAX, 2), (u32::MAX - 1, 2)] {
        memory.store32(page::GENERATION as u64, before).unwrap();
        set_config(&memory, &[9; 300]).unwrap();
        assert_eq!(memory.load32(page::GENERATION as u64), Ok(after));
        assert_eq!(
            memory.bytes_of(page::BACKEND_CONFIG as u64, 257)[255..],
            [9, 0]
        );
    }
}
