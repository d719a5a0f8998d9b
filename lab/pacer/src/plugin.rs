//! The plugin itself: what QEMU calls.
#![allow(unsafe_code)]

use std::ffi::{c_uint, c_void};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use bulkhead_plugin::api::{self, Block, Register};
use bulkhead_plugin::pacer::{Config, Console};
use bulkhead_plugin::{Loaded, Plugin, lock};

use crate::line::MarkFinder;
use crate::main_thread::MainThread;
use crate::preloaded;

/// Bits of an offset into a page.
const PAGE: u64 = 0xfff;

/// Everything that callbacks share.
#[derive(Debug)]
struct Pacer {
    /// The main thread; `None` if the kernel does not tell what it does.
    main: Option<MainThread>,
    console: Option<Watched>,
}

/// A console that is watched.
#[derive(Debug)]
struct Watched {
    console: Console,
    state: Mutex<(MarkFinder, UnixStream)>,
}

static LOADED: Loaded<Pacer> = Loaded::new();

bulkhead_plugin::plugin!(Pacer);

impl Plugin for Pacer {
    const NAME: &'static str = "bulkhead-pacer";
    type Config = Config;
    type Registers = ();

    fn loaded() -> &'static Loaded<Self> {
        &LOADED
    }

    fn new(config: Config) -> Result<Self, String> {
        if config.is_shaken {
            preloaded::shake();
        }
        // A run is worth having all the same.
        let main = MainThread::new().map_err(|why| bulkhead_plugin::refuse::<Self>(&why));
        let watched = |console: Console| {
            let socket = &console.socket;
            let stream = UnixStream::connect(socket)
                .map_err(|why| format!("can't connect to {}: {why}", socket.display()))?;
            let state = Mutex::new((MarkFinder::new(console.marks.clone()), stream));
            Ok::<_, String>(Watched { console, state })
        };
        Ok(Self {
            main: main.ok(),
            console: config.console.map(watched).transpose()?,
        })
    }

    fn registers(_find: impl Fn(&str) -> Register) {}

    unsafe fn translated(&self, block: *mut Block) {
        // Only a thread that runs CPUs translates.
        preloaded::runs_cpus();
        // SAFETY: the block of this callback.
        let instructions = unsafe { api::instructions(block) };
        for (instruction, address, word) in instructions {
            let console = self.console.as_ref();
            if console.is_some_and(|watched| watched.is_driver(address)) && accesses(word) {
                // SAFETY: an instruction of the block of this callback.
                unsafe { api::call_on_memory(instruction, accessed, 0) };
            }
        }
    }
}

impl Watched {
    fn is_driver(&self, address: u64) -> bool {
        let mut code = self.console.code.iter();
        code.any(|[start, end]| (*start..*end).contains(&address))
    }
}

/// Loads and stores (DDI 0487, C4.1): bits 27 and 25 of the encoding.
fn accesses(word: u32) -> bool {
    (word >> 25) & 0b0101 == 0b0100
}

/// QEMU's main thread, once the pacer is loaded.
pub fn main_thread() -> Option<&'static MainThread> {
    LOADED.get()?.0.main.as_ref()
}

extern "C" fn accessed(_vcpu: c_uint, info: u32, address: u64, _data: *mut c_void) {
    let Some((pacer, ())) = LOADED.get() else {
        return;
    };
    let Some(watched) = &pacer.console else {
        return;
    };
    let [written, read] = watched.console.data;
    // Before QEMU is asked where it is, which takes longer.
    if ![written & PAGE, read & PAGE].contains(&(address & PAGE)) {
        return;
    }
    // SAFETY: the arguments of this callback.
    let access = unsafe { api::access(info, address) };
    let place = Some(if access.store { written } else { read });
    if access.physical != place {
        return;
    }
    if access.store {
        let (line, stream) = &mut *lock(&watched.state);
        if !line.push(access.bytes[0]) {
            return;
        }
        // Who no longer listens does not type either.
        let held = stream.write_all(&[0]);
        let _ = held.and_then(|()| stream.read_exact(&mut [0]));
    }
    // It gives the UART what was typed; and there is room for more behind a byte that was read.
    if let Some(main) = &pacer.main {
        main.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_and_stores_are_told_from_the_rest() {
        assert!(
            [0xb900_0001, 0xb940_0001, 0x7900_0020]
                .into_iter()
                .all(accesses)
        ); // STR, LDR, STRH
        assert!(
            ![0xd503_207f, 0x1400_0001, 0x9100_0400]
                .into_iter()
                .any(accesses)
        ); // WFI, B, ADD
    }
}
