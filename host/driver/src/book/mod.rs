//! The book as mdBook renders it. Its pages are `docs/`, as they are. Documents at the root of the
//! repository that its summary names are chapters, too; a link to anything else becomes its name.
//! mdBook gives its chapters to `bulkhead book preprocess` and takes what that gives back (mdBook,
//! "Developers", "Preprocessors").

pub mod links;

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

/// The folder of the pages in the repository.
pub const PAGES: &str = "docs";

/// Turns links in the book that mdBook has written as JSON: its context, and its items.
pub fn preprocess(input: &str) -> Result<Value, String> {
    let why =
        |error: &dyn std::fmt::Display| format!("what mdBook says is not understood: {error}");
    let (_, mut book): (Value, Value) = serde_json::from_str(input).map_err(|e| why(&e))?;
    // Versions before 0.5 call them sections.
    let key = ["items", "sections"]
        .into_iter()
        .find(|key| book.get(*key).is_some_and(Value::is_array));
    let items = key.and_then(|key| book.get_mut(key)?.as_array_mut());
    let items = items.ok_or_else(|| why(&"there are no items"))?;
    let mut chapters = Vec::new();
    each(items, &mut |item| chapters.extend(document(item)));
    each(items, &mut |item| {
        let text = item.get("content").and_then(Value::as_str);
        if let (Some(of), Some(text)) = (document(item), text) {
            let turned = turned(text, &of, &chapters);
            item["content"] = turned.into();
            // One from the root of the repository has its place beside the pages.
            item["path"] = place(&of).display().to_string().into();
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

/// The document of a chapter, from the root of the repository.
fn document(item: &Value) -> Option<PathBuf> {
    let path = item.get("path")?.as_str()?;
    Some(resolved(&Path::new(PAGES).join(path)))
}

/// The place in the book of a document that is in it.
fn place(document: &Path) -> &Path {
    document.strip_prefix(PAGES).unwrap_or(document)
}

/// The text of a chapter with links that hold in the book, and names of what is not in it.
fn turned(text: &str, of: &Path, chapters: &[PathBuf]) -> String {
    let folder = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
    let mut turned = String::new();
    // How far the text is turned.
    let mut done = 0;
    for link in links::relative(text) {
        let (file, anchor) = link.target.split_once('#').unwrap_or((&link.target, ""));
        if file.is_empty() || link.whole.start < done {
            continue;
        }
        let document = resolved(&folder(of).join(file));
        let pictures_and_the_like = document.extension().is_none_or(|kind| kind != "md");
        let inside = chapters.contains(&document)
            || document.starts_with(PAGES) && pictures_and_the_like && document != Path::new(PAGES);
        let stays = of.starts_with(PAGES) && document.starts_with(PAGES);
        if inside && stays {
            continue;
        }
        turned.push_str(text.get(done..link.whole.start).unwrap_or_default());
        done = link.whole.end;
        let words = text.get(link.text.clone()).unwrap_or_default();
        if inside {
            let way = relative(&folder(place(of)), place(&document));
            let anchor = if anchor.is_empty() {
                ""
            } else {
                &link.target[file.len()..]
            };
            turned.push_str(&format!("[{words}]({}{anchor})", way.display()));
            continue;
        }
        let path = document.display().to_string();
        turned.push_str(words);
        // Not twice, where the words are the path or its end.
        if !path.ends_with(words.trim_matches('`').trim_end_matches('/')) {
            turned.push_str(&format!(" (`{path}`)"));
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
    use std::fs;

    use serde_json::json;

    use super::*;

    /// This repository.
    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// Returns the input that mdBook writes for pages of this repository; `key` is its name for the items.
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
        let summary = fs::read_to_string(root().join(PAGES).join("SUMMARY.md")).expect("it");
        let pages = links::relative(&summary).into_iter();
        let pages = pages.map(|link| page(&link.target, json!([])));
        let mut items: Vec<_> = pages.collect();
        let last = items.pop().expect("a chapter");
        items[0]["Chapter"]["sub_items"] = json!([last]);
        items.insert(1, json!("Separator"));
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
            let book = preprocess(&input(key)).expect("a book");
            let chapters = chapters(book, key);
            let places: Vec<_> = chapters.iter().map(|(place, _)| Path::new(place)).collect();
            for there in ["CAVEATS.md", "ARCHITECTURE.md", "adr/0019-doorbells.md"] {
                assert!(places.contains(&Path::new(there)), "no {there}");
            }
            let mut count = 0;
            for (place, text) in &chapters {
                let folder = Path::new(place).parent().expect("a folder");
                for link in links::relative(text) {
                    let file = link.target.split('#').next().expect("a part");
                    let to = resolved(&folder.join(file));
                    let beside = || root().join(PAGES).join(&to).is_file();
                    let page = to.extension().is_some_and(|kind| kind == "md");
                    assert!(
                        file.is_empty() || places.contains(&&*to) || !page && beside(),
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
        let all = ["docs/a.md", "CAVEATS.md", "docs/adr/1.md"].map(PathBuf::from);
        let turned = |of: usize, text: &str| turned(text, &all[of], &all);
        assert_eq!(
            turned(0, "See [b](../CAVEATS.md#boot), [c](#here), `[d](x)`."),
            "See [b](CAVEATS.md#boot), [c](#here), `[d](x)`."
        );
        assert_eq!(turned(1, "[a](docs/a.md)"), "[a](a.md)");
        assert_eq!(
            turned(2, "[a](../a.md#b), [c](../../CAVEATS.md)"),
            "[a](../a.md#b), [c](../CAVEATS.md)"
        );
        assert_eq!(
            turned(
                2,
                "[`poll`](../../poll/src/lib.rs), [`poll/`](../../poll/) [s](../b.md) ![x](../x.svg) ![y](../../y.svg)"
            ),
            "`poll` (`poll/src/lib.rs`), `poll/` s (`docs/b.md`) ![x](../x.svg) y (`y.svg`)"
        );
    }

    #[test]
    fn what_is_no_book_is_said() {
        let said = |input: &str| preprocess(input).expect_err("no book");
        assert!(said("").contains("mdBook"));
        assert!(said("[{}, {\"pages\": []}]").contains("no items"));
    }
}
