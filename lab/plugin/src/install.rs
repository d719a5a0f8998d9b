//! Start of a plugin: QEMU's entry, its configuration, the registers of the first CPU, the callbacks that every
//! plugin has.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{self, Block, Register};

/// A plugin. [`crate::plugin!`] gives it to QEMU.
pub trait Plugin: Sized + Sync + 'static {
    /// Name in its messages to the user.
    const NAME: &'static str;
    /// Content of the file that its argument `config=` names.
    type Config: DeserializeOwned;
    /// Registers that it reads.
    type Registers: Sync;

    /// The one that QEMU has loaded.
    fn loaded() -> &'static Loaded<Self>;

    /// One with this configuration.
    ///
    /// # Errors
    ///
    /// Message to the user, if it cannot do its work.
    fn new(config: Self::Config) -> Result<Self, String>;

    /// The registers by name; `find` ends QEMU if there is no such register.
    fn registers(find: impl Fn(&str) -> Register) -> Self::Registers;

    /// QEMU has translated a block.
    ///
    /// # Safety
    ///
    /// `block` is the one that QEMU passed to the callback that is running.
    unsafe fn translated(&self, block: *mut Block);

    /// QEMU ends.
    fn ended(&self) {}
}

/// Place of a plugin and its registers once QEMU has loaded it.
#[derive(Debug)]
pub struct Loaded<P: Plugin> {
    plugin: OnceLock<P>,
    registers: OnceLock<P::Registers>,
}

impl<P: Plugin> Default for Loaded<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Plugin> Loaded<P> {
    /// Nowhere yet.
    pub const fn new() -> Self {
        Self {
            plugin: OnceLock::new(),
            registers: OnceLock::new(),
        }
    }

    /// The plugin and the registers that it reads; `None` before the first CPU has started.
    pub fn get(&self) -> Option<(&P, &P::Registers)> {
        Some((self.plugin.get()?, self.registers.get()?))
    }
}

/// Reads the configuration and asks for callbacks; [`crate::plugin!`] has QEMU call it. Anything but 0 makes
/// QEMU refuse to start.
pub fn install<P: Plugin>(id: u64, arguments: &[String]) -> c_int {
    let made = api::load()
        .and_then(|()| crate::configuration(arguments))
        .and_then(P::new);
    let plugin = match made {
        Ok(plugin) => plugin,
        Err(why) => return refuse::<P>(&why),
    };
    if P::loaded().plugin.set(plugin).is_err() {
        return refuse::<P>("it can be loaded once only");
    }
    api::register(id, started::<P>, translated::<P>, ended::<P>);
    0
}

/// Writes what a plugin has counted as JSON to a file, when QEMU ends; tells the user if it can't.
pub fn write_result<P: Plugin>(output: &Path, result: &impl Serialize) {
    let written = serde_json::to_vec_pretty(result)
        .map_err(|error| error.to_string())
        .and_then(|text| std::fs::write(output, text).map_err(|error| error.to_string()));
    if let Err(error) = written {
        refuse::<P>(&format!("can't write {}: {error}", output.display()));
    }
}

/// Tells the user why the plugin does not do its work; returns the result of [`install`] then.
pub fn refuse<P: Plugin>(why: &str) -> c_int {
    eprintln!("{}: {why}", P::NAME);
    1
}

extern "C" fn started<P: Plugin>(_id: u64, _vcpu: c_uint) {
    P::loaded().registers.get_or_init(|| {
        let all = api::registers();
        P::registers(|name| {
            api::find_register(&all, name).unwrap_or_else(|why| {
                refuse::<P>(&why);
                std::process::exit(3)
            })
        })
    });
}

extern "C" fn translated<P: Plugin>(_id: u64, block: *mut Block) {
    if let Some(plugin) = P::loaded().plugin.get() {
        // SAFETY: the block of this callback.
        unsafe { plugin.translated(block) };
    }
}

extern "C" fn ended<P: Plugin>(_id: u64, _data: *mut c_void) {
    if let Some(plugin) = P::loaded().plugin.get() {
        plugin.ended();
    }
}

/// Makes a [`Plugin`] the one of this crate: defines what QEMU looks for in the shared object.
#[macro_export]
macro_rules! plugin {
    ($plugin:ty) => {
        /// Version of QEMU's plugin interface that is asked for.
        #[unsafe(no_mangle)]
        pub static qemu_plugin_version: ::std::ffi::c_int = $crate::api::VERSION;

        /// QEMU's entry.
        ///
        /// # Safety
        ///
        /// QEMU passes `count` pointers to strings that end with 0.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn qemu_plugin_install(
            id: u64,
            _info: *const ::std::ffi::c_void,
            count: ::std::ffi::c_int,
            arguments: *const *const ::std::ffi::c_char,
        ) -> ::std::ffi::c_int {
            // SAFETY: QEMU's, as above.
            let arguments = unsafe { $crate::api::arguments(count, arguments) };
            $crate::install::<$plugin>(id, &arguments)
        }
    };
}

/// Locks a mutex, also after a callback that held it has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
