//! The firmware of a board: what a description or a `board.toml` says of it, and what a device tree tells.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::tree::{Entry, Tree};

/// What runs at EL3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Firmware {
    /// Nothing: the GIC has one Security state.
    None,
    /// Firmware of which no more is known than PSCI, and two Security states.
    El3,
    /// Firmware of which it is known whether it has events, such as Trusted Firmware.
    TrustedFirmware {
        /// It has events.
        sdei: bool,
    },
}

impl Firmware {
    /// All there are.
    pub const ALL: [Self; 4] = [
        Self::None,
        Self::El3,
        Self::TrustedFirmware { sdei: true },
        Self::TrustedFirmware { sdei: false },
    ];

    /// The word for it in a description, a `board.toml` and on a command line.
    pub const fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::El3 => "el3",
            Self::TrustedFirmware { sdei: true } => "tf-a",
            Self::TrustedFirmware { sdei: false } => "tf-a-no-sdei",
        }
    }

    /// The firmware for which this is the word.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.word() == word)
    }

    /// The words for all of them.
    pub fn words() -> String {
        Self::ALL.map(Self::word).join(", ")
    }

    /// Whether the board has two Security states.
    pub fn is_present(self) -> bool {
        self != Self::None
    }

    /// Whether it has events (SDEI); none: that is not known.
    pub const fn has_events(self) -> Option<bool> {
        match self {
            Self::None => Some(false),
            Self::El3 => None,
            Self::TrustedFirmware { sdei } => Some(sdei),
        }
    }

    /// What it is, for a user who has to choose.
    pub const fn about(self) -> &'static str {
        match self {
            Self::None => "nothing at EL3: one Security state",
            Self::El3 => "firmware at EL3, of which no more is known than PSCI",
            Self::TrustedFirmware { sdei: true } => "firmware at EL3 with events (SDEI)",
            Self::TrustedFirmware { sdei: false } => "firmware at EL3 without events",
        }
    }

    /// What follows from it for hard real-time VMs.
    pub const fn follows(self) -> &'static str {
        match self {
            Self::None => {
                "EL2 has Group 0, and every GPPT mode of the board's GIC is there; it refuses a board that has two Security states after all"
            }
            Self::El3 => {
                "Group 0 is the firmware's: gppt-pmr-direct is refused, and whether reclaim = \"sdei\" works EL2 sees when it starts"
            }
            Self::TrustedFirmware { sdei: true } => {
                "Group 0 is the firmware's: gppt-pmr-direct is refused; on a GICv3 reclaim = \"sdei\" gets a CPU back whatever a guest masks"
            }
            Self::TrustedFirmware { sdei: false } => {
                "Group 0 is the firmware's: gppt-pmr-direct is refused, and reclaim = \"sdei\" does not work"
            }
        }
    }
}

impl TryFrom<String> for Firmware {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        let unknown = || {
            format!(
                "there is no firmware `{word}`; it is one of {}",
                Self::words()
            )
        };
        Self::named(&word).ok_or_else(unknown)
    }
}

impl Serialize for Firmware {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

/// A node of a device tree that tells something of the firmware.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sign {
    /// Path of the node.
    pub path: String,
    /// What it tells.
    pub what: String,
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, what } = self;
        write!(f, "{path}: {what}")
    }
}

/// What a device tree tells of the firmware.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FirmwareTold {
    /// Instruction by which PSCI is called, `smc` or `hvc`; none: the tree has no PSCI.
    pub psci: Option<String>,
    /// Node of events (SDEI).
    pub sdei: Option<Sign>,
    /// Nodes that tell of firmware at EL3; none: that there is some is not told.
    pub el3: Vec<Sign>,
    /// Node that tells that there is none.
    pub nothing: Option<Sign>,
}

/// Words of `compatible` that are firmware's, and what they are.
const KNOWN: [(&str, &str); 4] = [
    ("linaro,optee-tz", "OP-TEE, which runs in the Secure state"),
    ("arm,sdei-1.0", "events of firmware (SDEI)"),
    ("xlnx,zynqmp-firmware", "firmware of a ZynqMP"),
    ("arm,scmi-smc", "SCMI by calls of firmware"),
];

/// Beginnings of names of memory that is kept for firmware at EL3 or software in the Secure state.
const KEPT: [&str; 8] = [
    "atf", "bl31", "bl32", "optee", "secmon", "secure", "tf-a", "tfa",
];

/// Words of `compatible` of the board that QEMU makes up. QEMU's own tree says what is Secure, and PSCI is QEMU.
const MADE_UP: &str = "linux,dummy-virt";

impl FirmwareTold {
    /// Reads it.
    pub fn read(tree: &Tree) -> Self {
        let psci = tree.entries.iter().find(|entry| is_psci(entry));
        let sdei = tree
            .entries
            .iter()
            .find(|entry| entry.is("arm,sdei-1.0") && entry.is_enabled());
        let made_up = tree.entries.first().is_some_and(|root| root.is(MADE_UP));
        let el3: Vec<Sign> = tree
            .entries
            .iter()
            .filter_map(|entry| {
                let what = sign(entry, made_up)?;
                Some(Sign {
                    path: entry.path.clone(),
                    what,
                })
            })
            .collect();
        let nothing = (made_up && el3.is_empty()).then(|| Sign {
            path: "/".to_owned(),
            what: format!("{MADE_UP}, the board that QEMU makes up, with nothing Secure"),
        });
        Self {
            psci: psci.and_then(|psci| psci.text("method")),
            sdei: sdei.map(|sdei| Sign {
                path: sdei.path.clone(),
                what: "events of firmware (SDEI)".to_owned(),
            }),
            el3,
            nothing,
        }
    }

    /// The firmware that the tree tells of; none: it does not tell whether there is some.
    pub fn firmware(&self) -> Option<Firmware> {
        match (&self.sdei, self.el3.first(), &self.nothing) {
            (Some(_), _, _) => Some(Firmware::TrustedFirmware { sdei: true }),
            (None, Some(_), _) => Some(Firmware::El3),
            (None, None, Some(_)) => Some(Firmware::None),
            (None, None, None) => None,
        }
    }

    /// The firmware for which a plan is made if nobody says more: most boards have some.
    pub fn assumed(&self) -> Firmware {
        self.firmware().unwrap_or(Firmware::El3)
    }

    /// The node that contradicts what is said of the firmware.
    pub fn against(&self, said: Firmware) -> Option<&Sign> {
        match said {
            Firmware::None => self.el3.first(),
            Firmware::TrustedFirmware { sdei: false } => self.sdei.as_ref(),
            _ => None,
        }
    }

    /// Why EL2 cannot call PSCI.
    pub fn out_of_reach(&self) -> Option<String> {
        let hvc = self.psci.as_deref() == Some("hvc");
        hvc.then(|| "its firmware is called by `hvc`, which at EL2 goes to EL2 itself".to_owned())
    }

    /// The nodes from which [`Self::firmware`] is known.
    pub fn signs(&self) -> impl Iterator<Item = &Sign> {
        self.el3.iter().chain(&self.nothing)
    }
}

fn is_psci(entry: &Entry) -> bool {
    let words = ["arm,psci-1.0", "arm,psci-0.2", "arm,psci"];
    words.iter().any(|word| entry.is(word)) && entry.is_enabled()
}

/// What a node tells of firmware at EL3. On a board that is `made_up` calls go to QEMU.
fn sign(entry: &Entry, made_up: bool) -> Option<String> {
    // Disabled for the Non-secure side, and not for the other.
    if entry
        .text("secure-status")
        .is_some_and(|status| status == "okay")
    {
        return Some("it is the Secure side's (`secure-status`)".to_owned());
    }
    if let Some(name) = entry.path.strip_prefix("/reserved-memory/") {
        let kept = KEPT.iter().any(|start| name.starts_with(start));
        return kept.then(|| "memory that is kept for the Secure side".to_owned());
    }
    if !entry.is_enabled() {
        return None;
    }
    if let Some((_, what)) = KNOWN.iter().find(|(word, _)| entry.is(word)) {
        return Some((*what).to_owned());
    }
    let calls = is_psci(entry) && entry.text("method").is_some_and(|method| method == "smc");
    (calls && !made_up).then(|| "PSCI, called by `smc`, which goes to EL3".to_owned())
}
