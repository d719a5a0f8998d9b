//! The book is followed to the letter: its steps are done, in order, and have to show what its pages say.

mod fresh;
mod page;
mod reader;
mod rendered;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::suite::{Context, Job, Test};
use super::tool;
use crate::book::PAGES;
use page::{Step, steps};
use reader::{Place, read};

/// The folders of pages that tell what to do.
const FOLLOWED: [&str; 2] = ["tutorial", "how-to"];
/// Page that is followed besides.
const README: &str = "README";
/// A page that needs more than the checkout, and whose steps the tests `boot/` do.
const ELSEWHERE: &str = "how-to/boot";
/// Pages that are followed on request only, each with the reason.
const ON_REQUEST: [(&str, &str); 1] = [(
    "tutorial/a-loop-in-c",
    "its loop, its program of Linux and their channel are those of `system/channel-c`, a whole Debian on a disk is that of `demo/short`, \
     and `docs/tutorial/two-guests` has the verbs that it uses",
)];
/// Entries of the working folder that a reader finds, besides the tool.
const FOUND: [&str; 7] = [
    "boards", "channel", "systems", "guests", "host", "tests", "out",
];

/// A test for each page that has something done.
pub fn tests(root: &Path) -> Vec<Test> {
    let pages = pages(root).into_iter();
    let pages = pages.filter(|(_, text)| steps(text).is_ok_and(|steps| !steps.is_empty()));
    let pages = pages.map(|(name, _)| {
        let path = path(&name);
        let claim = format!("Who does what `{path}` says sees what it shows.");
        let job: Job = Box::new(move |context| follow(context, &path));
        let test = Test::parallel(format!("docs/{name}"), claim, job);
        let why = ON_REQUEST.iter().find(|(page, _)| *page == name);
        match why {
            Some((_, why)) => test.on_request(*why),
            None if name.starts_with("tutorial") => test.long(),
            None => test,
        }
    });
    let pages = pages.chain(fresh::tests());
    pages.chain([rendered::test()]).collect()
}

/// The file of a page, from the root of the checkout.
fn path(name: &str) -> String {
    match name {
        README => format!("{name}.md"),
        name => format!("{PAGES}/{name}.md"),
    }
}

/// The pages that are followed: the name of the file below the book without its ending, and the
/// text.
fn pages(root: &Path) -> Vec<(String, String)> {
    let mut names = vec![README.to_owned()];
    for folder in FOLLOWED {
        let entries = fs::read_dir(root.join(PAGES).join(folder));
        let files = entries.into_iter().flatten().flatten();
        let files = files.filter_map(|entry| entry.file_name().into_string().ok());
        names.extend(
            files.filter_map(|file| Some(format!("{folder}/{}", file.strip_suffix(".md")?))),
        );
    }
    names.retain(|name| name != ELSEWHERE);
    names.sort();
    let text = |name: &String| fs::read_to_string(root.join(path(name))).ok();
    let pages = names.into_iter();
    pages
        .filter_map(|name| text(&name).map(|text| (name, text)))
        .collect()
}

/// Follows a page in a folder that looks like the checkout, with this tool.
fn follow(context: &Context, page: &str) -> Result<String, Vec<String>> {
    let why = |error: &dyn std::fmt::Display| vec![error.to_string()];
    let text = fs::read_to_string(context.root.join(page)).map_err(|e| why(&e))?;
    let folder = tempfile::tempdir().map_err(|e| why(&e))?;
    let path = folder.path().to_owned();
    checkout(&context.root, &path).map_err(|e| why(&e))?;
    let unbuilt = (!builds(&text)).then(|| path.join("unbuilt"));
    let place = Place {
        folder: path.clone(),
        shell: Box::new(move |text| {
            let mut command = Command::new("sh");
            command.args(["-c", text]).current_dir(&path);
            command.env("NO_COLOR", "1");
            if let Some(folder) = &unbuilt {
                command.env("CARGO_TARGET_DIR", folder);
            }
            command
        }),
        guard: Duration::from_secs(400),
    };
    read(page, &text, &place)
}

/// Whether a page has something built. One that has not is read as in a new checkout, whatever other tests have built.
fn builds(text: &str) -> bool {
    let verbs = ["./bulkhead build ", "./bulkhead run "];
    let steps = steps(text).unwrap_or_default();
    steps.iter().any(|(_, step)| match step {
        Step::Command { text, .. } => verbs.iter().any(|verb| text.contains(verb)),
        _ => false,
    })
}

/// Makes `folder` look like the checkout at `root` to somebody who only writes files beside what is there.
fn checkout(root: &Path, folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(root.join("out"))?;
    for name in FOUND {
        symlink(root.join(name), folder.join(name))?;
    }
    let tool = tool::driver()?;
    let script = folder.join("bulkhead");
    fs::write(
        &script,
        format!(
            "#!/bin/sh\nBULKHEAD_ROOT='{}' exec '{}' \"$@\"\n",
            root.display(),
            tool.display()
        ),
    )?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_can_be_read_and_the_tutorial_is_one() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (name, text) in pages(&root) {
            assert!(steps(&text).is_ok(), "{name}: {:?}", steps(&text));
        }
        let tests = tests(&root);
        let built: Vec<_> = pages(&root)
            .into_iter()
            .filter(|(_, text)| builds(text))
            .collect();
        assert!(built.iter().any(|(name, _)| name == "tutorial/two-guests"));
        assert!(!built.iter().any(|(name, _)| name == "how-to/talk"));
        let tutorial = tests
            .iter()
            .find(|test| test.name == "docs/tutorial/two-guests");
        assert!(tutorial.is_some_and(|test| test.on_request.is_none()));
        assert!(tests.iter().any(|test| test.name == "docs/README"));
        let rare = ON_REQUEST.map(|(page, _)| format!("docs/{page}"));
        let rare = { rare.iter() }.all(|name| tests.iter().any(|test| test.name == *name));
        assert!(rare, "a page that is not there");
    }
}
