//! Steps that a page of the book has its reader do, in order.

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Put this text into a file: a block whose first line is `# NAME` with an ending in the name, that line included.
    File {
        /// Name of the file.
        name: String,
        /// All of it.
        text: String,
    },
    /// Change a file: a block of the language `diff` that starts with `--- NAME`.
    Edit {
        /// Name of the file.
        name: String,
        /// Lines that stand there, together and once.
        from: Vec<String>,
        /// Lines that stand there afterwards.
        to: Vec<String>,
    },
    /// Run a command: a line of a `sh` block, or one behind `$ ` in a `console` block.
    Command {
        /// Text that a shell gets.
        text: String,
        /// Lines that it shows; none if the page does not say.
        shows: Vec<String>,
    },
}

/// The steps of a page, each with the number of its line from 1.
///
/// # Errors
///
/// A block that means nothing, with its line.
pub fn steps(text: &str) -> Result<Vec<(usize, Step)>, String> {
    let mut steps = Vec::new();
    let mut block: Option<(usize, &str, Vec<&str>)> = None;
    for (index, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), &mut block) {
            (Some(language), None) => block = Some((index + 1, language, Vec::new())),
            (Some(_), Some(_)) => {
                if let Some((start, language, lines)) = block.take() {
                    read(start, language, &lines, &mut steps)?;
                }
            }
            (None, Some((_, _, lines))) => lines.push(line),
            (None, None) => {}
        }
    }
    match block {
        Some((start, _, _)) => Err(format!("line {start}: the block has no end")),
        None => Ok(steps),
    }
}

/// Reads a block whose fence is line `start`.
fn read(
    start: usize,
    language: &str,
    lines: &[&str],
    steps: &mut Vec<(usize, Step)>,
) -> Result<(), String> {
    let placed = lines.iter().zip(start + 1..);
    match language {
        "console" => {
            for (line, number) in placed {
                match (line.strip_prefix("$ "), steps.last_mut()) {
                    (Some(command), _) => steps.push((number, run(command))),
                    (None, Some((at, Step::Command { shows, .. }))) if *at > start => {
                        shows.push((*line).to_owned());
                    }
                    _ => return Err(format!("line {number}: no command before this")),
                }
            }
        }
        "sh" => {
            let commands =
                placed.filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#'));
            steps.extend(commands.map(|(line, number)| (number, run(line))));
        }
        "diff" => {
            let name = lines.first().and_then(|line| line.strip_prefix("--- "));
            let name = name.ok_or_else(|| format!("line {start}: `--- NAME` has to come first"))?;
            let side = |without: char| -> Vec<String> {
                let lines = lines[1..].iter().filter(|line| !line.starts_with(without));
                lines
                    .map(|line| line.get(1..).unwrap_or_default().to_owned())
                    .collect()
            };
            let (name, from, to) = (name.to_owned(), side('+'), side('-'));
            steps.push((start, Step::Edit { name, from, to }));
        }
        _ => {
            let name = lines.first().and_then(|line| line.strip_prefix("# "));
            let is_name = |name: &&str| name.contains('.') && !name.contains(' ');
            if let Some(name) = name.filter(is_name) {
                let (name, text) = (name.to_owned(), lines.join("\n") + "\n");
                steps.push((start, Step::File { name, text }));
            }
        }
    }
    Ok(())
}

fn run(command: &str) -> Step {
    Step::Command {
        text: command.to_owned(),
        shows: Vec::new(),
    }
}

/// Returns the difference between what a page shows and what came, if there is one. A line `...` stands for any lines,
/// `...` within a line for any characters. Spaces at the ends of lines do not count.
pub fn differs(shown: &[String], came: &[&str]) -> Option<String> {
    // The furthest line of `came` that any reading reaches, and what it should have been.
    let mut furthest = (0, String::new());
    if reads(shown, came, 0, &mut furthest) {
        return None;
    }
    let (line, wanted) = furthest;
    let found = came.get(line).copied().unwrap_or("nothing more");
    Some(format!(
        "line {} of the output should be\n  {wanted}\nand is\n  {found}",
        line + 1
    ))
}

fn reads(shown: &[String], came: &[&str], at: usize, furthest: &mut (usize, String)) -> bool {
    let wanted = match shown.first() {
        None if at == came.len() => return true,
        None => "the end",
        Some(any) if any == "..." => {
            return (at..=came.len()).any(|at| reads(&shown[1..], came, at, furthest));
        }
        Some(line) => {
            if came.get(at).is_some_and(|came| same(line, came)) {
                return reads(&shown[1..], came, at + 1, furthest);
            }
            line
        }
    };
    if furthest.1.is_empty() || at > furthest.0 {
        *furthest = (at, wanted.to_owned());
    }
    false
}

/// Whether a line is as shown.
pub fn same(shown: &str, came: &str) -> bool {
    let (shown, came) = (shown.trim_end(), came.trim_end());
    let Some((first, rest)) = shown.split_once("...") else {
        return shown == came;
    };
    let Some(mut left) = came.strip_prefix(first) else {
        return false;
    };
    let mut pieces: Vec<&str> = rest.split("...").collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        let Some((_, behind)) = left.split_once(piece) else {
            return false;
        };
        left = behind;
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn blocks_become_steps() {
        let text = "Text\n```toml\n# a.toml\nx = 1\n```\n```diff\n--- a.toml\n-x = 1\n+x = 2\n y = 3\n```\n\
            ```console\n$ cat a.toml\nx = 2\n$ true\n```\n```sh\n# why\nls  # here\n\n```\n```text\n# not\n```\n";
        let command = |text: &str, shows: &str| Step::Command {
            text: text.to_owned(),
            shows: lines(shows),
        };
        let expected = [
            (
                2,
                Step::File {
                    name: "a.toml".into(),
                    text: "# a.toml\nx = 1\n".into(),
                },
            ),
            (
                6,
                Step::Edit {
                    name: "a.toml".into(),
                    from: lines("x = 1\ny = 3"),
                    to: lines("x = 2\ny = 3"),
                },
            ),
            (13, command("cat a.toml", "x = 2")),
            (15, command("true", "")),
            (19, command("ls  # here", "")),
        ];
        assert_eq!(steps(text).unwrap(), expected);
    }

    #[test]
    fn blocks_that_mean_nothing_are_found() {
        assert!(steps("```console\nno command\n```\n").is_err());
        assert!(steps("```sh\ntrue\n```\n```console\nshown\n```\n").is_err());
        assert!(steps("```diff\n-a\n+b\n```\n").is_err());
        assert!(steps("```sh\nls\n").is_err());
    }

    #[test]
    fn dots_stand_for_lines_and_for_characters() {
        let came = ["a", "b 12 c", "d"];
        let differs = |shown: &str| differs(&lines(shown), &came);
        assert_eq!(differs("a\nb 12 c\nd"), None);
        assert_eq!(differs("...\nb ... c\n..."), None);
        assert_eq!(differs("a\n...\nb 12 c\nd"), None);
        assert_eq!(differs("a\n...1...2 c\nd"), None);
        let why = differs("a\nb 13 c\nd").expect("it differs");
        assert!(why.contains("line 2") && why.contains("b 13 c"), "{why}");
        assert!(differs("a\nb 12 c").expect("more").contains("the end"));
        assert!(differs("...\nd\ne").is_some());
        assert!(differs("a\nb ... e\nd").is_some());
    }
}
