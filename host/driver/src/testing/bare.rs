//! Programs that were not made for Bulkhead run on the boards that they are for. Only then does it say something that
//! the very same files run in a VM (`system/for-virt`, `system/for-versal`).

use std::time::Duration;

use bulkhead_runner::cross_build;
use bulkhead_runner::run::{Clock, Qemu};

use super::suite::{Context, Job, Test};
use super::watch::{Next, watch};

/// A program and its board.
#[derive(Clone, Copy, Debug)]
struct Board {
    /// Name of the program.
    guest: &'static str,
    /// Name of the board in QEMU.
    machine: &'static str,
    /// Its CPUs; the program uses the first.
    cpus: u32,
    /// Its memory in MiB.
    memory: u64,
    /// INTID of its UART.
    uart: u32,
    /// Whether it has firmware that switches it off.
    off: bool,
}

const BOARDS: [Board; 2] = [
    Board {
        guest: "for-virt",
        machine: "virt,gic-version=3",
        cpus: 1,
        memory: 256,
        uart: 33,
        off: true,
    },
    // QEMU starts an ELF file at EL3 there, and answers no PSCI then.
    Board {
        guest: "for-versal",
        machine: "xlnx-versal-virt",
        cpus: 4,
        memory: 256,
        uart: 50,
        off: false,
    },
];

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let one = |board: Board| {
        let job: Job = Box::new(move |_: &Context| run(board));
        let claim = format!(
            "`{}` runs without Bulkhead on QEMU's {}: what it expects is where that board has it.",
            board.guest, board.machine
        );
        Test::parallel(format!("bare/{}", board.guest), claim, job)
    };
    BOARDS.into_iter().map(one).collect()
}

fn run(board: Board) -> Result<String, Vec<String>> {
    let image = cross_build::guest(board.guest).map_err(|why| vec![why.to_string()])?;
    let qemu = Qemu {
        machine: board.machine.to_owned(),
        clock: Clock::Instructions { shift: 3 },
        ..Qemu::virt(image, "cortex-a72", board.cpus, board.memory)
    };
    let mut said = Vec::new();
    let ended = watch(&qemu, Duration::from_secs(60), |bytes| {
        said.extend(bytes);
        let done = String::from_utf8_lossy(&said).contains(" failed\n");
        let next = match done && !board.off {
            true => Next::Kill,
            false => Next::Watch,
        };
        (Vec::new(), next)
    });
    let ended = ended.map_err(|why| vec![why.to_string()])?;
    let said = String::from_utf8_lossy(&said).into_owned();
    let mut lines = said.lines();
    let wanted = [
        "PASS timer: INTID 27".to_owned(),
        format!("PASS uart: INTID {}", board.uart),
        "DONE 2 passed, 0 failed".to_owned(),
    ];
    let lacking = wanted
        .iter()
        .find(|wanted| lines.all(|line| line != **wanted));
    let off = ended.powered_off == board.off && !ended.hangs;
    match lacking {
        None if off => Ok(format!("{} lines", said.lines().count())),
        None => Err(vec!["it did not end as it should".to_owned(), said]),
        Some(line) => Err(vec![format!("no line `{line}`"), said, ended.messages]),
    }
}
