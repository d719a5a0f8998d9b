//! What a status other than "done" means for a person: what failed, why, and what to do.

use bulkhead_abi::control::{Kind, Message, Phase, Refusal, Status, right};

use crate::failure::Failure;

/// What a request does, as part of a sentence.
const fn verb(kind: Kind) -> &'static str {
    match kind {
        Kind::Hello => "greet EL2",
        Kind::Vm | Kind::Vcpu => "ask for the state",
        Kind::Start => "start",
        Kind::Stop | Kind::Shutdown => "stop",
        Kind::Restart => "restart",
        Kind::Pause => "pause",
        Kind::Resume => "resume",
        Kind::Time | Kind::Waits | Kind::Exits | Kind::Service => "get statistics",
        Kind::Report => "get the report of the last crash",
        Kind::Registers => "get registers",
        Kind::Memory => "dump",
        Kind::Weight => "set the weight",
        Kind::Cap => "set the cap",
        Kind::Budget => "set the budget",
        Kind::Pool => "set the pool",
        Kind::Output => "read the console",
        Kind::Input => "type on the console",
    }
}

/// The failure that an answer other than "done" is; `vm` is the name of the VM.
pub fn failure(kind: Kind, vm: &str, answer: &Message) -> Failure {
    let what = match kind {
        Kind::Start
        | Kind::Stop
        | Kind::Shutdown
        | Kind::Restart
        | Kind::Pause
        | Kind::Resume
        | Kind::Memory => {
            format!("cannot {} {vm}", verb(kind))
        }
        Kind::Hello => format!("cannot {}", verb(kind)),
        _ => format!("cannot {} of {vm}", verb(kind)),
    };
    let [first, second, third, ..] = answer.values;
    let Some(status) = Status::of(answer.status) else {
        let why = format!(
            "EL2 answers with a status that this program does not know, {}",
            answer.status
        );
        return Failure::failed("control::unknown", what, why);
    };
    let words = status.words();
    match status {
        Status::Rights => {
            let has: Vec<&str> = right::ALL
                .iter()
                .filter(|(bit, _)| first & u64::from(*bit) != 0)
                .map(|(_, word)| *word)
                .collect();
            let has = if has.is_empty() {
                "nothing".to_owned()
            } else {
                has.join(", ")
            };
            let why = format!("{words}; this VM may: {has}");
            let needed: Vec<&str> = right::ALL
                .iter()
                .filter(|(bit, _)| kind.needs() & bit != 0)
                .map(|(_, word)| *word)
                .collect();
            Failure::failed("control::rights", what, why).advise(format!(
                "add \"{}\" for {vm} to `manages` of this VM in the description, and build the image anew",
                needed.join("\" or \"")
            ))
        }
        Status::Phase => {
            let phase = match Phase::of(first) {
                Some(Phase::Asked) => "asked to stop",
                Some(phase) => phase.word(),
                None => "in a state that this program does not know",
            };
            let advice = match (kind, Phase::of(first)) {
                (Kind::Pause, Some(Phase::Down)) => format!("bulkheadctl start {vm}"),
                (Kind::Shutdown, Some(Phase::Paused)) => {
                    format!("bulkheadctl resume {vm}; one that stands still hears nothing")
                }
                (Kind::Pause, Some(Phase::Asked)) => {
                    format!("bulkheadctl start {vm} has it start again when it has ended")
                }
                (Kind::Memory | Kind::Registers, Some(Phase::Running)) => {
                    format!("bulkheadctl pause {vm}, or bulkheadctl stop {vm}")
                }
                (Kind::Input, Some(Phase::Down)) => format!("bulkheadctl start {vm}"),
                (_, Some(Phase::Paused)) => format!("bulkheadctl resume {vm}"),
                (_, Some(Phase::Ended | Phase::Stopping | Phase::Starting)) => {
                    "try again in a moment".to_owned()
                }
                _ => String::new(),
            };
            Failure::failed("control::phase", what, format!("it is {phase}")).advise(advice)
        }
        Status::Refused => {
            let Some(reason) = Refusal::of(first) else {
                return Failure::failed("control::refused", what, words);
            };
            let mut why = reason.words().to_owned();
            if reason == Refusal::Overload {
                let percent = third as f64 / 10_000.0;
                why = format!("{why}: {percent:.1} % of pCPU {second}");
            }
            Failure::failed("control::refused", what, why)
                .advise("nothing has changed; `bulkheadctl stats` shows what it has now")
        }
        Status::WouldExit => Failure::failed("control::would-exit", what, words)
            .advise("its description asks for that promise; there is nothing to ask while it runs"),
        Status::Silent => Failure::failed("control::pcpu-silent", what, words)
            .advise("the console of the board may say more; `bulkheadctl doctor` asks all pCPUs"),
        Status::Unasked => Failure::failed("control::unasked", what, words).advise(format!(
            "bulkheadctl stop --force {vm} ends it at once; `stop` of {vm} in the description says how it is asked"
        )),
        Status::Vm | Status::Vcpu => {
            Failure::input("control::no-vm", what, words).advise("see bulkheadctl list")
        }
        Status::Value => Failure::input("control::value", what, words),
        Status::Nothing => Failure::failed("control::nothing", what, words),
        Status::Done | Status::Length | Status::Version | Status::Kind | Status::Reserved => {
            Failure::failed("control::protocol", what, format!("EL2 says: {words}"))
                .advise("install the bulkhead-mgmt package that belongs to the EL2 of this board")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: Status, values: &[u64]) -> Message {
        let mut message = Message {
            status: status as u16,
            ..Message::default()
        };
        message.values[..values.len()].copy_from_slice(values);
        message
    }

    #[test]
    fn a_missing_right_is_named_with_those_that_are_there() {
        let rights = u64::from(right::LIST | right::STATS);
        let failure = failure(Kind::Stop, "linux", &answer(Status::Rights, &[rights]));
        assert_eq!(failure.code, "control::rights");
        assert_eq!(failure.what, "cannot stop linux");
        assert!(
            failure.why.ends_with("this VM may: list, stats"),
            "{failure}"
        );
        assert!(failure.advice.contains("\"stop\""), "{failure}");
    }

    #[test]
    fn an_overload_says_where_and_how_much() {
        let overload = [Refusal::Overload as u64, 2, 1_250_000];
        let failure = failure(Kind::Budget, "control", &answer(Status::Refused, &overload));
        assert_eq!(failure.what, "cannot set the budget of control");
        assert!(failure.why.ends_with("125.0 % of pCPU 2"), "{failure}");
    }

    #[test]
    fn every_status_says_something() {
        for status in Status::ALL {
            let failure = failure(Kind::Time, "x", &answer(status, &[]));
            assert!(!failure.why.is_empty(), "{status:?}");
        }
        let unknown = Message {
            status: 77,
            ..Message::default()
        };
        assert_eq!(failure(Kind::Time, "x", &unknown).code, "control::unknown");
    }
}
