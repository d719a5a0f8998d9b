//! Boards that QEMU emulates: `boards/NAME/board.toml`.

use serde::Deserialize;

use super::firmware::Firmware;
use super::plan_error::PlanError;
use crate::describe::{BoardSpec, Code, Finding, Placed, Size, Span, one_of, parse_size};
use crate::failure::Failure;

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
    card: Option<Box<Card>>,
}

/// A card that QEMU puts on a bus of the board, and that is the console. QEMU makes no firmware that would set it up, and its tree does not name it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Value of `-device`, without a character device.
    pub device: String,
    /// Name of the node that the board's tree gets.
    pub node: String,
    /// Its `compatible`.
    pub compatible: String,
    /// Physical address of its registers, of which it has a page to itself.
    pub registers: u64,
    /// Number of its SPI, whose level is high.
    pub spi: u32,
    /// Words that firmware would write to set it up, each with its physical address.
    pub writes: Vec<(u64, u32)>,
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

/// A parameter: its default, and the values that a description may give.
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
    /// Device tree that QEMU is given, `debian:VENDOR/NAME`; none: QEMU makes one itself.
    pub tree: Option<String>,
    /// Console that is set in that tree; none: the one that the tree names itself.
    pub console: Option<String>,
    /// Further arguments for QEMU.
    pub options: Vec<String>,
    /// UARTs that QEMU has before the one that is the console.
    pub before: u32,
    /// Number of CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Number of PL011s; the first is the console, others are connected to nothing.
    pub uarts: u32,
    /// What runs at EL3.
    pub firmware: Firmware,
    /// Version of the GIC.
    pub gic: u32,
    /// Bytes from the start of the memory to where QEMU puts an image.
    pub image_offset: u64,
    /// Number of SPIs that the GIC has.
    pub spis: u32,
    /// The card that is the console; none: a UART of the machine is.
    pub card: Option<Box<Card>>,
}

/// Function that asks the emulator for a board's device tree: one that it makes, or makes of the one that it is given.
pub type EmulatedTree<'a> = &'a dyn Fn(&Emulated) -> Result<Vec<u8>, Failure>;

/// The board that a `board.toml` describes, with the default of each parameter.
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
        firmware: Firmware::try_from(parameters.firmware.default)?,
        gic: parameters.gic.default,
        image_offset: parse_size(&file.qemu.image_offset)?,
        spis: file.qemu.spis,
        card: file.qemu.card,
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
) -> Result<Emulated, PlanError> {
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
        return Err(PlanError::Description);
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
        // A wrong word is reported above.
        firmware: Firmware::named(&firmware).unwrap_or(Firmware::None),
        gic,
        image_offset,
        spis: file.qemu.spis,
        card: file.qemu.card,
    })
}

/// Reports a size of memory that the board cannot have.
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
        None => one_of(choice.choices.iter().map(String::as_str)),
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
        refuse(&given.span, one_of(list.iter().map(String::as_str)));
    }
    if let Some(most) = choice.most.as_ref().filter(|most| given.value > **most) {
        refuse(&given.span, format!("at most {most}"));
    }
    given.value.clone()
}
