//! Everything that can go wrong, as a user meets it: the real program, its exit code (2 for what
//! was typed, 1 for the rest), one message that names the place and says what to do, and nothing
//! lost that was there before.

use crate::support::{Command, Run, copy_tokenizer, make_fifo, snapshot, xtrain};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use xtrain::checkpoint::{TensorRef, write_safetensors};
use xtrain_graphs::{DType, Shape};
use xtrain_models::HeadKind;

/// A directory with `model/` (a tiny GPT-2 and its tokenizer), `train.txt` and `valid.txt`, in
/// which the program runs.
struct Workplace(TempDir);

const OVERRIDES: &str = "n_layer=2,n_head=2,n_embd=32,n_positions=64";
const TENSOR: &str = "transformer.h.0.attn.c_attn.weight";

/// A tiny run that saves and logs each step.
const TRAIN: &str = "train clm --disable_tqdm --model_type gpt2 --tokenizer_name model --train_file train.txt --output_dir out \
                     --block_size 32 --per_device_train_batch_size 4 --logging_steps 1 --save_steps 1 --lr_scheduler_type constant";
const EVAL: &str = "eval clm --disable_tqdm --block_size 32 --validation_file valid.txt --model_name_or_path model";

impl Workplace {
    fn new() -> Workplace {
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

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    fn write_weights(&self, tensors: &Tensors) {
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

    fn weights(&self) -> Tensors {
        let weights = xtrain::checkpoint::Weights::open(&self.path("model")).unwrap();
        weights
            .iter()
            .map(|view| (view.name.to_string(), weights.read_f32(view.name).unwrap()))
            .collect()
    }

    /// Changes one key of the model's configuration.
    fn set(&self, key: &str, value: Value) {
        let mut config: Value =
            serde_json::from_slice(&fs::read(self.path("model/config.json")).unwrap()).unwrap();
        config[key] = value;
        self.write("model/config.json", config.to_string());
    }

    fn command(&self, line: &str) -> Command {
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

    fn run(&self, line: &str) -> Run {
        self.command(line).run()
    }

    fn snapshot(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        snapshot(self.0.path())
    }

    /// The names in a directory, sorted.
    fn names(&self, dir: &str) -> Vec<String> {
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
fn assert_fails(run: &Run, code: i32, words: &[&str]) {
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
fn check(cases: &[Case]) {
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

#[test]
fn configurations_that_cannot_be_used() {
    check(&[
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
    ]);
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

#[test]
fn weights_that_cannot_be_used() {
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
    check(&[
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
    ]);
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

#[test]
fn an_output_directory_that_cannot_be_written() {
    let place = Workplace::new();
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir(place.path("locked")).unwrap();
    fs::set_permissions(place.path("locked"), fs::Permissions::from_mode(0o555)).unwrap();
    for output in ["locked", "locked/out"] {
        let mut command = place.command(&format!("{TRAIN} --output_dir {output}"));
        assert_fails(
            &command.without_overriding_permissions().run(),
            1,
            &[output, "Permission denied"],
        );
    }
}

/// A cache that cannot be written costs time, not the run; where it is full, its own flag is named.
#[test]
fn a_cache_directory_that_cannot_be_written() {
    let place = Workplace::new();
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir(place.path("locked")).unwrap();
    fs::set_permissions(place.path("locked"), fs::Permissions::from_mode(0o555)).unwrap();
    for (cache, output) in [("locked", "a"), ("train.txt/cache", "b")] {
        let line = format!("{TRAIN} --max_steps 1 --cache_dir {cache} --output_dir {output}");
        let run = place.command(&line).without_overriding_permissions().run();
        run.succeeded();
        assert!(
            run.stderr.contains("warning: --cache_dir: ")
                && run.stderr.contains("the tokenized train text is not kept"),
            "{}",
            run.stderr
        );
        assert!(place.path(output).join("model.safetensors").exists());
    }
    let run = place.command(TRAIN).limit_files(2000).run();
    assert_fails(&run, 1, &["cannot write ", "or choose another --cache_dir"]);
    assert!(!run.stderr.contains("--output_dir"), "{}", run.stderr);
}

/// What a damaged disk left in the log is no reason not to resume.
#[test]
fn a_log_with_junk_in_it_is_taken_up() {
    let place = Workplace::new();
    place.run(&format!("{TRAIN} --max_steps 2")).succeeded();
    let log = place.path("out/log.jsonl");
    let mut junk = b"\xff\xfe\0 no record\n".to_vec();
    junk.extend(fs::read(&log).unwrap());
    fs::write(&log, junk).unwrap();
    place
        .run(&format!("{TRAIN} --max_steps 3 --resume_from_checkpoint"))
        .succeeded();
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.lines().all(|line| line.starts_with('{')), "{text}");
    assert!(text.lines().count() >= 3, "{text}");
}

/// Whatever stands where a file is expected: nothing waits for a pipe's writer, and nothing reads
/// what has no end.
#[test]
fn files_without_an_end_are_refused() {
    let fifo = |place: &Workplace, name: &str| {
        fs::create_dir_all(place.path(name).parent().unwrap()).unwrap();
        make_fifo(&place.path(name));
    };
    let cases: [(&str, &str, i32, &[&str]); 10] = [
        (
            "out/log.jsonl",
            "TRAIN --max_steps 1 --overwrite_output_dir",
            1,
            &["log.jsonl", "a pipe"],
        ),
        (
            "out/.xtrain.lock",
            "TRAIN --max_steps 1",
            1,
            &["xtrain.lock", "a pipe"],
        ),
        (
            "run.json",
            "TRAIN --max_steps 1 --config run.json",
            2,
            &["run.json", "a pipe"],
        ),
        (
            "prompts",
            "generate --model_name_or_path model --prompt_file prompts",
            1,
            &["prompts", "a pipe"],
        ),
        (
            "x",
            "generate --model_name_or_path model --prompt_file /dev/zero",
            1,
            &["/dev/zero", "a device"],
        ),
        ("run.log", "report run.log", 1, &["run.log", "a pipe"]),
        (
            "run.log",
            "report /dev/urandom",
            1,
            &["/dev/urandom", "a device"],
        ),
        (
            "trainer_state.json",
            "report trainer_state.json",
            1,
            &["trainer_state.json", "a pipe"],
        ),
        (
            "out/telemetry.jsonl",
            "top out --once",
            1,
            &["telemetry.jsonl"],
        ),
        (
            "x",
            "eval clm --model_name_or_path model --validation_file x",
            2,
            &["regular file"],
        ),
    ];
    for (name, line, code, words) in cases {
        let place = Workplace::new();
        fifo(&place, name);
        let line = line.replace("TRAIN", TRAIN);
        let run = place.command(&line).limit_time(60).run();
        println!("{name}: {}", run.stderr.trim_end());
        assert_fails(&run, code, words);
    }
    // A watcher's file is worth less than the run.
    let place = Workplace::new();
    fifo(&place, "out/telemetry.jsonl");
    let run = place
        .command(&format!("{TRAIN} --max_steps 1 --overwrite_output_dir"))
        .limit_time(120)
        .run();
    run.succeeded();
    assert!(
        run.stderr.contains("telemetry.jsonl is not written"),
        "{}",
        run.stderr
    );
}

/// Another program that writes into the tokenized text ends the run with a sentence, not by SIGBUS.
#[test]
fn tokenized_text_that_changes_under_a_run_ends_it() {
    let place = Workplace::new();
    let rows = || {
        let is_rows = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "rows");
        snapshot(place.0.path()).into_keys().find(is_rows)
    };
    let mut is_cut = false;
    let line = format!("{TRAIN} --max_steps 100000 --save_strategy no --cache_dir data");
    let run = place
        .command(&line.replace("--save_steps 1", ""))
        .limit_time(120)
        .run_watching(|line, _| {
            if !is_cut && line.contains("loss") {
                let file = fs::OpenOptions::new().write(true).open(rows().unwrap());
                file.unwrap().set_len(200).unwrap();
                is_cut = true;
            }
        });
    assert_fails(&run, 1, &[".rows was changed by another program"]);
}

/// A state dict alone, beside its configuration or in a run's state.
#[test]
fn state_dicts_that_are_no_model() {
    check(&[
        (
            "a state dict as a model",
            |p| p.write("x.pt", b"PK\x03\x04"),
            "eval clm --validation_file valid.txt --model_name_or_path x.pt",
            2,
            &[
                "x.pt is a file",
                "as pytorch_model.bin beside the model's config.json",
            ],
        ),
        (
            "weights for their directory",
            |_| {},
            "eval clm --validation_file valid.txt --model_name_or_path model/model.safetensors",
            2,
            &["is a file", "give the directory that holds it, model"],
        ),
        (
            "weights under another name",
            |p| {
                fs::rename(
                    p.path("model/model.safetensors"),
                    p.path("model/weights.safetensors"),
                )
                .unwrap()
            },
            "EVAL",
            2,
            &[
                "no model.safetensors",
                "if weights.safetensors has the model's weights, rename it to model.safetensors",
            ],
        ),
        (
            "a run's state alone",
            |p| {
                fs::create_dir(p.path("state")).unwrap();
                p.write("state/optimizer.pt", "x");
            },
            "eval clm --validation_file valid.txt --model_name_or_path state",
            2,
            &[
                "no config.json",
                "optimizer.pt is the state of a run, not a model's weights",
            ],
        ),
        (
            "an adapter",
            |p| {
                fs::remove_file(p.path("model/model.safetensors")).unwrap();
                p.write("model/adapter_model.safetensors", "x");
            },
            "EVAL",
            2,
            &[
                "adapter_model.safetensors is of an adapter",
                "adapter_config.json is missing",
            ],
        ),
        (
            "weights as data",
            |p| {
                fs::copy(p.path("model/model.safetensors"), p.path("train.txt")).unwrap();
            },
            "TRAIN",
            2,
            &[
                "train.txt is a safetensors file of weights, not data",
                "--model_name_or_path",
            ],
        ),
        (
            "a state dict as data",
            |p| p.write("valid.txt", b"PK\x03\x04 and so on"),
            "EVAL",
            2,
            &["valid.txt is a file of torch.save", "not data"],
        ),
    ]);
}

#[test]
fn a_missing_xla_library() {
    let place = Workplace::new();
    let with = |line: &str| {
        place
            .command(line)
            .env("XTRAIN_XLA_LIBRARY", "/nonexistent/lib.so")
            .run()
    };
    for line in [TRAIN, EVAL, "bench --model_type gpt2 --seq 64"] {
        assert_fails(
            &with(line),
            1,
            &[
                "libxtrain_xla.so was not found",
                "/nonexistent/lib.so",
                "bin/bootstrap",
                "XTRAIN_XLA_LIBRARY",
            ],
        );
    }
    for line in ["--help", "train clm --help", "--version"] {
        with(line).succeeded();
    }
    place.write("text.so", "no library");
    let run = place
        .command(EVAL)
        .env("XTRAIN_XLA_LIBRARY", place.path("text.so"))
        .run();
    assert_fails(&run, 1, &["text.so"]);
    assert!(!place.path("out").exists());
}

#[test]
fn resuming_from_what_cannot_be_resumed() {
    let place = Workplace::new();
    place.run(&format!("{TRAIN} --max_steps 2")).succeeded();
    let before = place.snapshot();
    let again = format!("{TRAIN} --max_steps 4 --resume_from_checkpoint");
    let other_text = fs::read_to_string(place.path("train.txt"))
        .unwrap()
        .to_uppercase();
    place.write("other.txt", other_text);
    let cases: &[(&str, i32, &[&str])] = &[
        (
            "--output_dir nothing",
            2,
            &["--resume_from_checkpoint: nothing holds no checkpoint"],
        ),
        (
            "nowhere",
            2,
            &["--resume_from_checkpoint: nowhere is not a directory"],
        ),
        (
            "model",
            2,
            &["model holds no training state", "--model_name_or_path"],
        ),
        (
            "out",
            2,
            &["out holds no training state", "out/checkpoint-2"],
        ),
        ("--seed 1", 2, &["--seed was 42"]),
        (
            "--train_file other.txt",
            2,
            &["out/checkpoint-2", "the training data"],
        ),
        ("--block_size 16", 2, &["the length of examples"]),
        (
            "--config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=64",
            1,
            &["unexpected (12):", "checkpoint-2/model.safetensors"],
        ),
        (
            "out/checkpoint-1 --output_dir model",
            2,
            &["--output_dir: model is not empty"],
        ),
    ];
    for (words, code, message) in cases {
        // What stands at the end of the line is the flag's value or another flag.
        let run = place.run(&format!("{again} {words}"));
        println!("{words}: {}", run.stderr);
        assert_fails(&run, *code, message);
    }
    for (name, damage) in [
        (
            "optimizer.safetensors",
            (|bytes| bytes[9000] ^= 1) as fn(&mut Vec<u8>),
        ),
        ("model.safetensors", |bytes| bytes.truncate(5000)),
        ("training_state.json", |bytes| bytes.truncate(300)),
        ("trainer_state.json", |bytes| bytes.clear()),
    ] {
        let path = place.path("out/checkpoint-2").join(name);
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        damage(&mut bad);
        fs::write(&path, bad).unwrap();
        let run = place.run(&again);
        println!("{name}: {}", run.stderr);
        assert_fails(
            &run,
            1,
            &[
                &format!("checkpoint-2/{name} is damaged"),
                "--resume_from_checkpoint PATH",
            ],
        );
        fs::write(&path, good).unwrap();
    }
    let after = place.snapshot();
    assert!(
        before
            .iter()
            .all(|(path, content)| after.get(path) == Some(content)),
        "a failed resume changes nothing"
    );

    // Resuming what is finished makes no steps and keeps the figures of the run that made them.
    let run = place.run(&format!("{TRAIN} --max_steps 2 --resume_from_checkpoint"));
    run.succeeded();
    assert!(
        run.stderr.contains("nothing is left to train"),
        "{}",
        run.stderr
    );
    let after = place.snapshot();
    for name in [
        "out/model.safetensors",
        "out/train_results.json",
        "out/all_results.json",
        "out/log.jsonl",
    ] {
        assert!(
            after[&place.path(name)] == before[&place.path(name)],
            "{name}"
        );
    }
    place.run(&again).succeeded();
}

#[test]
fn a_full_disk_while_saving_keeps_the_previous_checkpoint() {
    let place = Workplace::new();
    place.run(&format!("{TRAIN} --max_steps 2")).succeeded();
    let before = place.snapshot();
    let more = format!("{TRAIN} --max_steps 6 --resume_from_checkpoint");
    let weights = before[&place.path("out/model.safetensors")].len() as u64;
    // Room for the weights but not for the moments, and not even for the weights.
    let cases = [
        (weights + weights / 2, "true"),
        (weights + weights / 2, "false"),
        (weights / 2, "true"),
        (weights / 2, "false"),
    ];
    for (limit, in_background) in cases {
        let more = format!("{more} --async_save {in_background}");
        let run = place.command(&more).limit_files(limit).run();
        println!("{}", run.stderr);
        assert_fails(
            &run,
            1,
            &[
                "cannot write out/checkpoint-3/",
                "safetensors: File too large",
                "what was there before is untouched",
            ],
        );
        let mut after = place.snapshot();
        after.insert(
            place.path("out/log.jsonl"),
            before[&place.path("out/log.jsonl")].clone(),
        );
        assert!(after == before, "{:?}", after.keys());
    }
    // The finished model is the first thing saved.
    let over = format!("{TRAIN} --max_steps 2 --overwrite_output_dir --save_strategy no");
    assert_fails(
        &place.command(&over).limit_files(weights / 2).run(),
        1,
        &["cannot write out/model.safetensors"],
    );
    for name in [
        "model.safetensors",
        "checkpoint-1/model.safetensors",
        "checkpoint-2/optimizer.safetensors",
    ] {
        let path = place.path("out").join(name);
        assert!(fs::read(&path).unwrap() == before[&path], "{name}");
    }
    // What was overwritten is resumed only by its name.
    place.run(&format!("{more} out/checkpoint-2")).succeeded();
    assert!(place.path("out/checkpoint-6").is_dir());
}

#[test]
fn a_loss_that_becomes_nan_stops_the_run_and_keeps_the_last_good_checkpoint() {
    let place = Workplace::new();
    place.run(&format!("{TRAIN} --max_steps 2")).succeeded();
    let before = place.snapshot();
    // Step 3 leaves finite weights with which nothing can be computed, as step 4 shows. The limit
    // must not cost the good one.
    let line = format!(
        "{TRAIN} --max_steps 9 --resume_from_checkpoint --learning_rate 1e30 --save_total_limit 1"
    );
    let run = place.run(&line);
    println!("{}", run.stderr);
    assert_fails(
        &run,
        1,
        &[
            "the loss became NaN at step 4",
            "1e30",
            "out/checkpoint-3 was saved just before",
            "good checkpoint is out/checkpoint-2",
        ],
    );
    let records = crate::support::json_lines(&place.path("out/log.jsonl"));
    assert_eq!(records.last().unwrap()["step"], 3, "{records:?}");
    let kept = |place: &Workplace| {
        let after = place.snapshot();
        let good = before
            .keys()
            .filter(|path| path.starts_with(place.path("out/checkpoint-2")));
        assert!(
            good.clone().count() > 5
                && good.clone().all(|path| after.get(path) == before.get(path))
        );
        assert_eq!(
            after[&place.path("out/model.safetensors")],
            before[&place.path("out/model.safetensors")]
        );
    };
    kept(&place);

    // Step 3 leaves infinite weights: they are not saved at all. While training waits the save
    // reports that; in the background the loss of step 4 ends the run, and both are reported.
    fs::remove_dir_all(place.path("out/checkpoint-3")).unwrap();
    let line = line.replace("1e30", "1e39");
    let good = "the last good checkpoint is out/checkpoint-2";
    for (in_background, signs) in [
        ("false", &["after step 3", "not finite", good][..]),
        (
            "true",
            &[
                "the loss became NaN at step 4",
                "out/checkpoint-3 was not saved: ",
                "holds values that are not finite",
                good,
            ],
        ),
    ] {
        let run = place.run(&format!("{line} --async_save {in_background}"));
        println!("{}", run.stderr);
        assert_fails(&run, 1, signs);
        assert!(!place.path("out/checkpoint-3").exists());
        kept(&place);
    }
    let run = place.run(&format!(
        "{TRAIN} --overwrite_output_dir --max_steps 1 --save_strategy no --learning_rate 1e39"
    ));
    assert_fails(
        &run,
        1,
        &["after step 1", "not finite", "no checkpoint had been saved"],
    );
    kept(&place);

    // From the first step on.
    let run = place.run(&format!(
        "{TRAIN} --output_dir new --max_steps 4 --save_strategy no --learning_rate 1e30"
    ));
    assert_fails(
        &run,
        1,
        &[
            "the loss became NaN at step 2",
            "no checkpoint had been saved",
        ],
    );
    assert_eq!(place.names("new"), ["log.jsonl", "telemetry.jsonl"]);
}

#[test]
fn training_into_the_models_own_directory_loses_nothing_before_there_is_something_new() {
    let place = Workplace::new();
    let before = place.snapshot();
    let line = "train clm --disable_tqdm --model_name_or_path model --output_dir model --overwrite_output_dir --train_file train.txt \
                --block_size 32 --per_device_train_batch_size 4 --max_steps 2";
    assert_fails(
        &place.run(&format!("{line} --learning_rate 1e30")),
        1,
        &["NaN at step 2"],
    );
    let file = place.path("model/model.safetensors");
    assert!(fs::read(&file).unwrap() == before[&file]);
    place.run(line).succeeded();
    assert!(fs::read(&file).unwrap() != before[&file]);
    place.run(EVAL).succeeded();
}

#[test]
fn overwriting_an_earlier_run_does_not_leave_its_checkpoints_to_be_resumed() {
    let place = Workplace::new();
    place.run(&format!("{TRAIN} --max_steps 3")).succeeded();
    place
        .run(&format!(
            "{TRAIN} --max_steps 2 --overwrite_output_dir --seed 7 --save_total_limit 1"
        ))
        .succeeded();
    let names = place.names("out");
    let checkpoints: Vec<_> = names
        .iter()
        .filter(|name| name.starts_with("checkpoint-"))
        .collect();
    assert_eq!(
        checkpoints,
        ["checkpoint-2"],
        "the new run's, though the old run had a later one"
    );
}

#[test]
fn a_signal_during_the_last_evaluation_ends_it() {
    let place = Workplace::new();
    let text: String = (0..60_000)
        .map(|i| format!("Number {i} comes after number {} as always.\n", i - 1))
        .collect();
    place.write("valid.txt", text);
    let line = format!(
        "{TRAIN} --max_steps 1 --do_train --do_eval --validation_file valid.txt --per_device_eval_batch_size 1"
    );
    let start = Instant::now();
    let run = place
        .command(&line)
        .run_and_signal("saved the model", Duration::from_millis(200));
    println!("{:?}: {}", start.elapsed(), run.stderr);
    assert_eq!(run.code, Some(143), "{}", run.stderr);
    assert!(
        run.stderr
            .contains("xtrain eval clm --model_name_or_path out"),
        "{}",
        run.stderr
    );
    assert!(
        place.path("out/model.safetensors").exists()
            && !place.path("out/eval_results.json").exists()
    );
}

#[test]
fn a_killed_run_goes_on_as_if_nothing_had_happened() {
    let place = Workplace::new();
    place
        .run(&format!("{TRAIN} --max_steps 12 --output_dir whole"))
        .succeeded();
    for delay in [0, 11, 23] {
        let _ = fs::remove_dir_all(place.path("out"));
        let line = format!("{TRAIN} --max_steps 12");
        let run = place.command(&line).run_and_send(
            "'epoch': 0.0",
            Duration::from_millis(delay),
            libc::SIGKILL,
        );
        assert_ne!(run.code, Some(1), "{}", run.stderr);
        let saved = place
            .names("out")
            .iter()
            .any(|name| name.starts_with("checkpoint-"));
        let again = if saved {
            "--resume_from_checkpoint"
        } else {
            "--overwrite_output_dir"
        };
        place.run(&format!("{line} {again}")).succeeded();
        assert!(
            fs::read(place.path("out/model.safetensors")).unwrap()
                == fs::read(place.path("whole/model.safetensors")).unwrap()
        );
        assert!(
            !place
                .names("out")
                .iter()
                .any(|name| name.starts_with(".tmp")),
            "{:?}",
            place.names("out")
        );
    }
}
