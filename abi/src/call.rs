//! Calls of a guest to Bulkhead itself: the vendor-specific hypervisor service range of the SMC Calling
//! Convention (DEN0028E, 6.1), by HVC. A VM whose plan row names no `event_intid` has no use for them.

/// Call UID: w0 to w3 become [`UID`]. A guest finds out with it whether it runs on Bulkhead.
pub const CALL_UID: u32 = 0x8600_ff01;
/// Revision: w0 becomes [`REVISION`]'s major, w1 its minor number.
pub const CALL_REVISION: u32 = 0x8600_ff03;
/// Next VM that has ended, of those that this VM is told of: see [`EVENT_NONE`]. x1 and x2 become its name (16 bytes,
/// padded with 0), x3 the reason ([`End`] as number). Each end is told once; asking again gives the next.
pub const CALL_EVENT: u32 = 0xc600_0001;
/// Yield: the caller waits for another vCPU, perhaps of its own VM, which goes first if it is ready on the same pCPU. Does what
/// WFE does where CPUs trap it. x0 becomes 0.
pub const CALL_YIELD: u32 = 0xc600_0002;

/// x0 after [`CALL_EVENT`]: no VM has ended that was not told before. Otherwise x0 is 0.
pub const EVENT_NONE: u64 = -1i64 as u64;

/// d98f1d42-7a5b-4e0e-9c0f-6b756c6b6864, as the words that the calling convention returns.
pub const UID: [u32; 4] = [0x421d_8fd9, 0x0e4e_5b7a, 0x756b_0f9c, 0x6468_6b6c];

/// Major and minor number of these calls.
pub const REVISION: [u32; 2] = [1, 1];

/// Reason for the end of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum End {
    /// SYSTEM_OFF.
    Off = 1,
    /// SYSTEM_RESET or SYSTEM_RESET2.
    Reset = 2,
    /// CPU_OFF of the last vCPU that was on.
    LastCpuOff = 3,
    /// It crashed: a fault that it could not take, or an SError.
    Crash = 4,
    /// Its watchdog was not refreshed.
    Watchdog = 5,
    /// Somebody with authority stopped it.
    Ordered = 6,
    /// Somebody with authority restarts it.
    OrderedRestart = 7,
    /// Somebody with authority has asked it to stop, and it did not in its time.
    Overdue = 8,
}

impl End {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Off,
        Self::Reset,
        Self::LastCpuOff,
        Self::Crash,
        Self::Watchdog,
        Self::Ordered,
        Self::OrderedRestart,
        Self::Overdue,
    ];

    /// The reason with this number; [`Self::Crash`] if there is none.
    pub fn of(number: u32) -> Self {
        // All of them in the order of their numbers, from 1.
        let found = Self::ALL.get(number.wrapping_sub(1) as usize);
        *found.unwrap_or(&Self::Crash)
    }

    /// Somebody with authority has ordered it.
    pub const fn is_order(self) -> bool {
        matches!(self, Self::Ordered | Self::OrderedRestart)
    }

    /// A VM that stays stopped has ended as its guest has asked for. A reset is no such end: the VM has been
    /// reset too often.
    pub const fn is_orderly(self) -> bool {
        matches!(self, Self::Off | Self::LastCpuOff)
    }

    /// Its words on the console.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Off => "power off",
            Self::Reset => "reset requested",
            Self::LastCpuOff => "its last CPU went off",
            Self::Crash => "crash",
            Self::Watchdog => "its watchdog was not refreshed",
            Self::Ordered => "ordered to stop",
            Self::OrderedRestart => "ordered to restart",
            Self::Overdue => "asked to stop, and did not in time",
        }
    }
}
