//! Where the plan lies once it is proven.

use core::mem::MaybeUninit;

use bulkhead_core::plan::Plan;

/// The plan, once start-up has proven it.
pub fn plan() -> &'static Plan<'static> {
    let plan = (&raw const PLAN).cast();
    // SAFETY: [R-PLAN] written once by the boot pCPU before any other pCPU or guest runs.
    unsafe { &*plan }
}

/// Keeps the plan. Once, by the boot pCPU, before anything asks for it.
pub fn set_plan(plan: Plan<'static>) {
    let place = &raw mut PLAN;
    // SAFETY: [R-PLAN] nobody holds a reference yet.
    unsafe { place.write(MaybeUninit::new(plan)) }
}

static mut PLAN: MaybeUninit<Plan<'static>> = MaybeUninit::uninit();
