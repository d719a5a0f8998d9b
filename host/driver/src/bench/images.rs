//! How large EL2 is: the text and read-only data of its program, in each profile and for each GIC.

use bulkhead_abi::plan::Profile;
use bulkhead_model::failure::Failure;
use bulkhead_runner::cross_build::{self, Build};
use bulkhead_runner::profile::{ImageBytes, Program};

use super::budgets::{Budget, Gic};
use super::figure::Figure;

/// The profiles, by the end of their figures' names.
const PROFILES: [(&str, Profile); 4] = [
    ("", Profile::Shared),
    ("_static", Profile::Static),
    ("_io", Profile::Io),
    ("_managed", Profile::Managed),
];

/// The bytes of EL2's programs for `virt`.
#[derive(Default)]
pub struct Images(Vec<(Gic, &'static str, ImageBytes)>);

impl Images {
    /// Builds what is not there yet, and reads all.
    ///
    /// # Errors
    ///
    /// EL2 can't be built, or its ELF file can't be read.
    pub fn measure() -> Result<Self, Failure> {
        let mut images = Vec::new();
        for (gic, version) in [(Gic::V3, 3), (Gic::V2, 2)] {
            for (end, profile) in PROFILES {
                let build = Build {
                    profile,
                    ..Build::virt(version)
                };
                let el2 = Program::read(&cross_build::el2(build)?)?.el2()?;
                images.push((gic, end, el2.image_bytes));
            }
        }
        Ok(Self(images))
    }

    /// Returns the figure of this budget, if it is one of them.
    pub(super) fn figure(&self, budget: &Budget) -> Option<Figure> {
        let name = budget.name.as_str();
        let name = name.strip_suffix("_v2").unwrap_or(name);
        let (part, end): (fn(&ImageBytes) -> u64, _) = match name.strip_prefix("image_bytes") {
            Some(end) => (|bytes| bytes.all, end),
            None => (|bytes| bytes.resident, name.strip_prefix("resident_bytes")?),
        };
        let mut images = self.0.iter();
        let (.., bytes) = images.find(|(gic, of, _)| (*gic, *of) == (budget.gic, end))?;
        Some(Figure::new(budget, part(bytes) as f64))
    }

    /// Programs of other sizes, each one larger by a thousand bytes.
    #[cfg(test)]
    pub fn sample() -> Self {
        let gics = [Gic::V3, Gic::V2].into_iter();
        let all = gics.flat_map(|gic| PROFILES.map(|(end, _)| (gic, end)));
        let sized = all.zip(50..).map(|((gic, end), n)| {
            let all = n * 1000;
            let resident = all - 20_000;
            (gic, end, ImageBytes { all, resident })
        });
        Self(sized.collect())
    }
}
