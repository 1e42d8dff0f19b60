//! What must hit, what must miss, and that a miss names its cause.

use super::{Bench, Place, counts, entry_of};
use std::collections::BTreeSet;
use xtrain::cache::{Content, Entry, EntryStore, Header};

#[test]
fn a_second_start_compiles_nothing_whatever_does_not_shape_graphs() {
    let place = Place::new();
    let words = "--do_eval --gradient_accumulation_steps 2 --eval_strategy steps --eval_steps 1";
    let first = place.clm("train", words);
    assert_eq!(
        counts(&first),
        (0, 3),
        "accumulate, update, eval: {}",
        first.stderr
    );
    assert!(!first.stderr.contains("again"), "{}", first.stderr);
    assert!(
        first.stderr.contains(&format!(
            "compiled-graph cache: {}",
            place.store().dir().display()
        )),
        "{}",
        first.stderr
    );
    let unchanged = std::fs::copy(place.path("train.txt"), place.path("other.txt")).is_ok();
    assert!(unchanged);
    for more in [
        "",
        "--learning_rate 1e-4 --seed 7 --warmup_steps 1 --lr_scheduler_type cosine --adam_beta1 0.9",
        "--max_steps 3 --logging_steps 1 --logging_first_step --max_train_samples 20 --data_seed 3",
        &format!(
            "--train_file {} --output_dir {}",
            place.path("other.txt").display(),
            place.path("elsewhere").display()
        ),
        "--dataloader_num_workers 1 --gradient_accumulation_steps 3 --fail_on_recompile",
    ] {
        let run = place.clm("train", &format!("{words} {more}"));
        assert_eq!(counts(&run), (3, 0), "{more}: {}", run.stderr);
    }
}

/// Changes of the model, whose graphs are no versions of the other one's, and what `cache explain` says.
const OTHER_MODELS: [(&str, &str); 4] = [
    (
        "--config_overrides n_layer=3,n_head=2,n_embd=16,n_positions=64",
        "(n_layer 3 was 2)",
    ),
    (
        "--config_overrides n_layer=2,n_head=2,n_embd=32,n_positions=64",
        "f32[300,32] was f32[300,16] (n_embd 32 was 16)",
    ),
    (
        "--config_overrides n_layer=2,n_head=4,n_embd=16,n_positions=64",
        "(n_head 4 was 2)",
    ),
    (
        "--config_overrides n_layer=2,n_head=2,n_embd=16,n_positions=64,attn_pdrop=0.2",
        "transformer.h.0.attn attention has dropout: Some(0.2 of stream 1) where it had dropout: Some(0.1 of stream 1) (attn_pdrop 0.2 was 0.1)",
    ),
];

/// Changes that must miss, and what `cache explain` must say.
const CHANGES: [(&str, &str); 6] = [
    (
        "--block_size 32",
        "input_ids: s32[2,32] was s32[2,16] (block_size 32 was 16)",
    ),
    (
        "--per_device_train_batch_size 4",
        "input_ids: s32[4,16] was s32[2,16] (per_device_train_batch_size 4 was 2)",
    ),
    ("--adam_beta1 0.8", "(adam_beta1 0.8 was 0.9)"),
    ("--weight_decay 0.1", "(weight_decay 0.1 was 0)"),
    ("--max_grad_norm 0", "(max_grad_norm 0 was 1)"),
    ("--optim sgd", "(optim sgd was adamw)"),
];

/// What `cache explain` says of the training step, whose new configuration a run has printed in one
/// line.
fn explained(place: &Place, stderr: &str) -> String {
    explained_of("train", place, stderr)
}

fn explained_of(graph: &str, place: &Place, stderr: &str) -> String {
    let prefix = format!("compiling {graph} (new configuration); `xtrain ");
    let mut lines = stderr.lines().filter_map(|line| line.strip_prefix(&prefix));
    let (words, _) = lines
        .next()
        .unwrap_or_else(|| panic!("{stderr}"))
        .split_once('`')
        .unwrap();
    let run = place.command(words).run();
    run.succeeded();
    run.stdout
}

/// The first compile of another model is no recompile, neither in what a run prints nor for
/// `--fail_on_recompile`; `cache explain` compares the models all the same.
#[test]
fn another_model_is_compiled_for_the_first_time() {
    let place = Place::new();
    place.clm("compile", "").succeeded();
    for (change, expected) in OTHER_MODELS {
        let before: BTreeSet<String> = place.entries().into_iter().map(|e| e.id).collect();
        let run = place.clm(
            "train",
            &format!("{change} --fail_on_recompile --overwrite_output_dir"),
        );
        assert_eq!(counts(&run), (0, 1), "{change}: {}", run.stderr);
        assert!(!run.stderr.contains("new configuration"), "{}", run.stderr);
        let entries = place.entries().into_iter();
        let mut new = entries.filter(|entry| !before.contains(&entry.id));
        let explained = place
            .command(&format!("cache explain {}", new.next().unwrap().id))
            .run();
        explained.succeeded();
        assert!(
            explained.stdout.contains(expected),
            "{change}: {}",
            explained.stdout
        );
    }
    // Of the model itself another version is one.
    let run = place.clm(
        "train",
        "--fail_on_recompile --overwrite_output_dir --weight_decay 0.5",
    );
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    // An evaluation with the model is another command.
    let mut run = place.command(&format!(
        "eval clm --model_name_or_path {} --validation_file {} --block_size 16 --per_device_eval_batch_size 3 --fail_on_recompile",
        place.path("out").display(),
        place.path("valid.txt").display()
    ));
    run.run().succeeded();
}

#[test]
fn every_change_of_the_graph_misses_and_is_explained() {
    let place = Place::new();
    place.clm("compile", "").succeeded();
    for (change, expected) in CHANGES {
        let run = place.clm("compile", change);
        assert_eq!(counts(&run), (0, 1), "{change}: {}", run.stderr);
        let why = explained(&place, &run.stderr);
        assert!(
            why.starts_with("graph: ") && why.contains(expected),
            "{change}: {why}"
        );
        // And back: nothing was lost.
        assert_eq!(counts(&place.clm("compile", change)), (1, 0), "{change}");
    }
}

/// One line for all graphs that a changed setting makes new.
#[test]
fn a_new_configuration_is_said_once() {
    let place = Place::new();
    let compile = |size: usize| {
        let run = place.clm("compile", &format!("--do_eval --block_size {size}"));
        run.succeeded();
        run
    };
    compile(16);
    let again = compile(8);
    assert!(counts(&again).1 >= 2, "{}", again.stderr);
    let lines = again.stderr.matches("(new configuration)").count();
    assert_eq!(lines, 1, "{}", again.stderr);
}

/// Only what shapes a graph is named: the training's batch is no cause for an evaluation's.
#[test]
fn an_evaluation_is_not_explained_by_the_training_batch() {
    let place = Place::new();
    let batches = |n: usize| {
        let flags =
            format!("--do_eval --per_device_eval_batch_size {n} --per_device_train_batch_size {n}");
        let run = place.clm("compile", &flags);
        run.succeeded();
        run.stderr
    };
    batches(2);
    let changed = batches(4);
    let of = |graph: &str| explained_of(graph, &place, &changed);
    let [eval, train] = ["eval", "train"];
    for (graph, other) in [(eval, train), (train, eval)] {
        let why = of(graph);
        let names = |graph: &str| why.contains(&format!("per_device_{graph}_batch_size"));
        assert!(names(graph) && !names(other), "{graph}: {why}");
    }
}

/// These change the graphs of the run; replicas have one graph more.
#[test]
fn another_element_type_or_number_of_devices_is_named() {
    let place = Place::new();
    place.clm("compile", "").succeeded();
    for (change, expected, graphs) in [
        ("--bf16", "precision bf16 was f32", 1),
        ("--data_parallel 2", "data_parallel 2 was 1", 2),
    ] {
        let known: BTreeSet<String> = place.entries().into_iter().map(|e| e.id).collect();
        let run = place.clm("compile", change);
        assert_eq!(counts(&run), (0, graphs), "{change}: {}", run.stderr);
        let mut entries = place.entries().into_iter();
        let step = entries.find(|entry| {
            let is_step = |header: &Header| header.phase == "train";
            !known.contains(&entry.id) && entry.header.as_ref().is_ok_and(is_step)
        });
        let words = format!("cache explain {}", step.unwrap().id);
        let why = place.command(&words).run().stdout;
        assert!(
            why.starts_with("graph: ") && why.contains(expected),
            "{change}: {why}"
        );
    }
}

/// Rewrites the entry as if one part of its key had been another when it was made, under the name
/// that belongs to that key.
fn pretend(place: &Place, id: &str, part: &str, value: &str) -> String {
    let store = place.store();
    let mut entry = store.open(id).unwrap();
    let parts = contents(&mut entry);
    let mut header: Header = entry.header.clone();
    header
        .key
        .parts
        .iter_mut()
        .find(|p| p.name == part)
        .unwrap_or_else(|| panic!("no part {part}"))
        .value = value.into();
    let other = header.key.id();
    let parts: Vec<(Content, &[u8])> = parts
        .iter()
        .map(|(content, bytes)| (*content, bytes.as_slice()))
        .collect();
    store.insert(header, &parts).unwrap();
    store.remove(id).unwrap();
    other
}

fn contents(entry: &mut Entry) -> Vec<(Content, Vec<u8>)> {
    let all = [Content::Graph, Content::Module, Content::Executable];
    all.iter()
        .filter_map(|content| Some((*content, entry.read(*content).unwrap()?)))
        .collect()
}

#[test]
fn every_part_of_the_environment_misses_by_name() {
    let place = Place::new();
    Bench::run(&place);
    for (part, value) in [
        ("compiler", "XLA of tomorrow"),
        ("compile options", "2 x 1 xla_cpu_fast_math=Bool(true)"),
        ("topology", "4 of 8 devices, process 0"),
        ("CPU threads", "96"),
        ("cache format", "0"),
    ] {
        let id = entry_of(&place, "train");
        let other = pretend(&place, &id, part, value);
        let run = Bench::run(&place);
        assert_eq!((run.loaded, run.compiled), (0, 1), "{part}");
        let why = explained(&place, &run.stderr);
        assert!(
            why.starts_with(&format!("{part}: ")) && why.contains(value),
            "{why}"
        );
        place.store().remove(&other).unwrap();
    }
    let id = entry_of(&place, "train");
    pretend(&place, &id, "CPU features", "avx99");
    let run = Bench::run(&place);
    assert!(explained(&place, &run.stderr).contains("CPU features: +"));
    // What the compiler is told from outside counts too.
    let flags = "--xla_disable_hlo_passes=none-of-them";
    let run = Bench::of(&place.bench().env("XLA_FLAGS", flags).run());
    assert!(explained(&place, &run.stderr).contains("XLA_FLAGS: `--"));
}

#[test]
fn compile_ahead_makes_exactly_the_graphs_of_the_run() {
    for words in [
        "",
        "--do_eval",
        "--do_eval --eval_strategy epoch --gradient_accumulation_steps 2 --optim sgd",
    ] {
        let place = Place::new();
        let ahead = place.clm("compile", words);
        let (hits, compiled) = counts(&ahead);
        assert_eq!(hits, 0);
        assert_eq!(
            ahead.stdout.lines().count() as u64,
            compiled,
            "{}",
            ahead.stdout
        );
        assert!(
            !place.path("out").exists(),
            "compiling ahead writes nothing but the cache"
        );
        let run = place.clm("train", &format!("{words} --fail_on_recompile"));
        assert_eq!(counts(&run), (compiled, 0), "{words}: {}", run.stderr);
    }
}

/// The quickstart is a training run like any other: compiled ahead by its flags, it compiles
/// nothing itself.
#[test]
fn compile_ahead_serves_the_quickstart() {
    let place = Place::new();
    let quickstart = |cache: &str| {
        let mut command = crate::support::xtrain();
        command.args(
            "quickstart --max_steps 1 --overwrite_output_dir --disable_tqdm --output_dir"
                .split(' '),
        );
        let run = command
            .arg(place.path("quickstart"))
            .arg("--cache_dir")
            .arg(place.path(cache))
            .run();
        counts(&run)
    };
    let (hits, compiled) = quickstart("cold");
    assert_eq!((hits, compiled), (0, 2), "train, eval");
    let mut ahead = place.command(
        "compile clm --model_type gpt2 --block_size 128 --per_device_train_batch_size 16 --per_device_eval_batch_size 16 \
         --weight_decay 0.01 --do_train --do_eval --jobs 2 --config_overrides \
         n_layer=4,n_head=6,n_embd=192,n_positions=256,embd_pdrop=0,attn_pdrop=0,resid_pdrop=0",
    );
    ahead
        .arg("--tokenizer_name")
        .arg(place.path("quickstart/tokenizer"))
        .run()
        .succeeded();
    assert_eq!(quickstart("cache"), (compiled, 0));
}

#[test]
fn fail_on_recompile_stops_with_the_cause() {
    let place = Place::new();
    // Nothing of the kind was compiled before: a first compile is no recompile.
    place.clm("train", "--fail_on_recompile").succeeded();
    let run = place.clm("train", "--fail_on_recompile --block_size 32");
    assert_eq!(run.code, Some(1));
    assert!(
        run.stderr.contains("block_size 32 was 16") && run.stderr.contains("--fail_on_recompile"),
        "{}",
        run.stderr
    );
    let run = place.clm("train", "--fail_on_recompile");
    assert_eq!(counts(&run).1, 0);
}

#[test]
fn without_the_cache_nothing_is_stored() {
    let place = Place::new();
    for _ in 0..2 {
        let run = Bench::of(&place.bench().args(["--compile_cache", "false"]).run());
        assert_eq!((run.loaded, run.compiled), (0, 1));
        assert!(!run.stderr.contains("cache"), "{}", run.stderr);
    }
    assert!(!place.path("cache/graphs").exists());
}
