//! The plugin itself: what QEMU calls, and which accounts it leads to.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use bulkhead_plugin::api::{self, Block, EL2, Register};
use bulkhead_plugin::{Loaded, Plugin, Stacks, changes_hands, lock, write_result};

use crate::config::{Config, CpuKey};
use crate::cpu::{Cpu, Insn, Kind, NO_SYMBOL, Role};
use crate::decode;
use crate::pending::Pending;
use crate::profile::{Boot, Cost};

/// Registers that are read.
pub(crate) struct Registers {
    cpsr: Register,
    sp: Register,
    tpidr: Register,
    esr: Register,
    elr: Register,
    vttbr: Register,
    x: Vec<Register>,
}

/// What has been executed, by address: the index of its function, and the cost.
type Executed = HashMap<u64, (u32, Cost)>;

/// Everything that callbacks share.
pub(crate) struct Profiler {
    pub(crate) config: Config,
    pub(crate) cpus: Mutex<Vec<(u64, &'static Accounts)>>,
    /// Instructions by the address at which they run, so that a second translation takes no memory.
    insns: Mutex<HashMap<u64, &'static Insn>>,
    /// Instructions behind one that acknowledges an interrupt, with the register that has the INTID.
    acknowledged: Mutex<HashMap<u64, u8>>,
    /// The same of guests.
    taken: Mutex<HashMap<u64, u8>>,
    /// The way to the first guest.
    pub(crate) boot: Mutex<(Boot, Executed)>,
    booting: AtomicBool,
    /// The figure whose marks bound what all CPUs do, while it is open.
    open: Mutex<Option<u64>>,
    /// Whether one is: to be asked for each block of a guest.
    is_open: AtomicBool,
    /// Figures and the key of the CPU that has marked them.
    pub(crate) marked: Mutex<HashMap<u64, u64>>,
    /// Blocks that are not EL2's, of all CPUs.
    outside: AtomicU64,
    /// Instructions of guests by figure and VMID.
    pub(crate) guests: Mutex<HashMap<(u64, u64), &'static AtomicU64>>,
}

/// The accounts of a CPU.
pub(crate) struct Accounts {
    cpu: Mutex<Cpu>,
    /// Executed since, each by the address of its [`Insn`].
    pending: Pending,
}

impl Accounts {
    /// The accounts with all that was executed until now.
    pub(crate) fn now(&self) -> MutexGuard<'_, Cpu> {
        let mut cpu = lock(&self.cpu);
        // SAFETY: only `instruction_executed` adds some, which has it from QEMU.
        self.pending.take(|data| cpu.execute(unsafe { insn(data) }));
        cpu
    }
}

/// The instruction of a callback.
///
/// # Safety
///
/// `data` is what `translated` gave to QEMU for such a callback.
unsafe fn insn(data: usize) -> &'static Insn {
    // SAFETY: the caller's: it is a reference to an `Insn` that lives as long as the process.
    unsafe { &*(data as *const Insn) }
}

/// Code that runs on this thread.
#[derive(Clone, Copy)]
enum Running {
    /// Nothing of EL2.
    Other,
    /// EL2 before its MMU is on.
    Boot,
    /// EL2 on this CPU.
    Cpu(&'static Accounts),
    /// A guest whose instructions are counted here.
    Guest(&'static AtomicU64),
}

static LOADED: Loaded<Profiler> = Loaded::new();

bulkhead_plugin::plugin!(Profiler);

thread_local! {
    static RUNNING: Cell<Running> = const { Cell::new(Running::Other) };
    /// CPUs by EL2's stacks.
    static STACKS: RefCell<Stacks<&'static Accounts>> = const { RefCell::new(Stacks::new()) };
}

impl Plugin for Profiler {
    const NAME: &'static str = "bulkhead-profiler";
    type Config = Config;
    type Registers = Registers;

    fn loaded() -> &'static Loaded<Self> {
        &LOADED
    }

    fn new(config: Config) -> Result<Self, String> {
        Ok(Self {
            booting: AtomicBool::new(config.boot.is_some()),
            config: Config {
                symbols: bulkhead_plugin::sorted(config.symbols),
                ..config
            },
            cpus: Mutex::default(),
            insns: Mutex::default(),
            acknowledged: Mutex::default(),
            taken: Mutex::default(),
            boot: Mutex::default(),
            open: Mutex::default(),
            is_open: AtomicBool::new(false),
            marked: Mutex::default(),
            outside: AtomicU64::new(0),
            guests: Mutex::default(),
        })
    }

    fn registers(find: impl Fn(&str) -> Register) -> Registers {
        Registers {
            cpsr: find("cpsr"),
            sp: find("sp"),
            tpidr: find("TPIDR_EL2"),
            esr: find("ESR_EL2"),
            elr: find("ELR_EL2"),
            vttbr: find("VTTBR_EL2"),
            x: (0..31).map(|number| find(&format!("x{number}"))).collect(),
        }
    }

    unsafe fn translated(&self, block: *mut Block) {
        // SAFETY: the block of this callback.
        let instructions = unsafe { api::instructions(block) };
        let Some(&(_, first, _)) = instructions.first() else {
            return;
        };
        let config = &self.config;
        let linked = config.text_start..config.text_end;
        let physical = config.boot.filter(|_| self.booting.load(Ordering::Relaxed));
        let physical = physical.map(|start| start..start + (config.text_end - config.text_start));
        if linked.contains(&first)
            || physical
                .as_ref()
                .is_some_and(|range| range.contains(&first))
        {
            let booting = usize::from(!linked.contains(&first));
            // SAFETY: the block of this callback.
            unsafe { api::call_on_block(block, block_executed, true, booting) };
            for (instruction, address, word) in instructions {
                let insn = self.insn(address, word);
                if linked.contains(&address) {
                    // SAFETY: an instruction of the block of this callback.
                    unsafe { self.watch(instruction, address, word) };
                }
                let data = std::ptr::from_ref(insn) as usize;
                // SAFETY: as above.
                unsafe { api::call_on(instruction, instruction_executed, false, data) };
            }
            return;
        }
        // By a call: where CPUs take turns, QEMU 10.0 breaks the blocks in which it counts by itself (it overwrites a constant).
        // SAFETY: the block of this callback.
        unsafe { api::call_on_block(block, outside_executed, false, 0) };
        if config.period.is_some_and(|period| period.by_guest) {
            for (instruction, address, word) in &instructions {
                // SAFETY: an instruction of the block of this callback.
                unsafe { self.watch_guest(*instruction, *address, *word) };
            }
        }
        let Some(marks) = config.marks else { return };
        if marks.everywhere {
            // SAFETY: the block of this callback.
            unsafe { api::call_on_block(block, guest_block_executed, true, 0) };
        }
        for (instruction, address, _) in instructions {
            if marks.everywhere {
                // SAFETY: an instruction of the block of this callback.
                unsafe { api::call_on(instruction, guest_executed, false, 0) };
            }
            if address == marks.begin || address == marks.end {
                let begin = usize::from(address == marks.begin);
                // SAFETY: an instruction of the block of this callback.
                unsafe { api::call_on(instruction, mark_executed, true, begin) };
            }
        }
    }

    fn ended(&self) {
        write_result::<Self>(&self.config.output, &self.profile());
    }
}

/// Offset of the vector for synchronous exceptions from a lower Exception level in AArch64 (DDI 0487, D1.3.3).
const SYNC: u64 = 0x400;

impl Profiler {
    /// The description of the instruction `word` at `address`, linked or before the MMU is on.
    fn insn(&self, address: u64, word: u32) -> &'static Insn {
        let config = &self.config;
        let pc = match config.boot {
            Some(boot) if !(config.text_start..config.text_end).contains(&address) => {
                address - boot + config.text_start
            }
            _ => address,
        };
        let make = || {
            let symbol = bulkhead_plugin::find(&config.symbols, pc);
            let entry = pc.wrapping_sub(config.vectors);
            let role = if decode::is_eret(word) {
                Role::Return
            } else if entry < 0x400 && entry.is_multiple_of(0x80) {
                Role::Nested
            } else if config.idle.contains(&pc) {
                Role::Idle
            } else if config.looks.contains(&pc) {
                Role::Look
            } else {
                Role::Plain
            };
            let symbol = symbol
                .and_then(|index| u32::try_from(index).ok())
                .unwrap_or(NO_SYMBOL);
            Insn {
                pc,
                cost: decode::cost(word),
                symbol,
                role,
            }
        };
        lock(&self.insns)
            .entry(address)
            .or_insert_with(|| Box::leak(Box::new(make())))
    }

    /// Asks for the further callbacks of an instruction in the linked range.
    ///
    /// # Safety
    ///
    /// `instruction` is of the block that is being translated.
    unsafe fn watch(&self, instruction: *mut api::Instruction, address: u64, word: u32) {
        let tables = [
            (Some(self.config.vectors), vector_executed as api::Executed),
            (self.config.guarded, guarded_vector_executed),
        ];
        for (table, executed) in tables {
            let entry = table.map_or(0, |table| address.wrapping_sub(table));
            if (SYNC..0x800).contains(&entry) && entry.is_multiple_of(0x80) {
                let offset = usize::try_from(entry).unwrap_or(0);
                // SAFETY: the caller's.
                unsafe { api::call_on(instruction, executed, true, offset) };
            }
        }
        if changes_hands(word) {
            // SAFETY: the caller's.
            unsafe { api::call_on(instruction, stack_executed, false, 0) };
        }
        if self.config.iar.is_some() && decode::loads_word(word) {
            // SAFETY: the caller's.
            unsafe { api::call_on_memory(instruction, word_loaded, 0) };
        }
        // SAFETY: the caller's.
        unsafe {
            follow(
                &self.acknowledged,
                instruction,
                (address, word),
                acknowledge_executed,
            )
        };
    }

    /// Asks for callbacks where a guest acknowledges an interrupt.
    ///
    /// # Safety
    ///
    /// `instruction` is of the block that is being translated.
    unsafe fn watch_guest(&self, instruction: *mut api::Instruction, address: u64, word: u32) {
        if decode::acknowledges(word).is_some() {
            // SAFETY: the caller's.
            unsafe { api::call_on(instruction, taking_executed, false, 0) };
        }
        // SAFETY: the caller's.
        unsafe { follow(&self.taken, instruction, (address, word), taken_executed) };
    }

    /// EL2 has acknowledged an interrupt on a CPU.
    fn acknowledge(&self, cpu: &Accounts, intid: u64) {
        let timer = self
            .config
            .period
            .is_some_and(|period| period.intid == intid && !period.by_guest);
        cpu.now().acknowledge(intid, timer);
    }

    /// The accounts of the CPU that runs this callback.
    fn cpu(&self, registers: &Registers, vcpu: c_uint) -> &'static Accounts {
        let key = match self.config.cpus {
            CpuKey::Index => u64::from(vcpu),
            CpuKey::Tpidr => api::read(registers.tpidr),
        };
        let mut cpus = lock(&self.cpus);
        if let Some((_, cpu)) = cpus.iter().find(|(known, _)| *known == key) {
            return cpu;
        }
        let watched = self.config.period.is_some_and(|period| period.cpu == key);
        let cpu: &'static Accounts = Box::leak(Box::new(Accounts {
            cpu: Mutex::new(Cpu::new(key, watched)),
            pending: Pending::default(),
        }));
        cpus.push((key, cpu));
        cpu
    }

    /// A mark on the CPU `key`, where marks bound what all CPUs do.
    fn mark_all(&self, key: u64, id: u64, begin: bool) {
        for (_, cpu) in lock(&self.cpus).iter() {
            cpu.now().mark(id, begin);
        }
        let mut open = lock(&self.open);
        if begin {
            lock(&self.marked).insert(id, key);
            *open = Some(id);
        } else if *open == Some(id) {
            *open = None;
        }
        self.is_open.store(open.is_some(), Ordering::Relaxed);
    }

    /// Where instructions of the guest that runs are counted, if a figure is open that has them.
    fn guest(&self, registers: &Registers) -> Running {
        let Some(id) = *lock(&self.open) else {
            return Running::Other;
        };
        // VTTBR_EL2.VMID
        let vmid = api::read(registers.vttbr) >> 48;
        let mut guests = lock(&self.guests);
        let count = guests.entry((id, vmid));
        Running::Guest(count.or_insert_with(|| Box::leak(Box::default())))
    }

    /// Counts an instruction on the way to the first guest.
    fn boot(&self, insn: &Insn) {
        let mut boot = lock(&self.boot);
        boot.0.cost.add(insn.cost);
        let place = boot.1.entry(insn.pc);
        place
            .or_insert((insn.symbol, Cost::default()))
            .1
            .add(insn.cost);
        if insn.role == Role::Return {
            boot.0.reached_guest = true;
            self.booting.store(false, Ordering::Relaxed);
        }
    }
}

/// Keeps in `known` where an instruction acknowledges an interrupt, and asks that `executed` be called for the one
/// behind it, where its register has the INTID.
///
/// # Safety
///
/// `instruction` is of the block that is being translated.
unsafe fn follow(
    known: &Mutex<HashMap<u64, u8>>,
    instruction: *mut api::Instruction,
    (address, word): (u64, u32),
    executed: api::Executed,
) {
    let mut known = lock(known);
    if let Some(register) = decode::acknowledges(word) {
        known.insert(address + 4, register);
    }
    if let Some(register) = known.get(&address) {
        // SAFETY: the caller's.
        unsafe { api::call_on(instruction, executed, true, usize::from(*register)) };
    }
}

extern "C" fn block_executed(vcpu: c_uint, booting: *mut c_void) {
    let Some((plugin, registers)) = LOADED.get() else {
        return;
    };
    let sp = api::read(registers.sp);
    let known = STACKS.with_borrow(|stacks| stacks.get(sp));
    let running = if let (Some(cpu), true) = (known, booting.is_null()) {
        Running::Cpu(cpu)
    } else if api::level(registers.cpsr) != EL2 {
        Running::Other
    } else if booting.is_null() {
        let cpu = plugin.cpu(registers, vcpu);
        STACKS.with_borrow_mut(|stacks| stacks.learn(sp, cpu));
        Running::Cpu(cpu)
    } else {
        Running::Boot
    };
    RUNNING.set(running);
}

/// A block that is not linked as EL2. On several threads one may be lost, but never the last.
extern "C" fn outside_executed(_vcpu: c_uint, _data: *mut c_void) {
    if let Some((plugin, _)) = LOADED.get() {
        let count = &plugin.outside;
        count.store(
            count.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
    }
}

/// A block that is not linked as EL2.
extern "C" fn guest_block_executed(_vcpu: c_uint, _data: *mut c_void) {
    let Some((plugin, registers)) = LOADED.get() else {
        return;
    };
    let is_open = plugin.is_open.load(Ordering::Relaxed);
    let is_guest = is_open && api::level(registers.cpsr) != EL2;
    RUNNING.set(if is_guest {
        plugin.guest(registers)
    } else {
        Running::Other
    });
}

/// An instruction of a guest. Where marks bound what all CPUs do these take turns on one thread, so that none is lost.
extern "C" fn guest_executed(_vcpu: c_uint, _data: *mut c_void) {
    if let Running::Guest(count) = RUNNING.get() {
        let more = count.load(Ordering::Relaxed).wrapping_add(1);
        count.store(more, Ordering::Relaxed);
    }
}

extern "C" fn instruction_executed(_vcpu: c_uint, data: *mut c_void) {
    let Some((plugin, _)) = LOADED.get() else {
        return;
    };
    let running = RUNNING.get();
    if matches!(running, Running::Other) {
        return;
    }
    // SAFETY: the data of this callback.
    let insn = unsafe { insn(data as usize) };
    if plugin.booting.load(Ordering::Relaxed) {
        plugin.boot(insn);
    }
    if let Running::Cpu(cpu) = running {
        let full = cpu.pending.add(data as usize);
        if insn.role == Role::Return {
            cpu.now().left(plugin.outside.load(Ordering::Relaxed));
        } else if full {
            drop(cpu.now());
        }
    }
}

/// EL2's stacks may change hands.
extern "C" fn stack_executed(_vcpu: c_uint, _data: *mut c_void) {
    STACKS.with_borrow_mut(Stacks::forget);
}

/// An exit begins at a guarded vector, which goes on at the other one.
extern "C" fn guarded_vector_executed(_vcpu: c_uint, offset: *mut c_void) {
    begin(offset);
    if let Running::Cpu(cpu) = RUNNING.get() {
        cpu.now().is_guarded = true;
    }
}

extern "C" fn vector_executed(_vcpu: c_uint, offset: *mut c_void) {
    if let Running::Cpu(cpu) = RUNNING.get()
        && std::mem::take(&mut cpu.now().is_guarded)
    {
        return;
    }
    begin(offset);
}

/// An exit begins at the vector `offset`.
fn begin(offset: *mut c_void) {
    let (Some((plugin, registers)), Running::Cpu(cpu)) = (LOADED.get(), RUNNING.get()) else {
        return;
    };
    let esr = api::read(registers.esr);
    let kind = Kind::new(offset as u64, esr);
    let outside = plugin.outside.load(Ordering::Relaxed);
    let guest_pc = api::read(registers.elr);
    cpu.now().enter(kind, guest_pc, esr, outside);
}

extern "C" fn acknowledge_executed(_vcpu: c_uint, number: *mut c_void) {
    let (Some((plugin, registers)), Running::Cpu(cpu)) = (LOADED.get(), RUNNING.get()) else {
        return;
    };
    let Some(register) = registers.x.get(number as usize) else {
        return;
    };
    plugin.acknowledge(cpu, api::read(*register) & 0xff_ffff);
}

/// A guest has acknowledged an interrupt, if this is the guest of the watched CPU.
/// CPUs of QEMU, a bit each, that have come to an instruction by which a guest acknowledges an interrupt, and not behind it: what stands
/// at the address behind it may be another guest's.
static TAKING: AtomicU64 = AtomicU64::new(0);

const fn cpu_bit(vcpu: c_uint) -> u64 {
    1 << (vcpu % 64)
}

extern "C" fn taking_executed(vcpu: c_uint, _data: *mut c_void) {
    TAKING.fetch_or(cpu_bit(vcpu), Ordering::Relaxed);
}

extern "C" fn taken_executed(vcpu: c_uint, number: *mut c_void) {
    let Some((plugin, registers)) = LOADED.get() else {
        return;
    };
    let Some(period) = plugin.config.period else {
        return;
    };
    if TAKING.fetch_and(!cpu_bit(vcpu), Ordering::Relaxed) & cpu_bit(vcpu) == 0 {
        return;
    }
    let Some(register) = registers.x.get(number as usize) else {
        return;
    };
    if api::level(registers.cpsr) != 1 || api::read(*register) & 0xff_ffff != period.intid {
        return;
    }
    let cpu = plugin.cpu(registers, vcpu);
    cpu.now().period();
}

extern "C" fn word_loaded(_vcpu: c_uint, info: u32, address: u64, _data: *mut c_void) {
    let (Some((plugin, _)), Running::Cpu(cpu)) = (LOADED.get(), RUNNING.get()) else {
        return;
    };
    if plugin.config.iar == Some(address) {
        // SAFETY: the arguments of this callback.
        let access = unsafe { api::access(info, address) };
        let [low, high, ..] = access.bytes;
        // Above the INTID stands who sent an SGI (IHI 0048B.b, 4.4.4).
        plugin.acknowledge(cpu, u64::from(u16::from_le_bytes([low, high]) & 0x3ff));
    }
}

extern "C" fn mark_executed(vcpu: c_uint, begin: *mut c_void) {
    let Some((plugin, registers)) = LOADED.get() else {
        return;
    };
    // The same address may hold other code at EL2 or EL0.
    if api::level(registers.cpsr) != 1 {
        return;
    }
    let id = registers.x.first().map_or(0, |x0| api::read(*x0));
    let cpu = plugin.cpu(registers, vcpu);
    if plugin.config.marks.is_some_and(|marks| marks.everywhere) {
        let key = lock(&cpu.cpu).key;
        plugin.mark_all(key, id, !begin.is_null());
    } else {
        cpu.now().mark(id, !begin.is_null());
    }
}
