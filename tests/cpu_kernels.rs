//! The CPU plugin's own matmul kernels as a user meets them: `--cpu_kernels`, what the cache keeps of
//! them and says of them, and curves with and without. The kernels' numbers are in
//! `xla_graphs/native/tests/numerics/kernels.rs`.

use crate::support::{Run, as_users, json_lines};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use xtrain::runtime::Library;
use xtrain_graphs::op::CpuKernel;
use xtrain_graphs::{DType, Target};

/// A model whose matmuls are large enough for kernels.
const MODEL: &str = "--model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=128,n_positions=64,attn_pdrop=0,embd_pdrop=0,resid_pdrop=0";

/// The CPU with the kernels that are the fastest here.
fn target() -> Target {
    let library = Library::open().unwrap();
    library.cpu_target(library.kernel_speeds()).unwrap()
}

const TRAIN: &str = "train clm --train_file train.txt --tokenizer_name tokenizer --block_size 64 --per_device_train_batch_size 4 \
    --max_steps 12 --logging_steps 1 --disable_tqdm --save_strategy no --do_train --overwrite_output_dir --output_dir out";

fn train(dir: &Path, more: &str) -> Run {
    let words = format!("{TRAIN} {MODEL} --cache_dir cache {more}");
    let run = as_users().dir(dir).args(words.split_whitespace()).run();
    run.succeeded();
    run
}

fn losses(dir: &Path) -> Vec<f64> {
    json_lines(&dir.join("out/log.jsonl"))
        .iter()
        .filter_map(|record| record["loss"].as_f64())
        .collect()
}

fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text: String = xtrain::commands::corpus::TEXT
        .chars()
        .take(20_000)
        .collect();
    std::fs::write(dir.path().join("train.txt"), &text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    xtrain::data::tokenizer::train_byte_bpe(&lines, 300)
        .unwrap()
        .save(&dir.path().join("tokenizer"))
        .unwrap();
    dir
}

/// A run with kernels learns as one without; a second process loads what the first compiled; the
/// cache tells the two apart and shows the calls, which evaluations and generations have too.
#[test]
fn kernels_learn_the_same_and_are_cached_apart_from_xlas_dots() {
    if target() == Target::CPU {
        eprintln!("this processor has none of the kernels");
        return;
    }
    let dir = place();
    let dir = dir.path();
    train(dir, "--cpu_kernels xla");
    let plain = losses(dir);
    let first = train(dir, "");
    let own = losses(dir);
    assert!(
        plain.len() >= 12 && plain.len() == own.len(),
        "{plain:?} {own:?}"
    );
    for (a, b) in plain.iter().zip(&own) {
        assert!(
            (a - b).abs() <= 1e-4 * a.abs(),
            "{plain:?}, by kernels {own:?}"
        );
    }
    assert!(!first.stderr.contains("compiled 0"), "{}", first.stderr);
    let again = train(dir, "");
    assert!(again.stderr.contains("compiled 0"), "{}", again.stderr);
    assert_eq!(losses(dir), own, "a second run, of stored executables");
    let evaluates = "eval clm --model_name_or_path out --validation_file train.txt --block_size 64 --disable_tqdm";
    let generates = "generate --model_name_or_path out --max_new_tokens 2 --prompt";
    let prompt: String = xtrain::commands::corpus::TEXT.chars().take(40).collect();
    for (line, more) in [(evaluates, None), (generates, Some(&prompt))] {
        let args = line.split_whitespace().chain(more.map(String::as_str));
        let run = as_users()
            .dir(dir)
            .args(args)
            .args(["--cache_dir", "cache"])
            .run();
        run.succeeded();
    }
    let listed = as_users()
        .dir(dir)
        .args(["cache", "ls", "--json", "--cache_dir", "cache"])
        .run();
    let entries: Vec<serde_json::Value> = serde_json::from_str(&listed.stdout).unwrap();
    let calls = |phase: &str, call: &str| -> Vec<usize> {
        let of_phase = entries.iter().filter(|entry| entry["phase"] == phase);
        of_phase
            .map(|entry| {
                let id = entry["id"].as_str().unwrap();
                let shown = as_users()
                    .dir(dir)
                    .args(["cache", "show", id, "--hlo", "--cache_dir", "cache"])
                    .run();
                shown.succeeded();
                shown.stdout.matches(call).count()
            })
            .collect()
    };
    let trained = calls("train", "\"xtrain.matmul\"");
    assert!(
        trained.contains(&0) && trained.iter().any(|&calls| calls > 0),
        "{trained:?}"
    );
    for (phase, call) in [
        ("eval", "\"xtrain.matmul\""),
        ("prefill", "\"xtrain.one_pass\""),
    ] {
        let calls = calls(phase, call);
        assert!(
            !calls.is_empty() && !calls.contains(&0),
            "{phase}: {calls:?}"
        );
    }
}

/// A compiled graph divides its work among as many threads as the client has: another number is
/// another entry of the cache, with the same losses.
#[test]
fn a_number_of_threads_is_a_compiled_graph_of_its_own() {
    let dir = place();
    let dir = dir.path();
    train(dir, "--cpu_threads 2");
    let two = losses(dir);
    let first = train(dir, "--cpu_threads 1");
    let one = losses(dir);
    assert!(!first.stderr.contains("compiled 0"), "{}", first.stderr);
    let again = train(dir, "--cpu_threads 1");
    assert!(again.stderr.contains("compiled 0"), "{}", again.stderr);
    assert_eq!(losses(dir), one);
    for (a, b) in one.iter().zip(&two) {
        assert!((a - b).abs() <= 1e-4 * a.abs(), "{one:?}, {two:?}");
    }
    let refused = as_users()
        .dir(dir)
        .args(["bench", "--cpu_threads", "0"])
        .run();
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("at least 1"), "{}", refused.stderr);
}

/// The kernels are measured once and stored: what is stored decides, not what another day would measure; a damaged
/// file is measured anew; `doctor`, the run's header and `cache explain` name them.
#[test]
fn the_measured_kernels_are_stored_and_decide() {
    let (dir, kernels) = (place(), Library::open().unwrap().kernels());
    let dir = dir.path();
    let f32: Vec<&str> = kernels
        .iter()
        .filter(|kernel| kernel.dtype() == DType::F32)
        .map(|kernel| kernel.name())
        .collect();
    let [first, .., last] = f32[..] else {
        eprintln!("this processor has no two kernels for f32");
        return;
    };
    let header = |run: &Run| -> String {
        let line = run
            .stderr
            .lines()
            .find(|line| line.starts_with("kernels   "));
        line.unwrap_or_default().to_string()
    };
    let run = train(dir, "");
    assert!(header(&run).contains("GFLOP/s a core"), "{}", run.stderr);
    let files: Vec<_> = std::fs::read_dir(dir.join("cache/graphs/kernels"))
        .unwrap()
        .collect();
    assert_eq!(files.len(), 1);
    let file = files[0].as_ref().unwrap().path();
    let stored = std::fs::read_to_string(&file).unwrap();
    let with = |fastest: &str| {
        let mut measured: serde_json::Value = serde_json::from_str(&stored).unwrap();
        for kernel in measured["kernels"].as_array_mut().unwrap() {
            kernel["gflops"] = if kernel["kernel"] == fastest {
                1e6
            } else {
                1.0
            }
            .into();
        }
        std::fs::write(&file, measured.to_string()).unwrap();
    };
    with(first);
    train(dir, "");
    with(last);
    let other = train(dir, "");
    assert!(header(&other).contains(last), "{}", other.stderr);
    let (_, rest) = other
        .stderr
        .split_once("`xtrain cache explain ")
        .expect(&other.stderr);
    let explained = as_users()
        .dir(dir)
        .args(["cache", "explain", &rest[..8], "--cache_dir", "cache"])
        .run();
    explained.succeeded();
    let named = explained
        .stdout
        .lines()
        .find(|line| line.contains("target: "));
    let named = named.expect(&explained.stdout);
    assert!(
        named.contains(first) && named.contains(last) && !named.contains("calls"),
        "{named}"
    );
    let again = train(dir, "");
    assert!(again.stderr.contains("compiled 0"), "{}", again.stderr);
    let doctor = as_users()
        .dir(dir)
        .args(["doctor", "--cache_dir", "cache"])
        .run();
    doctor.succeeded();
    let line = doctor
        .stdout
        .lines()
        .find(|line| line.contains("matmul kernels"));
    assert!(
        line.is_some_and(|line| line.contains(last)),
        "{}",
        doctor.stdout
    );
    std::fs::write(&file, "damaged").unwrap();
    train(dir, "");
    let measured: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(measured["kernels"].as_array().unwrap().len(), kernels.len());
}

/// As a processor without AMX, bf16 instructions or AVX-512 would, a step in bf16 learns what one with the fastest
/// kernels does.
#[test]
fn bf16_learns_the_same_by_every_set_of_kernels() {
    let dir = place();
    let dir = dir.path();
    train(dir, "--bf16");
    let fastest = losses(dir);
    for left_out in ["-amx,-avx512-bf16", "-amx,-avx512"] {
        let words = format!("{TRAIN} {MODEL} --bf16 --cache_dir cache");
        let run = as_users()
            .dir(dir)
            .env("XTRAIN_CPU_KERNELS", left_out)
            .args(words.split_whitespace())
            .run();
        run.succeeded();
        let found = losses(dir);
        assert!(!run.stderr.contains("compiled 0") && found.len() == fastest.len());
        for (a, b) in fastest.iter().zip(&found) {
            assert!(
                (a - b).abs() <= 2e-2 * a.abs(),
                "{fastest:?}, {left_out}: {found:?}"
            );
        }
    }
    let refused = as_users()
        .dir(dir)
        .env("XTRAIN_CPU_KERNELS", "-avx51")
        .args(format!("{TRAIN} {MODEL}").split_whitespace())
        .run();
    assert_ne!(refused.code, Some(0));
    assert!(
        refused.stderr.contains("-avx51 leaves out avx51"),
        "{}",
        refused.stderr
    );
}

/// `bench --profile` says where a step's time goes: the parts of the model that ran, the kernels
/// that ran them; `--dropout` is in the step that is measured, and in the call of attention.
#[test]
fn a_profile_names_the_parts_of_a_step() {
    let dir = tempfile::tempdir().unwrap();
    let bench = |more: &str| -> serde_json::Value {
        let words = "bench --model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=128,n_positions=64,vocab_size=512 --batch 4 \
                     --seq 64 --steps 2 --warmup 0 --json --cache_dir cache ";
        let run = as_users()
            .dir(dir.path())
            .args((words.to_string() + more).split_whitespace())
            .run();
        run.succeeded();
        serde_json::from_str(&run.stdout).unwrap()
    };
    let (plain, dropping) = (bench(""), bench("--dropout 0.1 --profile"));
    assert!(plain.get("profile").is_none());
    assert_ne!(plain["loss_first"], dropping["loss_first"]);
    let parts = dropping["profile"].as_array().unwrap();
    let time = |is: &dyn Fn(&str, &str) -> bool| -> f64 {
        let of = |part: &serde_json::Value| -> Option<f64> {
            let (scope, kind) = (part["scope"].as_str()?, part["kind"].as_str()?);
            is(scope, kind).then_some(part["ms"].as_f64()?)
        };
        parts.iter().filter_map(of).sum()
    };
    for scope in ["h.*.mlp", "h.*.attn", "backward", "optimizer", "lm_head"] {
        assert!(
            time(&|part, _| part.contains(scope)) > 0.0,
            "{scope}: {parts:?}"
        );
    }
    let attention = matches!(target(), Target::Cpu(kernels)
        if kernels.f32.and_then(CpuKernel::of_attention).is_some());
    let by_call = time(&|_, kind| kind == "xtrain.attention");
    assert_eq!(by_call > 0.0, attention, "{parts:?}");
    let eager = bench("--attn_implementation eager --profile");
    assert!(!eager["profile"].to_string().contains("xtrain.attention"));
}

/// The header of updates that have a loop of their own is what a training step calls:
/// `XTRAIN_UPDATE_SNAPSHOTS=1` writes it anew.
#[test]
fn common_updates_have_loops_of_their_own() {
    let dir = place();
    let dir = dir.path();
    train(dir, "--weight_decay 0.1");
    let listed = as_users()
        .dir(dir)
        .args(["cache", "ls", "--json", "--cache_dir", "cache"])
        .run();
    let entries: Vec<serde_json::Value> = serde_json::from_str(&listed.stdout).unwrap();
    let step = entries.iter().find(|entry| entry["phase"] == "train");
    let id = step.unwrap()["id"].as_str().unwrap();
    let shown = as_users()
        .dir(dir)
        .args(["cache", "show", id, "--hlo", "--cache_dir", "cache"])
        .run();
    shown.succeeded();
    let calls: BTreeSet<(usize, String)> = shown
        .stdout
        .lines()
        .filter(|line| line.contains("\"xtrain.one_pass\"") && line.contains("train/optimizer"))
        .map(known_pass)
        .collect();
    let names = ["SumOfSquares", "AdamW", "AdamWWithDecay"];
    assert_eq!(calls.len(), names.len(), "{calls:?}");
    let mut text = String::from(
        "// Passes that have a loop of their own, which one_pass_loops.h makes: what nearly every step calls. Constants may have any value.
//
// Written by the test `common_updates_have_loops_of_their_own` under XTRAIN_UPDATE_SNAPSHOTS=1, from a step's calls.

#ifndef XTRAIN_CPP_KERNELS_KNOWN_PASSES_H_
#define XTRAIN_CPP_KERNELS_KNOWN_PASSES_H_

#include \"one_pass.h\"

namespace xtrain::kernels {
namespace {

template <class... P>
struct Passes {};

// kScalars: which operands are scalars; all are f32. kResults: the values that are results, in f32; kSums: which of them are
// summed.
",
    );
    for (name, (_, body)) in names.iter().zip(&calls) {
        write!(text, "\nstruct {name} {{\n{body}}};\n").unwrap();
    }
    write!(
        text,
        "\nusing KnownPasses = Passes<{}>;\n\n}}  // namespace\n}}  // namespace xtrain::kernels\n\n#endif  // XTRAIN_CPP_KERNELS_KNOWN_PASSES_H_\n",
        names.join(", ")
    )
    .unwrap();
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("xla_graphs/native/cpp/kernels/known_passes.h");
    if std::env::var_os("XTRAIN_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

/// The number of steps of a call, and the body of its struct in C++.
fn known_pass(call: &str) -> (usize, String) {
    const KINDS: [&str; 14] = [
        "Constant", "Round", "Select", "Negate", "Abs", "Sign", "Sqrt", "Rsqrt", "Add", "Subtract",
        "Multiply", "Divide", "Max", "Min",
    ];
    let between = |begin: &str, end: &str| {
        let (_, rest) = call.split_once(begin).expect(begin);
        rest.split_once(end).expect(end).0
    };
    let numbers = |begin: &str| -> Vec<usize> {
        let numbers = between(begin, ">").split(", ");
        numbers.map(|number| number.parse().unwrap()).collect()
    };
    let operands = between("operand_layout_constraints={", "api_version")
        .split("f32[")
        .skip(1)
        .map(|operand| operand.starts_with(']').to_string());
    let steps = numbers("steps = array<i64: ");
    let results = numbers("results = array<i64: ");
    let mut body = format!(
        "  static constexpr bool kScalars[] = {{{}}};\n  static constexpr Step kSteps[] = {{\n",
        operands.collect::<Vec<String>>().join(", ")
    );
    for step in steps.chunks(4) {
        let kind = KINDS[step[0]];
        let read = match kind {
            "Constant" => 0,
            "Select" => 3,
            _ if step[0] < 8 => 1,
            _ => 2,
        };
        let reads: String = step[1..=read].iter().map(|v| format!(", {v}")).collect();
        writeln!(body, "      {{StepKind::k{kind}{reads}}},").unwrap();
    }
    // Each with where its array begins: at the first element.
    let (values, sums): (Vec<String>, Vec<String>) = results
        .chunks(3)
        .map(|result| (result[0].to_string(), (result[1] == 1).to_string()))
        .unzip();
    writeln!(
        body,
        "  }};\n  static constexpr int64_t kResults[] = {{{}}};\n  static constexpr bool kSums[] = {{{}}};",
        values.join(", "),
        sums.join(", ")
    )
    .unwrap();
    (steps.len() / 4, body)
}
