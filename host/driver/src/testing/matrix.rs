//! The matrix: the same tests on every interrupt controller, CPU model and number of vCPUs. Systems and
//! scenarios are made from the tables here; docs/internals/testing.md lists the cells.

use super::cpus::MODELS;
use super::description::{self, GICS};
use super::scenario::Scenario;
use super::suite::{Context, Job, Test};
use super::systems::boot;

/// vCPUs of a Linux VM.
const VCPUS: [u8; 3] = [1, 2, 4];
/// CPU models on which Linux boots with every controller and number of vCPUs.
const LINUX_CPUS: [&str; 3] = ["cortex-a53", "cortex-a72", "max"];
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
    /// Whether it is in every run of the tests; the others are on request.
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

    /// The name of the system: the same for all CPU models, so that it is built once.
    fn system(&self) -> String {
        format!("{}-v{}-{}", self.what, self.gic, self.vcpus)
    }

    fn description(&self) -> String {
        let Self {
            what, gic, vcpus, ..
        } = self;
        let vm = if self.is_linux() {
            format!(
                "[vm.linux]\nmemory = \"256MiB\"\nkernel = \"debian:{what}\"\n\
                 initrd = \"debian:initramfs\"\ncmdline = \"console=ttyAMA0 cryptomgr.notests\"\n"
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

    fn scenario(&self) -> Result<Scenario, String> {
        let Self { what, vcpus, .. } = self;
        let head = format!(
            "claim = \"{}\"\nsystem = \"{}\"\nguard = 600\n",
            self.claim(),
            self.system()
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
        if usual {
            test
        } else {
            test.on_request("other cells have its GIC, its CPU and its number of vCPUs each time")
        }
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
            for cpu in MODELS {
                cells.push(Cell {
                    what,
                    gic,
                    cpu,
                    vcpus,
                    usual: cpu == MODELS[0],
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
    let why = |error| vec![error];
    let system = description::write(context, &cell.system(), &cell.description()).map_err(why)?;
    let scenario = cell.scenario().map_err(why)?;
    boot(context, folder, &system, &scenario, cell.cpu)
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
            let scenario = cell.scenario();
            assert!(scenario.is_ok(), "{}: {scenario:?}", cell.name());
        }
    }

    #[test]
    fn the_docs_list_every_cell() {
        let page = include_str!("../../../../docs/internals/testing.md");
        for cell in cells().iter().filter(|cell| cell.is_linux()) {
            let row = format!(
                "| `{}` | GICv{} | {} | {} | {} |",
                cell.what,
                cell.gic,
                cell.cpu,
                cell.vcpus,
                if cell.usual { "always" } else { "on request" }
            );
            assert!(
                page.contains(&row),
                "docs/internals/testing.md lacks: {row}"
            );
        }
        for (program, vcpus) in PROGRAMS {
            let row = format!("| `{program}` | {vcpus} |");
            assert!(
                page.contains(&row),
                "docs/internals/testing.md lacks: {row}"
            );
        }
    }
}
