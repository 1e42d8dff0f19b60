//! Labels that are numbers: trained on the squared error, evaluated by it and by correlations,
//! predicted as they are.

use crate::support::json_lines;
use crate::tasks::{BERT, Bench, GPTJ, numbers};
use serde_json::Value;
use std::fs;

/// Texts of "yes" and "no"; the number is the share of "yes", stretched to -2 to 2.
fn table() -> String {
    let mut table = String::from("text,score\n");
    for row in 0..128u32 {
        // Six words by the bits of a number that runs through all patterns.
        let words: Vec<&str> = (0..6)
            .map(|bit| {
                if (row * 37) >> bit & 1 == 1 {
                    "yes"
                } else {
                    "no"
                }
            })
            .collect();
        let share = words.iter().filter(|word| **word == "yes").count() as f64 / 6.0;
        table.push_str(&format!("{},{:.3}\n", words.join(" "), 4.0 * share - 2.0));
    }
    table
}

const DATA: &str = "--train_file scores.csv --validation_file scores.csv --label_column_name score --max_seq_length 16 --disable_tqdm";

#[test]
fn numbers_are_learned_evaluated_and_predicted() {
    let bench = Bench::new();
    fs::write(bench.path("scores.csv"), table()).unwrap();
    let run = bench.run(&format!(
        "train cls {BERT} {DATA} --tokenizer_name wordpiece --per_device_train_batch_size 16 --per_device_eval_batch_size 48 \
         --learning_rate 3e-3 --max_steps 80 --logging_steps 20 --eval_strategy steps --eval_steps 40 --save_steps 40 \
         --load_best_model_at_end --metric_for_best_model mse --output_dir out"
    ));
    run.succeeded();
    assert!(
        run.stderr.contains("the labels are numbers"),
        "{}",
        run.stderr
    );
    let losses = numbers(&bench.records("out"), "loss");
    assert!(
        losses.len() == 4 && losses[3] < losses[0] / 4.0,
        "{losses:?}"
    );
    let config = bench.json("out/config.json");
    assert_eq!(
        (&config["problem_type"], &config["id2label"]["0"]),
        (&"regression".into(), &"LABEL_0".into())
    );
    let state = bench.json("out/trainer_state.json");
    let scores = numbers(&json_lines(&bench.path("out/log.jsonl")), "eval_mse");
    assert_eq!(
        state["best_metric"].as_f64().unwrap(),
        scores.iter().copied().fold(f64::INFINITY, f64::min),
        "smaller is better"
    );
    let results = bench.json("out/all_results.json");
    let result = |key: &str| {
        results[key]
            .as_f64()
            .unwrap_or_else(|| panic!("{key}: {results}"))
    };
    assert!(
        (result("eval_mse") - result("eval_loss")).abs() < 1e-6,
        "{results}"
    );
    assert!(
        result("eval_pearson") > 0.95 && result("eval_spearmanr") > 0.9,
        "{results}"
    );
    assert!(results.get("eval_accuracy").is_none(), "{results}");

    // The directory alone knows that it estimates numbers.
    let predict = bench.run("predict cls --disable_tqdm --model_name_or_path out --test_file scores.csv --max_seq_length 16");
    predict.succeeded();
    let labels = table();
    let mut error = 0.0;
    for (index, (row, label)) in predict
        .stdout
        .lines()
        .zip(labels.lines())
        .enumerate()
        .skip(1)
    {
        let (place, number) = row.split_once(',').unwrap();
        assert_eq!(place, (index - 1).to_string());
        let difference = number.parse::<f64>().unwrap()
            - label.split_once(',').unwrap().1.parse::<f64>().unwrap();
        error += difference * difference / 128.0;
    }
    assert!(
        predict.stdout.starts_with("index,prediction\n0,"),
        "{}",
        predict.stdout
    );
    assert!(
        (error - result("eval_mse")).abs() < 1e-5,
        "{error} {results}"
    );
}

/// Several replicas, a scaled loss and a stream see the same labels; a decoder has the same head.
#[test]
fn a_regression_is_trained_in_every_way_that_a_classifier_is() {
    let bench = Bench::new();
    fs::write(bench.path("scores.csv"), table()).unwrap();
    let train = |flags: &str, out: &str| {
        let run = bench.run(&format!(
            "train cls {DATA} --learning_rate 3e-3 --max_steps 6 --logging_steps 1 --do_train --do_eval --save_strategy no \
             --do_regression --output_dir {out} {flags}"
        ));
        run.succeeded();
        (
            numbers(&bench.records(out), "loss"),
            bench.json(&format!("{out}/all_results.json"))["eval_loss"]
                .as_f64()
                .unwrap(),
        )
    };
    let near = |a: &[f64], b: &[f64], bound: f64| {
        a.iter()
            .zip(b)
            .all(|(a, b)| (a - b).abs() <= bound * a.abs().max(1.0))
    };
    // No dropout, which replicas draw on their own.
    let bert = format!(
        "{} --tokenizer_name wordpiece",
        BERT.replace(
            "hidden_size=32",
            "hidden_dropout_prob=0,attention_probs_dropout_prob=0,hidden_size=32"
        )
    );
    let (one, evaluated) = train(&format!("{bert} --per_device_train_batch_size 16"), "one");
    let (two, also) = train(
        &format!("{bert} --per_device_train_batch_size 8 --data_parallel 2"),
        "two",
    );
    assert!(
        near(&one, &two, 1e-4) && (evaluated - also).abs() < 1e-3,
        "{one:?} {two:?} {evaluated} {also}"
    );
    let (half, _) = train(
        &format!("{bert} --per_device_train_batch_size 16 --fp16"),
        "half",
    );
    assert!(near(&one, &half, 0.02), "{one:?} {half:?}");
    let (streamed, _) = train(
        &format!("{bert} --per_device_train_batch_size 16 --streaming"),
        "streamed",
    );
    assert!(
        streamed.len() == 6 && streamed.iter().all(|loss| loss.is_finite()),
        "{streamed:?}"
    );
    let (decoder, _) = train(
        &format!("{GPTJ} --tokenizer_name byte_bpe --per_device_train_batch_size 16"),
        "decoder",
    );
    assert!(
        decoder.len() == 6 && decoder.iter().all(|loss| loss.is_finite()),
        "{decoder:?}"
    );
}

#[test]
fn a_regression_and_classes_are_not_mixed_up() {
    let bench = Bench::new();
    fs::write(bench.path("scores.csv"), table()).unwrap();
    let mut cases: Vec<(&str, &str, &[&str])> = vec![
        (
            "--labels no,yes --do_regression",
            "scores.csv",
            &["--do_regression has numbers to estimate, --labels names classes"],
        ),
        (
            "--do_regression false",
            "scores.csv",
            &["they are fractions, no classes", "--do_regression"],
        ),
        (
            "--metric_for_best_model accuracy --load_best_model_at_end",
            "scores.csv",
            &["accuracy", "mse, pearson, spearmanr"],
        ),
    ];
    cases.push((
        "--labels only",
        "scores.csv",
        &["--labels: there is only one label", "--do_regression"],
    ));
    for (flags, file, words) in cases {
        let run = bench.run(&format!(
            "train cls {BERT} --tokenizer_name wordpiece --train_file {file} --validation_file {file} --label_column_name score \
             --max_seq_length 16 --max_steps 2 --eval_strategy steps --eval_steps 2 --save_steps 2 --disable_tqdm --output_dir out {flags}"
        ));
        assert_ne!(run.code, Some(0), "{flags}");
        assert!(
            words.iter().all(|word| run.stderr.contains(word)),
            "{flags}: {}",
            run.stderr
        );
    }
}

#[test]
fn an_evaluation_of_a_regression_needs_numbers() {
    let bench = Bench::new();
    fs::write(bench.path("scores.csv"), table()).unwrap();
    bench
        .run(&format!(
            "train cls {BERT} {DATA} --tokenizer_name wordpiece --max_steps 1 --do_train --save_strategy no --output_dir out"
        ))
        .succeeded();
    // Whole numbers are as good as others to a model that estimates.
    fs::write(bench.path("whole.csv"), "text,score\nyes no,1\nno,-2\n").unwrap();
    let eval = "eval cls --json --disable_tqdm --model_name_or_path out --label_column_name score --max_seq_length 16";
    let whole = bench.run(&format!("{eval} --validation_file whole.csv"));
    whole.succeeded();
    let found: Value = serde_json::from_str(whole.stdout.trim()).unwrap();
    assert!(found["eval_mse"].is_number(), "{found}");
    fs::write(bench.path("words.csv"), "text,score\nyes no,1\nno,good\n").unwrap();
    let words = bench.run(&format!("{eval} --validation_file words.csv"));
    assert!(
        words.code != Some(0)
            && words
                .stderr
                .contains("label \"good\" is not a finite number"),
        "{}",
        words.stderr
    );
}
