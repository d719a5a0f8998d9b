//! Capacity of a plan: the proof takes no more rows, and EL2 maps no larger page pool while it starts.

use bulkhead_abi::plan::{ALL_COLOURS, MAX_PAGE_POOL, MAX_PLAN, MAX_ROWS};

use bulkhead_core::stage2::colours_of;
use bulkhead_model::describe::{Code, Finding, Size, System};

use super::guest::Guest;
use super::tables::guest_quiets;

/// Reports each limit that is exceeded, and the VM with the largest part; `guests` are those of all VMs.
pub(super) fn check(
    system: &System,
    guests: &[Guest],
    (plan, page_pool_pages): (u64, u32),
    findings: &mut Vec<Finding>,
) {
    let vms = || system.vms.iter().zip(guests);
    let mut refuse = |what: &str, counts: Vec<usize>, most: usize| {
        let all: usize = counts.iter().sum();
        let Some((spec, own)) = system
            .vms
            .iter()
            .zip(counts)
            .rev()
            .max_by_key(|(_, own)| *own)
        else {
            return;
        };
        if all > most {
            let message = format!("a plan has room for {most} {what}, and this one has {all}");
            let label = format!("`{}` has {own} of them", spec.name.value);
            findings.push(
                Finding::new(Code::PlanLarge, message)
                    .at(spec.name.span.clone(), label)
                    .help("describe two systems, or give VMs less"),
            );
        }
    };
    let regions = vms().map(|(_, guest)| guest.regions.len());
    refuse("mapped regions", regions.collect(), MAX_ROWS);
    let payloads = vms().map(|(_, guest)| guest.payloads.len());
    refuse("payloads", payloads.collect(), MAX_ROWS);
    let irqs = |guest: &Guest| guest.devices.iter().map(|(_, intids)| intids.len()).sum();
    let irqs = vms().map(|(_, guest)| irqs(guest));
    refuse("interrupts of devices", irqs.collect(), MAX_ROWS);
    let quiets = vms().map(|(_, guest)| guest_quiets(guest).count());
    refuse("writes that quiet devices", quiets.collect(), MAX_ROWS);
    let calls = vms().map(|(spec, _)| spec.calls.len());
    refuse("calls of the firmware", calls.collect(), MAX_ROWS);
    // The tables of VMs with colours are far apart, and what lies between them counts, too.
    let pages = vms().map(|(_, guest)| guest.s2_pages as usize);
    let coloured = |guest: &Guest| {
        let mut regions = guest.regions.iter();
        regions.any(|mapped| mapped.region.colours != ALL_COLOURS)
    };
    let others = (page_pool_pages as usize).saturating_sub(pages.clone().sum());
    let most = (MAX_PAGE_POOL as usize).saturating_sub(others);
    let el2 = &system.el2.mask;
    if el2.is_none() && !guests.iter().any(coloured) {
        refuse("pages of stage-2 tables", pages.collect(), most);
    } else if u64::from(page_pool_pages) > MAX_PAGE_POOL {
        // How many there are exactly depends on where EL2's image ends, and it may not be built yet.
        let spread = |guest: &Guest| {
            let regions: Vec<_> = guest.regions.iter().map(|mapped| mapped.region).collect();
            u64::from(guest.s2_pages) * 64 / u64::from(colours_of(&regions).count_ones().max(1))
        };
        let spreads = vms().filter(|(_, guest)| spread(guest) > u64::from(guest.s2_pages));
        let largest = spreads.max_by_key(|(_, guest)| spread(guest));
        let message =
            format!("EL2 has room for {MAX_PAGE_POOL} pages of its own, and this plan takes more");
        let mut finding = Finding::new(Code::PlanLarge, message);
        if let Some(mask) = el2 {
            finding = finding.at(mask.span.clone(), "all of EL2's pages keep to these");
        }
        if let Some((spec, guest)) = largest {
            let label = format!(
                "`{}` has {} of tables, which lie among {} for the sake of their colours",
                spec.name.value,
                guest.s2_pages,
                spread(guest)
            );
            finding = finding.at(spec.name.span.clone(), label);
        }
        findings.push(finding.help(match el2 {
            Some(_) => "give EL2 more colours, or VMs with colours less memory or more colours, or describe two systems",
            None => "give VMs with colours less memory or more colours, or describe two systems",
        }));
    }
    if plan > MAX_PLAN && !findings.iter().any(Finding::is_error) {
        let all = format!("the plan takes {}", Size(plan));
        findings.push(
            Finding::new(Code::PlanLarge, all)
                .at(
                    system
                        .vms
                        .last()
                        .map_or(0..0, |spec| spec.name.span.clone()),
                    format!("with all VMs up to this one; {} at most", Size(MAX_PLAN)),
                )
                .help("describe two systems, or give VMs less"),
        );
    }
}
