//! The header for C does what the crate does: the same steps give the same results and leave the same bytes, hostile ones
//! included.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::thread;

use bulkhead_channel::{LookError, SendError, Shape, open};
use proptest::prelude::*;

/// The program `end.c`, compiled once with every warning an error, as C99 and with the optimiser on.
static END: LazyLock<PathBuf> = LazyLock::new(|| {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder"));
    let program = folder.path().join("end");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("cc");
    command.args([
        "-std=gnu99",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wconversion",
        "-I",
    ]);
    command
        .arg(root.join("include"))
        .arg(root.join("tests/end.c"));
    let status = command.arg("-o").arg(&program).status();
    assert!(status.expect("a C compiler").success());
    program
});

#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize, u64),
    Send(usize, u8),
    Look(usize),
    Take,
    Message,
    Room,
    Owes,
}

fn step() -> impl Strategy<Value = Step> {
    let near = prop_oneof![
        any::<u64>(),
        0u64..6,
        (0u64..6).prop_map(|n| n.wrapping_neg())
    ];
    prop_oneof![
        // What an honest end writes are these, too.
        4 => (prop_oneof![Just(0usize), Just(8), Just(16), Just(24), 32usize..44], near).prop_map(|(word, value)| Step::Write(word, value)),
        4 => (0usize..14, any::<u8>()).prop_map(|(length, byte)| Step::Send(length, byte)),
        3 => (0usize..14).prop_map(Step::Look),
        3 => Just(Step::Take),
        1 => Just(Step::Message),
        1 => Just(Step::Room),
        1 => Just(Step::Owes),
    ]
}

/// The results of the crate, as the program prints those of the header.
fn crate_results(shape: Shape, steps: &[Step]) -> String {
    let zeros = || -> Vec<AtomicU64> { (0..shape.words()).map(|_| AtomicU64::new(0)).collect() };
    let (own, peer) = (zeros(), zeros());
    let (mut sender, mut receiver) = open(&own, &peer, shape).expect("a channel");
    let mut lines = String::new();
    for step in steps {
        let line = match *step {
            Step::Write(word, value) => {
                peer[word].store(value, Ordering::Relaxed);
                continue;
            }
            Step::Send(length, byte) => match sender.send(&vec![byte; length]) {
                Ok(ring) => i64::from(ring),
                Err(SendError::Full) => -2,
                Err(SendError::TooLong) => -3,
                Err(SendError::Broken) => -4,
            }
            .to_string(),
            Step::Look(size) => {
                let mut buffer = vec![0; size];
                match receiver.look(&mut buffer) {
                    Ok(Some(length)) => buffer[..length]
                        .iter()
                        .fold(length.to_string(), |line, byte| format!("{line} {byte}")),
                    Ok(None) => "-1".to_owned(),
                    Err(LookError::Small(_)) => "-3".to_owned(),
                    Err(LookError::Broken) => "-4".to_owned(),
                }
            }
            Step::Take => {
                let before = receiver.taken();
                // Either none is there, or what is said of it is left out.
                let none = !receiver.waiting().is_ok_and(|waiting| waiting > 0);
                let ring = receiver.take();
                assert!(none || receiver.taken() == before.wrapping_add(1));
                if none {
                    "-1".to_owned()
                } else {
                    i64::from(ring).to_string()
                }
            }
            Step::Message => i64::from(receiver.wait()).to_string(),
            Step::Room => i64::from(sender.wait()).to_string(),
            Step::Owes => i64::from(sender.owes() || receiver.owes()).to_string(),
        };
        lines += &line;
        lines.push('\n');
    }
    for word in &own {
        lines += &format!("{}\n", word.load(Ordering::Relaxed));
    }
    lines
}

fn header_results(shape: (usize, usize), steps: &[Step]) -> String {
    let mut child = Command::new(&*END)
        .args(["steps", &shape.0.to_string(), &shape.1.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program");
    let lines: String = steps
        .iter()
        .map(|step| match *step {
            Step::Write(word, value) => format!("write {word} {value}\n"),
            Step::Send(length, byte) => format!("send {length} {byte}\n"),
            Step::Look(size) => format!("look {size} 0\n"),
            Step::Take => "take 0 0\n".to_owned(),
            Step::Message => "message 0 0\n".to_owned(),
            Step::Room => "room 0 0\n".to_owned(),
            Step::Owes => "owes 0 0\n".to_owned(),
        })
        .collect();
    let mut input = child.stdin.take().expect("an input");
    let writer = thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("an end");
    writer.join().expect("a writer").expect("an input");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("text")
}

proptest! {
    #[test]
    fn the_header_does_what_the_crate_does(steps in prop::collection::vec(step(), 0..120)) {
        let shape = Shape::new(12, 4).expect("a shape");
        prop_assert_eq!(header_results((12, 4), &steps), crate_results(shape, &steps));
    }
}
