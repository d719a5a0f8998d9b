//! Claim: a manager that asks VMs to stop gets what it asks for: who obeys ends by itself, who does not is ended when its time is over and not before,
//! no policy starts again who was asked, and of several orders the one that was answered last holds.
//!
//! The VMs ([`stop-asked`](stop-asked.rs)) are, by index: itself, `word` and `key` (power off), `deaf` (does nothing), `resets`, `crashes` (both have
//! policies that start them again), `hard` (a control loop's class: it takes its interrupts itself) and `unasked`.
#![no_std]
#![no_main]

use bulkhead_abi::call::End;
use bulkhead_abi::control::{EVENT_STATE, Follows, Kind, Message, Phase, Status, crash};
use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::syndrome;
use bulkhead_guests::virtio::port::ControlPort;
use bulkhead_guests::{Board, check, gic, guest, println, shared, sysreg, timer};
use core::sync::atomic::Ordering::Relaxed;

guest!(main = main);

const WORD: u16 = 1;
const KEY: u16 = 2;
const DEAF: u16 = 3;
const RESETS: u16 = 4;
const CRASHES: u16 = 5;
const HARD: u16 = 6;
const UNASKED: u16 = 7;
const NONE: [u64; 4] = [0; 4];
/// Microseconds for which `deaf` has time, by the description.
const TIME: u64 = 40_000;
/// Microseconds after which something is taken for not happening.
const PATIENCE: u64 = 5_000_000;

/// The manager, and what VMs say that they have heard.
struct Manager {
    port: ControlPort,
    heard: shared::Words,
}

fn main(board: &'static Board) {
    gic::init();
    let port = ControlPort::of(board);
    let heard = board.shared("heard").map(shared::words);
    let (Some(port), Some(heard)) = (port, heard) else {
        return println!("FAIL stop-manager: there is no control port, or no memory");
    };
    let mut manager = Manager { port, heard };
    for vm in [WORD, KEY, DEAF, RESETS, CRASHES, HARD] {
        manager.is_up(vm, 1);
    }
    manager.who_obeys_ends_by_itself();
    manager.who_does_not_is_ended_in_time();
    manager.no_policy_starts_it_again();
    manager.the_last_order_holds();
    manager.what_does_not_fit_is_refused();
    manager.who_asks_may_go_away();
    manager.any_orders();
    for (vm, end) in [
        (HARD, End::Off),
        (WORD, End::Off),
        (KEY, End::Off),
        (DEAF, End::Overdue),
        (RESETS, End::Reset),
        (CRASHES, End::Crash),
    ] {
        manager.stop(vm, end);
    }
    manager.must(Kind::Stop, UNASKED);
    let failed = manager.port.has_failed();
    check::holds("the device works", !failed, "it needs a reset");
    check::done();
}

impl Manager {
    /// A word that a VM writes: 0 how often it was asked in this life, 1 its lives, 2 rounds, 3 whether it was asked when it began.
    fn word(&self, vm: u16, word: usize) -> u64 {
        self.heard[4 * usize::from(vm) + word].load(Relaxed)
    }

    /// Waits until a word is as wanted.
    fn comes(&self, vm: u16, word: usize, is_it: impl Fn(u64) -> bool) -> bool {
        let end = timer::now() + timer::ticks(PATIENCE);
        while timer::now() < end {
            if is_it(self.word(vm, word)) {
                return true;
            }
            sysreg::cpu_yield();
        }
        false
    }

    fn state(&mut self, vm: u16) -> Message {
        self.port.about(Kind::Vm, vm, NONE).1
    }

    fn phase(&mut self, vm: u16) -> Option<Phase> {
        Phase::of(self.state(vm).values[3])
    }

    /// Orders; the phase that the VM is in if that does not fit.
    fn order(&mut self, kind: Kind, vm: u16) -> Result<u64, Phase> {
        let (status, message) = self.port.about(kind, vm, NONE);
        match status {
            Some(Status::Done) => Ok(message.values[0]),
            Some(Status::Phase) => Err(Phase::of(message.values[0]).unwrap_or(Phase::Down)),
            other => {
                check::holds("an order is answered", false, format_args!("{other:?}"));
                Err(Phase::Down)
            }
        }
    }

    /// An order that has to be taken.
    fn must(&mut self, kind: Kind, vm: u16) -> u64 {
        let done = self.order(kind, vm);
        check::holds(
            format_args!("{kind:?} of VM {vm}"),
            done.is_ok(),
            format_args!("{done:?}"),
        );
        done.unwrap_or(0)
    }

    /// An order that does not fit the phase of the VM.
    fn must_not(&mut self, kind: Kind, vm: u16, phase: Phase) {
        let done = self.order(kind, vm);
        check::holds(
            format_args!("no {kind:?} of VM {vm}"),
            done == Err(phase),
            format_args!("{done:?}"),
        );
    }

    /// Waits until the VM is in this phase, by its state or by events.
    fn reaches(&mut self, vm: u16, phase: Phase) -> Message {
        self.port.forget();
        let is_it = |message: &Message| message.vm == vm && message.values[3] == phase as u64;
        let now = self.state(vm);
        let found = if is_it(&now) {
            Some(now)
        } else {
            let event = |message: &Message| message.kind == EVENT_STATE && is_it(message);
            self.port.wait(event).ok()
        };
        check::holds(
            format_args!("VM {vm} is {}", phase.word()),
            found.is_some(),
            "it is not",
        );
        found.unwrap_or_default()
    }

    /// It runs its code in the life that is meant, and was not asked in it.
    fn is_up(&mut self, vm: u16, life: u64) {
        let up = self.comes(vm, 1, |lives| lives == life);
        check::holds(
            format_args!("VM {vm} runs its life {life}"),
            up,
            format_args!("it is {}", self.word(vm, 1)),
        );
        let rounds = self.word(vm, 2);
        let runs = self.comes(vm, 2, |now| now > rounds + 3);
        let asked = [self.word(vm, 0), self.word(vm, 3)];
        check::holds(
            format_args!("VM {vm} was not asked in it"),
            runs && asked == [0, 0],
            format_args!("{runs} {asked:?}"),
        );
    }

    fn ended(&mut self, vm: u16, lives: u64, end: End, follows: Follows) {
        let state = if follows == Follows::Restarts {
            let is_it = |it: &Message| it.vm == vm && it.values[4] == lives;
            let end = timer::now() + timer::ticks(PATIENCE);
            let mut state = self.state(vm);
            while !(is_it(&state) && state.values[3] == Phase::Running as u64) && timer::now() < end
            {
                state = self.state(vm);
            }
            state
        } else {
            self.reaches(vm, Phase::Down)
        };
        let how = format_args!("how VM {vm} has ended");
        check::equal(how, state.values[6], end as u64);
        check::equal("what followed", state.values[7], follows as u64);
        check::equal("its lives", state.values[4], lives);
    }

    /// Asks a VM that is up, and waits for its end.
    fn stop(&mut self, vm: u16, end: End) {
        let lives = self.state(vm).values[4];
        self.must(Kind::Shutdown, vm);
        self.ended(vm, lives, end, Follows::Stays);
    }

    fn start(&mut self, vm: u16) {
        let life = self.word(vm, 1) + 1;
        self.must(Kind::Start, vm);
        self.reaches(vm, Phase::Running);
        self.is_up(vm, life);
    }

    fn who_obeys_ends_by_itself(&mut self) {
        for (vm, way) in [(WORD, 2), (KEY, 1)] {
            let told = self.state(vm).values[9];
            check::equal("how it is asked", told & 0xffff_ffff, way);
            check::equal("its milliseconds", told >> 32, 500);
            self.stop(vm, End::Off);
            check::equal("it was asked once", self.word(vm, 0), 1);
            self.must_not(Kind::Shutdown, vm, Phase::Down);
            self.start(vm);
        }
    }

    fn who_does_not_is_ended_in_time(&mut self) {
        let begin = timer::now();
        let left = self.must(Kind::Shutdown, DEAF);
        check::equal("its time", left, TIME * 1000);
        check::holds("it is asked", self.phase(DEAF) == Some(Phase::Asked), "not");
        let heard = self.comes(DEAF, 0, |times| times == 1);
        check::holds("it has heard it", heard, self.word(DEAF, 0));
        let rounds = self.word(DEAF, 2);
        let runs = self.comes(DEAF, 2, |now| now > rounds + 10);
        check::holds("it goes on meanwhile", runs, "it does not");
        let again = self.must(Kind::Shutdown, DEAF);
        let heard = self.comes(DEAF, 0, |times| times == 2);
        check::holds(
            "asked again it is told again, and has no more time",
            heard && again < left,
            format_args!("{} {again}", self.word(DEAF, 0)),
        );
        self.must_not(Kind::Pause, DEAF, Phase::Asked);
        self.ended(DEAF, 1, End::Overdue, Follows::Stays);
        let took = timer::now() - begin;
        check::holds(
            "it had its time",
            took >= timer::ticks(TIME),
            format_args!("{took} ticks"),
        );
        check::equal("it was asked twice", self.word(DEAF, 0), 2);
        self.start(DEAF);
    }

    fn no_policy_starts_it_again(&mut self) {
        for (vm, end) in [(RESETS, End::Reset), (CRASHES, End::Crash)] {
            self.stop(vm, end);
            check::equal("it was asked", self.word(vm, 0), 1);
            check::equal("and has not begun again", self.word(vm, 1), 1);
            self.start(vm);
        }
        self.the_crash_is_reported();
    }

    /// That of the life before, while the VM is up again.
    fn the_crash_is_reported(&mut self) {
        let state = self.state(CRASHES);
        let [.., life, esr, far, pc] = state.values;
        check::equal("the life that crashed", life, 1);
        check::equal(
            "what it did: a fetch",
            syndrome::class(esr),
            syndrome::ec::FETCH_LOWER,
        );
        check::holds(
            "from its vectors",
            pc != 0 && pc == far,
            format_args!("{pc:#x} {far:#x}"),
        );
        let (status, report) = self.port.about(Kind::Report, CRASHES, NONE);
        check::holds("the report", status == Some(Status::Done), "none");
        let [_, vcpu, told, address, at, fault, when, exits, ..] = report.values;
        check::equal("its vCPU", vcpu, 0);
        check::holds(
            "the same crash",
            [told, address, at] == [esr, far, pc],
            "another one",
        );
        check::equal("whose vector it was", fault, crash::VECTOR);
        let ago = timer::now().wrapping_sub(when);
        check::holds("not long ago", ago < timer::ticks(60_000_000), ago);
        let last = (exits.wrapping_sub(1) % crash::EXITS as u64) * crash::EXIT as u64;
        let first = crash::HEAD as u64 + last;
        let (_, exit) = self.port.about(Kind::Report, CRASHES, [first, 0, 0, 0]);
        let told = [exit.values[0], exit.values[1], exit.values[3]];
        let class = ExitClass::FetchAbort as u64;
        check::holds(
            "the last exit is the crash",
            told == [pc, esr, class],
            format_args!("{told:x?}"),
        );
        let (status, _) = self.port.about(Kind::Report, RESETS, NONE);
        check::holds(
            "of who has not crashed",
            status == Some(Status::Nothing),
            "not so",
        );
        let words = [crash::WORDS as u64, 0, 0, 0];
        let (status, _) = self.port.about(Kind::Report, CRASHES, words);
        check::holds(
            "of a word too many",
            status == Some(Status::Value),
            "not so",
        );
    }

    fn the_last_order_holds(&mut self) {
        // To start again when it has ended, which it is made to.
        let before = self.state(DEAF).values[4];
        self.must(Kind::Shutdown, DEAF);
        self.must(Kind::Start, DEAF);
        let phase = self.phase(DEAF);
        check::holds("it is still asked", phase == Some(Phase::Asked), "not");
        check::equal("in its life", self.state(DEAF).values[4], before);
        self.ended(DEAF, before + 1, End::Overdue, Follows::Restarts);
        self.is_up(DEAF, before + 1);
        // And not to, after all.
        self.must(Kind::Shutdown, DEAF);
        self.must(Kind::Start, DEAF);
        self.must(Kind::Shutdown, DEAF);
        self.ended(DEAF, before + 1, End::Overdue, Follows::Stays);
        self.start(DEAF);
        // At once.
        self.must(Kind::Shutdown, DEAF);
        self.must(Kind::Restart, DEAF);
        self.ended(DEAF, before + 3, End::OrderedRestart, Follows::Restarts);
        self.is_up(DEAF, before + 3);
        // The time that the life before had is over for nobody.
        timer::spin(2 * TIME);
        let phase = self.phase(DEAF);
        check::holds("it runs", phase == Some(Phase::Running), "it does not");
        check::equal("in the same life", self.state(DEAF).values[4], before + 3);
        self.must(Kind::Shutdown, DEAF);
        self.must(Kind::Stop, DEAF);
        self.ended(DEAF, before + 3, End::Ordered, Follows::Stays);
        self.start(DEAF);
    }

    fn what_does_not_fit_is_refused(&mut self) {
        let (status, _) = self.port.about(Kind::Shutdown, UNASKED, NONE);
        let unasked = status == Some(Status::Unasked);
        check::holds("who cannot be asked", unasked, format_args!("{status:?}"));
        let phase = self.phase(UNASKED);
        check::holds("runs on", phase == Some(Phase::Running), "it does not");
        self.must(Kind::Pause, DEAF);
        self.must_not(Kind::Shutdown, DEAF, Phase::Paused);
        self.must(Kind::Resume, DEAF);
        let (status, _) = self.port.about(Kind::Shutdown, DEAF, [1, 0, 0, 0]);
        let reserved = status == Some(Status::Reserved);
        check::holds(
            "a value that must be 0",
            reserved,
            format_args!("{status:?}"),
        );
        check::equal("nobody was asked", self.word(DEAF, 0), 0);
    }

    fn who_asks_may_go_away(&mut self) {
        let lives = self.state(DEAF).values[4];
        self.must(Kind::Shutdown, DEAF);
        let reopened = self.port.reopen().is_ok();
        check::holds("the port is opened again", reopened, "it is not");
        self.ended(DEAF, lives, End::Overdue, Follows::Stays);
        self.start(DEAF);
    }

    /// Orders in any order: what was answered with success last is how the VM ends up. One that begins just now may not hear that it is asked, and
    /// is ended when its time is over.
    fn any_orders(&mut self) {
        let kinds = [
            Kind::Shutdown,
            Kind::Start,
            Kind::Stop,
            Kind::Restart,
            Kind::Shutdown,
            Kind::Start,
        ];
        let mut seed = 1u64;
        let mut next = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        let vms = [WORD, KEY, DEAF, RESETS];
        let (mut wrong, mut taken) = (0, 0);
        for _ in 0..30 {
            for vm in vms {
                let mut wanted = None;
                for _ in 0..1 + next(5) {
                    let kind = kinds[next(kinds.len())];
                    if self.order(kind, vm).is_ok() {
                        let up = matches!(kind, Kind::Start | Kind::Restart);
                        wanted = Some(if up { Phase::Running } else { Phase::Down });
                        taken += 1;
                    }
                    timer::spin(next(300) as u64);
                }
                if let Some(wanted) = wanted {
                    wrong += u64::from(self.settles(vm) != Some(wanted));
                }
            }
        }
        check::equal("VMs that are not as they were ordered last", wrong, 0);
        check::holds("orders were taken", taken > 150, taken);
        for vm in vms {
            if self.phase(vm) == Some(Phase::Down) {
                self.start(vm);
            } else {
                // It hears what is asked from its loop on.
                let rounds = self.word(vm, 2);
                let runs = self.comes(vm, 2, |now| now > rounds + 3);
                check::holds(format_args!("VM {vm} runs"), runs, "it does not");
            }
        }
    }

    /// The phase to which the VM comes, of those in which it can stay.
    fn settles(&mut self, vm: u16) -> Option<Phase> {
        let end = timer::now() + timer::ticks(PATIENCE);
        while timer::now() < end {
            let phase = self.phase(vm);
            if matches!(phase, Some(Phase::Down | Phase::Running)) {
                return phase;
            }
            timer::spin(100);
        }
        None
    }
}
