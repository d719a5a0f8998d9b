use std::io::Cursor;

use bulkhead_model::describe::Text;
use bulkhead_runner::Effort;
use bulkhead_runner::prepare::prepare_text;

use super::*;

fn guest(spec: &str, taken: &[Guest]) -> Guest {
    Guest::parse(spec, taken, str::to_owned).expect(spec)
}

fn refused(spec: &str, taken: &[Guest]) -> String {
    let failure = Guest::parse(spec, taken, str::to_owned).expect_err(spec);
    assert!(
        !failure.what.is_empty() && !failure.advice.is_empty(),
        "{failure}"
    );
    failure.to_string()
}

fn chosen(kind: BoardKind, gic: u32) -> BoardChoice {
    BoardChoice { kind, gic }
}

/// A board without QEMU, so that nothing but this crate is needed.
fn board() -> BoardChoice {
    chosen(BoardKind::Tree("tests/fixtures/virt.dtb".to_owned()), 3)
}

#[test]
fn what_is_written_is_sound() {
    let mut guests = Vec::new();
    for spec in [
        "program:tests/fixtures/raw.bin",
        "second=program:tests/fixtures/raw.bin@0x40100000",
    ] {
        let next = guest(spec, &guests);
        guests.push(next);
    }
    let text = Text {
        name: "new.toml".to_owned(),
        source: text(&board(), &guests).into(),
    };
    let prepared = match prepare_text(text, Effort::WhatIsThere) {
        Ok(prepared) => prepared,
        Err(stopped) => panic!("{}", bulkhead_model::failure::Failure::from(stopped)),
    };
    let names: Vec<_> = prepared
        .planned
        .vms
        .iter()
        .map(|vm| vm.name.as_str())
        .collect();
    assert_eq!(names, ["raw", "second"]);
    assert_eq!(prepared.planned.vms[1].entry, 0x4010_0000);
    assert!(prepared.findings.is_empty());
}

/// Checks that commented-out keys are right when the mark is taken away.
#[test]
fn comments_that_are_keys_are_sound_too() {
    let guests = [
        guest("one=program:tests/fixtures/raw.bin", &[]),
        guest("two=program:tests/fixtures/raw.bin", &[]),
    ];
    let plain = text(&board(), &guests);
    let wanted = [
        "vcpus",
        "crash",
        "class",
        "[shared",
        "size",
        "ipa",
        "vms",
        "disks",
        "networks",
        "[network",
        "service",
        "[service]",
        "pcpu =",
    ];
    let bare: Vec<&str> = plain
        .lines()
        .map(|line| {
            let key = line.strip_prefix("# ");
            key.filter(|key| wanted.iter().any(|word| key.starts_with(word)))
                .unwrap_or(line)
        })
        .collect();
    let count = |start: &str| bare.iter().filter(|line| line.starts_with(start)).count();
    assert!(bare.len() > 20);
    let counts = ["vcpus", "service = \"own\"", "[service]", "pcpu = "].map(count);
    assert_eq!(counts, [2, 2, 1, 1]);
    let text = Text {
        name: "new.toml".to_owned(),
        source: bare.join("\n").into(),
    };
    if let Err(stopped) = prepare_text(text, Effort::WhatIsThere) {
        panic!("{}", bulkhead_model::failure::Failure::from(stopped));
    }
}

#[test]
fn an_emulated_board_has_room_for_its_guests() {
    let mut guests = Vec::new();
    for _ in 0..3 {
        let next = guest("linux:debian", &guests);
        guests.push(next);
    }
    let names: Vec<_> = guests.iter().map(|guest| guest.name.as_str()).collect();
    assert_eq!(names, ["linux", "linux2", "linux3"]);
    let board = chosen(BoardKind::Emulated("qemu-virt".to_owned()), 3);
    let text = text(&board, &guests);
    assert!(
        text.contains("cpus = 3\n") && text.contains("memory = \"2GiB\"\n"),
        "{text}"
    );
    assert!(
        text.contains("kernel = \"debian:kernel\"\ninitrd = \"debian:initramfs\"\n"),
        "{text}"
    );
}

#[test]
fn a_guest_may_be_named_as_in_a_description_or_by_a_file_that_says_what_it_is() {
    let written = |spec: &str| {
        let mut out = String::new();
        guest(spec, &[]).write(3, &mut out).expect("written");
        out
    };
    let linux = written("gw=debian:kernel-rt");
    assert!(
        linux.contains("[vm.gw]") && linux.contains("initrd = \"debian:initramfs\""),
        "{linux}"
    );
    let rootfs = written("debian:rootfs");
    assert!(
        rootfs.contains("[vm.debian]")
            && rootfs.contains("root=/dev/vda systemd.hostname=debian")
            && rootfs.contains(
                "\ndisks = [{ name = \"root\", image = \"debian:rootfs\", copy_on_write = true }]\n"
            ),
        "{rootfs}"
    );
    assert!(
        written("a=tests/fixtures/kernel.img").contains("kernel = \"tests/fixtures/kernel.img\"")
    );
    assert!(written("a=tests/fixtures/wrong.elf").contains("image = \"tests/fixtures/wrong.elf\""));
    assert!(refused("tests/fixtures/raw.bin", &[]).contains("program:FILE"));
    assert!(refused("debian:nothing", &[]).contains("debian:"));
}

#[test]
fn a_guest_that_cannot_be_is_refused_with_a_remedy() {
    assert!(refused("hello", &[]).contains("kind"));
    assert!(refused("linus:debian", &[]).contains("did you mean `linux:debian`?"));
    assert!(refused("guest:helo", &[]).contains("did you mean `guest:hello`?"));
    assert!(refused("linux:no/such/Image", &[]).contains("no/such/Image"));
    assert!(refused("program:tests", &[]).contains("no file"));
    assert!(refused("a b=guest:hello", &[]).contains("1 to 16"));
    assert!(refused("el2=guest:hello", &[]).contains("EL2"));
    let first = [guest("x=guest:hello", &[])];
    assert!(refused("x=guest:hello", &first).contains("already"));
}

/// Answers the questions; gives what was chosen and what was said.
fn answered(text: &str, guests: &[&str]) -> (Option<Chosen>, String) {
    let boards = [("qemu-virt".to_owned(), "in QEMU")];
    let mut flags = Vec::new();
    for spec in guests {
        flags.push(((*spec).to_owned(), guest(spec, &[])));
    }
    let questions = Questions {
        boards: &boards,
        defaults: ("qemu-virt", "guest:hello"),
        file: "system.toml",
        board: None,
        guests: &flags,
    };
    let find = |word: &str| match word {
        "qemu-virt" => Ok(chosen(BoardKind::Emulated(word.to_owned()), 3)),
        "zcu102" => Ok(chosen(BoardKind::Emulated(word.to_owned()), 2)),
        _ => Err(bulkhead_model::failure::Failure::input(
            format!("there is no board `{word}`"),
            "",
            "",
        )),
    };
    let parse = |spec: &str, taken: &[Guest]| Guest::parse(spec, taken, str::to_owned);
    let (mut input, mut output) = (Cursor::new(text), Vec::new());
    let chosen = ask((&mut input, &mut output), questions, find, parse).expect("asked");
    (chosen, String::from_utf8_lossy(&output).into_owned())
}

fn names(chosen: Option<Chosen>) -> Option<Vec<String>> {
    let guests = chosen?.guests.into_iter();
    Some(guests.map(|(_, guest)| guest.name).collect())
}

#[test]
fn questions_repeat_after_a_wrong_answer_and_end_with_what_will_be_written() {
    let (chosen, said) = answered(
        "qemu-vrit\n\nguest:nobody\n\ntwo=guest:hello\n\nwhat\n\n",
        &[],
    );
    assert_eq!(names(chosen).unwrap(), ["hello", "two"]);
    for words in [
        "no board `qemu-vrit`",
        "no guest program `nobody`",
        "system.toml: on qemu-virt\n  hello            guest:hello\n  two ",
        "say yes, no, or back",
    ] {
        assert!(said.contains(words), "{words}\n{said}");
    }
}

#[test]
fn a_hard_realtime_guest_gets_the_mode_in_which_what_it_masks_by_works() {
    let program = "tests/fixtures/mask.bin";
    let spec = |end: &str| format!("rtos=program:{program}+hard-realtime{end}");
    for (end, gic, mode) in [
        ("=pmr", 3, Some("gppt-pmr-trapped")),
        ("=daif", 3, Some("gppt")),
        // Both work in it.
        ("", 3, Some("gppt-pmr-trapped")),
        ("=pmr", 2, None),
        ("=daif", 2, None),
    ] {
        let guests = [guest(&spec(end), &[])];
        let tree = if gic == 2 { "virt-v2.dtb" } else { "virt.dtb" };
        let board = chosen(BoardKind::Tree(format!("tests/fixtures/{tree}")), gic);
        let source = text(&board, &guests);
        assert!(source.contains("\nclass = \"hard-realtime\"\n"), "{source}");
        let line = source
            .lines()
            .find(|line| line.starts_with("interrupts = "));
        let said = line.and_then(|line| line.split('"').nth(1));
        assert_eq!(said, mode, "{end}, GICv{gic}: {source}");
        let text = Text {
            name: "new.toml".to_owned(),
            source: source.into(),
        };
        match prepare_text(text, Effort::WhatIsThere) {
            Ok(prepared) => assert!(prepared.findings.is_empty(), "{:?}", prepared.findings),
            Err(stopped) => panic!("{}", bulkhead_model::failure::Failure::from(stopped)),
        }
    }
    assert!(refused(&spec("=none"), &[]).contains("+hard-realtime=pmr"));
}

#[test]
fn the_console_is_drained_where_no_hard_realtime_guest_is() {
    let written = |specs: &[&str]| {
        let mut guests = Vec::new();
        for spec in specs {
            let next = guest(spec, &guests);
            guests.push(next);
        }
        text(
            &chosen(BoardKind::Emulated("qemu-virt".to_owned()), 3),
            &guests,
        )
    };
    let (hard, other) = ("guest:hello+hard-realtime", "guest:hello");
    for (specs, cpus, service) in [
        (&[hard, other][..], 2, Some(1)),
        (&[other, hard], 2, Some(0)),
        (&[hard, hard], 3, Some(2)),
        (&[other, other], 2, None),
    ] {
        let text = written(specs);
        assert!(text.contains(&format!("\ncpus = {cpus}\n")), "{text}");
        let said = text.contains("\n[console]\n");
        assert_eq!(said, service.is_some(), "{text}");
        if let Some(cpu) = service {
            assert!(text.contains(&format!("\nservice = {cpu} ")), "{text}");
        }
    }
}

#[test]
fn what_a_hard_realtime_guest_masks_by_is_asked_for_and_can_be_taken_back() {
    let asked = "Does rtos mask by its priority mask? [yes]";
    let words = |chosen: Option<Chosen>| -> Vec<String> {
        let guests = chosen.expect("chosen").guests.into_iter();
        guests.map(|(word, _)| word).collect()
    };
    for (answer, end) in [("", "=pmr"), ("maybe\nyes", "=pmr"), ("no", "=daif")] {
        let text = format!("\nrtos=guest:hello+hard-realtime\n{answer}\n\n\n");
        let (chosen, said) = answered(&text, &[]);
        assert!(
            said.contains("ICC_PMR_EL1") && said.contains(asked),
            "{said}"
        );
        let word = format!("rtos=guest:hello+hard-realtime{end}");
        assert_eq!(words(chosen), [word]);
    }
    // Back is to the guest; one that flags have named is asked about, and not about its name.
    let (chosen, _) = answered(
        "\nrtos=guest:hello+hard-realtime\nback\nguest:hello\n\n\n",
        &[],
    );
    assert_eq!(words(chosen), ["guest:hello"]);
    let (chosen, said) = answered("\nno\n\n", &["rtos=guest:hello+hard-realtime"]);
    assert_eq!(words(chosen), ["rtos=guest:hello+hard-realtime=daif"]);
    assert!(
        said.contains(asked) && !said.contains("First guest?"),
        "{said}"
    );
    // On a GICv2 either works.
    let (chosen, said) = answered("zcu102\nrtos=guest:hello+hard-realtime\n\n\n", &[]);
    assert!(chosen.is_some() && !said.contains("mask by"), "{said}");
    let (chosen, said) = answered("\n\n", &["rtos=guest:hello+hard-realtime=daif"]);
    assert!(chosen.is_some() && !said.contains("mask by"), "{said}");
}

#[test]
fn each_answer_can_be_taken_back() {
    let text = "\none=guest:hello\nback\nback\n\ntwo=guest:hello\nthree=guest:hello\n\nback\n\ny\n";
    let (chosen, said) = answered(text, &[]);
    assert_eq!(names(chosen).unwrap(), ["two"]);
    assert_eq!(said.matches("Which board?").count(), 2);
    // What flags have said stays.
    let (chosen, _) = answered("\nback\n\nyes\n", &["kept=guest:hello"]);
    assert_eq!(names(chosen).unwrap(), ["kept"]);
}

#[test]
fn the_end_of_the_input_is_no_answer_and_no_is_one() {
    for text in ["", "\n", "\nguest:hello\n", "\n\n\n", "\n\n\nno\n"] {
        assert_eq!(answered(text, &[]).0, None, "{text:?}");
    }
}
