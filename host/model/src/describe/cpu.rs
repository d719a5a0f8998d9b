//! Keys of `[vm.NAME]` about CPU time: `cpu`, `weight`, `cap`, `budget`, `period`, `pool`.

use bulkhead_abi::plan::{Class, MAX_PERIOD, MAX_WEIGHT, MIN_PERIOD};

use super::code::Code;
use super::finding::{Finding, Span};
use super::keys::{SERVICE, VM};
use super::reader::{Placed, Reader};
use super::size::Duration;

/// Period of a cap, if the description does not say: 100 ms in nanoseconds.
const CAP_PERIOD: u64 = 100_000_000;
/// Example of the keys that ask for a server, for messages.
const SERVER: &str = "such as cpu = \"rt\", budget = \"2ms\", period = \"10ms\"";

/// Share of its pCPU that each vCPU of a VM may use. Times in nanoseconds here, and at EL2 in ticks.
pub use bulkhead_core::sched::Policy as CpuTime;

/// CPU time of a VM, as its description states it.
#[derive(Clone, Debug)]
pub struct CpuSpec {
    /// CPU time that each vCPU gets, if the pCPUs can give it.
    pub time: CpuTime,
    /// The words that decide the policy; none if the class does.
    pub stated: Option<Span>,
    /// Place of a server's budget in the description.
    pub budget: Option<Span>,
    /// CPUs of the board among which the load balancer may move its vCPUs; none: they stay.
    pub pool: Vec<Placed<u32>>,
}

impl CpuSpec {
    /// Whether others may run on its pCPUs, too.
    pub fn shares(&self) -> bool {
        self.time != CpuTime::Pinned
    }

    /// Whether it loses nothing if a pCPU that no other VM wants becomes its own.
    pub fn may_be_pinned(&self) -> bool {
        let uncapped = matches!(self.time, CpuTime::Fair { quota, period, .. } if quota == period);
        uncapped && self.stated.is_none() && self.pool.is_empty()
    }
}

/// The policy of a class, by its word.
pub(super) const fn default_of(class: Class) -> &'static str {
    match class {
        Class::Management | Class::General => "fair",
        Class::SoftRealtime | Class::HardRealtime => "pinned",
    }
}

/// Values of all keys, before they are checked against the policy.
struct Keys {
    weight: Option<Placed<u32>>,
    cap: Option<Placed<u64>>,
    budget: Option<Placed<u64>>,
    period: Option<Placed<u64>>,
    pool: Option<Placed<Vec<Placed<u32>>>>,
}

/// Reads the keys about the CPU time of a VM of this class.
pub(super) fn read(reader: &mut Reader, class: Class) -> CpuSpec {
    let word = reader.read(const { VM.word("cpu") });
    // Errors that would only follow from an invalid word are not reported.
    let unsound = word.is_none() && reader.has(const { VM.key("cpu") });
    let keys = Keys {
        weight: reader.read(const { VM.number("weight") }),
        cap: reader.read(const { VM.quantity("cap") }),
        budget: reader.read(const { VM.quantity("budget") }),
        period: reader.read(const { VM.quantity("period") }),
        pool: reader.read(const { VM.numbers("pool") }),
    };
    // A budget is what makes a soft real-time VM share its pCPU.
    let promised = class == Class::SoftRealtime && reader.has(const { VM.key("budget") });
    let policy = match &word {
        Some(word) => word.value,
        None if promised => "rt",
        None => default_of(class),
    };
    let stated = match (&word, promised) {
        (Some(word), _) => Some(word.span.clone()),
        (None, true) => reader.key_span(const { VM.key("budget") }),
        (None, false) => None,
    };
    if !unsound {
        stray(reader, policy, &keys, word.as_ref().map(|word| &word.span));
    }
    let time = match policy {
        "rt" => server(reader, &keys, stated.as_ref()),
        "fair" => fair(reader, &keys),
        _ => CpuTime::Pinned,
    };
    CpuSpec {
        time,
        stated,
        budget: keys.budget.map(|budget| budget.span),
        pool: keys.pool.map_or_else(Vec::new, |pool| pool.value),
    }
}

/// Reads the keys of `[service]` about the CPU time of its thread; none: the description does not say.
pub(super) fn of_service(reader: &mut Reader) -> Option<Placed<CpuTime>> {
    let keys = Keys {
        weight: reader.read(const { SERVICE.number("weight") }),
        cap: None,
        budget: reader.read(const { SERVICE.quantity("budget") }),
        period: reader.read(const { SERVICE.quantity("period") }),
        pool: None,
    };
    let weight = keys.weight.as_ref().map(|weight| weight.span.clone());
    let [budget, period] = [
        reader.key_span(const { SERVICE.key("budget") }),
        reader.key_span(const { SERVICE.key("period") }),
    ];
    let rt = budget.clone().or_else(|| period.clone());
    match (weight, rt) {
        (None, None) => None,
        (Some(weight), Some(rt)) => {
            reader.report(
                Finding::new(
                    Code::ServiceBoth,
                    "the thread has a weight or a budget, not both",
                )
                .at(rt, "makes it a server")
                .at(weight, "makes it fair")
                .help("leave one of them out"),
            );
            None
        }
        (Some(span), None) => {
            let value = fair(reader, &keys);
            Some(Placed { value, span })
        }
        (None, Some(span)) => {
            let missing = match (&budget, &period) {
                (None, _) => Some("`budget`"),
                (_, None) => Some("`period`"),
                _ => None,
            };
            if let Some(missing) = missing {
                reader.report(
                    Finding::new(
                        Code::ServiceIncomplete,
                        "a server has a budget in each period",
                    )
                    .at(span.clone(), format!("needs {missing}"))
                    .help("such as budget = \"200us\", period = \"1ms\""),
                );
                return None;
            }
            let value = server_time(reader, &keys);
            Some(Placed { value, span })
        }
    }
}

/// Reports keys that do not go with the policy.
fn stray(reader: &mut Reader, policy: &str, keys: &Keys, stated: Option<&Span>) {
    let (rt, fair) = (policy == "rt", policy == "fair");
    let span = |key: &Option<Placed<u64>>| key.as_ref().map(|key| key.span.clone());
    let weight = keys.weight.as_ref().map(|weight| weight.span.clone());
    let pool = keys.pool.as_ref().map(|pool| pool.span.clone());
    let periodic = rt || fair && keys.cap.is_some();
    for (key, span, belongs, goes_with) in [
        ("weight", weight, fair, "cpu = \"fair\""),
        ("cap", span(&keys.cap), fair, "cpu = \"fair\""),
        ("pool", pool, fair, "cpu = \"fair\""),
        ("budget", span(&keys.budget), rt, "cpu = \"rt\""),
        (
            "period",
            span(&keys.period),
            periodic,
            "cpu = \"rt\", or with `cap`",
        ),
    ] {
        let Some(span) = span.filter(|_| !belongs) else {
            continue;
        };
        reader.report(
            Finding::new(Code::CpuStray, format!("`{key}` goes with {goes_with}"))
                .at(span, format!("this VM has cpu = \"{policy}\""))
                .also(stated.cloned(), "says so")
                .help(format!("leave `{key}` out, or say {goes_with}")),
        );
    }
}

/// A period that the scheduler can keep.
fn period(reader: &mut Reader, period: &Placed<u64>) -> u64 {
    if !(MIN_PERIOD..=MAX_PERIOD).contains(&period.value) {
        let (least, most) = (Duration(MIN_PERIOD), Duration(MAX_PERIOD));
        reader.report(
            Finding::new(
                Code::CpuPeriod,
                format!("periods are {least} to {most} long"),
            )
            .at(
                period.span.clone(),
                format!("{} here", Duration(period.value)),
            )
            .help("shorter ones would spend their time on switching, longer ones promise nothing"),
        );
    }
    period.value
}

/// The keys of a server.
fn server(reader: &mut Reader, keys: &Keys, stated: Option<&Span>) -> CpuTime {
    let needed = [const { VM.key("budget") }, const { VM.key("period") }];
    let missing = needed.into_iter().filter(|key| !reader.has(key));
    let missing: Vec<String> = missing.map(|key| format!("`{}`", key.name)).collect();
    if let (false, Some(span)) = (missing.is_empty(), stated) {
        let what = missing.join(" and ");
        reader.report(
            Finding::new(Code::CpuIncomplete, "a server has a budget in each period")
                .at(span.clone(), format!("needs {what}"))
                .help(SERVER),
        );
    }
    server_time(reader, keys)
}

/// The CPU time of a server; what its keys do not say is made up.
fn server_time(reader: &mut Reader, keys: &Keys) -> CpuTime {
    let period = keys.period.as_ref().map(|placed| period(reader, placed));
    if let (Some(budget), Some(period)) = (&keys.budget, period)
        && (budget.value > period || budget.value == 0)
    {
        let why = if budget.value == 0 {
            "nothing at all".to_owned()
        } else {
            format!("more than its period, {}", Duration(period))
        };
        reader.report(
            Finding::new(Code::CpuBudget, "a budget is a part of its period")
                .at(budget.span.clone(), why)
                .also(
                    keys.period.as_ref().map(|period| period.span.clone()),
                    "its period",
                )
                .help("such as budget = \"2ms\", period = \"10ms\""),
        );
    }
    CpuTime::Server {
        budget: keys
            .budget
            .as_ref()
            .map_or(MIN_PERIOD, |budget| budget.value),
        period: period.unwrap_or(MAX_PERIOD),
    }
}

/// The keys of a fair VM.
fn fair(reader: &mut Reader, keys: &Keys) -> CpuTime {
    let weight = keys.weight.as_ref().map_or(Ok(1), |weight| {
        let value = u16::try_from(weight.value).ok();
        value
            .filter(|value| (1..=MAX_WEIGHT).contains(value))
            .ok_or(weight)
    });
    if let Err(weight) = weight {
        reader.report(
            Finding::new(
                Code::CpuWeight,
                format!("weights are 1 to {MAX_WEIGHT}"),
            )
            .at(weight.span.clone(), format!("{} here", weight.value))
            .help("a VM of weight 2 gets twice what one of weight 1 gets, while both want it; 1 is the default"),
        );
    }
    // A period without a cap was reported by `stray`.
    let period = match (&keys.period, &keys.cap) {
        (Some(placed), Some(_)) => period(reader, placed),
        _ => CAP_PERIOD,
    };
    let cap = keys.cap.as_ref().map_or(100, |cap| cap.value);
    CpuTime::Fair {
        weight: weight.unwrap_or(1),
        quota: (u128::from(period) * u128::from(cap) / 100).max(1) as u64,
        period,
    }
}
