//! HVC and SMC: every function identifier has an answer.

use bulkhead_core::psci::{Call, answer, call};

use crate::Target;
use crate::engine::Input;

pub const TARGET: Target = Target {
    name: "calls",
    seeds,
    words: &[],
    run,
};

fn seeds() -> Vec<Vec<u8>> {
    let functions = (0..0x20).flat_map(|n| [0x8400_0000_u32 + n, 0xc400_0000 + n]);
    functions
        .chain([0x8000_0000, 0x8000_0001, 0xc600_0001, 0x0200_0000])
        .map(|function| {
            let mut bytes = function.to_le_bytes().to_vec();
            bytes.extend([0; 24]);
            bytes
        })
        .collect()
}

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let function = input.u32();
    let args = [input.u64(), input.u64(), input.u64()];
    let own = u64::from(input.u8() & 7);
    let Call::Answer(answer) = call(function, args, own) else {
        // Only PSCI stops a VM.
        assert_eq!(function & 0xbfff_ff00, 0x8400_0000, "{function:#x}");
        return;
    };
    // Fast calls of Arm's architecture and of the secure monitor are all that there is (DEN0028E, 6).
    let owner = function >> 24 & 0x3f;
    let offered = function >> 31 != 0 && (owner == 0 || owner == 4) && function & 0x00ff_0000 == 0;
    assert!(
        offered || answer == answer::NOT_SUPPORTED,
        "{function:#x}: {answer:#x}"
    );
}
