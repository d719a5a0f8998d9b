//! Searches the target `clocks`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    bulkhead_fuzz::main(&bulkhead_fuzz::targets::clocks::TARGET)
}
