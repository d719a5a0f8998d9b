//! The plugin itself: what QEMU calls, and what of it goes to the model.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bulkhead_plugin::api::{self, Block, Register};
use bulkhead_plugin::{Loaded, Plugin, accesses_memory, lock, write_result};

use crate::decode::{self, Op};
use crate::model::{Model, Who};
use crate::walk::Regime;
use bulkhead_plugin::caches::Config;

/// Registers that are read.
struct Registers {
    cpsr: Register,
    /// SCTLR, TCR and TTBR0 of EL1 and of EL2.
    sctlr: [Register; 2],
    tcr: [Register; 2],
    ttbr0: [Register; 2],
    ttbr1: Register,
    hcr: Register,
    vtcr: Register,
    vttbr: Register,
    x: Vec<Register>,
}

impl Registers {
    /// How the CPU that runs the callback translates.
    fn regime(&self) -> Regime {
        let is_el2 = api::level(self.cpsr) >= api::EL2;
        let of = |pair: [Register; 2]| api::read(pair[usize::from(is_el2)]);
        Regime {
            is_el2,
            sctlr: of(self.sctlr),
            tcr: of(self.tcr),
            ttbr0: of(self.ttbr0),
            ttbr1: api::read(self.ttbr1),
            hcr: api::read(self.hcr),
            vtcr: api::read(self.vtcr),
            vttbr: api::read(self.vttbr),
        }
    }
}

/// State that changes.
struct State {
    model: Model,
    /// Numbers of the CPUs by TTBR0_EL2: each has a map of its own at EL2, which it keeps while guests run. QEMU's index is not right under
    /// `-icount` for code that several CPUs share.
    cpus: HashMap<u64, usize>,
}

/// Everything that callbacks share.
struct CachesPlugin {
    config: Config,
    state: Mutex<State>,
    /// Blocks and instructions of maintenance, so that a second translation takes no memory.
    blocks: Mutex<HashMap<(u64, u64), &'static Run>>,
    maintenance: Mutex<HashMap<u32, &'static Maintenance>>,
}

/// A block.
struct Run {
    address: u64,
    instructions: u64,
}

/// An instruction of maintenance.
struct Maintenance {
    op: Op,
    /// Number of its register.
    register: u8,
}

static LOADED: Loaded<CachesPlugin> = Loaded::new();
/// Whether what happens is modelled; else memory gets what is stored, and that is all.
static IS_ON: AtomicBool = AtomicBool::new(true);

bulkhead_plugin::plugin!(CachesPlugin);

thread_local! {
    /// The CPU that runs on this thread, and how it translates.
    static RUNNING: RefCell<(usize, Regime)> = RefCell::new((0, Regime::default()));
}

impl Plugin for CachesPlugin {
    const NAME: &'static str = "bulkhead-caches";
    type Config = Config;
    type Registers = Registers;

    fn loaded() -> &'static Loaded<Self> {
        &LOADED
    }

    fn new(config: Config) -> Result<Self, String> {
        let state = State {
            model: Model::new(config.geometry),
            cpus: HashMap::new(),
        };
        IS_ON.store(!config.from_mark, Relaxed);
        Ok(Self {
            config,
            state: Mutex::new(state),
            blocks: Mutex::default(),
            maintenance: Mutex::default(),
        })
    }

    fn registers(find: impl Fn(&str) -> Register) -> Registers {
        let both = |name: &str| ["EL1", "EL2"].map(|level| find(&format!("{name}_{level}")));
        Registers {
            cpsr: find("cpsr"),
            sctlr: [find("SCTLR"), find("SCTLR_EL2")],
            tcr: both("TCR"),
            ttbr0: both("TTBR0"),
            ttbr1: find("TTBR1_EL1"),
            hcr: find("HCR_EL2"),
            vtcr: find("VTCR_EL2"),
            vttbr: find("VTTBR_EL2"),
            x: (0..31).map(|number| find(&format!("x{number}"))).collect(),
        }
    }

    unsafe fn translated(&self, block: *mut Block) {
        // SAFETY: the block of this callback.
        let instructions = unsafe { api::instructions(block) };
        let Some(&(_, address, _)) = instructions.first() else {
            return;
        };
        let count = instructions.len() as u64;
        let run = *lock(&self.blocks)
            .entry((address, count))
            .or_insert_with(|| {
                Box::leak(Box::new(Run {
                    address,
                    instructions: count,
                }))
            });
        let data = std::ptr::from_ref(run) as usize;
        // SAFETY: the block of this callback.
        unsafe { api::call_on_block(block, block_executed, true, data) };
        for (instruction, address, word) in instructions {
            if let Some(place) = self
                .config
                .marks
                .and_then(|marks| marks.iter().position(|mark| *mark == address))
            {
                // SAFETY: an instruction of the block of this callback.
                unsafe { api::call_on(instruction, mark_executed, true, place) };
            }
            if let Some((op, register)) = decode::decode(word) {
                let known = *lock(&self.maintenance)
                    .entry(word)
                    .or_insert_with(|| Box::leak(Box::new(Maintenance { op, register })));
                let data = std::ptr::from_ref(known) as usize;
                // SAFETY: as above.
                unsafe { api::call_on(instruction, maintenance_executed, true, data) };
            } else if accesses_memory(word) {
                // SAFETY: as above.
                unsafe { api::call_on_memory(instruction, accessed, 0) };
            }
        }
    }

    fn ended(&self) {
        write_result::<Self>(&self.config.output, &lock(&self.state).model.counted());
    }
}

extern "C" fn block_executed(_vcpu: c_uint, data: *mut c_void) {
    if !IS_ON.load(Relaxed) {
        return;
    }
    let Some((plugin, registers)) = LOADED.get() else {
        return;
    };
    // SAFETY: `translated` passed a reference to a `Run` that lives as long as the process.
    let run: &'static Run = unsafe { &*data.cast::<Run>().cast_const() };
    let regime = registers.regime();
    let key = api::read(registers.ttbr0[1]);
    let mut state = lock(&plugin.state);
    let State { model, cpus } = &mut *state;
    let cpu = *cpus.entry(key).or_insert_with(|| model.add_cpu());
    if !regime.is_el2 {
        model.set_cluster(cpu, plugin.config.cluster_of(regime.tag().vmid));
    }
    model.block(
        &Who {
            cpu,
            regime: &regime,
        },
        run.address,
        run.instructions,
    );
    RUNNING.replace((cpu, regime));
}

extern "C" fn accessed(_vcpu: c_uint, info: u32, address: u64, _data: *mut c_void) {
    // SAFETY: an argument of this callback.
    if !IS_ON.load(Relaxed) && !unsafe { api::is_store(info) } {
        return;
    }
    let Some((plugin, _)) = LOADED.get() else {
        return;
    };
    // SAFETY: the arguments of this callback.
    let access = unsafe { api::access(info, address) };
    let Some(physical) = access.physical.filter(|_| !access.device) else {
        return;
    };
    let stored = access.store.then(|| &access.bytes[..access.size]);
    let mut state = lock(&plugin.state);
    let model = &mut state.model;
    if !IS_ON.load(Relaxed) {
        model.stored(physical, &access.bytes[..access.size]);
        return;
    }
    RUNNING.with_borrow(|(cpu, regime)| {
        let who = Who { cpu: *cpu, regime };
        let size = access.size as u64;
        model.data(&who, address, physical, size, stored);
    });
}

extern "C" fn maintenance_executed(_vcpu: c_uint, data: *mut c_void) {
    if !IS_ON.load(Relaxed) {
        return;
    }
    let Some((plugin, registers)) = LOADED.get() else {
        return;
    };
    // SAFETY: `translated` passed a reference to a `Maintenance` that lives as long as the process.
    let Maintenance { op, register } = unsafe { &*data.cast::<Maintenance>().cast_const() };
    let value = registers.x.get(usize::from(*register));
    let value = value.map_or(0, |register| api::read(*register));
    RUNNING.with_borrow(|(cpu, regime)| {
        let who = Who { cpu: *cpu, regime };
        lock(&plugin.state).model.maintain(&who, *op, value);
    });
}

extern "C" fn mark_executed(_vcpu: c_uint, place: *mut c_void) {
    let Some((plugin, registers)) = LOADED.get() else {
        return;
    };
    let figure = registers
        .x
        .first()
        .map_or(0, |register| api::read(*register));
    let cpu = RUNNING.with_borrow(|(cpu, _)| *cpu);
    let begins = place as usize == 0;
    if IS_ON.swap(true, Relaxed) {
        lock(&plugin.state).model.mark(cpu, figure, begins);
    }
}
