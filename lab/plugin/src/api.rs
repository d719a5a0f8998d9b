//! The few functions of QEMU's plugin interface that the plugins use (version 4,
//! `include/qemu/qemu-plugin.h`).
//!
//! They are looked up when the plugin is installed and not linked, so that the same crate is also an
//! ordinary library.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// A translated block, owned by QEMU.
#[repr(C)]
pub struct Block([u8; 0]);
/// An instruction of a block, owned by QEMU.
#[repr(C)]
pub struct Instruction([u8; 0]);
/// A register of a CPU; only a number for QEMU.
#[repr(C)]
pub struct Handle([u8; 0]);

/// GLib's `GArray` and `GByteArray`, which have the same public part.
#[repr(C)]
struct Array {
    data: *mut c_void,
    len: c_uint,
}

/// `qemu_plugin_reg_descriptor`
#[repr(C)]
struct Descriptor {
    handle: *mut Handle,
    name: *const c_char,
    feature: *const c_char,
}

/// `qemu_plugin_mem_value`: its kind says how many bytes of the value count.
#[repr(C)]
struct Value {
    kind: c_int,
    low: u64,
    high: u64,
}

/// QEMU's knowledge of the place of an access, valid in its callback only.
#[repr(C)]
struct Place([u8; 0]);

/// Called when a block is translated.
pub type Translated = extern "C" fn(id: u64, block: *mut Block);
/// Called when a block or an instruction is about to execute.
pub type Executed = extern "C" fn(vcpu: c_uint, data: *mut c_void);
/// Called when an instruction has accessed memory.
pub type Accessed = extern "C" fn(vcpu: c_uint, info: u32, address: u64, data: *mut c_void);
/// Called once for each CPU.
pub type Started = extern "C" fn(id: u64, vcpu: c_uint);
/// Called when QEMU ends.
pub type Ended = extern "C" fn(id: u64, data: *mut c_void);

/// Version of the interface.
pub const VERSION: c_int = 4;

/// `PSTATE.EL` of EL2, as [`level`] gives it.
pub const EL2: u64 = 2;

/// `QEMU_PLUGIN_CB_NO_REGS` and `QEMU_PLUGIN_CB_R_REGS`
const NO_REGISTERS: c_uint = 0;
const READ_REGISTERS: c_uint = 1;
/// `QEMU_PLUGIN_MEM_RW`
const READ_AND_WRITE: c_uint = 3;

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Declares the table of functions and how it is filled.
macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// Functions of QEMU and GLib.
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn load() -> Result<Self, &'static CStr> {
                Ok(Self {
                    $($field: {
                        let address = find($name)?;
                        // SAFETY: QEMU and GLib define the function of this name with this signature.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    on_start = c"qemu_plugin_register_vcpu_init_cb": fn(u64, Started);
    on_translation = c"qemu_plugin_register_vcpu_tb_trans_cb": fn(u64, Translated);
    on_end = c"qemu_plugin_register_atexit_cb": fn(u64, Ended, *mut c_void);
    on_block = c"qemu_plugin_register_vcpu_tb_exec_cb": fn(*mut Block, Executed, c_uint, *mut c_void);
    on_instruction = c"qemu_plugin_register_vcpu_insn_exec_cb":
        fn(*mut Instruction, Executed, c_uint, *mut c_void);
    on_memory = c"qemu_plugin_register_vcpu_mem_cb":
        fn(*mut Instruction, Accessed, c_uint, c_uint, *mut c_void);
    is_store = c"qemu_plugin_mem_is_store": fn(u32) -> bool;
    size_shift = c"qemu_plugin_mem_size_shift": fn(u32) -> c_uint;
    value = c"qemu_plugin_mem_get_value": fn(u32) -> Value;
    place = c"qemu_plugin_get_hwaddr": fn(u32, u64) -> *mut Place;
    is_device = c"qemu_plugin_hwaddr_is_io": fn(*const Place) -> bool;
    physical = c"qemu_plugin_hwaddr_phys_addr": fn(*const Place) -> u64;
    read_memory = c"qemu_plugin_read_memory_vaddr": fn(u64, *mut Array, usize) -> bool;
    length = c"qemu_plugin_tb_n_insns": fn(*const Block) -> usize;
    instruction = c"qemu_plugin_tb_get_insn": fn(*const Block, usize) -> *mut Instruction;
    data = c"qemu_plugin_insn_data": fn(*const Instruction, *mut c_void, usize) -> usize;
    address = c"qemu_plugin_insn_vaddr": fn(*const Instruction) -> u64;
    registers = c"qemu_plugin_get_registers": fn() -> *mut Array;
    read = c"qemu_plugin_read_register": fn(*mut Handle, *mut Array) -> c_int;
    new_bytes = c"g_byte_array_new": fn() -> *mut Array;
    resize_bytes = c"g_byte_array_set_size": fn(*mut Array, c_uint) -> *mut Array;
}

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// The address of the symbol `name` in the process, or its name when there is none.
fn find(name: &'static CStr) -> Result<*mut c_void, &'static CStr> {
    // SAFETY: the name ends with 0; a null library asks for the process (RTLD_DEFAULT).
    let address = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
    if address.is_null() {
        Err(name)
    } else {
        Ok(address)
    }
}

/// Looks up all functions.
///
/// # Errors
///
/// Message to the user: the first function that QEMU lacks.
pub fn load() -> Result<(), String> {
    let missing = |name: &CStr| {
        let name = name.to_string_lossy();
        format!("this QEMU has no {name}; 9.2 or later has")
    };
    let functions = Functions::load().map_err(missing)?;
    let _ = FUNCTIONS.set(functions);
    Ok(())
}

fn functions() -> &'static Functions {
    match FUNCTIONS.get() {
        Some(functions) => functions,
        // Callbacks exist only after a successful `load`.
        None => std::process::abort(),
    }
}

/// Asks to be called for each CPU, each translated block and at the end.
pub fn register(id: u64, started: Started, translated: Translated, ended: Ended) {
    let f = functions();
    // SAFETY: `id` is the one that QEMU gave; the callback lives as long as the process.
    unsafe { (f.on_start)(id, started) };
    // SAFETY: as above.
    unsafe { (f.on_translation)(id, translated) };
    // SAFETY: as above; no data.
    unsafe { (f.on_end)(id, ended, std::ptr::null_mut()) };
}

/// The instructions of a block in a translation callback: handle, address, encoding.
///
/// # Safety
///
/// `block` is the one that QEMU passed to the callback that is running.
pub unsafe fn instructions(block: *mut Block) -> Vec<(*mut Instruction, u64, u32)> {
    let f = functions();
    // SAFETY: the caller passes a live block.
    let count = unsafe { (f.length)(block) };
    let one = |index| {
        // SAFETY: as above; the index is below the count.
        let instruction = unsafe { (f.instruction)(block, index) };
        let mut word = [0_u8; 4];
        // SAFETY: the instruction is live as the block is; the buffer has the size that is given.
        unsafe { (f.data)(instruction, word.as_mut_ptr().cast(), word.len()) };
        // SAFETY: as above.
        let address = unsafe { (f.address)(instruction) };
        (instruction, address, u32::from_le_bytes(word))
    };
    (0..count).map(one).collect()
}

/// Calls `executed` before each execution of `block`; it may read registers if `reads` says so.
///
/// # Safety
///
/// `block` is the one that QEMU passed to the callback that is running.
pub unsafe fn call_on_block(block: *mut Block, executed: Executed, reads: bool, data: usize) {
    let flags = if reads { READ_REGISTERS } else { NO_REGISTERS };
    // SAFETY: the caller passes a live block; `data` is a number for the callback.
    unsafe { (functions().on_block)(block, executed, flags, data as *mut c_void) };
}

/// Calls `executed` before each execution of `instruction`; it may read registers if `reads` says so.
///
/// # Safety
///
/// `instruction` is of the block that QEMU passed to the callback that is running.
pub unsafe fn call_on(instruction: *mut Instruction, executed: Executed, reads: bool, data: usize) {
    let flags = if reads { READ_REGISTERS } else { NO_REGISTERS };
    // SAFETY: the caller passes a live instruction; `data` is a number for the callback.
    unsafe { (functions().on_instruction)(instruction, executed, flags, data as *mut c_void) };
}

/// Calls `accessed` after each load and store of `instruction`.
///
/// # Safety
///
/// `instruction` is of the block that QEMU passed to the callback that is running.
pub unsafe fn call_on_memory(instruction: *mut Instruction, accessed: Accessed, data: usize) {
    let data = data as *mut c_void;
    // SAFETY: the caller passes a live instruction; `data` is a number for the callback.
    unsafe {
        (functions().on_memory)(instruction, accessed, READ_REGISTERS, READ_AND_WRITE, data);
    }
}

/// An access to memory, seen in its callback.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// A store; an atomic instruction is a load and a store.
    pub store: bool,
    /// To a device of the machine and not to its RAM.
    pub device: bool,
    /// Physical address of its first byte, if QEMU can tell.
    pub physical: Option<u64>,
    /// Bytes: 1 to 16.
    pub size: usize,
    /// Bytes that were stored, or loaded from a device, least significant byte first.
    pub bytes: [u8; 16],
}

/// Whether a callback of [`call_on_memory`] is about a store.
///
/// # Safety
///
/// Called in such a callback, with its argument.
pub unsafe fn is_store(info: u32) -> bool {
    // SAFETY: the caller passes what QEMU gave.
    unsafe { (functions().is_store)(info) }
}

/// Returns the access that a callback of [`call_on_memory`] is about.
///
/// # Safety
///
/// Called in such a callback, with its arguments.
pub unsafe fn access(info: u32, address: u64) -> Access {
    let f = functions();
    // SAFETY: the caller's.
    let store = unsafe { is_store(info) };
    // SAFETY: the caller passes what QEMU gave.
    let shift = unsafe { (f.size_shift)(info) };
    // SAFETY: as above.
    let place = unsafe { (f.place)(info, address) };
    let (device, physical) = if place.is_null() {
        (false, None)
    } else {
        // SAFETY: QEMU gave the place for this callback.
        let device = unsafe { (f.is_device)(place) };
        // SAFETY: as above.
        let physical = unsafe { (f.physical)(place) };
        (device, Some(physical))
    };
    let mut bytes = [0; 16];
    if store || device {
        // SAFETY: the caller passes what QEMU gave.
        let value = unsafe { (f.value)(info) };
        bytes[..8].copy_from_slice(&value.low.to_le_bytes());
        bytes[8..].copy_from_slice(&value.high.to_le_bytes());
    }
    Access {
        store,
        device,
        physical,
        size: (1 << shift.min(4)).min(bytes.len()),
        bytes,
    }
}

/// Memory at a virtual address as the CPU that runs the callback translates it now; nothing if it does not.
pub fn memory(address: u64, size: usize) -> Option<Vec<u8>> {
    let f = functions();
    BUFFER.with(|buffer| {
        let buffer = *buffer;
        // SAFETY: the buffer is this thread's own array.
        unsafe { (f.resize_bytes)(buffer, 0) };
        // SAFETY: as above; QEMU makes the array as large as it needs.
        if !unsafe { (f.read_memory)(address, buffer, size) } {
            return None;
        }
        // SAFETY: the array is alive and nobody else writes to it.
        let array = unsafe { buffer.as_ref() }?;
        if array.data.is_null() || (array.len as usize) < size {
            return None;
        }
        // SAFETY: the array holds at least `size` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(array.data.cast::<u8>(), size) };
        Some(bytes.to_vec())
    })
}

/// The arguments that QEMU passes to a plugin when it is installed.
///
/// # Safety
///
/// There are `count` pointers to strings that end with 0.
pub unsafe fn arguments(count: c_int, arguments: *const *const c_char) -> Vec<String> {
    let one = |index| {
        // SAFETY: the caller's: there are `count` pointers.
        let place = unsafe { arguments.add(index) };
        // SAFETY: as above.
        let argument = unsafe { *place };
        // SAFETY: each points to a string that ends with 0.
        let argument = unsafe { CStr::from_ptr(argument) };
        argument.to_string_lossy().into_owned()
    };
    (0..usize::try_from(count).unwrap_or(0)).map(one).collect()
}

/// A register that can be read in callbacks that asked for it. It means the same on each CPU of a machine
/// with CPUs of one model.
#[derive(Clone, Copy, Debug)]
pub struct Register(*mut Handle);

// SAFETY: the handle is a number in the shape of a pointer; QEMU never follows it.
unsafe impl Send for Register {}
// SAFETY: as above.
unsafe impl Sync for Register {}

/// All registers of the CPU whose start is being announced, by name.
pub fn registers() -> Vec<(String, Register)> {
    // SAFETY: called in the callback for a CPU's start, where QEMU allows it.
    let array = unsafe { (functions().registers)() };
    // SAFETY: QEMU returns a live array.
    let Some(array) = (unsafe { array.as_ref() }) else {
        return Vec::new();
    };
    let (data, len) = (array.data.cast::<Descriptor>(), array.len as usize);
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: the array holds `len` descriptors and is never freed.
    let descriptors = unsafe { std::slice::from_raw_parts(data, len) };
    let one = |descriptor: &Descriptor| {
        // SAFETY: QEMU's names end with 0 and live as long as the process.
        let name = unsafe { CStr::from_ptr(descriptor.name) };
        (
            name.to_string_lossy().into_owned(),
            Register(descriptor.handle),
        )
    };
    descriptors.iter().map(one).collect()
}

/// The register `name` among `all`.
///
/// # Errors
///
/// Message to the user: there is none.
pub fn find_register(all: &[(String, Register)], name: &str) -> Result<Register, String> {
    let found = all.iter().find(|(known, _)| known == name);
    found.map(|(_, register)| *register).ok_or_else(|| {
        format!("QEMU shows no register {name}; run a 64-bit CPU with virtualization=on")
    })
}

thread_local! {
    /// The buffer that registers are read into on this thread.
    static BUFFER: *mut Array = {
        // SAFETY: makes a new array, which is never freed.
        unsafe { (functions().new_bytes)() }
    };
}

/// The exception level at which the CPU that runs the callback is.
pub fn level(cpsr: Register) -> u64 {
    (read(cpsr) >> 2) & 3
}

/// The value of `register` on the CPU that runs the callback; 0 if QEMU can't tell.
pub fn read(register: Register) -> u64 {
    let f = functions();
    BUFFER.with(|buffer| {
        let buffer = *buffer;
        // SAFETY: the buffer is this thread's own array.
        unsafe { (f.resize_bytes)(buffer, 0) };
        // SAFETY: the handle came from QEMU; the buffer is this thread's own array.
        let size = unsafe { (f.read)(register.0, buffer) };
        // SAFETY: the array is alive and nobody else writes to it.
        let Some(array) = (unsafe { buffer.as_ref() }) else {
            return 0;
        };
        let len = (array.len as usize)
            .min(usize::try_from(size).unwrap_or(0))
            .min(8);
        let mut value = [0; 8];
        if len == 0 || array.data.is_null() {
            return 0;
        }
        // SAFETY: the array holds at least `len` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(array.data.cast::<u8>(), len) };
        value[..len].copy_from_slice(bytes);
        u64::from_le_bytes(value)
    })
}
