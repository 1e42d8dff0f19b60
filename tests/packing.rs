//! Packed examples: TRL's layouts, and numbers that are those of the examples by themselves, for every
//! decoder, on every mesh, after a resume; logits at the trained positions alone.

use crate::parallel::assert_same_run;
use crate::support::{golden_dirs, max_difference, small_config};
use crate::tasks::{Bench, numbers};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use xtrain::cache::CacheSettings;
use xtrain::checkpoint::{Weights as StoredTensors, hf};
use xtrain::data::packing::{PackingStrategy, layout};
use xtrain::parallel::Mesh;
use xtrain::trainer::feed::DeviceBatch;
use xtrain::trainer::session::Session;
use xtrain::trainer::settings::OptimizerSettings;
use xtrain::trainer::step::{Phase, TrainStep, parameter_tensors, read_metrics};
use xtrain::trainer::{device, parameters};
use xtrain_graphs::optim::{ADAMW, Schedule, ScheduleKind};
use xtrain_graphs::{DType, DropoutRng, Shape, backward};
use xtrain_models::{
    ATTENTION_MASK, Config, Forward, HeadKind, INPUT_IDS, Inputs, LABELS, LabelledShare, Model,
    NextToken, Objective, POSITION_IDS, POSITIONS, Weights,
};

const LOGITS: f32 = 1e-5;
const GRADIENTS: f32 = 5e-6;
const LOSS: f64 = 1e-5;

/// The files below `finetune` of golden directories that have one of this name.
fn golden(name: &str) -> Vec<PathBuf> {
    let paths = golden_dirs().into_iter();
    let paths = paths.map(|golden| golden.join("finetune").join(name));
    paths.filter(|path| path.exists()).collect()
}

/// The cases of a folder of `finetune`.
fn cases(folder: &str) -> Vec<PathBuf> {
    let mut cases: Vec<PathBuf> = golden(folder)
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    cases.sort();
    cases
}

/// The model that a case of the same golden directory names.
fn model_of(case: &Path, name: &Value) -> PathBuf {
    let finetune = case.ancestors().nth(2).unwrap();
    finetune.join("models").join(name.as_str().unwrap())
}

fn open(model: &Path) -> (Box<dyn Model>, Session) {
    let config = hf::read_object(&model.join("config.json")).unwrap();
    let config = Config::new(config, "config.json");
    let model_of = xtrain_models::build(config, HeadKind::CausalLm).unwrap();
    let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
    let stored = StoredTensors::open(&model.join("model.safetensors")).unwrap();
    parameters::load(&mut session, &*model_of, &stored).unwrap();
    (model_of, session)
}

fn integers(tensors: &StoredTensors, name: &str) -> (Vec<usize>, Vec<i32>) {
    let view = tensors.get(name).unwrap();
    let values = view.bytes.chunks_exact(8);
    let value = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap()) as i32;
    (view.shape.dims.clone(), values.map(value).collect())
}

type Feeds = Vec<(&'static str, Vec<usize>, Vec<i32>)>;

/// What a model gives for rows: the logits of each token, the loss's sum and count, and the gradient of
/// the mean of each parameter.
struct Found {
    logits: Vec<f32>,
    loss: f32,
    count: f32,
    gradients: Vec<(String, Vec<f32>)>,
}

fn compute(model: &dyn Model, session: &mut Session, feeds: &Feeds) -> Found {
    let mut recording = session.begin();
    let fed = feeds.iter().map(|(name, dims, values)| {
        let tensor = if *name == ATTENTION_MASK {
            let mask: Vec<u8> = values.iter().map(|value| *value as u8).collect();
            recording.feed_host(name, &mask, &Shape::new(DType::Pred, &dims[..]))
        } else {
            let shape = Shape::new(DType::S32, &dims[..]);
            recording.feed_host(name, bytemuck::cast_slice(values), &shape)
        };
        (*name, tensor.unwrap())
    });
    let inputs: Inputs = fed.collect::<Vec<_>>().into_iter().collect();
    let specs = model.parameters();
    let tensors = parameter_tensors(&mut recording, &specs).unwrap();
    let trace = recording.trace().clone();
    let weights = Weights::new(&trace, &tensors);
    let rng = DropoutRng::off();
    let tokens = inputs.tokens().unwrap();
    let logits = xtrain_models::logits(model, &weights, &tokens, &rng).unwrap();
    recording.fetch("logits", &logits);
    let outcome = NextToken::default().record(&Forward {
        model,
        weights: &weights,
        inputs: &inputs,
        rng: &rng,
    });
    let loss = outcome.unwrap().loss;
    recording.fetch("loss", &loss.sum.reshape(&[1]).unwrap());
    recording.fetch("count", &loss.count.reshape(&[1]).unwrap());
    let leaves: Vec<_> = specs
        .iter()
        .map(|spec| tensors[&spec.name].held()[0].clone())
        .collect();
    let mean = loss.sum.div(&loss.count).unwrap();
    for (spec, gradient) in specs.iter().zip(backward(&mean, &leaves).unwrap()) {
        recording.fetch(&format!("d {}", spec.name), &gradient);
    }
    let marked = recording.mark_step("packed").unwrap();
    let read = |name: &str| -> Vec<f32> { marked.fetched(name).download_to().unwrap() };
    let gradient = |name: &String| (name.clone(), read(&format!("d {name}")));
    let names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).collect();
    Found {
        logits: read("logits"),
        loss: read("loss")[0],
        count: read("count")[0],
        gradients: names.iter().map(gradient).collect(),
    }
}

/// The same with the head at the positions that predict a label alone, and some room.
fn at_labels(feeds: &Feeds) -> Feeds {
    let (dims, labels) = feeds
        .iter()
        .find(|(name, ..)| *name == LABELS)
        .map(|(_, dims, labels)| (dims, labels))
        .unwrap();
    let places = labels.iter().enumerate();
    let chosen = places.filter(|(place, label)| **label != -100 && place % dims[1] > 0);
    let (mut positions, mut ids): (Vec<i32>, Vec<i32>) = chosen
        .map(|(place, label)| (place as i32 - 1, *label))
        .unzip();
    let room = positions.len() + 3;
    positions.resize(room, 0);
    ids.resize(room, -100);
    let mut all: Feeds = feeds
        .iter()
        .filter(|(name, ..)| *name != LABELS)
        .cloned()
        .collect();
    all.push((LABELS, vec![room], ids));
    all.push((POSITIONS, vec![room], positions));
    all
}

#[test]
fn layouts_are_those_of_trl() {
    let mut ran = 0;
    for path in golden("packing/layouts.json") {
        let cases: Value = hf::read_json(&path).unwrap();
        for case in cases.as_array().unwrap() {
            let number = |value: &Value| value.as_u64().unwrap() as usize;
            let lengths: Vec<usize> = (case["lengths"].as_array().unwrap().iter())
                .map(number)
                .collect();
            let all = [
                PackingStrategy::Bfd,
                PackingStrategy::BfdSplit,
                PackingStrategy::Wrapped,
            ];
            let strategy = all
                .into_iter()
                .find(|it| it.name() == case["strategy"])
                .unwrap();
            let mut found = Vec::new();
            for (group, lengths) in lengths.chunks(xtrain::data::packing::GROUP).enumerate() {
                let rows = layout(lengths, number(&case["max_length"]), strategy);
                found.extend(rows.into_iter().map(|row| {
                    let first = group * xtrain::data::packing::GROUP;
                    let place = |it: xtrain::data::packing::Piece| {
                        [first + it.example, it.start, it.length]
                    };
                    row.into_iter().map(place).collect::<Vec<_>>()
                }));
            }
            // Pieces that begin at 0 are written without it in long lists.
            let piece = |piece: &Value| match &piece.as_array().unwrap()[..] {
                [example, length] => [number(example), 0, number(length)],
                [example, start, length] => [number(example), number(start), number(length)],
                _ => unreachable!(),
            };
            let row = |row: &Value| {
                row.as_array()
                    .unwrap()
                    .iter()
                    .map(piece)
                    .collect::<Vec<_>>()
            };
            let wanted: Vec<_> = case["rows"].as_array().unwrap().iter().map(row).collect();
            assert_eq!(found, wanted, "{} {}", case["name"], case["strategy"]);
            ran += 1;
        }
    }
    assert!(ran > 0);
    println!("{ran} golden layouts ran");
}

/// `packing/MODEL`: logits, losses and gradients of packed rows are those of every example by itself,
/// with the head at all tokens or at the trained ones.
#[test]
fn packed_rows_equal_transformers_example_by_example() {
    let cases = cases("packing");
    assert!(!cases.is_empty());
    for dir in cases {
        let case: Value = hf::read_json(&dir.join("case.json")).unwrap();
        let (model, mut session) = open(&model_of(&dir, &case["model"]));
        let inputs = StoredTensors::open(&dir.join("inputs.safetensors")).unwrap();
        let (dims, segments) = integers(&inputs, "rows.segment_ids");
        let feed = |name: &'static str| {
            (
                name,
                dims.clone(),
                integers(&inputs, &format!("rows.{name}")).1,
            )
        };
        let feeds = vec![feed(INPUT_IDS), feed(LABELS), feed(POSITION_IDS)];
        let reference = StoredTensors::open(&dir.join("reference.safetensors")).unwrap();
        let (_, logits) = reference.read_f32("logits").unwrap();
        let gradients = StoredTensors::open(&dir.join("grads.safetensors")).unwrap();
        let name = dir.file_name().unwrap().to_string_lossy().to_string();
        for feeds in [feeds.clone(), at_labels(&feeds)] {
            let found = compute(&*model, &mut session, &feeds);
            let width = found.logits.len() / segments.len();
            let rows = found.logits.chunks_exact(width).zip(&segments);
            let own: Vec<f32> = rows
                .filter(|(_, segment)| **segment != 0)
                .flat_map(|(row, _)| row.to_vec())
                .collect();
            let difference = max_difference(&own, &logits);
            assert!(
                difference <= LOGITS,
                "{name}: logits differ by {difference:e}"
            );
            assert_eq!(
                f64::from(found.count),
                case["label_count"].as_f64().unwrap(),
                "{name}"
            );
            let loss = f64::from(found.loss) / f64::from(found.count);
            let wanted = case["loss"].as_f64().unwrap();
            assert!(
                (loss - wanted).abs() <= LOSS,
                "{name}: loss {loss}, expected {wanted}"
            );
            for (parameter, found) in &found.gradients {
                let (_, wanted) = gradients.read_f32(parameter).unwrap();
                let difference = max_difference(found, &wanted);
                assert!(
                    difference <= GRADIENTS,
                    "{name}: gradient of {parameter} differs by {difference:e}"
                );
            }
        }
        println!("golden case packing {name} ran");
    }
}

/// Examples of 1, 5, 7 and 4 tokens in a row of 18, and each by itself, padded.
#[test]
fn packed_examples_equal_separate_ones_in_every_decoder() {
    let lengths = [1usize, 5, 7, 4];
    let mut families = 0;
    for model_type in xtrain_models::MODEL_TYPES {
        if xtrain_models::is_encoder(model_type) == Some(true) {
            continue;
        }
        let config = small_config(model_type);
        let model = xtrain_models::build(config, HeadKind::CausalLm).unwrap();
        let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
        parameters::initialize(&mut session, &model.parameters(), 3).unwrap();
        let tokens = model.max_positions();
        // Not 1, which pads.
        let id = |at: usize| 2 + (at * at * 7 + 3 * at) as i32 % 37;
        let (mut ids, mut labels, mut positions) =
            (vec![1; tokens], vec![-100; tokens], vec![0; tokens]);
        let rows = lengths.len();
        let (mut apart, mut apart_labels) = (vec![1; rows * tokens], vec![-100; rows * tokens]);
        let mut mask = vec![0; rows * tokens];
        let mut start = 0;
        for (row, length) in lengths.into_iter().enumerate() {
            for place in 0..length {
                let (packed, alone) = (start + place, row * tokens + place);
                (ids[packed], positions[packed]) = (id(packed), place as i32);
                (apart[alone], mask[alone]) = (id(packed), 1);
                if place > 0 {
                    (labels[packed], apart_labels[alone]) = (id(packed), id(packed));
                }
            }
            start += length;
        }
        let one = vec![1, tokens];
        let packed = vec![
            (INPUT_IDS, one.clone(), ids),
            (LABELS, one.clone(), labels),
            (POSITION_IDS, one, positions),
        ];
        let all = vec![rows, tokens];
        let separate = vec![
            (INPUT_IDS, all.clone(), apart),
            (LABELS, all.clone(), apart_labels),
            (ATTENTION_MASK, all, mask),
        ];
        let packed = compute(&*model, &mut session, &packed);
        let separate = compute(&*model, &mut session, &separate);
        let width = packed.logits.len() / tokens;
        let mut start = 0;
        for (row, length) in lengths.into_iter().enumerate() {
            let of = |logits: &[f32], first: usize| {
                logits[first * width..(first + length) * width].to_vec()
            };
            let difference = max_difference(
                &of(&packed.logits, start),
                &of(&separate.logits, row * tokens),
            );
            assert!(
                difference <= 1e-5,
                "{model_type}, example {row}: {difference:e}"
            );
            start += length;
        }
        assert_eq!(packed.count, separate.count, "{model_type}");
        assert!((packed.loss - separate.loss).abs() <= 1e-4, "{model_type}");
        for ((name, packed), (_, separate)) in packed.gradients.iter().zip(&separate.gradients) {
            let difference = max_difference(packed, separate);
            assert!(
                difference <= 1e-5,
                "{model_type}: gradient of {name}: {difference:e}"
            );
        }
        families += 1;
    }
    assert!(families >= 14, "{families} decoders");
}

/// `objectives/sft-nll` and `sft-dft`: ten steps, with the head at all tokens and at the trained ones.
#[test]
fn fine_tuning_losses_equal_trl() {
    for dir in cases("objectives") {
        let name = dir.file_name().unwrap().to_string_lossy().to_string();
        if !name.starts_with("sft-") {
            continue;
        }
        for shares in [false, true] {
            follow(&dir, &format!("{name}, at labels alone: {shares}"), shares);
        }
        println!("golden case objectives {name} ran");
    }
}

fn follow(dir: &Path, name: &str, at_labels_alone: bool) {
    let trajectory: Value = hf::read_json(&dir.join("trajectory.json")).unwrap();
    let rows: Value = hf::read_json(&dir.join("rows.json")).unwrap();
    let (model, mut session) = open(&model_of(dir, &rows["model"]));
    let hyper = |key: &str| trajectory["hyper"][key].as_f64().unwrap();
    let steps = trajectory["steps"].as_array().unwrap();
    let schedule = Schedule {
        kind: ScheduleKind::Linear,
        peak: hyper("peak_lr"),
        warmup: hyper("warmup_steps") as u64,
        total: hyper("total_steps") as u64,
    };
    let optimizer = OptimizerSettings {
        weight_decay: hyper("weight_decay"),
        adam_beta1: hyper("beta1"),
        adam_beta2: hyper("beta2"),
        adam_epsilon: hyper("eps"),
        max_grad_norm: hyper("max_grad_norm"),
        ..OptimizerSettings::constant(ADAMW, hyper("peak_lr"))
    };
    let objective = NextToken {
        weighs_by_probability: trajectory["options"]["loss_type"] == "dft",
        ..NextToken::default()
    };
    let step = TrainStep::new(
        &*model,
        std::sync::Arc::new(objective),
        optimizer,
        schedule,
        0,
    );
    parameters::set_extra_state(&mut session, &step.extra_state(false), None).unwrap();
    let examples = rows["rows"].as_array().unwrap();
    let batch_rows = rows["batch"].as_u64().unwrap() as usize;
    let list = |example: &Value, key: &str| -> Vec<i32> {
        serde_json::from_value(example[key].clone()).unwrap()
    };
    for (i, wanted) in steps.iter().enumerate() {
        let chosen: Vec<&Value> = (0..batch_rows)
            .map(|row| &examples[(i * batch_rows + row) % examples.len()])
            .collect();
        let tokens = chosen
            .iter()
            .map(|it| list(it, "input_ids").len())
            .max()
            .unwrap();
        let padded = |key: &str, with: i32| -> Vec<i32> {
            let row = |example: &&Value| {
                let mut row = list(example, key);
                row.resize(tokens, with);
                row
            };
            chosen.iter().flat_map(row).collect()
        };
        let dims = vec![batch_rows, tokens];
        let mut feeds: Feeds = vec![
            (
                INPUT_IDS,
                dims.clone(),
                padded("input_ids", rows["pad_token_id"].as_i64().unwrap() as i32),
            ),
            (LABELS, dims.clone(), padded("labels", -100)),
        ];
        if at_labels_alone {
            feeds = at_labels(&feeds);
        }
        let mut buffers = feeds.iter().map(|(name, dims, values)| {
            let shape = Shape::new(DType::S32, &dims[..]);
            (
                *name,
                session
                    .upload(bytemuck::cast_slice(values), &shape)
                    .unwrap(),
            )
        });
        let ids = buffers.next().unwrap().1;
        let batch = DeviceBatch {
            batch_in_epoch: i as u64,
            ..DeviceBatch::of(ids, buffers.collect())
        };
        let phase = Phase::Update { accumulated: false };
        let outputs = step
            .microbatch(&mut session, &batch, phase, i as u64, i as u64)
            .unwrap();
        let metrics = read_metrics(&outputs).unwrap().wait().unwrap();
        for (found, key, bound) in [
            (metrics.loss, "loss_f64", LOSS),
            (metrics.grad_norm, "grad_norm_f64", 2e-5),
        ] {
            let wanted = wanted[key].as_f64().unwrap();
            let difference = (f64::from(found) - wanted).abs();
            assert!(
                difference <= bound * wanted.abs().max(1.0),
                "{name}, step {i}: {key} {found}, expected {wanted}"
            );
        }
    }
}

/// How much room there is for labels follows from the data, in few shapes.
#[test]
fn logits_are_computed_where_labels_are() {
    let objective = NextToken::default();
    let dims = |objective: &dyn Objective, tokens| {
        let feeds = objective.feeds(4, tokens);
        feeds
            .iter()
            .map(|feed| feed.shape.dims.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(dims(&objective, 64), [vec![4, 64]]);
    let share = |tokens, share| LabelledShare { tokens, share };
    let fitted = objective
        .for_data(&[share(64, 0.3), share(128, 0.9)])
        .unwrap();
    assert_eq!(dims(&*fitted, 64), [vec![80], vec![80]]);
    assert_eq!(dims(&*fitted, 128), [vec![4, 128]], "little would be saved");
    assert_eq!(dims(&*fitted, 32), [vec![4, 32]], "nothing is known of it");
}

/// Conversations of a few words, long prompts before short answers.
pub(crate) fn chats(rows: usize) -> String {
    let row = |i: usize| {
        let words = |from: usize, count: usize| {
            let word =
                |at: usize| ["tea", "harbour", "seven", "quiet", "lamp"][(i * 7 + at * 3) % 5];
            (from..from + count).map(word).collect::<Vec<_>>().join(" ")
        };
        let (asked, said) = (3 + i * 5 % 11, 1 + i * 3 % 4);
        json!({"messages": [
            {"role": "user", "content": words(0, asked)},
            {"role": "assistant", "content": words(asked, said)},
        ]})
    };
    (0..rows).map(|i| format!("{}\n", row(i))).collect()
}

const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}\n{% else %}A: {% generation %}\
    {{ m.content }}<|endoftext|>{% endgeneration %}\n{% endif %}{% endfor %}";

const LLAMA: &str = "train sft --model_type llama --config_overrides hidden_size=32,intermediate_size=64,num_hidden_layers=2,\
    num_attention_heads=4,num_key_value_heads=2,max_position_embeddings=96,vocab_size=1000,pad_token_id=0,attention_dropout=0.0 \
    --tokenizer_name byte_bpe --train_file chats.jsonl --assistant_only_loss --max_length 64 --learning_rate 1e-3 \
    --adam_epsilon 1e-4 --logging_steps 1 --disable_tqdm";

pub(crate) fn bench() -> Bench {
    let bench = Bench::new();
    std::fs::write(bench.path("chats.jsonl"), chats(120)).unwrap();
    let config = json!({"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "chat_template": TEMPLATE});
    std::fs::write(
        bench.path("byte_bpe/tokenizer_config.json"),
        config.to_string(),
    )
    .unwrap();
    bench
}

/// A run on packed conversations says what it packed and logs tokens that are no padding; it is the same
/// on each kind of mesh, with gradient checkpointing, with accumulation and after a resume.
#[test]
fn a_packed_run_is_the_same_on_meshes_and_after_a_resume() {
    let bench = bench();
    let train = |dir: &str, more: &str| {
        let run = bench.run(&format!(
            "{LLAMA} --packing --max_steps 6 --output_dir {dir} {more}"
        ));
        run.succeeded();
        run
    };
    let one = train(
        "one",
        "--per_device_train_batch_size 4 --do_train --do_eval --validation_file chats.jsonl",
    );
    let said = one
        .stderr
        .lines()
        .find(|line| line.contains("are packed (bfd) into"));
    let said = said.unwrap_or_else(|| panic!("{}", one.stderr));
    assert!(
        said.contains("120 examples")
            && said.contains("rows of 64")
            && said.contains("% is padding"),
        "{said}"
    );
    let losses = numbers(&bench.records("one"), "loss");
    assert!(losses.len() == 6 && losses[5] < losses[0], "{losses:?}");
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
        (
            "checkpointed",
            "--gradient_checkpointing full --per_device_train_batch_size 1 --gradient_accumulation_steps 4",
        ),
    ] {
        train(
            dir,
            &format!(
                "{mesh} --do_train --do_eval --validation_file chats.jsonl --per_device_eval_batch_size 4"
            ),
        );
        assert_same_run(&bench, dir, "one");
    }

    let saving = "--per_device_train_batch_size 4 --save_strategy steps --save_steps 3";
    train("saved", saving);
    std::fs::remove_dir_all(bench.path("saved/checkpoint-6")).ok();
    train(
        "resumed",
        &format!("{saving} --resume_from_checkpoint saved/checkpoint-3"),
    );
    assert_eq!(
        bench.bytes("resumed/model.safetensors"),
        bench.bytes("saved/model.safetensors")
    );
}

/// Rows that are packed and rows that are not give an evaluation the same loss and accuracy.
#[test]
fn evaluations_are_the_same_packed_or_not() {
    let bench = bench();
    bench
        .run(&format!("{LLAMA} --packing --max_steps 2 --output_dir out"))
        .succeeded();
    let eval = |more: &str| -> Value {
        let run = bench.run(&format!(
            "eval sft --json --disable_tqdm --model_name_or_path out --validation_file chats.jsonl --per_device_eval_batch_size 3 {more}"
        ));
        run.succeeded();
        serde_json::from_str(run.stdout.trim()).unwrap()
    };
    let packed = eval("");
    for more in ["--eval_packing false", "--packing_strategy bfd_split"] {
        let other = eval(more);
        assert_eq!(other["eval_accuracy"], packed["eval_accuracy"], "{more}");
        let difference =
            other["eval_loss"].as_f64().unwrap() - packed["eval_loss"].as_f64().unwrap();
        assert!(difference.abs() <= 1e-6, "{more}: {difference:e}");
    }
    assert_ne!(
        packed["eval_samples"],
        eval("--eval_packing false")["eval_samples"]
    );
    let dft = eval("--loss_type dft");
    assert!(
        dft["eval_loss"].as_f64() < packed["eval_loss"].as_f64() && dft.get("perplexity").is_none(),
        "{dft}"
    );
}

/// A stream packs its rows as it reads them, and goes on where it was.
#[test]
fn a_stream_is_packed_and_resumed() {
    let bench = bench();
    let train = |dir: &str, more: &str| {
        bench.run(&format!(
            "{LLAMA} --packing --streaming --shuffle_buffer_size 5 --max_steps 6 --per_device_train_batch_size 2 --save_strategy steps \
             --save_steps 3 --output_dir {dir} {more}"
        ))
        .succeeded();
    };
    train("whole", "");
    train("resumed", "--resume_from_checkpoint whole/checkpoint-3");
    assert_eq!(
        bench.bytes("resumed/model.safetensors"),
        bench.bytes("whole/model.safetensors")
    );
}

/// Sets that teach nothing, or never to stop, end a run before its first step, by the numbers of rows.
#[test]
fn what_teaches_nothing_is_refused_before_the_first_step() {
    let bench = bench();
    let refused = |more: &str, parts: &[&str]| {
        let run = bench.run(&format!("{LLAMA} --max_steps 2 --output_dir out {more}"));
        assert!(run.code != Some(0), "{more}: {}", run.stderr);
        for part in parts {
            assert!(
                run.stderr.contains(part),
                "{more}: {part:?} is not in {}",
                run.stderr
            );
        }
        assert!(!bench.path("out/log.jsonl").exists());
    };
    // Prompts alone fill the rows.
    for more in ["--max_length 4", "--max_length 4 --packing"] {
        refused(
            more,
            &["rows 1, 2, 3, 4, 5 and 115 more", "nothing to learn"],
        );
    }
    let unending = TEMPLATE.replace("<|endoftext|>{% endgeneration %}", "{% endgeneration %}");
    let config = json!({"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "chat_template": unending});
    std::fs::write(
        bench.path("byte_bpe/tokenizer_config.json"),
        config.to_string(),
    )
    .unwrap();
    for more in ["", "--packing"] {
        refused(more, &["teaches the model to stop", "row 1 ends with"]);
    }
}
