//! `xtrain quickstart`: from nothing to a trained model and a sample of its text in a few minutes.

use super::{Error, Outcome, corpus, generate, train};
use std::ffi::OsString;
use std::path::Path;
use xtrain_checkpoint::atomic;
use xtrain_config::{
    self as config, Command, GeneratePlan, Invocation, QuickstartPlan, RunPlan, UsageError,
};
use xtrain_data::tokenizer::train_byte_bpe;
use xtrain_engine::failed;
use xtrain_models::EXAMPLE_PRESET;
use xtrain_report::outln;

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
    outln!(
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
    outln!(
        "2. tokenizer: byte-level BPE with {} tokens, trained on it",
        tokenizer.vocab_size()
    );

    let train_plan = train_plan(&plan, &text, &tokenizer_dir)?;
    let steps = plan.max_steps.unwrap_or(STEPS);
    outln!(
        "3. training: GPT-2 with 4 layers, 192 wide, {steps} steps of {BATCH_SIZE} x {BLOCK_SIZE} tokens"
    );
    let outcome = train::run(train_plan)?;
    if outcome != Outcome::Done {
        return Ok(outcome);
    }

    outln!("4. a sample, continuing {PROMPT:?}:\n");
    let settings = format!(
        "generate --max_new_tokens 80 --temperature 0.7 --top_k 40 --seed {}",
        plan.seed
    );
    let paths = [
        ("--model_name_or_path", &**dir),
        ("--prompt", Path::new(PROMPT)),
    ];
    let Command::Generate(generated) = resolved(&settings, &paths)? else {
        unreachable!("the words say generate")
    };
    generate::run(GeneratePlan {
        device: plan.device,
        cache: plan.cache,
        ..generated
    })?;

    let dir = dir.display();
    outln!(
        "\nThe model is a Hugging Face directory: {dir}. What to try next:\n\
         \x20 xtrain generate --model_name_or_path {dir} --prompt \"Good morning, Wilma\"\n\
         \x20 xtrain train clm --model_name_or_path {dir} --train_file YOUR.txt --output_dir output/mine\n\
         \x20 xtrain train clm --help"
    );
    Ok(Outcome::Done)
}

/// The training run, from the command line that a user would write for it.
fn train_plan(plan: &QuickstartPlan, text: &Path, tokenizer: &Path) -> Result<RunPlan, UsageError> {
    let steps = plan.max_steps.unwrap_or(STEPS);
    let (logging_steps, save_steps) = (steps.div_ceil(10).max(1), steps.div_ceil(2).max(1));
    // A corpus this small with a model this small: dropout only slows learning down.
    let settings = format!(
        "train clm --config_name {EXAMPLE_PRESET} \
         --config_overrides n_layer=4,n_head=6,n_embd=192,n_positions={},embd_pdrop=0.0,attn_pdrop=0.0,resid_pdrop=0.0 \
         --do_train --do_eval --block_size {BLOCK_SIZE} --per_device_train_batch_size {BATCH_SIZE} \
         --per_device_eval_batch_size {BATCH_SIZE} --max_steps {steps} --num_train_epochs 1 --learning_rate 1e-3 \
         --weight_decay 0.01 --lr_scheduler_type cosine --warmup_ratio 0.05 --logging_steps {logging_steps} \
         --logging_first_step --save_steps {save_steps} --save_total_limit 1 --dataloader_num_workers 1 \
         --gradient_bucket_mb 0 --replica_check_steps 0 --overwrite_output_dir --seed {} --disable_tqdm={}",
        2 * BLOCK_SIZE,
        plan.seed,
        plan.disable_tqdm,
    );
    let cached = plan.output_dir.join("tokenized");
    let paths = [
        ("--train_file", text),
        ("--tokenizer_name", tokenizer),
        ("--output_dir", &*plan.output_dir),
        ("--cache_dir", &*cached),
    ];
    let Command::Train(train) = resolved(&settings, &paths)? else {
        unreachable!("the words say train")
    };
    Ok(RunPlan {
        // As its own flags say.
        device: plan.device.clone(),
        cache: plan.cache.clone(),
        ..train
    })
}

/// The plan of a command line: words without blanks, then flags with paths.
fn resolved(words: &str, paths: &[(&str, &Path)]) -> Result<Command, UsageError> {
    let words = std::iter::once("xtrain").chain(words.split_whitespace());
    let paths = paths
        .iter()
        .flat_map(|(flag, path)| [OsString::from(flag), path.into()]);
    match config::from_args(words.map(OsString::from).chain(paths))? {
        Invocation::Run { command, .. } => Ok(command),
        Invocation::Print(_) => unreachable!("the words ask for no help"),
    }
}
