//! The one place where settings that are legal by themselves are refused together, and where paths
//! that were named are looked up. Ranges of single values stand in the flag table and have been
//! checked before. The first rule that fails is reported, with the change that makes the command
//! legal; rules are in the order in which a user would want to hear of them.

mod devices;

use super::UsageError;
use super::flags::Commands;
use super::from_hub;
use super::mesh;
use super::resolve;
use super::scaling;
use super::typed::Typed;
use crate::data::remote;
use crate::distributed::RankInfo;
use devices::{device, launch, mesh_options, neuron, processes};
use std::path::{Path, PathBuf};
use xtrain_models::{MODEL_TYPES, is_encoder, preset_name, presets};

type Verdict = Result<(), UsageError>;

/// Refuses every illegal combination.
pub fn check(typed: &Typed) -> Verdict {
    device(typed)?;
    neuron(typed)?;
    processes(typed)?;
    mesh::mesh(typed)?;
    mesh_options(typed)?;
    match typed.command {
        Commands::LAUNCH => launch(typed),
        Commands::SCALING => scaling::plan(typed).map(drop),
        command if Commands::TRAIN.contains(command) => {
            precision(typed)?;
            train_has_something_to_do(typed)?;
            if typed.bool("json") && !typed.bool("dry_run") {
                return refuse(
                    "--json is for the plan: a run writes its numbers into its output directory",
                    "add --dry_run",
                );
            }
            model(typed)?;
            tokenizer(typed)?;
            data(typed)?;
            streaming(typed)?;
            task(typed)?;
            length_of_training(typed)?;
            warmup(typed)?;
            evaluation(typed)?;
            best(typed)?;
            resume_and_output(typed)?;
            devices::comparison(typed)
        }
        // Only what decides about graphs has to be there.
        command if Commands::COMPILE.contains(command) => {
            precision(typed)?;
            model(typed)?;
            tokenizer(typed)?;
            task(typed)?;
            evaluation(typed)
        }
        command if Commands::FIT.contains(command) => {
            precision(typed)?;
            if !resolve::do_train(typed) {
                return refuse(
                    "fit looks for a training batch, and --do_eval alone trains nothing",
                    "add --do_train",
                );
            }
            if let Some(text) = typed.text("scale_learning_rate_from")
                && resolve::rate_at_examples(&text).is_none()
            {
                return refuse(
                    format!("--scale_learning_rate_from must be RATE@EXAMPLES, not `{text}`"),
                    "write 5e-5@32 for a learning rate of 5e-5 at 32 examples per step",
                );
            }
            model(typed)?;
            tokenizer(typed)?;
            task(typed)?;
            evaluation(typed)
        }
        command if Commands::EVAL.contains(command) => {
            precision(typed)?;
            model(typed)?;
            tokenizer(typed)?;
            data(typed)?;
            task(typed)?;
            not_a_file(typed)
        }
        Commands::PREDICT_CLS => {
            if !typed.is_given("model_name_or_path") {
                return refuse(
                    "predict needs a model",
                    "add --model_name_or_path DIR, the output directory of `xtrain train cls`",
                );
            }
            model(typed)?;
            tokenizer(typed)?;
            if !typed.is_given("test_file") && !typed.is_given("dataset_name") {
                return refuse(
                    "there is nothing to label",
                    "add --test_file FILE, or --dataset_name NAME for its test split",
                );
            }
            files(typed)?;
            task(typed)?;
            match typed.path("output_file") {
                Some(path) if path.is_dir() => refuse(
                    format!("--output_file: {} is a directory", path.display()),
                    "name the CSV file to write",
                ),
                _ => Ok(()),
            }
        }
        Commands::GENERATE => {
            if !typed.is_given("model_name_or_path") {
                return refuse(
                    "generate needs a model",
                    "add --model_name_or_path DIR, the output directory of a training run",
                );
            }
            model(typed)?;
            tokenizer(typed)?;
            if !typed.is_given("prompt") {
                return refuse("generate needs a text to continue", "add --prompt TEXT");
            }
            Ok(())
        }
        Commands::BENCH => {
            precision(typed)?;
            model(typed)
        }
        Commands::TOP if !typed.is_given("output_dir") => refuse(
            "top is not told which run to watch",
            "add --output_dir DIR, that of the run",
        ),
        Commands::TOP if typed.bool("json") && !typed.bool("once") => refuse(
            "--json is for one look: top draws on the terminal",
            "add --once",
        ),
        Commands::QUICKSTART => {
            not_a_file(typed)?;
            if typed.is_given("output_dir") && !typed.bool("overwrite_output_dir") {
                empty_output(
                    &resolve::output_dir(typed),
                    "name another --output_dir, or add --overwrite_output_dir to replace its files",
                )?;
            }
            Ok(())
        }
        Commands::CACHE_SHOW if typed.words("id").len() != 1 => refuse(
            "cache show takes one id",
            "`xtrain cache ls` lists them; `xtrain cache show ID`",
        ),
        Commands::CACHE_EXPLAIN if !(1..=2).contains(&typed.words("id").len()) => refuse(
            "cache explain takes one id or two",
            "`xtrain cache ls` lists them; `xtrain cache explain OLD NEW`",
        ),
        Commands::CACHE_PRUNE
            if !["older_than", "max_size", "only_device"]
                .iter()
                .any(|name| typed.is_given(name))
                && !typed.bool("stale_compiler") =>
        {
            refuse(
                "cache prune is not told what to remove",
                "add --older_than DAYS, --max_size SIZE, --only_device NAME or --stale_compiler",
            )
        }
        Commands::CACHE_EXPORT | Commands::CACHE_IMPORT if !typed.is_given("file") => {
            refuse("no tar file is named", "add --file graphs.tar")
        }
        // Doctor and the rest of cache have nothing that could contradict.
        _ => Ok(()),
    }
}

fn refuse(problem: impl Into<String>, fix: impl Into<String>) -> Verdict {
    Err(UsageError::illegal(problem, fix))
}

fn train_has_something_to_do(typed: &Typed) -> Verdict {
    if !resolve::do_train(typed) && !resolve::do_eval(typed) {
        return refuse(
            "neither training nor evaluation is asked for",
            "add --do_train, --do_eval or both",
        );
    }
    if !typed.is_given("output_dir") {
        return refuse(
            "--output_dir is missing",
            "add --output_dir DIR, where the model, checkpoints and logs go",
        );
    }
    Ok(())
}

/// One 16-bit type at a time.
fn precision(typed: &Typed) -> Verdict {
    for (bf16, fp16) in [("bf16", "fp16"), ("bf16_full_eval", "fp16_full_eval")] {
        if typed.bool(bf16) && typed.bool(fp16) {
            return refuse(
                format!("--{bf16} and --{fp16} do not go together: a product has one element type"),
                format!("keep --{bf16}, which needs no loss scale, or --{fp16}"),
            );
        }
    }
    Ok(())
}

/// Either a directory with weights, or a description of a model with random ones.
fn model(typed: &Typed) -> Verdict {
    if let Some(directory) = typed.path("model_name_or_path") {
        for (name, why) in [
            ("model_type", "its config.json says what it is"),
            ("config_name", "it has its own config.json"),
            (
                "config_overrides",
                "a trained model's sizes cannot be changed",
            ),
        ] {
            if typed.is_given(name) {
                return refuse(
                    format!("--{name} does not go with --model_name_or_path: {why}"),
                    format!(
                        "leave --{name} out or, to train from random weights, leave --model_name_or_path out"
                    ),
                );
            }
        }
        if from_hub::is_name(&directory) {
            return Ok(());
        }
        if !directory.is_dir() {
            let what = if directory.exists() {
                "is a file, not a directory"
            } else {
                "is not a directory here"
            };
            return refuse(
                format!("--model_name_or_path: {} {what}", directory.display()),
                "give a directory with config.json and model.safetensors or the name of a model on the Hub, or train from random \
                 weights with --model_type and --config_name",
            );
        }
        return is_model(&directory);
    }
    if !typed.is_given("model_type") && !typed.is_given("config_name") {
        return refuse(
            "no model is named",
            format!(
                "add --model_name_or_path DIR to start from trained weights, or --model_type {} (with --config_name and \
                 --config_overrides) for random ones",
                example_type(Commands::MLM.contains(typed.command))
            ),
        );
    }
    if let Some(model_type) = typed.text("model_type") {
        fits_task(typed, "model_type", &model_type)?;
    }
    if let Some(name) = typed.text("config_name") {
        let path = Path::new(&name);
        let is_config = path.is_file() || path.join("config.json").is_file();
        if !is_config && preset_name(&name).is_none() && from_hub::is_config_name(&name) {
            return Ok(());
        }
        if !is_config && preset_name(&name).is_none() {
            return refuse(
                format!(
                    "--config_name: `{name}` is neither a known configuration nor a config.json here"
                ),
                format!(
                    "known configurations are {}; or give a config.json or the directory that holds one",
                    presets().collect::<Vec<_>>().join(", ")
                ),
            );
        }
        if !is_config {
            fits_task(typed, "config_name", &name)?;
        }
    }
    let overrides = typed.text("config_overrides").unwrap_or_default();
    match resolve::overrides(&overrides) {
        Ok(_) => Ok(()),
        Err(part) => refuse(
            format!("--config_overrides: `{part}` is not of the form name=value"),
            "write it as n_layer=4,n_embd=256",
        ),
    }
}

/// The first model type that is an encoder's, or a decoder's.
fn example_type(encoder: bool) -> &'static str {
    let mut types = MODEL_TYPES.into_iter();
    let found = types.find(|model_type| is_encoder(model_type) == Some(encoder));
    found.expect("there are families of both kinds")
}

/// A model that is known by name is of the kind that the task is for: encoders see the whole text,
/// decoders what came before.
fn fits_task(typed: &Typed, flag: &str, name: &str) -> Verdict {
    let known = |encoders: bool| {
        presets()
            .filter(|name| is_encoder(name) == Some(encoders))
            .collect::<Vec<_>>()
            .join(", ")
    };
    match is_encoder(name) {
        Some(true) if Commands::CLM.contains(typed.command) => refuse(
            format!(
                "--{flag}: {name} is an encoder, which predicts masked tokens, not the next one"
            ),
            format!("use the task mlm, or one of {}", known(false)),
        ),
        Some(false) if Commands::MLM.contains(typed.command) => refuse(
            format!(
                "--{flag}: {name} is a decoder, which predicts the next token, not masked ones"
            ),
            format!("use the task clm, or one of {}", known(true)),
        ),
        _ => Ok(()),
    }
}

/// A directory that was named as a model holds one. Damage inside of the files is for those who
/// read them.
fn is_model(directory: &Path) -> Verdict {
    if directory.join("config.json").is_file() {
        return Ok(());
    }
    let fix = match newest_checkpoint(directory) {
        // The usual case: a run that was stopped before its end.
        Some(checkpoint) => format!("the run there was not finished; its newest checkpoint is {}", checkpoint.display()),
        None => {
            "give a directory with config.json and model.safetensors, as transformers' save_pretrained and xtrain write it".into()
        }
    };
    refuse(
        format!(
            "--model_name_or_path: {} holds no config.json",
            directory.display()
        ),
        fix,
    )
}

fn tokenizer(typed: &Typed) -> Verdict {
    match typed.path("tokenizer_name") {
        Some(path) if from_hub::is_name(&path) => Ok(()),
        Some(path) if !path.exists() => refuse(
            format!("--tokenizer_name: {} does not exist here", path.display()),
            "give a directory with tokenizer.json, that file, or the name of a model on the Hub",
        ),
        None if !typed.is_given("model_name_or_path") => refuse(
            "a model with random weights comes without a tokenizer",
            "add --tokenizer_name DIR, a directory with tokenizer.json (`xtrain quickstart` makes one of its own)",
        ),
        _ => Ok(()),
    }
}

fn data(typed: &Typed) -> Verdict {
    let trains = Commands::TRAIN.contains(typed.command) && resolve::do_train(typed);
    let has_train_file = typed.is_given("train_file") || typed.is_given("dataset_name");
    if trains && !has_train_file {
        return refuse(
            "there is nothing to train on",
            "add --train_file FILE (text, CSV, TSV, JSON lines or parquet; several may follow)",
        );
    }
    let evaluates = Commands::EVAL.contains(typed.command) || resolve::do_eval(typed);
    if evaluates && !typed.is_given("validation_file") {
        if !has_train_file {
            return refuse(
                "there is nothing to evaluate on",
                "add --validation_file FILE, or --train_file FILE to use a share of it",
            );
        }
        if typed.float("validation_split_percentage") == Some(0.0) {
            return refuse(
                "there is nothing to evaluate on: --validation_split_percentage is 0 and there is no --validation_file",
                "add --validation_file FILE or raise --validation_split_percentage",
            );
        }
    }
    match typed.bool("do_predict")
        && !typed.is_given("test_file")
        && !typed.is_given("dataset_name")
    {
        true => refuse(
            "--do_predict labels the rows of a file, but none is named",
            "add --test_file FILE",
        ),
        false => files(typed),
    }
}

/// A stream has no length, and nothing of it can be set aside.
fn streaming(typed: &Typed) -> Verdict {
    if !typed.bool("streaming") {
        return match typed.is_given("shuffle_buffer_size") {
            true => refuse(
                "--shuffle_buffer_size is of a stream; other sets are shuffled as a whole",
                "add --streaming, or leave it out",
            ),
            false => Ok(()),
        };
    }
    if resolve::do_train(typed) && typed.int("max_steps").is_none_or(|steps| steps <= 0) {
        return refuse(
            "--streaming reads without end: how long to train cannot be told in epochs",
            "add --max_steps N",
        );
    }
    for name in ["eval_strategy", "save_strategy", "logging_strategy"] {
        if typed.text(name).as_deref() == Some("epoch") {
            return refuse(
                format!("--{name} epoch: a stream has no epochs that are known ahead"),
                format!("use --{name} steps"),
            );
        }
    }
    if resolve::do_eval(typed) && !typed.is_given("validation_file") {
        return refuse(
            "nothing can be set aside of a stream to evaluate on",
            "add --validation_file FILE",
        );
    }
    Ok(())
}

/// Every file that was named is there.
fn files(typed: &Typed) -> Verdict {
    for name in ["train_file", "validation_file", "test_file"] {
        for path in resolve::files(typed, name) {
            if remote::is_url(&path) {
                remote::check(&path).map_err(|error| {
                    UsageError::illegal(
                        format!("--{name}: {error}"),
                        "download the file, or give another address",
                    )
                })?;
                continue;
            }
            if !path.is_file() {
                let what = if path.is_dir() {
                    "is a directory"
                } else {
                    "does not exist"
                };
                return refuse(
                    format!("--{name}: {} {what}", path.display()),
                    "give a file; paths are relative to the working directory",
                );
            }
        }
    }
    Ok(())
}

/// Settings of one task that say something about each other.
fn task(typed: &Typed) -> Verdict {
    if let Some(text) = typed.text("pad_to_bucket") {
        if typed.is_given("pad_to_max_length") && typed.bool("pad_to_max_length") {
            return refuse(
                "--pad_to_max_length and --pad_to_bucket are two ways to pad",
                "leave one of them out",
            );
        }
        let buckets = match resolve::buckets(&text) {
            Ok(buckets) => buckets,
            Err(part) => {
                return refuse(
                    format!("--pad_to_bucket: `{part}` is not a length"),
                    "write it as 32,64,128",
                );
            }
        };
        if let (Some(longest), Some(bucket)) =
            (typed.count("max_seq_length"), buckets.into_iter().max())
            && bucket > longest
        {
            return refuse(
                format!(
                    "--pad_to_bucket {bucket} is longer than any example: --max_seq_length is {longest}"
                ),
                format!("raise --max_seq_length, or leave {bucket} out"),
            );
        }
    }
    let pads = typed.is_given("pad_to_bucket") || typed.is_given("pad_to_max_length");
    if Commands::MLM.contains(typed.command) && pads && !typed.bool("line_by_line") {
        let name = if typed.is_given("pad_to_bucket") {
            "pad_to_bucket"
        } else {
            "pad_to_max_length"
        };
        if name == "pad_to_bucket" || typed.bool(name) {
            return refuse(
                format!("--{name} has nothing to pad: lines are joined and cut into full examples"),
                format!("add --line_by_line, or leave --{name} out"),
            );
        }
    }
    if typed.float("mlm_probability") == Some(0.0) {
        return refuse(
            "--mlm_probability is 0: there is nothing to predict",
            "raise it; 0.15 is usual",
        );
    }
    match typed.text("labels").map(|text| resolve::labels(&text)) {
        Some(_) if typed.bool("do_regression") => refuse(
            "--do_regression has numbers to estimate, --labels names classes",
            "leave one of them out",
        ),
        Some(Err(problem)) => refuse(
            format!("--labels: {problem}"),
            "name each label once, as no,yes",
        ),
        Some(Ok(labels)) if labels.len() < 2 => refuse(
            "--labels names one label only",
            "name at least two, as no,yes, or for numbers give --do_regression instead",
        ),
        Some(Ok(labels)) if labels.names().iter().any(String::is_empty) => refuse(
            "--labels has an empty name",
            "name each label once, as no,yes",
        ),
        _ => Ok(()),
    }
}

fn length_of_training(typed: &Typed) -> Verdict {
    let counts_epochs = typed.int("max_steps").is_none_or(|steps| steps <= 0);
    if resolve::do_train(typed) && counts_epochs && typed.float("num_train_epochs") == Some(0.0) {
        return refuse(
            "there is no training to do: --num_train_epochs is 0 and --max_steps is not set",
            "raise one of them or, to only evaluate, use --do_eval without --do_train",
        );
    }
    Ok(())
}

fn warmup(typed: &Typed) -> Verdict {
    match typed.float("warmup_steps") {
        Some(steps) if steps > 1.0 && steps.fract() != 0.0 => refuse(
            format!("--warmup_steps {steps} is neither a number of steps nor a share of them"),
            "give a whole number of steps, or a number below 1 for a share of all steps",
        ),
        _ => Ok(()),
    }
}

fn evaluation(typed: &Typed) -> Verdict {
    let strategy = typed.text("eval_strategy").unwrap_or_default();
    if strategy != "no" && typed.bool_if_given("do_eval") == Some(false) {
        return refuse(
            format!("--eval_strategy {strategy} evaluates, but --do_eval is false"),
            "leave --do_eval out, or use --eval_strategy no",
        );
    }
    if strategy != "no" && !resolve::do_train(typed) {
        return refuse(
            format!("--eval_strategy {strategy} evaluates during training, but nothing is trained"),
            "leave --eval_strategy out, or add --do_train",
        );
    }
    if typed.is_given("eval_steps") && strategy != "steps" {
        return refuse(
            format!("--eval_steps has no effect with --eval_strategy {strategy}"),
            "add --eval_strategy steps, or leave --eval_steps out",
        );
    }
    Ok(())
}

/// The best evaluation can only be looked for where there are several, and its weights only be
/// loaded where they were saved.
fn best(typed: &Typed) -> Verdict {
    let names = [
        "load_best_model_at_end",
        "early_stopping_patience",
        "metric_for_best_model",
        "greater_is_better",
    ];
    let asked = names
        .into_iter()
        .find(|name| typed.is_given(name) && typed.bool_if_given(name) != Some(false));
    let strategy = typed.text("eval_strategy").unwrap_or_default();
    if let (Some(name), "no") = (asked, strategy.as_str()) {
        return refuse(
            format!("--{name} needs evaluations during training, and --eval_strategy is no"),
            format!("add --eval_strategy steps or --eval_strategy epoch, or leave --{name} out"),
        );
    }
    if typed.is_given("early_stopping_threshold") && !typed.is_given("early_stopping_patience") {
        return refuse(
            "--early_stopping_threshold has no effect without --early_stopping_patience",
            "add --early_stopping_patience N",
        );
    }
    if !typed.bool("load_best_model_at_end") {
        return Ok(());
    }
    let saves = typed.text("save_strategy").unwrap_or_default();
    if saves != strategy {
        return refuse(
            format!(
                "--load_best_model_at_end needs a checkpoint of each evaluation: --eval_strategy is {strategy}, --save_strategy {saves}"
            ),
            format!("add --save_strategy {strategy}"),
        );
    }
    let every = |name: &str| typed.int(name).unwrap_or(1);
    let evaluates = typed
        .int("eval_steps")
        .unwrap_or_else(|| every("logging_steps"));
    match strategy == "steps" && every("save_steps") % evaluates != 0 {
        true => refuse(
            format!(
                "--load_best_model_at_end needs an evaluation of each checkpoint: --save_steps {} is no multiple of --eval_steps \
                 {evaluates}",
                every("save_steps")
            ),
            format!("set --save_steps {evaluates}, or another multiple of it"),
        ),
        false => Ok(()),
    }
}

/// Nothing of an earlier run is written over by accident, and a resume has something to resume
/// from.
fn resume_and_output(typed: &Typed) -> Verdict {
    not_a_file(typed)?;
    let output = resolve::output_dir(typed);
    let from = typed.text("resume_from_checkpoint");
    let latest = typed.bool("resume_from_checkpoint");
    if (from.is_some() || latest) && !resolve::do_train(typed) {
        return refuse(
            "--resume_from_checkpoint goes on with training, but nothing is trained",
            "add --do_train or, to evaluate a checkpoint, use --model_name_or_path CHECKPOINT",
        );
    }
    if let Some(path) = from {
        let path = Path::new(&path);
        if !path.is_dir() {
            return refuse(
                format!(
                    "--resume_from_checkpoint: {} is not a directory",
                    path.display()
                ),
                "give a checkpoint-N directory of an earlier run",
            );
        }
        if !path.join("training_state.json").is_file() {
            let fix = match newest_checkpoint(path) {
                Some(newest) => format!("its newest checkpoint is {}", newest.display()),
                None => "to start anew from its weights, give it as --model_name_or_path".into(),
            };
            return refuse(
                format!(
                    "--resume_from_checkpoint: {} holds no training state",
                    path.display()
                ),
                fix,
            );
        }
        // Going on in the checkpoint's own directory is the point; in another one there may be
        // another run's work.
        let own = path
            .canonicalize()
            .ok()
            .and_then(|path| path.parent().map(Path::to_path_buf));
        if typed.bool("overwrite_output_dir")
            || (own.is_some() && own == output.canonicalize().ok())
        {
            return Ok(());
        }
        return empty_output(
            &output,
            "to go on from a checkpoint of another directory, name an empty --output_dir, or add --overwrite_output_dir to replace its files",
        );
    }
    if latest {
        return if has_checkpoint(&output) {
            Ok(())
        } else {
            refuse(
                format!(
                    "--resume_from_checkpoint: {} holds no checkpoint",
                    output.display()
                ),
                "leave the flag out to start from the beginning, or name a checkpoint-N directory after it",
            )
        };
    }
    if !resolve::do_train(typed) || typed.bool("overwrite_output_dir") {
        return Ok(());
    }
    let fix = if has_checkpoint(&output) {
        "add --resume_from_checkpoint to go on from its newest checkpoint, --overwrite_output_dir to replace its files, or name another directory"
    } else {
        "name another --output_dir, or add --overwrite_output_dir to replace its files"
    };
    empty_output(&output, fix)
}

fn not_a_file(typed: &Typed) -> Verdict {
    match typed.path("output_dir") {
        Some(path) if path.is_file() => refuse(
            format!("--output_dir: {} is a file", path.display()),
            "name a directory",
        ),
        _ => Ok(()),
    }
}

fn empty_output(output: &Path, fix: &str) -> Verdict {
    // Of several processes, the first one's first start decides; the others find what that has
    // made.
    if RankInfo::from_environment()
        .is_ok_and(|member| member.is_some_and(|member| !member.begins_job()))
    {
        return Ok(());
    }
    // A directory that is not there, or that cannot be listed, is met again with a clear message
    // when it is made.
    let is_empty = std::fs::read_dir(output).map_or(true, |mut entries| entries.next().is_none());
    if is_empty {
        Ok(())
    } else {
        refuse(
            format!("--output_dir: {} is not empty", output.display()),
            fix,
        )
    }
}

/// Whether a directory holds a `checkpoint-N`.
fn has_checkpoint(output: &Path) -> bool {
    newest_checkpoint(output).is_some()
}

/// The `checkpoint-N` with the largest N.
fn newest_checkpoint(output: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(output)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir());
    let step = |path: &Path| {
        path.file_name()?
            .to_str()?
            .strip_prefix("checkpoint-")?
            .parse::<u64>()
            .ok()
    };
    entries
        .filter_map(|path| Some((step(&path)?, path)))
        .max()
        .map(|(_, path)| path)
}
