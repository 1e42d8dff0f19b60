//! The resolved plans that the commands take. Everything is decided and legal here; an `Option`
//! that remains has a documented meaning. Named paths exist, but no file was read.

use super::choices::{Axis, Device, HubStrategy};
use super::command::CacheVerb;
use super::flags::Flags;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use xtrain_cache::CacheSettings;
use xtrain_graphs::DType;
use xtrain_hub::HubSettings;
use xtrain_launch::LaunchSettings;
use xtrain_models::{LoraConfig, Quantization};
use xtrain_parallel::Mesh;
use xtrain_report::records::LogFormat;
use xtrain_report::scaling::Fixed;
use xtrain_report::trackers::TrackerKind;
pub use xtrain_tasks::TaskPlan;
use xtrain_trainer::device::DeviceSettings;
use xtrain_trainer::gpu::Gpu;
use xtrain_trainer::settings::{
    BestRule, Cadence, Checkpointing, ExampleOrder, OptimizerSettings, Precision,
};

/// One command with everything that it needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Trains and, by its flags, evaluates, predicts and pushes.
    Train(RunPlan),
    /// Evaluates a model.
    Eval(RunPlan),
    /// Labels the rows of files.
    Predict(PredictPlan),
    /// Continues prompts.
    Generate(GeneratePlan),
    /// Merges an adapter into its model.
    Merge(MergePlan),
    /// Measures steps over random tokens.
    Bench(BenchPlan),
    /// Checks a device and its software.
    Doctor(DoctorPlan),
    /// Watches running runs.
    Top(Arc<Flags>),
    /// Writes a report of finished runs.
    Report(Arc<Flags>),
    /// Starts the processes of a job.
    Launch(LaunchSettings),
    /// Repeats a command at several degrees.
    Scaling(ScalingPlan),
    /// Repeats a command with several values of flags.
    Sweep(SweepPlan),
    /// Trains a small model of its own.
    Quickstart(QuickstartPlan),
    /// Compiles a run's graphs ahead.
    Compile(CompilePlan),
    /// Finds the largest batch that fits.
    Fit(FitPlan),
    /// Looks into the cache of compiled graphs, or changes it.
    Cache(CachePlan),
}

/// Which device, and how it is opened.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePlan {
    /// Which kind of device.
    pub kind: Device,
    /// Plugin, threads, memory and compiler options.
    pub settings: DeviceSettings,
}

/// Where the model comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelSource {
    /// Configuration and weights from a Hugging Face directory.
    Pretrained {
        /// Its local path.
        directory: PathBuf,
        /// The directory of an adapter that is added to it.
        adapter: Option<PathBuf>,
        /// The `--model_type` that was given: another one in `config.json` is an error.
        model_type: Option<&'static str>,
        /// How its matrices are held.
        quantization: Option<Quantization>,
    },
    /// Random weights.
    Scratch {
        /// The `--model_type` that was given: another one in a configuration file is an error.
        model_type: Option<&'static str>,
        /// The configuration that `overrides` are laid over.
        config: ConfigSource,
        /// `--config_overrides` in the order typed, to be laid over the configuration's JSON. Names
        /// and types are the model's to check.
        overrides: Vec<(String, serde_json::Value)>,
        /// As of [`ModelSource::Pretrained`].
        quantization: Option<Quantization>,
    },
}

/// Where the tokenizer comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizerSource {
    /// A directory with the tokenizer's files, or a `tokenizer.json`.
    pub path: PathBuf,
    /// Turn texts into lower case or leave capitals alone; `None`: as the files say.
    pub lower_case: Option<bool>,
}

/// Where a new model's configuration comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfigSource {
    /// The defaults of this `model_type`.
    Default(&'static str),
    /// One of [`xtrain_models::presets`].
    Preset(&'static str),
    /// A `config.json`.
    File(PathBuf),
}

/// How a run trains. A value that a single flag decides is read from `flags`; a field holds a value
/// that follows from several flags, or that a command may replace.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainSettings {
    /// As they were given, or by default.
    pub flags: Arc<Flags>,
    /// Empty for a command that writes none.
    pub output_dir: PathBuf,
    /// 1 where it is to be found.
    pub per_device_train_batch_size: usize,
    /// The devices and what each takes of a batch.
    pub mesh: Mesh,
    /// Moments of replicated parameters are sharded along the data axis (ZeRO-1).
    pub shard_optimizer_state: bool,
    /// The activations that the backward pass recomputes.
    pub checkpointing: Checkpointing,
    /// When replicas are compared.
    pub replica_check: Cadence,
    /// Update rule, hyperparameters and learning-rate schedule.
    pub optimizer: OptimizerSettings,
    /// Of the matmuls of training steps.
    pub precision: Precision,
    /// Of those of evaluations.
    pub eval_precision: Precision,
    /// When steps are logged.
    pub logging: Cadence,
    /// When checkpoints are saved.
    pub save: Cadence,
    /// When the model is evaluated.
    pub eval: Cadence,
    /// The element type of the finished model's weights; `None`: the loaded one.
    pub save_dtype: Option<DType>,
    /// Which evaluation is the best one, if that is asked for.
    pub best: Option<BestRule>,
    /// In which order training sees the examples.
    pub example_order: ExampleOrder,
}

impl TrainSettings {
    /// Rows of a training batch on all devices together.
    pub fn batch_rows(&self) -> usize {
        self.per_device_train_batch_size * self.mesh.batch_shards()
    }

    /// Examples of one optimizer step.
    pub fn examples_per_step(&self) -> usize {
        self.batch_rows() * *self.flags.gradient_accumulation_steps
    }
}

/// A task's run: `xtrain train`, what prepares one, `xtrain eval` and `xtrain predict`.
#[derive(Clone, Debug, PartialEq)]
pub struct RunPlan {
    /// The first word of the command line that needs the run's graphs.
    pub verb: &'static str,
    /// Every setting by its flag's name, as typed or by default; secrets left out.
    pub settings: BTreeMap<&'static str, String>,
    /// Where the graphs run.
    pub device: DevicePlan,
    /// A GPU to compile for, which need not be attached; only where nothing runs.
    pub target: Option<Gpu>,
    /// Where compiled graphs are kept.
    pub cache: CacheSettings,
    /// The model's configuration and weights.
    pub model: ModelSource,
    /// The tokenizer.
    pub tokenizer: TokenizerSource,
    /// The adapter that is added to the model, where a new one is trained.
    pub lora: Option<LoraConfig>,
    /// The task with its data.
    pub task: TaskPlan,
    /// How it is trained.
    pub train: TrainSettings,
    /// Train at all; an evaluation or a prediction alone does not.
    pub do_train: bool,
    /// Evaluate once at the end; always true when `train.eval` says to evaluate during training.
    pub do_eval: bool,
    /// Label the rows of the test files at the end.
    pub do_predict: bool,
    /// Write a report at the end.
    pub report: bool,
    /// The form of printed records.
    pub log_format: LogFormat,
    /// Where the records of training go besides the log.
    pub trackers: TrackerPlan,
    /// Where the model is pushed.
    pub push: Option<PushPlan>,
    /// The URL of the bucket's folder that the output directory's files are uploaded to.
    pub bucket: Option<String>,
    /// The batch size is to be found (`--per_device_train_batch_size auto`); until then `train` has
    /// 1.
    pub auto_batch: bool,
    /// Bytes of one device that a batch size that is found may use (`None`: by the device), and
    /// that a plan is held against (`None`: it is not).
    pub memory: Option<u64>,
    /// Of a dry run: compare every mesh of N devices.
    pub compare: Option<MeshComparison>,
}

/// `--report_to`.
#[derive(Clone, Debug, PartialEq)]
pub struct TrackerPlan {
    /// Which trackers; empty: none.
    pub kinds: Vec<&'static TrackerKind>,
    /// Of event files; `None`: below the output directory.
    pub logging_dir: Option<PathBuf>,
    /// Under which name they list the run.
    pub run_name: String,
}

/// `--push_to_hub`.
#[derive(Clone, Debug, PartialEq)]
pub struct PushPlan {
    /// With the token to push with.
    pub hub: HubSettings,
    /// Of the repository; without an organization it is one of the token's account.
    pub name: String,
    /// Of a new repository; `None`: as the account has it.
    pub private: Option<bool>,
    /// When something is pushed.
    pub strategy: HubStrategy,
    /// Push a checkpoint although the last push is not done.
    pub always: bool,
    /// A branch that exists; `None`: `main`.
    pub revision: Option<String>,
}

/// `--compare_meshes`; there is a memory to be held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeshComparison {
    /// The number of devices; every mesh has as many.
    pub devices: usize,
    /// Degrees that were given, which stay as they are: data, shard, tensor, pipeline.
    pub given: [Option<usize>; 4],
}

/// `xtrain compile clm`.
#[derive(Clone, Debug, PartialEq)]
pub struct CompilePlan {
    /// The run whose graphs are compiled.
    pub train: RunPlan,
    /// Graphs to compile at the same time.
    pub jobs: usize,
    /// Check the graphs against the rules of the device's compiler, and compile nothing.
    pub check: bool,
    /// Write the modules for the device's compiler there, and compile nothing.
    pub export: Option<PathBuf>,
}

/// `xtrain fit clm`.
#[derive(Clone, Debug, PartialEq)]
pub struct FitPlan {
    /// The run, with a batch size of 1.
    pub train: RunPlan,
    /// A learning rate and the examples per step that it suits.
    pub scale_from: Option<(f64, u64)>,
    /// Print one JSON object.
    pub json: bool,
}

impl RunPlan {
    /// Draw nothing on the terminal.
    pub fn quiet(&self) -> bool {
        *self.train.flags.disable_tqdm
    }
}

/// `xtrain predict`.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictPlan {
    /// The model and the files to label.
    pub run: RunPlan,
    /// `None`: standard output.
    pub output_file: Option<PathBuf>,
    /// Repeat the texts beside their labels.
    pub include_text: bool,
}

/// `xtrain generate`.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratePlan {
    /// Where the graphs run.
    pub device: DevicePlan,
    /// Where compiled graphs are kept.
    pub cache: CacheSettings,
    /// The model, from a directory.
    pub model: ModelSource,
    /// A directory with the tokenizer's files, or a `tokenizer.json`.
    pub tokenizer: PathBuf,
    /// The prompts.
    pub prompts: PromptSource,
    /// How it is continued.
    pub generation: GenerationFlags,
    /// Continuations of each prompt.
    pub num_return_sequences: usize,
    /// Of the sampler.
    pub seed: u64,
    /// Precision and mesh; nothing is trained.
    pub train: TrainSettings,
}

/// `xtrain merge`.
#[derive(Clone, Debug, PartialEq)]
pub struct MergePlan {
    /// Where the logits of a sample are computed.
    pub device: DevicePlan,
    /// Where compiled graphs are kept.
    pub cache: CacheSettings,
    /// The model with its adapter.
    pub model: ModelSource,
    /// The directory of the merged model.
    pub output_dir: PathBuf,
    /// Precision and mesh; nothing is trained.
    pub train: TrainSettings,
}

/// The prompts of `xtrain generate`.
#[derive(Clone, Debug, PartialEq)]
pub enum PromptSource {
    /// One prompt.
    Text(String),
    /// Each of its lines.
    File(PathBuf),
    /// A conversation: a first message, or typed ones.
    Chat {
        /// The first message; `None`: messages are typed.
        message: Option<String>,
        /// The system message before it.
        system: Option<String>,
    },
}

/// The sampling flags that were given; generation_config.json has the rest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationFlags {
    /// Tokens of a continuation at most.
    pub max_new_tokens: Option<usize>,
    /// Draw tokens, rather than taking the likeliest.
    pub do_sample: Option<bool>,
    /// The divisor of the logits.
    pub temperature: Option<f64>,
    /// Draw among this many likeliest tokens.
    pub top_k: Option<usize>,
    /// Draw among the likeliest tokens that together have this probability.
    pub top_p: Option<f64>,
    /// Draw among tokens with at least this share of the likeliest one's probability.
    pub min_p: Option<f64>,
    /// The divisor of the logits of tokens that occurred.
    pub repetition_penalty: Option<f64>,
    /// Empty: none was named.
    pub stop_strings: Vec<String>,
}

/// `xtrain bench`.
#[derive(Clone, Debug, PartialEq)]
pub struct BenchPlan {
    /// Where the graphs run.
    pub device: DevicePlan,
    /// Where compiled graphs are kept.
    pub cache: CacheSettings,
    /// The model, usually with random weights.
    pub model: ModelSource,
    /// The adapter that is added to it.
    pub lora: Option<LoraConfig>,
    /// Optimizer, precision and mesh.
    pub train: TrainSettings,
}

/// `xtrain scaling`.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalingPlan {
    /// The axis whose degree grows.
    pub axis: Axis,
    /// The quantity that is equal at every degree.
    pub fixed: Fixed,
    /// The command trains; else it is `bench`, which writes nothing.
    pub trains: bool,
    /// The command's devices are the CPU's: more of them are no more of a machine.
    pub shares_processor: bool,
    /// By degree, the smallest first, which the others are compared with.
    pub runs: Vec<ScaledRun>,
    /// The command as it was typed.
    pub command: Vec<String>,
    /// How often each is run.
    pub repeats: usize,
    /// An SVG file to draw.
    pub plot: Option<PathBuf>,
    /// A page to write.
    pub html: Option<PathBuf>,
    /// Print one JSON object.
    pub json: bool,
}

/// The command at one degree.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledRun {
    /// The degree of the axis that grows.
    pub degree: usize,
    /// Processes that share it.
    pub processes: usize,
    /// Devices of all of them.
    pub devices: usize,
    /// Optimizer steps, of a training run.
    pub max_steps: Option<u64>,
    /// In one microbatch.
    pub examples_per_device: usize,
    /// In an optimizer step of all devices.
    pub examples_per_step: usize,
    /// The command line of one process, without the program.
    pub words: Vec<String>,
}

/// `xtrain sweep`.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepPlan {
    /// At least one.
    pub runs: Vec<SweptRun>,
    /// Each run gets a directory of its name there.
    pub output_dir: PathBuf,
    /// Runs at the same time.
    pub jobs: usize,
}

/// A combination of values.
#[derive(Clone, Debug, PartialEq)]
pub struct SweptRun {
    /// `learning_rate=1e-4,seed=1`.
    pub name: String,
    /// The command line without the program and the output directory.
    pub words: Vec<String>,
    /// Replace a run that was created with different flags (`--overwrite_output_dir`).
    pub replaces: bool,
}

/// `xtrain doctor`.
#[derive(Clone, Debug, PartialEq)]
pub struct DoctorPlan {
    /// Which device is checked.
    pub device: DevicePlan,
    /// For a device whose host cannot lower graphs; elsewhere everything is compiled anew.
    pub cache: CacheSettings,
    /// Print one JSON object.
    pub json: bool,
}

/// `xtrain quickstart`.
#[derive(Clone, Debug, PartialEq)]
pub struct QuickstartPlan {
    /// Where the graphs run.
    pub device: DevicePlan,
    /// Where compiled graphs are kept.
    pub cache: CacheSettings,
    /// Replaced as the run goes on if it is the command's own default; a directory that the user
    /// named was seen to be empty, or may be overwritten.
    pub output_dir: PathBuf,
    /// Of weights, order and dropout.
    pub seed: u64,
    /// `None`: as many as make a convincing sample in under five minutes on two cores.
    pub max_steps: Option<u64>,
    /// Draw nothing on the terminal.
    pub disable_tqdm: bool,
}

/// `xtrain cache`.
#[derive(Clone, Debug, PartialEq)]
pub struct CachePlan {
    /// The action.
    pub verb: CacheVerb,
    /// As they were given, or by default.
    pub flags: Arc<Flags>,
}
