//! Configuration of the sanitizer: the places of EL2's code, and the file for findings.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Symbol;

/// Configuration, as JSON in the file that the plugin's `config=` names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Path of the file to which a [`super::Record`] is added for each thing that happens.
    pub output: PathBuf,
    /// Places at which EL2's code runs.
    pub code: Vec<Code>,
    /// Functions of EL2, by linked address.
    pub symbols: Vec<Symbol>,
    /// Physical address of GICD_SGIR, on a board with a GICv2.
    pub sgir: Option<u64>,
    /// Physical address of GICC_IAR, on a board with a GICv2.
    pub iar: Option<u64>,
    /// Frames of the GIC that have active states.
    pub active: Vec<Active>,
}

/// A frame of the GIC with registers that set and clear active states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Active {
    /// Physical address of its first byte.
    pub base: u64,
    /// Bytes.
    pub size: u64,
    /// Offset of the first of these registers, which take 256 bytes: GICD_ISACTIVER0 or GICR_ISACTIVER0.
    pub offset: u64,
}

/// A place at which EL2's code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Code {
    /// First address as it is executed.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Linked address of `start`.
    pub linked: u64,
}

impl Config {
    /// Whether EL2's code runs at `address`, if it is EL2 that runs there.
    pub fn has_code(&self, address: u64) -> bool {
        self.link_address(address).is_some()
    }

    /// The linked address of code at `address`.
    fn link_address(&self, address: u64) -> Option<u64> {
        let mut code = self.code.iter();
        let code = code.find(|code| (code.start..code.end).contains(&address))?;
        Some(address - code.start + code.linked)
    }

    /// The function at `address`, and how far into it.
    pub fn name(&self, address: u64) -> String {
        let Some(linked) = self.link_address(address) else {
            return "?".to_owned();
        };
        let symbol = crate::find(&self.symbols, linked);
        match symbol.and_then(|index| self.symbols.get(index)) {
            Some(symbol) => format!("{}+{:#x}", symbol.name, linked - symbol.address),
            None => "?".to_owned(),
        }
    }
}
