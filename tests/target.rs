//! `--target`: compiling for a card that is not there. What goes wrong without jax's plugin is tested everywhere; the rest with the
//! plugin that `XTRAIN_TEST_CUDA_PLUGIN` names (`tests/cuda_wheels` fetches one), and said to be skipped without.

use crate::support::{Command, Run, xtrain};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use xtrain::runtime::Library;

/// jax's plugin, with NVIDIA's tools beside it; no card is needed.
pub fn cuda_plugin() -> Option<PathBuf> {
    let plugin = std::env::var_os("XTRAIN_TEST_CUDA_PLUGIN").map(PathBuf::from);
    if plugin.is_none() {
        eprintln!("SKIPPED: XTRAIN_TEST_CUDA_PLUGIN is not set; run tests/cuda_wheels DIR and set it to what that prints");
    }
    plugin
}

struct Bench {
    dir: tempfile::TempDir,
    plugin: PathBuf,
}

const SIZES: &str = "n_layer=2,n_head=2,n_embd=128,n_positions=128,embd_pdrop=0,attn_pdrop=0,resid_pdrop=0";

impl Bench {
    fn new(plugin: PathBuf) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lines: Vec<&str> = xtrain::commands::corpus::TEXT[..20_000].lines().collect();
        xtrain::data::tokenizer::train_byte_bpe(&lines, 500).unwrap().save(&dir.path().join("tokenizer")).unwrap();
        Bench { dir, plugin }
    }

    fn command(&self, words: &str) -> Command {
        let mut command = xtrain();
        command.args(words.split_whitespace()).args(["--model_type", "gpt2", "--config_overrides", SIZES]);
        command.args(["--tokenizer_name".as_ref(), self.dir.path().join("tokenizer").as_os_str()]);
        command.args(["--cache_dir".as_ref(), self.dir.path().join("cache").as_os_str()]);
        command.args(["--block_size", "128"]).env("XTRAIN_CUDA_PLUGIN", &self.plugin);
        command
    }

    fn run(&self, words: &str) -> Run {
        self.command(words).run()
    }
}

/// Our CPU plugin's file, or nothing (said aloud) where it is not built.
fn stand_in() -> Option<PathBuf> {
    match Library::open() {
        Ok(library) => Some(library.path().canonicalize().unwrap()),
        Err(error) => {
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

#[test]
fn a_target_belongs_to_cuda_and_is_known() {
    let bench = Bench::new("/nowhere/plugin.so".into());
    for (words, parts) in [
        ("compile clm --target h200", ["--target h200 is an NVIDIA card, but --device is cpu", "add --device cuda"]),
        ("fit clm --device neuron --target h100", ["--target h100 is an NVIDIA card", "--device is neuron"]),
        ("compile clm --device cuda --target v100", ["one of h200, h100, a100-80g, a100-40g", "`v100`"]),
    ] {
        let run = bench.run(words);
        assert_eq!(run.code, Some(2), "{words}: {}", run.stderr);
        parts.iter().for_each(|part| assert!(run.stderr.contains(part), "`{part}` is missing in: {}", run.stderr));
    }
}

/// In the order in which they are met: the plugin, the tools beside it, a plugin that cannot compile for what is not there.
#[test]
fn what_is_missing_is_said() {
    let Some(stand_in) = stand_in() else { return };
    let bench = Bench::new(stand_in);
    let toolkit = bench.dir.path().join("toolkit");
    let refused = |plugin: &Path, parts: &[&str]| {
        let mut command = bench.command("compile clm --device cuda --target h200");
        let run = command.env("XTRAIN_CUDA_PLUGIN", plugin).env("PATH", "").env("CUDA_PATH", "").env("CUDA_HOME", &toolkit).run();
        assert_eq!(run.code, Some(1), "{}", run.stderr);
        parts.iter().for_each(|part| assert!(run.stderr.contains(part), "`{part}` is missing in: {}", run.stderr));
    };
    refused(Path::new("/nowhere/x.so"), &["no plugin for cuda was found", "/nowhere/x.so"]);
    refused(&bench.plugin, &["ptxas and libdevice.10.bc", "toolkit: no bin/ptxas, no nvvm/libdevice", "nvidia-cuda-nvcc"]);
    for file in ["bin/ptxas", "nvvm/libdevice/libdevice.10.bc"] {
        let file = toolkit.join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    refused(&bench.plugin, &["describing devices to", "PJRT_TopologyDescription_Create"]);
}

/// The value in a line of `compile --target`.
fn value<'o>(text: &'o str, name: &str) -> &'o str {
    let line = text.lines().find(|line| line.trim_start().starts_with(name));
    line.unwrap_or_else(|| panic!("no line `{name}` in: {text}")).trim_start()[name.len()..].trim()
}

#[test]
fn every_card_compiles_and_is_kept_apart() {
    let Some(plugin) = cuda_plugin() else { return };
    let bench = Bench::new(plugin);
    let mut ids = std::collections::BTreeSet::new();
    for card in ["h200", "h100", "a100-80g", "a100-40g"] {
        let words = format!("compile clm --device cuda --target {card} --per_device_train_batch_size 4 --bf16");
        let run = bench.run(&words);
        run.succeeded();
        for line in run.stdout.lines().filter(|line| line.contains(&format!(" for {card} "))) {
            assert!(line.contains("compiled in"), "{line}");
            ids.insert(line.split_whitespace().nth(3).unwrap().to_string());
        }
        assert!(run.stdout.contains(&format!("train for {card}")), "{}", run.stdout);
        assert!(run.stderr.contains("compile check") && run.stderr.contains("no run loads them"), "{}", run.stderr);
        let again = bench.run(&words);
        again.succeeded();
        assert!(again.stdout.contains("was stored already") && !again.stdout.contains("compiled in"), "{}", again.stdout);
        for line in ["memory at the peak", "attention", "matrix products", "memory traffic", "estimated time"] {
            assert_eq!(value(&run.stdout, line), value(&again.stdout, line), "{card}: {line}");
        }
    }
    // Ceiling and train, for four cards.
    assert_eq!(ids.len(), 8, "{ids:?}");

    let cache = |words: &str| {
        let mut command = xtrain();
        command.arg("cache").args(words.split_whitespace()).arg("--cache_dir").arg(bench.dir.path().join("cache"));
        let run = command.run();
        run.succeeded();
        run
    };
    let list = cache("ls");
    for card in ["h200", "a100-40g"] {
        assert!(list.stdout.contains(&format!("cuda {card} (compile check)")), "{}", list.stdout);
    }
    let id = ids.first().unwrap();
    let shown = cache(&format!("show {id}"));
    assert!(shown.stdout.contains("no device: compiled by description, not tuned"), "{}", shown.stdout);
    cache(&format!("show {id} --memory"));
}

/// Attention is cuDNN's where it can be, one call each way for each of two layers, and no copy is made around them.
#[test]
fn attention_is_cudnns_in_16_bits_without_dropout() {
    let Some(plugin) = cuda_plugin() else { return };
    let bench = Bench::new(plugin);
    let calls = |words: &str| {
        let run = bench.run(&format!("compile clm --device cuda --target h200 --per_device_train_batch_size 4 {words}"));
        run.succeeded();
        let train = run.stdout.split("train for h200").nth(1).unwrap().to_string();
        (value(&train, "attention").to_string(), value(&train, "copies, transposes").to_string())
    };
    assert_eq!(calls("--bf16"), ("4 cuDNN calls".into(), "0, 0".into()));
    assert_eq!(calls("--fp16").0, "4 cuDNN calls");
    assert_eq!(calls("").0, "0 cuDNN calls");
    assert_eq!(calls("--bf16 --attn_implementation eager").0, "0 cuDNN calls");
}

/// With its libraries at hand, cuDNN itself builds a kernel for each of our calls, and refuses what it has none for.
#[test]
fn cudnn_takes_the_attention_calls() {
    let Some(plugin) = cuda_plugin() else { return };
    let site = plugin.ancestors().nth(3).unwrap().to_path_buf();
    let folders = ["nvidia/cudnn/lib", "nvidia/cu13/lib", "no_driver"].map(|folder| site.join(folder));
    if let Some(missing) = folders.iter().find(|folder| !folder.is_dir()) {
        eprintln!("SKIPPED: there is no {}; run tests/cuda_wheels DIR --cudnn", missing.display());
        return;
    }
    let path = std::env::join_paths(&folders).unwrap();
    let bench = Bench::new(plugin);
    let ask = |words: &str| {
        let always = "xla_gpu_cudnn_deviceless_compilation_mode=CUDNN_DEVICELESS_COMPILATION_ALWAYS";
        let words = format!("{words} --device cuda --per_device_train_batch_size 4 --compile_cache false --xla_options {always}");
        bench.command(&words).env("LD_LIBRARY_PATH", &path).run()
    };
    for words in ["--target h200 --bf16", "--target h200 --fp16", "--target a100-40g --bf16"] {
        let run = ask(&format!("compile clm {words}"));
        run.succeeded();
        let train = run.stdout.split("train for").nth(1).unwrap().to_string();
        assert_eq!(value(&train, "attention"), "4 cuDNN calls", "{words}");
    }
}
