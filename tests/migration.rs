//! Command lines as people bring them from transformers, run by the real program: settings that ask
//! for what happens anyway, those that xtrain has of its own, and everything wrong at once.

use crate::support::json_lines;
use crate::tasks::{BERT, Bench, numbers};
use serde_json::{Value, json};
use std::fs;
use xtrain::checkpoint::{TensorRef, write_safetensors};
use xtrain::engine::Run;
use xtrain_graphs::{DType, Shape};
use xtrain_models::HeadKind;

const GPT2: &str = "--model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=32,n_positions=64 --tokenizer_name byte_bpe \
                    --train_file articles.txt --validation_file articles-valid.txt --block_size 32 --learning_rate 1e-3 --disable_tqdm True";

/// Numbers of the checkpoints in an output directory, sorted.
fn checkpoints(bench: &Bench, output: &str) -> Vec<u64> {
    let entries = fs::read_dir(bench.path(output)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<u64> = names
        .filter_map(|name| name.strip_prefix("checkpoint-")?.parse().ok())
        .collect();
    steps.sort_unstable();
    steps
}

#[test]
fn a_command_line_of_transformers_runs_unchanged() {
    let bench = Bench::new();
    let run = bench.run(&format!(
        "train clm {GPT2} --output_dir out --do_train --do_eval --max_steps 8 --per_device_train_batch_size 4 \
         --logging_steps 0.25 --eval_strategy steps --eval_steps 0.25 --eval_on_start --eval_delay 4 --save_strategy best \
         --include_num_input_tokens_seen --torch_compile --torch_compile_backend inductor --use_cpu --no_bf16 \
         --gradient_checkpointing_kwargs {{\"use_reentrant\":false}} --logging_dir logs --ddp_find_unused_parameters False \
         --include_tokens_per_second True --dataloader_pin_memory False --dataloader_prefetch_factor 2 --report_to none \
         --save_safetensors True --keep_linebreaks True --dtype float32 --trust_remote_code False --overwrite_output_dir"
    ));
    run.succeeded();
    let notes = run.stderr.matches(" changes nothing here: ").count();
    // Without a note: False and none, which say what is usual.
    assert_eq!(notes, 7, "{}", run.stderr);
    let records = json_lines(&bench.path("out/log.jsonl"));
    let steps_with = |key: &str| -> Vec<u64> {
        let with = records.iter().filter(|record| record.get(key).is_some());
        with.map(|record| record["step"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(steps_with("loss"), [2, 4, 6, 8]);
    // At the start and from the delay on; the last one is what --do_eval asks for at the end.
    assert_eq!(steps_with("eval_loss"), [0, 4, 6, 8]);
    // In every record, as transformers has them.
    let tokens: Vec<(u64, u64)> = records
        .iter()
        .map(|record| {
            (
                record["step"].as_u64(),
                record["num_input_tokens_seen"].as_u64(),
            )
        })
        .map(|(step, tokens)| (step.unwrap(), tokens.unwrap()))
        .collect();
    assert_eq!(tokens.len(), 4 + 4 + 1);
    assert!(
        tokens.iter().all(|(step, tokens)| *tokens == 128 * step),
        "{tokens:?}"
    );
    assert_eq!(
        bench.json("out/eval_results.json")["num_input_tokens_seen"],
        1024
    );
    // A checkpoint of each evaluation that was better than those before it; the first one counts
    // for nothing.
    let evaluated = records
        .iter()
        .filter(|record| record["step"].as_u64() > Some(0))
        .filter_map(|record| Some((record["step"].as_u64()?, record.get("eval_loss")?.as_f64()?)));
    let mut best = Vec::new();
    let mut least = f64::INFINITY;
    for (step, loss) in evaluated {
        if loss < least {
            least = loss;
            best.push(step);
        }
    }
    assert!(!best.is_empty());
    assert_eq!(checkpoints(&bench, "out"), best);
    let state = bench.json("out/trainer_state.json");
    assert_eq!(state["num_input_tokens_seen"], json!(1024));
    assert_eq!(
        (&state["eval_steps"], &state["logging_steps"]),
        (&json!(2.0), &json!(2.0))
    );
}

#[test]
fn everything_wrong_is_said_at_once() {
    let bench = Bench::new();
    let run = bench.run(
        "train clm --model_type gpt2 --learning_rte 1e-4 --num_train_epochs --do_train -o out --save_strategy epochs \
         --fsdp full_shard --report_to wandb --tokenizer_name byte_bpe --train_file nowhere.txt --bf16 --fp16",
    );
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    for part in [
        "error: unknown flag --learning_rte for `xtrain train clm`\nhint: did you mean `--learning_rate`?\n",
        "error: --num_train_epochs needs a value: a number that is 0 or more\n",
        "error: unknown flag -o for `xtrain train clm`\nhint: did you mean `--output_dir`?\n",
        "`save_strategy` must be one of no, steps, epoch, best, found `epochs`\nhint: did you mean `epoch`?\n",
        "hint: use --shard_parallel N (ZeRO-3/FSDP on N devices) instead\n",
        "error: --report_to: there is no client of wandb here",
        "error: --bf16 and --fp16 exclude each other",
        "error: --train_file: nowhere.txt does not exist\n",
    ] {
        assert!(run.stderr.contains(part), "{part} is not in {}", run.stderr);
    }
    // What follows from a mistake is none of its own: the output directory is not missing.
    assert_eq!(run.stderr.matches("error: ").count(), 8, "{}", run.stderr);
    assert!(run.stdout.is_empty() && !bench.path("out").exists());
}

#[test]
fn a_settings_file_alone_is_a_command_line() {
    let bench = Bench::new();
    let settings = json!({
        "model_type": "gpt2", "config_overrides": "n_layer=2,n_head=2,n_embd=32,n_positions=64",
        "tokenizer_name": "byte_bpe", "train_file": "articles.txt", "block_size": 32, "output_dir": "out",
        "max_steps": 2, "logging_steps": 1, "do_train": true, "torch_compile": true, "eval_steps": null,
        "gradient_checkpointing_kwargs": {"use_reentrant": false}, "disable_tqdm": true
    });
    fs::write(bench.path("run.json"), settings.to_string()).unwrap();
    let run = bench.run("train run.json --max_steps 1");
    run.succeeded();
    assert!(
        run.stderr
            .contains("note: run.json is read as `xtrain train clm run.json`\n"),
        "{}",
        run.stderr
    );
    assert_eq!(
        bench.json("out/trainer_state.json")["global_step"],
        json!(1)
    );
    let run = bench.run("train mlm run.json");
    assert_eq!(run.code, Some(2));
    assert!(
        run.stderr.contains("run.json:1: unknown key `block_size`")
            || run.stderr.contains("`block_size`"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_model_saved_alone_is_a_model_and_no_place_to_resume_from() {
    let bench = Bench::new();
    let line = format!(
        "train clm {GPT2} --output_dir out --per_device_train_batch_size 4 --save_only_model --save_steps 1 --save_total_limit 2 \
         --eval_strategy steps --eval_steps 1 --load_best_model_at_end"
    );
    bench.run(&format!("{line} --max_steps 3")).succeeded();
    let kept = checkpoints(&bench, "out");
    assert_eq!((kept.len(), kept.last()), (2, Some(&3)));
    let dir = bench.path("out/checkpoint-3");
    assert!(dir.join("model.safetensors").exists() && dir.join("trainer_state.json").exists());
    assert!(!dir.join("optimizer.safetensors").exists());
    let run = bench.run(&format!("{line} --max_steps 5 --resume_from_checkpoint"));
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(
        run.stderr.contains("checkpoint-3 was saved with --save_only_model: it holds no state to resume from\nhint: "),
        "{}",
        run.stderr
    );
    let run = bench.run(
        "eval clm --model_name_or_path out/checkpoint-3 --validation_file articles-valid.txt --block_size 32 --disable_tqdm",
    );
    run.succeeded();
}

#[test]
fn a_run_resumes_at_another_batch_size_and_says_what_changed() {
    let bench = Bench::new();
    let line = format!("train clm {GPT2} --output_dir out --logging_steps 1 --save_steps 4");
    bench
        .run(&format!(
            "{line} --max_steps 4 --per_device_train_batch_size 4 --gradient_accumulation_steps 2"
        ))
        .succeeded();
    let run = bench.run(&format!(
        "{line} --max_steps 6 --per_device_train_batch_size 2 --resume_from_checkpoint"
    ));
    run.succeeded();
    for part in [
        "(--per_device_train_batch_size) was 4 when the checkpoint was saved and is 2 now",
        "--gradient_accumulation_steps was 2 when the checkpoint was saved and is 1 now",
        "the run continues in epoch 0 at batch 4 of ",
        "the learning-rate curve was laid out for 4 steps and is now for 6",
    ] {
        assert!(run.stderr.contains(part), "{part} is not in {}", run.stderr);
    }
    let records = json_lines(&bench.path("out/log.jsonl"));
    let steps: Vec<Value> = records
        .into_iter()
        .filter(|record| record.get("loss").is_some())
        .collect();
    assert_eq!(numbers(&steps, "step"), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    // Counted in steps: four of one batch each are a smaller part of the epoch than they were.
    let epochs = numbers(&steps, "epoch");
    assert!(epochs[4] < epochs[3], "{epochs:?}");
}

#[test]
fn examples_come_in_the_order_that_was_asked_for() {
    let bench = Bench::new();
    let losses = |output: &str, more: &str| {
        let line = format!(
            "train mlm {BERT} --tokenizer_name wordpiece --train_file articles.txt --line_by_line --max_seq_length 32 \
             --per_device_train_batch_size 4 --disable_tqdm --max_steps 3 --logging_steps 1 --output_dir {output} {more}"
        );
        bench.run(&line).succeeded();
        numbers(&bench.records(output), "loss")
    };
    let random = losses("random", "");
    let sequential = losses("sequential", "--train_sampling_strategy sequential");
    let grouped = losses("grouped", "--train_sampling_strategy group_by_length");
    assert!(random != sequential && random != grouped && sequential != grouped);
    assert_eq!(grouped, losses("also", "--group_by_length"));
    let run = bench.run(&format!(
        "train mlm {BERT} --tokenizer_name wordpiece --train_file articles.txt --line_by_line --max_seq_length 32 \
         --per_device_train_batch_size 4 --disable_tqdm --max_steps 5 --output_dir grouped --resume_from_checkpoint"
    ));
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("the training data"), "{}", run.stderr);
}

#[test]
fn a_glue_task_names_its_columns() {
    let bench = Bench::new();
    let rows: String = (0..24)
        .map(|i| format!("Who is {i}?,It is {} in the text.,{}\n", i % 5, i % 2))
        .collect();
    fs::write(
        bench.path("qnli.csv"),
        format!("question,sentence,label\n{rows}"),
    )
    .unwrap();
    let run = bench.run(&format!(
        "train cls {BERT} --tokenizer_name wordpiece --task_name qnli --metric_name accuracy --train_file qnli.csv \
         --validation_file qnli.csv --max_seq_length 32 --do_train --do_eval --max_steps 2 --disable_tqdm --output_dir out"
    ));
    run.succeeded();
    let results: Value = bench.json("out/eval_results.json");
    assert!(results["eval_accuracy"].is_f64(), "{results}");
    let run = bench.run(&format!(
        "train cls {BERT} --tokenizer_name wordpiece --task_name rte --train_file qnli.csv --max_steps 2 --output_dir other"
    ));
    assert!(run.stderr.contains("sentence1"), "{}", run.stderr);
}

/// The data settings of a training hold for evaluations and predictions of its model, unless flags
/// say otherwise.
#[test]
fn evaluations_remember_how_the_training_read_its_data() {
    let bench = Bench::new();
    let rows: String = (0..24)
        .map(|i| format!("Nothing {i},Who is {i} in the text?,{}\n", i % 2))
        .collect();
    fs::write(bench.path("own.csv"), format!("text,body,kind\n{rows}")).unwrap();
    bench
        .run(&format!(
            "train cls {BERT} --tokenizer_name wordpiece --train_file own.csv --validation_file own.csv --text_column_name body \
             --label_column_name kind --max_seq_length 16 --do_train --do_eval --max_steps 2 --disable_tqdm --output_dir out"
        ))
        .succeeded();
    assert_eq!(
        bench.json("out/data_settings.json"),
        json!({"text_column_name": "body", "label_column_name": "kind", "max_seq_length": "16"})
    );
    let trained = bench.json("out/eval_results.json");
    let eval = |output: &str, more: &str| {
        bench.run(&format!(
            "eval cls --model_name_or_path out --validation_file own.csv --disable_tqdm --output_dir {output} {more}"
        ))
    };
    eval("same", "").succeeded();
    assert_eq!(
        bench.json("same/eval_results.json")["eval_loss"],
        trained["eval_loss"]
    );
    // Flags win: another column, other losses.
    eval("other", "--text_column_name text").succeeded();
    assert_ne!(
        bench.json("other/eval_results.json")["eval_loss"],
        trained["eval_loss"]
    );
    let run = bench.run("predict cls --model_name_or_path out --test_file own.csv --disable_tqdm");
    run.succeeded();
    // A damaged file is an error that names it.
    fs::write(
        bench.path("out/data_settings.json"),
        "{\"max_seq_length\": \"long\"}",
    )
    .unwrap();
    let run = eval("none", "");
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(
        run.stderr
            .contains("data_settings.json:1: `max_seq_length` must be"),
        "{}",
        run.stderr
    );
}

#[test]
fn an_overwritten_run_leaves_no_data_settings() {
    let bench = Bench::new();
    let train = |more: &str| {
        let run = bench.run(&format!(
            "train mlm {BERT} --tokenizer_name wordpiece --train_file articles.txt --do_train --max_steps 1 --disable_tqdm \
             --save_strategy no --output_dir out --overwrite_output_dir {more}"
        ));
        run.succeeded();
        let says_length = run.stderr.contains("max_seq_length is not set");
        (bench.path("out/data_settings.json").exists(), says_length)
    };
    assert_eq!(train("--max_seq_length 16"), (true, false));
    assert_eq!(train(""), (false, true));
    // The training has said it.
    let eval = bench.run("eval mlm --model_name_or_path out --validation_file articles.txt --disable_tqdm --max_eval_samples 8");
    eval.succeeded();
    assert!(!eval.stderr.contains("is not set"), "{}", eval.stderr);
}

/// Scripts are often given a model's name as its type and configuration too.
#[test]
fn a_models_type_and_configuration_may_be_named_beside_it() {
    let bench = Bench::new();
    let line = "--train_file articles.txt --block_size 32 --per_device_train_batch_size 4 --max_steps 1 --disable_tqdm \
                --save_strategy no --report none";
    bench
        .run(&format!(
            "train clm --model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=32,n_positions=64 --tokenizer_name byte_bpe \
             --output_dir model {line}"
        ))
        .succeeded();
    bench
        .run(&format!(
            "train clm --model_type=gpt2 --model_name_or_path=model --config_name=model --tokenizer_name=model --output_dir out {line}"
        ))
        .succeeded();
    let run = bench.run(&format!(
        "train clm --model_type gpt_neo --model_name_or_path model --output_dir other {line}"
    ));
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(
        run.stderr.contains(
            "error: --model_type is gpt_neo, but model/config.json says gpt2\nhint: leave --model_type out\n"
        ),
        "{}",
        run.stderr
    );
}

/// Where the last step is no multiple and the last epoch is cut short, what hangs on steps and
/// epochs still happens at the end.
#[test]
fn the_end_of_a_training_is_evaluated_and_saved() {
    let bench = Bench::new();
    let steps_with = |output: &str, key: &str, more: &str| -> Vec<u64> {
        let line = format!(
            "train clm {GPT2} --do_train --per_device_train_batch_size 4 --max_steps 5 --overwrite_output_dir --output_dir {output} \
             --report none {more}"
        );
        bench.run(&line).succeeded();
        let records = json_lines(&bench.path(output).join("log.jsonl"));
        let with = records.iter().filter(|record| record.get(key).is_some());
        with.map(|record| record["step"].as_u64().unwrap())
            .collect()
    };
    // The evaluation that --do_eval stands for is the one of the last step.
    let by_steps = "--eval_strategy steps --eval_steps 2 --save_strategy steps --save_steps 4 --logging_steps 2";
    assert_eq!(steps_with("steps", "eval_loss", by_steps), [2, 4, 5]);
    let logged = json_lines(&bench.path("steps/log.jsonl"));
    let logged = logged
        .iter()
        .rfind(|record| record["step"] == 5 && record["eval_loss"].is_f64());
    assert_eq!(
        bench.json("steps/eval_results.json")["eval_loss"],
        logged.unwrap()["eval_loss"]
    );
    assert_eq!(checkpoints(&bench, "steps"), [4, 5]);
    let by_epoch = "--eval_strategy epoch --save_strategy epoch --logging_strategy epoch";
    assert_eq!(steps_with("epoch", "eval_loss", by_epoch), [5]);
    assert_eq!(checkpoints(&bench, "epoch"), [5]);
    assert_eq!(steps_with("again", "loss", by_epoch), [5]);
    let delayed = format!("{by_steps} --eval_delay 6");
    assert_eq!(steps_with("delayed", "eval_loss", &delayed), [5]);
    // What an earlier run measured is not of the weights that take the place of its own.
    assert!(steps_with("steps", "eval_loss", "--do_eval false").is_empty());
    assert!(!bench.path("steps/eval_results.json").exists());
    let results = bench.json("steps/all_results.json");
    assert!(
        results["train_loss"].is_f64() && results.get("eval_loss").is_none(),
        "{results}"
    );
}

/// Throughput is the Trainer's: an epoch has the examples that there are, not those of full batches.
#[test]
fn an_epoch_has_the_examples_of_its_set() {
    let bench = Bench::new();
    let seen = |output: &str, more: &str| -> f64 {
        bench
            .run(&format!(
                "train clm {GPT2} --do_train --per_device_train_batch_size 8 --max_train_samples 20 --report none \
                 --save_strategy no --output_dir {output} {more}"
            ))
            .succeeded();
        let results = bench.json(&format!("{output}/train_results.json"));
        let of = |key: &str| results[key].as_f64().unwrap();
        (of("train_samples_per_second") * of("train_runtime")).round()
    };
    assert_eq!(seen("epochs", "--num_train_epochs 2"), 40.0);
    assert_eq!(seen("steps", "--max_steps 3"), 24.0);
}

/// Exactly these mistakes are reported, each once and with the nearest valid name: those of flags and
/// what the files lack that they name.
fn refused(bench: &Bench, line: &str, parts: &[&str]) {
    let run = bench.run(line);
    assert_eq!(run.code, Some(2), "{line}\n{}", run.stderr);
    for part in parts {
        assert!(run.stderr.contains(part), "{part} is not in {}", run.stderr);
    }
    let count = run.stderr.matches("error: ").count();
    assert_eq!(count, parts.len(), "{line}\n{}", run.stderr);
    assert!(run.stdout.is_empty(), "{}", run.stdout);
}

/// A folder with a saved decoder, an empty directory, and files whose columns have other names than usual.
fn with_a_decoder() -> Bench {
    let bench = Bench::new();
    let small = "--block_size 32 --per_device_train_batch_size 4 --max_steps 1 --save_strategy no --report none --disable_tqdm";
    bench
        .run(&format!(
            "train clm --model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=32,n_positions=64 --tokenizer_name byte_bpe \
             --train_file articles.txt --output_dir decoder {small}"
        ))
        .succeeded();
    fs::create_dir(bench.path("empty")).unwrap();
    fs::write(
        bench.path("rows.csv"),
        "id,body,kind\n1,Good.,yes\n2,Bad.,no\n",
    )
    .unwrap();
    fs::write(bench.path("notes.jsonl"), "{\"content\": \"A line.\"}\n").unwrap();
    fs::write(
        bench.path("ner.jsonl"),
        "{\"token\": [\"A\"], \"ner_tag\": [\"O\"]}\n",
    )
    .unwrap();
    bench
}

#[test]
fn mistakes_in_files_are_said_with_those_of_flags() {
    let bench = with_a_decoder();
    // run_clm: a typed flag, an encoder, a column, a file, a metric.
    refused(
        &bench,
        "train clm --model_type bert --tokenizer_name byte_bpe --do_train --do_eval --train_file rows.csv --text_column_name bdy \
         --validation_file articles-vlid.txt --learning_rte 1e-3 --eval_strategy steps --metric_for_best_model acuracy --output_dir out",
        &[
            "unknown flag --learning_rte for `xtrain train clm`\nhint: did you mean `--learning_rate`?\n",
            "error: --model_type: bert is an encoder, which predicts masked tokens, not the next one\nhint: use the task mlm, or one of gpt2,",
            "error: --train_file: rows.csv has no column \"bdy\"; it has id, body, kind\nhint: did you mean --text_column_name body?\n",
            "error: --validation_file: articles-vlid.txt does not exist\nhint: did you mean articles-valid.txt?\n",
            "error: --metric_for_best_model: there is no metric `acuracy`\nhint: did you mean `accuracy`?\n",
        ],
    );
    // run_glue: settings of the model, a directory without tokenizer, the label's column, a metric.
    refused(
        &bench,
        "train cls --model_type gpt2 --config_overrides n_hed=2,n_layers=x --tokenizer_name empty --train_file rows.csv \
         --text_column_name body --label_column_name knd --eval_strategy epoch --save_strategy epoch --load_best_model_at_end \
         --metric_for_best_model eval_accurcy --output_dir out",
        &[
            "error: --config_overrides: n_hed=2",
            "error: --config_overrides: n_layers=\"x\"",
            "error: no tokenizer in empty: expected tokenizer.json",
            "error: --train_file: rows.csv has no column \"knd\"; it has id, body, kind\nhint: did you mean --label_column_name kind?\n",
            "error: --metric_for_best_model: there is no metric `accurcy`\nhint: did you mean `accuracy`?\n",
        ],
    );
    // run_mlm on a decoder's directory, which is not there under that name, and a file without texts.
    refused(
        &bench,
        "train mlm --model_name_or_path decoder --train_file notes.jsonl --validation_file rows.csv --text_column_name content \
         --do_eval --do_train --warmup_step 3 --bf16 --fp16 --output_dir out",
        &[
            "did you mean `--warmup_steps`?",
            "error: --bf16 and --fp16 exclude each other",
            "error: --model_name_or_path: decoder (gpt2) is a decoder, which predicts the next token, not masked ones\n\
             hint: use the task clm, or one of bert,",
            "error: --validation_file: rows.csv has no column \"content\"; it has id, body, kind\n",
        ],
    );
    refused(
        &bench,
        "train mlm --model_name_or_path ./decodr --tokenizer_name ./wordpice --train_file articles.txt articles-vlid.txt --output_dir out \
         --per_device_train_batchsize 8",
        &[
            "did you mean `--per_device_train_batch_size`?",
            "error: --model_name_or_path: ./decodr is not a directory here\nhint: did you mean ./decoder?\n",
            "error: --tokenizer_name: ./wordpice does not exist here\nhint: did you mean ./wordpiece?\n",
            "error: --train_file: articles-vlid.txt does not exist\nhint: did you mean articles-valid.txt?\n",
        ],
    );
    // run_ner: columns of words, and what a metric of one kind of entity is called is not known yet.
    refused(
        &bench,
        &format!(
            "train token-cls {BERT} --tokenizer_name wordpiece --train_file ner.jsonl --max_seq_length 128 --tensor_parallel 3 \
             --eval_strategy epoch --metric_for_best_model f2 --dataset_config_name conll --resume_from_checkpoint out/checkpoint-3 \
             --output_dir out"
        ),
        &[
            "error: --dataset_config_name needs --dataset_name\n",
            "error: --max_seq_length 128 is more than the model's 64 positions\nhint: set --max_seq_length 64 or less\n",
            "error: 3 devices cannot divide layers of 2 heads",
            "error: --train_file: ner.jsonl has no column tokens or words; it has token, ner_tag\nhint: did you mean --text_column_name token?\n",
            "error: --train_file: ner.jsonl has no column ner_tags or labels; it has token, ner_tag\nhint: did you mean --label_column_name ner_tag?\n",
            "error: --metric_for_best_model: there is no metric `f2`\nhint: ",
            "error: --resume_from_checkpoint: out/checkpoint-3 is not a directory\n",
        ],
    );
    assert!(!bench.path("out").exists());
    of_evaluations_and_settings_files(&bench);
}

/// The same of commands that do not train, and of settings from a file.
fn of_evaluations_and_settings_files(bench: &Bench) {
    // Evaluations and predictions: a language model has no labels to give.
    refused(
        bench,
        "eval cls --model_name_or_path decoder --validation_file rows.csv --per_device_eval_batchsize 8",
        &[
            "did you mean `--per_device_eval_batch_size`?",
            "error: decoder/config.json is of a GPT2LMHeadModel: there are no labels to give\nhint: train it for classification first: ",
            "error: --validation_file: rows.csv has no column text or sentence or sentence1; it has id, body, kind\nhint: name the one to use with --text_column_name\n",
            "error: --validation_file: rows.csv has no column label or labels; it has id, body, kind\nhint: name the one to use with --label_column_name\n",
        ],
    );
    assert!(!bench.path("out").exists());
    // The same from a settings file, whose mistakes are said with their lines.
    fs::write(
        bench.path("run.json"),
        "{\"model_name_or_path\": \"decoder\",\n\"train_file\": \"rows.csv\",\n\"lerning_rate\": 1,\n\"eval_strategy\": \"steps\",\n\
         \"metric_for_best_model\": \"perplexty\", \"output_dir\": \"out\", \"block_size\": 128}",
    )
    .unwrap();
    refused(
        bench,
        "train clm run.json",
        &[
            "error: run.json:3: unknown key `lerning_rate`",
            "error: --block_size 128 is more than the model's 64 positions\nhint: set --block_size 64 or less\n",
            "error: --train_file: rows.csv has no column text or sentence or sentence1; it has id, body, kind\nhint: ",
            "hint: did you mean `perplexity`?\n",
        ],
    );
    // Weights, of a directory that has none.
    fs::remove_file(bench.path("decoder/model.safetensors")).unwrap();
    refused(
        bench,
        "generate --model_name_or_path decoder --promt x",
        &[
            "did you mean `--prompt`?",
            "error: --model_name_or_path: no model.safetensors in decoder",
        ],
    );
}

/// A GPT-2 of a few weights, all zero, as a directory with a chat template.
fn tiny_model(bench: &Bench) {
    let mut config = xtrain_models::preset("gpt2").unwrap();
    let sizes = [
        ("n_layer", 2),
        ("n_embd", 16),
        ("n_head", 2),
        ("n_positions", 2048),
        ("vocab_size", 1000),
    ];
    for (key, value) in sizes {
        config.set(key, value);
    }
    config.set("model_type", "gpt2");
    let model = xtrain_models::build(config.clone(), HeadKind::CausalLm).unwrap();
    let parameters = model.parameters();
    let largest = parameters.iter().map(|parameter| parameter.elements());
    let zeros = vec![0; 4 * largest.max().unwrap()];
    let tensors = parameters.iter().map(|parameter| {
        let shape = Shape::new(DType::F32, parameter.dims.clone());
        let bytes = &zeros[..shape.bytes()];
        TensorRef::new(parameter.name.as_str(), shape, bytes)
    });
    let dir = bench.path("model");
    fs::rename(bench.path("byte_bpe"), &dir).unwrap();
    let template =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}";
    fs::write(dir.join("chat_template.jinja"), template).unwrap();
    let values = Value::Object(config.values().clone());
    fs::write(dir.join("config.json"), values.to_string()).unwrap();
    let mut file = fs::File::create(dir.join("model.safetensors")).unwrap();
    write_safetensors(&mut file, &tensors.collect::<Vec<_>>()).unwrap();
}

/// Each command line of fine-tuning of which docs/migration.md says that it runs has a plan with a small model
/// and a few rows in the place of the Hub's: model, adapter, rows, schedule, and the graphs of its steps.
#[test]
fn lines_of_fine_tuning_have_plans() {
    let bench = Bench::new();
    tiny_model(&bench);
    let turn = |role: &str, content: String| json!({"role": role, "content": content});
    let rows = |row: &dyn Fn(usize) -> Value| -> String {
        (0..40).map(|i| format!("{}\n", row(i))).collect()
    };
    let chats = rows(&|i| {
        let turns = [
            turn("user", format!("{i} and one?")),
            turn("assistant", format!("{}", i + 1)),
        ];
        json!({"messages": turns})
    });
    fs::create_dir(bench.path("chat")).unwrap();
    for name in [
        "chats.jsonl",
        "more.jsonl",
        "chat/train.jsonl",
        "chat/valid.jsonl",
    ] {
        fs::write(bench.path(name), &chats).unwrap();
    }
    let prompt = |i: usize| format!("{i} and one?");
    let pairs =
        rows(&|i| json!({"prompt": prompt(i), "chosen": format!(" {}", i + 1), "rejected": " no"}));
    fs::write(bench.path("pairs.jsonl"), pairs).unwrap();
    let judged = rows(&|i| json!({"prompt": prompt(i), "completion": " two", "label": i == 1}));
    fs::write(bench.path("judged.jsonl"), judged).unwrap();
    let here = format!("{}/", bench.path("").display());
    let settings = format!(
        "model_name_or_path: {here}model\ntrain_file: {here}chats.jsonl\nlearning_rate: 2.0e-5\npacking: true\noutput_dir: {here}yaml\n"
    );
    fs::write(bench.path("sft.yaml"), settings).unwrap();

    let page = include_str!("../docs/migration.md");
    let blocks = page.split("\n```\n").collect::<Vec<_>>();
    let mut planned = 0;
    for (line, answer) in blocks.iter().zip(&blocks[1..]) {
        let data = match line.split(' ').next() {
            Some("sft") => "chats.jsonl",
            Some("dpo" | "reward") => "pairs.jsonl",
            Some("kto") => "judged.jsonl",
            _ => continue,
        };
        if !answer.trim_start().starts_with("Runs") {
            continue;
        }
        let mut words: Vec<String> = line.split_whitespace().map(str::to_string).collect();
        for at in 0..words.len() {
            match words[at].as_str() {
                "--model_name_or_path" => words[at + 1] = format!("{here}model"),
                "--dataset_name" => {
                    words[at] = "--train_file".to_string();
                    words[at + 1] = format!("{here}{data}");
                }
                "--output_dir" => words[at + 1] = format!("{here}out-{planned}"),
                word => words[at] = word.replace("@/", &here),
            }
        }
        words.extend(["--cache_dir".to_string(), format!("{here}cache")]);
        words.push("--disable_tqdm".to_string());
        let mut run = Run::from_args(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
        let (length, _) = run.length().unwrap().expect("it trains");
        assert!(length.max_steps > 0, "{line}");
        assert!(!run.record().unwrap().is_empty(), "{line}");
        planned += 1;
    }
    assert!(planned >= 19, "{planned}");
}
