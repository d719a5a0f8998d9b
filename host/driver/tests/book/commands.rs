//! The page about the command line, made from what the tool's parser knows.

use std::fmt::Write;

use clap::{Arg, ArgAction, Command, CommandFactory};

use bulkhead_cli::cmd::Cli;

/// The page.
pub fn page() -> String {
    let mut tool = Cli::command();
    tool.build();
    let about = tool.get_about().expect("it says what it is").to_string();
    let mut text = format!(
        "# Commands\n\n{about}. `./bulkhead VERB --help` says the same as this page; `bulkhead` is `./bulkhead` of the checkout. \
         The tool's parser has accepted each example.\n\n"
    );
    after(&mut text, &tool);
    for verb in verbs(&tool) {
        section(&mut text, verb, "##");
        for part in verbs(verb) {
            section(&mut text, part, "###");
        }
    }
    format!("{}\n", text.trim_end())
}

fn verbs(command: &Command) -> impl Iterator<Item = &Command> {
    let verbs = command.get_subcommands();
    verbs.filter(|verb| verb.get_name() != "help" && !verb.is_hide_set())
}

/// Writes what the tool says of a verb.
fn section(text: &mut String, verb: &Command, level: &str) {
    // `build` has given verbs names like `bulkhead-board-list`.
    let name = verb.get_display_name().expect("a name").replace('-', " ");
    let name = name.strip_prefix("bulkhead ").expect("a verb");
    let about = verb.get_about().expect("a verb says what it does");
    let usage = verb.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").trim();
    let _ = write!(text, "{level} {name}\n\n{about}: `{usage}`\n\n");
    let arguments: Vec<_> = verb
        .get_arguments()
        .filter(|one| !one.is_hide_set() && one.get_id() != "help")
        .collect();
    if !arguments.is_empty() {
        text.push_str("| argument | meaning |\n| --- | --- |\n");
        for one in arguments {
            let _ = writeln!(text, "| {} | {} |", names(one), meaning(one));
        }
        text.push('\n');
    }
    after(text, verb);
}

/// Returns an argument as it is written.
fn names(one: &Arg) -> String {
    let takes = matches!(one.get_action(), ArgAction::Set | ArgAction::Append);
    let values = one.get_value_names().unwrap_or_default();
    let value: Vec<_> = values.iter().map(|value| format!("<{value}>")).collect();
    let value = if takes {
        value.join(" ")
    } else {
        String::new()
    };
    if one.is_positional() {
        return format!("`{value}`");
    }
    let short = one.get_short().map(|short| format!("-{short}"));
    let mut long: Vec<&str> = one.get_long().into_iter().collect();
    long.extend(one.get_visible_aliases().unwrap_or_default());
    let long = long.into_iter().map(|long| format!("--{long}"));
    let forms: Vec<_> = short.into_iter().chain(long).collect();
    let optional = one
        .get_num_args()
        .is_some_and(|count| count.min_values() == 0);
    let value = match (value.as_str(), optional) {
        ("", _) => String::new(),
        (value, true) => format!("[={value}]"),
        (value, false) => format!(" {value}"),
    };
    let forms: Vec<_> = forms
        .iter()
        .map(|form| format!("`{form}{value}`"))
        .collect();
    forms.join(", ")
}

/// Returns the meaning of an argument, its possible values, and its value without being given.
fn meaning(one: &Arg) -> String {
    let help = one.get_help().expect("an argument says what it means");
    let mut text = help.to_string().replace('|', "\\|");
    let words = one.get_possible_values();
    let takes = matches!(one.get_action(), ArgAction::Set | ArgAction::Append);
    if takes && !words.is_empty() {
        let words: Vec<_> = words
            .iter()
            .map(|word| format!("`{}`", word.get_name()))
            .collect();
        let _ = write!(text, " ({})", words.join(", "));
    }
    let defaults = one.get_default_values();
    if takes && !defaults.is_empty() {
        let defaults: Vec<_> = defaults.iter().map(|one| one.to_string_lossy()).collect();
        let _ = write!(text, " (default: `{}`)", defaults.join(" "));
    }
    text
}

/// Writes the text behind the help of a verb: paragraphs, and examples as a block.
fn after(text: &mut String, verb: &Command) {
    let Some(after) = verb.get_after_help() else {
        return;
    };
    for part in after.to_string().split("\n\n") {
        let Some(examples) = part.strip_prefix("Examples:\n") else {
            // A line of its own in the middle of a paragraph is one to type into a file.
            let (line, rest): (Vec<_>, Vec<_>) =
                part.lines().partition(|line| line.starts_with("  "));
            let _ = write!(text, "{}\n\n", rest.join("\n"));
            if !line.is_empty() {
                let _ = write!(text, "```text\n{}\n```\n\n", line.join("\n").trim_start());
            }
            continue;
        };
        text.push_str("```text\n");
        for line in examples.lines() {
            let line = line.trim_start();
            accepted(line);
            let _ = writeln!(text, "{line}");
        }
        text.push_str("```\n\n");
    }
}

/// Checks that the parser takes an example, up to what is the shell's.
fn accepted(example: &str) {
    let end = |word: &&str| !(["|", ">", "&&", "#"].contains(word) || word.starts_with('<'));
    let words = example.split_ascii_whitespace().take_while(end);
    if let Err(why) = Cli::command().try_get_matches_from(words) {
        panic!("the help shows `{example}`, which is refused: {why}");
    }
}
