//! Guests as `bulkhead init` takes them: `[NAME=]KIND:WHAT`.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use bulkhead_abi::plan::NAME;

use bulkhead_model::checkout;
use bulkhead_model::describe::{RESERVED, nearest, parse_address};
use bulkhead_model::failure::Failure;
use bulkhead_model::payload::DebianPayload;

use super::toml_text::{MIB, memory_text, quoted};

/// Default load address of raw bytes: behind the first 512 KiB of RAM, where arm64 kernels lie, too.
const LOAD: u64 = 0x4008_0000;

/// Software of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Runs {
    /// A Linux with an initial RAM disk, if it has one.
    Linux {
        kernel: String,
        initrd: Option<String>,
    },
    /// Debian with systemd, on a root disk.
    Rootfs,
    /// A program, with the address of raw bytes.
    Program { image: String, load: Option<u64> },
}

/// What a hard real-time guest masks interrupts by in its critical sections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masks {
    /// The priority mask, and perhaps DAIF.
    Priority,
    /// DAIF alone.
    Daif,
}

impl Masks {
    /// The end of a guest's word that says it.
    pub const fn ending(self) -> &'static str {
        match self {
            Self::Priority => "=pmr",
            Self::Daif => "=daif",
        }
    }
}

/// Service class of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// The default one.
    General,
    /// Hard real time. What it masks by may not be known yet.
    HardRealtime(Option<Masks>),
}

/// The end of a guest's word that is its class.
const HARD: &str = "+hard-realtime";

/// A guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Name of its VM.
    pub name: String,
    runs: Runs,
    memory: u64,
    class: Class,
}

/// Kinds of guests, for messages.
pub const KINDS: &str = "linux:debian, debian:rootfs, linux:IMAGE[,INITRD], program:FILE[@ADDRESS], guest:NAME, or a file that is an ELF program or a kernel; with +hard-realtime behind it for that class";

impl Guest {
    /// Reads one `[NAME=]KIND:WHAT[+hard-realtime[=pmr|=daif]]`; `taken` are the names of those before it, `place` is said where files are looked
    /// for from the folder of the description.
    ///
    /// # Errors
    /// There is no such kind, file, program, or the name cannot be that of a VM.
    pub fn parse(
        spec: &str,
        taken: &[Guest],
        place: impl Fn(&str) -> String,
    ) -> Result<Self, Failure> {
        let refuse = |why: String, help: String| {
            Err(Failure::input(
                format!("cannot make a VM of `{spec}`"),
                why,
                help,
            ))
        };
        let (plain, class) = match spec.rsplit_once(HARD) {
            None => (spec, Class::General),
            Some((plain, "")) => (plain, Class::HardRealtime(None)),
            Some((plain, "=pmr")) => (plain, Class::HardRealtime(Some(Masks::Priority))),
            Some((plain, "=daif")) => (plain, Class::HardRealtime(Some(Masks::Daif))),
            Some((_, end)) => {
                return refuse(
                    format!("`{end}` behind {HARD} says nothing"),
                    format!(
                        "say {HARD}=pmr if it masks interrupts by its priority mask, else {HARD}=daif"
                    ),
                );
            }
        };
        let (name, rest) = match plain.split_once('=') {
            Some((name, rest)) if !name.contains([':', '/']) => (Some(name), rest),
            _ => (None, plain),
        };
        let (kind, what) = match rest.split_once(':').filter(|(_, what)| !what.is_empty()) {
            // As descriptions have it.
            Some(("debian", _)) => ("linux", rest),
            Some(said) => said,
            None => match kind_of(rest.split(',').next().unwrap_or(rest)) {
                Some(kind) => (kind, rest),
                None => {
                    return refuse(
                        "it does not say what kind of guest it is, and is no file that does"
                            .to_owned(),
                        format!("say {KINDS}"),
                    );
                }
            },
        };
        let (runs, memory, called) = match kind {
            "linux" if what == "debian:rootfs" => (Runs::Rootfs, 512 * MIB, "debian".to_owned()),
            "linux" => {
                let (kernel, initrd) = match what.split_once(',') {
                    _ if what == "debian" => ("debian:kernel", Some("debian:initramfs")),
                    Some((kernel, initrd)) => (kernel, Some(initrd)),
                    None if what.starts_with("debian:") => (what, Some("debian:initramfs")),
                    None => (what, None),
                };
                let kernel = source(kernel, &place)?;
                let initrd = initrd.map(|initrd| source(initrd, &place)).transpose()?;
                (
                    Runs::Linux { kernel, initrd },
                    512 * MIB,
                    "linux".to_owned(),
                )
            }
            "program" => {
                let (file, load) = match what.rfind("@0x") {
                    Some(at) => match parse_address(&what[at + 1..]) {
                        Ok(load) => (&what[..at], Some(load)),
                        Err(why) => {
                            let address = &what[at + 1..];
                            return refuse(
                                format!("{address} is no address: {why}"),
                                String::new(),
                            );
                        }
                    },
                    None => (what, None),
                };
                let image = source(file, &place)?;
                let load = load.or_else(|| (!is_elf(file)).then_some(LOAD));
                let stem = Path::new(file).file_stem().unwrap_or_default();
                let stem = stem.to_string_lossy().into_owned();
                (Runs::Program { image, load }, 64 * MIB, stem)
            }
            "guest" => {
                let image = source(rest, &place)?;
                (
                    Runs::Program { image, load: None },
                    16 * MIB,
                    what.to_owned(),
                )
            }
            _ => {
                let near = nearest(kind, ["linux", "program", "guest"]);
                let help = near.map_or(format!("say {KINDS}"), |near| {
                    format!("did you mean `{near}:{what}`?")
                });
                return refuse(format!("there is no kind `{kind}`"), help);
            }
        };
        let name = match name {
            Some(name) => name.to_owned(),
            None => free_name(&called, taken),
        };
        if let Some(why) = wrong_name(&name, taken) {
            return refuse(why, "name it otherwise: NAME=KIND:WHAT".to_owned());
        }
        Ok(Self {
            name,
            runs,
            memory,
            class,
        })
    }

    /// Whether it is hard real time: its CPU is its own.
    pub fn is_hard_realtime(&self) -> bool {
        matches!(self.class, Class::HardRealtime(_))
    }

    /// Whether it is not known what it masks interrupts by, and it matters.
    pub fn is_open(&self) -> bool {
        self.class == Class::HardRealtime(None)
    }

    /// Says what it masks interrupts by.
    pub fn close(&mut self, masks: Masks) {
        self.class = Class::HardRealtime(Some(masks));
    }

    /// Bytes of RAM that it gets.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Bytes of the board's memory that its root disk takes: the image in what boots and in the VM that serves it, and the changes.
    pub fn disk(&self) -> u64 {
        match self.runs {
            Runs::Rootfs => 3 * 256 * MIB,
            Runs::Linux { .. } | Runs::Program { .. } => 0,
        }
    }

    /// Writes its class, and for hard real time the mode in which its critical sections are closed. On a GICv2 there is
    /// one mode, in which they always are.
    fn write_class(&self, gic: u32, out: &mut String) -> std::fmt::Result {
        let masks = match self.class {
            Class::General => {
                return writeln!(
                    out,
                    "# class = \"general\"       # or management, soft-realtime, hard-realtime"
                );
            }
            Class::HardRealtime(masks) => masks,
        };
        writeln!(out, "class = \"hard-realtime\"")?;
        if gic == 2 {
            return Ok(());
        }
        match masks {
            // Where nobody has said it, the mode in which both are right.
            None | Some(Masks::Priority) => writeln!(
                out,
                "interrupts = \"gppt-pmr-trapped\"  # its priority mask is exact, an exit for each access; \"gppt\" if it masks by DAIF alone"
            ),
            Some(Masks::Daif) => writeln!(
                out,
                "interrupts = \"gppt\"  # it masks by DAIF alone; \"gppt-pmr-trapped\" if by its priority mask, too"
            ),
        }
    }

    /// Writes its table, for a board with this version of the GIC.
    pub(super) fn write(&self, gic: u32, out: &mut String) -> std::fmt::Result {
        writeln!(out, "[vm.{}]", self.name)?;
        writeln!(out, "memory = \"{}\"", memory_text(self.memory))?;
        match &self.runs {
            Runs::Linux { kernel, initrd } => {
                writeln!(out, "kernel = {}", quoted(kernel))?;
                match initrd {
                    Some(initrd) => writeln!(out, "initrd = {}", quoted(initrd))?,
                    None => writeln!(
                        out,
                        "# initrd = \"FILE\"         # or a list, one behind the other"
                    )?,
                }
                writeln!(out, "cmdline = \"console=ttyAMA0\"")?;
            }
            Runs::Rootfs => {
                writeln!(out, "kernel = \"debian:kernel\"")?;
                writeln!(out, "initrd = \"debian:initramfs\"")?;
                writeln!(
                    out,
                    "cmdline = \"console=ttyAMA0 root=/dev/vda systemd.hostname={}\"",
                    self.name
                )?;
            }
            Runs::Program { image, load } => {
                writeln!(out, "image = {}", quoted(image))?;
                if let Some(load) = load {
                    writeln!(
                        out,
                        "load = \"{load:#x}\"        # where raw bytes go, and where they start"
                    )?;
                }
            }
        }
        self.write_class(gic, out)?;
        writeln!(out, "# vcpus = 1")?;
        writeln!(
            out,
            "# pcpus = [0]             # the CPU of each vCPU; else the planner chooses"
        )?;
        writeln!(
            out,
            "# devices = [\"/PATH\"]     # of the board: `bulkhead board show` lists them"
        )?;
        if self.runs == Runs::Rootfs {
            writeln!(
                out,
                "disks = [{{ name = \"root\", image = \"debian:rootfs\", copy_on_write = true }}]"
            )?;
        } else {
            writeln!(
                out,
                "# disks = [{{ name = \"data\", size = \"64MiB\" }}]    # or image = \"FILE\""
            )?;
        }
        writeln!(
            out,
            "# networks = [{{ name = \"lan\" }}]    # see [network.lan] below"
        )?;
        if !self.is_hard_realtime() {
            writeln!(
                out,
                "# service = \"own\"          # its disks and networks are served on its own CPU, not on that of [service]"
            )?;
        }
        writeln!(out, "# crash = {{ restart = 3, within = \"60s\" }}")
    }
}

/// A payload as the description names it: as it is where it is no file, else a file that exists.
fn source(word: &str, place: &impl Fn(&str) -> String) -> Result<String, Failure> {
    if word.starts_with("debian:") {
        DebianPayload::named(word)?;
        return Ok(word.to_owned());
    }
    if let Some(name) = word.strip_prefix("guest:") {
        let known = checkout::guest_names();
        if known.iter().any(|known| known == name) {
            return Ok(word.to_owned());
        }
        let near = nearest(name, known.iter().map(String::as_str));
        let help = near.map_or_else(
            || format!("they are {}", known.join(", ")),
            |near| format!("did you mean `guest:{near}`?"),
        );
        return Err(Failure::input(
            format!("there is no guest program `{name}`"),
            "",
            help,
        ));
    }
    File::open(word)
        .and_then(|file| file.metadata())
        .and_then(|about| match about.is_file() {
            true => Ok(place(word)),
            false => Err(std::io::Error::other("it is no file")),
        })
        .map_err(|why| {
            Failure::input(
                format!("cannot read {word}"),
                why,
                format!("a guest is {KINDS}"),
            )
        })
}

/// Whether a file is an ELF file, which says itself where it goes.
fn is_elf(file: &str) -> bool {
    kind_of(file) == Some("program")
}

/// The kind of guest that a file is, if its first bytes tell: an ELF program, or an arm64 Image, perhaps packed.
fn kind_of(file: &str) -> Option<&'static str> {
    let mut head = Vec::new();
    File::open(file)
        .ok()?
        .take(64)
        .read_to_end(&mut head)
        .ok()?;
    let at = |place: usize, magic: &[u8]| {
        head.get(place..)
            .is_some_and(|rest| rest.starts_with(magic))
    };
    let kernel =
        at(56, b"ARM\x64") || at(4, b"zimg") || at(0, b"\x1f\x8b") || at(0, b"\x28\xb5\x2f\xfd");
    match at(0, b"\x7fELF") {
        true => Some("program"),
        false => kernel.then_some("linux"),
    }
}

/// A name like `called` that no VM has yet.
fn free_name(called: &str, taken: &[Guest]) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let plain: String = called.chars().map(letter).take(NAME - 2).collect();
    let names = std::iter::once(plain.clone()).chain((2..).map(|n| format!("{plain}{n}")));
    let free = |name: &String| wrong_name(name, taken).is_none();
    names.take(taken.len() + 2).find(free).unwrap_or(plain)
}

/// Returns the reason for which a VM cannot have this name, if there is one.
fn wrong_name(name: &str, taken: &[Guest]) -> Option<String> {
    let letters = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if name.is_empty() || name.len() > NAME || !letters {
        return Some(format!(
            "a VM's name has 1 to {NAME} of the characters a-z A-Z 0-9 -"
        ));
    }
    if RESERVED.contains(&name) {
        return Some("EL2 labels its own lines so".to_owned());
    }
    let there = taken.iter().any(|guest| guest.name == name);
    there.then(|| format!("there is a VM `{name}` already"))
}
