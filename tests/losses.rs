//! What is logged and decided where a step or an evaluation has no loss. What is drawn where logits
//! overflow is in `src/trainer/sampling.rs`.

use crate::tasks::Bench;

/// Without a masked token there is no loss: none is logged, none of the evaluations is the best, and both
/// are said.
#[test]
fn what_has_no_label_has_no_loss_and_is_never_the_best() {
    let bench = Bench::new();
    let run = bench.run(
        "train mlm --model_type bert --config_overrides hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64,\
         max_position_embeddings=64 --train_file articles.txt --validation_file articles-valid.txt --tokenizer_name wordpiece \
         --max_seq_length 32 --per_device_train_batch_size 8 --disable_tqdm --mlm_probability 1e-9 --max_steps 2 --logging_steps 1 \
         --eval_strategy steps --eval_steps 1 --max_eval_samples 8 --save_strategy steps --save_steps 1 --load_best_model_at_end \
         --do_train --do_eval --output_dir out",
    );
    run.succeeded();
    let records = bench.records("out");
    let steps = records
        .iter()
        .filter(|record| record["learning_rate"].is_number());
    assert_eq!(steps.count(), 2, "{records:?}");
    for record in &records {
        for key in ["loss", "eval_loss", "perplexity", "train_loss"] {
            assert!(record.get(key).is_none(), "{key}: {record}");
        }
    }
    let state = bench.json("out/trainer_state.json");
    assert!(state["best_metric"].is_null(), "{state}");
    let note = "no loss is logged at step 1: no label since the last record has one";
    assert_eq!(run.stderr.matches(note).count(), 1, "{}", run.stderr);
    let note = "the evaluation at step 2 has no loss";
    assert!(run.stderr.contains(note), "{}", run.stderr);
}

/// Weights whose products overflow: every step in fp16 is skipped, and has no loss to log.
#[test]
fn what_overflows_has_no_loss() {
    let bench = Bench::new();
    let run = bench.run(
        "train clm --model_type gpt2 --config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=32,initializer_range=1e30 \
         --train_file articles.txt --tokenizer_name byte_bpe --block_size 32 --per_device_train_batch_size 4 --disable_tqdm --fp16 \
         --max_steps 3 --logging_steps 1 --save_strategy no --do_train --output_dir out",
    );
    run.succeeded();
    let records = bench.records("out");
    let steps: Vec<_> = records
        .iter()
        .filter(|record| record["learning_rate"].is_number())
        .collect();
    assert_eq!(steps.len(), 3, "{records:?}");
    for record in steps {
        assert!(record.get("loss").is_none(), "{record}");
        assert!(!record["skipped_steps"].is_null(), "{record}");
    }
    let note = "no loss is logged at step 1: all steps since the last record were skipped";
    assert_eq!(run.stderr.matches(note).count(), 1, "{}", run.stderr);
}
