//! The emulated PL011 between a guest that writes what it likes and a console that drains when it can.

use std::collections::VecDeque;

use bulkhead_core::console::mux::Streams;
use bulkhead_core::devices::pl011::Pl011;

use crate::Target;
use crate::engine::Input;

/// This target.
pub const TARGET: Target = Target {
    name: "uart",
    seeds,
    words: &[],
    run,
};

fn seeds() -> Vec<Vec<u8>> {
    // Writes of data, reads of flags and data, input, draining.
    vec![
        [
            [0, 0x00, 0, b'a'],
            [1, 0x18, 0, 0],
            [2, 0, 0, 9],
            [1, 0, 0, 0],
        ]
        .concat(),
        [
            [0, 0x38, 0, 0x70],
            [0, 0, 0, b'\n'],
            [3, 200, 0, 0],
            [1, 0x40, 0, 0],
        ]
        .concat(),
        [[0, 0x44, 0xff, 0xff], [1, 0xe0, 0x0f, 0], [4, 255, 0, 7]].concat(),
    ]
}

fn run(bytes: &[u8]) {
    let streams = Box::<Streams>::default();
    let mut uart = Pl011::new();
    let mut sent = VecDeque::new();
    let mut typed = VecDeque::new();
    let mut input = Input::new(bytes);
    while !input.is_empty() {
        let kind = input.u8();
        let offset = u64::from(input.u16() & 0xfff);
        let value = input.u8();
        match kind % 5 {
            0 => {
                if offset == 0 && streams.output.free() > 0 {
                    sent.push_back(value);
                }
                uart.write(&streams, offset, u32::from(value) * 0x0101);
            }
            1 => {
                let (read, _) = uart.read(&streams, offset);
                if offset == 0 {
                    let expected = typed.pop_front().unwrap_or(0);
                    assert_eq!(read, u32::from(expected), "input out of order");
                }
            }
            2 => {
                if streams.input.push(value) {
                    typed.push_back(value);
                }
            }
            3 => {
                for _ in 0..offset {
                    assert_eq!(
                        streams.output.pop(),
                        sent.pop_front(),
                        "output out of order"
                    );
                }
                uart.space_again(&streams);
            }
            _ => {
                for _ in 0..offset {
                    if streams.output.free() > 0 {
                        sent.push_back(value);
                    }
                    uart.write(&streams, 0, value.into());
                }
            }
        }
        let mask = uart.read(&streams, 0x38).0;
        let raw = uart.read(&streams, 0x3c).0;
        let masked = uart.read(&streams, 0x40).0;
        assert_eq!(masked, raw & mask);
        assert_eq!(uart.line(&streams), masked != 0);
        let flags = uart.read(&streams, 0x18).0;
        assert_eq!(flags & 1 << 4 != 0, typed.is_empty(), "RXFE");
        assert_eq!(flags & 1 << 5 != 0, streams.output.free() == 0, "TXFF");
    }
}
