//! `bulkhead board import`: a board by its device tree, with what is known of its firmware.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, ErrorKind, Write, stderr, stdin};
use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;

use bulkhead_model::board::{self, Firmware, FirmwareTold, Kind};
use bulkhead_model::describe::memory_ranges;
use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_runner::temp_files;

use super::memory;
use super::tree::{bytes, say, survey};
use crate::question;

#[derive(clap::Args)]
pub(super) struct Import {
    /// A .dtb file, or debian:VENDOR/NAME
    tree: String,
    /// Name of the board; else that of the file
    #[arg(long)]
    name: Option<String>,
    /// What runs at EL3; else what the tree tells
    #[arg(long, value_parser = PossibleValuesParser::new(Firmware::ALL.map(Firmware::word)))]
    firmware: Option<String>,
    /// Memory, where the tree leaves that to the firmware, such as "1GiB at 0x40000000"; may be given several times
    #[arg(long, value_name = "SIZE at ADDRESS")]
    memory_ranges: Vec<String>,
    /// Take what most boards have for what the tree does not tell, and ask nothing
    #[arg(short = 'y', long)]
    yes: bool,
    /// Folder of boards
    #[arg(long, value_name = "FOLDER", default_value = "boards")]
    to: PathBuf,
    /// Replace the board that has this name there
    #[arg(long)]
    force: bool,
    /// Print what it has as JSON
    #[arg(long)]
    json: bool,
}

/// Source of what is known of the firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The device tree tells it.
    Tree,
    /// `--firmware` says it, or who was asked.
    User,
    /// Nobody says it.
    Nobody,
}

/// Runs the verb.
pub(super) fn run(args: &Import) -> Result<Outcome, Failure> {
    let asks = !args.yes && question::can_ask();
    import(args, asks.then_some((&mut stdin().lock(), &mut stderr())))
}

/// A name made of that of a file: what no name may have becomes `-`.
fn name_of(source: &str) -> String {
    let last = source.rsplit(['/', ':']).next().unwrap_or_default();
    let stem = last.strip_suffix(".dtb").unwrap_or(last);
    let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    stem.chars().map(letter).collect()
}

/// Imports the board; asks what is not known where it can.
fn import(
    args: &Import,
    terminal: Option<(&mut dyn BufRead, &mut dyn Write)>,
) -> Result<Outcome, Failure> {
    let bytes = match bytes(&args.tree)? {
        Some(bytes) => bytes,
        None => board::read_file(Path::new(&args.tree))?,
    };
    // That it is a board at all is seen before anybody is asked.
    let told = survey(bytes.clone(), &[], &args.tree)?.firmware;
    let name = args.name.clone().unwrap_or_else(|| name_of(&args.tree));
    if !board::is_name(&name) {
        return Err(Failure::input(
            format!("`{name}` cannot be the name of a board"),
            "1 to 64 of the characters a-z A-Z 0-9 -",
            "give another one with --name",
        ));
    }
    let folder = args.to.join(&name);
    is_free(&folder, args, &name)?;
    let told = &told;
    let lacking = board::open(bytes.clone()).is_ok_and(|tree| board::lacks_memory(&tree));
    let mut terminal = terminal;
    let asked = terminal.as_mut();
    let asked = asked.map(|(input, output)| (&mut **input as _, &mut **output as _));
    let Some(ranges) = memory::stated(&args.memory_ranges, lacking, asked)? else {
        eprintln!("{name}: not imported");
        return Ok(Outcome::Failed);
    };
    let stated = memory_ranges(&ranges).unwrap_or_default();
    let survey = survey(bytes.clone(), &stated, &args.tree)?;
    let said = args.firmware.as_deref().and_then(Firmware::named);
    let (firmware, source) = match (said, told.firmware(), terminal) {
        (Some(said), _, _) => (said, Source::User),
        (None, None | Some(Firmware::El3), Some(terminal)) => {
            let asked = ask(told, terminal).map_err(|why| {
                Failure::environment("cannot ask on the terminal", why, "say --firmware")
            })?;
            let Some(asked) = asked else {
                eprintln!("{name}: not imported");
                return Ok(Outcome::Failed);
            };
            match told.firmware() == Some(asked) {
                true => (asked, Source::Tree),
                false => (asked, Source::User),
            }
        }
        (None, Some(known), _) => (known, Source::Tree),
        (None, None, None) => (told.assumed(), Source::Nobody),
    };
    let about = about(&args.tree, told, (firmware, source), &ranges);
    write(&folder, args, (&about, &bytes))?;
    let file = folder.join("board.toml");
    say(&survey, Some((firmware, &file)), (false, args.json));
    // What a program reads stays alone on standard output.
    let place = folder.display();
    eprintln!(
        "\n{name}: imported into {place}; a description names it by [board] name = \"{name}\""
    );
    for line in statements(told, (firmware, source)) {
        eprintln!("{name}: {line}");
    }
    eprintln!(
        "{name}: `firmware` in {}, or in [board] of a description, says otherwise",
        file.display()
    );
    if !survey.obstacles.is_empty() {
        eprintln!(
            "{name}: Bulkhead cannot run on it yet, for the reasons above; `check` and `plan` will refuse it"
        );
    }
    Ok(Outcome::Done)
}

/// Asks what runs at EL3, where the tree does not tell all of it. None when the input has ended.
fn ask(
    told: &FirmwareTold,
    (input, output): (&mut dyn BufRead, &mut dyn Write),
) -> io::Result<Option<Firmware>> {
    let open: Vec<Firmware> = match told.el3.first() {
        Some(sign) => {
            writeln!(
                output,
                "The device tree tells of firmware at EL3 ({sign}), and not whether it has events (SDEI):"
            )?;
            let all = Firmware::ALL.into_iter();
            all.filter(|known| known.is_present()).collect()
        }
        None => {
            writeln!(output, "The device tree does not tell what runs at EL3:")?;
            Firmware::ALL.to_vec()
        }
    };
    for known in &open {
        writeln!(output, "  {:<14} {}", known.word(), known.about())?;
    }
    let words: Vec<&str> = open.iter().map(|known| known.word()).collect();
    let default = told.assumed().word();
    let said = question::choice((input, output), "What runs at EL3?", &words, default)?;
    Ok(said.and_then(Firmware::named))
}

/// What is known of the firmware, from where, and what follows from it.
fn statements(told: &FirmwareTold, (firmware, source): (Firmware, Source)) -> Vec<String> {
    let word = firmware.word();
    let first = told.signs().next();
    let mut lines = vec![match (source, first, told.against(firmware)) {
        (Source::Tree, Some(sign), _) => {
            format!("firmware = \"{word}\", as the tree tells: {sign}")
        }
        (Source::User, _, Some(sign)) => {
            format!("firmware = \"{word}\", as you say, but the tree tells otherwise: {sign}")
        }
        (Source::User, _, None) => format!("firmware = \"{word}\", as you say"),
        _ => format!(
            "firmware = \"{word}\" is assumed, as most boards have some; the tree does not tell, --firmware says it"
        ),
    }];
    if firmware.has_events().is_none() {
        lines.push(
            "whether it has events (SDEI) is not known; --firmware tf-a or tf-a-no-sdei says it"
                .to_owned(),
        );
    }
    lines.push(firmware.follows().to_owned());
    lines
}

/// The `board.toml` of a board.
fn about(
    tree: &str,
    told: &FirmwareTold,
    (firmware, source): (Firmware, Source),
    memory: &[String],
) -> String {
    // A comment ends with its line, whatever names are in a tree.
    let plain = |text: &str| text.replace(|c: char| c.is_control(), "?");
    let mut text = format!(
        "# Imported by `bulkhead board import {}`.\ndtb = \"board.dtb\"\n",
        plain(tree)
    );
    if !memory.is_empty() {
        // Ranges have no letters that would have to be escaped.
        let _ = writeln!(
            text,
            "# The tree leaves the memory to the firmware. Whoever imported it has said:\nmemory_ranges = {memory:?}"
        );
    }
    let from = match source {
        Source::Tree => "The device tree tells it:",
        Source::User => "Whoever imported it has said so. What the device tree tells:",
        Source::Nobody => "Nobody has said it, and most boards have it.",
    };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# What runs at EL3: {}. {from}", firmware.about());
    for sign in told.signs() {
        let _ = writeln!(text, "#   {}", plain(&sign.to_string()));
    }
    let _ = writeln!(
        text,
        "# One of {} (docs/reference/boards.md).\nfirmware = \"{}\"",
        Firmware::words(),
        firmware.word()
    );
    text
}

/// Refuses a name or a folder that a board has already.
fn is_free(folder: &Path, args: &Import, name: &str) -> Result<(), Failure> {
    if folder.exists() && !(args.force && folder.join("board.dtb").is_file()) {
        let help = if folder.join("board.dtb").is_file() {
            "give another --name, or --force to replace it"
        } else {
            "it is not an imported one, and is not replaced; give another --name"
        };
        let what = format!("there is a board `{name}` already");
        return Err(Failure::input(what, folder.display(), help));
    }
    if board::find(name, Path::new("."))
        .is_some_and(|own| own.kind().is_ok_and(|kind| kind == Kind::Emulated))
    {
        let what = format!("`{name}` is one of Bulkhead's own boards");
        return Err(Failure::input(what, "", "give another --name"));
    }
    Ok(())
}

/// Writes the folder of a board: both files, or nothing.
fn write(folder: &Path, args: &Import, (about, bytes): (&str, &[u8])) -> Result<(), Failure> {
    let failed = |why: std::io::Error| {
        let what = format!("cannot write the board into {}", folder.display());
        Failure::environment(what, why, "choose another folder with --to")
    };
    fs::create_dir_all(&args.to).map_err(failed)?;
    let partial = temp_files::folder_in(&args.to).map_err(failed)?;
    fs::write(partial.value.path().join("board.dtb"), bytes).map_err(failed)?;
    fs::write(partial.value.path().join("board.toml"), about).map_err(failed)?;
    // A temporary folder is its owner's alone; a board may be read by others.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(partial.value.path(), open).map_err(failed)?;
    if args.force {
        match fs::remove_dir_all(folder) {
            Err(why) if why.kind() != ErrorKind::NotFound => return Err(failed(why)),
            _ => {}
        }
    }
    fs::rename(partial.value.path(), folder).map_err(failed)?;
    // It has moved: there is nothing left to delete.
    let _moved: PathBuf = partial.value.keep();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use bulkhead_model::describe::{Code, Text};
    use bulkhead_runner::prepare::{Stopped, prepare_text};
    use bulkhead_runner::{Effort, emulated};

    use super::*;

    fn args(to: &Path, force: bool) -> Import {
        Import {
            tree: "tests/fixtures/virt.dtb".to_owned(),
            name: Some("mine".to_owned()),
            firmware: None,
            memory_ranges: Vec::new(),
            yes: false,
            to: to.to_owned(),
            force,
            json: true,
        }
    }

    #[test]
    fn an_imported_board_is_found_and_not_replaced_by_accident() {
        let top = tempfile::tempdir().expect("folder");
        let boards = top.path().join("boards");
        import(&args(&boards, false), None).expect("imported");
        let found = board::find("mine", top.path()).expect("found");
        assert_eq!(found.kind().expect("sound"), Kind::Imported);
        assert_eq!(
            found.bytes(&emulated::device_tree).expect("there"),
            fs::read("tests/fixtures/virt.dtb").expect("fixture")
        );
        let again = import(&args(&boards, false), None).expect_err("it is there");
        assert!(again.advice.contains("--force"), "{again}");
        import(&args(&boards, true), None).expect("replaced");
        // Nothing half-written is left beside it.
        assert_eq!(fs::read_dir(&boards).expect("folder").count(), 1);
    }

    #[test]
    fn a_folder_that_import_did_not_make_is_never_replaced() {
        let top = tempfile::tempdir().expect("folder");
        fs::create_dir(top.path().join("mine")).expect("folder");
        fs::write(top.path().join("mine/precious"), "x").expect("file");
        import(&args(top.path(), true), None).expect_err("not a board");
        assert!(top.path().join("mine/precious").is_file());
    }

    #[test]
    fn a_name_is_made_of_that_of_the_file() {
        assert_eq!(
            name_of("a/zynqmp-zcu102-rev1.1.dtb"),
            "zynqmp-zcu102-rev1-1"
        );
        assert_eq!(
            name_of("debian:broadcom/bcm2711-rpi-4-b"),
            "bcm2711-rpi-4-b"
        );
        assert!(!board::is_name(&name_of("..")) || name_of("..") == "--");
    }

    /// Imports a fixture; gives the outcome, what was asked, and the `board.toml`.
    fn imported(
        tree: &str,
        said: Option<&str>,
        answers: Option<&str>,
    ) -> (Outcome, String, String) {
        let top = tempfile::tempdir().expect("folder");
        let args = Import {
            tree: format!("tests/fixtures/{tree}"),
            firmware: said.map(str::to_owned),
            ..args(top.path(), false)
        };
        let (mut input, mut output) = (Cursor::new(answers.unwrap_or_default()), Vec::new());
        let terminal: (&mut dyn BufRead, &mut dyn Write) = (&mut input, &mut output);
        let outcome = import(&args, answers.is_some().then_some(terminal)).expect("sound");
        let file = fs::read_to_string(top.path().join("mine/board.toml")).unwrap_or_default();
        (outcome, String::from_utf8_lossy(&output).into_owned(), file)
    }

    fn says(file: &str, word: &str, from: &str) {
        let line = format!("\nfirmware = \"{word}\"\n");
        assert!(
            file.ends_with(&line) && file.contains(from),
            "{word}, {from}: {file}"
        );
    }

    #[test]
    fn what_a_tree_tells_is_not_asked_and_is_written_down_with_its_node() {
        for (tree, word, node) in [
            ("firmware.dtb", "tf-a", "#   /firmware/optee: OP-TEE"),
            ("virt.dtb", "none", "#   /: linux,dummy-virt"),
        ] {
            for answers in [None, Some("")] {
                let (outcome, asked, file) = imported(tree, None, answers);
                assert_eq!((outcome, asked.as_str()), (Outcome::Done, ""), "{tree}");
                says(&file, word, node);
                says(&file, word, "The device tree tells it");
            }
        }
    }

    #[test]
    fn what_a_tree_does_not_tell_is_asked_on_a_terminal_and_assumed_without_one() {
        // PSCI by SMC: there is firmware, and nothing is known of events.
        let (_, asked, file) = imported("smc.dtb", None, Some("none\n\ntf-a-no\n"));
        assert!(asked.contains("/psci: PSCI, called by `smc`"), "{asked}");
        assert!(!asked.contains("  none "), "{asked}");
        assert!(
            asked.contains("What runs at EL3? el3, tf-a, tf-a-no-sdei [el3]"),
            "{asked}"
        );
        assert!(asked.contains("`none` is none of them"), "{asked}");
        says(&file, "el3", "The device tree tells it");
        let (_, _, file) = imported("smc.dtb", None, Some("tf-a-n\n"));
        says(&file, "tf-a-no-sdei", "Whoever imported it");
        let (_, _, file) = imported("smc.dtb", None, None);
        says(&file, "el3", "The device tree tells it");
        // CPUs that wait, and nothing else.
        let (_, asked, file) = imported("spin.dtb", None, Some("none\n"));
        assert!(asked.contains("does not tell what runs at EL3"), "{asked}");
        says(&file, "none", "Whoever imported it");
        let (_, _, file) = imported("spin.dtb", None, None);
        says(&file, "el3", "Nobody has said it");
    }

    /// Imports a tree without memory; gives the outcome, what was asked, and the `board.toml`.
    fn with_memory(
        tree: &str,
        said: &[&str],
        answers: Option<&str>,
    ) -> Result<(Outcome, String, String), Failure> {
        let top = tempfile::tempdir().expect("folder");
        let args = Import {
            tree: format!("tests/fixtures/{tree}"),
            firmware: Some("none".to_owned()),
            memory_ranges: said.iter().map(|text| (*text).to_owned()).collect(),
            ..args(&top.path().join("boards"), false)
        };
        let (mut input, mut output) = (Cursor::new(answers.unwrap_or_default()), Vec::new());
        let terminal: (&mut dyn BufRead, &mut dyn Write) = (&mut input, &mut output);
        let outcome = import(&args, answers.is_some().then_some(terminal))?;
        let asked = String::from_utf8_lossy(&output).into_owned();
        let file = top.path().join("boards/mine/board.toml");
        let file = fs::read_to_string(file).unwrap_or_default();
        if outcome == Outcome::Done && tree == "no-memory.dtb" {
            let board = board::find("mine", top.path()).expect("found");
            let memory = board.memory().expect("sound");
            // What the board is said to have the survey has, and a plan is made with.
            let bytes = board.bytes(&emulated::device_tree).expect("there");
            let survey = survey(bytes, &memory, "").expect("a board");
            assert_eq!(survey.obstacles, []);
            assert_eq!(survey.memory.len(), memory.len());
            let program = fs::canonicalize("tests/fixtures/raw.bin").expect("fixture");
            let source = format!(
                "[board]\nname = \"mine\"\n[vm.one]\nmemory = \"4MiB\"\nimage = {program:?}\nload = \"0x40080000\"\n"
            );
            let text = Text {
                name: top.path().join("one.toml").display().to_string(),
                source: source.into(),
            };
            let Ok(prepared) = prepare_text(text, Effort::WhatIsThere) else {
                panic!("no plan with {file}");
            };
            let planned = prepared.planned.board.memory;
            let bases = |all: &[bulkhead_abi::plan::Memory]| -> Vec<(u64, u64)> {
                all.iter().map(|one| (one.base, one.size)).collect()
            };
            assert_eq!(bases(&planned), bases(&memory));
        }
        Ok((outcome, asked, file))
    }

    #[test]
    fn memory_that_a_tree_leaves_to_the_firmware_is_said_or_asked() {
        let two = ["1GiB at 0x40000000", "2GiB at 0x100000000"];
        let line = "memory_ranges = [\"1GiB at 0x40000000\", \"2GiB at 0x100000000\"]\n";
        let (_, asked, file) = with_memory("no-memory.dtb", &two, Some("")).expect("said");
        assert!(asked.is_empty() && file.contains(line), "{asked}{file}");
        let answers = "2GB\n1GiB at 0x40000000, 2GiB at 0x100000000\n";
        let (_, asked, file) = with_memory("no-memory.dtb", &[], Some(answers)).expect("asked");
        assert!(asked.contains("`2GB` is no range of memory"), "{asked}");
        assert!(file.contains(line), "{file}");
        let (outcome, _, file) = with_memory("no-memory.dtb", &[], Some("")).expect("asked");
        assert_eq!((outcome, file.as_str()), (Outcome::Failed, ""));
    }

    #[test]
    fn memory_that_nobody_says_or_that_is_known_is_an_error_with_a_remedy() {
        let refused = |tree, said: &[&str]| with_memory(tree, said, None).expect_err("refused");
        let failure = refused("no-memory.dtb", &[]);
        assert!(failure.advice.contains(memory::EXAMPLE), "{failure}");
        let failure = refused("no-memory.dtb", &["1GiB"]);
        assert!(failure.why.contains("`1GiB` is no range"), "{failure}");
        let low = ["1GiB at 0x80000000", "1GiB at 0x40000000"];
        assert!(
            refused("no-memory.dtb", &low)
                .why
                .contains("does not end below it")
        );
        let failure = refused("virt.dtb", &["1GiB at 0x40000000"]);
        assert!(failure.what.contains("memory is known"), "{failure}");
        let (outcome, _, file) = with_memory("virt.dtb", &[], None).expect("sound");
        assert!(
            outcome == Outcome::Done && !file.contains("memory_ranges"),
            "{file}"
        );
    }

    #[test]
    fn the_end_of_the_input_imports_nothing() {
        let (outcome, asked, file) = imported("spin.dtb", None, Some(""));
        assert_eq!((outcome, file.as_str()), (Outcome::Failed, ""));
        assert!(asked.contains("What runs at EL3?"), "{asked}");
    }

    #[test]
    fn an_option_says_it_without_a_question_even_against_the_tree() {
        let (outcome, asked, file) = imported("firmware.dtb", Some("none"), Some("el3\n"));
        assert_eq!((outcome, asked.as_str()), (Outcome::Done, ""));
        says(&file, "none", "Whoever imported it");
        let bytes = fs::read("tests/fixtures/firmware.dtb").expect("fixture");
        let told = survey(bytes, &[], "").expect("a board").firmware;
        let lines = statements(&told, (Firmware::None, Source::User));
        assert!(
            lines[0].contains("the tree tells otherwise: /firmware/optee"),
            "{lines:?}"
        );
        let lines = statements(&FirmwareTold::default(), (Firmware::El3, Source::Nobody));
        assert!(
            lines[0].contains("is assumed") && lines[0].contains("--firmware"),
            "{lines:?}"
        );
        assert!(lines[1].contains("SDEI") && lines[2].contains("gppt-pmr-direct is refused"));
    }

    /// Codes of what `check` finds in a system with a VM in a mode that needs one Security state, on an imported board.
    fn checked(imported: &str, said: &str, vm: &str) -> Vec<Code> {
        let top = tempfile::tempdir().expect("folder");
        let args = Import {
            tree: "tests/fixtures/smc.dtb".to_owned(),
            firmware: Some(imported.to_owned()),
            ..args(&top.path().join("boards"), false)
        };
        import(&args, None).expect("sound");
        let program = fs::canonicalize("tests/fixtures/raw.bin").expect("fixture");
        let source = format!(
            "[board]\nname = \"mine\"\n{said}[vm.one]\nmemory = \"4MiB\"\nimage = \"{}\"\nload = \"0x40080000\"\npcpus = [1]\n{vm}",
            program.display()
        );
        let text = Text {
            name: top.path().join("system.toml").display().to_string(),
            source: source.into(),
        };
        let findings = match prepare_text(text, Effort::WhatIsThere) {
            Ok(prepared) => prepared.findings,
            Err(Stopped::Description(_, findings)) => findings,
            Err(Stopped::Failure(failure)) => panic!("{failure}"),
        };
        findings.iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn check_plans_by_what_was_imported_unless_the_description_says_otherwise() {
        let direct = "class = \"hard-realtime\"\ninterrupts = \"gppt-pmr-direct\"\n";
        let found = |imported, said| checked(imported, said, direct);
        assert_eq!(found("none", ""), []);
        assert_eq!(found("el3", ""), [Code::InterruptsOwn]);
        assert_eq!(found("none", "firmware = \"el3\"\n"), [Code::InterruptsOwn]);
        // The tree has PSCI by SMC.
        assert_eq!(found("el3", "firmware = \"none\"\n"), [Code::BoardFirmware]);
        let events = "interrupts = \"gppt\"\nreclaim = \"sdei\"\n";
        let found = |imported| checked(imported, "", events);
        assert_eq!(found("tf-a"), []);
        assert_eq!(found("el3"), [Code::InterruptsEventsUnknown]);
        assert_eq!(found("tf-a-no-sdei"), [Code::InterruptsEvents]);
        assert_eq!(found("none"), [Code::InterruptsEvents]);
    }
}
