//! Masked language modelling and classification as a user runs them: the real program on real data,
//! with models so small that a run takes seconds.

use crate::support::{Command, Run, copy_tokenizer, data_dir, data_text, json_lines, xtrain};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// A folder with pieces of the shared data, a small tokenizer, and room for runs.
pub(crate) struct Bench(TempDir);

pub(crate) const BERT: &str = "--model_type bert --config_overrides hidden_size=32,num_hidden_layers=2,num_attention_heads=2,\
                    intermediate_size=64,max_position_embeddings=64";
const ROBERTA: &str = "--model_type roberta --config_overrides hidden_size=32,num_hidden_layers=2,num_attention_heads=2,\
                       intermediate_size=64,max_position_embeddings=66";
pub(crate) const ALBERT: &str = "--model_type albert --config_overrides hidden_size=32,embedding_size=16,num_hidden_layers=2,\
                      num_attention_heads=2,intermediate_size=64,max_position_embeddings=64";
pub(crate) const GPTJ: &str =
    "--model_type gptj --config_overrides n_embd=32,n_layer=2,n_head=2,rotary_dim=8,n_positions=64";

/// Tweets in three classes, padded to two lengths.
pub(crate) const POSTS: &str = "--train_file posts.csv --text_column_name text --label_column_name sentiment --max_seq_length 48 \
                      --pad_to_bucket 24 --per_device_train_batch_size 16 --disable_tqdm --lr_scheduler_type constant";
const ARTICLES: &str = "--train_file articles.txt --max_seq_length 32 --per_device_train_batch_size 8 --disable_tqdm \
                        --learning_rate 2e-3 --lr_scheduler_type constant";

impl Bench {
    pub(crate) fn new() -> Self {
        let bench = Bench(tempfile::tempdir().unwrap());
        for name in ["wordpiece", "byte_bpe"] {
            copy_tokenizer(name, &bench.path(name));
        }
        // The files keep their line ends and quotes.
        let lines = |name: &str, to: &str, range: std::ops::Range<usize>| {
            let text = data_text(name);
            let mut all = text.split_inclusive('\n');
            let header = all.next().unwrap();
            let chosen: String = all.skip(range.start).take(range.len()).collect();
            fs::write(bench.path(to), format!("{header}{chosen}")).unwrap();
        };
        lines("posts-train.csv", "posts.csv", 0..600);
        lines("posts-test.csv", "posts-valid.csv", 0..120);
        lines("reviews/train.tsv", "reviews.tsv", 0..300);
        lines("reviews/dev.tsv", "reviews-dev.tsv", 0..60);
        lines("reviews/test.tsv", "reviews-test.tsv", 0..40);
        lines("articles-train.txt", "articles.txt", 0..300);
        lines("articles-valid.txt", "articles-valid.txt", 0..60);
        bench
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = xtrain();
        // Tokenized text is made anew in each test, compiled graphs are shared.
        command.dir(self.0.path()).args(line.split_whitespace());
        command
    }

    pub(crate) fn run(&self, line: &str) -> Run {
        self.command(line).run()
    }

    /// Log records of a run's directory, without what differs between any two runs.
    pub(crate) fn records(&self, dir: &str) -> Vec<Value> {
        let mut records = json_lines(&self.path(dir).join("log.jsonl"));
        for record in &mut records {
            record
                .as_object_mut()
                .unwrap()
                .retain(|key, _| !key.contains("runtime") && !key.contains("per_second"));
        }
        records
    }

    pub(crate) fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.path(name)).unwrap()).unwrap()
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

pub(crate) fn numbers(records: &[Value], key: &str) -> Vec<f64> {
    records
        .iter()
        .filter_map(|record| record[key].as_f64())
        .collect()
}

/// Rows of a CSV file without quotes, header first.
fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split(',').collect()).collect()
}

#[test]
fn a_classifier_is_trained_evaluated_and_used() {
    let bench = Bench::new();
    let run = bench.run(&format!(
        "train cls {BERT} {POSTS} --tokenizer_name wordpiece --validation_file posts-valid.csv --learning_rate 2e-3 \
         --max_steps 60 --logging_steps 20 --eval_strategy steps --eval_steps 30 --save_strategy no --output_dir out"
    ));
    run.succeeded();
    let records = bench.records("out");
    let losses = numbers(&records, "loss");
    assert!(
        losses.len() == 3 && losses[2] < losses[0] && losses[0] < 1.3,
        "{losses:?}"
    );
    let results = bench.json("out/all_results.json");
    for key in [
        "eval_loss",
        "eval_accuracy",
        "eval_f1",
        "eval_matthews_correlation",
        "eval_f1_negative",
        "eval_f1_positive",
    ] {
        assert!(results[key].is_number(), "{key}: {results}");
    }
    assert!(results.get("perplexity").is_none(), "{results}");
    let config = bench.json("out/config.json");
    assert_eq!(config["architectures"][0], "BertForSequenceClassification");
    assert_eq!(config["id2label"]["1"], "neutral");
    assert_eq!(config["label2id"]["positive"], 2);
    assert!(!bench.path("out/generation_config.json").exists());

    // The directory alone knows its labels, and gives the same evaluation whatever the buckets and
    // the batch.
    let eval = bench.run(
        "eval cls --json --disable_tqdm --model_name_or_path out --validation_file posts-valid.csv --label_column_name sentiment \
         --text_column_name text --max_seq_length 48 --per_device_eval_batch_size 13",
    );
    eval.succeeded();
    let again: Value = serde_json::from_str(eval.stdout.trim()).unwrap();
    for key in ["eval_accuracy", "eval_f1", "eval_matthews_correlation"] {
        assert_eq!(again[key], results[key], "{key}");
    }
    assert!(
        (again["eval_loss"].as_f64().unwrap() - results["eval_loss"].as_f64().unwrap()).abs()
            < 1e-5
    );

    let predict = bench.run(
        "predict cls --disable_tqdm --model_name_or_path out --test_file posts-valid.csv --text_column_name text \
         --max_seq_length 48 --output_file labels.csv",
    );
    predict.succeeded();
    let table = fs::read_to_string(bench.path("labels.csv")).unwrap();
    let table = rows(&table);
    assert_eq!(
        table[0],
        [
            "index",
            "prediction",
            "score_negative",
            "score_neutral",
            "score_positive"
        ]
    );
    assert_eq!(table.len(), 121);
    let truth = fs::read_to_string(bench.path("posts-valid.csv")).unwrap();
    let truth: Vec<&str> = truth
        .lines()
        .skip(1)
        .map(|line| line.trim_end().rsplit(',').next().unwrap())
        .collect();
    let right = table[1..]
        .iter()
        .zip(&truth)
        .filter(|(row, truth)| row[1] == **truth)
        .count();
    assert_eq!(
        right as f64 / 120.0,
        results["eval_accuracy"].as_f64().unwrap()
    );
    for (index, row) in table[1..].iter().enumerate() {
        let scores: Vec<f64> = row[2..]
            .iter()
            .map(|score| score.parse().unwrap())
            .collect();
        assert_eq!(row[0], index.to_string());
        assert!((scores.iter().sum::<f64>() - 1.0).abs() < 1e-5, "{row:?}");
    }
}

#[test]
fn a_model_that_was_trained_in_lower_case_stays_so() {
    let bench = Bench::new();
    let table = |texts: [&str; 2]| format!("text\n{}\n{}\n", texts[0], texts[1]);
    fs::write(
        bench.path("shouted.csv"),
        table(["THIS IS The BEST Day", "I HATE My Phone"]),
    )
    .unwrap();
    fs::write(
        bench.path("said.csv"),
        table(["this is the best day", "i hate my phone"]),
    )
    .unwrap();
    let tokenizer = data_dir().join("bert-cased").display().to_string();
    // The same words in both, if capitals do not count.
    for (out, flag, alike) in [
        ("as_written", "", false),
        ("lower", "--do_lower_case", true),
    ] {
        bench
            .run(&format!(
                "train cls {BERT} {POSTS} --tokenizer_name {tokenizer} {flag} --validation_file posts-valid.csv \
                 --learning_rate 2e-3 --max_steps 10 --eval_strategy no --save_strategy no --output_dir {out}"
            ))
            .succeeded();
        let label = |file: &str| {
            let run = bench
                .run(&format!("predict cls --disable_tqdm --model_name_or_path {out} --test_file {file} --max_seq_length 48"));
            run.succeeded();
            run.stdout
        };
        assert_eq!(label("shouted.csv") == label("said.csv"), alike, "{out}");
    }
    let refused = bench.run(&format!(
        "train cls {GPTJ} {POSTS} --tokenizer_name byte_bpe --do_lower_case --output_dir none"
    ));
    assert!(
        refused.code == Some(1) && refused.stderr.contains("no switch for lower case"),
        "{}",
        refused.stderr
    );
    assert!(!bench.path("none").exists());
}

#[test]
fn pairs_of_texts_have_segments() {
    let bench = Bench::new();
    let mut table = String::from("sentence1\tsentence2\tlabel\n");
    for i in 0..64 {
        table.push_str(&format!(
            "a film number {i}\t{} film\t{}\n",
            if i % 3 == 0 { "that" } else { "no" },
            i % 3 == 0
        ));
    }
    fs::write(bench.path("pairs.tsv"), table).unwrap();
    let run = bench.run(&format!(
        "train cls {BERT} --tokenizer_name wordpiece --train_file pairs.tsv --validation_file pairs.tsv --max_seq_length 24 \
         --per_device_train_batch_size 16 --learning_rate 5e-3 --max_steps 40 --eval_strategy steps --eval_steps 40 --do_train --do_predict \
         --test_file pairs.tsv --save_strategy no --disable_tqdm --output_dir out"
    ));
    run.succeeded();
    assert_eq!(bench.json("out/config.json")["id2label"]["0"], "False");
    assert!(
        bench.json("out/eval_results.json")["eval_accuracy"]
            .as_f64()
            .unwrap()
            > 0.9,
        "{}",
        run.stdout
    );
    assert_eq!(
        fs::read_to_string(bench.path("out/predictions.csv"))
            .unwrap()
            .lines()
            .count(),
        65
    );
}

/// Decoders classify by their last token, so that they need a padding token: the tokenizer has
/// none, and says which one serves.
#[test]
fn a_decoder_becomes_a_classifier() {
    let bench = Bench::new();
    let run = bench.run(&format!(
        "train cls {GPTJ} --tokenizer_name byte_bpe --train_file reviews.tsv --validation_file reviews-dev.tsv --max_seq_length 32 \
         --per_device_train_batch_size 16 --learning_rate 2e-3 --max_steps 12 --logging_steps 4 --do_train --do_eval \
         --do_predict --test_file reviews-test.tsv --save_strategy no --disable_tqdm --output_dir out"
    ));
    run.succeeded();
    let config = bench.json("out/config.json");
    assert_eq!(config["architectures"][0], "GPTJForSequenceClassification");
    assert!(config["pad_token_id"].is_u64(), "{config}");
    assert!(
        run.stderr.contains("<|endoftext|> (id 0) serves as one"),
        "{}",
        run.stderr
    );
    assert_eq!(
        fs::read_to_string(bench.path("out/predictions.csv"))
            .unwrap()
            .lines()
            .count(),
        41
    );
    // What was saved says how it pads.
    let predict = bench.run("predict cls --disable_tqdm --model_name_or_path out --test_file reviews-test.tsv --max_seq_length 32");
    predict.succeeded();
    assert!(
        !predict.stderr.contains("serves as one"),
        "{}",
        predict.stderr
    );
    assert_eq!(
        predict.stdout,
        fs::read_to_string(bench.path("out/predictions.csv")).unwrap()
    );
}

#[test]
fn an_evaluation_may_have_its_loss_alone() {
    let bench = Bench::new();
    let train = |out: &str, more: &str| {
        let run = bench.run(&format!(
            "train cls {BERT} {POSTS} --tokenizer_name wordpiece --validation_file posts-valid.csv --max_steps 2 --do_train \
             --do_eval --save_strategy no --output_dir {out} {more}"
        ));
        run.succeeded();
        let results = bench.json(&format!("{out}/all_results.json"));
        let keys = results.as_object().unwrap().keys();
        let metrics = keys.filter(|key| key.starts_with("eval_f1") || *key == "eval_accuracy");
        (results["eval_loss"].clone(), metrics.count())
    };
    let (loss, metrics) = train("all", "");
    assert!(loss.is_number() && metrics == 5, "{loss} {metrics}");
    let (alone, metrics) = train("alone", "--prediction_loss_only");
    assert_eq!((alone, metrics), (loss, 0));
    // Predictions need what the metrics need.
    let (_, metrics) = train(
        "predicted",
        "--prediction_loss_only --do_predict --test_file posts-valid.csv",
    );
    assert_eq!(metrics, 5);
    assert!(bench.path("predicted/predictions.csv").exists());
    let eval = bench.run(
        "eval cls --json --disable_tqdm --prediction_loss_only --model_name_or_path alone --validation_file posts-valid.csv \
         --label_column_name sentiment --text_column_name text --max_seq_length 48",
    );
    eval.succeeded();
    let eval: Value = serde_json::from_str(eval.stdout.trim()).unwrap();
    assert!(eval["eval_loss"].is_number() && eval.get("eval_accuracy").is_none());
    // Nothing but the loss can decide which checkpoint is the best.
    let run = bench.run(&format!(
        "train cls {BERT} {POSTS} --tokenizer_name wordpiece --validation_file posts-valid.csv --output_dir best \
         --prediction_loss_only --metric_for_best_model accuracy --load_best_model_at_end --eval_strategy steps"
    ));
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(
        run.stderr.contains("there is no metric `accuracy`"),
        "{}",
        run.stderr
    );
}

#[test]
fn every_encoder_learns_masked_tokens() {
    for (name, model, class) in [
        ("bert", BERT, "BertForMaskedLM"),
        ("roberta", ROBERTA, "RobertaForMaskedLM"),
        ("albert", ALBERT, "AlbertForMaskedLM"),
    ] {
        let bench = Bench::new();
        let run = bench.run(&format!(
            "train mlm {model} {ARTICLES} --tokenizer_name wordpiece --validation_file articles-valid.txt --max_steps 60 \
             --logging_steps 20 --do_train --do_eval --save_strategy no --output_dir out"
        ));
        run.succeeded();
        let losses = numbers(&bench.records("out"), "loss");
        assert!(
            losses.len() == 3 && losses[2] < losses[0] - 0.2,
            "{name}: {losses:?}"
        );
        assert_eq!(bench.json("out/config.json")["architectures"][0], class);
        let results = bench.json("out/all_results.json");
        assert!(
            results["perplexity"].is_number() && results["eval_accuracy"].is_number(),
            "{results}"
        );
        let eval = bench.run(
            "eval mlm --json --disable_tqdm --model_name_or_path out --validation_file articles-valid.txt --max_seq_length 32",
        );
        eval.succeeded();
        let again: Value = serde_json::from_str(eval.stdout.trim()).unwrap();
        assert!(
            (again["eval_loss"].as_f64().unwrap() - results["eval_loss"].as_f64().unwrap()).abs()
                < 1e-5,
            "{name}"
        );
        assert_eq!(again["eval_accuracy"], results["eval_accuracy"], "{name}");
    }
}

/// Stops a run in the middle as a crash would, resumes it, and wants everything as in the run that
/// went through.
fn resumes_exactly(bench: &Bench, line: &str, half: u64, end: u64) {
    bench.run(&format!("{line} --output_dir whole")).succeeded();
    bench
        .run(&format!("{line} --output_dir stopped"))
        .succeeded();
    fs::remove_dir_all(bench.path(&format!("stopped/checkpoint-{end}"))).unwrap();
    fs::remove_file(bench.path("stopped/model.safetensors")).unwrap();
    let again = bench.run(&format!(
        "{line} --output_dir stopped --resume_from_checkpoint"
    ));
    again.succeeded();
    assert!(
        again.stderr.contains(&format!("(step {half})")),
        "{}",
        again.stderr
    );
    assert!(
        bench.bytes("whole/model.safetensors") == bench.bytes("stopped/model.safetensors"),
        "final weights differ"
    );
    assert_eq!(bench.records("whole"), bench.records("stopped"));
    let state = |dir: &str| {
        bench.json(&format!("{dir}/checkpoint-{end}/training_state.json"))["state"].clone()
    };
    assert_eq!(state("whole"), state("stopped"));
    let mut states =
        ["whole", "stopped"].map(|dir| bench.json(&format!("{dir}/trainer_state.json")));
    for (state, dir) in states.iter_mut().zip(["whole", "stopped"]) {
        if let Some(path) = state["best_model_checkpoint"].as_str() {
            state["best_model_checkpoint"] = path.replace(dir, "DIR").into();
        }
        for record in state["log_history"].as_array_mut().unwrap() {
            record
                .as_object_mut()
                .unwrap()
                .retain(|key, _| !key.contains("runtime") && !key.contains("per_second"));
        }
    }
    assert_eq!(states[0], states[1]);
}

#[test]
fn resuming_is_exact_with_dynamic_masking_and_buckets() {
    let bench = Bench::new();
    let line = format!(
        "train mlm {BERT} {ARTICLES} --tokenizer_name wordpiece --line_by_line --pad_to_bucket 16 --whole_word_mask \
         --gradient_accumulation_steps 2 --dataloader_num_workers 2 --max_steps 16 --logging_steps 4 --save_steps 8"
    );
    resumes_exactly(&bench, &line, 8, 16);
}

#[test]
fn resuming_is_exact_with_the_best_checkpoint_and_patience() {
    let bench = Bench::new();
    let line = format!(
        "train cls {BERT} {POSTS} --tokenizer_name wordpiece --validation_file posts-valid.csv --learning_rate 5e-3 --max_steps 24 \
         --logging_steps 4 --eval_strategy steps --eval_steps 4 --save_steps 12 --load_best_model_at_end \
         --metric_for_best_model accuracy --early_stopping_patience 50"
    );
    resumes_exactly(&bench, &line, 12, 24);
}

/// With a threshold that no gain reaches, the first evaluation is the only progress.
#[test]
fn a_run_that_gets_no_better_stops_and_ends_with_its_best_weights() {
    let bench = Bench::new();
    let line = format!(
        "train cls {BERT} {POSTS} --tokenizer_name wordpiece --validation_file posts-valid.csv --learning_rate 5e-3 --max_steps 60 \
         --logging_steps 5 --eval_strategy steps --eval_steps 5 --save_steps 5 --save_total_limit 1 --load_best_model_at_end \
         --early_stopping_patience 3 --early_stopping_threshold 10 --output_dir out"
    );
    let run = bench.run(&line);
    run.succeeded();
    assert!(run.stderr.contains("stopping early"), "{}", run.stderr);
    let records = bench.records("out");
    let losses = numbers(&records, "eval_loss");
    let best = losses[..4].iter().copied().fold(f64::INFINITY, f64::min);
    // Three evaluations after the first, and one of the best weights if those are not the last.
    let again = if losses[3] == best { &[][..] } else { &[best] };
    assert_eq!(losses[4..], *again, "{losses:?}");
    let step = 5 * (losses.iter().position(|loss| *loss == best).unwrap() + 1);
    let state = bench.json("out/trainer_state.json");
    assert_eq!(state["best_metric"].as_f64(), Some(best));
    assert_eq!(state["best_global_step"], step);
    assert_eq!(
        state["best_model_checkpoint"],
        format!("out/checkpoint-{step}")
    );
    assert_eq!(
        state["stateful_callbacks"]["EarlyStoppingCallback"]["attributes"]["early_stopping_patience_counter"],
        3
    );
    // The best one stays, however old, beside the newest.
    for kept in [step, 20] {
        assert!(
            bench.path(&format!("out/checkpoint-{kept}")).is_dir(),
            "checkpoint-{kept}"
        );
    }
    let kept = fs::read_dir(bench.path("out"))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().is_dir())
        .count();
    assert_eq!(kept, if step == 20 { 1 } else { 2 });
    assert!(
        bench.bytes("out/model.safetensors")
            == bench.bytes(&format!("out/checkpoint-{step}/model.safetensors"))
    );
    // Resumed as it is, such a run has nothing more to do.
    let again = bench.run(&format!("{line} --resume_from_checkpoint"));
    again.succeeded();
    assert!(
        again.stderr.contains("stopped early there"),
        "{}",
        again.stderr
    );
    assert_eq!(bench.records("out"), records);
}

/// The body of a masked language model goes over into a classifier, with a head that is new.
#[test]
fn a_pretrained_body_gets_a_new_head() {
    let bench = Bench::new();
    bench
        .run(&format!("train mlm {BERT} {ARTICLES} --tokenizer_name wordpiece --max_steps 2 --output_dir mlm --save_strategy no"))
        .succeeded();
    let train = format!(
        "train cls --model_name_or_path mlm {POSTS} --max_steps 1 --learning_rate 0 --save_strategy no --output_dir"
    );
    let run = bench.run(&format!("{train} cls"));
    run.succeeded();
    for word in [
        "has no head for sequence classification",
        "classifier.weight",
        "bert.pooler.dense.bias",
        "start at random",
    ] {
        assert!(run.stderr.contains(word), "{word}: {}", run.stderr);
    }
    assert!(
        run.stderr.contains("not used: cls.predictions.bias"),
        "{}",
        run.stderr
    );
    let tensor = |dir: &str, name: &str| {
        let weights = xtrain::checkpoint::Weights::open(&bench.path(dir)).unwrap();
        weights.read_f32(name).map(|(_, values)| values)
    };
    let body = "bert.encoder.layer.1.output.dense.weight";
    assert_eq!(tensor("mlm", body).unwrap(), tensor("cls", body).unwrap());
    assert!(tensor("cls", "cls.predictions.bias").is_err());
    let spread = tensor("cls", "classifier.weight")
        .unwrap()
        .iter()
        .map(|x| f64::from(x * x))
        .sum::<f64>()
        / 96.0;
    assert!(
        (0.015..0.025).contains(&spread.sqrt()),
        "initializer_range is 0.02, found {}",
        spread.sqrt()
    );

    // Another number of labels: refused, unless the head may start anew.
    let table = "one,a\ntwo,b\nthree,a\nfour,b\n".repeat(8);
    fs::write(bench.path("two.csv"), format!("text,sentiment\n{table}")).unwrap();
    let two = "train cls --model_name_or_path cls --train_file two.csv --label_column_name sentiment --text_column_name text \
               --max_seq_length 16 --max_steps 1 --disable_tqdm --save_strategy no --output_dir two";
    let refused = bench.run(two);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .contains("classifier.weight: the model wants f32[2,32], the file has f32[3,32]"),
        "{}",
        refused.stderr
    );
    assert!(
        refused.stderr.contains("--ignore_mismatched_sizes"),
        "{}",
        refused.stderr
    );
    bench
        .run(&format!("{two} --ignore_mismatched_sizes"))
        .succeeded();
    assert_eq!(
        bench.json("two/config.json")["id2label"]
            .as_object()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn large_models_are_saved_in_several_files() {
    let bench = Bench::new();
    let line = format!(
        "train mlm {BERT} {ARTICLES} --tokenizer_name wordpiece --max_steps 2 --save_steps 1"
    );
    bench.run(&format!("{line} --output_dir whole")).succeeded();
    bench
        .run(&format!("{line} --output_dir parts --max_shard_size 60KB"))
        .succeeded();
    for dir in ["parts", "parts/checkpoint-1"] {
        let index = bench.json(&format!("{dir}/model.safetensors.index.json"));
        assert!(!bench.path(&format!("{dir}/model.safetensors")).exists());
        for file in index["weight_map"].as_object().unwrap().values() {
            assert!(
                bench.path(dir).join(file.as_str().unwrap()).is_file(),
                "{file}"
            );
        }
    }
    let tensors = |dir: &str| {
        let weights = xtrain::checkpoint::Weights::open(&bench.path(dir)).unwrap();
        weights
            .iter()
            .map(|view| (view.name.to_string(), view.bytes.to_vec()))
            .collect::<Vec<_>>()
    };
    assert!(tensors("whole") == tensors("parts"));
    // Weights in parts serve like whole ones, to resume from too.
    fs::remove_dir_all(bench.path("parts/checkpoint-2")).unwrap();
    bench
        .run(&format!(
            "{line} --output_dir parts --max_shard_size 60KB --resume_from_checkpoint"
        ))
        .succeeded();
    assert!(tensors("whole") == tensors("parts"));
    bench
        .run("eval mlm --disable_tqdm --model_name_or_path parts --validation_file articles-valid.txt --max_seq_length 32")
        .succeeded();
}

#[test]
fn the_plan_lists_a_graph_for_each_bucket() {
    let bench = Bench::new();
    let run = bench.run(&format!(
        "train cls {BERT} {POSTS} --tokenizer_name wordpiece --validation_file posts-valid.csv --do_train --do_eval --dry_run \
         --gradient_accumulation_steps 2 --output_dir never"
    ));
    run.succeeded();
    for word in [
        "accumulate.24",
        "update.24",
        "accumulate.48",
        "update.48",
        "eval.24",
        "eval.48",
        "negative, neutral, positive",
    ] {
        assert!(run.stdout.contains(word), "{word}: {}", run.stdout);
    }
    assert!(!bench.path("never").exists());
    // Nothing is left to compile then: the run itself may not compile at all.
    let train = bench.run(&format!(
        "train cls {BERT} {POSTS} --tokenizer_name wordpiece --validation_file posts-valid.csv --do_train --do_eval \
         --gradient_accumulation_steps 2 --max_steps 4 --save_strategy no --output_dir out"
    ));
    train.succeeded();
    assert!(train.stderr.contains(", compiled 0,"), "{}", train.stderr);
}
