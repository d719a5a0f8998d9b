//! Agreement of EL2's console and the tools: every kind of line, written by EL2's writer and read
//! by the tools' parser, is the same.

use bulkhead_abi::call::End;
use bulkhead_abi::console::*;
use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::NAME;
use bulkhead_core::console::report::{Reason, Report, Verdict};
use bulkhead_core::console::stats::ExitStats;
use bulkhead_core::console::text::TextLine;
use bulkhead_core::cpu::inject::Fault;
use bulkhead_core::cpu::life::{Follows, Settled};
use bulkhead_core::sched::{Account, Policy, RunState, Usage};
use proptest::collection::vec;
use proptest::prelude::*;

/// Returns the text of EL2's line after `write`.
fn written(write: impl FnOnce(&mut TextLine)) -> String {
    let mut line = TextLine::new();
    write(&mut line);
    assert!(line.as_bytes().len() < 256, "the line is cut");
    String::from_utf8(line.as_bytes().to_vec()).unwrap()
}

/// A line is read as the value that it was written from.
macro_rules! same {
    ($kind:ident, $value:ident) => {{
        let text = written(|line| $value.write(line));
        prop_assert_eq!($kind::parse(&text), Some($value));
    }};
}

/// A name as a plan has it.
fn padded(name: &str) -> [u8; NAME] {
    let mut bytes = [0; NAME];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

fn names() -> impl Strategy<Value = [u8; NAME]> {
    "[a-z][a-z0-9-]{0,15}".prop_map(|name| padded(&name))
}

/// Numbers of every length.
fn numbers() -> impl Strategy<Value = u64> {
    (0..64_u32, any::<u64>()).prop_map(|(shift, number)| number >> shift)
}

fn classes() -> impl Strategy<Value = ExitClass> {
    proptest::sample::select(ExitClass::ALL.to_vec())
}

proptest! {
    #[test]
    fn the_first_line_and_a_refusal_are_read_as_written(
        version in "[0-9]{1,3}\\.[0-9]{1,3}(-[a-z]{1,5})?",
        [pcpus, vms] in [numbers(), numbers()],
        (rule, place) in ("[a-z]{1,12}(-[a-z]{1,12})?", "[a-z]{1,9}( [0-9x]{1,4})?(: [a-z ]{0,9})?"),
    ) {
        let booted = Booted { version: Word(&version), pcpus, vms };
        same!(Booted, booted);
        let refused = Refused { rule: &rule, place: &place };
        same!(Refused, refused);
    }

    #[test]
    fn the_end_of_a_vm_and_orders_are_read_as_written(
        vm in names(),
        restarts in any::<bool>(),
        why in "[a-zA-Z ()0-9]{0,80}",
        order in proptest::sample::select(Order::ALL.to_vec()),
        condition in proptest::sample::select(Condition::ALL.to_vec()),
        goes_on in any::<bool>(),
    ) {
        let end = VmEnd {
            vm: Name(&vm),
            outcome: if restarts { Outcome::Restarts } else { Outcome::Stopped },
            why: Rest(&why),
        };
        same!(VmEnd, end);
        let input = InputTo { vm: Name(&vm) };
        same!(InputTo, input);
        for refused in [None, Some(condition)] {
            let ordered = Ordered { order, vm: Name(&vm), refused };
            same!(Ordered, ordered);
        }
        let lost = InputLost { vm: Name(&vm) };
        same!(InputLost, lost);
        let labelled = written(|line| label::write(line, b'3', &vm, goes_on));
        let plain = labelled.replace("\x1b[33m", "").replace("\x1b[0m", "");
        let text = plain + &why;
        let labelled = label::Labelled { name: Name(&vm).as_str(), goes_on, text: &why };
        prop_assert_eq!(label::parse(&text), Some(labelled));
    }

    #[test]
    fn statistics_are_read_as_written(
        vm in names(),
        class in classes(),
        [a, b, c, d, e, f, g] in [(); 7].map(|()| numbers()),
    ) {
        let of = ExitsOf { vm: Name(&vm), vcpu: a };
        same!(ExitsOf, of);
        let row = ClassRow {
            class,
            count: a,
            min: b,
            mean: c,
            max: d,
            total: e,
            deviation: f,
            share: Percent { part: e.min(g), of: e.max(g) },
            per_second: g,
        };
        let text = written(|line| row.write(line));
        prop_assert_eq!(ClassRow::<u64>::parse(&text), Some(row));
        // Tools read fractions, too.
        let read = ClassRow::<f64>::parse(&text).unwrap();
        prop_assert_eq!((read.mean, read.deviation), (c as f64, f as f64));
        let totals = Totals {
            exits: a,
            guest: b.min(c),
            elapsed: b.max(c),
            share: Percent { part: b.min(c), of: b.max(c) },
            away: d,
            away_share: Percent { part: d.min(e), of: d.max(e) },
            per_second: f,
        };
        same!(Totals, totals);
    }

    #[test]
    fn a_crash_is_read_as_written(
        vm in names(),
        class in classes(),
        [a, b, c, d, e] in [(); 5].map(|()| numbers()),
    ) {
        let at = FaultAt {
            vm: Name(&vm),
            vcpu: a,
            pc: Hex(b),
            class: Hex(c),
            syndrome: Hex(d),
            address: Hex(e),
        };
        same!(FaultAt, at);
        for name in [class.name(), "?"] {
            let last = LastExit {
                class: Padded(Word(name)),
                pc: Hex(a),
                syndrome: Hex(b),
                at: c,
            };
            same!(LastExit, last);
        }
    }

    #[test]
    fn cpu_time_is_read_as_written(
        [a, b, c, d] in [(); 4].map(|()| numbers()),
        list in vec((proptest::option::of(numbers()), numbers()), 0..4),
    ) {
        let ran = Ran { ran: a, of: b, stolen: c, longest: d };
        let text = written(|line| ran.write(line));
        prop_assert_eq!((Ran::parse(&text), Turns::parse(&text)), (Some(ran), None));
        for moves in [0, c] {
            let turns = Turns { turns: a, overruns: b, moves };
            let text = written(|line| turns.write(line));
            prop_assert_eq!((Ran::parse(&text), Turns::parse(&text)), (None, Some(turns)));
        }
        let list: Vec<_> = list.into_iter().map(|(below, count)| Waits { below, count }).collect();
        let text = written(|line| {
            line.text(WAITS);
            list.iter().for_each(|waits| waits.write(line));
        });
        prop_assert_eq!(waits(&text).map(Vec::from_iter), Some(list));
    }

    /// The whole report of a vCPU, as EL2 says it.
    #[test]
    fn each_line_of_a_report_is_of_one_kind(
        vm in names(),
        vcpu in 0..16_u64,
        exits in vec((classes(), 1..1000_u64, 1..100_000_u64), 1..60),
        ticks in [(); 4].map(|()| 0..1_u64 << 40),
        counts in vec(0..9_u32, 32),
        crash in any::<bool>(),
    ) {
        let mut stats = ExitStats::new(0);
        let mut now = 0;
        for (class, guest, took) in &exits {
            stats.count(*class, now + guest, now + guest + took, now, *took);
            now += guest + took;
        }
        let [ran, passed, stolen, longest] = ticks;
        let mut account = Account { ran, stolen, longest, turns: 9, ..Account::new(0) };
        for (place, count) in account.waits.iter_mut().zip(&counts) {
            *place = *count;
        }
        let usage = Usage {
            policy: Policy::Pinned,
            run_state: RunState::Running,
            account,
            passed,
        };
        let reason = match crash {
            true => Reason::Fault {
                syndrome: 0x8200_0005,
                address: 7,
                pc: 8,
                fault: Some(Fault::Fetch(7)),
            },
            false => Reason::Ended(End::Off),
        };
        let settled = Settled { end: End::Off, follows: Follows::Stays, count: 0 };
        let verdict = Verdict { settled, limit: 0, seconds: 0, told: [0; NAME] };
        let time = Some((usage, 1_000_000_000));
        let mut report = Report::new(vm, vcpu, Some((reason, verdict)), time);
        let mut lines: Vec<String> = std::iter::from_fn(|| report.next(&stats, ServiceTime::default))
            .map(|line| String::from_utf8(line.as_bytes().to_vec()).unwrap())
            .collect();
        for line in &mut lines {
            prop_assert_eq!(line.split_off(line.len() - 2), "\r\n");
        }
        let mut lines = lines.iter().map(String::as_str).peekable();

        let end = VmEnd::parse(lines.next().unwrap()).unwrap();
        prop_assert_eq!((end.vm, end.outcome), (Name(&vm), Outcome::Stopped));
        if crash {
            let at = FaultAt::parse(lines.next().unwrap()).unwrap();
            prop_assert_eq!((at.vcpu, at.pc, at.address), (vcpu, Hex(8), Hex(7)));
        } else {
            prop_assert_eq!(end.why.0, End::Off.words());
        }
        let of = ExitsOf::parse(lines.next().unwrap());
        prop_assert_eq!(of, Some(ExitsOf { vm: Name(&vm), vcpu }));
        prop_assert_eq!(lines.next(), Some(HEADINGS));
        prop_assert!(ClassRow::<u64>::parse(HEADINGS).is_none());
        for class in ExitClass::ALL {
            let sums = stats.class(class);
            if sums.count == 0 {
                continue;
            }
            let row = ClassRow::<u64>::parse(lines.next().unwrap()).unwrap();
            prop_assert_eq!((row.class, row.count, row.total), (class, sums.count, sums.total));
            prop_assert_eq!((row.mean, row.deviation), (sums.mean(), sums.deviation()));
        }
        let totals = Totals::parse(lines.next().unwrap()).unwrap();
        prop_assert_eq!((totals.exits, totals.elapsed), (exits.len() as u64, now));
        let time = Ran::parse(lines.next().unwrap());
        prop_assert_eq!(time, Some(Ran { ran, of: passed, stolen, longest }));
        prop_assert_eq!(Turns::parse(lines.next().unwrap()).unwrap().turns, 9);
        let mut came = Vec::new();
        while let Some(some) = lines.peek().and_then(|line| waits(line)) {
            came.extend(some);
            lines.next();
        }
        let last = account.waits.len() - 1;
        let given = account.waits.iter().enumerate().filter(|(_, count)| **count != 0);
        let given: Vec<_> = given
            .map(|(class, count)| Waits {
                below: (class != last).then(|| 1 << class),
                count: u64::from(*count),
            })
            .collect();
        prop_assert_eq!(came, given);
        if crash {
            prop_assert_eq!(lines.next(), Some(LAST_EXITS));
            let newest = LastExit::parse(lines.next().unwrap()).unwrap();
            let (class, _, took) = exits.last().unwrap();
            prop_assert_eq!((newest.class.0.0, newest.syndrome, newest.at), (class.name(), Hex(*took), now));
            prop_assert!(lines.all(|line| LastExit::parse(line).is_some()));
        } else {
            prop_assert_eq!(lines.next(), None);
        }
    }

    #[test]
    fn no_text_breaks_a_parser(text in hostile()) {
        let _ = (Booted::parse(&text), Refused::parse(&text), VmEnd::parse(&text), InputTo::parse(&text));
        let _ = Ordered::parse(&text);
        let _ = (ExitsOf::parse(&text), Totals::parse(&text), FaultAt::parse(&text), LastExit::parse(&text));
        let _ = (ClassRow::<u64>::parse(&text), ClassRow::<f64>::parse(&text));
        let _ = (Ran::parse(&text), Turns::parse(&text), waits(&text).map(Iterator::count));
        let _ = label::parse(&text);
    }
}

/// Pieces of lines, and text that is in no line, in any order.
fn hostile() -> impl Strategy<Value = String> {
    let words = [
        "vm ",
        " stopped: ",
        " restarts: ",
        "exits vm=",
        " vcpu=",
        "Bulkhead ",
        "0.1.0",
        ", ",
        " pCPU",
        " VM",
        "refused: ",
        ": ",
        "  all ",
        " exits, guest ",
        " of ",
        " cycles (",
        "%), away ",
        "  vm=",
        " pc=",
        " class=",
        " syndrome=",
        " address=",
        "    ",
        " at=",
        "0x",
        "  time",
        " ran=",
        " of=",
        " turns=",
        "  waits",
        "=",
        "more",
        "[",
        "]",
        "hvc",
        "uart",
        "?",
        " ",
        ".",
        "input goes to ",
        "cannot ",
        "go on with ",
        "stop ",
        ": it is ",
        "paused",
        "18446744073709551616",
        "18446744073709551615",
        "0",
        "9",
        "-1",
        "ffffffffffffffffff",
    ];
    let piece = prop_oneof![
        4 => proptest::sample::select(words.to_vec()).prop_map(str::to_owned),
        1 => "\\PC{0,4}",
        1 => any::<String>(),
    ];
    vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

#[test]
fn the_ends_of_vms_have_words_of_their_own() {
    for end in End::ALL {
        let same = End::ALL
            .iter()
            .filter(|other| other.words().starts_with(end.words()));
        assert_eq!(same.count(), 1, "{end:?}");
    }
}

/// The assembler cannot use the constants of the grammar.
#[test]
fn what_is_said_before_there_is_a_map_is_a_refusal_of_el2() {
    let source = include_str!("../../el2/src/hw/refuse.s");
    let said = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix(".asciz"));
    let mut count = 0;
    for text in said {
        let line = text
            .trim()
            .strip_prefix('"')
            .unwrap()
            .strip_suffix("\\r\\n\"")
            .unwrap();
        let label::Labelled {
            name, text: line, ..
        } = label::parse(line).unwrap();
        assert_eq!(name, label::EL2_NAME);
        assert!(
            Refused::parse(line).is_some_and(|refused| !refused.place.is_empty()),
            "{line}"
        );
        count += 1;
    }
    assert!(count > 0);
}
