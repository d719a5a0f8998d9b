//! The plugin itself: what QEMU calls, and what of it goes to the model.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::sync::Mutex;

use bulkhead_plugin::api::{self, Block, EL2, Register};
use bulkhead_plugin::sanitizer::{Config, Finding, Record};
use bulkhead_plugin::{Loaded, Plugin, Stacks, accesses_memory, changes_hands, lock};

use crate::cpu::Start;
use crate::decode::{self, Op};
use crate::model::{At, Machine, Model};
use crate::output::Output;

/// Registers that are read.
#[derive(Debug)]
struct Registers {
    cpsr: Register,
    sp: Register,
    spsr: Register,
    esr: Register,
    tpidr: Register,
    mpidr: Register,
    midr: Register,
    sctlr: Register,
    ttbr0: Register,
    tcr: Register,
    hcr: Register,
    vttbr: Register,
    vtcr: Register,
    x: Vec<Register>,
}

/// Key that tells a CPU apart. QEMU's index does not under `-icount`, where it is wrong for code that
/// several CPUs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// TPIDR_EL2, once EL2 has set it.
    Thread(u64),
    /// VMPIDR_EL2, which has the value of MPIDR_EL1 until EL2 writes it.
    Affinity(u64),
}

/// State that changes.
#[derive(Debug)]
struct State {
    model: Model,
    cpus: HashMap<Key, usize>,
}

/// Everything that callbacks share.
#[derive(Debug)]
struct Sanitizer {
    config: Config,
    output: Output,
    state: Mutex<State>,
    /// Instructions by address, so that a second translation takes no memory.
    watched: Mutex<HashMap<(u64, u32, bool), &'static Watched>>,
    /// Xt of a read of IAR, by the address of the instruction behind it.
    behind_iar: Mutex<HashMap<u64, u8>>,
}

/// An instruction that is watched.
#[derive(Clone, Copy, Debug)]
struct Watched {
    pc: u64,
    op: Option<(Op, u8)>,
}

static LOADED: Loaded<Sanitizer> = Loaded::new();

bulkhead_plugin::plugin!(Sanitizer);

thread_local! {
    /// The CPU whose EL2 runs on this thread.
    static RUNNING: Cell<Option<usize>> = const { Cell::new(None) };
    /// CPUs by EL2's stacks.
    static STACKS: RefCell<Stacks<usize>> = const { RefCell::new(Stacks::new()) };
}

impl Plugin for Sanitizer {
    const NAME: &'static str = "bulkhead-sanitizer";
    type Config = Config;
    type Registers = Registers;

    fn loaded() -> &'static Loaded<Self> {
        &LOADED
    }

    fn new(config: Config) -> Result<Self, String> {
        let state = State {
            model: Model::new(&config),
            cpus: HashMap::new(),
        };
        Ok(Self {
            output: Output::create(config.output.clone())?,
            config: Config {
                symbols: bulkhead_plugin::sorted(config.symbols),
                ..config
            },
            state: Mutex::new(state),
            watched: Mutex::default(),
            behind_iar: Mutex::default(),
        })
    }

    fn registers(find: impl Fn(&str) -> Register) -> Registers {
        Registers {
            cpsr: find("cpsr"),
            sp: find("sp"),
            spsr: find("SPSR_EL2"),
            esr: find("ESR_EL2"),
            tpidr: find("TPIDR_EL2"),
            mpidr: find("VMPIDR_EL2"),
            midr: find("VPIDR_EL2"),
            sctlr: find("SCTLR_EL2"),
            ttbr0: find("TTBR0_EL2"),
            tcr: find("TCR_EL2"),
            hcr: find("HCR_EL2"),
            vttbr: find("VTTBR_EL2"),
            vtcr: find("VTCR_EL2"),
            x: (0..31).map(|number| find(&format!("x{number}"))).collect(),
        }
    }

    unsafe fn translated(&self, block: *mut Block) {
        // SAFETY: the block of this callback.
        let instructions = unsafe { api::instructions(block) };
        let first = instructions.first();
        if !first.is_some_and(|(_, address, _)| self.config.has_code(*address)) {
            return;
        }
        let mut watched = false;
        for (instruction, pc, word) in instructions {
            // What a read of IAR gave is known at the next instruction, which mostly begins another block.
            if let Some(rt) = decode::acknowledges(word) {
                lock(&self.behind_iar).insert(pc + 4, rt);
            }
            let read = lock(&self.behind_iar).get(&pc).copied();
            if let Some(rt) = read {
                let op = Some((Op::Acknowledge, rt));
                // SAFETY: an instruction of the block of this callback.
                unsafe {
                    api::call_on(instruction, executed, true, self.watch(pc, word, op, true))
                };
                watched = true;
            }
            if changes_hands(word) {
                watched = true;
                // SAFETY: an instruction of the block of this callback.
                unsafe { api::call_on(instruction, stack_executed, false, 0) };
            }
            let op = decode::decode(word);
            let memory = accesses_memory(word);
            if op.is_none() && !memory {
                continue;
            }
            watched = true;
            let data = self.watch(pc, word, op, false);
            if op.is_some() {
                // SAFETY: an instruction of the block of this callback.
                unsafe { api::call_on(instruction, executed, true, data) };
            }
            if memory {
                // SAFETY: as above.
                unsafe { api::call_on_memory(instruction, accessed, data) };
            }
        }
        if watched {
            // SAFETY: the block of this callback.
            unsafe { api::call_on_block(block, block_executed, true, 0) };
        }
    }
}

impl Sanitizer {
    /// The data of a callback of the instruction; `apart`: beside another one of the same instruction.
    fn watch(&self, pc: u64, word: u32, op: Option<(Op, u8)>, apart: bool) -> usize {
        let mut known = lock(&self.watched);
        let data = known
            .entry((pc, word, apart))
            .or_insert_with(|| Box::leak(Box::new(Watched { pc, op })));
        std::ptr::from_ref(*data) as usize
    }

    /// The number of the CPU that runs this callback.
    fn cpu(&self, registers: &Registers) -> usize {
        let key = match api::read(registers.tpidr) {
            0 => Key::Affinity(api::read(registers.mpidr)),
            thread => Key::Thread(thread),
        };
        let mut state = lock(&self.state);
        if let Some(cpu) = state.cpus.get(&key) {
            return *cpu;
        }
        let read = api::read;
        let start = Start {
            mpidr: read(registers.mpidr),
            midr: read(registers.midr),
            sctlr: read(registers.sctlr),
            ttbr0: read(registers.ttbr0),
            tcr: read(registers.tcr),
            hcr: read(registers.hcr),
            vttbr: read(registers.vttbr),
            vtcr: read(registers.vtcr),
        };
        // A CPU that was reset has lost its TPIDR_EL2.
        let before = state.model.number(start.mpidr);
        if let Some(number) = before {
            state.cpus.retain(|_, known| *known != number);
        }
        let cpu = state.model.start_cpu(start, before);
        state.cpus.insert(key, cpu);
        cpu
    }

    /// Writes down what the model has found.
    fn tell(&self, model: &mut Model) {
        if !model.has_news() {
            return;
        }
        for vmid in model.take_entered() {
            self.output.add(&Record::Entered(vmid));
        }
        for broken in model.take_broken() {
            self.output.add(&Record::Broken(Finding {
                rule: broken.rule,
                cpu: broken.cpu,
                pc: broken.pc,
                place: self.config.name(broken.pc),
                what: broken.what,
            }));
        }
    }
}

extern "C" fn block_executed(_vcpu: c_uint, _data: *mut c_void) {
    let Some((plugin, registers)) = LOADED.get() else {
        return;
    };
    let sp = api::read(registers.sp);
    let known = STACKS.with_borrow(|stacks| stacks.get(sp));
    let running = known.or_else(|| {
        let at_el2 = api::level(registers.cpsr) == EL2;
        let cpu = at_el2.then(|| plugin.cpu(registers))?;
        STACKS.with_borrow_mut(|stacks| stacks.learn(sp, cpu));
        Some(cpu)
    });
    RUNNING.set(running);
}

/// EL2's stacks may change hands.
extern "C" fn stack_executed(_vcpu: c_uint, _data: *mut c_void) {
    STACKS.with_borrow_mut(Stacks::forget);
}

/// The CPU at work, in its callback.
struct Here<'a>(&'a Registers);

impl Machine for Here<'_> {
    fn page(&self, address: u64) -> Option<Vec<u8>> {
        api::memory(address, 4096)
    }
    fn x(&self, number: u8) -> u64 {
        let register = self.0.x.get(usize::from(number));
        register.map_or(0, |register| api::read(*register))
    }
    fn spsr(&self) -> u64 {
        api::read(self.0.spsr)
    }
    fn esr(&self) -> u64 {
        api::read(self.0.esr)
    }
    fn vmpidr(&self) -> u64 {
        api::read(self.0.mpidr)
    }
}

/// A callback of a watched instruction.
struct Watching {
    plugin: &'static Sanitizer,
    here: Here<'static>,
    at: At,
    op: Option<(Op, u8)>,
}

/// Returns what a callback of a watched instruction is about; `None` if it is not EL2 that runs.
fn watched(data: *mut c_void) -> Option<Watching> {
    let cpu = RUNNING.get()?;
    let (plugin, registers) = LOADED.get()?;
    // SAFETY: `translated` passed a reference to a `Watched` that lives as long as the process.
    let watched: &'static Watched = unsafe { &*data.cast::<Watched>().cast_const() };
    let at = At {
        cpu,
        pc: watched.pc,
    };
    Some(Watching {
        plugin,
        here: Here(registers),
        at,
        op: watched.op,
    })
}

extern "C" fn executed(_vcpu: c_uint, data: *mut c_void) {
    let Some(watching) = watched(data) else {
        return;
    };
    let Watching {
        plugin,
        here,
        at,
        op: Some((op, rt)),
    } = watching
    else {
        return;
    };
    let mut state = lock(&plugin.state);
    if op == Op::Write(decode::Register::Tpidr) {
        let value = if rt < 31 { here.x(rt) } else { 0 };
        let key = match value {
            0 => Key::Affinity(api::read(here.0.mpidr)),
            thread => Key::Thread(thread),
        };
        state.cpus.retain(|_, known| *known != at.cpu);
        state.cpus.insert(key, at.cpu);
    }
    state.model.execute(at, op, rt, &here);
    plugin.tell(&mut state.model);
}

extern "C" fn accessed(_vcpu: c_uint, info: u32, address: u64, data: *mut c_void) {
    let Some(Watching {
        plugin, here, at, ..
    }) = watched(data)
    else {
        return;
    };
    let mut state = lock(&plugin.state);
    // SAFETY: the argument of this callback.
    if !unsafe { api::is_store(info) } && !state.model.heeds_loads(at.cpu) {
        state.model.check_code(at, &here);
        return;
    }
    // SAFETY: the arguments of this callback.
    let access = unsafe { api::access(info, address) };
    state.model.access(at, address, &access, &here);
    plugin.tell(&mut state.model);
}
