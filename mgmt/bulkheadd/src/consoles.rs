//! What VMs have printed: more of it than EL2 keeps, for clients who ask as they would ask EL2.

use std::collections::{BTreeMap, VecDeque};

use bulkhead_abi::control::{Kind, Message, OUTPUT_DATA, Request, Status, VERSION, right};
use bulkhead_control::board::Vm;

/// Bytes that are kept of each VM.
pub const KEPT: usize = 64 * 1024;
/// Bytes of a line that is written into the journal at once.
const LINE: usize = 1024;

/// What is kept of a VM.
#[derive(Debug, Default)]
struct Kept {
    bytes: VecDeque<u8>,
    /// Number of the byte behind them.
    next: u64,
    /// EL2 has been asked, and has not answered.
    is_asked: bool,
    /// The line that has not ended.
    line: Vec<u8>,
}

/// The consoles that this VM may read.
#[derive(Debug, Default)]
pub struct Consoles {
    vms: BTreeMap<u16, Kept>,
}

/// What an answer of EL2 has brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Lines that have ended.
    pub lines: Vec<String>,
    /// There was something new.
    pub is_news: bool,
    /// EL2 is to be asked for what follows this byte.
    pub asks: Option<u64>,
}

impl Consoles {
    /// Takes the state of a VM in. If its console is to be read and is not yet, EL2 is to be asked from this byte on.
    pub fn see(&mut self, vm: &Vm) -> Option<u64> {
        let may = vm.rights & (right::LOGS | right::CONSOLE) != 0;
        if !may || self.vms.contains_key(&vm.index) {
            return None;
        }
        let kept = self.vms.entry(vm.index).or_default();
        kept.is_asked = true;
        Some(0)
    }

    /// Whether what a VM prints is kept.
    pub fn keeps(&self, vm: u16) -> bool {
        self.vms.contains_key(&vm)
    }

    /// The port is new: EL2 has forgotten what it was asked.
    pub fn begin(&mut self) {
        // What is kept stays: numbers of bytes go on as long as the board runs.
        for kept in self.vms.values_mut() {
            kept.is_asked = false;
        }
    }

    /// EL2 has more of a VM, or the port is new: it is to be asked from this byte on.
    pub fn more(&mut self, vm: u16) -> Option<u64> {
        let kept = self.vms.get_mut(&vm)?;
        let asks = !std::mem::replace(&mut kept.is_asked, true);
        asks.then_some(kept.next)
    }

    /// Takes what EL2 has answered.
    pub fn take(&mut self, answer: &Message, data: &[u8]) -> Taken {
        let mut taken = Taken::default();
        let Some(kept) = self.vms.get_mut(&answer.vm) else {
            return taken;
        };
        kept.is_asked = false;
        if answer.status != Status::Done as u16 {
            return taken;
        }
        let [first, next, ..] = answer.values;
        if first != kept.next {
            // Something is missing; what was before is not joined to what follows.
            kept.bytes.clear();
            kept.end_line(&mut taken.lines);
        }
        kept.next = first.saturating_add(data.len() as u64);
        kept.bytes.extend(data);
        let over = kept.bytes.len().saturating_sub(KEPT);
        kept.bytes.drain(..over);
        for byte in data {
            match byte {
                b'\n' => kept.end_line(&mut taken.lines),
                _ if kept.line.len() == LINE => {
                    kept.end_line(&mut taken.lines);
                    kept.line.push(*byte);
                }
                _ => kept.line.push(*byte),
            }
        }
        taken.is_news = !data.is_empty();
        if kept.next < next {
            kept.is_asked = true;
            taken.asks = Some(kept.next);
        }
        taken
    }

    /// Answers a client as EL2 would, with what is kept. `None`: that is for EL2 to answer.
    pub fn answer(&self, request: &Request) -> Option<(Message, Vec<u8>)> {
        let [from, most, unused @ ..] = request.values;
        let is_sound = request.version == VERSION
            && request.kind == Kind::Output as u16
            && (request.vcpu, request.flags) == (0, 0)
            && unused == [0, 0]
            && most <= OUTPUT_DATA as u64;
        let kept = self.vms.get(&request.vm).filter(|_| is_sound)?;
        let oldest = kept.next - kept.bytes.len() as u64;
        let first = from.clamp(oldest, kept.next);
        let bytes = kept.bytes.iter().skip((first - oldest) as usize);
        let bytes: Vec<u8> = bytes.take(most as usize).copied().collect();
        let mut message = Message {
            version: VERSION,
            kind: request.kind,
            number: request.number,
            vm: request.vm,
            data: bytes.len() as u16,
            ..Message::default()
        };
        message.values[..2].copy_from_slice(&[first, kept.next]);
        Some((message, bytes))
    }
}

impl Kept {
    fn end_line(&mut self, lines: &mut Vec<String>) {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if !line.is_empty() {
            lines.push(String::from_utf8_lossy(line).into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(index: u16, rights: u32) -> Vm {
        Vm {
            index,
            name: "linux".to_owned(),
            rights,
            phase: 2,
            lives: 1,
            class: 1,
            vcpus: 1,
            ..Vm::default()
        }
    }

    fn answer(first: u64, next: u64) -> Message {
        let mut message = Message {
            version: VERSION,
            kind: Kind::Output as u16,
            vm: 1,
            ..Message::default()
        };
        message.values[..2].copy_from_slice(&[first, next]);
        message
    }

    fn request(from: u64, most: u64) -> Request {
        Request {
            version: VERSION,
            kind: Kind::Output as u16,
            number: 9,
            vm: 1,
            values: [from, most, 0, 0],
            ..Request::default()
        }
    }

    /// What a client reads from a byte on: the first one, the bytes, and the number of the next one.
    fn read(consoles: &Consoles, from: u64, most: u64) -> (u64, Vec<u8>, u64) {
        let (message, bytes) = consoles.answer(&request(from, most)).expect("it is kept");
        assert_eq!(usize::from(message.data), bytes.len());
        (message.values[0], bytes, message.values[1])
    }

    #[test]
    fn only_consoles_that_may_be_read_are() {
        let mut consoles = Consoles::default();
        assert_eq!(consoles.see(&vm(1, right::LIST | right::DUMP)), None);
        assert!(consoles.answer(&request(0, 10)).is_none(), "EL2 refuses it");
        assert_eq!(consoles.more(1), None);
        assert_eq!(consoles.see(&vm(1, right::LOGS)), Some(0));
        assert_eq!(consoles.see(&vm(1, right::LOGS)), None, "it is being read");
        assert_eq!(consoles.more(1), None, "it has been asked");
        assert_eq!(read(&consoles, 0, 10), (0, Vec::new(), 0));
    }

    #[test]
    fn el2_is_asked_until_it_has_no_more() {
        let mut consoles = Consoles::default();
        consoles.see(&vm(1, right::CONSOLE));
        let taken = consoles.take(&answer(0, 9), b"hel");
        assert_eq!((taken.is_news, taken.asks), (true, Some(3)));
        let taken = consoles.take(&answer(3, 9), b"lo\r\nxy");
        assert_eq!(
            (taken.asks, &taken.lines[..]),
            (None, &["hello".to_owned()][..])
        );
        assert_eq!(consoles.more(1), Some(9));
        assert_eq!(consoles.more(1), None);
        assert_eq!(read(&consoles, 0, 500), (0, b"hello\r\nxy".to_vec(), 9));
        assert_eq!(read(&consoles, 1, 3), (1, b"ell".to_vec(), 9));
        assert_eq!(read(&consoles, 99, 3), (9, Vec::new(), 9));
        consoles.begin();
        assert_eq!(consoles.more(1), Some(9), "a new port goes on where it was");
    }

    #[test]
    fn what_was_lost_is_seen_and_nothing_is_joined() {
        let mut consoles = Consoles::default();
        consoles.see(&vm(1, right::CONSOLE));
        consoles.take(&answer(0, 5), b"begin");
        let taken = consoles.take(&answer(100, 104), b"end\n");
        assert_eq!(taken.lines, ["begin", "end"]);
        assert_eq!(read(&consoles, 0, 10), (100, b"end\n".to_vec(), 104));
    }

    #[test]
    fn the_oldest_go_first_and_long_lines_are_cut() {
        let mut consoles = Consoles::default();
        consoles.see(&vm(1, right::CONSOLE));
        let piece = [b'x'; OUTPUT_DATA];
        let all = 200 * OUTPUT_DATA as u64;
        let mut lines = 0;
        for number in 0..200 {
            let first = number * OUTPUT_DATA as u64;
            let taken = consoles.take(&answer(first, all), &piece);
            lines += taken.lines.len();
            assert!(taken.lines.iter().all(|line| line.len() == LINE));
        }
        assert_eq!(lines, (all as usize - 1) / LINE);
        let (first, _, next) = read(&consoles, 0, 1);
        assert_eq!((first, next), (all - KEPT as u64, all));
    }

    #[test]
    fn what_is_wrong_is_for_el2_to_refuse() {
        let mut consoles = Consoles::default();
        consoles.see(&vm(1, right::CONSOLE));
        type Harm = fn(&mut Request);
        let harms: [Harm; 6] = [
            |it| it.version = 9,
            |it| it.kind = Kind::Vm as u16,
            |it| it.vcpu = 1,
            |it| it.flags = 1,
            |it| it.values[2] = 1,
            |it| it.values[1] = OUTPUT_DATA as u64 + 1,
        ];
        for harm in harms {
            let mut asked = request(0, 10);
            harm(&mut asked);
            assert!(consoles.answer(&asked).is_none(), "{asked:?}");
        }
    }
}
