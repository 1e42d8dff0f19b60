//! Tokenizers give the ids that others published for them, from each form of their files.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use xtrain::data::Tokenizer;
use xtrain::data::sequences::SequenceEncoder;

use crate::examples::{json, list};
use crate::support::{data_dir, shared_data};

/// A tokenizer as `tokenizer.json` and, if `older` lists the files of the time before it, made of
/// those.
fn both_forms(data: &Path, name: &str, older: &[&str], config: &str) -> Vec<Tokenizer> {
    let dir = tempfile::tempdir().unwrap();
    for file in older {
        fs::copy(data.join(name).join(file), dir.path().join(file)).unwrap();
    }
    if !config.is_empty() {
        fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    }
    vec![
        Tokenizer::load(&data.join(name)).unwrap(),
        Tokenizer::load(dir.path()).unwrap(),
    ]
}

#[test]
fn bert_ids_equal_published_ones() {
    let Some(data) = shared_data() else { return };
    let fixtures = data.join("tokenizer-fixtures");
    for tokenizer in both_forms(&data, "bert-base-uncased", &["vocab.txt"], "") {
        let encoder = SequenceEncoder::new(&tokenizer, None).unwrap();
        let mut cases = 0;
        let long = json(&fixtures.join("bert_uncased_encoded.json"));
        assert_eq!(
            encoder
                .encode(long["text"].as_str().unwrap(), None)
                .unwrap()
                .ids,
            list(&long["token_ids"])
        );
        for model in ["bert-base-uncased", "google-bert/bert-base-uncased"] {
            for case in json(&fixtures.join("tokenizer_tests.json"))[model]
                .as_array()
                .unwrap()
            {
                let found = encoder
                    .encode(case["input"].as_str().unwrap(), None)
                    .unwrap();
                assert_eq!(found.ids, list(&case["encoded"]["input_ids"]), "{case}");
                cases += 1;
            }
        }
        for line in fs::read_to_string(fixtures.join("bert_uncased_squad_questions.jsonl"))
            .unwrap()
            .lines()
        {
            let case: Value = serde_json::from_str(line).unwrap();
            assert_eq!(
                tokenizer.encode(case["text"].as_str().unwrap()).unwrap(),
                list(&case["ids"]),
                "{case}"
            );
            cases += 1;
        }
        let texts = fs::read_to_string(fixtures.join("llamacpp-bert-bge.inp")).unwrap();
        let wanted = fs::read_to_string(fixtures.join("llamacpp-bert-bge.out")).unwrap();
        for (text, ids) in texts.split("\n__ggml_vocab_test__\n").zip(wanted.lines()) {
            let ids: Vec<u32> = ids
                .split_whitespace()
                .map(|id| id.parse().unwrap())
                .collect();
            assert_eq!(tokenizer.encode(text).unwrap(), ids, "{text:?}");
            cases += 1;
        }
        assert!(cases > 10_600, "{cases}");
        assert!(tokenizer.has_segments());
        assert_eq!(
            (
                tokenizer.pad_id(),
                tokenizer.mask_id(),
                tokenizer.special_tokens(true)
            ),
            (Some(0), Some(103), 3)
        );
    }
}

#[test]
fn known_examples_of_the_other_tokenizers_come_out() {
    let Some(data) = shared_data() else { return };
    let ids = |tokenizer: &Tokenizer, text: &str| {
        SequenceEncoder::new(tokenizer, None)
            .unwrap()
            .encode(text, None)
            .unwrap()
            .ids
    };
    for tokenizer in both_forms(
        &data,
        "bert-base-cased",
        &["vocab.txt"],
        r#"{"do_lower_case": false}"#,
    ) {
        assert_eq!(
            ids(&tokenizer, "Hello, my dog is cute"),
            [101, 8667, 117, 1139, 3676, 1110, 10509, 102]
        );
        let plain = tokenizer
            .encode("Using a transformer network is simple")
            .unwrap();
        assert_eq!(plain, [7993, 170, 11303, 1200, 2443, 1110, 3014]);
    }
    for tokenizer in both_forms(&data, "roberta-base", &["vocab.json", "merges.txt"], "") {
        assert_eq!(ids(&tokenizer, "Hello world"), [0, 31414, 232, 2]);
        assert_eq!(ids(&tokenizer, " Hello world"), [0, 20920, 232, 2]);
        let pair = SequenceEncoder::new(&tokenizer, None)
            .unwrap()
            .encode("Hello world", Some("Hello"))
            .unwrap();
        assert_eq!(pair.ids, [0, 31414, 232, 2, 2, 31414, 2]);
        // Of the older files transformers 5 makes a mask that leaves the space before it alone.
        let masked = ids(&tokenizer, "a <mask>.");
        let kept = [0, 102, 1437, 50264, 4, 2];
        assert!(
            masked == [0, 102, 50264, 4, 2] || masked == kept,
            "{masked:?}"
        );
        assert!(!tokenizer.has_segments());
        assert_eq!(
            (tokenizer.pad_id(), tokenizer.mask_id()),
            (Some(1), Some(50264))
        );
    }
    // sentencepiece itself keeps case and accents; transformers' ALBERT does not unless told to.
    // Both ids by their own programs.
    let text = "Guten Morgen, wie geht es Ihnen?";
    let albert = |config: &str| {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(
            data.join("albert-layout-de/spiece.model"),
            dir.path().join("spiece.model"),
        )
        .unwrap();
        fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        Tokenizer::load(dir.path()).unwrap()
    };
    let kept = albert(r#"{"do_lower_case": false, "keep_accents": true}"#);
    assert_eq!(
        kept.encode(text).unwrap(),
        [2181, 19, 3347, 14, 77, 597, 64, 355, 132]
    );
    let usual = albert("{}");
    assert_eq!(
        ids(&usual, text),
        [2, 2524, 9509, 14, 77, 597, 64, 564, 132, 3]
    );
    assert_eq!(
        (usual.pad_id(), usual.mask_id(), usual.has_segments()),
        (Some(0), Some(4), true)
    );
    assert_eq!(
        usual.decode(&ids(&usual, text), true).unwrap(),
        "guten morgen, wie geht es ihnen?"
    );
}

/// A text in capitals, and the same as a tokenizer of lower case without accents sees it.
const CASES: (&str, &str) = ("HELLO, my Dog Réné is CUTE", "hello, my dog rene is cute");

/// A directory in `from` with copies of the tests' files and a tokenizer_config.json, unless that is empty.
fn copied(from: &Path, name: &str, files: &[&str], config: &str) -> PathBuf {
    let dir = from.join(name);
    fs::create_dir_all(&dir).unwrap();
    for file in files {
        let target = dir.join(file.rsplit('/').next().unwrap());
        fs::copy(data_dir().join(file), target).unwrap();
    }
    if !config.is_empty() {
        fs::write(dir.join("tokenizer_config.json"), config).unwrap();
    }
    dir
}

#[test]
fn lower_case_is_told_and_saved() {
    let data = data_dir();
    let (shouted, said) = CASES;
    let from = tempfile::tempdir().unwrap();
    let dir = |name: &str, files: &[&str], config: &str| copied(from.path(), name, files, config);
    let (definition, vocabulary) = ("bert-cased/tokenizer.json", "bert-cased/vocab.txt");
    let dirs = [
        dir("definition", &[definition], ""),
        dir("both", &[definition, vocabulary], ""),
        dir("vocabulary", &[vocabulary], ""),
        dir("cased", &[vocabulary], r#"{"do_lower_case": false}"#),
        dir(
            "class",
            &[definition],
            r#"{"tokenizer_class": "BertTokenizer", "do_lower_case": false}"#,
        ),
        dir("definition", &[definition], "").join("tokenizer.json"),
    ];
    let plain = Tokenizer::load(&data.join("bert-cased")).unwrap();
    for path in dirs {
        for lower in [true, false] {
            let told = Tokenizer::load_with(&path, Some(lower)).unwrap();
            let wanted = plain.encode(if lower { said } else { shouted }).unwrap();
            assert_eq!(
                told.encode(shouted).unwrap(),
                wanted,
                "{} {lower}",
                path.display()
            );
            // A definition that says so already is left as it is; one that is made may be the same.
            let defined = path.ends_with("tokenizer.json") || path.join("tokenizer.json").exists();
            if defined || lower {
                let is_same = told.fingerprint() == plain.fingerprint();
                assert_eq!(is_same, !lower, "{} {lower}", path.display());
            }
            // What is saved says the same, to transformers too, whichever of the two files it goes
            // by.
            let saved = tempfile::tempdir().unwrap();
            told.save(saved.path()).unwrap();
            assert_eq!(
                Tokenizer::load(saved.path())
                    .unwrap()
                    .encode(shouted)
                    .unwrap(),
                wanted
            );
            assert_eq!(
                json(&saved.path().join("tokenizer_config.json"))["do_lower_case"],
                lower
            );
            if saved.path().join("tokenizer.json").exists() {
                assert_eq!(
                    json(&saved.path().join("tokenizer.json"))["normalizer"]["lowercase"],
                    lower
                );
            }
        }
    }
}

/// transformers' BertTokenizer goes by its config, whatever tokenizer.json says, and by lower case where
/// that is silent.
#[test]
fn a_config_says_whether_text_is_in_lower_case() {
    let data = data_dir();
    let (shouted, said) = CASES;
    let from = tempfile::tempdir().unwrap();
    let plain = Tokenizer::load(&data.join("bert-cased")).unwrap();
    for (config, text) in [
        (r#"{"tokenizer_class": "BertTokenizer"}"#, said),
        (
            r#"{"tokenizer_class": "BertTokenizerFast", "do_lower_case": true}"#,
            said,
        ),
        (
            r#"{"tokenizer_class": "BertTokenizer", "do_lower_case": true, "strip_accents": false}"#,
            "hello, my dog réné is cute",
        ),
        (
            r#"{"tokenizer_class": "BertTokenizer", "do_lower_case": false}"#,
            shouted,
        ),
        (
            r#"{"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": true}"#,
            shouted,
        ),
    ] {
        let found = copied(
            from.path(),
            "config",
            &["bert-cased/tokenizer.json"],
            config,
        );
        let found = Tokenizer::load(&found).unwrap();
        assert_eq!(
            found.encode(shouted).unwrap(),
            plain.encode(text).unwrap(),
            "{config}"
        );
    }
    let albert = copied(
        from.path(),
        "albert",
        &["albert/spiece.model"],
        r#"{"keep_accents": true}"#,
    );
    let (big, small) = ("Guten Morgen", "guten morgen");
    let told = |lower| {
        Tokenizer::load_with(&albert, lower)
            .unwrap()
            .encode(big)
            .unwrap()
    };
    assert_eq!(
        told(Some(true)),
        Tokenizer::load_with(&albert, Some(false))
            .unwrap()
            .encode(small)
            .unwrap()
    );
    assert_eq!(told(None), told(Some(true)));
    assert_ne!(told(Some(false)), told(Some(true)));
    let refused = Tokenizer::load_with(&data.join("gpt2"), Some(true))
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("do_lower_case") && refused.contains("no switch for lower case"),
        "{refused}"
    );
}
