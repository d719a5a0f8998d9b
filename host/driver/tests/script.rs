//! `./bulkhead`: which program it hands over to, and with which words; that it asks before it installs.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use bulkhead_driver::testing::terminal::Terminal;
use bulkhead_runner::sys;

/// A guard against hanging; nothing is measured.
const GUARD: Duration = Duration::from_secs(60);

/// Writes a program that prints its name and its words.
fn program(path: &Path) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, "#!/bin/sh\necho \"${0##*/} $*\"\n").expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a file of ours");
}

/// What the tool is made of: nothing of it is newer than the tool.
const SOURCES: [&str; 12] = [
    "Cargo.toml",
    "Cargo.lock",
    "abi",
    "channel",
    "core",
    "el2/random",
    "host",
    "lab",
    "mgmt",
    "service",
    "guests/linux",
    "guests/rootfs",
];

/// Makes a checkout in a folder, with all that the script would build.
fn checkout(folder: &Path) {
    let at = |name: &str| folder.join(name);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bulkhead");
    fs::copy(script, at("bulkhead")).expect("the script");
    for source in SOURCES {
        fs::create_dir_all(at(source)).expect("a folder");
    }
    let tools = ["bin/cargo", "target/debug/bulkhead"];
    for name in tools.into_iter().chain(["target/debug/bulkhead-driver"]) {
        program(&at(name));
    }
    // Older than what is made of it.
    let touched = Command::new("touch")
        .args(["-d", "2001-01-01"])
        .arg(at("bulkhead"))
        .args(SOURCES.map(at))
        .status();
    assert!(touched.expect("touch").success());
}

/// Output of the script in a checkout with all that it would build, on a machine that lacks nothing.
fn handed_over(words: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    checkout(folder.path());
    for name in ["bin/qemu-system-aarch64", "bin/aarch64-linux-gnu-gcc"] {
        program(&at(name));
    }
    let stamps = ["bulkhead.env", "bulkhead.built", "bulkhead-driver.built"];
    for name in stamps {
        let cargo = format!("{}\n\n", at("bin/cargo").display());
        fs::write(at("target").join(name), cargo).expect("a file");
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(at("bulkhead"))
        .args(words)
        .env("PATH", format!("{}:{path}", at("bin").display()))
        .env("BULKHEAD_CACHE", at("cache"))
        .env_remove("BULKHEAD_CARGO")
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}");
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}

#[test]
fn words_of_the_script_may_stand_anywhere_and_the_verb_chooses_the_program() {
    for (words, handed) in [
        (&["--yes", "demo"][..], "bulkhead --yes demo"),
        (&["demo", "--yes"], "bulkhead demo --yes"),
        (&["--yes", "test", "x"], "bulkhead-driver --yes test x"),
        (&["book", "-y"], "bulkhead-driver book -y"),
        (
            &["run", "test", "--", "--yes"],
            "bulkhead run test -- --yes",
        ),
        (&["--help"], "bulkhead --help"),
    ] {
        assert_eq!(handed_over(words), handed);
    }
}

/// What the host tool is made of makes it be built anew: each crate of the workspace that one of its crates names.
#[test]
fn the_script_looks_at_all_that_the_tool_is_made_of() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| fs::read_to_string(root.join(name)).expect("a text");
    let script = read("bulkhead");
    let looks = script
        .lines()
        .find_map(|line| line.split_once("find Cargo.toml ")?.1.split_once(" -newer"));
    let looks: Vec<_> = looks.expect("a search").0.split(' ').collect();
    let workspace = read("Cargo.toml");
    let paths = workspace.lines().filter_map(|line| {
        let (name, rest) = line.split_once(" = { path = \"")?;
        Some((name, rest.split('"').next()?))
    });
    let named: String = ["cli", "driver", "model", "planner", "runner"]
        .map(|name| read(&format!("host/{name}/Cargo.toml")))
        .concat();
    let mut count = 0;
    for (name, folder) in paths {
        let is_named = named
            .lines()
            .any(|line| line.split([' ', '.']).next() == Some(name));
        if is_named {
            count += 1;
            let looked = looks.iter().any(|top| Path::new(folder).starts_with(top));
            assert!(looked, "`bulkhead` does not look at {folder}");
        }
    }
    assert!(count > 5, "{count}");
}

/// Programs of the machine that the script may use where it lacks QEMU. What would change the machine is not among them.
const HARMLESS: [&str; 17] = [
    "awk", "cat", "chmod", "cp", "dirname", "env", "find", "head", "id", "mkdir", "mv", "readlink",
    "rm", "sed", "sh", "sort", "touch",
];

/// Writes a program of a few lines of shell.
fn shell(path: &Path, lines: &str) {
    program(path);
    fs::write(path, format!("#!/bin/sh\n{lines}\n")).expect("a file");
}

/// A checkout on a machine that lacks QEMU at least, with an apt of its own: it notes what it is told, and installs a QEMU.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        checkout(folder.path());
        let machine = Self { folder };
        let path = std::env::var("PATH").unwrap_or_default();
        for name in HARMLESS {
            let found = path.split(':').map(|at| Path::new(at).join(name));
            let found = found.into_iter().find(|at| at.exists());
            let found = found.unwrap_or_else(|| panic!("no {name}"));
            symlink(found, machine.at("bin").join(name)).expect("a link");
        }
        let library = "lib/rustlib/aarch64-unknown-none-softfloat/lib/libcore-0.rlib";
        for name in [library, "lib/rustlib/host/bin/rust-lld"] {
            program(&machine.at(name));
        }
        let log = machine.at("told").display().to_string();
        let bin = machine.at("bin").display().to_string();
        let qemu = "#!/bin/sh\\necho QEMU emulator version 10.0.0";
        for (name, lines) in [
            ("cc", String::new()),
            ("dpkg-deb", String::new()),
            ("cargo", "echo cargo 1.99.0".to_owned()),
            (
                "rustc",
                format!(
                    "case $1 in --print) echo {}; ;; *) echo rustc 1.99.0; ;; esac",
                    machine.folder.path().display()
                ),
            ),
            (
                "apt-cache",
                "printf '  Installed: (none)\\n  Candidate: 1:10.0.2\\n'".to_owned(),
            ),
            (
                "apt-get",
                format!(
                    "echo \"apt-get $*\" >>{log}\ncase $* in *qemu-system-arm*) printf '{qemu}\\n' >{bin}/qemu-system-aarch64; \
                     chmod +x {bin}/qemu-system-aarch64; ;; esac"
                ),
            ),
            // As that of the machine: it runs what stands behind its own words.
            ("sudo", format!("echo sudo >>{log}\nshift\nexec \"$@\"")),
        ] {
            shell(&machine.at("bin").join(name), &lines);
        }
        machine
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Calls of apt that would change what is installed.
    fn changes(&self) -> Vec<String> {
        let told = fs::read_to_string(self.at("told")).unwrap_or_default();
        let reads = |line: &&str| line.starts_with("apt-get") && !line.ends_with(" update");
        told.lines().filter(reads).map(str::to_owned).collect()
    }

    fn script(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.at("bulkhead"));
        command
            .args(words)
            .env_clear()
            .env("PATH", self.at("bin"))
            .env("HOME", self.at("home"))
            .env("BULKHEAD_CARGO", self.at("bin/cargo"));
        command
    }

    /// What the script says on a terminal, and its status. `answer` is typed at the question; before that nothing may be installed.
    fn asked(&self, words: &[&str], answer: &str) -> (String, Option<i32>) {
        let Terminal {
            mut keys,
            screen,
            theirs,
        } = Terminal::open().expect("a terminal");
        let end = || Stdio::from(theirs.try_clone().expect("its other end"));
        let mut command = self.script(words);
        command.stdin(end()).stdout(end()).stderr(end());
        let mut child = sys::own_terminal(&mut command).spawn().expect("it starts");
        // The screen ends with the last program that has it.
        drop((command, theirs));
        let (mut said, mut is_answered, mut too_early) = (String::new(), false, Vec::new());
        while let Ok(bytes) = screen.recv_timeout(GUARD) {
            said.push_str(&String::from_utf8_lossy(&bytes));
            if said.ends_with("Install? [Y/n] ") && !is_answered {
                is_answered = true;
                too_early = self.changes();
                let _ = keys.write_all(answer.as_bytes());
            }
        }
        let status = child.wait().expect("its end");
        assert_eq!(too_early, [""; 0], "before the answer: {said}");
        assert!(said.contains("to be installed:") || !is_debian(), "{said}");
        (said, status.code())
    }
}

/// Whether the script installs on this machine at all; elsewhere it says what is to be installed by hand.
fn is_debian() -> bool {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let id = text.lines().find_map(|line| line.strip_prefix("ID="));
    ["debian", "ubuntu"].contains(&id.unwrap_or_default().trim_matches('"'))
}

/// Cargo's pipe stays open meanwhile: what reads it must not wait for more than a line.
#[test]
fn the_first_build_says_how_far_it_is_before_it_ends() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bulkhead");
    let text = fs::read_to_string(script).expect("the script");
    let begin = text.find("thinned() {").expect("the function");
    let end = text[begin..].find("\n}\n").expect("its end") + 3;
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{}thinned 40", &text[begin..begin + end])]);
    shell.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut shell = shell.spawn().expect("a shell");
    let mut cargo = shell.stdin.take().expect("a pipe");
    let mut said = BufReader::new(shell.stderr.take().expect("a pipe")).lines();
    let (send, lines) = channel();
    std::thread::spawn(move || said.try_for_each(|line| send.send(line.expect("a line"))));
    let mut next = |says: &str| {
        cargo.write_all(says.as_bytes()).expect("it reads");
        lines.recv_timeout(GUARD).expect("a line in time")
    };
    let two = "    Updating crates\n   Compiling a v1\n   Compiling b v1\n";
    assert_eq!(next(two), "bulkhead: crate 2 of 40");
    assert_eq!(next("error: no `c`\n"), "error: no `c`");
    drop(cargo);
    assert!(shell.wait().expect("it ends").success());
}

#[test]
fn the_script_asks_before_it_installs() {
    // No, a word that is none, and the end of the terminal (Ctrl-D).
    for answer in ["n\n", "No\n", "what?\n", "\u{4}"] {
        let machine = Machine::new();
        let (said, status) = machine.asked(&["demo"], answer);
        assert_eq!(machine.changes(), [""; 0], "{answer:?}: {said}");
        assert_eq!(status, Some(3), "{answer:?}: {said}");
        assert!(!said.contains("bulkhead demo"), "{answer:?}: {said}");
        let expected = match is_debian() {
            true => "bulkhead: not installed",
            false => "please install yourself: ",
        };
        assert!(said.contains(expected), "{answer:?}: {said}");
    }
}

#[test]
fn the_script_installs_what_it_said_and_hands_over() {
    if !is_debian() {
        return;
    }
    for (words, answer) in [
        (&["demo"][..], "\n"),
        (&["demo"], "y\n"),
        (&["demo", "-y"], ""),
    ] {
        let machine = Machine::new();
        let (said, status) = machine.asked(words, answer);
        assert_eq!(status, Some(0), "{said}");
        assert_eq!(said.contains("Install?"), !answer.is_empty(), "{said}");
        let [install] = &machine.changes()[..] else {
            panic!("{:?}: {said}", machine.changes());
        };
        let list = said
            .lines()
            .find_map(|line| line.split_once("to be installed:"));
        let list = list.expect("a list").1.trim_end();
        assert!(
            install.ends_with(list) && list.contains("qemu-system-arm"),
            "{install}"
        );
        assert!(install.contains(" --no-remove "), "{install}");
        let handed = format!("bulkhead {}", words.join(" "));
        assert!(said.trim_end().ends_with(&handed), "{said}");
    }
}

#[test]
fn without_a_terminal_the_script_asks_nothing() {
    let machine = Machine::new();
    let output = machine
        .script(&["demo"])
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("Install?"), "{said}");
    assert_eq!(output.status.success(), is_debian(), "{said}");
    assert_eq!(machine.changes().len(), usize::from(is_debian()), "{said}");
}
