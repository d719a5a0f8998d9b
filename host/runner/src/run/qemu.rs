//! The command line of QEMU for a board.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use crate::command::program;

/// Source of the guests' clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The host's clock; CPUs run in parallel. Figures are noise, and whatever the host gives to
    /// other programs is lost to the guests as time.
    Host,
    /// Executed instructions: 2^shift ns each, and idle time is skipped. CPUs take turns in one
    /// thread. No noise of the host reaches the guests.
    Instructions {
        /// Binary logarithm of the nanoseconds for an instruction, 0 to 10.
        shift: u8,
    },
}

/// Period of the timer that keeps turns of CPUs short, in microseconds of their time.
const METRONOME_US: u32 = 250;

/// Way in which the image gets into the board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// QEMU boots it as it boots a Linux: device tree in x0, at the level below its own firmware.
    Kernel,
    /// A Linux or a program without EL2, with a device tree that is not the board's own.
    Native {
        /// The device tree; QEMU corrects where memory and initramfs are.
        tree: PathBuf,
        /// The initramfs of a Linux.
        initrd: Option<PathBuf>,
    },
    /// Firmware of the board's own, which starts the image with the device tree in x0.
    Firmware {
        /// Content of the board's flash.
        rom: PathBuf,
        /// Address at which the firmware expects the image.
        image: u64,
    },
    /// A program that QEMU boots as it boots a Linux, and that goes on to the image with the device tree in x0.
    Before {
        /// The program, an arm64 image.
        program: PathBuf,
        /// Address at which the program expects Bulkhead's image.
        image: u64,
    },
    /// A boot loader in the board's flash, which is told on the console to get the image from one of these.
    Loader {
        /// Content of the board's flash.
        rom: PathBuf,
        /// Source of the image.
        source: Source,
    },
    /// QEMU puts bytes into memory and starts the first CPU at its highest exception level, with nothing
    /// in its registers.
    At {
        /// Address at which the first CPU starts.
        entry: u64,
        /// Address at which the image is loaded.
        image: u64,
        /// Other files and where they go.
        blobs: Vec<(PathBuf, u64)>,
    },
}

/// Source from which a boot loader gets an image: a folder on the host, which the board can only read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A virtio disk with one FAT partition, which has the folder's files.
    Disk(PathBuf),
    /// A TFTP server on a network with nothing else on it.
    Network(PathBuf),
}

/// A QEMU to be started.
#[derive(Clone, Debug)]
pub struct Qemu {
    /// The program.
    pub program: PathBuf,
    /// Value of `-machine`.
    pub machine: String,
    /// Value of `-cpu`.
    pub cpu: String,
    /// pCPUs.
    pub cpus: u32,
    /// RAM of the board in MiB.
    pub memory_mib: u64,
    /// PL011s of the board: the first is on the standard input and output unless a card is, others on nothing.
    pub uarts: u32,
    /// The image (`bulkhead.img`), or a guest's ELF to try it without Bulkhead.
    pub image: PathBuf,
    /// The device tree that the board gets instead of QEMU's own, or where QEMU makes none; it fills in the memory.
    pub tree: Option<PathBuf>,
    /// Further words of the command line.
    pub options: Vec<String>,
    /// UARTs that QEMU has before the console's; they are on nothing.
    pub before: u32,
    /// Value of `-device` for a card that is on the standard input and output.
    pub card: Option<String>,
    /// Way in which the image gets into the board.
    pub start: Start,
    /// Source of the guests' clocks.
    pub clock: Clock,
    /// Values of `-plugin`: TCG plugins with their arguments.
    pub plugins: Vec<OsString>,
    /// A library whose functions QEMU calls in place of those of others (`LD_PRELOAD`, ld.so(8)).
    pub preloaded: Option<PathBuf>,
    /// Socket at which a debugger may connect ([`super::Debugger`]). With one, QEMU stays when the board
    /// is powered off, stopped, until it is released.
    pub debugger: Option<PathBuf>,
    /// Socket at which a person's gdb may attach, and whether the board waits for it. The run ends as it does
    /// without one.
    pub gdb: Option<(PathBuf, bool)>,
}

impl Source {
    /// An option with its value, and the device on which the loader finds it.
    fn arguments(&self) -> (&'static str, String, &'static str) {
        match self {
            Self::Disk(folder) => (
                "-drive",
                format!(
                    "file=fat:{},format=raw,if=none,id=disk,read-only=on",
                    plain(folder)
                ),
                "virtio-blk-device,drive=disk",
            ),
            Self::Network(folder) => (
                "-netdev",
                format!("user,id=net,restrict=on,tftp={}", plain(folder)),
                "virtio-net-device,netdev=net",
            ),
        }
    }
}

impl Qemu {
    /// QEMU's `virt` board as `boards/qemu-virt` describes it: GICv3, EL2, random seeds in the device
    /// tree, from which EL2 makes those of the guests.
    pub fn virt(image: impl Into<PathBuf>, cpu: &str, cpus: u32, memory_mib: u64) -> Self {
        Self {
            program: program(),
            machine: "virt,gic-version=3,virtualization=on".to_owned(),
            cpu: cpu.to_owned(),
            cpus,
            memory_mib,
            uarts: 1,
            image: image.into(),
            tree: None,
            options: Vec::new(),
            before: 0,
            card: None,
            start: Start::Kernel,
            clock: Clock::Host,
            plugins: Vec::new(),
            preloaded: None,
            debugger: None,
            gdb: None,
        }
    }

    /// Arguments of the program. The board's UART is on its standard input and output.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments = self.board();
        arguments.extend(self.options.iter().map(OsString::from));
        arguments.extend(self.serial_ports());
        if let Clock::Instructions { shift } = self.clock {
            arguments.extend(instruction_clock(shift));
        }
        for plugin in &self.plugins {
            arguments.extend(["-plugin".into(), plugin.clone()]);
        }
        arguments.extend(self.stubs());
        arguments.extend(self.boot());
        if let Some(tree) = &self.tree {
            arguments.extend(["-dtb".into(), tree.clone().into()]);
        }
        arguments
    }

    /// The machine, its CPUs and memory, and nothing besides.
    fn board(&self) -> Vec<OsString> {
        [
            // No default devices: the board is what its device tree says and nothing else.
            "-nodefaults",
            "-display",
            "none",
            "-monitor",
            "none",
            // Signals of the terminal are the tool's business, and Ctrl-C is a key for the guest.
            "-chardev",
            "stdio,id=console,signal=off",
            // A reset of the board ends the run, as a power-off does.
            "-no-reboot",
            "-machine",
            &format!("{},memory-backend=ram", self.machine),
            "-cpu",
            &self.cpu,
            "-smp",
            &self.cpus.to_string(),
            "-m",
            &format!("{}M", self.memory_mib),
            // Memory that nobody touches need not be there.
            "-object",
            &format!(
                "memory-backend-ram,id=ram,size={}M,reserve=off",
                self.memory_mib
            ),
        ]
        .map(OsString::from)
        .to_vec()
    }

    /// Returns the arguments that connect one UART to the console, and the others to nothing.
    fn serial_ports(&self) -> Vec<OsString> {
        let nothing = |count: u32| (0..count).map(|_| "null");
        let first = match self.card {
            Some(_) => "null",
            None => "chardev:console",
        };
        let after = nothing(self.uarts.saturating_sub(1));
        let ports = nothing(self.before).chain([first]).chain(after);
        let ports = ports.flat_map(|port| ["-serial".into(), port.into()]);
        let card = self.card.iter();
        let card =
            card.flat_map(|card| ["-device".into(), format!("{card},chardev=console").into()]);
        ports.chain(card).collect()
    }

    /// The sockets of debuggers.
    fn stubs(&self) -> Vec<OsString> {
        let stub = |socket: &PathBuf| -> [OsString; 2] {
            let device = format!("unix:{},server=on,wait=off", plain(socket));
            ["-gdb".into(), device.into()]
        };
        let mut arguments = Vec::new();
        if let Some(socket) = &self.debugger {
            arguments.push("-no-shutdown".into());
            arguments.extend(stub(socket));
        }
        if let Some((socket, wait)) = &self.gdb {
            arguments.extend(stub(socket));
            arguments.extend(wait.then(|| "-S".into()));
        }
        arguments
    }

    /// Returns the arguments for the content of memory when the board starts, and for the address at which it starts.
    fn boot(&self) -> Vec<OsString> {
        match &self.start {
            Start::Kernel => vec!["-kernel".into(), self.image.clone().into()],
            Start::Native { tree, initrd } => {
                // Otherwise QEMU would put seeds into the tree that are others each time.
                let mut arguments: Vec<OsString> = vec!["-seed".into(), "0".into()];
                for (option, file) in [
                    ("-kernel", Some(&self.image)),
                    ("-initrd", initrd.as_ref()),
                    ("-dtb", Some(tree)),
                ] {
                    if let Some(file) = file {
                        arguments.extend([option.into(), file.clone().into()]);
                    }
                }
                arguments
            }
            Start::Firmware { rom, image } => {
                let image = loader(&self.image, *image);
                let rom = rom.clone().into();
                vec!["-bios".into(), rom, "-device".into(), image]
            }
            Start::Before { program, image } => {
                let image = loader(&self.image, *image);
                let program = program.clone().into();
                vec!["-kernel".into(), program, "-device".into(), image]
            }
            Start::Loader { rom, source } => {
                let (option, value, device) = source.arguments();
                let mut arguments: Vec<OsString> = vec!["-bios".into(), rom.clone().into()];
                arguments.extend([option.into(), value.into()]);
                arguments.extend(["-device".into(), device.into()]);
                arguments
            }
            Start::At {
                entry,
                image,
                blobs,
            } => {
                let loaders = [loader(&self.image, *image)];
                let blobs = blobs.iter().map(|(path, at)| loader(path, *at));
                let entry = format!("loader,addr={entry:#x},cpu-num=0").into();
                let all = loaders.into_iter().chain(blobs).chain([entry]);
                all.flat_map(|loader| ["-device".into(), loader]).collect()
            }
        }
    }

    /// The command, without its standard streams.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.arguments());
        if let Some(library) = &self.preloaded {
            command.env("LD_PRELOAD", library);
        }
        command
    }
}

/// A path in the value of an option: a comma ends it in QEMU's syntax unless it is doubled.
fn plain(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// The device that loads a file to an address.
fn loader(path: &Path, at: u64) -> OsString {
    let mut value = OsString::from("loader,force-raw=on,file=");
    value.push(path);
    value.push(format!(",addr={at:#x}"));
    value
}

/// Returns the arguments that make the clock follow the instructions, of which each takes 2^`shift` nanoseconds.
fn instruction_clock(shift: u8) -> [OsString; 8] {
    [
        "-icount".into(),
        format!("shift={shift},sleep=off").into(),
        // Otherwise the board's real-time clock would carry the host's clock to the guests.
        "-rtc".into(),
        "clock=vm,base=2026-01-01T00:00:00".into(),
        // QEMU gives a CPU its turn until the next timer is due, but works that out before all
        // CPUs have had theirs. While the interrupt of a loop's timer is on its way, no timer of the
        // loop is armed, and a busy neighbour would get a turn of up to 25 ms, in which the loop
        // loses periods by no fault of its own. A timer of QEMU's own that is always armed keeps
        // turns short: the one of a packet filter on a network that nobody is on.
        "-netdev".into(),
        "hubport,id=metronome,hubid=0".into(),
        "-object".into(),
        format!("filter-buffer,id=tick,netdev=metronome,interval={METRONOME_US}").into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(qemu: &Qemu) -> String {
        let words: Vec<_> = qemu
            .arguments()
            .iter()
            .map(|a| a.to_string_lossy().into_owned())
            .collect();
        words.join(" ")
    }

    #[test]
    fn only_the_instruction_clock_asks_for_icount() {
        let mut qemu = Qemu::virt("a.img", "cortex-a53", 4, 2048);
        assert!(!line(&qemu).contains("icount"));
        assert!(!line(&qemu).contains("-serial null"));
        assert!(line(&qemu).contains("-cpu cortex-a53 -smp 4 -m 2048M "));
        qemu.uarts = 2;
        assert!(line(&qemu).contains("-serial chardev:console -serial null"));
        qemu.before = 1;
        assert!(line(&qemu).contains("-serial null -serial chardev:console -serial null"));
        qemu.tree = Some("board.dtb".into());
        qemu.options = ["-audio", "none"].map(str::to_owned).into();
        assert!(line(&qemu).contains(" -audio none "));
        assert!(line(&qemu).ends_with("-kernel a.img -dtb board.dtb"));
        (qemu.before, qemu.tree) = (0, None);
        qemu.clock = Clock::Instructions { shift: 3 };
        qemu.plugins.push("libp.so,mode=periods".into());
        assert!(line(&qemu).contains("-icount shift=3,sleep=off -rtc clock=vm"));
        assert!(line(&qemu).contains("-plugin libp.so,mode=periods"));
    }

    #[test]
    fn firmware_is_in_the_flash_and_the_image_where_it_expects_it() {
        let mut qemu = Qemu::virt("a.img", "cortex-a53", 1, 1024);
        qemu.start = Start::Firmware {
            rom: "fw.bin".into(),
            image: 0x4020_0000,
        };
        let words = line(&qemu);
        let end = "-bios fw.bin -device loader,force-raw=on,file=a.img,addr=0x40200000";
        assert!(
            words.ends_with(end) && !words.contains("-kernel"),
            "{words}"
        );
    }

    #[test]
    fn a_card_that_a_program_sets_up_is_the_console() {
        let mut qemu = Qemu::virt("a.img", "cortex-a53", 1, 1024);
        qemu.card = Some("pci-serial,addr=1".to_owned());
        qemu.start = Start::Before {
            program: "first.img".into(),
            image: 0x4020_0000,
        };
        let words = line(&qemu);
        let ports = " -serial null -device pci-serial,addr=1,chardev=console ";
        assert!(words.contains(ports), "{words}");
        let end = "-kernel first.img -device loader,force-raw=on,file=a.img,addr=0x40200000";
        assert!(words.ends_with(end), "{words}");
    }

    #[test]
    fn a_boot_loader_has_a_disk_or_a_network_and_no_kernel() {
        let mut qemu = Qemu::virt("a.img", "cortex-a53", 1, 1024);
        for (source, wanted) in [
            (
                Source::Disk("a,b".into()),
                "-drive file=fat:a,,b,format=raw,if=none,id=disk,read-only=on -device virtio-blk-device,drive=disk",
            ),
            (
                Source::Network("c".into()),
                "-netdev user,id=net,restrict=on,tftp=c -device virtio-net-device,netdev=net",
            ),
        ] {
            qemu.start = Start::Loader {
                rom: "u-boot.bin".into(),
                source,
            };
            let words = line(&qemu);
            assert!(
                words.ends_with(&format!("-bios u-boot.bin {wanted}")),
                "{words}"
            );
            assert!(!words.contains("a.img"), "{words}");
        }
    }

    #[test]
    fn an_image_can_be_started_without_a_boot_loader() {
        let mut qemu = Qemu::virt("a.img", "cortex-a53", 1, 1024);
        qemu.start = Start::At {
            entry: 0x4800_0000,
            image: 0x4020_0000,
            blobs: vec![("b.bin".into(), 0x4800_0000)],
        };
        let words = line(&qemu);
        assert!(!words.contains("-kernel"), "{words}");
        assert!(
            words.ends_with(
                "-device loader,force-raw=on,file=a.img,addr=0x40200000 \
             -device loader,force-raw=on,file=b.bin,addr=0x48000000 \
             -device loader,addr=0x48000000,cpu-num=0"
            ),
            "{words}"
        );
    }
}
