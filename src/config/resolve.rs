//! Flags become plans: only this file decides defaults that depend on other settings. It runs after
//! `rules`, which refuse commands that lack something.

use super::adapter;
use super::choices::{
    AttentionDropoutKernel, AttnImplementation, CpuKernelChoice, Device, RunReport, SaveDtype,
    SaveStrategy, Strategy, Target, TorchDtype,
};
use super::command::sets::EVAL;
use super::command::{CommandName, TaskName};
use super::error::UsageError;
use super::flags::Flags;
use super::kind::{Degree, Interval};
use super::mesh;
use super::plan::*;
use super::preference;
use super::scaling;
use super::setting::Setting;
use super::sources;
use super::sweep;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use xtrain_cache::{CacheSettings, RemoteSettings};
use xtrain_distributed::environment::Timeouts;
use xtrain_graphs::DType;
use xtrain_graphs::optim::ADAMW;
use xtrain_hub::HubSettings;
use xtrain_launch::LaunchSettings;
use xtrain_parallel::Mesh;
use xtrain_runtime::OverrideValue;
use xtrain_runtime::neuron::NeuronSettings;
use xtrain_trainer::device::DeviceSettings;
use xtrain_trainer::settings::{
    Cadence, Checkpointing, ExampleOrder, OptimizerSettings, Precision, WeightStorage,
};

const CHECKED: &str = "a rule refuses a command without it";

/// The plan of a command.
///
/// # Errors
/// A command to scale that has no plan at some degree.
pub fn resolve(flags: &Arc<Flags>) -> Result<Command, UsageError> {
    Ok(match flags.command {
        CommandName::Train(task) => Command::Train(run_plan(flags, "train", task)),
        CommandName::Eval(task) => Command::Eval(run_plan(flags, "eval", task)),
        CommandName::Compile(task) => Command::Compile(CompilePlan {
            train: run_plan(flags, "train", task),
            jobs: jobs(flags),
            check: *flags.check,
            export: flags.export.clone(),
        }),
        CommandName::Fit(task) => Command::Fit(FitPlan {
            train: run_plan(flags, "train", task),
            scale_from: *flags.scale_learning_rate_from,
            json: *flags.json,
        }),
        CommandName::Predict(task) => Command::Predict(PredictPlan {
            run: run_plan(flags, "predict", task),
            output_file: flags.output_file.clone(),
            include_text: *flags.include_text,
        }),
        CommandName::Generate => Command::Generate(generate_plan(flags)),
        CommandName::Merge => Command::Merge(MergePlan {
            device: device(flags),
            cache: cache(flags),
            model: sources::model(flags).expect(CHECKED),
            output_dir: flags.output_dir.clone().expect(CHECKED),
            train: train_settings(flags),
        }),
        CommandName::Bench => Command::Bench(bench_plan(flags)),
        CommandName::Top => Command::Top(flags.clone()),
        CommandName::Report => Command::Report(flags.clone()),
        CommandName::Launch => Command::Launch(launch_settings(flags)),
        CommandName::Scaling => Command::Scaling(scaling::plan(flags)?),
        CommandName::Sweep => Command::Sweep(sweep::plan(flags)?),
        CommandName::Quickstart => Command::Quickstart(quickstart_plan(flags)),
        CommandName::Cache(verb) => Command::Cache(CachePlan {
            verb,
            flags: flags.clone(),
        }),
        CommandName::Doctor => Command::Doctor(DoctorPlan {
            device: device(flags),
            cache: all_kept(flags),
            json: *flags.json,
        }),
    })
}

fn run_plan(flags: &Arc<Flags>, verb: &'static str, task: TaskName) -> RunPlan {
    RunPlan {
        verb,
        settings: flags.settings(),
        device: device(flags),
        target: match *flags.target {
            Some(Target::Gpu(gpu)) => Some(gpu),
            Some(Target::Chip(_)) | None => None,
        },
        cache: cache(flags),
        model: sources::model(flags).expect(CHECKED),
        tokenizer: TokenizerSource {
            path: sources::tokenizer_path(flags).expect(CHECKED).into(),
            lower_case: *flags.do_lower_case,
        },
        lora: adapter::new(flags),
        task: sources::task_plan(flags, task),
        train: train_settings(flags),
        do_train: flags.trains(),
        do_eval: flags.evaluates(),
        do_predict: flags.predicts(),
        report: match *flags.report {
            RunReport::Html => true,
            RunReport::None => false,
        },
        log_format: *flags.log_format,
        trackers: trackers(flags),
        push: flags.push_to_hub.then(|| push(flags)),
        bucket: flags.bucket.clone(),
        auto_batch: *flags.per_device_train_batch_size == Degree::Auto,
        memory: *flags.memory,
        compare: flags.compare_meshes.map(|devices| MeshComparison {
            devices,
            given: mesh::degrees(flags).map(|degree| degree.count().filter(|_| degree.is_given())),
        }),
    }
}

fn trackers(flags: &Flags) -> TrackerPlan {
    let variable = || std::env::var_os(sources::LOGGING_VARIABLE).filter(|dir| !dir.is_empty());
    let output_dir = flags.output_dir.as_deref().unwrap_or(Path::new("run"));
    let name = || output_dir.file_name().unwrap_or(output_dir.as_os_str());
    TrackerPlan {
        kinds: flags.report_to.clone(),
        logging_dir: flags.logging_dir.clone().or(variable().map(PathBuf::from)),
        run_name: match &*flags.run_name {
            Some(name) => name.clone(),
            None => name().to_string_lossy().into_owned(),
        },
    }
}

fn push(flags: &Flags) -> PushPlan {
    let mut hub = HubSettings::from_env(|name| std::env::var(name).ok());
    // A dump of TrainingArguments has its name in the place of the token.
    let token = flags
        .hub_token
        .clone()
        .filter(|token| !matches!(&**token, "<HUB_TOKEN>" | "<PUSH_TO_HUB_TOKEN>"));
    hub.token = token.or(hub.token);
    PushPlan {
        hub,
        name: flags.pushed_name().expect(CHECKED),
        private: *flags.hub_private_repo,
        strategy: *flags.hub_strategy,
        always: *flags.hub_always_push,
        revision: flags.hub_revision.clone(),
    }
}

fn launch_settings(flags: &Flags) -> LaunchSettings {
    let seconds = |setting: &Setting<usize>| Duration::from_secs(**setting as u64);
    LaunchSettings {
        processes: *flags.nproc_per_node,
        nodes: *flags.nnodes,
        node: *flags.node_rank,
        endpoint: flags.rdzv_endpoint.clone(),
        secret_file: flags.rdzv_secret_file.clone(),
        max_restarts: *flags.max_restarts as u64,
        timeouts: Timeouts {
            join: seconds(&flags.rdzv_timeout),
            heartbeat: seconds(&flags.heartbeat_timeout),
        },
        words: flags.launched.clone(),
    }
}

fn jobs(flags: &Flags) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    flags.jobs.unwrap_or(cores.div_ceil(2))
}

fn generate_plan(flags: &Arc<Flags>) -> GeneratePlan {
    GeneratePlan {
        device: device(flags),
        cache: cache(flags),
        model: sources::model(flags).expect(CHECKED),
        tokenizer: sources::tokenizer_path(flags).expect(CHECKED).into(),
        prompts: match (&*flags.prompt_file, flags.prompt.clone()) {
            (_, message) if *flags.chat => PromptSource::Chat {
                message,
                system: flags.system_prompt.clone(),
            },
            (Some(file), _) => PromptSource::File(file.clone()),
            (None, prompt) => PromptSource::Text(prompt.expect(CHECKED)),
        },
        generation: GenerationFlags {
            max_new_tokens: *flags.max_new_tokens,
            do_sample: *flags.do_sample,
            temperature: *flags.temperature,
            top_k: *flags.top_k,
            top_p: *flags.top_p,
            min_p: *flags.min_p,
            repetition_penalty: *flags.repetition_penalty,
            stop_strings: flags.stop_strings.clone(),
        },
        num_return_sequences: *flags.num_return_sequences,
        seed: *flags.seed,
        train: train_settings(flags),
    }
}

fn bench_plan(flags: &Arc<Flags>) -> BenchPlan {
    BenchPlan {
        device: device(flags),
        cache: cache(flags),
        model: sources::model(flags).expect(CHECKED),
        lora: adapter::new(flags),
        train: TrainSettings {
            // The peers' (`bench/peers.py`).
            optimizer: OptimizerSettings {
                storage: storage(flags),
                ..OptimizerSettings::constant(ADAMW, 1e-4)
            },
            ..train_settings(flags)
        },
    }
}

fn quickstart_plan(flags: &Flags) -> QuickstartPlan {
    let output_dir = flags.output_dir.clone();
    QuickstartPlan {
        device: device(flags),
        cache: cache(flags),
        output_dir: output_dir.unwrap_or_else(|| "output/quickstart".into()),
        seed: *flags.seed,
        max_steps: *flags.max_steps,
        disable_tqdm: *flags.disable_tqdm,
    }
}

fn device(flags: &Flags) -> DevicePlan {
    let mut xla_options = flags.xla_options.clone().unwrap_or_default();
    let mut set = |name: &str, value| {
        let option = xla_options.entry(name.into());
        option.or_insert(OverrideValue::Bool(value));
    };
    if *flags.activation_offloading {
        // While a copy from the host is under way it would run whatever else it finds, and keep
        // what that needs: on a card with room to spare more is held then than is put away.
        set("xla_gpu_enable_latency_hiding_scheduler", false);
        // Where a step would not fit, XLA moves more of it there instead of computing it again.
        set("xla_gpu_enable_host_memory_offloading", true);
    }
    if *flags.full_determinism && *flags.device == Device::Cuda {
        // Sums by atomics and cuDNN's backward attention have no fixed order otherwise. Matmuls are
        // cuBLAS's then: XLA's tuner takes no Triton kernel, and fails where it can measure no other.
        set("xla_gpu_exclude_nondeterministic_ops", true);
        set("xla_gpu_enable_triton_gemm", false);
    }
    let settings = DeviceSettings {
        plugin: flags.plugin.clone(),
        memory_fraction: *flags.gpu_memory_fraction,
        visible_devices: flags.visible_devices.clone().unwrap_or_default(),
        neuron: neuron(flags),
        plain_attention: *flags.attn_implementation == AttnImplementation::Eager,
        fused_attention_dropout: *flags.attention_dropout_kernel == AttentionDropoutKernel::Cudnn,
        tf32: *flags.tf32,
        xla_matmuls: *flags.cpu_kernels == CpuKernelChoice::Xla,
        cpu_threads: *flags.cpu_threads,
        xla_options,
        member: flags.member().expect(CHECKED).map(Box::new),
    };
    DevicePlan {
        kind: *flags.device,
        settings,
    }
}

/// The arrangement of a run's devices.
fn mesh(flags: &Flags) -> Mesh {
    mesh::mesh(flags).expect(CHECKED)
}

fn checkpointing(flags: &Flags) -> Checkpointing {
    let asked = *flags.gradient_checkpointing;
    if !*flags.activation_offloading {
        return asked;
    }
    match asked {
        Checkpointing::Off | Checkpointing::Full => Checkpointing::Offloaded(1),
        Checkpointing::Every(layers) | Checkpointing::Offloaded(layers) => {
            Checkpointing::Offloaded(layers)
        }
        // Refused by a rule.
        Checkpointing::Attention => Checkpointing::Attention,
    }
}

/// The settings of Neuron's compiler.
fn neuron(flags: &Flags) -> NeuronSettings {
    NeuronSettings {
        chip: match *flags.target {
            Some(Target::Chip(chip)) => Some(chip),
            Some(Target::Gpu(_)) | None => *flags.neuron_target,
        },
        optlevel: *flags.neuron_optlevel,
        auto_cast: *flags.neuron_auto_cast,
        auto_cast_type: *flags.neuron_auto_cast_type,
        model_type: *flags.neuron_model_type,
        stochastic_rounding: *flags.neuron_stochastic_rounding,
    }
}

/// How compiled graphs are kept.
fn cache(flags: &Flags) -> CacheSettings {
    let dir = flags
        .compile_cache
        .then(|| sources::cache_dir(flags, "graphs"));
    CacheSettings {
        remote: remote_cache(flags),
        max_bytes: *flags.cache_max_size,
        fail_on_recompile: *flags.fail_on_recompile,
        ..CacheSettings::kept_in(dir)
    }
}

/// The store of compiled graphs that others fill.
fn remote_cache(flags: &Flags) -> Option<RemoteSettings> {
    let place = flags.cache_remote.clone()?;
    Some(RemoteSettings {
        place,
        writes: *flags.cache_remote_write,
        key: flags.cache_remote_key.clone(),
    })
}

/// The same for a command that has no flags for it.
fn all_kept(flags: &Flags) -> CacheSettings {
    CacheSettings::kept_in(Some(sources::cache_dir(flags, "graphs")))
}

impl CachePlan {
    /// The directory of the compiled graphs.
    pub fn dir(&self) -> PathBuf {
        sources::cache_dir(&self.flags, "graphs")
    }

    /// The store that it shares graphs with.
    pub fn remote(&self) -> Option<RemoteSettings> {
        remote_cache(&self.flags)
    }

    /// The device that loads its graphs.
    pub fn device(&self) -> DevicePlan {
        device(&self.flags)
    }
}

fn cadence(strategy: Strategy, every: Interval) -> Cadence {
    match strategy {
        Strategy::Steps => steps(every),
        Strategy::Epoch => Cadence::Epoch,
        Strategy::No => Cadence::Never,
    }
}

fn save_cadence(strategy: SaveStrategy, every: Interval) -> Cadence {
    match strategy {
        SaveStrategy::Steps => steps(every),
        SaveStrategy::Epoch => Cadence::Epoch,
        SaveStrategy::No => Cadence::Never,
        SaveStrategy::Best => Cadence::Best,
    }
}

fn steps(every: Interval) -> Cadence {
    match every {
        Interval::Steps(steps) => Cadence::Steps(steps as u64),
        Interval::Share(share) => Cadence::Share(share),
    }
}

fn train_settings(flags: &Arc<Flags>) -> TrainSettings {
    let logging_steps = *flags.logging_steps;
    TrainSettings {
        flags: flags.clone(),
        // `compile` and `fit` write nothing there, but take the flags of a run that does.
        output_dir: flags.output_dir.clone().unwrap_or_default(),
        per_device_train_batch_size: flags.per_device_train_batch_size.count().unwrap_or(1),
        mesh: mesh(flags),
        shard_optimizer_state: *flags.shard_optimizer_state,
        checkpointing: checkpointing(flags),
        replica_check: match *flags.replica_check_steps {
            0 => Cadence::Never,
            steps => Cadence::Steps(steps as u64),
        },
        optimizer: optimizer(flags),
        precision: precision(flags),
        eval_precision: eval_precision(flags),
        logging: cadence(*flags.logging_strategy, logging_steps),
        save: save_cadence(*flags.save_strategy, *flags.save_steps),
        eval: cadence(
            *flags.eval_strategy,
            flags.eval_steps.unwrap_or(logging_steps),
        ),
        save_dtype: flags.save_dtype.map(|dtype| match dtype {
            SaveDtype::Float32 => DType::F32,
            SaveDtype::Bfloat16 => DType::BF16,
            SaveDtype::Float16 => DType::F16,
        }),
        best: sources::best(flags),
        example_order: if *flags.group_by_length {
            ExampleOrder::GroupByLength
        } else {
            *flags.train_sampling_strategy
        },
    }
}

/// The storage of weights and optimizer state; an evaluation needs no copies.
fn storage(flags: &Flags) -> WeightStorage {
    let copies = *flags.master_weights && !EVAL.contains(flags.command);
    match *flags.torch_dtype {
        TorchDtype::Auto | TorchDtype::Float32 => WeightStorage::F32,
        TorchDtype::Bfloat16 if copies => WeightStorage::Bf16WithMasters,
        TorchDtype::Bfloat16 => WeightStorage::Bf16,
    }
}

/// The precision of training steps.
fn precision(flags: &Flags) -> Precision {
    if *flags.bf16 || *flags.torch_dtype == TorchDtype::Bfloat16 {
        Precision::Bf16
    } else if *flags.fp16 {
        Precision::Fp16
    } else {
        Precision::F32
    }
}

/// As the Trainer has it, evaluation follows training unless one of its own flags is given.
fn eval_precision(flags: &Flags) -> Precision {
    if *flags.bf16_full_eval {
        Precision::Bf16
    } else if *flags.fp16_full_eval {
        Precision::Fp16
    } else {
        precision(flags)
    }
}

fn optimizer(flags: &Flags) -> OptimizerSettings {
    // Steps or, below 1, a share of them (transformers 5); above 0 they beat the older
    // warmup_ratio.
    let warmup = *flags.warmup_steps;
    OptimizerSettings {
        kind: *flags.optim,
        storage: storage(flags),
        arguments: flags.optim_args.clone(),
        learning_rate: preference::learning_rate(flags),
        weight_decay: *flags.weight_decay,
        adam_beta1: *flags.adam_beta1,
        adam_beta2: *flags.adam_beta2,
        adam_epsilon: *flags.adam_epsilon,
        max_grad_norm: *flags.max_grad_norm,
        schedule: flags
            .lr_scheduler_type
            .with(&flags.lr_scheduler_kwargs)
            .expect(CHECKED),
        schedule_arguments: flags.lr_scheduler_kwargs.clone(),
        warmup_steps: (warmup >= 1.0).then_some(warmup as u64),
        warmup_ratio: if warmup > 0.0 && warmup < 1.0 {
            warmup
        } else {
            *flags.warmup_ratio
        },
    }
}

#[cfg(test)]
mod tests;
