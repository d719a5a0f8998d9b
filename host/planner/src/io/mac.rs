//! Addresses of network cards for which the description has none.

use bulkhead_model::describe::{Mac, System};

/// First byte of an address: locally administered (IEEE 802, 8.4), of one station.
const LOCAL: u8 = 2;

/// The addresses of the cards of all VMs, in their order: those of the description, and others made from the names of the
/// system and of the VM and the number of the card there, so that they stay the same. No two are alike.
pub(super) fn of(system: &System) -> Vec<Vec<Mac>> {
    let ports = system.vms.iter().flat_map(|vm| &vm.ports);
    let stated = ports.filter_map(|port| Some(port.mac.as_ref()?.value));
    let mut taken: Vec<Mac> = stated.collect();
    system
        .vms
        .iter()
        .map(|vm| {
            let cards = vm.ports.iter().zip(0..);
            cards
                .map(|(port, number)| match &port.mac {
                    Some(mac) => mac.value,
                    None => {
                        let made = |attempt| made(&system.name, &vm.name.value, number, attempt);
                        let mut attempts = (0..).map(made);
                        let free = attempts.find(|mac| !taken.contains(mac));
                        let mac = free.unwrap_or(Mac([LOCAL; 6]));
                        taken.push(mac);
                        mac
                    }
                })
                .collect()
        })
        .collect()
}

/// An address made from names and numbers, by FNV-1a.
fn made(system: &str, vm: &str, card: u32, attempt: u32) -> Mac {
    let numbers = [card, attempt].map(u32::to_le_bytes).concat();
    let parts = [system.as_bytes(), &[0], vm.as_bytes(), &[0], &numbers].concat();
    let hash = parts.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    let [.., a, b, c, d, e] = (hash ^ hash >> 24).to_be_bytes();
    Mac([LOCAL, a, b, c, d, e])
}
