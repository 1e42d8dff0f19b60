//! Each rule refuses a command line that breaks it and no rule before it.

use super::*;
use crate::command_line::{Parsed, parse};
use crate::config_file;
use crate::fixture::Fixture;
use std::collections::BTreeSet;

/// Rules that only the environment of a launched process can break; `tests/processes.rs` and
/// `tests/cli.rs` have their cases.
const OF_THE_ENVIRONMENT: [&str; 5] = [
    "directories_of_the_environment_are_here",
    "environment_is_consistent",
    "devices_divide_between_processes",
    "automatic_batch_needs_one_process",
    "comparison_is_one_process",
];

/// A rule, a command line that it refuses, and a part of its sentence.
const CASES: &[(&str, &str, &str)] = &[
    (
        "target_is_of_the_device",
        "compile clm --target h100",
        "h100 is an NVIDIA card",
    ),
    (
        "target_is_of_the_device",
        "bench --target trn1",
        "trn1 is a chip of AWS's",
    ),
    (
        "cards_that_are_described_run_nothing",
        "--device cuda CLM --target h200",
        "nothing runs there",
    ),
    (
        "kernels_are_those_of_a_card",
        "compile clm --model_type gpt2 --tokenizer_name @/tokenizer.json --kernels",
        "for a GPU you don't have",
    ),
    (
        "page_is_of_kernels",
        "cache show 3f2a --html a.html",
        "the report of --kernels",
    ),
    (
        "json_is_of_kernels",
        "compile clm --model_type gpt2 --tokenizer_name @/tokenizer.json --json",
        "the report of --kernels",
    ),
    (
        "use_cpu_is_the_cpu",
        "CLM --no_cuda --device cuda",
        "contradict",
    ),
    (
        "plugin_is_an_accelerators",
        "doctor --plugin x.so",
        "--device is cpu",
    ),
    (
        "cuda_flags_need_cuda",
        "--device neuron doctor --xla_options xla_a=1",
        "--xla_options is for NVIDIA cards",
    ),
    (
        "offloading_needs_two_memories",
        "bench --activation_offloading",
        "in host memory already",
    ),
    (
        "offloading_is_by_layers",
        "--device cuda bench --activation_offloading --gradient_checkpointing attention",
        "attention keeps none",
    ),
    (
        "offloading_is_within_a_graph",
        "--device cuda CLM --activation_offloading --pipeline_parallel 2",
        "does not go with --pipeline_parallel",
    ),
    ("tf32_needs_cuda", "bench --tf32", "needs an NVIDIA card"),
    (
        "cudnn_dropout_needs_cuda",
        "bench --attention_dropout_kernel cudnn",
        "is for NVIDIA cards",
    ),
    (
        "cudnn_dropout_is_fused",
        "--device cuda bench --attention_dropout_kernel cudnn --attn_implementation eager",
        "contradict",
    ),
    (
        "cudnn_dropout_runs_once",
        "--device cuda bench --attention_dropout_kernel cudnn --gradient_checkpointing every:2",
        "--gradient_checkpointing",
    ),
    (
        "memory_fraction_leaves_memory",
        "--device cuda doctor --gpu_memory_fraction 0",
        "leaves a run no memory",
    ),
    (
        "neuron_flags_need_neuron",
        "bench --neuron_optlevel 1",
        "--device is cpu",
    ),
    (
        "degrees_have_an_answer",
        "bench --data_parallel auto --tensor_parallel auto",
        "both auto",
    ),
    (
        "degrees_have_an_answer",
        "bench --data_parallel auto",
        "are virtual",
    ),
    (
        "degrees_have_an_answer",
        "bench --data_parallel 2147483647 --tensor_parallel 2147483647 --pipeline_parallel 4",
        "more than 1048576 devices",
    ),
    (
        "cpu_devices_are_few",
        "bench --data_parallel 1025",
        "--data_parallel 1025 are 1025 CPU devices in this process",
    ),
    (
        "one_way_to_quantize",
        "bench --model_type gpt2 --load_in_4bit --load_in_8bit",
        "two ways to hold the same matrices",
    ),
    (
        "kinds_of_4_bits_have_4_bits",
        "bench --model_type gpt2 --load_in_8bit --use_bnb_nested_quant",
        "--use_bnb_nested_quant is of matrices in 4 bits",
    ),
    (
        "quantized_models_train_adapters",
        "CLM --load_in_4bit",
        "--load_in_4bit: a quantized model cannot be trained itself",
    ),
    (
        "quantized_models_run_on_cpus_and_gpus",
        "--device neuron bench --model_type gpt2 --load_in_8bit",
        "never tried on Neuron",
    ),
    (
        "adapter_has_a_model",
        "CLM --use_peft",
        "--use_peft trains what is added to a model, and random weights are kept nowhere",
    ),
    (
        "adapter_directory_holds_one",
        "eval cls --model_name_or_path @/model --adapter_name_or_path @/empty --validation_file @/valid.csv",
        "empty holds no adapter_config.json",
    ),
    (
        "adapter_flags_are_used",
        "CLM --lora_r 8",
        "--lora_r is of an adapter, and none is trained",
    ),
    (
        "adapter_leaves_its_model",
        "train cls --model_name_or_path @/model --use_peft --train_file @/train.csv --output_dir @/model --overwrite_output_dir",
        "--output_dir is the directory of the model",
    ),
    (
        "adapter_fits_the_model",
        "train cls --model_name_or_path @/model --use_peft --lora_target_modules q_proj --train_file @/train.csv --output_dir @/new",
        "target_modules means no layer of the model",
    ),
    (
        "adapters_say_what_is_trained",
        "train cls --model_name_or_path @/model --use_peft --freeze wte --train_file @/train.csv --output_dir @/new",
        "of which an adapter trains none",
    ),
    (
        "merge_has_an_adapter",
        "merge --model_name_or_path @/model --output_dir @/new",
        "merge needs an adapter",
    ),
    (
        "merge_has_a_model",
        "merge --adapter_name_or_path @/empty --output_dir @/new",
        "merge needs the model that the adapter is of",
    ),
    (
        "merge_writes_a_directory",
        "merge --model_name_or_path @/model --adapter_name_or_path @/adapter",
        "--output_dir is missing",
    ),
    (
        "only_mnli_has_two_halves",
        "eval cls --model_name_or_path @/model --validation_mismatched_file @/valid.csv --validation_file @/valid.csv",
        "is mnli's, which has two sets",
    ),
    (
        "remote_cache_needs_the_cache",
        "CLM --cache_remote /x --compile_cache false",
        "--cache_remote copies into the cache",
    ),
    (
        "remote_cache_is_a_place",
        "CLM --cache_remote http://host/x",
        "comes without TLS, and entries are native code",
    ),
    (
        "remote_cache_is_named",
        "CLM --cache_remote_write",
        "--cache_remote_write and --cache_remote_key need --cache_remote",
    ),
    (
        "sharing_needs_a_store",
        "cache push",
        "no store to share graphs with",
    ),
    (
        "examples_of_a_step_have_a_bound",
        "CLM --per_device_train_batch_size 100000 --gradient_accumulation_steps 100000",
        "more than 2147483647 examples",
    ),
    (
        "evaluated_model_is_trained",
        "CLM --do_eval",
        "--do_eval without --do_train only evaluates, and a model of --model_type has random weights",
    ),
    (
        "sequence_parallel_needs_tensor_parallel",
        "bench --sequence_parallel",
        "--tensor_parallel is 1",
    ),
    (
        "launch_leaves_device_to_the_command",
        "--device cuda launch -- train clm",
        "belongs to the command",
    ),
    (
        "node_rank_is_a_node",
        "launch --node_rank 1 -- train clm",
        "out of range",
    ),
    (
        "nodes_need_an_endpoint",
        "launch --nnodes 2 -- train clm",
        "need a rendezvous",
    ),
    (
        "launch_runs_train_or_eval",
        "launch -- bench",
        "not `bench`",
    ),
    (
        "one_16_bit_type",
        "bench --bf16 --fp16",
        "--bf16 and --fp16",
    ),
    (
        "something_to_do",
        "CLM --do_train false",
        "neither training nor evaluation",
    ),
    (
        "run_has_an_output_dir",
        "train clm --model_type gpt2",
        "--output_dir is missing",
    ),
    (
        "json_is_for_the_plan",
        "CLM --json",
        "--json is for the plan",
    ),
    (
        "fit_looks_for_a_training_batch",
        "fit clm --do_eval",
        "nothing is trained",
    ),
    ("predict_needs_a_model", "predict cls", "needs a model"),
    (
        "generate_needs_a_model",
        "generate --prompt x",
        "needs a model",
    ),
    ("weights_or_a_description", "bench", "no model is named"),
    (
        "weights_or_a_description",
        "bench --model_name_or_path @/model --config_overrides a=1",
        "--config_overrides does not go",
    ),
    (
        "weights_or_a_description",
        "bench --model_name_or_path @/model --config_name gpt2",
        "--config_name does not go",
    ),
    (
        "model_directory_holds_a_model",
        "bench --model_name_or_path @/none",
        "is not a directory here",
    ),
    (
        "model_directory_holds_a_model",
        "bench --model_name_or_path @/valid.txt",
        "is a file, not a directory",
    ),
    (
        "model_directory_holds_a_model",
        "bench --model_name_or_path @/empty",
        "holds no config.json",
    ),
    (
        "model_directory_holds_a_model",
        "bench --model_name_or_path @/old",
        "no model.safetensors",
    ),
    (
        "configuration_is_known",
        "CLM --config_name gpt3",
        "neither a known configuration nor a config.json",
    ),
    (
        "configuration_can_be_read",
        "bench --model_type gpt2 --config_overrides n_layr=2",
        "n_layr",
    ),
    (
        "configuration_can_be_read",
        "CLM --config_name @/model --model_type gpt_neo",
        "--model_type is gpt_neo",
    ),
    (
        "model_suits_the_task",
        "eval clm --model_type bert",
        "--model_type: bert is an encoder",
    ),
    (
        "model_suits_the_task",
        "eval mlm --config_name gpt2",
        "--config_name: gpt2 is a decoder",
    ),
    (
        "model_suits_the_task",
        "eval mlm --model_name_or_path @/model",
        "/model (gpt2) is a decoder",
    ),
    (
        "model_can_be_built",
        "bench --model_type gpt2 --config_overrides n_head=7",
        "n_head",
    ),
    (
        "model_has_the_labels",
        "eval cls --model_type gpt2",
        "there are no labels to give",
    ),
    (
        "length_is_within_the_model",
        "CLM --block_size 2048",
        "more than the model's 1024 positions",
    ),
    (
        "mesh_divides_the_model",
        "bench --model_type gpt2 --tensor_parallel 5",
        "cannot divide",
    ),
    (
        "one_choice_of_what_is_trained",
        "CLM --freeze wte --train_only wpe",
        "each say all",
    ),
    (
        "trained_parameters_are_the_models",
        "CLM --freeze lm_haed",
        "no parameter of the model",
    ),
    (
        "tokenizer_is_there",
        "eval clm --model_type gpt2",
        "comes without a tokenizer",
    ),
    (
        "tokenizer_is_there",
        "CLM --tokenizer_name @/none",
        "does not exist here",
    ),
    (
        "tokenizer_is_there",
        "CLM --tokenizer_name @/empty",
        "no tokenizer in",
    ),
    (
        "something_to_train_on",
        "train clm --model_name_or_path @/model --output_dir @/new",
        "nothing to train on",
    ),
    (
        "something_to_evaluate_on",
        "eval clm --model_name_or_path @/model",
        "nothing to evaluate on",
    ),
    (
        "something_to_evaluate_on",
        "CLM --do_eval --validation_split_percentage 0",
        "nothing to evaluate on",
    ),
    (
        "something_to_label",
        "CLS --do_train --do_predict",
        "--do_predict labels",
    ),
    (
        "something_to_label",
        "predict cls --model_name_or_path @/model",
        "nothing to label",
    ),
    (
        "files_are_there",
        "CLM --train_file @/none.txt",
        "none.txt does not exist",
    ),
    (
        "files_are_there",
        "CLM --validation_file @/model",
        "model is a directory",
    ),
    (
        "files_are_there",
        "CLM --train_file /dev/null",
        "/dev/null is not a regular file",
    ),
    (
        "data_files_have_their_columns",
        "CLS --label_column_name lable",
        "train.csv has no column \"lable\"; it has text, label",
    ),
    (
        "data_files_have_their_columns",
        "CLS --train_file @/train.txt",
        "train.txt is not a table",
    ),
    (
        "best_metric_is_the_tasks",
        "CLM --eval_strategy epoch --metric_for_best_model accurcy",
        "there is no metric `accurcy`",
    ),
    (
        "shuffle_buffer_needs_streaming",
        "CLM --shuffle_buffer_size 3",
        "--shuffle_buffer_size",
    ),
    (
        "streaming_needs_max_steps",
        "CLM --streaming",
        "--streaming",
    ),
    (
        "streaming_has_no_epochs",
        "CLM --streaming --max_steps 3 --save_strategy epoch",
        "--save_strategy epoch",
    ),
    (
        "streaming_sets_nothing_aside",
        "CLM --streaming --max_steps 3 --do_train --do_eval",
        "can't be split",
    ),
    (
        "one_way_to_pad",
        "CLS --pad_to_bucket 32 --pad_to_max_length",
        "two ways to pad",
    ),
    (
        "buckets_are_within_the_length",
        "CLS --pad_to_bucket 256 --max_seq_length 128",
        "--max_seq_length is 128",
    ),
    (
        "padding_free_is_packing",
        "SFT --padding_free",
        "flattens each batch",
    ),
    (
        "packed_rows_are_full",
        "SFT --packing --pad_to_bucket 32",
        "has nothing to pad",
    ),
    (
        "packing_takes_whole_sets",
        "SFT --packing --max_train_samples 3",
        "--max_train_samples counts examples",
    ),
    (
        "packing_takes_whole_sets",
        "SFT --eval_packing --do_eval --max_eval_samples 3",
        "--max_eval_samples counts examples",
    ),
    (
        "dft_has_no_smoothing",
        "SFT --loss_type dft --label_smoothing_factor 0.1",
        "smooths cross-entropy",
    ),
    (
        "padding_needs_lines",
        "MLM --pad_to_max_length",
        "has nothing to pad",
    ),
    (
        "something_is_masked",
        "MLM --mlm_probability 0",
        "nothing to predict",
    ),
    (
        "plateau_needs_evaluations",
        "CLM --lr_scheduler_type reduce_lr_on_plateau",
        "and there are none",
    ),
    (
        "regression_has_no_smoothing",
        "CLS --do_regression --label_smoothing_factor 0.1",
        "spreads labels over classes",
    ),
    (
        "regression_has_no_labels",
        "CLS --do_regression --labels no,yes",
        "--labels names classes",
    ),
    (
        "training_has_a_length",
        "CLM --num_train_epochs 0 --max_steps 0",
        "no training to do",
    ),
    (
        "warmup_is_steps_or_a_share",
        "CLM --warmup_steps 2.5",
        "neither a number of steps nor a share",
    ),
    (
        "schedule_takes_its_arguments",
        "CLM --lr_scheduler_kwargs power=2",
        "linear takes no arguments, found `power`",
    ),
    (
        "schedule_takes_its_arguments",
        "CLM --lr_scheduler_type polynomial --learning_rate 1e-9",
        "lr_end must be below the learning rate",
    ),
    (
        "optimizer_takes_its_arguments",
        "CLM --optim_args momentum=0.9",
        "adamw takes no arguments, found `momentum`",
    ),
    (
        "optimizer_takes_its_arguments",
        "CLM --optim sgd --optim_args nesterov=true",
        "nesterov needs a momentum",
    ),
    (
        "optimizer_takes_its_arguments",
        "CLM --optim sgd --optim_args momentum=0.9,weight_decay=0.1",
        "sgd takes weight_decay from --weight_decay",
    ),
    (
        "eval_strategy_evaluates",
        "CLM --eval_strategy epoch --do_eval false",
        "--do_eval is false",
    ),
    (
        "eval_strategy_needs_training",
        "CLM --eval_strategy epoch --do_eval --do_train false",
        "nothing is trained",
    ),
    (
        "eval_steps_need_their_strategy",
        "CLM --eval_steps 5",
        "--eval_steps has no effect",
    ),
    (
        "best_needs_evaluations",
        "CLM --metric_for_best_model loss",
        "--metric_for_best_model needs evaluations",
    ),
    (
        "threshold_needs_patience",
        "CLM --eval_strategy epoch --early_stopping_threshold 1",
        "--early_stopping_patience",
    ),
    (
        "best_needs_its_checkpoint",
        "CLM --eval_strategy epoch --load_best_model_at_end",
        "--save_strategy steps",
    ),
    (
        "best_checkpoint_is_evaluated",
        "CLM --eval_strategy steps --eval_steps 3 --save_steps 4 --load_best_model_at_end",
        "no multiple",
    ),
    (
        "push_needs_training",
        "CLM --do_eval --push_to_hub",
        "nothing is trained",
    ),
    (
        "pushed_name_is_one_of_the_hub",
        "CLM --push_to_hub --hub_model_id me/my/model",
        "--hub_model_id: no repository can have the name \"me/my/model\"",
    ),
    (
        "pushed_name_is_one_of_the_hub",
        "CLM --push_to_hub --output_dir @/a--b",
        "the name of output_dir: no repository can have the name \"a--b\"",
    ),
    (
        "output_dir_is_no_file",
        "CLM --output_dir @/valid.txt",
        "valid.txt is a file",
    ),
    (
        "output_dir_is_no_file",
        "quickstart --output_dir @/valid.txt",
        "valid.txt is a file",
    ),
    (
        "resume_needs_training",
        "CLM --do_eval --do_train false --resume_from_checkpoint",
        "nothing is trained",
    ),
    (
        "resume_needs_a_checkpoint",
        "CLM --resume_from_checkpoint",
        "holds no checkpoint",
    ),
    (
        "resume_needs_a_checkpoint",
        "CLM --resume_from_checkpoint @/none",
        "is not a directory",
    ),
    (
        "resume_needs_a_checkpoint",
        "CLM --resume_from_checkpoint @/old",
        "holds no training state",
    ),
    (
        "earlier_runs_are_kept",
        "CLM --output_dir @/old",
        "old is not empty",
    ),
    (
        "earlier_runs_are_kept",
        "quickstart --output_dir @/old",
        "old is not empty",
    ),
    (
        "earlier_runs_are_kept",
        "CLM --output_dir @/old_without --resume_from_checkpoint @/old/checkpoint-10",
        "old_without is not empty",
    ),
    (
        "nothing_is_in_the_way",
        "CLM --output_dir @/blocked --overwrite_output_dir",
        "blocked/checkpoint-5 is no directory",
    ),
    ("report_needs_runs", "report", "no run given"),
    (
        "runs_exist",
        "report @/old @/nowhere",
        "nowhere does not exist",
    ),
    (
        "baseline_is_a_run",
        "report @/old --baseline other",
        "none of the runs",
    ),
    (
        "losses_are_those_of_two_runs",
        "report @/old --compare_losses",
        "compares two runs",
    ),
    (
        "loss_bounds_need_a_comparison",
        "report @/old --largest 0.1",
        "belongs to --compare_losses",
    ),
    (
        "comparison_is_a_plan",
        "CLM --compare_meshes 4",
        "plan of a training run",
    ),
    (
        "comparison_needs_memory",
        "CLM --compare_meshes 4 --dry_run",
        "needs --memory",
    ),
    (
        "comparison_is_at_one_batch",
        "CLM --compare_meshes 4 --dry_run --memory 1GB --per_device_train_batch_size auto",
        "is auto",
    ),
    (
        "comparison_finds_the_degrees",
        "--device cuda CLM --compare_meshes 4 --dry_run --memory 1GB --data_parallel auto --visible_devices 0",
        "is auto",
    ),
    (
        "comparison_has_a_mesh",
        "CLM --compare_meshes 4 --dry_run --memory 1GB --data_parallel 3",
        "--data_parallel 3",
    ),
    (
        "previews_read_all",
        "CLM --preview 2 --streaming --max_steps 3",
        "--preview reads the whole training set",
    ),
    (
        "mixtures_are_read_ahead",
        "train clm --model_type gpt2 --tokenizer_name @/tokenizer.json --output_dir @/new --train_file @/train.txt:0.7 @/valid.txt:0.3 --streaming --max_steps 3",
        "a mixture is drawn before training",
    ),
    (
        "mixtures_set_nothing_aside",
        "train clm --model_type gpt2 --tokenizer_name @/tokenizer.json --output_dir @/new --train_file @/train.txt:0.7 @/valid.txt:0.3 --do_train --do_eval",
        "nothing can be set aside",
    ),
    (
        "only_mixtures_choose_their_end",
        "CLM --stopping_strategy all_exhausted",
        "there are none",
    ),
    (
        "first_evaluation_has_data",
        "CLM --eval_on_start",
        "no evaluation is asked for",
    ),
    (
        "one_sampling_strategy",
        "CLM --group_by_length --train_sampling_strategy sequential",
        "contradicts",
    ),
    (
        "streaming_is_in_its_own_order",
        "CLM --streaming --max_steps 3 --group_by_length",
        "--streaming reads it on the way",
    ),
    (
        "output_file_is_no_directory",
        "predict cls --model_name_or_path @/model --test_file @/valid.csv --output_file @/model",
        "is a directory",
    ),
    (
        "output_file_is_no_input",
        "predict cls --model_name_or_path @/model --test_file @/valid.csv --output_file @/valid.csv",
        "would replace the test file",
    ),
    (
        "generate_needs_a_prompt",
        "generate --model_name_or_path @/model",
        "needs a text",
    ),
    (
        "generate_has_one_prompt",
        "generate --model_name_or_path @/model --prompt x --prompt_file @/valid.txt",
        "--prompt_file",
    ),
    (
        "chat_has_one_answer",
        "generate --model_name_or_path @/model --chat --num_return_sequences 2",
        "one answer",
    ),
    (
        "system_prompt_needs_chat",
        "generate --model_name_or_path @/model --prompt x --system_prompt y",
        "without --chat",
    ),
    ("top_needs_a_run", "top", "no run given"),
    (
        "top_as_json_is_one_look",
        "top --output_dir @/old --json",
        "--json",
    ),
    ("show_takes_one_id", "cache show", "one id"),
    (
        "explain_takes_one_or_two_ids",
        "cache explain 1 2 3",
        "one id or two",
    ),
    (
        "losses_go_together",
        "train dpo --model_type gpt2 --tokenizer_name @/tokenizer.json --train_file @/train.csv --output_dir @/o --loss_type sigmoid orpo",
        "--loss_type orpo is a loss of its own",
    ),
    (
        "evaluation_has_its_reference",
        "eval kto --model_name_or_path @/model --validation_file @/valid.csv",
        "rewards compare the model with its reference",
    ),
    (
        "kl_is_estimated_within_a_batch",
        "train kto --model_type gpt2 --tokenizer_name @/tokenizer.json --train_file @/train.csv --output_dir @/o --per_device_train_batch_size auto",
        "compares the answers of a batch of training",
    ),
    (
        "answers_are_not_streamed",
        "train reward --model_type gpt2 --tokenizer_name @/tokenizer.json --train_file @/train.csv --output_dir @/o --streaming --max_steps 2",
        "answers are tokenized before training",
    ),
    ("prune_needs_criteria", "cache prune", "cache prune"),
    ("archive_needs_a_file", "cache import", "no tar file"),
];

fn flags(fixture: &Fixture, line: &str) -> Flags {
    match parse(fixture.words(line)).unwrap() {
        Parsed::Flags(flags) => {
            let mut flags = config_file::read(*flags);
            crate::train_files::apply(&mut flags);
            flags
        }
        Parsed::Text(text) => panic!("{line} prints {text}"),
    }
}

#[test]
fn every_rule_refuses_its_case() {
    let fixture = Fixture::new();
    let mut seen = BTreeSet::from(OF_THE_ENVIRONMENT);
    for (rule, line, sentence) in CASES {
        let flags = flags(&fixture, line);
        let refusal = of(&flags).find_map(|rule| Some((rule.name, (rule.check)(&flags).err()?)));
        let (name, error) = refusal.unwrap_or_else(|| panic!("{line} is legal"));
        assert_eq!(name, *rule, "{line}: {error}");
        assert!(error.to_string().contains(sentence), "{line}: {error}");
        assert!(!error.hint().unwrap().is_empty(), "{line}");
        seen.insert(name);
    }
    let all: BTreeSet<&str> = RULES.iter().map(|rule| rule.name).collect();
    assert_eq!(seen, all);
}

#[test]
fn what_is_legal_passes() {
    let fixture = Fixture::new();
    for line in [
        "CLM",
        "MLM",
        "CLS",
        "SFT --packing --packing_strategy bfd-requeue --padding_free --eval_packing false --pad_to_bucket 32",
        "CLM --output_dir @/old --overwrite_output_dir",
        "CLM --output_dir @/empty",
        "train clm --model_name_or_path @/model --train_file @/train.txt --output_dir @/old --do_eval",
        "CLM --optim sgd --optim_args momentum=0.9,nesterov=yes",
        "CLM --optim sgd --optim_args momentum=0.9,nesterov=1",
        "CLM --output_dir @/old --resume_from_checkpoint @/old/checkpoint-10",
        "bench --model_type bert",
        "quickstart",
    ] {
        assert_eq!(check(&flags(&fixture, line)), Ok(()), "{line}");
    }
}

/// Whoever follows a refusal's advice about a model's name is not refused for that again.
#[test]
fn every_model_that_a_refusal_offers_is_accepted_there() {
    let fixture = Fixture::new();
    let known: BTreeSet<&str> = xtrain_models::MODEL_TYPES
        .into_iter()
        .chain(xtrain_models::presets())
        .collect();
    let rest = "--tokenizer_name @/tokenizer.json --train_file @/train.csv --output_dir @/new";
    let mut seen = 0;
    for task in ["clm", "mlm", "cls", "token-cls"] {
        for flag in ["model_type", "config_name"] {
            let told = |name: &str| -> String {
                let Err(error) = fixture.invoke(&format!("train {task} --{flag} {name} {rest}"))
                else {
                    return String::new();
                };
                let each = error
                    .each()
                    .filter(|error| error.to_string().contains(flag));
                each.map(|error| format!("{error} {}\n", error.hint().unwrap_or_default()))
                    .collect()
            };
            for wrong in ["nonsense", "bert", "gpt2", "brt", "gpt2-smal", "bert-min"] {
                let text = told(wrong);
                let is_name = |c: char| c.is_alphanumeric() || "_-.".contains(c);
                let words = text
                    .split(|c: char| !is_name(c))
                    .map(|word| word.trim_matches('.'));
                for offered in words.filter(|word| *word != wrong && known.contains(word)) {
                    let refused = told(offered);
                    assert!(
                        refused.is_empty(),
                        "train {task} --{flag} {wrong} offers {offered}: {refused}"
                    );
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 50, "{seen} names were offered");
}
