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
    /// The UART of Amlogic's Meson.
    Meson = 3,
    /// A UART of the 8250's family, whose registers are bytes, one behind the other.
    Ns16550 = 4,
    /// The same; its registers are bytes at multiples of four (`reg-shift` 2).
    Ns16550Spread = 5,
    /// The same; its registers are words (`reg-shift` 2, `reg-io-width` 4).
    Ns16550Words = 6,
}

/// Words of `compatible` of UARTs whose registers are those of a 16550, or more: what EL2 needs of them is there. The
/// firmware has set their speed.
const NS16550: [&str; 6] = [
    "snps,dw-apb-uart",
    "ns16550a",
    "ns16550",
    "ti,am654-uart",
    "brcm,bcm2835-aux-uart",
    "nvidia,tegra20-uart",
];

impl UartKind {
    /// All of them, by number.
    pub const ALL: [Self; 7] = [
        Self::Pl011,
        Self::Cadence,
        Self::Imx,
        Self::Meson,
        Self::Ns16550,
        Self::Ns16550Spread,
        Self::Ns16550Words,
    ];

    /// Words of `compatible` of such a UART (Linux, Documentation/devicetree/bindings/serial).
    pub const fn words(self) -> &'static [&'static str] {
        match self {
            Self::Pl011 => &["arm,pl011"],
            Self::Cadence => &["cdns,uart-r1p12", "cdns,uart-r1p8", "xlnx,xuartps"],
            Self::Imx => &["fsl,imx6q-uart", "fsl,imx21-uart", "fsl,imx8mp-uart"],
            Self::Meson => &["amlogic,meson-gx-uart", "amlogic,meson-ao-uart"],
            Self::Ns16550 | Self::Ns16550Spread | Self::Ns16550Words => &NS16550,
        }
    }

    /// The kind of the 8250's family with registers so far apart (`reg-shift`) and of so many bytes (`reg-io-width`), if
    /// EL2 has one.
    pub const fn of_8250(shift: u32, width: u32) -> Option<Self> {
        match (shift, width) {
            (0, 1) => Some(Self::Ns16550),
            (2, 1) => Some(Self::Ns16550Spread),
            (2, 4) => Some(Self::Ns16550Words),
            _ => None,
        }
    }

    /// Whether such a UART may begin anywhere in a page, and EL2 finds it there; others have pages of their own.
    pub const fn is_within_page(self) -> bool {
        self as u32 >= Self::Meson as u32
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
    /// Also the control port, by which VMs manage others.
    Managed = 3,
}

impl Profile {
    /// All of them, by number.
    pub const ALL: [Self; 4] = [Self::Static, Self::Shared, Self::Io, Self::Managed];

    /// The name in plans and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Shared => "shared",
            Self::Io => "io",
            Self::Managed => "managed",
        }
    }
}
