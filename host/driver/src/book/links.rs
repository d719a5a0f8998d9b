//! Links and headings of a Markdown document, as CommonMark reads them.

use std::collections::BTreeMap;
use std::ops::Range;

use pulldown_cmark::{Event, OffsetIter, Options, Parser, Tag, TagEnd};

/// A link or an image of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// All of it, in bytes of the document.
    pub whole: Range<usize>,
    /// Its words, in bytes of the document.
    pub text: Range<usize>,
    /// The target, without a title.
    pub target: String,
}

/// The links of a document whose targets are relative, in order. Text in code is no link.
pub fn relative(document: &str) -> Vec<Link> {
    let mut found = Vec::new();
    // Links whose end has not come yet: an image can be the words of a link.
    let mut open: Vec<Link> = Vec::new();
    for (event, range) in events(document) {
        if let Event::End(TagEnd::Link | TagEnd::Image) = event {
            found.extend(open.pop());
            continue;
        }
        for link in &mut open {
            let empty = link.text.is_empty();
            link.text.start = if empty { range.start } else { link.text.start };
            link.text.end = link.text.end.max(range.end);
        }
        if let Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) = event {
            open.push(Link {
                text: range.start..range.start,
                whole: range,
                target: dest_url.into_string(),
            });
        }
    }
    let absolute = |target: &str| target.contains("://") || target.starts_with("mailto:");
    found.retain(|link| !link.target.is_empty() && !absolute(&link.target));
    found.sort_by_key(|link| link.whole.start);
    found
}

/// The anchors that forges give to the headings of a document.
pub fn anchors(document: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut heading: Option<String> = None;
    for (event, _) in events(document) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(words) | Event::Code(words) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let anchor = slug(&heading.take().unwrap_or_default());
                let before = times.entry(anchor.clone()).or_default();
                found.push(match *before {
                    0 => anchor,
                    n => format!("{anchor}-{n}"),
                });
                *before += 1;
            }
            _ => {}
        }
    }
    found
}

/// The number of the line, from 1, in which a byte of a document is.
pub fn line(document: &str, at: usize) -> usize {
    let before = document.as_bytes().get(..at).unwrap_or_default();
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}

fn events(document: &str) -> OffsetIter<'_> {
    Parser::new_ext(document, Options::ENABLE_TABLES).into_offset_iter()
}

fn slug(heading: &str) -> String {
    let text = heading.trim().to_lowercase();
    let kept = text
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str) -> Vec<(usize, &str, String)> {
        let links = relative(text).into_iter();
        let links = links.map(|link| {
            (
                line(text, link.whole.start),
                &text[link.text],
                link.target.clone(),
            )
        });
        links.collect()
    }

    fn links<'a>(wanted: &[(usize, &'a str, &str)]) -> Vec<(usize, &'a str, String)> {
        let wanted = wanted.iter();
        wanted
            .map(|&(line, text, target)| (line, text, target.to_owned()))
            .collect()
    }

    #[test]
    fn links_are_found_outside_code_only() {
        let text = "See [a](a.md#x) and ![p](p.svg \"t\"), not `[b](b.md)` or ``[`](b.md)``.\n```\n[c](c.md)\n```\n\
            [web](https://example.org) [`d`](d/) arr[0] (x)\n";
        assert_eq!(
            targets(text),
            links(&[(1, "a", "a.md#x"), (1, "p", "p.svg"), (5, "`d`", "d/")])
        );
    }

    #[test]
    fn a_link_may_go_over_lines_and_a_single_backquote_hides_none() {
        let text = "One ` and [a\nb](c.md).\n\n[d](e.md)`\n";
        assert_eq!(
            targets(text),
            links(&[(1, "a\nb", "c.md"), (4, "d", "e.md")])
        );
    }

    #[test]
    fn links_are_found_in_tables_by_reference_and_around_images() {
        let text = "| a | b |\n| --- | --- |\n| [x](x.md) | y |\n\n[t][r] [![p](p.svg)](q.md)\n\n[r]: r.md \"t\"\n";
        assert_eq!(
            targets(text),
            links(&[
                (3, "x", "x.md"),
                (5, "t", "r.md"),
                (5, "![p](p.svg)", "q.md"),
                (5, "p", "p.svg")
            ])
        );
    }

    #[test]
    fn what_is_not_closed_is_no_link() {
        assert_eq!(targets("[a](b [c] ](d) [e](f"), []);
        assert_eq!(targets("]](((["), []);
    }

    #[test]
    fn headings_have_the_anchors_of_forges() {
        let text = "# The `plan` format, v1\n\nSetext\n---\n\n```\n# code\n```\n\n## Own_part\n## Own_part\n";
        assert_eq!(
            anchors(text),
            ["the-plan-format-v1", "setext", "own_part", "own_part-1"]
        );
    }
}
