//! Parts that a plan has in JSON whether it was just made or read from its bytes. Addresses are
//! strings, because numbers of JSON readers lose their lowest bits.

use std::borrow::Cow;

use bulkhead_model::describe::CpuTime;
use serde::{Serialize, Serializer};

/// An address.
#[derive(Clone, Copy)]
pub(super) struct Hex(pub u64);

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

/// A range of physical addresses.
#[derive(Serialize)]
pub(super) struct Range {
    pub pa: Hex,
    pub size: u64,
}

/// Share of its CPU that each vCPU of a VM may use. `Cpus` holds those among which it may be moved.
#[derive(Serialize)]
#[serde(tag = "policy", rename_all = "lowercase")]
pub(super) enum Time<Cpus> {
    Pinned,
    Rt {
        budget_ns: u64,
        period_ns: u64,
    },
    Fair {
        weight: u16,
        cap: Option<Cap>,
        pool: Cpus,
    },
}

impl<Cpus> Time<Cpus> {
    /// The share that a CPU time gives; `pool` counts for one that is fair.
    pub fn of(time: CpuTime, pool: Cpus) -> Self {
        match time {
            CpuTime::Pinned => Self::Pinned,
            CpuTime::Server { budget, period } => Self::Rt {
                budget_ns: budget,
                period_ns: period,
            },
            CpuTime::Fair {
                weight,
                quota,
                period,
            } => Self::Fair {
                weight,
                cap: Cap::of(quota, period),
                pool,
            },
        }
    }
}

/// The most that a fair vCPU gets in each period of its cap.
#[derive(Serialize)]
pub(super) struct Cap {
    quota_ns: u64,
    #[serde(rename = "window_ns")]
    period_ns: u64,
}

impl Cap {
    /// Returns the cap; `None` if the quota is the whole period.
    pub fn of(quota_ns: u64, period_ns: u64) -> Option<Self> {
        (quota_ns < period_ns).then_some(Self {
            quota_ns,
            period_ns,
        })
    }
}

/// Limit on restarts of a VM.
#[derive(Serialize)]
pub(super) struct Again {
    most: u16,
    seconds: u16,
}

impl Again {
    /// Returns the limit of `most` restarts in `seconds`; `None`: without a limit.
    pub fn of(most: u16, seconds: u16) -> Option<Self> {
        (most > 0).then_some(Self { most, seconds })
    }
}

/// Action when a VM crashes.
#[derive(Serialize)]
#[serde(tag = "policy", rename_all = "lowercase")]
pub(super) enum Crash<'a> {
    Halt,
    Restart { most: u16, seconds: u16 },
    Notify { vm: Cow<'a, str> },
}

/// IPAs of a guest's interrupt controller.
#[derive(Serialize)]
pub(super) struct Gic {
    gicd: Hex,
    /// Of a GICv3.
    #[serde(skip_serializing_if = "Option::is_none")]
    gicr: Option<Hex>,
    /// Of a GICv2.
    #[serde(skip_serializing_if = "Option::is_none")]
    gicc: Option<Hex>,
}

impl Gic {
    pub fn v2(gicd: u64, gicc: u64) -> Self {
        Self {
            gicd: Hex(gicd),
            gicr: None,
            gicc: Some(Hex(gicc)),
        }
    }

    pub fn v3(gicd: u64, gicr: u64) -> Self {
        Self {
            gicd: Hex(gicd),
            gicr: Some(Hex(gicr)),
            gicc: None,
        }
    }
}

/// A range that a VM's stage 2 maps.
#[derive(Serialize)]
pub(super) struct Mapped<'a> {
    pub what: Cow<'a, str>,
    pub ipa: Hex,
    pub pa: Hex,
    pub size: u64,
    pub access: &'static str,
    /// None: it has all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub colours: Option<String>,
}

/// Limit of accesses to memory, of each vCPU.
#[derive(Serialize)]
pub(super) struct Accesses {
    /// In each period.
    pub most: u32,
    pub period_ns: u64,
    /// Name of what is counted; none: no name is known.
    pub event: Option<&'static str>,
}

/// A device that EL2 emulates.
#[derive(Serialize)]
pub(super) struct Emulated {
    /// None: this version knows no such device.
    pub kind: Option<&'static str>,
    pub ipa: Hex,
    pub size: u64,
    pub vintid: u32,
}

/// A write that quiets a device.
#[derive(Serialize)]
pub(super) struct Quiet<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<&'a str>,
    pub pa: Hex,
    pub width: u16,
    pub value: u32,
}
