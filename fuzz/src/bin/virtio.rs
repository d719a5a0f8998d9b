//! Searches the target `virtio`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    bulkhead_fuzz::main(&bulkhead_fuzz::targets::virtio::TARGET)
}
