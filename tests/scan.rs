//! Layers as a loop: the same run as with layers written out, for each family and with what else
//! changes a layer; and one layer to compile however many there are.

use crate::parallel::{OPTIMIZER, assert_same_run};
use crate::tasks::Bench;
use serde_json::Value;

/// With dropout, so that losses are equal only if each iteration draws its layer's masks.
const GPT2: &str = "clm --model_type gpt2 --train_file wikitext.txt --tokenizer_name byte_bpe --block_size 32 --config_overrides \
                    n_head=4,n_embd=32,n_positions=32,attn_pdrop=0.1,embd_pdrop=0.1,resid_pdrop=0.1";
const GPTJ: &str = "clm --model_type gptj --train_file wikitext.txt --tokenizer_name byte_bpe --block_size 32 --config_overrides \
                    n_head=4,n_embd=32,n_positions=32,rotary_dim=4,attn_pdrop=0.1,embd_pdrop=0.1,resid_pdrop=0.1";
const ENCODER: &str = "hidden_size=32,num_attention_heads=4,intermediate_size=64,hidden_dropout_prob=0.1,\
                       attention_probs_dropout_prob=0.1";

fn train(bench: &Bench, what: &str, extra: &str, dir: &str) {
    let command = format!(
        "train {what} {OPTIMIZER} --max_steps 8 --logging_steps 1 --save_strategy no --disable_tqdm --per_device_train_batch_size 4 \
         {extra} --output_dir {dir}"
    );
    bench.run(&command).succeeded();
}

fn trains_alike(bench: &Bench, name: &str, what: &str, extra: &str) {
    train(bench, what, extra, &format!("{name}-written-out"));
    train(
        bench,
        what,
        &format!("{extra} --scan_layers"),
        &format!("{name}-loops"),
    );
    assert_same_run(
        bench,
        &format!("{name}-loops"),
        &format!("{name}-written-out"),
    );
}

#[test]
fn a_run_with_its_layers_as_loops_is_the_run() {
    let Some(bench) = Bench::new() else { return };
    let eval = "--validation_file wikitext-valid.txt --do_train --do_eval";
    trains_alike(
        &bench,
        "gpt2",
        &format!("{GPT2},n_layer=3 --gradient_accumulation_steps 2 {eval}"),
        "",
    );
    trains_alike(
        &bench,
        "gptj",
        &format!("{GPTJ},n_layer=5"),
        "--gradient_checkpointing every:2",
    );
    let bert = format!(
        "cls --model_type bert --train_file tweets.csv --text_column_name text --label_column_name sentiment --max_seq_length 32 \
         --pad_to_bucket 16 --tokenizer_name wordpiece --config_overrides {ENCODER},num_hidden_layers=3,max_position_embeddings=32"
    );
    trains_alike(&bench, "bert", &bert, "--gradient_checkpointing attention");
    let masked = "--train_file wikitext.txt --tokenizer_name wordpiece --max_seq_length 32 --config_overrides";
    // The first layer backward has nothing to add a shared parameter's gradient to, so it stays
    // outside.
    let albert = format!(
        "mlm --model_type albert {masked} {ENCODER},embedding_size=16,num_hidden_layers=4,max_position_embeddings=32"
    );
    trains_alike(&bench, "albert", &albert, "--gradient_checkpointing full");
    let roberta = format!(
        "mlm --model_type roberta {masked} {ENCODER},num_hidden_layers=3,max_position_embeddings=34"
    );
    trains_alike(&bench, "roberta", &roberta, "");
    // Every second layer sees the last few tokens only: iterations have masks of their own.
    std::fs::create_dir(bench.path("neo")).unwrap();
    std::fs::write(
        bench.path("neo/config.json"),
        r#"{"model_type": "gpt_neo", "num_layers": 4, "num_heads": 4, "hidden_size": 32, "max_position_embeddings": 32, "window_size": 8,
             "attention_types": [[["global", "local"], 2]], "attention_dropout": 0.1, "resid_dropout": 0.1, "embed_dropout": 0.1}"#,
    )
    .unwrap();
    let neo = "clm --model_type gpt_neo --config_name neo --train_file wikitext.txt --tokenizer_name byte_bpe --block_size 32";
    trains_alike(&bench, "neo", neo, "");
}

#[test]
fn loops_go_with_every_axis() {
    let Some(bench) = Bench::new() else { return };
    let (gpt2, gptj) = (format!("{GPT2},n_layer=4"), format!("{GPTJ},n_layer=4"));
    trains_alike(
        &bench,
        "data",
        &gpt2,
        "--data_parallel 2 --shard_optimizer_state",
    );
    trains_alike(&bench, "shard", &gptj, "--shard_parallel 2");
    trains_alike(
        &bench,
        "tokens",
        &gpt2,
        "--tensor_parallel 2 --sequence_parallel",
    );
    let all = "--shard_parallel 2 --tensor_parallel 2 --pipeline_parallel 2 --gradient_accumulation_steps 2 --gradient_checkpointing";
    trains_alike(&bench, "all", &gpt2, all);
}

/// The compiler gets as many products for six layers as for three, in two loops.
#[test]
fn the_compiler_sees_one_layer() {
    let Some(bench) = Bench::new() else { return };
    let products = |layers: usize| {
        let cache = format!("graphs-{layers}");
        let flags = "--per_device_train_batch_size 4 --output_dir out --scan_layers --disable_tqdm";
        bench
            .run(&format!(
                "compile {GPT2},n_layer={layers} {flags} --cache_dir {cache}"
            ))
            .succeeded();
        let entries: Vec<Value> = serde_json::from_str(
            &bench
                .run(&format!("cache ls --json --cache_dir {cache}"))
                .stdout,
        )
        .unwrap();
        let id = entries
            .iter()
            .find(|entry| entry["phase"] == "train")
            .unwrap()["id"]
            .as_str()
            .unwrap();
        let hlo = bench
            .run(&format!("cache show {id} --hlo --cache_dir {cache}"))
            .stdout;
        let count = |word: &str| hlo.lines().filter(|line| line.contains(word)).count();
        assert_eq!(count(" while("), 2, "forward and backward");
        assert!(
            hlo.contains("train/backward/transformer.h.*.attn"),
            "paths name no single layer"
        );
        count(" dot(")
    };
    assert_eq!(products(3), products(6));
}

#[test]
fn loops_that_make_no_sense_are_refused() {
    let Some(bench) = Bench::new() else { return };
    for (flags, part) in [
        ("--device neuron", "neuronx-cc writes loops out"),
        (
            "--dry_run --compare_meshes 4 --memory 1GB",
            "estimates layers that are written out",
        ),
        (
            "--device cuda --attention_dropout_kernel cudnn --bf16",
            "scan_layers",
        ),
    ] {
        let run = bench.run(&format!(
            "train {GPT2},n_layer=2 --output_dir out --scan_layers {flags}"
        ));
        assert_eq!(run.code, Some(2), "{flags}: {}", run.stderr);
        assert!(run.stderr.contains(part), "{flags}: {}", run.stderr);
    }
}
