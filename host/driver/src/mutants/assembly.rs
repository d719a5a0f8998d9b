//! Mutants of a `.s` file: instructions left out, conditions of branches negated.

use super::mutant::{Found, Kind, Mutant};

/// Branches and the ones with the opposite condition.
const BRANCHES: [(&str, &str); 10] = [
    ("b.eq", "b.ne"),
    ("b.ne", "b.eq"),
    ("b.hi", "b.ls"),
    ("b.ls", "b.hi"),
    ("b.lo", "b.hs"),
    ("b.hs", "b.lo"),
    ("cbz", "cbnz"),
    ("cbnz", "cbz"),
    ("tbz", "tbnz"),
    ("tbnz", "tbz"),
];

/// The mutants of a file. An instruction is named by the last label before it, or the macro that it is in.
pub fn mutants(file: &str, text: &str) -> Vec<Mutant> {
    let mut found = Found::of(file, text);
    let mut place = String::new();
    // Where a macro stands, and the label to go back to behind it.
    let mut outside = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let code = line.split("//").next().unwrap_or_default();
        let mut code = code.trim_end();
        let mut start = at;
        at += line.len();
        // A label, which may have an instruction behind it.
        if let Some((label, rest)) = code.split_once(':')
            && label.chars().all(|c| c.is_alphanumeric() || c == '_')
        {
            if !label.starts_with(|c: char| c.is_ascii_digit()) {
                place = label.to_owned();
            }
            start += label.len() + 1;
            code = rest;
        }
        start += code.len() - code.trim_start().len();
        let code = code.trim_start();
        let mut words = code.split_whitespace();
        match words.next() {
            None => {}
            Some(".macro") => {
                let name = words.next().unwrap_or_default().to_owned();
                outside = Some(std::mem::replace(&mut place, name));
            }
            Some(".endm") => place = outside.take().unwrap_or_default(),
            Some(directive) if directive.starts_with('.') => {}
            Some(name) => {
                let range = start..start + code.len();
                found.add(Kind::Instruction, &place, range, String::new());
                let opposite = BRANCHES.iter().find(|(one, _)| *one == name);
                if let Some((_, other)) = opposite {
                    let now = format!("{other} {}", code[name.len()..].trim_start());
                    let range = start..start + code.len();
                    found.add(Kind::Condition, &place, range, now);
                }
                for now in without_one(code) {
                    let range = start..start + code.len();
                    found.add(Kind::Instruction, &place, range, now);
                }
            }
        }
    }
    found.mutants
}

/// A line of a macro that takes another one's name and does something with two registers: each of them is left out.
fn without_one(code: &str) -> Vec<String> {
    let Some((what, operands)) = code.split_once(' ').filter(|_| code.starts_with('\\')) else {
        return Vec::new();
    };
    let operands: Vec<_> = operands.split(',').map(str::trim).collect();
    match operands[..] {
        [at, one, two] if one != two => [one, two]
            .map(|kept| format!("{what} {at}, {kept}, {kept}"))
            .into(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// isb\n    .section .text, \"ax\"\n    .macro keep at, one\n    mrs x1, \\one // into x1\n    \
                        .endm\nstart:\n    cbz     x1, 1f\n1:  isb\n    .balign 8\nend: ret\n";

    #[test]
    fn each_register_of_a_pair_is_left_out() {
        let found = mutants(
            "a.s",
            "    .macro all what\n    \\what 16, one_el1, two_el1\n    .endm\n",
        );
        let now: Vec<_> = found.iter().map(|mutant| mutant.key.now.as_str()).collect();
        assert_eq!(
            now,
            [
                "",
                "\\what 16, one_el1, one_el1",
                "\\what 16, two_el1, two_el1"
            ]
        );
        assert!(found.iter().all(|mutant| mutant.key.place == "all"));
    }

    #[test]
    fn each_instruction_is_left_out_and_branches_turn() {
        let found = mutants("a.s", TEXT);
        let shown: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "a.s:4: in `keep`, instruction: without `mrs x1, \\one`",
                "a.s:7: in `start`, instruction: without `cbz x1, 1f`",
                "a.s:7: in `start`, condition: `cbz x1, 1f` becomes `cbnz x1, 1f`",
                "a.s:8: in `start`, instruction: without `isb`",
                "a.s:10: in `end`, instruction: without `ret`",
            ]
        );
        let without = found[3].apply(TEXT);
        assert!(without.contains("\n1:  \n    .balign 8\n"), "{without}");
        let turned = found[2].apply(TEXT);
        assert!(turned.contains("\n    cbnz x1, 1f\n"), "{turned}");
    }
}
