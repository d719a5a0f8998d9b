//! Tests of the documents: links lead somewhere, and the commands that they show exist.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::suite::{Job, Test};
use super::tool;
use crate::book::links;

/// The tests of this file.
pub fn tests() -> Vec<Test> {
    let links: Job = Box::new(|context| all_lead(&context.root));
    let commands: Job = Box::new(|context| commands(&context.root));
    vec![
        Test::parallel(
            "docs/links",
            "Every relative link in a document leads to a file or heading that exists.",
            links,
        ),
        Test::parallel(
            "docs/commands",
            "Every `./bulkhead` command that a document shows is one that the tool accepts.",
            commands,
        ),
    ]
}

/// All documents under version control: Markdown files outside hidden and generated folders.
fn documents(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" && name != "out" {
                    folders.push(path);
                }
            } else if name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn all_lead(root: &Path) -> Result<String, Vec<String>> {
    let mut wrong = Vec::new();
    let mut count = 0;
    for document in documents(root) {
        let text = fs::read_to_string(&document).unwrap_or_default();
        for link in links::relative(&text) {
            let line = links::line(&text, link.whole.start);
            count += 1;
            if let Some(why) = broken(&document, &link.target) {
                let shown = document.strip_prefix(root).unwrap_or(&document).display();
                wrong.push(format!("{shown}:{line}: link to `{}`: {why}", link.target));
            }
        }
    }
    if count == 0 {
        wrong.push("no document has a relative link".to_owned());
    }
    if wrong.is_empty() {
        Ok(format!("{count} links"))
    } else {
        Err(wrong)
    }
}

fn broken(document: &Path, target: &str) -> Option<String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = document.parent().unwrap_or(Path::new(""));
    let path = if file.is_empty() {
        document.to_owned()
    } else {
        folder.join(file)
    };
    if !path.exists() {
        return Some("no such file".to_owned());
    }
    if anchor.is_empty() || path.extension().is_none_or(|extension| extension != "md") {
        return None;
    }
    let text = fs::read_to_string(&path).unwrap_or_default();
    let found = links::anchors(&text).iter().any(|found| found == anchor);
    (!found).then(|| "no such heading".to_owned())
}

fn commands(root: &Path) -> Result<String, Vec<String>> {
    let mut wrong = Vec::new();
    let mut count = 0;
    for document in documents(root) {
        let text = fs::read_to_string(&document).unwrap_or_default();
        for (number, words) in shown_commands(&text) {
            count += 1;
            if let Some(why) = refused(&words) {
                let shown = document.strip_prefix(root).unwrap_or(&document).display();
                wrong.push(format!(
                    "{shown}:{number}: `./bulkhead {}`: {why}",
                    words.join(" ")
                ));
            }
        }
    }
    if count == 0 {
        wrong.push("no document shows a command".to_owned());
    }
    if wrong.is_empty() {
        Ok(format!("{count} commands"))
    } else {
        Err(wrong)
    }
}

/// Commands of the form `./bulkhead VERB ...` at the start of a line of fenced code.
fn shown_commands(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let line = line.strip_prefix("$ ").unwrap_or(line);
        if let Some(rest) = line.strip_prefix("./bulkhead ") {
            let rest = rest.split(" #").next().unwrap_or_default();
            let words = rest.split_ascii_whitespace().map(str::to_owned);
            let words: Vec<_> = words
                .take_while(|word| !word.starts_with(['|', '&', '>']) && !word.starts_with("2>"))
                .collect();
            found.push((index + 1, words));
        }
    }
    found
}

/// Asks the running tool whether it would take the command. With `--help` it reads the words and does
/// nothing.
fn refused(words: &[String]) -> Option<String> {
    let tool = tool::driver().ok()?;
    match Command::new(tool).args(words).arg("--help").output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Some(text.lines().next().unwrap_or("refused").to_owned())
        }
        Err(error) => Some(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_and_a_missing_heading_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let document = folder.path().join("a.md");
        fs::write(&document, "# The `plan` format, v1\n").unwrap();
        assert_eq!(broken(&document, "#the-plan-format-v1"), None);
        assert_eq!(broken(&document, "a.md"), None);
        assert_eq!(
            broken(&document, "a.md#x").as_deref(),
            Some("no such heading")
        );
        assert_eq!(broken(&document, "b.md").as_deref(), Some("no such file"));
    }

    #[test]
    fn commands_are_found_with_and_without_a_prompt() {
        let text = "```\n$ ./bulkhead run systems/a.toml # boots\n./bulkhead plan | less\n$ ./bulkhead check a.toml 2>/dev/null || echo no\n```\n";
        let commands: Vec<_> = shown_commands(text)
            .into_iter()
            .map(|(_, words)| words.join(" "))
            .collect();
        assert_eq!(commands, ["run systems/a.toml", "plan", "check a.toml"]);
    }
}
