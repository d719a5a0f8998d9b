//! Links in Markdown.

use std::ops::Range;

/// An inline link or image of a document, in bytes of its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// From its `[`, or the `!` of an image before that, to its `)`.
    pub whole: Range<usize>,
    /// What is between the brackets.
    pub text: Range<usize>,
    /// Where it leads, without a title.
    pub target: Range<usize>,
}

/// The inline links of a document whose targets are relative, in order. What is in code is none.
pub fn relative(document: &str) -> Vec<Link> {
    let mut found = Vec::new();
    for prose in prose(document) {
        let text = document.get(prose.clone()).unwrap_or_default();
        for link in inline(text) {
            let target = text.get(link.target.clone()).unwrap_or_default();
            let absolute = target.contains("://") || target.starts_with("mailto:");
            if !target.is_empty() && !absolute {
                let moved =
                    |range: Range<usize>| range.start + prose.start..range.end + prose.start;
                found.push(Link {
                    whole: moved(link.whole),
                    text: moved(link.text),
                    target: moved(link.target),
                });
            }
        }
    }
    found
}

/// The number of the line, from 1, in which a byte of a document is.
pub fn line(document: &str, at: usize) -> usize {
    let before = document.as_bytes().get(..at).unwrap_or_default();
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}

/// Paragraphs outside fenced code: neither a link nor code between backquotes goes across an empty line.
fn prose(document: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let (mut fenced, mut open, mut at) = (false, false, 0);
    for line in document.split_inclusive('\n') {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        let end = at + line.len();
        let is_prose = !fenced && !fence && !line.trim().is_empty();
        match found.last_mut() {
            Some(last) if is_prose && open => last.end = end,
            _ if is_prose => found.push(at..end),
            _ => {}
        }
        open = is_prose;
        at = end;
    }
    found
}

/// All inline links of a paragraph.
fn inline(text: &str) -> Vec<Link> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut open = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'`' => {
                at = after_code(bytes, at);
                continue;
            }
            b'[' => open.push(at),
            b']' => {
                let from = open.pop();
                let target = bytes.get(at + 1) == Some(&b'(');
                let end = bytes.iter().skip(at).position(|&byte| byte == b')');
                if let (Some(from), true, Some(end)) = (from, target, end) {
                    let end = at + end;
                    let inside = text.get(at + 2..end).unwrap_or_default();
                    let target = inside.split_ascii_whitespace().next().unwrap_or_default();
                    // Behind the target there can be a title, and nothing else.
                    let rest = inside.get(target.len()..).unwrap_or_default().trim();
                    if !rest.is_empty() && !rest.starts_with('"') {
                        at += 1;
                        continue;
                    }
                    let image = from > 0 && bytes.get(from - 1) == Some(&b'!');
                    found.push(Link {
                        whole: from - usize::from(image)..end + 1,
                        text: from + 1..at,
                        target: at + 2..at + 2 + target.len(),
                    });
                    at = end;
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// Behind the code that begins with the backquotes at `at`, or behind those if it has no end.
fn after_code(bytes: &[u8], at: usize) -> usize {
    let run = |at: usize| {
        bytes
            .iter()
            .skip(at)
            .take_while(|&&byte| byte == b'`')
            .count()
    };
    let quotes = run(at);
    let mut end = at + quotes;
    while end < bytes.len() {
        match run(end) {
            0 => end += 1,
            n if n == quotes => return end + n,
            n => end += n,
        }
    }
    at + quotes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str) -> Vec<(usize, &str, &str)> {
        let links = relative(text).into_iter();
        let links = links.map(|link| {
            (
                line(text, link.whole.start),
                &text[link.text],
                &text[link.target],
            )
        });
        links.collect()
    }

    #[test]
    fn links_are_found_outside_code_only() {
        let text = "See [a](a.md#x) and ![p](p.svg \"t\"), not `[b](b.md)` or ``[`](b.md)``.\n```\n[c](c.md)\n```\n\
            [web](https://example.org) [`d`](d/) arr[0] (x)\n";
        assert_eq!(
            targets(text),
            [(1, "a", "a.md#x"), (1, "p", "p.svg"), (5, "`d`", "d/")]
        );
    }

    #[test]
    fn a_link_may_go_over_lines_and_a_single_backquote_hides_none() {
        let text = "One ` and [a\nb](c.md).\n\n[d](e.md)`\n";
        assert_eq!(targets(text), [(1, "a\nb", "c.md"), (4, "d", "e.md")]);
    }

    #[test]
    fn what_is_not_closed_is_no_link() {
        assert_eq!(targets("[a](b [c] ](d) [e](f"), []);
        assert_eq!(targets("]](((["), []);
    }
}
