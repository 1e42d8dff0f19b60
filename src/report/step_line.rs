//! The step line: one line for a person watching a run, with where the time of a step goes and how
//! much of the machine is used.

use super::units::count;
use std::ops::{AddAssign, Div};
use std::time::Duration;

/// Where the time of a step went: of one, or of several added up. A step lasts from the moment at
/// which the device finished the one before (or could begin) until it finished this one. The host
/// works ahead, so `trace`, `compile` and `wait` are what of them the device waited for. The parts
/// add up to the step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTime {
    /// The whole step, wall clock.
    pub step: Duration,
    /// Recording the graph and looking it up.
    pub trace: Duration,
    /// Lowering and compiling; zero once the run is warm.
    pub compile: Duration,
    /// The device at work.
    pub execute: Duration,
    /// The host waiting for the next batch.
    pub wait: Duration,
}

impl AddAssign for StepTime {
    fn add_assign(&mut self, other: StepTime) {
        self.step += other.step;
        self.trace += other.trace;
        self.compile += other.compile;
        self.execute += other.execute;
        self.wait += other.wait;
    }
}

impl Div<u32> for StepTime {
    type Output = StepTime;

    fn div(self, steps: u32) -> StepTime {
        StepTime {
            step: self.step / steps,
            trace: self.trace / steps,
            compile: self.compile / steps,
            execute: self.execute / steps,
            wait: self.wait / steps,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct StepLine {
    pub step: u64,
    pub total_steps: u64,
    /// NaN where no step had one.
    pub loss: f64,
    pub learning_rate: f64,
    pub grad_norm: Option<f64>,
    pub tokens_per_second: f64,
    pub time: StepTime,
    /// Floating-point operations of the model (forward and backward, nothing recomputed) per
    /// second, in units of 10^12.
    pub model_tflops: f64,
    /// This machine's measured matrix-multiply rate in the same unit; `None` when it was not
    /// measured.
    pub peak_tflops: Option<f64>,
}

impl StepLine {
    /// In at most `columns`, as far as that goes: what matters least is left out first. For
    /// example
    /// `step 20/500 loss 4.3211 lr 4.80e-5 norm 1.21 12.4k tok/s 82.3 ms/step (trace 0.1, compile 0, execute 81.7, wait 0.5) 0.42 TFLOP/s, 61% of matmul peak`.
    /// The step is padded to its total, so that lines stand in columns.
    pub fn render(&self, columns: Option<usize>) -> String {
        let digits = self.total_steps.to_string().len();
        let share = match self.peak_tflops {
            Some(peak) if peak > 0.0 => {
                format!(", {:.0}% of matmul peak", 100.0 * self.model_tflops / peak)
            }
            _ => String::new(),
        };
        let time = &self.time;
        let norm = self.grad_norm.map(|norm| format!("  norm {norm:>5.2}"));
        // Each with the order in which they go.
        let mut parts = vec![
            (
                9,
                format!("step {:>digits$}/{}", self.step, self.total_steps),
            ),
            (8, format!("  {}", loss_text(self.loss))),
            (4, format!("  lr {:.2e}", self.learning_rate)),
            (3, norm.unwrap_or_default()),
            (7, format!("  {:>6} tok/s", count(self.tokens_per_second))),
            (6, format!("  {:>4} ms/step", milliseconds(time.step))),
            (
                1,
                format!(
                    " (trace {}, compile {}, execute {}, wait {})",
                    milliseconds(time.trace),
                    milliseconds(time.compile),
                    milliseconds(time.execute),
                    milliseconds(time.wait),
                ),
            ),
            (5, format!("  {:.3} TFLOP/s", self.model_tflops)),
            (2, share),
        ];
        let columns = columns.unwrap_or(usize::MAX);
        let length =
            |parts: &[(u8, String)]| parts.iter().map(|(_, text)| text.len()).sum::<usize>();
        while length(&parts) > columns && parts.len() > 2 {
            let least = parts
                .iter()
                .enumerate()
                .min_by_key(|(_, (order, _))| *order);
            let at = least.map_or(0, |(at, _)| at);
            parts.remove(at);
        }
        parts.into_iter().map(|(_, text)| text).collect()
    }
}

/// A loss for people; NaN where nothing had one.
pub fn loss_text(loss: f64) -> String {
    if loss.is_nan() {
        "no loss".into()
    } else {
        format!("loss {loss:.4}")
    }
}

/// One decimal below 100 ms, none above, and a plain 0 for nothing at all.
fn milliseconds(d: Duration) -> String {
    let ms = d.as_secs_f64() * 1e3;
    match ms {
        0.0 => "0".into(),
        ..99.95 => format!("{ms:.1}"),
        _ => format!("{ms:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_it_all() {
        let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        let mut line = StepLine {
            step: 20,
            total_steps: 500,
            loss: 4.321_09,
            learning_rate: 4.8e-5,
            grad_norm: Some(1.213),
            tokens_per_second: 12_430.0,
            time: StepTime {
                step: ms(82.3),
                trace: ms(0.1),
                compile: ms(0.0),
                execute: ms(181.7),
                wait: ms(0.5),
            },
            model_tflops: 0.42,
            peak_tflops: Some(0.7),
        };
        assert_eq!(
            line.render(None),
            "step  20/500  loss 4.3211  lr 4.80e-5  norm  1.21   12.4k tok/s  82.3 ms/step (trace 0.1, compile 0, execute 182, wait 0.5)  \
             0.420 TFLOP/s, 60% of matmul peak"
        );
        (line.peak_tflops, line.grad_norm) = (None, None);
        let text = line.render(None);
        assert!(text.ends_with("0.420 TFLOP/s") && !text.contains("norm"));
        assert_eq!(
            line.render(Some(80)),
            "step  20/500  loss 4.3211  lr 4.80e-5   12.4k tok/s  82.3 ms/step  0.420 TFLOP/s"
        );
        assert_eq!(line.render(Some(30)), "step  20/500  loss 4.3211");
    }
}
