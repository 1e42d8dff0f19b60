//! Runs of transformers: the `log_history` of `trainer_state.json`, and logs with the dictionaries
//! that the Trainer prints.

use super::dictionary::{Bar, bar, billable_seconds, is_cut_off, records};
use super::{MOST_SERIES, Place, Run, Source};
use crate::json;
use serde_json::{Map, Value};
use std::path::Path;

/// A run from the text of `trainer_state.json`.
///
/// # Errors
/// What is wrong with the text.
pub fn trainer_state(path: &Path, text: &[u8]) -> Result<Run, String> {
    let state: Map<String, Value> =
        json::from_slice(text).map_err(|error| format!("is no JSON object: {error}"))?;
    let history = state.get("log_history").and_then(Value::as_array);
    let history = history.ok_or("has no `log_history`")?;
    let mut run = Run::new(path.into(), Source::TrainerState);
    let mut not_finite = 0;
    for entry in history.iter().filter_map(Value::as_object) {
        let of = |key: &str| entry.get(key).and_then(number).unwrap_or(f64::NAN);
        let place = Place {
            step: of("step"),
            epoch: of("epoch"),
            tokens: of("num_input_tokens_seen"),
            seconds: f64::NAN,
        };
        let values = entry
            .iter()
            .filter_map(|(key, value)| Some((key.clone(), number(value)?)));
        not_finite += run.add(place, values);
    }
    note_left_out(&mut run, not_finite);
    for key in [
        "train_batch_size",
        "max_steps",
        "num_train_epochs",
        "logging_steps",
        "eval_steps",
        "save_steps",
    ] {
        if let Some(value) = state.get(key).filter(|value| value.is_number()) {
            run.settings.insert(key.into(), value.to_string());
        }
    }
    run.total_steps = state.get("max_steps").and_then(Value::as_f64);
    if let Some(flops) = state.get("total_flos").and_then(Value::as_f64) {
        run.summary.entry("total_flos".into()).or_insert(flops);
    }
    spread_time(&mut run);
    Ok(run)
}

/// A value that newer Trainers may have written as a string.
pub fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok(),
        Value::Null => Some(f64::NAN),
        _ => None,
    }
}

/// A run from a log. Between its dictionaries anything may stand; the training's progress bar, if
/// it is there, gives steps and times.
pub fn plain(path: &Path, text: &str) -> Run {
    let mut reader = Reader {
        run: Run::new(path.into(), Source::Log),
        training: None,
        restarts: 0,
        waiting: Vec::new(),
        epoch: f64::NEG_INFINITY,
        not_finite: 0,
    };
    for line in text.split(['\n', '\r']) {
        if let Some(seen) = bar(line) {
            reader.take_bar(seen);
        }
        if let Some(seconds) = billable_seconds(line) {
            reader.run.billable_seconds = Some(seconds);
        }
        reader.waiting.extend(records(line));
        if reader.training.is_none() {
            reader.place_waiting();
        }
    }
    reader.place_waiting();
    let Reader {
        mut run,
        training,
        not_finite,
        ..
    } = reader;
    note_left_out(&mut run, not_finite);
    let last = text.rsplit('\n').find(|line| !line.trim().is_empty());
    if last.is_some_and(is_cut_off) {
        run.problems
            .push("the last record is cut off; the log may still be growing".into());
    }
    run.total_steps = training.map(|bar| bar.total);
    if training.is_none() {
        steps_of_epochs(&mut run);
        spread_time(&mut run);
    }
    run
}

/// A log that is being read.
struct Reader {
    run: Run,
    /// The training's bar as it was seen last.
    training: Option<Bar>,
    /// Records since then. The bar is drawn only now and then, but always again below a record: the
    /// next one shows a record's step.
    waiting: Vec<Vec<(String, f64)>>,
    epoch: f64,
    restarts: usize,
    not_finite: usize,
}

/// How often a log may show the run starting anew; what begins again more often is no such log.
const MOST_RESTARTS: usize = 100;

impl Reader {
    fn take_bar(&mut self, seen: Bar) {
        // The first bar is the training's; an evaluation's has another total, as a rule. One that was
        // full before the first record was another's.
        let is_training = self.training.is_none_or(|known| {
            let is_other = known.done >= known.total && self.run.records == 0;
            let goes_on = known.total == seen.total && seen.done >= known.done;
            goes_on || is_other && self.waiting.is_empty()
        });
        if is_training {
            self.training = Some(seen);
            self.place_waiting();
        }
    }

    fn place_waiting(&mut self) {
        for record in std::mem::take(&mut self.waiting) {
            let of = |key: &str| {
                let found = record.iter().find(|(own, _)| own == key);
                found.map_or(f64::NAN, |(_, value)| *value)
            };
            let place = Place {
                step: self.training.map_or(f64::NAN, |bar| bar.done),
                epoch: of("epoch"),
                tokens: of("num_input_tokens_seen"),
                seconds: self.training.map_or(f64::NAN, |bar| bar.elapsed),
            };
            if place.epoch < self.epoch && self.restarts < MOST_RESTARTS {
                self.restarts += 1;
                let (from, epoch) = (place.epoch, self.epoch);
                let dropped = self.run.forget_from(|earlier| earlier.epoch >= from);
                self.run.problems.push(format!(
                    "the epoch falls from {epoch} to {from}: the run was started again; {dropped} earlier values are left out"
                ));
            }
            if place.epoch.is_finite() {
                self.epoch = place.epoch;
            }
            self.not_finite += self.run.add(place, record);
        }
    }
}

/// Adds sentences about values that are no numbers, and about those that nobody can look at.
pub fn note_left_out(run: &mut Run, count: usize) {
    if run.left_out > 0 {
        run.problems.push(format!(
            "{} values are left out: they have more than {MOST_SERIES} different keys",
            run.left_out
        ));
    }
    if count > 0 {
        run.problems.push(format!(
            "{count} values are not finite (NaN or infinite) and are left out"
        ));
    }
}

/// Steps from epochs, where the summary says how many there are.
fn steps_of_epochs(run: &mut Run) {
    let of = |key: &str| run.summary.get(key).copied();
    let steps = of("train_steps_per_second").zip(of("train_runtime"));
    let last = last_of(run, |place| place.epoch);
    let Some((steps, last)) = steps.zip(last) else {
        return;
    };
    let total = (steps.0 * steps.1).round();
    for place in places(run) {
        place.step = (place.epoch / last * total).round();
    }
    run.last_step = total;
    run.total_steps = Some(total);
    run.problems.push(
        "steps are derived from epochs and the summary, since the log has no progress bar".into(),
    );
}

/// Times in proportion to steps, where nothing but the whole time is known.
fn spread_time(run: &mut Run) {
    let last = last_of(run, |place| place.step);
    let Some((runtime, last)) = run.summary.get("train_runtime").copied().zip(last) else {
        return;
    };
    for place in places(run) {
        place.seconds = runtime * place.step / last;
    }
    run.problems
        .push("times of single records are train_runtime spread over the steps".into());
}

fn places(run: &mut Run) -> impl Iterator<Item = &mut Place> {
    let points = run.series.values_mut().flatten();
    points.map(|point| &mut point.place)
}

fn last_of(run: &Run, of: impl Fn(&Place) -> f64) -> Option<f64> {
    let values = run.series.values().flatten().map(|point| of(&point.place));
    values.filter(|value| *value > 0.0).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::super::numbers::Numbers;
    use super::*;

    /// As the Trainer of transformers 5 leaves it: the bar lags behind, and is drawn again below
    /// each record.
    const LOG: &str = "loading\n\r  0%|          | 0/20 [00:00<?, ?it/s]\r 40%|████      | 8/20 [00:04<00:05,  2.0it/s]\r     \r\
        {'loss': '4.5', 'grad_norm': '1.5', 'learning_rate': '5e-05', 'epoch': '0.5'}\n\
        \r 50%|█████     | 10/20 [00:05<00:05,  2.0it/s]\r100%|██████████| 4/4 [00:01<00:00, 4.0it/s]\r    \r\
        {'eval_loss': '4.0', 'eval_runtime': '1.0', 'epoch': '0.5'}\n\r 50%|█████     | 10/20 [00:06<00:05,  2.0it/s]\
        \r 90%|█████████ | 18/20 [00:11<00:00,  2.0it/s]\r    \r\
        {'loss': '3.5', 'grad_norm': 'nan', 'learning_rate': '0.0', 'epoch': '1'}\n\r100%|██████████| 20/20 [00:12<00:00,  2.0it/s]\r\
        {'train_runtime': '12.5', 'train_samples_per_second': '12.8', 'train_steps_per_second': '1.6', 'train_loss': '4.0', 'epoch': '1'}\n";

    #[test]
    fn a_log_is_read_with_its_bars() {
        let run = plain(Path::new("x"), LOG);
        let losses: Vec<(f64, f64, f64)> = run
            .points("loss")
            .iter()
            .map(|point| (point.place.step, point.place.seconds, point.value))
            .collect();
        assert_eq!(losses, [(10.0, 5.0, 4.5), (20.0, 12.0, 3.5)]);
        assert_eq!(run.points("eval_loss")[0].place.step, 10.0);
        assert_eq!(run.summary["train_samples_per_second"], 12.8);
        assert_eq!(run.problems.len(), 1, "{:?}", run.problems);
    }

    /// The lines with which SageMaker's Python SDK ends the log of a job on two Spot instances.
    #[test]
    fn the_bill_of_a_job_is_read() {
        let job = format!(
            "{LOG}\n2026-10-01 12:47:55 Completed - Training job completed\n\
             Training seconds: 874\nBillable seconds: 262\nManaged Spot Training savings: 70.0%\n"
        );
        let billed = |text: &str| Numbers::of(&plain(Path::new("x"), text)).billable_seconds;
        assert_eq!((billed(&job), billed(LOG)), (Some(262.0), Some(12.5)));
    }

    #[test]
    fn bars_of_other_work_are_not_the_trainings() {
        let loading = "Loading weights: 100%|██████████| 24/24 [00:00<00:00, 1520.9it/s, Materializing param=x]\n";
        // One without a name that ended before training is none either.
        let other = "\r  0%|          | 0/7 [00:00<?, ?it/s]\r100%|██████████| 7/7 [00:01<00:00, 7.0it/s]\n";
        let found = |text: &str| -> (Option<f64>, Vec<(f64, f64)>) {
            let run = plain(Path::new("x"), text);
            let losses = run.points("loss").iter();
            let losses = losses.map(|point| (point.place.step, point.value));
            (run.total_steps, losses.collect())
        };
        let expected = (Some(20.0), vec![(10.0, 4.5), (20.0, 3.5)]);
        for before in ["", loading, other, &format!("{loading}{other}")] {
            assert_eq!(found(&format!("{before}{LOG}")), expected, "{before}");
        }
        let without = LOG.split(['\n', '\r']).filter(|line| !line.contains('%'));
        let without: Vec<&str> = without.collect();
        assert_eq!(found(&format!("{loading}{}", without.join("\n"))), expected);
    }

    /// Python writes NaN and Infinity, which JSON has not, after fp16 has overflowed.
    #[test]
    fn a_state_with_python_constants_is_read() {
        let text = br#"{"best_metric": Infinity, "log_history": [
            {"loss": NaN, "grad_norm": Infinity, "step": 1, "epoch": 0.5},
            {"loss": 3.5, "grad_norm": NaN, "step": 2, "epoch": 1.0}], "max_steps": 2, "total_flos": -Infinity}"#;
        let run = trainer_state(Path::new("x"), text).unwrap();
        let losses: Vec<(f64, f64)> = run
            .points("loss")
            .iter()
            .map(|point| (point.place.step, point.value))
            .collect();
        assert_eq!(losses, [(2.0, 3.5)]);
        assert!(
            run.problems[0].contains("3 values are not finite"),
            "{:?}",
            run.problems
        );
    }

    /// A file that begins again with each record keeps nobody busy, nor its reader's screen.
    #[test]
    fn a_run_that_starts_again_and_again_has_an_end() {
        let many = "{'loss': 1.0, 'epoch': 0}\n".repeat(100_000);
        let pairs = "{'loss': 1.0, 'epoch': 2}\n{'loss': 1.0, 'epoch': 1}\n".repeat(20_000);
        let run = plain(Path::new("x"), &(many + &pairs));
        assert!(run.problems.len() < 200, "{}", run.problems.len());
    }

    #[test]
    fn without_bars_steps_come_from_epochs() {
        let text: String = LOG
            .split(['\n', '\r'])
            .filter(|line| !line.contains('%'))
            .map(|line| format!("{line}\n"))
            .collect();
        let run = plain(Path::new("x"), &text);
        let steps: Vec<f64> = run.points("loss").iter().map(|p| p.place.step).collect();
        assert_eq!(steps, [10.0, 20.0]);
        assert_eq!(run.points("loss")[1].place.seconds, 12.5);
        assert_eq!(run.problems.len(), 3, "{:?}", run.problems);
    }

    #[test]
    fn damage_is_named() {
        let cut = &LOG[..LOG.rfind("'train_loss'").unwrap()];
        let run = plain(Path::new("x"), cut);
        assert!(
            run.problems.iter().any(|p| p.contains("cut off")),
            "{:?}",
            run.problems
        );
        let again = format!("{LOG}{{'loss': 9.0, 'epoch': 0.1}}\n");
        let run = plain(Path::new("x"), &again);
        assert_eq!(run.points("loss").len(), 1);
        assert!(trainer_state(Path::new("x"), b"[]").is_err());
        assert!(
            trainer_state(Path::new("x"), b"{}")
                .unwrap_err()
                .contains("log_history")
        );
    }
}
