//! Running of models.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `f` in every interleaving, which must be more than one: loom (0.7.2) forgets what another thread has read of an atomic
/// once a thread has read it itself, and so sees no reason to try another order where a thread reads what it then writes. There the one that
/// writes has to be the one that runs first.
#[allow(dead_code, reason = "not every file with models has small ones")]
pub fn model(f: impl Fn() + Sync + Send + 'static) {
    model_of(1_000, None, f);
}

/// The same for a model of at most so many steps; `bound`: of switches of pCPUs that are not forced, no more are made in one run.
#[allow(dead_code, reason = "not every file with models has large ones")]
pub fn model_of(steps: usize, bound: Option<usize>, f: impl Fn() + Sync + Send + 'static) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let mut builder = loom::model::Builder::new();
    builder.max_branches = steps;
    builder.preemption_bound = bound;
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        f();
    });
    let runs = runs.load(Ordering::Relaxed);
    assert!(runs > 1, "no interleaving but the first was tried");
}
