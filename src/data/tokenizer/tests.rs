//! Training, saving and loading, and the messages of files that are no tokenizer.

use super::*;

fn corpus() -> Vec<String> {
    let words = [
        "the",
        "cat",
        "sat",
        "on",
        "mat",
        "and",
        "déjà",
        "vu",
        "ab",
        "abc",
        "bc",
        "1234",
        "🙂",
        "training",
        "trainer",
        "language",
        "models",
        "modelling",
        "graphs",
        "compile",
        "compiler",
        "tokens",
        "tokenize",
        "gradient",
        "gradually",
        "accumulate",
    ];
    (0..400)
        .map(|i| {
            (0..12)
                .map(|j| words[(i * 7 + j * j * 3 + i * j) % words.len()])
                .collect::<Vec<_>>()
                .join(" ")
                + "\n"
        })
        .collect()
}

#[test]
fn training_is_the_same_on_any_number_of_threads_and_round_trips() {
    let texts = corpus();
    let train = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| train_byte_bpe(&texts, 300)).unwrap()
    };
    let one = train(1);
    for threads in [2, 5] {
        assert_eq!(train(threads).files(), one.files());
    }
    let mut backwards = texts.clone();
    backwards.reverse();
    assert_eq!(
        train_byte_bpe(&backwards, 300).unwrap().files(),
        one.files()
    );
    assert_eq!(
        (one.vocab_size(), one.id_bound(), one.eos_id(), one.bos_id()),
        (300, 300, Some(0), Some(0))
    );
    for text in
        texts
            .iter()
            .map(String::as_str)
            .chain(["", " \u{0} ünseen 漢字\r\n", "x<|endoftext|>y"])
    {
        let ids = one.encode(text).unwrap();
        assert_eq!(one.decode(&ids, false).unwrap(), text);
    }
    assert!(one.encode("a<|endoftext|>").unwrap().contains(&0));
    assert!(one.encode(&texts[0]).unwrap().len() < texts[0].len() / 2);
}

#[test]
fn training_agrees_with_the_tokenizers_crate() {
    use tokenizers::models::bpe::{BPE, BpeTrainer};
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    let texts = corpus();
    let mut theirs = tokenizers::Tokenizer::new(BPE::default());
    theirs.with_pre_tokenizer(Some(ByteLevel::default().add_prefix_space(false)));
    let trainer = BpeTrainer::builder()
        .vocab_size(330)
        .min_frequency(2)
        .show_progress(false)
        .special_tokens(vec![tokenizers::AddedToken::from(bpe::END_OF_TEXT, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect());
    let mut trainer: tokenizers::models::TrainerWrapper = trainer.build().into();
    theirs.train(&mut trainer, texts.iter()).unwrap();
    let ours = train_byte_bpe(&texts, 330).unwrap();
    let sorted = |tokenizer: &tokenizers::Tokenizer| {
        let mut vocab: Vec<_> = tokenizer.get_vocab(true).into_iter().collect();
        vocab.sort();
        vocab
    };
    assert_eq!(sorted(&ours.inner), sorted(&theirs));
}

#[test]
fn too_small_a_vocabulary_is_refused_and_too_large_a_one_is_not_filled() {
    assert!(
        train_byte_bpe(&["abc"], 256)
            .unwrap_err()
            .to_string()
            .contains("alone take 257")
    );
    assert_eq!(
        train_byte_bpe(&["abab abab"], 5000).unwrap().vocab_size(),
        257 + 2
    );
}

#[test]
fn saved_files_are_the_loaded_ones_and_a_config_is_added() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let trained = train_byte_bpe(&corpus(), 280).unwrap();
    let (_, definition) = trained
        .files()
        .iter()
        .find(|(name, _)| name == DEFINITION)
        .unwrap();
    fs::write(from.path().join(DEFINITION), definition).unwrap();
    fs::write(from.path().join("merges.txt"), "left as it is\r\n").unwrap();
    let loaded = Tokenizer::load(from.path()).unwrap();
    assert_eq!(loaded.fingerprint(), trained.fingerprint());
    loaded.save(to.path()).unwrap();
    for name in [DEFINITION, "merges.txt"] {
        assert_eq!(
            fs::read(from.path().join(name)).unwrap(),
            fs::read(to.path().join(name)).unwrap()
        );
    }
    let config = hf::read_object(&to.path().join(CONFIG)).unwrap();
    assert_eq!(
        (&config["tokenizer_class"], &config["eos_token"]),
        (&"PreTrainedTokenizerFast".into(), &bpe::END_OF_TEXT.into())
    );
    // Loading what was saved gives the same again, from the directory or from the file.
    for path in [to.path().to_path_buf(), to.path().join(DEFINITION)] {
        assert_eq!(Tokenizer::load(&path).unwrap().files(), loaded.files());
    }
}

#[test]
fn an_older_form_is_saved_with_a_tokenizer_json_of_the_same_ids() {
    let data = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data");
    for (family, names) in [
        ("albert", &["spiece.model"][..]),
        ("bert-uncased", &["vocab.txt"]),
        ("gpt2", &["vocab.json", "merges.txt"]),
        ("golden/tokenizer_classes", &["tokenizer.model"]),
        ("golden/tokenizer_classes", &["sentencepiece.bpe.model"]),
    ] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for name in names {
            fs::copy(data.join(family).join(name), from.path().join(name)).unwrap();
        }
        let loaded = Tokenizer::load(from.path()).unwrap();
        loaded.save(to.path()).unwrap();
        for name in names {
            fs::remove_file(to.path().join(name)).unwrap();
        }
        let saved = Tokenizer::load(to.path()).unwrap();
        assert_eq!(saved.fingerprint(), loaded.fingerprint(), "{family}");
        let text = "A caf\u{e9}, not two.";
        assert_eq!(saved.encode(text).unwrap(), loaded.encode(text).unwrap());
        assert_eq!(saved.pad_id(), loaded.pad_id());
    }
}

#[test]
fn the_config_decides_special_tokens_and_length() {
    let dir = tempfile::tempdir().unwrap();
    train_byte_bpe(&corpus(), 280)
        .unwrap()
        .save(dir.path())
        .unwrap();
    let load = |config: &str| {
        fs::write(dir.path().join(CONFIG), config).unwrap();
        Tokenizer::load(dir.path())
    };
    let tokenizer =
        load(r#"{"model_max_length": 1024, "eos_token": {"content": "A"}, "bos_token": null, "pad_token": "B"}"#).unwrap();
    assert_eq!(tokenizer.model_max_length(), Some(1024));
    assert_eq!(
        (
            tokenizer.eos_id().is_some_and(|id| id != 0),
            tokenizer.bos_id(),
            tokenizer.pad_id().is_some()
        ),
        (true, None, true)
    );
    for unlimited in [
        "{}",
        r#"{"model_max_length": 1000000000000000019884624838656}"#,
        r#"{"model_max_length": null}"#,
    ] {
        assert_eq!(load(unlimited).unwrap().model_max_length(), None);
    }
    assert!(
        load("{")
            .unwrap_err()
            .to_string()
            .contains("tokenizer_config.json")
    );
}

/// As transformers 5 gives token_type_ids: by the class, unless the file names the inputs.
#[test]
fn segments_are_those_of_the_tokenizers_class() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let definition = root.join("tests/data/bert-uncased/tokenizer.json");
    let dir = tempfile::tempdir().unwrap();
    fs::copy(definition, dir.path().join(DEFINITION)).unwrap();
    let load = |config: &str| {
        fs::write(dir.path().join(CONFIG), config).unwrap();
        Tokenizer::load(dir.path()).unwrap()
    };
    for (config, segments) in [
        (r#"{"tokenizer_class": "BertTokenizer"}"#, true),
        (r#"{"tokenizer_class": "PreTrainedTokenizerFast"}"#, false),
        (r#"{"tokenizer_class": "TokenizersBackend"}"#, false),
        (
            r#"{"tokenizer_class": "TokenizersBackend", "model_input_names": ["input_ids", "token_type_ids"]}"#,
            true,
        ),
        (
            r#"{"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids"]}"#,
            false,
        ),
    ] {
        assert_eq!(load(config).has_segments(), segments, "{config}");
    }
    // What is saved of a definition alone says of itself what it was used as.
    fs::remove_file(dir.path().join(CONFIG)).unwrap();
    let alone = Tokenizer::load(dir.path()).unwrap();
    let saved = tempfile::tempdir().unwrap();
    alone.save(saved.path()).unwrap();
    let again = Tokenizer::load(saved.path()).unwrap();
    assert_eq!((alone.has_segments(), again.has_segments()), (true, true));
}

#[test]
fn what_cannot_be_loaded_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = |what: &str| {
        (
            what.to_string(),
            Tokenizer::load(dir.path()).unwrap_err().to_string(),
        )
    };
    assert!(error("empty").1.contains("expected tokenizer.json"));
    fs::write(dir.path().join("spiece.model"), "x").unwrap();
    assert!(error("sentencepiece").1.contains("no sentencepiece model"));
    fs::write(dir.path().join(DEFINITION), "{\"model\": 3}").unwrap();
    assert!(
        error("garbage")
            .1
            .contains("tokenizer.json is not a tokenizer")
    );
    assert!(
        Tokenizer::load(&dir.path().join("none"))
            .unwrap_err()
            .to_string()
            .contains("none")
    );
    let tokenizer = train_byte_bpe(&corpus(), 280).unwrap();
    tokenizer.check_vocab(280).unwrap();
    assert!(
        tokenizer
            .check_vocab(279)
            .unwrap_err()
            .to_string()
            .contains("280 tokens but the model's vocabulary has 279")
    );
}

/// Tokens of settings and pieces of models have the bounds of a definition's.
#[test]
fn tokens_have_bounds_in_every_file() {
    let long = "x".repeat(bounds::LONGEST + 1);
    let dir = tempfile::tempdir().unwrap();
    let refused = || {
        let message = Tokenizer::load(dir.path()).unwrap_err().to_string();
        assert!(message.contains("4097 bytes"), "{message}");
    };
    let piece = [&[10, 0x81, 0x20][..], long.as_bytes()].concat();
    let model = [&[10, 0x84, 0x20][..], &piece].concat();
    fs::write(dir.path().join("tokenizer.model"), model).unwrap();
    refused();
    train_byte_bpe(&corpus(), 280)
        .unwrap()
        .save(dir.path())
        .unwrap();
    for config in [
        format!(r#"{{"eos_token": "{long}"}}"#),
        format!(r#"{{"added_tokens_decoder": {{"280": {{"content": "{long}"}}}}}}"#),
    ] {
        fs::write(dir.path().join(CONFIG), config).unwrap();
        refused();
    }
}
