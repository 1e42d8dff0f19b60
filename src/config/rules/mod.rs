//! The rules between flags, in one list: each a small function that refuses what is legal by itself
//! but not together, or a missing path. Ranges of single values are their kinds', and
//! have been checked before.

mod command;
mod data;
mod device;
mod model;
mod output;
mod processes;
#[cfg(test)]
mod tests;
mod training;
mod verdict;

use super::command::Commands;
use super::command::sets::*;
use super::flags::Flags;
use verdict::Verdict;

/// A rule and the commands that it is for.
struct Rule {
    #[cfg(test)]
    name: &'static str,
    commands: &'static [Commands],
    check: fn(&Flags) -> Verdict,
}

/// Declares the list.
macro_rules! rules {
    ($( $room:ident::$rule:ident for $($commands:ident)|+; )+) => {
        /// In the order in which a user would want to hear of them: the first that fails is the one
        /// reported.
        const RULES: &[Rule] = &[$(
            Rule {
                #[cfg(test)]
                name: stringify!($rule),
                commands: &[$($commands),+],
                check: $room::$rule,
            },
        )+];
    };
}

rules! {
    device::target_is_of_the_device for COMPILE | FIT | RUNNING;
    device::plugin_is_an_accelerators for OPENING;
    device::cuda_flags_need_cuda for OPENING;
    device::offloading_needs_two_memories for TRAIN | BENCH;
    device::offloading_is_by_layers for TRAIN | BENCH;
    device::tf32_needs_cuda for TRAIN_EVAL | BENCH | PREDICT;
    device::cudnn_dropout_needs_cuda for TRAIN | BENCH;
    device::cudnn_dropout_is_fused for TRAIN | BENCH;
    device::cudnn_dropout_runs_once for TRAIN | BENCH;
    device::memory_fraction_leaves_memory for OPENING;
    device::neuron_flags_need_neuron for ALL;
    processes::environment_is_consistent for TRAINING | EVAL;
    processes::devices_divide_between_processes for TRAINING | EVAL;
    processes::automatic_batch_needs_one_process for TRAINING;
    processes::degrees_have_an_answer for ALL;
    processes::sequence_parallel_needs_tensor_parallel for TRAIN | BENCH;
    processes::launch_leaves_device_to_the_command for LAUNCH;
    processes::node_rank_is_a_node for LAUNCH;
    processes::nodes_need_an_endpoint for LAUNCH;
    processes::launch_runs_train_or_eval for LAUNCH;
    training::one_16_bit_type for TRAIN_EVAL | BENCH;
    training::something_to_do for TRAINING;
    output::run_has_an_output_dir for TRAINING;
    training::json_is_for_the_plan for TRAINING;
    training::fit_looks_for_a_training_batch for FIT;
    model::predict_needs_a_model for PREDICT;
    model::generate_needs_a_model for GENERATE;
    model::weights_or_a_description for READING | GENERATE | BENCH;
    model::model_directory_holds_a_model for READING | GENERATE | BENCH;
    model::model_type_suits_the_task for TRAIN_EVAL;
    model::configuration_is_known for TRAIN_EVAL | BENCH;
    model::configuration_suits_the_task for TRAIN_EVAL;
    model::tokenizer_is_there for READING | GENERATE;
    data::something_to_train_on for TRAINING;
    data::something_to_evaluate_on for TRAINING | EVAL;
    data::something_to_label for TRAINING | PREDICT;
    data::files_are_there for TRAINING | EVAL | PREDICT;
    data::shuffle_buffer_needs_streaming for TRAINING;
    data::streaming_needs_max_steps for TRAINING;
    data::streaming_has_no_epochs for TRAINING;
    data::streaming_sets_nothing_aside for TRAINING;
    data::one_way_to_pad for READING;
    data::buckets_are_within_the_length for READING;
    data::padding_needs_lines for MLM;
    data::something_is_masked for MLM;
    data::regression_has_no_labels for TRAIN_LIKE_CLS;
    training::training_has_a_length for TRAINING;
    training::warmup_is_steps_or_a_share for TRAINING;
    training::eval_strategy_evaluates for TRAIN;
    training::eval_strategy_needs_training for TRAIN;
    training::eval_steps_need_their_strategy for TRAIN;
    training::best_needs_evaluations for TRAINING;
    training::threshold_needs_patience for TRAINING;
    training::best_needs_its_checkpoint for TRAINING;
    training::best_checkpoint_is_evaluated for TRAINING;
    output::output_dir_is_no_file for TRAINING | EVAL | QUICKSTART;
    output::resume_needs_training for TRAINING;
    output::resume_needs_a_checkpoint for TRAINING;
    output::earlier_runs_are_kept for TRAINING | QUICKSTART;
    processes::comparison_is_a_plan for TRAINING;
    processes::comparison_needs_memory for TRAINING;
    processes::comparison_is_at_one_batch for TRAINING;
    processes::comparison_finds_the_degrees for TRAINING;
    processes::comparison_has_a_mesh for TRAINING;
    processes::comparison_is_one_process for TRAINING;
    output::output_file_is_no_directory for PREDICT;
    command::generate_needs_a_prompt for GENERATE;
    command::top_needs_a_run for TOP;
    command::top_as_json_is_one_look for TOP;
    command::show_takes_one_id for CACHE_SHOW;
    command::explain_takes_one_or_two_ids for CACHE_EXPLAIN;
    command::prune_needs_criteria for CACHE_PRUNE;
    command::archive_needs_a_file for CACHE_EXPORT | CACHE_IMPORT;
}

/// Refuses every illegal combination.
///
/// # Errors
/// What the first rule that fails says.
pub fn check(flags: &Flags) -> Verdict {
    of(flags).try_for_each(|rule| (rule.check)(flags))
}

/// The rules for the command.
fn of(flags: &Flags) -> impl Iterator<Item = &'static Rule> {
    let command = flags.command;
    let is_of = move |rule: &&Rule| rule.commands.iter().any(|set| set.contains(command));
    RULES.iter().filter(is_of)
}
