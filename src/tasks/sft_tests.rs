//! Texts, completions and conversations beside what TRL makes of them, and what is wrong with a row.

use super::*;
use crate::test_support::context;
use crate::{Split, set};
use std::fs;
use std::path::PathBuf;
use xtrain_data::packing::PackingStrategy;
use xtrain_data::settings::TableSettings;
use xtrain_data::{Position, Tokenizer};

fn data(name: &str) -> PathBuf {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    root.join("tests/data").join(name)
}

/// The tokenizer of the cases, with a chat template if one is given.
fn tokenizer(dir: &Path, template: Option<&str>) -> Tokenizer {
    let config = json!({"eos_token": "<|endoftext|>", "chat_template": template});
    fs::copy(data("gpt2/tokenizer.json"), dir.join("tokenizer.json")).unwrap();
    fs::write(dir.join("tokenizer_config.json"), config.to_string()).unwrap();
    let tokenizer = Tokenizer::load(dir).unwrap();
    tokenizer.with_pad_token("<|endoftext|>").unwrap()
}

fn settings(dir: &Path, text: &str, flags: &Value) -> SftDataSettings {
    let file = dir.join("rows.jsonl");
    fs::write(&file, text).unwrap();
    let flag = |name: &str, usual| flags[name].as_bool().unwrap_or(usual);
    SftDataSettings {
        source: SourceSettings {
            train_files: vec![file],
            cache_dir: dir.join("cache"),
            table: TableSettings::default(),
            ..SourceSettings::default()
        },
        max_seq_length: None,
        padding: PaddingSettings::default(),
        completion_only_loss: flag("completion_only_loss", true),
        assistant_only_loss: flag("assistant_only_loss", false),
        ..SftDataSettings::default()
    }
}

/// Ids and labels of each row, without padding.
fn made(
    task: &SftDataSettings,
    tokenizer: &Tokenizer,
    length: usize,
) -> Result<Vec<(Vec<i32>, Vec<i32>)>> {
    let set = set(task, &context(task, tokenizer, length, None), Split::Train)?;
    let rows = (0..set.len() as u32).map(|row| {
        let batch = set.batch(&[row], 2, Position::default()).unwrap();
        let labels = batch.labels.tokens().unwrap();
        let counted = labels.iter().filter(|label| **label != -100).count();
        assert_eq!(batch.targets, counted, "the row that fills the batch too");
        let (ids, labels) = (batch.input_ids.row(0), labels.row(0));
        let (ids, padding) = ids.as_slice().unwrap().split_at(batch.tokens);
        assert!(padding.iter().all(|id| *id == 999), "{padding:?}");
        (
            ids.to_vec(),
            labels.as_slice().unwrap()[..ids.len()].to_vec(),
        )
    });
    Ok(rows.collect())
}

#[test]
fn rows_equal_those_of_trl() {
    let golden: Value =
        serde_json::from_slice(&fs::read(data("golden/sft.json")).unwrap()).unwrap();
    for case in golden["cases"].as_array().unwrap() {
        let dir = tempfile::tempdir().unwrap();
        let name = case["name"].as_str().unwrap();
        let template = case["template"].as_str().or(golden["template"].as_str());
        let tokenizer = tokenizer(dir.path(), template);
        let lines = case["rows"].as_array().unwrap().iter();
        let lines: String = lines.map(|row| format!("{row}\n")).collect();
        let task = settings(dir.path(), &lines, &case["flags"]);
        let length = case["max_length"].as_u64().unwrap() as usize;
        let found = made(&task, &tokenizer, length).unwrap();
        let wanted = case["made"].as_array().unwrap();
        assert_eq!(found.len(), wanted.len(), "{name}");
        for ((ids, labels), wanted) in found.iter().zip(wanted) {
            assert_eq!(json!(ids), wanted["ids"], "{name}");
            // No loss is ever that of the first token.
            assert_eq!(labels[0], -100, "{name}");
            assert_eq!(
                json!(labels[1..]),
                json!(wanted["labels"].as_array().unwrap()[1..]),
                "{name}"
            );
        }
    }
}

#[test]
fn what_is_wrong_with_a_row_is_named() {
    const PLAIN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
    // Only the last answer is written in whole, as by templates of models that think.
    const FORGETS: &str = "{% for m in messages %}{{ m.role }}: {{ m.content if loop.last or m.role == 'user' else '...' }}\n{% endfor %}";
    let assistant = json!({"assistant_only_loss": true});
    let none = json!({});
    for (row, flags, template, parts) in [
        (
            r#"{"text": 7}"#,
            &none,
            None,
            &["rows.jsonl:1", "7, not text"][..],
        ),
        (
            r#"{"text": ""}"#,
            &none,
            None,
            &["rows.jsonl:1", "is empty"],
        ),
        (
            r#"{"words": "a"}"#,
            &none,
            None,
            &["text_column_name", "conversations or text", "words"],
        ),
        (
            r#"{"prompt": "a", "completion": ["b"]}"#,
            &none,
            None,
            &["not both texts"],
        ),
        (
            r#"{"text": "a"}"#,
            &assistant,
            None,
            &["--assistant_only_loss", "role and content"],
        ),
        (
            r#"{"messages": [{"role": "user", "content": "a"}]}"#,
            &none,
            None,
            &["no chat template", "chat_template.jinja"],
        ),
        (r#"{"messages": []}"#, &none, Some(PLAIN), &["no messages"]),
        (
            r#"{"messages": ["a"]}"#,
            &none,
            Some(PLAIN),
            &["messages[0]", "role and content"],
        ),
        (
            r#"{"messages": [{"content": "a"}]}"#,
            &none,
            Some(PLAIN),
            &["messages[0] has no role"],
        ),
        (
            r#"{"messages": [{"role": "user", "content": "a"}], "tools": ["f"]}"#,
            &none,
            Some(PLAIN),
            &["tools[0] is text, not an object"],
        ),
        (
            r#"{"messages": [{"role": "user", "content": "a"}]}"#,
            &assistant,
            Some(PLAIN),
            &["no turn of the assistant's"],
        ),
        (
            r#"{"messages": [{"role": "user", "content": "a"}]}"#,
            &none,
            Some("{{ raise_exception('roles must alternate') }}"),
            &["rows.jsonl:1", "roles must alternate"],
        ),
        (
            r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]}"#,
            &assistant,
            Some(FORGETS),
            &["otherwise once others follow", "completion"],
        ),
        (
            r#"{"prompt": "a b c d e f g h i j", "completion": "k"}"#,
            &none,
            None,
            &["no rows to use", "--max_seq_length 8"],
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let tokenizer = tokenizer(dir.path(), template);
        let task = settings(dir.path(), row, flags);
        let error = made(&task, &tokenizer, 8).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{row}: {error}");
        }
    }
}

/// TRL's `maybe_convert_to_chatml`.
#[test]
fn conversations_of_sharegpt_are_those_of_messages() {
    let dir = tempfile::tempdir().unwrap();
    let template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}";
    let tokenizer = tokenizer(dir.path(), Some(template));
    let of = |rows: &Value, column: Option<&str>| {
        let mut task = settings(dir.path(), &format!("{rows}\n"), &json!({}));
        task.source.table.text_column = column.map(str::to_string);
        made(&task, &tokenizer, 64).unwrap()
    };
    let chat = |role: &str, content: &str| json!([{role: "user", content: "hi"}, {role: "assistant", content: "ho"}]);
    let wanted = of(&json!({"messages": chat("role", "content")}), None);
    for (key, role, content) in [
        ("conversations", "role", "content"),
        ("conversations", "from", "value"),
        ("messages", "from", "value"),
    ] {
        // A dump of TRL's arguments names a column `text` for all data.
        for column in [None, Some(key), Some("text")] {
            let found = of(&json!({key: chat(role, content)}), column);
            assert_eq!(found, wanted, "{key} {role} {column:?}");
        }
    }
}

/// The mask of the assistant's turns goes through packing: what counts in a packed row is what counts in
/// the examples by themselves, whose places begin at 0 again.
#[test]
fn packed_rows_count_what_their_examples_count() {
    let dir = tempfile::tempdir().unwrap();
    let template = "{% for m in messages %}{% if m.role == 'user' %}Q: {{ m.content }}{% else %}A: {% generation %}{{ m.content }}\
                    <|endoftext|>{% endgeneration %}{% endif %}{% endfor %}";
    let tokenizer = tokenizer(dir.path(), Some(template));
    let row = |words: usize| {
        json!({"messages": [
            {"role": "user", "content": vec!["tea"; words].join(" ")},
            {"role": "assistant", "content": vec!["no"; 1 + words % 3].join(" ")},
        ]})
    };
    let text: String = (2..9).map(|words| format!("{}\n", row(words))).collect();
    let apart = settings(dir.path(), &text, &json!({"assistant_only_loss": true}));
    let length = 64;
    let alone = made(&apart, &tokenizer, length).unwrap();
    for strategy in [PackingStrategy::Bfd, PackingStrategy::BfdSplit] {
        let packed = SftDataSettings {
            packing: Some(strategy),
            eval_packing: Some(strategy),
            ..apart.clone()
        };
        let set = set(
            &packed,
            &context(&packed, &tokenizer, length, None),
            Split::Train,
        )
        .unwrap();
        assert!(set.len() < alone.len() && set.lengths() == [length]);
        let mut found = Vec::new();
        for row in 0..set.len() as u32 {
            let batch = set.batch(&[row], 2, Position::default()).unwrap();
            assert!(batch.attention_mask.is_none());
            let positions = batch.position_ids.unwrap();
            let labels = batch.labels.tokens().unwrap();
            assert!(labels.row(1).iter().all(|label| *label == -100));
            for column in 0..batch.tokens {
                if positions[[0, column]] == 0 {
                    found.push((Vec::new(), Vec::new()));
                }
                let (ids, of): &mut (Vec<i32>, Vec<i32>) = found.last_mut().unwrap();
                assert_eq!(positions[[0, column]] as usize, ids.len());
                ids.push(batch.input_ids[[0, column]]);
                of.push(labels[[0, column]]);
            }
            assert!(
                positions
                    .row(0)
                    .iter()
                    .skip(batch.tokens)
                    .all(|place| *place == 0)
            );
        }
        let mut alone = alone.clone();
        alone.sort();
        found.sort();
        assert_eq!(found, alone, "{strategy:?}");
    }
    // Concatenated, rows are one example, and the first token of a text is learned from the one before.
    let wrapped = SftDataSettings {
        packing: Some(PackingStrategy::Wrapped),
        ..settings(dir.path(), &"{\"text\": \"tea\"}\n".repeat(3), &json!({}))
    };
    let set = set(
        &wrapped,
        &context(&wrapped, &tokenizer, 64, None),
        Split::Train,
    )
    .unwrap();
    let batch = set.batch(&[0], 1, Position::default()).unwrap();
    assert_eq!((set.len(), batch.targets), (1, batch.tokens - 1));
    let positions = batch.position_ids.unwrap();
    let own = positions.iter().take(batch.tokens).copied();
    assert_eq!(
        own.collect::<Vec<i32>>(),
        (0..batch.tokens as i32).collect::<Vec<i32>>()
    );
}

#[test]
fn a_second_token_that_begins_a_text_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({
        "bos_token": "<s>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
        "added_tokens_decoder": {"1000": {"content": "<s>", "special": true}},
    });
    fs::copy(
        data("gpt2/tokenizer.json"),
        dir.path().join("tokenizer.json"),
    )
    .unwrap();
    fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    let begin = tokenizer.bos_id().unwrap() as i32;
    let of = |text: &str| {
        let task = settings(
            dir.path(),
            &format!("{}\n", json!({"text": text})),
            &json!({}),
        );
        made(&task, &tokenizer, 32).unwrap().remove(0)
    };
    let once = of("<s>tea");
    assert_eq!(once.0.iter().filter(|id| **id == begin).count(), 1);
    assert_eq!(of("<s><s>tea"), once);
}
