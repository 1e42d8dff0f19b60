//! What the Trainer prints, found in a log: Python dictionaries of numbers, and the progress bar's
//! `50/500 [00:12<01:48, 4.1it/s]`. And what SageMaker's Python SDK adds at the end of a job.

/// The records of a line, each as key and value. Numbers may be written as strings, as newer
/// Trainers do; what is no number is left out.
pub fn records(line: &str) -> Vec<Vec<(String, f64)>> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some(start) = rest.find('{') {
        let text = &rest[start..];
        match dictionary(text) {
            Ok((values, length)) => {
                if values.iter().any(|(key, _)| is_logged(key)) {
                    found.push(values);
                }
                rest = &text[length..];
            }
            // Not from the next character on: lines may be long.
            Err(read) => rest = &text[read.max(1)..],
        }
    }
    found
}

/// Whether a line begins a record and does not end it: it was cut off.
pub fn is_cut_off(line: &str) -> bool {
    let start = [
        "{'loss'",
        "{'eval_",
        "{'train_runtime'",
        "{\"loss\"",
        "{\"eval_",
    ];
    let begun = start.iter().filter_map(|start| line.rfind(start)).max();
    begun.is_some_and(|at| dictionary(&line[at..]).is_err())
}

/// Keys that only a Trainer's record has.
fn is_logged(key: &str) -> bool {
    key == "loss" || key == "train_runtime" || key == "train_loss" || key.starts_with("eval_")
}

/// The dictionary that `text` begins with, and its length; if it is none of plain values, how far
/// it was read: no other one begins before that.
fn dictionary(text: &str) -> Result<(Vec<(String, f64)>, usize), usize> {
    let mut at = 1;
    let mut values = Vec::new();
    let skip = |mut at: usize, c: char| {
        while text[at..].starts_with(c) {
            at += c.len_utf8();
        }
        at
    };
    loop {
        at = skip(at, ' ');
        if text[at..].starts_with('}') {
            return Ok((values, at + 1));
        }
        let (key, length) = quoted(&text[at..]).ok_or(at)?;
        at = skip(at + length, ' ');
        at = skip(at + text[at..].strip_prefix(':').map(|_| 1).ok_or(at)?, ' ');
        let (value, length) = match quoted(&text[at..]) {
            Some((value, length)) => (value, length),
            None => {
                let length = text[at..].find([',', '}', '{']).ok_or(at)?;
                if text[at + length..].starts_with('{') {
                    return Err(at + length);
                }
                (text[at..at + length].trim(), length)
            }
        };
        values.extend(number(value).map(|value| (key.to_string(), value)));
        at = skip(at + length, ' ');
        if let Some(rest) = text[at..].strip_prefix(',') {
            at = text.len() - rest.len();
        }
    }
}

/// The quoted text that `text` begins with, and its length with the quotes.
fn quoted(text: &str) -> Option<(&str, usize)> {
    let quote = text.chars().next().filter(|c| *c == '\'' || *c == '"')?;
    let end = text[1..].find(quote)? + 1;
    Some((&text[1..end], end + 1))
}

/// A number as Python prints it.
fn number(text: &str) -> Option<f64> {
    match text {
        "nan" | "NaN" => Some(f64::NAN),
        "inf" | "Infinity" => Some(f64::INFINITY),
        "-inf" | "-Infinity" => Some(f64::NEG_INFINITY),
        _ => text.parse().ok().filter(|value: &f64| value.is_finite()),
    }
}

/// The time that SageMaker charges for a job, times its instances, if a line says it:
/// `Billable seconds: 262`.
pub fn billable_seconds(line: &str) -> Option<f64> {
    let (_, after) = line.split_once("Billable seconds:")?;
    let seconds = number(after.split_whitespace().next()?)?;
    (seconds.is_finite() && seconds > 0.0).then_some(seconds)
}

/// What a progress bar shows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    pub done: f64,
    pub total: f64,
    /// Seconds since it began.
    pub elapsed: f64,
}

/// The training's progress bar, if a line (between two carriage returns) is one. Bars of other work,
/// such as `Loading weights: 100%|███| 24/24 [...]`, have a name.
pub fn bar(line: &str) -> Option<Bar> {
    // A launcher may put `[rank 0]` before the line.
    let (before, after) = line.rsplit_once(" [")?;
    let (elapsed, _) = after.split_once(['<', ',', ']'])?;
    let count = before.rsplit([' ', '|']).next()?;
    let (done, total) = count.split_once('/')?;
    if has_name(before) {
        return None;
    }
    Some(Bar {
        done: done.parse().ok()?,
        total: total.parse().ok()?,
        elapsed: clock(elapsed)?,
    })
}

/// Whether a bar, of which `text` is the beginning, has a name: words and a colon before its
/// percentage. What a launcher adds in brackets is none.
fn has_name(text: &str) -> bool {
    let text = text.split_once('%').map_or(text, |(before, _)| before);
    let name = text.trim_end_matches(|c: char| c.is_ascii_digit() || "./ |".contains(c));
    let Some(name) = name.strip_suffix(':') else {
        return false;
    };
    // `Map (num_proc=4)`
    let end = name.strip_suffix(')').and_then(|inside| inside.rfind('('));
    let name = &name[..end.unwrap_or(name.len())];
    let own = name.rsplit([']', '>', ')']).next().unwrap_or_default();
    own.chars().any(char::is_alphabetic)
}

/// `00:12`, `1:02:03`.
fn clock(text: &str) -> Option<f64> {
    text.split(':')
        .try_fold(0.0, |sum, part| {
            let part: f64 = part.trim().parse().ok()?;
            Some(sum * 60.0 + part)
        })
        .filter(|_| text.contains(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Vec<Vec<(String, f64)>> {
        records(line)
    }

    #[test]
    fn dictionaries_are_read_in_both_forms() {
        let expected = [("loss", 5.1), ("learning_rate", 5e-5), ("epoch", 0.1)];
        for line in [
            "{'loss': 5.1, 'learning_rate': 5e-05, 'epoch': 0.1}",
            "{'loss': '5.1', 'learning_rate': '5e-05', 'epoch': '0.1'}",
            "[rank 0] {'loss': 5.1, 'name': 'x', 'learning_rate': 5e-05, 'epoch': 0.1}  2%|",
            "{\"loss\": 5.1, \"learning_rate\": 5e-05, \"epoch\": 0.1, \"none\": None}",
        ] {
            let expected = expected.map(|(key, value)| (key.to_string(), value));
            assert_eq!(of(line), [expected.to_vec()], "{line}");
        }
        assert!(of("{'loss': nan}")[0][0].1.is_nan());
        assert_eq!(of("{'loss': 1.0}{'loss': 2.0}").len(), 2);
    }

    /// Lines may be as long as a file. Each of these took a time that grew with its square.
    #[test]
    fn long_lines_take_no_longer_than_their_length() {
        for piece in [
            "{'a':",
            "{'",
            "{'a': 1, ",
            "{\"'{\":\"'\",'{\"':",
            "{{",
            "{'a':{",
            "{'a' ",
        ] {
            let start = std::time::Instant::now();
            assert!(of(&piece.repeat(1 << 19)).is_empty(), "{piece}");
            let spent = start.elapsed();
            assert!(spent.as_secs() < 5, "{piece}: {spent:?}");
        }
    }

    #[test]
    fn other_braces_are_left_alone() {
        for line in [
            "{}",
            "{'a': 1}",
            "config: {'n': {'loss': 3}",
            "{'loss': 3.1, 'grad",
            "{'loss'",
            "{'loss': ",
            "{é: 'loss'}",
        ] {
            let found = of(line);
            assert!(
                found.len() <= usize::from(line.contains("'n'")),
                "{line}: {found:?}"
            );
        }
        assert!(is_cut_off("{'loss': 3.1, 'grad") && !is_cut_off("{'loss': 3.1}"));
    }

    #[test]
    fn bills_are_read() {
        for (line, seconds) in [
            ("Billable seconds: 262", Some(262.0)),
            ("[1,mpirank:0] Billable seconds: 1109\t", Some(1109.0)),
            ("Training seconds: 874", None),
            ("Billable seconds:", None),
            ("Billable seconds: none", None),
            ("Billable seconds: 0", None),
            ("Billable seconds: inf", None),
        ] {
            assert_eq!(billable_seconds(line), seconds, "{line}");
        }
    }

    #[test]
    fn bars_are_read() {
        let bar = |line| super::bar(line).map(|bar| (bar.done, bar.total, bar.elapsed));
        assert_eq!(
            bar(" 10%|█         | 50/500 [00:12<01:48,  4.13it/s]"),
            Some((50.0, 500.0, 12.0))
        );
        assert_eq!(
            bar("100%|██████████| 500/500 [1:02:03<00:00,  4.1it/s]"),
            Some((500.0, 500.0, 3723.0))
        );
        for before in [
            "",
            "[rank 0] ",
            "[default0]:",
            "[1,0]<stderr>: ",
            "2026-01-02T03:04:05Z ",
        ] {
            let line = format!("{before} 10%|█         | 50/500 [00:12<01:48,  4.13it/s]");
            let found = super::bar(&line).unwrap();
            assert_eq!((found.done, found.total), (50.0, 500.0), "{before}");
        }
        // transformers 5 and datasets have bars of their own.
        for name in [
            "Loading weights",
            "Map (num_proc=4)",
            "Running tokenizer on dataset",
            "Loading checkpoint shards",
        ] {
            for rest in [
                "100%|██████████| 24/24 [00:00<00:00, 1520.92it/s]",
                " 24/24 [00:00<00:00, 90.1it/s]",
            ] {
                assert_eq!(super::bar(&format!("{name}: {rest}")), None, "{name}");
            }
        }
        assert_eq!(
            bar(
                "Loading weights: 100%|███| 24/24 [00:00<00:00, 1520.92it/s, Materializing param=model.norm.weight]"
            ),
            None
        );
        assert_eq!(bar("Epoch [3/4]"), None);
        assert_eq!(bar("loss 3/4 [x]"), None);
    }
}
