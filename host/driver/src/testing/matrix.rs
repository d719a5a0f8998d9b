//! The matrix: the same tests on every interrupt controller, CPU model and number of vCPUs. Systems and
//! scenarios are made from the tables here; docs/testing.md lists the cells.

use std::fs;
use std::path::{Path, PathBuf};

use super::scenario::Scenario;
use super::suite::{Context, Job, Test};
use super::systems::boot;

/// Interrupt controllers of the board.
const GICS: [u8; 2] = [2, 3];
/// vCPUs of a Linux VM.
const VCPUS: [u8; 3] = [1, 2, 4];
/// CPU models on which Linux boots with every controller and number of vCPUs.
const LINUX_CPUS: [&str; 3] = ["cortex-a53", "cortex-a72", "max"];
/// CPU models on which the guest programs run.
const CPUS: [&str; 6] = [
    "cortex-a53",
    "cortex-a57",
    "cortex-a72",
    "cortex-a76",
    "neoverse-n1",
    "max",
];
/// Kernels of Debian besides the first, on one controller and CPU model.
const KERNELS: [&str; 4] = ["kernel", "kernel-rt", "kernel-6.12", "kernel-6.12-rt"];
/// Guest programs and their vCPUs: what depends on the controller or the CPU model.
const PROGRAMS: [(&str, u8); 7] = [
    ("gic", 1),
    ("gic-deep", 1),
    ("gic-sgi", 4),
    ("gic-spi", 4),
    ("smp", 4),
    ("chaos", 4),
    ("sysregs", 1),
];

/// A system of one VM, on a board.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cell {
    /// Kernel or guest program.
    what: &'static str,
    gic: u8,
    cpu: &'static str,
    vcpus: u8,
    /// In every run of the tests; the others on request.
    usual: bool,
}

impl Cell {
    fn is_linux(&self) -> bool {
        KERNELS.contains(&self.what)
    }

    fn name(&self) -> String {
        let kind = if self.is_linux() { "linux" } else { "guest" };
        let Self {
            what,
            gic,
            cpu,
            vcpus,
            ..
        } = self;
        format!("matrix/{kind}/{what}/v{gic}/{cpu}/{vcpus}")
    }

    /// The file name of the system: the same for all CPU models, so that it is built once.
    fn file(&self) -> String {
        format!("{}-v{}-{}.toml", self.what, self.gic, self.vcpus)
    }

    fn description(&self) -> String {
        let Self {
            what, gic, vcpus, ..
        } = self;
        let vm = if self.is_linux() {
            format!(
                "[vm.linux]\nmemory = \"768MiB\"\nkernel = \"debian:{what}\"\n\
                 initrd = \"debian:initramfs\"\ncmdline = \"console=ttyAMA0\"\n"
            )
        } else {
            format!("[vm.{what}]\nmemory = \"4MiB\"\nimage = \"guest:{what}\"\n")
        };
        format!(
            "[board]\nname = \"qemu-virt\"\ngic = {gic}\ncpus = {vcpus}\n\n{vm}vcpus = {vcpus}\n"
        )
    }

    fn claim(&self) -> String {
        let Self {
            what,
            gic,
            cpu,
            vcpus,
            ..
        } = self;
        if self.is_linux() {
            format!(
                "Debian's {what}, unmodified, boots to a shell on {vcpus} {cpu} with a GICv{gic}, turns its \
                 CPUs off and on, and powers off."
            )
        } else {
            format!("The guest program {what} passes on {vcpus} {cpu} with a GICv{gic}.")
        }
    }

    fn scenario(&self, system: &Path) -> Result<Scenario, String> {
        let Self { what, vcpus, .. } = self;
        let head = format!(
            "claim = \"{}\"\nsystem = \"{}\"\nguard = 600\n",
            self.claim(),
            system.display()
        );
        let body = if self.is_linux() {
            format!(
                "stops = {{ linux = \"power off\" }}\n\
                 never = [{{ from = \"linux\", line = \"Kernel panic\" }},\n\
                 {{ from = \"linux\", line = \"Call trace\" }},\n\
                 {{ from = \"linux\", line = \"self-detected stall\" }},\n\
                 {{ from = \"linux\", line = \"hotplug: FAIL\" }}]\n\
                 [[step]]\nfrom = \"linux\"\nline = \"/ # \"\nkeys = \"hotplug 3; exit\\n\"\n\
                 [[step]]\nfrom = \"linux\"\nline = \"hotplug: PASS cpus={vcpus} \"\n"
            )
        } else {
            format!("done = [\"{what}\"]\nstops = {{ {what} = \"power off\" }}\n")
        };
        Scenario::made(&(head + &body))
    }

    fn test(self) -> Test {
        let (name, claim, usual) = (self.name(), self.claim(), self.usual);
        let folder = name.replace('/', "-");
        let job: Job = Box::new(move |context| run(context, &folder, &self));
        let test = Test::parallel(name, claim, job);
        if usual { test } else { test.on_request() }
    }
}

/// All cells, in the order in which they are listed.
fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for gic in GICS {
        for cpu in LINUX_CPUS {
            for vcpus in VCPUS {
                // Each controller, and each number of vCPUs.
                let usual = matches!(
                    (gic, cpu, vcpus),
                    (2, "cortex-a53", 4) | (3, "cortex-a53", 2) | (3, "max", 1)
                );
                let what = "kernel";
                cells.push(Cell {
                    what,
                    gic,
                    cpu,
                    vcpus,
                    usual,
                });
            }
        }
    }
    for what in &KERNELS[1..] {
        for vcpus in VCPUS {
            cells.push(Cell {
                what,
                gic: 3,
                cpu: "cortex-a53",
                vcpus,
                usual: vcpus == 1,
            });
        }
    }
    for (what, vcpus) in PROGRAMS {
        for gic in GICS {
            for cpu in CPUS {
                cells.push(Cell {
                    what,
                    gic,
                    cpu,
                    vcpus,
                    usual: cpu == CPUS[0],
                });
            }
        }
    }
    cells
}

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    cells().into_iter().map(Cell::test).collect()
}

fn run(context: &Context, folder: &str, cell: &Cell) -> Result<String, Vec<String>> {
    let system = describe(&context.logs.join("matrix"), cell)
        .map_err(|error| vec![format!("cannot write the description: {error}")])?;
    let scenario = cell.scenario(&system).map_err(|error| vec![error])?;
    boot(context, folder, &scenario, cell.cpu)
}

/// Writes the description of a cell; gives its path.
fn describe(folder: &Path, cell: &Cell) -> std::io::Result<PathBuf> {
    let path = folder.join(cell.file());
    fs::create_dir_all(folder)?;
    // Several cells share it, some at the same time: it is whole at any time.
    let partial = tempfile::NamedTempFile::new_in(folder)?;
    fs::write(partial.path(), cell.description())?;
    partial.persist(&path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_cells_cover_each_controller_and_number() {
        let cells = cells();
        let linux = |cell: &&Cell| cell.what == "kernel";
        assert_eq!(cells.iter().filter(linux).count(), 18);
        let usual: Vec<_> = cells.iter().filter(linux).filter(|c| c.usual).collect();
        for gic in GICS {
            assert!(usual.iter().any(|cell| cell.gic == gic));
        }
        for vcpus in VCPUS {
            assert!(usual.iter().any(|cell| cell.vcpus == vcpus));
        }
    }

    #[test]
    fn every_cell_is_a_scenario() {
        for cell in cells() {
            let scenario = cell.scenario(Path::new("s.toml"));
            assert!(scenario.is_ok(), "{}: {scenario:?}", cell.name());
        }
    }

    #[test]
    fn the_docs_list_every_cell() {
        let page = include_str!("../../../../docs/testing.md");
        for cell in cells().iter().filter(|cell| cell.is_linux()) {
            let row = format!(
                "| `{}` | GICv{} | {} | {} | {} |",
                cell.what,
                cell.gic,
                cell.cpu,
                cell.vcpus,
                if cell.usual { "always" } else { "on request" }
            );
            assert!(page.contains(&row), "docs/testing.md lacks: {row}");
        }
        for (program, vcpus) in PROGRAMS {
            let row = format!("| `{program}` | {vcpus} |");
            assert!(page.contains(&row), "docs/testing.md lacks: {row}");
        }
    }
}
