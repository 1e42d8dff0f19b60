//! Fine-tunes a saved model on a text file, and evaluates it before and after.
//!
//! `cargo run --release --example finetune -- MODEL_DIR TEXT_FILE OUTPUT_DIR [FLAG...]`, where the
//! flags are those of `xtrain train clm`, `--data_parallel 2` for example.

use xtrain::engine::Run;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, output, flags @ ..] = &words[..] else {
        return Err("usage: finetune MODEL_DIR TEXT_FILE OUTPUT_DIR [FLAG...]".into());
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
        "--num_train_epochs",
        "1",
    ];
    let flags = flags.iter().map(String::as_str);

    let mut run = Run::from_args(train.into_iter().chain(flags))?;
    let before = run.evaluate()?;
    run.train(None, Vec::new())?;
    let after = run.evaluate()?;
    println!(
        "validation loss {:.4} before, {:.4} after; the model is in {output}",
        before.loss, after.loss
    );
    Ok(())
}
