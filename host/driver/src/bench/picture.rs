//! The figures as a picture: each as a bar beside its best peer, both on one linear scale.

use std::fmt::Write as _;

use super::figure::Figure;
use super::table::number;

const WIDTH: u32 = 860;
const LEFT: u32 = 190;
const RIGHT: u32 = 200;
const ROW: u32 = 46;
const TOP: u32 = 48;

/// An SVG document.
pub fn svg(figures: &[Figure]) -> String {
    let height = TOP + ROW * u32::try_from(figures.len()).unwrap_or(0) + 10;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"16\" y=\"26\" font-size=\"16\" font-weight=\"bold\">What EL2 costs, beside the best \
         peer (each row has its own scale; dashed: ceiling)</text>\n"
    );
    for (index, figure) in (0..).zip(figures) {
        let top = TOP + ROW * index;
        let longest = figure
            .value
            .max(figure.peer.unwrap_or(0).max(figure.ceiling).max(1) as f64);
        let room = f64::from(WIDTH - LEFT - RIGHT);
        let length = |value: f64| value / longest * room;
        let colour = match (figure.reached(), figure.holds()) {
            (true, _) => "#2a8f4f",
            (_, true) => "#c99a1a",
            _ => "#c0392b",
        };
        let mut bar = |y: u32, value: f64, colour: &str, words: &str| {
            let long = length(value);
            let _ = writeln!(
                text,
                "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{long:.1}\" height=\"14\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{}\" fill=\"#222\">{} {words}</text>",
                f64::from(LEFT) + long + 6.0,
                y + 12,
                number(value),
            );
        };
        bar(top, figure.value, colour, "Bulkhead");
        if let (Some(peer), Some(name)) = (figure.peer, &figure.peer_name) {
            bar(top + 17, peer as f64, "#9aa5b1", name);
        }
        let mark = f64::from(LEFT) + length(figure.ceiling as f64);
        let _ = writeln!(
            text,
            "<line x1=\"{mark:.1}\" x2=\"{mark:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"#222\" \
             stroke-dasharray=\"2 2\"/><text x=\"16\" y=\"{}\">{}</text>",
            top - 3,
            top + 17,
            top + 12,
            figure.name,
        );
        let _ = writeln!(
            text,
            "<text x=\"16\" y=\"{}\" fill=\"#777\" font-size=\"11\">{}, ceiling {}</text>",
            top + 28,
            figure.unit,
            figure.ceiling,
        );
    }
    text.push_str("</svg>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::super::budgets::{Budget, Peer};
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let peer = Some(Peer {
            name: "Bao".to_owned(),
            value: 200,
        });
        let budget = Budget {
            load: Default::default(),
            share: None,
            name: "vtimer_irq".to_owned(),
            operation: String::new(),
            unit: "instructions".to_owned(),
            ceiling: 95,
            asked: None,
            goal: 80,
            peer,
            apart: Vec::new(),
            only: Vec::new(),
            measured: None,
            gic: Default::default(),
            latency: false,
            native: None,
        };
        let text = svg(&[Figure::new(&budget, 50.0)]);
        // The peer's bar takes all the room there is, 470, and the own one a quarter of it.
        assert!(
            text.contains("width=\"470.0\" height=\"14\" fill=\"#9aa5b1\""),
            "{text}"
        );
        assert!(
            text.contains("width=\"117.5\" height=\"14\" fill=\"#2a8f4f\""),
            "{text}"
        );
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    }
}
