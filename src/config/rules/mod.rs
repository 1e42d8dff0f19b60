//! The rules between flags, in one list: each refuses what is legal by itself but not together, or a
//! missing path. What takes more than a condition is a function. Ranges of single values are their
//! kinds', and have been checked before.

pub mod contents;
mod data;
mod device;
mod model;
pub(super) mod output;
mod preference;
mod processes;
#[cfg(test)]
mod tests;
mod training;
mod verdict;

use super::choices::{Device, LossType, Target};
use super::command::Commands;
use super::command::sets::*;
use super::error::UsageError;
use super::flags::Flags;
use verdict::{Verdict, refuse_if};
use xtrain_trainer::settings::{Checkpointing, ExampleOrder, Resume};

/// A rule and the commands that it is for.
struct Rule {
    #[cfg(test)]
    name: &'static str,
    commands: &'static [Commands],
    check: fn(&Flags) -> Verdict,
}

/// Declares the list: a rule, the commands that it is for, and the file whose function it is, or in
/// which case it refuses, saying what is wrong and what to do.
macro_rules! rules {
    ($flags:ident: $(
        $(#[$doc:meta])*
        $rule:ident for $($commands:ident)|+ $(in $room:ident)?
        $(if $illegal:expr => $problem:literal, $fix:literal)?;
    )+) => {
        /// In the order in which a user would want to hear of them.
        const RULES: &[Rule] = &[$(
            Rule {
                #[cfg(test)]
                name: stringify!($rule),
                commands: &[$($commands),+],
                $( check: $room::$rule, )?
                $( check: |$flags| refuse_if($illegal, $problem, $fix), )?
            },
        )+];
    };
}

rules! {
    flags:
    target_is_of_the_device for COMPILE | FIT | RUNNING in device;
    cards_that_are_described_run_nothing for TRAINING
        if matches!(*flags.target, Some(Target::Gpu(_))) && !*flags.dry_run =>
        "--target names a GPU to compile for, and nothing runs there",
        "add --dry_run, or leave --target out to train on the GPU of this machine";
    kernels_are_those_of_a_card for COMPILE
        if *flags.kernels && !matches!(*flags.target, Some(Target::Gpu(_))) =>
        "compile --kernels reports on graphs that are compiled for a GPU you don't have",
        "add --device cuda --target h200; `xtrain cache show ID --kernels` reports on a stored graph of any device";
    page_is_of_kernels for COMPILE | CACHE_SHOW
        if flags.html.is_given() && !*flags.kernels =>
        "--html writes the report of --kernels",
        "add --kernels";
    json_is_of_kernels for COMPILE
        if *flags.json && !*flags.kernels =>
        "compile --json prints the report of --kernels",
        "add --kernels";
    use_cpu_is_the_cpu for TRAIN_EVAL
        if *flags.use_cpu && *flags.device != Device::Cpu =>
        "--use_cpu and --device contradict each other",
        "leave one of them out";
    plugin_is_an_accelerators for OPENING
        if flags.plugin.is_given() && *flags.device == Device::Cpu =>
        "--plugin names an accelerator's plugin, but --device is cpu",
        "add --device cuda or --device neuron";
    cuda_flags_need_cuda for OPENING in device;
    offloading_needs_two_memories for TRAIN | BENCH in device;
    offloading_is_by_layers for TRAIN | BENCH
        if *flags.activation_offloading && *flags.gradient_checkpointing == Checkpointing::Attention =>
        "--activation_offloading offloads layer inputs, but --gradient_checkpointing attention keeps none",
        "use --gradient_checkpointing full or every:K, or leave one of them out";
    offloading_is_within_a_graph for TRAIN | BENCH in device;
    tf32_needs_cuda for TRAIN_EVAL | BENCH | PREDICT in device;
    cudnn_dropout_needs_cuda for TRAIN | BENCH in device;
    cudnn_dropout_is_fused for TRAIN | BENCH in device;
    cudnn_dropout_runs_once for TRAIN | BENCH in device;
    memory_fraction_leaves_memory for OPENING
        if *flags.gpu_memory_fraction == Some(0.0) =>
        "--gpu_memory_fraction 0 leaves a run no memory",
        "raise it; 0.9 is usual";
    neuron_flags_need_neuron for ALL in device;
    environment_is_consistent for TRAINING | EVAL in processes;
    devices_divide_between_processes for TRAINING | EVAL in processes;
    automatic_batch_needs_one_process for TRAINING in processes;
    degrees_have_an_answer for ALL in processes;
    cpu_devices_are_few for TRAIN_EVAL | BENCH in processes;
    remote_cache_needs_the_cache for COMPILING
        if flags.cache_remote.is_given() && !*flags.compile_cache =>
        "--cache_remote copies into the cache, and --compile_cache is false",
        "leave one of them out";
    remote_cache_is_a_place for COMPILING | CACHE_LS | CACHE_PUSH | CACHE_PULL in output;
    remote_cache_is_named for READING | GENERATE | BENCH
        if !flags.cache_remote.is_given() && (*flags.cache_remote_write || flags.cache_remote_key.is_given()) =>
        "--cache_remote_write and --cache_remote_key need --cache_remote",
        "add --cache_remote with a directory or a URL, or leave them out";
    examples_of_a_step_have_a_bound for TRAIN in processes;
    sequence_parallel_needs_tensor_parallel for TRAIN | BENCH in processes;
    launch_leaves_device_to_the_command for LAUNCH
        if flags.device.is_given() =>
        "--device belongs to the command that is launched",
        "write it after --: `-- train clm --device cuda ...`";
    node_rank_is_a_node for LAUNCH in processes;
    nodes_need_an_endpoint for LAUNCH
        if *flags.nnodes > 1 && !flags.rdzv_endpoint.is_given() =>
        "several machines need a rendezvous",
        "add --rdzv_endpoint HOST:PORT with an address of node 0";
    launch_runs_train_or_eval for LAUNCH in processes;
    losses_go_together for DPO in preference;
    evaluation_has_its_reference for EVAL_REFERENCED in preference;
    kl_is_estimated_within_a_batch for KTO in preference;
    answers_are_not_streamed for PREFERENCES
        if *flags.streaming =>
        "--streaming: answers are tokenized before training, and the reference's log-probabilities computed once",
        "leave it out";
    one_16_bit_type for TRAIN_EVAL | BENCH in training;
    directories_of_the_environment_are_here for ALL in output;
    something_to_do for TRAINING
        if !flags.trains() && !flags.evaluates() && !flags.predicts() =>
        "neither training nor evaluation is asked for",
        "add --do_train, --do_eval or both";
    run_has_an_output_dir for TRAINING
        if !flags.output_dir.is_given() && !flags.preview.is_given() =>
        "--output_dir is missing",
        "add --output_dir DIR, where the model, checkpoints and logs go";
    json_is_for_the_plan for TRAINING
        if *flags.json && !*flags.dry_run && !flags.preview.is_given() =>
        "--json is for the plan: a run writes its numbers into its output directory",
        "add --dry_run";
    fit_looks_for_a_training_batch for FIT
        if !flags.trains() =>
        "fit looks for a training batch, and nothing is trained",
        "add --do_train";
    predict_needs_a_model for PREDICT
        if !flags.model_name_or_path.is_given() =>
        "predict needs a model",
        "add --model_name_or_path DIR, the output directory of a classifier's training";
    generate_needs_a_model for GENERATE
        if !flags.model_name_or_path.is_given() =>
        "generate needs a model",
        "add --model_name_or_path DIR, the output directory of a training run";
    merge_has_an_adapter for MERGE
        if !flags.adapter_name_or_path.is_given() =>
        "merge needs an adapter",
        "add --adapter_name_or_path DIR, the output directory of a run with --use_peft";
    merge_has_a_model for MERGE
        if flags.adapter_name_or_path.is_given() && !flags.model_name_or_path.is_given() =>
        "merge needs the model that the adapter is of",
        "add --model_name_or_path MODEL";
    merge_writes_a_directory for MERGE in model;
    weights_or_a_description for READING | GENERATE | BENCH in model;
    one_way_to_quantize for READING | GENERATE | BENCH
        if *flags.load_in_4bit && *flags.load_in_8bit =>
        "--load_in_4bit and --load_in_8bit are two ways to hold the same matrices",
        "leave one of them out";
    kinds_of_4_bits_have_4_bits for READING | GENERATE | BENCH in model;
    quantized_models_train_adapters for TRAIN in model;
    quantized_models_run_on_cpus_and_gpus for READING | GENERATE | BENCH in model;
    adapter_has_a_model for TRAIN
        if *flags.use_peft && !flags.model_name_or_path.is_given() && !flags.adapter_name_or_path.is_given() =>
        "--use_peft trains what is added to a model, and random weights are kept nowhere",
        "name a trained model with --model_name_or_path";
    adapter_directory_holds_one for READING | GENERATE | MERGE | BENCH in model;
    adapter_flags_are_used for TRAIN | BENCH in model;
    adapter_leaves_its_model for TRAIN in model;
    adapter_fits_the_model for READING | GENERATE | BENCH in contents;
    model_directory_holds_a_model for READING | GENERATE | MERGE | BENCH in model;
    configuration_is_known for TRAIN_EVAL | BENCH in model;
    configuration_can_be_read for READING | GENERATE | MERGE | BENCH in contents;
    model_suits_the_task for READING | GENERATE in contents;
    model_can_be_built for READING | GENERATE | BENCH in contents;
    model_has_the_labels for TRAINING | EVAL | PREDICT in contents;
    length_is_within_the_model for READING in contents;
    mesh_divides_the_model for TRAIN_EVAL | BENCH in contents;
    one_choice_of_what_is_trained for TRAIN
        if flags.freeze.is_given() && flags.train_only.is_given() =>
        "--freeze and --train_only each say all of what is trained",
        "leave one of them out";
    adapters_say_what_is_trained for TRAIN
        if (*flags.use_peft || flags.adapter_name_or_path.is_given())
            && (flags.freeze.is_given() || flags.train_only.is_given()) =>
        "--freeze and --train_only choose among the model's own parameters, of which an adapter trains none",
        "leave them out, or train without an adapter; --lora_modules_to_save trains modules besides";
    trained_parameters_are_the_models for TRAIN in contents;
    tokenizer_is_there for READING | GENERATE in model;
    something_to_train_on for TRAINING in data;
    something_to_evaluate_on for TRAINING | EVAL in data;
    something_to_label for TRAINING | PREDICT in data;
    files_are_there for TRAINING | EVAL | PREDICT in data;
    data_files_have_their_columns for TRAINING | EVAL | PREDICT in contents;
    one_sampling_strategy for TRAINING
        if *flags.group_by_length && flags.train_sampling_strategy.is_given()
            && *flags.train_sampling_strategy != ExampleOrder::GroupByLength =>
        "--group_by_length contradicts --train_sampling_strategy",
        "leave one of them out";
    streaming_is_in_its_own_order for TRAINING
        if *flags.streaming
            && (*flags.group_by_length || *flags.train_sampling_strategy != ExampleOrder::Random) =>
        "--train_sampling_strategy and --group_by_length need a set that is read ahead, and --streaming reads it on the way",
        "leave them out; --shuffle_buffer_size 0 keeps the order of the files";
    shuffle_buffer_needs_streaming for TRAINING
        if flags.shuffle_buffer_size.is_given() && !*flags.streaming =>
        "--shuffle_buffer_size has no effect without --streaming; other sets are shuffled as a whole",
        "add --streaming, or leave it out";
    streaming_needs_max_steps for TRAINING
        if *flags.streaming && flags.trains() && flags.max_steps.is_none() =>
        "--streaming has no end: training length can't be given in epochs",
        "add --max_steps N";
    previews_read_all for TRAINING
        if flags.preview.is_given() && (*flags.streaming || *flags.dry_run) =>
        "--preview reads the whole training set and stops: it does not go with --streaming or --dry_run",
        "leave one of them out";
    streaming_has_no_epochs for TRAINING in data;
    mixtures_are_read_ahead for TRAIN
        if !flags.weights.is_empty() && *flags.streaming =>
        "--streaming does not support training files with weights yet: a mixture is drawn before training",
        "leave --streaming out, or the weights";
    /// Rows of a mixture may come several times, so that none can be set aside.
    mixtures_set_nothing_aside for TRAIN
        if !flags.weights.is_empty() && flags.evaluates() && !flags.validation_file.is_given() =>
        "nothing can be set aside of training files with weights, whose rows may come several times",
        "add --validation_file FILE";
    only_mixtures_choose_their_end for TRAIN
        if flags.weights.is_empty() && flags.stopping_strategy.is_given() =>
        "--stopping_strategy is about training files with weights, and there are none",
        "give each file its share, as --train_file a.jsonl:0.7 b.jsonl:0.3, or leave it out";
    first_evaluation_has_data for TRAINING
        if *flags.eval_on_start && !flags.evaluates() =>
        "--eval_on_start evaluates, but no evaluation is asked for",
        "add --do_eval or --eval_strategy steps";
    /// A stream has no length, and nothing of it can be set aside.
    streaming_sets_nothing_aside for TRAINING
        if *flags.streaming && flags.evaluates() && !flags.validation_file.is_given() =>
        "a stream can't be split for evaluation",
        "add --validation_file FILE";
    one_way_to_pad for READING in data;
    buckets_are_within_the_length for READING in data;
    padding_needs_lines for MLM in data;
    padding_free_is_packing for SFT
        if *flags.padding_free && !*flags.packing =>
        "--padding_free alone flattens each batch into one row as long as its examples, and compiled graphs have rows of a few fixed lengths",
        "add --packing, whose rows have hardly any padding, or leave it out";
    packed_rows_are_full for SFT in data;
    packing_takes_whole_sets for SFT in data;
    dft_has_no_smoothing for SFT
        if *flags.loss_type == LossType::Dft && *flags.label_smoothing_factor > 0.0 =>
        "--label_smoothing_factor smooths cross-entropy, and --loss_type is dft",
        "leave one of them out";
    something_is_masked for MLM
        if *flags.mlm_probability == 0.0 =>
        "--mlm_probability is 0: there is nothing to predict",
        "raise it; 0.15 is usual";
    regression_has_no_labels for TRAIN_LIKE_CLS
        if flags.labels.is_given() && *flags.do_regression == Some(true) =>
        "--do_regression has numbers to estimate, --labels names classes",
        "leave one of them out";
    regression_has_no_smoothing for TRAIN_LIKE_CLS
        if *flags.label_smoothing_factor > 0.0 && *flags.do_regression == Some(true) =>
        "--label_smoothing_factor spreads labels over classes, and --do_regression has none",
        "leave one of them out";
    only_mnli_has_two_halves for TRAIN_LIKE_CLS | EVAL in data;
    training_has_a_length for TRAINING
        if flags.trains() && flags.max_steps.is_none() && *flags.num_train_epochs == 0.0 =>
        "there is no training to do: --num_train_epochs is 0 and --max_steps is not set",
        "raise one of them or, to only evaluate, use --do_eval without --do_train";
    warmup_is_steps_or_a_share for TRAINING in training;
    schedule_takes_its_arguments for TRAINING in training;
    plateau_needs_evaluations for TRAINING in training;
    optimizer_takes_its_arguments for TRAINING in training;
    eval_strategy_evaluates for TRAIN in training;
    eval_strategy_needs_training for TRAIN in training;
    eval_steps_need_their_strategy for TRAIN in training;
    best_needs_evaluations for TRAINING in training;
    threshold_needs_patience for TRAINING
        if flags.early_stopping_threshold.is_given() && !flags.early_stopping_patience.is_given() =>
        "--early_stopping_threshold has no effect without --early_stopping_patience",
        "add --early_stopping_patience N";
    best_metric_is_the_tasks for TRAINING in contents;
    best_needs_its_checkpoint for TRAINING in training;
    best_checkpoint_is_evaluated for TRAINING in training;
    push_needs_training for TRAINING
        if *flags.push_to_hub && !flags.trains() =>
        "--push_to_hub pushes what was trained, and nothing is trained",
        "add --do_train or, to push a directory as it is, use `hf upload REPOSITORY DIR`";
    pushed_name_is_one_of_the_hub for TRAINING in output;
    output_dir_is_no_file for TRAINING | EVAL | QUICKSTART in output;
    resume_needs_training for TRAINING
        if *flags.resume_from_checkpoint != Resume::No && !flags.trains() =>
        "--resume_from_checkpoint resumes training, but nothing is trained",
        "add --do_train or, to evaluate a checkpoint, use --model_name_or_path CHECKPOINT";
    evaluated_model_is_trained for TRAINING in model;
    resume_needs_a_checkpoint for TRAINING in output;
    earlier_runs_are_kept for TRAINING | QUICKSTART in output;
    nothing_is_in_the_way for TRAINING | QUICKSTART in output;
    comparison_is_a_plan for TRAINING in processes;
    comparison_needs_memory for TRAINING in processes;
    comparison_is_at_one_batch for TRAINING in processes;
    comparison_finds_the_degrees for TRAINING in processes;
    comparison_has_a_mesh for TRAINING in processes;
    comparison_is_one_process for TRAINING in processes;
    output_file_is_no_directory for PREDICT in output;
    output_file_is_no_input for PREDICT in output;
    generate_needs_a_prompt for GENERATE
        if !flags.prompt.is_given() && !flags.prompt_file.is_given() && !*flags.chat =>
        "generate needs a text to continue",
        "add --prompt TEXT, --prompt_file FILE or --chat";
    generate_has_one_prompt for GENERATE
        if flags.prompt_file.is_given() && (flags.prompt.is_given() || *flags.chat) =>
        "--prompt_file does not go with --prompt or --chat",
        "leave one of them out";
    chat_has_one_answer for GENERATE
        if *flags.chat && *flags.num_return_sequences > 1 =>
        "a conversation has one answer: --num_return_sequences does not go with --chat",
        "leave one of them out";
    system_prompt_needs_chat for GENERATE
        if flags.system_prompt.is_given() && !*flags.chat =>
        "--system_prompt has no effect without --chat",
        "add --chat, or leave it out";
    top_needs_a_run for TOP
        if !flags.watched_dir.is_given() && flags.watched.is_empty() && !flags.is_mistaken("run") =>
        "top: no run given",
        "name its output directory: `xtrain top DIR`";
    top_as_json_is_one_look for TOP
        if *flags.json && !*flags.once =>
        "top draws on the terminal; --json prints the state once",
        "add --once";
    report_needs_runs for REPORT
        if flags.runs.is_empty() && !flags.is_mistaken("run") =>
        "report: no run given",
        "name output directories, trainer_state.json files or logs: `xtrain report output/a native.log`";
    runs_exist for REPORT | TOP in output;
    baseline_is_a_run for REPORT
        if flags.baseline.is_some() && flags.baseline_place().is_none() =>
        "--baseline names none of the runs",
        "write it as it stands among the runs, or its last part";
    losses_are_those_of_two_runs for REPORT in output;
    loss_bounds_need_a_comparison for REPORT in output;
    show_takes_one_id for CACHE_SHOW
        if flags.id.len() != 1 =>
        "cache show takes one id",
        "`xtrain cache ls` lists them; `xtrain cache show ID`";
    explain_takes_one_or_two_ids for CACHE_EXPLAIN
        if !(1..=2).contains(&flags.id.len()) =>
        "cache explain takes one id or two",
        "`xtrain cache ls` lists them; `xtrain cache explain OLD NEW`";
    prune_needs_criteria for CACHE_PRUNE
        if !flags.older_than.is_given() && !flags.max_size.is_given()
            && !flags.only_device.is_given() && !*flags.stale_compiler =>
        "cache prune: no criteria given",
        "add --older_than DAYS, --max_size SIZE, --only_device NAME or --stale_compiler";
    sharing_needs_a_store for CACHE_PUSH | CACHE_PULL
        if !flags.cache_remote.is_given() =>
        "no store to share graphs with",
        "add --cache_remote with a directory, s3://BUCKET/PREFIX, gs:// or https://";
    archive_needs_a_file for CACHE_EXPORT | CACHE_IMPORT
        if !flags.file.is_given() =>
        "no tar file given",
        "add --file graphs.tar";
}

/// Refuses what was mistaken in the reading, and every illegal combination.
///
/// # Errors
/// All of it, in the order in which a user would want to hear it.
pub fn check(flags: &Flags) -> Verdict {
    let mut mistakes = flags.mistakes.clone();
    // Without the file's settings nobody knows what is missing.
    if mistakes
        .iter()
        .any(|mistake| matches!(mistake, UsageError::ConfigFile { .. }))
    {
        return UsageError::all(mistakes);
    }
    let unknown: Vec<String> = mistakes
        .iter()
        .filter_map(|mistake| Some(format!("--{}", mistake.flag()?)))
        .collect();
    for rule in of(flags) {
        let Err(refusal) = (rule.check)(flags) else {
            continue;
        };
        for refusal in refusal.each() {
            let text = format!("{refusal} {}", refusal.hint().unwrap_or_default());
            // A flag whose value could not be read may be what this one lacks; and one cause may
            // break several rules.
            let is_consequence = unknown.iter().any(|flag| names(&text, flag));
            if !is_consequence && !mistakes.contains(refusal) {
                mistakes.push(refusal.clone());
            }
        }
    }
    UsageError::all(mistakes)
}

/// Whether a text names a flag, and not only one that begins with the same letters.
fn names(text: &str, flag: &str) -> bool {
    text.match_indices(flag).any(|(at, _)| {
        let next = text[at + flag.len()..].chars().next();
        !next.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// The rules for the command.
fn of(flags: &Flags) -> impl Iterator<Item = &'static Rule> {
    let command = flags.command;
    let is_of = move |rule: &&Rule| rule.commands.iter().any(|set| set.contains(command));
    RULES.iter().filter(is_of)
}
