//! Optimizers whose moments are in 8 bits, step by step beside the algorithm in numpy: every case of
//! `finetune/optim8*` in the golden directories; and what becomes of their state in a run. Meshes and resume
//! are in `optimizers.rs`, with those of all optimizers.

use crate::support::golden_dirs;
use crate::tasks::Bench;
use serde_json::Value;
use std::path::{Path, PathBuf};
use xtrain::cache::CacheSettings;
use xtrain::checkpoint::{Weights as StoredTensors, hf};
use xtrain::parallel::Mesh;
use xtrain::trainer::device;
use xtrain::trainer::session::Session;
use xtrain_graphs::optim::{
    ADAMW_8BIT, Hyperparameters, OPTIMIZERS, Optimizer, ParameterInfo, StepScalars, Update,
    step_feed,
};
use xtrain_graphs::{DType, Shape};

/// In units of the learning rate, in ordinary blocks.
const WEIGHTS: f64 = 1e-3;

/// Relative: bitsandbytes has 1 - beta2 in float32, torch in float64, which is 1.3e-5 apart.
const SCALES: f32 = 5e-5;

/// A parameter that is updated by gradients from outside.
struct Parameter {
    session: Session,
    optimizer: Box<dyn Optimizer>,
    dims: Vec<usize>,
    learning_rate: f64,
    weight_decay: f64,
}

impl Parameter {
    fn info(&self) -> ParameterInfo<'_> {
        ParameterInfo {
            dims: &self.dims,
            is_hidden_matrix: false,
            is_embedding: false,
        }
    }

    fn begin(&mut self, weight: &[f32]) {
        let shape = Shape::new(DType::F32, &self.dims[..]);
        let bytes = bytemuck::cast_slice(weight);
        self.session.set_state("w", bytes, &shape).unwrap();
        for spec in self.optimizer.state(self.info()) {
            let shape = Shape::new(spec.dtype.unwrap_or(DType::F32), &spec.dims[..]);
            let zeros = vec![0; shape.bytes()];
            self.session.set_state(spec.name, &zeros, &shape).unwrap();
        }
    }

    /// 1-based step `k`.
    fn step(&mut self, gradient: &[f32], k: u64) {
        let specs = self.optimizer.state(self.info());
        let feed = step_feed(&*self.optimizer, self.learning_rate, k);
        let mut recording = self.session.begin();
        let trace = recording.trace().clone();
        let _scope = trace.update_scope("optimizer");
        let mut put = |name: &str, numbers: &[f32], dims: &[usize]| {
            let shape = Shape::new(DType::F32, dims);
            let bytes = bytemuck::cast_slice(numbers);
            recording.feed_host(name, bytes, &shape).unwrap()
        };
        let scalars = put("optimizer", &feed, &[feed.len()]);
        let gradient = put("gradient", gradient, &self.dims);
        let state: Vec<_> = specs
            .iter()
            .map(|spec| recording.state(spec.name).unwrap())
            .collect();
        let new = self.optimizer.update(&Update {
            scalars: &StepScalars::of(&scalars).unwrap(),
            info: ParameterInfo {
                dims: &self.dims,
                is_hidden_matrix: false,
                is_embedding: false,
            },
            parameter: &recording.state("w").unwrap(),
            gradient: &gradient,
            scale: &trace.constant(1.0, DType::F32).unwrap(),
            state: &state,
            weight_decay: self.weight_decay,
            shard: None,
        });
        let new = new.unwrap();
        recording.assign("w", &new.parameter).unwrap();
        for (spec, new) in specs.iter().zip(&new.state) {
            recording.assign(spec.name, new).unwrap();
        }
        recording.mark_step("update").unwrap();
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        self.session.state(name).unwrap().download_to().unwrap()
    }

    fn codes(&self, name: &str) -> Vec<u8> {
        self.session.state(name).unwrap().download_to().unwrap()
    }
}

fn cases() -> Vec<PathBuf> {
    let mut all = Vec::new();
    for golden in golden_dirs() {
        let entries = std::fs::read_dir(golden.join("finetune"));
        let entries = entries.into_iter().flatten().map(|it| it.unwrap().path());
        let is_one = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("optim8") && path.join("meta.json").exists()
        };
        all.extend(entries.filter(is_one));
    }
    assert!(!all.is_empty(), "no golden directory has finetune/optim8");
    all.sort();
    all
}

/// What golden files call the moments, and what they are called here.
const MOMENTS: [(&str, &str); 2] = [("m", "exp_avg"), ("v", "exp_avg_sq")];

fn follow(dir: &Path) {
    let meta: Value = hf::read_json(&dir.join("meta.json")).unwrap();
    let setting = |key: &str| meta["settings"][key].as_f64().unwrap();
    let name = meta["optimizer"].as_str().unwrap_or(ADAMW_8BIT.name);
    let kind = OPTIMIZERS.iter().find(|kind| kind.name == name).unwrap();
    let problem = StoredTensors::open(&dir.join("problem.safetensors")).unwrap();
    let states = StoredTensors::open(&dir.join("states.safetensors")).unwrap();
    let (dims, weight) = problem.read_f32("weight").unwrap();
    let (_, gradients) = problem.read_f32("gradients").unwrap();
    let hyper = Hyperparameters {
        beta1: setting("beta1"),
        beta2: setting("beta2"),
        eps: setting("eps"),
    };
    let mut parameter = Parameter {
        session: device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap(),
        optimizer: kind.build(&hyper),
        dims,
        learning_rate: setting("lr"),
        weight_decay: setting("weight_decay"),
    };
    parameter.begin(&weight);
    let spans = meta["spans"].as_array().unwrap();
    // Where one number is thousands of times the rest, nothing is to be expected.
    let ordinary: Vec<std::ops::Range<usize>> = spans
        .iter()
        .filter(|span| span["kind"].as_str().unwrap().starts_with("normal"))
        .map(|span| {
            let end = |key: &str| span[key].as_u64().unwrap() as usize;
            end("from")..end("to")
        })
        .collect();
    let mut compared = 0;
    for (k, gradient) in (1..).zip(gradients.chunks(weight.len())) {
        parameter.step(gradient, k);
        if states.get(&format!("{k}.weight")).is_none() {
            continue;
        }
        let expected = |what: &str| states.read_f32(&format!("{k}.{what}")).unwrap().1;
        let (found, wanted) = (parameter.numbers("w"), expected("weight"));
        let mut worst = 0f64;
        for i in ordinary.iter().cloned().flatten() {
            let off = f64::from(found[i] - wanted[i]).abs() / parameter.learning_rate;
            assert!(
                off <= WEIGHTS,
                "{name} step {k}: weight {i} is off by {off} lr"
            );
            worst = worst.max(off);
        }
        let mut others = 0;
        for (short, moment) in MOMENTS {
            let key = format!("{k}.{short}_codes");
            let Some(view) = states.get(&key) else {
                continue;
            };
            let codes = states.read(&key, &view.shape).unwrap();
            let scales = expected(&format!("{short}_absmax"));
            let found_scales = parameter.numbers(&format!("{moment}_scales"));
            let found = parameter.codes(&format!("{moment}_codes"));
            for range in ordinary.iter().cloned() {
                for block in range.start / 256..range.end.div_ceil(256) {
                    let (found, wanted) = (found_scales[block], scales[block]);
                    assert!(
                        (found - wanted).abs() <= SCALES * wanted,
                        "{name} step {k}: scale {block}"
                    );
                }
                for i in range {
                    let apart = found[i].abs_diff(codes[i]);
                    assert!(
                        apart <= 1,
                        "{name} step {k}: code {i} of {moment} is {}",
                        found[i]
                    );
                    others += u32::from(apart);
                }
            }
        }
        // Of numbers between two entries rounding decides.
        let count: usize = ordinary.iter().map(ExactSizeIterator::len).sum();
        assert!(
            f64::from(others) <= 0.002 * count as f64,
            "{name} step {k}: {others} codes differ"
        );
        println!(
            "{name} step {k}: weights within {worst:.1e} lr, {others} of {count} codes are a neighbour"
        );
        compared += 1;
    }
    assert!(compared > 0, "{}: nothing to compare with", dir.display());
    let stats = parameter.session.cache().stats();
    assert_eq!(stats.compiled, 1, "one graph for all steps");
    println!("golden case {} ran", dir.display());
}

#[test]
fn steps_equal_the_algorithm_in_numpy() {
    for dir in cases() {
        follow(&dir);
    }
}

/// The tensors of a checkpoint's optimizer state, with their types and sizes.
fn stored(bench: &Bench, dir: &str) -> Vec<(String, Shape)> {
    let file = StoredTensors::open(&bench.path(&format!("{dir}/optimizer.safetensors"))).unwrap();
    let all = file
        .iter()
        .map(|view| (view.name.to_string(), view.shape.clone()));
    all.collect()
}

/// Matrices of a layer have 2 bytes and a little for each number, in a checkpoint and in the plan of a run;
/// embeddings and vectors have 8.
#[test]
fn state_takes_a_quarter_of_the_memory() {
    let bench = Bench::new();
    let flags = "train clm --model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=64,n_positions=32 \
                 --train_file articles.txt --tokenizer_name byte_bpe --block_size 32 --do_train --disable_tqdm --max_steps 2 \
                 --per_device_train_batch_size 2 --save_steps 2 --logging_steps 1";
    let run = bench.run(&format!(
        "{flags} --optim paged_adamw_8bit --output_dir out"
    ));
    run.succeeded();
    let note = "note: --optim paged_adamw_8bit is adamw_bnb_8bit: its state stays on the device, nothing is paged";
    assert!(run.stderr.contains(note), "{}", run.stderr);
    let tensors = stored(&bench, "out/checkpoint-2");
    let of = |name: &str| {
        let found = tensors.iter().find(|(known, _)| known == name);
        found
            .unwrap_or_else(|| panic!("no {name}: {tensors:?}"))
            .1
            .clone()
    };
    let matrix = "transformer.h.0.attn.c_attn.weight";
    assert_eq!(
        of(&format!("exp_avg_codes.{matrix}")),
        Shape::new(DType::U8, [64, 192])
    );
    assert_eq!(
        of(&format!("exp_avg_sq_scales.{matrix}")),
        Shape::new(DType::F32, [48])
    );
    for kept in ["transformer.wte.weight", "transformer.h.0.mlp.c_fc.bias"] {
        assert_eq!(of(&format!("exp_avg.{kept}")).dtype, DType::F32);
    }
    let bytes = |dir: &str| -> usize {
        let tensors = stored(&bench, dir);
        let matrices = tensors.iter().filter(|(name, _)| {
            name.contains(".h.") && name.ends_with(".weight") && !name.contains("ln_")
        });
        matrices.map(|(_, shape)| shape.bytes()).sum()
    };
    bench.run(&format!("{flags} --output_dir wide")).succeeded();
    let share = bytes("out/checkpoint-2") as f64 / bytes("wide/checkpoint-2") as f64;
    // A code for each number and 4 bytes for 256 of them.
    assert!((share - (1.0 + 4.0 / 256.0) / 4.0).abs() < 1e-9, "{share}");
    let planned = |optim: &str| -> f64 {
        let run = bench.run(&format!(
            "{flags} --optim {optim} --output_dir new --dry_run --json"
        ));
        run.succeeded();
        let plan: Value = serde_json::from_str(run.stdout.trim()).unwrap();
        let graphs = plan["graphs"].as_array().unwrap();
        let train = graphs.iter().find(|graph| graph["name"] == "train");
        train.unwrap_or_else(|| panic!("{plan}"))["argument_bytes"]
            .as_f64()
            .unwrap()
    };
    let saved = planned("adamw_torch") - planned("adamw_bnb_8bit");
    let elements = 2.0 * 12.0 * 64.0 * 64.0;
    let expected = elements * 8.0 * (1.0 - share);
    assert!(
        (saved - expected).abs() < 0.01 * expected,
        "{saved}, expected {expected}"
    );
}
