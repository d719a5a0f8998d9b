//! The control protocol: what the manager of a board, a VM with rights over others, says to EL2, and what EL2 answers
//! (`docs/adr/0027-control.md`, `docs/reference/control.md`).
//!
//! It is spoken through the port [`PORT_NAME`] of the manager's virtio-console. What the manager writes are [`Request`]s, one in
//! each write; what it reads are [`Message`]s, each whole: the answer to a request, with its number, or an event, with number 0. A
//! message that EL2 has sent is in one buffer.
//!
//! All integers are little endian. All times are nanoseconds where nothing else is said.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Name of the port.
pub const PORT_NAME: &str = "org.bulkhead.control";

/// Version of this protocol, in every request and every message. EL2 takes no other.
pub const VERSION: u16 = 1;

/// What a manager may do with a VM: bits of [`Right::rights`](crate::plan::Right::rights).
pub mod right {
    /// See it: its state and events. Comes with every other right.
    pub const LIST: u32 = 1;
    /// Start it.
    pub const START: u32 = 2;
    /// Stop it.
    pub const STOP: u32 = 4;
    /// Pause it, and let it go on.
    pub const PAUSE: u32 = 8;
    /// Restart it.
    pub const RESTART: u32 = 16;
    /// Ask its vCPUs for statistics.
    pub const STATS: u32 = 32;
    /// Change weights, caps, budgets and pools.
    pub const LIMITS: u32 = 64;
    /// Read its memory and its registers while it does not run.
    pub const DUMP: u32 = 128;
    /// Read what it prints on its console.
    pub const LOGS: u32 = 256;
    /// The same, and type on its console.
    pub const CONSOLE: u32 = 512;

    /// All of them with the names that descriptions use.
    pub const ALL: [(u32, &str); 10] = [
        (LIST, "list"),
        (START, "start"),
        (STOP, "stop"),
        (PAUSE, "pause"),
        (RESTART, "restart"),
        (STATS, "stats"),
        (LIMITS, "limits"),
        (DUMP, "dump"),
        (LOGS, "logs"),
        (CONSOLE, "console"),
    ];
    /// Those that a locked VM ([`VM_LOCKED`](crate::plan::VM_LOCKED)) grants.
    pub const OF_LOCKED: u32 = LIST | STATS;
}

/// A request, 48 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Request {
    /// [`VERSION`]
    pub version: u16,
    /// [`Kind`]
    pub kind: u16,
    /// Chosen by the manager; the answer has it. Not 0.
    pub number: u32,
    /// Index of a VM, from 0; 0 where none is asked for.
    pub vm: u16,
    /// Number of a vCPU of it, from 0; 0 where none is asked for.
    pub vcpu: u16,
    /// [`TRIAL`] or 0, where limits are changed; else 0.
    pub flags: u32,
    /// What [`Kind`] says; others must be 0.
    pub values: [u64; 4],
}

/// In [`Request::flags`]: nothing is changed, and the answer is what it would be. For [`Kind::Weight`], [`Kind::Cap`], [`Kind::Budget`] and
/// [`Kind::Pool`].
pub const TRIAL: u32 = 1;

/// Number of values in a [`Message`].
pub const VALUES: usize = 14;

/// An answer or an event, 128 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Message {
    /// [`VERSION`]
    pub version: u16,
    /// That of the request, or [`EVENT_STATE`] and others.
    pub kind: u16,
    /// That of the request; 0 in an event.
    pub number: u32,
    /// That of the request, or the VM that an event is about.
    pub vm: u16,
    /// That of the request.
    pub vcpu: u16,
    /// [`Status`]
    pub status: u16,
    /// Bytes that follow the message in the same buffer: of [`Kind::Memory`] and [`Kind::Output`]; else 0.
    pub data: u16,
    /// What [`Kind`] says, if the status is [`Status::Done`]; else what the status says. All others are 0.
    pub values: [u64; VALUES],
}

const _: () = assert!(size_of::<Request>() == 48 && size_of::<Message>() == 128);

/// What is asked for. Values of requests and of answers are named by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// Who is there. Answer: 0: number of VMs; 1: index of the manager's own VM; 2: number of pCPUs; 3: ticks in a second of the
    /// counter (CNTFRQ_EL0); 4: the counter now; 5: the VMs over which the manager has a right, a bit for each.
    Hello = 1,
    /// State of a VM, by [`right::LIST`]. Answer: 0, 1: its name, padded with 0; 2: the manager's rights; 3: [`Phase`]; 4: number
    /// of its lives so far; 5: [`Class`](crate::plan::Class), and from bit 16 on its number of vCPUs, and from bit 32 on its
    /// flags ([`VM_LOCKED`](crate::plan::VM_LOCKED) and others); 6: [`End`](crate::call::End) of the last life that has ended, or 0; 7: what followed
    /// ([`Follows`]); 8: restarts so far in the period of its policy; 9: how it is asked to stop (0 not at all, 1 by the power key, 2 by
    /// a word that it reads), and from bit 32 on the milliseconds that it has for it; 10: number of the last life that crashed, or 0; 11, 12, 13: ESR_EL2,
    /// FAR_EL2 and PC of that crash, of which [`Kind::Report`] tells more.
    Vm = 2,
    /// State of a vCPU, by [`right::LIST`]. Answer: 0: index of its pCPU; 1: 0 off, 1 being switched on, 2 to start, 3 on; 2:
    /// [`CpuPolicy`](crate::plan::CpuPolicy); 3: weight; 4: budget, or quota of a cap; 5: period; 6: pCPUs of its pool, a bit for each.
    Vcpu = 3,
    /// Starts a VM that is down, by [`right::START`]; one that is being stopped starts again when it has ended. Answered when the order
    /// is taken; what comes of it is an event. If it is already up: [`Status::Phase`].
    Start = 4,
    /// Stops a VM at once, by [`right::STOP`]. See [`Kind::Shutdown`] for one that is asked before.
    Stop = 5,
    /// Ends a VM and starts it again, or starts one that is down, by [`right::RESTART`].
    Restart = 6,
    /// Pauses a VM that runs, by [`right::PAUSE`].
    Pause = 7,
    /// Lets a paused VM go on, by [`right::PAUSE`].
    Resume = 8,
    /// CPU time of a vCPU that shares its pCPU, by [`right::STATS`]. Answer: 0: 0 asleep, 1 ready, 2 running, 3 out of budget; 1: CPU time; 2: time
    /// since it is there; 3: time in which it was ready and others ran; 4: longest of these; 5: turns; 6: overruns; 7: moves to another pCPU.
    Time = 9,
    /// Waits of a vCPU from being woken to running, by [`right::STATS`]: counts of the classes from value 0, an even number, on; there are 40
    /// classes. Answer: 32-bit counts, two in each value, the lower half first, 0 behind the last class. Class `n` has the waits below 2^`n` ticks
    /// of the counter that are not in the one before, class 39 also all longer ones.
    Waits = 10,
    /// Exits of a vCPU, by [`right::STATS`]: two of its [classes](crate::exit::ExitClass), from that in value 0 on. Value 1: 0 asks the vCPU, 1
    /// goes on with what it has answered last. Answer: 0: exits of all classes; 1: cycles in the guest; 2: cycles for which it was on; 3: cycles in
    /// which it was away from its pCPU; then for each of the two classes: count, cycles, sum of the squares of cycles, shortest (lower
    /// half) and longest (upper half).
    Exits = 11,
    /// What the devices of a VM have had of EL2's service thread, by [`right::STATS`]. Answer: 0: slices; 1: time; 2: longest slice.
    Service = 12,
    /// Sets the weight of a VM's vCPUs to value 0, by [`right::LIMITS`].
    Weight = 13,
    /// Sets the cap of a VM's vCPUs by [`right::LIMITS`]: at most value 0 in each period of value 1; equal to it for no cap.
    Cap = 14,
    /// Sets the budget of a VM's servers by [`right::LIMITS`]: value 0 in each period of value 1.
    Budget = 15,
    /// Sets the pCPUs on which a VM's vCPUs may run to those of value 0, a bit for each, by [`right::LIMITS`].
    Pool = 16,
    /// Asks a VM that runs to stop, by [`right::STOP`]: in the way that its description says, else [`Status::Unasked`]. Answered when it has been
    /// asked; its end is an event. If it has not ended in its time, it is stopped ([`End::Overdue`](crate::call::End::Overdue)). Asked once more, it
    /// is told once more, and has no more time. Answer: 0: nanoseconds that are left to it; 0 if it ends already.
    Shutdown = 17,
    /// The last crash of a VM, by [`right::LIST`]: its [words](crash) from value 0 on, which is less than [`crash::WORDS`]; else [`Status::Value`].
    /// If it has not crashed: [`Status::Nothing`]. It is kept until the VM crashes again, whatever becomes of it meanwhile; who reads it in
    /// several messages sees by word 0 that it is still the same. Answer: the words, 0 behind the last.
    Report = 18,
    /// Registers of a vCPU whose VM is paused, or has ended, by [`right::DUMP`]: the words of [`registers`] from value 0 on. Value 1: 0 asks the
    /// vCPU, 1 goes on with what it has answered last. [`Status::Phase`] while its VM runs. Answer: the words, 0 behind the last.
    Registers = 19,
    /// RAM of a VM that is paused, or has ended, by [`right::DUMP`]: the first at value 0 (IPA) or behind it, at most value 1 bytes, 0 to [`DATA`], which
    /// follow the answer. Answer: 0: IPA of the first byte; 1: bytes of RAM from there on that lie behind one another, 0 if there is no more RAM; 2:
    /// number of the life. The bytes are those of one life that did not run meanwhile if the next answer has the same life, and no event has told
    /// that it ran in between. [`Status::Phase`] while it runs; [`Status::Nothing`] if it has had no life; [`Status::Silent`] as long as a vCPU
    /// is not paused yet.
    Memory = 20,
    /// What a VM has printed on its console, by [`right::LOGS`] or [`right::CONSOLE`]: from the byte with this number (value 0) since the board started,
    /// at most value 1 bytes, 0 to [`OUTPUT_DATA`], which follow the answer. It is what the board's UART has got, without labels, of all lives of the VM; the last
    /// 2000 bytes or so are kept. Answer: 0: number of the first byte that follows, greater than was asked for where older ones are no longer kept, less where there is none so high yet; 1: number
    /// of the next byte that the VM will print. If the bytes that follow reach up to it, the next one is an event, which comes once.
    Output = 21,
    /// Types on the console of a VM that is up, by [`right::CONSOLE`]: value 0 bytes, 1 to 24, which are in the values behind, the first in the lowest bits. Answer: 0: how
    /// many of them have been taken, the first ones; there is no room for others until the VM has read. [`Status::WouldExit`] where the VM is promised no exits,
    /// [`Status::Phase`] where it is not up.
    Input = 22,
}

impl Kind {
    /// All of them, by number from 1.
    pub const ALL: [Self; 22] = [
        Self::Hello,
        Self::Vm,
        Self::Vcpu,
        Self::Start,
        Self::Stop,
        Self::Restart,
        Self::Pause,
        Self::Resume,
        Self::Time,
        Self::Waits,
        Self::Exits,
        Self::Service,
        Self::Weight,
        Self::Cap,
        Self::Budget,
        Self::Pool,
        Self::Shutdown,
        Self::Report,
        Self::Registers,
        Self::Memory,
        Self::Output,
        Self::Input,
    ];

    /// The kind with this number.
    pub fn of(number: u16) -> Option<Self> {
        let index = usize::from(number).checked_sub(1)?;
        Self::ALL.get(index).copied()
    }

    /// The rights of which the manager needs one; 0: none is needed.
    pub const fn needs(self) -> u32 {
        match self {
            Self::Hello => 0,
            Self::Vm | Self::Vcpu | Self::Report => right::LIST,
            Self::Start => right::START,
            Self::Stop | Self::Shutdown => right::STOP,
            Self::Restart => right::RESTART,
            Self::Pause | Self::Resume => right::PAUSE,
            Self::Time | Self::Waits | Self::Exits | Self::Service => right::STATS,
            Self::Weight | Self::Cap | Self::Budget | Self::Pool => right::LIMITS,
            Self::Registers | Self::Memory => right::DUMP,
            Self::Output => right::LOGS | right::CONSOLE,
            Self::Input => right::CONSOLE,
        }
    }

    /// Whether the request names a VM.
    pub const fn is_about_vm(self) -> bool {
        !matches!(self, Self::Hello)
    }

    /// Whether it names a vCPU of it.
    pub const fn is_about_vcpu(self) -> bool {
        matches!(
            self,
            Self::Vcpu | Self::Time | Self::Waits | Self::Exits | Self::Registers
        )
    }

    /// The flags that the request may have.
    pub const fn flags(self) -> u32 {
        match self {
            Self::Weight | Self::Cap | Self::Budget | Self::Pool => TRIAL,
            _ => 0,
        }
    }

    /// How many of the values of the request may be other than 0.
    pub const fn values(self) -> usize {
        match self {
            Self::Waits | Self::Weight | Self::Pool | Self::Report => 1,
            Self::Exits
            | Self::Cap
            | Self::Budget
            | Self::Registers
            | Self::Memory
            | Self::Output => 2,
            Self::Input => 4,
            _ => 0,
        }
    }
}

/// Event: the state of a VM has changed; the values are those of [`Kind::Vm`]. Of several changes that the manager has not read it gets the
/// last: the number of lives shows what lies between.
pub const EVENT_STATE: u16 = 0x101;
/// Event: weights, caps, budgets or pools of a VM have changed. No values.
pub const EVENT_LIMITS: u16 = 0x102;
/// Event: a VM has printed more, told once to a manager that had read all ([`Kind::Output`]). No values.
pub const EVENT_OUTPUT: u16 = 0x103;

/// Most bytes behind a message: with it a page.
pub const DATA: usize = 4096 - size_of::<Message>();

/// Most bytes of a console behind a message.
pub const OUTPUT_DATA: usize = 504;
/// Most bytes in a request to type.
pub const INPUT_DATA: usize = 24;

/// Registers of a vCPU: words of 64 bits. [`STATE`](registers::STATE) and [`PC`](registers::PC) have a word each, as SPSR_EL2 has; others are an array.
pub mod registers {
    /// 0 the vCPU is off, 1 its VM is being prepared, 2 on, 3 its VM is paused, 4 its VM has stopped.
    pub const STATE: usize = 0;
    /// PC; 0 with [`STATE`] other than 0 of a vCPU that has not run in this life.
    pub const PC: usize = 1;
    /// SPSR_EL2: PSTATE of the guest.
    pub const PSTATE: usize = 4;
    /// First of the registers of EL1: SCTLR, TCR, MAIR, TTBR0, TTBR1, VBAR, ELR, SPSR, ESR, FAR, SP_EL1, SP_EL0, TPIDR, CPACR, CONTEXTIDR.
    pub const EL1: usize = 12;
    /// Place of SP_EL1 among them.
    pub const SP_EL1: usize = EL1 + 10;
    /// Place of SP_EL0 among them.
    pub const SP_EL0: usize = EL1 + 11;
    /// First of the general-purpose registers, x0 to x30.
    pub const X: usize = 27;
    /// All words.
    pub const WORDS: usize = X + 31;
}

/// The report of a crash: words of 64 bits. 0: number of the life; 1: vCPU; 2: ESR_EL2; 3: FAR_EL2; 4: PC; 5: what the guest could not take; 6: the
/// counter then; 7: exits of the vCPU so far, of which the last [`EXITS`](crash::EXITS) follow: number `n`, from 0, at place `n` modulo that,
/// with its PC, its syndrome (ESR_EL2, or the INTID of an interrupt), the cycle counter at its end, and its [class](crate::exit::ExitClass).
pub mod crash {
    /// Exits in it.
    pub const EXITS: usize = 16;
    /// Words of an exit.
    pub const EXIT: usize = 4;
    /// Words before the exits.
    pub const HEAD: usize = 8;
    /// All words.
    pub const WORDS: usize = HEAD + EXITS * EXIT;

    /// What the guest was to be told and could not be: nothing, it was an SError.
    pub const SERROR: u64 = 0;
    /// An undefined instruction.
    pub const UNDEFINED: u64 = 1;
    /// A data abort.
    pub const DATA: u64 = 2;
    /// An abort of a fetch: its exception vector is nowhere.
    pub const VECTOR: u64 = 3;
}

/// How a request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// It was done.
    Done = 0,
    /// The write has not the length of a request. Value 0: its length; the number of the answer is 0 where the request had none.
    Length = 1,
    /// The version is another. Value 0: that of EL2.
    Version = 2,
    /// There is no such request.
    Kind = 3,
    /// A field that must be 0 is not, or the number is 0.
    Reserved = 4,
    /// There is no such VM.
    Vm = 5,
    /// The VM has no such vCPU.
    Vcpu = 6,
    /// The plan does not give the right. Value 0: the rights that it gives over this VM.
    Rights = 7,
    /// A value is out of its range.
    Value = 8,
    /// The order does not fit the phase of the VM. Value 0: its [`Phase`].
    Phase = 9,
    /// The change is refused; nothing has changed. Value 0: [`Refusal`]; for an overload value 1: the pCPU, value 2: millionths of it that its servers would take.
    Refused = 10,
    /// The question would be the only exit of a VM that is promised none.
    WouldExit = 11,
    /// The pCPU of the vCPU did not answer within 100 ms.
    Silent = 12,
    /// Of a vCPU that has its pCPU to itself, or is not there, or of a VM that has not crashed, there is nothing to tell.
    Nothing = 13,
    /// The description does not say how the VM is asked to stop.
    Unasked = 14,
}

impl Status {
    /// All of them, by number.
    pub const ALL: [Self; 15] = [
        Self::Done,
        Self::Length,
        Self::Version,
        Self::Kind,
        Self::Reserved,
        Self::Vm,
        Self::Vcpu,
        Self::Rights,
        Self::Value,
        Self::Phase,
        Self::Refused,
        Self::WouldExit,
        Self::Silent,
        Self::Nothing,
        Self::Unasked,
    ];

    /// The status with this number.
    pub fn of(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Length => "a write is one request of 48 bytes",
            Self::Version => "another version of the protocol",
            Self::Kind => "there is no such request",
            Self::Reserved => "a field that must be 0 is not, or the number is 0",
            Self::Vm => "there is no such VM",
            Self::Vcpu => "the VM has no such vCPU",
            Self::Rights => "the plan does not give the right",
            Self::Value => "a value is out of its range",
            Self::Phase => "the VM is in another state than that needs",
            Self::Refused => "the change breaks a rule of the plan",
            Self::WouldExit => "the VM is promised not to be interrupted",
            Self::Silent => "its pCPU does not answer",
            Self::Nothing => "there is nothing to tell",
            Self::Unasked => "its description does not say how it is asked to stop",
        }
    }
}

/// Phase of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// It has not been started, or has ended and been reported.
    Down = 0,
    /// It is being prepared.
    Starting = 1,
    /// It runs.
    Running = 2,
    /// It is paused.
    Paused = 3,
    /// Its vCPUs are being taken off.
    Stopping = 4,
    /// It has ended, and its reports are being printed: it can be started when it is down.
    Ended = 5,
    /// It runs, and was asked to stop.
    Asked = 6,
}

impl Phase {
    /// All of them, by number.
    pub const ALL: [Self; 7] = [
        Self::Down,
        Self::Starting,
        Self::Running,
        Self::Paused,
        Self::Stopping,
        Self::Ended,
        Self::Asked,
    ];

    /// The phase with this number.
    pub fn of(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Down => "stopped",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Ended => "ended",
            Self::Asked => "asked",
        }
    }
}

/// What followed the end of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Follows {
    /// The VM stays down.
    Stays = 0,
    /// It stays down, because it has restarted as often as its policy allows.
    Exhausted = 1,
    /// It stays down, and another VM is told.
    Tells = 2,
    /// It starts again.
    Restarts = 3,
    /// It starts again, which its policy counts.
    Retries = 4,
}

/// Why a change of weights, caps, budgets or pools is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Refusal {
    /// Its vCPUs have their pCPUs to themselves.
    Pinned = 1,
    /// It has a budget, and so neither weight nor cap nor pool.
    NotFair = 2,
    /// It has a weight, and so no budget.
    NotServer = 3,
    /// A weight is 1 to 1000.
    Weight = 4,
    /// A period is 100 us to 10 s.
    Period = 5,
    /// A budget or quota is more than nothing and at most the period.
    Budget = 6,
    /// The pool is empty, or names a pCPU that is not in that of the plan.
    Pool = 7,
    /// The servers of a pCPU would not all keep their promises.
    Overload = 8,
}

impl Refusal {
    /// All of them, by number from 1.
    pub const ALL: [Self; 8] = [
        Self::Pinned,
        Self::NotFair,
        Self::NotServer,
        Self::Weight,
        Self::Period,
        Self::Budget,
        Self::Pool,
        Self::Overload,
    ];

    /// The reason with this number.
    pub fn of(number: u64) -> Option<Self> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        Self::ALL.get(index).copied()
    }

    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Pinned => "it has its pCPUs to itself",
            Self::NotFair => "it has a budget, and so neither weight nor cap nor pool",
            Self::NotServer => "it has a weight, and so no budget",
            Self::Weight => "a weight is 1 to 1000",
            Self::Period => "a period is 100 us to 10 s",
            Self::Budget => "it is to be more than nothing and at most the whole period",
            Self::Pool => "each is to be a CPU of the pool in the description",
            Self::Overload => "the budgets on a pCPU would take more than all of it",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_tables() {
        for (number, kind) in (1..).zip(Kind::ALL) {
            assert_eq!((kind as u16, Kind::of(number)), (number, Some(kind)));
            assert!(kind.values() <= 4);
        }
        assert_eq!((Kind::of(0), Kind::of(23)), (None, None));
        for (number, status) in (0..).zip(Status::ALL) {
            assert_eq!((status as u16, Status::of(number)), (number, Some(status)));
        }
        for (number, phase) in (0..).zip(Phase::ALL) {
            assert_eq!((phase as u64, Phase::of(number)), (number, Some(phase)));
        }
        for (number, refusal) in (1..).zip(Refusal::ALL) {
            assert_eq!(
                (refusal as u64, Refusal::of(number)),
                (number, Some(refusal))
            );
        }
        assert_eq!(Refusal::of(0), None);
    }

    #[test]
    fn each_right_has_a_bit_and_a_word() {
        let mut all = 0;
        for (bit, word) in right::ALL {
            assert!(bit.is_power_of_two() && all & bit == 0, "{word}");
            all |= bit;
        }
        assert_eq!(right::OF_LOCKED & !all, 0);
        assert!(Kind::ALL.iter().all(|kind| kind.needs() & !all == 0));
    }
}
