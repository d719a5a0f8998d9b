//! The pacer on a run on the instruction clock, which keeps the host's load out of it.

use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use bulkhead_abi::plan::{Board, Header, UartKind};
use bulkhead_plugin::pacer::{Config, Console};
use tempfile::TempDir;

use bulkhead_model::failure::Failure;

use super::instrument::{build_plugin, configure};
use super::program::Program;
use crate::run::{Qemu, System};

/// The pacer, ready for one run of QEMU.
#[derive(Debug)]
pub struct Pace {
    /// Value for QEMU's `-plugin`.
    argument: OsString,
    /// The plugin, by a path without what `LD_PRELOAD` takes for the end of one.
    preloaded: PathBuf,
    listener: Option<UnixListener>,
    stream: Option<UnixStream>,
    _folder: TempDir,
}

impl Pace {
    /// For a run into which nobody types by what is said.
    ///
    /// # Errors
    ///
    /// The plugin can't be built, or there is no room for its configuration.
    pub fn new() -> Result<Self, Failure> {
        Self::with(false, |_| Ok(None))
    }

    /// The machine is held whenever a line of the console has one of `marks`, until [`Self::go_on`].
    ///
    /// # Errors
    ///
    /// As for [`Self::new`], or EL2 lacks a symbol.
    pub fn holding(system: &System, marks: Vec<String>) -> Result<Self, Failure> {
        Self::hold(system, marks, false)
    }

    /// As [`Self::holding`], in a QEMU whose threads pause at random places: that must not be seen.
    ///
    /// # Errors
    ///
    /// As for [`Self::holding`].
    pub fn shaken(system: &System, marks: Vec<String>) -> Result<Self, Failure> {
        Self::hold(system, marks, true)
    }

    fn hold(system: &System, marks: Vec<String>, is_shaken: bool) -> Result<Self, Failure> {
        let el2 = Program::read(&system.el2)?.el2()?;
        let size = el2.text_end - el2.text_start;
        // The first words are said where the image was loaded.
        let code = [el2.text_start, system.base].map(|start| [start, start + size]);
        let data = data_registers(&system.plan);
        Self::with(is_shaken, |folder| {
            let socket = folder.path().join("held");
            let listener = UnixListener::bind(&socket)?;
            listener.set_nonblocking(true)?;
            let console = Console {
                data,
                code: code.to_vec(),
                marks,
                socket,
            };
            Ok(Some((console, listener)))
        })
    }

    fn with(
        is_shaken: bool,
        console: impl FnOnce(&TempDir) -> std::io::Result<Option<(Console, UnixListener)>>,
    ) -> Result<Self, Failure> {
        let plugin = build_plugin("pacer")?;
        let cannot =
            |why: std::io::Error| Failure::environment("cannot prepare a run of QEMU", why, "");
        let folder = tempfile::tempdir().map_err(cannot)?;
        let (console, listener) = console(&folder).map_err(cannot)?.unzip();
        let preloaded = folder.path().join("pacer.so");
        std::os::unix::fs::symlink(&plugin, &preloaded).map_err(cannot)?;
        let output = folder.path().join("none");
        let config = Config { console, is_shaken };
        Ok(Self {
            preloaded,
            argument: configure(&plugin, folder.path(), "pacer", &config, &output)?,
            listener,
            stream: None,
            _folder: folder,
        })
    }

    /// Puts it on a run of QEMU.
    pub fn put_on(&self, qemu: &mut Qemu) {
        qemu.plugins.push(self.argument.clone());
        qemu.preloaded = Some(self.preloaded.clone());
    }

    /// Returns the descriptor that becomes readable when the machine is held, for `poll`.
    pub fn held(&self) -> Option<BorrowedFd<'_>> {
        let stream = self.stream.as_ref().map(AsFd::as_fd);
        stream.or_else(|| self.listener.as_ref().map(AsFd::as_fd))
    }

    /// Whether the machine is held. All that was said before is on its console then.
    ///
    /// # Errors
    ///
    /// The system call's.
    pub fn is_held(&mut self) -> std::io::Result<bool> {
        if self.stream.is_none()
            && let Some(listener) = &self.listener
        {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    self.stream = Some(stream);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        let Some(stream) = &mut self.stream else {
            return Ok(false);
        };
        match stream.read(&mut [0]) {
            Ok(0) => {
                // QEMU has ended.
                (self.stream, self.listener) = (None, None);
                Ok(false)
            }
            Ok(_) => Ok(true),
            Err(error)
                if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) =>
            {
                Ok(false)
            }
            Err(_) => Ok(false),
        }
    }

    /// Lets a machine go on that is held. What was typed before is in its UART then, as far as there is room.
    pub fn go_on(&mut self) {
        if let Some(stream) = &mut self.stream {
            // A QEMU that has ended goes nowhere.
            let _ = stream.write_all(&[0]);
        }
    }
}

/// Physical addresses of the registers of the plan's UART where EL2 writes bytes, and where it reads them.
fn data_registers(plan: &[u8]) -> [u64; 2] {
    let board = plan.get(offset_of!(Header, board)..).unwrap_or_default();
    let field = |offset: usize| board.get(offset..).unwrap_or_default();
    let uart = field(offset_of!(Board, uart)).first_chunk().copied();
    let kind = field(offset_of!(Board, uart_kind)).first_chunk().copied();
    let uart = u64::from_le_bytes(uart.unwrap_or_default());
    let kind = u32::from_le_bytes(kind.unwrap_or_default());
    let kind = UartKind::ALL.iter().find(|known| **known as u32 == kind);
    // PL011: UARTDR (DDI 0183, 3.3.1). Cadence: TX_RX_FIFO0 (UG1085, UART). i.MX: UTXD and URXD (IMX8MPRM, 17.2).
    let offsets = match kind {
        Some(UartKind::Cadence) => [0x30, 0x30],
        Some(UartKind::Imx) => [0x40, 0x00],
        // Meson: WFIFO and RFIFO.
        Some(UartKind::Meson) => [0x00, 0x04],
        Some(
            UartKind::Pl011 | UartKind::Ns16550 | UartKind::Ns16550Spread | UartKind::Ns16550Words,
        )
        | None => [0, 0],
    };
    offsets.map(|offset| uart + offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_through_the_data_register_of_the_plans_uart() {
        let mut plan = vec![0; size_of::<Header>()];
        let board = offset_of!(Header, board);
        plan[board + offset_of!(Board, uart) + 3] = 9;
        assert_eq!(data_registers(&plan), [0x900_0000, 0x900_0000]);
        plan[board + offset_of!(Board, uart_kind)] = UartKind::Cadence as u8;
        assert_eq!(data_registers(&plan), [0x900_0030, 0x900_0030]);
        plan[board + offset_of!(Board, uart_kind)] = UartKind::Imx as u8;
        assert_eq!(data_registers(&plan), [0x900_0040, 0x900_0000]);
        plan[board + offset_of!(Board, uart_kind)] = UartKind::Meson as u8;
        assert_eq!(data_registers(&plan), [0x900_0000, 0x900_0004]);
        plan[board + offset_of!(Board, uart_kind)] = UartKind::Ns16550Words as u8;
        assert_eq!(data_registers(&plan), [0x900_0000, 0x900_0000]);
    }
}
