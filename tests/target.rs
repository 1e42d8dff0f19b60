//! `--target`: compiling for a card that is not there. What goes wrong without jax's plugin is
//! tested everywhere; the rest with the plugin that `XTRAIN_TEST_CUDA_PLUGIN` names
//! (`tests/cuda_wheels` fetches one).

use crate::neuron::stand_in;
use crate::support::{Command, Run, as_users, copy_tokenizer, data_text, small_config};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use xtrain_test_groups::Group;

/// jax's plugin, with NVIDIA's tools beside it; no card is needed. `None`, recorded as skipped,
/// where there is none.
pub(crate) fn cuda_plugin() -> Option<PathBuf> {
    let plugin = std::env::var_os("XTRAIN_TEST_CUDA_PLUGIN").map(PathBuf::from);
    if plugin.is_none() {
        Group::Cuda.skip("XTRAIN_TEST_CUDA_PLUGIN is not set to what tests/cuda_wheels DIR prints");
    }
    plugin
}

pub(crate) struct Bench {
    dir: tempfile::TempDir,
    plugin: PathBuf,
    model_type: &'static str,
    pub(crate) sizes: &'static str,
}

pub(crate) const SIZES: &str =
    "n_layer=2,n_head=2,n_embd=128,n_positions=128,embd_pdrop=0,attn_pdrop=0,resid_pdrop=0";
pub(crate) const DROPPING: &str =
    "n_layer=2,n_head=2,n_embd=128,n_positions=128,embd_pdrop=0,attn_pdrop=0.1,resid_pdrop=0";

const WINDOWS: &str = "num_hidden_layers=2,num_attention_heads=2,num_key_value_heads=1,hidden_size=128,\
                       intermediate_size=256,head_dim=64,max_position_embeddings=128,sliding_window=32";

impl Bench {
    pub(crate) fn new(plugin: PathBuf) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lines: Vec<&str> = xtrain::commands::corpus::TEXT[..20_000].lines().collect();
        xtrain::data::tokenizer::train_byte_bpe(&lines, 500)
            .unwrap()
            .save(&dir.path().join("tokenizer"))
            .unwrap();
        Bench {
            dir,
            plugin,
            model_type: "gpt2",
            sizes: SIZES,
        }
    }

    /// A model with a window of 32 tokens.
    pub(crate) fn in_windows(self) -> Self {
        Bench {
            model_type: "mistral",
            sizes: WINDOWS,
            ..self
        }
    }

    pub(crate) fn with_sizes(self, sizes: &'static str) -> Self {
        Bench { sizes, ..self }
    }

    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = as_users();
        command.args(words.split_whitespace()).args([
            "--model_type",
            self.model_type,
            "--config_overrides",
            self.sizes,
        ]);
        command.args([
            "--tokenizer_name".as_ref(),
            self.dir.path().join("tokenizer").as_os_str(),
        ]);
        command.args([
            "--cache_dir".as_ref(),
            self.dir.path().join("cache").as_os_str(),
        ]);
        command
            .args(["--block_size", "128"])
            .env("XTRAIN_CUDA_PLUGIN", &self.plugin);
        command
    }

    pub(crate) fn run(&self, words: &str) -> Run {
        self.command(words).run()
    }
}

/// Without NVIDIA's driver, absl in the plugin has something to say before its log has a level.
#[test]
fn the_plugin_opens_without_raw_lines() {
    let Some(plugin) = cuda_plugin() else { return };
    let run = as_users()
        .args(["doctor", "--device", "cuda"])
        .env("XTRAIN_CUDA_PLUGIN", &plugin)
        .run();
    assert!(
        run.stdout.contains("ok    plugin version"),
        "{}",
        run.stdout
    );
    assert!(!run.stderr.contains("absl::"), "{}", run.stderr);
    assert!(!run.stderr.contains("00:00:"), "{}", run.stderr);
}

#[test]
fn a_target_belongs_to_cuda_and_is_known() {
    let bench = Bench::new("/nowhere/plugin.so".into());
    for (words, parts) in [
        (
            "compile clm --target h200",
            [
                "--target h200 is an NVIDIA card, but --device is cpu",
                "add --device cuda",
            ],
        ),
        (
            "fit clm --device neuron --target h100",
            ["--target h100 is an NVIDIA card", "--device is neuron"],
        ),
        (
            "compile clm --tf32 --bf16",
            [
                "--tf32 needs an NVIDIA card of Ampere or newer",
                "--device is cpu",
            ],
        ),
        (
            "compile clm --device neuron --tf32",
            [
                "--tf32 needs an NVIDIA card of Ampere or newer",
                "--neuron_auto_cast_type tf32",
            ],
        ),
        (
            "compile clm --attention_dropout_kernel cudnn",
            [
                "is for NVIDIA cards, but --device is cpu",
                "add --device cuda",
            ],
        ),
        (
            "compile clm --device cuda --attention_dropout_kernel cudnn --attn_implementation eager",
            ["contradict each other", "leave one"],
        ),
        (
            "compile clm --device cuda --target v100",
            ["one of h200, h100, a100-80g, a100-40g", "`v100`"],
        ),
    ] {
        let run = bench.run(words);
        assert_eq!(run.code, Some(2), "{words}: {}", run.stderr);
        parts.iter().for_each(|part| {
            assert!(
                run.stderr.contains(part),
                "`{part}` is missing in: {}",
                run.stderr
            )
        });
    }
}

/// In the order in which they are met: the plugin, the tools beside it, a plugin that cannot
/// compile for what is not there.
#[test]
fn what_is_missing_is_said() {
    let stand_in = stand_in();
    let bench = Bench::new(stand_in);
    let toolkit = bench.dir.path().join("toolkit");
    let refused = |plugin: &Path, parts: &[&str]| {
        let mut command = bench.command("compile clm --device cuda --target h200");
        let run = command
            .env("XTRAIN_CUDA_PLUGIN", plugin)
            .env("PATH", "")
            .env("CUDA_PATH", "")
            .env("CUDA_HOME", &toolkit)
            .run();
        assert_eq!(run.code, Some(1), "{}", run.stderr);
        parts.iter().for_each(|part| {
            assert!(
                run.stderr.contains(part),
                "`{part}` is missing in: {}",
                run.stderr
            )
        });
    };
    refused(
        Path::new("/nowhere/x.so"),
        &["no plugin for cuda was found", "/nowhere/x.so"],
    );
    refused(
        &bench.plugin,
        &[
            "ptxas and libdevice.10.bc",
            "toolkit: no bin/ptxas, no nvvm/libdevice",
            "nvidia-cuda-nvcc",
        ],
    );
    for file in ["bin/ptxas", "nvvm/libdevice/libdevice.10.bc"] {
        let file = toolkit.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    refused(
        &bench.plugin,
        &["describing devices to", "PJRT_TopologyDescription_Create"],
    );
}

/// What a host of a card has if it cannot lower: the program, the plugin (ours stands in), and what
/// another machine has lowered.
#[test]
fn graphs_that_were_lowered_elsewhere_need_no_xla_library() {
    let stand_in = stand_in();
    let bench = Bench::new(stand_in);
    let path = |name: &str| bench.dir.path().join(name);
    std::fs::write(path("text.txt"), &xtrain::commands::corpus::TEXT[..20_000]).unwrap();
    let train = |cache: &str, out: &str, words: &str| {
        let mut command =
            bench.command("train clm --device cuda --do_train --do_eval --per_device_train_batch_size 4 --max_steps 4");
        command
            .args([
                "--gradient_accumulation_steps",
                "2",
                "--save_steps",
                "2",
                "--disable_tqdm",
            ])
            .args(words.split_whitespace());
        command.args([
            "--train_file".as_ref(),
            path("text.txt").as_os_str(),
            "--validation_file".as_ref(),
            path("text.txt").as_os_str(),
        ]);
        command.args(["--output_dir".as_ref(), path(out).as_os_str()]);
        command.args(["--cache_dir".as_ref(), path(cache).as_os_str()]);
        command
    };
    let weights = |out: &str| std::fs::read(path(out).join("model.safetensors")).unwrap();
    let cache = |name: &str, words: &str| {
        let mut command = as_users();
        let run = command
            .arg("cache")
            .args(words.split_whitespace())
            .args(["--cache_dir".as_ref(), path(name).as_os_str()])
            .run();
        run.succeeded();
        run.stdout
    };
    let tar = path("modules.tar");
    train("home", "at_home", "").run().succeeded();
    let graphs = cache("home", "ls --json").matches("\"phase\"").count();
    let wrote = cache(
        "home",
        &format!("export --modules_only --file {}", tar.display()),
    );
    assert!(
        wrote.starts_with(&format!("wrote {graphs} lowered graphs")) && graphs >= 3,
        "{wrote}"
    );
    cache("node", &format!("import --file {}", tar.display()));
    assert_eq!(
        cache("node", "verify")
            .matches("lowered, to be compiled by its device")
            .count(),
        graphs
    );

    let missing = Path::new("/nowhere/libxtrain_xla.so");
    let run = train("node", "on_node", "")
        .env("XTRAIN_XLA_LIBRARY", missing)
        .run();
    run.succeeded();
    let (compiled, again) = (
        format!("graphs used {graphs}, cache hits 0, compiled {graphs}"),
        "again",
    );
    assert!(
        run.stderr.contains(&compiled) && !run.stderr.contains(again),
        "{}",
        run.stderr
    );
    assert!(
        weights("on_node") == weights("at_home"),
        "the same graphs, so the same weights"
    );
    // What the node has compiled it loads, whether or not it could lower.
    for library in [Some(missing), None] {
        let mut command = train(
            "node",
            "loaded",
            "--overwrite_output_dir --fail_on_recompile",
        );
        if let Some(path) = library {
            command.env("XTRAIN_XLA_LIBRARY", path);
        }
        let run = command.run();
        run.succeeded();
        assert!(
            run.stderr
                .contains(&format!("cache hits {graphs}, compiled 0")),
            "{}",
            run.stderr
        );
    }
    // Another graph.
    let run = train("node", "other", "--bf16")
        .env("XTRAIN_XLA_LIBRARY", missing)
        .run();
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    for part in [
        "neither compiled nor lowered for cuda 8.0",
        "/nowhere/libxtrain_xla.so",
        "--modules_only",
        "cache import",
    ] {
        assert!(
            run.stderr.contains(part),
            "`{part}` is missing in: {}",
            run.stderr
        );
    }
    assert_doctor_cannot_lower(&bench.plugin, missing, &path("node"));
}

/// `xtrain doctor` of a host that cannot lower: it says so, and that the cache has nothing for its own graph.
fn assert_doctor_cannot_lower(plugin: &Path, missing: &Path, cache: &Path) {
    let mut doctor = as_users();
    doctor
        .args(["doctor", "--device", "cuda"])
        .env("XTRAIN_CUDA_PLUGIN", plugin)
        .env("XTRAIN_XLA_LIBRARY", missing);
    let run = doctor
        .args(["--cache_dir".as_ref(), cache.as_os_str()])
        .run();
    assert!(
        run.stdout
            .contains("not here: what a run needs has to be in the cache"),
        "{}",
        run.stdout
    );
    assert!(
        run.stdout
            .contains("graph `doctor` is in the cache neither compiled nor lowered"),
        "{}",
        run.stdout
    );
}

/// The same with what a compile check has lowered; our plugin stands in for a card that has compute
/// capability 8.0 and no cuDNN.
#[test]
fn a_compile_check_lowers_all_that_a_run_needs() {
    let Some(plugin) = cuda_plugin() else { return };
    let stand_in = stand_in();
    let bench = Bench::new(plugin);
    let path = |name: &str| bench.dir.path().join(name);
    let check = "compile clm --device cuda --target a100-80g --attn_implementation eager --per_device_train_batch_size 4";
    bench
        .run(&format!("{check} --weight_decay 0.01"))
        .succeeded();
    let listed = as_users()
        .args(["cache", "ls", "--cache_dir"])
        .arg(path("cache"))
        .run();
    assert_eq!(
        listed.stdout.matches("any (lowered only)").count(),
        2,
        "{}",
        listed.stdout
    );
    for (cache, words) in [
        ("cache", &["export", "--modules_only"][..]),
        ("node", &["import"]),
    ] {
        let mut command = as_users();
        command
            .arg("cache")
            .args(words)
            .arg("--file")
            .arg(path("modules.tar"))
            .arg("--cache_dir")
            .arg(path(cache));
        command.run().succeeded();
    }
    let on_node = |words: &str| {
        let mut command = as_users();
        command
            .args(words.split_whitespace())
            .args(["--device", "cuda", "--cache_dir"])
            .arg(path("node"));
        let run = command
            .env("XTRAIN_CUDA_PLUGIN", &stand_in)
            .env("XTRAIN_XLA_LIBRARY", "/nowhere/libxtrain_xla.so")
            .run();
        run.succeeded();
        run.stdout
    };
    // A bench is a training run with a decay of 0.01, here of a model with the tokenizer's
    // vocabulary.
    let vocabulary = std::fs::read_to_string(path("tokenizer/tokenizer.json")).unwrap();
    let vocabulary: serde_json::Value = serde_json::from_str(&vocabulary).unwrap();
    let words = vocabulary["model"]["vocab"].as_object().unwrap().len();
    let told = on_node(&format!(
        "bench --model_type gpt2 --config_overrides {SIZES},vocab_size={words} --batch 4 --seq 128 --steps 2 --warmup 0 --json"
    ));
    assert!(told.contains("\"compiled_graphs\":1"), "{told}");
}

/// The value in a line of `compile --target`.
pub(crate) fn value<'o>(text: &'o str, name: &str) -> &'o str {
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with(name));
    line.unwrap_or_else(|| panic!("no line `{name}` in: {text}"))
        .trim_start()[name.len()..]
        .trim()
}

#[test]
fn every_card_compiles_and_is_kept_apart() {
    let Some(plugin) = cuda_plugin() else { return };
    let bench = Bench::new(plugin);
    let mut ids = std::collections::BTreeSet::new();
    for card in ["h200", "h100", "a100-80g", "a100-40g"] {
        let words = format!(
            "compile clm --device cuda --target {card} --per_device_train_batch_size 4 --bf16"
        );
        let run = bench.run(&words);
        run.succeeded();
        for line in run
            .stdout
            .lines()
            .filter(|line| line.contains(&format!(" for {card} ")))
        {
            assert!(line.contains("compiled in"), "{line}");
            ids.insert(line.split_whitespace().nth(3).unwrap().to_string());
        }
        assert!(
            run.stdout.contains(&format!("train for {card}")),
            "{}",
            run.stdout
        );
        assert!(
            run.stderr.contains("compile check") && run.stderr.contains("no run loads them"),
            "{}",
            run.stderr
        );
        let again = bench.run(&words);
        again.succeeded();
        assert!(
            again.stdout.contains("was stored already") && !again.stdout.contains("compiled in"),
            "{}",
            again.stdout
        );
        for line in [
            "memory at the peak",
            "attention",
            "matrix products",
            "memory traffic",
            "estimated time",
        ] {
            assert_eq!(
                value(&run.stdout, line),
                value(&again.stdout, line),
                "{card}: {line}"
            );
        }
    }
    // One for each card.
    assert_eq!(ids.len(), 4, "{ids:?}");

    let cache = |words: &str| {
        let mut command = as_users();
        command
            .arg("cache")
            .args(words.split_whitespace())
            .arg("--cache_dir")
            .arg(bench.dir.path().join("cache"));
        let run = command.run();
        run.succeeded();
        run
    };
    let list = cache("ls");
    for card in ["h200", "a100-40g"] {
        assert!(
            list.stdout
                .contains(&format!("cuda {card} (compile check)")),
            "{}",
            list.stdout
        );
    }
    let id = ids.first().unwrap();
    let shown = cache(&format!("show {id}"));
    assert!(
        shown
            .stdout
            .contains("no device: compiled by description, not tuned"),
        "{}",
        shown.stdout
    );
    cache(&format!("show {id} --memory"));
}

/// Training and evaluation of every family compile for a card.
#[test]
fn every_family_compiles_for_a_card() {
    let Some(plugin) = cuda_plugin() else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("text.txt"),
        &data_text("play.txt")[..20_000],
    )
    .unwrap();
    for model_type in xtrain_models::MODEL_TYPES {
        let mut config = small_config(model_type);
        config.set("vocab_size", 1000);
        let (task, tokenizer) = match xtrain_models::is_encoder(model_type) {
            Some(true) => ("mlm --max_seq_length 16", "wordpiece"),
            _ => ("clm --block_size 16", "byte_bpe"),
        };
        let model = dir.path().join(model_type);
        copy_tokenizer(tokenizer, &model);
        let text = serde_json::to_string(config.values()).unwrap();
        std::fs::write(model.join("config.json"), text).unwrap();
        let run = as_users()
            .args(format!("compile {task} --device cuda --target h200 --bf16").split(' '))
            .args([
                "--per_device_train_batch_size",
                "4",
                "--train_file",
                "text.txt",
            ])
            .args(["--validation_file", "text.txt", "--eval_strategy", "epoch"])
            .args(["--config_name", model_type, "--tokenizer_name", model_type])
            .args(["--output_dir", "out", "--cache_dir", "cache"])
            .dir(dir.path())
            .env("XTRAIN_CUDA_PLUGIN", &plugin)
            .run();
        assert_eq!(run.code, Some(0), "{model_type}: {}", run.stderr);
        for graph in ["train for h200", "eval for h200"] {
            let has = run.stdout.contains(graph);
            assert!(has, "{model_type}: no {graph}: {}", run.stdout);
        }
    }
}
