//! Searches the target `description`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    bulkhead_fuzz::main(&bulkhead_fuzz_host::targets::description::TARGET)
}
