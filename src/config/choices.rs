//! Choices between words: each an enum (or a list of names that another part of the program keeps)
//! with one declaration that parsing, help, messages and `Display` read.

use super::command::CommandName;
use super::kind::{Form, Kind, Wrong};
use xtrain_data::packing::PackingStrategy;
use xtrain_data::settings::Stopping;
use xtrain_data::settings::{OnBadRow, Quoting};
use xtrain_graphs::NeuronChip;
use xtrain_graphs::op::CodeBook;
use xtrain_graphs::optim::ScheduleType;
use xtrain_models::{AdapterBias, HeadKind, MODEL_TYPES, has_head};
use xtrain_parallel::PipelineSchedule;
use xtrain_report::records::LogFormat;
use xtrain_report::scaling::Fixed;
use xtrain_report::terminal::Colors;
use xtrain_runtime::neuron::compiler as neuron;
use xtrain_trainer::gpu::Gpu;
use xtrain_trainer::settings::{ExampleOrder, OptimizerKind};

/// A choice between words.
pub trait Choice: Copy + 'static {
    /// The words in the order of help; several may mean the same.
    const WORDS: &'static [(&'static str, Self)];
}

impl<T: Choice + std::fmt::Debug + PartialEq> Kind for T {
    type Value = T;
    const FORM: Form = Form::Word;
    const PLACEHOLDER: &'static str = "NAME";

    fn choices(_command: Option<CommandName>) -> Vec<&'static str> {
        T::WORDS.iter().map(|(word, _)| *word).collect()
    }

    fn parse(text: &str) -> Result<T, Wrong> {
        let known = T::WORDS
            .iter()
            .find(|(word, _)| word.eq_ignore_ascii_case(text));
        known.map(|(_, value)| *value).ok_or(Wrong::Kind)
    }
}

/// Declares choices. With `enum` the type is declared too, with the first word of each variant as
/// its `Display`; without it the type is another module's, all of whose variants must be there.
macro_rules! choices {
    ($( $(#[$doc:meta])* enum $name:ident {
        $( $(#[$note:meta])* $variant:ident = $word:literal, )+
    } )+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $( $(#[$note])* $variant, )+ }

        impl Choice for $name {
            const WORDS: &'static [(&'static str, Self)] = &[$( ($word, $name::$variant), )+];
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $( $name::$variant => $word, )+ })
            }
        }
    )+};
    ($( $name:ident { $( $variant:ident = $word:literal, )+ } )+) => {$(
        impl Choice for $name {
            const WORDS: &'static [(&'static str, Self)] = &[
                $( ($word, $name::$variant), )+
            ];
        }

        // A variant without a word does not compile.
        const _: fn($name) = |choice| match choice { $( $name::$variant => (), )+ };
    )+};
}

choices! {
    /// Where a command runs.
    enum Device {
        Cpu = "cpu",
        Cuda = "cuda",
        Neuron = "neuron",
    }

    /// When something periodic happens.
    enum Strategy {
        No = "no",
        Steps = "steps",
        Epoch = "epoch",
    }

    /// When checkpoints are written.
    enum SaveStrategy {
        No = "no",
        Steps = "steps",
        Epoch = "epoch",
        /// With every evaluation that is the best so far.
        Best = "best",
    }

    /// The element type that weights are held in.
    enum TorchDtype {
        Auto = "auto",
        Float32 = "float32",
        Bfloat16 = "bfloat16",
    }

    /// The element type that weights are saved in.
    enum SaveDtype {
        Float32 = "float32",
        Bfloat16 = "bfloat16",
        Float16 = "float16",
    }

    /// GLUE's tasks.
    enum GlueTask {
        Cola = "cola",
        Sst2 = "sst2",
        Mrpc = "mrpc",
        Stsb = "stsb",
        Qqp = "qqp",
        Mnli = "mnli",
        Qnli = "qnli",
        Rte = "rte",
        Wnli = "wnli",
    }

    /// What `train dpo` learns by.
    enum PreferenceLoss {
        Sigmoid = "sigmoid",
        Hinge = "hinge",
        Ipo = "ipo",
        ExoPair = "exo_pair",
        NcaPair = "nca_pair",
        Robust = "robust",
        BcoPair = "bco_pair",
        SppoHard = "sppo_hard",
        Aot = "aot",
        AotUnpaired = "aot_unpaired",
        ApoZero = "apo_zero",
        ApoDown = "apo_down",
        DiscoPop = "discopop",
        Sft = "sft",
        SigmoidNorm = "sigmoid_norm",
        /// The only one without a reference.
        Orpo = "orpo",
    }

    /// What `train kto` learns by.
    enum KtoLoss {
        Kto = "kto",
        ApoZeroUnpaired = "apo_zero_unpaired",
    }

    /// The divergence from the reference that scores answers.
    enum FDivergence {
        ReverseKl = "reverse_kl",
        ForwardKl = "forward_kl",
        JsDivergence = "js_divergence",
        AlphaDivergence = "alpha_divergence",
    }

    /// Which end of a longer example is cut off.
    enum Truncation {
        KeepStart = "keep_start",
        KeepEnd = "keep_end",
    }

    /// How attention is lowered.
    enum AttnImplementation {
        /// One call where the device has it.
        Auto = "auto",
        /// Matmuls and softmax, always.
        Eager = "eager",
    }

    /// Who applies dropout to attention weights.
    enum AttentionDropoutKernel {
        Xtrain = "xtrain",
        Cudnn = "cudnn",
    }

    /// Who computes matmuls on the CPU.
    enum CpuKernelChoice {
        /// Kernels of xtrain's own where the processor has one and it is faster.
        Auto = "auto",
        /// XLA, always.
        Xla = "xla",
    }

    /// What a training run writes about itself at its end.
    enum RunReport {
        Html = "html",
        None = "none",
    }

    /// The loss of supervised fine-tuning.
    enum LossType {
        Nll = "nll",
        /// TRL's older name.
        ChunkedNll = "chunked_nll",
        Dft = "dft",
    }

    /// What is pushed to the Hub when.
    enum HubStrategy {
        /// The finished directory.
        End = "end",
        /// With every checkpoint the model as it is then, too.
        EverySave = "every_save",
        /// And the newest checkpoint as such.
        Checkpoint = "checkpoint",
        /// And every checkpoint as such.
        AllCheckpoints = "all_checkpoints",
    }

    /// What `xtrain report` writes.
    enum ReportFormat {
        Html = "html",
        Markdown = "markdown",
        Json = "json",
    }

    /// What the losses of two runs are aligned by.
    enum Alignment {
        Auto = "auto",
        Step = "step",
        Tokens = "tokens",
        Epoch = "epoch",
        Time = "time",
    }

    /// What grows from run to run of `xtrain scaling`: the flag that each degree sets. `processes`
    /// is data parallelism with one process for each of its replicas, `dataloader_num_workers` the
    /// threads of one.
    enum Axis {
        DataParallel = "data_parallel",
        ShardParallel = "shard_parallel",
        TensorParallel = "tensor_parallel",
        PipelineParallel = "pipeline_parallel",
        Processes = "processes",
        DataloaderNumWorkers = "dataloader_num_workers",
    }
}

choices! {
    LogFormat {
        Auto = "auto",
        Trainer = "trainer",
        Line = "line",
        Json = "json",
    }
    Fixed {
        Batch = "batch",
        PerDevice = "per_device",
        Examples = "examples",
    }
    Colors {
        Auto = "auto",
        Always = "always",
        Never = "never",
    }
    PipelineSchedule {
        Interleaved = "interleaved",
        Simple = "simple",
    }
    Quoting {
        None = "none",
        Standard = "standard",
        Backslash = "backslash",
    }
    ExampleOrder {
        Random = "random",
        Sequential = "sequential",
        GroupByLength = "group_by_length",
    }
    OnBadRow {
        Error = "error",
        Skip = "skip",
    }
    Stopping {
        FirstExhausted = "first_exhausted",
        AllExhausted = "all_exhausted",
    }
    NeuronChip {
        Trn1 = "trn1",
        Trn2 = "trn2",
        Trn3 = "trn3",
    }
}

impl Choice for PackingStrategy {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("bfd", PackingStrategy::Bfd),
        ("bfd_split", PackingStrategy::BfdSplit),
        ("wrapped", PackingStrategy::Wrapped),
        // TRL's older name.
        ("bfd-requeue", PackingStrategy::BfdSplit),
    ];
}

impl Choice for OptimizerKind {
    const WORDS: &'static [(&'static str, Self)] = OptimizerKind::WORDS;
}

impl Choice for ScheduleType {
    const WORDS: &'static [(&'static str, Self)] = ScheduleType::WORDS;
}

/// Declares kinds whose words another module lists.
macro_rules! listed {
    ($( $(#[$doc:meta])* $name:ident = $words:expr; )+) => {$(
        $(#[$doc])*
        pub struct $name;

        impl Kind for $name {
            type Value = &'static str;
            const FORM: Form = Form::Word;
            const PLACEHOLDER: &'static str = "NAME";

            fn choices(command: Option<CommandName>) -> Vec<&'static str> {
                let words: fn(Option<CommandName>) -> Vec<&'static str> = $words;
                words(command)
            }

            fn parse(text: &str) -> Result<&'static str, Wrong> {
                Self::choices(None).into_iter().find(|word| *word == text).ok_or(Wrong::Kind)
            }
        }
    )+};
}

listed! {
    /// An architecture.
    ModelType = model_types;
    /// Which of a model's biases are trained with an adapter.
    AdapterBiases = |_| AdapterBias::ALL.map(|(name, _)| name).to_vec();
    /// What codes of 4 bits stand for.
    QuantTypes = |_| vec![CodeBook::Nf4.name(), CodeBook::Fp4.name()];
    NeuronModelType = |_| neuron::MODEL_TYPES.to_vec();
    NeuronOptlevel = |_| neuron::OPTLEVELS.to_vec();
    NeuronAutoCast = |_| neuron::AUTO_CASTS.to_vec();
    NeuronAutoCastType = |_| neuron::AUTO_CAST_TYPES.to_vec();
}

/// The architectures that a command's task is for.
fn model_types(command: Option<CommandName>) -> Vec<&'static str> {
    let suits = |name: &&str| command.is_none_or(|command| suits_task(name, command));
    MODEL_TYPES.into_iter().filter(suits).collect()
}

/// Whether a model that is known by name is of a family with the head that the command needs.
pub fn suits_task(name: &str, command: CommandName) -> bool {
    let head = match (command.task(), command) {
        (Some(task), _) => task.head(),
        (None, CommandName::Generate) => HeadKind::CausalLm,
        (None, _) => return true,
    };
    has_head(name, head) != Some(false)
}

/// One or more of what `train dpo` learns by.
pub struct PreferenceLosses;

impl Kind for PreferenceLosses {
    type Value = Vec<PreferenceLoss>;
    const FORM: Form = Form::List;
    const PLACEHOLDER: &'static str = "NAME";

    fn choices(command: Option<CommandName>) -> Vec<&'static str> {
        PreferenceLoss::choices(command)
    }

    fn parse(text: &str) -> Result<Self::Value, Wrong> {
        PreferenceLoss::parse(text).map(|loss| vec![loss])
    }

    fn parse_all(texts: &[String]) -> Result<Self::Value, Wrong> {
        if texts.is_empty() {
            return Err(Wrong::Kind);
        }
        let losses = texts.iter().map(|text| PreferenceLoss::parse(text));
        losses.collect()
    }
}

/// What can be compiled for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Gpu(Gpu),
    Chip(NeuronChip),
}

impl Kind for Target {
    type Value = Target;
    const FORM: Form = Form::Word;
    const PLACEHOLDER: &'static str = "NAME";

    fn choices(command: Option<CommandName>) -> Vec<&'static str> {
        Gpu::NAMES
            .into_iter()
            .chain(NeuronChip::choices(command))
            .collect()
    }

    fn parse(text: &str) -> Result<Target, Wrong> {
        match Gpu::named(text) {
            Some(gpu) => Ok(Target::Gpu(gpu)),
            None => NeuronChip::parse(text).map(Target::Chip),
        }
    }
}
