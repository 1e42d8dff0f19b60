//! Training on preferences as a user runs it: the real program, small models, answers of which one is
//! right.

use crate::parallel::{OPTIMIZER, assert_same_run};
use crate::support::Run;
use crate::tasks::{Bench, GPTJ, numbers};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

const DATA: &str = "--max_length 32 --pad_to_bucket 24 --disable_tqdm";

/// Questions and answers by which a model learns to answer, pairs of a right and a wrong answer, some
/// of them held out, and the same answers one by one.
fn bench() -> Bench {
    let bench = Bench::new();
    let things = ["roses", "grass", "the sky", "snow", "coal", "gold"];
    let colours = ["red", "green", "blue", "white", "black", "yellow"];
    let (mut texts, mut train, mut held, mut judged) = Default::default();
    let add = |text: &mut String, row: Value| text.push_str(&format!("{row}\n"));
    for (i, thing) in things.iter().enumerate() {
        for (j, other) in colours.iter().enumerate() {
            let prompt = format!("What is {thing}?");
            // Both answers are about as likely before.
            for colour in [colours[i], other] {
                add(
                    &mut texts,
                    json!({"prompt": prompt, "completion": format!(" {colour}")}),
                );
            }
            if i == j {
                continue;
            }
            let row = json!({
                "prompt": prompt,
                "chosen": format!(" {}", colours[i]),
                "rejected": format!(" {other}"),
                "margin": 0.5,
            });
            let file = if (i + j) % 5 == 0 {
                &mut held
            } else {
                &mut train
            };
            add(file, row.clone());
            for (name, label) in [("chosen", true), ("rejected", false)] {
                let answer = json!({"prompt": prompt, "completion": row[name], "label": label});
                add(&mut judged, answer);
            }
        }
    }
    for (name, text) in [
        ("texts.jsonl", texts),
        ("train.jsonl", train),
        ("held.jsonl", held),
        ("judged.jsonl", judged),
    ] {
        let text: String = text;
        fs::write(bench.path(name), text).unwrap();
    }
    let sft = format!(
        "train sft {GPTJ} --max_length 32 --pad_to_bucket 24 --disable_tqdm --tokenizer_name byte_bpe --train_file texts.jsonl \
         --do_train --per_device_train_batch_size 12 --max_steps 60 --learning_rate 1e-2 --save_strategy no --output_dir sft"
    );
    bench.run(&sft).succeeded();
    bench
}

fn number(record: &Value, key: &str) -> f64 {
    let value = record[key].as_f64();
    value.unwrap_or_else(|| panic!("{key} of {record}"))
}

fn evaluations(records: &[Value]) -> Vec<&Value> {
    let is_one = |record: &&Value| record.get("eval_loss").is_some();
    records.iter().filter(is_one).collect()
}

fn result(run: &Run) -> Value {
    run.succeeded();
    serde_json::from_str(run.stdout.trim()).unwrap()
}

fn references(bench: &Bench) -> Vec<PathBuf> {
    let data = bench.path("cache/data");
    let files = fs::read_dir(data)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_one = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "numbers");
    files.filter(is_one).collect()
}

/// DPO prefers held-out right answers, without making them less likely; a resumed run is the same to the
/// bit, also where the reference's numbers are gone; two devices give the same losses.
#[test]
fn right_answers_are_preferred() {
    let bench = bench();
    let train = format!(
        "train dpo {DATA} --cache_dir cache --model_name_or_path sft --train_file train.jsonl --validation_file held.jsonl \
         --do_train --do_eval --loss_type sigmoid sft --loss_weights 1.0 0.5 --learning_rate 2e-3 --max_steps 20 \
         --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --logging_steps 5 --eval_strategy steps \
         --eval_steps 10 --eval_on_start --save_steps 10 --metric_for_best_model rewards/margins"
    );
    let first = bench.run(&format!("{train} --output_dir out"));
    first.succeeded();
    assert_eq!(
        first.stderr.matches("training examples computed").count(),
        1,
        "{}",
        first.stderr
    );
    assert_eq!(
        first.stderr.matches("validation examples computed").count(),
        1
    );
    let records = bench.records("out");
    let found = evaluations(&records);
    let [before, .., after] = &found[..] else {
        panic!("{records:?}")
    };
    // Policy and reference agree at first: no answer is better.
    assert_eq!(number(before, "eval_rewards/accuracies"), 0.0);
    assert!(
        number(before, "eval_rewards/margins").abs() < 1e-4,
        "{before}"
    );
    assert!(number(after, "eval_rewards/margins") > 0.05, "{after}");
    assert!(number(after, "eval_rewards/accuracies") > 0.8, "{after}");
    let change = number(after, "eval_logps/chosen") - number(before, "eval_logps/chosen");
    assert!(change > -0.5, "chosen answers are less likely by {change}");
    let steps: Vec<&Value> = records
        .iter()
        .filter(|it| it.get("learning_rate").is_some())
        .collect();
    assert_eq!(steps.len(), 4);
    for key in [
        "rewards/chosen",
        "logps/rejected",
        "logits/chosen",
        "entropy",
        "mean_token_accuracy",
    ] {
        number(steps[0], key);
    }
    let state = bench.json("out/trainer_state.json");
    assert_eq!(state["best_metric"], after["eval_rewards/margins"]);

    // The second time the numbers are there, and without them they are computed again.
    let model = fs::read(bench.path("out/model.safetensors")).unwrap();
    let again = bench.run(&format!("{train} --output_dir again"));
    again.succeeded();
    assert_eq!(
        again.stderr.matches("examples found in").count(),
        2,
        "{}",
        again.stderr
    );
    assert_eq!(
        fs::read(bench.path("again/model.safetensors")).unwrap(),
        model
    );
    assert_eq!(references(&bench).len(), 2);
    for path in references(&bench) {
        fs::remove_file(path).unwrap();
    }
    fs::remove_dir_all(bench.path("again/checkpoint-20")).unwrap();
    fs::remove_file(bench.path("again/model.safetensors")).unwrap();
    let resumed = bench.run(&format!(
        "{train} --output_dir again --resume_from_checkpoint"
    ));
    resumed.succeeded();
    assert!(
        resumed.stderr.contains("training examples computed"),
        "{}",
        resumed.stderr
    );
    assert_eq!(
        fs::read(bench.path("again/model.safetensors")).unwrap(),
        model
    );
    // --eval_on_start evaluates at the start of a resumed run, too, as transformers does.
    let mut of_resumed = bench.records("again");
    of_resumed.dedup();
    assert_eq!(of_resumed, records);

    // By itself an evaluation needs the model before training, and then finds the same.
    let eval = format!(
        "eval dpo --json {DATA} --cache_dir cache --model_name_or_path out --validation_file held.jsonl --loss_type sigmoid sft --loss_weights 1.0 0.5"
    );
    let alone = result(&bench.run(&format!("{eval} --ref_model_name_or_path sft")));
    for key in ["eval_loss", "eval_rewards/margins", "eval_logps/chosen"] {
        let difference = number(&alone, key) - number(after, key);
        assert!(difference.abs() < 1e-5, "{key}: {alone} {after}");
    }
    let refused = bench.run(&eval);
    assert!(
        refused.stderr.contains("add --ref_model_name_or_path"),
        "{}",
        refused.stderr
    );

    // A pair's rows stay on one replica.
    let two = format!("{train} --per_device_train_batch_size 2 --data_parallel 2 --output_dir two");
    bench.run(&two).succeeded();
    let of_two = bench.records("two");
    let of_two = evaluations(&of_two);
    // The sft term is a mean over the tokens of each replica, as in TRL.
    let last = of_two.last().unwrap();
    let difference = number(last, "eval_rewards/margins") - number(after, "eval_rewards/margins");
    assert!(difference.abs() < 0.05, "{last} {after}");
}

/// The same pairs on two devices of every kind, which share the reference's numbers.
#[test]
#[ignore = "slow: two devices of each kind"]
fn pairs_are_learned_alike_on_every_mesh() {
    let bench = bench();
    let train = |dir: &str, more: &str| {
        bench
            .run(&format!(
                "train dpo {DATA} --cache_dir cache --model_name_or_path sft --train_file train.jsonl --validation_file held.jsonl \
                 --do_train --do_eval {OPTIMIZER} --max_steps 6 --logging_steps 1 --save_strategy no --output_dir {dir} {more}"
            ))
            .succeeded();
    };
    train("one", "--per_device_train_batch_size 4");
    for (dir, mesh) in [
        ("data", "--data_parallel 2 --per_device_train_batch_size 2"),
        (
            "shard",
            "--shard_parallel 2 --per_device_train_batch_size 2",
        ),
        (
            "tensor",
            "--tensor_parallel 2 --sequence_parallel --per_device_train_batch_size 4",
        ),
        (
            "stage",
            "--pipeline_parallel 2 --per_device_train_batch_size 2 --gradient_accumulation_steps 2",
        ),
    ] {
        train(dir, mesh);
        assert_same_run(&bench, dir, "one");
    }
}

/// ORPO needs no reference; a reward model scores right answers higher; KTO learns from single
/// answers.
#[test]
fn other_objectives_train() {
    let bench = bench();
    let train = format!(
        "{DATA} --cache_dir cache --model_name_or_path sft --do_train --do_eval --max_steps 30 --per_device_train_batch_size 6 \
         --lr_scheduler_type constant --save_strategy no --logging_steps 10"
    );
    let of_pairs = "--train_file train.jsonl --validation_file held.jsonl";
    let orpo = bench.run(&format!(
        "train dpo {train} {of_pairs} --loss_type orpo --learning_rate 2e-3 --output_dir orpo"
    ));
    orpo.succeeded();
    assert!(!orpo.stderr.contains("reference:"), "{}", orpo.stderr);
    let results = bench.json("orpo/all_results.json");
    assert!(
        number(&results, "eval_rewards/accuracies") > 0.8,
        "{results}"
    );

    let reward = bench.run(&format!(
        "train reward {train} --train_file train.jsonl --validation_file train.jsonl --learning_rate 1e-2 --output_dir reward"
    ));
    reward.succeeded();
    let results = bench.json("reward/all_results.json");
    // It learns its pairs; six others are too few to say more.
    assert!(number(&results, "eval_accuracy") > 0.9, "{results}");
    assert!(number(&results, "eval_min_reward") < number(&results, "eval_max_reward"));
    let config = bench.json("reward/config.json");
    assert_eq!(config["id2label"].as_object().unwrap().len(), 1, "{config}");
    let eval = format!(
        "eval reward --json {DATA} --model_name_or_path reward --validation_file train.jsonl"
    );
    let alone = result(&bench.run(&eval));
    assert!((number(&alone, "eval_loss") - number(&results, "eval_loss")).abs() < 1e-5);
    assert_scores(&bench, &alone);

    let kto = bench.run(&format!(
        "train kto {train} --train_file judged.jsonl --validation_file judged.jsonl --learning_rate 2e-3 --output_dir kto"
    ));
    kto.succeeded();
    let results = bench.json("kto/all_results.json");
    assert!(number(&results, "eval_rewards/margins") > 0.1, "{results}");
    assert!(number(&results, "eval_kl") >= 0.0, "{results}");
    kl_is_of_all_replicas(&bench);
}

/// Every answer by itself is scored as in the pairs of an evaluation.
fn assert_scores(bench: &Bench, evaluation: &Value) {
    let rows = fs::read_to_string(bench.path("train.jsonl")).unwrap();
    let rows: Vec<Value> = rows
        .lines()
        .map(|row| serde_json::from_str(row).unwrap())
        .collect();
    let answers = ["chosen", "rejected"].into_iter().flat_map(|name| {
        let answer = move |row: &Value| json!({"prompt": row["prompt"], "completion": row[name]});
        rows.iter().map(move |row| format!("{}\n", answer(row)))
    });
    fs::write(bench.path("answers.jsonl"), answers.collect::<String>()).unwrap();
    let run = bench.run(&format!(
        "predict reward {DATA} --model_name_or_path reward --test_file answers.jsonl --include_text"
    ));
    run.succeeded();
    let mut lines = run.stdout.lines();
    assert_eq!(lines.next(), Some("index,text,score"));
    let first = rows[0]["prompt"].as_str().unwrap();
    assert!(
        run.stdout.contains(&format!("0,{first} ")),
        "{}",
        run.stdout
    );
    let score = |line: &str| line.rsplit(',').next().unwrap().parse::<f64>().unwrap();
    let scores: Vec<f64> = lines.map(score).collect();
    let (chosen, rejected) = scores.split_at(rows.len());
    assert_eq!(chosen.len(), rejected.len());
    let mean = |scores: &[f64]| scores.iter().sum::<f64>() / scores.len() as f64;
    let margin = mean(chosen) - mean(rejected);
    let expected = number(evaluation, "eval_margin");
    assert!((margin - expected).abs() < 1e-4, "{margin}, not {expected}");
    let expected = number(evaluation, "eval_mean_reward");
    assert!((mean(&scores) - expected).abs() < 1e-4, "{scores:?}");
}

/// Two replicas estimate the KL divergence together. Each compares answers within its own batch, so these are two that take
/// turns: within any batch an answer is compared with the other one.
fn kl_is_of_all_replicas(bench: &Bench) {
    let row = |i: usize| {
        let answer = [" It is red.", " It is not blue."][i % 2];
        let prompt = format!("What is thing {}?", i * 37 % 101);
        json!({"prompt": prompt, "completion": answer, "label": true}).to_string() + "\n"
    };
    let rows: String = (0..48).map(row).collect();
    fs::write(bench.path("turns.jsonl"), rows).unwrap();
    let mut measured = Vec::new();
    for (dir, flags) in [
        ("kto-one", "--per_device_train_batch_size 8"),
        (
            "kto-two",
            "--per_device_train_batch_size 4 --data_parallel 2",
        ),
        (
            "kto-shards",
            "--per_device_train_batch_size 4 --shard_parallel 2",
        ),
    ] {
        let run = bench.run(&format!(
            "train kto {DATA} --model_name_or_path sft --train_file turns.jsonl --do_train --max_steps 6 --logging_steps 1 \
             --learning_rate 5e-3 --save_strategy no --output_dir {dir} {flags}"
        ));
        run.succeeded();
        let of = |key: &str| numbers(&bench.records(dir), key);
        measured.push([of("loss"), of("kl"), of("grad_norm")]);
    }
    let one = &measured[0];
    assert!(one[1].iter().any(|kl| *kl > 1e-3), "{one:?}");
    for other in &measured[1..] {
        for (one, other) in one.iter().zip(other) {
            assert_eq!((one.len(), other.len()), (6, 6));
            for (a, b) in one.iter().zip(other) {
                assert!(
                    (a - b).abs() <= 1e-4 * a.abs().max(1.0),
                    "{one:?} {other:?}"
                );
            }
        }
    }
}

/// What has no meaning is refused, all of it at once.
#[test]
fn losses_that_contradict_each_other_are_refused() {
    let bench = Bench::new();
    let run = bench.run(
        "train dpo --model_type gpt2 --tokenizer_name byte_bpe --train_file posts.csv --output_dir out \
         --loss_type robust aot orpo --loss_weights 1 2 --label_smoothing 0.6 --use_weighting --f_divergence_type forward_kl \
         --sync_ref_model --streaming --max_steps 1",
    );
    for part in [
        "--loss_weights has 2 numbers for 3 of --loss_type",
        "--loss_type orpo is a loss of its own",
        "robust reckons with less than half",
        "aot and aot_unpaired sort them",
        "--f_divergence_type forward_kl has no meaning",
        "sync_ref_model",
        "--streaming",
    ] {
        assert!(run.stderr.contains(part), "{part}: {}", run.stderr);
    }
    let kto = bench.run(
        "train kto --model_type gpt2 --tokenizer_name byte_bpe --train_file posts.csv --output_dir out --per_device_train_batch_size auto",
    );
    assert!(
        kto.stderr
            .contains("compares the answers of a batch of training"),
        "{}",
        kto.stderr
    );
    assert!(!bench.path("out").exists());
}
