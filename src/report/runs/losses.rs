//! The training losses of two runs beside each other: by step where the steps are the same work,
//! else by tokens, epochs or time, with the second run's losses interpolated.

use super::{Axis, Point, Run, interpolated};
use crate::table::Table;
use crate::units::count;
use serde_json::{Value, json};

/// Steps of two runs are the same work if the tokens (or epochs) at a step differ by less.
const SAME: f64 = 0.01;

/// How far two runs are apart. Differences are relative to the first run's loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    pub names: [String; 2],
    pub axis: Axis,
    /// Places that both have, and the first and the last of them.
    pub places: usize,
    pub first: f64,
    pub last: f64,
    pub window: usize,
    /// The last running mean of each.
    pub last_means: [f64; 2],
    pub largest: f64,
    /// Where the largest difference is, and both losses there.
    pub largest_at: f64,
    pub largest_losses: [f64; 2],
    pub mean: f64,
    /// The largest difference of the running means.
    pub smoothed: f64,
}

/// Compares the losses of two runs; `axis` is chosen if `None`.
///
/// # Errors
/// What is wrong, and what to do: one has no losses, or they have nothing in common.
pub fn compare(
    runs: [&Run; 2],
    axis: Option<Axis>,
    window: usize,
) -> Result<Comparison, (String, &'static str)> {
    for run in runs {
        if run.points("loss").is_empty() {
            return Err((
                format!("{} has no training loss", run.name),
                "it has one every --logging_steps steps",
            ));
        }
    }
    let axes = [Axis::Tokens, Axis::Epoch, Axis::Seconds];
    let found = match axis {
        Some(axis) => Some((axis, pairs(runs, axis))),
        None if is_same_work(runs) => Some((Axis::Step, pairs(runs, Axis::Step))),
        None => axes
            .into_iter()
            .map(|axis| (axis, pairs(runs, axis)))
            .find(|(_, pairs)| !pairs.is_empty()),
    };
    let Some((axis, pairs)) = found.filter(|(_, pairs)| !pairs.is_empty()) else {
        let by = axis.map_or("step, tokens, epoch or time", Axis::key);
        return Err((
            format!(
                "{} and {} have no {by} in common",
                runs[0].name, runs[1].name
            ),
            "--align names another measure: step, tokens, epoch or time",
        ));
    };
    let differences: Vec<f64> = pairs.iter().map(|(_, a, b)| (b / a - 1.0).abs()).collect();
    let worst = (0..pairs.len())
        .max_by(|a, b| differences[*a].total_cmp(&differences[*b]))
        .unwrap_or(0);
    let window = window.clamp(1, pairs.len());
    let one: Vec<f64> = pairs.iter().map(|(_, a, _)| *a).collect();
    let other: Vec<f64> = pairs.iter().map(|(_, _, b)| *b).collect();
    let (one, other) = (running_means(&one, window), running_means(&other, window));
    let smoothed = one.iter().zip(&other).map(|(a, b)| (b / a - 1.0).abs());
    Ok(Comparison {
        names: runs.map(|run| run.name.clone()),
        axis,
        places: pairs.len(),
        first: pairs[0].0,
        last: pairs[pairs.len() - 1].0,
        window,
        last_means: [one[one.len() - 1], other[other.len() - 1]],
        largest: differences[worst],
        largest_at: pairs[worst].0,
        largest_losses: [pairs[worst].1, pairs[worst].2],
        mean: differences.iter().sum::<f64>() / differences.len() as f64,
        smoothed: smoothed.fold(0.0, f64::max),
    })
}

/// Whether the runs have steps in common, and a step of one is as much as one of the other.
fn is_same_work(runs: [&Run; 2]) -> bool {
    let common = common_steps(runs);
    let Some((a, b)) = common.last() else {
        return false;
    };
    for of in [Axis::Tokens, Axis::Epoch] {
        let (a, b) = (a.place.on(of), b.place.on(of));
        if a.is_finite() && b.is_finite() {
            return (b / a - 1.0).abs() < SAME;
        }
    }
    true
}

fn common_steps(runs: [&Run; 2]) -> Vec<(Point, Point)> {
    let mut other = runs[1].points("loss").iter().peekable();
    let mut common = Vec::new();
    for point in runs[0].points("loss") {
        while other.next_if(|b| b.place.step < point.place.step).is_some() {}
        if let Some(b) = other.peek().filter(|b| b.place.step == point.place.step) {
            common.push((*point, **b));
        }
    }
    common
}

/// Places with both losses.
fn pairs(runs: [&Run; 2], axis: Axis) -> Vec<(f64, f64, f64)> {
    if axis == Axis::Step {
        let common = common_steps(runs).into_iter();
        return common
            .map(|(a, b)| (a.place.step, a.value, b.value))
            .collect();
    }
    let known = |run: &Run| -> Vec<(f64, f64)> {
        let points = run.points("loss").iter();
        points
            .map(|point| (point.place.on(axis), point.value))
            .filter(|(x, _)| x.is_finite())
            .collect()
    };
    let (one, other) = (known(runs[0]), known(runs[1]));
    let pairs = one
        .iter()
        .map(|(x, loss)| (*x, *loss, interpolated(&other, *x)));
    pairs.filter(|(.., other)| other.is_finite()).collect()
}

/// Each value's mean with the `window - 1` before it, from the first full window on.
fn running_means(values: &[f64], window: usize) -> Vec<f64> {
    let means = values.windows(window);
    means
        .map(|values| values.iter().sum::<f64>() / window as f64)
        .collect()
}

impl Comparison {
    fn at(&self, x: f64) -> String {
        match self.axis {
            Axis::Step => format!("step {x:.0}"),
            Axis::Tokens => format!("{} tokens", count(x.round())),
            Axis::Epoch => format!("epoch {x:.2}"),
            Axis::Seconds => format!("{x:.1} s"),
        }
    }

    pub fn text(&self) -> String {
        let [one, other] = &self.names;
        let mut table = Table::pairs();
        let interpolated = match self.axis {
            Axis::Step => String::new(),
            _ => format!(", losses of {other} interpolated"),
        };
        table.pair(
            "aligned by",
            format!(
                "{}: {} places, {} to {}{interpolated}",
                self.axis.key(),
                self.places,
                self.at(self.first),
                self.at(self.last)
            ),
        );
        let window = self.window;
        table
            .pair(
                format!("last mean over {window}"),
                format!(
                    "{:.4} ({one}), {:.4} ({other})",
                    self.last_means[0], self.last_means[1]
                ),
            )
            .pair(
                "largest difference",
                format!(
                    "{:.3}% at {} ({:.4} and {:.4})",
                    100.0 * self.largest,
                    self.at(self.largest_at),
                    self.largest_losses[0],
                    self.largest_losses[1]
                ),
            )
            .pair("mean difference", format!("{:.3}%", 100.0 * self.mean))
            .pair(
                "largest, smoothed",
                format!("{:.3}%", 100.0 * self.smoothed),
            );
        table.render()
    }

    pub fn json(&self) -> Value {
        json!({
            "runs": self.names,
            "aligned_by": self.axis.key(),
            "places": self.places,
            "first": self.first,
            "last": self.last,
            "window": self.window,
            "last_means": self.last_means,
            "largest_difference": self.largest,
            "largest_at": self.largest_at,
            "largest_losses": self.largest_losses,
            "mean_difference": self.mean,
            "largest_smoothed_difference": self.smoothed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Place, Source};
    use super::*;

    /// A run whose loss at each record is `loss(tokens)`.
    fn run(name: &str, tokens_per_step: f64, steps: &[u32], loss: fn(f64) -> f64) -> Run {
        let mut run = Run::new(name.into(), Source::Log);
        run.name = name.into();
        for step in steps {
            let tokens = f64::from(*step) * tokens_per_step;
            let place = Place {
                step: f64::from(*step),
                tokens,
                ..Place::UNKNOWN
            };
            run.add(place, [("loss".to_string(), loss(tokens))]);
        }
        run
    }

    #[test]
    fn the_same_work_is_aligned_by_step() {
        let one = run("a", 100.0, &[1, 2, 3, 4], |x| 10.0 - x / 100.0);
        let other = run("b", 100.0, &[2, 4, 6], |x| 10.1 - x / 100.0);
        let found = compare([&one, &other], None, 20).unwrap();
        assert_eq!((found.axis, found.places, found.window), (Axis::Step, 2, 2));
        assert!((found.largest - 0.1 / 6.0).abs() < 1e-12 && found.largest_at == 4.0);
        assert!(
            found.text().contains("step 2 to step 4"),
            "{}",
            found.text()
        );
    }

    #[test]
    fn another_batch_size_is_aligned_by_tokens() {
        let one = run("a", 100.0, &[2, 4, 6, 8], |x| 10.0 - x / 100.0);
        let other = run("b", 200.0, &[1, 2, 4, 5], |x| 10.0 - x / 100.0);
        let found = compare([&one, &other], None, 2).unwrap();
        assert_eq!((found.axis, found.places), (Axis::Tokens, 4));
        assert!(found.largest < 1e-12, "{found:?}");
        assert!(compare([&one, &other], Some(Axis::Epoch), 2).is_err());
    }

    #[test]
    fn runs_without_anything_in_common_are_refused() {
        let one = run("a", f64::NAN, &[1, 3], |_| 1.0);
        let other = run("b", f64::NAN, &[2, 4], |_| 1.0);
        let (problem, _) = compare([&one, &other], None, 2).unwrap_err();
        assert_eq!(
            problem,
            "a and b have no step, tokens, epoch or time in common"
        );
    }
}
