//! Searches the target `stage2`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    bulkhead_fuzz::main(&bulkhead_fuzz::targets::stage2::TARGET)
}
