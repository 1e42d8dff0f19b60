//! `xtrain quickstart`: from nothing to a trained model and a sample of its text in a few minutes.

use super::{Error, Outcome, corpus, generate, train};
use crate::checkpoint::atomic;
use crate::config::{
    ConfigSource, GeneratePlan, ModelSource, QuickstartPlan, Sampling, TaskPlan, TokenizerSource,
    TrainPlan,
};
use crate::data::settings::SourceSettings;
use crate::data::tokenizer::train_byte_bpe;
use crate::engine::failed;
use crate::parallel::{Mesh, PipelineSchedule};
use crate::tasks::ClmDataSettings;
use crate::trainer::settings::{
    Cadence, Checkpointing, OptimizerKind, OptimizerSettings, Precision, Resume, ScheduleKind,
    TrainSettings,
};
use std::path::Path;

/// Tokens of the tokenizer that is trained on the corpus.
const VOCABULARY: usize = 2048;
const BLOCK_SIZE: usize = 128;
const BATCH_SIZE: usize = 16;
/// Enough for the stories' rules to show; about two minutes on two cores.
const STEPS: u64 = 400;
/// A person of the corpus, so that the reader can tell whether the model learned who likes what.
const PROMPT: &str = "Petra wanted to see Mara, who lives in";

pub fn run(plan: QuickstartPlan) -> Result<Outcome, Error> {
    let dir = &plan.output_dir;
    std::fs::create_dir_all(dir).map_err(failed("creating --output_dir"))?;
    let text = dir.join("corpus.txt");
    atomic::write_bytes(&text, corpus::TEXT.as_bytes()).map_err(failed("writing the corpus"))?;
    println!(
        "1. corpus: {} KB of generated stories in {}",
        corpus::TEXT.len() / 1000,
        text.display()
    );

    let lines: Vec<&str> = corpus::TEXT.lines().collect();
    let tokenizer = train_byte_bpe(&lines, VOCABULARY).map_err(failed("training the tokenizer"))?;
    let tokenizer_dir = dir.join("tokenizer");
    tokenizer
        .save(&tokenizer_dir)
        .map_err(failed("saving the tokenizer"))?;
    println!(
        "2. tokenizer: byte-level BPE with {} tokens, trained on it",
        tokenizer.vocab_size()
    );

    let train_plan = train_plan(&plan, &text, &tokenizer_dir);
    let steps = plan.max_steps.unwrap_or(STEPS);
    println!(
        "3. training: GPT-2 with 4 layers, 192 wide, {steps} steps of {BATCH_SIZE} x {BLOCK_SIZE} tokens"
    );
    let outcome = train::run(train_plan)?;
    if outcome != Outcome::Done {
        return Ok(outcome);
    }

    println!("4. a sample, continuing {PROMPT:?}:\n");
    generate::run(GeneratePlan {
        device: plan.device.clone(),
        cache: plan.cache.clone(),
        model: dir.clone(),
        tokenizer: dir.clone(),
        prompt: PROMPT.to_string(),
        max_new_tokens: 80,
        sampling: Sampling::Random {
            temperature: 0.7,
            top_k: Some(40),
        },
        seed: plan.seed,
    })?;

    let dir = dir.display();
    println!(
        "\nThe model is a Hugging Face directory: {dir}. What to try next:\n\
         \x20 xtrain generate --model_name_or_path {dir} --prompt \"Good morning, Wilma\"\n\
         \x20 xtrain train clm --model_name_or_path {dir} --train_file YOUR.txt --output_dir output/mine\n\
         \x20 xtrain train clm --help"
    );
    Ok(Outcome::Done)
}

fn train_plan(plan: &QuickstartPlan, text: &Path, tokenizer: &Path) -> TrainPlan {
    let overrides = [
        ("n_layer", 4),
        ("n_head", 6),
        ("n_embd", 192),
        ("n_positions", 2 * BLOCK_SIZE),
    ];
    let mut overrides: Vec<_> = overrides
        .iter()
        .map(|(key, n)| (key.to_string(), (*n).into()))
        .collect();
    // A corpus this small with a model this small: dropout only slows learning down.
    overrides.extend(
        ["embd_pdrop", "attn_pdrop", "resid_pdrop"].map(|key| (key.to_string(), 0.0.into())),
    );
    let steps = plan.max_steps.unwrap_or(STEPS);
    TrainPlan {
        target: None,
        compare: None,
        device: plan.device.clone(),
        cache: plan.cache.clone(),
        model: ModelSource::Scratch {
            model_type: None,
            config: ConfigSource::Preset(xtrain_models::EXAMPLE_PRESET),
            overrides,
        },
        tokenizer: TokenizerSource {
            path: tokenizer.to_path_buf(),
            lower_case: None,
        },
        task: TaskPlan::Clm(ClmDataSettings {
            source: SourceSettings {
                train_files: vec![text.to_path_buf()],
                validation_split_percentage: 5.0,
                dataloader_num_workers: 1,
                cache_dir: plan.output_dir.join("tokenized"),
                seed: plan.seed,
                ..SourceSettings::default()
            },
            block_size: Some(BLOCK_SIZE),
        }),
        ignore_mismatched_sizes: false,
        train: TrainSettings {
            output_dir: plan.output_dir.clone(),
            seed: plan.seed,
            per_device_train_batch_size: BATCH_SIZE,
            per_device_eval_batch_size: BATCH_SIZE,
            gradient_accumulation_steps: 1,
            mesh: Mesh::single(),
            pipeline_schedule: PipelineSchedule::default(),
            sequence_parallel: false,
            shard_optimizer_state: false,
            gradient_bucket_bytes: 0,
            checkpointing: Checkpointing::Off,
            replica_check: Cadence::Never,
            num_train_epochs: 1.0,
            max_steps: Some(steps),
            precision: Precision::F32,
            eval_precision: Precision::F32,
            optimizer: OptimizerSettings {
                schedule: ScheduleKind::Cosine,
                warmup_steps: None,
                warmup_ratio: 0.05,
                ..OptimizerSettings::constant(OptimizerKind::AdamW, 1e-3)
            },
            logging: Cadence::Steps(steps.div_ceil(10).max(1)),
            logging_first_step: true,
            save: Cadence::Steps(steps.div_ceil(2).max(1)),
            save_total_limit: Some(1),
            max_shard_size: 5_000_000_000,
            best: None,
            eval: Cadence::Never,
            dataloader_drop_last: false,
            resume: Resume::No,
            disable_tqdm: plan.disable_tqdm,
        },
        do_train: true,
        do_eval: true,
        do_predict: false,
        overwrite_output_dir: true,
        dry_run: false,
        json: false,
        auto_batch: false,
        memory: None,
    }
}
