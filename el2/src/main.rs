//! The privileged binary.
fn main() {}
