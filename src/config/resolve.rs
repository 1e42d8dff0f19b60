//! What was typed becomes plans: defaults that depend on other settings are decided here, and
//! nowhere else. Runs after `check`, so what is missing here cannot be missing.

use super::flags::Commands;
use super::mesh;
use super::plan::*;
use super::scaling;
use super::typed::Typed;
use crate::cache::CacheSettings;
use crate::data::LabelMap;
use crate::data::remote;
use crate::data::settings::{OnBadRow, PaddingSettings, Quoting, SourceSettings, TableSettings};
use crate::distributed::environment::Timeouts;
use crate::distributed::{self, RankInfo};
use crate::launch::LaunchSettings;
use crate::parallel::{Mesh, PipelineSchedule};
use crate::runtime::OverrideValue;
use crate::runtime::neuron::{NeuronSettings, compiler};
use crate::tasks::{ClmDataSettings, ClsDataSettings, MlmDataSettings};
use crate::trainer::device::DeviceSettings;
use crate::trainer::gpu::Gpu;
use crate::trainer::settings::{
    BestRule, Cadence, Checkpointing, EarlyStopping, OptimizerKind, OptimizerSettings, Precision,
    Resume, ScheduleKind, TrainSettings,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xtrain_graphs::NeuronChip;
use xtrain_models::{default_preset, preset_name};

const CHECKED: &str = "check() refuses a command without it";
const DEFAULTED: &str = "the flag table has a default for it";

pub fn resolve(typed: &Typed) -> Command {
    match typed.command {
        command if Commands::TRAIN.contains(command) => Command::Train(train_plan(typed)),
        command if Commands::EVAL.contains(command) => Command::Eval(eval_plan(typed)),
        command if Commands::COMPILE.contains(command) => {
            let (check, export) = (typed.bool("check"), typed.path("export"));
            Command::Compile(CompilePlan {
                train: train_plan(typed),
                jobs: jobs(typed),
                check,
                export,
            })
        }
        Commands::PREDICT_CLS => Command::Predict(predict_plan(typed)),
        Commands::GENERATE => Command::Generate(generate_plan(typed)),
        Commands::BENCH => Command::Bench(bench_plan(typed)),
        Commands::TOP => Command::Top(TopPlan {
            output_dir: output_dir(typed),
            once: typed.bool("once"),
            json: typed.bool("json"),
            neuron_monitor: typed.path("neuron_monitor"),
        }),
        Commands::LAUNCH => Command::Launch(launch_settings(typed)),
        Commands::SCALING => Command::Scaling(scaling::plan(typed).expect(CHECKED)),
        Commands::QUICKSTART => Command::Quickstart(quickstart_plan(typed)),
        command if Commands::FIT.contains(command) => Command::Fit(FitPlan {
            train: train_plan(typed),
            scale_from: typed
                .text("scale_learning_rate_from")
                .map(|text| rate_at_examples(&text).expect(CHECKED)),
            json: typed.bool("json"),
        }),
        command if Commands::CACHE.contains(command) => Command::Cache(cache_plan(typed)),
        _ => Command::Doctor(DoctorPlan {
            device: device(typed),
            cache: all_kept(typed),
            json: typed.bool("json"),
        }),
    }
}

fn train_plan(typed: &Typed) -> TrainPlan {
    TrainPlan {
        device: device(typed),
        target: typed.text("target").and_then(|name| Gpu::named(&name)),
        cache: cache(typed),
        model: model(typed),
        tokenizer: tokenizer(typed),
        task: task(typed),
        ignore_mismatched_sizes: typed.bool("ignore_mismatched_sizes"),
        train: train_settings(typed),
        do_train: do_train(typed),
        do_eval: do_eval(typed),
        do_predict: typed.bool("do_predict"),
        overwrite_output_dir: typed.bool("overwrite_output_dir"),
        dry_run: typed.bool("dry_run"),
        json: typed.bool("json"),
        auto_batch: typed.count("per_device_train_batch_size").is_none(),
        memory: typed.int("memory").map(i64::unsigned_abs),
        compare: compare(typed),
    }
}

fn compare(typed: &Typed) -> Option<MeshComparison> {
    let given = |name: &str| typed.is_given(name).then(|| typed.count(name)).flatten();
    Some(MeshComparison {
        devices: typed.count("compare_meshes")?,
        given: mesh::DEGREES.map(given),
    })
}

fn launch_settings(typed: &Typed) -> LaunchSettings {
    let seconds = |name: &str| Duration::from_secs(typed.count(name).expect(DEFAULTED) as u64);
    LaunchSettings {
        processes: typed.count("nproc_per_node").expect(DEFAULTED),
        nodes: typed.count("nnodes").expect(DEFAULTED),
        node: typed.count("node_rank").expect(DEFAULTED),
        endpoint: typed.text("rdzv_endpoint"),
        secret_file: typed.path("rdzv_secret_file"),
        max_restarts: typed.count("max_restarts").expect(DEFAULTED) as u64,
        timeouts: Timeouts {
            join: seconds("rdzv_timeout"),
            heartbeat: seconds("heartbeat_timeout"),
        },
        words: typed.words("command"),
    }
}

/// Which process of a job this is, for commands that several can share.
pub fn member(typed: &Typed) -> Result<Option<RankInfo>, distributed::Error> {
    let shared = Commands::TRAIN.contains(typed.command) || Commands::EVAL.contains(typed.command);
    if shared {
        RankInfo::from_environment()
    } else {
        Ok(None)
    }
}

fn jobs(typed: &Typed) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    typed.count("jobs").unwrap_or(cores.div_ceil(2))
}

/// Splits `5e-5@32`.
pub fn rate_at_examples(text: &str) -> Option<(f64, u64)> {
    let (rate, examples) = text.split_once('@')?;
    let (rate, examples) = (
        rate.trim().parse::<f64>().ok()?,
        examples.trim().parse::<u64>().ok()?,
    );
    (rate > 0.0 && rate.is_finite() && examples > 0).then_some((rate, examples))
}

fn eval_plan(typed: &Typed) -> EvalPlan {
    EvalPlan {
        device: device(typed),
        cache: cache(typed),
        model: model(typed),
        tokenizer: tokenizer(typed),
        task: task(typed),
        per_device_eval_batch_size: typed.count("per_device_eval_batch_size").expect(DEFAULTED),
        mesh: mesh(typed),
        precision: eval_precision(typed),
        seed: seed(typed),
        output_dir: typed.path("output_dir"),
        json: typed.bool("json"),
        disable_tqdm: typed.bool("disable_tqdm"),
    }
}

fn predict_plan(typed: &Typed) -> PredictPlan {
    PredictPlan {
        device: device(typed),
        cache: cache(typed),
        model: model(typed),
        tokenizer: tokenizer(typed),
        task: TaskPlan::Cls(cls_data(typed)),
        per_device_eval_batch_size: typed.count("per_device_eval_batch_size").expect(DEFAULTED),
        output_file: typed.path("output_file"),
        include_text: typed.bool("include_text"),
        disable_tqdm: typed.bool("disable_tqdm"),
    }
}

fn generate_plan(typed: &Typed) -> GeneratePlan {
    let temperature = typed.float("temperature").expect(DEFAULTED);
    let top_k = typed.count("top_k").filter(|k| *k > 0);
    GeneratePlan {
        device: device(typed),
        cache: cache(typed),
        model: typed.path("model_name_or_path").expect(CHECKED),
        tokenizer: tokenizer_path(typed),
        prompt: typed.text("prompt").expect(CHECKED),
        max_new_tokens: typed.count("max_new_tokens").expect(DEFAULTED),
        sampling: if temperature == 0.0 {
            Sampling::Greedy
        } else {
            Sampling::Random { temperature, top_k }
        },
        seed: seed(typed),
    }
}

fn bench_plan(typed: &Typed) -> BenchPlan {
    BenchPlan {
        device: device(typed),
        cache: cache(typed),
        model: model(typed),
        batch: typed.count("batch").expect(DEFAULTED),
        mesh: mesh(typed),
        sequence_parallel: typed.bool("sequence_parallel"),
        shard_optimizer_state: typed.bool("shard_optimizer_state"),
        gradient_bucket_bytes: gradient_bucket_bytes(typed),
        checkpointing: checkpointing(typed),
        seq: typed.count("seq").expect(DEFAULTED),
        steps: typed.count("steps").expect(DEFAULTED),
        warmup: typed.count("warmup").expect(DEFAULTED),
        precision: precision(typed),
        seed: seed(typed),
        json: typed.bool("json"),
    }
}

fn quickstart_plan(typed: &Typed) -> QuickstartPlan {
    QuickstartPlan {
        device: device(typed),
        cache: cache(typed),
        output_dir: output_dir(typed),
        seed: seed(typed),
        max_steps: max_steps(typed),
        disable_tqdm: typed.bool("disable_tqdm"),
    }
}

fn device(typed: &Typed) -> DevicePlan {
    let kind = match typed.text("device").expect(DEFAULTED).as_str() {
        "cuda" => Device::Cuda,
        "neuron" => Device::Neuron,
        _ => Device::Cpu,
    };
    let mut options = typed
        .text("xla_options")
        .map(|text| xla_options(&text).expect(CHECKED))
        .unwrap_or_default();
    if typed.bool("activation_offloading") {
        // While a copy from the host is under way it would run whatever else it finds, and keep
        // what that needs: on a card with room to spare more is held then than is put away.
        options
            .entry("xla_gpu_enable_latency_hiding_scheduler".into())
            .or_insert(OverrideValue::Bool(false));
    }
    let settings = DeviceSettings {
        plugin: typed.path("plugin"),
        memory_fraction: typed.float("gpu_memory_fraction"),
        visible_devices: typed
            .text("visible_devices")
            .map(|text| device_numbers(&text).expect(CHECKED))
            .unwrap_or_default(),
        neuron: neuron(typed),
        plain_attention: typed.text("attn_implementation").as_deref() == Some("eager"),
        fused_attention_dropout: typed.text("attention_dropout_kernel").as_deref() == Some("cudnn"),
        tf32: typed.bool("tf32"),
        xla_options: options,
        member: member(typed).expect(CHECKED).map(Box::new),
    };
    DevicePlan { kind, settings }
}

/// The numbers in `0,2`. The error is the part that is none, or that is named twice.
pub fn device_numbers(text: &str) -> Result<Vec<i64>, String> {
    let mut numbers = Vec::new();
    for part in text.split(',').map(str::trim) {
        match part.parse::<i64>() {
            Ok(number) if number >= 0 && !numbers.contains(&number) => numbers.push(number),
            _ => return Err(part.to_string()),
        }
    }
    Ok(numbers)
}

/// Splits `xla_gpu_enable_triton_gemm=false,xla_gpu_graph_min_graph_size=1`. XLA wants each value
/// in its option's own type, which is the one that it is written in. The error is the part that is
/// not of this form.
pub fn xla_options(text: &str) -> Result<BTreeMap<String, OverrideValue>, String> {
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
    text.split(',')
        .map(|part| option(part).ok_or_else(|| part.trim().to_string()))
        .collect()
}

/// The arrangement of a run's devices.
pub fn mesh(typed: &Typed) -> Mesh {
    mesh::mesh(typed).expect(CHECKED)
}

fn gradient_bucket_bytes(typed: &Typed) -> usize {
    typed.count("gradient_bucket_mb").expect(DEFAULTED) << 20
}

fn checkpointing(typed: &Typed) -> Checkpointing {
    let offloads = typed.bool("activation_offloading");
    match typed
        .text("gradient_checkpointing")
        .expect(DEFAULTED)
        .as_str()
    {
        "full" | "off" if offloads => Checkpointing::Offloaded(1),
        "full" => Checkpointing::Full,
        "attention" => Checkpointing::Attention,
        word => match word
            .strip_prefix("every:")
            .and_then(|layers| layers.parse().ok())
        {
            Some(layers) if offloads => Checkpointing::Offloaded(layers),
            Some(layers) => Checkpointing::Every(layers),
            None => Checkpointing::Off,
        },
    }
}

/// What the command line says of Neuron's compiler.
fn neuron(typed: &Typed) -> NeuronSettings {
    let word = |name: &str, words: &[&'static str]| {
        let typed = typed.text(name)?;
        words.iter().copied().find(|word| *word == typed)
    };
    NeuronSettings {
        chip: match typed.text("target").as_deref() {
            Some("trn1") => Some(NeuronChip::Trn1),
            Some("trn2") => Some(NeuronChip::Trn2),
            _ => None,
        },
        optlevel: word("neuron_optlevel", compiler::OPTLEVELS),
        auto_cast: word("neuron_auto_cast", compiler::AUTO_CASTS),
        auto_cast_type: word("neuron_auto_cast_type", compiler::AUTO_CAST_TYPES),
        model_type: word("neuron_model_type", compiler::MODEL_TYPES),
        stochastic_rounding: typed.bool("neuron_stochastic_rounding"),
    }
}

fn seed(typed: &Typed) -> u64 {
    typed.int("seed").expect(DEFAULTED).unsigned_abs()
}

/// `train` trains unless told not to; naming only `--do_eval` is how run_clm's users say "evaluate,
/// do not train".
pub fn do_train(typed: &Typed) -> bool {
    typed
        .bool_if_given("do_train")
        .unwrap_or(typed.bool_if_given("do_eval") != Some(true))
}

/// As TrainingArguments does, a strategy that evaluates turns evaluation on.
pub fn do_eval(typed: &Typed) -> bool {
    typed.bool_if_given("do_eval").unwrap_or_else(|| {
        typed
            .text("eval_strategy")
            .is_some_and(|strategy| strategy != "no")
    })
}

/// For the commands that cannot do without one.
pub fn output_dir(typed: &Typed) -> PathBuf {
    match typed.command {
        Commands::QUICKSTART => typed
            .path("output_dir")
            .unwrap_or_else(|| "output/quickstart".into()),
        // Writes nothing there, but takes the flags of a run that does.
        command if Commands::COMPILE.and(Commands::FIT).contains(command) => {
            typed.path("output_dir").unwrap_or_default()
        }
        _ => typed.path("output_dir").expect(CHECKED),
    }
}

fn model(typed: &Typed) -> ModelSource {
    if let Some(directory) = typed.path("model_name_or_path") {
        return ModelSource::Pretrained { directory };
    }
    let model_type = typed.text("model_type");
    ModelSource::Scratch {
        config: config_source(typed.text("config_name").as_deref(), model_type.as_deref()),
        model_type,
        overrides: overrides(&typed.text("config_overrides").unwrap_or_default()).expect(CHECKED),
    }
}

/// A file or directory here wins over a preset of the same name, as it does in transformers.
fn config_source(name: Option<&str>, model_type: Option<&str>) -> ConfigSource {
    let Some(name) = name else {
        let preset = model_type.and_then(default_preset);
        return ConfigSource::Preset(preset.expect(CHECKED));
    };
    let path = Path::new(name);
    if path.is_file() {
        return ConfigSource::File(path.into());
    }
    let inside = path.join("config.json");
    match preset_name(name) {
        Some(preset) if !inside.is_file() => ConfigSource::Preset(preset),
        _ => ConfigSource::File(inside),
    }
}

/// Splits `n_layer=4,n_embd=256`. Values are numbers and booleans where they read as such (Python's
/// spelling too), else text. The error is the part that is not of the form name=value.
pub fn overrides(text: &str) -> Result<Vec<(String, serde_json::Value)>, String> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|_| !text.trim().is_empty());
    parts
        .map(|part| match part.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
                Ok((name.trim().replace('-', "_"), override_value(value.trim())))
            }
            _ => Err(part.to_string()),
        })
        .collect()
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

fn tokenizer(typed: &Typed) -> TokenizerSource {
    TokenizerSource {
        path: tokenizer_path(typed),
        lower_case: typed.bool_if_given("do_lower_case"),
    }
}

fn tokenizer_path(typed: &Typed) -> PathBuf {
    typed
        .path("tokenizer_name")
        .or_else(|| typed.path("model_name_or_path"))
        .expect(CHECKED)
}

fn task(typed: &Typed) -> TaskPlan {
    match typed.command {
        command if Commands::CLM.contains(command) => TaskPlan::Clm(ClmDataSettings {
            source: source(typed),
            block_size: typed.count("block_size"),
        }),
        command if Commands::MLM.contains(command) => TaskPlan::Mlm(MlmDataSettings {
            source: source(typed),
            max_seq_length: typed.count("max_seq_length"),
            line_by_line: typed.bool("line_by_line"),
            mlm_probability: typed.float("mlm_probability").expect(DEFAULTED),
            whole_word_mask: typed.bool("whole_word_mask"),
            padding: padding(typed),
        }),
        _ => TaskPlan::Cls(cls_data(typed)),
    }
}

fn cls_data(typed: &Typed) -> ClsDataSettings {
    ClsDataSettings {
        source: source(typed),
        text_pair_column: typed.text("text_pair_column_name"),
        label_column: typed.text("label_column_name"),
        max_seq_length: typed.count("max_seq_length").expect(DEFAULTED),
        padding: padding(typed),
        labels: match typed.bool("do_regression") {
            true => Some(LabelMap::numbers()),
            false => typed
                .text("labels")
                .map(|text| labels(&text).expect(CHECKED)),
        },
        finds_regression: typed.bool_if_given("do_regression") != Some(false),
    }
}

/// The names in `no,yes`.
pub fn labels(text: &str) -> Result<LabelMap, String> {
    let names = text
        .split(',')
        .map(|name| name.trim().to_string())
        .collect();
    LabelMap::new(names).map_err(|error| error.to_string())
}

fn padding(typed: &Typed) -> PaddingSettings {
    let pad_to_bucket = typed
        .text("pad_to_bucket")
        .map(|text| buckets(&text).expect(CHECKED))
        .unwrap_or_default();
    PaddingSettings {
        pad_to_max_length: typed.bool("pad_to_max_length") && pad_to_bucket.is_empty(),
        pad_to_bucket,
    }
}

/// The lengths in `32,64`. The error is the part that is not a length.
pub fn buckets(text: &str) -> Result<Vec<usize>, String> {
    let length = |part: &str| {
        part.trim()
            .parse()
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| part.trim().to_string())
    };
    text.split(',').map(length).collect()
}

/// Nothing is set aside of rows that nobody evaluates on; of a text, run_clm and run_mlm always set
/// it aside.
fn set_aside(typed: &Typed) -> f64 {
    let share = typed.float("validation_split_percentage").unwrap_or(0.0);
    let unused = Commands::CLS.contains(typed.command)
        && Commands::TRAIN.contains(typed.command)
        && !do_eval(typed);
    if unused { 0.0 } else { share }
}

/// Where examples come from, for every task.
fn source(typed: &Typed) -> SourceSettings {
    SourceSettings {
        train_files: files(typed, "train_file"),
        validation_files: files(typed, "validation_file"),
        test_files: files(typed, "test_file"),
        validation_split_percentage: if typed.bool("streaming") {
            0.0
        } else {
            set_aside(typed)
        },
        max_train_samples: typed.count("max_train_samples"),
        max_eval_samples: typed.count("max_eval_samples"),
        max_predict_samples: typed.count("max_predict_samples"),
        table: TableSettings {
            text_column: typed.text("text_column_name"),
            quoting: typed.text("quoting").map(|word| match word.as_str() {
                "none" => Quoting::None,
                "backslash" => Quoting::Backslash,
                _ => Quoting::Standard,
            }),
            on_bad_row: if typed.text("on_bad_row").as_deref() == Some("skip") {
                OnBadRow::Skip
            } else {
                OnBadRow::Error
            },
        },
        preprocessing_num_workers: typed.count("preprocessing_num_workers"),
        dataloader_num_workers: typed.count("dataloader_num_workers").expect(DEFAULTED),
        overwrite_cache: typed.bool("overwrite_cache"),
        cache_dir: cache_dir(typed, "data"),
        seed: typed.int("data_seed").map_or_else(
            || typed.int("seed").map_or(0, i64::unsigned_abs),
            i64::unsigned_abs,
        ),
        streaming: typed
            .bool("streaming")
            .then(|| typed.count("shuffle_buffer_size").expect(DEFAULTED)),
    }
}

/// Data files as they were named; `file://` is a path here like any other.
pub fn files(typed: &Typed, flag: &str) -> Vec<PathBuf> {
    typed.paths(flag).into_iter().map(remote::local).collect()
}

/// How compiled graphs are kept.
fn cache(typed: &Typed) -> CacheSettings {
    CacheSettings {
        dir: typed
            .bool("compile_cache")
            .then(|| cache_dir(typed, "graphs")),
        max_bytes: typed.int("cache_max_size").expect(DEFAULTED).unsigned_abs(),
        fail_on_recompile: typed.bool("fail_on_recompile"),
    }
}

/// The same for a command that has no flags for it.
fn all_kept(typed: &Typed) -> CacheSettings {
    CacheSettings {
        dir: Some(cache_dir(typed, "graphs")),
        max_bytes: u64::MAX,
        fail_on_recompile: false,
    }
}

fn cache_plan(typed: &Typed) -> CachePlan {
    let ids = typed.words("id");
    let file = || typed.path("file").expect(CHECKED);
    let action = match typed.command {
        Commands::CACHE_LS => CacheAction::List {
            json: typed.bool("json"),
        },
        Commands::CACHE_SHOW => {
            let form = match () {
                () if typed.bool("hlo") => ShowForm::Hlo,
                () if typed.bool("optimized_hlo") => ShowForm::OptimizedHlo,
                () if typed.bool("stablehlo") => ShowForm::StableHlo,
                () if typed.bool("memory") => ShowForm::Memory,
                () if typed.bool("json") => ShowForm::Json,
                () => ShowForm::Text,
            };
            CacheAction::Show {
                id: ids.first().expect(CHECKED).clone(),
                form,
            }
        }
        Commands::CACHE_EXPLAIN => {
            let older = (ids.len() > 1).then(|| ids[0].clone());
            CacheAction::Explain {
                older,
                newer: ids.last().expect(CHECKED).clone(),
            }
        }
        Commands::CACHE_VERIFY => CacheAction::Verify {
            ids,
            device: device(typed),
        },
        Commands::CACHE_PRUNE => CacheAction::Prune(PruneRules {
            older_than: typed.float("older_than"),
            max_size: typed.int("max_size").map(i64::unsigned_abs),
            device: typed.text("only_device"),
            stale_compiler: typed.bool("stale_compiler"),
            dry_run: typed.bool("dry_run"),
        }),
        Commands::CACHE_EXPORT => CacheAction::Export {
            file: file(),
            ids,
            modules_only: typed.bool("modules_only"),
        },
        Commands::CACHE_IMPORT => CacheAction::Import { file: file() },
        Commands::CACHE_PATH => CacheAction::Path,
        _ => CacheAction::Stats {
            json: typed.bool("json"),
        },
    };
    CachePlan {
        dir: cache_dir(typed, "graphs"),
        action,
    }
}

/// A directory for one kind of thing below the cache's root.
fn cache_dir(typed: &Typed, kind: &str) -> PathBuf {
    cache_root(typed.path("cache_dir"), |name| {
        std::env::var_os(name).map(PathBuf::from)
    })
    .join(kind)
}

/// The directory under which everything that can be made again is kept: as told, else by the
/// environment. Empty variables count as unset, as the XDG specification has it.
fn cache_root(told: Option<PathBuf>, variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    let set = |name: &str| variable(name).filter(|path| !path.as_os_str().is_empty());
    told.or_else(|| set("XTRAIN_CACHE_DIR"))
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("xtrain")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/xtrain")))
        // A process without a home (some containers) still has a working directory.
        .unwrap_or_else(|| ".xtrain-cache".into())
}

fn max_steps(typed: &Typed) -> Option<u64> {
    typed
        .int("max_steps")
        .filter(|steps| *steps > 0)
        .map(i64::unsigned_abs)
}

fn train_settings(typed: &Typed) -> TrainSettings {
    let steps = |name: &str| typed.int(name).map(i64::unsigned_abs);
    let cadence = |strategy: &str, every: Option<u64>| match typed
        .text(strategy)
        .expect(DEFAULTED)
        .as_str()
    {
        "steps" => Cadence::Steps(every.expect(DEFAULTED)),
        "epoch" => Cadence::Epoch,
        _ => Cadence::Never,
    };
    TrainSettings {
        output_dir: output_dir(typed),
        seed: seed(typed),
        per_device_train_batch_size: typed.count("per_device_train_batch_size").unwrap_or(1),
        per_device_eval_batch_size: typed.count("per_device_eval_batch_size").expect(DEFAULTED),
        gradient_accumulation_steps: typed.count("gradient_accumulation_steps").expect(DEFAULTED),
        mesh: mesh(typed),
        pipeline_schedule: match typed.text("pipeline_schedule").expect(DEFAULTED).as_str() {
            "simple" => PipelineSchedule::Simple,
            _ => PipelineSchedule::Interleaved,
        },
        sequence_parallel: typed.bool("sequence_parallel"),
        shard_optimizer_state: typed.bool("shard_optimizer_state"),
        gradient_bucket_bytes: gradient_bucket_bytes(typed),
        checkpointing: checkpointing(typed),
        replica_check: match typed.count("replica_check_steps").expect(DEFAULTED) {
            0 => Cadence::Never,
            n => Cadence::Steps(n as u64),
        },
        num_train_epochs: typed.float("num_train_epochs").expect(DEFAULTED),
        max_steps: max_steps(typed),
        optimizer: optimizer(typed),
        precision: precision(typed),
        eval_precision: eval_precision(typed),
        logging: cadence("logging_strategy", steps("logging_steps")),
        logging_first_step: typed.bool("logging_first_step"),
        save: cadence("save_strategy", steps("save_steps")),
        save_total_limit: typed.count("save_total_limit"),
        eval: cadence(
            "eval_strategy",
            steps("eval_steps").or(steps("logging_steps")),
        ),
        max_shard_size: typed.int("max_shard_size").expect(DEFAULTED).unsigned_abs(),
        best: best(typed),
        dataloader_drop_last: typed.bool("dataloader_drop_last"),
        resume: match typed.path("resume_from_checkpoint") {
            Some(path) => Resume::From(path),
            None if typed.bool("resume_from_checkpoint") => Resume::Latest,
            None => Resume::No,
        },
        disable_tqdm: typed.bool("disable_tqdm"),
    }
}

/// As TrainingArguments does, whoever wants the best model and names no metric gets the one of the
/// smallest loss.
fn best(typed: &Typed) -> Option<BestRule> {
    let load_at_end = typed.bool("load_best_model_at_end");
    let patience = typed.count("early_stopping_patience").map(|n| n as u64);
    let named = typed.text("metric_for_best_model");
    if named.is_none() && patience.is_none() && !load_at_end {
        return None;
    }
    let metric = named.unwrap_or_else(|| "loss".into());
    let metric = metric.strip_prefix("eval_").unwrap_or(&metric).to_string();
    let grows = !metric.ends_with("loss") && !["perplexity", "mse"].contains(&metric.as_str());
    Some(BestRule {
        greater_is_better: typed.bool_if_given("greater_is_better").unwrap_or(grows),
        load_at_end,
        early_stopping: patience.map(|patience| EarlyStopping {
            patience,
            threshold: typed.float("early_stopping_threshold").expect(DEFAULTED),
        }),
        metric,
    })
}

/// Of training steps.
fn precision(typed: &Typed) -> Precision {
    match () {
        () if typed.bool("bf16") => Precision::Bf16,
        () if typed.bool("fp16") => Precision::Fp16,
        () => Precision::F32,
    }
}

/// As the Trainer has it: evaluation follows training, unless it is told otherwise.
fn eval_precision(typed: &Typed) -> Precision {
    match () {
        () if typed.bool("bf16_full_eval") => Precision::Bf16,
        () if typed.bool("fp16_full_eval") => Precision::Fp16,
        () => precision(typed),
    }
}

fn optimizer(typed: &Typed) -> OptimizerSettings {
    let float = |name: &str| typed.float(name).expect(DEFAULTED);
    // Steps or, below 1, a share of them (transformers 5); above 0 they beat the older
    // warmup_ratio.
    let warmup = float("warmup_steps");
    OptimizerSettings {
        kind: match typed.text("optim").expect(DEFAULTED).as_str() {
            "sgd" => OptimizerKind::Sgd,
            _ => OptimizerKind::AdamW,
        },
        learning_rate: float("learning_rate"),
        weight_decay: float("weight_decay"),
        adam_beta1: float("adam_beta1"),
        adam_beta2: float("adam_beta2"),
        adam_epsilon: float("adam_epsilon"),
        max_grad_norm: float("max_grad_norm"),
        schedule: match typed.text("lr_scheduler_type").expect(DEFAULTED).as_str() {
            "cosine" => ScheduleKind::Cosine,
            "constant" | "constant_with_warmup" => ScheduleKind::Constant,
            _ => ScheduleKind::Linear,
        },
        warmup_steps: (warmup >= 1.0).then_some(warmup as u64),
        warmup_ratio: if warmup > 0.0 && warmup < 1.0 {
            warmup
        } else {
            float("warmup_ratio")
        },
    }
}

#[cfg(test)]
mod tests;
