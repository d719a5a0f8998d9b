//! Functions of EL2 by address.

use serde::{Deserialize, Serialize};

/// A function of EL2.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Symbol {
    /// Linked address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Name for people.
    pub name: String,
}

/// Puts `symbols` in the order that [`find`] needs.
pub fn sorted(mut symbols: Vec<Symbol>) -> Vec<Symbol> {
    symbols.sort_by_key(|symbol| symbol.address);
    symbols
}

/// Index of the function that has `address`, in symbols that are [`sorted`].
pub fn find(symbols: &[Symbol], address: u64) -> Option<usize> {
    let after = symbols.partition_point(|symbol| symbol.address <= address);
    let index = after.checked_sub(1)?;
    let symbol = symbols.get(index)?;
    (address - symbol.address < symbol.size).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_function_around_it() {
        let symbol = |address, size| Symbol {
            address,
            size,
            name: String::new(),
        };
        let symbols = sorted(vec![symbol(0x200, 0x10), symbol(0x100, 0x20)]);
        assert_eq!(find(&symbols, 0xff), None);
        assert_eq!(find(&symbols, 0x100), Some(0));
        assert_eq!(find(&symbols, 0x11f), Some(0));
        assert_eq!(find(&symbols, 0x120), None);
        assert_eq!(find(&symbols, 0x208), Some(1));
    }
}
