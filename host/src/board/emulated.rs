//! Boards that QEMU emulates: `boards/NAME/board.toml`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dtoolkit::fdt::Fdt;
use dtoolkit::model::{DeviceTree, DeviceTreeProperty};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{Trouble, open, read_file};
use crate::describe::{BoardSpec, Code, Finding, Placed, Size, Span, parse_size};
use crate::failure::Failure;
use crate::fetch::{self, cache, firmware};
use crate::leftovers;
use crate::run::{Qemu, Start};

/// `board.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BoardFile {
    qemu: QemuPart,
    parameters: Parameters,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QemuPart {
    machine: String,
    tree: Option<String>,
    console: Option<String>,
    #[serde(default = "Vec::new")]
    options: Vec<String>,
    #[serde(default)]
    uarts_before: u32,
    image_offset: String,
    spis: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    cpu: Choice<String>,
    cpus: Choice<u32>,
    memory: Choice<String>,
    gic: Choice<u32>,
    firmware: Choice<String>,
    uarts: Choice<u32>,
}

/// A parameter: what holds if the description says nothing, and what it may say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice<T> {
    default: T,
    #[serde(default = "Vec::new")]
    choices: Vec<T>,
    most: Option<T>,
}

/// An emulated board with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulated {
    /// Value of `-machine`.
    pub machine: String,
    /// Value of `-cpu`.
    pub cpu: String,
    /// The device tree that QEMU is given, `debian:VENDOR/NAME`; none: it makes one itself.
    pub tree: Option<String>,
    /// What that tree is made to name as the console; none: what it names itself.
    pub console: Option<String>,
    /// Further words for QEMU.
    pub options: Vec<String>,
    /// UARTs that QEMU has before the one that is the console.
    pub before: u32,
    /// CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// PL011s; the first is the console, others are connected to nothing.
    pub uarts: u32,
    /// Trusted Firmware runs at EL3, and the board has two Security states.
    pub firmware: bool,
    /// Bytes from the start of the memory to where QEMU puts an image.
    pub image_offset: u64,
    /// SPIs that the GIC has.
    pub spis: u32,
}

impl Emulated {
    /// QEMU for this board with `image`.
    ///
    /// # Errors
    /// The tree that QEMU is to be given cannot be had.
    pub fn qemu(&self, image: impl Into<PathBuf>) -> Result<Qemu, Failure> {
        let mut qemu = Qemu::virt(image, &self.cpu, self.cpus, self.memory_mib);
        qemu.machine.clone_from(&self.machine);
        qemu.tree = self.given_tree()?;
        qemu.options.clone_from(&self.options);
        qemu.before = self.before;
        qemu.uarts = self.uarts;
        if self.firmware {
            // With ACPI and firmware QEMU has another device in the place of the PL061.
            qemu.machine.push_str(",secure=on,acpi=off");
            qemu.start = Start::Firmware {
                rom: firmware::file(),
                image: firmware::ENTRY,
            };
        }
        Ok(qemu)
    }

    /// The file of the tree that QEMU is given, fetched if need be.
    fn given_tree(&self) -> Result<Option<PathBuf>, Failure> {
        let name = self.tree.as_deref();
        let name = name.map(|name| name.strip_prefix("debian:").unwrap_or(name));
        let file = name.map(fetch::device_tree).transpose()?;
        match (file, &self.console) {
            (Some(file), Some(console)) => named(&file, console).map(Some),
            (file, _) => Ok(file),
        }
    }

    /// The device tree that QEMU makes for this board, or what it makes of the one that it is given, from the cache if it is there.
    /// Trusted Firmware takes that tree.
    pub fn device_tree(&self) -> Result<Vec<u8>, Failure> {
        let qemu = self.qemu("")?;
        let program = qemu.program;
        let version = version(&program)?;
        let key = format!("{version}\n{self:?}\n{:?}", qemu.tree);
        let digest = Sha256::digest(key.as_bytes());
        let name: String = digest
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let file = keep(&format!("{name}.dtb"), |place| {
            self.dump((&program, qemu.tree.as_deref()), place)
        })?;
        read_file(&file)
    }

    /// Lets QEMU write the device tree of this board, which it makes, or gets and corrects.
    fn dump(&self, (program, tree): (&Path, Option<&Path>), file: &Path) -> Result<(), Failure> {
        // Seeds in a dump would make every dump another board. Into a tree that it gets QEMU puts none.
        let seeds = tree.map_or(",dtb-randomness=off", |_| "");
        let output = Command::new(program)
            .args(["-nodefaults", "-display", "none"])
            .args(&self.options)
            .args(
                tree.iter()
                    .flat_map(|tree| [OsStr::new("-dtb"), tree.as_os_str()]),
            )
            .arg("-machine")
            .arg(format!(
                "{}{seeds},dumpdtb={}",
                self.machine,
                file.display()
            ))
            .args(["-cpu", &self.cpu, "-smp", &self.cpus.to_string()])
            .args(["-m", &format!("{}M", self.memory_mib)])
            .args((0..self.uarts).flat_map(|_| ["-serial", "null"]))
            .output()
            .map_err(|why| missing(program, why))?;
        if output.status.success() {
            return Ok(());
        }
        Err(Failure::environment(
            "QEMU does not give the board's device tree",
            String::from_utf8_lossy(&output.stderr),
            "Bulkhead needs QEMU 7.0 or later, and one that has the machine: 9.0 for raspi4b, 10.0 for imx8mp-evk",
        ))
    }
}

/// The tree in a file with another console, as firmware names one there: a file in the cache.
fn named(file: &Path, console: &str) -> Result<PathBuf, Failure> {
    let broken = |why: String| {
        let what = format!("cannot use the device tree {}", file.display());
        Failure::failed(what, why, "delete it from the cache; it is fetched again")
    };
    let bytes = open(read_file(file)?).map_err(|why| broken(format!("it is {why}")))?;
    let fdt = Fdt::new(&bytes).map_err(|why| broken(why.to_string()))?;
    let mut tree = DeviceTree::from_fdt(&fdt);
    let path = DeviceTreeProperty::new("stdout-path", format!("{console}\0").into_bytes());
    let path = path.map_err(|why| broken(why.to_string()))?;
    let chosen = tree.find_node_mut("/chosen");
    let chosen = chosen.ok_or_else(|| broken("it has no /chosen".to_owned()))?;
    chosen.add_property(path);
    let bytes = tree.to_dtb();
    let digest = Sha256::digest(&bytes);
    let name: String = digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    keep(&format!("given-{name}.dtb"), |place| {
        fs::write(place, &bytes).map_err(|why| broken(why.to_string()))
    })
}

/// A file of the cache: if it is not there yet, `make` writes it.
fn keep(name: &str, make: impl FnOnce(&Path) -> Result<(), Failure>) -> Result<PathBuf, Failure> {
    let folder = cache::folder().join("boards");
    let file = folder.join(name);
    if file.is_file() {
        return Ok(file);
    }
    let trouble = |why: std::io::Error| {
        Failure::environment(
            format!(
                "cannot keep the board's device tree in {}",
                folder.display()
            ),
            why,
            "set BULKHEAD_CACHE to a folder that can be written",
        )
    };
    fs::create_dir_all(&folder).map_err(trouble)?;
    // Written beside it and renamed, so that nobody ever reads half of it.
    let temporary = leftovers::file_in(&folder).map_err(trouble)?;
    make(temporary.value.path())?;
    temporary
        .value
        .persist(&file)
        .map_err(|error| trouble(error.error))?;
    Ok(file)
}

/// First line of `qemu --version`.
fn version(program: &Path) -> Result<String, Failure> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .map_err(|why| missing(program, why))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// QEMU does not run.
fn missing(program: &Path, why: std::io::Error) -> Failure {
    Failure::environment(
        format!("cannot run {}", program.display()),
        why,
        "install QEMU (Debian and Ubuntu: package qemu-system-arm), or run the tool through `./bulkhead`, which does",
    )
}

/// The board that a `board.toml` describes, with what holds if a description says nothing.
pub(super) fn defaults(text: &str) -> Result<Emulated, String> {
    let file: BoardFile = toml::from_str(text).map_err(|why| why.to_string())?;
    let parameters = file.parameters;
    Ok(Emulated {
        machine: machine(&file.qemu, parameters.gic.default),
        tree: file.qemu.tree,
        console: file.qemu.console,
        options: file.qemu.options,
        before: file.qemu.uarts_before,
        cpu: parameters.cpu.default,
        cpus: parameters.cpus.default,
        memory_mib: parse_size(&parameters.memory.default)? >> 20,
        uarts: parameters.uarts.default,
        firmware: parameters.firmware.default != "none",
        image_offset: parse_size(&file.qemu.image_offset)?,
        spis: file.qemu.spis,
    })
}

/// Value of `-machine` with this version of the GIC.
fn machine(qemu: &QemuPart, gic: u32) -> String {
    qemu.machine.replace("{gic}", &gic.to_string())
}

/// Applies the parameters of a description to the board that the `board.toml` with this text describes; `broken` says
/// what is wrong with it.
pub(super) fn resolve(
    text: &str,
    broken: impl Fn(String) -> Failure,
    spec: &BoardSpec,
    findings: &mut Vec<Finding>,
) -> Result<Emulated, Trouble> {
    let file: BoardFile = toml::from_str(text).map_err(|why| broken(why.to_string()))?;
    let parameters = file.parameters;
    let before = findings.len();
    let cpu = choose(spec.cpu.as_ref(), &parameters.cpu, "cpu", findings);
    let cpus = choose(spec.cpus.as_ref(), &parameters.cpus, "cpus", findings);
    let gic = choose(spec.gic.as_ref(), &parameters.gic, "gic", findings);
    let firmware = choose(
        spec.firmware.as_ref(),
        &parameters.firmware,
        "firmware",
        findings,
    );
    let uarts = choose(spec.uarts.as_ref(), &parameters.uarts, "uarts", findings);
    if let Some(cpus) = spec.cpus.as_ref().filter(|cpus| cpus.value == 0) {
        findings.push(
            Finding::new(Code::BoardValue, "a board needs a CPU")
                .at(cpus.span.clone(), "none")
                .help("leave `cpus` out, or say cpus = 1"),
        );
    }
    let memory = match &spec.memory {
        Some(memory) => {
            if memory.value % (1 << 20) != 0 {
                findings.push(
                    Finding::new(Code::BoardValue, "memory of this board comes in MiB")
                        .at(memory.span.clone(), "not a multiple of 1 MiB")
                        .help(format!(
                            "{} is one",
                            Size(memory.value.next_multiple_of(1 << 20))
                        )),
                );
            }
            fits(memory, &parameters.memory, findings).map_err(&broken)?;
            memory.value
        }
        None => parse_size(&parameters.memory.default).map_err(&broken)?,
    };
    let image_offset = parse_size(&file.qemu.image_offset).map_err(broken)?;
    if findings.len() > before {
        return Err(Trouble::Description);
    }
    Ok(Emulated {
        machine: machine(&file.qemu, gic),
        tree: file.qemu.tree,
        console: file.qemu.console,
        options: file.qemu.options,
        before: file.qemu.uarts_before,
        cpu,
        cpus,
        memory_mib: memory >> 20,
        uarts,
        firmware: firmware != "none",
        image_offset,
        spis: file.qemu.spis,
    })
}

/// Whether the board can have so much memory.
fn fits(
    given: &Placed<u64>,
    choice: &Choice<String>,
    findings: &mut Vec<Finding>,
) -> Result<(), String> {
    let most = choice.most.as_deref().map(parse_size).transpose()?;
    let sizes = choice.choices.iter().map(|size| parse_size(size));
    let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
    let why = match most.filter(|most| given.value > *most) {
        Some(most) => format!("at most {}", Size(most)),
        None if sizes.is_empty() || sizes.contains(&given.value) => return Ok(()),
        None => format!("must be one of: {}", choice.choices.join(", ")),
    };
    let message = format!("this board cannot have memory = {}", Size(given.value));
    let help = format!("leave `memory` out: {} is the default", choice.default);
    let finding = Finding::new(Code::BoardValue, message);
    findings.push(finding.at(given.span.clone(), why).help(help));
    Ok(())
}

/// The value that the description gives, if it may, or the default.
fn choose<T: Clone + PartialOrd + std::fmt::Display>(
    given: Option<&Placed<T>>,
    choice: &Choice<T>,
    key: &str,
    findings: &mut Vec<Finding>,
) -> T {
    let Some(given) = given else {
        return choice.default.clone();
    };
    let mut refuse = |span: &Span, why: String| {
        let message = format!("this board cannot have {key} = {}", given.value);
        findings.push(
            Finding::new(Code::BoardValue, message)
                .at(span.clone(), why)
                .help(format!(
                    "leave `{key}` out: {} is the default",
                    choice.default
                )),
        );
    };
    if !choice.choices.is_empty() && !choice.choices.contains(&given.value) {
        let list: Vec<_> = choice.choices.iter().map(ToString::to_string).collect();
        refuse(&given.span, format!("must be one of: {}", list.join(", ")));
    }
    if let Some(most) = choice.most.as_ref().filter(|most| given.value > **most) {
        refuse(&given.span, format!("at most {most}"));
    }
    given.value.clone()
}
