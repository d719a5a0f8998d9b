//! Metrics in Prometheus' text format, over HTTP on a Unix socket. They are asked for when somebody scrapes, at most once a second:
//! a board whose metrics nobody reads has no work with them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead_abi::control::{Phase, right};
use bulkhead_abi::exit::ExitClass;
use bulkhead_control::board::Vm;
use bulkhead_control::connection::Connection;
use bulkhead_control::failure::Failure;
use bulkhead_control::manager::Manager;

/// Least time between two rounds of questions.
const FRESH: Duration = Duration::from_secs(1);
/// Time for a scraper to ask and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of the head of a request.
const HEAD: usize = 8 * 1024;

/// Answers scrapers, one after the other, for as long as the process is there. `control` is the socket of the daemon: metrics are one
/// of its clients. `more` adds what the daemon itself knows.
pub fn serve(listener: &UnixListener, control: &Path, more: &dyn Fn(&mut Samples)) {
    let mut last: Option<(Instant, String)> = None;
    for stream in listener.incoming().flatten() {
        // One that goes away has its answer lost; the next is served.
        let _ = answer(&stream, &mut || {
            if let Some((at, text)) = &last
                && at.elapsed() < FRESH
            {
                return Ok(text.clone());
            }
            let text = collect(control, more)?;
            last = Some((Instant::now(), text.clone()));
            Ok(text)
        });
    }
}

/// Answers one request.
fn answer(
    stream: &UnixStream,
    metrics: &mut dyn FnMut() -> Result<String, Failure>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = head(stream)?;
    let mut words = head.split_ascii_whitespace();
    let (method, path) = (
        words.next().unwrap_or_default(),
        words.next().unwrap_or_default(),
    );
    let path = path.split('?').next().unwrap_or_default();
    let (status, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => match metrics() {
            Ok(text) => ("200 OK", text),
            Err(failure) => ("503 Service Unavailable", format!("{failure}\n")),
        },
        ("GET" | "HEAD", _) => ("404 Not Found", "there is /metrics only\n".to_owned()),
        _ => ("405 Method Not Allowed", "GET and HEAD\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let body = if method == "HEAD" { "" } else { &body };
    let mut stream = stream;
    stream.write_all((head + body).as_bytes())
}

/// Reads up to the empty line that ends the head of a request, which may come in pieces.
fn head(mut stream: &UnixStream) -> io::Result<String> {
    let end = Instant::now() + PATIENCE;
    let mut text = Vec::new();
    let mut bytes = [0; 1024];
    while !text.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut bytes)?;
        if read == 0 || text.len() > HEAD || Instant::now() > end {
            return Err(io::ErrorKind::InvalidData.into());
        }
        text.extend_from_slice(&bytes[..read]);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Samples by their metric, in the order in which metrics are first told.
#[derive(Default)]
pub struct Samples {
    order: Vec<Metric>,
    lines: BTreeMap<&'static str, String>,
}

/// A metric.
#[derive(Clone, Copy)]
pub struct Metric {
    name: &'static str,
    kind: &'static str,
    about: &'static str,
}

/// A metric that only grows.
pub const fn counter(name: &'static str, about: &'static str) -> Metric {
    let kind = "counter";
    Metric { name, kind, about }
}

/// A metric of now.
pub const fn gauge(name: &'static str, about: &'static str) -> Metric {
    let kind = "gauge";
    Metric { name, kind, about }
}

impl Samples {
    /// Adds a value.
    pub fn add(&mut self, metric: Metric, labels: &str, value: f64) {
        if !self.lines.contains_key(metric.name) {
            self.order.push(metric);
        }
        let lines = self.lines.entry(metric.name).or_default();
        // Writing to a string does not fail.
        let _ = writeln!(lines, "{}{{{labels}}} {value}", metric.name);
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for Metric { name, kind, about } in &self.order {
            let _ = write!(text, "# HELP {name} {about}\n# TYPE {name} {kind}\n");
            text += self.lines.get(name).map_or("", String::as_str);
        }
        text
    }
}

/// Asks the board.
fn collect(control: &Path, more: &dyn Fn(&mut Samples)) -> Result<String, Failure> {
    let stream = UnixStream::connect(control).map_err(|error| {
        Failure::environment("control::io", "bulkheadd cannot reach itself", error)
    })?;
    let mut manager = Manager::greet(Connection::new(stream, 0))?;
    let mut samples = Samples::default();
    for vm in manager.vms()? {
        add_vm(&mut samples, &vm);
        if vm.allows(right::STATS) {
            add_statistics(&mut samples, &mut manager, &vm)?;
        }
    }
    more(&mut samples);
    Ok(samples.text())
}

/// A value of a label: names of VMs come from descriptions, which have no quotes; an EL2 may say anything.
pub fn label(name: &str) -> String {
    name.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn add_vm(samples: &mut Samples, vm: &Vm) {
    let name = label(&vm.name);
    let of_vm = format!("vm=\"{name}\"");
    samples.add(
        counter("bulkhead_vm_lives_total", "Lives of a VM so far."),
        &of_vm,
        vm.lives as f64,
    );
    let phase = gauge("bulkhead_vm_phase", "1 for the phase in which a VM is.");
    for one in Phase::ALL {
        let labels = format!("{of_vm},phase=\"{}\"", one.word());
        samples.add(phase, &labels, f64::from(u8::from(vm.is(one))));
    }
    let restarts = gauge(
        "bulkhead_vm_restarts",
        "Restarts of a VM in the period of its policy.",
    );
    samples.add(restarts, &of_vm, vm.restarts as f64);
}

fn add_statistics(
    samples: &mut Samples,
    manager: &mut Manager<UnixStream>,
    vm: &Vm,
) -> Result<(), Failure> {
    let name = label(&vm.name);
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    for vcpu in 0..vm.vcpus {
        let labels = format!("vm=\"{name}\",vcpu=\"{vcpu}\"");
        if let Ok(time) = manager.time(vm, vcpu)? {
            for (metric, value) in [
                (
                    counter(
                        "bulkhead_vcpu_cpu_seconds_total",
                        "CPU time of a vCPU that shares its pCPU.",
                    ),
                    seconds(time.cpu_time),
                ),
                (
                    counter(
                        "bulkhead_vcpu_ready_seconds_total",
                        "Time in which a vCPU was ready and others ran.",
                    ),
                    seconds(time.waited),
                ),
                (
                    counter("bulkhead_vcpu_turns_total", "Turns of a vCPU on its pCPU."),
                    time.turns as f64,
                ),
                (
                    counter("bulkhead_vcpu_overruns_total", "Overruns of a vCPU."),
                    time.overruns as f64,
                ),
                (
                    counter(
                        "bulkhead_vcpu_moves_total",
                        "Moves of a vCPU to another pCPU.",
                    ),
                    time.moves as f64,
                ),
            ] {
                samples.add(metric, &labels, value);
            }
        }
        if let Ok(exits) = manager.exits(vm, vcpu)? {
            let count = counter("bulkhead_vcpu_exits_total", "Exits of a vCPU by class.");
            let cycles = counter(
                "bulkhead_vcpu_exit_cycles_total",
                "Cycles of a vCPU's exits by class.",
            );
            for (class, one) in ExitClass::ALL.iter().zip(&exits.classes) {
                let labels = format!("{labels},class=\"{}\"", class.name());
                samples.add(count, &labels, one.count as f64);
                samples.add(cycles, &labels, one.cycles as f64);
            }
        }
    }
    if let Ok(service) = manager.service(vm)? {
        let time = counter(
            "bulkhead_vm_service_seconds_total",
            "Time that the service thread had for a VM's devices.",
        );
        samples.add(time, &format!("vm=\"{name}\""), seconds(service.time));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// The answer to a request that comes in these pieces.
    fn asked(pieces: &[&str], metrics: Result<String, Failure>) -> String {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        let mut metrics = Some(metrics);
        thread::scope(|scope| {
            scope.spawn(move || {
                let _ = answer(&ours, &mut || metrics.take().expect("asked once"));
            });
            for piece in pieces {
                theirs.write_all(piece.as_bytes()).expect("a socket");
                thread::sleep(Duration::from_millis(5));
            }
            let mut text = String::new();
            theirs.read_to_string(&mut text).expect("a socket");
            text
        })
    }

    #[test]
    fn a_get_in_pieces_is_answered_and_other_paths_are_not() {
        let good = || Ok("x 1\n".to_owned());
        let text = asked(
            &["GET /metr", "ics HTTP/1.1\r\nHost: x\r\n", "\r\n"],
            good(),
        );
        assert!(
            text.starts_with("HTTP/1.0 200 OK\r\n") && text.ends_with("\r\n\r\nx 1\n"),
            "{text}"
        );
        assert!(text.contains("Content-Length: 4\r\n"), "{text}");
        let text = asked(&["HEAD /metrics HTTP/1.0\r\n\r\n"], good());
        assert!(
            text.contains("Content-Length: 4\r\n") && text.ends_with("\r\n\r\n"),
            "{text}"
        );
        assert!(asked(&["GET / HTTP/1.0\r\n\r\n"], good()).starts_with("HTTP/1.0 404 "));
        assert!(asked(&["PUT /metrics HTTP/1.0\r\n\r\n"], good()).starts_with("HTTP/1.0 405 "));
        let failure = Err(Failure::environment("control::gone", "no EL2", ""));
        let text = asked(&["GET /metrics HTTP/1.0\r\n\r\n"], failure);
        assert!(
            text.starts_with("HTTP/1.0 503 ") && text.ends_with("error: no EL2\n"),
            "{text}"
        );
    }

    #[test]
    fn a_name_cannot_break_out_of_its_label() {
        assert_eq!(label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
