//! Claim: a virtio console prints what is sent to it once, in order, whatever the batches are, gives what is typed, and leaves the emulated
//! UART beside it as it is. A chain that breaks a rule stops it until it is reset.
//!
//! Sends `batches=` batches of whole lines and sleeps until each has been read, then prints `virtio READY`, gives back each line that is typed as
//! `virtio got ...`, breaks the device at `break` and goes on after a reset, and ends at `end`.
#![no_std]
#![no_main]

use bulkhead_guests::virtio::line::{BATCH, SerialConsole};
use bulkhead_guests::{Board, check, gic, guest, println, timer, virtio};
use virtio_drivers::transport::DeviceType;

guest!(main = main);

/// Bytes of a line.
const LINE: usize = 32;
/// Seconds without an interrupt after which there will be none.
const PATIENCE: u64 = 20;

struct User {
    line: SerialConsole,
    interrupts: u64,
    /// Times that it was waited in vain.
    late: u64,
}

fn main(board: &'static Board) {
    gic::init();
    gic::enable(timer::INTID);
    let Some(device) = virtio::listen(board, DeviceType::Console).next() else {
        return println!("FAIL console: there is none");
    };
    let Some(line) = SerialConsole::new(device) else {
        return println!("FAIL console: it cannot be driven");
    };
    let mut user = User {
        line,
        interrupts: 0,
        late: 0,
    };
    let batches = board.argument("batches").unwrap_or(8);
    let mut number = 0;
    for batch in 0..batches {
        // From one line to some, now and then a page of them, in one to four pieces.
        let most = if batch % 64 == 63 { BATCH / LINE } else { 12 };
        let lines = (1 + batch * 37 % most as u64) as usize;
        number = user.send_lines(number, lines, 1 + batch as usize % 4);
        if batch % 64 == 63 {
            println!("uart: {} batches were read", batch + 1);
        }
    }
    println!("console: {number} lines, {} interrupts", user.interrupts);
    check::equal("waits in vain", user.late, 0);
    user.say(b"virtio READY\n");
    let Some(mut user) = user.serve() else {
        return println!("FAIL console: it cannot be driven again");
    };
    user.say(b"virtio ends\n");
    check::equal("waits in vain, at the end", user.late, 0);
    check::done();
}

impl User {
    /// Sends lines with numbers, and waits until the device has read them. Returns the next number.
    fn send_lines(&mut self, first: u64, lines: usize, pieces: usize) -> u64 {
        let sent = self.line.send(lines * LINE, pieces, |bytes| {
            for (number, line) in (first..).zip(bytes.chunks_exact_mut(LINE)) {
                line.fill(b'.');
                line[..12].copy_from_slice(b"virtio line ");
                let mut rest = number;
                for digit in line[12..17].iter_mut().rev() {
                    *digit = b'0' + (rest % 10) as u8;
                    rest /= 10;
                }
                line[LINE - 1] = b'\n';
            }
        });
        check::holds("a batch is taken", sent.is_ok(), "it is not");
        self.wait(|user| user.line.is_sent());
        first + lines as u64
    }

    fn say(&mut self, text: &[u8]) {
        let sent = self
            .line
            .send(text.len(), 1, |bytes| bytes.copy_from_slice(text));
        self.late += u64::from(sent.is_err());
        self.wait(|user| user.line.is_sent());
    }

    /// Sleeps until it is so.
    fn wait(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        timer::arm(timer::now() + PATIENCE * timer::frequency());
        while !is_so(self) {
            gic::wait();
            let taken = gic::acknowledge();
            if taken.intid() == timer::INTID {
                timer::disarm();
                gic::end(taken);
                self.late += 1;
                return;
            }
            if !taken.is_none() {
                self.line.acknowledge();
                self.interrupts += 1;
                gic::end(taken);
            }
        }
        timer::disarm();
    }

    /// Gives back what is typed, line by line.
    fn serve(mut self) -> Option<Self> {
        let mut typed = [0; BATCH];
        let mut text = [0; 64];
        let mut length = 0;
        loop {
            let mut bytes = 0;
            self.wait(|user| {
                let got = user.line.receive(&mut typed);
                bytes = got.unwrap_or(0);
                got.is_some()
            });
            if bytes == 0 {
                // It was waited in vain.
                return Some(self);
            }
            for byte in &typed[..bytes] {
                if *byte != b'.' {
                    text[length % text.len()] = *byte;
                    length += 1;
                    continue;
                }
                let word = &text[..length.min(text.len())];
                match word {
                    b"end" => return Some(self),
                    b"break" => {
                        self.break_it();
                        self.line = self.line.again()?;
                        self.say(b"virtio goes on\n");
                    }
                    _ => {
                        let mut answer = [b' '; 80];
                        answer[..11].copy_from_slice(b"virtio got ");
                        answer[11..11 + word.len()].copy_from_slice(word);
                        answer[11 + word.len()] = b'\n';
                        self.say(&answer[..12 + word.len()]);
                    }
                }
                length = 0;
            }
        }
    }

    /// Sends a buffer that is nowhere.
    fn break_it(&mut self) {
        check::holds(
            "a buffer nowhere",
            self.line.send_nothing().is_ok(),
            "refused",
        );
        self.wait(|user| user.line.has_failed());
        check::holds("it says so", self.line.has_failed(), "it does not");
    }
}
