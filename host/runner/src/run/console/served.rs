//! What disks and ports of the switch have done, from the lines of the VM that serves them.

use bulkhead_abi::console::{DiskDid, PortDid};
use serde::Serialize;

use crate::columns::{Column, Columns};

/// Columns of disks and of ports.
const COLUMNS: [Column; 7] = [
    Column::Left(24),
    Column::Right(10),
    Column::Right(14),
    Column::Right(10),
    Column::Right(14),
    Column::Right(8),
    Column::Left(0),
];

/// What a disk has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiskTraffic {
    /// Its number.
    pub unit: u64,
    /// Its VM.
    pub vm: String,
    /// Its name.
    pub name: String,
    /// Requests that read.
    pub reads: u64,
    /// Bytes that they had.
    pub read_bytes: u64,
    /// Requests that wrote.
    pub writes: u64,
    /// Bytes that they had.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Requests that failed.
    pub failed: u64,
}

/// What a port of the switch has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortTraffic {
    /// Its number.
    pub unit: u64,
    /// Its VM.
    pub vm: String,
    /// Its network.
    pub network: String,
    /// Frames that the VM has sent.
    pub sent: u64,
    /// Bytes that they had.
    pub sent_bytes: u64,
    /// Frames that the VM has received.
    pub received: u64,
    /// Bytes that they had.
    pub received_bytes: u64,
    /// Frames from it and for it that went nowhere.
    pub dropped: u64,
    /// The same by reason.
    pub reasons: Vec<(String, u64)>,
}

/// What disks and ports have done since the board started, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Served {
    /// Disks.
    pub disks: Vec<DiskTraffic>,
    /// Ports.
    pub ports: Vec<PortTraffic>,
}

impl Served {
    /// Takes a line of the VM that serves, which replaces what it said before of the same device.
    pub fn take(&mut self, line: &str) {
        if let Some(did) = DiskDid::parse(line) {
            self.disks.retain(|disk| disk.unit != did.unit);
            self.disks.push(DiskTraffic {
                unit: did.unit,
                vm: did.vm.as_str().to_owned(),
                name: did.disk.as_str().to_owned(),
                reads: did.reads,
                read_bytes: did.read_bytes,
                writes: did.writes,
                written_bytes: did.written_bytes,
                flushes: did.flushes,
                failed: did.failed,
            });
            self.disks.sort_by_key(|disk| disk.unit);
        }
        if let Some(did) = PortDid::parse(line) {
            let reasons = did.dropped.reasons();
            self.ports.retain(|port| port.unit != did.unit);
            self.ports.push(PortTraffic {
                unit: did.unit,
                vm: did.vm.as_str().to_owned(),
                network: did.network.as_str().to_owned(),
                sent: did.sent,
                sent_bytes: did.sent_bytes,
                received: did.received,
                received_bytes: did.received_bytes,
                dropped: did.dropped.total(),
                reasons: reasons.map(|(why, n)| (why.to_owned(), n)).collect(),
            });
            self.ports.sort_by_key(|port| port.unit);
        }
    }

    /// Whether nothing was said.
    pub fn is_empty(&self) -> bool {
        self.disks.is_empty() && self.ports.is_empty()
    }

    /// For a terminal or a log, each line indented.
    pub fn text(&self) -> String {
        let mut columns = Columns::new(&COLUMNS);
        if !self.disks.is_empty() {
            let head = ["disks", "reads", "bytes", "writes", "bytes", "failed", ""];
            columns.row(head.map(str::to_owned));
        }
        for disk in &self.disks {
            columns.row([
                format!("{} of {}", disk.name, disk.vm),
                disk.reads.to_string(),
                disk.read_bytes.to_string(),
                disk.writes.to_string(),
                disk.written_bytes.to_string(),
                disk.failed.to_string(),
                format!("   {} flushes", disk.flushes),
            ]);
        }
        if !self.ports.is_empty() {
            let head = [
                "networks", "sent", "bytes", "received", "bytes", "dropped", "",
            ];
            columns.row(head.map(str::to_owned));
        }
        for port in &self.ports {
            let reasons = port.reasons.iter();
            let reasons: Vec<_> = reasons
                .map(|(why, count)| format!("{why} {count}"))
                .collect();
            columns.row([
                format!("{} in {}", port.vm, port.network),
                port.sent.to_string(),
                port.sent_bytes.to_string(),
                port.received.to_string(),
                port.received_bytes.to_string(),
                port.dropped.to_string(),
                format!("   {}", reasons.join(", ")),
            ]);
        }
        columns.text("  ")
    }
}
