//! The report as a page that needs nothing else.

use super::{KernelReport, PHASES};
use crate::page::{Figure, document};
use crate::svg::{Drawing, decimated, shortened, ticks};
use crate::units::bytes;

const WIDTH: f64 = 900.0;
/// From one bar to the next, and its height.
const ROW: f64 = 26.0;
const BAR: f64 = 18.0;
/// For the names beside bars, and the longest one.
const NAMES: f64 = 190.0;
const LONGEST: usize = 24;
/// Behind bars, for their numbers.
const BEHIND: f64 = 110.0;
/// The memory's plot.
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 80.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 34.0;
/// Points of the memory's curve; more fall together on the screen.
const POINTS: usize = 1_600;

/// Hues of forward, backward and update.
const HUES: [u32; 3] = [212, 350, 95];

fn color(hue: u32) -> String {
    format!("hsl({hue} 60% var(--lightness))")
}

/// One page for several graphs.
pub fn html(reports: &[KernelReport]) -> String {
    let titles: Vec<&str> = reports.iter().map(|report| report.title.as_str()).collect();
    let (mut intro, mut figures) = (Vec::new(), Vec::new());
    for report in reports {
        let prefix = match reports.len() {
            1 => String::new(),
            _ => format!("{}: ", report.title),
        };
        intro.extend(
            report
                .sentences()
                .into_iter()
                .map(|text| format!("{prefix}{text}")),
        );
        figures.extend(report.figures().into_iter().map(|figure| Figure {
            title: format!("{prefix}{}", figure.title),
            ..figure
        }));
    }
    document(
        &format!("Kernels of {}", titles.join(", ")),
        &intro,
        &figures,
    )
}

impl KernelReport {
    fn figures(&self) -> Vec<Figure> {
        let unit = if self.bounds.is_some() {
            "least time"
        } else {
            "bytes moved"
        };
        let with = |header: Vec<String>, rows: Vec<Vec<String>>| [vec![header], rows].concat();
        let owned = |cells: &[&str]| cells.iter().map(|cell| cell.to_string()).collect();
        let mut figures = vec![
            Figure {
                title: format!("{unit} by class"),
                drawing: self.class_bars(),
                rows: with(self.header("class"), self.class_rows()),
                ..Figure::default()
            },
            Figure {
                title: format!("{unit} by layer"),
                drawing: self.layer_bars(),
                legend: phases(),
                ..Figure::default()
            },
            Figure {
                title: "memory over the schedule".into(),
                drawing: self.memory_curve(),
                legend: phases(),
                rows: with(
                    owned(&["held at the peak", "shape", "written by"]),
                    self.buffer_rows(),
                ),
                notes: self.memory_notes(),
            },
        ];
        if !self.findings.is_empty() {
            figures.push(Figure {
                title: "to look at".into(),
                rows: with(owned(&self.finding_header()), self.finding_rows()),
                ..Figure::default()
            });
        }
        if !self.collectives.is_empty() {
            let header = owned(&["collective", "devices", "count", "bytes", "overlap"]);
            figures.push(Figure {
                title: "collectives".into(),
                rows: with(header, self.collective_rows()),
                ..Figure::default()
            });
        }
        figures
    }

    fn sentences(&self) -> Vec<String> {
        let (bounds, inputs) = (self.bound_rows(), self.input_rows());
        let sentence = |[name, value]: &[String; 2]| format!("{name}: {value}");
        bounds.iter().chain(&inputs).map(sentence).collect()
    }

    fn memory_notes(&self) -> Vec<String> {
        let rows = self.memory_rows();
        let sentences = rows.iter().map(|[name, value]| format!("{name}: {value}"));
        sentences
            .chain([self.memory_source().to_string()])
            .collect()
    }

    /// What bars are as long as.
    fn measure(&self, work: &super::Work) -> f64 {
        if self.bounds.is_some() {
            work.seconds
        } else {
            work.bytes
        }
    }

    fn number(&self, value: f64) -> String {
        match self.bounds {
            Some(_) => super::milliseconds(value),
            None => bytes(value as u64),
        }
    }

    fn class_bars(&self) -> String {
        let rows = self
            .classes
            .iter()
            .enumerate()
            .map(|(place, (name, work))| {
                // Hues by the golden angle, which keeps neighbours apart.
                let hue = (212.0 + 137.508 * place as f64) % 360.0;
                (
                    name.to_string(),
                    vec![(self.measure(work), color(hue as u32))],
                )
            });
        self.bars(rows.collect())
    }

    fn layer_bars(&self) -> String {
        let rows = self.layers.iter().map(|(name, phases)| {
            let parts = phases.iter().zip(HUES);
            let parts = parts.map(|(work, hue)| (self.measure(work), color(hue)));
            (name.clone(), parts.collect())
        });
        self.bars(rows.collect())
    }

    /// A bar for each row, of its parts one behind the other.
    fn bars(&self, rows: Vec<(String, Vec<(f64, String)>)>) -> String {
        let sum = |parts: &[(f64, String)]| parts.iter().map(|(value, _)| value).sum::<f64>();
        let highest = rows
            .iter()
            .map(|(_, parts)| sum(parts))
            .fold(f64::MIN_POSITIVE, f64::max);
        let mut drawing = Drawing::default();
        for (row, (name, parts)) in rows.iter().enumerate() {
            let top = ROW * row as f64 + 4.0;
            let style = "class=\"t\" text-anchor=\"end\"";
            drawing.text(NAMES - 8.0, top + 13.0, style, &shortened(name, LONGEST));
            let mut left = NAMES;
            for (value, color) in parts.iter().filter(|(value, _)| *value > 0.0) {
                let long = (WIDTH - NAMES - BEHIND) * value / highest;
                drawing.rect(
                    format!("{left:.1}"),
                    top,
                    long,
                    BAR,
                    &format!("style=\"fill:{color}\""),
                );
                left += long;
            }
            drawing.text(
                left + 8.0,
                top + 13.0,
                "class=\"t\"",
                &self.number(sum(parts)),
            );
        }
        drawing.finish(WIDTH, ROW * rows.len() as f64 + 8.0, "role=\"img\"")
    }

    /// Temporaries over the schedule, each stretch in the colour of its phase, the peak marked.
    fn memory_curve(&self) -> String {
        let held = &self.memory.held;
        let highest = held.iter().copied().max().unwrap_or(0).max(1) as f64;
        let (width, height) = (WIDTH - LEFT - 14.0, HEIGHT - TOP - BOTTOM);
        let last = held.len().saturating_sub(1).max(1) as f64;
        let x = |position: f64| LEFT + width * position / last;
        let y = |bytes: f64| TOP + height * (1.0 - bytes / highest);
        let mut drawing = Drawing::default();
        let unit = 1024f64.powf(highest.log(1024.0).floor());
        for tick in ticks(0.0, highest / unit, 5) {
            let level = y(tick * unit);
            drawing.line((LEFT, level), (WIDTH - 14.0, level), "class=\"g\"");
            let style = "class=\"t\" text-anchor=\"end\"";
            drawing.text(LEFT - 6.0, level + 4.0, style, &bytes((tick * unit) as u64));
        }
        let mut begin = 0;
        while begin < held.len() {
            let phase = self.memory.phase_at[begin];
            let len = self.memory.phase_at[begin..]
                .iter()
                .take_while(|it| **it == phase)
                .count();
            // To the first point of the next stretch, so that the curve has no gaps.
            let end = (begin + len + 1).min(held.len());
            let points: Vec<(f64, f64)> = (begin..end)
                .map(|at| (at as f64, held[at] as f64))
                .collect();
            let drawn = decimated(&points, POINTS)
                .into_iter()
                .map(|(px, py)| (x(px), y(py)));
            let style = format!("style=\"stroke:{}\"", color(HUES[phase.min(2)]));
            drawing.polyline(&drawn.collect::<Vec<_>>(), &style);
            begin += len;
        }
        if let Some(peak) = (0..held.len()).max_by_key(|&at| (held[at], std::cmp::Reverse(at))) {
            let (px, py) = (x(peak as f64), y(held[peak] as f64));
            drawing.rect(
                format!("{:.1}", px - 3.0),
                py - 3.0,
                6.0,
                6.0,
                "style=\"fill:var(--fg)\"",
            );
            let (anchor, text) = if px > WIDTH / 2.0 {
                ("end", px - 8.0)
            } else {
                ("start", px + 8.0)
            };
            let style = format!("class=\"t\" text-anchor=\"{anchor}\"");
            drawing.text(
                text,
                py + 16.0,
                &style,
                &format!("peak {}", bytes(held[peak])),
            );
        }
        let style = "class=\"t\" text-anchor=\"end\"";
        let axis = format!("instructions in the schedule (of {})", held.len());
        drawing.text(WIDTH - 14.0, HEIGHT - 8.0, style, &axis);
        drawing.finish(WIDTH, HEIGHT, "role=\"img\"")
    }
}

/// What the colours of layers and of memory mean.
fn phases() -> Vec<(String, String)> {
    let pairs = PHASES.iter().zip(HUES);
    pairs
        .map(|(name, hue)| (color(hue), name.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::KernelReport;
    use super::super::tests::report;
    use super::html;

    #[test]
    fn the_page_is_self_contained_and_escapes_what_others_wrote() {
        let html = html(&[report()]);
        assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>\n"));
        assert!(html.contains("prefers-color-scheme:dark"));
        assert!(html.contains("train/&lt;h.0&gt;/split") && !html.contains("<h.0>"));
        // Nothing is fetched from elsewhere.
        for word in ["src=", "href=", "url(", "@import"] {
            assert!(!html.contains(word), "{word}");
        }
        for title in [
            "least time by class",
            "least time by layer",
            "memory over the schedule",
            "to look at",
            "collectives",
        ] {
            assert!(html.contains(&format!("<h2>{title}</h2>")), "{title}");
        }
        assert!(html.contains("honest bound: 48.00 ms") && html.contains("peak 2.0 GiB"));
        let two = super::html(&[report(), report()]);
        assert!(two.contains("<h2>train for h200: to look at</h2>"));
    }

    /// The bars of layers add up to their phases, and the peak is where the curve is highest.
    #[test]
    fn bars_are_in_proportion() {
        let svg = report().layer_bars();
        let widths: Vec<f64> = svg
            .lines()
            .filter_map(|line| {
                line.split_once("width=\"")?
                    .1
                    .split('"')
                    .next()?
                    .parse()
                    .ok()
            })
            .collect();
        assert_eq!(widths.len(), 4, "{svg}");
        assert!(
            (widths[2] / widths[1] - 27.0 / 20.0).abs() < 1e-2,
            "{widths:?}"
        );
        let blind = KernelReport {
            bounds: None,
            ..report()
        };
        assert!(html(std::slice::from_ref(&blind)).contains("<h2>bytes moved by layer</h2>"));
        let empty = html(&[KernelReport::default()]);
        assert!(empty.contains("memory over the schedule"));
    }
}
