//! What EL2 is chosen by when it is built, beside the version of the GIC.

/// Kind of the UART that carries the consoles, as number in [`Board::uart_kind`](super::Board::uart_kind). A build of EL2 drives one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum UartKind {
    /// Arm's PL011.
    Pl011 = 0,
    /// Cadence's UART, which a Zynq has.
    Cadence = 1,
    /// The UART of NXP's i.MX.
    Imx = 2,
}

impl UartKind {
    /// All of them, by number.
    pub const ALL: [Self; 3] = [Self::Pl011, Self::Cadence, Self::Imx];

    /// Words of `compatible` of such a UART (Linux, Documentation/devicetree/bindings/serial).
    pub const fn words(self) -> &'static [&'static str] {
        match self {
            Self::Pl011 => &["arm,pl011"],
            Self::Cadence => &["cdns,uart-r1p12", "cdns,uart-r1p8", "xlnx,xuartps"],
            Self::Imx => &["fsl,imx6q-uart", "fsl,imx21-uart", "fsl,imx8mp-uart"],
        }
    }
}

/// What a build of EL2 carries, as number in [`Image::profile`](super::Image::profile). Each profile has all of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Profile {
    /// vCPUs that have their pCPUs to themselves: vGIC, GPPT, emulated devices, doorbells, console, statistics and
    /// restarts.
    Static = 0,
    /// Also the scheduler and its servers, fair vCPUs and balancer, and the monitor.
    Shared = 1,
    /// Also virtio devices: service threads and shadow virtqueues.
    Io = 2,
}

impl Profile {
    /// All of them, by number.
    pub const ALL: [Self; 3] = [Self::Static, Self::Shared, Self::Io];

    /// The name in plans and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Shared => "shared",
            Self::Io => "io",
        }
    }
}
