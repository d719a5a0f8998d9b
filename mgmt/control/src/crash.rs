//! What EL2 reports of a crash: what the guest did, and the exits before.

use std::fmt;

use bulkhead_abi::control::Message;
use bulkhead_abi::control::crash::{EXIT, EXITS, HEAD, VECTOR, WORDS};
use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::syndrome;

/// What the state of a VM tells of its last crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Number of the life that crashed.
    pub life: u64,
    /// ESR_EL2.
    pub syndrome: u64,
    /// FAR_EL2.
    pub address: u64,
    /// PC of the guest.
    pub pc: u64,
}

impl Crash {
    /// That of an answer or event about a state, if the VM has crashed.
    pub fn of(message: &Message) -> Option<Self> {
        let [.., life, syndrome, address, pc] = message.values;
        (life != 0).then_some(Self {
            life,
            syndrome,
            address,
            pc,
        })
    }

    /// What the guest did, in words.
    pub const fn words(&self) -> &'static str {
        syndrome::words(self.syndrome)
    }
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pc, syndrome, address) = (self.pc, self.syndrome, self.address);
        let class = syndrome::class(syndrome);
        write!(
            f,
            "pc={pc:#x} class={class:#x} syndrome={syndrome:#x} address={address:#x}"
        )
    }
}

/// One of the last exits before a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// [`ExitClass`] as number.
    pub class: u64,
    /// PC of the guest.
    pub pc: u64,
    /// ESR_EL2, or the INTID of an interrupt.
    pub syndrome: u64,
    /// The cycle counter at its end.
    pub at: u64,
}

impl Exit {
    /// Name of its class.
    pub fn class_word(&self) -> &'static str {
        let class = usize::try_from(self.class).ok();
        let class = class.and_then(|class| ExitClass::ALL.get(class));
        class.map_or("unknown", |class| class.name())
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, pc, syndrome) = (self.class_word(), self.pc, self.syndrome);
        write!(
            f,
            "{word:<15}  pc={pc:#x} syndrome={syndrome:#x} at={}",
            self.at
        )
    }
}

/// The report of a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What the guest did.
    pub crash: Crash,
    /// Number of the vCPU.
    pub vcpu: u64,
    /// It could not even fetch its exception vector.
    pub of_vector: bool,
    /// The counter at the crash.
    pub at: u64,
    /// Exits of the vCPU so far.
    pub exits: u64,
    /// The last of them, newest first.
    pub last: Vec<Exit>,
}

impl Report {
    fn of(words: &[u64; WORDS]) -> Self {
        let [
            life,
            vcpu,
            syndrome,
            address,
            pc,
            fault,
            at,
            exits,
            ring @ ..,
        ] = words;
        let (ring, _) = ring.as_chunks::<EXIT>();
        let newest_first = (0..*exits).rev().take(EXITS);
        let last = newest_first.map(|n| {
            let [pc, syndrome, at, class] = ring[n as usize % EXITS];
            Exit {
                class,
                pc,
                syndrome,
                at,
            }
        });
        Self {
            crash: Crash {
                life: *life,
                syndrome: *syndrome,
                address: *address,
                pc: *pc,
            },
            vcpu: *vcpu,
            of_vector: *fault == VECTOR,
            at: *at,
            exits: *exits,
            last: last.collect(),
        }
    }

    /// What the guest did, in words.
    pub fn words(&self) -> String {
        let of_vector = if self.of_vector {
            " (its exception vector)"
        } else {
            ""
        };
        format!("{}{of_vector}", self.crash.words())
    }
}

/// A report that is being read, in several messages. One that is overtaken by the next crash is begun anew.
#[derive(Debug, Default)]
pub struct Reading {
    words: Vec<u64>,
}

impl Reading {
    /// The word from which on is to be asked for: at last the first one again, to see that it is the same report.
    pub fn first(&self) -> u64 {
        if self.words.len() < WORDS {
            self.words.len() as u64
        } else {
            0
        }
    }

    /// Takes an answer to that; gives the report when it is whole.
    pub fn take(&mut self, answer: &Message) -> Option<Report> {
        let mut words = [0; WORDS];
        if self.words.len() < WORDS {
            self.words.extend_from_slice(&answer.values);
            self.words.truncate(WORDS);
            return None;
        }
        // The life, and what is of this crash only, should lives be counted anew.
        let is_same = self.words[..HEAD] == answer.values[..HEAD];
        words.copy_from_slice(&self.words);
        self.words.clear();
        is_same.then(|| Report::of(&words))
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_abi::control::VALUES;

    use super::*;

    /// An answer with the words from `first` on.
    fn answer(words: &[u64; WORDS], first: u64) -> Message {
        let mut message = Message::default();
        for (place, word) in message.values.iter_mut().zip(&words[first as usize..]) {
            *place = *word;
        }
        message
    }

    fn words(life: u64) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[..HEAD].copy_from_slice(&[life, 1, 0x9200_0004, 30, 40, VECTOR, 60, 18]);
        for (n, exit) in words[HEAD..].chunks_exact_mut(EXIT).enumerate() {
            exit.copy_from_slice(&[100 + n as u64, 200, 300, 3]);
        }
        words
    }

    #[test]
    fn a_report_is_put_together_with_its_last_exit_first() {
        let words = words(7);
        let mut reading = Reading::default();
        let mut asked = 0;
        let report = loop {
            asked += 1;
            let answer = answer(&words, reading.first());
            if let Some(report) = reading.take(&answer) {
                break report;
            }
        };
        assert_eq!(asked, WORDS.div_ceil(VALUES) + 1);
        assert_eq!((report.crash.life, report.vcpu, report.exits), (7, 1, 18));
        let pcs: Vec<u64> = report.last.iter().map(|exit| exit.pc).collect();
        assert_eq!(pcs.len(), EXITS);
        assert_eq!(pcs[..3], [101, 100, 115]);
        assert_eq!(report.last[0].class_word(), "hvc");
        assert_eq!(
            report.words(),
            "access to an address that the VM does not have (its exception vector)".replace(
                "access to an address that the VM does not have",
                report.crash.words()
            )
        );
    }

    #[test]
    fn one_that_is_overtaken_is_read_anew() {
        let (old, new) = (words(7), words(8));
        let mut reading = Reading::default();
        for _ in 0..3 {
            assert_eq!(reading.take(&answer(&old, reading.first())), None);
        }
        let report = loop {
            let answer = answer(&new, reading.first());
            if let Some(report) = reading.take(&answer) {
                break report;
            }
        };
        assert_eq!(report, Report::of(&new));
    }
}
