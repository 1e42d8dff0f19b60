//! The bars as a drawing.

use super::{Scaling, count};
use crate::svg::{Drawing, shortened};

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
        let mut drawing = Drawing::default();
        drawing.rect(0, 0.0, width, total, "fill=\"white\"");
        let start = "text-anchor=\"start\"";
        let title = format!("tokens/s by {}; dashed: without loss", self.axis);
        drawing.text(SIDE, 20.0, &format!("{start} font-size=\"15\""), &title);
        let command = shortened(&self.command, (width / 6.5) as usize);
        let small = "font-size=\"11\" fill=\"#666\"";
        drawing.text(SIDE, 38.0, &format!("{start} {small}"), &command);
        for (index, point) in self.points.iter().enumerate() {
            let left = SIDE + STEP * index as f64 + (STEP - WIDTH) / 2.0;
            let middle = left + WIDTH / 2.0;
            let (top, ideal) = (y(point.throughput()), y(self.ideal(point)));
            // Inside of its bar, unless that is too low for it.
            let (number, color) = if TOP + HEIGHT - top < 24.0 {
                (top - 6.0, "fill=\"black\"")
            } else {
                (top + 18.0, "fill=\"white\"")
            };
            drawing.rect(left, top, WIDTH, TOP + HEIGHT - top, "fill=\"#4a7ab5\"");
            drawing.line(
                (left - 8.0, ideal),
                (left + WIDTH + 8.0, ideal),
                "stroke=\"#c44\" stroke-width=\"2\" stroke-dasharray=\"6 4\"",
            );
            drawing.text(middle, number, color, &count(point.throughput()));
            let below = TOP + HEIGHT;
            drawing.text(middle, below + 20.0, "", &point.degree.to_string());
            let efficiency = format!("{:.0}% efficient", self.efficiency(point) * 100.0);
            drawing.text(middle, below + 38.0, small, &efficiency);
        }
        let font = "font-family=\"sans-serif\" font-size=\"13\" text-anchor=\"middle\"";
        drawing.finish(width, total, font)
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
