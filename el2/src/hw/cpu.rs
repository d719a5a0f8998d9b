//! The CPU as EL2 sets it up: the traps, the reset state of a vCPU, and the entry to the guest (DDI
//! 0487, D24.2).

use core::sync::atomic::{AtomicU32, Ordering};

use bulkhead_abi::plan::{MAX_PCPUS, Pcpu};
use bulkhead_core::colours;
use bulkhead_core::cpu::errata;
use bulkhead_core::cpu::inject::{After, Before, Features};
use bulkhead_core::cpu::smccc;
use bulkhead_core::cpu::smccc::Boundary;
use bulkhead_core::cpu::sysreg::ID_REGISTERS;
use bulkhead_core::monitor::EL1_COUNT;

use super::layout;
use super::sysreg::{self, isb, read, write};

/// Bits of HCR_EL2 (DDI 0487, D24.2.53).
mod hcr {
    pub const VM: u64 = 1;
    pub const SWIO: u64 = 1 << 1;
    pub const PTW: u64 = 1 << 2;
    pub const FMO: u64 = 1 << 3;
    pub const IMO: u64 = 1 << 4;
    pub const AMO: u64 = 1 << 5;
    pub const FB: u64 = 1 << 9;
    pub const BSU_INNER_SHAREABLE: u64 = 1 << 10;
    pub const TWI: u64 = 1 << 13;
    pub const TWE: u64 = 1 << 14;
    pub const TID1: u64 = 1 << 16;
    pub const TID3: u64 = 1 << 18;
    pub const TSC: u64 = 1 << 19;
    pub const TIDCP: u64 = 1 << 20;
    pub const TACR: u64 = 1 << 21;
    pub const TSW: u64 = 1 << 22;
    pub const RW: u64 = 1 << 31;
    pub const TLOR: u64 = 1 << 35;
    pub const TERR: u64 = 1 << 36;
    pub const TID5: u64 = 1 << 58;
}

/// HCR_EL2 while a guest runs. Stage 2, AArch64 EL1; physical interrupts and SErrors to EL2; SMC,
/// implementation-defined registers, ACTLR_EL1, ID registers and set/way maintenance trap; barriers
/// and maintenance are broadcast at least to the inner shareable domain; stage-1 walks do not
/// access device memory; LORegions and RAS error records trap, and with bits that stay 0 so do
/// pointer authentication and its keys (API, APK), tag registers (ATA), software context numbers
/// (EnSCXT), nesting (NV) and RAS fault injection (FIEN). WFI and WFE trap where another vCPU gains
/// by it: [`trap_waits`].
const HCR: u64 = hcr::VM
    | hcr::SWIO
    | hcr::PTW
    | hcr::FMO
    | hcr::IMO
    | hcr::AMO
    | hcr::FB
    | hcr::BSU_INNER_SHAREABLE
    | hcr::TID3
    | hcr::TSC
    | hcr::TIDCP
    | hcr::TACR
    | hcr::TSW
    | hcr::RW
    | hcr::TLOR
    | hcr::TERR;

/// Bits of CPTR_EL2 with HCR_EL2.E2H 0 (DDI 0487, D24.2.30).
mod cptr {
    /// Bits 0 to 7, 9, 12 and 13.
    pub const RES1: u64 = 0x32ff;
    pub const TZ: u64 = 1 << 8;
    pub const TTA: u64 = 1 << 20;
    pub const TAM: u64 = 1 << 30;
}

/// CPTR_EL2: activity monitors, trace, SVE and SME (TSM, which is RES1 without SME) trap; FP (TFP)
/// does not.
const CPTR: u64 = cptr::RES1 | cptr::TAM | cptr::TTA | cptr::TZ;

/// Bits of MDCR_EL2 (DDI 0487, D24.3.17).
mod mdcr {
    pub const TPMCR: u64 = 1 << 5;
    pub const TPM: u64 = 1 << 6;
    pub const TDA: u64 = 1 << 9;
    pub const TDOSA: u64 = 1 << 10;
    pub const TDRA: u64 = 1 << 11;
    pub const TPMS: u64 = 1 << 14;
    pub const TTRF: u64 = 1 << 19;
}

/// MDCR_EL2: debug, OS lock, PMU, profiling and trace filter registers trap. With E2PB, E2TB and
/// EnSPM 0 the registers of the profiling buffer, the trace buffer and the system PMU trap too.
const MDCR: u64 =
    mdcr::TPMCR | mdcr::TPM | mdcr::TDA | mdcr::TDOSA | mdcr::TDRA | mdcr::TPMS | mdcr::TTRF;

/// Fields of VTCR_EL2 (DDI 0487, D24.2.184).
mod vtcr {
    pub const T0SZ_39_BITS: u64 = 25;
    pub const SL0_LEVEL_1: u64 = 1 << 6;
    pub const IRGN0_WRITE_BACK: u64 = 1 << 8;
    pub const ORGN0_WRITE_BACK: u64 = 1 << 10;
    pub const SH0_INNER_SHAREABLE: u64 = 3 << 12;
    /// TG0 0: 4 KiB; VS 0: 8-bit VMID.
    pub const RES1: u64 = 1 << 31;
}

/// VTCR_EL2 without PS.
const VTCR: u64 = vtcr::RES1
    | vtcr::SH0_INNER_SHAREABLE
    | vtcr::ORGN0_WRITE_BACK
    | vtcr::IRGN0_WRITE_BACK
    | vtcr::SL0_LEVEL_1
    | vtcr::T0SZ_39_BITS;
/// SCTLR_EL1 at reset: RES1 bits only; MMU and caches off, little endian.
const SCTLR_EL1: u64 = 0x30d0_0800;
/// SPSR_EL2 of a vCPU that starts: EL1h, DAIF masked.
const START: u64 = 0x3c5;

/// The affinity fields of an MPIDR.
pub const AFFINITY: u64 = 0xff_00ff_ffff;

/// Sleeps forever.
pub fn halt() -> ! {
    loop {
        wait();
    }
}

/// Waits for an interrupt. With DAIF masked a pending interrupt ends the wait and is not taken.
pub fn wait() {
    // SAFETY: [R-SYSREG] a hint.
    unsafe { core::arch::asm!("dsb sy", "wfi", options(nostack, preserves_flags)) }
}

/// Waits for an event (WFE).
#[cfg(not(feature = "gicv2"))]
pub fn wait_for_event() {
    // SAFETY: [R-SYSREG] a hint.
    unsafe { core::arch::asm!("wfe", options(nostack, preserves_flags)) }
}

/// Hints that other CPUs may run first (YIELD): an emulator that runs its CPUs in turns switches to
/// the next.
pub fn let_others() {
    // SAFETY: [R-SYSREG] a hint.
    unsafe { core::arch::asm!("yield", options(nostack, preserves_flags)) }
}

/// Returns the affinity of this pCPU.
pub fn affinity() -> u64 {
    read!("mpidr_el1") & AFFINITY
}

/// Returns the additional work of a switch between vCPUs that this core needs and most do not, as
/// the bits that `switch.s` tests. Must run before any guest.
pub fn switch_quirks() -> u64 {
    let walks = errata::walks_by_speculation(read!("midr_el1"));
    u64::from(has_auxiliary_registers()) | u64::from(walks) << 1
}

/// Whether AMAIR_EL1, AFSR0_EL1 or AFSR1_EL1 of this core hold any bits. Each implementation defines
/// the use of these registers (DDI 0487, D19.2).
fn has_auxiliary_registers() -> bool {
    write!("amair_el1", u64::MAX);
    write!("afsr0_el1", u64::MAX);
    write!("afsr1_el1", u64::MAX);
    isb();
    let held = read!("amair_el1") | read!("afsr0_el1") | read!("afsr1_el1");
    write!("amair_el1", 0);
    write!("afsr0_el1", 0);
    write!("afsr1_el1", 0);
    isb();
    held != 0
}

/// The number of event counters of this CPU (PMCR_EL0.N).
pub fn event_counters() -> u64 {
    read!("pmcr_el0") >> 11 & 31
}

/// The colours of this CPU's last cache, where its row counts on another number, or on another level to be the last. `None` if nothing is to be
/// compared, or if the CPU does not tell of a cache of that level.
#[inline(never)]
pub fn other_colours(row: &Pcpu) -> Option<u32> {
    let wanted = u32::from(row.cache_level.checked_sub(1)?);
    // CLIDR_EL1.Ctype1 to Ctype7, three bits each.
    let kinds = read!("clidr_el1") & 0x1f_ffff;
    let last = kinds.checked_ilog2()? / 3;
    write!("csselr_el1", u64::from(last) << 1);
    isb();
    let wide = read!("id_aa64mmfr2_el1") >> 20 & 15 != 0;
    let found = colours::of_cache(read!("ccsidr_el1"), wide);
    (last > wanted || last == wanted && found != row.colours).then_some(found)
}

/// Starts the cycle counter, which belongs to EL2: it has 64 bits and counts at EL2 too.
fn start_cycle_counter() {
    write!("mdcr_el2", MDCR | event_counters());
    write!("pmccfiltr_el0", 1 << 27);
    // Enable, reset, 64 bits.
    write!("pmcr_el0", 1 | 1 << 2 | 1 << 6);
    write!("pmcntenset_el0", 1 << 31);
}

/// Returns a field of four bits of an ID register.
const fn field(register: u64, low: u32) -> u64 {
    register >> low & 15
}

/// Closes newer features of EL2, where they exist: features that they could give a guest stay off,
/// and what they can trap is trapped. Firmware lets EL2 access their registers, as it does for
/// Linux (Documentation/arch/arm64/booting.rst). Returns the bits that this CPU adds to [`HCR`].
fn close_newer_features() -> u64 {
    let (pfr0, pfr1) = (read!("id_aa64pfr0_el1"), read!("id_aa64pfr1_el1"));
    let (mmfr0, mmfr1) = (read!("id_aa64mmfr0_el1"), read!("id_aa64mmfr1_el1"));
    let dfr0 = read!("id_aa64dfr0_el1");
    let mmfr3 = read!("id_aa64mmfr3_el1");
    if field(mmfr1, 40) != 0 {
        // With 0: MOPS, LS64, GCS, FPMR, 128-bit registers, TCR2_EL1 and SCTLR2_EL1 are trapped
        // or undefined. TALLINT, which traps, if there are NMIs.
        let nmi = if field(pfr1, 36) != 0 { 1 << 6 } else { 0 };
        write!(HCRX_EL2, nmi);
    }
    // Fine-grained traps. Newer bits trap where they are 0: POR, PIR, GCS, TPIDR2_EL0, SMPRI_EL1,
    // ACCDATA_EL1, branch records. What the older bits could trap is trapped by older means.
    if field(mmfr0, 56) != 0 {
        write!(HFGRTR_EL2, 0);
        write!(HFGWTR_EL2, 0);
        write!(HFGITR_EL2, 0);
        write!(HDFGRTR_EL2, 0);
        write!(HDFGWTR_EL2, 0);
    }
    if field(mmfr0, 56) > 1 {
        write!(HFGRTR2_EL2, 0);
        write!(HFGWTR2_EL2, 0);
        write!(HFGITR2_EL2, 0);
        write!(HDFGRTR2_EL2, 0);
        write!(HDFGWTR2_EL2, 0);
    }
    // EL2 does not use these registers.
    if field(mmfr3, 0) != 0 {
        write!("tcr2_el2", 0);
    }
    if field(mmfr3, 4) != 0 {
        write!("sctlr2_el2", 0);
    }
    if field(pfr0, 40) != 0 || field(pfr1, 16) != 0 {
        // TRAPMPAM0EL1, TRAPMPAM1EL1, TIDR; TRAP_MPAMIDR_EL1 if MPAMIDR_EL1.HAS_HCR.
        write!("mpam2_el2", 1 << 48 | 1 << 49 | 1 << 58);
        if read!("mpamidr_el1") & 1 << 17 != 0 {
            write!("mpamhcr_el2", 1 << 31);
        }
    }
    // Profiling and tracing are off.
    if field(dfr0, 32) != 0 {
        write!(PMSCR_EL2, 0);
    }
    if field(dfr0, 40) != 0 {
        write!(TRFCR_EL2, 0);
    }
    // The guest reads VDISR_EL2 as DISR_EL1.
    if field(pfr0, 28) != 0 {
        write!(VDISR_EL2, 0);
    }
    // HCR_EL2.TID5: GMID_EL1, if there are memory tags. TID1: SMIDR_EL1, if there is SME.
    let tags = if field(pfr1, 8) > 1 { hcr::TID5 } else { 0 };
    let matrices = if field(pfr1, 24) != 0 { hcr::TID1 } else { 0 };
    tags | matrices
}

/// Whether this CPU has the counters that the exit statistics need (ID_AA64DFR0_EL1.PMUVer).
pub fn has_cycle_counter() -> bool {
    !matches!(field(read!("id_aa64dfr0_el1"), 8), 0 | 15)
}

/// Sets the traps of this pCPU, once, before it runs a guest.
pub fn start() {
    let newer = close_newer_features();
    write!("hcr_el2", HCR | newer);
    write!("cptr_el2", CPTR);
    write!("hstr_el2", 0);
    // Set here, because it is not in the state that a vCPU carries to another pCPU.
    write!("vpidr_el2", read!("midr_el1"));
    let range = (read!("id_aa64mmfr0_el1") & 15).min(5);
    write!("vtcr_el2", VTCR | range << 16);
    start_cycle_counter();
    isb();
}

/// What the guarded vectors of each pCPU do first: nothing, so many branches, or a function of the firmware, whose identifier has bit 31.
#[unsafe(no_mangle)]
static BOUNDARIES: [AtomicU32; MAX_PCPUS] = [const { AtomicU32::new(0) }; MAX_PCPUS];

unsafe extern "C" {
    fn guarded_vectors();
}

/// Has this pCPU guard its boundary, before it runs a guest.
pub fn guard_boundary(boundary: Boundary) {
    let what = match boundary {
        Boundary::Nothing => return,
        Boundary::Branches(count) => count,
        Boundary::Firmware(function) => function,
    };
    layout::of_pcpu(&BOUNDARIES, sysreg::thread()).store(what, Ordering::Relaxed);
    use_guarded_vectors();
    isb();
}

/// Gives this pCPU the guarded vectors.
pub fn use_guarded_vectors() {
    let vectors: unsafe extern "C" fn() = guarded_vectors;
    write!("vbar_el2", vectors as *const () as u64);
}

/// Which instructions that wait trap, as the two bits of HCR_EL2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits(u64);

impl Waits {
    /// WFI, and WFE.
    #[inline(always)]
    pub const fn new(wfi: bool, wfe: bool) -> Self {
        Self((wfi as u64 * hcr::TWI) | (wfe as u64 * hcr::TWE))
    }

    /// Has them trap on this pCPU, and no others.
    pub fn set(self) {
        let rest = read!("hcr_el2") & !(hcr::TWI | hcr::TWE);
        write!("hcr_el2", rest | self.0);
        isb();
    }
}

/// Installs a vCPU on this pCPU: stage 2, identity, and EL1 as after a reset.
pub fn install(vmid: u16, root: u64, mpidr: u64, entry: u64) {
    // No walk by speculation mixes two VMs (`core::cpu::errata`): first no walks (EPD0 and EPD1), then
    // stage 1 on, until all registers are those of the new one; in the opposite order at the end.
    write!("tcr_el1", 1 << 7 | 1 << 23);
    isb();
    write!("sctlr_el1", SCTLR_EL1 | 1);
    isb();
    write!("vttbr_el2", u64::from(vmid) << 48 | root);
    write!("vmpidr_el2", mpidr | 1 << 31);
    write!("ttbr0_el1", 0);
    write!("ttbr1_el1", 0);
    write!("mair_el1", 0);
    write!("amair_el1", 0);
    write!("vbar_el1", 0);
    write!("cpacr_el1", 0);
    write!("contextidr_el1", 0);
    write!("esr_el1", 0);
    write!("far_el1", 0);
    write!("afsr0_el1", 0);
    write!("afsr1_el1", 0);
    write!("elr_el1", 0);
    write!("spsr_el1", 0);
    write!("sp_el0", 0);
    write!("sp_el1", 0);
    write!("tpidr_el0", 0);
    write!("tpidrro_el0", 0);
    write!("tpidr_el1", 0);
    write!("par_el1", 0);
    write!("csselr_el1", 0);
    write!("cntkctl_el1", 0);
    write!("cntv_ctl_el0", 0);
    write!("cntv_cval_el0", 0);
    write!("cntp_ctl_el0", 0);
    write!("mdscr_el1", 0);
    isb();
    write!("sctlr_el1", SCTLR_EL1);
    isb();
    write!("tcr_el1", 0);
    write!("elr_el2", entry);
    write!("spsr_el2", START);
    // SAFETY: [R-TLB] nothing of this VMID has run here; stale entries of a former boot must go.
    unsafe {
        core::arch::asm!(
            "isb",
            "tlbi vmalls12e1",
            "ic iallu",
            "dsb nsh",
            "isb",
            options(nostack)
        )
    }
}

unsafe extern "C" {
    fn start_guest(state: u64) -> !;
    safe fn take_serror() -> u64;
}

/// Takes the SError that is pending, and returns its syndrome as ESR_EL2 has it; 0 if there is none.
#[cold]
#[inline(never)]
pub fn serror() -> u64 {
    take_serror()
}

/// Enters the guest for the first time. `frame` is the address of the vCPU's register frame, which
/// is where its stack starts.
pub fn enter(frame: u64) -> ! {
    // SAFETY: [R-ENTER] the frame lies at the start of the vCPU's state, above its stack; this
    // function never returns, so nothing on the stack is needed.
    unsafe { start_guest(frame) }
}

/// Reads the EL1 state that decides how an exception enters the guest.
pub fn before() -> Before {
    Before {
        pc: read!("elr_el2"),
        spsr: read!("spsr_el2"),
        vbar: read!("vbar_el1"),
        sctlr: read!("sctlr_el1"),
        features: Features {
            pan: field(read!("id_aa64mmfr1_el1"), 20) != 0,
            ssbs: field(read!("id_aa64pfr1_el1"), 4) != 0,
            mte2: field(read!("id_aa64pfr1_el1"), 8) >= 2,
            nmi: field(read!("id_aa64pfr1_el1"), 36) != 0,
        },
    }
}

/// Reads the state that tells whether an interrupt has taken the guest to its vector.
pub fn entered() -> bulkhead_core::gppt::Entered {
    bulkhead_core::gppt::Entered {
        pc: read!("elr_el2"),
        spsr: read!("spsr_el2"),
        vbar: read!("vbar_el1"),
        elr: read!("elr_el1"),
        saved: read!("spsr_el1"),
    }
}

/// Sets the address and the PSTATE with which the guest continues.
pub fn go_back(pc: u64, spsr: u64) {
    write!("elr_el2", pc);
    write!("spsr_el2", spsr);
}

/// Reads the EL1 registers for the monitor, in the order of its names.
pub fn el1_registers() -> [u64; EL1_COUNT] {
    [
        read!("sctlr_el1"),
        read!("tcr_el1"),
        read!("mair_el1"),
        read!("ttbr0_el1"),
        read!("ttbr1_el1"),
        read!("vbar_el1"),
        read!("elr_el1"),
        read!("spsr_el1"),
        read!("esr_el1"),
        read!("far_el1"),
        read!("sp_el1"),
        read!("sp_el0"),
        read!("tpidr_el1"),
        read!("cpacr_el1"),
        read!("contextidr_el1"),
    ]
}

/// Returns the physical address behind an address of the guest of this pCPU, if the guest, at EL0
/// or EL1, may read there. The guest's PAR_EL1 does not change.
#[inline]
pub fn translate(address: u64, el0: bool) -> Option<u64> {
    let kept = read!("par_el1");
    if el0 {
        // SAFETY: [R-SYSREG] a translation changes PAR_EL1 only, which is restored below.
        unsafe {
            core::arch::asm!("at s12e0r, {}", "isb", in(reg) address, options(nostack, preserves_flags));
        }
    } else {
        // SAFETY: [R-SYSREG] a translation changes PAR_EL1 only, which is restored below.
        unsafe {
            core::arch::asm!("at s12e1r, {}", "isb", in(reg) address, options(nostack, preserves_flags));
        }
    }
    let found = read!("par_el1");
    write!("par_el1", kept);
    (found & 1 == 0).then_some(found & 0xf_ffff_ffff_f000 | address & 0xfff)
}

/// Whether the guest of this pCPU was at EL0 when it came to EL2.
pub fn came_from_el0() -> bool {
    read!("spsr_el2") & 15 == 0
}

/// Reads the ID registers that say what this CPU needs against speculation attacks.
pub fn speculation() -> smccc::Cpu {
    smccc::Cpu {
        midr: read!("midr_el1"),
        pfr0: read!("id_aa64pfr0_el1"),
        pfr1: read!("id_aa64pfr1_el1"),
        mmfr1: read!("id_aa64mmfr1_el1"),
        // ID_AA64ISAR2_EL1
        isar2: read!("id_aa64isar2_el1"),
    }
}

/// Writes the registers for an exception that the guest takes.
pub fn apply(after: &After) {
    write!("elr_el2", after.pc);
    write!("spsr_el2", after.spsr);
    write!("elr_el1", after.elr);
    write!("spsr_el1", after.saved);
    write!("esr_el1", after.esr);
    if let Some(far) = after.far {
        write!("far_el1", far);
    }
}

macro_rules! read_id {
    ($crm:literal, $op2:literal) => {{
        let value: u64;
        // SAFETY: [R-SYSREG] ID registers read without effect; unallocated ones read as zero.
        unsafe {
            core::arch::asm!(
                concat!("mrs {}, S3_0_C0_C", $crm, "_", $op2),
                out(reg) value, options(nomem, nostack, preserves_flags)
            );
        }
        value
    }};
}

macro_rules! id_registers {
    ($($crm:literal)*) => { [$(
        read_id!($crm, 0), read_id!($crm, 1),
        read_id!($crm, 2), read_id!($crm, 3),
        read_id!($crm, 4), read_id!($crm, 5),
        read_id!($crm, 6), read_id!($crm, 7),
    )*] };
}

/// Reads the ID registers of this pCPU: CRm 1 to 7, op2 0 to 7.
pub fn id_registers() -> [u64; ID_REGISTERS] {
    id_registers!(1 2 3 4 5 6 7)
}
