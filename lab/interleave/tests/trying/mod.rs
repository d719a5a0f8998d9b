//! How models are run.

/// Runs `f` in every interleaving, which must be more than one: loom (0.7.2) forgets what another thread has read of an atomic
/// once a thread has read it itself, and so sees no reason to try another order where a thread reads what it then writes. There the one that
/// writes has to be the one that runs first.
pub fn model(f: impl Fn() + Sync + Send + 'static) {
    let runs = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&runs);
    loom::model(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        f();
    });
    let runs = runs.load(std::sync::atomic::Ordering::Relaxed);
    assert!(runs > 1, "no interleaving but the first was tried");
}
