//! gdb on a core that `bulkheadctl dump` has written: on request, because it takes `gdb-multiarch`. EL2's part is played by the one of the managers' own tests,
//! which knows what it tells.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use bulkhead_abi::control::{Phase, registers};
use bulkhead_fake_el2::{El2, Fake};
use bulkhead_runner::run::gdb;

use crate::testing::cargo::{cargo, interesting};
use crate::testing::suite::{Context, Job, Test};

/// The test of this file.
pub fn test() -> Test {
    let job: Job = Box::new(registers_and_memory);
    let claim = "gdb opens the ELF core that bulkheadctl has dumped, and has the registers and the memory of the VM.";
    Test::build("attach/gdb-core", claim, job)
        .on_request("it needs gdb for other machines (gdb-multiarch)")
}

/// Index of the VM that is dumped.
const VM: usize = 1;
/// Its RAM: two pieces, each with words that tell where they are.
const RAM: [(u64, u64); 2] = [(0x4000_0000, 0x3000), (0x8000_0000, 0x1000)];

/// The word at an IPA.
const fn word(ipa: u64) -> u64 {
    ipa | 0xfeed << 32
}

/// The board: the VM has stopped.
fn board() -> Fake {
    let mut fake = Fake::default();
    let vm = &mut fake.vms[VM];
    vm.phase = Phase::Down;
    let content = |ipa: u64, bytes: u64| {
        let places = (ipa..ipa + bytes).step_by(8);
        places.flat_map(|ipa| word(ipa).to_le_bytes()).collect()
    };
    vm.ram = RAM
        .iter()
        .map(|&(ipa, bytes)| (ipa, content(ipa, bytes)))
        .collect();
    fake
}

/// Serves the board, to whoever connects, until this program ends.
fn serve(socket: &Path) -> std::io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let board = Arc::new(Mutex::new(board()));
    thread::spawn(move || {
        let streams = listener.incoming().flatten();
        let _served: Vec<El2> = streams
            .map(|stream| El2::serve(Arc::clone(&board), stream))
            .collect();
    });
    Ok(())
}

/// Runs a command to its end; gives what it said.
fn said(command: &mut Command) -> Result<String, Vec<String>> {
    let ran = command.stdin(Stdio::null()).output();
    let ran = ran.map_err(|error| vec![format!("{command:?}: {error}")])?;
    let text = [ran.stdout, ran.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    if ran.status.success() {
        return Ok(text);
    }
    let mut wrong = vec![format!("{command:?} has failed")];
    wrong.extend(interesting(&text));
    Err(wrong)
}

fn registers_and_memory(context: &Context) -> Result<String, Vec<String>> {
    if !gdb::is_installed() {
        let advice = "`apt-get install gdb-multiarch` brings it";
        return Err(vec![format!(
            "skipped, which counts as failed: there is no gdb-multiarch; {advice}"
        )]);
    }
    let why = |error: std::io::Error| vec![error.to_string()];
    let folder = tempfile::tempdir().map_err(why)?;
    let [socket, core] = ["sock", "core"].map(|name| folder.path().join(name));
    serve(&socket).map_err(why)?;
    said(
        cargo()
            .current_dir(&context.root)
            .args(["run", "--locked", "--quiet", "--package", "bulkheadctl"])
            .arg("--")
            .arg("--socket")
            .arg(&socket)
            .args(["dump", "linux", "-o"])
            .arg(&core),
    )?;
    // What the board tells: word n of the registers is that of x0 for n = X.
    let told = |register: usize| (0x1000 + register as u64).wrapping_sub(registers::X as u64);
    let (first, [.., last]) = (RAM[0].0 + 0x2008, RAM);
    let last = last.0 + last.1 - 8;
    let looks = [
        ("the PC", "$pc".to_owned(), told(registers::PC)),
        ("x0", "$x0".to_owned(), told(registers::X)),
        ("x30", "$x30".to_owned(), told(registers::X + 30)),
        (
            "the stack pointer",
            "$sp".to_owned(),
            told(registers::SP_EL1),
        ),
        (
            "memory",
            format!("*(unsigned long *){first:#x}"),
            word(first),
        ),
        (
            "its end",
            format!("*(unsigned long *){last:#x}"),
            word(last),
        ),
    ];
    let mut gdb = Command::new("timeout");
    gdb.args(["180", "gdb-multiarch", "-nx", "-batch", "-ex"]);
    gdb.arg(format!("core-file {}", core.display()));
    gdb.args(["-ex", "info threads"]);
    for (n, (_, expression, _)) in looks.iter().enumerate() {
        // Without a cast gdb says of the PC which function is there.
        gdb.arg("-ex").arg(format!(
            "printf \"look {n}: %#lx\\n\", (unsigned long){expression}"
        ));
    }
    let text = said(&mut gdb)?;
    let mut wrong = Vec::new();
    for (n, (what, _, right)) in looks.iter().enumerate() {
        let words = format!("look {n}: {right:#x}");
        if !text.lines().any(|line| line == words) {
            wrong.push(format!("{what}: no `{words}`"));
        }
    }
    if wrong.is_empty() {
        return Ok("registers and memory".to_owned());
    }
    wrong.push(format!("gdb said:\n{text}"));
    Err(wrong)
}
