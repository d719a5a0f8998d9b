//! Every interleaving of the vCPUs of a VM, and of others that make interrupts of it pending.

use bulkhead_interleave::vgic::{Answer, Cpu, Distributor, Host, Maintenance, Notify, Version, lr};
use loom::sync::Arc;
use loom::thread;
use trying::model_of;

mod trying;

/// The list registers of a pCPU. No physical interrupt is behind any of the VM's.
#[derive(Debug, Default)]
struct Board<const V2: bool> {
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
const SPI: u32 = 32;
const OTHER: u32 = 33;
const BIT: u64 = 1 << (SPI - 32);
const OTHER_BIT: u64 = 1 << (OTHER - 32);

const CTLR: u64 = 0;
const IGROUPR: u64 = 0x84;
const PRIORITY: u64 = 0x420;
const RWP: u64 = 1 << 31;
const ISENABLER: u64 = 0x104;
const ICENABLER: u64 = 0x184;
const ISPENDR: u64 = 0x204;
const ICPENDR: u64 = 0x284;
const ISACTIVER: u64 = 0x304;
const ICACTIVER: u64 = 0x384;

type Dist = Arc<Box<Distributor>>;

/// A vCPU, its list registers, and whom it has told to look.
struct Vcpu<const V2: bool = false> {
    dist: Dist,
    cpu: Cpu,
    board: Board<V2>,
    told: u8,
}

impl<const V2: bool> Vcpu<V2> {
    fn tell(&mut self, whom: Notify) {
        self.told |= whom.0;
    }

    /// The guest writes a register of the distributor.
    fn write(&mut self, offset: u64, value: u64) {
        let (answer, whom) = self
            .cpu
            .gicd_write(&self.dist, &mut self.board, offset, 4, value);
        assert_eq!(answer, Answer::Value(0));
        self.tell(whom);
    }

    /// The guest reads one; `None`: it has to do so again.
    fn read(&mut self, offset: u64) -> Option<u64> {
        let (answer, whom) = self.cpu.gicd_read(&self.dist, &mut self.board, offset, 4);
        self.tell(whom);
        match answer {
            Answer::Value(value) => Some(value),
            Answer::Again => None,
        }
    }

    /// Routes an SPI.
    fn route(&mut self, intid: u32, vcpu: u64) {
        let offset = 0x6000 + 8 * u64::from(intid);
        let (_, whom) = self
            .cpu
            .gicd_write(&self.dist, &mut self.board, offset, 8, vcpu);
        self.tell(whom);
    }

    /// It takes the SGI for siblings.
    fn look(&mut self) {
        let whom = self.cpu.on_notify(&self.dist, &mut self.board);
        self.tell(whom);
    }

    /// The entries of an interrupt in its list registers.
    fn entries(&self, intid: u32) -> impl Iterator<Item = (usize, u64)> {
        let entries = self.board.lrs.iter().copied().enumerate();
        entries.filter(move |(_, entry)| lr::vintid(*entry) == intid && entry & lr::STATE != 0)
    }

    /// The state of an interrupt in its list registers.
    fn has(&self, intid: u32) -> u64 {
        let mut entries = self.entries(intid);
        let entry = entries.next().map_or(0, |(_, entry)| entry & lr::STATE);
        assert!(entries.next().is_none(), "{intid} in two list registers");
        entry
    }

    /// The entry of an interrupt that is in a list register.
    fn entry(&self, intid: u32) -> u64 {
        self.entries(intid).next().expect("it is there").1
    }

    /// The guest takes an interrupt.
    fn acknowledge(&mut self, intid: u32) {
        let (n, entry) = self.entries(intid).next().expect("it is pending");
        assert_eq!(entry & lr::STATE, lr::PENDING);
        self.board.lrs[n] = entry ^ lr::STATE;
    }

    /// The guest ends one, and EL2 hears of it if it has asked for that.
    fn end(&mut self, intid: u32) {
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
fn vm<const V2: bool>() -> [Vcpu<V2>; 2] {
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

/// All who have been told to look do so, until nobody has. `told`: by others.
fn settle<const V2: bool>(vcpus: &mut [Vcpu<V2>; 2], told: u8) {
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
fn at_once<const V2: bool>(
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
const BRANCHES: usize = 100_000;

fn post<const V2: bool>(vcpu: &mut Vcpu<V2>) {
    let whom = vcpu.dist.post(SPI, 0);
    vcpu.tell(whom);
}

/// The SPI is pending on vCPU 0, once.
fn is_first<const V2: bool>([first, second]: &mut [Vcpu<V2>; 2]) {
    assert_eq!((first.has(SPI), second.has(SPI)), (lr::PENDING, 0));
}

fn is_second<const V2: bool>([first, second]: &mut [Vcpu<V2>; 2]) {
    assert_eq!((first.has(SPI), second.has(SPI)), (0, lr::PENDING));
}

fn is_nowhere<const V2: bool>(vcpus: &mut [Vcpu<V2>; 2]) {
    for vcpu in vcpus {
        assert_eq!(vcpu.has(SPI), 0);
    }
}

#[test]
fn a_change_is_seen_or_notified() {
    // The owner looks; and it looks because of a mark for another, which is there already.
    at_once::<false>(|_| (), Vcpu::look, post, is_first);
    at_once::<false>(
        |vcpus| {
            let _on_its_way = vcpus[0].dist.post(OTHER, 0);
        },
        Vcpu::look,
        post,
        is_first,
    );
}

#[test]
fn what_is_cleared_after_it_was_posted_does_not_come() {
    at_once::<false>(
        |_| (),
        Vcpu::look,
        |second| {
            post(second);
            second.write(ICPENDR, BIT);
        },
        is_nowhere,
    );
}

#[test]
fn an_answer_tells_what_was_there_when_it_was_asked_for() {
    at_once::<false>(
        |_| (),
        Vcpu::look,
        |second| {
            post(second);
            for _ in 0..2 {
                let pending = second.read(ISPENDR);
                assert!(pending.is_none_or(|bits| bits & BIT != 0), "not shown");
            }
        },
        is_first,
    );
}

#[test]
fn an_answer_does_not_show_what_was_cleared_before_it_was_asked_for() {
    at_once::<false>(
        |vcpus| {
            for spi in [SPI, OTHER] {
                let whom = vcpus[0].dist.post(spi, 0);
                settle(vcpus, whom.0);
            }
            // The last answer says that it is pending.
            assert_eq!(vcpus[1].read(ISPENDR), None);
            settle(vcpus, 0);
            assert_eq!(vcpus[1].read(ISPENDR), Some(BIT | OTHER_BIT));
            // It has been asked for another answer, which it has not given yet.
            vcpus[1].write(ICENABLER, OTHER_BIT);
            assert_eq!(std::mem::take(&mut vcpus[1].told), 1, "on its way");
        },
        Vcpu::look,
        |second| {
            second.write(ICPENDR, BIT);
            for _ in 0..2 {
                let pending = second.read(ISPENDR);
                assert!(pending.is_none_or(|bits| bits & BIT == 0), "still shown");
            }
        },
        is_nowhere,
    );
}

#[test]
fn what_is_disabled_is_not_taken_once_rwp_is_clear() {
    model_of(BRANCHES, None, || {
        let vcpus = vm::<false>();
        let _on_its_way = vcpus[0].dist.post(SPI, 0);
        let [mut first, mut second] = vcpus;
        let thread = thread::spawn(move || {
            second.write(ICENABLER, BIT);
            let done = second.read(CTLR).is_some_and(|ctlr| ctlr & RWP == 0);
            (second, done)
        });
        first.look();
        let (second, done) = thread.join().unwrap();
        assert!(!done || first.has(SPI) == 0, "taken, and RWP is clear");
        let mut vcpus = [first, second];
        settle(&mut vcpus, 0);
        is_nowhere(&mut vcpus);
        assert_eq!(vcpus[1].read(CTLR).map(|ctlr| ctlr & RWP), Some(0));
    });
}

#[test]
fn an_spi_goes_where_it_is_routed() {
    // From vCPU 0 to 1, which looks, and back.
    at_once::<false>(
        |vcpus| {
            let _on_its_way = vcpus[0].dist.post(SPI, 0);
        },
        Vcpu::look,
        |second| {
            second.route(SPI, 1);
            second.look();
        },
        is_second,
    );
    at_once::<false>(
        |vcpus| {
            vcpus[0].route(SPI, 1);
            settle(vcpus, 0);
            let _on_its_way = vcpus[0].dist.post(SPI, 0);
        },
        |first| {
            first.route(SPI, 0);
            first.look();
        },
        Vcpu::look,
        is_first,
    );
}

#[test]
fn an_spi_is_in_one_place_whoever_believes_to_own_it() {
    at_once::<false>(
        |vcpus| {
            vcpus[0].route(SPI, 1);
            settle(vcpus, 0);
            let _on_its_way = vcpus[0].dist.post(SPI, 0);
        },
        |first| {
            first.route(SPI, 0);
            post(first);
            first.look();
        },
        |second| {
            second.look();
            if second.has(SPI) == lr::PENDING {
                second.acknowledge(SPI);
            }
        },
        |vcpus| {
            let active = vcpus[1].has(SPI) == lr::ACTIVE;
            assert_eq!(vcpus[0].has(SPI), if active { 0 } else { lr::PENDING });
            if active {
                vcpus[1].end(SPI);
                settle(vcpus, 0);
            }
        },
    );
}

#[test]
fn an_spi_that_is_posted_while_it_is_routed_elsewhere_is_not_lost() {
    at_once::<false>(
        |_| (),
        post,
        |second| {
            second.route(SPI, 1);
            second.look();
        },
        is_second,
    );
}

#[test]
fn what_is_made_pending_by_a_register_while_it_is_routed_elsewhere_is_not_lost() {
    at_once::<false>(
        |_| (),
        |first| first.write(ISPENDR, BIT),
        |second| second.route(SPI, 1),
        is_second,
    );
}

#[test]
fn what_is_enabled_while_it_is_posted_comes() {
    model_of(BRANCHES, None, || {
        let mut vcpus = vm::<false>();
        vcpus[0].write(ICENABLER, BIT);
        settle(&mut vcpus, 0);
        let [mut first, mut second] = vcpus;
        let thread = thread::spawn(move || {
            second.write(ISENABLER, BIT);
            second
        });
        post(&mut first);
        first.look();
        let mut vcpus = [first, thread.join().unwrap()];
        settle(&mut vcpus, 0);
        is_first(&mut vcpus);
    });
}

#[test]
fn what_is_configured_while_it_is_taken_is_as_configured() {
    // Its priority, and its group.
    at_once::<false>(
        |_| (),
        |first| {
            post(first);
            first.look();
        },
        |second| second.write(PRIORITY, 0x50),
        |[first, _]| assert_eq!(lr::priority(first.entry(SPI)), 0x50),
    );
    at_once::<false>(
        |_| (),
        |first| {
            post(first);
            first.look();
        },
        |second| second.write(IGROUPR, BIT),
        |[first, _]| assert_ne!(first.entry(SPI) & lr::GROUP1, 0),
    );
}

#[test]
fn what_comes_again_while_another_has_it_is_not_lost_at_its_end() {
    at_once::<false>(
        |vcpus| {
            post(&mut vcpus[0]);
            settle(vcpus, 0);
            vcpus[0].acknowledge(SPI);
            vcpus[0].route(SPI, 1);
            settle(vcpus, 0);
        },
        |first| first.end(SPI),
        |second| {
            post(second);
            second.look();
        },
        is_second,
    );
}

/// vCPU 1 sends vCPU 0 an SGI while that takes another, and both come.
fn sgis_come_to_a_vcpu<const V2: bool>(before: fn(&mut Vcpu<V2>)) {
    fn send<const V2: bool>(from: &mut Vcpu<V2>, intid: u64) -> Notify {
        let Vcpu {
            dist, cpu, board, ..
        } = from;
        let whom = if V2 {
            cpu.send_sgir_fast(dist, board, 1 << 16 | intid as u32)
        } else {
            cpu.send_sgi_fast(dist, board, intid << 24 | 1)
        };
        whom.expect("the fast path takes it")
    }
    model_of(BRANCHES, Some(3), move || {
        let [mut first, mut second] = vm::<V2>();
        before(&mut first);
        let _on_its_way = send(&mut second, 7);
        let thread = thread::spawn(move || {
            let whom = send(&mut second, 8);
            second.tell(whom);
            second
        });
        first.look();
        let mut vcpus = [first, thread.join().unwrap()];
        settle(&mut vcpus, 0);
        assert_eq!([7, 8].map(|intid| vcpus[0].has(intid)), [lr::PENDING; 2]);
    });
}

#[test]
fn sgis_come() {
    sgis_come_to_a_vcpu::<true>(|first| first.write(ISENABLER - 4, 3 << 7));
    sgis_come_to_a_vcpu::<false>(|first| {
        let Vcpu {
            dist, cpu, board, ..
        } = first;
        let (answer, _) = cpu.gicr_write(dist, board, 0x1_0100, 4, 3 << 7);
        assert_eq!(answer, Answer::Value(0));
    });
}

#[test]
fn of_two_that_route_an_spi_the_last_does() {
    at_once::<false>(
        |_| (),
        |first| first.route(SPI, 1),
        |second| second.route(SPI, 0),
        |vcpus| {
            let route = vcpus[0].read(0x6000 + 8 * u64::from(SPI)).unwrap();
            post(&mut vcpus[0]);
            settle(vcpus, 0);
            if route == 0 {
                is_first(vcpus);
            } else {
                is_second(vcpus);
            }
        },
    );
}

#[test]
fn of_two_writes_about_active_state_the_last_counts() {
    at_once::<false>(
        |vcpus| vcpus[1].write(ISACTIVER, BIT),
        Vcpu::look,
        |second| second.write(ICACTIVER, BIT),
        is_nowhere,
    );
    at_once::<false>(
        |vcpus| {
            vcpus[1].write(ISACTIVER, BIT);
            settle(vcpus, 0);
            vcpus[1].write(ICACTIVER, BIT);
        },
        Vcpu::look,
        |second| second.write(ISACTIVER, BIT),
        |[first, second]| {
            assert_eq!((first.has(SPI), second.has(SPI)), (lr::ACTIVE, 0));
        },
    );
}

#[test]
fn what_a_write_makes_active_is_active_in_one_place() {
    at_once::<false>(
        |vcpus| {
            let _on_its_way = vcpus[0].dist.post(SPI, 0);
        },
        Vcpu::look,
        |second| {
            second.write(ISACTIVER, BIT);
            for _ in 0..2 {
                let active = second.read(ISACTIVER);
                assert!(active.is_none_or(|bits| bits & BIT != 0), "not shown");
            }
        },
        |[first, second]| {
            assert_ne!(first.has(SPI) & lr::ACTIVE, 0);
            assert_eq!(second.has(SPI), 0);
        },
    );
}
