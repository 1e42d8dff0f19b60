//! Fine-tunes a saved model with an objective of one's own: the focal loss (Lin et al. 2017), a
//! cross-entropy in which a token counts the less the surer the model is of it.
//!
//! `cargo run --release --example own_objective -- MODEL_DIR TEXT_FILE OUTPUT_DIR [FLAG...]`, where
//! the flags are those of `xtrain train clm`.

use std::sync::Arc;
use xtrain::engine::Run;
use xtrain_models::{Feed, Forward, NextToken, Objective, Outcome, Result};

/// `(1 - p)^2` times the cross-entropy of the next token, whose probability is `p`.
#[derive(Debug)]
struct Focal(NextToken);

impl Objective for Focal {
    /// The labels that the task makes.
    fn feeds(&self, rows: usize, tokens: usize) -> Vec<Feed> {
        self.0.feeds(rows, tokens)
    }

    fn measures(&self) -> &[&'static str] {
        &["cross_entropy"]
    }

    fn record(&self, step: &Forward<'_>) -> Result<Outcome> {
        let plain = self.0.record(step)?;
        let losses = plain.predictions.cross_entropies()?;
        let probability = losses.mul_scalar(-1.0)?.exp()?;
        let unsure = probability.mul_scalar(-1.0)?.add_scalar(1.0)?;
        let focal = losses.mul(&unsure)?.mul(&unsure)?;
        let loss = plain.predictions.sum(&focal)?;
        Ok(Outcome {
            loss: loss.measuring(&[plain.loss.sum])?,
            ..plain
        })
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, output, flags @ ..] = &words[..] else {
        return Err("usage: own_objective MODEL_DIR TEXT_FILE OUTPUT_DIR [FLAG...]".into());
    };
    let train = [
        "clm",
        "--model_name_or_path",
        model,
        "--train_file",
        text,
        "--output_dir",
        output,
        "--do_train",
        "--do_eval",
    ];
    let flags = flags.iter().map(String::as_str);

    let mut run = Run::from_args(train.into_iter().chain(flags))?;
    run.task.objective = Arc::new(Focal(NextToken::default()));
    for when in ["before", "after"] {
        if when == "after" {
            run.train(None, Vec::new())?;
        }
        let found = run.evaluate()?;
        let plain = found.metric("cross_entropy").unwrap_or(f64::NAN);
        println!("{when} focal {:.4} cross_entropy {plain:.4}", found.loss);
    }
    Ok(())
}
