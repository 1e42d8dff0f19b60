//! The kernels that an NVIDIA card's compiler makes of a training step, without a card: attention as cuDNN's calls,
//! TF32, epilogues, command buffers, what waits in the host's memory.

use crate::target::{Bench, DROPPING, SIZES, cuda_plugin, value};
use serde_json::Value;
use xtrain::cache::CacheSettings;
use xtrain::parallel::Mesh;
use xtrain::runtime::Library;
use xtrain::trainer::device::{self, DeviceSettings};
use xtrain::trainer::gpu::Gpu;
use xtrain::trainer::{cuda, matmul_peak};
use xtrain_graphs::Precision;
use xtrain_test_groups::Group;

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

/// The report on the training step's kernels.
fn kernels_of(bench: &Bench, words: &str) -> Value {
    let run = bench.run(&format!(
        "compile clm --device cuda --target h200 --kernels --json {words}"
    ));
    run.succeeded();
    let printed: Value = serde_json::from_str(run.stdout.lines().last().unwrap()).unwrap();
    let mut graphs = printed["graphs"].as_array().unwrap().iter();
    let train = graphs.find(|graph| graph["graph"].as_str().unwrap().starts_with("train "));
    train.unwrap().clone()
}

/// Two query heads share one of keys and values, which the calls read and give gradients of without copies.
#[test]
fn grouped_queries_move_no_copies_of_their_keys() {
    let Some(plugin) = cuda_plugin() else { return };
    let bench = Bench::new(plugin).in_windows();
    let report = kernels_of(&bench, "--bf16 --per_device_train_batch_size 4");
    // [4, 128, 2, 64] of queries, outputs and their gradients, [4, 128, 1, 64] of keys and values, f32
    // statistics of each query.
    let (q, kv, statistics) = (4 * 128 * 2 * 64 * 2, 4 * 128 * 64 * 2, 4 * 2 * 128 * 4);
    let forward = 2 * q + 2 * kv + statistics;
    let backward = 4 * q + 4 * kv + statistics;
    let attention = &report["classes"]["attention"];
    assert_eq!(attention["kernels"], 4, "{report}");
    let moved = attention["bytes"].as_f64().unwrap();
    assert_eq!(moved, f64::from(2 * (forward + backward)), "{report}");
}

/// A drop-out of attention weights is cuDNN's own only on request.
#[test]
fn attention_dropout_is_cudnns_on_request() {
    let Some(plugin) = cuda_plugin() else { return };
    let bench = Bench::new(plugin).with_sizes(DROPPING);
    let calls = |words: &str, row: &str| {
        let run = bench.run(&format!(
            "compile clm --device cuda --target h200 --per_device_train_batch_size 4 --bf16 {words}"
        ));
        run.succeeded();
        value(run.stdout.split("train for h200").nth(1).unwrap(), row).to_string()
    };
    // Scores of two layers, [4, 2, 128, 128] in f32.
    let price = |words: &str| calls(words, "written out for dropout");
    assert_eq!(price(""), "2, with 1.0 MiB of scores in float32");
    let calls = |words: &str| calls(words, "attention");
    assert_eq!(calls(""), "0 cuDNN calls");
    assert_eq!(calls("--attention_dropout_kernel cudnn"), "4 cuDNN calls");
}

/// Products of f32 are exact unless TF32 is asked for; the output says which, and the key of a stored
/// graph has it.
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
    let bench = bench.with_sizes(DROPPING);
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
    let bench = bench.with_sizes(SIZES);
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
