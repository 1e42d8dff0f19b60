//! Text, tokenizers, rows and checkpoint files against references from outside: golden cases (made
//! by transformers, tokenizers and datasets), the repository's and further ones, and published
//! corpora and ids.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{data_dir, golden_dirs, shared_data};

use serde_json::Value;
use xtrain::checkpoint::{Weights, hf};
use xtrain::data::formats::text::Lines;
use xtrain::data::rows::Origin;
use xtrain::data::settings::SourceSettings;
use xtrain::data::tokenizer::{TextStream, train_byte_bpe};
use xtrain::data::{Rows, Tokenizer};
use xtrain::tasks::{ClmDataSettings, Context, Split, set};

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect()
}

/// Settings for all lines of some files.
fn whole(files: &[PathBuf], cache_dir: &Path) -> ClmDataSettings {
    ClmDataSettings {
        source: SourceSettings {
            train_files: files.to_vec(),
            cache_dir: cache_dir.to_path_buf(),
            ..SourceSettings::default()
        },
        block_size: None,
        stride: None,
    }
}

/// The packed rows to train on.
fn train_dataset(
    task: &ClmDataSettings,
    tokenizer: &Tokenizer,
    length: usize,
) -> xtrain::data::Result<Rows> {
    let context = Context {
        tokenizer: tokenizer.clone(),
        length,
        vocabulary: 1 << 16,
        labels: None,
        quiet: true,
        spaces_words: false,
    };
    let rows = set(task, &context, Split::Train)?.rows;
    assert!(rows.is_packed());
    Ok(rows)
}

#[test]
fn rows_equal_run_clm() {
    for golden in golden_dirs() {
        rows_equal_run_clm_in(&golden);
    }
}

fn rows_equal_run_clm_in(golden: &Path) {
    let (dir, tokenizer) = (
        golden.join("clm_pipeline"),
        golden.join("tokenizers/byte_bpe"),
    );
    let meta = json(&dir.join("meta.json"));
    let cache = tempfile::tempdir().unwrap();
    let block_size = meta["block_size"].as_u64().unwrap() as usize;
    let settings = whole(&[dir.join("corpus.txt")], cache.path());
    let tokenizer = Tokenizer::load(&tokenizer).unwrap();
    let data = train_dataset(&settings, &tokenizer, block_size).unwrap();
    let found: Vec<i64> = (0..data.len())
        .flat_map(|i| {
            data.row(i)
                .unwrap()
                .ids
                .iter()
                .map(|id| i64::from(*id))
                .collect::<Vec<_>>()
        })
        .collect();
    let blocks = Weights::open(&dir.join("blocks.safetensors")).unwrap();
    for tensor in blocks.iter() {
        let wanted: Vec<i64> = match tensor.shape.dtype.size() {
            4 => tensor
                .bytes
                .chunks_exact(4)
                .map(|b| i32::from_le_bytes(b.try_into().unwrap()).into())
                .collect(),
            _ => tensor
                .bytes
                .chunks_exact(8)
                .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
                .collect(),
        };
        assert_eq!(
            tensor.shape.dims,
            [data.len(), block_size],
            "{}",
            tensor.name
        );
        assert!(found == wanted, "{} differs", tensor.name);
    }
    assert!(!blocks.is_empty());
    assert_eq!(data.totals().lines, meta["lines"].as_u64().unwrap());
    assert_eq!(data.totals().tokens, meta["tokens"].as_u64().unwrap());
    assert_eq!(
        train_dataset(&settings, &tokenizer, block_size)
            .unwrap()
            .origin(),
        &Origin::Cached
    );
}

/// Each of the repository's tokenizers, in its newer form and in the older one, and the golden ones
/// (byte-level and with byte fallback, as Llama, Mistral, Gemma and Qwen have them) give the ids and
/// texts that the tokenizers library gives.
#[test]
fn ids_and_texts_equal_tokenizers() {
    let data = data_dir();
    let folders = golden_dirs().into_iter().flat_map(|golden| {
        fs::read_dir(golden.join("tokenizers"))
            .into_iter()
            .flatten()
    });
    let mut golden: Vec<PathBuf> = folders.map(|entry| entry.unwrap().path()).collect();
    golden.sort();
    let golden = golden.into_iter().map(|dir| (dir, &[][..]));
    let vocabulary = r#"{"do_lower_case": false}"#;
    let older: [(&str, &[(&str, &str)]); 4] = [
        ("gpt2", &[("vocab.json", ""), ("merges.txt", "")]),
        ("roberta", &[("vocab.json", ""), ("merges.txt", "")]),
        ("bert-uncased", &[("vocab.txt", "")]),
        (
            "bert-cased",
            &[("vocab.txt", ""), ("tokenizer_config.json", vocabulary)],
        ),
    ];
    let own = older.map(|(name, files)| (data.join(name), files));
    for (dir, older) in golden.chain(own) {
        let cases = json(&dir.join("cases.json"));
        let mut tokenizers = vec![Tokenizer::load(&dir).unwrap()];
        if !older.is_empty() {
            let copy = tempfile::tempdir().unwrap();
            for (name, text) in older {
                let text = if text.is_empty() {
                    fs::read(dir.join(name)).unwrap()
                } else {
                    text.as_bytes().to_vec()
                };
                fs::write(copy.path().join(name), text).unwrap();
            }
            tokenizers.push(Tokenizer::load(copy.path()).unwrap());
        }
        for tokenizer in tokenizers {
            assert_eq!(
                tokenizer.vocab_size() as u64,
                cases["vocab_size"].as_u64().unwrap()
            );
            let single = cases["single"].as_array().unwrap();
            for case in single {
                let (name, text) = (dir.display(), case["text"].as_str().unwrap());
                assert_eq!(
                    tokenizer.encode(text).unwrap(),
                    ids(&case["ids_without_specials"]),
                    "{name}: {text:?}"
                );
                let with = ids(&case["ids"]);
                assert_eq!(
                    tokenizer.encode_with_special_tokens(text).unwrap(),
                    with,
                    "{name}: {text:?}"
                );
                let decoded = case["decoded"].as_str().unwrap();
                assert_eq!(
                    tokenizer.decode(&with, true).unwrap(),
                    decoded,
                    "{name}: {text:?}"
                );
                // Token by token it is the same text.
                let mut stream = TextStream::after(&tokenizer, &[]);
                let pushed = with.iter().map(|id| stream.push(*id).unwrap());
                let streamed: String = pushed.collect();
                let streamed = streamed + &stream.finish().unwrap();
                assert_eq!(streamed, decoded, "{name}: {text:?}, streamed");
            }
            assert!(single.len() > 100);
            // What is encoded in pieces has the ids of the whole.
            let texts = single.iter().map(|case| case["text"].as_str().unwrap());
            let long = texts.collect::<Vec<_>>().join(" ").repeat(120);
            assert!(long.len() > 1 << 18, "{}", long.len());
            let file = dir.join("tokenizer.json");
            if let (Ok(whole), true) = (tokenizers::Tokenizer::from_file(&file), older.is_empty()) {
                for specials in [false, true] {
                    let expected = whole.encode(&long[..], specials).unwrap();
                    let found = if specials {
                        tokenizer.encode_with_special_tokens(&long).unwrap()
                    } else {
                        tokenizer.encode(&long).unwrap()
                    };
                    assert!(found == expected.get_ids(), "{}: long", dir.display());
                }
            }
        }
    }
}

/// The ids that sentencepiece itself gives, with the text as it is and in lower case.
#[test]
fn albert_ids_equal_sentencepiece() {
    let data = data_dir().join("albert");
    let cases = json(&data.join("cases.json"));
    for (config, key) in [
        (r#"{"do_lower_case": false, "keep_accents": true}"#, "kept"),
        ("{}", "lower"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::copy(data.join("spiece.model"), dir.path().join("spiece.model")).unwrap();
        fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        assert_eq!(
            (tokenizer.pad_id(), tokenizer.mask_id()),
            (Some(0), Some(4))
        );
        for case in cases[key].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            assert_eq!(
                tokenizer.encode(text).unwrap(),
                ids(&case["ids"]),
                "{text:?}"
            );
        }
    }
}

/// GPT-2's tokenizer as `tokenizer.json` and from the two original files.
fn gpt2(data: &Path) -> Vec<Tokenizer> {
    let dir = data.join("gpt2");
    let two_files = tempfile::tempdir().unwrap();
    for name in ["vocab.json", "merges.txt"] {
        fs::copy(dir.join(name), two_files.path().join(name)).unwrap();
    }
    vec![
        Tokenizer::load(&dir).unwrap(),
        Tokenizer::load(two_files.path()).unwrap(),
    ]
}

#[test]
fn gpt2_ids_equal_published_ones() {
    let Some(data) = shared_data() else { return };
    let fixtures = data.join("tokenizer-fixtures");
    for tokenizer in gpt2(&data) {
        assert_eq!(
            (
                tokenizer.vocab_size(),
                tokenizer.id_bound(),
                tokenizer.eos_id()
            ),
            (50257, 50257, Some(50256))
        );
        let mut cases: Vec<(String, Vec<u32>)> = Vec::new();
        let long = json(&fixtures.join("gpt2_encoded_tokens.json"));
        cases.push((
            long["text"].as_str().unwrap().to_string(),
            ids(&long["token_ids"]),
        ));
        for case in json(&fixtures.join("tokenizer_tests.json"))["distilgpt2"]
            .as_array()
            .unwrap()
        {
            cases.push((
                case["input"].as_str().unwrap().to_string(),
                ids(&case["encoded"]["input_ids"]),
            ));
        }
        let texts = fs::read_to_string(fixtures.join("llamacpp-gpt-2.inp")).unwrap();
        let lines = fs::read_to_string(fixtures.join("llamacpp-gpt-2.out")).unwrap();
        let numbers = lines.lines().map(|line| {
            line.split_whitespace()
                .map(|id| id.parse().unwrap())
                .collect()
        });
        cases.extend(
            texts
                .split("\n__ggml_vocab_test__\n")
                .map(str::to_string)
                .zip(numbers),
        );
        assert!(cases.len() > 40, "{}", cases.len());
        for (text, wanted) in cases {
            assert_eq!(tokenizer.encode(&text).unwrap(), wanted, "{text:?}");
            assert_eq!(tokenizer.decode(&wanted, false).unwrap(), text);
        }
    }
}

#[test]
fn real_corpora_have_their_known_token_counts() {
    let Some(dir) = shared_data() else { return };
    let tokenizers = gpt2(&dir);
    let cache = tempfile::tempdir().unwrap();
    let known = [
        ("wikitext-2/train.txt.gz", 36_718, 2_448_382),
        ("wikitext-2/valid.txt", 3_760, 258_659),
        ("wikitext-2/test.txt", 4_358, 295_877),
        ("tinyshakespeare/input.txt", 40_000, 338_025),
    ];
    for (name, lines, tokens) in known {
        let started = std::time::Instant::now();
        let settings = whole(&[dir.join(name)], cache.path());
        let data = train_dataset(&settings, &tokenizers[0], 256).unwrap();
        println!(
            "{name}: {} rows of 256, {:.2} s",
            data.len(),
            started.elapsed().as_secs_f64()
        );
        assert_eq!(data.totals().lines, lines, "{name}");
        // The published count is of the whole text at once; line by line a pre-token may be split
        // at a line break.
        let found = data.totals().tokens;
        assert!(
            found.abs_diff(tokens) * 1000 <= tokens,
            "{name}: {found} tokens, {tokens} known"
        );
        if name != "wikitext-2/train.txt.gz" {
            let whole = Lines::open(&dir.join(name))
                .unwrap()
                .collect::<Result<String, _>>()
                .unwrap();
            assert_eq!(
                tokenizers[0].encode(&whole).unwrap().len() as u64,
                tokens,
                "{name} as a whole"
            );
        }
    }
}

#[test]
fn a_trained_tokenizer_beats_bytes_on_real_text() {
    let path = data_dir().join("play.txt");
    let texts: Vec<String> = Lines::open(&path).unwrap().map(Result::unwrap).collect();
    let started = std::time::Instant::now();
    let tokenizer = train_byte_bpe(&texts, 2048).unwrap();
    println!("2048 tokens in {:.2} s", started.elapsed().as_secs_f64());
    assert_eq!(tokenizer.vocab_size(), 2048);
    let (bytes, tokens) = texts
        .iter()
        .take(2000)
        .fold((0, 0), |(bytes, tokens), line| {
            let ids = tokenizer.encode(line).unwrap();
            assert_eq!(&tokenizer.decode(&ids, false).unwrap(), line);
            (bytes + line.len(), tokens + ids.len())
        });
    assert!(2 * bytes > 5 * tokens, "{bytes} bytes in {tokens} tokens");
}

#[test]
fn golden_checkpoints_open_and_their_configs_survive() {
    let mut seen = 0;
    let entries = golden_dirs()
        .into_iter()
        .flat_map(|dir| fs::read_dir(dir).unwrap());
    for entry in entries {
        let case = entry.unwrap().path();
        if !case.join("model.safetensors").exists() {
            continue;
        }
        seen += 1;
        let weights = Weights::open(&case).unwrap();
        assert!(
            weights
                .iter()
                .all(|tensor| tensor.bytes.len() == tensor.shape.bytes())
        );
        let config = hf::read_object(&case.join("config.json")).unwrap();
        // Byte for byte, so that a config that nobody changed shows no difference.
        let text = fs::read_to_string(case.join("config.json")).unwrap();
        let again = String::from_utf8(hf::to_json_text(&config, 2)).unwrap();
        assert_eq!(again, text, "{}", case.display());
    }
    assert!(seen > 0);
}
