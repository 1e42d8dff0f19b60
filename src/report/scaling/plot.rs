//! The bars as a drawing: SVG by hand, since it is rectangles, a dashed line and text.

use super::{Scaling, count};
use std::fmt::Write;

const HEIGHT: f64 = 260.0;
/// Above the bars, for the title; below, for what they are; left, for nothing but air.
const TOP: f64 = 56.0;
const BOTTOM: f64 = 58.0;
const SIDE: f64 = 24.0;
/// From one bar to the next, and its width.
const STEP: f64 = 96.0;
const WIDTH: f64 = 60.0;

impl Scaling {
    /// The bars as an SVG file.
    pub fn svg(&self) -> String {
        let width = (2.0 * SIDE + STEP * self.points.len() as f64).max(440.0);
        let total = TOP + HEIGHT + BOTTOM;
        let highest = self
            .points
            .iter()
            .map(|point| point.throughput().max(self.ideal(point)))
            .fold(f64::MIN_POSITIVE, f64::max);
        let y = |value: f64| TOP + HEIGHT * (1.0 - value / highest);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {total}\" font-family=\"sans-serif\" font-size=\"13\" text-anchor=\"middle\">\n\
             <rect width=\"{width}\" height=\"{total}\" fill=\"white\"/>\n"
        );
        let title = format!("tokens/s by {}; dashed: without loss", self.axis);
        let _ = writeln!(
            text,
            "<text x=\"{SIDE}\" y=\"20\" text-anchor=\"start\" font-size=\"15\">{}</text>",
            escaped(&title)
        );
        let command = shortened(&self.command, (width / 6.5) as usize);
        let _ = writeln!(
            text,
            "<text x=\"{SIDE}\" y=\"38\" text-anchor=\"start\" font-size=\"11\" fill=\"#666\">{}</text>",
            escaped(&command)
        );
        for (index, point) in self.points.iter().enumerate() {
            let left = SIDE + STEP * index as f64 + (STEP - WIDTH) / 2.0;
            let middle = left + WIDTH / 2.0;
            let (top, ideal) = (y(point.throughput()), y(self.ideal(point)));
            // Inside of its bar, unless that is too low for it.
            let (number, color) = if TOP + HEIGHT - top < 24.0 {
                (top - 6.0, "black")
            } else {
                (top + 18.0, "white")
            };
            let _ = writeln!(
                text,
                "<rect x=\"{left}\" y=\"{top:.1}\" width=\"{WIDTH}\" height=\"{:.1}\" fill=\"#4a7ab5\"/>\n\
                 <line x1=\"{}\" y1=\"{ideal:.1}\" x2=\"{}\" y2=\"{ideal:.1}\" stroke=\"#c44\" stroke-width=\"2\" stroke-dasharray=\"6 4\"/>\n\
                 <text x=\"{middle}\" y=\"{number:.1}\" fill=\"{color}\">{}</text>\n\
                 <text x=\"{middle}\" y=\"{}\">{}</text>\n\
                 <text x=\"{middle}\" y=\"{}\" font-size=\"11\" fill=\"#666\">{:.0}% efficient</text>",
                TOP + HEIGHT - top,
                left - 8.0,
                left + WIDTH + 8.0,
                count(point.throughput()),
                TOP + HEIGHT + 20.0,
                point.degree,
                TOP + HEIGHT + 38.0,
                self.efficiency(point) * 100.0,
            );
        }
        text.push_str("</svg>\n");
        text
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::scaling;

    #[test]
    fn bars_stand_on_one_line_and_are_in_proportion() {
        let svg = scaling(None, &[(1, &[100.0]), (2, &[150.0])]).svg();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        let bars: Vec<&str> = svg
            .lines()
            .filter(|line| line.contains("#4a7ab5"))
            .collect();
        assert!(
            bars[0].contains("y=\"186.0\"") && bars[0].contains("height=\"130.0\""),
            "{svg}"
        );
        assert!(
            bars[1].contains("y=\"121.0\"") && bars[1].contains("height=\"195.0\""),
            "{svg}"
        );
        assert_eq!(svg.matches("stroke-dasharray").count(), 2);
        assert!(svg.contains("75% efficient"));
    }

    #[test]
    fn what_was_typed_cannot_break_the_file() {
        let mut found = scaling(Some(2), &[(1, &[100.0])]);
        found.command = format!("bench --config_name <a&b> {}", "ü".repeat(400));
        let svg = found.svg();
        assert!(
            svg.contains("&lt;a&amp;b&gt;") && svg.contains("..."),
            "{svg}"
        );
    }
}
