//! Claim: each bit of each register of the distributor and the redistributors is what IHI 0048 (GICv2) or
//! IHI 0069 (GICv3) says, what is no register reads as zero and ignores writes, and none of it does harm.
//!
//! Every word of the frames gets zeros, ones and walking ones, and is read back; then bytes, halves and double
//! words, which only few registers have. In the end everything has to work again. The table of registers is
//! written from the two documents, for a GIC with one Security state.
#![no_std]
#![no_main]

use bulkhead_guests::gic;
use bulkhead_guests::mmio::{read8, read16, read32, read64, write8, write16, write32, write64};
use bulkhead_guests::{Board, alive, check, cpu, guest, println, sysreg};

guest!(main = main, irq = alive::on_irq);

/// Kind of a word of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Word {
    /// Reads as zero, ignores writes: reserved, absent, or to be written only.
    Nothing,
    /// To be read only.
    Fixed,
    /// These bits read back as written; those, always, as one.
    Stored { bits: u32, ones: u32 },
    /// As stored, but the implementation chooses which of these bits it stores.
    Chosen { bits: u32 },
    /// These bits are set by ones here, and cleared by ones at the offset of the second.
    Sets { bits: u32, clear: usize },
    /// The other half of such a pair, with the offset of the first.
    Clears { bits: u32, set: usize },
    /// GICR_WAKER: ChildrenAsleep follows ProcessorSleep.
    Waker,
    /// GICv2's GICD_SGIR: written, it sends; it cannot be read. Not to be tried with ones.
    Sends,
}

use Word::{Chosen, Clears, Fixed, Nothing, Sends, Sets, Stored, Waker};

const fn stored(bits: u32) -> Word {
    Stored { bits, ones: 0 }
}

/// A frame of registers.
#[derive(Clone, Copy, PartialEq)]
enum Frame {
    Distributor,
    /// The first frame of a redistributor: the CPU's own.
    Own,
    /// The second: SGIs and PPIs.
    Private,
}

/// Interrupts have five bits of priority.
const PRIORITY: u32 = 0xf8f8_f8f8;
/// Upper of each two bits: edge. The lower is reserved.
const EDGE: u32 = 0xaaaa_aaaa;

/// Triggers of PPIs: the implementation chooses which can be set (IHI 0048B, 4.3.13; IHI 0069H, 12.11.8).
const PPI_TRIGGERS: Word = Chosen { bits: EDGE };

/// Returns the kind of the word at an offset of a frame. `words`: of 32 interrupts each; `cpus`: a
/// bit for each.
fn word(frame: Frame, offset: usize, words: usize, cpus: u32) -> Word {
    let v2 = gic::version() == 2;
    match frame {
        Frame::Own => match offset {
            0x0000..0x0010 | 0xffe8 | 0xfff0..0x1_0000 => Fixed,
            0x0014 => Waker,
            _ => Nothing,
        },
        Frame::Private => match offset {
            0x0c00 => Fixed,
            0x0c04 => PPI_TRIGGERS,
            0xffe8 | 0xfff0..0x1_0000 => Fixed,
            0x0080..0x0400 if offset & 0x7c == 0 => bank(offset, !0),
            0x0400..0x0420 => stored(PRIORITY),
            _ => Nothing,
        },
        // Both groups; with affinity routing fixed on, and one Security state.
        Frame::Distributor => match offset {
            0x000 if v2 => stored(3),
            0x000 => Stored {
                bits: 3,
                ones: 0x50,
            },
            0x004 | 0x008 => Fixed,
            0xfe8 | 0xff0..0x1000 if v2 => Fixed,
            0xffe8 | 0xfff0..0x1_0000 => Fixed,
            0x080..0x400 => {
                let index = offset / 4 % 32;
                // GICv2: SGIs are made pending elsewhere (4.3.7).
                let is_pending = (0x200..0x300).contains(&offset);
                let bits = if index == 0 && is_pending {
                    !0xffff
                } else {
                    !0
                };
                if index < words && (v2 || index != 0) {
                    bank(offset, bits)
                } else {
                    Nothing
                }
            }
            0x400..0x800 => match (offset - 0x400) / 32 {
                index if index < words && (v2 || index != 0) => stored(PRIORITY),
                _ => Nothing,
            },
            0x800..0x820 if v2 => Fixed,
            0x820..0xc00 if v2 && (offset - 0x800) / 32 < words => stored(cpus * 0x0101_0101),
            0xc00 if v2 => Fixed,
            0xc04 if v2 => PPI_TRIGGERS,
            0xc08..0xd00 if (offset - 0xc00) / 8 < words => stored(EDGE),
            0xf00 if v2 => Sends,
            0xf10..0xf20 if v2 => Clears {
                bits: cpus * 0x0101_0101,
                set: offset + 0x10,
            },
            0xf20..0xf30 if v2 => Sets {
                bits: cpus * 0x0101_0101,
                clear: offset - 0x10,
            },
            // IRM is reserved where 1-of-N is not supported.
            0x6100..0x8000 if !v2 && (offset - 0x6000) / 8 < words * 32 => {
                stored(if offset & 4 == 0 { 0xff_ffff } else { 0xff })
            }
            _ => Nothing,
        },
    }
}

/// One of the registers with a bit for each interrupt.
fn bank(offset: usize, bits: u32) -> Word {
    match offset & 0x780 {
        0x080 => stored(bits),
        0x100 | 0x200 | 0x300 => Sets {
            bits,
            clear: offset + 0x80,
        },
        _ => Clears {
            bits,
            set: offset - 0x80,
        },
    }
}

/// Zeros, ones, and a one at each place.
fn values() -> impl Iterator<Item = u32> {
    [0, !0].into_iter().chain((0..32).map(|bit| 1 << bit))
}

/// Counts what is wrong and shows the first of it.
struct Wrong {
    name: &'static str,
    count: u32,
}

impl Wrong {
    fn same(&mut self, what: &str, offset: usize, value: u32, seen: u32, expected: u32) {
        if seen != expected {
            self.count += 1;
            if self.count <= 8 {
                let name = self.name;
                println!("  {name}+{offset:#x}: {what} {value:#x}: {seen:#x}, not {expected:#x}");
            }
        }
    }
}

fn main(board: &'static Board) {
    // Nothing may be taken while registers hold anything at all.
    sysreg::irq_off();
    gic::init();
    let words = gic::interrupts() as usize / 32;
    let cpus = (1 << board.cpus) - 1;
    if gic::version() == 3 {
        let typer = read32(gic::distributor() + gic::TYPER);
        check::equal("GICD_TYPER.No1N", u64::from(typer >> 25 & 1), 1);
        sweep(
            "GICD",
            gic::distributor(),
            Frame::Distributor,
            0x1_0000,
            words,
            cpus,
        );
        // The other's too, which has to be on: its active interrupts are its own to show.
        let hired = board.cpus == 1 || cpu::hire(1);
        check::holds("the other CPU is on", hired, "it is not");
        let names = [("GICR0", "GICR0 private"), ("GICR1", "GICR1 private")];
        for ((own, private), base) in names.into_iter().zip((board.gicr.base..).step_by(0x2_0000)) {
            sweep(own, base, Frame::Own, 0x1_0000, words, cpus);
            sweep(
                private,
                base + 0x1_0000,
                Frame::Private,
                0x1_0000,
                words,
                cpus,
            );
        }
        routes(board);
    } else {
        sweep(
            "GICD",
            gic::distributor(),
            Frame::Distributor,
            0x1000,
            words,
            cpus,
        );
    }
    alive::check("after all registers");
    if board.cpus > 1 {
        let there = gic::version() == 3 || cpu::hire(1);
        let sum = cpu::call(1, |argument| argument + 1, 41);
        check::holds(
            "the other CPU works as ever",
            there && sum == Some(42),
            "it does not",
        );
    }
    check::done();
}

fn sweep(name: &'static str, base: usize, frame: Frame, size: usize, words: usize, cpus: u32) {
    let kind = |offset: usize| word(frame, offset, words, cpus);
    let mut wrong = Wrong { name, count: 0 };
    let (mut registers, mut others) = (0u32, 0u32);
    for offset in (0..size).step_by(4) {
        match kind(offset) {
            Nothing => others += 1,
            _ => registers += 1,
        }
        by_word(&mut wrong, base, offset, kind(offset));
    }
    check::holds(
        format_args!("{name}: {registers} registers bit by bit, {others} reserved words"),
        wrong.count == 0,
        wrong.count,
    );
    let mut wrong = Wrong { name, count: 0 };
    for offset in (0..size).step_by(4) {
        by_other_sizes(&mut wrong, base, offset, kind, frame);
    }
    check::holds(
        format_args!("{name}: bytes, halves and double words"),
        wrong.count == 0,
        wrong.count,
    );
}

fn by_word(wrong: &mut Wrong, base: usize, offset: usize, kind: Word) {
    let at = base + offset;
    match kind {
        Nothing => {
            for value in [!0, 1 << (offset / 4 % 32)] {
                write32(at, value);
                wrong.same("reserved, after", offset, value, read32(at), 0);
            }
        }
        Fixed => {
            let before = read32(at);
            for value in values() {
                write32(at, value);
                wrong.same("read-only, after", offset, value, read32(at), before);
            }
        }
        Stored { bits, ones } => {
            let before = read32(at);
            for value in values() {
                write32(at, value);
                gic::wait();
                wrong.same("stored", offset, value, read32(at), value & bits | ones);
            }
            write32(at, before);
            gic::wait();
        }
        Chosen { bits } => {
            let before = read32(at);
            write32(at, !0);
            let chosen = read32(at);
            wrong.same("chosen, of", offset, bits, chosen & !bits, 0);
            for value in values() {
                write32(at, value);
                wrong.same("chosen", offset, value, read32(at), value & chosen);
            }
            write32(at, before);
        }
        Sets { bits, clear } => {
            for value in values() {
                write32(base + clear, !0);
                gic::wait();
                write32(at, value);
                wrong.same("set", offset, value, read32(at), value & bits);
                wrong.same(
                    "set, seen below",
                    clear,
                    value,
                    read32(base + clear),
                    value & bits,
                );
            }
            write32(base + clear, !0);
            gic::wait();
            wrong.same("all cleared", offset, !0, read32(at), 0);
        }
        Clears { bits, set } => {
            for value in values() {
                write32(base + set, !0);
                write32(at, value);
                gic::wait();
                wrong.same("cleared", offset, value, read32(at), bits & !value);
                wrong.same(
                    "cleared, seen above",
                    set,
                    value,
                    read32(base + set),
                    bits & !value,
                );
            }
            write32(at, !0);
            gic::wait();
        }
        Waker => {
            for value in values() {
                write32(at, value);
                let expected = if value & 2 == 0 { 0 } else { 6 };
                wrong.same("sleep", offset, value, read32(at), expected);
            }
            write32(at, 0);
        }
        Sends => {
            // Filter 3 is reserved: nobody gets it (4.3.15).
            write32(at, 3 << 24 | 0xff << 16);
            wrong.same("sends", offset, 0, read32(at), 0);
        }
    }
}

/// Registers that have bytes: priorities, targets, pending SGIs (IHI 0048B, 4.1.4; IHI 0069H, 12.1.3).
fn has_bytes(frame: Frame, offset: usize) -> bool {
    match frame {
        Frame::Distributor => match offset {
            0x400..0x800 => true,
            0x800..0xc00 | 0xf10..0xf30 => gic::version() == 2,
            _ => false,
        },
        Frame::Own => false,
        Frame::Private => (0x400..0x420).contains(&offset),
    }
}

/// Registers of 64 bits: routes, GICR_TYPER.
fn has_doubles(frame: Frame, offset: usize) -> bool {
    match frame {
        Frame::Distributor => (0x6000..0x8000).contains(&offset),
        Frame::Own => offset == 8,
        Frame::Private => false,
    }
}

/// An access of a size that a register does not have reads as zero, and changes nothing.
fn by_other_sizes(
    wrong: &mut Wrong,
    base: usize,
    offset: usize,
    kind: impl Fn(usize) -> Word,
    frame: Frame,
) {
    let at = base + offset;
    let before = read32(at);
    // Of what is no register one byte and one half, in turn.
    let one = kind(offset) == Nothing;
    for part in (0..4).filter(|part| !one || *part == offset / 4 % 4) {
        if !has_bytes(frame, offset) {
            write8(at + part, 0xff);
            wrong.same("byte", offset + part, 0, read8(at + part).into(), 0);
        } else if let Stored { bits, .. } = kind(offset) {
            write8(at + part, 0xff);
            let bits = bits >> (8 * part) & 0xff;
            wrong.same("byte", offset + part, 0xff, read8(at + part).into(), bits);
            write8(at + part, (before >> (8 * part)) as u8);
        } else {
            let byte = before >> (8 * part) & 0xff;
            wrong.same("byte", offset + part, 0, read8(at + part).into(), byte);
        }
    }
    for part in [0, 2]
        .into_iter()
        .filter(|part| !one || *part == offset / 4 % 2 * 2)
    {
        write16(at + part, 0xffff);
        wrong.same("half", offset + part, 0, read16(at + part).into(), 0);
    }
    if offset.is_multiple_of(8) {
        let above = read32(at + 4);
        let both = u64::from(above) << 32 | u64::from(before);
        let seen = read64(at);
        let expected = if has_doubles(frame, offset) { both } else { 0 };
        wrong.same("double, low", offset, 0, seen as u32, expected as u32);
        wrong.same(
            "double, high",
            offset,
            0,
            (seen >> 32) as u32,
            (expected >> 32) as u32,
        );
        write64(at, if has_doubles(frame, offset) { both } else { !0 });
        wrong.same("after a double", offset + 4, 0, read32(at + 4), above);
    }
    wrong.same("after other sizes", offset, 0, read32(at), before);
}

/// An SPI that no device drives.
const SPI: u32 = 45;

/// A route to any CPU is none: it goes where the affinity says.
fn routes(board: &Board) {
    const IRM: u64 = 1 << 31;
    let route = gic::distributor() + 0x6000 + 8 * SPI as usize;
    for cpu in 0..board.cpus {
        let affinity = cpu::affinity(cpu);
        write64(route, affinity | IRM);
        check::equal(format_args!("IRM with CPU {cpu}"), read64(route), affinity);
    }
    write64(route, cpu::affinity(0));
}
