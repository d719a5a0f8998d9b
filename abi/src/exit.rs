//! Exit classes: the names under which EL2 counts what brought it in, and under which reports and
//! tools show it.

/// Why a vCPU left the guest. The number is the index in statistics and in the last-exits ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitClass {
    /// Virtual timer interrupt of the running guest.
    VtimerIrq = 0,
    /// Interrupt of a device that was passed through to the running guest.
    DeviceIrq = 1,
    /// GIC maintenance interrupt: list registers had overflowed and there is room again.
    MaintenanceIrq = 2,
    /// Interrupt that EL2 wants for itself: console UART, kick from another pCPU.
    ServiceIrq = 3,
    /// HVC from EL1.
    Hvc = 4,
    /// SMC from EL1.
    Smc = 5,
    /// WFI or WFE, where the class traps them.
    Wfx = 6,
    /// Access to a trapped system register other than the SGI registers.
    SysReg = 7,
    /// Write to ICC_SGI1R_EL1, ICC_ASGI1R_EL1 or ICC_SGI0R_EL1.
    Sgi = 8,
    /// Emulated distributor (GICD).
    Gicd = 9,
    /// Emulated redistributor (GICR).
    Gicr = 10,
    /// Emulated PL011.
    Uart = 11,
    /// Data access to an address at which the VM has nothing.
    DataAbort = 12,
    /// Instruction fetch from an address at which the VM has nothing.
    FetchAbort = 13,
    /// SError taken while the guest ran.
    Serror = 14,
    /// Everything else: FP or SVE that the class does not have, debug, AArch32, unknown syndromes.
    Other = 15,
    /// Emulated device other than the GIC and the PL011: PL031, watchdog.
    Device = 16,
    /// Interrupt from another pCPU on behalf of another vCPU: an SGI, or a change of the distributor.
    SiblingIrq = 17,
}

impl ExitClass {
    /// How many classes there are.
    pub const COUNT: usize = 18;

    /// All classes in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [
        Self::VtimerIrq,
        Self::DeviceIrq,
        Self::MaintenanceIrq,
        Self::ServiceIrq,
        Self::Hvc,
        Self::Smc,
        Self::Wfx,
        Self::SysReg,
        Self::Sgi,
        Self::Gicd,
        Self::Gicr,
        Self::Uart,
        Self::DataAbort,
        Self::FetchAbort,
        Self::Serror,
        Self::Other,
        Self::Device,
        Self::SiblingIrq,
    ];

    /// Name in reports and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::VtimerIrq => "vtimer-irq",
            Self::DeviceIrq => "device-irq",
            Self::MaintenanceIrq => "maint-irq",
            Self::ServiceIrq => "service-irq",
            Self::Hvc => "hvc",
            Self::Smc => "smc",
            Self::Wfx => "wfx",
            Self::SysReg => "sysreg",
            Self::Sgi => "sgi",
            Self::Gicd => "gicd",
            Self::Gicr => "gicr",
            Self::Uart => "uart",
            Self::DataAbort => "data-abort",
            Self::FetchAbort => "fetch-abort",
            Self::Serror => "serror",
            Self::Other => "other",
            Self::Device => "device",
            Self::SiblingIrq => "sibling-irq",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ExitClass;

    #[test]
    fn numbers_and_names_are_those_of_the_table() {
        for (n, class) in ExitClass::ALL.iter().enumerate() {
            assert_eq!(*class as usize, n);
            let same = ExitClass::ALL
                .iter()
                .filter(|other| other.name() == class.name());
            assert_eq!(same.count(), 1, "{}", class.name());
        }
    }
}
