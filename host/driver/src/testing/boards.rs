//! Device trees of boards: QEMU's own, and those of boards that nobody here has.

use std::path::Path;

use bulkhead_model::board::{Emulated, Firmware};
use bulkhead_model::survey::Survey;
use bulkhead_runner::{emulated, fetch};

use super::suite::{Job, Test};

/// Trees of Debian's kernel, each with lines that its survey has to have, and the parts for which it has to say that
/// EL2 lacks something.
const DEBIAN: [(&str, &[&str], &[&str]); 3] = [
    (
        "xilinx/zynqmp-zcu102-rev1.1",
        &[
            "CPU 3  MPIDR 0x0003  arm,cortex-a53, started by psci",
            "0x800000000     2 GiB",
            "/axi/interrupt-controller@f9010000  GICv2 (arm,gic-400)",
            "0x0f9060000   128 KiB  GICV",
            "INTIDs secure 29, physical 30, virtual 27, hypervisor 26",
            "/axi/serial@ff000000  Cadence UART at 0xff000000, INTID 53, the console",
            "/axi/iommu@fd800000  arm,mmu-500, 28 devices behind it",
            "/axi/ethernet@ff0e0000: it is not known to be free of DMA",
        ],
        &[],
    ),
    (
        "broadcom/bcm2711-rpi-4-b",
        &[
            "CPU 0  MPIDR 0x0000  arm,cortex-a72, started by spin-table",
            "L1 instruction 48 KiB, 3 ways, 256 sets, 64 bytes a line, in each of CPUs 0-3",
            "L2 unified     1 MiB, 16 ways, 1024 sets, 64 bytes a line, shared by CPUs 0-3",
            "no size: the firmware fills it in",
            "0x0ff842000     8 KiB  CPU interface",
            "/soc/serial@7e201000  PL011 at 0xfe201000, INTID 153",
            "BCM2835 mini UART at 0xfe215040, INTID 125, the console",
        ],
        &["memory"],
    ),
    (
        "freescale/imx8mp-evk",
        &[
            "L2 unified     512 KiB, 16 ways, 512 sets, 64 bytes a line, shared by CPUs 0-3",
            "0x040000000     3 GiB",
            "/soc@0/interrupt-controller@38800000  GICv3 (arm,gic-v3)",
            "0x038880000   768 KiB  redistributors",
            "i.MX UART at 0x30890000, INTID 59, the console",
        ],
        &[],
    ),
];

/// Lines of the survey of every `virt`.
const VIRT: [&str; 4] = [
    "CPU 1  MPIDR 0x0001  arm,cortex-a53, started by psci",
    "/pl011@9000000  PL011 at 0x9000000, INTID 33, the console",
    "/pl031@9010000  arm,pl031 at 0x9010000, INTID 34",
    "Bulkhead can run on this board",
];

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let virt: Job = Box::new(|_| {
        let mut found = Found::default();
        for (gic, more, line) in [
            (2, "", "GICv2 (arm,cortex-a15-gic)"),
            (3, "", "GICv3 (arm,gic-v3)"),
            (
                3,
                ",iommu=smmuv3",
                "/smmuv3@9050000  arm,smmu-v3, 1 device behind it",
            ),
        ] {
            let tree =
                emulated::device_tree(&virt(gic, more)).map_err(|why| vec![why.to_string()])?;
            let lines: Vec<&str> = VIRT.into_iter().chain([line]).collect();
            found.judge(&format!("virt, GICv{gic}{more}"), tree, &lines, &[]);
        }
        found.end()
    });
    let debian: Job = Box::new(|_| {
        let mut found = Found::default();
        for (name, lines, lacking) in DEBIAN {
            let tree = fetch::device_tree(name).map_err(|why| vec![why.to_string()])?;
            let tree = std::fs::read(tree).map_err(|why| vec![why.to_string()])?;
            found.judge(name, tree, lines, lacking);
        }
        found.end()
    });
    let every: Job = Box::new(|_| {
        let folder = fetch::device_trees().map_err(|why| vec![why.to_string()])?;
        all_of(&folder)
    });
    let page: Job = Box::new(|context| {
        let folder = fetch::device_trees().map_err(|why| vec![why.to_string()])?;
        super::debian::page(&context.root, &context.logs, &folder)
    });
    vec![
        Test::parallel(
            "boards/debian-page",
            "For each arm64 device tree of Debian's kernel two VMs are planned, or what stops that is what the page about them says.",
            page,
        )
        .on_request("it unpacks and plans for all of Debian's device trees"),
        Test::parallel(
            "boards/virt",
            "What `board` lists of QEMU's virt is what it has, with either GIC and with an SMMU.",
            virt,
        ),
        Test::parallel(
            "boards/debian",
            "What `board` lists of a ZCU102, a Raspberry Pi 4 and an i.MX 8M Plus is what their trees say, and what EL2 lacks for each is said.",
            debian,
        ),
        Test::parallel(
            "boards/every",
            "Each arm64 device tree of Debian's kernel is read, and has obstacles exactly where the planner refuses it.",
            every,
        )
        .on_request("it unpacks and reads all of Debian's device trees"),
    ]
}

/// QEMU's `virt` with a GIC, and more options for `-machine`.
fn virt(gic: u32, more: &str) -> Emulated {
    Emulated {
        machine: format!("virt,gic-version={gic},virtualization=on{more}"),
        cpu: "cortex-a53".to_owned(),
        tree: None,
        console: None,
        options: Vec::new(),
        before: 0,
        cpus: 2,
        memory_mib: 2048,
        uarts: 1,
        firmware: Firmware::None,
        gic,
        image_offset: 2 << 20,
        spis: 256,
        card: None,
    }
}

/// Number of lines that were looked at, and the findings.
#[derive(Default)]
struct Found {
    lines: usize,
    wrong: Vec<String>,
}

impl Found {
    fn judge(&mut self, name: &str, tree: Vec<u8>, lines: &[&str], lacking: &[&str]) {
        let survey = match Survey::read(tree) {
            Ok(survey) => survey,
            Err(why) => return self.wrong.push(format!("{name}: it is {why}")),
        };
        let text = survey.text(true);
        for line in lines {
            self.lines += 1;
            if !text.contains(line) {
                self.wrong.push(format!("{name}: no line has `{line}`"));
            }
        }
        let parts: Vec<_> = survey.obstacles.iter().map(|one| one.part).collect();
        if parts != lacking {
            self.wrong
                .push(format!("{name}: lacking {parts:?}, not {lacking:?}"));
        }
    }

    fn end(self) -> Result<String, Vec<String>> {
        match self.wrong.is_empty() {
            true => Ok(format!("{} lines", self.lines)),
            false => Err(self.wrong),
        }
    }
}

/// Reads every tree in a folder of folders.
fn all_of(folder: &Path) -> Result<String, Vec<String>> {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries(folder).flat_map(|vendor| entries(&vendor.path()).collect::<Vec<_>>());
    let (mut count, mut fit, mut wrong) = (0, 0, Vec::new());
    for file in files.filter(|file| file.path().extension().is_some_and(|it| it == "dtb")) {
        count += 1;
        let name = file.path().display().to_string();
        let bytes = std::fs::read(file.path()).map_err(|why| vec![format!("{name}: {why}")])?;
        let open = match bulkhead_model::board::open(bytes) {
            Ok(open) => open,
            Err(why) => {
                wrong.push(format!("{name}: it is {why}"));
                continue;
            }
        };
        let planned = bulkhead_model::board::facts(&open);
        match (Survey::read(open), planned) {
            (Err(why), _) => wrong.push(format!("{name}: it is {why}")),
            (Ok(survey), Ok(_)) if !survey.obstacles.is_empty() => {
                wrong.push(format!("{name}: {:?}", survey.obstacles));
            }
            (Ok(survey), Err(why)) if survey.obstacles.is_empty() => {
                wrong.push(format!("{name}: no obstacle, but {why}"));
            }
            (Ok(_), planned) => fit += usize::from(planned.is_ok()),
        }
    }
    match (wrong.is_empty(), count) {
        (true, 300..) => Ok(format!("{count} trees; Bulkhead could run on {fit}")),
        (true, _) => Err(vec![format!("only {count} trees")]),
        (false, _) => Err(wrong),
    }
}
