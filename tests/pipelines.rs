//! Pipelines: stages that hold some of the layers each and hand microbatches on train as one device does.

use crate::parallel::{CASES, OPTIMIZER, STEPS, assert_same_run, line};
use crate::support::Run;
use crate::tasks::Bench;

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
    (name, line(name, model, &data.replace("--gradient_accumulation_steps 2", "")))
}

/// Alone, with each other axis, and with all of them: losses, gradient norms, evaluations and final weights, with dropout. GPT-2 and
/// ALBERT share parameters between stages.
#[test]
fn stages_train_as_one_device_does() {
    let Some(bench) = Bench::new() else { return };
    let meshes = [
        &[
            (1, "--pipeline_parallel 2"),
            (1, "--pipeline_parallel 2 --pipeline_schedule simple --gradient_checkpointing"),
            (2, "--pipeline_parallel 2 --data_parallel 2 --shard_optimizer_state"),
            (2, "--pipeline_parallel 2 --shard_parallel 2"),
            (1, "--pipeline_parallel 2 --tensor_parallel 2"),
            (4, "--pipeline_parallel 2 --data_parallel 2 --shard_parallel 2 --tensor_parallel 2"),
        ][..],
        &[(1, "--pipeline_parallel 2"), (2, "--pipeline_parallel 2 --data_parallel 2 --tensor_parallel 2")],
        &[(1, "--pipeline_parallel 2"), (2, "--pipeline_parallel 2 --data_parallel 2"), (2, "--pipeline_parallel 2 --shard_parallel 2")],
        &[(1, "--pipeline_parallel 2"), (1, "--pipeline_parallel 2 --tensor_parallel 2")],
    ];
    for (case, meshes) in meshes.into_iter().enumerate() {
        let (name, what) = what(case);
        let one = format!("{name}-1");
        train(&bench, &what, 1, &format!("--output_dir {one}")).succeeded();
        for (index, (shards, mesh)) in meshes.iter().enumerate() {
            let dir = format!("{name}-stages-{index}");
            train(&bench, &what, *shards, &format!("{mesh} --output_dir {dir}")).succeeded();
            assert_same_run(&bench, &dir, &one);
        }
    }
}
