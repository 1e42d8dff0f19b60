//! What reads files and messages of others, fed with damaged ones: it may refuse them, and must
//! neither panic nor take long nor much memory. Seeded, so that input N of a seed is always the same.
//!
//! A short run of each target is a test; `bin/soak fuzz TARGET --minutes N` runs one for long. What
//! was found lies in `fuzz/corpus/TARGET` and is tried first, every time.

use crate::cache::{Store, archive};
use crate::data::Tokenizer;
use crate::data::formats::table::Table;
use crate::data::settings::TableSettings;
use crate::report::memory::cpu_time;
use crate::report::page::{self, Report};
use crate::report::runs;
use crate::report::top::Snapshot;
use crate::runtime::hlo::{self, live_buffers, stats};
use crate::{cache, checkpoint, config, distributed, runtime};
use prost::Message;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, panic};
use xtrain_models::{Config, HeadKind};

/// An input takes at most so much processor time, whatever else runs on the machine, and the whole
/// process so much memory.
const SECONDS: u64 = 5;
const MEMORY: u64 = 1 << 30;

struct Target {
    name: &'static str,
    /// What the file is called that the input is written to.
    file: &'static str,
    /// Good inputs.
    seeds: fn() -> Vec<Vec<u8>>,
    /// Pieces that such inputs are made of.
    words: &'static [&'static str],
    read: fn(&Path, &[u8]),
}

const JSON: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    "null",
    "true",
    "-1",
    "0",
    "1e308",
    "18446744073709551615",
    "\\u0000",
    "\\ud800",
    "[[[[[[[[",
    "9223372036854775807",
    "\"\"",
    "{\"a\":1}",
    "1e-320",
    "0.5",
];

const TARGETS: &[Target] = &[
    Target {
        name: "safetensors",
        file: "model.safetensors",
        seeds: safetensors,
        words: &[
            "F32",
            "BF16",
            "\"dtype\"",
            "\"shape\"",
            "\"data_offsets\"",
            "__metadata__",
            "[0,0]",
            "[4,2]",
            "-1",
            "18446744073709551615",
        ],
        read: |path, _| weights(path, "w"),
    },
    Target {
        name: "torch",
        file: "pytorch_model.bin",
        seeds: || {
            ["torch/zip.bin", "torch/old.bin", "torch/four.bin"]
                .map(of_tests)
                .into()
        },
        words: &[
            "PK\u{3}\u{4}",
            "PK\u{1}\u{2}",
            "data.pkl",
            "\u{80}\u{2}",
            "ctorch\nFloatStorage\n",
            "cos\nsystem\n",
            "(",
            "t",
            "R",
            "Q",
            "}",
            "\u{7f}\u{7f}\u{7f}\u{7f}",
        ],
        read: |path, _| weights(path, "a.weight"),
    },
    Target {
        name: "tokenizer",
        file: "tokenizer.json",
        seeds: || vec![small_tokenizer(), of_tests("bert-uncased/tokenizer.json")],
        words: JSON,
        read: |path, _| tokenizer(path),
    },
    Target {
        name: "wordpiece",
        file: "vocab.txt",
        seeds: || vec![of_tests("bert-uncased/vocab.txt")],
        words: &[
            "[UNK]",
            "[CLS]",
            "##",
            "\n",
            "\r\n",
            "\0",
            "\u{feff}",
            "\u{1f600}",
        ],
        read: |path, _| tokenizer(path.parent().expect("it is in a folder")),
    },
    Target {
        name: "sentencepiece",
        file: "spiece.model",
        seeds: || vec![of_tests("albert/spiece.model")],
        words: &[
            "[CLS]",
            "[SEP]",
            "[MASK]",
            "<unk>",
            "\u{2581}",
            "\n\u{7f}",
            "\u{18}\u{3}",
            "\0",
        ],
        read: |path, _| tokenizer(path.parent().expect("it is in a folder")),
    },
    Target {
        name: "csv",
        file: "rows.csv",
        seeds: || vec![b"text,label\n\"a \"\"b\"\"\",1\r\nc,2\r\"d\ne\",3\n".to_vec()],
        words: &[
            "\"", "\"\"", ",", "\n", "\r", "\r\n", "\\", "\u{feff}", "\0", "text", "label",
            ",,,,,,,,",
        ],
        read: table,
    },
    Target {
        name: "jsonl",
        file: "rows.jsonl",
        seeds: || {
            vec![
                b"{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\\u00e9\", \"label\": [1, 2]}\n"
                    .to_vec(),
                b"[{\"text\": \"a\"},\n {\"text\": null, \"label\": \"x\"}]".to_vec(),
            ]
        },
        words: JSON,
        read: table,
    },
    Target {
        name: "parquet",
        file: "rows.parquet",
        seeds: || {
            vec![
                of_tests("reviews/validation-00000-of-00001.parquet"),
                crate::data::formats::parquet_sample(),
            ]
        },
        words: &["PAR1", "\0\0\0\0", "\u{7f}", "text", "label"],
        read: table,
    },
    Target {
        name: "config",
        file: "config.json",
        seeds: configurations,
        words: JSON,
        read: |path, bytes| {
            let typed: Vec<OsString> = ["xtrain", "train", "clm", "--config"]
                .into_iter()
                .map(OsString::from)
                .chain([path.into()])
                .collect();
            let _ = config::from_args(typed);
            if let Ok(Value::Object(values)) = serde_json::from_slice(bytes) {
                let config = Config::new(values, "config.json");
                if let Ok(head) = HeadKind::of(&config) {
                    let _ = xtrain_models::build(config, head);
                }
            }
        },
    },
    Target {
        name: "cache",
        file: "entry.tar",
        seeds: || vec![cache::sample_entry()],
        words: JSON,
        // With right digests, so that damage gets as far as what the digests protect.
        read: |path, bytes| {
            let entry = cache::with_digests(bytes);
            let mut archive = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(entry.len() as u64);
            let name = format!("{}.graph", "0".repeat(32));
            archive
                .append_data(&mut header, name, &entry[..])
                .expect("memory takes it");
            fs::write(path, archive.into_inner().expect("memory takes it")).unwrap();
            import(path);
        },
    },
    Target {
        name: "archive",
        file: "entries.tar",
        seeds: || {
            let mut archive = tar::Builder::new(Vec::new());
            let entry = cache::sample_entry();
            for name in ["autotune/x.txt".into(), format!("{}.graph", "0".repeat(32))] {
                let mut header = tar::Header::new_gnu();
                header.set_size(entry.len() as u64);
                archive.append_data(&mut header, name, &entry[..]).unwrap();
            }
            vec![archive.into_inner().unwrap()]
        },
        words: &[
            "ustar",
            "../../",
            "/",
            "\0\0\0\0\0\0\0\0",
            "77777777777",
            ".graph",
            "autotune/",
        ],
        read: |path, _| import(path),
    },
    Target {
        name: "log",
        file: "run.log",
        seeds: || {
            let bar = "\r 50%|#####     | 10/20 [00:05<00:05,  2.0it/s]\r";
            let loss = "{'loss': '4.5', 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.5}\n";
            let end = "{'train_runtime': 12.5, 'train_steps_per_second': 1.6, 'epoch': 1}\n";
            vec![[bar, loss, bar, loss, end].concat().into_bytes()]
        },
        words: &[
            "{",
            "}",
            "'",
            "\"",
            ":",
            ",",
            "inf",
            "nan",
            "'loss'",
            "'eval_loss'",
            "\r",
            "\n",
            "1/0 [",
            " 9/9 [00:01<",
            "'epoch': 0",
            "1e308",
            "-1",
        ],
        read: |path, _| report(path),
    },
    Target {
        name: "telemetry",
        file: "telemetry.jsonl",
        seeds: || {
            let start = json!({"event": "start", "time": 1.5, "pid": 7, "host": "h", "device": "cpu", "step": 0, "total_steps": 9});
            let process = json!({"event": "process", "time": 1.6, "processes": 2, "instances": 1, "launched": 1.0, "cores": 2});
            let step = json!({"event": "step", "time": 2.0, "step": 3, "total_steps": 9, "epoch": 0.5, "loss": 2.5, "learning_rate": 1e-3,
                "tokens_per_second": 5.0, "step_seconds": 0.1, "trace_seconds": 0.0, "compile_seconds": 0.0, "execute_seconds": 0.1,
                "wait_seconds": 0.0, "model_tflops": 0.1, "devices": [{"kind": "cpu", "bytes_in_use": 5, "peak_bytes": 9, "limit_bytes": null}]});
            let account = json!({"event": "account", "time": 3.0, "started": 1.0, "wall_seconds": 2.0, "parts": {"rest": 2.0}});
            let end = json!({"event": "end", "time": 3.0, "step": 9});
            let lines = [start, process, step.clone(), step, account, end];
            vec![lines.map(|line| line.to_string()).join("\n").into_bytes()]
        },
        words: JSON,
        read: |path, _| {
            let dir = path.parent().expect("it is in a folder");
            report(dir);
            if let Ok(found) = Snapshot::read(dir) {
                let _ = (found.numbers(), found.rank_rows(), found.device_rows());
            }
        },
    },
    Target {
        name: "frames",
        file: "frames",
        seeds: distributed::sample_frames,
        words: JSON,
        read: |_, bytes| distributed::read_frames(bytes),
    },
    Target {
        name: "hlo",
        file: "module.pb",
        seeds: modules,
        words: &[
            "add",
            "parameter",
            "fusion",
            "while",
            "\u{8}\u{1}",
            "\0",
            "\u{7f}",
        ],
        read: |_, bytes| {
            let _ = hlo::read(bytes);
            let _ = stats::of(bytes);
            let _ = live_buffers::peak(bytes);
            let _ = hlo::with_required_aliases(bytes);
        },
    },
    Target {
        name: "pjrt",
        file: "program.pb",
        seeds: modules,
        words: &["\u{8}\u{1}", "\0", "\u{7f}", "hlo"],
        read: |_, bytes| {
            let _ = runtime::Signature::of_module(bytes);
        },
    },
];

fn of_tests(file: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::read(root.join("tests/data").join(file)).expect("the repository's own test data")
}

fn safetensors() -> Vec<Vec<u8>> {
    let header = json!({
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]},
        "b": {"dtype": "BF16", "shape": [3], "data_offsets": [32, 38]},
    });
    let header = header.to_string().into_bytes();
    vec![[&(header.len() as u64).to_le_bytes(), &header[..], &[7; 38]].concat()]
}

fn small_tokenizer() -> Vec<u8> {
    let special = json!({"id": 1, "content": "[CLS]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                         "special": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "NFKC"}]},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\w+|[^\\w\\s]+"}, "behavior": "Isolated", "invert": false},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": "a", "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "vocab": {"a": 0, "[CLS]": 1, "b": 2, "ab": 3, "t": 4, "h": 5, "th": 6},
            "merges": [["a", "b"], ["t", "h"]]},
    })
    .to_string()
    .into_bytes()
}

fn configurations() -> Vec<Vec<u8>> {
    let run = json!({"learning_rate": 0.001, "max_steps": 1, "block_size": 8, "bf16": false, "train_file": "a.txt"});
    let models = xtrain_models::MODEL_TYPES.iter();
    models
        .filter_map(|name| Some((name, xtrain_models::default_config(name).ok()?)))
        .map(|(name, config)| {
            let mut values = config.values().clone();
            values.insert("model_type".into(), (*name).into());
            for (key, value) in &mut values {
                // Small, so that most damage leaves a model that is quickly built.
                if value.as_u64().is_some_and(|size| size > 64) && !key.ends_with("_id") {
                    *value = 64.into();
                }
            }
            Value::Object(values).to_string().into_bytes()
        })
        .chain([run.to_string().into_bytes()])
        .collect()
}

/// `f(x) = (x, while(x))`, with a computation for each body.
fn modules() -> Vec<Vec<u8>> {
    let shape = || hlo::Shape {
        element_type: hlo::PrimitiveType::F32.into(),
        dimensions: vec![4, 8],
        ..Default::default()
    };
    let instruction = |id: i64, opcode: &str, operands: &[i64], called: &[i64]| hlo::Instruction {
        id,
        name: format!("{opcode}.{id}"),
        opcode: opcode.into(),
        shape: Some(shape()),
        operand_ids: operands.to_vec(),
        called_computation_ids: called.to_vec(),
        ..Default::default()
    };
    let computation = |id: i64, instructions: Vec<hlo::Instruction>| hlo::Computation {
        id,
        name: format!("computation.{id}"),
        root_id: instructions.last().map_or(0, |last| last.id),
        instructions,
        ..Default::default()
    };
    let module = hlo::Module {
        name: "f".into(),
        entry_computation_id: 3,
        computations: vec![
            computation(
                1,
                vec![
                    instruction(1, "parameter", &[], &[]),
                    instruction(2, "add", &[1, 1], &[]),
                ],
            ),
            computation(2, vec![instruction(1, "parameter", &[], &[])]),
            computation(
                3,
                vec![
                    instruction(1, "parameter", &[], &[]),
                    instruction(2, "fusion", &[1], &[1]),
                    instruction(3, "while", &[2], &[1, 2]),
                    instruction(4, "all-reduce", &[3], &[1]),
                    instruction(5, "dot", &[4, 1], &[]),
                ],
            ),
        ],
        host_program_shape: Some(hlo::ProgramShape {
            parameters: vec![shape()],
            result: Some(shape()),
            ..Default::default()
        }),
        ..Default::default()
    };
    vec![module.encode_to_vec()]
}

fn weights(path: &Path, name: &str) {
    if let Ok(weights) = checkpoint::weights::Weights::open(path) {
        for tensor in weights.iter().take(20) {
            let _ = format!("{:?}", tensor.name);
        }
        let _ = weights.read_f32(name);
    }
}

fn tokenizer(path: &Path) {
    if let Ok(tokenizer) = Tokenizer::load(path) {
        for text in ["", "The quick brown fox", "na\u{ef}ve \u{1f600}\n\t a"] {
            let ids = tokenizer.encode(text).unwrap_or_default();
            let _ = tokenizer.decode(&ids, true);
        }
    }
}

fn table(path: &Path, _: &[u8]) {
    let settings = TableSettings {
        text_column: None,
        quoting: None,
        features: Vec::new(),
        on_bad_row: Default::default(),
    };
    if let Ok(mut table) = Table::open(path, &settings, Arc::default()) {
        let columns = (0..table.columns().len().min(3)).collect();
        if table.choose(columns).is_ok() {
            table.take(10_000).for_each(drop);
        }
    }
}

fn report(path: &Path) {
    if let Ok(runs) = runs::read(&[path.into()]) {
        let report = Report::new(runs, 0, Some(1.0));
        let _ = (
            page::html(&report),
            page::markdown(&report),
            page::json(&report),
        );
    }
}

fn import(path: &Path) {
    let store = path.with_file_name("store");
    let _ = archive::import(&Store::new(&store), path);
    let _ = fs::remove_dir_all(store);
}

/// A damaged copy of one of the seeds.
fn mutated(rng: &mut ChaCha8Rng, seeds: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut pick = |below: usize| (rng.next_u64() % below.max(1) as u64) as usize;
    let mut bytes = seeds[pick(seeds.len())].clone();
    for _ in 0..[1, 1, 2, 4, 16][pick(5)] {
        let at = pick(bytes.len() + 1);
        let length = 1 << pick(8);
        let end = (at + pick(length)).min(bytes.len());
        match pick(10) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 | 3 if at < bytes.len() => bytes[at] ^= 1 << pick(8),
            4 if at < bytes.len() => {
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'"', b'-', b'9'][pick(8)]
            }
            5 => {
                let piece = bytes[at..end].to_vec();
                let to = pick(bytes.len() + 1);
                let pieces = piece.repeat([1, 1, 2, 50][pick(4)]);
                drop(bytes.splice(to..to, pieces));
            }
            6 => {
                let other = &seeds[pick(seeds.len())];
                let from = pick(other.len() + 1);
                let length = 1 << pick(10);
                let to = (from + pick(length)).min(other.len());
                drop(bytes.splice(at..end, other[from..to].iter().copied()));
            }
            7 => {
                // A number in one of the sizes that headers have.
                let number = [0, 1, 255, 1 << 16, 1 << 31, 1 << 32, 1 << 62, u64::MAX][pick(8)];
                let width = [1, 2, 4, 8][pick(4)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
            }
            8 => {
                let word = words[pick(words.len())].bytes();
                drop(bytes.splice(at..end, word));
            }
            _ => {
                // Another value for one of the numbers or words between punctuation.
                let is_word =
                    |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'.' || *byte == b'-';
                let start = bytes[at..].iter().position(is_word).map_or(at, |n| at + n);
                let length = bytes[start..]
                    .iter()
                    .take_while(|byte| is_word(byte))
                    .count();
                let word = words[pick(words.len())].bytes();
                drop(bytes.splice(start..start + length, word));
            }
        }
    }
    bytes
}

/// Feeds one input; what is wrong with how the target took it.
fn try_input(target: &Target, path: &Path, bytes: &[u8]) -> Option<String> {
    fs::write(path, bytes).expect("the temporary folder takes it");
    let began = cpu_time();
    let result = panic::catch_unwind(|| (target.read)(path, bytes));
    let seconds = (cpu_time() - began).as_secs();
    if let Err(payload) = result {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        return Some(format!("panics: {}", text.unwrap_or_default()));
    }
    (seconds >= SECONDS).then(|| format!("takes {seconds} s"))
}

/// The most memory that this process has had.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Tries the corpus, then inputs of a seed until `done`; how many were tried.
fn run(target: &Target, seed: u64, first: u64, done: impl Fn(u64) -> bool, keep: &Path) -> u64 {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join(target.file);
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target.name);
    let found: Vec<Vec<u8>> = fs::read_dir(corpus)
        .into_iter()
        .flatten()
        .map(|file| fs::read(file.unwrap().path()).unwrap())
        .collect();
    let mut seeds = (target.seeds)();
    for (index, bytes) in seeds.iter().chain(&found).enumerate() {
        let wrong = try_input(target, &path, bytes);
        assert!(wrong.is_none(), "{} corpus {index}: {wrong:?}", target.name);
    }
    seeds.extend(found);
    let before = peak_memory();
    let mut number = first;
    while !done(number) {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&number.to_le_bytes());
        let bytes = mutated(&mut ChaCha8Rng::from_seed(key), &seeds, target.words);
        let mut wrong = try_input(target, &path, &bytes);
        if number.is_multiple_of(32) && peak_memory() > before + MEMORY {
            wrong = wrong.or_else(|| Some(format!("has taken {} MiB", peak_memory() >> 20)));
        }
        if let Some(wrong) = wrong {
            let kept = keep.join(format!("{}-{seed}-{number}", target.name));
            fs::write(&kept, &bytes).unwrap();
            panic!(
                "{} input {number} of seed {seed} {wrong}; it is {}",
                target.name,
                kept.display()
            );
        }
        number += 1;
    }
    number - first
}

#[test]
fn damaged_input_is_refused_by_every_reader() {
    for target in TARGETS {
        let began = Instant::now();
        let done = |number| number >= 300 || began.elapsed() > Duration::from_secs(3);
        run(target, 1, 0, done, &env::temp_dir());
    }
}

/// Of `bin/soak fuzz`, which sets what is read here.
#[test]
#[ignore = "slow: ten seconds of each target, or what bin/soak fuzz asks for"]
fn soak() {
    let number = |name: &str, default: u64| -> u64 {
        env::var(name).map_or(default, |value| value.parse().expect(name))
    };
    let wanted = env::var("XTRAIN_FUZZ_TARGET").unwrap_or_default();
    let keep = env::var_os("XTRAIN_FUZZ_KEEP").map_or_else(env::temp_dir, PathBuf::from);
    let (seed, seconds) = (
        number("XTRAIN_FUZZ_SEED", 0),
        number("XTRAIN_FUZZ_SECONDS", 10),
    );
    for target in TARGETS
        .iter()
        .filter(|target| ["", target.name].contains(&wanted.as_str()))
    {
        let began = Instant::now();
        let done = |_| began.elapsed() > Duration::from_secs(seconds);
        let tried = run(target, seed, number("XTRAIN_FUZZ_FIRST", 0), done, &keep);
        println!(
            "fuzz {}: {tried} inputs of seed {seed} in {seconds} s, {} MiB at most",
            target.name,
            peak_memory() >> 20
        );
    }
}
