//! Searches the target `control`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    bulkhead_fuzz::main(&bulkhead_fuzz_host::targets::control::TARGET)
}
