//! Training as a user runs it: the real binary, in a temporary folder, on real text.

use crate::support::{Run, data_dir, data_text, json_lines, xtrain};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder with a small text, a tokenizer and room for runs.
pub(crate) struct Bench {
    dir: TempDir,
    tokenizer: PathBuf,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text = data_text("play.txt");
        fs::write(dir.path().join("train.txt"), &text[..60_000]).unwrap();
        fs::write(dir.path().join("valid.txt"), &text[60_000..72_000]).unwrap();
        Bench {
            dir,
            tokenizer: data_dir().join("gpt2"),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A run of a tiny GPT-2; `extra` are further words of the command line.
    pub(crate) fn train(&self, output: &str, extra: &[&str]) -> Run {
        self.command(output, extra).run()
    }

    pub(crate) fn command(&self, output: &str, extra: &[&str]) -> crate::support::Command {
        let mut command = xtrain();
        command
            .args([
                "train",
                "clm",
                "--model_type",
                "gpt2",
                "--disable_tqdm",
                "--do_train",
            ])
            .args([
                "--config_overrides",
                "n_layer=2,n_head=2,n_embd=32,n_positions=64",
            ])
            .args([
                "--block_size",
                "32",
                "--per_device_train_batch_size",
                "4",
                "--learning_rate",
                "1e-3",
            ])
            .arg("--tokenizer_name")
            .arg(&self.tokenizer)
            .arg("--train_file")
            .arg(self.path("train.txt"))
            .arg("--output_dir")
            .arg(self.path(output))
            .arg("--cache_dir")
            .arg(self.path("cache"))
            .args(extra);
        command
    }
}

pub(crate) fn bytes(path: PathBuf) -> Vec<u8> {
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Log records without what differs between any two runs.
pub(crate) fn records(dir: &Path) -> Vec<serde_json::Value> {
    let mut records = json_lines(&dir.join("log.jsonl"));
    for record in &mut records {
        let map = record.as_object_mut().unwrap();
        map.retain(|key, _| !key.contains("runtime") && !key.contains("per_second"));
    }
    records
}

/// What a short run does not log, an evaluation alone and changed sizes are said, each in one line.
#[test]
fn what_nobody_would_notice_is_noted() {
    let bench = Bench::new();
    let silent =
        "note: the loss is logged at the end alone: --logging_steps is 500, the run has 3;";
    let run = bench.train("out", &["--max_steps", "3", "--save_strategy", "no"]);
    run.succeeded();
    assert_eq!(run.stderr.matches(silent).count(), 1, "{}", run.stderr);
    for chosen in [
        ["--logging_steps", "500"],
        ["--logging_steps", "2"],
        ["--logging_first_step", "true"],
    ] {
        let words = [
            "--max_steps",
            "3",
            "--overwrite_output_dir",
            "--save_strategy",
            "no",
        ];
        let run = bench.train("out", &[&words[..], &chosen].concat());
        run.succeeded();
        assert!(!run.stderr.contains("logged at the end"), "{}", run.stderr);
    }
    let plan = bench.train("plan", &["--dry_run"]);
    plan.succeeded();
    let expected = "default configuration with n_layer=2,n_head=2,n_embd=32,n_positions=64\n";
    assert!(plan.stdout.contains(expected), "{}", plan.stdout);
    // transformers' way to evaluate a model.
    let weights = std::fs::read(bench.path("out/model.safetensors")).unwrap();
    let line = format!(
        "train clm --model_name_or_path {0} --validation_file {1} --block_size 32 --do_eval --output_dir {0}",
        bench.path("out").display(),
        bench.path("valid.txt").display()
    );
    let mut command = xtrain();
    let run = command.args(line.split_whitespace()).run();
    run.succeeded();
    let note = "note: --do_eval without --do_train only evaluates; add --do_train to train, too\n";
    assert!(run.stderr.starts_with(note), "{}", run.stderr);
    assert!(run.stdout.contains("'eval_loss'"), "{}", run.stdout);
    assert_eq!(
        std::fs::read(bench.path("out/model.safetensors")).unwrap(),
        weights
    );
}

#[test]
fn a_run_learns_saves_and_can_be_evaluated() {
    let bench = Bench::new();
    let validation = bench.path("valid.txt");
    let run = bench.train(
        "out",
        &[
            "--do_eval",
            "--validation_file",
            validation.to_str().unwrap(),
            "--max_steps",
            "40",
            "--logging_steps",
            "10",
            "--eval_strategy",
            "steps",
            "--eval_steps",
            "20",
            "--save_steps",
            "20",
        ],
    );
    run.succeeded();
    let out = bench.path("out");
    for name in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "generation_config.json",
        "trainer_state.json",
        "all_results.json",
        "train_results.json",
        "eval_results.json",
        "checkpoint-20/optimizer.safetensors",
        "checkpoint-40/training_state.json",
    ] {
        assert!(out.join(name).is_file(), "{name} is missing");
    }
    let records = records(&out);
    let losses: Vec<f64> = records.iter().filter_map(|r| r["loss"].as_f64()).collect();
    assert_eq!(losses.len(), 4, "{records:?}");
    assert!(
        losses.windows(2).all(|w| w[1] < w[0]),
        "the loss falls: {losses:?}"
    );
    let evals: Vec<f64> = records
        .iter()
        .filter_map(|r| r["eval_loss"].as_f64())
        .collect();
    // At the cadence; the last one is also that of the whole training.
    assert!(evals.len() == 2 && evals[1] < evals[0], "{evals:?}");
    assert!(run.stdout.contains("{'loss': "), "{}", run.stdout);
    assert!(run.stdout.contains("{'train_runtime': "), "{}", run.stdout);

    // The saved directory alone gives the same evaluation.
    let eval = xtrain()
        .args([
            "eval",
            "clm",
            "--json",
            "--disable_tqdm",
            "--block_size",
            "32",
            "--model_name_or_path",
        ])
        .arg(&out)
        .arg("--validation_file")
        .arg(&validation)
        .arg("--cache_dir")
        .arg(bench.path("cache"))
        .run();
    eval.succeeded();
    let result: serde_json::Value = serde_json::from_str(eval.stdout.trim()).unwrap();
    let difference = (result["eval_loss"].as_f64().unwrap() - evals[1]).abs();
    assert!(
        difference < 1e-4,
        "{result} after a run that ended with {}",
        evals[1]
    );

    let text = xtrain()
        .args([
            "generate",
            "--prompt",
            "First Citizen:",
            "--max_new_tokens",
            "8",
            "--seed",
            "1",
            "--model_name_or_path",
        ])
        .arg(&out)
        .run();
    text.succeeded();
    assert!(text.stdout.starts_with("First Citizen:"), "{}", text.stdout);
}

/// Losses of each step in f32, bf16 and fp16. Bars: bf16 has 8 significant bits, fp16 11, and
/// errors of products average out.
#[test]
fn curves_in_16_bit_stay_near_f32() {
    let bench = Bench::new();
    let losses = |name: &str, extra: &[&str]| -> Vec<f64> {
        let words = [
            "--max_steps",
            "40",
            "--logging_steps",
            "1",
            "--save_strategy",
            "no",
        ];
        let run = bench.train(name, &[&words[..], extra].concat());
        run.succeeded();
        // The second version of the graph is explained by the precision.
        let telemetry = fs::read_to_string(bench.path(name).join("telemetry.jsonl")).unwrap();
        for (flag, reason) in [
            ("--bf16", "precision bf16 was f32"),
            ("bfloat16", "torch_dtype bfloat16 was float32"),
            ("--no_master_weights", "master_weights false was not set"),
        ] {
            let is_reason = telemetry.contains(reason);
            assert_eq!(extra.last() == Some(&flag), is_reason, "{telemetry}");
        }
        let lines = run
            .stderr
            .matches(" (new configuration); `xtrain cache explain ");
        assert_eq!(
            lines.count(),
            usize::from(!extra.is_empty()),
            "{}",
            run.stderr
        );
        let records = records(&bench.path(name));
        let scaled = records
            .iter()
            .filter(|r| r.get("loss").is_some())
            .all(|r| r.get("loss_scale").is_some());
        assert_eq!(scaled, extra.contains(&"--fp16"), "{records:?}");
        records.iter().filter_map(|r| r["loss"].as_f64()).collect()
    };
    let wide = losses("f32", &[]);
    // Weights and moments of 8 bits lose small steps.
    let held = ["--torch_dtype", "bfloat16", "--no_master_weights"];
    for (name, extra, bar) in [
        ("bf16", &["--bf16"][..], 0.02),
        ("fp16", &["--fp16"], 0.02),
        ("bf16 with copies", &held[..2], 0.02),
        ("bf16 without copies", &held, 0.1),
    ] {
        let low = losses(name, extra);
        assert_eq!(low.len(), wide.len());
        let worst = wide
            .iter()
            .zip(&low)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f64::max);
        println!(
            "{name}: losses of 40 steps within {worst:.4} of f32, from {:.3} to {:.3}",
            low[0], low[39]
        );
        assert!(
            worst < bar && low[39] < low[0] - 0.3,
            "{name}: {worst}, {low:?}"
        );
        assert_ne!(low, wide);
    }
}

/// Element types of the finished model and of a checkpoint's model and optimizer, which together
/// are what `fit` counts; a mesh gives the losses of one device.
#[test]
fn weights_in_bf16_are_as_small_as_they_say_on_every_mesh() {
    let bench = Bench::new();
    let types = |file: String| -> Vec<String> {
        let bytes = bytes(bench.path(&file));
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let of = |info: &safetensors::tensor::TensorInfo| format!("{:?}", info.dtype);
        let mut types: Vec<String> = metadata.tensors().values().map(|info| of(info)).collect();
        types.sort();
        types.dedup();
        types
    };
    let run = |name: &str, mesh: &str, extra: &[&str]| -> Vec<f64> {
        let words: Vec<&str> =
            "--torch_dtype bfloat16 --max_steps 6 --logging_steps 1 --save_steps 6"
                .split(' ')
                .chain(mesh.split_whitespace())
                .chain(extra.iter().copied())
                .collect();
        bench.train(name, &words).succeeded();
        let records = records(&bench.path(name));
        records.iter().filter_map(|r| r["loss"].as_f64()).collect()
    };
    for (name, extra, state) in [
        ("copies", &[][..], "F32"),
        ("none", &["--no_master_weights"], "BF16"),
    ] {
        let rows = [
            "--per_device_train_batch_size 4",
            "--per_device_train_batch_size 2",
        ];
        let twice = format!("{} --gradient_accumulation_steps 2", rows[1]);
        let [one, in_two] = [
            run(name, rows[0], extra),
            run(&format!("{name} twice"), &twice, extra),
        ];
        for (file, expected) in [
            ("model", "BF16"),
            ("checkpoint-6/model", "BF16"),
            ("checkpoint-6/optimizer", state),
        ] {
            assert_eq!(types(format!("{name}/{file}.safetensors")), [expected]);
        }
        for (alone, rows, mesh) in [
            (&one, rows[1], "--data_parallel 2 --shard_optimizer_state"),
            (&one, rows[1], "--shard_parallel 2"),
            (&one, rows[0], "--tensor_parallel 2"),
            (&in_two, &twice, "--pipeline_parallel 2"),
        ] {
            let many = run(&format!("{name} {mesh}"), &format!("{rows} {mesh}"), extra);
            let worst = alone.iter().zip(&many).map(|(a, b)| (a - b).abs());
            let worst = worst.fold(0.0, f64::max);
            assert!(
                worst < 0.01 && many.len() == 6,
                "{mesh}: {alone:?} {many:?}"
            );
        }
    }
}

/// Weights so large that gradients overflow fp16 at the first scale: steps are skipped, counted and
/// told of, and then training goes on.
#[test]
fn steps_that_overflow_fp16_are_skipped_and_logged() {
    let bench = Bench::new();
    let overrides = "n_layer=2,n_head=2,n_embd=32,n_positions=64,initializer_range=4";
    let words = [
        "--fp16",
        "--max_steps",
        "24",
        "--logging_steps",
        "1",
        "--save_strategy",
        "no",
        "--config_overrides",
        overrides,
    ];
    // Few labels, so that each has a large share of the scale.
    let small = ["--per_device_train_batch_size", "1", "--block_size", "8"];
    let run = bench.train("out", &[&words[..], &small].concat());
    run.succeeded();
    let records: Vec<_> = records(&bench.path("out"))
        .into_iter()
        .filter(|r| r.get("learning_rate").is_some())
        .collect();
    let of = |key: &str| -> Vec<f64> {
        records
            .iter()
            .map(|r| r[key].as_f64().unwrap_or(f64::NAN))
            .collect()
    };
    let (scales, skipped) = (of("loss_scale"), of("skipped_steps"));
    assert_eq!((scales[0], scales.len()), (65536.0, 24));
    let last = *skipped.last().unwrap();
    assert!((1.0..24.0).contains(&last), "{skipped:?}");
    // Each skipped step halves the scale of the next one; nothing else changes it.
    for (i, pair) in scales.windows(2).enumerate() {
        let was_skipped = skipped[i] > if i == 0 { 0.0 } else { skipped[i - 1] };
        assert_eq!(
            pair[1],
            if was_skipped { pair[0] / 2.0 } else { pair[0] },
            "step {i}: {scales:?} {skipped:?}"
        );
    }
    let note = format!("{last} of 24 optimizer steps were skipped");
    assert!(run.stderr.contains(&note), "{}", run.stderr);
}

#[test]
fn accumulation_gives_the_same_run() {
    let bench = Bench::new();
    let mut finals = Vec::new();
    for (batch, accumulation) in [("8", "1"), ("4", "2"), ("2", "4"), ("1", "8")] {
        let output = format!("acc-{batch}");
        let run = bench.train(
            &output,
            &[
                "--config_overrides",
                "n_layer=2,n_head=2,n_embd=32,n_positions=64,embd_pdrop=0,attn_pdrop=0,resid_pdrop=0",
                "--per_device_train_batch_size",
                batch,
                "--gradient_accumulation_steps",
                accumulation,
                "--max_steps",
                "6",
                "--logging_steps",
                "1",
                "--save_strategy",
                "no",
            ],
        );
        run.succeeded();
        let losses: Vec<f64> = records(&bench.path(&output))
            .iter()
            .filter_map(|r| r["loss"].as_f64())
            .collect();
        finals.push(losses);
    }
    for other in &finals[1..] {
        for (a, b) in finals[0].iter().zip(other) {
            assert!((a - b).abs() < 2e-5, "{finals:?}");
        }
    }
}

#[test]
fn dry_run_prints_the_plan_and_writes_nothing() {
    let bench = Bench::new();
    let run = bench.train(
        "never",
        &[
            "--dry_run",
            "--gradient_accumulation_steps",
            "2",
            "--max_steps",
            "5",
        ],
    );
    run.succeeded();
    for word in [
        "parameters",
        "accumulate",
        "update",
        "peak per device",
        "optimizer steps",
    ] {
        assert!(run.stdout.contains(word), "{word}: {}", run.stdout);
    }
    assert!(!bench.path("never").exists());
}

/// What notebooks scrape from a log: `../shared/data/notebook-metrics.json` has the same searches, each
/// a quoted key, a colon, a blank, then digits and dots.
#[test]
fn each_log_record_is_one_line_in_the_form_that_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let text = data_text("play.txt");
    std::fs::write(dir.join("train.txt"), &text[..20_000]).unwrap();
    let train = |more: &str| {
        let run = xtrain()
            .dir(dir)
            .args(
                "train clm --model_type gpt2 --disable_tqdm --block_size 16 --train_file train.txt --output_dir out \
                 --config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=32 --max_steps 4 --logging_steps 1 \
                 --overwrite_output_dir --report none --do_train --do_eval --tokenizer_name"
                    .split_whitespace(),
            )
            .arg(data_dir().join("gpt2"))
            .args(more.split_whitespace())
            .run();
        run.succeeded();
        run
    };
    let scraped = |text: &str, key: &str| -> Vec<f64> {
        let key = format!("'{key}': ");
        let found = text.match_indices(&key).map(|(at, _)| {
            let rest = &text[at + key.len()..];
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
            rest[..end.unwrap_or(rest.len())].parse().unwrap()
        });
        found.collect()
    };
    let trainer = train("");
    let records = json_lines(&dir.join("out/log.jsonl"));
    for (key, count) in [
        ("train_runtime", 1),
        ("train_samples_per_second", 1),
        ("train_steps_per_second", 1),
        ("train_loss", 1),
        ("epoch", 6),
        ("loss", 4),
        ("learning_rate", 4),
    ] {
        let found = scraped(&trainer.stdout, key);
        assert_eq!(found.len(), count, "{key}: {}", trainer.stdout);
        let logged = records
            .iter()
            .filter_map(|record| record.get(key)?.as_f64());
        for (found, logged) in found.iter().zip(logged) {
            // A learning rate in exponent form is cut at the e.
            assert!(
                key == "learning_rate" || (found - logged).abs() < 0.01,
                "{key}: {found} {logged}"
            );
        }
    }
    // No record comes twice, in another form.
    assert!(!trainer.stderr.contains("ms/step") && !trainer.stdout.contains("ms/step"));
    // What is trained on what stands above.
    for line in [
        "training  clm gpt2, ",
        "batch     8 per device = 8 examples a step",
        "steps     4 in ",
    ] {
        assert!(
            trainer.stderr.lines().any(|l| l.starts_with(line)),
            "{line}: {}",
            trainer.stderr
        );
    }
    let json = train("--log_format json");
    let lines = json.stdout.lines().filter(|line| line.starts_with('{'));
    let lines: Vec<serde_json::Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    // The last evaluation stands in the log, too.
    assert_eq!(lines, json_lines(&dir.join("out/log.jsonl")));
    let line = train("--log_format line");
    let starts: Vec<&str> = line
        .stdout
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(
        starts,
        ["step", "step", "step", "step", "done", "saved", "eval"],
        "{}",
        line.stdout
    );
}

#[test]
fn colors_are_for_terminals_or_on_demand() {
    let run = xtrain().args(["train", "clm", "--learning_rte", "1"]).run();
    assert!(run.stderr.starts_with("error: unknown flag") && !run.stderr.contains('\x1b'));
    let run = xtrain()
        .args(["train", "clm", "--learning_rte", "1", "--color", "always"])
        .run();
    assert!(
        run.stderr
            .starts_with("\x1b[1;31merror:\x1b[0m unknown flag"),
        "{}",
        run.stderr
    );
    assert!(
        run.stderr.contains("\x1b[36mhint:\x1b[0m did you mean"),
        "{}",
        run.stderr
    );
    let help = xtrain()
        .args(["top", "--help", "--color=always"])
        .env("NO_COLOR", "1")
        .run();
    assert!(help.stdout.contains('\x1b'), "{}", help.stdout);
    assert!(
        !xtrain()
            .args(["top", "--help"])
            .run()
            .stdout
            .contains('\x1b')
    );
}

/// NEFTune: the noise is in training only, from the seed, and no run without it changes.
#[test]
fn noise_on_embeddings_is_in_training_only() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let text = data_text("play.txt");
    std::fs::write(dir.join("train.txt"), &text[..20_000]).unwrap();
    let losses = |more: &str| -> (f64, Vec<f64>) {
        let run = xtrain()
            .dir(dir)
            .args(
                "train clm --model_type gpt2 --disable_tqdm --block_size 16 --train_file train.txt --output_dir out \
                 --config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=32,resid_pdrop=0,embd_pdrop=0,attn_pdrop=0 \
                 --max_steps 3 --logging_steps 1 --overwrite_output_dir --report none --do_train --do_eval --eval_on_start \
                 --tokenizer_name"
                    .split_whitespace(),
            )
            .arg(data_dir().join("gpt2"))
            .args(more.split_whitespace())
            .run();
        run.succeeded();
        let records = json_lines(&dir.join("out/log.jsonl"));
        let of = |key: &str| -> Vec<f64> {
            let found = records
                .iter()
                .filter_map(|record| record.get(key)?.as_f64());
            found.collect()
        };
        (of("eval_loss")[0], of("loss"))
    };
    let (plain, noisy) = (losses(""), losses("--neftune_noise_alpha 5"));
    assert_eq!(plain.0, noisy.0);
    assert!(plain.1[0] != noisy.1[0], "{plain:?} {noisy:?}");
    assert_eq!(noisy, losses("--neftune_noise_alpha 5"));
    assert_eq!(plain, losses("--neftune_noise_alpha 0"));
}

/// The rate falls with evaluations that get no better, also in a resumed run.
#[test]
fn the_learning_rate_falls_on_a_plateau() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let text = data_text("play.txt");
    std::fs::write(dir.join("train.txt"), &text[..20_000]).unwrap();
    let train = |more: &str| {
        let run = xtrain()
            .dir(dir)
            .args(
                "train clm --model_type gpt2 --disable_tqdm --block_size 16 --train_file train.txt --output_dir out --save_steps 3 \
                 --config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=32 --max_steps 8 --logging_steps 1 --report none \
                 --lr_scheduler_type reduce_lr_on_plateau --lr_scheduler_kwargs factor=0.5,patience=0,threshold=100,min_lr=1e-5 \
                 --learning_rate 8e-5 --tokenizer_name"
                    .split_whitespace(),
            )
            .arg(data_dir().join("gpt2"))
            .args(more.split_whitespace())
            .run();
        let records = json_lines(&dir.join("out/log.jsonl"));
        let rates = records
            .iter()
            .filter_map(|record| record.get("learning_rate")?.as_f64());
        (run, rates.collect::<Vec<f64>>())
    };
    let (run, rates) = train("--eval_strategy steps --eval_steps 1");
    run.succeeded();
    // The first evaluation is the best for ever: each one after it halves the rate of the next step.
    assert_eq!(rates, [8e-5, 8e-5, 4e-5, 2e-5, 1e-5, 1e-5, 1e-5, 1e-5]);
    let (run, again) =
        train("--eval_strategy steps --eval_steps 1 --resume_from_checkpoint out/checkpoint-3");
    run.succeeded();
    assert_eq!(again, rates);
    let (run, _) = train("--overwrite_output_dir");
    assert_eq!(run.code, Some(2));
    assert!(
        run.stderr
            .contains("and there are none\nhint: add --eval_strategy"),
        "{}",
        run.stderr
    );
}
