//! Functions of the C library that QEMU calls here first, as the pacer is preloaded (`LD_PRELOAD`, ld.so(8)).
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::plugin::main_thread;

/// `RTLD_NEXT` (`dlfcn.h`): the definition behind this one.
const NEXT: *mut c_void = -1_isize as *mut c_void;

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
type Unlock = unsafe extern "C" fn(*mut c_void) -> c_int;

thread_local! {
    /// The thread runs CPUs.
    static RUNS_CPUS: Cell<bool> = const { Cell::new(false) };
    /// It has written somewhere, which may have woken the main thread, and has not seen that one asleep since.
    static MAY_HAVE_WOKEN: Cell<bool> = const { Cell::new(false) };
}

/// This thread runs CPUs.
pub fn runs_cpus() {
    RUNS_CPUS.set(true);
}

fn next(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with 0.
    let address = unsafe { dlsym(NEXT, name.as_ptr()) };
    assert!(!address.is_null(), "the C library has no {name:?}");
    address
}

/// `write`(2). QEMU wakes its main thread by a write to an eventfd (`event_notifier_set`).
///
/// # Safety
///
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(file: c_int, bytes: *const c_void, count: usize) -> isize {
    static NEXT: OnceLock<Write> = OnceLock::new();
    // SAFETY: the function of this name has this signature.
    let write =
        NEXT.get_or_init(|| unsafe { std::mem::transmute::<*mut c_void, Write>(next(c"write")) });
    // SAFETY: the caller's.
    let written = unsafe { write(file, bytes, count) };
    if RUNS_CPUS.get() {
        MAY_HAVE_WOKEN.set(true);
    }
    written
}

/// `pthread_mutex_unlock`(3). A thread that runs CPUs holds QEMU's big lock between two turns; when it has let go of that, the main thread
/// does what it was woken for, and the next turn begins when it sleeps again.
///
/// # Safety
///
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_unlock(mutex: *mut c_void) -> c_int {
    static NEXT: OnceLock<Unlock> = OnceLock::new();
    // SAFETY: the function of this name has this signature.
    let unlock = NEXT.get_or_init(|| unsafe {
        std::mem::transmute::<*mut c_void, Unlock>(next(c"pthread_mutex_unlock"))
    });
    // SAFETY: the caller's.
    let result = unsafe { unlock(mutex) };
    if MAY_HAVE_WOKEN.get() {
        // Asleep elsewhere, it waits for the lock, as this was another one.
        let asleep = main_thread().is_none_or(|main| main.settles());
        MAY_HAVE_WOKEN.set(!asleep);
    }
    result
}
