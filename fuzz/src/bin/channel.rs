//! Searches the target `channel`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    bulkhead_fuzz::main(&bulkhead_fuzz::targets::channel::TARGET)
}
