//! The flags of generation, of measurements, of one kind of device and of the cache.
//!
//! A table that `flags.rs` declares from: the macro adds its sections to those that it is given, and hands
//! all of them to the next table.

macro_rules! machine_flags {
    ({ $($before:tt)* } $next:ident $($tables:ident)*) => { $next! { { $($before)*
Generation {
    /// The text to continue
    prompt: Option<Prose>, GENERATE;
    /// A file with a prompt on each line; all of them are continued as one batch
    prompt_file: Option<PathBuf>, GENERATE;
    /// Hold a conversation on the terminal in the model's chat template, or answer prompt, or what a
    /// pipe brings
    chat: bool = "false", GENERATE;
    /// With chat: the system message
    system_prompt: Option<Prose>, GENERATE;
    /// Maximum number of tokens to generate; default: that of generation_config.json, else 50
    max_new_tokens: Option<Count<1>>, GENERATE;
    /// Sample instead of taking the likeliest token; default: true if temperature, top_k, top_p or
    /// min_p is given, else that of generation_config.json, else true
    do_sample: Option<bool>, GENERATE;
    /// Sampling temperature; 0: greedy; default: that of generation_config.json, else 1
    temperature: Option<NotNegative>, GENERATE;
    /// Sample from the K most likely tokens (0: all); default: that of generation_config.json, else
    /// 50
    top_k: Option<Count<0>>, GENERATE;
    /// Sample from the most likely tokens that together reach this probability; default: that of
    /// generation_config.json, else 1
    top_p: Option<Fraction>, GENERATE;
    /// Sample from tokens with at least this share of the likeliest token's probability; default:
    /// that of generation_config.json, else 0
    min_p: Option<Fraction>, GENERATE;
    /// Divide the logits of tokens that the text already has by this; default: that of
    /// generation_config.json, else 1
    repetition_penalty: Option<Positive>, GENERATE;
    /// Continuations of each prompt
    num_return_sequences: Count<1> = "1", GENERATE;
    /// End a text before any of these; default: those of generation_config.json
    stop_strings: Texts, GENERATE;
}
Measurement {
    /// Per-device memory budget for fit, auto and dry_run; default for fit and auto: the
    /// device's memory, on the CPU four fifths of the machine's
    memory: Option<Bytes>, TRAIN;
    /// RATE@EXAMPLES: a learning rate tuned for that many examples per step; scales it linearly
    /// to the batch that fits
    scale_learning_rate_from: Option<RateAtExamples>, FIT;
    /// Examples per data-parallel device and step
    batch: Count<1> = "4", BENCH;
    /// Tokens per example
    seq: Count<1> = "128", BENCH;
    /// Measured steps
    steps: Count<1> = "10", BENCH;
    /// Unmeasured steps after the first
    warmup: Count<0> = "2", BENCH;
    /// Dropout wherever the model has one; random weights only
    dropout: Fraction = "0", BENCH;
    /// Measure generation instead of training: batch texts of seq tokens are continued by steps tokens
    generate: bool = "false", BENCH;
    /// With --device cpu: where a step's time goes, by part of the model and kind of operation
    profile: bool = "false", BENCH;
    /// Print the result as JSON (train: the plan, with dry_run; report: with compare_losses)
    json: bool = "false", BENCH | COMPILE | DOCTOR | EVAL | CACHE_LS | CACHE_SHOW | CACHE_STATS | FIT | TOP | SCALING | TRAINING | REPORT;
    /// Degrees to run at, as 1,2,4; compared with the smallest
    degrees: Option<Degrees>, SCALING;
    /// Flag of the command to vary, or its processes, one per data-parallel replica;
    /// dataloader_num_workers: threads, of a training run
    axis: Axis = "data_parallel", SCALING;
    /// What is the same at every degree: batch, the examples of a step, which devices share (strong
    /// scaling); per_device, those of a device (weak scaling); examples, also those of the whole
    /// run, in fewer steps
    fixed: Fixed = "batch", SCALING;
    /// As --fixed per_device
    weak: bool = "false", SCALING;
    /// A flag of the command and its values, as learning_rate=1e-4,3e-4; every combination of
    /// several --grid is a run
    grid: Grids, SWEEP;
    /// Runs at the same time
    sweep_jobs: Count<1> = "1", SWEEP, name "jobs";
    /// Repetitions per degree; the median is reported
    repeats: Count<1> = "3", SCALING;
    /// Plot throughput by degree to this SVG file
    plot: Option<WrittenPath>, SCALING;
    /// Write the tables and plots to this HTML file; compile, cache show: with kernels
    html: Option<WrittenPath>, SCALING | COMPILE | CACHE_SHOW;
    /// The run that the others are compared with, as it was named; default: the first
    baseline: Option<String>, REPORT;
    /// Price of one instance for an hour; adds cost, and cost per million tokens
    price_per_hour: Option<NotNegative>, REPORT;
    /// Formats to write, as html,markdown,json
    format: Formats = "html", REPORT;
    /// The file to write, with each format's ending; default: report.html, for markdown or json
    /// alone standard output
    report_file: Option<WrittenPath>, REPORT, name "output";
    /// Compare the training losses of two runs step by step and smoothed, and write no page
    compare_losses: bool = "false", REPORT;
    /// With compare_losses: what losses are aligned by; auto: step if it is the same work in
    /// both runs, else tokens, epoch or time
    align: Alignment = "auto", REPORT;
    /// With compare_losses: values in a running mean
    window: Count<1> = "20", REPORT;
    /// With compare_losses: fail if the largest difference is above this share, as 0.01
    largest: Option<NotNegative>, REPORT;
    /// With compare_losses: fail if the mean difference is above this share
    mean: Option<NotNegative>, REPORT;
    /// With compare_losses: fail if the largest difference of running means is above this share
    smoothed: Option<NotNegative>, REPORT;
}
Neuron {
    /// With --device neuron: the chip to compile for; default: that of this instance, else trn1
    neuron_target: Option<NeuronChip>, RUNNING_TRAINED, name "target";
    /// neuronx-cc's --model-type; default: that of NEURON_CC_FLAGS, else transformer
    neuron_model_type: Option<NeuronModelType>, ON_A_DEVICE;
    /// neuronx-cc's --optlevel, where 1 compiles fastest; default: that of NEURON_CC_FLAGS,
    /// else 2
    neuron_optlevel: Option<NeuronOptlevel>, ON_A_DEVICE;
    /// neuronx-cc's --auto-cast, which casts f32 operations the model did not ask to; default:
    /// that of NEURON_CC_FLAGS, else none
    neuron_auto_cast: Option<NeuronAutoCast>, ON_A_DEVICE;
    /// neuronx-cc's --auto-cast-type; default: that of NEURON_CC_FLAGS, else bf16
    neuron_auto_cast_type: Option<NeuronAutoCastType>, ON_A_DEVICE;
    /// Stochastic rounding to 16 bits on the chip (NEURON_RT_STOCHASTIC_ROUNDING_EN), seeded by
    /// NEURON_RT_STOCHASTIC_ROUNDING_SEED, else 0
    neuron_stochastic_rounding: bool = "false", ON_A_DEVICE;
}
Cache {
    /// Graphs to compile in parallel; default: one per two cores
    jobs: Option<Count<1>>, COMPILE, short 'j';
    /// Load compiled graphs from cache_dir and store new ones there
    compile_cache: bool = "true", COMPILING;
    /// Where else to look for compiled graphs: another cache_dir, or a folder of objects
    /// (s3://BUCKET/PREFIX, gs://, az://, https://); what is found there is copied into cache_dir
    cache_remote: Option<StorePath>, COMPILING | CACHE_LS | CACHE_PUSH | CACHE_PULL;
    /// Store what is compiled here in cache_remote, too; hosts that do compile each graph once
    cache_remote_write: bool = "false", READING | GENERATE | BENCH;
    /// File with the key that signs the entries of cache_remote, readable only by its owner;
    /// default: $XTRAIN_CACHE_KEY; with a key, only signed entries are loaded
    cache_remote_key: Option<PathBuf>, READING | GENERATE | BENCH | CACHE_LS | CACHE_PUSH | CACHE_PULL;
    /// Cache size above which the least recently used graphs are evicted
    cache_max_size: Bytes = "10GiB", COMPILING;
    /// Fail instead of recompiling a graph that this run or an earlier one compiled in another
    /// version
    fail_on_recompile: bool = "false", READING | GENERATE | BENCH;
    /// Stored graphs, each by a unique prefix of its id
    id: Words, CACHE_SHOW | CACHE_EXPLAIN | CACHE_EXPORT | CACHE_VERIFY | CACHE_PUSH | CACHE_PULL;
    /// Print only the HLO module before compilation
    hlo: bool = "false", CACHE_SHOW;
    /// Print only the optimized HLO module
    optimized_hlo: bool = "false", CACHE_SHOW;
    /// Print only the module before compilation, as StableHLO
    stablehlo: bool = "false", CACHE_SHOW;
    /// Print the live buffers at peak memory, largest first, in the model's terms
    peak_memory: bool = "false", CACHE_SHOW, name "memory";
    /// Remove graphs not used for N days
    older_than: Option<NotNegative>, CACHE_PRUNE;
    /// Remove the least recently used graphs until the rest fits
    max_size: Option<Bytes>, CACHE_PRUNE;
    /// Restrict to graphs compiled for devices whose name starts with this (cpu, cuda, neuron)
    only_device: Option<String>, CACHE_PRUNE;
    /// Remove graphs that this build never loads: other XLA version, lowering or format
    stale_compiler: bool = "false", CACHE_PRUNE;
    /// Export modules without executables, each once, for a device whose host cannot lower
    /// graphs
    modules_only: bool = "false", CACHE_EXPORT;
    /// The tar file
    file: Option<ArchivePath>, CACHE_EXPORT | CACHE_IMPORT;
}
} $($tables)* } };
}

pub(super) use machine_flags;
