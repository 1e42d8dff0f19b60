//! Pipelines: stages that hold some of the layers each and hand microbatches on train as one device
//! does.

use crate::parallel::{CASES, OPTIMIZER, STEPS, assert_close, assert_same_run, bytes_of, line};
use crate::support::Run;
use crate::tasks::{Bench, numbers};

/// Examples of a microbatch on all devices together.
const ROWS: usize = 4;

/// `shards`: parts that each microbatch is cut into by the flags in `extra`.
fn train(bench: &Bench, what: &str, shards: usize, extra: &str) -> Run {
    let rows = ROWS / shards;
    bench.run(&format!(
        "train {what} {OPTIMIZER} --gradient_accumulation_steps 3 --max_steps {STEPS} --logging_steps 1 --save_strategy no \
         --disable_tqdm --per_device_train_batch_size {rows} --per_device_eval_batch_size {rows} {extra}"
    ))
}

/// The same without accumulation, which these runs choose themselves.
fn what(case: usize) -> (&'static str, String) {
    let (name, model, data) = CASES[case];
    (
        name,
        line(
            name,
            model,
            &data.replace("--gradient_accumulation_steps 2", ""),
        ),
    )
}

/// As many stages as layers, in both schedules. Two stages, and what goes with them, stand in
/// `meshes.rs`.
#[test]
fn stages_train_as_one_device_does() {
    let bench = Bench::new();
    for (case, layers) in [(0, "n_layer"), (2, "num_hidden_layers")] {
        let (name, what) = what(case);
        let (eight, one) = (
            what.replace(&format!("{layers}=2"), &format!("{layers}=8")),
            format!("{name}-1"),
        );
        assert_ne!(what, eight);
        train(&bench, &eight, 1, &format!("--output_dir {one}")).succeeded();
        for (index, stages) in ["4 --pipeline_schedule simple --gradient_checkpointing", "8"]
            .into_iter()
            .enumerate()
        {
            let dir = format!("{name}-stages-{index}");
            train(
                &bench,
                &eight,
                1,
                &format!("--pipeline_parallel {stages} --output_dir {dir}"),
            )
            .succeeded();
            assert_same_run(&bench, &dir, &one);
        }
    }
}

/// A tied table's gradient is that of the head and, added to some rows several times, that of the look-up.
/// Each stage adds them up for its own copy, and at the end the copies are compared. The learning rate is
/// so high that a bit more or less in a gradient shows in the weights.
#[test]
fn copies_of_a_tied_table_stay_equal() {
    let bench = Bench::new();
    let (_, what) = what(0);
    for (index, mesh) in [
        "--per_device_train_batch_size 4 --pipeline_parallel 2",
        "--per_device_train_batch_size 2 --pipeline_parallel 2 --data_parallel 2",
        "--per_device_train_batch_size 2 --pipeline_parallel 2 --shard_parallel 2",
    ]
    .into_iter()
    .enumerate()
    {
        let run = bench.run(&format!(
            "train {what} --optim sgd --learning_rate 0.5 --max_steps 4 --save_strategy no --disable_tqdm \
             --per_device_eval_batch_size 2 {mesh} --output_dir tied-{index}"
        ));
        run.succeeded();
    }
}

/// The graphs of later stages are for devices beyond those that they run on.
#[test]
fn stored_graphs_of_stages_are_no_damage() {
    let bench = Bench::new();
    let (name, what) = what(0);
    let extra = format!("--pipeline_parallel 2 --cache_dir cache --output_dir {name}-verified");
    train(&bench, &what, 1, &extra).succeeded();
    let run = bench.run("cache verify --cache_dir cache");
    run.succeeded();
    assert!(run.stdout.contains(" good, 0 damaged"), "{}", run.stdout);
}

/// A checkpoint does not know the stages: resumed with others the run ends alike, with the same
/// ones bit for bit.
#[test]
fn a_pipeline_goes_on_with_other_stages() {
    let bench = Bench::new();
    let (_, what) = what(0);
    let run = |dir: &str, (shards, mesh): (usize, &str), extra: &str| {
        train(
            &bench,
            &what,
            shards,
            &format!("{mesh} --output_dir {dir} --save_strategy steps --save_steps 10 {extra}"),
        )
        .succeeded();
    };
    let stages = (1, "--pipeline_parallel 2");
    run("whole", stages, "--overwrite_output_dir");
    let whole = (
        bench.bytes("whole/model.safetensors"),
        numbers(&bench.records("whole"), "loss"),
    );
    for mesh in [
        stages,
        (1, ""),
        (2, "--pipeline_parallel 2 --shard_parallel 2"),
    ] {
        run("again", stages, "--overwrite_output_dir");
        std::fs::remove_dir_all(bench.path("again/checkpoint-20")).unwrap();
        run("again", mesh, "--resume_from_checkpoint");
        let same = bench.bytes("again/model.safetensors") == whole.0;
        assert!(same || mesh != stages, "the same stages, other weights");
        assert_close(
            mesh.1,
            &whole.1,
            &numbers(&bench.records("again"), "loss"),
            1e-4,
        );
    }
}

/// 16 bits: the loss scale is one number for all stages.
#[test]
fn low_precision_runs_in_stages_too() {
    let bench = Bench::new();
    let (_, what) = what(0);
    for precision in ["bf16", "fp16"] {
        for (index, mesh) in ["", "--pipeline_parallel 2"].into_iter().enumerate() {
            train(
                &bench,
                &what,
                1,
                &format!("--{precision} {mesh} --output_dir {precision}-{index}"),
            )
            .succeeded();
        }
        let losses =
            |index: usize| numbers(&bench.records(&format!("{precision}-{index}")), "loss");
        assert_close(precision, &losses(0), &losses(1), 5e-3);
    }
}

/// The plan names stages, what they wait and send; each holds the state of its layers, and of a
/// tied embedding a copy at both ends. The run needs no graph that was not planned.
#[test]
fn stages_are_planned_and_hold_their_layers() {
    let bench = Bench::new();
    let run = |flags: &str| {
        bench.run(&format!(
            "{flags} --model_type gpt2 --config_overrides n_layer=8,n_head=2,n_embd=64,n_positions=64 --train_file articles.txt \
             --tokenizer_name byte_bpe --block_size 64 --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_steps 2 \
             --output_dir out --cache_dir graphs --disable_tqdm"
        ))
    };
    let plan = run("train clm --pipeline_parallel 4 --dry_run");
    plan.succeeded();
    for part in [
        "stage 0",
        "layers 0 to",
        "to 7,",
        "interleaved, 4 microbatches: stages wait 43 %",
        "in copies over stages",
    ] {
        assert!(
            plan.stdout.contains(part),
            "`{part}` is missing in:\n{}",
            plan.stdout
        );
    }
    // Weights, two moments and sums in f32.
    let (layer, tokens, positions, norm) = (12 * 64 * 64 + 13 * 64, 1000 * 64, 64 * 64, 2 * 64);
    let rows: Vec<&str> = plan
        .stdout
        .lines()
        .filter(|line| line.contains("% of the work"))
        .collect();
    assert_eq!(rows.len(), 4, "{}", plan.stdout);
    for (stage, row) in rows.into_iter().enumerate() {
        let words: Vec<&str> = row.split_whitespace().collect();
        let at = |word: &str| words.iter().position(|found| *found == word).unwrap();
        let (first, last): (usize, usize) = (
            words[at("layers") + 1].parse().unwrap(),
            words[at("to") + 1].trim_end_matches(',').parse().unwrap(),
        );
        let ends = [tokens + positions, 0, 0, tokens + norm][stage];
        let expected = 16.0 * ((last + 1 - first) * layer + ends) as f64;
        let found = bytes_of(&words[at("work,") + 1..at("weights") - 1].join(" "));
        assert!(
            (found / expected - 1.0).abs() < 0.06,
            "stage {stage}: {found} for {expected} in `{row}`"
        );
    }
    run("compile clm --pipeline_parallel 4").succeeded();
    let trained = run("train clm --pipeline_parallel 4 --fail_on_recompile");
    trained.succeeded();
    assert!(trained.stderr.contains("compiled 0,"), "{}", trained.stderr);
}

/// More stages than layers, and a step of one microbatch.
#[test]
fn stages_that_cannot_be_are_refused() {
    let bench = Bench::new();
    let (_, what) = what(0);
    let run = train(&bench, &what, 1, "--pipeline_parallel 3 --output_dir out");
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(
        run.stderr.contains("the model has 2 layers")
            && run.stderr.contains("--pipeline_parallel 2"),
        "{}",
        run.stderr
    );
}
