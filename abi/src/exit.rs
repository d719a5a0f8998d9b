//! Exit classes: the names under which EL2 counts what brought it in, and under which reports and
//! tools show it.

/// Reason for which a vCPU left the guest. The number is the index in statistics and in the last-exits
/// ring. Those that come most often come first: their sums are near enough for pairs of loads and stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitClass {
    /// Virtual timer interrupt of the running guest.
    VtimerIrq = 0,
    /// Interrupt of a device that was passed through to the running guest.
    DeviceIrq = 1,
    /// Interrupt from another pCPU on behalf of another vCPU: an SGI, or a change of the distributor.
    SiblingIrq = 2,
    /// HVC from EL1.
    Hvc = 3,
    /// Write to ICC_SGI1R_EL1, ICC_ASGI1R_EL1 or ICC_SGI0R_EL1.
    Sgi = 4,
    /// Emulated distributor (GICD).
    Gicd = 5,
    /// Emulated PL011.
    Uart = 6,
    /// GIC maintenance interrupt: list registers had overflowed and there is room again.
    MaintenanceIrq = 7,
    /// Interrupt that EL2 wants for itself: console UART, kick from another pCPU.
    ServiceIrq = 8,
    /// SMC from EL1.
    Smc = 9,
    /// WFI or WFE, where the class traps them.
    Wfx = 10,
    /// Access to a trapped system register other than the SGI registers.
    SysReg = 11,
    /// Emulated redistributor (GICR).
    Gicr = 12,
    /// Emulated device other than the GIC and the PL011: PL031, watchdog.
    Device = 13,
    /// Data access to an address at which the VM has nothing.
    DataAbort = 14,
    /// Instruction fetch from an address at which the VM has nothing.
    FetchAbort = 15,
    /// SError taken while the guest ran.
    Serror = 16,
    /// Everything else: FP or SVE that the class does not have, debug, AArch32, unknown syndromes.
    Other = 17,
}

impl ExitClass {
    /// Number of classes.
    pub const COUNT: usize = 18;

    /// All classes in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [
        Self::VtimerIrq,
        Self::DeviceIrq,
        Self::SiblingIrq,
        Self::Hvc,
        Self::Sgi,
        Self::Gicd,
        Self::Uart,
        Self::MaintenanceIrq,
        Self::ServiceIrq,
        Self::Smc,
        Self::Wfx,
        Self::SysReg,
        Self::Gicr,
        Self::Device,
        Self::DataAbort,
        Self::FetchAbort,
        Self::Serror,
        Self::Other,
    ];

    /// Name in reports and in JSON.
    #[inline(never)]
    pub const fn name(self) -> &'static str {
        match self {
            Self::VtimerIrq => "vtimer-irq",
            Self::DeviceIrq => "device-irq",
            Self::SiblingIrq => "sibling-irq",
            Self::Hvc => "hvc",
            Self::Sgi => "sgi",
            Self::Gicd => "gicd",
            Self::Uart => "uart",
            Self::MaintenanceIrq => "maint-irq",
            Self::ServiceIrq => "service-irq",
            Self::Smc => "smc",
            Self::Wfx => "wfx",
            Self::SysReg => "sysreg",
            Self::Gicr => "gicr",
            Self::Device => "device",
            Self::DataAbort => "data-abort",
            Self::FetchAbort => "fetch-abort",
            Self::Serror => "serror",
            Self::Other => "other",
        }
    }

    /// The class that has this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::ExitClass;

    #[test]
    fn numbers_and_names_are_those_of_the_table() {
        for (n, class) in ExitClass::ALL.iter().enumerate() {
            assert_eq!(*class as usize, n);
            assert_eq!(ExitClass::of_name(class.name()), Some(*class));
            let same = ExitClass::ALL
                .iter()
                .filter(|other| other.name() == class.name());
            assert_eq!(same.count(), 1, "{}", class.name());
        }
    }
}
