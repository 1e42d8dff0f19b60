//! Log records, in the three forms that people read them: the dictionary that Hugging Face's
//! Trainer prints (transformers 4: loss to 4 decimals, epoch to 2, floats as Python's `repr`), so
//! that existing log scrapers work; a JSON line in full precision for `log.jsonl`; and an entry of
//! `log_history` in `trainer_state.json`, rounded as the Trainer rounds it there.

use super::files;
use super::printable::one_line;
use super::python_float::{repr, round};
use super::step_line::{StepLine, loss_text};
use super::table::Table;
use super::units::count;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The name of the JSON-lines file in the output directory.
pub const LOG_FILE: &str = "log.jsonl";

/// The form in which records are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for a terminal, the Trainer's dictionary elsewhere.
    Auto,
    /// The dictionary that the Trainer prints.
    Trainer,
    /// One aligned line for a person.
    Line,
    /// As in `log.jsonl`.
    Json,
}

impl LogFormat {
    /// A record of a run of `total_steps`; `step` is the line of a training record, drawn for a
    /// terminal of `columns`.
    pub fn text(
        self,
        record: &Record,
        step: Option<&StepLine>,
        total_steps: u64,
        columns: Option<usize>,
    ) -> String {
        let form = match self {
            LogFormat::Auto if io::stdout().is_terminal() => LogFormat::Line,
            LogFormat::Auto => LogFormat::Trainer,
            form => form,
        };
        match (form, step) {
            (LogFormat::Json, _) => record.json_line(),
            (LogFormat::Line, Some(step)) => step.render(columns),
            (LogFormat::Line, None) => record.line(total_steps, columns),
            (LogFormat::Trainer | LogFormat::Auto, _) => record.printed(),
        }
    }
}

/// What is logged at one moment.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    Train(TrainRecord),
    Eval(EvalRecord),
    /// The last one of a run.
    Summary(SummaryRecord),
}

#[derive(Clone, Debug, PartialEq)]
pub struct TrainRecord {
    /// Mean over the optimizer steps since the last record that had one; NaN of none.
    pub loss: f64,
    /// Of the last step, before clipping; `None` when it was not computed.
    pub grad_norm: Option<f64>,
    /// That the step used, as the Trainer logs it since transformers 4.50 (before, the next one).
    pub learning_rate: f64,
    /// `None` where the loss is not scaled.
    pub scaling: Option<ScalingRecord>,
    /// What the objective measured, by name: means over the optimizer steps since the last record that
    /// had one; NaN of none.
    pub measured: Vec<(&'static str, f64)>,
    pub epoch: f64,
    /// Input tokens since the run began, if they are counted.
    pub tokens_seen: Option<u64>,
    pub step: u64,
}

/// fp16's loss scaling. The Trainer does not log it; its place is before the epoch, so that the
/// Trainer's own keys stay as they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScalingRecord {
    /// That the last step used.
    pub loss_scale: f64,
    /// Of all steps so far.
    pub skipped_steps: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct EvalRecord {
    /// Of the names of all numbers: `_mm` of MNLI's second set.
    pub suffix: &'static str,
    /// NaN of a set without labels.
    pub loss: f64,
    /// Names without `eval_`, in the order to print them.
    pub metrics: Vec<(String, f64)>,
    /// Of a language model.
    pub perplexity: Option<f64>,
    /// Seconds.
    pub runtime: f64,
    pub samples: u64,
    /// Batches.
    pub steps: u64,
    /// `None` outside training.
    pub epoch: Option<f64>,
    /// As in [`TrainRecord`].
    pub tokens_seen: Option<u64>,
    /// The optimizer step after which it was made; 0 outside training.
    pub step: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SummaryRecord {
    /// Seconds.
    pub runtime: f64,
    /// Examples seen in this run.
    pub samples: u64,
    /// Rows of the training set; `None` of a stream.
    pub set: Option<u64>,
    /// Optimizer steps made in this run.
    pub steps: u64,
    /// Mean over the steps of the whole run that had one; NaN of none.
    pub loss: f64,
    /// Floating-point operations of the model over the whole run.
    pub total_flos: f64,
    pub epoch: f64,
    /// As in [`TrainRecord`].
    pub tokens_seen: Option<u64>,
    /// The last optimizer step.
    pub step: u64,
}

/// A key of a record with its value in full and the decimals that the Trainer rounds it to: in what
/// it prints and in what it keeps.
struct Field {
    key: Cow<'static, str>,
    value: f64,
    printed: Option<usize>,
    kept: Option<usize>,
    /// An integer in the Trainer's records.
    whole: bool,
}

impl Field {
    /// Rounded to `decimals`, for JSON.
    fn json(&self, decimals: Option<usize>) -> Value {
        if self.whole {
            json!(self.value as u64)
        } else {
            number(decimals.map_or(self.value, |decimals| round(self.value, decimals)))
        }
    }
}

fn whole(key: &'static str, value: u64) -> Field {
    Field {
        whole: true,
        ..exact(key, value as f64)
    }
}

fn tokens_seen(count: u64) -> Field {
    whole("num_input_tokens_seen", count)
}

/// Whether a metric is a count: seqeval's number of entities of a kind.
fn is_number(name: &str) -> bool {
    name.ends_with("_number")
}

const fn exact(key: &'static str, value: f64) -> Field {
    Field {
        key: Cow::Borrowed(key),
        value,
        printed: None,
        kept: None,
        whole: false,
    }
}

const fn rounded(key: &'static str, value: f64, decimals: usize) -> Field {
    Field {
        key: Cow::Borrowed(key),
        value,
        printed: Some(decimals),
        kept: Some(decimals),
        whole: false,
    }
}

/// The Trainer rounds the epoch when it prints it, and keeps it as it is.
const fn epoch(value: f64) -> Field {
    Field {
        key: Cow::Borrowed("epoch"),
        value,
        printed: Some(2),
        kept: None,
        whole: false,
    }
}

impl Record {
    /// In the order in which the Trainer prints them. What is no number was not measured, and is left
    /// out: a mean over no label, the norm of gradients that overflowed. A metric of labels that has no
    /// value, as the correlation of equal numbers, is NaN.
    fn fields(&self) -> Vec<Field> {
        let mut fields = self.all_fields();
        let is_measured = matches!(self, Record::Eval(r) if !r.loss.is_nan());
        fields.retain(|field| is_measured || !field.value.is_nan());
        fields
    }

    fn all_fields(&self) -> Vec<Field> {
        match self {
            Record::Train(r) => {
                let mut fields = vec![rounded("loss", r.loss, 4)];
                fields.extend(r.grad_norm.map(|norm| exact("grad_norm", norm)));
                fields.push(exact("learning_rate", r.learning_rate));
                if let Some(scaling) = r.scaling {
                    let skipped = exact("skipped_steps", scaling.skipped_steps as f64);
                    fields.extend([exact("loss_scale", scaling.loss_scale), skipped]);
                }
                let measured = r.measured.iter();
                fields.extend(measured.map(|(name, value)| exact(name, *value)));
                fields.push(epoch(r.epoch));
                fields.extend(r.tokens_seen.map(tokens_seen));
                fields
            }
            Record::Eval(r) => {
                let mut fields = vec![exact("eval_loss", r.loss)];
                fields.extend(r.metrics.iter().map(|(name, value)| Field {
                    key: Cow::Owned(format!("eval_{name}")),
                    whole: is_number(name),
                    ..exact("", *value)
                }));
                fields.extend([
                    rounded("eval_runtime", r.runtime, 4),
                    rounded("eval_samples_per_second", rate(r.samples, r.runtime), 3),
                    rounded("eval_steps_per_second", rate(r.steps, r.runtime), 3),
                ]);
                fields.extend(
                    r.perplexity
                        .map(|perplexity| exact("perplexity", perplexity)),
                );
                fields.extend(r.epoch.map(epoch));
                fields.extend(r.tokens_seen.map(tokens_seen));
                if !r.suffix.is_empty() {
                    let ended = |key: &str| Cow::Owned(format!("{key}{}", r.suffix));
                    fields
                        .iter_mut()
                        .for_each(|field| field.key = ended(&field.key));
                }
                fields
            }
            Record::Summary(r) => {
                let mut fields = vec![
                    rounded("train_runtime", r.runtime, 4),
                    rounded("train_samples_per_second", rate(r.samples, r.runtime), 3),
                    rounded("train_steps_per_second", rate(r.steps, r.runtime), 3),
                    exact("train_loss", r.loss),
                    epoch(r.epoch),
                ];
                fields.extend(r.tokens_seen.map(tokens_seen));
                fields
            }
        }
    }

    /// The optimizer step that it belongs to.
    pub fn step(&self) -> u64 {
        match self {
            Record::Train(r) => r.step,
            Record::Eval(r) => r.step,
            Record::Summary(r) => r.step,
        }
    }

    /// The line that the Trainer prints:
    /// `{'loss': 3.21, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.5}`.
    pub fn printed(&self) -> String {
        let shown = |field: Field| {
            let rounded = |decimals| round(field.value, decimals);
            let value = if field.whole {
                field.value.to_string()
            } else {
                repr(field.printed.map_or(field.value, rounded))
            };
            // A metric of a label has its name.
            format!("'{}': {value}", one_line(&field.key))
        };
        format!(
            "{{{}}}",
            self.fields()
                .into_iter()
                .map(shown)
                .collect::<Vec<_>>()
                .join(", ")
        )
    }

    /// What the results are for a person who asked for them alone: each on a line of its own, since a
    /// terminal would break the dictionary within its words.
    pub fn table(&self) -> String {
        let mut table = Table::pairs();
        for field in self.fields() {
            let value = field.printed.map_or(field.value, |n| round(field.value, n));
            let text = match value {
                x if field.whole => x.to_string(),
                x if x == 0.0 || (1e-3..1e9).contains(&x.abs()) => format!("{x:.4}"),
                x => format!("{x:.3e}"),
            };
            table.pair(field.key, text);
        }
        table.render()
    }

    /// A line for a person, which stands below those of [`StepLine`]; an evaluation with more metrics
    /// than `columns` have room for goes on in a second one.
    fn line(&self, total_steps: u64, columns: Option<usize>) -> String {
        let digits = total_steps.to_string().len();
        let at = |word: &str, step: u64| format!("{word} {step:>digits$}/{total_steps}");
        let pace = |r: f64| count((10.0 * r).round() / 10.0);
        match self {
            Record::Train(r) => format!("{}  {}", at("step", r.step), loss_text(r.loss)),
            Record::Eval(r) => {
                // One after the training has no step of its own.
                let what = format!("eval{}", r.suffix);
                let head = r.epoch.map_or(what.clone(), |_| at(&what, r.step));
                let mut parts = vec![head, loss_text(r.loss)];
                let named = r.metrics.iter().map(|(name, value)| {
                    let name = &*one_line(name);
                    if is_number(name) {
                        format!("{name} {value}")
                    } else {
                        format!("{name} {value:.4}")
                    }
                });
                parts.extend(named);
                parts.extend(r.perplexity.map(|value| format!("perplexity {value:.2}")));
                let rate = rate(r.samples, r.runtime);
                parts.push(format!("{} examples/s", pace(rate)));
                joined(&parts, columns.unwrap_or(usize::MAX))
            }
            Record::Summary(r) => {
                let (head, rate) = (at("done", r.step), rate(r.samples, r.runtime));
                let work = format!("{} examples in {:.1} s", r.samples, r.runtime);
                format!(
                    "{head}  {}  {work}, {} examples/s",
                    loss_text(r.loss),
                    pace(rate)
                )
            }
        }
    }

    /// A line of `log.jsonl`, without its line end: the same keys in full precision, then `step`
    /// and, in the summary, `total_flos`.
    pub fn json_line(&self) -> String {
        let mut map: Map<String, Value> = self
            .fields()
            .into_iter()
            .map(|field| {
                let value = field.json(None);
                (field.key.into_owned(), value)
            })
            .collect();
        self.add_step(&mut map);
        Value::Object(map).to_string()
    }

    /// An entry of `log_history`.
    pub fn history_entry(&self) -> Value {
        let mut map = self.kept();
        self.add_step(&mut map);
        Value::Object(map)
    }

    /// The keys with the values that the Trainer keeps.
    fn kept(&self) -> Map<String, Value> {
        let kept = |field: Field| {
            let value = field.json(field.kept);
            (field.key.into_owned(), value)
        };
        self.fields().into_iter().map(kept).collect()
    }

    /// What `train_results.json` and `eval_results.json` are made of: what is kept, and how many rows
    /// the set has, which transformers' scripts add.
    pub fn results(&self) -> Map<String, Value> {
        let mut map = self.kept();
        match self {
            Record::Train(_) => {}
            Record::Eval(r) => {
                map.insert(format!("eval_samples{}", r.suffix), r.samples.into());
            }
            Record::Summary(r) => {
                map.insert("total_flos".into(), number(r.total_flos));
                map.extend(r.set.map(|rows| ("train_samples".to_string(), rows.into())));
            }
        }
        map
    }

    /// The keys with their values in full, for trackers.
    pub fn scalars(&self) -> Vec<(String, f64)> {
        let mut scalars: Vec<(String, f64)> = self
            .fields()
            .into_iter()
            .map(|field| (field.key.into_owned(), field.value))
            .collect();
        if let Record::Summary(r) = self {
            scalars.push(("total_flos".into(), r.total_flos));
        }
        scalars
    }

    fn add_step(&self, map: &mut Map<String, Value>) {
        if let Record::Summary(r) = self {
            map.insert("total_flos".into(), number(r.total_flos));
        }
        map.insert("step".into(), json!(self.step()));
    }
}

/// The parts of a line, broken between two of them where it would be longer than `columns`.
fn joined(parts: &[String], columns: usize) -> String {
    let (mut line, mut used) = (String::new(), 0);
    for part in parts {
        let length = part.chars().count();
        let breaks = used > 0 && used + 2 + length > columns;
        if breaks {
            line.push('\n');
            used = 0;
        }
        if !line.is_empty() {
            line.push_str("  ");
            used += 2;
        }
        line.push_str(part);
        used += length;
    }
    line
}

/// JSON knows no NaN and no infinity; they become null, so that the file stays readable by
/// everyone.
fn number(x: f64) -> Value {
    serde_json::Number::from_f64(x).map_or(Value::Null, Value::Number)
}

/// Per second; 0 when no time has passed, which is what a clock too coarse to see it should say.
fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        count as f64 / seconds
    } else {
        0.0
    }
}

/// `log.jsonl`, open for appending. Each record is on disk when the next begins, so a killed run
/// keeps its log.
pub struct LogFile(File);

impl LogFile {
    /// Opens the log of an output directory; a resumed run appends to it.
    pub fn append_in(output_dir: &Path) -> io::Result<LogFile> {
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        files::open_as(&mut options, &output_dir.join(LOG_FILE)).map(LogFile)
    }

    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        self.write_line(record.json_line())
    }

    /// Writes an entry of `log_history`.
    pub fn write_entry(&mut self, entry: &Map<String, Value>) -> io::Result<()> {
        self.write_line(json!(entry).to_string())
    }

    fn write_line(&mut self, line: String) -> io::Result<()> {
        // One write call: lines of two processes may alternate but never mix.
        self.0.write_all((line + "\n").as_bytes())
    }

    /// Whether the file has no name any more, so that nobody will read what is written to it.
    pub fn is_removed(&self) -> bool {
        self.0.metadata().is_ok_and(|file| file.nlink() == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No terminal is so narrow that it would have to break a metric.
    #[test]
    fn results_for_a_person_break_between_metrics() {
        let record = eval();
        let text = record.table();
        assert!(
            text.starts_with("eval_loss                2.5000\n"),
            "{text}"
        );
        assert!(
            text.lines()
                .any(|line| line == "perplexity               12.2500"),
            "{text}"
        );
        assert_eq!(text.lines().count(), record.fields().len());
        let line = record.line(10, None);
        assert_eq!(line.lines().count(), 1, "{line}");
        let narrow = record.line(10, Some(30));
        assert!(
            narrow.lines().all(|line| line.chars().count() <= 30),
            "{narrow}"
        );
        assert_eq!(narrow.replace('\n', ""), line);
    }

    const TRAIN: Record = Record::Train(TrainRecord {
        loss: 3.214_56,
        grad_norm: Some(1.203125),
        learning_rate: 5e-5,
        scaling: None,
        measured: Vec::new(),
        epoch: 0.504_032,
        tokens_seen: None,
        step: 10,
    });
    fn eval() -> Record {
        Record::Eval(EvalRecord {
            suffix: "",
            loss: 2.5,
            metrics: vec![("accuracy".into(), 0.75)],
            perplexity: Some(12.25),
            runtime: 2.0,
            samples: 9,
            steps: 3,
            epoch: Some(1.0),
            tokens_seen: None,
            step: 10,
        })
    }
    const SUMMARY: Record = Record::Summary(SummaryRecord {
        set: Some(90),
        runtime: 6.123_456,
        samples: 100,
        steps: 13,
        loss: 3.123_456_789,
        total_flos: 1e12,
        epoch: 3.0,
        tokens_seen: None,
        step: 13,
    });

    #[test]
    fn records_are_printed_as_the_trainer_prints_them() {
        assert_eq!(
            TRAIN.printed(),
            "{'loss': 3.2146, 'grad_norm': 1.203125, 'learning_rate': 5e-05, 'epoch': 0.5}"
        );
        assert_eq!(
            eval().printed(),
            "{'eval_loss': 2.5, 'eval_accuracy': 0.75, 'eval_runtime': 2.0, 'eval_samples_per_second': 4.5, 'eval_steps_per_second': 1.5, \
             'perplexity': 12.25, 'epoch': 1.0}"
        );
        assert_eq!(
            SUMMARY.printed(),
            "{'train_runtime': 6.1235, 'train_samples_per_second': 16.331, 'train_steps_per_second': 2.123, \
             'train_loss': 3.123456789, 'epoch': 3.0}"
        );
    }

    #[test]
    fn the_loss_scale_stands_before_the_epoch() {
        let Record::Train(train) = TRAIN else {
            unreachable!()
        };
        let scaling = Some(ScalingRecord {
            loss_scale: 32768.0,
            skipped_steps: 1,
        });
        let printed = Record::Train(TrainRecord { scaling, ..train }).printed();
        assert!(
            printed.ends_with(
                "'learning_rate': 5e-05, 'loss_scale': 32768.0, 'skipped_steps': 1.0, 'epoch': 0.5}"
            ),
            "{printed}"
        );
    }

    #[test]
    fn tokens_are_counted_in_whole_numbers() {
        let Record::Train(train) = TRAIN else {
            unreachable!()
        };
        let record = Record::Train(TrainRecord {
            tokens_seen: Some(256),
            ..train
        });
        assert!(record.printed().ends_with("'num_input_tokens_seen': 256}"));
        let (Record::Eval(mut eval), Record::Summary(mut summary)) = (eval(), SUMMARY) else {
            unreachable!()
        };
        (eval.tokens_seen, summary.tokens_seen) = (Some(512), Some(512));
        for record in [Record::Eval(eval), Record::Summary(summary)] {
            let printed = record.printed();
            assert!(
                printed.ends_with("'num_input_tokens_seen': 512}"),
                "{printed}"
            );
            assert_eq!(record.results()["num_input_tokens_seen"], json!(512));
        }
        let kept = record.history_entry()["num_input_tokens_seen"].clone();
        assert_eq!(kept.to_string(), "256");
        assert!(
            record
                .json_line()
                .contains(r#""num_input_tokens_seen":256,"#)
        );
    }

    #[test]
    fn json_lines_keep_every_digit() {
        assert_eq!(
            TRAIN.json_line(),
            r#"{"loss":3.21456,"grad_norm":1.203125,"learning_rate":0.00005,"epoch":0.504032,"step":10}"#
        );
        let summary: Value = serde_json::from_str(&SUMMARY.json_line()).unwrap();
        assert_eq!(summary["train_runtime"], json!(6.123_456));
        assert_eq!(summary["total_flos"], json!(1e12));
    }

    #[test]
    fn history_is_rounded_where_the_trainer_rounds() {
        let entry = TRAIN.history_entry();
        assert_eq!(
            (
                entry["loss"].as_f64(),
                entry["epoch"].as_f64(),
                entry["step"].as_u64()
            ),
            (Some(3.2146), Some(0.504_032), Some(10))
        );
        assert!(!SUMMARY.results().contains_key("step"));
    }

    #[test]
    fn what_is_not_a_number_is_left_out() {
        let record = Record::Train(TrainRecord {
            loss: f64::NAN,
            grad_norm: None,
            learning_rate: 0.0,
            scaling: None,
            measured: Vec::new(),
            epoch: 0.1,
            tokens_seen: None,
            step: 1,
        });
        assert_eq!(record.printed(), "{'learning_rate': 0.0, 'epoch': 0.1}");
        assert_eq!(
            record.json_line(),
            r#"{"learning_rate":0.0,"epoch":0.1,"step":1}"#
        );
        let line = LogFormat::Line.text(&record, None, 10, None);
        assert_eq!(line, "step  1/10  no loss");
    }

    #[test]
    fn the_log_file_grows_by_lines() {
        let dir = tempfile::tempdir().unwrap();
        for record in [TRAIN, eval()] {
            LogFile::append_in(dir.path())
                .unwrap()
                .write(&record)
                .unwrap();
        }
        let text = std::fs::read_to_string(dir.path().join(LOG_FILE)).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(
            text.lines()
                .all(|line| serde_json::from_str::<Value>(line).is_ok())
        );
    }
}
