//! Questions on a terminal.

use std::io::{self, BufRead, IsTerminal, Write, stderr, stdin};

/// Whether there is somebody to ask.
pub fn can_ask() -> bool {
    stdin().is_terminal() && stderr().is_terminal()
}

/// One answer; none when the input has ended.
///
/// # Errors
/// The terminal cannot be read or written.
pub fn answer(
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    question: &str,
) -> io::Result<Option<String>> {
    write!(output, "{question} ")?;
    output.flush()?;
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        writeln!(output)?;
        return Ok(None);
    }
    Ok(Some(line.trim().to_owned()))
}

/// Asks until the answer is one of `words`, or the beginning of one alone; Enter is `default`. None when the input has
/// ended.
///
/// # Errors
/// The terminal cannot be read or written.
pub fn choice<'w>(
    (input, output): (&mut dyn BufRead, &mut dyn Write),
    question: &str,
    words: &[&'w str],
    default: &'w str,
) -> io::Result<Option<&'w str>> {
    let question = format!("{question} {} [{default}]", words.join(", "));
    loop {
        let Some(said) = answer(input, output, &question)? else {
            return Ok(None);
        };
        if said.is_empty() {
            return Ok(Some(default));
        }
        let whole = words.iter().find(|word| **word == said);
        let mut begun = words.iter().filter(|word| word.starts_with(&said));
        match (whole, begun.next(), begun.next()) {
            (Some(word), _, _) | (None, Some(word), None) => return Ok(Some(word)),
            _ => writeln!(output, "`{said}` is none of them")?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn a_word_or_the_beginning_of_one_alone_is_an_answer() {
        let words = ["el3", "tf-a", "tf-a-no-sdei"];
        for (typed, chosen, refused) in [
            ("\n", Some("el3"), 0),
            ("e\n", Some("el3"), 0),
            ("tf-a\n", Some("tf-a"), 0),
            ("tf-a-\n", Some("tf-a-no-sdei"), 0),
            // It begins two.
            ("tf\nno\n\n", Some("el3"), 2),
            ("tf\n", None, 1),
        ] {
            let (mut input, mut output) = (Cursor::new(typed), Vec::new());
            let said = choice((&mut input, &mut output), "Which?", &words, "el3");
            assert_eq!(said.expect("asked"), chosen, "{typed:?}");
            let output = String::from_utf8_lossy(&output).into_owned();
            assert_eq!(output.matches("none of them").count(), refused, "{output}");
        }
    }
}
