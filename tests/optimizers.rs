//! What holds for every optimizer that a run can choose: its meshes train as one device does, its
//! runs resume bit for bit, `fit` counts its state. Their numbers are in `golden.rs`, skipped steps
//! in `precision.rs`; AdamW's meshes in `meshes.rs`.

use crate::parallel::{assert_close, weights};
use crate::tasks::{Bench, numbers};
use std::collections::BTreeMap;
use xtrain::trainer::settings::OptimizerSettings;
use xtrain_graphs::DType;
use xtrain_graphs::optim::{
    ADAFACTOR, ADAMW, ADAMW_8BIT, MUON, OPTIMIZERS, OptimizerKind, RMSPROP,
};
use xtrain_models::{HeadKind, build, preset};

const RATE: &str = "--learning_rate 1e-4";

/// One of each sort: by rows and columns, by whole matrices, element by element with arguments, in blocks.
const FIRST: [OptimizerKind; 4] = [ADAFACTOR, MUON, RMSPROP, ADAMW_8BIT];

/// Name, rows of a microbatch on one device, flags: a step has eight rows on each.
static MESHES: [(&str, usize, &str); 7] = [
    ("accumulated", 2, "--gradient_accumulation_steps 4"),
    ("zero1", 4, "--data_parallel 2 --shard_optimizer_state"),
    ("zero3", 4, "--shard_parallel 2"),
    ("tensor", 8, "--tensor_parallel 2"),
    (
        "pipeline",
        4,
        "--pipeline_parallel 2 --gradient_accumulation_steps 2",
    ),
    ("zero3-tensor", 4, "--shard_parallel 2 --tensor_parallel 2"),
    (
        "all",
        2,
        "--data_parallel 2 --shard_optimizer_state --tensor_parallel 2 --pipeline_parallel 2 --gradient_accumulation_steps 2",
    ),
];

/// The arguments that a kind is tested with: those that add state and counters.
fn arguments(kind: OptimizerKind) -> &'static str {
    match kind.name {
        "sgd" => "--optim_args momentum=0.9,dampening=0.5",
        "adagrad" => "--optim_args lr_decay=0.1",
        "rmsprop" => "--optim_args momentum=0.5,centered=true",
        _ => "",
    }
}

/// The meshes that tell something about a kind: rules that are elementwise, as most are, need one
/// of each sort together.
fn meshes(kind: OptimizerKind) -> &'static [(&'static str, usize, &'static str)] {
    match kind.name {
        "sgd" | "adagrad" | "rmsprop" => &MESHES[MESHES.len() - 2..],
        _ => &MESHES,
    }
}

/// The model's width: matrices of a layer are in 8 bits from 4096 numbers on. On a tensor axis of two some keep
/// their blocks whole, and some do not.
fn width(kind: OptimizerKind) -> usize {
    if kind.name.contains("8bit") { 64 } else { 32 }
}

fn train(bench: &Bench, kind: OptimizerKind, dir: &str, rows: usize, flags: &str) {
    let (optim, arguments, width) = (kind.choices[0], arguments(kind), width(kind));
    bench
        .run(&format!(
            "train clm --model_type gpt2 --config_overrides \
             n_layer=2,n_head=2,n_embd={width},n_positions=32,embd_pdrop=0,attn_pdrop=0,resid_pdrop=0 \
             --train_file articles.txt --tokenizer_name byte_bpe --block_size 32 --do_train --disable_tqdm \
             --optim {optim} {arguments} --weight_decay 0.1 --per_device_train_batch_size {rows} \
             --logging_steps 1 --output_dir {dir} {flags}"
        ))
        .succeeded();
}

/// The sum of the differences of all elements.
fn distance(one: &BTreeMap<String, Vec<f32>>, other: &BTreeMap<String, Vec<f32>>) -> f64 {
    let pairs = one
        .iter()
        .flat_map(|(name, one)| one.iter().zip(&other[name]));
    pairs.map(|(a, b)| f64::from((a - b).abs())).sum()
}

/// The bar on weights is on all together: a rule that takes a sign turns an update around where
/// rounding decides it.
#[test]
fn meshes_train_as_one_device() {
    train_on_meshes(|kind| FIRST.contains(kind));
}

#[test]
#[ignore = "slow: the meshes of further optimizers"]
fn meshes_train_as_one_device_with_every_optimizer() {
    train_on_meshes(|kind| *kind != ADAMW && !FIRST.contains(kind));
}

fn train_on_meshes(is_one: impl Fn(&OptimizerKind) -> bool) {
    let bench = Bench::new();
    for kind in OPTIMIZERS.iter().filter(|kind| is_one(kind)) {
        let one = format!("{kind:?}-one");
        let steps = "--max_steps 6 --save_strategy no";
        let still = format!("{kind:?}-still");
        train(
            &bench,
            *kind,
            &still,
            8,
            &format!("{steps} --learning_rate 0"),
        );
        let start = weights(&bench, &still);
        let steps = &format!("{steps} {RATE}");
        train(&bench, *kind, &one, 8, steps);
        let (one_records, one_weights) = (bench.records(&one), weights(&bench, &one));
        for (name, rows, mesh) in meshes(*kind) {
            let dir = format!("{kind:?}-{name}");
            train(&bench, *kind, &dir, *rows, &format!("{mesh} {steps}"));
            let records = bench.records(&dir);
            for key in ["loss", "grad_norm"] {
                let (one, found) = (numbers(&one_records, key), numbers(&records, key));
                assert_eq!(found.len(), 6, "{dir}");
                assert_close(&format!("{dir}: {key}"), &one, &found, 1e-4);
            }
            let found = weights(&bench, &dir);
            let (off, moved) = (
                distance(&found, &one_weights),
                distance(&one_weights, &start),
            );
            println!(
                "{dir}: off by {:.1e} of how far training moved",
                off / moved
            );
            assert!(moved > 0.0 && off <= 0.02 * moved, "{dir}: {off}, {moved}");
        }
    }
}

#[test]
fn runs_resume_bit_for_bit() {
    resume(
        |kind| FIRST.contains(kind),
        &[("zero3", "--shard_parallel 2")],
    );
}

#[test]
#[ignore = "slow: every optimizer on every mesh"]
fn runs_resume_bit_for_bit_with_every_optimizer() {
    let zero1 = "--data_parallel 2 --shard_optimizer_state";
    let meshes = [
        ("one", ""),
        ("zero1", zero1),
        ("zero3", "--shard_parallel 2"),
    ];
    resume(|_| true, &meshes);
}

/// In fp16 with accumulation: all state that there is.
fn resume(is_one: impl Fn(&OptimizerKind) -> bool, meshes: &[(&str, &str)]) {
    let bench = Bench::new();
    for kind in OPTIMIZERS.iter().filter(|kind| is_one(kind)) {
        for (name, mesh) in meshes {
            let flags =
                format!("{RATE} --fp16 --gradient_accumulation_steps 2 --save_steps 3 {mesh}");
            let (whole, resumed) = (
                format!("{kind:?}-{name}"),
                format!("{kind:?}-{name}-resumed"),
            );
            train(&bench, *kind, &whole, 2, &format!("{flags} --max_steps 6"));
            let from = format!("{whole}/checkpoint-3");
            train(
                &bench,
                *kind,
                &resumed,
                2,
                &format!("{flags} --max_steps 6 --resume_from_checkpoint {from}"),
            );
            for file in ["model.safetensors", "optimizer.safetensors"] {
                let of = |dir: &str| bench.bytes(&format!("{dir}/checkpoint-6/{file}"));
                assert!(of(&whole) == of(&resumed), "{resumed}: {file} differs");
                let before = bench.bytes(&format!("{from}/{file}"));
                assert!(of(&whole) != before, "{whole}: {file} does not change");
            }
        }
    }
}

#[test]
fn fit_counts_the_state() {
    count_state(|kind| FIRST.contains(kind));
}

#[test]
#[ignore = "slow: the state of every optimizer"]
fn fit_counts_the_state_of_every_optimizer() {
    count_state(|_| true);
}

fn count_state(is_one: impl Fn(&OptimizerKind) -> bool) {
    let bench = Bench::new();
    // That of the tokenizer `byte_bpe`.
    let vocabulary = 1000;
    let mut config = preset("gpt2").unwrap();
    let sizes = [("n_layer", 1), ("n_head", 2), ("n_positions", 32)];
    for (name, size) in sizes.into_iter().chain([("vocab_size", vocabulary)]) {
        config.set(name, size);
    }
    for kind in OPTIMIZERS.iter().filter(|kind| is_one(kind)) {
        let width = width(*kind);
        config.set("n_embd", width);
        let model = build(config.clone(), HeadKind::CausalLm).unwrap();
        let optimizer = OptimizerSettings::constant(*kind, 1e-3).build();
        let elements = |dims: &[usize]| dims.iter().product::<usize>();
        let (mut weights, mut moments) = (0, 0);
        for parameter in model.parameters() {
            let state = optimizer.state(parameter.info());
            weights += 4 * elements(&parameter.dims);
            moments += state
                .iter()
                .map(|own| own.dtype.unwrap_or(DType::F32).size() * elements(&own.dims))
                .sum::<usize>();
        }
        let run = bench.run(&format!(
            "fit clm --model_type gpt2 --config_overrides n_layer=1,n_head=2,n_embd={width},n_positions=32 \
             --train_file articles.txt --tokenizer_name byte_bpe --block_size 32 --optim {} \
             --memory 64MB --json --output_dir {kind:?}-fit",
            kind.choices[0]
        ));
        run.succeeded();
        let found: serde_json::Value = serde_json::from_str(run.stdout.trim()).unwrap();
        let bytes = |key: &str| {
            found[key]
                .as_u64()
                .unwrap_or_else(|| panic!("{key}: {found}"))
        };
        assert_eq!(bytes("weights_bytes"), weights as u64);
        assert_eq!(bytes("moments_bytes"), moments as u64, "{kind:?}");
    }
}
