//! The multiplexer and the keys: guests and the person at the terminal say what they like.

use bulkhead_core::console::keys::{Key, Keys};
use bulkhead_core::console::mux::{Mux, Next, Now, OUTPUT, Sources, Stream, Streams, TURN_MS};
use bulkhead_core::console::text::TextLine;
use bulkhead_core::sync::Said;

use crate::Target;
use crate::engine::Input;

/// This target.
pub const TARGET: Target = Target {
    name: "console",
    seeds,
    words: &["\n", "\r\n", "\x14", "\x141", "\x14n"],
    run,
};

/// VMs, and which of them have said something.
struct Vms(Vec<Streams>, Said);

impl Sources for Vms {
    fn count(&self) -> usize {
        self.0.len()
    }
    fn streams(&self, vm: usize) -> Option<&Streams> {
        self.0.get(vm)
    }
    fn said(&self) -> u64 {
        self.1.take()
    }
    fn name(&self, _: usize) -> &[u8] {
        b"vm\0\0"
    }
}

fn seeds() -> Vec<Vec<u8>> {
    vec![
        b"\x02\x00hello\n\x01world\n\x02\x03".to_vec(),
        b"\x03\x14n\x141\x14?\x14\x14abc\x00part".to_vec(),
    ]
}

/// Takes all that the console would send now.
fn drain(mux: &mut Mux, vms: &Vms, flush: bool, now: Now, out: &mut Vec<u8>) {
    // Each byte said costs at most a label, and the streams are small: this ends.
    for _ in 0..200_000 {
        match mux.next(vms, flush, now) {
            Next::Byte(byte) => out.push(byte),
            Next::Later => {}
            _ => return,
        }
    }
    panic!("the console never ends");
}

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let count = 1 + input.below(4);
    let vms = Vms(
        (0..count).map(|_| Streams::default()).collect(),
        Said::new(),
    );
    let mut said = vec![Vec::new(); count];
    let (mut mux, mut keys) = (Mux::new(), Keys::new(0));
    let mut out = Vec::new();
    let mut now = Now {
        ticks: 0,
        millisecond: 1,
    };
    while !input.is_empty() {
        let what = input.u8();
        let vm = usize::from(what >> 4) % count;
        let byte = input.u8();
        match what & 7 {
            // Bytes that are part of a label or of colours would make the output hard to judge.
            0..=2 if byte.is_ascii_alphanumeric() || byte == b'\n' => {
                let byte = byte.to_ascii_uppercase();
                let output = &vms.0[vm].output;
                if output.push(byte) {
                    said[vm].push(byte);
                }
                if Stream::<{ OUTPUT as usize }>::is_news(byte, output.len()) {
                    vms.1.say(vm);
                }
            }
            3 => {
                // From no time at all to more than a turn.
                now.ticks += u64::from(byte >> 1) * TURN_MS / 100;
                drain(&mut mux, &vms, byte & 1 != 0, now, &mut out);
            }
            4 => {
                vms.0[vm].log.push_all(b"log\n");
                vms.1.say(vm);
            }
            5 => {
                let mut line = TextLine::new();
                line.text("note");
                mux.notice(&line);
            }
            _ => match keys.take(byte, count) {
                Key::Send(_) | Key::Help | Key::Nothing | Key::Monitor | Key::Command(_) => {
                    assert!(keys.focus < count)
                }
                Key::Focus(vm) => assert!(vm < count && keys.focus == vm),
            },
        }
    }
    // Each open line has a turn.
    for _ in 0..=2 * count {
        now.ticks += TURN_MS;
        drain(&mut mux, &vms, true, now, &mut out);
    }
    assert!(mux.is_done(&vms));
    // What one VM said comes out in order; colours and labels are in small letters and signs.
    let capitals: Vec<u8> = out.iter().copied().filter(u8::is_ascii_uppercase).collect();
    let total: usize = said
        .iter()
        .flatten()
        .filter(|byte| byte.is_ascii_uppercase())
        .count();
    assert_eq!(capitals.len(), total);
    if count == 1 {
        let expected: Vec<u8> = said[0]
            .iter()
            .copied()
            .filter(u8::is_ascii_uppercase)
            .collect();
        assert_eq!(capitals, expected);
    }
}
