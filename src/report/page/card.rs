//! The model card of a run, `README.md` of its repository on the Hub: what transformers' Trainer
//! writes there, of what the run logged.

use crate::printable::markdown;
use crate::runs::numbers::{Numbers, is_metric};
use crate::runs::{Point, Run};
use std::fmt::Write;

/// By this a card is known as one that may be written again.
const MARK: &str = "<!-- This card was made from the run's log";

/// Metrics that the Hub knows by these names.
const METRICS_OF_HUB: [&str; 8] = [
    "accuracy",
    "f1",
    "matthews_correlation",
    "pearson",
    "perplexity",
    "precision",
    "recall",
    "spearmanr",
];

/// Whether nobody has made a card's text their own.
pub fn is_generated(text: &str) -> bool {
    text.contains(MARK)
}

/// The card of a run whose repository has this name; `pipeline_tag` is the Hub's word for its task.
pub fn card(run: &Run, name: &str, pipeline_tag: &str) -> String {
    let numbers = Numbers::of(run);
    let setting = |name: &str| run.settings.get(name).map(String::as_str);
    // What is a directory here is nothing that others could look up.
    let base = setting("model_name_or_path").filter(|base| !std::path::Path::new(base).exists());
    let dataset = setting("dataset_name").filter(|name| !std::path::Path::new(name).exists());
    let results: Vec<(&str, f64)> = numbers
        .metrics
        .iter()
        .filter_map(|metric| Some((metric.key.strip_prefix("eval_")?, metric.last)))
        .collect();
    let mut text = String::from("---\nlibrary_name: transformers\n");
    let _ = writeln!(text, "pipeline_tag: {pipeline_tag}");
    if let Some(base) = base {
        let _ = writeln!(text, "base_model: {}", yaml(base));
    }
    let known = |name: &str| METRICS_OF_HUB.contains(&name);
    let metrics = results.iter().map(|(name, _)| *name);
    let lists: [(&str, Vec<&str>); 3] = [
        ("tags", vec!["generated_from_trainer", "xtrain"]),
        ("datasets", dataset.into_iter().collect()),
        ("metrics", metrics.filter(|name| known(name)).collect()),
    ];
    for (key, values) in lists.iter().filter(|(_, values)| !values.is_empty()) {
        let _ = writeln!(text, "{key}:");
        for value in values {
            let _ = writeln!(text, "- {}", yaml(value));
        }
    }
    let _ = write!(
        text,
        "---\n\n{MARK}, and the next push makes it again. To write your own, remove this comment. -->\n\n# {}\n\n",
        markdown(name)
    );
    let origin = match base {
        Some(base) if is_plain(base) => {
            format!("[{base}](https://huggingface.co/{base}), trained further")
        }
        Some(base) => format!("{}, trained further", markdown(base)),
        None if setting("model_name_or_path").is_some() => "A model, trained further".into(),
        None => "A model, trained from its initialization".into(),
    };
    let data = match (dataset, setting("task_name")) {
        (_, Some(task)) => format!(" on {}", markdown(task)),
        (Some(dataset), None) => format!(" on {}", markdown(dataset)),
        (None, None) => String::new(),
    };
    let parameters = run.facts().map_or(0, |facts| facts.parameters);
    let size = match parameters {
        0 => String::new(),
        count => format!(" It has {} parameters.", crate::units::exact(count)),
    };
    let _ = writeln!(text, "{origin}{data}.{size}");
    if !results.is_empty() {
        text.push_str("\nOn the evaluation set:\n\n");
        for (name, value) in &results {
            let _ = writeln!(text, "- {}: {value:.4}", markdown(&words(name)));
        }
    }
    for heading in [
        "Model description",
        "Intended uses and limitations",
        "Training and evaluation data",
    ] {
        let _ = write!(text, "\n## {heading}\n\nNot described yet.\n");
    }
    text.push_str("\n## Training procedure\n\n### Hyperparameters\n\n");
    for (name, value) in hyperparameters(run) {
        let _ = writeln!(text, "- {name}: {}", markdown(&value));
    }
    text.push_str(&evaluations(run));
    let versions = run.facts().into_iter().flat_map(|facts| &facts.versions);
    text.push_str("\n### Versions\n\n");
    for (name, version) in versions {
        let _ = writeln!(text, "- {} {}", markdown(name), markdown(version));
    }
    text
}

/// Whether a word has nothing in it that YAML, Markdown or an address reads otherwise.
fn is_plain(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    word.chars().all(is_plain)
}

/// A word as YAML has it: in quotes where it could mean something else.
fn yaml(word: &str) -> String {
    let begins_well = word.starts_with(|c: char| c.is_ascii_alphabetic());
    let is_other = ["true", "false", "null", "yes", "no", "on", "off"]
        .contains(&word.to_ascii_lowercase().as_str());
    if begins_well && is_plain(word) && !is_other {
        word.to_string()
    } else {
        serde_json::Value::from(word).to_string()
    }
}

/// `matthews_correlation` as `Matthews Correlation`.
fn words(key: &str) -> String {
    let capital = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(|c| c.to_ascii_uppercase());
        first.into_iter().chain(letters).collect::<String>()
    };
    key.split('_').map(capital).collect::<Vec<_>>().join(" ")
}

/// The settings that the Trainer's cards name, by its names.
fn hyperparameters(run: &Run) -> Vec<(&'static str, String)> {
    let setting = |name: &str| run.settings.get(name).cloned();
    let unless = |name: &str, plain: f64| setting(name).filter(|value| value.parse() != Ok(plain));
    let is_on = |name: &str| setting(name).is_some_and(|value| value == "true");
    let facts = run.facts();
    let optimizer = setting("optim").map(|optim| {
        let mut text = optim;
        if text.contains("adam") {
            let of = |name: &str| setting(name).unwrap_or_default();
            let _ = write!(
                text,
                ", betas ({}, {}), epsilon {}",
                of("adam_beta1"),
                of("adam_beta2"),
                of("adam_epsilon")
            );
        }
        let more = setting("optim_args").map(|more| format!(", {more}"));
        text + &more.unwrap_or_default()
    });
    let devices = facts.map(|facts| facts.devices).filter(|count| *count > 1);
    let total = facts.map(|facts| facts.examples_per_step.to_string());
    let precision = ["bf16", "fp16"].into_iter().find(|name| is_on(name));
    let steps = setting("max_steps").filter(|steps| !steps.starts_with('-'));
    let epochs = setting("num_train_epochs").filter(|_| steps.is_none());
    let all = [
        ("learning_rate", setting("learning_rate")),
        ("train_batch_size", setting("per_device_train_batch_size")),
        ("eval_batch_size", setting("per_device_eval_batch_size")),
        ("seed", setting("seed")),
        ("num_devices", devices.map(|count| count.to_string())),
        (
            "gradient_accumulation_steps",
            unless("gradient_accumulation_steps", 1.0),
        ),
        ("total_train_batch_size", total),
        ("optimizer", optimizer),
        ("weight_decay", unless("weight_decay", 0.0)),
        ("lr_scheduler_type", setting("lr_scheduler_type")),
        ("lr_scheduler_warmup_ratio", unless("warmup_ratio", 0.0)),
        ("lr_scheduler_warmup_steps", unless("warmup_steps", 0.0)),
        ("training_steps", steps),
        ("num_epochs", epochs),
        ("mixed_precision_training", precision.map(str::to_string)),
        (
            "label_smoothing_factor",
            unless("label_smoothing_factor", 0.0),
        ),
    ];
    let given = all.into_iter();
    given
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

/// A table of the evaluations during training, each with the loss of training that was logged last
/// before; nothing where there was none.
fn evaluations(run: &Run) -> String {
    let others = run.series.keys();
    let others = others.filter(|key| is_metric(key) && key.starts_with("eval_"));
    let others: Vec<&String> = others.filter(|key| *key != "eval_loss").collect();
    let rows = run.points("eval_loss");
    if rows.is_empty() {
        return String::new();
    }
    let mut text =
        String::from("\n### Results\n\n| Training Loss | Epoch | Step | Validation Loss");
    for key in &others {
        let name = words(key.trim_start_matches("eval_"));
        let _ = write!(text, " | {}", markdown(&name));
    }
    let columns = "---:|".repeat(4 + others.len());
    let _ = write!(text, " |\n|{columns}\n");
    let losses = run.points("loss");
    for Point { place, value } in rows {
        let before = losses.partition_point(|loss| loss.place.step <= place.step);
        let loss = before.checked_sub(1).map(|last| losses[last].value);
        let loss = loss.map_or("none logged".into(), |loss| format!("{loss:.4}"));
        let (epoch, step) = (place.epoch, place.step);
        let _ = write!(text, "| {loss} | {epoch:.4} | {step:.0} | {value:.4}");
        for key in &others {
            let points = run.points(key).iter();
            let mut own = points.filter(|point| point.place.step == step);
            let cell = own.next().map(|point| format!("{:.4}", point.value));
            let _ = write!(text, " | {}", cell.unwrap_or_default());
        }
        text.push_str(" |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_yaml_mean_themselves() {
        for (word, written) in [
            ("org/gpt2-small_1.5", "org/gpt2-small_1.5"),
            ("no", "\"no\""),
            ("1e3", "\"1e3\""),
            ("a: b", "\"a: b\""),
            ("# x\"y", "\"# x\\\"y\""),
        ] {
            assert_eq!(yaml(word), written);
        }
        assert_eq!(words("matthews_correlation"), "Matthews Correlation");
    }
}
