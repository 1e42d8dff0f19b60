//! The drawings of a page: curves against each axis, throughput bars, where the time went.

use super::report::{Report, time};
use super::tables::relative;
use crate::runs::numbers::is_metric;
use crate::runs::{Axis, DEVICE_MEMORY};
use crate::svg::{Drawing, decimated, escaped, shortened, ticks};
use crate::units::{bytes, count};
use std::collections::BTreeSet;
use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 304.0;
/// Beside the plot, for the numbers; above it; below it, for numbers and the axis' name.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 46.0;

/// Points of all curves of a page: about 12 bytes each, so that it stays below 3 MB.
const POINTS: usize = 160_000;
/// More points of one curve than this fall together on the screen.
const MOST: usize = 2_400;
const LEAST: usize = 80;

/// From one bar to the next, and its height.
const ROW: f64 = 34.0;
const BAR: f64 = 22.0;
/// Of a character of the names beside bars, and the longest name: sweeps name their runs by what
/// differs.
const LETTER: f64 = 7.6;
const LONGEST: usize = 38;

/// A chart of one key of the logs.
struct Chart {
    key: String,
    title: String,
    format: fn(f64) -> String,
    /// For a value of this size, what the numbers beside the grid are round multiples of.
    unit: fn(f64) -> f64,
}

fn plain(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size < 1e-3 => format!("{value:.1e}"),
        size if size < 100.0 => {
            let digits = if size < 1.0 { 4 } else { 2 };
            format!("{value:.digits$}")
                .trim_end_matches('0')
                .trim_end_matches('.')
                .into()
        }
        _ => count(value),
    }
}

fn size(value: f64) -> String {
    bytes(value.max(0.0) as u64)
}

/// The unit in which [`bytes`] writes such a value.
fn size_unit(value: f64) -> f64 {
    1024f64.powf(value.abs().max(1.0).log(1024.0).floor())
}

fn charts(report: &Report) -> Vec<Chart> {
    let chart = |key: &str, title: &str, format: fn(f64) -> String| Chart {
        key: key.into(),
        title: title.into(),
        format,
        unit: |_| 1.0,
    };
    let keys: BTreeSet<&str> = report
        .runs
        .iter()
        .flat_map(|run| run.series.keys().map(String::as_str))
        .collect();
    let mut all = vec![chart("loss", "loss", plain)];
    let metrics = keys.iter().filter(|key| is_metric(key) && **key != "loss");
    all.extend(metrics.map(|key| chart(key, key, plain)));
    all.extend([
        chart("learning_rate", "learning rate", plain),
        chart("grad_norm", "gradient norm", plain),
        chart("tokens_per_second", "tokens/s", count),
        Chart {
            unit: size_unit,
            ..chart(DEVICE_MEMORY, "device memory, peak", size)
        },
        chart("loss_scale", "loss scale", plain),
    ]);
    all.retain(|chart| keys.contains(chart.key.as_str()));
    all
}

/// Axes that some run has values on.
pub fn axes(report: &Report) -> Vec<Axis> {
    let mut axes = Axis::ALL.to_vec();
    axes.retain(|axis| {
        let mut points = report
            .runs
            .iter()
            .flat_map(|run| run.series.values().flatten());
        points.any(|point| point.place.on(*axis).is_finite())
    });
    axes
}

/// The colour of a run, as CSS: hues by the golden angle, which keeps neighbours apart.
pub fn color(run: usize) -> String {
    hue((212.0 + 137.508 * run as f64) % 360.0)
}

fn hue(degrees: f64) -> String {
    format!("hsl({degrees:.0} 65% var(--lightness))")
}

/// What colours mean.
pub fn legend<'t>(entries: impl Iterator<Item = (String, &'t str)>) -> String {
    let entries = entries.map(|(color, name)| {
        format!(
            "<span><i style=\"background:{color}\"></i>{}</span>",
            escaped(name)
        )
    });
    format!(
        "<div class=\"legend\">{}</div>\n",
        entries.collect::<String>()
    )
}

/// All curves, each as a figure with a drawing for every axis.
pub fn curves(report: &Report) -> String {
    let (charts, axes) = (charts(report), axes(report));
    let curves = (charts.len() * axes.len() * report.runs.len()).max(1);
    let most = (POINTS / curves).clamp(LEAST, MOST);
    let mut html = String::new();
    for chart in &charts {
        let _ = writeln!(
            html,
            "<figure><figcaption>{}</figcaption>",
            escaped(&chart.title)
        );
        for axis in &axes {
            html.push_str(&curve(report, chart, *axis, most));
        }
        html.push_str("</figure>\n");
    }
    html
}

fn curve(report: &Report, chart: &Chart, axis: Axis, most: usize) -> String {
    let series: Vec<Vec<(f64, f64)>> = report
        .runs
        .iter()
        .map(|run| {
            let points = run.points(&chart.key).iter();
            points
                .map(|point| (point.place.on(axis), point.value))
                .filter(|(x, _)| x.is_finite())
                .collect()
        })
        .collect();
    let missing: Vec<&str> = report
        .runs
        .iter()
        .zip(&series)
        .filter(|(run, series)| series.is_empty() && !run.points(&chart.key).is_empty())
        .map(|(run, _)| run.name.as_str())
        .collect();
    let range = |of: fn(&(f64, f64)) -> f64| {
        let values = || series.iter().flatten().map(of);
        let low = values().fold(f64::INFINITY, f64::min);
        (low, values().fold(f64::NEG_INFINITY, f64::max))
    };
    let ((x0, x1), (y0, y1)) = (range(|point| point.0), range(|point| point.1));
    let mut drawing = Drawing::default();
    let small = "class=\"t\"";
    if x0.is_finite() {
        // A single value, or equal ones, in the middle.
        let widened = |low: f64, high: f64| match high - low {
            span if span > 0.0 => (low, high),
            _ => (
                low - low.abs().max(1e-9) * 0.5,
                high + high.abs().max(1e-9) * 0.5,
            ),
        };
        let ((x0, x1), (y0, y1)) = (widened(x0, x1), widened(y0, y1));
        let (y0, y1) = (y0 - 0.03 * (y1 - y0), y1 + 0.03 * (y1 - y0));
        let (width, height) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        let x = |value: f64| LEFT + width * (value - x0) / (x1 - x0);
        let y = |value: f64| TOP + height * (1.0 - (value - y0) / (y1 - y0));
        let unit = (chart.unit)(y1);
        for tick in ticks(y0 / unit, y1 / unit, 7) {
            let tick = tick * unit;
            drawing.line((LEFT, y(tick)), (WIDTH - RIGHT, y(tick)), "class=\"g\"");
            let style = "class=\"t\" text-anchor=\"end\"";
            drawing.text(LEFT - 6.0, y(tick) + 4.0, style, &(chart.format)(tick));
        }
        for tick in ticks(x0, x1, 6) {
            drawing.line(
                (x(tick), TOP + height),
                (x(tick), TOP + height + 4.0),
                "class=\"g\"",
            );
            let style = "class=\"t\" text-anchor=\"middle\"";
            drawing.text(x(tick), TOP + height + 21.0, style, &plain(tick));
        }
        for (run, points) in series.iter().enumerate() {
            let drawn: Vec<(f64, f64)> = decimated(points, most)
                .into_iter()
                .map(|(px, py)| (x(px), y(py)))
                .collect();
            let style = format!("class=\"d\" style=\"stroke:{}\"", color(run));
            match drawn[..] {
                [] => {}
                [(x, y)] => drawing.rect(
                    format!("{:.1}", x - 3.0),
                    y - 3.0,
                    6.0,
                    6.0,
                    &format!("style=\"fill:{}\"", color(run)),
                ),
                _ => drawing.polyline(&drawn, &style),
            }
        }
    } else {
        drawing.text(LEFT, HEIGHT / 2.0, small, "no run has values on this axis");
    }
    let style = "class=\"t\" text-anchor=\"end\"";
    drawing.text(WIDTH - RIGHT, HEIGHT - 8.0, style, axis.title());
    if !missing.is_empty() {
        let text = format!("not drawn, no {}: {}", axis.key(), missing.join(", "));
        drawing.text(LEFT, HEIGHT - 8.0, small, &shortened(&text, 70));
    }
    drawing.finish(
        WIDTH,
        HEIGHT,
        &format!("class=\"x-{}\" role=\"img\"", axis.key()),
    )
}

/// A bar for each run's throughput, with the difference from the baseline.
pub fn throughput(report: &Report) -> Option<String> {
    let rate = report.rate()?;
    let values: Vec<f64> = report
        .numbers
        .iter()
        .map(|numbers| (rate.of)(numbers).unwrap_or(0.0))
        .collect();
    let highest = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let mut drawing = Drawing::default();
    let names = names(report);
    let width = WIDTH - names - 200.0;
    for (run, value) in values.iter().enumerate() {
        let top = ROW * run as f64 + 6.0;
        name(&mut drawing, report, run, names, top);
        let long = width * value / highest;
        let style = format!("style=\"fill:{}\"", color(run));
        drawing.rect(names, top, long.max(1.0), BAR, &style);
        let compared = match report.speedup(run) {
            _ if *value == 0.0 => "not known".to_string(),
            Some(_) if run == report.baseline && report.runs.len() > 1 => {
                format!("{} {} (baseline)", count(*value), rate.title)
            }
            Some(ratio) if run != report.baseline => {
                format!("{} {} ({})", count(*value), rate.title, relative(ratio))
            }
            _ => format!("{} {}", count(*value), rate.title),
        };
        drawing.text(names + long + 8.0, top + 16.0, "class=\"t\"", &compared);
    }
    let height = ROW * values.len() as f64 + 10.0;
    Some(drawing.finish(WIDTH, height, "role=\"img\""))
}

/// The room for the runs' names beside bars.
fn names(report: &Report) -> f64 {
    let lengths = report.runs.iter().map(|run| run.name.chars().count());
    LETTER * lengths.max().unwrap_or(0).clamp(8, LONGEST) as f64 + 12.0
}

fn name(drawing: &mut Drawing, report: &Report, run: usize, names: f64, top: f64) {
    let style = "class=\"t\" text-anchor=\"end\"";
    let text = shortened(&report.runs[run].name, LONGEST);
    drawing.text(names - 8.0, top + 16.0, style, &text);
}

/// The colour of a part of the time.
fn part_color(part: usize) -> String {
    // Twelve parts have hues 30 degrees apart, neighbours far ones.
    hue((212.0 + 150.0 * part as f64) % 360.0)
}

/// A bar for each run's wall time, in its parts, and what the colours mean.
pub fn times(report: &Report) -> Option<String> {
    let known: Vec<usize> = (0..report.runs.len())
        .filter(|run| !report.numbers[*run].parts.is_empty())
        .collect();
    let wall = |run: usize| report.numbers[run].wall_seconds.unwrap_or(0.0);
    let highest = known.iter().map(|run| wall(*run)).reduce(f64::max)?;
    let mut drawing = Drawing::default();
    let names = names(report);
    let width = WIDTH - names - 80.0;
    let mut seen = BTreeSet::new();
    for (row, run) in known.iter().enumerate() {
        let top = ROW * row as f64 + 6.0;
        name(&mut drawing, report, *run, names, top);
        let mut left = names;
        for (index, part) in report.numbers[*run].parts.iter().enumerate() {
            let long = width * part.seconds / highest.max(f64::MIN_POSITIVE);
            if long > 0.0 {
                let style = format!("style=\"fill:{}\"", part_color(index));
                drawing.rect(format!("{left:.1}"), top, long, BAR, &style);
                seen.insert(index);
            }
            left += long;
        }
        drawing.text(left + 8.0, top + 16.0, "class=\"t\"", &time(wall(*run)));
    }
    let height = ROW * known.len() as f64 + 10.0;
    let mut html = drawing.finish(WIDTH, height, "role=\"img\"");
    let parts = &report.numbers[*known.first()?].parts;
    let legend = seen
        .iter()
        .map(|index| (part_color(*index), parts[*index].title));
    html.push_str(&self::legend(legend));
    Some(html)
}
