//! Lines about what happens: EL2 has started, a VM has ended, nothing is left to run.

use super::{Field, Name, Rest, Sink, Word};

macro_rules! all_stopped {
    () => {
        "all VMs stopped"
    };
}

/// The last line: no VM runs any more, and the board is switched off.
pub const ALL_STOPPED: &str = all_stopped!();
/// [`ALL_STOPPED`] with its line end.
pub const ALL_STOPPED_LINE: &str = concat!(all_stopped!(), "\r\n");

sequence! {
    /// Switch of the console's input to another VM: `input goes to linux`.
    pub struct InputTo<'a> {
        /// Its name.
        "input goes to ", vm: Name<'a>,
    }
}

sequence! {
    /// Loss of input that a VM has not read for long, and has no room for: `input is lost, not read by linux`.
    pub struct InputLost<'a> {
        /// Its name.
        "input is lost, not read by ", vm: Name<'a>,
    }
}

/// State of a VM that an order does not fit, as an adjective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It is down.
    Stopped,
    /// It is being prepared.
    Starting,
    /// Its vCPUs may run.
    Running,
    /// Its vCPUs do not run for now.
    Paused,
    /// It is being stopped, or prints its reports.
    Stopping,
    /// It runs, and a manager has asked it to stop.
    Asked,
}

impl Condition {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Stopped,
        Self::Starting,
        Self::Running,
        Self::Paused,
        Self::Stopping,
        Self::Asked,
    ];

    const fn words(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Asked => "asked to stop",
        }
    }
}

impl Field<'_> for Condition {
    #[inline(always)]
    fn write(&self, to: &mut impl Sink) {
        to.text(self.words());
    }
    fn parse(text: &mut &str) -> Option<Self> {
        let found = Self::ALL
            .into_iter()
            .find(|one| text.starts_with(one.words()))?;
        *text = text.strip_prefix(found.words())?;
        Some(found)
    }
}

/// Order about a VM, given in the monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Its vCPUs do not run for now.
    Pause,
    /// They run again.
    Resume,
    /// It ends.
    Stop,
    /// It ends, if it has not, and starts again.
    Restart,
}

impl Order {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Pause, Self::Resume, Self::Stop, Self::Restart];

    const fn words(self) -> &'static str {
        match self {
            Self::Pause => "pause ",
            Self::Resume => "go on with ",
            Self::Stop => "stop ",
            Self::Restart => "restart ",
        }
    }
}

impl Field<'_> for Order {
    #[inline(always)]
    fn write(&self, to: &mut impl Sink) {
        to.text(self.words());
    }
    fn parse(text: &mut &str) -> Option<Self> {
        let found = Self::ALL
            .into_iter()
            .find(|one| text.starts_with(one.words()))?;
        *text = text.strip_prefix(found.words())?;
        Some(found)
    }
}

/// The answer of the monitor to an order: `stop linux`, or `cannot stop linux: it is stopped`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ordered<'a> {
    /// The order.
    pub order: Order,
    /// Name of the VM.
    pub vm: Name<'a>,
    /// State of the VM that the order does not fit; `None`: the order is carried out.
    pub refused: Option<Condition>,
}

impl<'a> Ordered<'a> {
    const BEGINS: &'static str = "cannot ";
    const BECAUSE: &'static str = ": it is ";

    /// Appends the line.
    #[inline(always)]
    pub fn write(&self, to: &mut impl Sink) {
        if self.refused.is_some() {
            to.text(Self::BEGINS);
        }
        self.order.write(to);
        self.vm.write(to);
        if let Some(condition) = self.refused {
            to.text(Self::BECAUSE);
            condition.write(to);
        }
    }

    /// Reads the line.
    pub fn parse(text: &'a str) -> Option<Self> {
        let rest = text.strip_prefix(Self::BEGINS);
        let mut text = rest.unwrap_or(text);
        let order = Order::parse(&mut text)?;
        let vm = Name::parse(&mut text)?;
        let mut because = text.strip_prefix(Self::BECAUSE);
        let refused = because.as_mut().and_then(Condition::parse);
        (rest.is_some() == refused.is_some()).then_some(Self { order, vm, refused })
    }
}

/// The first line: `Bulkhead 0.1.0, 4 pCPUs, 2 VMs`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Booted<'a> {
    /// EL2's version.
    pub version: Word<'a>,
    /// pCPUs of the plan.
    pub pcpus: u64,
    /// VMs of the plan.
    pub vms: u64,
}

impl<'a> Booted<'a> {
    const BEGINS: &'static str = "Bulkhead ";

    /// Appends the line.
    #[inline(always)]
    pub fn write(&self, to: &mut impl Sink) {
        to.text(Self::BEGINS);
        self.version.write(to);
        to.text(", ");
        to.decimal(self.pcpus);
        to.text(" pCPUs, ");
        to.decimal(self.vms);
        to.text(" VMs");
    }

    /// Reads the line; `1 pCPU` and `1 VM` are as good.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut text = text.strip_prefix(Self::BEGINS)?;
        let version = Word::parse(&mut text)?;
        text = text.strip_prefix(", ")?;
        let pcpus = u64::parse(&mut text)?;
        text = text.strip_prefix(" pCPU")?.trim_start_matches('s');
        text = text.strip_prefix(", ")?;
        let vms = u64::parse(&mut text)?;
        text.starts_with(" VM").then_some(Self {
            version,
            pcpus,
            vms,
        })
    }
}

/// The words with which the line [`Refused`] begins, as a literal that can be part of a longer one:
/// `refused!("rule: why")`.
#[macro_export]
macro_rules! refused {
    ($($rest:literal)?) => {
        concat!("refused: ", $($rest)?)
    };
}

/// EL2 does not start: `refused: regions-apart: region 3 and region 5`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refused<'a> {
    /// Name of the rule that does not hold.
    pub rule: &'a str,
    /// Place of the defect, in EL2's words; empty if it says no more.
    pub place: &'a str,
}

impl<'a> Refused<'a> {
    /// Appends the line.
    #[inline(always)]
    pub fn write(&self, to: &mut impl Sink) {
        to.text(refused!());
        to.text(self.rule);
        to.text(": ");
        to.text(self.place);
    }

    /// Reads the line.
    pub fn parse(text: &'a str) -> Option<Self> {
        let rest = text.strip_prefix(refused!())?;
        let (rule, place) = rest.split_once(": ").unwrap_or((rest, ""));
        Some(Self { rule, place })
    }
}

/// Whether a VM that has ended starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It stays stopped.
    Stopped,
    /// It starts again.
    Restarts,
}

impl Outcome {
    const fn words(self) -> &'static str {
        match self {
            Self::Stopped => " stopped: ",
            Self::Restarts => " restarts: ",
        }
    }
}

impl Field<'_> for Outcome {
    #[inline(always)]
    fn write(&self, to: &mut impl Sink) {
        to.text(self.words());
    }
    fn parse(text: &mut &str) -> Option<Self> {
        let all = [Self::Stopped, Self::Restarts];
        let found = all.into_iter().find(|one| text.starts_with(one.words()))?;
        *text = text.strip_prefix(found.words())?;
        Some(found)
    }
}

sequence! {
    /// The end of a VM: `vm linux stopped: power off`.
    pub struct VmEnd<'a> {
        /// Its name.
        "vm ", vm: Name<'a>,
        /// Whether it starts again.
        "", outcome: Outcome,
        /// Reason of the end, [`crate::call::End::words`] or the words of a fault, and what follows.
        "", why: Rest<'a>,
    }
}
