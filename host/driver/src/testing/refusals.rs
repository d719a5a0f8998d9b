//! EL2 refuses what it cannot run on, in words, and stops: the wrong exception level, no device tree,
//! a place that is too high, a plan with a broken byte, a board that is not the plan's.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_core::plan::Invariant;
use bulkhead_core::plan::corrupt::{Case, Change, Row};
use bulkhead_runner::run::console::Transcript;
use bulkhead_runner::run::{Qemu, Start};

use bulkhead_abi::plan::{MAX_SPIS, Reclaim};

use super::description;
use super::suite::{Context, Job, Test};
use super::watch::watch;

/// The system that is started wrongly.
const SYSTEM: &str = "tests/refuse/two-cpus.toml";
/// System whose VM is got back by interrupts of Group 0.
const SYSTEM_GROUP0: &str = "tests/refuse/group-0.toml";
/// System on a board with few SPIs, of which a VM has one.
const SYSTEM_SPIS: &str = "tests/refuse/few-spis.toml";
/// System that limits refills of a cache, which QEMU does not count.
const SYSTEM_EVENT: &str = "tests/refuse/event.toml";
/// Address at which a loader other than QEMU's puts the image: above the device tree at the start of the RAM.
const PLACE: u64 = 0x4020_0000;
/// Address at which a loader keeps a few instructions of its own, and the address that it gives for a device tree.
const SHIM: u64 = 0x4800_0000;

/// Fault in the way in which the system is started.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    /// QEMU's machine, started the usual way.
    Machine(&'static str),
    /// A board with a GICv3, and EL2 for a GICv2.
    GicV2Image,
    /// A board whose firmware has no events, and a VM whose CPU is to be got back by them.
    NoEvents,
    /// A board with firmware at EL3, whose Group 0 is, and a plan for one without.
    Group0,
    /// A plan that names the last SPI that any board may have, and a distributor that ends before it.
    Spis,
    /// A plan that counts what the board's CPUs do not count.
    Event,
    /// A plan that counts on another cache than the CPUs have, and the words in which EL2 says which.
    Cache(&'static Case, &'static str),
    /// QEMU's machine, started by a loader that knows no device tree.
    Loaded(&'static str, u64),
    /// Bytes for a device tree, or an address that is none.
    Tree(&'static [u8], u64),
    /// The number of CPUs.
    Cpus(u32),
    /// QEMU's CPU.
    Cpu(&'static str),
    /// Memory in MiB.
    Memory(u64),
    /// One bit of the plan, at each of many places.
    Plan,
}

/// The tests of this file: a name, what is wrong, what EL2 calls it, whether the board is off afterwards.
const CASES: [(&str, Wrong, &str, bool); 21] = [
    (
        "entered-at-el1",
        Wrong::Machine("virt,gic-version=3"),
        "exception-level",
        true,
    ),
    // At EL3 there is nobody who could switch the board off.
    (
        "entered-at-el3",
        Wrong::Loaded("virt,gic-version=3,secure=on", PLACE),
        "exception-level",
        false,
    ),
    (
        "no-device-tree",
        Wrong::Loaded(VIRT, PLACE),
        "board-tree",
        true,
    ),
    (
        "device-tree-at-odd-address",
        Wrong::Tree(&TREE_WITHOUT_END, SHIM + 0x1004),
        "board-tree",
        true,
    ),
    (
        "device-tree-without-magic",
        Wrong::Tree(&[0; 64], SHIM + 0x1000),
        "board-tree",
        true,
    ),
    (
        "device-tree-without-end",
        Wrong::Tree(&TREE_WITHOUT_END, SHIM + 0x1000),
        "board-tree",
        true,
    ),
    (
        "device-tree-too-long",
        Wrong::Tree(&TREE_TOO_LONG, SHIM + 0x1000),
        "board-tree",
        true,
    ),
    // LOAD_LIMIT is 128 GiB. The board needs memory there; nobody touches it.
    (
        "loaded-too-high",
        Wrong::Loaded(VIRT, 0x20_4000_0000),
        "load-limit",
        true,
    ),
    (
        "other-gic",
        Wrong::Machine("virt,gic-version=2,virtualization=on"),
        "gic-version",
        true,
    ),
    ("other-gic-older", Wrong::GicV2Image, "gic-version", true),
    ("no-events", Wrong::NoEvents, "board-sdei", true),
    (
        "firmware-has-group-0",
        Wrong::Group0,
        "board-security",
        true,
    ),
    ("too-few-spis", Wrong::Spis, "board-spis", true),
    ("event-not-counted", Wrong::Event, "board-event", true),
    (
        "other-cache",
        Wrong::Cache(&OTHER_CACHE, "those of the cache of pcpu 0 are 16"),
        "board-colours",
        true,
    ),
    (
        "cache-before-the-last",
        Wrong::Cache(&CACHE_BEFORE, "those of the cache of pcpu 0 are 16"),
        "board-colours",
        true,
    ),
    (
        "cache-of-other-cpu",
        Wrong::Cache(&CACHE_OF_OTHERS, "those of the cache of pcpu 1 are 16"),
        "board-colours",
        true,
    ),
    ("too-few-cpus", Wrong::Cpus(1), "board-cpu", true),
    (
        "no-cycle-counter",
        Wrong::Cpu("cortex-a53,pmu=off"),
        "board-pmu",
        true,
    ),
    (
        "too-little-memory",
        Wrong::Memory(256),
        "board-memory",
        true,
    ),
    ("broken-plan", Wrong::Plan, "plan-checksum", true),
];

const VIRT: &str = "virt,gic-version=3,virtualization=on";

/// A header that is right, and a structure block that never ends.
const TREE_WITHOUT_END: [u8; 64] = tree(64);
/// More bytes than EL2 reads.
const TREE_TOO_LONG: [u8; 64] = tree(0x4000_0000);

/// Header of a flattened device tree of `size` bytes: structure and strings at 40, reservations at 24.
const fn tree(size: u32) -> [u8; 64] {
    let mut bytes = [0; 64];
    let words = [0xd00d_feed, size, 40, 40, 24, 17, 16];
    let mut n = 0;
    while n < words.len() {
        let word: [u8; 4] = u32::to_be_bytes(words[n]);
        let mut byte = 0;
        while byte < 4 {
            bytes[n * 4 + byte] = word[byte];
            byte += 1;
        }
        n += 1;
    }
    bytes
}

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let claim = |invariant: &str, off: bool| {
        let end = if off {
            "switches the board off"
        } else {
            "sleeps"
        };
        format!("EL2 says `refused: {invariant}` on the plan's or the board's UART and {end}.")
    };
    let one = |(name, wrong, invariant, off)| {
        let job: Job = Box::new(move |context| refused(context, name, wrong, invariant, off));
        Test::parallel(format!("refuse/{name}"), claim(invariant, off), job)
    };
    CASES.into_iter().map(one).collect()
}

fn refused(
    context: &Context,
    name: &str,
    wrong: Wrong,
    invariant: &str,
    off: bool,
) -> Result<String, Vec<String>> {
    let why = |error: &dyn std::fmt::Display| vec![error.to_string()];
    let description = match wrong {
        Wrong::GicV2Image => description::on_gicv2(context, SYSTEM).map_err(|e| why(&e))?,
        Wrong::NoEvents | Wrong::Group0 => context.root.join(SYSTEM_GROUP0),
        Wrong::Spis => context.root.join(SYSTEM_SPIS),
        Wrong::Event => context.root.join(SYSTEM_EVENT),
        _ => context.root.join(SYSTEM),
    };
    let system = context.builds.get(&description).map_err(|e| why(&e))?;
    let folder = context.logs.join("refuse").join(name);
    fs::create_dir_all(&folder).map_err(|e| why(&e))?;
    let mut qemu = system.qemu.clone();
    match wrong {
        Wrong::Machine(machine) => machine.clone_into(&mut qemu.machine),
        Wrong::Event => {}
        Wrong::NoEvents => {
            let mut plan = system.plan.clone();
            if !EVENTS.apply(&mut plan) {
                return Err(vec!["the plan has no VM".to_owned()]);
            }
            let image = with_plan(&qemu, &system.plan, &plan)?;
            qemu.image = folder.join("events.img");
            fs::write(&qemu.image, image).map_err(|e| why(&e))?;
        }
        Wrong::Group0 => qemu.machine.push_str(",secure=on"),
        Wrong::Spis => {
            let mut plan = system.plan.clone();
            if !BEYOND.apply(&mut plan) {
                return Err(vec!["the plan has no interrupt of the board".to_owned()]);
            }
            let image = with_plan(&qemu, &system.plan, &plan)?;
            qemu.image = folder.join("beyond.img");
            fs::write(&qemu.image, image).map_err(|e| why(&e))?;
        }
        Wrong::Cache(case, _) => {
            let mut plan = system.plan.clone();
            if !case.apply(&mut plan) {
                return Err(vec!["the plan has no cache".to_owned()]);
            }
            let image = with_plan(&qemu, &system.plan, &plan)?;
            qemu.image = folder.join("cache.img");
            fs::write(&qemu.image, image).map_err(|e| why(&e))?;
        }
        Wrong::GicV2Image => VIRT.clone_into(&mut qemu.machine),
        Wrong::Cpus(cpus) => qemu.cpus = cpus,
        Wrong::Cpu(cpu) => cpu.clone_into(&mut qemu.cpu),
        Wrong::Memory(mib) => qemu.memory_mib = mib,
        Wrong::Loaded(machine, place) => {
            machine.clone_into(&mut qemu.machine);
            qemu.start = Start::At {
                entry: place,
                image: place,
                blobs: Vec::new(),
            };
            if place > 1 << 36 {
                qemu.memory_mib = 132 << 10;
                // The a53 has no addresses as high as that.
                "cortex-a72".clone_into(&mut qemu.cpu);
            }
        }
        Wrong::Tree(bytes, x0) => {
            let blob = |name: &str, bytes: &[u8]| -> Result<PathBuf, Vec<String>> {
                let path = folder.join(name);
                fs::write(&path, bytes).map_err(|e| why(&e))?;
                Ok(path)
            };
            let tree = x0 & !0xff;
            let blobs = vec![
                (blob("shim.bin", &shim(x0))?, SHIM),
                (blob("tree.bin", bytes)?, tree),
            ];
            qemu.start = Start::At {
                entry: SHIM,
                image: PLACE,
                blobs,
            };
        }
        Wrong::Plan => {
            return broken_plan(&qemu, &system.plan, &folder.join("broken.img"), invariant);
        }
    }
    let (found, text) = run(&qemu, off).map_err(|e| vec![e])?;
    if let Wrong::Cache(_, words) = wrong
        && text != words
    {
        return Err(vec![format!("EL2 says `{text}` instead of `{words}`")]);
    }
    if found == invariant {
        Ok(found)
    } else {
        Err(vec![format!("EL2 says {found} instead of {invariant}")])
    }
}

/// Returns what EL2 refuses, by name, and the words behind it; the board has to be switched off if `off`, and to stay on if not.
fn run(qemu: &Qemu, off: bool) -> Result<(String, String), String> {
    let mut transcript = Transcript::default();
    let ended = watch(qemu, Duration::from_secs(60), |bytes| {
        transcript.push(bytes);
        (Vec::new(), !off && transcript.refused.is_some())
    });
    let ended = ended.map_err(|failure| failure.to_string())?;
    transcript.finish();
    match transcript.refused {
        None => Err(format!(
            "EL2 refuses nothing; QEMU said: {}",
            ended.messages
        )),
        Some((name, _)) if ended.powered_off != off => Err(format!(
            "EL2 says {name}, but the board is {}",
            if off {
                "not switched off"
            } else {
                "switched off"
            }
        )),
        Some(refused) => Ok(refused),
    }
}

/// Instructions that enter the image at [`PLACE`] with this x0, as a boot loader does.
fn shim(x0: u64) -> Vec<u8> {
    // ldr x0, [pc, #16]; ldr x1, [pc, #20]; br x1; nop; then x0 and x1.
    let code = [0x5800_0080u32, 0x5800_00a1, 0xd61f_0020, 0xd503_201f];
    let words = code.into_iter().flat_map(u32::to_le_bytes);
    words
        .chain(x0.to_le_bytes())
        .chain(PLACE.to_le_bytes())
        .collect()
}

/// EL2 gets a VM's CPU back by events, which QEMU's firmware does not have. The tool makes no such plan where it knows that. The plan is
/// sound; `breaks` is not looked at.
const EVENTS: Case = Case {
    changes: &[(
        "Vm.reclaim",
        Row::Number(0),
        Change::Set(Reclaim::Sdei as u64),
    )],
    breaks: Invariant::VmReclaim,
};

/// The interrupt of a VM is the last that a plan may name. The plan is sound; `breaks` is not looked at.
const BEYOND: Case = Case {
    changes: &[(
        "Irq.pintid",
        Row::Number(0),
        Change::Set(31 + MAX_SPIS as u64),
    )],
    breaks: Invariant::BoardGicd,
};

/// QEMU's Cortex-A53 has 1 MiB of 16 ways. The plan is sound; `breaks` is not looked at.
const OTHER_CACHE: Case = Case {
    changes: &[
        ("Pcpu.cache_level", Row::Number(0), Change::Set(2)),
        ("Pcpu.cache_level", Row::Number(1), Change::Set(2)),
        ("Pcpu.colours", Row::Number(0), Change::Set(32)),
        ("Pcpu.colours", Row::Number(1), Change::Set(32)),
    ],
    breaks: Invariant::PcpuCache,
};

/// The plan counts on a cache with another behind it, which has as many colours.
const CACHE_BEFORE: Case = Case {
    changes: &[
        ("Pcpu.cache_level", Row::Number(0), Change::Set(1)),
        ("Pcpu.colours", Row::Number(0), Change::Set(16)),
        ("Pcpu.cache", Row::Number(1), Change::Set(1)),
        ("Pcpu.colours", Row::Number(1), Change::Set(16)),
    ],
    breaks: Invariant::PcpuCache,
};

/// The CPU that boots has the cache that the plan counts on; the other one has not.
const CACHE_OF_OTHERS: Case = Case {
    changes: &[
        ("Pcpu.cache_level", Row::Number(0), Change::Set(2)),
        ("Pcpu.colours", Row::Number(0), Change::Set(16)),
        ("Pcpu.cache", Row::Number(1), Change::Set(1)),
        ("Pcpu.cache_level", Row::Number(1), Change::Set(2)),
        ("Pcpu.colours", Row::Number(1), Change::Set(32)),
    ],
    breaks: Invariant::PcpuCache,
};

/// The bytes of the image with another plan in the place of its own.
fn with_plan(qemu: &Qemu, plan: &[u8], other: &[u8]) -> Result<Vec<u8>, Vec<String>> {
    let mut image = fs::read(&qemu.image).map_err(|e| vec![e.to_string()])?;
    let mut windows = image.windows(plan.len());
    let start = windows.position(|bytes| bytes == plan);
    let start = start.ok_or_else(|| vec!["the image does not carry the plan".to_owned()])?;
    image[start..start + plan.len()].copy_from_slice(other);
    Ok(image)
}

/// Flips one bit at each of many places of the plan's tables, without a new checksum.
fn broken_plan(
    qemu: &Qemu,
    plan: &[u8],
    file: &PathBuf,
    invariant: &str,
) -> Result<String, Vec<String>> {
    const PLACES: usize = 16;
    let image = fs::read(&qemu.image).map_err(|e| vec![e.to_string()])?;
    let start = image
        .windows(plan.len())
        .position(|bytes| bytes == plan)
        .ok_or_else(|| vec!["the image does not carry the plan".to_owned()])?;
    let header = size_of::<bulkhead_abi::plan::Header>();
    let qemu = Qemu {
        image: file.clone(),
        ..qemu.clone()
    };
    let mut wrong = Vec::new();
    for n in 0..PLACES {
        // Evenly spread over the tables, the last byte included; the bit differs, too.
        let at = header + (plan.len() - header - 1) * n / (PLACES - 1);
        let mut broken = image.clone();
        broken[start + at] ^= 1 << (n % 8);
        fs::write(file, broken).map_err(|e| vec![e.to_string()])?;
        match run(&qemu, true) {
            Ok((name, _)) if name == invariant => {}
            Ok((name, _)) => {
                wrong.push(format!("byte {at}: EL2 says {name} instead of {invariant}"))
            }
            Err(why) => wrong.push(format!("byte {at}: {why}")),
        }
    }
    // A failure to remove it would show at the next write.
    let _ = fs::remove_file(file);
    if wrong.is_empty() {
        Ok(format!("{PLACES} places"))
    } else {
        Err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shim_loads_what_lies_behind_it() {
        let bytes = shim(0x1122_3344_5566_7788);
        // LDR (literal), 64 bits: offset in words in bits 23:5.
        for (at, register, to) in [(0, 0, 16), (4, 1, 24)] {
            let word = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            assert_eq!(word & 0xff00_001f, 0x5800_0000 | register);
            assert_eq!(at as u32 + (word >> 5 & 0x7_ffff) * 4, to);
        }
        assert_eq!(bytes[16..24], 0x1122_3344_5566_7788u64.to_le_bytes());
        assert_eq!(bytes[24..], PLACE.to_le_bytes());
    }
}
