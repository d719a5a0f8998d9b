//! What drives the switch and the disks: it finds devices in windows, follows their sessions, and
//! serves each with a quota in its turn.

use core::sync::atomic::{Ordering, fence};

use arrayvec::ArrayVec;
use bulkhead_abi::device::{Refusal, backend_page};

use crate::bits::bits;
use crate::counts::Counts;
use crate::disk::{self, Disk};
use crate::memory::{Memory, Outside};
use crate::queue::Broken;
use crate::session::{Description, Live, Session, Step, set_config};
use crate::store::Store;
use crate::switch::{self, Switch};

/// Most devices of a backend: a set of them is a word of the page.
pub const MOST_DEVICES: usize = 64;

/// Features that the transport knows and no device has to (VIRTIO 1.2, 2.2): bits 24 to 41.
const TRANSPORT: u64 = 0x3ff_ff00_0000;
/// Device IDs (5): network, block.
const NETWORK: u32 = 1;
const BLOCK: u32 = 2;

/// Where virtio-net's config has its parts, and VIRTIO_NET_S_LINK_UP (5.1.4).
const NET_MAC: usize = 0;
const NET_STATUS: usize = 6;
const NET_MTU: usize = 10;
const LINK_UP: u8 = 1;

/// Some ports and some disks, a bit for each by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Units {
    /// The ports.
    pub ports: u64,
    /// The disks.
    pub disks: u64,
}

impl Units {
    /// The first ones: so many of each.
    pub fn first(ports: usize, disks: usize) -> Self {
        let all = |count: usize| bit(count).wrapping_sub(1);
        Self {
            ports: all(ports),
            disks: all(disks),
        }
    }
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Port(usize),
    Disk(usize),
    /// It is refused.
    None,
}

#[derive(Debug)]
struct Device<M> {
    memory: M,
    session: Session,
    role: Role,
}

/// A backend for at most `N` ports, `N` disks and `N` windows.
#[derive(Debug)]
pub struct Backend<M, S, const N: usize> {
    page: M,
    /// Windows without a device page yet.
    windows: ArrayVec<M, N>,
    /// By their bits in the page.
    devices: [Option<Device<M>>; MOST_DEVICES],
    /// The device of each port, as a bit; 0 for none.
    port_devices: [u64; MOST_DEVICES],
    switch: Switch<M, N>,
    disks: ArrayVec<Disk<S>, N>,
    counts: Counts<M>,
    /// Whose counters have changed since they were said.
    changed: Units,
    /// Whose sessions have ended since somebody asked.
    ended: Units,
    /// Units of work for each device in a round.
    quota: u32,
    /// Devices that have to be looked at.
    pending: u64,
    /// Devices that have not been asked to tell of what comes next.
    unarmed: u64,
    /// Devices of which EL2 is to be told.
    rings: u64,
    /// Sessions that were ended because their rings were broken.
    broken: u64,
}

impl<M: Memory, S: Store<M>, const N: usize> Backend<M, S, N> {
    /// A backend with these windows, in any order: a device's number among its kind says which
    /// port or disk it is.
    pub fn new(
        page: M,
        windows: ArrayVec<M, N>,
        switch: Switch<M, N>,
        disks: ArrayVec<Disk<S>, N>,
        counts: Counts<M>,
        quota: u32,
    ) -> Self {
        Self {
            page,
            windows,
            devices: [const { None }; MOST_DEVICES],
            port_devices: [0; MOST_DEVICES],
            switch,
            disks,
            counts,
            changed: Units::default(),
            ended: Units::default(),
            quota,
            pending: 0,
            unarmed: 0,
            rings: 0,
            broken: 0,
        }
    }

    /// The switch, for its counters.
    pub fn switch(&self) -> &Switch<M, N> {
        &self.switch
    }

    /// The disks, for their counters.
    pub fn disks(&self) -> &[Disk<S>] {
        &self.disks
    }

    /// Number of sessions that were ended because their rings were broken: defects of EL2, or of
    /// this crate.
    pub fn broken(&self) -> u64 {
        self.broken
    }

    /// Takes what EL2 has told since the last time. To be called first, too, when nothing was told
    /// yet.
    pub fn take_told(&mut self) -> Result<(), Outside> {
        self.pending |= self.page.swap64(backend_page::NEWS as u64, 0)?;
        // What was written before the bit is read after it.
        fence(Ordering::Acquire);
        self.find();
        Ok(())
    }

    /// Serves each device that has something to do, with one quota each. Returns whether there is
    /// more. `now` is a counter of time, with which addresses in the switch age.
    pub fn serve(&mut self, now: u64) -> bool {
        for index in bits(self.pending) {
            self.pending &= !bit(index);
            self.unarmed |= bit(index);
            match self.step(index, now) {
                Ok(true) => self.pending |= bit(index),
                Ok(false) => {}
                Err(Broken) => self.end(index),
            }
        }
        self.pending != 0
    }

    /// The devices of which EL2 is to be told, a bit for each, as it takes them.
    pub fn take_rings(&mut self) -> u64 {
        core::mem::take(&mut self.rings)
    }

    /// Ports and disks whose sessions have ended since this was asked last, and that have done
    /// something which was not said. It is now.
    pub fn take_ended(&mut self) -> Units {
        let Units { ports, disks } = core::mem::take(&mut self.ended);
        let said = Units {
            ports: ports & self.changed.ports,
            disks: disks & self.changed.disks,
        };
        self.changed.ports &= !said.ports;
        self.changed.disks &= !said.disks;
        said
    }

    /// Asks to be told of everything that comes next, and looks again. Returns whether there is
    /// something to do already; if not, an interrupt comes when there is.
    pub fn arm(&mut self) -> Result<bool, Outside> {
        for index in bits(core::mem::take(&mut self.unarmed)) {
            match self.arm_device(index) {
                Ok(true) => self.pending |= bit(index),
                Ok(false) => {}
                Err(Broken) => self.end(index),
            }
        }
        if self.pending | self.rings != 0 {
            return Ok(true);
        }
        self.page.store32(backend_page::ARMED as u64, 1)?;
        // EL2 sets bits and then looks whether it is armed; this side arms and then looks at the
        // bits. One of the two has to see the other's store.
        fence(Ordering::SeqCst);
        Ok(self.page.load64(backend_page::NEWS as u64)? != 0)
    }

    /// Looks at the windows that had no device page so far.
    fn find(&mut self) {
        let mut number = 0;
        while let Some(memory) = self.windows.get(number) {
            match Description::read(memory) {
                Ok(Some(plan)) => {
                    let memory = self.windows.swap_remove(number);
                    self.attach(memory, &plan);
                }
                Ok(None) | Err(Outside) => number += 1,
            }
        }
    }

    /// Makes a device of a window.
    fn attach(&mut self, memory: M, plan: &Description) {
        let index = plan.index as usize;
        let free = self.devices.get(index).is_some_and(Option::is_none);
        let mut session = Session::new();
        let role = if free {
            self.role(&memory, plan)
        } else {
            Err(Refusal::Unit)
        };
        if let Err(why) = role {
            // The page has been read: it can be written.
            let _ = session.refuse(&memory, why);
        }
        match role {
            Ok(Role::Port(port)) => {
                if let Some(tally) = self.switch.tally(port) {
                    *tally = self.counts.port(port);
                }
                if let Some(device) = self.port_devices.get_mut(port) {
                    *device = bit(index);
                }
            }
            Ok(Role::Disk(number)) => {
                if let Some(disk) = self.disks.get_mut(number) {
                    *disk.tally() = self.counts.disk(number);
                }
            }
            Ok(Role::None) | Err(_) => {}
        }
        // Of the refusal, or of the config.
        self.rings |= bit(index);
        let device = Device {
            memory,
            session,
            role: role.unwrap_or(Role::None),
        };
        if let Some(place @ None) = self.devices.get_mut(index) {
            *place = Some(device);
            self.pending |= bit(index);
        }
    }

    fn role(&mut self, memory: &M, plan: &Description) -> Result<Role, Refusal> {
        let unit = plan.unit as usize;
        let (role, features) = match plan.id {
            NETWORK => (Role::Port(unit), switch::FEATURES),
            BLOCK => (Role::Disk(unit), disk::FEATURES),
            _ => return Err(Refusal::Type),
        };
        if self.devices.iter().flatten().any(|one| one.role == role) {
            return Err(Refusal::Unit);
        }
        if plan.offered & !(features | TRANSPORT) != 0 {
            return Err(Refusal::Features);
        }
        if plan.bytes > memory.bytes() {
            return Err(Refusal::Size);
        }
        if let Role::Disk(unit) = role {
            let disk = self.disks.get_mut(unit).ok_or(Refusal::Unit)?;
            disk.configure(plan)?;
            return Ok(role);
        }
        let port = self.switch.plan(unit).ok_or(Refusal::Unit)?;
        check_port(port, plan)?;
        let mut config = plan.config.clone();
        if let Some(status) = config.get_mut(NET_STATUS) {
            *status |= LINK_UP;
        }
        set_config(memory, &config).map_err(|_| Refusal::Size)?;
        Ok(role)
    }

    /// Follows the session of a device and serves it. Returns whether there is more.
    fn step(&mut self, index: usize, now: u64) -> Result<bool, Broken> {
        let Some(Some(device)) = self.devices.get_mut(index) else {
            return Ok(false);
        };
        let memory = device.memory.clone();
        let role = device.role;
        match device.session.look(&memory)? {
            Step::Nothing if device.session.is_live() => self.serve_role(index, role, now),
            Step::Nothing => Ok(false),
            Step::Tell => {
                self.rings |= bit(index);
                Ok(false)
            }
            Step::LetGo(session) => {
                self.let_go(role);
                self.ready(index, session)?;
                Ok(true)
            }
            Step::Begin => {
                let live = device.session.begin(&memory)?;
                self.begin(role, memory, live);
                Ok(true)
            }
        }
    }

    fn ready(&mut self, index: usize, session: u32) -> Result<(), Outside> {
        if let Some(Some(device)) = self.devices.get_mut(index) {
            device.session.let_go(&device.memory, session)?;
            self.rings |= bit(index);
        }
        Ok(())
    }

    fn begin(&mut self, role: Role, memory: M, live: Live) {
        match role {
            Role::Port(port) => self.switch.up(port, memory, live),
            Role::Disk(disk) => {
                if let Some(disk) = self.disks.get_mut(disk) {
                    disk.open(live);
                }
            }
            Role::None => {}
        }
    }

    fn serve_role(&mut self, index: usize, role: Role, now: u64) -> Result<bool, Broken> {
        match role {
            Role::Port(port) => {
                let served = self.switch.serve(port, self.quota, now);
                self.rings |= self.ports(served.ring);
                self.keep_ports(served.touched);
                for index in bits(self.ports(served.broken)) {
                    self.end(index);
                }
                Ok(served.more)
            }
            Role::Disk(number) => {
                let (Some(disk), Some(Some(device))) =
                    (self.disks.get_mut(number), self.devices.get(index))
                else {
                    return Ok(false);
                };
                let served = disk.serve(&device.memory, self.quota);
                if self.counts.keep_disk(number, disk.tally()) {
                    self.changed.disks |= bit(number);
                }
                let served = served?;
                if served.ring {
                    self.rings |= bit(index);
                }
                Ok(served.more)
            }
            Role::None => Ok(false),
        }
    }

    /// Keeps the counters of ports.
    fn keep_ports(&mut self, ports: u64) {
        for port in bits(ports) {
            if let Some(tally) = self.switch.tally(port)
                && self.counts.keep_port(port, tally)
            {
                self.changed.ports |= bit(port);
            }
        }
    }

    /// The devices of a set of ports.
    fn ports(&self, ports: u64) -> u64 {
        bits(ports).fold(0, |set, port| {
            set | self.port_devices.get(port).copied().unwrap_or(0)
        })
    }

    fn arm_device(&mut self, index: usize) -> Result<bool, Broken> {
        match self.devices.get(index) {
            Some(Some(device)) if device.session.is_live() => match device.role {
                Role::Port(port) => self.switch.arm(port),
                Role::Disk(disk) => match self.disks.get(disk) {
                    Some(disk) => disk.arm(&device.memory),
                    None => Ok(false),
                },
                Role::None => Ok(false),
            },
            _ => Ok(false),
        }
    }

    fn let_go(&mut self, role: Role) {
        match role {
            Role::Port(port) => {
                self.switch.down(port);
                self.ended.ports |= bit(port);
            }
            Role::Disk(number) => {
                if let Some(disk) = self.disks.get_mut(number) {
                    disk.close();
                }
                self.ended.disks |= bit(number);
            }
            Role::None => {}
        }
    }

    /// Serves a session no more, whose rings are broken, and asks for another.
    fn end(&mut self, index: usize) {
        let Some(Some(device)) = self.devices.get_mut(index) else {
            return;
        };
        // A page that cannot be written is not there: nobody is to be told.
        if device.session.restart(&device.memory).is_ok() {
            self.rings |= bit(index);
        }
        let role = device.role;
        self.let_go(role);
        self.broken = self.broken.wrapping_add(1);
    }
}

/// Whether a device can be served as this port.
fn check_port(port: &switch::PortPlan, plan: &Description) -> Result<(), Refusal> {
    let config = |at: usize, bytes: &[u8]| {
        let there = plan
            .config
            .get(at..)
            .and_then(|rest| rest.get(..bytes.len()));
        if there == Some(bytes) {
            Ok(())
        } else {
            Err(Refusal::Config)
        }
    };
    if plan.offered & switch::MAC != 0 {
        config(NET_MAC, &port.mac.0)?;
    }
    if plan.offered & switch::MTU != 0 {
        config(NET_MTU, &port.mtu.to_le_bytes())?;
    }
    Ok(())
}

fn bit(index: usize) -> u64 {
    u32::try_from(index)
        .ok()
        .and_then(|index| 1u64.checked_shl(index))
        .unwrap_or(0)
}
