//! Each gate against an image with one planted defect, and against the same image without it.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use bulkhead_gates::{Defect, Error, Finding, Limits, Report, Unmapped, judge};
use object::write::{Object, StandardSection, Symbol, SymbolSection};
use object::{Architecture, BinaryFormat, Endianness, SymbolFlags, SymbolKind, SymbolScope};

const NOP: u32 = 0xd503_201f;
const RET: u32 = 0xd65f_03c0;
const ERET: u32 = 0xd69f_03e0;
const BLR_X8: u32 = 0xd63f_0100;
const BR_X8: u32 = 0xd61f_0100;
const BRK_1: u32 = 0xd420_0020;
const ALLOC: &str = "_RNvCsgpYHBqjbKzS_7___rustc12___rust_alloc";
const BOUNDS: &str = "_ZN4core9panicking18panic_bounds_check17h0123456789abcdefE";

/// An instruction of a sample; names are resolved when the image is laid out.
#[derive(Clone)]
enum Op {
    Word(u32),
    Call(&'static str),
    Jump(&'static str),
    /// `cbz x0, name`
    IfZero(&'static str),
}
use Op::{Call, IfZero, Jump, Word};

/// `sub sp, sp, #bytes` or, negative, `add`.
fn push(bytes: i32) -> Op {
    let word = if bytes < 0 { 0x9100_03ff } else { 0xd100_03ff };
    Word(word | bytes.unsigned_abs() << 10)
}

/// Lays functions out one behind the other, the vector tables first: the lower-EL synchronous entry of the plain one calls
/// `handle`, all others are `eret`.
fn image(functions: &[(&'static str, Vec<Op>)]) -> Vec<u8> {
    image_with(functions, Word(ERET))
}

/// The same with another instruction at the lower-EL synchronous entry of `guarded_vectors`.
fn image_with(functions: &[(&'static str, Vec<Op>)], guarded: Op) -> Vec<u8> {
    let mut vectors = vec![Word(NOP); 512];
    for entry in 0..16 {
        vectors[entry * 32] = Word(ERET);
    }
    let mut others = vectors.clone();
    others[0x400 / 4] = guarded;
    others[0x404 / 4] = Word(ERET);
    vectors[0x400 / 4] = push(272);
    vectors[0x404 / 4] = Call("handle");
    vectors[0x408 / 4] = push(-272);
    vectors[0x40c / 4] = Word(ERET);
    let tables = [("vectors", vectors), ("guarded_vectors", others)];
    let all: Vec<(&str, Vec<Op>)> = tables
        .into_iter()
        .chain(functions.iter().cloned())
        .collect();
    let mut starts = BTreeMap::new();
    let mut next = 0;
    for (name, ops) in &all {
        starts.insert(*name, next);
        next += 4 * ops.len() as i64;
    }

    let mut file = Object::new(BinaryFormat::Elf, Architecture::Aarch64, Endianness::Little);
    let text = file.section_id(StandardSection::Text);
    let mut here = 0_i64;
    for (name, ops) in &all {
        let mut bytes = Vec::new();
        let start = here;
        for op in ops {
            let offset = |to: &str| ((starts[to] - here) / 4) as u32;
            let word = match op {
                Word(word) => *word,
                Call(to) => 0x9400_0000 | offset(to) & 0x3ff_ffff,
                Jump(to) => 0x1400_0000 | offset(to) & 0x3ff_ffff,
                IfZero(to) => 0xb400_0000 | (offset(to) & 0x7_ffff) << 5,
            };
            bytes.extend(word.to_le_bytes());
            here += 4;
        }
        let value = file.append_section_data(text, &bytes, 4);
        assert_eq!(
            value as i64, start,
            "functions lie where their callers expect them"
        );
        file.add_symbol(Symbol {
            name: name.as_bytes().to_vec(),
            value,
            size: bytes.len() as u64,
            kind: SymbolKind::Text,
            scope: SymbolScope::Linkage,
            weak: false,
            section: SymbolSection::Section(text),
            flags: SymbolFlags::None,
        });
    }
    file.write().expect("the sample is a valid ELF file")
}

fn judged(functions: &[(&'static str, Vec<Op>)]) -> Report {
    judge(&image(functions), &Limits::default()).expect("the sample can be judged")
}

/// The only finding of `report`.
fn only(report: &Report) -> &Finding {
    assert_eq!(report.findings.len(), 1, "{report}");
    &report.findings[0]
}

/// `mov x9, sp`, and a loop that moves it down by 8.
fn down_an_array() -> [Op; 3] {
    const MOV_X9_SP: u32 = 0x9100_03e9;
    const SUB_X9_8: u32 = 0xd100_2129;
    const CBNZ_X0_BACK: u32 = 0xb5ff_ffe0;
    [MOV_X9_SP, SUB_X9_8, CBNZ_X0_BACK].map(Word)
}

#[test]
fn a_loop_down_an_array_on_the_stack_ends() {
    let handle = [push(32)].into_iter().chain(down_an_array());
    let handle = handle.chain([push(-32), Word(RET)]).collect();
    let report = judged(&[("handle", handle)]);
    assert!(report.findings.is_empty(), "{report}");
}

/// How far a loop has moved it nobody knows.
#[test]
fn what_a_loop_has_moved_is_not_given_back_as_the_stack_pointer() {
    const MOV_SP_X9: u32 = 0x9100_013f;
    let handle = down_an_array().into_iter();
    let handle = handle.chain([MOV_SP_X9, RET].map(Word)).collect();
    let report = judged(&[("handle", handle)]);
    let Finding::Code { defect, .. } = only(&report) else {
        panic!("{report}");
    };
    assert_eq!(*defect, Defect::StackPointer);
}

#[test]
fn a_clean_image_passes_with_its_deepest_path() {
    let report = judged(&[
        (
            "handle",
            vec![push(32), Call("decode"), Call("leaf"), push(-32), Word(RET)],
        ),
        ("decode", vec![push(64), Call("leaf"), push(-64), Word(RET)]),
        ("leaf", vec![push(16), push(-16), Word(RET)]),
        ("unreached", vec![Word(BLR_X8), Call(BOUNDS)]),
        (BOUNDS, vec![Word(BRK_1)]),
    ]);
    assert!(report.passed(), "{report}");
    assert_eq!(report.stack_bytes, 272 + 32 + 64 + 16);
    let names: Vec<&str> = report
        .stack
        .iter()
        .map(|frame| frame.name.as_str())
        .collect();
    assert_eq!(names[..4], ["vectors", "handle", "decode", "leaf"]);
    // 16 entries of each table and three functions.
    assert_eq!(report.functions, 35);
}

#[test]
fn a_reachable_panic_is_told_with_its_shortest_path() {
    let report = judged(&[
        ("handle", vec![IfZero("far"), Call("near"), Word(RET)]),
        ("far", vec![Call("near"), Word(RET)]),
        ("near", vec![push(16), Call(BOUNDS)]),
        (BOUNDS, vec![Word(BRK_1)]),
    ]);
    let Finding::Panic { path } = only(&report) else {
        panic!("{report}")
    };
    let names: Vec<&str> = path.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "vectors",
            "handle",
            "near",
            "core::panicking::panic_bounds_check"
        ]
    );
    assert!(
        report
            .to_string()
            .contains("a panic can be reached: core::panicking::panic_bounds_check")
    );
}

#[test]
fn code_behind_a_call_that_never_returns_is_not_reached() {
    let report = judged(&[
        ("handle", vec![Call("halt"), Call(BOUNDS)]),
        ("halt", vec![Jump("halt")]),
        (BOUNDS, vec![Word(BRK_1)]),
    ]);
    assert!(report.passed(), "{report}");
}

#[test]
fn an_indirect_call_is_refused() {
    let report = judged(&[("handle", vec![Word(BLR_X8), Word(RET)])]);
    let Finding::Code {
        defect: Defect::IndirectCall,
        path,
    } = only(&report)
    else {
        panic!("{report}")
    };
    assert_eq!(path.last().and_then(|step| step.at), Some(0x1000));
}

#[test]
fn an_indirect_jump_is_refused() {
    let report = judged(&[("handle", vec![Word(BR_X8)])]);
    assert!(
        matches!(
            only(&report),
            Finding::Code {
                defect: Defect::IndirectJump,
                ..
            }
        ),
        "{report}"
    );
}

/// `adr x10, .+16; ldrb w11, [x9, x8]; add x10, x10, x11, lsl #2; br x10`, then two blocks.
fn table(second: Op) -> Vec<Op> {
    vec![
        Word(0x1000_008a),
        Word(0x3868_692b),
        Word(0x8b0b_094a),
        Word(0xd61f_0140),
        Word(RET),
        second,
        Word(RET),
    ]
}

#[test]
fn a_jump_table_is_allowed_and_its_blocks_are_judged() {
    let good = judged(&[("handle", table(Word(NOP)))]);
    assert!(good.passed(), "{good}");
    let bad = judged(&[("handle", table(Call(BOUNDS))), (BOUNDS, vec![Word(BRK_1)])]);
    assert!(matches!(only(&bad), Finding::Panic { .. }), "{bad}");
}

#[test]
fn recursion_is_refused() {
    let report = judged(&[
        ("handle", vec![Call("other"), Word(RET)]),
        ("other", vec![IfZero("handle"), Word(RET)]),
    ]);
    let Finding::Recursion { cycle } = only(&report) else {
        panic!("{report}")
    };
    assert_eq!(cycle.first(), cycle.last());
    assert!(report.stack.is_empty());
}

#[test]
fn a_loop_of_jumps_without_stack_is_no_recursion() {
    let report = judged(&[
        ("handle", vec![Jump("other")]),
        ("other", vec![IfZero("handle"), Word(RET)]),
    ]);
    assert!(report.passed(), "{report}");
}

#[test]
fn a_stack_above_the_limit_is_refused() {
    let deep = vec![push(2048), Call("leaf"), push(-2048), Word(RET)];
    let functions = [
        ("handle", deep),
        ("leaf", vec![push(64), push(-64), Word(RET)]),
    ];
    let limits = |stack| Limits {
        stack,
        ..Limits::default()
    };
    let bytes = 272 + 2048 + 64;
    let good = judge(&image(&functions), &limits(bytes)).expect("judged");
    assert!(good.passed(), "{good}");
    let bad = judge(&image(&functions), &limits(bytes - 1)).expect("judged");
    assert_eq!(
        only(&bad),
        &Finding::Stack {
            bytes,
            limit: bytes - 1
        }
    );
}

#[test]
fn a_stack_that_grows_in_a_loop_is_refused() {
    let report = judged(&[("handle", vec![push(16), IfZero("handle"), Jump("handle")])]);
    let kinds = (&report.findings[0], &report.findings[1]);
    let expected = (Defect::StackGrowth, 8192);
    assert!(
        matches!(kinds, (Finding::Code { defect, .. }, Finding::Stack { limit, .. })
            if (*defect, *limit) == expected),
        "{report}"
    );
}

#[test]
fn a_stack_pointer_from_a_register_is_refused_unless_named() {
    let functions = [("handle", vec![Word(0x9100_013f), Word(ERET)])]; // mov sp, x9
    let report = judged(&functions);
    assert!(
        matches!(
            only(&report),
            Finding::Code {
                defect: Defect::StackPointer,
                ..
            }
        ),
        "{report}"
    );
    let limits = Limits {
        stack_setters: vec!["handle".to_owned()],
        ..Limits::default()
    };
    assert!(judge(&image(&functions), &limits).expect("judged").passed());
}

#[test]
fn a_trap_is_refused() {
    let report = judged(&[("handle", vec![Word(BRK_1)])]);
    assert!(
        matches!(
            only(&report),
            Finding::Code {
                defect: Defect::Trap,
                ..
            }
        ),
        "{report}"
    );
}

#[test]
fn running_out_of_the_code_is_refused() {
    let report = judged(&[("handle", vec![Word(NOP)])]);
    assert!(
        matches!(
            only(&report),
            Finding::Code {
                defect: Defect::OutsideCode,
                ..
            }
        ),
        "{report}"
    );
}

#[test]
fn an_allocator_is_refused_even_when_it_is_not_reached() {
    let report = judged(&[("handle", vec![Word(RET)]), (ALLOC, vec![Word(RET)])]);
    assert_eq!(
        only(&report),
        &Finding::Allocator {
            name: "__rustc::__rust_alloc".to_owned()
        }
    );
}

#[test]
fn what_has_to_be_absent_is_refused_even_when_it_is_not_reached() {
    let functions = [
        ("handle", vec![Word(RET)]),
        ("devices::walk", vec![Word(RET)]),
    ];
    assert!(judged(&functions).passed());
    let limits = Limits {
        absent: vec!["devices::".to_owned()],
        ..Limits::default()
    };
    let report = judge(&image(&functions), &limits).expect("an image");
    assert_eq!(
        only(&report),
        &Finding::Absent {
            name: "devices::walk".to_owned()
        }
    );
}

#[test]
fn roots_beside_the_vectors_are_walked() {
    let functions = [
        ("handle", vec![Word(RET)]),
        ("second", vec![Word(BLR_X8), Word(RET)]),
    ];
    assert!(judged(&functions).passed());
    let limits = Limits {
        entries: vec!["second".to_owned()],
        ..Limits::default()
    };
    let report = judge(&image(&functions), &limits).expect("judged");
    assert!(
        matches!(
            only(&report),
            Finding::Code {
                defect: Defect::IndirectCall,
                ..
            }
        ),
        "{report}"
    );
}

#[test]
fn every_table_of_vectors_is_walked() {
    let functions = [("handle", vec![Word(RET)])];
    assert!(judged(&functions).passed());
    let report = judge(&image_with(&functions, Word(BLR_X8)), &Limits::default()).expect("judged");
    let Finding::Code {
        defect: Defect::IndirectCall,
        path,
    } = only(&report)
    else {
        panic!("{report}");
    };
    assert_eq!(path[0].name, "guarded_vectors");
}

#[test]
fn what_cannot_be_judged_is_an_error_and_not_a_pass() {
    assert!(matches!(
        judge(b"no ELF file", &Limits::default()),
        Err(Error::Unreadable(_))
    ));
    let limits = Limits {
        vectors: vec!["elsewhere".to_owned()],
        ..Limits::default()
    };
    let missing = judge(&image(&[("handle", vec![Word(RET)])]), &limits);
    assert!(matches!(missing, Err(Error::NoRoot(name)) if name == "elsewhere"));
}

#[test]
fn what_stays_does_not_call_what_is_unmapped() {
    let from = |handle: Vec<Op>| {
        let functions = [
            ("first", vec![Call("last"), Word(RET)]),
            ("second", vec![Jump("first")]),
            ("last", vec![Word(RET)]),
            ("handle", handle),
            ("starts", vec![Call("second"), Word(RET)]),
        ];
        let limits = Limits {
            entries: vec!["starts".to_owned()],
            unmapped: Some(Unmapped {
                start: "first".to_owned(),
                end: "last".to_owned(),
                callers: vec!["starts".to_owned()],
            }),
            ..Limits::default()
        };
        judge(&image(&functions), &limits).expect("judged")
    };
    assert!(from(vec![Call("last"), Word(RET)]).passed());
    for handle in [
        vec![Call("second"), Word(RET)],
        vec![Jump("first")],
        vec![IfZero("second"), Word(RET)],
    ] {
        let report = from(handle);
        let Finding::Unmapped { path, .. } = only(&report) else {
            panic!("{report}");
        };
        assert_eq!(path.last().map(|step| &*step.name), Some("handle"));
    }
    let limits = Limits {
        unmapped: Some(Unmapped {
            start: "handle".to_owned(),
            end: "nowhere".to_owned(),
            callers: Vec::new(),
        }),
        ..Limits::default()
    };
    let missing = judge(&image(&[("handle", vec![Word(RET)])]), &limits);
    assert!(matches!(missing, Err(Error::NoRoot(name)) if name == "nowhere"));
}
