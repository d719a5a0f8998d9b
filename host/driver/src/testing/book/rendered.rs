//! The book as mdBook renders it: `docs/rendered`, on request. mdBook is the computer's, or one that cargo installs
//! below `target/`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::testing::suite::{Context, Job, Test};
use crate::testing::tool;

/// The test of this file.
pub fn test() -> Test {
    let claim = "mdBook renders the book, and each link in what it makes leads to a page and a heading that are there.";
    let job: Job = Box::new(rendered);
    let why = "it needs mdBook, which takes minutes to build";
    Test::parallel("docs/rendered", claim, job).on_request(why)
}

fn rendered(context: &Context) -> Result<String, Vec<String>> {
    let path = with_mdbook(&context.root).map_err(|why| vec![why])?;
    let tool = tool::driver().map_err(|why| vec![why.to_string()])?;
    let mut command = Command::new(tool);
    command.arg("book").env("PATH", path).stdin(Stdio::null());
    command.env("BULKHEAD_ROOT", &context.root);
    said(command)?;
    let folder = context.root.join("out/book");
    let pages = pages(&folder);
    let mut wrong = Vec::new();
    let mut count = 0;
    for (page, text) in &pages {
        for target in values(text, "href") {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            if target.contains("://") || target.starts_with("data:") {
                continue;
            }
            count += 1;
            let above = page.parent().unwrap_or(&folder);
            let place = match file {
                "" => page.clone(),
                file => above.join(file),
            };
            let Ok(place) = place.canonicalize() else {
                wrong.push(format!("{}: `{target}` leads nowhere", page.display()));
                continue;
            };
            let headings = || values(pages.get(&place)?, "id").find(|id| *id == anchor);
            if !anchor.is_empty() && headings().is_none() {
                wrong.push(format!("{}: `{target}`: no such heading", page.display()));
            }
        }
    }
    let known: BTreeSet<_> = pages.keys().filter_map(|page| page.file_name()).collect();
    for needed in ["two-guests.html", "CAVEATS.html", "0019-doorbells.html"] {
        if !known.contains(&OsString::from(needed).as_os_str()) {
            wrong.push(format!("no {needed} was rendered"));
        }
    }
    match wrong.is_empty() {
        true => Ok(format!("{} pages, {count} links", pages.len())),
        false => Err(wrong),
    }
}

/// A search path on which mdBook is.
fn with_mdbook(root: &Path) -> Result<OsString, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = root.join("target/mdbook");
    let folders = std::env::split_paths(&path).chain([own.join("bin")]);
    let folders: Vec<_> = folders.collect();
    if !folders.iter().any(|folder| folder.join("mdbook").is_file()) {
        let mut install = Command::new("cargo");
        install.args(["install", "--quiet", "--locked", "--no-default-features"]);
        install.args(["--features", "search", "--root"]).arg(&own);
        install.arg("mdbook").stdin(Stdio::null());
        said(install).map_err(|said| said.join("\n"))?;
    }
    std::env::join_paths(folders).map_err(|why| why.to_string())
}

/// Runs a command; returns what it says if it fails.
fn said(mut command: Command) -> Result<(), Vec<String>> {
    let output = command.output();
    let output = output.map_err(|why| vec![format!("{command:?}: {why}")])?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines = said.lines().map(str::to_owned);
    Err([format!("{command:?}: {}", output.status)]
        .into_iter()
        .chain(lines)
        .collect())
}

/// All pages below a folder, with their texts.
fn pages(folder: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "html")
            {
                // Made for other addresses: that of a server's root, and that of the page around it.
                let own = ["404.html", "toc.html"]
                    .iter()
                    .any(|name| path.ends_with(name));
                if let (false, Ok(path), Ok(text)) =
                    (own, path.canonicalize(), fs::read_to_string(&path))
                {
                    found.insert(path, text);
                }
            }
        }
    }
    found
}

/// Values of an attribute in a page.
fn values<'a>(text: &'a str, attribute: &str) -> impl Iterator<Item = &'a str> {
    let before = format!(" {attribute}=\"");
    let places = text
        .match_indices(&before)
        .map(|(at, found)| at + found.len());
    let places: Vec<_> = places.collect();
    places
        .into_iter()
        .filter_map(|at| text.get(at..)?.split('"').next())
}
