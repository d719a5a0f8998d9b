//! A first description: for a board and some guests, with what may be said besides as comments.

mod ask;
mod guest;
mod toml_text;

use std::fmt::Write;

pub use ask::{Chosen, Questions, ask};
pub use guest::{Guest, Masks};

use toml_text::{MIB, memory_text, quoted};

/// The board of a description that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoardChoice {
    /// Which one.
    pub kind: BoardKind,
    /// Version of its GIC.
    pub gic: u32,
}

/// How a description names its board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoardKind {
    /// One that QEMU emulates: it gets as many CPUs and as much memory as its guests need.
    Emulated(String),
    /// One that was imported.
    Imported(String),
    /// A device tree in a file.
    Tree(String),
}

/// CPUs that an emulated board has at most.
pub const MOST_CPUS: usize = 8;

/// The text of a description. Guests without a CPU of their own are possible only where the board has too few.
pub fn text(board: &BoardChoice, guests: &[Guest]) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_text(board, guests, &mut out);
    out
}

fn write_text(board: &BoardChoice, guests: &[Guest], out: &mut String) -> std::fmt::Result {
    writeln!(out, "# A system for Bulkhead: a board, and the VMs on it.")?;
    writeln!(
        out,
        "#   bulkhead check FILE    is it sound? errors stand where they are in the file"
    )?;
    writeln!(
        out,
        "#   bulkhead plan FILE     who gets what, at which address, at what cost"
    )?;
    writeln!(
        out,
        "#   bulkhead build FILE    an image that boots as an arm64 Linux image does"
    )?;
    if let BoardKind::Emulated(_) = &board.kind {
        writeln!(
            out,
            "#   bulkhead run FILE      in QEMU, with the console on this terminal (Ctrl-T ? helps)"
        )?;
    }
    writeln!(
        out,
        "# Lines that begin with # are what else there is.\n\n[board]"
    )?;
    match &board.kind {
        BoardKind::Emulated(name) => {
            let needed: u64 = guests
                .iter()
                .map(|guest| guest.memory() + guest.disk())
                .sum();
            let memory = (needed + 128 * MIB).next_multiple_of(1024 * MIB);
            writeln!(out, "name = {}", quoted(name))?;
            let cpus = guests.len().max(console_cpu(guests) + 1);
            writeln!(out, "cpus = {}", cpus.clamp(2, MOST_CPUS))?;
            writeln!(out, "memory = \"{}\"", memory_text(memory))?;
            writeln!(out, "# cpu = \"cortex-a53\"      # which CPU QEMU emulates")?;
            writeln!(out, "# gic = 3                 # or 2")?;
        }
        BoardKind::Imported(name) => writeln!(out, "name = {}", quoted(name))?,
        BoardKind::Tree(file) => writeln!(out, "dtb = {}", quoted(file))?,
    }
    for guest in guests {
        writeln!(out)?;
        guest.write(board.gic, out)?;
    }
    if guests.iter().any(Guest::is_hard_realtime) {
        writeln!(out, "\n[console]")?;
        writeln!(
            out,
            "service = {}             # the CPU that drains it: none of a hard-realtime VM",
            console_cpu(guests)
        )?;
    }
    writeln!(out, "\n# Memory that several VMs map:")?;
    writeln!(out, "# [shared.mailbox]")?;
    writeln!(out, "# size = \"4KiB\"")?;
    writeln!(
        out,
        "# ipa = \"0x70000000\"      # where all of them see it"
    )?;
    let names: Vec<String> = guests
        .iter()
        .map(|guest| format!("{} = \"rw\"", guest.name))
        .collect();
    writeln!(out, "# vms = {{ {} }}", names.join(", "))?;
    writeln!(out, "\n# A network between the cards of VMs:")?;
    writeln!(out, "# [network.lan]")?;
    writeln!(out, "\n# Who serves disks and networks:")?;
    writeln!(out, "# [service]")?;
    writeln!(
        out,
        "# pcpu = {}                # the CPU on which that runs; nobody is pinned there",
        console_cpu(guests)
    )
}

/// The first CPU that no hard real-time guest gets: each guest has one, in their order.
fn console_cpu(guests: &[Guest]) -> usize {
    let other = guests.iter().position(|guest| !guest.is_hard_realtime());
    other.unwrap_or(guests.len())
}

#[cfg(test)]
mod tests;
