//! Functions of the C library that QEMU calls here first, as the pacer is preloaded (`LD_PRELOAD`, ld.so(8)).
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::hint;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::plugin::main_thread;

/// `RTLD_NEXT` (`dlfcn.h`): the definition behind this one.
const NEXT: *mut c_void = -1_isize as *mut c_void;
/// A shaken QEMU's threads pause once in so many locks that they take, and in so many returns from `ppoll`.
const LOCKS: u64 = 256;
const POLLS: u64 = 4;
/// For up to so many microseconds.
const PAUSE: u64 = 300;

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
type Mutex = unsafe extern "C" fn(*mut c_void) -> c_int;
type Poll = unsafe extern "C" fn(*mut c_void, u64, *const c_void, *const c_void) -> c_int;

thread_local! {
    /// The thread runs CPUs.
    static RUNS_CPUS: Cell<bool> = const { Cell::new(false) };
    /// It has written somewhere, which may have woken the main thread, and has not seen that one asleep since.
    static MAY_HAVE_WOKEN: Cell<bool> = const { Cell::new(false) };
    /// State of its random numbers.
    static RANDOM: Cell<u64> = const { Cell::new(0) };
}

static IS_SHAKEN: AtomicBool = AtomicBool::new(false);

/// This thread runs CPUs.
pub fn runs_cpus() {
    RUNS_CPUS.set(true);
}

/// From now on threads pause at random places.
pub fn shake() {
    IS_SHAKEN.store(true, Ordering::Relaxed);
}

/// Pauses once in so many calls, if QEMU is shaken.
fn stumble(calls: u64) {
    if !IS_SHAKEN.load(Ordering::Relaxed) {
        return;
    }
    // SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators); the place of the state makes threads differ.
    let state = RANDOM.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    RANDOM.set(state);
    let mut number = state ^ RANDOM.with(|it| std::ptr::from_ref(it).addr() as u64);
    number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^= number >> 31;
    if number.is_multiple_of(calls) {
        // As a thread that could run and does not, which a sleep of its own is not.
        let end = Instant::now() + Duration::from_micros((number >> 32) % PAUSE);
        while Instant::now() < end {
            hint::spin_loop();
        }
    }
}

/// A function of the C library, behind the one here.
struct Theirs<F> {
    name: &'static CStr,
    found: OnceLock<F>,
}

impl<F: Copy> Theirs<F> {
    /// # Safety
    ///
    /// `F` is the type of a pointer to the function of this name.
    const unsafe fn named(name: &'static CStr) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        Self {
            name,
            found: OnceLock::new(),
        }
    }

    fn get(&self) -> F {
        *self.found.get_or_init(|| {
            // SAFETY: the name ends with 0.
            let address = unsafe { dlsym(NEXT, self.name.as_ptr()) };
            assert!(!address.is_null(), "the C library has no {:?}", self.name);
            // SAFETY: as `named` asks; not null.
            unsafe { std::mem::transmute_copy(&address) }
        })
    }
}

// SAFETY: the function's type (POSIX).
static WRITE: Theirs<Write> = unsafe { Theirs::named(c"write") };
// SAFETY: as above.
static LOCK: Theirs<Mutex> = unsafe { Theirs::named(c"pthread_mutex_lock") };
// SAFETY: as above.
static UNLOCK: Theirs<Mutex> = unsafe { Theirs::named(c"pthread_mutex_unlock") };
// SAFETY: as above.
static POLL: Theirs<Poll> = unsafe { Theirs::named(c"ppoll") };

/// `write`(2). QEMU wakes its main thread by a write to an eventfd (`event_notifier_set`).
///
/// # Safety
///
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(file: c_int, bytes: *const c_void, count: usize) -> isize {
    let write = WRITE.get();
    // SAFETY: the caller's.
    let written = unsafe { write(file, bytes, count) };
    if RUNS_CPUS.get() {
        MAY_HAVE_WOKEN.set(true);
    }
    written
}

/// `pthread_mutex_lock`(3).
///
/// # Safety
///
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_lock(mutex: *mut c_void) -> c_int {
    stumble(LOCKS);
    let lock = LOCK.get();
    // SAFETY: the caller's.
    unsafe { lock(mutex) }
}

/// `pthread_mutex_unlock`(3). A thread that runs CPUs holds QEMU's big lock between two turns; when it has let go of that, the main thread
/// does what it was woken for, and the next turn begins when it sleeps again.
///
/// # Safety
///
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_unlock(mutex: *mut c_void) -> c_int {
    let unlock = UNLOCK.get();
    // SAFETY: the caller's.
    let result = unsafe { unlock(mutex) };
    if MAY_HAVE_WOKEN.get() {
        // Asleep elsewhere, it waits for the lock, as this was another one.
        let asleep = main_thread().is_none_or(|main| main.settles());
        MAY_HAVE_WOKEN.set(!asleep);
    }
    result
}

/// `ppoll`(2), in which the main thread waits.
///
/// # Safety
///
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ppoll(
    files: *mut c_void,
    count: u64,
    timeout: *const c_void,
    mask: *const c_void,
) -> c_int {
    let poll = POLL.get();
    // SAFETY: the caller's.
    let ready = unsafe { poll(files, count, timeout, mask) };
    stumble(POLLS);
    ready
}
