//! HVC and SMC: every function identifier has an answer, and the power states of a VM follow the calls of its
//! vCPUs.

use bulkhead_abi::call::CALL_UID;
use bulkhead_core::cpu::answers;
use bulkhead_core::cpu::power::{Phase, Power, Refused, Start, State};
use bulkhead_core::cpu::psci::{Call, answer, call};
use bulkhead_core::cpu::smccc::{self, Cpu, Workaround, Workarounds};
use bulkhead_core::cpu::trng::{self, Generator};

use crate::Target;
use crate::engine::Input;

/// This target.
pub const TARGET: Target = Target {
    name: "calls",
    seeds,
    words: &[],
    run,
};

/// vCPUs of the VM.
const VCPUS: usize = 4;

/// Returns seeds: a call is its vCPU, the function, three arguments. The first 24 bytes say what firmware answers.
fn seeds() -> Vec<Vec<u8>> {
    let one = |vcpu: u8, function: u32, args: [u64; 3]| {
        let mut bytes = vec![vcpu];
        bytes.extend(function.to_le_bytes());
        args.iter().for_each(|arg| bytes.extend(arg.to_le_bytes()));
        bytes
    };
    let head = [0x0002_0001_u64, 0, 0]
        .iter()
        .flat_map(|word| word.to_le_bytes());
    let head: Vec<u8> = head.collect();
    let all = (0..0x16).flat_map(|n| [0x8400_0000_u32 + n, 0xc400_0000 + n]);
    let others = [
        0x8000_0000,
        0x8000_0001,
        0x8000_8000,
        0x8000_7fff,
        0x8000_3fff,
        0xc600_0001,
    ];
    let trng = (0x50..0x54).flat_map(|n| [0x8400_0000_u32 + n, 0xc400_0000 + n]);
    let single = all
        .chain(others)
        .chain(trng)
        .map(|function| one(0, function, [1, 0x4000_0000, 7]));
    let on = [
        one(0, 0xc400_0003, [1, 0x4000_0000, 7]),
        vec![0x81],
        one(1, 0x8400_0002, [0; 3]),
        one(0, 0xc400_0004, [1, 0, 0]),
        one(0, 0x8400_0002, [0; 3]),
    ];
    single
        .chain([on.concat()])
        .map(|calls| [&head[..], &calls].concat())
        .collect()
}

fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let firmware = [input.u64(), input.u64(), input.u64()];
    let cpu = Cpu {
        midr: firmware[1],
        pfr0: firmware[2],
        ..Cpu::default()
    };
    let workarounds = Workarounds::find(cpu, |function, x1| {
        firmware[(function ^ x1 as u32) as usize % 3]
    });
    let mut generator = Generator::new([7; 32]);
    let power = Power::new();
    assert_eq!(power.start(), Ok(()));
    assert!(power.begin());
    let mut on = [false; VCPUS];
    on[0] = true;
    let mut pending = [None; VCPUS];
    while !input.is_empty() && power.phase() == Phase::Running {
        let who = input.u8();
        let vcpu = usize::from(who) % VCPUS;
        if who & 0x80 != 0 {
            // Its pCPU looks whether it shall start.
            let start = power.arrive(vcpu);
            assert_eq!(start, pending[vcpu].take());
            on[vcpu] |= start.is_some();
            continue;
        }
        if !on[vcpu] {
            continue;
        }
        let function = input.u32();
        let args = [input.u64(), input.u64(), input.u64()];
        let known = answer_of(function, args[0], &workarounds, &mut generator);
        match call(function, args, VCPUS) {
            Call::Answer(answer) => {
                let offered = function & 0xbfff_ff00 == 0x8400_0000 && function & 0xff < 0x20;
                assert!(
                    offered || answer == answer::NOT_SUPPORTED,
                    "{function:#x}: {answer:#x}"
                );
                continue;
            }
            // Only PSCI changes the state of a VM, and no other standard answers its identifiers.
            _ => assert!(
                function & 0xbfff_ffe0 == 0x8400_0000 && !known,
                "{function:#x}"
            ),
        }
        act(
            &power,
            vcpu,
            call(function, args, VCPUS),
            &mut on,
            &mut pending,
        );
    }
    let counted = (0..VCPUS)
        .filter(|n| on[*n] || pending[*n].is_some())
        .count();
    assert_eq!(power.online() as usize, counted);
}

/// Makes a call of SMCCC itself or TRNG; returns whether one of them answers.
fn answer_of(function: u32, x1: u64, workarounds: &Workarounds, generator: &mut Generator) -> bool {
    // What is answered at once is what the others would answer, and none of them does anything.
    let mut at_once = None;
    answers::at_once(function, x1, workarounds, None, |register, value| {
        if register == 0 {
            at_once = Some(value);
        }
    });
    if let Some(x0) = at_once.filter(|_| function != CALL_UID) {
        let other = match workarounds.call(function, x1) {
            Some(smccc::Call::PassOn) => panic!("{function:#x} would be passed on"),
            Some(smccc::Call::Answer(other)) => Call::Answer(other),
            None => call(function, [x1, 0, 0], VCPUS),
        };
        assert_eq!(other, Call::Answer(x0), "{function:#x}");
    }
    if let Some(numbers) = trng::call(function, x1, Some(generator), |key| [key[0] ^ 0x5a; 64]) {
        assert!(function & 0xbfff_ff00 == 0x8400_0000, "{function:#x}");
        assert_eq!(at_once, None, "{function:#x}");
        let bits = if function == 0xc400_0053 {
            x1
        } else {
            x1 & 0xffff_ffff
        };
        let random = function & 0xff == 0x53 && numbers[0] == 0;
        // Bits that were not asked for are zero.
        if random && bits < 32 {
            assert_eq!(numbers[3] >> bits, 0);
        }
        return true;
    }
    match workarounds.call(function, x1) {
        Some(smccc::Call::PassOn) => {
            assert!(
                Workaround::ALL.iter().any(|one| one.function() == function),
                "{function:#x}"
            );
            true
        }
        Some(smccc::Call::Answer(_)) => {
            assert_eq!(function & 0xffff_0000, 0x8000_0000, "{function:#x}");
            true
        }
        None => false,
    }
}

/// Carries out a call as EL2 does, and asserts its results.
fn act(power: &Power, vcpu: usize, call: Call, on: &mut [bool], pending: &mut [Option<Start>]) {
    match call {
        Call::CpuOn {
            target,
            entry,
            context,
        } => {
            let start = Start { entry, context };
            let expected = match target {
                _ if target >= VCPUS => Err(Refused::Absent),
                _ if on[target] => Err(Refused::On),
                _ if pending[target].is_some() => Err(Refused::Pending),
                _ => Ok(()),
            };
            assert_eq!(power.switch_on(target, VCPUS, start), expected);
            if expected.is_ok() {
                pending[target] = Some(start);
            }
        }
        Call::CpuOff => {
            on[vcpu] = false;
            let last = on.iter().all(|on| !on) && pending.iter().all(Option::is_none);
            assert_eq!(power.leave(vcpu), last);
            assert_eq!(power.phase() == Phase::Running, !last);
        }
        Call::Affinity(target) => {
            let expected = match target {
                _ if on[target] => State::On,
                _ if pending[target].is_some() => State::Pending,
                _ => State::Off,
            };
            assert_eq!(power.state(target), expected);
        }
        Call::Off | Call::Reset | Call::Answer(_) => {}
    }
}
