//! What source S2 says of the same experiment with Bao, measured on hardware (4.3, 4.4). Its results of single works are pictures without numbers.

use serde::Serialize;

/// The experiment on a board, as far as it is told in numbers.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OnHardware {
    /// Hypervisor, board and where it is told.
    pub what: &'static str,
    /// Clock of its CPUs in MHz.
    pub clock: u64,
    /// Timer's interrupt, each 10 ms: what a VM alone takes more than bare metal.
    pub hosted: Added,
    /// Likewise: what others add to that.
    pub beside: Added,
    /// What it tells of colours in words.
    pub colours: &'static str,
}

/// Nanoseconds that a latency grows by.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Added {
    /// On average.
    pub mean: u64,
    /// At most.
    pub most: u64,
}

/// Bao 2020.
pub const BAO: OnHardware = OnHardware {
    what: "Bao on four Cortex-A53 of a ZCU104, measured on hardware (source S2, 4.3 and 4.4)",
    clock: 1200,
    hosted: Added {
        mean: 430,
        most: 1680,
    },
    beside: Added {
        mean: 12,
        most: 1160,
    },
    colours: "with colours of VMs a work beside others misses the L2 as it does alone with colours, and takes longer all the same; a timer's interrupt comes no earlier, as Bao itself has no colours",
};

impl OnHardware {
    /// For people.
    pub fn text(&self) -> String {
        let added = |by: Added| {
            let cycles = |ns: u64| ns * self.clock / 1000;
            format!(
                "{} ns on average and {} at most ({} and {} cycles)",
                by.mean,
                by.most,
                cycles(by.mean),
                cycles(by.most)
            )
        };
        format!(
            "{}: a VM adds {} to the latency of bare metal, and others beside it {}; {}.\n",
            self.what,
            added(self.hosted),
            added(self.beside),
            self.colours
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nanoseconds_are_told_as_cycles_too() {
        let text = BAO.text();
        for part in [
            "430 ns on average and 1680 at most (516 and 2016 cycles)",
            "12 ns on average and 1160 at most (14 and 1392 cycles)",
            "measured on hardware",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
