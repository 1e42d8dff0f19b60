//! Runs on several devices of one process against the same run on one: same numbers, same directory, whatever the mesh.

use crate::support::{Run, max_difference};
use crate::tasks::{ALBERT, BERT, Bench, GPTJ, TWEETS, numbers};
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::BTreeMap;

const STEPS: usize = 20;

/// Examples of a microbatch on all devices together.
const ROWS: usize = 8;

/// AdamW divides by the root of the second moment, so the rounding of a gradient that is all but zero can turn a whole update
/// around. A large epsilon takes that out, and what is left is the order of sums.
pub(crate) const OPTIMIZER: &str = "--learning_rate 1e-3 --adam_epsilon 1e-4 --lr_scheduler_type linear --warmup_steps 5";

/// Name, model, data; the first is tried at every degree, the others at one each.
const CASES: [(&str, &str, &str); 4] = [
    (
        "gpt2",
        "clm --model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=32,n_positions=32",
        "--train_file wikitext.txt --tokenizer_name byte_bpe --block_size 32 --gradient_accumulation_steps 2",
    ),
    ("bert", BERT, "--tokenizer_name wordpiece"),
    ("albert", ALBERT, "--train_file wikitext.txt --tokenizer_name wordpiece --max_seq_length 32"),
    ("gptj", GPTJ, "--train_file wikitext.txt --tokenizer_name byte_bpe --block_size 32"),
];

fn line(name: &str, model: &str, data: &str) -> String {
    match name {
        "bert" => format!("cls {model} {TWEETS} {data} --validation_file tweets-valid.csv --do_train --do_eval"),
        "albert" => format!("mlm {model} {data} --do_train --do_eval --validation_file wikitext-valid.txt"),
        "gptj" => format!("clm {model} {data}"),
        _ => format!("{model} {data} --do_train --do_eval --validation_file wikitext-valid.txt"),
    }
}

fn train(bench: &Bench, what: &str, devices: usize, extra: &str) -> Run {
    let rows = ROWS / devices;
    bench.run(&format!(
        "train {what} {OPTIMIZER} --max_steps {STEPS} --logging_steps 1 --save_strategy no --disable_tqdm --data_parallel {devices} \
         --per_device_train_batch_size {rows} --per_device_eval_batch_size {rows} {extra}"
    ))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

pub(crate) fn weights(bench: &Bench, dir: &str) -> BTreeMap<String, Vec<f32>> {
    let bytes = bench.bytes(&format!("{dir}/model.safetensors"));
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    tensors.iter().map(|(name, view)| (name.to_string(), floats(view.data()))).collect()
}

pub(crate) fn assert_close(what: &str, a: &[f64], b: &[f64], bound: f64) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (step, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= bound * a.abs().max(1.0), "{what}, record {step}: {a} on one device, {b}");
    }
}

/// Losses, gradient norms, evaluation and final weights, with the models' own dropout: replicas draw the masks of their own rows.
#[test]
fn replicas_train_as_one_device_does_on_the_whole_batch() {
    let Some(bench) = Bench::new() else { return };
    for ((name, model, data), degrees) in CASES.into_iter().zip([&[2, 4, 8][..], &[2], &[4], &[8]]) {
        let what = line(name, model, data);
        train(&bench, &what, 1, &format!("--output_dir {name}-1")).succeeded();
        let (one, one_weights) = (bench.records(&format!("{name}-1")), weights(&bench, &format!("{name}-1")));
        for &devices in degrees {
            let dir = format!("{name}-{devices}");
            train(&bench, &what, devices, &format!("--output_dir {dir}")).succeeded();
            let records = bench.records(&dir);
            for key in ["loss", "grad_norm", "eval_loss", "eval_accuracy"] {
                assert_close(&format!("{dir}: {key}"), &numbers(&one, key), &numbers(&records, key), 1e-4);
            }
            for (tensor, values) in weights(&bench, &dir) {
                let difference = max_difference(&values, &one_weights[&tensor]);
                assert!(difference < 1e-4, "{dir}: {tensor} is off by {difference}");
            }
            let (results, one) =
                (bench.json(&format!("{dir}/all_results.json")), bench.json(&format!("{name}-1/all_results.json")));
            assert_eq!(results["eval_samples"], one["eval_samples"], "{dir}: an example is evaluated once");
        }
    }
}

/// A checkpoint does not know the mesh: resumed on another one the run ends alike, on the same one bit for bit.
#[test]
fn a_run_goes_on_under_another_mesh() {
    let Some(bench) = Bench::new() else { return };
    let (name, model, data) = CASES[0];
    let what = line(name, model, data);
    let run = |dir: &str, devices: usize, extra: &str| {
        train(&bench, &what, devices, &format!("--output_dir {dir} --save_strategy steps --save_steps 10 {extra}")).succeeded();
    };
    run("whole", 2, "");
    for (dir, devices) in [("same", 2), ("other", 4), ("one", 1)] {
        run(dir, 2, "");
        std::fs::remove_dir_all(bench.path(&format!("{dir}/checkpoint-20"))).unwrap();
        run(dir, devices, "--resume_from_checkpoint");
        if devices == 2 {
            assert!(
                bench.bytes("whole/model.safetensors") == bench.bytes("same/model.safetensors"),
                "the same mesh, other weights"
            );
        }
        assert_close(dir, &numbers(&bench.records("whole"), "loss"), &numbers(&bench.records(dir), "loss"), 1e-4);
    }
}

/// fp16's loss scale is one number for all replicas; bf16 rounds on each.
#[test]
fn low_precision_runs_on_replicas_too() {
    let Some(bench) = Bench::new() else { return };
    let (name, model, data) = CASES[0];
    let what = line(name, model, data);
    for precision in ["bf16", "fp16"] {
        for devices in [1, 2] {
            train(&bench, &what, devices, &format!("--{precision} --output_dir {precision}-{devices}")).succeeded();
        }
        let losses = |devices: usize| numbers(&bench.records(&format!("{precision}-{devices}")), "loss");
        assert_close(precision, &losses(1), &losses(2), 5e-3);
    }
}

/// The compiled-graph cache serves replicas; the plan names their groups; compiling ahead makes what the run uses.
#[test]
fn graphs_of_replicas_are_planned_compiled_ahead_and_found_again() {
    let Some(bench) = Bench::new() else { return };
    let (name, model, data) = CASES[0];
    let what = line(name, model, data);
    let flags = format!(
        "{what} --data_parallel 2 --per_device_train_batch_size 2 --max_steps 3 --output_dir out --cache_dir graphs --disable_tqdm"
    );
    bench.run(&format!("compile {flags}")).succeeded();
    let plan = bench.run(&format!("train {flags} --dry_run"));
    plan.succeeded();
    for part in ["x 2 devices", "data [[0, 1]]", "exchanged per step", "check_replicas"] {
        assert!(plan.stdout.contains(part), "`{part}` is missing in:\n{}", plan.stdout);
    }
    let run = bench.run(&format!("train {flags} --fail_on_recompile"));
    run.succeeded();
    assert!(run.stderr.contains("compiled 0,"), "{}", run.stderr);
    // Another degree is another key, and the cache says which part of it.
    let other = bench.run(&format!("train {flags} --data_parallel 4 --overwrite_output_dir --fail_on_recompile"));
    assert_eq!(other.code, Some(1), "{}", other.stderr);
    assert!(other.stderr.contains("topology: `4 of 4 devices"), "{}", other.stderr);
}

/// One collective a bucket in the emitted step, of which XLA may make fewer; in either form just the bytes of all gradients, the loss
/// and the count, and nothing in the graphs that exchange nothing.
#[test]
fn the_step_has_the_collectives_of_its_buckets_and_no_others() {
    let Some(bench) = Bench::new() else { return };
    let (name, model, data) = CASES[0];
    let what = line(name, model, data);
    for (bucket, emitted) in [(25, 1), (0, 28)] {
        let flags = format!(
            "{what} --data_parallel 2 --gradient_bucket_mb {bucket} --per_device_train_batch_size 2 --output_dir out \
             --cache_dir graphs-{bucket} --disable_tqdm"
        );
        bench.run(&format!("compile {flags}")).succeeded();
        let entries = bench.run(&format!("cache ls --json --cache_dir graphs-{bucket}"));
        entries.succeeded();
        let entries: Vec<Value> = serde_json::from_str(&entries.stdout).unwrap();
        assert_eq!(entries.len(), 5, "{entries:#?}");
        for entry in &entries {
            let (id, phase) = (entry["id"].as_str().unwrap(), entry["phase"].as_str().unwrap());
            for form in ["--hlo", "--optimized-hlo"] {
                let hlo = bench.run(&format!("cache show {id} {form} --cache_dir graphs-{bucket}"));
                hlo.succeeded();
                let collectives: Vec<&str> = hlo.stdout.lines().filter(|line| is_collective(line)).collect();
                let place = format!("{phase} with buckets of {bucket} MB, {form}: {collectives:#?}");
                if phase != "update" {
                    assert!(collectives.is_empty(), "{place}");
                    continue;
                }
                let count = collectives.len();
                assert!(if form == "--hlo" { count == emitted } else { (1..=emitted).contains(&count) }, "{place}");
                assert!(collectives.iter().all(|line| line.contains(" all-reduce(")), "{place}");
                // 1000 x 32 tokens, 32 x 32 positions, two layers of 12 x 32 x 32 + 13 x 32, the last norm, loss and count.
                let exchanged: usize = collectives.iter().map(|line| elements_of_results(line)).sum();
                assert_eq!(exchanged, 32_000 + 1024 + 2 * (12 * 1024 + 13 * 32) + 64 + 2, "{place}");
            }
        }
    }
}

/// Elements of all `f32[a,b]` in an instruction's result type.
fn elements_of_results(line: &str) -> usize {
    let (_, instruction) = line.split_once(" = ").unwrap();
    let (result, _) = instruction.split_once(" all-reduce(").unwrap();
    let arrays = result.split("f32[").skip(1).map(|rest| rest.split_once(']').unwrap().0);
    arrays.map(|dims| dims.split(',').filter(|d| !d.is_empty()).map(|d| d.parse::<usize>().unwrap()).product::<usize>()).sum()
}

fn is_collective(line: &str) -> bool {
    ["all-reduce(", "all-gather(", "reduce-scatter(", "collective-permute(", "all-to-all("].iter().any(|name| line.contains(name))
}

#[test]
fn degrees_that_cannot_be_are_refused() {
    let Some(bench) = Bench::new() else { return };
    let (name, model, data) = CASES[0];
    let run = bench.run(&format!("train {} --output_dir out --data_parallel 0", line(name, model, data)));
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("data_parallel"), "{}", run.stderr);
}
