//! `--preview`, also `xtrain data preview`: examples as the training would see them, token by token, those
//! that count in the loss marked; and what all of them count. Nothing is trained or kept.

use super::{Error, Outcome};
use serde_json::{Value, json};
use xtrain_config::RunPlan;
use xtrain_data::survey::{Counts, Survey};
use xtrain_data::{Batch, HostLabels, Position, Tokenizer};
use xtrain_engine::failed;
use xtrain_engine::task::{Purpose, load_task};
use xtrain_models::IGNORED_LABEL;
use xtrain_report::outln;
use xtrain_report::table::Table;
use xtrain_report::terminal::{Tone, has_colors, paint};
use xtrain_report::units::exact;
use xtrain_trainer::parameters::Head;

/// What stands between tokens, and around those that count.
const BETWEEN: &str = "|";
const OPEN: &str = "[[";
const CLOSE: &str = "]]";

/// A token of an example.
struct Token {
    id: u32,
    text: String,
    /// It counts in the loss.
    is_trained: bool,
    /// The token to predict, where it is another one (of a mask).
    label: Option<u32>,
    /// Its place in its own example.
    position: usize,
}

pub(super) fn run(plan: RunPlan, most: usize) -> Result<Outcome, Error> {
    let (_, task, tokenizer) = load_task(&plan, Purpose::Train, Head::NewIfMissing)?;
    let batch = plan.train.per_device_train_batch_size;
    let found = task.survey(most, batch)?;
    let examples = examples(&found, &tokenizer)?;
    if *plan.train.flags.json {
        let tokens: Vec<Value> = examples.iter().map(|rows| rows_json(rows)).collect();
        outln!(
            "{}",
            json!({"task": plan.task.name(), "examples": tokens, "counts": counts_json(&found.counts)})
        );
        return Ok(Outcome::Done);
    }
    for (number, rows) in examples.iter().enumerate() {
        for (part, tokens) in rows.iter().enumerate() {
            let trained = tokens.iter().filter(|token| token.is_trained).count();
            let of = match rows.len() {
                1 => String::new(),
                parts => format!(", row {} of {parts}", part + 1),
            };
            let head = format!(
                "example {}{of}: {} tokens, {trained} trained",
                number + 1,
                tokens.len()
            );
            outln!("{}", paint(&std::io::stdout(), Tone::Heading, &head));
            outln!("{}\n", line(tokens, has_colors(&std::io::stdout())));
        }
    }
    outln!("{}", table(&found.counts, batch));
    Ok(Outcome::Done)
}

/// The rows of each example with their tokens.
fn examples(found: &Survey, tokenizer: &Tokenizer) -> Result<Vec<Vec<Vec<Token>>>, Error> {
    let set = &found.first;
    let example = |number: usize| {
        let batch = set.batch(&[number as u32], 1, Position::default());
        let batch = batch.map_err(failed("making a batch"))?;
        let rows = batch.input_ids.nrows();
        Ok((0..rows)
            .map(|row| tokens(&batch, row, tokenizer))
            .collect())
    };
    (0..set.len()).map(example).collect()
}

/// The tokens of a batch's row, without its padding.
fn tokens(batch: &Batch, row: usize, tokenizer: &Tokenizer) -> Vec<Token> {
    let ids = batch.input_ids.row(row);
    // Of a row of several examples, what follows the tokens is padding.
    let is_seen = |column: usize| match &batch.attention_mask {
        Some(mask) => mask[[row, column]],
        None => batch.position_ids.is_none() || column < batch.tokens,
    };
    let label = |column: usize| match &batch.labels {
        HostLabels::Tokens(labels) => {
            let label = labels[[row, column]];
            (label != IGNORED_LABEL as i32).then_some(label as u32)
        }
        HostLabels::Classes(_) | HostLabels::Numbers(_) => None,
    };
    let position = |column: usize| match &batch.position_ids {
        Some(positions) => positions[[row, column]] as usize,
        None => column,
    };
    let columns: Vec<usize> = (0..ids.len()).filter(|column| is_seen(*column)).collect();
    let first = columns.first().copied().unwrap_or(0);
    let seen: Vec<u32> = columns.iter().map(|column| ids[*column] as u32).collect();
    let texts = texts(&seen, tokenizer);
    let columns = columns.into_iter().zip(texts);
    columns
        .map(|(column, text)| {
            let id = ids[column] as u32;
            let label = label(column);
            // A causal label on the first token predicts nothing.
            let is_first = column == first && label == Some(id);
            Token {
                id,
                text,
                is_trained: label.is_some() && !is_first,
                label: label.filter(|label| *label != id),
                position: position(column),
            }
        })
        .collect()
}

/// The text of each token as it stands in the whole; of a character that several tokens make, the last one
/// has it.
fn texts(ids: &[u32], tokenizer: &Tokenizer) -> Vec<String> {
    /// Tokens that one character may take.
    const MOST: usize = 8;
    let decode = |ids: &[u32]| tokenizer.decode(ids, false).unwrap_or_default();
    let mut texts = Vec::with_capacity(ids.len());
    // The first token of those whose text is not whole yet.
    let mut from = 0_usize;
    for end in 1..=ids.len() {
        // The token before it shows whether a space stands between.
        let before = from.saturating_sub(1);
        let (head, all) = (decode(&ids[before..from]), decode(&ids[before..end]));
        let text = match all.strip_prefix(head.as_str()) {
            Some(text) => text.to_string(),
            None => decode(&ids[from..end]),
        };
        let is_whole = !text.ends_with('\u{fffd}') || end - from >= MOST || end == ids.len();
        texts.push(if is_whole { text } else { String::new() });
        if is_whole {
            from = end;
        }
    }
    texts
}

/// Tokens as one line.
fn line(tokens: &[Token], has_colors: bool) -> String {
    let mut line = String::new();
    for (at, token) in tokens.iter().enumerate() {
        let is_trained = |at: Option<usize>| {
            let token = at.and_then(|at| tokens.get(at));
            token.is_some_and(|token| token.is_trained)
        };
        if at > 0 {
            line.push_str(BETWEEN);
        }
        let mut text = shown(&token.text);
        if let Some(label) = token.label {
            text.push_str(&format!("->{label}"));
        }
        if has_colors {
            let painted = paint(&std::io::stdout(), Tone::Good, &text);
            line.push_str(if token.is_trained { &painted } else { &text });
            continue;
        }
        if token.is_trained && !is_trained(at.checked_sub(1)) {
            line.push_str(OPEN);
        }
        line.push_str(&text);
        if token.is_trained && !is_trained(Some(at + 1)) {
            line.push_str(CLOSE);
        }
    }
    line
}

/// A text without what would break or move a line.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

fn rows_json(rows: &[Vec<Token>]) -> Value {
    let token = |token: &Token| {
        let mut value = json!({
            "id": token.id,
            "text": token.text,
            "trained": token.is_trained,
            "position": token.position,
        });
        if let Some(label) = token.label {
            value["label"] = label.into();
        }
        value
    };
    let row = |tokens: &Vec<Token>| tokens.iter().map(token).collect::<Value>();
    rows.iter().map(row).collect()
}

fn padding(counts: &Counts) -> u64 {
    counts.padded.saturating_sub(counts.kept)
}

fn counts_json(counts: &Counts) -> Value {
    json!({
        "examples": counts.examples,
        "tokens": counts.tokens,
        "rows": counts.rows,
        "tokens_in_rows": counts.kept,
        "trained": counts.trained,
        "truncated": counts.truncated,
        "dropped": counts.dropped,
        "skipped": counts.skipped,
        "padding": padding(counts),
        "mixture": counts.mixture,
    })
}

fn table(counts: &Counts, batch: usize) -> String {
    let percent = |part: u64, all: u64| format!("{:.1} %", 100.0 * part as f64 / all.max(1) as f64);
    let mut table = Table::pairs();
    table.heading("all of the training set");
    let tokens = exact(counts.tokens);
    table.pair(
        "examples",
        format!("{}, {tokens} tokens", exact(counts.examples)),
    );
    table.pair(
        "rows",
        format!("{}, {} tokens", exact(counts.rows), exact(counts.kept)),
    );
    let share = percent(counts.trained, counts.kept);
    table.pair(
        "trained",
        format!("{} ({share} of the tokens)", exact(counts.trained)),
    );
    table.pair("truncated", exact(counts.truncated));
    table.pair(
        "without a row",
        format!("{} (nothing to learn in them)", exact(counts.dropped)),
    );
    if counts.skipped > 0 {
        table.pair("bad rows", format!("{} (left out)", exact(counts.skipped)));
    }
    let waste = percent(padding(counts), counts.padded);
    table.pair("padding", format!("{waste} of batches of {batch}"));
    if let Some(mixture) = &counts.mixture {
        table.pair("mixed", mixture.clone());
    }
    table.render()
}
