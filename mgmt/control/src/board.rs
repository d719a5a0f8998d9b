//! What EL2's messages say, by names in place of indexes.

use bulkhead_abi::call::End;
use bulkhead_abi::control::{Follows, Message, Phase, right};
use bulkhead_abi::exit::ExitClass;
use bulkhead_abi::plan::{Class, CpuPolicy};

use crate::crash::Crash;

/// Who is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Number of VMs.
    pub vms: u16,
    /// The manager's own VM.
    pub manager: u16,
    /// Number of pCPUs.
    pub pcpus: u16,
    /// Ticks in a second of the counter.
    pub frequency: u64,
    /// The VMs over which the manager has a right, a bit for each.
    pub visible: u64,
}

/// The lower part of a value that is a small number.
const fn small(value: u64) -> u16 {
    value as u16
}

impl Hello {
    /// That of an answer.
    pub fn of(message: &Message) -> Self {
        let values = &message.values;
        Self {
            vms: small(values[0]),
            manager: small(values[1]),
            pcpus: small(values[2]),
            // A divisor: of nobody's clock it is 0.
            frequency: values[3].max(1),
            visible: values[5],
        }
    }

    /// The VMs that the manager sees.
    pub fn seen(&self) -> impl Iterator<Item = u16> + use<> {
        let visible = self.visible;
        (0..self.vms.min(64)).filter(move |vm| visible >> vm & 1 == 1)
    }
}

/// State of a VM, as a question or an event tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vm {
    /// Its index.
    pub index: u16,
    /// Its name.
    pub name: String,
    /// The manager's rights over it.
    pub rights: u32,
    /// [`Phase`] as number: one that this program does not know is another EL2's.
    pub phase: u64,
    /// Lives so far.
    pub lives: u64,
    /// [`Class`] as number.
    pub class: u16,
    /// Number of vCPUs.
    pub vcpus: u16,
    /// Flags of its row in the plan.
    pub flags: u16,
    /// Why the last life that has ended did.
    pub end: Option<End>,
    /// [`Follows`] as number.
    pub follows: u64,
    /// Restarts in the period of its policy.
    pub restarts: u64,
    /// How it is asked to stop, and what time it has for it, as [`Kind::Vm`](bulkhead_abi::control::Kind::Vm) tells it.
    pub stop: u64,
    /// Its last crash.
    pub crash: Option<Crash>,
}

impl Vm {
    /// That of an answer or event.
    pub fn of(message: &Message) -> Self {
        let values = &message.values;
        let name = [values[0].to_le_bytes(), values[1].to_le_bytes()].concat();
        let length = name.iter().position(|byte| *byte == 0);
        let name = &name[..length.unwrap_or(name.len())];
        let end = u32::try_from(values[6]).ok().filter(|end| *end != 0);
        Self {
            index: message.vm,
            name: String::from_utf8_lossy(name).into_owned(),
            rights: values[2] as u32,
            phase: values[3],
            lives: values[4],
            class: small(values[5]),
            vcpus: small(values[5] >> 16),
            flags: small(values[5] >> 32),
            end: end.map(End::of),
            follows: values[7],
            restarts: values[8],
            stop: values[9],
            crash: Crash::of(message),
        }
    }

    /// How it is asked to stop, as descriptions have it.
    pub fn stop_word(&self) -> Option<&'static str> {
        match self.stop as u32 {
            1 => Some("power-key"),
            2 => Some("word"),
            _ => None,
        }
    }

    /// Milliseconds that it has for it.
    pub fn stop_timeout_ms(&self) -> Option<u64> {
        self.stop_word().map(|_| self.stop >> 32)
    }

    /// Whether it is in this phase.
    pub fn is(&self, phase: Phase) -> bool {
        self.phase == phase as u64
    }

    /// Word of its phase.
    pub fn phase_word(&self) -> &'static str {
        Phase::of(self.phase).map_or("unknown", Phase::word)
    }

    /// Word of its class, as descriptions have it.
    pub fn class_word(&self) -> &'static str {
        const CLASSES: [(Class, &str); 4] = [
            (Class::Management, "management"),
            (Class::General, "general"),
            (Class::SoftRealtime, "soft-realtime"),
            (Class::HardRealtime, "hard-realtime"),
        ];
        let class = CLASSES
            .iter()
            .find(|(class, _)| *class as u16 == self.class);
        class.map_or("unknown", |(_, word)| word)
    }

    /// Whether the manager has one of these rights.
    pub const fn allows(&self, rights: u32) -> bool {
        self.rights & rights != 0
    }

    /// Words of the manager's rights.
    pub fn rights_words(&self) -> Vec<&'static str> {
        let all = right::ALL.iter();
        all.filter(|(bit, _)| self.allows(*bit))
            .map(|(_, word)| *word)
            .collect()
    }

    /// What followed its last end, in words; none if it has not ended.
    pub fn follows_words(&self) -> Option<&'static str> {
        self.end?;
        const ALL: [(Follows, &str); 5] = [
            (Follows::Stays, "stays down"),
            (
                Follows::Exhausted,
                "stays down, as it has restarted as often as it may",
            ),
            (Follows::Tells, "stays down, and another VM is told"),
            (Follows::Restarts, "starts again"),
            (Follows::Retries, "starts again, which its policy counts"),
        ];
        let found = ALL.iter().find(|(one, _)| *one as u64 == self.follows);
        found.map(|(_, words)| *words)
    }
}

/// State of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vcpu {
    /// Index of its pCPU.
    pub pcpu: u16,
    /// 0 off, 1 being switched on, 2 to start, 3 on.
    pub power: u64,
    /// [`CpuPolicy`] as number.
    pub policy: u64,
    /// Weight, of a fair one.
    pub weight: u64,
    /// Budget, or quota of a cap.
    pub amount: u64,
    /// Its period.
    pub period: u64,
    /// pCPUs on which it may run, a bit for each.
    pub pool: u64,
}

impl Vcpu {
    /// That of an answer.
    pub fn of(message: &Message) -> Self {
        let values = &message.values;
        Self {
            pcpu: small(values[0]),
            power: values[1],
            policy: values[2],
            weight: values[3],
            amount: values[4],
            period: values[5],
            pool: values[6],
        }
    }

    /// Whether it has this policy.
    pub fn is(&self, policy: CpuPolicy) -> bool {
        self.policy == policy as u64
    }

    /// Word of its policy, as descriptions have it.
    pub fn policy_word(&self) -> &'static str {
        const ALL: [(CpuPolicy, &str); 3] = [
            (CpuPolicy::Pinned, "pinned"),
            (CpuPolicy::Server, "rt"),
            (CpuPolicy::Fair, "fair"),
        ];
        let found = ALL.iter().find(|(policy, _)| self.is(*policy));
        found.map_or("unknown", |(_, word)| word)
    }

    /// Word of whether it is on.
    pub const fn power_word(&self) -> &'static str {
        match self.power {
            0 => "off",
            1 => "switching on",
            2 => "to start",
            3 => "on",
            _ => "unknown",
        }
    }
}

/// CPU time of a vCPU that shares its pCPU. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// 0 asleep, 1 ready, 2 running, 3 out of budget.
    pub state: u64,
    /// CPU time.
    pub cpu_time: u64,
    /// Time since it is there.
    pub since: u64,
    /// Time in which it was ready and others ran.
    pub waited: u64,
    /// Longest of these.
    pub longest_wait: u64,
    /// Turns.
    pub turns: u64,
    /// Overruns.
    pub overruns: u64,
    /// Moves to another pCPU.
    pub moves: u64,
}

impl Time {
    /// That of an answer.
    pub fn of(message: &Message) -> Self {
        let [
            state,
            cpu_time,
            since,
            waited,
            longest_wait,
            turns,
            overruns,
            moves,
            ..,
        ] = message.values;
        Self {
            state,
            cpu_time,
            since,
            waited,
            longest_wait,
            turns,
            overruns,
            moves,
        }
    }

    /// Word of its state.
    pub const fn state_word(&self) -> &'static str {
        match self.state {
            0 => "asleep",
            1 => "ready",
            2 => "running",
            3 => "out of budget",
            _ => "unknown",
        }
    }
}

/// Exits of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassExits {
    /// How many.
    pub count: u64,
    /// Cycles that they took.
    pub cycles: u64,
    /// Sum of the squares of these.
    pub squares: u64,
    /// Shortest.
    pub shortest: u32,
    /// Longest.
    pub longest: u32,
}

/// Exits of a vCPU. Times are cycles of its pCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    /// Of all classes.
    pub total: u64,
    /// Cycles in the guest.
    pub in_guest: u64,
    /// Cycles for which it was on.
    pub on: u64,
    /// Cycles in which it was away from its pCPU.
    pub away: u64,
    /// By [`ExitClass`].
    pub classes: [ClassExits; ExitClass::COUNT],
}

impl Exits {
    /// What an answer says of all classes.
    pub fn of(message: &Message) -> Self {
        let [total, in_guest, on, away, ..] = message.values;
        Self {
            total,
            in_guest,
            on,
            away,
            ..Self::default()
        }
    }

    /// Takes over what an answer says of the two classes from `first` on.
    pub fn add(&mut self, first: usize, message: &Message) {
        let rows = message.values[4..12].chunks_exact(4);
        for (class, row) in self.classes.iter_mut().skip(first).zip(rows) {
            *class = ClassExits {
                count: row[0],
                cycles: row[1],
                squares: row[2],
                shortest: row[3] as u32,
                longest: (row[3] >> 32) as u32,
            };
        }
    }

    /// Whether two answers are of the same moment.
    pub fn is_same_moment(&self, message: &Message) -> bool {
        [self.total, self.in_guest, self.on, self.away] == message.values[..4]
    }
}

/// Number of classes of waits.
pub const WAIT_CLASSES: usize = 40;

/// Waits of a vCPU from being woken to running, by their length: class `n` has those below 2^`n` ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits(pub [u32; WAIT_CLASSES]);

impl Default for Waits {
    fn default() -> Self {
        Self([0; WAIT_CLASSES])
    }
}

impl Waits {
    /// Takes over the counts of an answer from the class `first` on; gives the class behind them.
    pub fn add(&mut self, first: usize, message: &Message) -> usize {
        let halves = message
            .values
            .iter()
            .flat_map(|value| [*value as u32, (*value >> 32) as u32]);
        let mut at = first;
        for (class, count) in self.0.iter_mut().skip(first).zip(halves) {
            *class = count;
            at += 1;
        }
        at
    }
}

/// What the devices of a VM have had of EL2's service thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Slices.
    pub slices: u64,
    /// Nanoseconds.
    pub time: u64,
    /// Longest slice, in nanoseconds.
    pub longest: u64,
}

impl Service {
    /// That of an answer.
    pub fn of(message: &Message) -> Self {
        let [slices, time, longest, ..] = message.values;
        Self {
            slices,
            time,
            longest,
        }
    }
}
