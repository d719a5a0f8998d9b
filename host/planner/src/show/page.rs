//! A plan as one HTML file that needs nothing else: no network, no fonts, no library. What it shows is the JSON of the
//! plan, which a script in the file draws.

use serde::Serialize;
use serde_json::{Value, json};

use super::diff::Differences;

/// The frame, in which the other parts have their places.
const FRAME: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Parts in which one page differs from another.
pub struct Parts<'a> {
    /// Title of the window.
    pub title: &'a str,
    /// The command that prints the same as text, for browsers that run no scripts.
    pub same: &'a str,
    /// Data that the script draws.
    pub data: &'a Value,
    /// The script.
    pub script: &'a str,
}

/// Data that the script draws.
#[derive(Serialize)]
struct Data<'a> {
    plan: &'a Value,
    diff: Option<Value>,
}

/// The page of a plan as [`super::json`] gives it, with what differs from another one.
pub fn html(plan: &Value, differences: Option<&Differences>) -> String {
    fill(&Parts {
        title: plan["name"].as_str().unwrap_or_default(),
        same: "bulkhead plan",
        data: &json!(Data {
            plan,
            diff: differences.map(Differences::json),
        }),
        script: SCRIPT,
    })
}

/// Puts everything into one file.
pub fn fill(parts: &Parts) -> String {
    // In a script element `<` could end it; in JSON it can stand as an escape.
    let data = parts.data.to_string().replace('<', "\\u003c");
    let mut page = String::with_capacity(FRAME.len() + STYLE.len() + SCRIPT.len() + data.len());
    let mut rest = FRAME;
    for (place, content) in [
        ("@TITLE@", escape(parts.title).as_str()),
        ("@STYLE@", STYLE),
        ("@SAME@", parts.same),
        ("@DATA@", &data),
        ("@SCRIPT@", parts.script),
    ] {
        let (before, behind) = rest.split_once(place).unwrap_or((rest, ""));
        page.push_str(before);
        page.push_str(content);
        rest = behind;
    }
    page.push_str(rest);
    page
}

/// Text as it stands in HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_end_neither_the_title_nor_the_script() {
        let evil = "</script></title><script>alert(1)</script>@SCRIPT@";
        let page = html(&json!({ "name": evil }), None);
        assert_eq!(page.matches("<script").count(), 2);
        assert_eq!(page.matches("</script>").count(), 2);
        assert_eq!(page.matches("</title>").count(), 1);
        let data = page.split("id=\"data\">").nth(1).unwrap();
        let data: Value = serde_json::from_str(data.split("</script>").next().unwrap()).unwrap();
        assert_eq!(data["plan"]["name"], evil);
        assert_eq!(data["diff"], Value::Null);
    }

    #[test]
    fn the_page_asks_nobody_for_anything() {
        let page = html(&json!({ "name": "x" }), None);
        for word in ["http:", "https:", "@import", "url(", "src="] {
            assert!(!page.contains(word), "{word}");
        }
    }
}
