//! Adapters as users train, use and merge them.

use crate::freezing::{count, graphs, saved_model, small_gpt2, state};
use crate::parallel::{OPTIMIZER, assert_same_run};
use crate::processes::{self, Launched};
use crate::tasks::Bench;
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::BTreeMap;
use xtrain::parallel::Mesh;
use xtrain_graphs::DType;
use xtrain_graphs::op::Op;
use xtrain_graphs::optim::MASTER_WEIGHT;
use xtrain_models::{LoraConfig, Modules, ParameterSet, ParameterSpec, adapt};

const DATA: &str = "--tokenizer_name byte_bpe --train_file articles.txt --validation_file articles-valid.txt --block_size 32 \
                    --disable_tqdm";

const LORA: &str = "--use_peft --lora_r 4 --lora_alpha 8 --lora_target_modules c_attn c_proj";

fn train(dir: &str, rows: usize, extra: &str) -> String {
    format!(
        "train clm {DATA} --model_name_or_path start {OPTIMIZER} --gradient_accumulation_steps 2 --max_steps 6 --logging_steps 1 \
         --per_device_train_batch_size {rows} --output_dir {dir} {extra}"
    )
}

fn tensors(bench: &Bench, path: &str) -> BTreeMap<String, Vec<u8>> {
    let bytes = bench.bytes(path);
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensors = tensors.iter();
    tensors
        .map(|(name, view)| (name.to_string(), view.data().to_vec()))
        .collect()
}

fn loss(bench: &Bench, line: &str) -> f64 {
    let run = bench.run(&format!("eval clm {DATA} --json {line}"));
    run.succeeded();
    let results: Value = serde_json::from_str(&run.stdout).unwrap();
    results["eval_loss"].as_f64().unwrap()
}

/// Trains on one device and on each of these meshes: the same losses, and the same adapter in the end.
fn assert_meshes_agree(meshes: &[(usize, &str)], with_processes: bool) {
    let bench = Bench::new();
    saved_model(&bench, "float32");
    let run = |dir: &str, rows: usize, extra: &str| {
        let extra = format!("{LORA} --save_strategy no {extra}");
        bench.run(&train(dir, rows, &extra)).succeeded();
    };
    run("one", 8, "");
    let saved = tensors(&bench, "one/adapter_model.safetensors");
    assert_eq!(saved.len(), 2 * 2 * 3, "{:?}", saved.keys());
    for (index, (rows, mesh)) in meshes.iter().enumerate() {
        let dir = format!("mesh-{index}");
        run(&dir, *rows, mesh);
        assert_same_run(&bench, &dir, "one");
    }
    if with_processes && processes::has_gloo() {
        let extra = format!("{LORA} --save_strategy no --shard_parallel 2");
        let line = train("processes", 4, &extra);
        let line = format!("launch --nproc_per_node 2 -- {line}");
        Launched::of(&bench, &line).finish().succeeded();
        assert_same_run(&bench, "processes", "one");
    }
}

/// The matrices are divided as their layers' are: A along inputs, B along outputs.
#[test]
fn every_mesh_adapts_as_one_device_does() {
    let meshes = [
        (4, "--data_parallel 2 --shard_optimizer_state"),
        (8, "--tensor_parallel 2 --sequence_parallel"),
        (8, "--pipeline_parallel 2"),
    ];
    assert_meshes_agree(&meshes, false);
}

#[test]
#[ignore = "slow: meshes of several axes, and processes"]
fn meshes_of_several_axes_adapt_as_one_device_does() {
    let meshes = [
        (8, "--gradient_checkpointing"),
        (4, "--shard_parallel 2"),
        (
            2,
            "--data_parallel 2 --shard_parallel 2 --tensor_parallel 2",
        ),
    ];
    assert_meshes_agree(&meshes, true);
}

/// In bfloat16 with copies, dropout and recomputation.
#[test]
fn an_adapter_resumes_exactly_and_as_the_same_one_alone() {
    let bench = Bench::new();
    saved_model(&bench, "bfloat16");
    let extra = "--torch_dtype bfloat16 --gradient_checkpointing --save_strategy steps --save_steps 3 --lora_dropout 0.1";
    let run = |dir: &str, more: &str| bench.run(&train(dir, 4, &format!("{extra} {more}")));
    run("whole", LORA).succeeded();
    let state = tensors(&bench, "whole/checkpoint-3/optimizer.safetensors");
    assert!(
        state.keys().all(|name| name.contains(".lora_")),
        "{:?}",
        state.keys()
    );
    assert_eq!(
        state.len(),
        3 * 12,
        "moments and a copy of each: {:?}",
        state.keys()
    );

    let (from, to) = (
        bench.path("whole/checkpoint-3"),
        bench.path("resumed/checkpoint-3"),
    );
    std::fs::create_dir_all(&to).unwrap();
    for entry in std::fs::read_dir(&from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    for (other, now) in [
        ("", "neither --freeze nor --train_only"),
        (
            "--use_peft --lora_r 8 --lora_alpha 8 --lora_target_modules c_attn c_proj",
            "an adapter (r 8, lora_alpha 8) on c_attn, c_proj",
        ),
    ] {
        let run = run(
            "resumed",
            &format!("{other} --lora_dropout 0.1 --resume_from_checkpoint"),
        );
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        if !other.is_empty() {
            let both = format!(
                "it was saved with an adapter (r 4, lora_alpha 8) on c_attn, c_proj, and this run has {now}"
            );
            assert!(run.stderr.contains(&both), "{}", run.stderr);
        }
    }
    run("resumed", &format!("{LORA} --resume_from_checkpoint")).succeeded();
    for name in [
        "adapter_model.safetensors",
        "adapter_config.json",
        "checkpoint-6/optimizer.safetensors",
    ] {
        let [whole, resumed] =
            ["whole", "resumed"].map(|dir| bench.bytes(&format!("{dir}/{name}")));
        assert!(whole == resumed, "{name} differs");
    }
}

/// What a user does with one: evaluate, generate, train further, merge.
#[test]
fn an_adapter_is_used_and_merged() {
    let bench = Bench::new();
    saved_model(&bench, "float32");
    let run = bench.run(&train(
        "out",
        8,
        &format!("{LORA} --save_strategy no --do_train --do_eval"),
    ));
    run.succeeded();
    assert!(
        run.stdout.contains("saved the adapter in out"),
        "{}",
        run.stdout
    );
    let why = "vLLM does not load it: it adds none to models of gpt2";
    assert!(run.stdout.contains(why), "{}", run.stdout);
    let own = bench.json("out/all_results.json")["eval_loss"]
        .as_f64()
        .unwrap();
    let config = bench.json("out/adapter_config.json");
    for (key, value) in [
        ("base_model_name_or_path", "start".into()),
        ("fan_in_fan_out", true.into()),
        ("peft_type", "LORA".into()),
        ("r", 4.into()),
        ("target_modules", serde_json::json!(["c_attn", "c_proj"])),
        ("task_type", "CAUSAL_LM".into()),
    ] {
        assert_eq!(config[key], Value::clone(&value), "{key}");
    }
    let base = loss(&bench, "--model_name_or_path start");
    assert!(
        (base - own).abs() > 1e-3,
        "it learned nothing: {base}, {own}"
    );
    // By its own name, and beside its model.
    for line in [
        "--model_name_or_path out",
        "--model_name_or_path start --adapter_name_or_path out",
    ] {
        let found = loss(&bench, line);
        assert!((found - own).abs() < 1e-5, "{line}: {found}, {own}");
    }

    let run = bench.run("merge --adapter_name_or_path out --output_dir merged");
    run.succeeded();
    assert!(
        run.stdout.contains("merged: 6 of 28 tensors changed"),
        "{}",
        run.stdout
    );
    assert!(
        run.stdout.contains("checked: logits of a sample"),
        "{}",
        run.stdout
    );
    let merged = loss(&bench, "--model_name_or_path merged");
    assert!((merged - own).abs() < 1e-5, "{merged}, {own}");
    let generated = |model: &str| {
        let run = bench.run(&format!(
            "generate --model_name_or_path {model} --tokenizer_name byte_bpe --prompt River --max_new_tokens 12 --temperature 0"
        ));
        run.succeeded();
        run.stdout
    };
    assert_eq!(generated("out"), generated("merged"));

    let line = train(
        "further",
        8,
        "--adapter_name_or_path out --save_strategy no --do_train --do_eval",
    );
    bench.run(&line).succeeded();
    let further = bench.json("further/all_results.json")["eval_loss"]
        .as_f64()
        .unwrap();
    assert!(further < own, "{further}, {own}");
    assert_eq!(bench.json("further/adapter_config.json"), config);
}

/// A classifier's head is saved with the adapter, and so is what its model lacks besides.
#[test]
fn a_classifiers_adapter_has_its_head() {
    let bench = Bench::new();
    let run = bench.run(
        "train mlm --tokenizer_name wordpiece --train_file articles.txt --max_seq_length 32 --model_type bert --disable_tqdm \
         --config_overrides num_hidden_layers=2,num_attention_heads=2,hidden_size=32,intermediate_size=48,max_position_embeddings=64 \
         --max_steps 2 --save_strategy no --output_dir mlm",
    );
    run.succeeded();
    let data = "--label_column_name sentiment --train_file posts.csv --validation_file posts-valid.csv --max_seq_length 32 --disable_tqdm";
    let run = bench.run(&format!(
        "train cls {data} --model_name_or_path mlm --use_peft --learning_rate 1e-2 --max_steps 12 --save_strategy no --do_eval --do_train \
         --output_dir out"
    ));
    run.succeeded();
    let note =
        "bert.pooler.dense starts at random, and so it is trained whole and saved with the adapter";
    assert!(run.stderr.contains(note), "{}", run.stderr);
    let saved = tensors(&bench, "out/adapter_model.safetensors");
    for name in [
        "bert.pooler.dense.weight",
        "classifier.weight",
        "classifier.bias",
    ] {
        assert!(
            saved.contains_key(&format!("base_model.model.{name}")),
            "{:?}",
            saved.keys()
        );
    }
    assert_eq!(
        bench.json("out/adapter_config.json")["task_type"],
        "SEQ_CLS"
    );
    let results = bench.json("out/all_results.json");
    let evaluate = |model: &str| -> Value {
        let run = bench.run(&format!(
            "eval cls --label_column_name sentiment --validation_file posts-valid.csv --max_seq_length 32 --disable_tqdm --json --model_name_or_path {model}"
        ));
        run.succeeded();
        serde_json::from_str(&run.stdout).unwrap()
    };
    bench
        .run("merge --model_name_or_path out --output_dir merged")
        .succeeded();
    for model in ["out", "merged"] {
        let found = evaluate(model);
        let [loss, own] = [&found, &results].map(|it| it["eval_loss"].as_f64().unwrap());
        assert!((loss - own).abs() < 1e-5, "{model}: {loss}, {own}");
        assert_eq!(found["eval_accuracy"], results["eval_accuracy"], "{model}");
    }
}

/// All mistakes at once, before anything is compiled.
#[test]
fn mistakes_in_adapters_are_named() {
    let bench = Bench::new();
    saved_model(&bench, "float32");
    for (flags, parts) in [
        (
            "--use_peft --lora_target_modules q_proj",
            &[
                "target_modules means no layer of the model; these end in wte, c_attn, c_proj, c_fc, lm_head",
            ][..],
        ),
        (
            "--lora_r 8",
            &[
                "--lora_r is of an adapter, and none is trained",
                "add --use_peft",
            ],
        ),
        (
            "--use_peft --freeze wte",
            &["of which an adapter trains none"],
        ),
        (
            "--use_peft --lora_modules_to_save nothing",
            &["the model has no module `nothing`"],
        ),
        (
            "--use_peft --lora_modules_to_save wte",
            &["modules_to_save: `transformer.wte` is tied to `lm_head`"],
        ),
        (
            "--use_peft --lora_target_parameters experts",
            &["no family here has fused expert weights"],
        ),
        (
            "--adapter_name_or_path start",
            &["--adapter_name_or_path: start holds no adapter_config.json"],
        ),
    ] {
        let run = bench.run(&train(
            "out",
            8,
            &format!("{flags} --save_strategy no --overwrite_output_dir"),
        ));
        assert_ne!(run.code, Some(0), "{flags}");
        for part in parts {
            assert!(run.stderr.contains(part), "{flags}: {}", run.stderr);
        }
    }
    let still =
        train("out", 8, "--use_peft --save_strategy no").replace(OPTIMIZER, "--learning_rate 0");
    let run = bench.run(&still);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    let unchanged = "after 6 steps the adapter is what it was when they began";
    assert!(run.stderr.contains(unchanged), "{}", run.stderr);
    assert!(!bench.path("out/adapter_model.safetensors").exists());
}

/// The graphs of a step read the model's own weights, in the type that they are held in, and have nothing else of
/// them: no moments, no sum of gradients, no copy, and no matmul that computes a gradient of one.
#[test]
fn a_step_has_nothing_of_the_model_but_its_weights() {
    let config = LoraConfig {
        targets: Modules::AllLinear,
        dropout: 0.1,
        ..LoraConfig::default()
    };
    for (mesh, shards_moments) in [
        (Mesh::single(), false),
        (Mesh::data_parallel(2), true),
        (
            Mesh {
                shard: 2,
                tensor: 2,
                ..Mesh::single()
            },
            false,
        ),
    ] {
        let model = adapt(small_gpt2(), config.clone()).unwrap();
        let all = graphs(&*model, mesh, shards_moments);
        let [read, assigned] = state(&all);
        let is_own = |p: &ParameterSpec| p.set == ParameterSet::Adapter;
        let (own, base): (Vec<_>, Vec<_>) = model.parameters().into_iter().partition(is_own);
        assert_eq!((own.len(), base.len()), (2 * 4 * 2, 28), "{mesh:?}");
        for parameter in &base {
            let name = parameter.name.as_str();
            assert!(
                read.contains(name) && !assigned.contains(name),
                "{mesh:?}: {name}"
            );
            let mut others = read.iter().filter(|other| other.ends_with(name));
            assert!(others.all(|other| *other == name), "{mesh:?}: {read:?}");
            let inputs = all.iter().flat_map(|graph| &graph.inputs);
            let mut inputs = inputs.filter(|input| input.name == name);
            assert!(
                inputs.all(|input| input.shape.dtype == DType::BF16),
                "{name}"
            );
        }
        for parameter in &own {
            for kept in ["exp_avg", "exp_avg_sq", MASTER_WEIGHT, "accumulated"] {
                let name = format!("{kept}.{}", parameter.name);
                assert!(assigned.contains(name.as_str()), "{mesh:?}: {name}");
            }
        }
        if mesh.devices() == 1 {
            let is_matmul = |op: &Op| matches!(op, Op::Dot { .. });
            let whole = count(&graphs(&*small_gpt2(), mesh, shards_moments), is_matmul);
            // In both graphs each of eight matrices has six of A and B more, and none of its own gradient, as the
            // head has none. Nothing before the first of them is trained: two compute no gradient there.
            assert_eq!(count(&all, is_matmul), whole + 2 * (8 * (6 - 1) - 1 - 2));
        }
    }
}
