//! What of the page pool is EL2's own: the parts as the proof of a plan has them, and the pages of each by the definition of a region's colours.

use bulkhead_abi::plan::{COLOUR_GROUP, PAGE, Profile, Region};
use bulkhead_core::plan::{PagePool, Plan};

/// The parts of the page pool of a plan that was proven.
#[derive(Clone, Debug)]
pub(crate) struct El2Pages {
    pub(crate) parts: PagePool,
    /// The state and the tables of each service thread.
    pub(crate) services: Vec<[Region; 2]>,
    /// The tables of each VM.
    pub(crate) tables: Vec<Region>,
}

impl El2Pages {
    pub(crate) fn of(plan: &Plan<'_>) -> Option<Self> {
        let mut tables = Vec::new();
        let parts =
            plan.page_pool::<{ Profile::Managed as u32 }>(|_, place| tables.push(*place))?;
        let services = 0..plan.service_threads().len();
        let services = services.map(|n| {
            plan.service_of(&parts, n)
                .map(|(state, tables)| [state, tables])
        });
        Some(Self {
            parts,
            services: services.collect::<Option<_>>()?,
            tables,
        })
    }

    /// Offset in the image of a page of those that pCPUs, vCPUs, service threads and VMs have.
    pub(crate) fn thread_page(&self, page: u64) -> u64 {
        self::page(&self.parts.threads, page)
    }
}

/// Offset in the image of a page of a part.
pub(crate) fn page(part: &Region, number: u64) -> u64 {
    let colours = part.colours;
    let each = u64::from(colours.count_ones());
    if each == 0 {
        return 0;
    }
    let bits = (0..64).filter(|bit| colours >> bit & 1 != 0);
    let within = bits.clone().nth((number % each) as usize).unwrap_or(0);
    part.pa + number / each * COLOUR_GROUP + within * PAGE
}

/// Which page of a part lies at an offset in the image.
pub(crate) fn number(part: &Region, offset: u64) -> Option<u64> {
    let page = offset.checked_sub(part.pa)? / PAGE;
    let (group, bit) = (page / 64, page % 64);
    let each = u64::from(part.colours.count_ones());
    let before = (part.colours & ((1 << bit) - 1)).count_ones();
    let number = group * each + u64::from(before);
    (part.colours >> bit & 1 != 0 && number < part.size / PAGE).then_some(number)
}

#[cfg(test)]
mod tests {
    use bulkhead_abi::plan::ALL_COLOURS;
    use bulkhead_core::colours;

    use super::*;

    #[test]
    fn pages_and_numbers_are_one_another_s_inverse() {
        for (pa, colours) in [
            (7 * PAGE, ALL_COLOURS),
            (COLOUR_GROUP, 0xc000_c000_c000_c000),
            (COLOUR_GROUP, 1 << 63),
        ] {
            let part = Region {
                vm: 0,
                kind: 0,
                access: 0,
                shared: 0,
                ipa: 0,
                pa,
                size: 200 * PAGE,
                colours,
            };
            let pages: Vec<u64> = (0..200).map(|n| page(&part, n)).collect();
            for (n, at) in (0..).zip(&pages) {
                assert_eq!(number(&part, at + 5), Some(n));
                assert!(colours::has(&part, *at));
            }
            let span = colours::span(&part).expect("it has pages");
            let others = (0..span.end + 10 * PAGE).step_by(PAGE as usize);
            let none = others.filter(|at| number(&part, *at).is_some()).count();
            assert_eq!(none, 200);
        }
    }
}
