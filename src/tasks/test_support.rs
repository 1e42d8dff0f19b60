//! What the tests of tasks share: sets and rows from settings, without a model.

use super::*;
use xtrain_data::{Error, Rows};

/// The context of a task for tests, whose length and labels the test decides.
pub fn context(
    task: &dyn Task,
    tokenizer: &Tokenizer,
    length: usize,
    labels: Option<&LabelMap>,
) -> Context {
    let named = task.labelled().and_then(Labelled::named);
    Context {
        tokenizer: tokenizer.clone(),
        length,
        vocabulary: 1 << 16,
        labels: labels.map(|map| RunLabels {
            map: map.clone(),
            given: named.is_some(),
        }),
        quiet: true,
        spaces_words: false,
    }
}

/// The labels of a task: those named, or those of the training files.
pub fn labels(task: &dyn Labelled) -> Result<LabelMap> {
    task.named()
        .map_or_else(|| task.of_data(), |named| Ok(named.clone()))
}

/// A split's packed rows.
pub fn packed(task: &dyn Task, split: Split, tokenizer: &Tokenizer, length: usize) -> Result<Rows> {
    let rows = set(task, &context(task, tokenizer, length, None), split)?.rows;
    assert!(rows.is_packed());
    Ok(rows)
}

/// A split's examples.
pub fn examples(
    task: &dyn Task,
    split: Split,
    tokenizer: &Tokenizer,
    labels: Option<&LabelMap>,
    length: usize,
) -> Result<Rows, Error> {
    let rows = set(task, &context(task, tokenizer, length, labels), split)?.rows;
    assert!(!rows.is_packed());
    Ok(rows)
}

/// Whether every example has its label.
pub fn has_labels(examples: &Rows) -> bool {
    (0..examples.len()).all(|row| examples.row(row).unwrap().label.is_some())
}

/// Examples as a set.
pub fn collator(
    task: &dyn Task,
    tokenizer: &Tokenizer,
    labels: Option<&LabelMap>,
    length: usize,
    examples: Rows,
) -> Result<Set> {
    let recipe = task.recipe(&context(task, tokenizer, length, labels), true)?;
    Ok(Set::new(examples, recipe))
}

/// Lines that a recipe reads of a file.
pub fn lines(task: &dyn Task, tokenizer: &Tokenizer, files: &[PathBuf]) -> Result<Vec<String>> {
    let recipe = task.recipe(&context(task, tokenizer, 16, None), true)?;
    Samples::new(files, &*recipe, task.source().table.on_bad_row)
        .map(|sample| sample.map(|mut sample| sample.texts.remove(0)))
        .collect()
}
