//! Drawings as SVG, by hand: rectangles, lines and text. Colours are CSS, so that a page can have
//! them follow its theme; the drawing of a file of its own names them.

use super::printable::visible;
use std::fmt::{Display, Write};

/// Text that stands for itself in SVG and HTML.
pub fn escaped(text: &str) -> String {
    visible(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// At most this many characters, with dots in the place of the others.
pub fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}

/// Elements, one a line.
#[derive(Default)]
pub struct Drawing(String);

impl Drawing {
    /// A rectangle by its left upper corner; `style` are further attributes.
    pub fn rect(&mut self, x: impl Display, y: f64, width: f64, height: f64, style: &str) {
        let _ = writeln!(
            self.0,
            "<rect x=\"{x}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" {style}/>"
        );
    }

    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), style: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.0,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {style}/>"
        );
    }

    /// A text that begins, ends or has its middle there, as `style` says.
    pub fn text(&mut self, x: f64, y: f64, style: &str, text: &str) {
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{}</text>",
            escaped(text)
        );
    }

    /// A line through points.
    pub fn polyline(&mut self, points: &[(f64, f64)], style: &str) {
        let _ = write!(self.0, "<polyline {style} points=\"");
        for (x, y) in points {
            let _ = write!(self.0, "{x:.1},{y:.1} ");
        }
        self.0.push_str("\"/>\n");
    }

    /// Within an `svg` element of this size; `attributes` are further ones.
    pub fn finish(self, width: f64, height: f64, attributes: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" {attributes}>\n{}</svg>\n",
            self.0
        )
    }
}

/// Round numbers from `low` to `high`, about `wanted` of them.
pub fn ticks(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    let span = high - low;
    if !span.is_finite() || span <= 0.0 {
        return vec![low];
    }
    let raw = span / wanted.max(1) as f64;
    let magnitude = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|times| times * magnitude)
        .find(|step| *step >= raw * 0.999)
        .unwrap_or(10.0 * magnitude);
    let first = (low / step).ceil();
    let last = (high / step + 1e-9).floor();
    // Multiplied rather than added up, so that no tick drifts.
    (0..)
        .map(|i| (first + f64::from(i)) * step)
        .take_while(|tick| *tick <= last * step + step * 1e-9)
        .collect()
}

/// At most about `most` of the points, in their order: of each stretch the first, the last, the
/// lowest and the highest, so that no extreme is lost.
pub fn decimated(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    let stretches = (most / 4).max(1);
    if points.len() <= most {
        return points.to_vec();
    }
    let mut kept = Vec::with_capacity(4 * stretches);
    for stretch in 0..stretches {
        let range = stretch * points.len() / stretches..(stretch + 1) * points.len() / stretches;
        let indices = || range.clone();
        let by_value = |a: &usize, b: &usize| points[*a].1.total_cmp(&points[*b].1);
        let mut chosen: Vec<usize> = [
            indices().next(),
            indices().min_by(by_value),
            indices().max_by(by_value),
            indices().next_back(),
        ]
        .into_iter()
        .flatten()
        .collect();
        chosen.sort_unstable();
        chosen.dedup();
        kept.extend(chosen.into_iter().map(|index| points[index]));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within() {
        assert_eq!(ticks(0.0, 10.0, 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(2.3, 4.1, 4), [2.5, 3.0, 3.5, 4.0]);
        let small = ticks(0.0, 5e-5, 5);
        assert!(
            small.len() == 6 && (small[5] - 5e-5).abs() < 1e-12,
            "{small:?}"
        );
        assert_eq!(ticks(3.0, 3.0, 5), [3.0]);
        assert_eq!(ticks(f64::NAN, 3.0, 5).len(), 1);
    }

    #[test]
    fn decimation_keeps_ends_and_extremes() {
        let mut points: Vec<(f64, f64)> = (0..200_000)
            .map(|i| (f64::from(i), (f64::from(i) / 1e3).sin()))
            .collect();
        (points[77_777].1, points[123_456].1) = (9.0, -9.0);
        let kept = decimated(&points, 1000);
        assert!(kept.len() <= 1000, "{}", kept.len());
        for point in [points[0], points[199_999], points[77_777], points[123_456]] {
            assert!(kept.contains(&point), "{point:?}");
        }
        assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(decimated(&points[..10], 1000), points[..10]);
    }

    #[test]
    fn texts_cannot_break_a_drawing() {
        let mut drawing = Drawing::default();
        drawing.text(1.0, 2.0, "", "<a&b>");
        let svg = drawing.finish(10.0, 10.0, "");
        assert!(svg.contains(">&lt;a&amp;b&gt;</text>"), "{svg}");
        assert_eq!(shortened("äöü", 2), "äö...");
    }
}
