//! "Did you mean": the nearest known name to a mistyped one, or nothing when none is so near that only
//! a slip of the finger lies between them: a wrong suggestion costs more than none.

use strsim::damerau_levenshtein;

/// The known name nearest to `word`; hyphens and underscores count as equal, and so does case.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = normal(word);
    let known: Vec<&str> = known.collect();
    let slips = known
        .iter()
        .filter_map(|name| Some((slips(&word, &normal(name))?, *name)));
    // The first of equals wins.
    if let Some((_, name)) = slips.min_by_key(|(distance, _)| *distance) {
        return Some(name);
    }
    // A name that is typed only in part (`epochs`) is far by edits; where several names have that part
    // nobody knows which is meant.
    let mut parts = known
        .into_iter()
        .filter(|name| is_part(&word, &normal(name)));
    parts.next().filter(|_| parts.next().is_none())
}

fn normal(name: &str) -> String {
    name.replace('-', "_").to_lowercase()
}

/// The edits between a mistyped name and the one that is meant; `None` if they are too many for slips.
fn slips(word: &str, name: &str) -> Option<usize> {
    let distance = damerau_levenshtein(word, name);
    let length = word.chars().count().max(name.chars().count());
    let most = match length {
        0..=2 => 0,
        3..=7 => 1,
        8..=11 => 2,
        _ => 3,
    };
    let (words, names) = (word.split('_'), name.split('_'));
    let is_aligned = words.clone().count() == names.clone().count();
    let are_slips = !is_aligned || words.zip(names).all(|(word, name)| is_slip(word, name));
    (distance <= most && are_slips).then_some(distance)
}

/// Whether one word of a name is another one, mistyped. Another letter makes another word of a short
/// one: `eos` is no `hub`, `gpu` no `cpu` and `bart` no `bert`.
fn is_slip(word: &str, name: &str) -> bool {
    let length = |text: &str| text.chars().count();
    let most = if length(word).max(length(name)) < 8 {
        1
    } else {
        2
    };
    let sorted = |text: &str| {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters
    };
    let is_short = length(word) <= 4 && length(word) == length(name);
    word == name
        || damerau_levenshtein(word, name) <= most && (!is_short || sorted(word) == sorted(name))
}

/// Whether a name has these whole words at its beginning or end.
fn is_part(word: &str, name: &str) -> bool {
    word.len() >= 4
        && (name.ends_with(&format!("_{word}")) || name.starts_with(&format!("{word}_")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 12] = [
        "learning_rate",
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "num_train_epochs",
        "warmup_ratio",
        "hub_token",
        "model_type",
        "max_steps",
        "cpu",
        "bert",
        "mlm",
        "roberta",
    ];

    #[test]
    fn slips_are_found() {
        for (typed, meant) in [
            ("learning-rte", "learning_rate"),
            ("learningrate", "learning_rate"),
            ("Learning_Rate", "learning_rate"),
            ("leraning_rate", "learning_rate"),
            ("per_device_train_batchsize", "per_device_train_batch_size"),
            ("epochs", "num_train_epochs"),
            ("warmup", "warmup_ratio"),
            ("hub_tokens", "hub_token"),
            ("model_typ", "model_type"),
            ("mml", "mlm"),
            ("brt", "bert"),
            ("roberts", "roberta"),
        ] {
            assert_eq!(nearest(typed, KNOWN.into_iter()), Some(meant), "{typed}");
        }
    }

    #[test]
    fn no_hint_is_better_than_a_wrong_one() {
        for typed in [
            "zzz",
            "eos_token",
            "pad_token",
            "loss_type",
            "min_steps",
            "num_steps",
            "gpu",
            "bart",
            "clm",
            "deberta_v2",
            "batch_size",
            "train_file",
            "lr",
            "",
        ] {
            assert_eq!(nearest(typed, KNOWN.into_iter()), None, "{typed}");
        }
    }
}
