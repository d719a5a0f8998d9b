//! `bulkhead explain`: what the code of a diagnostic means.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;

use bulkhead_model::describe::Code;
use bulkhead_model::explain::{self, Explanation};
use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_runner::columns::{Column, Columns, wrapped};

/// Explain the code of a diagnostic, with a wrong and a right example
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead explain                    # all codes
  bulkhead explain pcpu::shared
  bulkhead explain pcpu::shared --json

Examples show the part that matters; board, memory and programs that they leave out are taken as sound.")]
pub struct Args {
    /// The code, with or without `bulkhead::`; none: list them all
    code: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    let all = explain::all();
    let Some(word) = args.code else {
        let all = all.iter().map(|(code, about)| (code.short(), about));
        if args.json {
            println!("{:#}", json!(all.collect::<BTreeMap<_, _>>()));
        } else {
            let mut columns = Columns::new(&[Column::Left(0); 2]);
            for (code, explanation) in all {
                let means = first_sentence(&explanation.means);
                columns.row([code.to_owned(), means.to_owned()]);
            }
            print!("{}", columns.text(""));
        }
        return Outcome::Done;
    };
    let code = Code::named(&word);
    let Some((code, explanation)) = code.and_then(|code| Some((code, all.get(&code)?))) else {
        let word = word.trim_start_matches("bulkhead::");
        let advice = match explain::alike(word) {
            Some(known) => format!("did you mean `{known}`?"),
            None => "`bulkhead explain` lists all codes".to_owned(),
        };
        return Failure::input(format!("there is no code `{word}`"), "", advice).report();
    };
    if args.json {
        println!("{:#}", json!(Explained { code, explanation }));
    } else {
        print!("{}", text(code, explanation));
    }
    Outcome::Done
}

/// Output of `--json` for one code.
#[derive(Serialize)]
struct Explained<'a> {
    code: Code,
    #[serde(flatten)]
    explanation: &'a Explanation,
}

/// An explanation for people.
fn text(code: Code, explanation: &Explanation) -> String {
    let mut text = format!(
        "{code}\n\n{}\n",
        wrapped(&explanation.means, WIDTH).join("\n")
    );
    let indented = |example: &str| -> String {
        let lines = example.lines().map(|line| format!("    {line}"));
        lines
            .map(|line| line.trim_end().to_owned() + "\n")
            .collect()
    };
    for (what, example) in [("Wrong", &explanation.wrong), ("Right", &explanation.right)] {
        let Some(example) = example else {
            continue;
        };
        text += &format!("\n{what}:\n\n{}", indented(example));
        for (name, source) in &explanation.sources {
            if example.contains(&format!("{name}.dtbo")) {
                text += &format!("\n  with {name}.dtbo made from\n\n{}", indented(source));
            }
        }
    }
    if let Some(more) = &explanation.more {
        text += &format!("\nMore: {more}\n");
    }
    text
}

/// Up to the first full stop that ends a sentence, without "A warning."
fn first_sentence(text: &str) -> &str {
    let text = text.strip_prefix("A warning. ").unwrap_or(text);
    let end = text.find(". ").map_or(text.len(), |end| end + 1);
    text.get(..end).unwrap_or(text)
}

/// Width of explanations in characters.
const WIDTH: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_wrapped_and_lists_show_one_sentence() {
        let long = "word ".repeat(50);
        let wrapped = wrapped(&long, WIDTH).join("\n");
        assert!(
            wrapped
                .lines()
                .all(|line| line.len() <= WIDTH && !line.ends_with(' '))
        );
        assert_eq!(wrapped.split_whitespace().count(), 50);
        assert_eq!(
            first_sentence("A warning. One 1.5 two. Three."),
            "One 1.5 two."
        );
    }
}
