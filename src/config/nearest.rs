//! "Did you mean": the nearest known name to a mistyped one, or nothing when none is near enough to
//! be worth printing.

/// Below this similarity a suggestion confuses more than it helps.
const NEAR_ENOUGH: f64 = 0.6;

/// The known name nearest to `word`; hyphens and underscores count as equal, and so does case.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.replace('-', "_").to_ascii_lowercase();
    known
        .map(|name| (similarity(&word, &name.replace('-', "_")), name))
        .filter(|(similarity, _)| *similarity >= NEAR_ENOUGH)
        // The first of equals wins, so that the answer does not depend on how floats tie.
        .fold(None, |best: Option<(f64, &str)>, candidate| match best {
            Some(best) if best.0 >= candidate.0 => Some(best),
            _ => Some(candidate),
        })
        .map(|(_, name)| name)
}

/// Edit distance finds slips of the finger. A name that is typed only in part (`batch_size`,
/// `epochs`) is far by edits, so a whole-word part counts as near too.
fn similarity(word: &str, name: &str) -> f64 {
    let by_edits = strsim::normalized_damerau_levenshtein(word, name);
    let is_part = word.len() >= 4
        && (name.ends_with(&format!("_{word}")) || name.starts_with(&format!("{word}_")));
    if is_part { by_edits.max(0.7) } else { by_edits }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 5] = [
        "learning_rate",
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "num_train_epochs",
        "warmup_ratio",
    ];

    #[test]
    fn slips_are_found() {
        for (typed, meant) in [
            ("learning-rte", Some("learning_rate")),
            ("learningrate", Some("learning_rate")),
            (
                "per_device_train_batchsize",
                Some("per_device_train_batch_size"),
            ),
            ("epochs", Some("num_train_epochs")),
            ("batch_size", Some("per_device_train_batch_size")),
            ("warmup", Some("warmup_ratio")),
            ("zzz", None),
        ] {
            assert_eq!(nearest(typed, KNOWN.into_iter()), meant, "{typed}");
        }
    }
}
