//! Addresses that were seen behind uplinks: learned, aged, and bounded in number.

use heapless::index_map::FnvIndexMap;

use super::frame::Mac;

/// Most addresses that are remembered.
pub const STATIONS: usize = 256;

#[derive(Clone, Copy, Debug)]
struct Station {
    port: usize,
    seen: u64,
}

/// An address was seen at another port not long ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Elsewhere;

/// Which address of which VLAN is behind which uplink.
#[derive(Debug)]
pub(super) struct Stations {
    /// Ticks after which an address that was not seen is forgotten.
    age: u64,
    map: FnvIndexMap<(u16, Mac), Station, STATIONS>,
    /// Before this time, no address of a full table is old enough to be forgotten.
    full_until: u64,
}

impl Stations {
    pub(super) fn new(age: u64) -> Self {
        Self {
            age,
            map: FnvIndexMap::new(),
            full_until: 0,
        }
    }

    /// The port behind which an address is.
    pub(super) fn find(&self, vlan: u16, mac: Mac, now: u64) -> Option<usize> {
        let station = self.map.get(&(vlan, mac))?;
        self.is_fresh(station, now).then_some(station.port)
    }

    /// Notes that an address was seen at a port. An address does not move to another port before
    /// it is forgotten, so that nobody takes it from who has it. In a full table it is not noted.
    pub(super) fn learn(
        &mut self,
        vlan: u16,
        mac: Mac,
        port: usize,
        now: u64,
    ) -> Result<(), Elsewhere> {
        let fresh = Station { port, seen: now };
        if let Some(station) = self.map.get(&(vlan, mac)).copied() {
            if station.port != port && self.is_fresh(&station, now) {
                return Err(Elsewhere);
            }
        } else if self.map.is_full() && !self.forget(now) {
            return Ok(());
        }
        // There is a place for it.
        let _ = self.map.insert((vlan, mac), fresh);
        Ok(())
    }

    fn is_fresh(&self, station: &Station, now: u64) -> bool {
        now.saturating_sub(station.seen) < self.age
    }

    /// Forgets old addresses, and says whether there were any. A flood of new addresses makes it
    /// search the table at most as often as something in it ages.
    fn forget(&mut self, now: u64) -> bool {
        if now < self.full_until {
            return false;
        }
        let age = self.age;
        let before = self.map.len();
        self.map
            .retain(|_, station| now.saturating_sub(station.seen) < age);
        let oldest = self.map.values().map(|station| station.seen).min();
        self.full_until = oldest.unwrap_or(now).saturating_add(age);
        self.map.len() < before
    }
}
