//! Plans held against a device's memory: one mesh, and all meshes of N devices.

use crate::target::cuda_plugin;
use crate::tasks::Bench;
use serde_json::Value;

/// A model whose state and activations both matter: 4 layers of 256, 8 examples of 128 tokens on each device.
const MODEL: &str = "train clm --model_type gpt2 --config_overrides n_layer=4,n_head=4,n_embd=256,n_positions=128 --train_file articles.txt \
                     --tokenizer_name byte_bpe --block_size 128 --per_device_train_batch_size 8 --output_dir out --dry_run";

fn plan(bench: &Bench, flags: &str) -> Value {
    plan_of(bench, MODEL, flags)
}

/// The same, of a model most of whose gradients are larger than a bucket, so that each is exchanged by
/// itself, and with two layers.
const STEEP: &str = "train clm --model_type gpt2 --config_overrides n_layer=2,n_head=4,n_embd=640,n_positions=32 --train_file articles.txt \
                     --tokenizer_name byte_bpe --block_size 32 --per_device_train_batch_size 4 --gradient_bucket_mb 1 --output_dir out --dry_run";

fn plan_of(bench: &Bench, model: &str, flags: &str) -> Value {
    let run = bench.run(&format!("{model} --json {flags}"));
    run.succeeded();
    serde_json::from_str(&run.stdout).unwrap()
}

fn number(mesh: &Value, key: &str) -> f64 {
    mesh[key].as_u64().unwrap() as f64
}

/// Compiles each of the compared meshes: the estimate is near to what the compiler says, and so is whether it
/// fits.
fn compiler_agrees(bench: &Bench, model: &str, found: &Value, memory: u64, more: &str) {
    // Where nothing fits, all is compared with it.
    let more = match found["gradient_checkpointing"].as_str() {
        Some("full") if !more.contains("--gradient_checkpointing") => {
            &format!("{more} --gradient_checkpointing")
        }
        _ => more,
    };
    for mesh in found["meshes"].as_array().unwrap() {
        let flags = mesh["flags"].as_str().unwrap();
        let compiled = plan_of(bench, model, &format!("{flags} --memory {memory} {more}"));
        let (estimate, peak) = (
            number(mesh, "estimated_peak_bytes"),
            number(&compiled, "peak_bytes_of_run"),
        );
        let off = estimate / peak - 1.0;
        eprintln!("{flags} {more}: {estimate} {peak} {:+.1} %", 100.0 * off);
        // In the small one ZeRO-1 is estimated too low (docs/log/attacks.md, Left).
        let is_known = model == STEEP && flags.contains("--shard_optimizer_state");
        let most = if is_known { 0.08 } else { 0.05 };
        assert!(
            off.abs() < most,
            "{flags} {more}: {estimate} estimated, {peak} by the compiler"
        );
        assert_eq!(compiled["fits"], peak <= memory as f64, "{flags}");
        for same in ["examples_per_step", "exchanged_per_step"] {
            assert_eq!(compiled[same], mesh[same], "{flags} {more}");
        }
    }
}

#[test]
fn estimates_are_near_the_compilers() {
    estimates_agree("");
}

#[test]
#[ignore = "slow: compiles the meshes once more"]
fn estimates_are_near_the_compilers_with_xlas_loops() {
    estimates_agree("--cpu_kernels xla");
}

/// Where layers are large beside what is exchanged, also where gradients are exchanged one by one.
fn estimates_agree(more: &str) {
    let bench = Bench::new();
    let wanted = format!("--compare_meshes 2 --memory 100MB {more}");
    let found = plan_of(&bench, STEEP, &wanted);
    assert_eq!(found["meshes"].as_array().unwrap().len(), 5, "{found:#}");
    compiler_agrees(&bench, STEEP, &found, 100_000_000, more);
}

/// Every mesh is there once, with its state as the shares of the papers have it; what is estimated
/// is near to what the compiler says; what fits stands before what does not, and the first is
/// compiled.
#[test]
#[ignore = "slow: compiles many meshes"]
fn meshes_are_compared_as_the_compiler_would() {
    let bench = Bench::new();
    const MEMORY: u64 = 100 << 20;
    for more in [
        "",
        "--cpu_kernels xla",
        "--bf16 --gradient_checkpointing --gradient_bucket_mb 1",
        "--bf16 --gradient_checkpointing --gradient_bucket_mb 1 --cpu_kernels xla",
    ] {
        let found = plan(
            &bench,
            &format!("--compare_meshes 4 --memory {MEMORY} {more}"),
        );
        let meshes = found["meshes"].as_array().unwrap();
        // Two factors of two in four places are ten; of three with data parallelism the moments may be
        // in parts.
        assert_eq!(meshes.len(), 13, "{found:#}");
        let fits: Vec<bool> = meshes
            .iter()
            .map(|mesh| mesh["estimated_fits"].as_bool().unwrap())
            .collect();
        assert!(fits.is_sorted_by(|a, b| a >= b), "{found:#}");
        assert_eq!(found["chosen"], meshes[0]["flags"], "{found:#}");
        compiler_agrees(&bench, MODEL, &found, MEMORY, more);
        let state = |flags: &str| {
            number(
                meshes.iter().find(|mesh| mesh["flags"] == flags).unwrap(),
                "state_bytes",
            )
        };
        let whole = state("--data_parallel 4");
        for (flags, share) in [
            ("--data_parallel 4 --shard_optimizer_state", 0.5),
            ("--shard_parallel 4", 0.25),
        ] {
            assert!(
                (state(flags) / whole - share).abs() < 0.01,
                "{flags}: {} of {whole}",
                state(flags)
            );
        }
    }
}

/// Degrees that are given stay, those that cannot be are told, and where nothing fits there is
/// checkpointing.
#[test]
fn comparisons_say_what_they_leave_out() {
    let bench = Bench::new();
    let found = plan(
        &bench,
        "--compare_meshes 16 --memory 1GB --data_parallel 1 --shard_parallel 1",
    );
    let flags: Vec<&str> = found["meshes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mesh| mesh["flags"].as_str().unwrap())
        .collect();
    assert_eq!(
        flags,
        ["--tensor_parallel 4 --pipeline_parallel 4"],
        "{found:#}"
    );
    let reasons = found["left_out"].to_string();
    for part in ["layers of 4 heads", "the model has 4 layers"] {
        assert!(reasons.contains(part), "{reasons}");
    }
    let run = bench.run(&format!(
        "{MODEL} --compare_meshes 2 --memory 2MB --pipeline_parallel 1"
    ));
    run.succeeded();
    for part in [
        "activations are computed twice (full, since nothing fits without)",
        "no mesh is known to fit",
    ] {
        assert!(
            run.stdout.contains(part),
            "`{part}` is missing in:\n{}",
            run.stdout
        );
    }
    let run = bench.run(&format!("{MODEL} --shard_parallel 2 --memory 1MB"));
    assert!(
        run.stdout.contains("does not fit into 976.6 KiB a device"),
        "{}",
        run.stdout
    );
}

/// For a card that is only described, those that fit are compiled and judged by their kernels.
#[test]
fn meshes_of_described_cards_are_judged_by_their_kernels() {
    let Some(plugin) = cuda_plugin() else { return };
    let bench = Bench::new();
    let line = format!(
        "{STEEP} --device cuda --target h100 --bf16 --plugin {} --json --compare_meshes 2 --memory 10GB --pipeline_parallel 1",
        plugin.display()
    );
    let run = bench.run(&line);
    run.succeeded();
    let found: Value = serde_json::from_str(&run.stdout).unwrap();
    let compiled = found["compiled"].as_array().unwrap();
    assert_eq!(compiled.len(), 3, "{found:#}");
    let speed = |one: &Value| one["examples_per_second"].as_f64().unwrap();
    let best = compiled.iter().max_by(|a, b| speed(a).total_cmp(&speed(b)));
    assert_eq!(found["chosen"], best.unwrap()["flags"], "{found:#}");
    for one in compiled {
        let mut meshes = found["meshes"].as_array().unwrap().iter();
        let mesh = meshes.find(|mesh| mesh["flags"] == one["flags"]).unwrap();
        let examples = number(mesh, "examples_per_step");
        let seconds = one["honest_ms"].as_f64().unwrap() / 1e3;
        assert!(
            (speed(one) * seconds / examples - 1.0).abs() < 1e-9,
            "{one}"
        );
    }
}

#[test]
fn comparisons_that_make_no_sense_are_refused() {
    let bench = Bench::new();
    for (flags, part) in [
        ("--compare_meshes 4", "needs --memory"),
        (
            "--compare_meshes 4 --memory 1GB --dry_run false",
            "is for the plan of a training run",
        ),
        (
            "--compare_meshes 4 --memory 1GB --tensor_parallel 3",
            "has no mesh with --tensor_parallel 3",
        ),
        (
            "--compare_meshes 4 --memory 1GB --per_device_train_batch_size auto",
            "compares meshes at one batch size",
        ),
    ] {
        let run = bench.run(&format!("{MODEL} {flags}"));
        assert_eq!(run.code, Some(2), "{flags}: {}", run.stderr);
        assert!(run.stderr.contains(part), "{flags}: {}", run.stderr);
    }
}
