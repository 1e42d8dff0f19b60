//! Damaged tokenizers' files and tables.

use crate::Tokenizer;
use crate::formats::table::Table;
use crate::settings::TableSettings;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use xtrain_fuzz::{JSON, Target, of_tests};

const TARGETS: &[Target] = &[
    Target {
        name: "tokenizer",
        file: "tokenizer.json",
        seeds: || vec![small_tokenizer(), of_tests("bert-uncased/tokenizer.json")],
        words: JSON,
        read: |path, _| tokenizer(path),
    },
    Target {
        name: "wordpiece",
        file: "vocab.txt",
        seeds: || vec![of_tests("bert-uncased/vocab.txt")],
        words: &[
            "[UNK]",
            "[CLS]",
            "##",
            "\n",
            "\r\n",
            "\0",
            "\u{feff}",
            "\u{1f600}",
        ],
        read: |path, _| tokenizer(path.parent().expect("it is in a folder")),
    },
    Target {
        name: "sentencepiece",
        file: "spiece.model",
        seeds: || vec![of_tests("albert/spiece.model")],
        words: &[
            "[CLS]",
            "[SEP]",
            "[MASK]",
            "<unk>",
            "\u{2581}",
            "\n\u{7f}",
            "\u{18}\u{3}",
            "\0",
        ],
        read: |path, _| tokenizer(path.parent().expect("it is in a folder")),
    },
    Target {
        name: "csv",
        file: "rows.csv",
        seeds: || vec![b"text,label\n\"a \"\"b\"\"\",1\r\nc,2\r\"d\ne\",3\n".to_vec()],
        words: &[
            "\"", "\"\"", ",", "\n", "\r", "\r\n", "\\", "\u{feff}", "\0", "text", "label",
            ",,,,,,,,",
        ],
        read: table,
    },
    Target {
        name: "jsonl",
        file: "rows.jsonl",
        seeds: || {
            vec![
                b"{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\\u00e9\", \"label\": [1, 2]}\n"
                    .to_vec(),
                b"[{\"text\": \"a\"},\n {\"text\": null, \"label\": \"x\"}]".to_vec(),
            ]
        },
        words: JSON,
        read: table,
    },
    Target {
        name: "parquet",
        file: "rows.parquet",
        seeds: || {
            vec![
                of_tests("reviews/validation-00000-of-00001.parquet"),
                crate::formats::parquet_sample(),
            ]
        },
        words: &["PAR1", "\0\0\0\0", "\u{7f}", "text", "label"],
        read: table,
    },
];

fn small_tokenizer() -> Vec<u8> {
    let special = json!({"id": 1, "content": "[CLS]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                         "special": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "NFKC"}]},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\w+|[^\\w\\s]+"}, "behavior": "Isolated", "invert": false},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": "a", "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "vocab": {"a": 0, "[CLS]": 1, "b": 2, "ab": 3, "t": 4, "h": 5, "th": 6},
            "merges": [["a", "b"], ["t", "h"]]},
    })
    .to_string()
    .into_bytes()
}

fn tokenizer(path: &Path) {
    if let Ok(tokenizer) = Tokenizer::load(path) {
        for text in ["", "The quick brown fox", "na\u{ef}ve \u{1f600}\n\t a"] {
            let ids = tokenizer.encode(text).unwrap_or_default();
            let _ = tokenizer.decode(&ids, true);
        }
    }
}

fn table(path: &Path, _: &[u8]) {
    let settings = TableSettings {
        text_column: None,
        quoting: None,
        features: Vec::new(),
        on_bad_row: Default::default(),
    };
    if let Ok(mut table) = Table::open(path, &settings, Arc::default()) {
        let columns = (0..table.columns().len().min(3)).collect();
        if table.choose(columns).is_ok() {
            table.take(10_000).for_each(drop);
        }
    }
}

xtrain_fuzz::tests!(TARGETS);
