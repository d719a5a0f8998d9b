//! Searches the target `boot-tree`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    bulkhead_fuzz::main(&bulkhead_fuzz_host::targets::boot_tree::TARGET)
}
