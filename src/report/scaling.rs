//! What `xtrain scaling` found: medians, efficiency, and the same numbers as a table, as bars on
//! the terminal and as JSON. The drawing for a page is in `plot.rs`.

mod plot;

use super::page;
use super::table::Table;
use super::units::{bytes, count, duration, exact};
use serde_json::{Value, json};
use std::time::Duration;

/// Blocks of the longest bar on the terminal.
const BAR: f64 = 48.0;

/// Runs of one degree that differ by more than this share were disturbed.
const QUIET: f64 = 0.1;

/// What replicas hand each other in a step, in one kind of collective along one axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// As HLO names it.
    pub kind: String,
    pub axis: String,
    pub bytes: u64,
}

/// What is the same at every degree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fixed {
    /// The examples of a step: strong scaling.
    Batch,
    /// The examples of a device in a step: weak scaling.
    PerDevice,
    /// The examples of a device in a step and those of the whole run, which has fewer steps.
    Examples,
}

impl std::fmt::Display for Fixed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Fixed::Batch => "batch",
            Fixed::PerDevice => "per_device",
            Fixed::Examples => "examples",
        })
    }
}

/// One degree with all of its runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    pub degree: usize,
    pub devices: usize,
    pub examples_per_device: usize,
    pub examples_per_step: usize,
    /// Of each run.
    pub tokens_per_second: Vec<f64>,
    /// Of each run, for one step.
    pub step_seconds: Vec<f64>,
    /// Optimizer steps of a training run.
    pub max_steps: Option<u64>,
    /// Of each training run: the whole loop, with compiling and saving.
    pub train_seconds: Vec<f64>,
    /// Of each training run: the steps of an epoch.
    pub epoch_seconds: Vec<f64>,
    pub exchanged: Vec<Exchange>,
}

/// A command at several degrees, the smallest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    pub axis: String,
    pub fixed: Fixed,
    pub command: String,
    /// A higher degree is more of a machine: without loss, throughput grows with it.
    pub grows: bool,
    /// Cores that all devices share, where they do: then more devices are no more of a machine.
    pub shared_cores: Option<usize>,
    pub points: Vec<Point>,
}

impl Point {
    /// Tokens per second. The median is taken of a token's time, so that this and the median time
    /// of a step tell the same even where it lies between two runs.
    pub fn throughput(&self) -> f64 {
        let token_seconds: Vec<f64> = self
            .tokens_per_second
            .iter()
            .map(|rate| rate.recip())
            .collect();
        median(&token_seconds).recip()
    }

    /// Examples per second.
    pub fn samples_per_second(&self) -> f64 {
        self.examples_per_step as f64 / median(&self.step_seconds)
    }

    /// From the slowest run to the fastest, as a share of the median.
    fn spread(&self) -> f64 {
        let (lowest, highest) = self.range();
        (highest - lowest) / self.throughput()
    }

    fn range(&self) -> (f64, f64) {
        let runs = || self.tokens_per_second.iter().copied();
        (
            runs().fold(f64::INFINITY, f64::min),
            runs().fold(0.0, f64::max),
        )
    }

    /// All bytes of a step.
    pub fn bytes(&self) -> u64 {
        self.exchanged.iter().map(|exchange| exchange.bytes).sum()
    }
}

impl Scaling {
    fn base(&self) -> &Point {
        &self.points[0]
    }

    /// T(N) / T(1), where 1 is the smallest degree.
    pub fn speedup(&self, point: &Point) -> f64 {
        point.throughput() / self.base().throughput()
    }

    /// T(N) / (N T(1)); where a degree is no more of a machine, T(N) / T(1).
    pub fn efficiency(&self, point: &Point) -> f64 {
        self.speedup(point) / self.ideal_speedup(point)
    }

    /// What `point` would have if nothing was lost.
    fn ideal_speedup(&self, point: &Point) -> f64 {
        if self.grows {
            point.degree as f64 / self.base().degree as f64
        } else {
            1.0
        }
    }

    /// Tokens per second without loss.
    fn ideal(&self, point: &Point) -> f64 {
        self.base().throughput() * self.ideal_speedup(point)
    }

    /// How efficiency is to be read.
    pub fn formula(&self) -> String {
        let one = self.base().degree;
        match (self.grows, one) {
            (false, _) => format!("T(N) / T({one})"),
            (true, 1) => "T(N) / (N x T(1))".into(),
            (true, _) => format!("T(N) / (N/{one} x T({one}))"),
        }
    }

    /// Everything that the terminal shows.
    pub fn text(&self) -> String {
        format!(
            "{}\n{}{}\n{}",
            self.table(),
            self.details(),
            self.notes(),
            self.bars()
        )
    }

    fn table(&self) -> String {
        let mut table = Table::new("rrrrrrrrrrrrrr");
        for row in self.cells() {
            table.row(row);
        }
        table.render()
    }

    /// The table's header and its rows.
    pub(super) fn cells(&self) -> Vec<Vec<String>> {
        let efficiency = match self.fixed {
            Fixed::PerDevice => "weak efficiency",
            Fixed::Batch | Fixed::Examples => "strong efficiency",
        };
        let mut header = vec![
            self.axis.as_str(),
            "devices",
            "examples each",
            "global batch",
            "ms/step",
            "tokens/s",
            "lowest to highest",
            "samples/s",
            "speed-up",
            if self.grows { efficiency } else { "efficiency" },
            "exchanged a step",
        ];
        let trains = self.points.iter().any(|point| point.max_steps.is_some());
        if trains {
            header.extend(["max_steps", "train time", "epoch time"]);
        }
        let mut rows = vec![header.into_iter().map(str::to_string).collect()];
        let time = |seconds: &[f64]| match seconds {
            [] => String::new(),
            seconds => duration(Duration::try_from_secs_f64(median(seconds)).unwrap_or_default()),
        };
        for point in &self.points {
            let (lowest, highest) = point.range();
            let mut row = vec![
                point.degree.to_string(),
                point.devices.to_string(),
                exact(point.examples_per_device as u64),
                exact(point.examples_per_step as u64),
                format!("{:.1}", median(&point.step_seconds) * 1e3),
                count(point.throughput()),
                format!("{} to {}", count(lowest), count(highest)),
                count(point.samples_per_second()),
                format!("{:.2}", self.speedup(point)),
                format!("{:.0}%", self.efficiency(point) * 100.0),
                bytes(point.bytes()),
            ];
            if trains {
                row.push(point.max_steps.map_or(String::new(), exact));
                row.extend([time(&point.train_seconds), time(&point.epoch_seconds)]);
            }
            rows.push(row);
        }
        rows
    }

    /// Table and plot as a page that needs nothing else.
    pub fn html(&self) -> String {
        let title = format!("Scaling by {}", self.axis);
        let notes = format!("{}{}", self.details(), self.notes());
        let figure = page::Figure {
            drawing: self.svg(),
            rows: self.cells(),
            notes: notes.lines().map(str::to_string).collect(),
            ..page::Figure::default()
        };
        page::document(&title, std::slice::from_ref(&self.command), &[figure])
    }

    fn details(&self) -> String {
        let mut table = Table::pairs();
        for point in self
            .points
            .iter()
            .filter(|point| !point.exchanged.is_empty())
        {
            let kinds = point
                .exchanged
                .iter()
                .map(|e| format!("{} in {} over {}", bytes(e.bytes), e.kind, e.axis));
            table.pair(
                format!("exchanged at {}", point.degree),
                kinds.collect::<Vec<_>>().join(", "),
            );
        }
        table.render()
    }

    fn notes(&self) -> String {
        let same = match self.fixed {
            Fixed::PerDevice => "each device keeps its examples",
            Fixed::Batch => "a step has the same examples at every degree",
            Fixed::Examples => {
                "each device keeps its examples, and the whole run has the same ones"
            }
        };
        let mut text = format!("efficiency is {} of the tokens/s; {same}\n", self.formula());
        if let Some(cores) = self.shared_cores {
            text.push_str(&format!(
                "the devices are virtual and share this machine's {cores} cores: 100% means that dividing the work costs nothing, not that it gains\n"
            ));
        }
        let spread = self.points.iter().map(Point::spread).fold(0.0, f64::max);
        if spread > QUIET {
            text.push_str(&format!(
                "runs of one degree differ by up to {:.0}%: something else uses this machine, and no figure is more exact than that\n",
                spread * 100.0
            ));
        }
        text
    }

    /// A bar for each degree; the mark stands where it would end without loss.
    pub fn bars(&self) -> String {
        let longest = self
            .points
            .iter()
            .map(|point| point.throughput().max(self.ideal(point)))
            .fold(0.0, f64::max);
        let mut table = Table::new("rlr");
        table.row(["tokens/s", "(| without loss)", ""]);
        for point in &self.points {
            let cells = |value: f64| {
                if longest > 0.0 {
                    value / longest * BAR
                } else {
                    0.0
                }
            };
            let mut bar: Vec<char> = bar(cells(point.throughput())).chars().collect();
            let mark = cells(self.ideal(point)).round() as usize;
            bar.resize(bar.len().max(mark + 1), ' ');
            // On a bar that is longer, the mark would hide how long it is.
            if bar[mark] == ' ' {
                bar[mark] = '|';
            }
            table.row([
                point.degree.to_string(),
                bar.into_iter().collect(),
                count(point.throughput()),
            ]);
        }
        table.render()
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let points = self.points.iter().map(|point| {
            json!({
                "degree": point.degree,
                "devices": point.devices,
                "examples_per_device": point.examples_per_device,
                "examples_per_step": point.examples_per_step,
                "step_ms": median(&point.step_seconds) * 1e3,
                "tokens_per_s": point.throughput(),
                "samples_per_s": point.samples_per_second(),
                "max_steps": point.max_steps,
                "train_seconds": (!point.train_seconds.is_empty()).then(|| median(&point.train_seconds)),
                "epoch_seconds": (!point.epoch_seconds.is_empty()).then(|| median(&point.epoch_seconds)),
                "tokens_per_s_of_runs": point.tokens_per_second,
                "speedup": self.speedup(point),
                "efficiency": self.efficiency(point),
                "exchanged_bytes_per_step": point.bytes(),
                "exchanged": point.exchanged.iter().map(Exchange::json).collect::<Vec<_>>(),
            })
        });
        json!({
            "command": self.command,
            "axis": self.axis,
            "scaling": if self.fixed == Fixed::PerDevice { "weak" } else { "strong" },
            "fixed": self.fixed.to_string(),
            "devices_share_processor": self.shared_cores.is_some(),
            "efficiency_is": self.formula(),
            "degrees": points.collect::<Vec<_>>(),
        })
    }
}

impl Exchange {
    pub fn json(&self) -> Value {
        json!({"kind": self.kind, "axis": self.axis, "bytes": self.bytes})
    }

    /// The inverse of [`Exchange::json`].
    pub fn from_json(value: &Value) -> Option<Exchange> {
        let text = |name: &str| value[name].as_str().map(str::to_string);
        Some(Exchange {
            kind: text("kind")?,
            axis: text("axis")?,
            bytes: value["bytes"].as_u64()?,
        })
    }
}

/// Of an even number, the mean of the middle two; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n.is_multiple_of(2) => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        n => sorted[n / 2],
    }
}

/// Blocks, the last one in eighths.
fn bar(cells: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (cells * 8.0).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn scaling(shared_cores: Option<usize>, measured: &[(usize, &[f64])]) -> Scaling {
        let point = |(degree, runs): &(usize, &[f64])| Point {
            degree: *degree,
            devices: *degree,
            examples_per_device: 8 / degree,
            examples_per_step: 8,
            tokens_per_second: runs.to_vec(),
            step_seconds: vec![0.5],
            exchanged: match degree {
                1 => Vec::new(),
                _ => vec![Exchange {
                    kind: "all-reduce".into(),
                    axis: "data".into(),
                    bytes: 3 << 20,
                }],
            },
            ..Point::default()
        };
        let points = measured.iter().map(point).collect();
        Scaling {
            axis: "data_parallel".into(),
            fixed: Fixed::Batch,
            command: "bench --batch 8".into(),
            grows: shared_cores.is_none(),
            shared_cores,
            points,
        }
    }

    #[test]
    fn medians_ignore_a_disturbed_run() {
        assert_eq!(median(&[3.0, 1.0, 200.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn efficiency_is_against_as_many_times_one_device() {
        let found = scaling(
            None,
            &[(1, &[100.0, 90.0, 110.0]), (2, &[180.0]), (4, &[300.0])],
        );
        let all = |f: fn(&Scaling, &Point) -> f64| {
            found
                .points
                .iter()
                .map(|p| f(&found, p))
                .collect::<Vec<_>>()
        };
        assert_eq!(all(Scaling::speedup), [1.0, 1.8, 3.0]);
        assert_eq!(all(Scaling::efficiency), [1.0, 0.9, 0.75]);
        assert_eq!(found.formula(), "T(N) / (N x T(1))");
    }

    #[test]
    fn without_one_device_the_smallest_degree_is_the_measure() {
        let found = scaling(None, &[(2, &[200.0]), (8, &[600.0])]);
        assert_eq!(found.efficiency(&found.points[1]), 0.75);
        assert_eq!(found.formula(), "T(N) / (N/2 x T(2))");
    }

    #[test]
    fn devices_that_share_a_processor_cannot_gain() {
        let found = scaling(Some(2), &[(1, &[100.0]), (4, &[95.0])]);
        assert_eq!(found.efficiency(&found.points[1]), 0.95);
        assert!(
            found.text().contains("share this machine's 2 cores"),
            "{}",
            found.text()
        );
        assert!(!found.text().contains("something else"));
        assert!(
            scaling(None, &[(1, &[100.0, 140.0])])
                .text()
                .contains("differ by up to 34%")
        );
        assert_eq!(found.json()["devices_share_processor"], true);
        assert_eq!(found.json()["efficiency_is"], "T(N) / T(1)");
    }

    #[test]
    fn bars_are_in_proportion_and_marked_where_they_would_end() {
        let found = scaling(None, &[(1, &[100.0]), (2, &[150.0])]);
        let bars: Vec<String> = found.bars().lines().map(str::to_string).collect();
        let blocks = |line: &str| line.chars().filter(|c| *c == '█').count();
        assert_eq!((blocks(&bars[1]), blocks(&bars[2])), (24, 36));
        assert!(
            bars[1].contains("█|") && bars[2].contains("█            |"),
            "{bars:?}"
        );
        assert_eq!(bar(1.5), "█▌");
    }

    #[test]
    fn json_tells_what_the_table_tells() {
        let found = scaling(None, &[(1, &[100.0]), (2, &[100.0, 400.0])]);
        let json = found.json();
        assert_eq!(
            json["degrees"][1]["tokens_per_s"], 160.0,
            "as slow as two runs of 10 and 2.5 ms a token are on average"
        );
        assert_eq!(json["degrees"][1]["exchanged_bytes_per_step"], 3 << 20);
        assert_eq!(
            Exchange::from_json(&json["degrees"][1]["exchanged"][0]).as_ref(),
            found.points[1].exchanged.first()
        );
        let text = found.text();
        for sign in [
            "3.0 MiB in all-reduce over data",
            "100 to 400",
            "80%",
            "160",
        ] {
            assert!(text.contains(sign), "{sign}: {text}");
        }
    }
}
