//! The plugin in QEMU, on a program at EL2 whose costs are known (`sample.s`).
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bulkhead_profiler::{Config, Cost, CpuKey, Exits, Marks, Profile, Symbol};

/// Address at which the sample is loaded, and its size.
const BASE: u64 = 0x4010_0000;
const SIZE: u64 = 0x1000;

/// The encoding of `sample.s`: offset and words.
const SAMPLE: [(usize, &[u32]); 6] = [
    (
        0,
        &[
            0x1000_4000,
            0xd51c_c000,
            0x1000_7fc1,
            0x9100_003f,
            0xd51c_d041,
            0xd2b0_0001,
            0xd51c_1101,
            0xd280_78a1,
            0xd51c_4001,
            0x1000_06e1,
            0xd51c_4021,
            0xd69f_03e0,
        ],
    ),
    (
        0x80,
        &[
            0xa9bf_07e0,
            0xd53c_5200,
            0xa8c1_07e0,
            0xd503_3fdf,
            0xd69f_03e0,
        ],
    ),
    (
        0x100,
        &[
            0xd280_00e0,
            0x9400_001f,
            0xd280_7d13,
            0xd400_0002,
            0xf100_0673,
            0x54ff_ffc1,
            0xd280_00e0,
            0x9400_001b,
            0xd400_0002,
            0x5280_0100,
            0x72b0_8000,
            0xd400_0003,
        ],
    ),
    (0x180, &[0xd65f_03c0]),
    (0x188, &[0xd65f_03c0]),
    (0xc00, &[0x17ff_fd20]),
];

fn sample() -> Vec<u8> {
    let mut bytes = vec![0; 0xc04];
    for (offset, words) in SAMPLE {
        for (index, word) in words.iter().enumerate() {
            let at = offset + 4 * index;
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

/// The plugin as cargo built it beside this test.
fn plugin() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let folders = test.ancestors().skip(1).take(2);
    let mut files = folders.map(|folder| folder.join("libbulkhead_profiler.so"));
    files
        .find(|file| file.is_file())
        .expect("cargo builds the plugin before its tests")
}

fn symbol(name: &str, offset: u64, size: u64) -> Symbol {
    Symbol {
        address: BASE + offset,
        size,
        name: name.to_owned(),
    }
}

/// Runs the sample in `folder` and gives the profile as text. The whole program counts as EL2's range,
/// guest included: only the exception level tells them apart.
fn run(folder: &Path, cpus: CpuKey, timing: &[&str]) -> String {
    let config = Config {
        output: folder.join("profile.json"),
        text_start: BASE,
        text_end: BASE + SIZE,
        vectors: BASE + 0x800,
        guarded: None,
        idle: Vec::new(),
        looks: Vec::new(),
        boot: Some(BASE),
        symbols: vec![
            symbol("start", 0, 0x30),
            symbol("handle", 0x80, 0x14),
            symbol("vectors", 0x800, 0x800),
        ],
        marks: None,
        cpus,
        iar: None,
        period: None,
    };
    // The marks lie outside of the range that is taken for EL2.
    let marks = Some(Marks {
        begin: BASE + 0x180,
        end: BASE + 0x188,
        everywhere: false,
    });
    let split = Config {
        text_end: BASE + 0x100,
        marks,
        ..config.clone()
    };
    let everywhere = Config {
        marks: marks.map(|marks| Marks {
            everywhere: true,
            ..marks
        }),
        ..split.clone()
    };
    let mut texts = Vec::new();
    for config in [config, split, everywhere] {
        let file = folder.join("config.json");
        std::fs::write(&file, serde_json::to_vec(&config).expect("serialises")).expect("written");
        let image = folder.join("sample.bin");
        std::fs::write(&image, sample()).expect("written");
        let output = Command::new("qemu-system-aarch64")
            .args([
                "-machine",
                "virt,virtualization=on,gic-version=3",
                "-display",
                "none",
                "-m",
                "64M",
            ])
            .args([
                "-net",
                "none",
                "-monitor",
                "none",
                "-serial",
                "none",
                "-cpu",
                "cortex-a53",
                "-no-reboot",
            ])
            .args(timing)
            .arg("-device")
            .arg(format!(
                "loader,file={},addr={BASE:#x},cpu-num=0",
                image.display()
            ))
            .arg("-plugin")
            .arg(format!("{},config={}", plugin().display(), file.display()))
            .stdin(Stdio::null())
            .output()
            .expect("qemu-system-aarch64 is installed");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        texts.push(std::fs::read_to_string(&config.output).expect("the plugin wrote its profile"));
    }
    texts.concat()
}

fn profiles(text: &str) -> Vec<Profile> {
    let stream = serde_json::Deserializer::from_str(text).into_iter();
    stream.collect::<Result<_, _>>().expect("a profile")
}

#[test]
fn a_program_of_known_cost_is_counted_exactly() {
    let folder = tempfile::tempdir().expect("a folder");
    let icount = ["-icount", "shift=0,sleep=off"];
    let first = run(folder.path(), CpuKey::Tpidr, &icount);
    assert_eq!(
        first,
        run(folder.path(), CpuKey::Tpidr, &icount),
        "two runs give the same numbers"
    );

    let [whole, ..] = &profiles(&first)[..] else {
        panic!("three profiles")
    };
    let boot = whole.boot.as_ref().expect("asked for");
    assert!(boot.reached_guest);
    assert_eq!(
        boot.cost,
        Cost {
            instructions: 12,
            sysregs: 5,
            barriers: 0,
            memory: 0
        }
    );
    assert_eq!(boot.symbols.get("start"), Some(&boot.cost));
    assert_eq!(
        whole.exits["sync EC 0x16"],
        Exits {
            count: 1001,
            total: 6006,
            max: 6
        }
    );
    assert_eq!(whole.total.instructions, 12 + 6006);
    let longest = whole.longest.as_ref().expect("there were exits");
    assert_eq!(
        (longest.cost.instructions, longest.guest_pc),
        (6, BASE + 0x110)
    );
    assert_eq!(longest.cpu, BASE + 0x1000);
    let path: Vec<(&str, u64)> = longest
        .path
        .iter()
        .map(|visit| (visit.symbol.as_str(), visit.instructions))
        .collect();
    assert_eq!(path, [("vectors", 1), ("handle", 5)]);
}

#[test]
fn marks_bound_a_figure_in_every_mode() {
    for (cpus, timing) in [
        (CpuKey::Tpidr, ["-icount", "shift=0,sleep=off"]),
        (CpuKey::Index, ["-accel", "tcg,thread=multi"]),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let text = run(folder.path(), cpus, &timing);
        // The vectors lie outside of this range: only what the handler does is counted.
        let [_, split, everywhere] = &profiles(&text)[..] else {
            panic!("three profiles")
        };
        let figure = &split.figures[&7];
        let cost = Cost {
            instructions: 5000,
            sysregs: 1000,
            barriers: 1000,
            memory: 2000,
        };
        assert_eq!(figure.cost, cost);
        assert_eq!(figure.symbols.get("handle"), Some(&5000));
        assert_eq!(figure.addresses[&(BASE + 0x84)], 1000);
        assert!(split.guests.is_empty(), "not asked for");
        // There is no other CPU but that without a pointer of its own, before the program sets it. A call, a subtraction and a branch
        // 1000 times, and four instructions around them.
        assert_eq!(everywhere.figures, split.figures);
        let mut elsewhere = everywhere.elsewhere.values();
        assert!(elsewhere.all(|figure| figure.cost == Cost::default()));
        assert_eq!(everywhere.guests, [(7, [(0, 3004)].into())].into());
    }
}
