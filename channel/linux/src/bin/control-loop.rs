//! The control loop of the demo, from a program of a stock Linux: its reports and its orders go through the channel between them
//! (`bulkhead_abi::report`).
//!
//! `control-loop report` prints how it stands, `work` has it let others work, and `stop` ends it.
#![forbid(unsafe_code)]

use std::env;
use std::error::Error;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bulkhead_abi::report::{CHANNEL, MAGIC, Order, Report};
use bulkhead_channel_linux::{End, SendError};
use zerocopy::FromBytes;

/// Between two looks into the channel, at which this end polls.
const PAUSE: Duration = Duration::from_millis(10);
/// The loop reports ten times in a second of its time, which is also this Linux's.
const PATIENCE: Duration = Duration::from_secs(5);
const NS_PER_SECOND: u64 = 1_000_000_000;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("control-loop: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut end = End::open(CHANNEL)?;
    match words.as_slice() {
        ["report"] => {
            // What waits in the channel was said when nobody looked.
            while look(&mut end)?.is_some() {}
            let report = wait(&mut end, |_| true)?;
            println!("{}", line(&report));
        }
        ["work"] => order(&mut end, Order::Work)?,
        ["stop"] => {
            order(&mut end, Order::Stop)?;
            let report = wait(&mut end, |report| report.ended != 0)?;
            println!("{} ended", line(&report));
        }
        _ => return Err("control-loop report|work|stop".into()),
    }
    Ok(())
}

fn order(end: &mut End, order: Order) -> Result<(), Box<dyn Error>> {
    match end.sender().send(&order.to_bytes()) {
        Ok(_polls) => Ok(()),
        Err(SendError::Full) => Err("the loop takes no orders".into()),
        Err(why) => Err(format!("cannot send: {why:?}").into()),
    }
}

/// Takes the next report that is such a one.
fn wait(end: &mut End, is: impl Fn(&Report) -> bool) -> Result<Report, Box<dyn Error>> {
    let until = Instant::now() + PATIENCE;
    loop {
        match look(end)? {
            Some(report) if is(&report) => return Ok(report),
            Some(_) => {}
            None if Instant::now() > until => {
                return Err(format!("the loop has said nothing for {PATIENCE:?}").into());
            }
            None => sleep(PAUSE),
        }
    }
}

/// Takes the next report, if one is there.
fn look(end: &mut End) -> Result<Option<Report>, Box<dyn Error>> {
    let mut message = [0; size_of::<Report>()];
    let length = match end.receiver().look(&mut message) {
        Ok(Some(length)) => length,
        Ok(None) => return Ok(None),
        Err(why) => return Err(format!("cannot look: {why:?}").into()),
    };
    let report = message
        .get(..length)
        .and_then(|bytes| Report::read_from_bytes(bytes).ok());
    end.receiver().take();
    match report.filter(|report| report.magic == MAGIC && report.frequency != 0) {
        Some(report) => Ok(Some(report)),
        None => Err("a message is no report".into()),
    }
}

/// What the host's tool reads.
fn line(report: &Report) -> String {
    let Report {
        periods,
        lost,
        doubled,
        ..
    } = report;
    let ns =
        |ticks: u64| u128::from(ticks) * u128::from(NS_PER_SECOND) / u128::from(report.frequency);
    let counts = format!("control: periods={periods} lost={lost} doubled={doubled}");
    match report.late_sum.checked_div(*periods) {
        Some(mean) => format!(
            "{counts} late_ns min={} avg={} max={}",
            ns(report.late_min),
            ns(mean),
            ns(report.late_max)
        ),
        None => counts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_told_in_nanoseconds() {
        let report = Report {
            frequency: 62_500_000,
            periods: 4,
            late_min: 1,
            late_max: 125,
            late_sum: 8,
            ..Report::default()
        };
        let told = "control: periods=4 lost=0 doubled=0 late_ns min=16 avg=32 max=2000";
        assert_eq!(line(&report), told);
        let none = Report {
            periods: 0,
            ..report
        };
        assert_eq!(line(&none), "control: periods=0 lost=0 doubled=0");
    }
}
