//! A VM of two vCPUs and its vGIC, whose words are loom's.

use bulkhead_interleave::vgic::{Answer, Cpu, Distributor, Host, Maintenance, Notify, Version, lr};
use loom::sync::Arc;
use loom::thread;

use crate::trying::model_of;

/// The list registers of a pCPU. No physical interrupt is behind any of the VM's.
#[derive(Debug, Default)]
pub struct Board<const V2: bool> {
    lrs: [u64; 3],
}

impl<const V2: bool> Host for Board<V2> {
    const VERSION: Version = if V2 { Version::V2 } else { Version::V3 };

    fn list_registers(&self) -> u32 {
        3
    }

    fn usable(&self) -> u32 {
        0b110
    }

    fn lr(&self, n: u32) -> u64 {
        self.lrs[n as usize]
    }

    fn set_lr(&mut self, n: u32, value: u64) {
        self.lrs[n as usize] = value;
    }

    fn empty(&self) -> u32 {
        let empty = |n: &u32| self.lr(*n) & (lr::STATE | lr::EOI) == 0;
        (0..3).filter(empty).fold(0, |all, n| all | 1 << n)
    }

    fn eoi_count(&mut self) -> u32 {
        0
    }

    fn groups(&self) -> u32 {
        3
    }

    fn ask(&mut self, _what: Maintenance) {}
    fn enable(&mut self, _pintid: u32) {}
    fn disable(&mut self, _pintid: u32) {}
    fn deactivate(&mut self, _pintid: u32) {}
    fn set_active(&mut self, _pintid: u32) {}
    fn set_pending(&mut self, _pintid: u32, _pending: bool) {}
    fn route(&mut self, _pintid: u32, _vcpu: usize) {}

    fn is_pending(&self, _pintid: u32) -> bool {
        false
    }
}

/// The SPIs of the tests, both in word 1, and a bit of a register for each.
pub const SPI: u32 = 32;
pub const OTHER: u32 = 33;
pub const BIT: u64 = 1 << (SPI - 32);
pub const OTHER_BIT: u64 = 1 << (OTHER - 32);

pub const CTLR: u64 = 0;
pub const IGROUPR: u64 = 0x84;
pub const PRIORITY: u64 = 0x420;
pub const RWP: u64 = 1 << 31;
pub const ISENABLER: u64 = 0x104;
pub const ICENABLER: u64 = 0x184;
pub const ISPENDR: u64 = 0x204;
pub const ICPENDR: u64 = 0x284;
pub const ISACTIVER: u64 = 0x304;
pub const ICACTIVER: u64 = 0x384;

pub type Dist = Arc<Box<Distributor>>;

/// A vCPU, its list registers, and whom it has told to look.
pub struct Vcpu<const V2: bool = false> {
    pub dist: Dist,
    pub cpu: Cpu,
    pub board: Board<V2>,
    pub told: u8,
}

impl<const V2: bool> Vcpu<V2> {
    pub fn tell(&mut self, whom: Notify) {
        self.told |= whom.0;
    }

    /// The guest writes a register of the distributor.
    pub fn write(&mut self, offset: u64, value: u64) {
        let (answer, whom) = self
            .cpu
            .gicd_write(&self.dist, &mut self.board, offset, 4, value);
        assert_eq!(answer, Answer::Value(0));
        self.tell(whom);
    }

    /// The guest reads one; `None`: it has to do so again.
    pub fn read(&mut self, offset: u64) -> Option<u64> {
        let (answer, whom) = self.cpu.gicd_read(&self.dist, &mut self.board, offset, 4);
        self.tell(whom);
        match answer {
            Answer::Value(value) => Some(value),
            Answer::Again => None,
        }
    }

    /// Routes an SPI.
    pub fn route(&mut self, intid: u32, vcpu: u64) {
        let offset = 0x6000 + 8 * u64::from(intid);
        let (_, whom) = self
            .cpu
            .gicd_write(&self.dist, &mut self.board, offset, 8, vcpu);
        self.tell(whom);
    }

    /// It takes the SGI for siblings.
    pub fn look(&mut self) {
        let whom = self.cpu.on_notify(&self.dist, &mut self.board);
        self.tell(whom);
    }

    /// The entries of an interrupt in its list registers.
    pub fn entries(&self, intid: u32) -> impl Iterator<Item = (usize, u64)> {
        let entries = self.board.lrs.iter().copied().enumerate();
        entries.filter(move |(_, entry)| lr::vintid(*entry) == intid && entry & lr::STATE != 0)
    }

    /// The state of an interrupt in its list registers.
    pub fn has(&self, intid: u32) -> u64 {
        let mut entries = self.entries(intid);
        let entry = entries.next().map_or(0, |(_, entry)| entry & lr::STATE);
        assert!(entries.next().is_none(), "{intid} in two list registers");
        entry
    }

    /// The entry of an interrupt that is in a list register.
    pub fn entry(&self, intid: u32) -> u64 {
        self.entries(intid).next().expect("it is there").1
    }

    /// The guest takes an interrupt.
    pub fn acknowledge(&mut self, intid: u32) {
        let (n, entry) = self.entries(intid).next().expect("it is pending");
        assert_eq!(entry & lr::STATE, lr::PENDING);
        self.board.lrs[n] = entry ^ lr::STATE;
    }

    /// The guest ends one, and EL2 hears of it if it has asked for that.
    pub fn end(&mut self, intid: u32) {
        let (n, entry) = self.entries(intid).next().expect("it is active");
        assert_ne!(entry & lr::ACTIVE, 0);
        self.board.lrs[n] = entry & !lr::ACTIVE;
        if entry & (lr::EOI | lr::PENDING) == lr::EOI {
            let whom = self.cpu.handle_maintenance(&self.dist, &mut self.board);
            self.tell(whom);
        }
    }
}

/// A VM of two vCPUs that are on, and two SPIs that are routed to vCPU 0, edge-triggered and enabled.
pub fn vm<const V2: bool>() -> [Vcpu<V2>; 2] {
    // Too large for the stack of a thread of loom.
    let made = || Box::new(Distributor::new());
    let dist = Arc::new(std::thread::spawn(made).join().unwrap());
    dist.reset(Board::<V2>::VERSION, 2, 32, 27);
    let mut vcpus = [0, 1].map(|n| Vcpu {
        dist: Arc::clone(&dist),
        cpu: Cpu::new(n),
        board: Board::default(),
        told: 0,
    });
    for vcpu in &mut vcpus {
        let whom = vcpu.cpu.reset(&vcpu.dist, &mut vcpu.board);
        vcpu.tell(whom);
    }
    let first = &mut vcpus[0];
    first.write(CTLR, 3);
    first.write(0xc08, 0xa);
    first.write(ISENABLER, BIT | OTHER_BIT);
    if V2 {
        first.write(0x820, 0x0101);
    }
    // Loom's words are made at their first use, which must not be by two at a time.
    post(&mut vcpus[0]);
    settle(&mut vcpus, 0);
    vcpus[0].write(ICPENDR, BIT);
    settle(&mut vcpus, 0);
    vcpus
}

/// All vCPUs that have been told to look do so, until none has. `told`: by others.
pub fn settle<const V2: bool>(vcpus: &mut [Vcpu<V2>; 2], told: u8) {
    let mut told = told;
    for _ in 0..20 {
        for vcpu in &mut *vcpus {
            told |= std::mem::take(&mut vcpu.told);
        }
        if told == 0 {
            return;
        }
        for (n, vcpu) in vcpus.iter_mut().enumerate() {
            if told >> n & 1 != 0 {
                vcpu.look();
            }
        }
        told = 0;
    }
    panic!("it never ends");
}

/// vCPU 1 does `its` while vCPU 0 does `mine`, on a VM on which `before` has been done; then all settle. With more than three
/// switches of pCPUs that are not forced, the longest take minutes.
pub fn at_once<const V2: bool>(
    before: fn(&mut [Vcpu<V2>; 2]),
    mine: fn(&mut Vcpu<V2>),
    its: fn(&mut Vcpu<V2>),
    after: fn(&mut [Vcpu<V2>; 2]),
) {
    model_of(BRANCHES, Some(3), move || {
        let mut vcpus = vm::<V2>();
        before(&mut vcpus);
        let [mut first, mut second] = vcpus;
        let thread = thread::spawn(move || {
            its(&mut second);
            second
        });
        mine(&mut first);
        let mut vcpus = [first, thread.join().unwrap()];
        settle(&mut vcpus, 0);
        after(&mut vcpus);
    });
}

/// A VM takes more steps to set up than loom expects in all.
pub const BRANCHES: usize = 100_000;

pub fn post<const V2: bool>(vcpu: &mut Vcpu<V2>) {
    let whom = vcpu.dist.post(SPI, 0);
    vcpu.tell(whom);
}
