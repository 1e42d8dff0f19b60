//! Everything that can go wrong, as a user meets it: the real program, its exit code (2 for what
//! was typed, 1 for the rest), one message that names the place and says what to do, and nothing
//! lost that was there before.

use crate::support::{Command, Run, copy_tokenizer, snapshot, xtrain};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;
use xtrain::checkpoint::{TensorRef, write_safetensors};
use xtrain_graphs::{DType, Shape};
use xtrain_models::HeadKind;

/// A directory with `model/` (a tiny GPT-2 and its tokenizer), `train.txt` and `valid.txt`, in
/// which the program runs.
pub(crate) struct Workplace(pub(crate) TempDir);

pub(crate) const OVERRIDES: &str = "n_layer=2,n_head=2,n_embd=32,n_positions=64";
pub(crate) const TENSOR: &str = "transformer.h.0.attn.c_attn.weight";

/// A tiny run that saves and logs each step.
pub(crate) const TRAIN: &str = "train clm --disable_tqdm --model_type gpt2 --tokenizer_name model --train_file train.txt --output_dir out \
                     --block_size 32 --per_device_train_batch_size 4 --logging_steps 1 --save_steps 1 --lr_scheduler_type constant";
pub(crate) const EVAL: &str = "eval clm --disable_tqdm --block_size 32 --validation_file valid.txt --model_name_or_path model";

impl Workplace {
    pub(crate) fn new() -> Workplace {
        let place = Workplace(tempfile::tempdir().unwrap());
        copy_tokenizer("byte_bpe", &place.path("model"));
        let mut config = xtrain_models::preset("gpt2").unwrap();
        for (key, value) in [
            ("n_layer", 2),
            ("n_head", 2),
            ("n_embd", 32),
            ("n_positions", 64),
            ("vocab_size", 1000),
        ] {
            config.set(key, value);
        }
        place.write(
            "model/config.json",
            serde_json::to_string_pretty(config.values()).unwrap(),
        );
        let model = xtrain_models::build(config, HeadKind::CausalLm).unwrap();
        let tensors = model.parameters().into_iter().map(|p| {
            (
                p.name,
                (p.dims.clone(), vec![0.01; p.dims.iter().product()]),
            )
        });
        place.write_weights(&tensors.collect());
        let text = |lines: std::ops::Range<u32>| -> String {
            lines
                .map(|i| {
                    format!(
                        "Line {i} says that {} and {} are {}.\n",
                        i % 7,
                        i % 11,
                        i % 7 + i % 11
                    )
                })
                .collect()
        };
        place.write("train.txt", text(0..800));
        place.write("valid.txt", text(800..900));
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    pub(crate) fn write_weights(&self, tensors: &Tensors) {
        let bytes: Vec<(String, Shape, Vec<u8>)> = tensors
            .iter()
            .map(|(name, (dims, values))| {
                let shape = Shape::new(DType::F32, dims.clone());
                (
                    name.clone(),
                    shape,
                    values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                )
            })
            .collect();
        let refs: Vec<_> = bytes
            .iter()
            .map(|(name, shape, bytes)| TensorRef::new(name.as_str(), shape.clone(), bytes))
            .collect();
        write_safetensors(
            &mut fs::File::create(self.path("model/model.safetensors")).unwrap(),
            &refs,
        )
        .unwrap();
    }

    pub(crate) fn weights(&self) -> Tensors {
        let weights = xtrain::checkpoint::Weights::open(&self.path("model")).unwrap();
        weights
            .iter()
            .map(|view| (view.name.to_string(), weights.read_f32(view.name).unwrap()))
            .collect()
    }

    /// Changes one key of the model's configuration.
    pub(crate) fn set(&self, key: &str, value: Value) {
        let mut config: Value =
            serde_json::from_slice(&fs::read(self.path("model/config.json")).unwrap()).unwrap();
        config[key] = value;
        self.write("model/config.json", config.to_string());
    }

    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = xtrain();
        command
            .dir(self.0.path())
            .args(line.split_whitespace())
            .env("XTRAIN_CACHE_DIR", self.path("cache"));
        if line.contains("--model_type gpt2") && !line.contains("--config_overrides") {
            command.args(["--config_overrides", OVERRIDES]);
        }
        command
    }

    pub(crate) fn run(&self, line: &str) -> Run {
        self.command(line).run()
    }

    pub(crate) fn snapshot(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        snapshot(self.0.path())
    }

    /// The names in a directory, sorted.
    pub(crate) fn names(&self, dir: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(dir)).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// One message with all of `words` in it, the exit code, and no sign of a crash.
#[track_caller]
pub(crate) fn assert_fails(run: &Run, code: i32, words: &[&str]) {
    let text = &run.stderr;
    assert_eq!(
        run.code,
        Some(code),
        "stdout:\n{}\nstderr:\n{text}",
        run.stdout
    );
    assert_eq!(
        text.lines()
            .filter(|line| line.starts_with("error: "))
            .count(),
        1,
        "{text}"
    );
    let (_, message) = text.split_once("error: ").unwrap();
    for word in words {
        assert!(message.contains(word), "`{word}` is not in: {message}");
    }
    for sign in [
        "panicked",
        "backtrace",
        "BACKTRACE",
        "internal error",
        "a defect of xtrain",
        "Error {",
        "core dumped",
    ] {
        assert!(!text.contains(sign), "{text}");
    }
    // A cause that repeats its context ("reading X: cannot read X") would name the place twice.
    let first = message.lines().next().unwrap();
    for part in first
        .split([' ', ':'])
        .filter(|part| part.len() > 12 && part.contains('/'))
    {
        assert!(
            first.matches(part).count() <= 2,
            "{part} again and again: {first}"
        );
    }
}

type Case = (
    &'static str,
    fn(&Workplace),
    &'static str,
    i32,
    &'static [&'static str],
);

#[track_caller]
pub(crate) fn check(cases: &[Case]) {
    for (name, break_it, line, code, words) in cases {
        let place = Workplace::new();
        break_it(&place);
        let before = place.snapshot();
        let line = line.replace("TRAIN", TRAIN).replace("EVAL", EVAL);
        let run = place.run(&line);
        println!("{name}: {}", run.stderr.trim_end());
        assert_fails(&run, *code, words);
        let after = place.snapshot();
        for (path, content) in &before {
            assert!(
                after.get(path) == Some(content),
                "{name}: {} was changed or lost",
                path.display()
            );
        }
    }
}

#[test]
fn texts_that_cannot_be_used() {
    check(&[
        (
            "missing",
            |_| (),
            "TRAIN --train_file none.txt",
            2,
            &["--train_file", "none.txt does not exist"],
        ),
        (
            "a directory",
            |p| fs::create_dir(p.path("d")).unwrap(),
            "TRAIN --train_file d",
            2,
            &["d is a directory"],
        ),
        (
            "empty",
            |p| p.write("train.txt", ""),
            "TRAIN",
            1,
            &["train.txt is empty"],
        ),
        (
            "latin-1",
            |p| p.write("train.txt", b"good\nbad caf\xe9\n"),
            "TRAIN",
            1,
            &["train.txt:2: invalid UTF-8", "0xe9", "iconv"],
        ),
        (
            "short",
            |p| p.write("valid.txt", "two words\n"),
            "EVAL",
            1,
            &["valid.txt is too short", "block of 32", "--block_size"],
        ),
        (
            "cut gzip",
            |p| p.write("train.txt", b"\x1f\x8b\x08\0\0"),
            "TRAIN",
            1,
            &["train.txt:1: the gzip data"],
        ),
        (
            "bad validation text stops before training",
            |p| p.write("valid.txt", b"\xff"),
            "TRAIN --do_train --do_eval --validation_file valid.txt",
            1,
            &["valid.txt:1: invalid UTF-8"],
        ),
        (
            "fewer rows than a batch",
            |_| (),
            "TRAIN --per_device_train_batch_size 100000 --dataloader_drop_last",
            2,
            &[
                "rows do not fill one batch of 100000",
                "hint: lower --per_device_train_batch_size",
            ],
        ),
    ]);
}

/// What is wrong with a configuration, and what is said.
const CONFIGURATIONS: &[Case] = &[
    (
        "syntax",
        |p| p.write("model/config.json", "{\n  \"n_layer\": }"),
        "EVAL",
        2,
        &["model/config.json:2:14: not valid JSON"],
    ),
    (
        "a list",
        |p| p.write("model/config.json", "[]"),
        "EVAL",
        2,
        &["model/config.json: expected a JSON object"],
    ),
    (
        "empty",
        |p| p.write("model/config.json", ""),
        "EVAL",
        2,
        &["model/config.json: the file is empty"],
    ),
    (
        "missing",
        |p| fs::remove_file(p.path("model/config.json")).unwrap(),
        "EVAL",
        2,
        &["model holds no config.json"],
    ),
    (
        "type",
        |p| p.set("n_layer", json!("two")),
        "EVAL",
        2,
        &[
            "model/config.json: `n_layer` must be a positive integer",
            "two",
        ],
    ),
    (
        "fraction",
        |p| p.set("n_layer", json!(2.5)),
        "EVAL",
        2,
        &["`n_layer` must be a positive integer, got 2.5"],
    ),
    (
        "zero",
        |p| p.set("n_head", json!(0)),
        "EVAL",
        2,
        &["`n_head` must be a positive integer, got 0"],
    ),
    (
        "heads",
        |p| p.set("n_head", json!(3)),
        "EVAL",
        2,
        &["`n_embd` = 32: must be a multiple of n_head (3)"],
    ),
    (
        "activation",
        |p| p.set("activation_function", json!("geluu")),
        "EVAL",
        2,
        &[
            "model/config.json: `activation_function` = \"geluu\"",
            "gelu_new",
        ],
    ),
    (
        "model type",
        |p| p.set("model_type", json!("mamba")),
        "EVAL",
        2,
        &["model/config.json: `model_type` = \"mamba\"", "gpt2"],
    ),
    (
        "override",
        |_| (),
        "TRAIN --config_overrides n_layers=2",
        2,
        &["--config_overrides: n_layers=2", "did you mean `n_layer`?"],
    ),
    (
        "override's type",
        |_| (),
        "TRAIN --config_overrides n_layer=two",
        2,
        &["--config_overrides: n_layer=", "number"],
    ),
    (
        "tokenizer missing",
        |p| fs::remove_file(p.path("model/tokenizer.json")).unwrap(),
        "EVAL",
        2,
        &["no tokenizer in model"],
    ),
    (
        "tokenizer damaged",
        |p| p.write("model/tokenizer.json", "{"),
        "EVAL",
        1,
        &["model/tokenizer.json is not a tokenizer"],
    ),
    (
        "vocabulary chosen too small",
        |_| (),
        "TRAIN --config_overrides n_layer=2,n_head=2,n_embd=32,vocab_size=10",
        1,
        &["vocabulary has 10", "--config_overrides vocab_size=1000"],
    ),
    (
        "block",
        |_| (),
        "TRAIN --block_size 65",
        2,
        &[
            "--block_size 65",
            "64 positions",
            "hint: set --block_size 64 or less",
        ],
    ),
    (
        "tiny block",
        |_| (),
        "TRAIN --block_size 1",
        2,
        &["--block_size must be at least 2"],
    ),
];

#[test]
fn configurations_that_cannot_be_used() {
    check(CONFIGURATIONS);
}

/// As run_clm does, where a tokenizer got tokens that the model does not have.
#[test]
fn a_vocabulary_smaller_than_the_tokenizers_gets_rows() {
    let place = Workplace::new();
    place.set("vocab_size", json!(900));
    let mut tensors = place.weights();
    let rows = (vec![900, 32], vec![0.01; 900 * 32]);
    tensors.insert("transformer.wte.weight".into(), rows);
    place.write_weights(&tensors);
    let run = place.run(EVAL);
    run.succeeded();
    let text = &run.stderr;
    assert!(
        text.contains("has 1000 tokens, the model's vocabulary 900"),
        "{text}"
    );
}

fn edit(place: &Workplace, edit: impl FnOnce(&mut Tensors)) {
    let mut tensors = place.weights();
    edit(&mut tensors);
    place.write_weights(&tensors);
}

fn cut(place: &Workplace, keep: usize) {
    let whole = fs::read(place.path("model/model.safetensors")).unwrap();
    place.write("model/model.safetensors", &whole[..keep]);
}

const FINETUNE: &str = "train clm --disable_tqdm --model_name_or_path model --train_file train.txt --output_dir out --block_size 32";
fn without(place: &Workplace) {
    fs::remove_file(place.path("model/model.safetensors")).unwrap();
}

/// What is wrong with weights, and what is said.
const DAMAGED_WEIGHTS: &[Case] = &[
    (
        "missing file",
        without,
        "EVAL",
        2,
        &["no model.safetensors in model"],
    ),
    (
        "only a pickle",
        |p| {
            without(p);
            p.write("model/pytorch_model.bin", "pickle");
        },
        "EVAL",
        1,
        &[
            "pytorch_model.bin",
            "not a file of torch.save",
            "save_pretrained",
        ],
    ),
    (
        "cut in the header",
        |p| cut(p, 100),
        "EVAL",
        1,
        &["model/model.safetensors is cut short", "the file has 100"],
    ),
    (
        "cut in the data",
        |p| cut(p, 100_000),
        "EVAL",
        1,
        &[
            "model/model.safetensors is cut short",
            "the file has 100000",
        ],
    ),
    (
        "empty",
        |p| cut(p, 0),
        "EVAL",
        1,
        &["model/model.safetensors is cut short"],
    ),
    (
        "not one",
        |p| p.write("model/model.safetensors", [255; 100]),
        "EVAL",
        1,
        &["model/model.safetensors is not a safetensors file"],
    ),
    (
        "a tensor missing",
        |p| edit(p, |t| drop(t.remove(TENSOR))),
        "EVAL",
        1,
        &["missing (1):", TENSOR],
    ),
    (
        "a tensor more",
        |p| {
            edit(p, |t| {
                drop(t.insert("transformer.h.0.q_norm".into(), (vec![1], vec![1.0])))
            })
        },
        FINETUNE,
        1,
        &["unexpected (1):", "transformer.h.0.q_norm"],
    ),
    (
        "a tensor turned",
        |p| edit(p, |t| t.get_mut(TENSOR).unwrap().0.reverse()),
        FINETUNE,
        1,
        &["mis-shaped (1):", TENSOR, "f32[32,96]", "f32[96,32]"],
    ),
    (
        "all tensors of a layer missing",
        |p| p.set("n_layer", json!(3)),
        "EVAL",
        1,
        &[
            "missing (12):",
            "transformer.h.2.attn.c_attn.weight",
            "transformer.h.2.mlp.c_proj.bias",
        ],
    ),
    (
        "a NaN",
        |p| edit(p, |t| t.get_mut(TENSOR).unwrap().1[7] = f32::NAN),
        "EVAL",
        1,
        &["model.safetensors", TENSOR, "not finite"],
    ),
    (
        "a head of its own in a tied model",
        |p| {
            edit(p, |t| {
                let mut head = t["transformer.wte.weight"].clone();
                head.1[0] += 1.0;
                t.insert("lm_head.weight".into(), head);
            })
        },
        "EVAL",
        1,
        &[
            "`lm_head.weight` is another tensor than `transformer.wte.weight`",
            "tie_word_embeddings",
        ],
    ),
];

#[test]
fn weights_that_cannot_be_used() {
    check(DAMAGED_WEIGHTS);
}

#[test]
fn settings_that_cannot_be_used() {
    check(&[
        (
            "zero batch",
            |_| (),
            "TRAIN --per_device_train_batch_size 0",
            2,
            &[
                "`per_device_train_batch_size`",
                "at least 1, or auto, found `0`",
            ],
        ),
        (
            "unknown flag",
            |_| (),
            "TRAIN --learning_rte 1",
            2,
            &[
                "unknown flag --learning_rte",
                "did you mean `--learning_rate`?",
            ],
        ),
        (
            "unknown key",
            |p| p.write("c.toml", "seed = 1\nmax_step = 3\n"),
            "TRAIN --config c.toml",
            2,
            &[
                "c.toml:2: unknown key `max_step`",
                "did you mean `max_steps`?",
            ],
        ),
        (
            "no epochs",
            |_| (),
            "TRAIN --max_steps 0 --num_train_epochs 0",
            2,
            &["there is no training to do"],
        ),
        (
            "cuda",
            |_| (),
            "TRAIN --device cuda",
            1,
            &[
                "opening the CUDA device",
                "no plugin for cuda was found",
                "XTRAIN_CUDA_PLUGIN",
            ],
        ),
        (
            "neuron",
            |_| (),
            "--device neuron EVAL",
            1,
            &[
                "opening the Neuron device",
                "no plugin for neuron was found",
                "NEURON_LIBRARY_PATH",
            ],
        ),
        (
            "output in use",
            |p| {
                fs::create_dir(p.path("out")).unwrap();
                p.write("out/thesis.tex", "mine");
            },
            "TRAIN",
            2,
            &["--output_dir: out is not empty", "--overwrite_output_dir"],
        ),
        (
            "output is a file",
            |p| p.write("out", "mine"),
            "TRAIN",
            2,
            &["--output_dir: out is a file"],
        ),
        (
            "output below a file",
            |p| p.write("f", "mine"),
            "TRAIN --output_dir f/out",
            1,
            &["--output_dir: cannot create f/out", "hint:"],
        ),
        (
            "output is the model",
            |_| (),
            "TRAIN --output_dir model",
            2,
            &["--output_dir: model is not empty"],
        ),
    ]);
}
