//! The figures as a picture: each as a bar beside its best peer, both on a logarithmic scale.

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
         peer (each row: logarithmic, its own scale)</text>\n"
    );
    for (index, figure) in (0..).zip(figures) {
        let top = TOP + ROW * index;
        let longest = figure.peer.unwrap_or(0).max(figure.ceiling) as f64;
        let room = f64::from(WIDTH - LEFT - RIGHT);
        let length = |value: f64| (value.max(1.0).ln() / longest.max(2.0).ln() * room).min(room);
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
