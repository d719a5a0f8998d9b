//! The project's figures: what EL2 costs, measured with the profiler and held against its budgets.

mod attribute;
mod budgets;
mod colours;
mod devices;
mod ending;
mod figure;
mod figures;
mod gppt;
mod images;
mod linux;
mod native;
mod picture;
mod polled;
mod published;
mod realtime;
mod realtime_io;
mod subject;
mod table;
mod variant;

pub use budgets::{Budgets, Gic};
pub use devices::{Counts, DeviceRuns};
pub(crate) use ending::run_to_end;
pub use figure::Figure;
pub use figures::{Runs, figures};
pub use gppt::GpptRuns;
pub use linux::LinuxBoot;
pub(crate) use native::board;
pub use picture::svg;
pub use published::{FILE as PUBLISHED, Published};
pub use realtime::{Extent, Realtime};
pub use realtime_io::RealtimeIo;
pub use subject::{Make, Shape, Subject, demo_plan};
pub use table::table;
pub(crate) use variant::variant;

use std::thread;

use bulkhead_model::failure::Failure;
use bulkhead_runner::build;
use bulkhead_runner::profile::{Profile, Program};

/// Everything that one measurement gave.
pub struct Measurement {
    /// Figures with their budgets, in the order of the budgets.
    pub figures: Vec<Figure>,
    /// Counts of the profiler over the run with the marked operations.
    pub profile: Profile,
    /// EL2 as it was measured.
    pub el2: Program,
    /// Interrupts that a VM takes itself on a GICv2, as they were counted.
    pub gppt_gicv2: GpptRuns,
    /// Of virtio devices, as they were counted.
    pub devices: DeviceRuns,
}

impl Measurement {
    /// Whether every figure is at or under its ceiling.
    pub fn holds(&self) -> bool {
        self.figures.iter().all(Figure::holds)
    }
}

/// Text that attributes the figure `name` to functions and lines, those with most first; the longest exit in the order of its path.
///
/// # Errors
///
/// There is no such figure in what was measured, or EL2's ELF file can't be read.
pub fn attribute(measurement: &Measurement, name: &str) -> Result<String, Failure> {
    let budgets = Budgets::load()?;
    let budget = budgets.get(name);
    match budget.and_then(|budget| Some((budget, budget.share?))) {
        Some((budget, share)) => measurement.devices.attribute(budget, share),
        None => attribute::attribute(&measurement.profile, &measurement.el2, name),
    }
}

/// The same of figures of operations, or of figures of devices, for which nothing else has to run; `None` if the names are of both, or one of
/// another figure.
///
/// # Errors
///
/// As [`measure`] and [`attribute`].
pub fn attribute_alone(names: &[String]) -> Result<Option<String>, Failure> {
    match attribute_devices(names)? {
        None => attribute_operations(names),
        text => Ok(text),
    }
}

fn attribute_operations(names: &[String]) -> Result<Option<String>, Failure> {
    let budgets = Budgets::load()?;
    let known = names.iter().map(|name| {
        let budget = budgets.get(name)?;
        let measured = match (&budget.measured, budget.gic) {
            (Some(measured), _) => measured.as_str(),
            (None, Gic::V2) => name.strip_suffix("_v2")?,
            (None, Gic::V3) => name.as_str(),
        };
        (budget.share.is_none() && attribute::is_operation(measured)).then_some((budget, measured))
    });
    let Some(known) = known.collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let mut text = String::new();
    for gic in [Gic::V3, Gic::V2] {
        let of_gic = known.iter().filter(|(budget, _)| budget.gic == gic);
        let mut of_gic = of_gic.peekable();
        if of_gic.peek().is_some() {
            let (run, el2) = run_operations(&budgets, gic, &|system| build::build(system))?;
            for (budget, measured) in of_gic {
                text.push_str(&table(
                    &[figures::operation(budget, measured, &run)?],
                    false,
                ));
                text.push_str(&attribute::attribute(&run.profile, &el2, measured)?);
            }
        }
    }
    Ok(Some(text))
}

/// The same of figures of devices.
///
/// # Errors
///
/// As [`measure`] and [`attribute`].
fn attribute_devices(names: &[String]) -> Result<Option<String>, Failure> {
    let budgets = Budgets::load()?;
    let known = names.iter().map(|name| {
        let budget = budgets.get(name)?;
        Some((budget, budget.share?))
    });
    let Some(known) = known.collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let runs = DeviceRuns::measure_those(|gic, load| {
        known
            .iter()
            .any(|(budget, _)| (budget.gic, budget.load) == (gic, load))
    })?;
    let mut text = String::new();
    for (budget, share) in known {
        text.push_str(&table(&[runs.figure(budget, share)?], false));
        text.push_str(&runs.attribute(budget, share)?);
    }
    Ok(Some(text))
}

/// The figures of operations and of switches on a GIC, with systems that `make` builds: those that show first what a change of EL2 costs.
///
/// # Errors
///
/// As [`measure`].
pub fn operations(gic: Gic, make: Make<'_>) -> Result<Vec<Figure>, Failure> {
    let budgets = Budgets::load()?;
    let (run, _) = run_operations(&budgets, gic, make)?;
    figures::operations(&budgets, gic, &run)
}

fn run_operations(
    budgets: &Budgets,
    gic: Gic,
    make: Make<'_>,
) -> Result<(subject::Run, Program), Failure> {
    let subject = Subject::build(gic, make)?;
    let el2 = Program::read(&subject.el2)?;
    budgets.check_names(gic, &el2.el2()?)?;
    let mut run = subject.run(&el2)?;
    for turns in Subject::build_turns(gic, make)? {
        let turns = turns.run(&el2)?;
        run.profile.figures.extend(turns.profile.figures);
        run.latencies.extend(turns.latencies);
    }
    Ok((run, el2))
}

/// Builds the bench system, runs it under the profiler and returns all figures. `others` are profiles of further runs,
/// among whose exits the longest is looked for too. The figures of a real-time Linux, which take longest, are measured as far as `realtime`
/// says.
///
/// # Errors
///
/// Something can't be built or run, the guest does not get to its end, an operation has no marks, or EL2 has no function
/// of a name by which a figure counts.
pub fn measure(others: &[Profile], realtime: Extent) -> Result<Measurement, Failure> {
    let budgets = Budgets::load()?;
    let measured = |gic| {
        let (mut run, el2) = run_operations(&budgets, gic, &|system| build::build(system))?;
        let folder = tempfile::tempdir().map_err(|error| realtime::cannot(&error))?;
        for turns in Subject::build_full(gic, folder.path())? {
            run.take_worse(turns.run(&el2)?);
        }
        for shape in Shape::ALL {
            let shape = Subject::build_shape(gic, shape, folder.path())?;
            run.take_worse(shape.run(&Program::read(&shape.el2)?)?);
        }
        Ok::<_, Failure>((run, el2))
    };
    // Each QEMU takes one of the host's CPUs, and counts the same whatever another one does. Those with a Linux take as long as
    // all others together.
    let (ours, linux) = thread::scope(|scope| {
        let linux = scope.spawn(|| {
            let realtime = Realtime::measure(realtime)?;
            let boots = [LinuxBoot::measure(Gic::V3)?, LinuxBoot::measure(Gic::V2)?];
            let gppt = [GpptRuns::measure(Gic::V3)?, GpptRuns::measure(Gic::V2)?];
            Ok::<_, Failure>((realtime, boots, gppt))
        });
        let ours = (|| {
            let (gicv2, _) = measured(Gic::V2)?;
            let (gicv3, el2) = measured(Gic::V3)?;
            let devices = DeviceRuns::measure()?;
            let polled = polled::measure()?;
            let colours = colours::measure()?;
            Ok::<_, Failure>((gicv2, gicv3, el2, devices, polled, colours))
        })();
        (ours, linux.join())
    });
    let (gicv2, gicv3, el2, devices, polled, colours) = ours?;
    let gone = |_| Failure::failed("a measurement has ended without a result", "", "");
    let (realtime, [linux, linux_gicv2], [gppt, gppt_gicv2]) = linux.map_err(gone)??;
    let runs = Runs {
        images: images::Images::measure()?,
        realtime,
        gicv2,
        gicv3,
        linux,
        linux_gicv2,
        gppt,
        gppt_gicv2,
        devices,
        polled,
        colours,
    };
    let figures = figures(&budgets, &runs, &demo_plan()?, others)?;
    Ok(Measurement {
        figures,
        profile: runs.gicv3.profile,
        el2,
        gppt_gicv2: runs.gppt_gicv2,
        devices: runs.devices,
    })
}
