//! Values as a description has them.

use bulkhead_model::describe::Size;

/// Bytes of a MiB.
pub(super) const MIB: u64 = 1 << 20;

/// A word of TOML with quotes.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A size as descriptions write it.
pub(super) fn memory_text(bytes: u64) -> String {
    Size(bytes).to_string().replace(' ', "")
}
