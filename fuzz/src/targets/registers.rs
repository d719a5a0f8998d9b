//! Trapped system registers: every encoding has an answer, and ID registers show no more than the board.

use bulkhead_core::cpu::sysreg::{self, Access, ID_REGISTERS, IdRegisters};

use crate::Target;
use crate::engine::Input;

/// This target.
pub const TARGET: Target = Target {
    name: "registers",
    seeds,
    words: &[],
    run,
};

/// Returns seeds: an encoding, then the values of the board's ID registers.
fn seeds() -> Vec<Vec<u8>> {
    let mut all = vec![0xff; 4 + 8 * ID_REGISTERS];
    all[..4].copy_from_slice(&sysreg::ICC_SGI1R.to_le_bytes());
    vec![all, vec![0; 4 + 8 * ID_REGISTERS]]
}

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let register = input.u32();
    if let Access::Id(n) = sysreg::access(register) {
        assert!(n < ID_REGISTERS, "ID register {n}");
        assert_eq!(register >> 20 & 3, 3);
    }
    let mut host = [0; ID_REGISTERS];
    for value in &mut host {
        *value = input.u64();
    }
    let guest = IdRegisters::new(&host);
    // Fields that say something else than how much there is: what every guest sees is fixed, or the board's.
    let (pfr0, dfr0, mmfr0) = (sysreg::id(4, 0), sysreg::id(5, 0), sysreg::id(7, 0));
    for (n, host) in host.iter().enumerate() {
        let seen = guest.get(n);
        for shift in (0..64).step_by(4) {
            let (has, shows) = (host >> shift & 15, seen >> shift & 15);
            let fixed = match n {
                _ if n == pfr0 => [0, 4, 16, 20, 24].contains(&shift),
                _ if n == dfr0 => [0, 12, 20, 28].contains(&shift),
                _ if n == mmfr0 => [24, 28].contains(&shift),
                _ => false,
            };
            assert!(
                fixed || shows <= has,
                "register {n}, bit {shift}: {shows} of {has}"
            );
        }
    }
    // EL1 and EL0 are AArch64 only; no EL2, no EL3 and no SVE are there.
    assert_eq!(guest.get(pfr0) & 0xffff, 0x11);
    assert_eq!(guest.get(pfr0) >> 32 & 15, 0);
    // What lies behind the ID space is nothing.
    assert_eq!(guest.get(ID_REGISTERS + usize::from(input.u8())), 0);
}
