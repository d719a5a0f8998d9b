//! Tests of the multiplexer.

use super::mux::*;
use super::text::TextLine;
use proptest::prelude::*;
use std::{string::String, vec::Vec};

struct Two([Streams; 2]);

impl Sources for Two {
    fn count(&self) -> usize {
        2
    }
    fn streams(&self, vm: usize) -> Option<&Streams> {
        self.0.get(vm)
    }
    fn said(&self) -> u64 {
        0b11
    }
    fn name(&self, vm: usize) -> &[u8] {
        [b"alpha\0", b"beta\0\0"][vm]
    }
}

fn two() -> Two {
    Two([Streams::default(), Streams::default()])
}

pub(super) fn at(ticks: u64) -> Now {
    Now {
        ticks,
        millisecond: 1,
    }
}

pub(super) fn drain(mux: &mut Mux, sources: &impl Sources, flush: bool) -> String {
    drain_at(mux, sources, flush, 0)
}

pub(super) fn drain_at(mux: &mut Mux, sources: &impl Sources, flush: bool, now: u64) -> String {
    let mut bytes = Vec::new();
    loop {
        match mux.next(sources, flush, at(now)) {
            Next::Byte(byte) => bytes.push(byte),
            Next::Later => {}
            Next::Held | Next::Empty => break,
        }
    }
    String::from_utf8(bytes)
        .unwrap()
        .replace("\x1b[36m", "")
        .replace("\x1b[33m", "")
        .replace("\x1b[0m", "")
}

/// VMs that count how often one of them is searched.
struct Many(Vec<Streams>, std::cell::Cell<usize>);

impl Sources for Many {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn streams(&self, vm: usize) -> Option<&Streams> {
        self.1.set(self.1.get() + 1);
        self.0.get(vm)
    }
    fn said(&self) -> u64 {
        u64::MAX >> (64 - self.0.len())
    }
    fn name(&self, _: usize) -> &[u8] {
        b"many\0"
    }
}

/// However many VMs there are, all of them with partial lines that may not be printed yet: no
/// call searches more than [`LOOK`] VMs, a round searches each once, and a VM with a whole line
/// gets it printed.
#[test]
fn a_look_is_bounded_and_a_round_is_whole() {
    for count in [1, LOOK - 1, LOOK, LOOK + 1, 64] {
        let many = Many((0..count).map(|_| Streams::default()).collect(), 0.into());
        let mut mux = Mux::new();
        for streams in &many.0 {
            streams.output.push_all(b"part");
        }
        for _ in 0..3 {
            let mut looks = 0;
            loop {
                many.1.set(0);
                let next = mux.next(&many, false, at(0));
                assert!(many.1.get() <= LOOK, "{} of {count}", many.1.get());
                looks += many.1.get();
                if next != Next::Later {
                    assert_eq!(next, Next::Held);
                    break;
                }
            }
            assert_eq!(looks, count);
        }
        for vm in [0, count / 2, count - 1] {
            many.0[vm].output.push_all(b" whole\r\n");
            assert!(drain(&mut mux, &many, false).ends_with(" whole\r\n"));
            many.0[vm].output.push_all(b"part");
        }
        let turns = (0..count as u64).map(|turn| turn * SILENT_MS);
        let shown: String = turns
            .map(|now| drain_at(&mut mux, &many, true, now))
            .collect();
        assert_eq!(shown.matches("part").count(), count);
        assert!(mux.is_done(&many));
    }
}

#[test]
fn lines_do_not_mix() {
    let (two, mut mux) = (two(), Mux::new());
    two.0[0].output.push_all(b"one\r\ntw");
    two.0[1].output.push_all(b"eins\r\n");
    let shown = drain(&mut mux, &two, false);
    assert_eq!(mux.next(&two, false, at(0)), Next::Held);
    two.0[0].output.push_all(b"o\r\n");
    let shown = shown + &drain(&mut mux, &two, false);
    assert_eq!(shown, "[beta] eins\r\n[alpha] one\r\n[alpha] two\r\n");
    assert_eq!(mux.next(&two, false, at(0)), Next::Empty);
    assert!(mux.is_done(&two));
}

#[test]
fn a_prompt_shows_after_a_while_and_gives_way_when_it_has_been_silent() {
    let (two, mut mux) = (two(), Mux::new());
    two.0[0].output.push_all(b"~ # ");
    assert_eq!(drain(&mut mux, &two, false), "");
    assert_eq!(drain(&mut mux, &two, true), "[alpha] ~ # ");
    two.0[0].output.push_all(b"ls");
    assert_eq!(drain(&mut mux, &two, false), "ls", "an echo passes at once");
    two.0[1].log.push_all(b"vm beta stopped\r\n");
    assert_eq!(drain_at(&mut mux, &two, true, SILENT_MS - 1), "");
    assert_eq!(mux.again_at(at(SILENT_MS - 1)), SILENT_MS);
    let cut = drain_at(&mut mux, &two, false, SILENT_MS);
    assert_eq!(cut, "\r\n[el2] vm beta stopped\r\n");
    two.0[0].output.push_all(b"\r\nfile\r\n");
    let rest = drain_at(&mut mux, &two, false, SILENT_MS);
    assert_eq!(rest, "[alpha+] \r\n[alpha] file\r\n");
}

/// The report of a VM's end closes the line that the VM has begun: nothing goes on.
#[test]
fn the_end_of_a_vm_ends_its_line() {
    let (two, mut mux) = (two(), Mux::new());
    two.0[0].output.push_all(b"half");
    drain(&mut mux, &two, true);
    two.0[0].log.push_all(b"vm alpha restarts\r\n");
    assert_eq!(
        drain(&mut mux, &two, false),
        "\r\n[el2] vm alpha restarts\r\n"
    );
    two.0[0].output.push_all(b"hello\r\n");
    assert_eq!(drain(&mut mux, &two, false), "[alpha] hello\r\n");
}

/// The same if another VM has cut the line before.
#[test]
fn the_end_of_a_vm_ends_a_line_that_was_cut() {
    let (two, mut mux) = (two(), Mux::new());
    two.0[0].output.push_all(b"half");
    drain(&mut mux, &two, true);
    two.0[1].output.push_all(b"eins\r\n");
    drain_at(&mut mux, &two, false, SILENT_MS);
    two.0[0].log.push_all(b"vm alpha restarts\r\n");
    drain_at(&mut mux, &two, false, SILENT_MS);
    two.0[0].output.push_all(b"hello\r\n");
    let shown = drain_at(&mut mux, &two, false, SILENT_MS);
    assert_eq!(shown, "[alpha] hello\r\n");
}

/// A guest that sends without end, and one that sends a byte now and then, hold up another line for
/// a turn at most, and for less when they have been cut once.
#[test]
fn a_line_that_never_ends_costs_others_a_turn() {
    for flood in [true, false] {
        let (two, mut mux) = (two(), Mux::new());
        let (mut now, mut waits, mut waited) = (0, None, Vec::new());
        let mut shown = Vec::new();
        while waited.len() < 4 {
            if flood {
                while two.0[0].output.push(b'x') {}
            } else if now % (SILENT_MS / 2) == 0 {
                two.0[0].output.push(b'x');
            }
            // A UART of 115200 baud, which sends some 11 bytes in a millisecond.
            for _ in 0..11 {
                match mux.next(&two, now % FLUSH_MS == 0, at(now)) {
                    Next::Byte(byte) => shown.push(byte),
                    Next::Later | Next::Held | Next::Empty => {}
                }
            }
            if two.0[1].output.is_empty() {
                waited.extend(waits.take().map(|since| now - since));
                if now % 300 == 299 {
                    two.0[1].output.push_all(b"y\r\n");
                    waits = Some(now);
                }
            }
            now += 1;
            assert!(
                now < 20 * TURN_MS,
                "the other line waits for ever: {waited:?}"
            );
        }
        assert!(waited[0] <= TURN_MS + 2, "{waited:?}");
        assert!(
            waited[2..].iter().all(|wait| *wait <= SILENT_MS + 2),
            "{waited:?}"
        );
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains("[alpha+]"), "{shown}");
        assert_eq!(
            shown.matches("y\r\n").count(),
            4,
            "lines of the other are whole"
        );
    }
}

#[test]
fn a_notice_waits_for_the_turn_of_an_open_line() {
    let (two, mut mux) = (two(), Mux::new());
    two.0[1].output.push_all(b"$ ");
    drain(&mut mux, &two, true);
    let mut text = TextLine::new();
    text.text("hello");
    mux.notice(&text);
    assert!(!mux.is_free(&two, at(SILENT_MS)) && !mux.is_done(&two));
    assert_eq!(drain(&mut mux, &two, false), "");
    let shown = drain_at(&mut mux, &two, false, SILENT_MS);
    assert_eq!(shown, "\r\n[el2] hello\r\n");
    assert!(mux.is_free(&two, at(SILENT_MS)) && mux.is_done(&two));
}

#[test]
fn a_notice_does_not_take_the_place_of_another() {
    let (two, mut mux) = (two(), Mux::new());
    for text in ["first", "second"] {
        let mut line = TextLine::new();
        line.text(text);
        mux.notice(&line);
    }
    let shown = drain(&mut mux, &two, false);
    assert_eq!(shown, "[el2] first\r\n[el2] second\r\n");
    for _ in 0..4 {
        let mut line = TextLine::new();
        line.text("one of fifty bytes or so, which fit once but not ever");
        mux.notice(&line);
    }
    let shown = drain(&mut mux, &two, false);
    assert!(
        (1..=2).contains(&shown.matches("ever\r\n").count()),
        "{shown}"
    );
    assert!(
        shown
            .lines()
            .all(|line| line.ends_with("ever") || line.ends_with("second"))
    );
}

#[test]
fn a_notice_waits_for_the_end_of_what_el2_says() {
    // However many bytes of the line have been printed, those of its label included.
    for out in 0..30 {
        let (two, mut mux) = (two(), Mux::new());
        two.0[0].log.push_all(b"vm alpha stopped: power off\r\n");
        let mut shown: String = (0..out)
            .map(|_| match mux.next(&two, false, at(0)) {
                Next::Byte(byte) => char::from(byte),
                other => panic!("{other:?}"),
            })
            .collect();
        let mut text = TextLine::new();
        text.text("input goes to beta");
        mux.notice(&text);
        shown += &drain(&mut mux, &two, false);
        let (stopped, input) = (
            "[el2] vm alpha stopped: power off\r\n",
            "[el2] input goes to beta\r\n",
        );
        let expected = if out == 0 {
            [input, stopped]
        } else {
            [stopped, input]
        };
        assert_eq!(shown, expected.concat());
    }
}

#[test]
fn a_line_of_the_monitor_waits_for_the_end_of_a_guests_line() {
    let (two, mut mux) = (two(), Mux::new());
    let state = |line: &mut TextLine| {
        line.text("state");
        true
    };
    assert!(mux.is_free(&two, at(0)));
    two.0[0].output.push_all(b"one\r\n");
    assert!(matches!(mux.next(&two, false, at(0)), Next::Byte(_)));
    assert!(!mux.is_free(&two, at(0)), "the label is under way");
    while two.0[0].output.free() == 1024 - 5 {
        mux.next(&two, false, at(0));
    }
    assert!(!mux.is_free(&two, at(0)), "the line is under way");
    drain(&mut mux, &two, false);
    assert!(mux.is_free(&two, at(0)));
    assert!(mux.say("[monitor] ", state));
    assert!(!mux.is_free(&two, at(0)));
    assert_eq!(drain(&mut mux, &two, false), "[monitor] state\r\n");
    two.0[1].output.push_all(b"$ ");
    drain(&mut mux, &two, true);
    assert!(!mux.is_free(&two, at(SILENT_MS - 1)), "it may go on");
    assert!(
        mux.is_free(&two, at(SILENT_MS)),
        "a prompt does not hold it up"
    );
    assert!(!mux.say("[monitor] ", |_| false));
    let nothing = drain_at(&mut mux, &two, false, SILENT_MS);
    assert_eq!(nothing, "", "nothing to say");
    assert!(mux.say("[monitor] ", state));
    let shown = drain_at(&mut mux, &two, false, SILENT_MS);
    assert_eq!(shown, "\r\n[monitor] state\r\n");
}

/// What a drain of the console prints that has room for `room` bytes.
fn turn(mux: &mut Mux, two: &Two, flush: bool, now: u64, room: usize, runs: bool) -> Vec<u8> {
    let mut sent = Vec::new();
    while sent.len() < room {
        match mux.next(two, flush, at(now)) {
            Next::Byte(byte) => sent.push(byte),
            Next::Later => continue,
            Next::Held | Next::Empty => break,
        }
        if runs {
            mux.go_on_line(two, at(now), |byte| {
                let fits = sent.len() < room;
                if fits {
                    sent.push(byte);
                }
                fits
            });
        }
    }
    sent
}

/// What a guest sends that would like to speak as somebody else.
fn forgery() -> impl Strategy<Value = String> {
    let pieces = [
        "[el2] 0000",
        "\r\n",
        "\n",
        "\r",
        "[beta] ",
        "\x1b[36m[alpha]\x1b[0m ",
        "\x1b[2K",
        "\x1b[1A",
        "x",
        "\0",
        "\x0b",
        "\x08",
    ];
    proptest::collection::vec(proptest::sample::select(pieces.to_vec()), 0..8)
        .prop_map(|pieces| pieces.concat())
}

proptest! {
    /// Each byte that two guests send, at any time, comes out once and in order, the pieces of a
    /// line are joined by their labels, and a line whose bytes follow one another in time is in one
    /// piece.
    #[test]
    fn pieces_make_what_was_sent(
        script in proptest::collection::vec(
            (0usize..2, "[a-z]{0,9}", any::<bool>(), prop_oneof![Just(0), 0..SILENT_MS, Just(2 * SILENT_MS)]),
            1..60,
        ),
    ) {
        let (two, mut mux) = (two(), Mux::new());
        let (mut now, mut shown) = (0, String::new());
        let mut sent = [String::new(), String::new()];
        // Since when a guest is in mid-line, and when it sent last; whether it took too long.
        let mut slow = [Vec::new(), Vec::new()];
        let mut open: [Option<(u64, u64, bool)>; 2] = [None; 2];
        for (vm, text, ends, pause) in script {
            let text = text + if ends { "\r\n" } else { "" };
            if !text.is_empty() {
                let (since, last, late) = open[vm].unwrap_or((now, now, false));
                let late = late || now - last >= SILENT_MS || now - since >= TURN_MS;
                open[vm] = Some((since, now, late));
                if ends {
                    slow[vm].push(late);
                    open[vm] = None;
                }
            }
            two.0[vm].output.push_all(text.as_bytes());
            sent[vm] += &text;
            // The console looks at once, and again when it has waited.
            for _ in 0..=pause / FLUSH_MS {
                shown += &drain_at(&mut mux, &two, false, now);
                shown += &drain_at(&mut mux, &two, pause >= FLUSH_MS, now);
                now += FLUSH_MS.min(pause);
            }
        }
        for _ in 0..3 {
            now += TURN_MS;
            shown += &drain_at(&mut mux, &two, true, now);
        }
        prop_assert!(mux.is_done(&two));
        for (vm, name) in ["alpha", "beta"].into_iter().enumerate() {
            let mut lines: Vec<(String, usize)> = Vec::new();
            for line in shown.split("\r\n").filter(|line| !line.is_empty()) {
                let label = bulkhead_abi::console::label::parse(line).unwrap();
                if label.name != name {
                    continue;
                }
                match lines.last_mut() {
                    Some((last, pieces)) if label.goes_on => {
                        *last += label.text;
                        *pieces += 1;
                    }
                    _ => lines.push((label.text.into(), 1)),
                }
            }
            let texts: Vec<&str> = lines.iter().map(|(text, _)| text.as_str()).collect();
            let wanted = sent[vm].strip_suffix("\r\n").unwrap_or(&sent[vm]);
            let wanted: Vec<&str> = wanted.split("\r\n").collect();
            prop_assert_eq!(&texts, &if sent[vm].is_empty() { Vec::new() } else { wanted });
            for ((_, pieces), late) in lines.iter().zip(&slow[vm]) {
                prop_assert!(*late || *pieces == 1, "{} {:?}", shown, slow);
            }
        }
    }

    /// Whatever a guest sends, a line has EL2's label, or another guest's, only if that is who speaks: as it leaves the UART,
    /// the start of each line is the console's.
    #[test]
    fn no_guest_speaks_under_the_label_of_another(
        script in proptest::collection::vec((0usize..2, forgery(), any::<bool>(), 0..2 * TURN_MS), 1..60),
    ) {
        let (two, mut mux) = (two(), Mux::new());
        let (mut now, mut said, mut sent) = (0, 0, Vec::new());
        for (vm, text, notice, pause) in script {
            // Alpha in small letters, beta in capitals, as far as they are letters: what is whose is seen.
            let text = if vm == 0 { text.to_ascii_lowercase() } else { text.to_ascii_uppercase() };
            two.0[vm].output.push_all(text.as_bytes());
            if notice {
                let mut line = TextLine::new();
                line.text("0000\r\n");
                mux.notice(&line);
                said += 1;
            }
            now += pause;
            for time in [now, now + TURN_MS, now + 2 * TURN_MS] {
                sent.extend(turn(&mut mux, &two, true, time, usize::MAX, pause % 2 == 0));
            }
            now += 2 * TURN_MS;
        }
        let mut notices = 0;
        for line in String::from_utf8(sent).unwrap().split('\n') {
            let line = line.strip_suffix('\r').unwrap_or(line);
            if line == "[el2] 0000" {
                notices += 1;
                continue;
            }
            let text = |name: &str| {
                let rest = line.strip_prefix("\x1b[3")?.get(1..)?.strip_prefix("m[")?;
                let rest = rest.strip_prefix(name)?;
                rest.strip_prefix('+').unwrap_or(rest).strip_prefix("]\x1b[0m ")
            };
            let fits = match (text("alpha"), text("beta")) {
                (Some(text), _) => !text.contains(|c: char| c.is_ascii_uppercase()),
                (_, Some(text)) => !text.contains(|c: char| c.is_ascii_lowercase()),
                _ => line.is_empty(),
            };
            prop_assert!(fits, "{line:?}");
        }
        prop_assert_eq!(notices, said);
    }

    /// The rest of a line in one go is printed as it is byte by byte, however the VMs write, whenever
    /// the drain has its turns, and however little room the UART has.
    #[test]
    fn a_rest_of_a_line_is_what_its_bytes_are(
        steps in proptest::collection::vec(
            (0u8..6, 0usize..2, "[a-z]{0,40}|[a-z]{150,250}", 0u64..400, 0usize..400),
            1..120,
        ),
    ) {
        let (mut one, mut runs) = (Mux::new(), Mux::new());
        let (first, second) = (two(), two());
        let mut now = 0;
        for (kind, vm, text, pause, room) in steps {
            now += pause;
            for each in [&first, &second] {
                let streams = &each.0[vm];
                match kind {
                    0 => { streams.log.push_all(text.as_bytes()); }
                    1 => { streams.log.push_all(b"\r\n"); }
                    2 => { for byte in b"\r\n" { streams.output.push(*byte); } }
                    3 => {}
                    _ => { for byte in text.bytes() { streams.output.push(byte); } }
                }
            }
            if kind == 3 && text.len() < 4 {
                let mut line = TextLine::new();
                line.text(&text);
                one.notice(&line);
                runs.notice(&line);
            }
            let flush = pause % 3 == 0;
            let expected = turn(&mut one, &first, flush, now, room, false);
            let found = turn(&mut runs, &second, flush, now, room, true);
            prop_assert_eq!(String::from_utf8(found), String::from_utf8(expected));
            prop_assert_eq!(runs.again_at(at(now)), one.again_at(at(now)));
            prop_assert_eq!(runs.is_free(&second, at(now)), one.is_free(&first, at(now)));
        }
    }
}
