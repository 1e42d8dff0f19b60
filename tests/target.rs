//! `--target`: compiling for a card that is not there. What goes wrong without jax's plugin is
//! tested everywhere; the rest with the plugin that `XTRAIN_TEST_CUDA_PLUGIN` names
//! (`tests/cuda_wheels` fetches one).

use crate::neuron::stand_in;
use crate::support::{Command, Run, copy_tokenizer, data_text, small_config, xtrain};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use xtrain::cache::CacheSettings;
use xtrain::parallel::Mesh;
use xtrain::runtime::Library;
use xtrain::trainer::device::{self, DeviceSettings};
use xtrain::trainer::gpu::Gpu;
use xtrain::trainer::{cuda, matmul_peak};
use xtrain_graphs::Precision;
use xtrain_test_groups::Group;

/// jax's plugin, with NVIDIA's tools beside it; no card is needed. `None`, recorded as skipped,
/// where there is none.
pub fn cuda_plugin() -> Option<PathBuf> {
    let plugin = std::env::var_os("XTRAIN_TEST_CUDA_PLUGIN").map(PathBuf::from);
    if plugin.is_none() {
        Group::Cuda.skip("XTRAIN_TEST_CUDA_PLUGIN is not set to what tests/cuda_wheels DIR prints");
    }
    plugin
}

struct Bench {
    dir: tempfile::TempDir,
    plugin: PathBuf,
    model_type: &'static str,
    sizes: &'static str,
}

const SIZES: &str =
    "n_layer=2,n_head=2,n_embd=128,n_positions=128,embd_pdrop=0,attn_pdrop=0,resid_pdrop=0";
const DROPPING: &str =
    "n_layer=2,n_head=2,n_embd=128,n_positions=128,embd_pdrop=0,attn_pdrop=0.1,resid_pdrop=0";

const WINDOWS: &str = "num_hidden_layers=2,num_attention_heads=2,num_key_value_heads=1,hidden_size=128,\
                       intermediate_size=256,head_dim=64,max_position_embeddings=128,sliding_window=32";

impl Bench {
    fn new(plugin: PathBuf) -> Self {
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
    fn in_windows(self) -> Self {
        Bench {
            model_type: "mistral",
            sizes: WINDOWS,
            ..self
        }
    }

    fn command(&self, words: &str) -> Command {
        let mut command = xtrain();
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

    fn run(&self, words: &str) -> Run {
        self.command(words).run()
    }
}

/// Without NVIDIA's driver, absl in the plugin has something to say before its log has a level.
#[test]
fn the_plugin_opens_without_raw_lines() {
    let Some(plugin) = cuda_plugin() else { return };
    let run = xtrain()
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
        let mut command = xtrain();
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
    let mut doctor = xtrain();
    doctor
        .args(["doctor", "--device", "cuda"])
        .env("XTRAIN_CUDA_PLUGIN", &bench.plugin)
        .env("XTRAIN_XLA_LIBRARY", missing);
    let run = doctor
        .args(["--cache_dir".as_ref(), path("node").as_os_str()])
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
    let listed = xtrain()
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
        let mut command = xtrain();
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
        let mut command = xtrain();
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
fn value<'o>(text: &'o str, name: &str) -> &'o str {
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
        let mut command = xtrain();
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
        let run = xtrain()
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

/// Attention is cuDNN's where it can be, one call each way for each of two layers, and no copy is
/// made around them.
#[test]
fn attention_is_cudnns_in_16_bits_without_dropout() {
    let Some(plugin) = cuda_plugin() else { return };
    let bench = Bench::new(plugin);
    let calls = |words: &str| {
        let run = bench.run(&format!(
            "compile clm --device cuda --target h200 --per_device_train_batch_size 4 {words}"
        ));
        run.succeeded();
        let train = run
            .stdout
            .split("train for h200")
            .nth(1)
            .unwrap()
            .to_string();
        (
            value(&train, "attention").to_string(),
            value(&train, "copies, transposes").to_string(),
        )
    };
    assert_eq!(calls("--bf16"), ("4 cuDNN calls".into(), "0, 0".into()));
    assert_eq!(calls("--fp16").0, "4 cuDNN calls");
    assert_eq!(calls("").0, "0 cuDNN calls");
    assert_eq!(
        calls("--bf16 --attn_implementation eager").0,
        "0 cuDNN calls"
    );
    let bench = bench.in_windows();
    let run = bench.run("compile clm --device cuda --target h200 --bf16");
    run.succeeded();
    let train = run.stdout.split("train for h200").nth(1).unwrap();
    assert_eq!(value(train, "attention"), "4 cuDNN calls");
}

/// A drop-out of attention weights is cuDNN's own only on request.
#[test]
fn attention_dropout_is_cudnns_on_request() {
    let Some(plugin) = cuda_plugin() else { return };
    let bench = Bench {
        sizes: DROPPING,
        ..Bench::new(plugin)
    };
    let calls = |words: &str| {
        let run = bench.run(&format!(
            "compile clm --device cuda --target h200 --per_device_train_batch_size 4 --bf16 {words}"
        ));
        run.succeeded();
        value(
            run.stdout.split("train for h200").nth(1).unwrap(),
            "attention",
        )
        .to_string()
    };
    assert_eq!(calls(""), "0 cuDNN calls");
    assert_eq!(calls("--attention_dropout_kernel cudnn"), "4 cuDNN calls");
}

/// Products of f32 are exact unless TF32 is asked for; which of the two is told, and it is part of
/// what a stored graph is found by.
#[test]
fn tf32_is_asked_for() {
    let Some(plugin) = cuda_plugin() else { return };
    let bench = Bench::new(plugin);
    let products = |words: &str| {
        let run = bench.run(&format!(
            "compile clm --device cuda --target a100-40g --per_device_train_batch_size 4 {words}"
        ));
        run.succeeded();
        assert!(!run.stdout.contains("was stored already"), "{}", run.stdout);
        let train = run
            .stdout
            .split("train for a100-40g")
            .nth(1)
            .unwrap()
            .to_string();
        let numbers: Vec<usize> = value(&train, "of them f32")
            .split(|c: char| !c.is_ascii_digit())
            .flat_map(str::parse)
            .collect();
        // Of `0 in TF32, 27 exact` the digits of the name are a number, too.
        assert_eq!((numbers.len(), numbers[1]), (3, 32), "{train}");
        (
            numbers[0],
            numbers[2],
            value(&train, "products").to_string(),
        )
    };
    let (rounded, exact, told) = products("");
    assert!(
        rounded == 0 && exact > 20 && !told.contains("TF32"),
        "{rounded} {exact} {told}"
    );
    let (rounded, kept, told) = products("--tf32");
    assert!(
        rounded > 20 && kept == 0 && told.contains("TF32"),
        "{rounded} {kept} {told}"
    );
}

/// One launch of the host's for a whole step, which kernels take its products, and what they do
/// behind them.
#[test]
fn command_buffers_and_epilogues_are_told() {
    let Some(plugin) = cuda_plugin() else { return };
    let bench = Bench::new(plugin);
    let train = |flags: &str| {
        let run = bench.run(&format!(
            "compile clm --device cuda --target h200 --per_device_train_batch_size 4 {flags}"
        ));
        run.succeeded();
        run.stdout
            .split("train for h200")
            .nth(1)
            .unwrap()
            .to_string()
    };
    let cublas = train("--bf16 --xla_options xla_gpu_enable_triton_gemm=false");
    assert!(
        value(&cublas, "command buffers").starts_with("1 with "),
        "{cublas}"
    );
    assert!(
        value(&cublas, "matrix products").contains(" 0 Triton"),
        "{cublas}"
    );
    assert!(
        value(&train(""), "fused behind them").contains(" add"),
        "biases or residuals in f32"
    );
    let without = train("--bf16 --xla_options xla_gpu_enable_command_buffer=");
    assert!(
        value(&without, "command buffers").starts_with("0 with 0 launches"),
        "{without}"
    );
}

/// XLA finds what it measured on a card in the cache's folder: here a measurement that no card
/// made, for the product of the ceiling.
#[test]
fn measurements_of_kernels_are_found_in_the_cache() {
    let Some(plugin) = cuda_plugin() else { return };
    if !plugin
        .ancestors()
        .nth(3)
        .unwrap()
        .join("jax_cuda13_pjrt-0.11.2.dist-info")
        .is_dir()
    {
        Group::Cuda.skip("the names of XLA's measurements are those of jax-cuda13-pjrt 0.11.2");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut recorder = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
    let mut recording = recorder.begin_abstract(Default::default());
    matmul_peak::record_abstract(&mut recording, Precision::Bf16).unwrap();
    let graph = recording.cut(matmul_peak::GRAPH_NAME).unwrap().remove(0);
    let settings = DeviceSettings {
        plugin: Some(plugin),
        ..DeviceSettings::default()
    };
    let compiled = || {
        let cache = CacheSettings::kept_in(Some(dir.path().into()));
        let checked = cuda::describe(Gpu::H200, &settings, cache)
            .unwrap()
            .check(&graph)
            .unwrap();
        assert!(!checked.loaded, "it was stored with other measurements");
        Library::open().unwrap().hlo_text(&checked.module).unwrap()
    };
    let tiles = r#""output_tiles":[{"sizes":["64","64"]}]"#;
    assert!(!compiled().contains(tiles));
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
    // block_m, block_n, block_k, split_k, num_stages, num_warps, num_ctas of XLA's TritonGemmKey,
    // in its Config of the backend TRITON.
    let triton: Vec<u8> = [64, 64, 32, 1, 3, 4, 1]
        .iter()
        .zip(1u8..)
        .flat_map(|(&value, number)| [number << 3, value])
        .collect();
    let config = [&[1 << 3, 2], &field(2, &field(2, &triton))[..]].concat();
    let (card, kernel) = ("a4baa03864db7cfb", "8523ecd2bee61f19f58212ee3a2c7a27");
    let target = [field(1, card.as_bytes()), field(3, kernel.as_bytes())].concat();
    let key = [field(1, &target), field(2, &field(1, b"e17d7e5ebd5f70d0"))].concat();
    let triton_version = b"a77e7c793abc0d0c923a9afb275058e2fe57a198";
    let entry = [
        field(1, &key),
        field(2, &[field(1, &config), field(2, triton_version)].concat()),
    ]
    .concat();
    let folder = dir.path().join("autotune").join(card);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(format!("{kernel}.pb")), entry).unwrap();
    assert!(compiled().contains(tiles), "the measurement was not used");
}

/// With its libraries at hand, cuDNN itself builds a kernel for each of our calls, and refuses what
/// it has none for.
#[test]
fn cudnn_takes_the_attention_calls() {
    let Some(plugin) = cuda_plugin() else { return };
    let site = plugin.ancestors().nth(3).unwrap().to_path_buf();
    let folders =
        ["nvidia/cudnn/lib", "nvidia/cu13/lib", "no_driver"].map(|folder| site.join(folder));
    if let Some(missing) = folders.iter().find(|folder| !folder.is_dir()) {
        let missing = missing.display();
        Group::Cudnn.skip(format!(
            "there is no {missing}; tests/cuda_wheels DIR --cudnn fetches it"
        ));
        return;
    }
    let path = std::env::join_paths(&folders).unwrap();
    let bench = Bench::new(plugin);
    let ask = |bench: &Bench, words: &str| {
        let always =
            "xla_gpu_cudnn_deviceless_compilation_mode=CUDNN_DEVICELESS_COMPILATION_ALWAYS";
        let words = format!(
            "{words} --device cuda --per_device_train_batch_size 4 --compile_cache false --xla_options {always}"
        );
        bench.command(&words).env("LD_LIBRARY_PATH", &path).run()
    };
    let bench = Bench {
        sizes: DROPPING,
        ..bench
    };
    let dropping = [
        "--target h200 --bf16",
        "--target h200 --fp16",
        "--target a100-40g --bf16",
    ]
    .map(|words| {
        let run = ask(
            &bench,
            &format!("compile clm {words} --attention_dropout_kernel cudnn"),
        );
        run.succeeded();
        run.stdout.split("train for").nth(1).unwrap().to_string()
    });
    dropping
        .iter()
        .for_each(|train| assert_eq!(value(train, "attention"), "4 cuDNN calls"));
    let bench = Bench {
        sizes: SIZES,
        ..bench
    };
    for words in [
        "--target h200 --bf16",
        "--target h200 --fp16",
        "--target a100-40g --bf16",
    ] {
        let run = ask(&bench, &format!("compile clm {words}"));
        run.succeeded();
        let train = run.stdout.split("train for").nth(1).unwrap().to_string();
        assert_eq!(value(&train, "attention"), "4 cuDNN calls", "{words}");
    }
    let bench = bench.in_windows();
    for words in ["--target h200 --bf16", "--target a100-40g --fp16"] {
        let run = ask(&bench, &format!("compile clm {words}"));
        run.succeeded();
        let train = run.stdout.split("train for").nth(1).unwrap().to_string();
        assert_eq!(value(&train, "attention"), "4 cuDNN calls", "{words}");
    }
}

/// Layers' inputs go to the host and come back: fewer bytes on the card, and the same products.
#[test]
fn activations_wait_in_the_hosts_memory() {
    let Some(plugin) = cuda_plugin() else { return };
    let mut bench = Bench::new(plugin);
    bench.sizes =
        "n_layer=12,n_head=2,n_embd=256,n_positions=128,embd_pdrop=0,attn_pdrop=0,resid_pdrop=0";
    let train = |words: &str| {
        let run = bench.run(&format!("compile clm --device cuda --target h200 --bf16 --per_device_train_batch_size 256 {words}"));
        run.succeeded();
        run.stdout
            .split("train for h200")
            .nth(1)
            .unwrap()
            .to_string()
    };
    let mebibytes = |told: &str| -> f64 {
        let (number, unit) = value(told, "memory at the peak")
            .split_once(" of")
            .unwrap()
            .0
            .split_once(' ')
            .unwrap();
        number.parse::<f64>().unwrap() * if unit == "GiB" { 1024.0 } else { 1.0 }
    };
    let (kept, away) = (
        train("--gradient_checkpointing"),
        train("--activation_offloading"),
    );
    println!("{kept}\n{away}");
    assert_eq!(
        (
            value(&kept, "copies, transposes"),
            value(&away, "copies, transposes")
        ),
        ("0, 0", "24, 0")
    );
    // An input is 32 MiB; two layers' worth may be on the way at any time.
    let saved = mebibytes(&kept) - mebibytes(&away);
    assert!(saved > 32.0 * 8.0, "{saved} MiB saved\n{kept}\n{away}");
    assert_eq!(
        value(&kept, "matrix products"),
        value(&away, "matrix products")
    );
}
