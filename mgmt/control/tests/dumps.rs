//! Dumps of VMs, of an EL2 that behaves well and of one whose VMs do not stand still.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;

use bulkhead_abi::control::Phase;
use bulkhead_control::connection::Connection;
use bulkhead_control::dump::Dumped;
use bulkhead_control::failure::{Failure, Outcome};
use bulkhead_control::manager::Manager;
use bulkhead_fake_el2::{El2, Fake};

const INFO: &str = "OSRELEASE=6.1.0-test\nPAGESIZE=4096\nNUMBER(kimage_voffset)=0xffff800000000000\nKERNELOFFSET=495afa00000\n";

/// A board whose VM 1 has ended, with two ranges of RAM.
fn board() -> Fake {
    let mut fake = Fake::default();
    let vm = &mut fake.vms[1];
    vm.phase = Phase::Down;
    let mut ram: Vec<u8> = (0..0x8000u32).map(|n| (n / 251) as u8).collect();
    ram[0x3000..0x5000].fill(0);
    ram[0x6000..0x6000 + INFO.len()].copy_from_slice(INFO.as_bytes());
    ram[0x6000 + INFO.len()] = 0;
    vm.ram = vec![(0x4000_0000, ram), (0x8000_0000, vec![0x5a; 0x1000])];
    fake
}

fn manage(fake: Fake) -> (El2, Manager<UnixStream>) {
    let (el2, port) = El2::start(fake);
    let manager = Manager::greet(Connection::new(port, 7)).expect("it answers");
    (el2, manager)
}

fn dump(manager: &mut Manager<UnixStream>) -> Result<(Dumped, Vec<u8>), Failure> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("core");
    let vm = manager.find("linux")?;
    let dumped = manager.dump(&vm, File::create(&path).expect("a file"))?;
    Ok((dumped, fs::read(&path).expect("a file")))
}

#[test]
fn a_core_has_all_ram_and_the_registers() {
    let (el2, mut manager) = manage(board());
    let (dumped, core) = dump(&mut manager).expect("it is down");
    assert_eq!((dumped.life, dumped.bytes), (1, 0x9000));
    assert_eq!((&*dumped.vcpus, dumped.untold), (&[0, 1][..], None));
    assert_eq!(dumped.linux.as_deref(), Some("6.1.0-test"));
    assert_eq!(dumped.kernel_offset, Some(0x495_afa0_0000));
    let word = |at: usize| u64::from_le_bytes(core[at..at + 8].try_into().expect("eight"));
    assert_eq!(core[..4], *b"\x7fELF");
    // The two ranges, by IPA, then by the addresses of the image.
    for n in 1..5 {
        let header = 64 + 56 * n;
        let [offset, vaddr, paddr, bytes] = [8, 16, 24, 32].map(|at| word(header + at));
        let fake = el2.board();
        let (ipa, ram) = &fake.vms[1].ram[(n - 1) % 2];
        let virtual_offset = if n < 3 { 0 } else { 0xffff_8000_0000_0000 };
        assert_eq!((paddr, bytes), (*ipa, ram.len() as u64));
        assert_eq!(vaddr, ipa + virtual_offset);
        assert_eq!(core[offset as usize..][..ram.len()], **ram);
    }
}

#[test]
fn a_vm_that_moves_meanwhile_is_not_dumped() {
    type Moves = fn(&El2);
    let moves: [(Phase, Moves); 3] = [
        // It has begun a new life, and ended it.
        (Phase::Down, |el2| el2.board().vms[1].lives = 2),
        (Phase::Down, |el2| el2.board().vms[1].phase = Phase::Running),
        // It has gone on, and is paused again.
        (Phase::Paused, |el2| el2.tell(1)),
    ];
    for (phase, moves) in moves {
        let mut fake = board();
        fake.vms[1].phase = phase;
        // So much that something can happen in its middle.
        fake.vms[1].ram.push((0x10_0000_0000, vec![1; 64 << 20]));
        let (el2, mut manager) = manage(fake);
        let done = std::thread::scope(|scope| {
            let dumping = scope.spawn(|| dump(&mut manager).map(|(dumped, _)| dumped));
            while !el2
                .board()
                .requests
                .iter()
                .any(|it| it.values[0] > 0x10_0010_0000)
            {
                std::thread::yield_now();
            }
            moves(&el2);
            dumping.join().expect("it ends")
        });
        let failure = done.expect_err("it is not what it was");
        assert_eq!(failure.outcome, Outcome::Failed, "{failure}");
        let refused = failure.why.contains("it has run meanwhile");
        assert!(refused || failure.code == "control::phase", "{failure}");
        // Events about others are nothing to it.
        assert!(!el2.board().requests.is_empty());
    }
    let (el2, mut manager) = manage(Fake::default());
    el2.tell(2);
    let failure = dump(&mut manager).expect_err("it runs");
    assert!(
        failure.why.contains("running") || failure.why.contains("runs"),
        "{failure}"
    );
}
