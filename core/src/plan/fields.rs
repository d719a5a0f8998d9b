//! Every field of the plan by name, with its offset. A field that is added to a struct and not to
//! this list does not compile.

use bulkhead_abi::plan::{
    Backend, Board, Call, Device, Doorbell, Header, Image, Irq, Memory, Payload, Pcpu, Quiet,
    Region, Right, Seed, ServiceThread, Stop, TABLES, Table, TableId, Vcpu, VirtioDevice,
    Virtqueue, Vm,
};
use core::mem::offset_of;

/// A field of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name: `Struct.field`; for entries of the table directory `Table[n].field`.
    pub name: &'static str,
    /// Table whose rows have the field; `None` for the header.
    pub table: Option<TableId>,
    /// Offset in bytes from the start of the row, or of the plan.
    pub offset: usize,
    /// Size of the field in bytes.
    pub size: usize,
    /// Size of the row in bytes.
    pub row: usize,
}

/// The size of a field, inferred from a function that borrows it.
const fn size_of_field<T, U>(_: fn(&T) -> &U) -> usize {
    size_of::<U>()
}

/// Lists the fields of a struct, all of them: the pattern has no `..`.
macro_rules! fields {
    ($list:ident, $ty:ident, $table:expr, $base:expr, [$($field:ident),* $(,)?]) => {
        const $list: &[Field] = {
            const _: fn(&$ty) = |$ty { $($field: _),* }| {};
            &[$(Field {
                name: concat!(stringify!($ty), ".", stringify!($field)),
                table: $table,
                offset: $base + offset_of!($ty, $field),
                size: size_of_field(|row: &$ty| &row.$field),
                row: size_of::<$ty>(),
            }),*]
        };
    };
}

// `board`, `image` and `tables` of the header are structs; their fields follow.
fields!(
    HEADER,
    Header,
    None,
    0,
    [
        magic,
        version,
        header_size,
        size,
        checksum,
        board,
        image,
        tables,
    ]
);
fields!(
    BOARD,
    Board,
    None,
    offset_of!(Header, board),
    [
        gicd,
        gicd_size,
        gicr,
        gicr_size,
        gicc,
        gicc_size,
        gich,
        gich_size,
        gicv,
        gicv_size,
        uart,
        uart_size,
        rtc,
        uart_intid,
        vtimer_intid,
        ptimer_intid,
        hyp_timer_intid,
        maintenance_intid,
        gic_version,
        uart_kind,
        event,
    ]
);
fields!(
    IMAGE,
    Image,
    None,
    offset_of!(Header, image),
    [
        base,
        size,
        plan_offset,
        page_pool_offset,
        colours,
        page_pool_pages,
        profile,
    ]
);
fields!(MEMORY, Memory, Some(TableId::Memory), 0, [base, size]);
fields!(
    PCPU,
    Pcpu,
    Some(TableId::Pcpus),
    0,
    [
        mpidr,
        service,
        call_spi,
        pmu_intid,
        release,
        cache,
        cache_level,
        colours,
    ]
);
fields!(
    VM,
    Vm,
    Some(TableId::Vms),
    0,
    [
        name,
        class,
        crash,
        flags,
        vmid,
        restarts,
        restart_seconds,
        notify,
        event_intid,
        interrupts,
        reclaim,
        resets,
        reset_seconds,
        entry,
        boot_arg,
        gicd,
        gicr,
        gicc,
        stolen_time,
        spis,
        s2_pages,
        s2_root,
    ]
);
fields!(
    VCPU,
    Vcpu,
    Some(TableId::Vcpus),
    0,
    [
        vm,
        pcpu,
        policy,
        weight,
        mpidr,
        budget,
        period,
        pool,
        events,
        events_period
    ]
);
fields!(
    REGION,
    Region,
    Some(TableId::Regions),
    0,
    [vm, kind, access, shared, ipa, pa, size, colours]
);
fields!(
    PAYLOAD,
    Payload,
    Some(TableId::Payloads),
    0,
    [vm, reserved, offset, size, ipa]
);
fields!(SEED, Seed, Some(TableId::Seeds), 0, [vm, kind, size, ipa]);
fields!(
    IRQ,
    Irq,
    Some(TableId::Irqs),
    0,
    [vm, vintid, pintid, flags]
);
fields!(
    DEVICE,
    Device,
    Some(TableId::Devices),
    0,
    [vm, kind, vintid, reserved, ipa, size]
);
fields!(
    QUIET,
    Quiet,
    Some(TableId::Quiets),
    0,
    [vm, width, value, pa]
);
fields!(
    CALL,
    Call,
    Some(TableId::Calls),
    0,
    [vm, reserved, function]
);

fields!(
    DOORBELL,
    Doorbell,
    Some(TableId::Doorbells),
    0,
    [vm, to, vintid, pintid, ipa, apart]
);

fields!(
    SERVICE_THREAD,
    ServiceThread,
    Some(TableId::ServiceThreads),
    0,
    [
        pcpu, policy, weight, reserved, budget, period, pages, reserved2
    ]
);
fields!(
    BACKEND,
    Backend,
    Some(TableId::Backends),
    0,
    [vm, vintid, reserved, page, bell]
);
fields!(
    VIRTIO_DEVICE,
    VirtioDevice,
    Some(TableId::VirtioDevices),
    0,
    [
        vm,
        backend,
        id,
        vintid,
        unit,
        flags,
        index,
        config_bytes,
        service,
        reserved,
        reserved2,
        ipa,
        window,
        window_size,
        features,
        poll,
        config
    ]
);
fields!(
    VIRTQUEUE,
    Virtqueue,
    Some(TableId::Virtqueues),
    0,
    [
        device, size, slots, flags, slot_bytes, readable, writable, ring, slots_at, reserved
    ]
);

fields!(
    RIGHT,
    Right,
    Some(TableId::Rights),
    0,
    [manager, vm, rights]
);

fields!(
    STOP,
    Stop,
    Some(TableId::Stops),
    0,
    [vm, vintid, timeout, word]
);

/// Lists the two fields of each entry of the table directory.
macro_rules! table_fields {
    ($($number:literal)*) => {
        const PLACES: &[Field] = {
            const _: fn(&Table) = |Table { offset: _, count: _ }| {};
            &[$(
                Field {
                    name: concat!("Table[", $number, "].offset"),
                    table: None,
                    offset: offset_of!(Header, tables) + $number * size_of::<Table>(),
                    size: 4,
                    row: size_of::<Table>(),
                },
                Field {
                    name: concat!("Table[", $number, "].count"),
                    table: None,
                    offset: offset_of!(Header, tables) + $number * size_of::<Table>() + 4,
                    size: 4,
                    row: size_of::<Table>(),
                },
            )*]
        };
    };
}
table_fields!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17);
const _: () = assert!(PLACES.len() == 2 * TABLES);

/// All fields, those of the header first.
pub fn fields() -> impl Iterator<Item = &'static Field> {
    let structs = ["Header.board", "Header.image", "Header.tables"];
    [
        HEADER,
        BOARD,
        IMAGE,
        PLACES,
        MEMORY,
        PCPU,
        VM,
        VCPU,
        REGION,
        PAYLOAD,
        SEED,
        IRQ,
        DEVICE,
        QUIET,
        CALL,
        DOORBELL,
        SERVICE_THREAD,
        BACKEND,
        VIRTIO_DEVICE,
        VIRTQUEUE,
        RIGHT,
        STOP,
    ]
    .into_iter()
    .flatten()
    .filter(move |field| !structs.contains(&field.name))
}
