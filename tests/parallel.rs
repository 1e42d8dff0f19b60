//! Runs on several devices of one process: what stays the same whatever the mesh, which collectives
//! there are, what each option saves. That every mesh trains as one device does stands in
//! `meshes.rs`.

use crate::support::{Run, max_difference};
use crate::tasks::{ALBERT, BERT, Bench, GPTJ, POSTS, numbers};
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::BTreeMap;

pub(crate) const STEPS: usize = 20;

/// Examples of a microbatch on all devices together.
const ROWS: usize = 8;

/// AdamW divides by the root of the second moment, so the rounding of a gradient that is all but
/// zero can turn a whole update around. A large epsilon takes that out, and what is left is the
/// order of sums.
pub(crate) const OPTIMIZER: &str =
    "--learning_rate 1e-3 --adam_epsilon 1e-4 --lr_scheduler_type linear --warmup_steps 5";

/// Name, model, data.
pub(crate) const CASES: [(&str, &str, &str); 4] = [
    (
        "gpt2",
        "clm --model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=32,n_positions=32",
        "--train_file articles.txt --tokenizer_name byte_bpe --block_size 32 --gradient_accumulation_steps 2",
    ),
    ("bert", BERT, "--tokenizer_name wordpiece"),
    (
        "albert",
        ALBERT,
        "--train_file articles.txt --tokenizer_name wordpiece --max_seq_length 32",
    ),
    (
        "gptj",
        GPTJ,
        "--train_file articles.txt --tokenizer_name byte_bpe --block_size 32",
    ),
];

pub(crate) fn line(name: &str, model: &str, data: &str) -> String {
    match name {
        "bert" => format!(
            "cls {model} {POSTS} {data} --validation_file posts-valid.csv --do_train --do_eval"
        ),
        "albert" => {
            format!("mlm {model} {data} --do_train --do_eval --validation_file articles-valid.txt")
        }
        "gptj" => format!("clm {model} {data}"),
        _ => format!("{model} {data} --do_train --do_eval --validation_file articles-valid.txt"),
    }
}

/// `shards`: parts that each batch is cut into by the flags in `extra`.
fn train(bench: &Bench, what: &str, shards: usize, extra: &str) -> Run {
    let rows = ROWS / shards;
    bench.run(&format!(
        "train {what} {OPTIMIZER} --max_steps {STEPS} --logging_steps 1 --save_strategy no --disable_tqdm \
         --per_device_train_batch_size {rows} --per_device_eval_batch_size {rows} {extra}"
    ))
}

/// Losses, norms, evaluations and final weights of a run beside those of the run in `one`.
pub(crate) fn assert_same_run(bench: &Bench, dir: &str, one: &str) {
    let (records, one_records) = (bench.records(dir), bench.records(one));
    for key in ["loss", "grad_norm", "eval_loss", "eval_accuracy"] {
        assert_close(
            &format!("{dir}: {key}"),
            &numbers(&one_records, key),
            &numbers(&records, key),
            1e-4,
        );
    }
    let one_weights = weights(bench, one);
    for (tensor, values) in weights(bench, dir) {
        let difference = max_difference(&values, &one_weights[&tensor]);
        assert!(difference < 1e-4, "{dir}: {tensor} is off by {difference}");
    }
    let (results, one) = (
        bench.json(&format!("{dir}/all_results.json")),
        bench.json(&format!("{one}/all_results.json")),
    );
    assert_eq!(
        results["eval_samples"], one["eval_samples"],
        "{dir}: an example is evaluated once"
    );
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

pub(crate) fn weights(bench: &Bench, dir: &str) -> BTreeMap<String, Vec<f32>> {
    let names = ["model.safetensors", "adapter_model.safetensors"];
    let paths = names.map(|name| format!("{dir}/{name}"));
    let saved = paths.iter().find(|path| bench.path(path).exists());
    let bytes = bench.bytes(saved.expect("a run saves its weights"));
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    tensors
        .iter()
        .map(|(name, view)| (name.to_string(), floats(view.data())))
        .collect()
}

pub(crate) fn assert_close(what: &str, a: &[f64], b: &[f64], bound: f64) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (step, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(
            (a - b).abs() <= bound * a.abs().max(1.0),
            "{what}, record {step}: {a} on one device, {b}"
        );
    }
}

/// Evaluation during and after training, examples counted once, with batches of two lengths among
/// the models'.
#[test]
fn devices_evaluate_together_as_one_does() {
    let bench = Bench::new();
    let meshes = [
        (
            4,
            "--data_parallel 2 --shard_parallel 2 --tensor_parallel 2",
        ),
        (2, "--pipeline_parallel 2 --data_parallel 2"),
    ];
    for (name, model, data) in &CASES[..3] {
        let what = format!(
            "{} --eval_strategy steps --eval_steps 10",
            line(name, model, data)
        );
        train(&bench, &what, 1, &format!("--output_dir {name}-1")).succeeded();
        for (index, (shards, mesh)) in meshes.into_iter().enumerate() {
            let dir = format!("{name}-evaluates-{index}");
            train(&bench, &what, shards, &format!("{mesh} --output_dir {dir}")).succeeded();
            assert_same_run(&bench, &dir, &format!("{name}-1"));
            // At step 10 and at step 20, the last one.
            assert_eq!(numbers(&bench.records(&dir), "eval_loss").len(), 2, "{dir}");
        }
    }
}

/// A vocabulary that does not divide is filled up on the devices and nowhere else.
#[test]
fn a_vocabulary_that_does_not_divide_is_divided_all_the_same() {
    let bench = Bench::new();
    for (name, model, data) in [CASES[0], CASES[2]] {
        let what = line(
            name,
            &model.replace("--config_overrides ", "--config_overrides vocab_size=1003,"),
            data,
        );
        let one = format!("{name}-odd");
        train(&bench, &what, 1, &format!("--output_dir {one}")).succeeded();
        for (index, (shards, mesh)) in [
            (1, "--tensor_parallel 2"),
            (2, "--tensor_parallel 2 --shard_parallel 2"),
        ]
        .iter()
        .enumerate()
        {
            let dir = format!("{name}-odd-{index}");
            train(
                &bench,
                &what,
                *shards,
                &format!("{mesh} --output_dir {dir}"),
            )
            .succeeded();
            assert_same_run(&bench, &dir, &one);
        }
    }
}

/// What is computed twice is the same both times.
#[test]
fn checkpointed_activations_change_no_number() {
    let bench = Bench::new();
    for (name, model, data) in CASES {
        let what = line(name, model, data);
        train(&bench, &what, 1, &format!("--output_dir {name}-kept")).succeeded();
        for mode in ["full", "attention", "every:2"] {
            let dir = format!("{name}-{}", mode.replace(':', "-"));
            train(
                &bench,
                &what,
                1,
                &format!("--gradient_checkpointing {mode} --output_dir {dir}"),
            )
            .succeeded();
            assert_same_run(&bench, &dir, &format!("{name}-kept"));
        }
    }
}

/// A checkpoint does not know the mesh: resumed on another one the run ends alike, on the same one
/// bit for bit.
#[test]
fn a_run_goes_on_under_another_mesh() {
    let bench = Bench::new();
    let (name, model, data) = CASES[0];
    let what = line(name, model, data);
    let run = |dir: &str, (shards, mesh): (usize, &str), extra: &str| {
        let flags =
            format!("{mesh} --output_dir {dir} --save_strategy steps --save_steps 10 {extra}");
        train(&bench, &what, shards, &flags).succeeded();
    };
    let parts = (
        4,
        "--tensor_parallel 2 --shard_parallel 2 --data_parallel 2",
    );
    for (first, others) in [
        (
            (2, "--data_parallel 2"),
            &[(4, "--data_parallel 4"), (1, "")][..],
        ),
        (
            (2, "--shard_parallel 2"),
            &[(2, "--data_parallel 2 --shard_optimizer_state")],
        ),
        (parts, &[(1, "--tensor_parallel 2")]),
    ] {
        run("whole", first, "--overwrite_output_dir");
        let whole = (
            bench.bytes("whole/model.safetensors"),
            numbers(&bench.records("whole"), "loss"),
        );
        for mesh in [&[first], others].concat() {
            run("again", first, "--overwrite_output_dir");
            std::fs::remove_dir_all(bench.path("again/checkpoint-20")).unwrap();
            run("again", mesh, "--resume_from_checkpoint");
            let same = bench.bytes("again/model.safetensors") == whole.0;
            assert!(
                same || mesh != first,
                "the same mesh ({}), other weights",
                mesh.1
            );
            assert_close(
                mesh.1,
                &whole.1,
                &numbers(&bench.records("again"), "loss"),
                1e-4,
            );
        }
    }
}

/// fp16's loss scale is one number for all replicas; bf16 rounds on each.
#[test]
fn low_precision_runs_on_replicas_too() {
    let bench = Bench::new();
    let (name, model, data) = CASES[0];
    let what = line(name, model, data);
    for precision in ["bf16", "fp16"] {
        let meshes = [
            (1, ""),
            (2, "--data_parallel 2"),
            (2, "--shard_parallel 2"),
            (1, "--tensor_parallel 2"),
        ];
        for (index, (shards, mesh)) in meshes.into_iter().enumerate() {
            train(
                &bench,
                &what,
                shards,
                &format!("--{precision} {mesh} --output_dir {precision}-{index}"),
            )
            .succeeded();
            let losses =
                |index: usize| numbers(&bench.records(&format!("{precision}-{index}")), "loss");
            assert_close(
                &format!("{precision} {mesh}"),
                &losses(0),
                &losses(index),
                5e-3,
            );
        }
    }
}

/// The compiled-graph cache serves replicas; the plan names their groups; compiling ahead makes
/// what the run uses.
#[test]
fn graphs_of_replicas_are_planned_compiled_ahead_and_found_again() {
    let bench = Bench::new();
    let (name, model, data) = CASES[0];
    let what = line(name, model, data);
    let flags = format!(
        "{what} --data_parallel 2 --per_device_train_batch_size 2 --max_steps 3 --output_dir out --cache_dir graphs --disable_tqdm"
    );
    bench.run(&format!("compile {flags}")).succeeded();
    let plan = bench.run(&format!("train {flags} --dry_run"));
    plan.succeeded();
    for part in [
        "x 2 devices",
        "data groups",
        "[[0, 1]]",
        "all-reduce over data",
        "check_replicas",
    ] {
        assert!(
            plan.stdout.contains(part),
            "`{part}` is missing in:\n{}",
            plan.stdout
        );
    }
    let run = bench.run(&format!("train {flags} --fail_on_recompile"));
    run.succeeded();
    assert!(run.stderr.contains("compiled 0,"), "{}", run.stderr);
    // Another degree is another key, and the cache says which part of it.
    let other = bench.run(&format!(
        "train {flags} --data_parallel 4 --overwrite_output_dir --fail_on_recompile"
    ));
    assert_eq!(other.code, Some(1), "{}", other.stderr);
    assert!(
        other.stderr.contains("topology: `4 of 4 devices"),
        "{}",
        other.stderr
    );
}

/// One collective a bucket in the emitted step, of which XLA may make fewer; in either form just
/// the bytes of all gradients, the loss and the count, and nothing in the graphs that exchange
/// nothing.
#[test]
fn the_step_has_the_collectives_of_its_buckets_and_no_others() {
    let bench = Bench::new();
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
        assert_eq!(entries.len(), 4, "{entries:#?}");
        for entry in &entries {
            let (id, phase) = (
                entry["id"].as_str().unwrap(),
                entry["phase"].as_str().unwrap(),
            );
            for form in ["--hlo", "--optimized-hlo"] {
                let hlo = bench.run(&format!(
                    "cache show {id} {form} --cache_dir graphs-{bucket}"
                ));
                hlo.succeeded();
                let collectives: Vec<&str> = hlo
                    .stdout
                    .lines()
                    .filter(|line| is_collective(line))
                    .collect();
                let place =
                    format!("{phase} with buckets of {bucket} MB, {form}: {collectives:#?}");
                if phase != "update" {
                    assert!(collectives.is_empty(), "{place}");
                    continue;
                }
                let count = collectives.len();
                assert!(
                    if form == "--hlo" {
                        count == emitted
                    } else {
                        (1..=emitted).contains(&count)
                    },
                    "{place}"
                );
                assert!(
                    collectives.iter().all(|line| line.contains(" all-reduce(")),
                    "{place}"
                );
                // 1000 x 32 tokens, 32 x 32 positions, two layers of 12 x 32 x 32 + 13 x 32, the
                // last norm, loss and count.
                let exchanged: usize = collectives
                    .iter()
                    .map(|line| elements_of_results(line))
                    .sum();
                assert_eq!(
                    exchanged,
                    32_000 + 1024 + 2 * (12 * 1024 + 13 * 32) + 64 + 2,
                    "{place}"
                );
            }
        }
    }
}

/// The gradients of products with one input, in 16 bits each, are added up before they are
/// exchanged: GPT-J's layers have four such products (queries, keys, values, inner layer), and one
/// all-reduce backward.
#[test]
fn gradients_of_one_input_are_exchanged_as_one() {
    let bench = Bench::new();
    let flags = "--train_file articles.txt --tokenizer_name byte_bpe --block_size 32 --per_device_train_batch_size 2 --tensor_parallel 2 --bf16 \
                 --output_dir out --cache_dir graphs --disable_tqdm";
    bench
        .run(&format!("compile clm {GPTJ} {flags}"))
        .succeeded();
    let entries: Vec<Value> =
        serde_json::from_str(&bench.run("cache ls --json --cache_dir graphs").stdout).unwrap();
    let id = entries
        .iter()
        .find(|entry| entry["phase"] == "train")
        .unwrap()["id"]
        .as_str()
        .unwrap();
    let hlo = bench
        .run(&format!("cache show {id} --hlo --cache_dir graphs"))
        .stdout;
    let sums: Vec<&str> = hlo
        .lines()
        .filter(|line| is_collective(line) && line.contains("= bf16[64,32]"))
        .collect();
    // Two layers with attention's output and the inner layer's forward and one gradient backward,
    // and the head's gradient.
    assert_eq!(sums.len(), 2 * (2 + 1) + 1, "{sums:#?}");
}

/// Each option has the collectives of its paper and no others, in the emitted and in the optimized
/// module.
#[test]
fn each_option_exchanges_what_its_paper_says() {
    let bench = Bench::new();
    // 1000 x 32 tokens, 32 x 32 positions, of two layers the matrices and the vectors, the last
    // norm.
    const MATRICES: usize = 32_000 + 1024 + 2 * LAYER;
    const LAYER: usize = 12 * 1024;
    const VECTORS: usize = 2 * 13 * 32 + 64;
    // Elements of the results; besides the gradients there are the loss, its count and the squares
    // of what is in parts.
    let sums = ("all-reduce", VECTORS + 3);
    // An activation of 2 x 32 tokens: after the embedding, after attention and the inner layer, and
    // backward in front of each and of the head; three numbers for each token in the loss, and the
    // norm.
    let divided = (2 * 32 * 32) * (1 + 2 * 2 + 1 + 2 * 2) + 3 * 64 + 1;
    // With the tokens divided, too, these sums are scattered, and put together in front of each
    // divided matrix, forward and once more for its gradient, and the gradients of what follows a
    // pair; the embedding's gradient, too. The gradients of positions and of vectors that are not
    // divided are sums over all tokens.
    let activation = 2 * 32 * 32;
    let scattered = ("reduce-scatter", 10, 10 * activation / 2);
    let gathered = ("all-gather", 15, 15 * activation);
    let whole = ("all-reduce", 5, 3 * 64 + 1 + 1024 + 2 * 6 * 32 + 64);
    type Expected = (&'static str, usize, usize);
    let cases: [(&str, &[Expected]); 5] = [
        (
            "--data_parallel 2 --shard_optimizer_state",
            &[
                ("all-gather", 10, MATRICES),
                ("reduce-scatter", 10, MATRICES / 2),
                (sums.0, 3, sums.1),
            ],
        ),
        (
            "--shard_parallel 2",
            &[
                ("all-gather", 18, MATRICES + 2 * LAYER),
                ("reduce-scatter", 10, MATRICES / 2),
                (sums.0, 2, sums.1),
            ],
        ),
        (
            "--shard_parallel 2 --gradient_checkpointing",
            &[
                ("all-gather", 18, MATRICES + 2 * LAYER),
                ("reduce-scatter", 10, MATRICES / 2),
                (sums.0, 2, sums.1),
            ],
        ),
        ("--tensor_parallel 2", &[("all-reduce", 14, divided)]),
        (
            "--tensor_parallel 2 --sequence_parallel",
            &[scattered, gathered, whole],
        ),
    ];
    for (index, (mesh, expected)) in cases.into_iter().enumerate() {
        let (_, model, _) = CASES[0];
        let flags = format!(
            "{model} --train_file articles.txt --tokenizer_name byte_bpe --block_size 32 {mesh} --per_device_train_batch_size 2 \
             --output_dir out --cache_dir graphs-{index} --disable_tqdm"
        );
        bench.run(&format!("compile {flags}")).succeeded();
        let entries = bench.run(&format!("cache ls --json --cache_dir graphs-{index}"));
        let entries: Vec<Value> = serde_json::from_str(&entries.stdout).unwrap();
        let id = entries
            .iter()
            .find(|entry| entry["phase"] == "train")
            .unwrap()["id"]
            .as_str()
            .unwrap();
        for form in ["--hlo", "--optimized-hlo"] {
            let hlo = bench
                .run(&format!(
                    "cache show {id} {form} --cache_dir graphs-{index}"
                ))
                .stdout;
            let collectives: Vec<&str> = hlo.lines().filter(|line| is_collective(line)).collect();
            let place = format!("{mesh}, {form}: {collectives:#?}");
            let known = |line: &&str| {
                expected
                    .iter()
                    .any(|(kind, ..)| line.contains(&format!(" {kind}(")))
            };
            assert!(collectives.iter().all(known), "{place}");
            for (kind, count, elements) in expected {
                let of_kind: Vec<&&str> = collectives
                    .iter()
                    .filter(|line| line.contains(&format!(" {kind}(")))
                    .collect();
                // XLA may make fewer of them.
                assert!(
                    if form == "--hlo" {
                        of_kind.len() == *count
                    } else {
                        of_kind.len() <= *count
                    },
                    "{kind}: {place}"
                );
                let found: usize = of_kind.iter().map(|line| elements_of_results(line)).sum();
                assert_eq!(found, *elements, "{kind}: {place}");
            }
        }
    }
}

/// The compiler's statistics show the shares that the papers promise.
#[test]
fn each_option_saves_what_its_paper_says() {
    let bench = Bench::new();
    let memory = |flags: &str| -> [f64; 2] {
        let run = bench.run(&format!(
            "train clm --model_type gpt2 --config_overrides n_layer=4,n_head=4,n_embd=128,n_positions=128 --train_file articles.txt \
             --tokenizer_name byte_bpe --block_size 128 --output_dir out --dry_run {flags}"
        ));
        run.succeeded();
        let line = run
            .stdout
            .lines()
            .find(|line| line.starts_with("train "))
            .unwrap()
            .to_string();
        let columns: Vec<&str> = line
            .split("  ")
            .map(str::trim)
            .filter(|column| !column.is_empty())
            .collect();
        [columns[3], columns[4]].map(bytes_of)
    };
    const BATCH: &str = "--per_device_train_batch_size 4";
    let [whole, kept] = memory(BATCH);
    let (tokens, positions, layers) = (1000.0 * 128.0, 128.0 * 128.0, 4.0 * 12.0 * 128.0 * 128.0);
    let matrices: f64 = tokens + positions + layers;
    // Of weights and two moments, what is left.
    for (flags, share) in [
        (
            "--data_parallel 4 --shard_optimizer_state",
            (1.0 + 2.0 / 4.0) / 3.0,
        ),
        ("--shard_parallel 4", 1.0 / 4.0),
        ("--data_parallel 2 --shard_parallel 2", 1.0 / 2.0),
        (
            "--tensor_parallel 4",
            ((tokens + layers) / 4.0 + positions) / matrices,
        ),
    ] {
        let [found, _] = memory(&format!("{BATCH} {flags}"));
        // The vectors, which are whole, and the batch are a hundredth.
        assert!(
            (found / whole - share).abs() < 0.02,
            "{flags}: {} of {whole} bytes, {share} promised",
            found / whole
        );
    }
    // Of the activations, those between the divided products.
    let [_, divided] = memory(&format!("{BATCH} --tensor_parallel 4"));
    let [_, by_tokens] = memory(&format!("{BATCH} --tensor_parallel 4 --sequence_parallel"));
    assert!(
        by_tokens < 0.9 * divided,
        "temporaries: {divided} in divided layers, {by_tokens} with divided tokens"
    );
    let [_, full] = memory(&format!("{BATCH} --gradient_checkpointing"));
    assert!(
        full < 0.6 * kept,
        "temporaries: {kept} kept, {full} with layers twice"
    );
    // A call of attention holds no scores; operations do, if they are not computed twice.
    const EAGER: &str = "--attn_implementation eager";
    let [_, scores] = memory(&format!("{BATCH} {EAGER}"));
    let [_, attention] = memory(&format!(
        "{BATCH} {EAGER} --gradient_checkpointing attention"
    ));
    assert!(
        attention < 0.95 * scores && kept <= scores,
        "temporaries: {scores} with scores, {attention} with attention twice, {kept} by a call where there is one"
    );
}

/// `1.5 MiB` in bytes.
pub(crate) fn bytes_of(text: &str) -> f64 {
    let (number, unit) = text.split_once(' ').unwrap();
    let power = ["B", "KiB", "MiB", "GiB"]
        .iter()
        .position(|known| *known == unit)
        .unwrap();
    number.parse::<f64>().unwrap() * 1024f64.powi(power as i32)
}

/// Elements of all `f32[a,b]` in a collective's result type.
fn elements_of_results(line: &str) -> usize {
    let (_, instruction) = line.split_once(" = ").unwrap();
    let end = instruction
        .find([' '])
        .filter(|_| !instruction.starts_with('('))
        .unwrap_or_else(|| instruction.find(") ").unwrap());
    let result = &instruction[..end];
    let arrays = result
        .split("f32[")
        .skip(1)
        .map(|rest| rest.split_once(']').unwrap().0);
    arrays
        .map(|dims| {
            dims.split(',')
                .filter(|d| !d.is_empty())
                .map(|d| d.parse::<usize>().unwrap())
                .product::<usize>()
        })
        .sum()
}

fn is_collective(line: &str) -> bool {
    [
        "all-reduce(",
        "all-gather(",
        "reduce-scatter(",
        "collective-permute(",
        "all-to-all(",
    ]
    .iter()
    .any(|name| line.contains(name))
}

#[test]
fn degrees_that_cannot_be_are_refused() {
    let bench = Bench::new();
    let (name, model, data) = CASES[0];
    let run = bench.run(&format!(
        "train {} --output_dir out --data_parallel 0",
        line(name, model, data)
    ));
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(run.stderr.contains("data_parallel"), "{}", run.stderr);
}
