use super::*;

/// The mutants of a text, without file and line.
fn of(text: &str) -> Vec<String> {
    let found = mutants("a.rs", text).unwrap();
    let shown = found.iter().map(ToString::to_string);
    let bare = shown.map(|line| line.split_once(": in ").unwrap().1.to_owned());
    bare.collect()
}

fn of_kind(kind: Kind, text: &str) -> Vec<(String, String)> {
    let found = mutants("a.rs", text).unwrap();
    let found = found.into_iter().filter(|mutant| mutant.kind == kind);
    found
        .map(|mutant| (mutant.key.was, mutant.key.now))
        .collect()
}

fn without(kind: Kind, text: &str) -> Vec<String> {
    let found = of_kind(kind, text).into_iter();
    found.map(|(was, _)| was).collect()
}

#[test]
fn statements_are_left_out_where_that_compiles() {
    let text = "fn f(a: &mut A) { a.b = 1; let c = g(a); write!(\"x\", c); let _ = h(); if c { one(); two() } \
                match c { true => one(), _ => return, } last(a) }";
    assert_eq!(
        without(Kind::Statement, text),
        [
            "a.b = 1;",
            "write!(\"x\", c);",
            "let _ = h();",
            "if c { one(); two() }",
            "one()",
            "return",
            "last(a)",
            "one();",
            "two()",
        ]
    );
    // A value that the function gives is none.
    let text = "fn f() -> u32 { if x() { 1 } else { g() } }";
    assert!(without(Kind::Statement, text).is_empty());
}

#[test]
fn a_statement_in_unsafe_code_is_one() {
    let word = "unsafe";
    let text = format!("fn f() {{ {word} {{ g() }} }} fn h() -> u32 {{ {word} {{ g() }} }}");
    assert_eq!(without(Kind::Statement, &text), ["g()"]);
}

#[test]
fn each_line_of_a_template_is_left_out() {
    let text =
        "fn f() { asm!(\"isb\", \"dsb nsh\", options(nostack)); asm!(\"wfi\", options(nostack)); }";
    let lines = without(Kind::Instruction, text);
    assert_eq!(lines, ["\"isb\"", "\"dsb nsh\""]);
}

#[test]
fn conditions_are_negated_in_parts() {
    let text = "fn f() -> u8 { if a() && !b && c == d && let Some(x) = e { 1 } else { match x { _ if g => 2, _ => 3 } } }";
    let found = of_kind(Kind::Condition, text);
    let now: Vec<_> = found.iter().map(|(_, now)| now.as_str()).collect();
    assert_eq!(now, ["!(a())", "!(g)"]);
    let operators = of_kind(Kind::Operator, text);
    for (was, now) in [("&&", "||"), ("!", ""), ("==", "!=")] {
        assert!(
            operators.contains(&(was.to_owned(), now.to_owned())),
            "{was}"
        );
    }
}

#[test]
fn operators_and_methods_are_taken_for_others() {
    let text = "fn f() -> u64 { x = a.wrapping_add(1 << 2); x += 3; a.min(b) }";
    let found = of_kind(Kind::Operator, text);
    let found: Vec<_> = found
        .iter()
        .map(|(was, now)| (was.as_str(), now.as_str()))
        .collect();
    let wanted = [
        ("wrapping_add", "wrapping_sub"),
        ("<<", ">>"),
        ("+=", "-="),
        ("min", "max"),
    ];
    assert_eq!(found, wanted);
}

#[test]
fn numbers_are_one_more_and_bits_left_out() {
    let text = "const A: u64 = hcr::VM | 1 << 9 | 0x3c5; static B: bool = true;";
    assert_eq!(
        of(text),
        [
            "`A`, bit: `0x3c5` becomes `0`",
            "`A`, bit: `hcr::VM` becomes `0`",
            "`A`, bit: `1 << 9` becomes `0`",
            "`A`, operator: `<<` becomes `>>`",
            "`A`, constant: `1` becomes `2`",
            "`A`, constant: `9` becomes `10`",
            "`A`, constant: `0x3c5` becomes `0x3c6`",
            "`B`, constant: `true` becomes `false`",
        ]
    );
    // Not lengths, which are types, nor what is held against something at compile time.
    assert!(of("const A: [u8; 4] = [B; 7]; const _: () = assert!(C < 5);").is_empty());
}

#[test]
fn functions_return_at_once() {
    let text = "fn f() { a(); b(); } fn g() -> bool { a() } fn h() -> Option<u8> { a() } fn i() { a() } fn j() -> u8 { a() }";
    assert_eq!(
        of_kind(Kind::Return, text),
        ["return;", "return true;", "return false;", "return None;"]
            .map(|now| (String::new(), now.to_owned()))
    );
    let found = mutants("a.rs", text).unwrap();
    let first = found.iter().find(|mutant| mutant.kind == Kind::Return);
    assert!(
        first
            .unwrap()
            .apply(text)
            .starts_with("fn f() {return; a(); b(); }")
    );
}

#[test]
fn nothing_is_changed_in_tests_words_and_attributes() {
    for text in [
        "#[cfg(test)] mod tests { fn f() { a(); b = 1; } }",
        "#[test] fn f() { a(); }",
        "#[cfg(all(test, unix))] fn f() { a(); b(1); }",
        "#![cfg(test)] fn f() { a(); b(1); }",
        "impl fmt::Display for A { fn fmt(&self) { a(1); b(2) } }",
        "fn f() -> u8 { println!(\"{}\", 1 + 2); assert!(a < 3); b }",
        "#[repr(align(16))] struct A { a: [u8; 4] }",
        "macro_rules! m { () => { a(1) } }",
    ] {
        assert_eq!(of(text), [""; 0], "{text}");
    }
}

#[test]
fn a_mutant_has_a_name_that_lines_do_not_change() {
    let text = "impl A {\n    fn f() -> u8 {\n        g(\n            1);\n        g(1);\n        2\n    }\n}\n";
    let found = mutants("a.rs", text).unwrap();
    let calls: Vec<_> = found.iter().filter(|m| m.kind == Kind::Statement).collect();
    assert_eq!((calls[0].line, calls[1].line), (3, 5));
    assert_eq!(calls[0].key.place, "A::f");
    assert_eq!(calls[0].key.was, "g( 1);");
    // The lines below keep their numbers.
    assert_eq!(calls[0].apply(text).lines().count(), text.lines().count());
    let moved = text.replace("impl A", "\n\nimpl A");
    let moved = mutants("a.rs", &moved).unwrap();
    assert!(
        moved
            .iter()
            .zip(&found)
            .all(|(m, f)| m.key == f.key && m.line == f.line + 2)
    );
    // The same twice.
    let ones: Vec<_> = found
        .iter()
        .filter(|m| m.key.was == "1")
        .map(|m| m.key.nth)
        .collect();
    assert_eq!(ones, [0, 1]);
    assert!(mutants("a.rs", "fn {").is_err());
}
