//! Questions of `bulkhead init` on a terminal.

use std::io::{self, BufRead, Write};

use bulkhead_model::failure::Failure;

use super::guest::{Guest, Masks};
use super::{BoardChoice, MOST_CPUS};
use crate::question::answer;

/// Kinds of guests, for the user who has to choose.
const GUESTS: &str = "\
A guest is one of
  FILE                     a program or a kernel of yours that says what it is: an ELF file, an Image
  linux:debian             Debian's Linux, with a shell
  debian:rootfs            a whole Debian with systemd, on a root disk
  linux:IMAGE[,INITRD]     a Linux of yours
  program:FILE[@ADDRESS]   a program of yours: an ELF file, or raw bytes and where they go
  guest:NAME               a program of Bulkhead's own, such as guest:hello
NAME= before it names its VM: control=guest:hello. +hard-realtime behind it is its class: rtos.elf+hard-realtime.
";
/// What a hard real-time guest is asked about.
const MASKS: &str = "\
A hard-realtime guest takes its interrupts itself. Where its critical sections are closed by the priority mask
(ICC_PMR_EL1), as those of FreeRTOS ports are, each access to that is an exit; by DAIF nothing is.
";
/// Keys that change answers.
const KEYS: &str = "Enter takes what stands in brackets, `back` takes the last answer back, Ctrl-D ends without writing.";

/// Choices, each with the words that the user gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The board.
    pub board: (String, BoardChoice),
    /// The guests.
    pub guests: Vec<(String, Guest)>,
}

/// Questions to be asked.
#[derive(Clone, Copy, Debug)]
pub struct Questions<'a> {
    /// Boards that can be named, and what each is.
    pub boards: &'a [(String, &'static str)],
    /// Defaults that Enter takes: board and guest.
    pub defaults: (&'a str, &'a str),
    /// Name of the file to be written.
    pub file: &'a str,
    /// Board that flags have named; it is not asked for.
    pub board: Option<&'a (String, BoardChoice)>,
    /// Guests that flags have named; they are asked for if empty.
    pub guests: &'a [(String, Guest)],
}

/// Question that is asked next.
enum At {
    Board,
    Guests,
    /// What the guest of this name masks interrupts by.
    Masks(String),
    End,
}

/// Asks until everything is chosen and confirmed; a wrong answer is asked for again. None when the input has ended, or
/// nothing is to be written.
///
/// # Errors
/// The terminal cannot be read or written.
pub fn ask(
    (input, output): (&mut dyn BufRead, &mut dyn Write),
    questions: Questions<'_>,
    find: impl Fn(&str) -> Result<BoardChoice, Failure>,
    parse: impl Fn(&str, &[Guest]) -> Result<Guest, Failure>,
) -> io::Result<Option<Chosen>> {
    let mut board = questions.board.cloned();
    let mut guests = questions.guests.to_vec();
    let asks_guests = guests.is_empty();
    writeln!(output, "{KEYS}")?;
    let mut at = if board.is_some() {
        At::Guests
    } else {
        At::Board
    };
    // What there is to choose is shown once for each time that a question comes up.
    let mut is_new = true;
    loop {
        // On a GICv2 there is one mode, in which either works.
        let matters = board.as_ref().is_some_and(|(_, board)| board.gic != 2);
        let open = guests.iter().find(|(_, guest)| matters && guest.is_open());
        if let (At::Guests | At::End, Some((_, guest))) = (&at, open) {
            write!(output, "{MASKS}")?;
            at = At::Masks(guest.name.clone());
        }
        let said = match (&at, &board) {
            (At::Board, _) | (_, None) => {
                if is_new {
                    show_boards(output, questions.boards)?;
                }
                is_new = false;
                let question = format!("Which board? [{}]", questions.defaults.0);
                let Some(said) = answer(input, output, &question)? else {
                    return Ok(None);
                };
                match said.as_str() {
                    "back" => writeln!(output, "this is the first question")?,
                    _ => {
                        let word = or(said, questions.defaults.0);
                        match find(&word) {
                            Ok(choice) => {
                                board = Some((word, choice));
                                at = At::Guests;
                                is_new = true;
                            }
                            Err(failure) => writeln!(output, "{failure}")?,
                        }
                    }
                }
                continue;
            }
            (At::Masks(name), _) => answer(
                input,
                output,
                &format!("Does {name} mask by its priority mask? [yes]"),
            )?,
            (At::Guests, _) if !asks_guests || guests.len() == MOST_CPUS => {
                at = At::End;
                continue;
            }
            (At::Guests, _) => {
                let question = match guests.len() {
                    0 => {
                        if is_new {
                            write!(output, "{GUESTS}")?;
                        }
                        is_new = false;
                        format!("First guest? [{}]", questions.defaults.1)
                    }
                    _ => "Another guest? [no]".to_owned(),
                };
                answer(input, output, &question)?
            }
            (At::End, Some((name, _))) => {
                writeln!(output, "{}: on {name}", questions.file)?;
                for (word, guest) in &guests {
                    let named = format!("{}=", guest.name);
                    let word = word.strip_prefix(&named).unwrap_or(word);
                    writeln!(output, "  {:<16} {word}", guest.name)?;
                }
                answer(input, output, "Write it? [yes]")?
            }
        };
        let Some(said) = said else {
            return Ok(None);
        };
        match (&at, said.as_str(), guests.len()) {
            // One back: the last guest, or the board, if these were asked for.
            (_, "back", _) if asks_guests && !guests.is_empty() => {
                guests.pop();
                at = At::Guests;
            }
            (_, "back", _) if questions.board.is_none() => {
                board = None;
                at = At::Board;
                is_new = true;
            }
            (_, "back", _) => writeln!(output, "flags have said what comes before")?,
            (At::Masks(name), "" | "yes" | "y" | "no" | "n", _) => {
                let masks = match said.starts_with('n') {
                    true => Masks::Daif,
                    false => Masks::Priority,
                };
                for (word, guest) in guests.iter_mut().filter(|(_, guest)| guest.name == *name) {
                    guest.close(masks);
                    word.push_str(masks.ending());
                }
                at = At::Guests;
            }
            (At::Masks(_), _, _) => writeln!(output, "say yes, no, or back")?,
            (At::End, "" | "yes" | "y", _) => {
                return Ok(board.map(|board| Chosen { board, guests }));
            }
            (At::End, "no" | "n", _) => return Ok(None),
            (At::End, _, _) => writeln!(output, "say yes, no, or back")?,
            (_, "" | "no" | "n", 1..) => at = At::End,
            (_, _, _) => {
                let word = or(said, questions.defaults.1);
                let taken: Vec<Guest> = guests.iter().map(|(_, guest)| guest.clone()).collect();
                match parse(&word, &taken) {
                    Ok(guest) => guests.push((word, guest)),
                    Err(failure) => writeln!(output, "{failure}")?,
                }
            }
        }
    }
}

fn show_boards(output: &mut dyn Write, boards: &[(String, &'static str)]) -> io::Result<()> {
    writeln!(output, "A board is a .dtb file, or one of")?;
    for (name, about) in boards {
        writeln!(output, "  {name:<24} {about}")?;
    }
    Ok(())
}

/// An answer, or what Enter stands for.
fn or(said: String, default: &str) -> String {
    if said.is_empty() {
        default.to_owned()
    } else {
        said
    }
}
