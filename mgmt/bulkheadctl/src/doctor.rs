//! `doctor`: what is wrong, from the port to the pCPUs.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::Instant;

use bulkhead_abi::control::{Kind, Phase, Status, VERSION, right};
use bulkhead_control::board::Vm;
use bulkhead_control::connection::Trouble;
use bulkhead_control::failure::{Failure, Outcome};
use bulkhead_control::manager::Manager;
use bulkhead_control::port::{Access, Via};
use serde_json::{Value, json};

use crate::output::{Paint, Printer};
use crate::verb::Ended;

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Good,
    /// Not there, and nothing is wrong with that.
    Absent,
    Bad,
}

/// One thing that was looked at.
#[derive(Debug)]
struct Found {
    what: String,
    state: State,
    detail: String,
    remedy: String,
}

impl Found {
    fn good(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            state: State::Good,
            detail: detail.into(),
            remedy: String::new(),
        }
    }

    fn absent(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            state: State::Absent,
            ..Self::good(what, detail)
        }
    }

    fn bad(what: impl Into<String>, failure: &Failure) -> Self {
        let detail = [failure.what.as_str(), &failure.why].join(": ");
        Self {
            state: State::Bad,
            remedy: failure.advice.clone(),
            ..Self::good(what, detail)
        }
    }
}

/// Looks at everything.
pub fn run(access: &Access, printer: &Printer) -> Ended {
    let found = look(access);
    let is_bad = found.iter().any(|found| found.state == State::Bad);
    if printer.json {
        let list: Vec<Value> = found.iter().map(as_json).collect();
        printer.document(&json!({ "ok": !is_bad, "found": list }))?;
    } else {
        let texts: String = found.iter().map(|found| text(printer, found)).collect();
        printer.text(&texts)?;
    }
    Ok(if is_bad {
        Outcome::Environment
    } else {
        Outcome::Done
    })
}

const fn word(state: State) -> &'static str {
    match state {
        State::Good => "good",
        State::Absent => "absent",
        State::Bad => "bad",
    }
}

fn as_json(found: &Found) -> Value {
    json!({
        "what": found.what,
        "state": word(found.state),
        "detail": found.detail,
        "remedy": found.remedy,
    })
}

fn text(printer: &Printer, found: &Found) -> String {
    let paint = match found.state {
        State::Good => Paint::Green,
        State::Absent => Paint::Dim,
        State::Bad => Paint::Red,
    };
    let state = printer.paint(paint, &format!("{:<6}", word(found.state)));
    let mut text = format!("{state}  {:<9}  {}\n", found.what, found.detail);
    if !found.remedy.is_empty() {
        text += &format!("{:19}= help: {}\n", "", found.remedy);
    }
    text
}

fn look(access: &Access) -> Vec<Found> {
    let mut all = Vec::new();
    match access.device() {
        Ok(path) => all.push(Found::good("port", path.display().to_string())),
        // The daemon may have another root, as that of a container's host.
        Err(failure) => all.push(Found::absent(
            "port",
            format!("{}: {}", failure.what, failure.why),
        )),
    }
    let connection = match access.connect() {
        Ok((connection, via)) => {
            all.push(match &via {
                Via::Daemon(path) => {
                    Found::good("daemon", format!("bulkheadd listens at {}", path.display()))
                }
                Via::Port(_) => {
                    Found::absent("daemon", "bulkheadd does not run; the port is asked itself")
                }
            });
            connection
        }
        Err(failure) => {
            all.push(Found::bad("access", &failure));
            return all;
        }
    };
    let start = Instant::now();
    let mut manager = match Manager::greet(connection) {
        Ok(manager) => manager,
        Err(failure) => {
            all.push(Found::bad("EL2", &failure));
            return all;
        }
    };
    let answered = start.elapsed().as_micros();
    let hello = manager.hello;
    let detail = format!(
        "version {VERSION} of the protocol, answers in {answered} us; {} pCPUs, {} VMs",
        hello.pcpus, hello.vms
    );
    all.push(Found::good("EL2", detail));
    match manager.vms() {
        Ok(vms) => {
            all.push(rights(&vms));
            all.extend(pcpus(&mut manager, &vms));
        }
        Err(failure) => all.push(Found::bad("VMs", &failure)),
    }
    all
}

fn rights(vms: &[Vm]) -> Found {
    if vms.is_empty() {
        let failure = Failure::failed(
            "control::rights",
            "this VM may see no other",
            "the plan gives no right",
        )
        .advise("its rights stand in `manages` of this VM in the description");
        return Found::bad("rights", &failure);
    }
    let words = vms.iter().map(|vm| {
        let rights = vm.rights_words();
        let all = rights.len() == right::ALL.len();
        format!(
            "{} {}",
            vm.name,
            if all {
                "all".to_owned()
            } else {
                rights.join("+")
            }
        )
    });
    Found::good("rights", words.collect::<Vec<_>>().join(", "))
}

/// What asking the vCPUs of a pCPU gave.
#[derive(Clone, Debug)]
enum Said {
    Answers,
    NotAsked(&'static str),
    Silent(String),
}

/// Asks a vCPU on each pCPU.
fn pcpus(manager: &mut Manager<File>, vms: &[Vm]) -> Vec<Found> {
    let mut said: BTreeMap<u16, Said> = (0..manager.hello.pcpus)
        .map(|pcpu| (pcpu, Said::NotAsked("no VM that may be asked is there")))
        .collect();
    let mut failures = Vec::new();
    for vm in vms.iter().filter(|vm| vm.allows(right::STATS)) {
        for vcpu in 0..vm.vcpus {
            match ask(manager, vm, vcpu) {
                Ok((pcpu, answer)) => {
                    let before = said.get(&pcpu);
                    let tells = match (before, &answer) {
                        (Some(Said::Silent(_)), _) => false,
                        (_, Said::Silent(_)) | (Some(Said::NotAsked(_)) | None, _) => true,
                        (Some(Said::Answers), _) => false,
                    };
                    if tells {
                        said.insert(pcpu, answer);
                    }
                }
                Err(failure) => failures.push(Found::bad(vm.name.clone(), &failure)),
            }
        }
    }
    let all = said.into_iter().map(|(pcpu, said)| {
        let what = format!("pCPU {pcpu}");
        match said {
            Said::Answers => Found::good(what, "answers"),
            Said::NotAsked(why) => Found::absent(what, format!("was not asked: {why}")),
            Said::Silent(vm) => {
                let why = format!("asked for a vCPU of {vm}, it did not answer within 100 ms");
                let failure = Failure::failed("control::pcpu-silent", "silent", why)
                    .advise("the console of the board may say more");
                Found::bad(what, &failure)
            }
        }
    });
    all.chain(failures).collect()
}

/// Asks a vCPU for its exits: that goes to its pCPU.
fn ask(manager: &mut Manager<File>, vm: &Vm, vcpu: u16) -> Result<(u16, Said), Failure> {
    let pcpu = manager.vcpu(vm, vcpu)?.pcpu;
    let answer = match manager.request(Kind::Exits, vm.index, vcpu, &[0, 0]) {
        Err(Trouble::Silent(_)) => return Ok((pcpu, Said::Silent(vm.name.clone()))),
        answer => answer?,
    };
    let said = match Status::of(answer.status) {
        Some(Status::Done) => Said::Answers,
        Some(Status::Silent) => Said::Silent(vm.name.clone()),
        Some(Status::WouldExit) => Said::NotAsked("its VM is promised not to be interrupted"),
        _ if vm.is(Phase::Down) => Said::NotAsked("its VM is stopped"),
        Some(status) => Said::NotAsked(status.words()),
        None => Said::NotAsked("EL2 gave a status that this program does not know"),
    };
    Ok((pcpu, said))
}
