//! Pairs, texts to score and single answers as rows, and what is wrong with a row. That rows equal
//! TRL's is in `tests/preferences.rs`.

use super::*;
use crate::test_support::context;
use crate::{PreferenceDataSettings, PreferenceLoss, ScoreDataSettings, Split, Task, set};
use std::fs;
use std::path::PathBuf;
use xtrain_data::Position;
use xtrain_models::{Kto, Preference, Reward};

fn tokenizer(dir: &Path, template: Option<&str>) -> Tokenizer {
    let data = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .join("tests/data/gpt2/tokenizer.json");
    let config = json!({"eos_token": "<|endoftext|>", "chat_template": template});
    fs::copy(data, dir.join("tokenizer.json")).unwrap();
    fs::write(dir.join("tokenizer_config.json"), config.to_string()).unwrap();
    let tokenizer = Tokenizer::load(dir).unwrap();
    tokenizer.with_pad_token("<|endoftext|>").unwrap()
}

fn settings(dir: &Path, rows: &[Value], form: Form, truncation: TruncationMode) -> AnswerSettings {
    let file = dir.join("rows.jsonl");
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    fs::write(&file, lines).unwrap();
    AnswerSettings {
        source: SourceSettings {
            train_files: vec![file],
            cache_dir: dir.join("cache"),
            ..SourceSettings::default()
        },
        max_seq_length: None,
        truncation,
        padding: PaddingSettings::default(),
        form,
    }
}

fn pairs(answers: AnswerSettings) -> PreferenceDataSettings {
    PreferenceDataSettings {
        answers,
        loss: PreferenceLoss::Pairs(Preference::default()),
    }
}

/// Of each row of each example, its text without padding and the text of its labels.
fn texts(task: &dyn Task, tokenizer: &Tokenizer, length: usize) -> Result<Vec<[String; 2]>> {
    let set = set(task, &context(task, tokenizer, length, None), Split::Train)?;
    let mut found = Vec::new();
    for example in 0..set.len() as u32 {
        let batch = set.batch(&[example], 2, Position::default()).unwrap();
        let each = set.rows_of_example();
        assert_eq!(batch.input_ids.nrows(), 2 * each);
        assert_eq!(batch.examples, 1);
        let mask = batch.attention_mask.as_ref().unwrap();
        let labels = batch.labels.tokens().unwrap();
        let counted = labels.iter().filter(|label| **label != -100).count();
        assert_eq!(
            batch.targets, counted,
            "rows that fill the batch have no label"
        );
        for row in 0..each {
            let tokens = mask.row(row).iter().filter(|it| **it).count();
            let ids = batch.input_ids.row(row).to_vec();
            let labels = labels.row(row).to_vec();
            let text = |ids: Vec<i32>| {
                let ids: Vec<u32> = ids.into_iter().map(|id| id as u32).collect();
                tokenizer.decode(&ids, false).unwrap()
            };
            let kept = labels.into_iter().filter(|label| *label != -100);
            found.push([text(ids[..tokens].to_vec()), text(kept.collect())]);
        }
    }
    Ok(found)
}

#[test]
fn a_pair_is_two_rows_whose_answers_have_labels() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer(dir.path(), None);
    let rows = [
        json!({"prompt": "The sky is", "chosen": " blue", "rejected": " green<|endoftext|>"}),
        // What both begin with, up to the space before the difference.
        json!({"chosen": "The sky is blue", "rejected": "The sky is green"}),
    ];
    for row in &rows {
        let rows = std::slice::from_ref(row);
        let task = pairs(settings(
            dir.path(),
            rows,
            Form::Pairs,
            TruncationMode::KeepStart,
        ));
        let found = texts(&task, &tokenizer, 64).unwrap();
        let end = "<|endoftext|>";
        let expected = [" blue", " green"]
            .map(|answer| [format!("The sky is{answer}{end}"), format!("{answer}{end}")]);
        assert_eq!(found, expected, "{row}");
    }
}

#[test]
fn what_is_too_long_is_cut_or_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer(dir.path(), None);
    let long = "one two three four five six seven eight";
    let rows = [
        json!({"prompt": "a", "chosen": format!(" {long}"), "rejected": " b"}),
        json!({"prompt": long, "chosen": " a", "rejected": " b"}),
    ];
    let made = |form, truncation| {
        let settings = settings(dir.path(), &rows, form, truncation);
        let task = pairs(settings);
        texts(&task, &tokenizer, 8).unwrap()
    };
    let start = made(Form::Pairs, TruncationMode::KeepStart);
    assert_eq!(
        start.len(),
        2,
        "the second prompt alone is as long: {start:?}"
    );
    assert!(start[0][0].starts_with("a one") && !start[0][0].contains("eight"));
    let end = made(Form::Pairs, TruncationMode::KeepEnd);
    assert_eq!(end.len(), 4, "{end:?}");
    assert!(end[0][0].ends_with("eight<|endoftext|>") && !end[0][0].starts_with('a'));
    assert_eq!(end[2][1], " a<|endoftext|>");

    // Texts that are scored are never cut.
    let settings = settings(
        dir.path(),
        &rows[..1],
        Form::Scored,
        TruncationMode::KeepStart,
    );
    let task = PreferenceDataSettings {
        answers: settings,
        loss: PreferenceLoss::Reward(Reward::default()),
    };
    let context = context(&task, &tokenizer, 8, None);
    let error = set(&task, &context, Split::Train).unwrap_err().to_string();
    assert!(error.contains("longer than --max_length 8"), "{error}");
}

#[test]
fn conversations_are_written_by_the_template() {
    const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer(dir.path(), Some(TEMPLATE));
    let user = json!({"role": "user", "content": "Name a colour."});
    let says = |text: &str| json!({"role": "assistant", "content": text});
    for row in [
        json!({"prompt": [user], "chosen": [says("Blue.")], "rejected": [says("No.")]}),
        json!({"chosen": [user, says("Blue.")], "rejected": [user, says("No.")]}),
    ] {
        let rows = std::slice::from_ref(&row);
        let task = pairs(settings(
            dir.path(),
            rows,
            Form::Pairs,
            TruncationMode::KeepStart,
        ));
        let found = texts(&task, &tokenizer, 64).unwrap();
        let expected = ["Blue.\n", "No.\n"].map(|answer| {
            let whole = format!("<user>Name a colour.\n<assistant>{answer}");
            [whole, answer.to_string()]
        });
        assert_eq!(found, expected, "{row}");
    }
}

#[test]
fn margins_are_labels_of_both_rows() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer(dir.path(), None);
    let rows = [
        json!({"chosen": "good", "rejected": "bad", "margin": 1.5}),
        json!({"chosen": "fine", "rejected": "no", "margin": 0.25}),
    ];
    let settings = settings(dir.path(), &rows, Form::Scored, TruncationMode::KeepStart);
    let task = PreferenceDataSettings {
        answers: settings,
        loss: PreferenceLoss::Reward(Reward::default()),
    };
    let context = context(&task, &tokenizer, 32, None);
    let set = set(&task, &context, Split::Train).unwrap();
    let batch = set.batch(&[1, 0], 3, Position::default()).unwrap();
    let none = IGNORED_NUMBER;
    let expected = vec![0.25, 0.25, 1.5, 1.5, none, none];
    assert_eq!(batch.labels, HostLabels::Numbers(expected.into()));
}

/// A text by itself, a prompt with what completes it, and a conversation, each as training has them.
#[test]
fn texts_that_stand_alone_are_rows() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}";
    let turn = |role: &str, content: &str| json!({"role": role, "content": content});
    let asked = turn("user", "Which?");
    let answered = turn("assistant", "Blue.");
    let end = "<|endoftext|>";
    let cases = [
        (
            json!({"text": "The sky is blue"}),
            format!("The sky is blue{end}"),
        ),
        (
            json!({"prompt": "The sky is", "completion": " blue"}),
            format!("The sky is blue{end}"),
        ),
        (
            json!({"prompt": [asked], "completion": [answered]}),
            "<user>Which?\n<assistant>Blue.\n".to_string(),
        ),
        (
            json!({"messages": [asked, answered], "prompt": "of another column"}),
            "<user>Which?\n<assistant>Blue.\n".to_string(),
        ),
    ];
    for (row, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = tokenizer(dir.path(), Some(template));
        let rows = std::slice::from_ref(&row);
        let task = ScoreDataSettings {
            answers: settings(dir.path(), rows, Form::Alone, TruncationMode::KeepStart),
        };
        let context = context(&task, &tokenizer, 64, None);
        let set = set(&task, &context, Split::Train).unwrap();
        let batch = set.batch(&[0], 1, Position::default()).unwrap();
        let ids = batch.input_ids.iter().map(|id| *id as u32);
        let text = tokenizer.decode(&ids.collect::<Vec<_>>(), false).unwrap();
        let padding = text.strip_prefix(&expected);
        let padding = padding.unwrap_or_else(|| panic!("{row}: {text}"));
        assert!(padding.replace(end, "").is_empty(), "{row}: {text}");
        assert!(matches!(batch.labels, HostLabels::Numbers(_)));
    }
}

#[test]
fn answers_are_compared_within_a_batch() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer(dir.path(), None);
    let row = |prompt: &str, completion: &str, label: bool| json!({"prompt": prompt, "completion": completion, "label": label});
    let rows = [
        row("one:", " un", true),
        row("two:", " deux", false),
        row("three:", " trois", true),
    ];
    let form = Form::Judged { compared: Some(2) };
    let settings = settings(dir.path(), &rows, form, TruncationMode::KeepStart);
    let task = PreferenceDataSettings {
        answers: settings,
        loss: PreferenceLoss::Kto(Kto {
            beta: 0.1,
            desirable_weight: 1.0,
            undesirable_weight: 1.0,
            has_kl: true,
            dropout: false,
        }),
    };
    let found = texts(&task, &tokenizer, 32).unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|[text, _]| text.replace("<|endoftext|>", ""))
        .collect();
    let expected = [
        "one: un",
        "one: deux",
        "two: deux",
        "two: un",
        "three: trois",
        "three: trois",
    ];
    assert_eq!(found, expected);
    let context = context(&task, &tokenizer, 32, None);
    let set = set(&task, &context, Split::Train).unwrap();
    let batch = set.batch(&[1, 2], 2, Position::default()).unwrap();
    let good = vec![0.0, 0.0, 1.0, 1.0];
    assert_eq!(batch.numbers, [(DESIRABLE, Array1::from(good))]);
}

#[test]
fn what_is_wrong_with_a_row_is_named() {
    let turn = json!([{"role": "user", "content": "a"}]);
    for (row, form, parts) in [
        (
            json!({"prompt": "a", "chosen": 7, "rejected": "b"}),
            Form::Pairs,
            &["rows.jsonl:1", "7, not text"][..],
        ),
        (
            json!({"prompt": "a", "chosen": turn, "rejected": turn}),
            Form::Pairs,
            &["rows.jsonl:1", "not all texts or all lists of messages"],
        ),
        (
            json!({"chosen": "", "rejected": "b"}),
            Form::Pairs,
            &["rows.jsonl:1", "is empty"],
        ),
        (
            json!({"chosen": turn, "rejected": turn}),
            Form::Pairs,
            &["rows.jsonl:1", "no chat template"],
        ),
        (json!({"text": "a"}), Form::Pairs, &["chosen", "rejected"]),
        (
            json!({"chosen": "a", "rejected": "b", "margin": "much"}),
            Form::Scored,
            &["rows.jsonl:1", "margin", "much"],
        ),
        (
            json!({"prompt": "a", "chosen": "a", "rejected": "b"}),
            Form::Judged { compared: None },
            &["it has pairs", "train dpo"],
        ),
        (
            json!({"prompt": "a", "completion": "b", "label": "maybe"}),
            Form::Judged { compared: None },
            &["rows.jsonl:1", "label", "true"],
        ),
        (
            json!({"prompt": "a", "completion": "b"}),
            Form::Judged { compared: None },
            &["label"],
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = tokenizer(dir.path(), None);
        let rows = std::slice::from_ref(&row);
        let task = pairs(settings(dir.path(), rows, form, TruncationMode::KeepStart));
        let context = context(&task, &tokenizer, 32, None);
        let error = set(&task, &context, Split::Train).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{row}: {error}");
        }
    }
}
