//! One wrong value for every field of a plan, and the invariant that must catch it.

use std::mem::{offset_of, size_of};

use bulkhead_abi::plan::{
    Board, Device, Header, Image, Irq, Load, Memory, Pcpu, Region, Seed, TABLES, Table, TableId,
    Vcpu, Vm,
};

/// What becomes of a number.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// This value.
    Set(u64),
    /// These bits flipped.
    Flip(u64),
    /// So much more.
    Add(u64),
}

/// Where a field lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the header.
    Header,
    /// In this row of a table.
    Row(TableId, usize),
}

/// A wrong value.
#[derive(Clone, Copy, Debug)]
pub struct Alteration {
    /// Name of the field.
    pub field: &'static str,
    /// Where it lies.
    pub place: Place,
    /// Bytes from the start of header or row.
    pub offset: usize,
    /// Bytes of the number that changes.
    pub width: usize,
    /// What becomes of it.
    pub change: Change,
    /// Name of the invariant that it breaks.
    pub invariant: &'static str,
}

impl Alteration {
    /// Applies it to a plan.
    pub fn apply(&self, plan: &mut [u8]) {
        let start = match self.place {
            Place::Header => 0,
            Place::Row(table, row) => table_offset(plan, table) + row * row_size(table),
        } + self.offset;
        let bytes = &mut plan[start..start + self.width];
        let mut number = [0; 8];
        number[..self.width].copy_from_slice(bytes);
        let old = u64::from_le_bytes(number);
        let new = match self.change {
            Change::Set(value) => value,
            Change::Flip(bits) => old ^ bits,
            Change::Add(more) => old.wrapping_add(more),
        };
        bytes.copy_from_slice(&new.to_le_bytes()[..self.width]);
    }

    /// Whether the checksum is made right afterwards: not where it is itself what was altered.
    pub fn sealed(&self) -> bool {
        self.field != "checksum"
    }
}

fn table_offset(plan: &[u8], table: TableId) -> usize {
    let at = offset_of!(Header, tables) + table as usize * size_of::<Table>();
    let bytes = &plan[at..at + 4];
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
}

/// Bytes of a row.
pub const fn row_size(table: TableId) -> usize {
    match table {
        TableId::Memory => size_of::<Memory>(),
        TableId::Pcpus => size_of::<Pcpu>(),
        TableId::Vms => size_of::<Vm>(),
        TableId::Vcpus => size_of::<Vcpu>(),
        TableId::Regions => size_of::<Region>(),
        TableId::Loads => size_of::<Load>(),
        TableId::Seeds => size_of::<Seed>(),
        TableId::Irqs => size_of::<Irq>(),
        TableId::Devices => size_of::<Device>(),
    }
}

use Change::{Add, Flip, Set};

const MEMORY: Place = Place::Row(TableId::Memory, 0);
const PCPU: Place = Place::Row(TableId::Pcpus, 0);
const VM: Place = Place::Row(TableId::Vms, 0);
const VCPU: Place = Place::Row(TableId::Vcpus, 0);
const REGION: Place = Place::Row(TableId::Regions, 0);
const LOAD: Place = Place::Row(TableId::Loads, 0);
const SEED: Place = Place::Row(TableId::Seeds, 0);
const IRQ: Place = Place::Row(TableId::Irqs, 0);
const DEVICE: Place = Place::Row(TableId::Devices, 0);

macro_rules! alter {
    ($place:expr, $row:ty, $($field:ident).+, $width:expr, $change:expr, $invariant:literal) => {
        Alteration {
            field: stringify!($($field).+),
            place: $place,
            offset: offset_of!($row, $($field).+),
            width: $width,
            change: $change,
            invariant: $invariant,
        }
    };
}

/// All alterations. The plan that they are made for has a row in every table.
pub fn all() -> Vec<Alteration> {
    const HEADER: Place = Place::Header;
    const NO_VM: Change = Set(15);
    let mut all = vec![
        alter!(HEADER, Header, magic, 8, Flip(1), "plan-magic"),
        alter!(HEADER, Header, version, 4, Add(1), "plan-version"),
        alter!(HEADER, Header, header_size, 4, Add(8), "header-size"),
        alter!(HEADER, Header, size, 8, Add(8), "plan-size"),
        alter!(HEADER, Header, checksum, 8, Flip(1), "plan-checksum"),
        board(
            offset_of!(Board, gicd),
            "board.gicd",
            8,
            Flip(1),
            "board-frame",
        ),
        board(
            offset_of!(Board, gicd),
            "board.gicd",
            8,
            Add(0x400_0000),
            "board-gicd",
        ),
        board(
            offset_of!(Board, gicd_size),
            "board.gicd_size",
            8,
            Flip(1),
            "board-frame",
        ),
        board(
            offset_of!(Board, gicr),
            "board.gicr",
            8,
            Flip(1),
            "board-frame",
        ),
        board(
            offset_of!(Board, gicr_size),
            "board.gicr_size",
            8,
            Flip(1),
            "board-frame",
        ),
        board(
            offset_of!(Board, uart),
            "board.uart",
            8,
            Flip(1),
            "board-frame",
        ),
        board(
            offset_of!(Board, uart),
            "board.uart",
            8,
            Add(0x8_0000),
            "board-uart",
        ),
        board(
            offset_of!(Board, uart_size),
            "board.uart_size",
            8,
            Flip(1),
            "board-frame",
        ),
        board(
            offset_of!(Board, uart_intid),
            "board.uart_intid",
            4,
            Set(5),
            "board-intid",
        ),
        board(
            offset_of!(Board, vtimer_intid),
            "board.vtimer_intid",
            4,
            Set(40),
            "board-intid",
        ),
        board(
            offset_of!(Board, vtimer_intid),
            "board.vtimer_intid",
            4,
            Set(20),
            "board-timer",
        ),
        board(
            offset_of!(Board, maintenance_intid),
            "board.maintenance_intid",
            4,
            Set(40),
            "board-intid",
        ),
        board(
            offset_of!(Board, gic_version),
            "board.gic_version",
            4,
            Set(2),
            "gic-version",
        ),
        image(
            offset_of!(Image, base),
            "image.base",
            8,
            Add(4096),
            "image-base",
        ),
        image(
            offset_of!(Image, size),
            "image.size",
            8,
            Add(4096),
            "image-size",
        ),
        image(
            offset_of!(Image, plan_offset),
            "image.plan_offset",
            8,
            Add(8),
            "plan-offset",
        ),
        image(
            offset_of!(Image, pool_offset),
            "image.pool_offset",
            8,
            Add(4096),
            "image-size",
        ),
        image(
            offset_of!(Image, pool_pages),
            "image.pool_pages",
            4,
            Add(1),
            "image-size",
        ),
        image(
            offset_of!(Image, reserved),
            "image.reserved",
            4,
            Set(1),
            "reserved-zero",
        ),
        alter!(MEMORY, Memory, base, 8, Flip(1), "memory-range"),
        alter!(MEMORY, Memory, size, 8, Flip(1), "memory-range"),
        alter!(MEMORY, Memory, size, 8, Add(1 << 30), "board-memory"),
        alter!(PCPU, Pcpu, mpidr, 8, Flip(1 << 31), "pcpu-mpidr"),
        alter!(PCPU, Pcpu, mpidr, 8, Set(0xf00), "board-cpu"),
        alter!(PCPU, Pcpu, vcpu, 2, Set(15), "vcpu-placement"),
        alter!(PCPU, Pcpu, service, 2, Flip(1), "pcpu-service"),
        alter!(PCPU, Pcpu, reserved, 4, Set(1), "reserved-zero"),
        alter!(VM, Vm, name, 1, Set(b'!' as u64), "vm-name"),
        alter!(VM, Vm, class, 2, Set(9), "vm-class"),
        alter!(VM, Vm, crash, 2, Set(9), "vm-crash"),
        alter!(VM, Vm, flags, 2, Flip(1 << 15), "vm-flags"),
        alter!(VM, Vm, vmid, 2, Set(0), "vm-vmid"),
        alter!(VM, Vm, entry, 8, Flip(1), "vm-entry"),
        alter!(VM, Vm, boot_arg, 8, Add(8), "vm-boot-arg"),
        alter!(VM, Vm, gicd, 8, Flip(1), "vgic-frame"),
        alter!(VM, Vm, gicr, 8, Flip(1), "vgic-frame"),
        alter!(VM, Vm, spis, 4, Add(1), "vgic-spis"),
        alter!(VM, Vm, s2_pages, 4, Add(1), "vm-stage2-pages"),
        alter!(VCPU, Vcpu, vm, 2, NO_VM, "table-order"),
        alter!(VCPU, Vcpu, pcpu, 2, Set(7), "vcpu-placement"),
        alter!(VCPU, Vcpu, reserved, 4, Set(1), "reserved-zero"),
        alter!(VCPU, Vcpu, mpidr, 8, Set(1), "vcpu-mpidr"),
        alter!(REGION, Region, vm, 2, NO_VM, "table-order"),
        alter!(REGION, Region, kind, 2, Set(9), "region-kind"),
        alter!(REGION, Region, access, 2, Set(0), "region-access"),
        alter!(REGION, Region, shared, 2, Set(7), "region-shared"),
        alter!(REGION, Region, ipa, 8, Flip(1), "region-range"),
        alter!(REGION, Region, pa, 8, Flip(1), "region-range"),
        alter!(REGION, Region, size, 8, Flip(1), "region-range"),
        alter!(LOAD, Load, vm, 2, NO_VM, "table-order"),
        alter!(LOAD, Load, reserved, 2, Set(1), "reserved-zero"),
        alter!(LOAD, Load, offset, 8, Add(8), "load-offset"),
        alter!(LOAD, Load, size, 8, Set(0), "load-size"),
        alter!(LOAD, Load, ipa, 8, Flip(4), "load-target"),
        alter!(SEED, Seed, vm, 2, NO_VM, "table-order"),
        alter!(SEED, Seed, kind, 2, Set(9), "seed-kind"),
        alter!(SEED, Seed, size, 4, Add(1), "seed-size"),
        alter!(SEED, Seed, ipa, 8, Flip(1), "seed-target"),
        alter!(IRQ, Irq, vm, 2, NO_VM, "table-order"),
        alter!(IRQ, Irq, vintid, 2, Set(5), "irq-vintid"),
        alter!(IRQ, Irq, pintid, 2, Set(5), "irq-pintid"),
        alter!(IRQ, Irq, flags, 2, Flip(1 << 15), "irq-flags"),
        alter!(DEVICE, Device, vm, 2, NO_VM, "table-order"),
        alter!(DEVICE, Device, kind, 2, Set(9), "device-kind"),
        alter!(DEVICE, Device, vintid, 2, Set(5), "irq-vintid"),
        alter!(DEVICE, Device, reserved, 2, Set(1), "reserved-zero"),
        alter!(DEVICE, Device, ipa, 8, Flip(1), "device-frame"),
        alter!(DEVICE, Device, size, 8, Add(4096), "device-frame"),
    ];
    for table in 0..TABLES {
        let at = offset_of!(Header, tables) + table * size_of::<Table>();
        for (offset, field, change) in [
            (offset_of!(Table, offset), "table.offset", Add(8)),
            (
                offset_of!(Table, count),
                "table.count",
                Set(u32::MAX.into()),
            ),
        ] {
            let invariant = "table-layout";
            let offset = at + offset;
            all.push(Alteration {
                field,
                place: Place::Header,
                offset,
                width: 4,
                change,
                invariant,
            });
        }
    }
    all
}

const fn board(
    offset: usize,
    field: &'static str,
    width: usize,
    change: Change,
    invariant: &'static str,
) -> Alteration {
    let offset = offset_of!(Header, board) + offset;
    Alteration {
        field,
        place: Place::Header,
        offset,
        width,
        change,
        invariant,
    }
}

const fn image(
    offset: usize,
    field: &'static str,
    width: usize,
    change: Change,
    invariant: &'static str,
) -> Alteration {
    let offset = offset_of!(Header, image) + offset;
    Alteration {
        field,
        place: Place::Header,
        offset,
        width,
        change,
        invariant,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const ALL_TABLES: [TableId; TABLES] = [
        TableId::Memory,
        TableId::Pcpus,
        TableId::Vms,
        TableId::Vcpus,
        TableId::Regions,
        TableId::Loads,
        TableId::Seeds,
        TableId::Irqs,
        TableId::Devices,
    ];

    /// Bytes of header and rows that some alteration changes, arrays counted as a whole.
    fn covered(place: impl Fn(Place) -> bool) -> BTreeSet<usize> {
        let arrays = [("name", 16), ("reserved", 6)];
        let mut bytes = BTreeSet::new();
        for alteration in all().iter().filter(|alteration| place(alteration.place)) {
            let array = arrays.iter().find(|(field, size)| {
                *field == alteration.field && size % alteration.width == 0 && alteration.width <= 2
            });
            let width = match (array, alteration.place) {
                (Some((_, size)), Place::Row(TableId::Vms | TableId::Loads, _)) => *size,
                _ => alteration.width,
            };
            bytes.extend(alteration.offset..alteration.offset + width);
        }
        bytes
    }

    #[test]
    fn every_byte_of_a_plan_is_altered_somewhere() {
        let header = covered(|place| place == Place::Header);
        assert_eq!(header, (0..size_of::<Header>()).collect());
        for table in ALL_TABLES {
            let row = covered(|place| matches!(place, Place::Row(t, _) if t == table));
            assert_eq!(row, (0..row_size(table)).collect(), "{table:?}");
        }
    }

    #[test]
    fn a_number_changes_and_its_neighbours_do_not() {
        let mut plan = vec![0u8; size_of::<Header>()];
        let alteration = alter!(Place::Header, Header, version, 4, Set(0x0102_0304), "x");
        alteration.apply(&mut plan);
        let at = offset_of!(Header, version);
        assert_eq!(plan[at..at + 4], [4, 3, 2, 1]);
        assert_eq!(plan.iter().filter(|byte| **byte != 0).count(), 4);
    }
}
