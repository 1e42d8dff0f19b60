//! Kinds of text with a form of their own: lists, pairs, options. Each is read once, where it is
//! typed, and says itself what is wrong with it.

use super::choices::ReportFormat;
use super::kind::{Form, Kind, Optional, Wrong, kinds, parse_bool};
use std::collections::BTreeMap;
use std::path::PathBuf;
use xtrain_data::LabelMap;
use xtrain_graphs::optim::{Argument, Arguments};
use xtrain_report::trackers::{KINDS, TrackerKind};
use xtrain_runtime::OverrideValue;
use xtrain_trainer::settings::{Checkpointing, Resume, TokensSeen};

/// The parts of a list with commas.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim)
}

fn wrong(problem: impl Into<String>, fix: &'static str) -> Wrong {
    Wrong::Form {
        problem: problem.into(),
        fix,
    }
}

/// `name=value` pairs in the order typed, as [`Overrides`] reads them.
pub type OverrideList = Vec<(String, serde_json::Value)>;

kinds! {
    /// `n_layer=4,n_embd=256`. Values are numbers and booleans where they read as such (Python's
    /// spelling too), else text.
    struct Overrides: OverrideList = Form::Word, "TEXT", "a text", overrides;
    /// SageMaker's `pipeline_parallel_degree=2,microbatches=4`, or the same as a JSON object.
    struct MpParameters: OverrideList = Form::Pairs, "TEXT", "name=value pairs or a JSON object", mp_parameters;
    /// `num_cycles=2,power=1.5`, a JSON object, or nothing; as transformers reads them, a text that
    /// reads as a number or a boolean is one.
    struct NamedArguments: Arguments = Form::Pairs, "NAME=VALUE,...", "name=value pairs or a JSON object", arguments;
    /// `xla_gpu_enable_triton_gemm=false,xla_gpu_graph_min_graph_size=1`. XLA wants each value in
    /// its option's own type, which is the one that it is written in.
    struct XlaOptions: BTreeMap<String, OverrideValue> = Form::Word, "TEXT", "a text", xla_options;
    /// `0,2`, none of them twice.
    struct DeviceNumbers: Vec<i64> = Form::Word, "TEXT", "a text", device_numbers;
    /// `32,64`, each at least 1.
    struct Buckets: Vec<usize> = Form::Word, "TEXT", "a text", buckets;
    /// `0,2`: numbers of layers or of tokens.
    struct LayerNumbers: Vec<usize> = Form::Word, "TEXT", "a text", layer_numbers;
    /// `q_proj=8,k_proj=4`, or a JSON object.
    struct NumbersByName: Vec<(String, f64)> = Form::Pairs, "NAME=NUMBER,...", "name=number pairs or a JSON object", numbers_by_name;
    /// `no,yes`, at least two.
    struct LabelNames: LabelMap = Form::Word, "TEXT", "a text", labels;
    /// `5e-5@32`: a learning rate and the examples per step that it suits.
    struct RateAtExamples: (f64, u64) = Form::Word, "TEXT", "a text", rate_at_examples;
    /// `html,json`, none of them twice.
    struct Formats: Vec<ReportFormat> = Form::Word, "html,markdown,json", "a text", formats;
    /// `1,2,4`, in order.
    struct Degrees: Vec<usize> = Form::Word, "TEXT", "a text", degrees;
}

kinds! {
    /// `--resume_from_checkpoint [PATH]`: nothing, true, false or a path.
    for Resume = Form::Switch, "PATH", "true, false, auto or a path", resume;
    /// `--gradient_checkpointing [full|attention|every:K]`: nothing, true, false or what is
    /// recomputed.
    for Checkpointing = Form::Switch, "full|attention|every:K",
        "true, false, full, attention or every:K with K at least 1", checkpointing;
    /// `--include_num_input_tokens_seen [all|non_padding|no]`.
    for TokensSeen = Form::Switch, "all|non_padding|no", "all, non_padding or no", tokens_seen;
}

/// A flag of `xtrain sweep --grid` and its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// In snake_case.
    pub flag: String,
    /// As typed; at least one.
    pub values: Vec<String>,
}

/// `learning_rate=1e-4,3e-4`, once for each flag.
pub struct Grids;

impl Kind for Grids {
    type Value = Vec<Grid>;
    const FORM: Form = Form::List;
    const PLACEHOLDER: &'static str = "FLAG=VALUE,...";

    fn expected() -> String {
        "a flag and its values, as learning_rate=1e-4,3e-4".into()
    }

    fn parse(text: &str) -> Result<Vec<Grid>, Wrong> {
        let (flag, values) = text.split_once('=').ok_or(Wrong::Kind)?;
        let flag = flag.trim_start_matches('-').replace('-', "_");
        let values: Vec<String> = parts(values).map(str::to_string).collect();
        if let Some(value) = (1..values.len()).find(|i| values[..*i].contains(&values[*i])) {
            let problem = format!("{flag} has the value {} twice", values[value]);
            return Err(wrong(problem, "write each value once"));
        }
        if flag.is_empty() || values.iter().any(String::is_empty) {
            return Err(Wrong::Kind);
        }
        Ok(vec![Grid { flag, values }])
    }

    fn parse_all(texts: &[String]) -> Result<Vec<Grid>, Wrong> {
        let mut grids: Vec<Grid> = Vec::new();
        for text in texts {
            for grid in Self::parse(text)? {
                if grids.iter().any(|other| other.flag == grid.flag) {
                    let problem = format!("{} has its values twice", grid.flag);
                    return Err(wrong(problem, "write all values of a flag in one --grid"));
                }
                grids.push(grid);
            }
        }
        Ok(grids)
    }
}

impl Optional for Grids {
    fn absent() -> Vec<Grid> {
        Vec::new()
    }
}

/// `--report_to tensorboard mlflow`, `all` or `none`.
pub struct TrackerNames;

impl Kind for TrackerNames {
    type Value = Vec<&'static TrackerKind>;
    const FORM: Form = Form::List;
    const PLACEHOLDER: &'static str = "NAME";

    fn expected() -> String {
        let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        format!("{}, all or none", names.join(", "))
    }

    fn parse(text: &str) -> Result<Vec<&'static TrackerKind>, Wrong> {
        match text.to_ascii_lowercase().as_str() {
            "" | "none" | "false" | "[]" => Ok(Vec::new()),
            "all" => {
                let set_up = KINDS.iter().filter(|kind| (kind.is_set_up)());
                Ok(set_up.copied().collect())
            }
            "wandb" => Err(wrong(
                "there is no client of wandb here, but it takes event files",
                "use --report_to tensorboard, then `wandb sync --sync-tensorboard OUTPUT_DIR/runs/NAME`",
            )),
            "azure_ml" | "clearml" | "codecarbon" | "comet_ml" | "dagshub" | "dvclive"
            | "flyte" | "neptune" | "swanlab" | "trackio" => Err(wrong(
                format!("there is no client of {text} here"),
                "use --report_to tensorboard or mlflow; records also go to log.jsonl in output_dir",
            )),
            name => {
                let kind = KINDS.iter().find(|kind| kind.name == name);
                kind.map(|kind| vec![*kind]).ok_or(Wrong::Kind)
            }
        }
    }

    fn parse_all(texts: &[String]) -> Result<Vec<&'static TrackerKind>, Wrong> {
        let mut names = Vec::new();
        let words = texts.iter().flat_map(|text| text.split(','));
        for name in words.map(Self::parse) {
            for name in name? {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }
}

fn tokens_seen(text: &str) -> Result<TokensSeen, Wrong> {
    match (text, parse_bool(text)) {
        ("all", _) | (_, Some(true)) => Ok(TokensSeen::All),
        (_, Some(false)) => Ok(TokensSeen::No),
        ("non_padding", _) => Ok(TokensSeen::NonPadding),
        _ => Err(Wrong::Kind),
    }
}

fn overrides(text: &str) -> Result<OverrideList, Wrong> {
    let read = |part: &str| match part.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
            Ok((name.trim().replace('-', "_"), override_value(value.trim())))
        }
        _ => Err(wrong(
            format!("`{part}` is not of the form name=value"),
            "write it as n_layer=4,n_embd=256",
        )),
    };
    parts(text).map(read).collect()
}

fn mp_parameters(text: &str) -> Result<OverrideList, Wrong> {
    const FIX: &str = "write it as pipeline_parallel_degree=2,microbatches=4, or as a JSON object";
    // What TrainingArguments of transformers 4 dumps where there are none.
    if text.trim().is_empty() {
        return Ok(OverrideList::default());
    }
    if text.trim_start().starts_with('{') {
        return match serde_json::from_str(text) {
            Ok(serde_json::Value::Object(pairs)) => Ok(pairs.into_iter().collect()),
            Ok(_) => unreachable!("a text that begins with a brace is an object"),
            Err(error) => Err(wrong(format!("not valid JSON: {error}"), FIX)),
        };
    }
    overrides(text).map_err(|error| match error {
        Wrong::Form { problem, .. } => wrong(problem, FIX),
        other => other,
    })
}

fn override_value(text: &str) -> serde_json::Value {
    match text {
        "true" | "True" => true.into(),
        "false" | "False" => false.into(),
        "null" | "None" => serde_json::Value::Null,
        _ => match (text.parse::<i64>(), text.parse::<f64>()) {
            (Ok(n), _) => n.into(),
            (_, Ok(x)) if x.is_finite() => x.into(),
            _ => text.into(),
        },
    }
}

fn arguments(text: &str) -> Result<Arguments, Wrong> {
    const FIX: &str = "write it as name=value,name=value or as a JSON object";
    use serde_json::Value;
    let text = text.trim();
    // What TrainingArguments dumps where there are none.
    if text.is_empty() || text.eq_ignore_ascii_case("none") {
        return Ok(Arguments::default());
    }
    let pairs: OverrideList = if text.starts_with('{') {
        let object: serde_json::Map<String, Value> = serde_json::from_str(text)
            .map_err(|error| wrong(format!("not a JSON object: {error}"), FIX))?;
        object.into_iter().collect()
    } else {
        overrides(text).map_err(|error| match error {
            Wrong::Form { problem, .. } => wrong(problem, FIX),
            other => other,
        })?
    };
    let mut seen = BTreeMap::new();
    for (name, value) in pairs {
        let value = match value {
            Value::String(text) => override_value(&text),
            other => other,
        };
        let value = match value {
            // Python's None: as if it were not there.
            Value::Null => continue,
            Value::Bool(x) => Argument::Bool(x),
            Value::String(text) => Argument::Text(text),
            Value::Number(x) => Argument::Number(x.as_f64().ok_or(Wrong::Kind)?),
            Value::Array(_) | Value::Object(_) => {
                return Err(wrong(
                    format!("{name} is a list or an object, not a number, a boolean or a text"),
                    FIX,
                ));
            }
        };
        if seen.insert(name.clone(), value).is_some() {
            return Err(wrong(format!("{name} is given twice"), FIX));
        }
    }
    Ok(seen.into_iter().collect())
}

fn xla_options(text: &str) -> Result<BTreeMap<String, OverrideValue>, Wrong> {
    let option = |part: &str| -> Option<(String, OverrideValue)> {
        let (name, value) = part.split_once('=')?;
        let name = name.trim().trim_start_matches("--");
        let known = name.starts_with("xla_")
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let value = match value.trim() {
            "true" => OverrideValue::Bool(true),
            "false" => OverrideValue::Bool(false),
            text => match (text.parse::<i64>(), text.parse::<f64>()) {
                (Ok(n), _) => OverrideValue::Int(n),
                (_, Ok(x)) => OverrideValue::Double(x),
                _ => OverrideValue::String(text.to_string()),
            },
        };
        known.then(|| (name.to_string(), value))
    };
    let read = |part: &str| {
        option(part).ok_or_else(|| {
            wrong(
                format!("`{part}` is not of the form xla_NAME=VALUE"),
                "write it as xla_gpu_enable_triton_gemm=false,xla_gpu_graph_min_graph_size=1",
            )
        })
    };
    parts(text).map(read).collect()
}

fn device_numbers(text: &str) -> Result<Vec<i64>, Wrong> {
    let mut numbers = Vec::new();
    for part in parts(text) {
        match part.parse::<i64>() {
            Ok(number) if number >= 0 && !numbers.contains(&number) => numbers.push(number),
            _ => {
                return Err(wrong(
                    format!("`{part}` is not the number of a GPU, or is named twice"),
                    "write it as 0 or 0,1, as nvidia-smi numbers them",
                ));
            }
        }
    }
    Ok(numbers)
}

fn buckets(text: &str) -> Result<Vec<usize>, Wrong> {
    let length = |part: &str| {
        let length = part.parse().ok().filter(|n| *n > 0);
        length.ok_or_else(|| wrong(format!("`{part}` is not a length"), "write it as 32,64,128"))
    };
    parts(text).map(length).collect()
}

fn layer_numbers(text: &str) -> Result<Vec<usize>, Wrong> {
    let number = |part: &str| {
        let number = part.trim_matches(['[', ']', ' ']).parse();
        number.map_err(|_| {
            wrong(
                format!("`{part}` is not a whole number"),
                "write it as 0,1,2",
            )
        })
    };
    parts(text).map(number).collect()
}

fn numbers_by_name(text: &str) -> Result<Vec<(String, f64)>, Wrong> {
    const FIX: &str = "write it as q_proj=8,k_proj=4 or as a JSON object";
    let number = |name: &str, value: Option<f64>| match value {
        Some(number) if number > 0.0 && number.is_finite() => Ok((name.to_string(), number)),
        _ => Err(wrong(format!("{name} has no number above 0"), FIX)),
    };
    if text.trim_start().starts_with('{') {
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text)
            .map_err(|error| wrong(format!("not a JSON object: {error}"), FIX))?;
        let pairs = object.iter();
        return pairs
            .map(|(name, value)| number(name, value.as_f64()))
            .collect();
    }
    let pair = |part: &str| match part.rsplit_once('=') {
        Some((name, value)) => number(name.trim(), value.trim().parse().ok()),
        None => Err(wrong(
            format!("`{part}` is not of the form name=number"),
            FIX,
        )),
    };
    parts(text).map(pair).collect()
}

fn labels(text: &str) -> Result<LabelMap, Wrong> {
    const FIX: &str = "name each label once, as no,yes";
    let names: Vec<String> = parts(text).map(str::to_string).collect();
    let labels = LabelMap::new(names).map_err(|error| wrong(error.to_string(), FIX))?;
    if labels.len() < 2 {
        return Err(wrong(
            "there is only one label",
            "name at least two, as no,yes, or use --do_regression for numbers",
        ));
    }
    if labels.names().iter().any(String::is_empty) {
        return Err(wrong("there is an empty name", FIX));
    }
    Ok(labels)
}

fn rate_at_examples(text: &str) -> Result<(f64, u64), Wrong> {
    let read = || {
        let (rate, examples) = text.split_once('@')?;
        let rate = rate.trim().parse::<f64>().ok()?;
        let examples = examples.trim().parse::<u64>().ok()?;
        (rate > 0.0 && rate.is_finite() && examples > 0).then_some((rate, examples))
    };
    read().ok_or_else(|| {
        wrong(
            format!("`{text}` is not of the form RATE@EXAMPLES"),
            "write 5e-5@32 for a learning rate of 5e-5 at 32 examples per step",
        )
    })
}

fn degrees(text: &str) -> Result<Vec<usize>, Wrong> {
    const EXAMPLE: &str = "write --degrees 1,2,4; efficiency is relative to the smallest";
    let mut degrees = Vec::new();
    for part in parts(text) {
        match part.parse::<usize>() {
            Ok(degree) if degrees.contains(&degree) => {
                return Err(wrong(format!("{degree} stands there twice"), EXAMPLE));
            }
            Ok(degree) => degrees.push(degree),
            Err(_) => {
                return Err(wrong(format!("`{part}` is not a whole number"), EXAMPLE));
            }
        }
    }
    degrees.sort_unstable();
    Ok(degrees)
}

fn formats(text: &str) -> Result<Vec<ReportFormat>, Wrong> {
    let mut formats = Vec::new();
    for part in parts(text) {
        let format = ReportFormat::parse(part).map_err(|_| {
            let known = ReportFormat::choices(None).join(", ");
            let problem = format!("`{part}` is no format; there are {known}");
            wrong(problem, "write --format html,json")
        })?;
        if !formats.contains(&format) {
            formats.push(format);
        }
    }
    Ok(formats)
}

fn resume(text: &str) -> Result<Resume, Wrong> {
    match parse_bool(text) {
        Some(true) => Ok(Resume::Latest),
        Some(false) => Ok(Resume::No),
        None if text == "auto" => Ok(Resume::IfAny),
        None => PathBuf::parse(text).map(Resume::From),
    }
}

fn checkpointing(text: &str) -> Result<Checkpointing, Wrong> {
    let every = || text.strip_prefix("every:")?.parse().ok().filter(|k| *k > 0);
    match (text, parse_bool(text)) {
        ("full", _) | (_, Some(true)) => Ok(Checkpointing::Full),
        ("off", _) | (_, Some(false)) => Ok(Checkpointing::Off),
        ("attention", _) => Ok(Checkpointing::Attention),
        _ => every().map(Checkpointing::Every).ok_or(Wrong::Kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_are_numbers_booleans_or_text() {
        let parsed = Overrides::parse(
            "n_layer=4, n-embd=256,scale_attn_weights=False,layer_norm_epsilon=1e-5,activation_function=relu,n_inner=None",
        );
        let expected = serde_json::json!({"n_layer": 4, "n_embd": 256, "scale_attn_weights": false, "layer_norm_epsilon": 1e-5,
            "activation_function": "relu", "n_inner": null});
        assert_eq!(
            serde_json::Value::Object(parsed.unwrap().into_iter().collect()),
            expected
        );
        for (text, part) in [
            ("n_layer", "n_layer"),
            ("a=1,,b=2", ""),
            ("a=1,b=", "b="),
            ("=1", "=1"),
        ] {
            let Err(Wrong::Form { problem, .. }) = Overrides::parse(text) else {
                panic!("{text}")
            };
            assert_eq!(problem, format!("`{part}` is not of the form name=value"));
        }
    }

    #[test]
    fn arguments_are_pairs_or_an_object() {
        let given = |name: &str, value| (name.to_string(), value);
        let expected: Arguments = [
            given("decay_type", Argument::Text("linear".into())),
            given("num_decay_steps", Argument::Number(8.0)),
            given("nesterov", Argument::Bool(true)),
        ]
        .into_iter()
        .collect();
        for text in [
            "num_decay_steps=8, decay_type=linear,nesterov=True,min_lr=None",
            r#"{"num_decay_steps": 8, "decay_type": "linear", "nesterov": true, "min_lr": null}"#,
            r#"{"num_decay_steps": "8", "decay_type": "linear", "nesterov": "True"}"#,
        ] {
            assert_eq!(
                NamedArguments::parse(text).as_ref(),
                Ok(&expected),
                "{text}"
            );
        }
        for text in ["", "None", "none", "{}"] {
            assert_eq!(NamedArguments::parse(text), Ok(Arguments::default()));
        }
        for text in ["power", "a=1,a=2", "{\"a\": [1]}", "{'a': 1}"] {
            assert!(
                matches!(NamedArguments::parse(text), Err(Wrong::Form { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn lists_are_read_and_refused_part_by_part() {
        assert_eq!(Degrees::parse("4, 1,2"), Ok(vec![1, 2, 4]));
        assert_eq!(Buckets::parse("32,64"), Ok(vec![32, 64]));
        assert_eq!(DeviceNumbers::parse("2,0"), Ok(vec![2, 0]));
        assert_eq!(RateAtExamples::parse("5e-5@32"), Ok((5e-5, 32)));
        assert_eq!(LabelNames::parse("no, yes").unwrap().len(), 2);
        for refused in [
            Degrees::parse("1,1").is_err(),
            Degrees::parse("one").is_err(),
            Grids::parse("seed=1,2,1").is_err(),
            Buckets::parse("32,0").is_err(),
            DeviceNumbers::parse("1,1").is_err(),
            RateAtExamples::parse("5e-5").is_err(),
            RateAtExamples::parse("0@32").is_err(),
            LabelNames::parse("one").is_err(),
            LabelNames::parse("a,a").is_err(),
            XlaOptions::parse("triton=false").is_err(),
        ] {
            assert!(refused);
        }
    }

    #[test]
    fn switches_that_take_more_than_true_and_false() {
        assert_eq!(Resume::parse("False"), Ok(Resume::No));
        assert_eq!(Resume::parse("auto"), Ok(Resume::IfAny));
        assert_eq!(
            Resume::parse("out/checkpoint-5"),
            Ok(Resume::From("out/checkpoint-5".into()))
        );
        assert_eq!(Checkpointing::parse("every:2"), Ok(Checkpointing::Every(2)));
        assert_eq!(Checkpointing::parse("true"), Ok(Checkpointing::Full));
        assert_eq!(Checkpointing::parse("every:0"), Err(Wrong::Kind));
    }
}
