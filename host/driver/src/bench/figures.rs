//! All figures of a measurement: which run gives which.

use bulkhead_abi::plan::{Header, PAGE};
use bulkhead_profiler::{Cost, Longest, Profile};
use zerocopy::FromBytes;

use bulkhead_model::failure::Failure;

use super::budgets::{Budget, Budgets, Gic};
use super::colours::Starts;
use super::devices::DeviceRuns;
use super::figure::{Figure, Part};
use super::gppt::GpptRuns;
use super::images::Images;
use super::linux::LinuxBoot;
use super::polled::{self, PolledRun};
use super::realtime::Realtime;
use super::subject::Run;
use super::subject::operations::FIGURES;

/// The runs: on boards with each version of the GIC, and those of Linux.
#[derive(Default)]
pub struct Runs {
    /// GICv2.
    pub gicv2: Run,
    /// GICv3.
    pub gicv3: Run,
    /// Of Linux, on a GICv3.
    pub linux: LinuxBoot,
    /// The same on a GICv2.
    pub linux_gicv2: LinuxBoot,
    /// Of interrupts that a VM takes itself, on a GICv3.
    pub gppt: GpptRuns,
    /// Of a real-time Linux, if it was measured.
    pub realtime: Option<Realtime>,
    /// The same on a GICv2.
    pub gppt_gicv2: GpptRuns,
    /// Of virtio devices.
    pub devices: DeviceRuns,
    /// Of a control loop with polled devices, in each mode.
    pub polled: Vec<PolledRun>,
    /// Of the start of a large VM, with colours and without.
    pub colours: Starts,
    /// Sizes of EL2's programs.
    pub images: Images,
}

/// All figures that the profiles and programs give, in the order of the budgets.
///
/// # Errors
///
/// An operation has no marks, no guest was entered, or a plan can't be read.
pub fn figures(
    budgets: &Budgets,
    runs: &Runs,
    demo: &[u8],
    others: &[Profile],
) -> Result<Vec<Figure>, Failure> {
    let profile = &runs.gicv3.profile;
    let mut figures = Vec::new();
    for budget in &budgets.figures {
        if let Some(share) = budget.share {
            figures.push(runs.devices.figure(budget, share)?);
            continue;
        }
        if let Some(figure) = runs.images.figure(budget) {
            figures.push(figure);
            continue;
        }
        figures.push(match budget.name.as_str() {
            "boot_to_guest" => boot(budget, profile)?,
            "linux_boot" => linux(budget, &runs.linux)?,
            "linux_boot_ratio" => linux_ratio(budget, &runs.linux)?,
            "linux_boot_ratio_v2" => linux_ratio(budget, &runs.linux_gicv2)?,
            "rt_share" | "rt_exit_mean" | "rt_exit_longest" | "rt_latency_ratio" => {
                match &runs.realtime {
                    Some(realtime) => realtime.figure(budget)?,
                    None => continue,
                }
            }
            "rt_latency_ratio_v2" => match &runs.realtime {
                Some(realtime) if !realtime.latest_gicv2.is_empty() => realtime.figure(budget)?,
                _ => continue,
            },
            "gppt_irq" => runs.gppt.figure(budget)?,
            "gppt_irq_v2" => runs.gppt_gicv2.figure(budget)?,
            "gppt_typer" | "gppt_enable" | "gppt_sgi" => runs.gppt.access(budget, &budget.name)?,
            name if name.starts_with("gppt_") && budget.gic == Gic::V2 => {
                let measured = budget.measured.as_deref().unwrap_or(name);
                runs.gppt_gicv2.access(budget, measured)?
            }
            "polled_exits" => polled::figure(&runs.polled, budget)?,
            name if name.starts_with("boot_colours") => runs.colours.figure(budget)?,
            "boot_own" | "boot_total" => boot(budget, profile)?,
            "boot_own_v2" | "boot_total_v2" => boot(budget, &runs.gicv2.profile)?,
            "kick" => {
                let mut figure = runs.gppt.kick(budget, &["recoverable", "pmr-trapped"])?;
                "by the mode of the VM".clone_into(&mut figure.note);
                figure.parts = runs.gppt.kicks().chain(runs.gppt_gicv2.kicks()).collect();
                figure
            }
            "kick_direct" => runs.gppt.kick(
                budget,
                &["pmr-direct", "revocable", "revocable-pmr-trapped"],
            )?,
            "kick_v2" => runs
                .gppt_gicv2
                .kick(budget, &["gicv2", "gicv2 with firmware"])?,
            "longest_exit" => {
                let all = others
                    .iter()
                    .chain([profile, &runs.gicv2.profile, &runs.linux.profile])
                    .filter_map(|profile| profile.longest.as_ref());
                match all.max_by_key(|longest| longest.cost.instructions) {
                    Some(longest) => longest_exit(budget, longest),
                    None => return Err(Failure::failed("no exit was seen in any run", "", "")),
                }
            }
            "ram_bytes" => Figure::new(budget, ram(demo)? as f64),
            name => {
                let run = match budget.gic {
                    Gic::V2 => &runs.gicv2,
                    Gic::V3 => &runs.gicv3,
                };
                operation(budget, budget.measured.as_deref().unwrap_or(name), run)?
            }
        });
    }
    Ok(figures)
}

/// The figures of operations that a run on this GIC has given.
///
/// # Errors
///
/// An operation has no marks.
pub fn operations(budgets: &Budgets, gic: Gic, run: &Run) -> Result<Vec<Figure>, Failure> {
    let budgets = budgets.figures.iter();
    let named = budgets.filter(|budget| budget.gic == gic && budget.share.is_none());
    let named = named.map(|budget| (budget, budget.measured.as_deref().unwrap_or(&budget.name)));
    let operations = named.filter(|(_, name)| FIGURES.iter().any(|figure| figure.name == *name));
    operations
        .map(|(budget, name)| operation(budget, name, run))
        .collect()
}

/// A figure of operations, of those with `name`, or of the way to the first guest.
pub(super) fn operation(budget: &Budget, name: &str, run: &Run) -> Result<Figure, Failure> {
    if name.starts_with("boot_") {
        return boot(budget, &run.profile);
    }
    let known = FIGURES.iter().find(|figure| figure.name == name);
    let counted = known.and_then(|figure| Some((figure, run.profile.figures.get(&figure.id)?)));
    let missing = || {
        let advice = "lab/budgets.toml and guests/src/figures.rs have to name the same figures";
        Failure::failed(format!("`{name}` was not measured"), "", advice)
    };
    if budget.latency {
        let ticks = run.latencies.get(name).ok_or_else(missing)?;
        let mut figure = Figure::new(budget, *ticks as f64);
        if let Some((known, counted)) = counted {
            figure = figure.beside(counted.cost, known.operations);
        }
        return Ok(figure);
    }
    let (known, counted) = counted.ok_or_else(missing)?;
    let events = known.operations * known.events;
    if !budget.only.is_empty() {
        let is_counted = |name: &str| budget.only.iter().any(|part| name.contains(part.as_str()));
        let some = counted.symbols.iter().filter(|(name, _)| is_counted(name));
        let sum: u64 = some.map(|(_, count)| count).sum();
        return Ok(Figure::new(budget, sum as f64 / f64::from(events)));
    }
    let value = counted.cost.instructions as f64 / f64::from(events);
    let mut figure = Figure::new(budget, value).beside(counted.cost, events);
    figure.exits = Some(counted.exits as f64 / f64::from(events));
    Ok(figure)
}

fn boot(budget: &Budget, profile: &Profile) -> Result<Figure, Failure> {
    let boot = profile.boot.as_ref().filter(|boot| boot.reached_guest);
    let Some(boot) = boot else {
        return Err(Failure::failed("EL2 entered no guest", "", ""));
    };
    let apart = |name: &str| budget.apart.iter().any(|part| name.contains(part.as_str()));
    let mut counted = Cost::default();
    let mut parts = Vec::new();
    for (name, cost) in &boot.symbols {
        if apart(name) {
            let (name, value) = (name.clone(), cost.instructions);
            parts.push(Part { name, value });
        } else {
            counted.add(*cost);
        }
    }
    let value = counted.instructions as f64;
    let mut figure = Figure::new(budget, value).beside(counted, 1);
    figure.parts = parts;
    figure
        .parts
        .sort_by_key(|part| std::cmp::Reverse(part.value));
    figure.note = "counted apart".to_owned();
    Ok(figure)
}

/// On the scale of the budget, with the exits that EL2 took for it.
fn linux(budget: &Budget, boot: &LinuxBoot) -> Result<Figure, Failure> {
    let (Some(scale), true) = (budget.native, boot.native != 0) else {
        let advice = "lab/budgets.toml has to say what it takes natively (`native`)";
        let what = "the boot of Linux was not measured beside a native one";
        return Err(Failure::failed(what, "", advice));
    };
    let mut figure = Figure::new(budget, boot.scaled(scale));
    let part = |(kind, exits): (&String, &bulkhead_profiler::Exits)| Part {
        name: format!("instructions in {} exits: {kind}", exits.count),
        value: exits.total,
    };
    figure.parts = boot.profile.exits.iter().map(part).collect();
    figure
        .parts
        .sort_by_key(|part| std::cmp::Reverse(part.value));
    let milliseconds = |time: u64| time as f64 / 1e6;
    figure.note = format!(
        "{:.3} ms beside {:.3} ms natively, and so {:.1} where native takes {scale}; EL2 until the end:",
        milliseconds(boot.guest),
        milliseconds(boot.native),
        figure.value
    );
    Ok(figure)
}

/// In percent of a native boot in the same run, with both as they were.
fn linux_ratio(budget: &Budget, boot: &LinuxBoot) -> Result<Figure, Failure> {
    let what = "the boot of Linux was not measured beside a native one";
    let ratio = boot.ratio();
    let ratio = ratio.ok_or_else(|| Failure::failed(what, "", ""))?;
    let mut figure = Figure::new(budget, ratio);
    "nanoseconds from the kernel's first instruction to its init".clone_into(&mut figure.note);
    let parts = [("as a VM", boot.guest), ("on the bare board", boot.native)];
    figure.parts = parts
        .map(|(name, value)| Part {
            name: name.to_owned(),
            value,
        })
        .into();
    Ok(figure)
}

fn longest_exit(budget: &Budget, longest: &Longest) -> Figure {
    let mut figure = Figure::new(budget, longest.cost.instructions as f64).beside(longest.cost, 1);
    let part = |visit: &bulkhead_profiler::Visit| Part {
        name: visit.symbol.clone(),
        value: visit.instructions,
    };
    figure.parts = longest.path.iter().map(part).collect();
    figure.note = format!(
        "{} at guest pc {:#x}, ESR {:#x}",
        longest.kind, longest.guest_pc, longest.esr
    );
    figure
}

/// RAM that EL2 keeps: its binary, the plan and the page pool.
fn ram(plan: &[u8]) -> Result<u64, Failure> {
    let (header, _) = Header::read_from_prefix(plan)
        .map_err(|_| Failure::failed("the plan of the demo is too short", "", "build it anew"))?;
    let plan = header.size.next_multiple_of(PAGE);
    Ok(header.image.plan_offset + plan + u64::from(header.image.page_pool_pages) * PAGE)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bulkhead_abi::plan::Image;
    use bulkhead_profiler::{Boot, Visit};
    use zerocopy::{FromZeros, IntoBytes};

    use super::super::devices::tests::counted;
    use super::super::gppt::{Late, Mode, Taken};
    use super::super::subject::operations::ACCESSES;
    use super::*;

    fn cost(instructions: u64) -> Cost {
        Cost {
            instructions,
            sysregs: 4000,
            barriers: 0,
            memory: 38_500,
        }
    }

    fn profile() -> Profile {
        // 70 instructions an operation.
        let counted = |id: u64, operations: u32| bulkhead_profiler::Figure {
            cost: cost(70 * u64::from(operations) + id),
            exits: 1000,
            ..Default::default()
        };
        let symbols = [
            ("el2::start::primary", 300),
            ("el2::hw::memory::scrub_lines", 9000),
        ];
        let symbols = symbols.map(|(name, count)| (name.to_owned(), cost(count)));
        let path = vec![Visit {
            symbol: "vectors".to_owned(),
            instructions: 500,
        }];
        Profile {
            figures: FIGURES
                .iter()
                .map(|figure| (figure.id, counted(figure.id, figure.operations)))
                .collect(),
            boot: Some(Boot {
                reached_guest: true,
                cost: cost(9300),
                symbols: BTreeMap::from(symbols),
                ..Default::default()
            }),
            longest: Some(Longest {
                cost: cost(500),
                path,
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn realtime() -> Realtime {
        let exits = bulkhead_profiler::Exits {
            count: 10,
            total: 800,
            max: 90,
        };
        Realtime {
            exits: [("irq 27".to_owned(), exits)].into(),
            time: 10_000_000,
            latest: vec![[72, 80]],
            latest_gicv2: vec![[72, 81]],
        }
    }

    fn gppt(modes: &[&'static str]) -> GpptRuns {
        let late = BTreeMap::from([("vtimer_irq".to_owned(), Late::default())]);
        let accesses = ACCESSES.map(|(id, _)| (id, 150_000 + id)).into();
        let taken = Taken {
            late,
            accesses,
            ..Taken::default()
        };
        let mode = |(kick, name): (u64, &&'static str)| Mode {
            name,
            taken: taken.clone(),
            kick,
        };
        GpptRuns {
            native: taken.clone(),
            modes: (30..).zip(modes).map(mode).collect(),
            vgic: taken.clone(),
        }
    }

    fn booted(guest: u64) -> LinuxBoot {
        LinuxBoot {
            guest,
            native: 800_000_000,
            profile: Profile::default(),
        }
    }

    fn measured(profile: &Profile, others: &[Profile]) -> Result<Vec<Figure>, Failure> {
        let budgets = Budgets::load()?;
        let mut header = Header::new_zeroed();
        header.size = 800;
        header.image = Image {
            plan_offset: 0x20000,
            page_pool_pages: 11,
            ..header.image
        };
        let latencies =
            ["sgi_sibling_wfi", "restart", "timer_sleeper"].map(|name| (name.to_owned(), 240));
        let run = Run {
            profile: profile.clone(),
            latencies: latencies.into(),
        };
        let runs = Runs {
            gicv2: run.clone(),
            gicv3: run,
            linux: booted(808_000_000),
            linux_gicv2: booted(812_000_000),
            realtime: Some(realtime()),
            gppt: gppt(&["recoverable", "pmr-trapped", "pmr-direct"]),
            gppt_gicv2: gppt(&["gicv2"]),
            devices: counted(),
            polled: vec![PolledRun::default()],
            colours: Starts::sample(),
            images: Images::sample(),
        };
        figures(&budgets, &runs, header.as_bytes(), others)
    }

    fn value(figures: &[Figure], name: &str) -> f64 {
        let figure = figures.iter().find(|figure| figure.name == name);
        figure.expect("every budget has a figure").value
    }

    #[test]
    fn every_budget_gets_its_figure() {
        let figures = measured(&profile(), &[]).expect("all was measured");
        let budgets = Budgets::load().expect("they are in the repository");
        assert_eq!(figures.len(), budgets.figures.len());
        assert_eq!(value(&figures, "sgi_sibling_wfi"), 240.0);
        assert_eq!(value(&figures, "lr_overflow"), 14.0022);
        assert_eq!(value(&figures, "hvc_null"), 70.001);
        assert_eq!(value(&figures, "longest_exit"), 500.0);
        assert_eq!(value(&figures, "linux_boot"), 943.34);
        assert_eq!(value(&figures, "linux_boot_ratio"), 101.0);
        assert_eq!(value(&figures, "linux_boot_ratio_v2"), 101.5);
        assert_eq!(value(&figures, "gppt_irq"), 0.0);
        assert_eq!(value(&figures, "rt_share"), 80.0);
        assert_eq!(value(&figures, "gppt_irq_v2"), 0.0);
        assert_eq!(value(&figures, "kick_v2"), 30.0);
        assert_eq!(value(&figures, "kick"), 31.0, "of two modes");
        assert_eq!(value(&figures, "kick_direct"), 32.0);
        assert_eq!(value(&figures, "gppt_enable"), 150.023);
        assert_eq!(value(&figures, "boot_own"), 300.0);
        assert_eq!(value(&figures, "boot_total_v2"), 9300.0, "with scrubbing");
        let sizes = |what: &str| {
            let ends = [
                "",
                "_static",
                "_io",
                "_managed",
                "_v2",
                "_static_v2",
                "_io_v2",
                "_managed_v2",
            ];
            ends.map(|end| value(&figures, &format!("{what}_bytes{end}")) / 1000.0)
        };
        assert_eq!(
            sizes("image"),
            [50.0, 51.0, 52.0, 53.0, 54.0, 55.0, 56.0, 57.0]
        );
        assert_eq!(
            sizes("resident"),
            [30.0, 31.0, 32.0, 33.0, 34.0, 35.0, 36.0, 37.0]
        );
        assert_eq!(
            value(&figures, "ram_bytes"),
            f64::from(0x20000 + 0x1000 + 11 * 0x1000)
        );
        let above: Vec<_> = figures.iter().filter(|figure| !figure.holds()).collect();
        assert!(above.is_empty(), "{above:?}");
    }

    #[test]
    fn copying_and_scrubbing_stand_apart() {
        let figures = measured(&profile(), &[]).expect("all was measured");
        let boot = figures
            .iter()
            .find(|figure| figure.name == "boot_to_guest")
            .expect("there");
        assert_eq!(boot.value, 300.0);
        let part = Part {
            name: "el2::hw::memory::scrub_lines".to_owned(),
            value: 9000,
        };
        assert_eq!(boot.parts, [part]);
    }

    #[test]
    fn the_longest_exit_of_all_runs_counts_and_can_break_the_ceiling() {
        let budgets = Budgets::load().expect("they are in the repository");
        let budget = budgets
            .figures
            .iter()
            .find(|budget| budget.name == "longest_exit");
        let above = budget.expect("there").ceiling + 1;
        let mut other = profile();
        if let Some(longest) = &mut other.longest {
            longest.cost.instructions = above;
        }
        let figures = measured(&profile(), &[other]).expect("all was measured");
        let longest = figures
            .iter()
            .find(|figure| figure.name == "longest_exit")
            .expect("there");
        assert_eq!(longest.value, above as f64);
        assert!(!longest.holds());
    }

    #[test]
    fn what_was_not_measured_is_a_failure_and_not_a_gap() {
        let mut gap = profile();
        gap.figures.remove(&1);
        let failure = measured(&gap, &[]).expect_err("hvc_null is missing");
        assert_eq!(failure.what, "`hvc_null` was not measured");
        let budgets = Budgets::load().expect("they are in the repository");
        let budget = budgets.get("linux_boot").expect("there");
        assert!(linux(budget, &LinuxBoot::default()).is_err());
        assert!(linux_ratio(budget, &LinuxBoot::default()).is_err());
        let mut no_guest = profile();
        no_guest.boot = None;
        assert!(measured(&no_guest, &[]).is_err());
    }
}
