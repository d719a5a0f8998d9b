//! The state of one CPU: a machine that is fed with what EL2 executes there and keeps the accounts.

use std::collections::{BTreeMap, HashMap};

use crate::profile::{Cost, Exits, Periods};

/// Most stays in functions that are kept of one exit.
const LONGEST_PATH: usize = 4096;

/// An instruction of EL2, as it was found when it was translated.
#[derive(Clone, Copy, Debug)]
pub struct Insn {
    /// Linked address.
    pub pc: u64,
    /// Cost of an execution.
    pub cost: Cost,
    /// Index of its function in the configuration; [`NO_SYMBOL`] outside of all.
    pub symbol: u32,
    /// Its meaning for the accounts.
    pub role: Role,
}

/// Index of no function.
pub const NO_SYMBOL: u32 = u32::MAX;

/// Meaning of an instruction for the accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nothing special.
    Plain,
    /// First of a vector entry for exceptions from EL2 itself.
    Nested,
    /// `ERET`.
    Return,
    /// First instruction of idle code.
    Idle,
    /// EL2 looks here whether there is something more urgent than what it does, or goes on with another vCPU's work.
    Look,
}

/// Cause of an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Synchronous, with its exception class.
    Sync(u8),
    /// An interrupt whose INTID is not known (yet).
    Irq,
    /// An interrupt with its physical INTID.
    Intid(u64),
    /// FIQ
    Fiq,
    /// System error.
    Serror,
    /// No exit: work of EL2 from one look at interrupts to the next, or from a switch to the guest.
    Slice,
}

impl Kind {
    /// From the offset of a vector entry and the syndrome.
    pub fn new(offset: u64, esr: u64) -> Self {
        match offset & 0x180 {
            0 => Self::Sync(((esr >> 26) & 63) as u8),
            0x80 => Self::Irq,
            0x100 => Self::Fiq,
            _ => Self::Serror,
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sync(ec) => write!(f, "sync EC {ec:#04x}"),
            Self::Irq => f.write_str("irq"),
            Self::Intid(intid) => write!(f, "irq {intid}"),
            Self::Fiq => f.write_str("fiq"),
            Self::Serror => f.write_str("serror"),
            Self::Slice => f.write_str("slice"),
        }
    }
}

/// An exit under way, or the longest.
#[derive(Clone, Debug)]
pub struct Exit {
    /// Its cause.
    pub kind: Kind,
    /// Cost of what it executed so far.
    pub cost: Cost,
    /// ELR_EL2 at its start.
    pub guest_pc: u64,
    /// ESR_EL2 at its start.
    pub esr: u64,
    /// Stays in functions: index and instructions.
    pub path: Vec<(u32, u64)>,
    /// All instructions of EL2 on this CPU before it.
    before: u64,
}

/// Exits one behind the other: no guest has executed anything in between.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Instructions of all together.
    pub instructions: u64,
    /// Their causes and instructions.
    pub exits: Vec<(Kind, u64)>,
}

/// Work of EL2 on behalf of one figure on this CPU.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// All that EL2 executed.
    pub cost: Cost,
    /// Exits taken.
    pub exits: u64,
    /// Executions by linked address, with the function.
    pub addresses: HashMap<u64, (u32, u64)>,
}

/// The accounts of one CPU.
#[derive(Debug, Default)]
pub struct Cpu {
    /// Key that tells it apart: an index or a value of TPIDR_EL2.
    pub key: u64,
    /// All that ran at EL2.
    pub total: Cost,
    /// Finished exits by kind.
    pub exits: BTreeMap<Kind, Exits>,
    /// Number of finished exits by their instructions.
    pub lengths: BTreeMap<Kind, BTreeMap<u64, u64>>,
    /// The longest exit so far.
    pub longest: Option<Exit>,
    /// The row of exits with most instructions so far.
    pub longest_row: Option<Row>,
    /// Figures by number.
    pub figures: BTreeMap<u64, Tally>,
    /// Periods of the watched timer, where it is watched.
    pub periods: Option<Periods>,
    /// The exit has begun at a guarded vector, and has not reached the other one.
    pub is_guarded: bool,
    exit: Option<Exit>,
    /// The row that may go on, and how many blocks had been executed outside of EL2 when its last exit ended.
    row: Row,
    left: Option<u64>,
    /// Memory for the path of the next exit.
    spare: Vec<(u32, u64)>,
    nested: u32,
    figure: Option<u64>,
    /// Exits so far.
    entered: u64,
    /// Start of the last period, in instructions and exits of EL2 on this CPU.
    period_began: Option<(u64, u64)>,
}

impl Cpu {
    /// Accounts of the CPU `key`; `watched` when the timer's periods are counted here.
    pub fn new(key: u64, watched: bool) -> Self {
        Self {
            key,
            periods: watched.then(Periods::default),
            ..Self::default()
        }
    }

    /// A guest called a mark.
    pub fn mark(&mut self, id: u64, begin: bool) {
        if begin {
            self.figure = Some(id);
            self.figures.entry(id).or_default();
        } else if self.figure == Some(id) {
            self.figure = None;
        }
    }

    /// An exit begins; its first instruction follows by [`Self::execute`]. So many blocks have been executed `outside` of EL2. Between
    /// two exits that another CPU's guest has run between, a guest of this one may have as well: they are no row.
    pub fn enter(&mut self, kind: Kind, guest_pc: u64, esr: u64, outside: u64) {
        self.finish();
        // What is synchronous the guest has asked for: it went on.
        let goes_on = self.left.take() == Some(outside) && !matches!(kind, Kind::Sync(_));
        if !goes_on {
            self.row = Row::default();
        }
        self.nested = 0;
        self.entered += 1;
        self.begin(kind, guest_pc, esr);
        if let Some(tally) = self.figure.and_then(|id| self.figures.get_mut(&id)) {
            tally.exits += 1;
        }
    }

    /// The exit has ended by `ERET`, when so many blocks had been executed outside of EL2.
    pub fn left(&mut self, outside: u64) {
        self.is_guarded = false;
        self.left = Some(outside);
    }

    fn begin(&mut self, kind: Kind, guest_pc: u64, esr: u64) {
        let mut path = std::mem::take(&mut self.spare);
        path.clear();
        let before = self.total.instructions;
        self.exit = Some(Exit {
            kind,
            cost: Cost::default(),
            guest_pc,
            esr,
            path,
            before,
        });
    }

    /// The interrupt `intid` was acknowledged; `timer` when it is the watched one.
    pub fn acknowledge(&mut self, intid: u64, timer: bool) {
        // What follows the first acknowledgement of an exit (another pending interrupt, or none: 1023)
        // belongs to the same exit.
        let Some(exit) = self.exit.as_mut().filter(|exit| exit.kind == Kind::Irq) else {
            return;
        };
        exit.kind = Kind::Intid(intid);
        let now = exit.before;
        if timer {
            // The exit itself is the first of the new period.
            self.count_period(now, self.entered - 1);
        }
    }

    /// The guest has acknowledged the watched interrupt itself.
    pub fn period(&mut self) {
        self.count_period(self.total.instructions, self.entered);
    }

    /// A period ends and another begins, at so many instructions and exits of EL2.
    fn count_period(&mut self, instructions: u64, exits: u64) {
        let Some(periods) = &mut self.periods else {
            return;
        };
        if let Some((instructions_before, exits_before)) = self.period_began {
            let spent = instructions - instructions_before;
            periods.count += 1;
            periods.max = periods.max.max(spent);
            periods.exits += exits - exits_before;
            *periods.histogram.entry(spent).or_default() += 1;
        }
        self.period_began = Some((instructions, exits));
    }

    /// An instruction is about to execute.
    pub fn execute(&mut self, insn: &Insn) {
        match insn.role {
            Role::Idle => self.finish(),
            Role::Look => {
                self.finish();
                self.begin(Kind::Slice, 0, 0);
            }
            _ => {}
        }
        self.total.add(insn.cost);
        if let Some(tally) = self.figure.and_then(|id| self.figures.get_mut(&id)) {
            tally.cost.add(insn.cost);
            tally.addresses.entry(insn.pc).or_insert((insn.symbol, 0)).1 += 1;
        }
        if let Some(exit) = &mut self.exit {
            exit.cost.add(insn.cost);
            let room = exit.path.len() < LONGEST_PATH;
            match exit.path.last_mut() {
                Some((symbol, count)) if *symbol == insn.symbol => *count += 1,
                _ if room => exit.path.push((insn.symbol, 1)),
                _ => {}
            }
        }
        match insn.role {
            Role::Nested => self.nested += 1,
            Role::Return if self.nested > 0 => self.nested -= 1,
            Role::Return => self.finish(),
            Role::Plain | Role::Idle | Role::Look => {}
        }
    }

    /// Closes the exit under way, if there is one.
    fn finish(&mut self) {
        let Some(exit) = self.exit.take() else { return };
        let length = exit.cost.instructions;
        let exits = self.exits.entry(exit.kind).or_default();
        exits.count += 1;
        exits.total += length;
        exits.max = exits.max.max(length);
        let lengths = self.lengths.entry(exit.kind).or_default();
        *lengths.entry(length).or_default() += 1;
        if exit.kind == Kind::Slice {
            self.row = Row::default();
        }
        self.row.instructions += length;
        self.row.exits.push((exit.kind, length));
        let longest = self.longest_row.as_ref().map_or(0, |row| row.instructions);
        if self.row.instructions > longest {
            self.longest_row = Some(self.row.clone());
        }
        if self
            .longest
            .as_ref()
            .is_none_or(|longest| longest.cost.instructions < length)
        {
            self.longest = Some(exit);
        } else {
            self.spare = exit.path;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(pc: u64, role: Role) -> Insn {
        Insn {
            pc,
            cost: crate::decode::cost(0xd503_201f),
            symbol: (pc / 0x100) as u32,
            role,
        }
    }

    fn run(cpu: &mut Cpu, pc: u64, count: u64) {
        for at in 0..count {
            cpu.execute(&insn(pc + at * 4, Role::Plain));
        }
    }

    fn timer_exit(cpu: &mut Cpu, length: u64) {
        cpu.enter(Kind::new(0x480, 0), 0x4000, 0, 0);
        run(cpu, 0x100, length - 1);
        cpu.acknowledge(27, true);
        cpu.execute(&insn(0x1f0, Role::Return));
    }

    #[test]
    fn exits_run_from_the_vector_to_eret() {
        let mut cpu = Cpu::new(0, false);
        cpu.enter(Kind::new(0x400, 0x5a00_0000), 0x1234, 0x5a00_0000, 0);
        run(&mut cpu, 0x100, 3);
        run(&mut cpu, 0x200, 5);
        cpu.execute(&insn(0x110, Role::Return));
        run(&mut cpu, 0x100, 7); // EL2 outside of an exit: boot of another pCPU, idle
        assert_eq!(cpu.total.instructions, 16);
        assert_eq!(
            cpu.exits[&Kind::Sync(0x16)],
            Exits {
                count: 1,
                total: 9,
                max: 9
            }
        );
        let longest = cpu.longest.expect("there was an exit");
        assert_eq!((longest.guest_pc, longest.esr), (0x1234, 0x5a00_0000));
        assert_eq!(longest.path, [(1, 3), (2, 5), (1, 1)]);
    }

    #[test]
    fn an_exit_that_ends_idle_does_not_contain_idle_code() {
        let mut cpu = Cpu::new(0, false);
        cpu.enter(Kind::Irq, 0, 0, 0);
        run(&mut cpu, 0x100, 4);
        cpu.execute(&insn(0x300, Role::Idle));
        run(&mut cpu, 0x304, 50);
        assert_eq!(
            cpu.exits[&Kind::Irq],
            Exits {
                count: 1,
                total: 4,
                max: 4
            }
        );
    }

    #[test]
    fn work_that_looks_up_now_and_then_is_as_long_as_its_longest_slice() {
        let mut cpu = Cpu::new(0, false);
        cpu.enter(Kind::Irq, 0, 0, 0);
        run(&mut cpu, 0x100, 4);
        for length in [30, 20] {
            cpu.execute(&insn(0x300, Role::Look));
            run(&mut cpu, 0x304, length);
        }
        cpu.execute(&insn(0x1f0, Role::Return));
        let exits = |count, total, max| Exits { count, total, max };
        assert_eq!(cpu.exits[&Kind::Irq], exits(1, 4, 4));
        assert_eq!(cpu.exits[&Kind::Slice], exits(2, 53, 31));
        assert_eq!(
            cpu.lengths[&Kind::Slice],
            BTreeMap::from([(22, 1), (31, 1)])
        );
        assert_eq!(cpu.longest.map(|longest| longest.kind), Some(Kind::Slice));
    }

    #[test]
    fn interrupts_between_which_no_guest_runs_are_a_row() {
        let mut cpu = Cpu::new(0, false);
        let mut exit = |kind, outside, length: u64| {
            cpu.enter(kind, 0, 0, outside);
            run(&mut cpu, 0x100, length - 1);
            cpu.execute(&insn(0x1f0, Role::Return));
            cpu.left(outside);
            cpu.longest_row.clone().expect("there was an exit")
        };
        assert_eq!(exit(Kind::Irq, 7, 10).instructions, 10);
        assert_eq!(exit(Kind::Fiq, 7, 20).instructions, 30, "nobody ran");
        let row = exit(Kind::Irq, 7, 5);
        assert_eq!(row.instructions, 35);
        let exits = [(Kind::Irq, 10), (Kind::Fiq, 20), (Kind::Irq, 5)];
        assert_eq!(row.exits, exits);
        assert_eq!(exit(Kind::Irq, 8, 33).instructions, 35, "a guest ran");
        assert_eq!(exit(Kind::Sync(1), 8, 34).instructions, 35, "it asked");
        assert_eq!(exit(Kind::Irq, 8, 2).instructions, 36);
    }

    #[test]
    fn a_nested_exception_returns_into_its_exit() {
        let mut cpu = Cpu::new(0, false);
        cpu.enter(Kind::Fiq, 0, 0, 0);
        run(&mut cpu, 0x100, 2);
        cpu.execute(&insn(0x0, Role::Nested));
        cpu.execute(&insn(0x4, Role::Return));
        run(&mut cpu, 0x100, 2);
        cpu.execute(&insn(0x110, Role::Return));
        assert_eq!(cpu.exits[&Kind::Fiq].total, 7);
    }

    #[test]
    fn figures_hold_what_lies_between_their_marks() {
        let mut cpu = Cpu::new(0, false);
        timer_exit(&mut cpu, 10);
        cpu.mark(3, true);
        timer_exit(&mut cpu, 20);
        timer_exit(&mut cpu, 20);
        cpu.mark(2, false); // a mark of another figure ends nothing
        timer_exit(&mut cpu, 20);
        cpu.mark(3, false);
        timer_exit(&mut cpu, 10);
        let tally = &cpu.figures[&3];
        assert_eq!((tally.cost.instructions, tally.exits), (60, 3));
        assert_eq!(tally.addresses[&0x1f0], (1, 3));
    }

    #[test]
    fn periods_run_from_one_timer_exit_to_the_next() {
        let mut cpu = Cpu::new(0, true);
        timer_exit(&mut cpu, 90);
        timer_exit(&mut cpu, 90);
        cpu.enter(Kind::Sync(1), 0, 0, 0); // 90 + 30 in the third period
        run(&mut cpu, 0x200, 30);
        timer_exit(&mut cpu, 80);
        let periods = cpu.periods.expect("watched");
        assert_eq!((periods.count, periods.max, periods.exits), (2, 120, 3));
        assert_eq!(periods.histogram, BTreeMap::from([(90, 1), (120, 1)]));
    }

    #[test]
    fn periods_of_a_guest_that_takes_its_interrupts_hold_what_el2_does_meanwhile() {
        let mut cpu = Cpu::new(0, true);
        cpu.enter(Kind::Sync(1), 0, 0, 0); // before the first period
        run(&mut cpu, 0x200, 30);
        cpu.period();
        cpu.period();
        cpu.enter(Kind::Fiq, 0, 0, 0);
        run(&mut cpu, 0x200, 20);
        cpu.execute(&insn(0x1f0, Role::Return));
        cpu.period();
        let periods = cpu.periods.expect("watched");
        assert_eq!((periods.count, periods.max, periods.exits), (2, 21, 1));
        assert_eq!(periods.histogram, BTreeMap::from([(0, 1), (21, 1)]));
    }
}
