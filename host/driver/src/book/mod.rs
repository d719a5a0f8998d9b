//! The book as mdBook renders it: pages of `docs/book/src`, and behind them the documents of the repository to which they lead, so that
//! every link stays in the book. mdBook gives its chapters to `bulkhead book preprocess` and takes what that gives back
//! (mdBook, "Developers", "Preprocessors").

pub mod links;

use std::fs;
use std::path::{Component, Path, PathBuf};

use serde_json::{Value, json};

/// Where the pages are in the repository.
const PAGES: &str = "docs/book/src";
/// Where documents of the repository are in the book.
const DOCUMENTS: &str = "repository";

/// A chapter: a document of the repository and its place in the book.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chapter {
    document: PathBuf,
    place: PathBuf,
}

/// Adds the documents and turns links, in the book that mdBook has written as JSON: its context, and its items.
pub fn preprocess(root: &Path, input: &str) -> Result<Value, String> {
    let why =
        |error: &dyn std::fmt::Display| format!("what mdBook says is not understood: {error}");
    let (_, mut book): (Value, Value) = serde_json::from_str(input).map_err(|e| why(&e))?;
    // Versions before 0.5 call them sections.
    let key = ["items", "sections"]
        .into_iter()
        .find(|key| book.get(*key).is_some_and(Value::is_array));
    let items = key.and_then(|key| book.get_mut(key)?.as_array_mut());
    let items = items.ok_or_else(|| why(&"there are no items"))?;
    let documents = documents(root);
    let added = documents
        .iter()
        .flat_map(|(part, documents)| {
            let title = std::iter::once(Ok(json!({ "PartTitle": part })));
            title.chain(documents.iter().map(|document| chapter(root, document)))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut chapters = Vec::new();
    each(items, &mut |item| {
        if let Some(place) = item.get("path").and_then(Value::as_str) {
            chapters.push(Chapter {
                document: Path::new(PAGES).join(place),
                place: place.into(),
            });
        }
    });
    chapters.extend(documents.into_iter().flat_map(|(_, documents)| documents));
    items.extend(added);
    each(items, &mut |item| {
        let Some(place) = item.get("path").and_then(Value::as_str) else {
            return;
        };
        let of = chapters
            .iter()
            .find(|chapter| chapter.place == Path::new(place));
        let text = item.get("content").and_then(Value::as_str);
        if let (Some(of), Some(text)) = (of, text) {
            let turned = turned(text, of, &chapters);
            item["content"] = turned.into();
        }
    });
    Ok(book)
}

/// Calls `of` for each chapter in `items` and below.
fn each(items: &mut [Value], of: &mut impl FnMut(&mut Value)) {
    for item in items {
        if let Some(chapter) = item.get_mut("Chapter") {
            of(chapter);
            if let Some(below) = chapter.get_mut("sub_items").and_then(Value::as_array_mut) {
                each(below, of);
            }
        }
    }
}

/// The documents that come behind the pages, with the title of their part.
fn documents(root: &Path) -> Vec<(&'static str, Vec<Chapter>)> {
    let folder = |folder: &str| -> Vec<Chapter> {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten();
        let names = entries.flatten().filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.ends_with(".md").then_some(name)
        });
        let mut chapters: Vec<_> = names
            .map(|name| {
                // mdBook makes an index of a README.
                let placed = name.replace("README", "about");
                Chapter {
                    document: Path::new(folder).join(&name),
                    place: Path::new(DOCUMENTS).join(folder).join(placed),
                }
            })
            .collect();
        chapters.sort_by(|a, b| a.document.cmp(&b.document));
        chapters
    };
    vec![
        ("The repository", [folder(""), folder("docs")].concat()),
        ("Decisions", folder("docs/adr")),
    ]
}

/// A document as mdBook has chapters.
fn chapter(root: &Path, chapter: &Chapter) -> Result<Value, String> {
    let path = root.join(&chapter.document);
    let content = fs::read_to_string(&path).map_err(|why| format!("{}: {why}", path.display()))?;
    let heading = content.lines().find_map(|line| line.strip_prefix("# "));
    let name = heading.map_or_else(|| chapter.document.display().to_string(), str::to_owned);
    Ok(json!({ "Chapter": {
        "name": name,
        "content": content,
        "number": null,
        "sub_items": [],
        "path": chapter.place,
        "source_path": null,
        "parent_names": [],
    } }))
}

/// The text of a chapter with links that hold in the book. What is not in the book is named instead.
fn turned(text: &str, of: &Chapter, chapters: &[Chapter]) -> String {
    let mut turned = String::new();
    // How far the text is turned.
    let mut done = 0;
    for link in links::relative(text) {
        let target = text.get(link.target.clone()).unwrap_or_default();
        let words = text.get(link.text.clone()).unwrap_or_default();
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        if file.is_empty() {
            continue;
        }
        let folder = of.document.parent().unwrap_or(Path::new(""));
        let document = resolved(&folder.join(file));
        turned.push_str(text.get(done..link.whole.start).unwrap_or_default());
        done = link.whole.end;
        match chapters.iter().find(|chapter| chapter.document == document) {
            Some(chapter) => {
                let from = of.place.parent().unwrap_or(Path::new(""));
                let place = relative(from, &chapter.place);
                let anchor = if anchor.is_empty() {
                    String::new()
                } else {
                    format!("#{anchor}")
                };
                turned.push_str(&format!("[{words}]({}{anchor})", place.display()));
            }
            None => {
                let path = document.display().to_string();
                turned.push_str(words);
                // Not twice, where the words are the path or its end.
                if !path.ends_with(words.trim_matches('`').trim_end_matches('/')) {
                    turned.push_str(&format!(" (`{path}`)"));
                }
            }
        }
    }
    turned.push_str(text.get(done..).unwrap_or_default());
    turned
}

/// A path without `.` and `..`.
fn resolved(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                resolved.pop();
            }
            Component::CurDir => {}
            part => resolved.push(part),
        }
    }
    resolved
}

/// The way from a folder to a file, both below the same folder.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let shared = from.components().zip(to.components());
    let shared = shared.take_while(|(a, b)| a == b).count();
    let up = from.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(to.components().skip(shared)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This repository.
    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// What mdBook writes: `key` is what it calls items.
    fn input(key: &str) -> String {
        let page = |name: &str, below: Value| {
            let path = root().join(PAGES).join(name);
            json!({ "Chapter": {
                "name": name,
                "content": fs::read_to_string(path).expect("a page"),
                "number": null,
                "sub_items": below,
                "path": name,
                "source_path": name,
                "parent_names": [],
            } })
        };
        let below = json!([page("interrupts.md", json!([]))]);
        let items = json!([
            page("index.md", json!([])),
            "Separator",
            page("classes.md", below)
        ]);
        json!([{ "renderer": "html" }, { key: items }]).to_string()
    }

    /// Place and text of each chapter.
    fn chapters(mut book: Value, key: &str) -> Vec<(String, String)> {
        let mut chapters = Vec::new();
        each(book[key].as_array_mut().expect("items"), &mut |chapter| {
            let text = |key: &str| chapter[key].as_str().expect("a text").to_owned();
            chapters.push((text("path"), text("content")));
        });
        chapters
    }

    #[test]
    fn links_stay_in_the_book_or_are_none() {
        for key in ["items", "sections"] {
            let book = preprocess(&root(), &input(key)).expect("a book");
            let chapters = chapters(book, key);
            let places: Vec<_> = chapters.iter().map(|(place, _)| Path::new(place)).collect();
            for added in [
                "repository/CAVEATS.md",
                "repository/about.md",
                "repository/docs/adr/0019-doorbells.md",
            ] {
                assert!(places.contains(&Path::new(added)), "no {added}");
            }
            let mut count = 0;
            for (place, text) in &chapters {
                let folder = Path::new(place).parent().expect("a folder");
                for link in links::relative(text) {
                    let file = text[link.target].split('#').next().expect("a part");
                    let place = resolved(&folder.join(file));
                    assert!(
                        file.is_empty() || places.contains(&&*place),
                        "{place:?}: {file}"
                    );
                    count += 1;
                }
            }
            assert!(count > 50, "{count} links");
        }
    }

    #[test]
    fn a_link_is_turned_with_its_anchor_and_what_is_no_chapter_is_named() {
        let chapter = |document: &str, place: &str| Chapter {
            document: document.into(),
            place: place.into(),
        };
        let all = [
            chapter("docs/book/src/a.md", "a.md"),
            chapter("CAVEATS.md", "repository/CAVEATS.md"),
            chapter("docs/adr/1.md", "repository/docs/adr/1.md"),
        ];
        let turned = |of: usize, text: &str| turned(text, &all[of], &all);
        assert_eq!(
            turned(
                0,
                "See [b](../../../CAVEATS.md#boot), [c](#here), `[d](x)`."
            ),
            "See [b](repository/CAVEATS.md#boot), [c](#here), `[d](x)`."
        );
        assert_eq!(turned(1, "[a](docs/book/src/a.md)"), "[a](../a.md)");
        assert_eq!(
            turned(
                2,
                "[`poll`](../../poll/src/lib.rs), [`poll/`](../../poll/) ![x](../x.svg)"
            ),
            "`poll` (`poll/src/lib.rs`), `poll/` x (`docs/x.svg`)"
        );
    }

    #[test]
    fn what_is_no_book_is_said() {
        let said = |input: &str| preprocess(&root(), input).expect_err("no book");
        assert!(said("").contains("mdBook"));
        assert!(said("[{}, {\"pages\": []}]").contains("no items"));
    }
}
