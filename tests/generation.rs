//! Generation: its tokens with a key/value cache, without one and in transformers, the program as a
//! user runs it, and chat templates.

use crate::support::{copy_tokenizer, data_dir, data_text, golden_cases, golden_dirs, xtrain};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use xtrain::cache::CacheSettings;
use xtrain::checkpoint::{Weights as StoredTensors, hf};
use xtrain::data::Tokenizer;
use xtrain::data::chat_template::{ChatTemplate, Message, Variables};
use xtrain::parallel::Mesh;
use xtrain::trainer::generate::{CachedText, Request, Sampling, generate};
use xtrain::trainer::{device, parameters};
use xtrain_models::{Config, HeadKind};

const NEW: usize = 8;

/// Prompts and what greedy generation continues them with.
type Continuations = (Vec<Vec<u32>>, Option<Vec<Vec<u32>>>);

/// Those of transformers, of the folder that a case is in.
fn continuations(case: &Path) -> Option<Continuations> {
    let folder = case.parent()?;
    let file = [
        folder.join("generation.json"),
        folder.join("newer/generation.json"),
    ]
    .into_iter()
    .find(|file| file.exists())?;
    let all = hf::read_object(&file).unwrap();
    let of_case = all.get(case.file_name()?.to_str()?)?.as_array()?;
    let ids = |key: &str| -> Vec<Vec<u32>> {
        let lists = of_case.iter().map(|entry| entry[key].clone());
        lists
            .map(|list| serde_json::from_value(list).unwrap())
            .collect()
    };
    Some((ids("prompt"), Some(ids("new"))))
}

/// Prompts of several lengths from a case's inputs.
fn own_prompts(case: &Path) -> Continuations {
    let inputs = StoredTensors::open(&case.join("inputs.safetensors")).unwrap();
    let view = inputs.get("input_ids").unwrap();
    let ids: Vec<u32> = view
        .bytes
        .chunks_exact(8)
        .map(|id| i64::from_le_bytes(id.try_into().unwrap()) as u32)
        .collect();
    let prompts = [1, 5, 11].map(|length| ids[..length].to_vec());
    (prompts.to_vec(), None)
}

/// Prompts of different lengths side by side get the tokens that transformers gives each of them,
/// and those that are there without a cache.
#[test]
fn tokens_with_a_cache_are_those_without_and_transformers() {
    let mut seen = BTreeSet::new();
    for (name, dir) in golden_cases() {
        let values = hf::read_object(&dir.join("config.json")).unwrap();
        let config = Config::new(values, "config.json");
        let is_decoder = HeadKind::of(&config).unwrap() == HeadKind::CausalLm;
        let theirs = continuations(&dir);
        // One case of a family is enough, but for those that transformers has continued.
        if !is_decoder || !seen.insert(config.text("model_type").unwrap()) && theirs.is_none() {
            continue;
        }
        let (prompts, theirs) = theirs.unwrap_or_else(|| own_prompts(&dir));
        let model = xtrain_models::build(config, HeadKind::CausalLm).unwrap();
        let stored = StoredTensors::open(&dir).unwrap();
        let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
        parameters::load(&mut session, &*model, &stored).unwrap();
        let mut request = Request {
            prompts: &prompts,
            max_new_tokens: NEW,
            eos: &[],
            sampling: Sampling::GREEDY,
            use_cache: true,
        };
        let with = generate(&mut session, &*model, &request, None, &mut |_, _| true).unwrap();
        request.use_cache = false;
        let without = generate(&mut session, &*model, &request, None, &mut |_, _| true).unwrap();
        for (new, prompt) in with.iter().zip(&prompts) {
            let most = NEW.min(model.max_positions() - prompt.len());
            assert_eq!(new.len(), most, "{name}");
        }
        assert_eq!(with, without, "{name}");
        if let Some(theirs) = theirs {
            assert_eq!(with, theirs, "{name}");
        }
        println!("{name} continues texts");
    }
    assert!(seen.len() >= 12, "{seen:?}");
}

/// Turns of a conversation go on with what the cache holds of the turns before, and get the tokens
/// that they get from the beginning.
#[test]
fn a_conversation_goes_on_with_what_is_kept() {
    let mut seen = BTreeSet::new();
    let mut kept = 0;
    for (name, dir) in golden_cases() {
        let mut values = hf::read_object(&dir.join("config.json")).unwrap();
        let of_file = Config::new(values.clone(), "config.json");
        let model_type = of_file.text("model_type").unwrap();
        let is_decoder = HeadKind::of(&of_file).unwrap() == HeadKind::CausalLm;
        if !is_decoder || !seen.insert(model_type) {
            continue;
        }
        // Those without a table of positions take longer texts than they were made for.
        for key in ["max_position_embeddings", "n_positions"] {
            if values.contains_key(key) && !name.contains("gpt2") && !name.contains("gpt_neo") {
                values.insert(key.into(), 128.into());
            }
        }
        let config = Config::new(values, "config.json");
        let model = xtrain_models::build(config, HeadKind::CausalLm).unwrap();
        let stored = StoredTensors::open(&dir).unwrap();
        let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
        parameters::load(&mut session, &*model, &stored).unwrap();
        let mut answer = |text: &Vec<u32>, cached: Option<&mut CachedText>| {
            let request = Request {
                prompts: std::slice::from_ref(text),
                max_new_tokens: 5,
                eos: &[],
                sampling: Sampling::GREEDY,
                use_cache: true,
            };
            let new = generate(&mut session, &*model, &request, cached, &mut |_, _| true);
            new.unwrap().remove(0)
        };
        let mut cached = CachedText::default();
        let mut turns = Vec::new();
        let mut text: Vec<u32> = vec![7, 11, 5, 9, 6, 8, 10];
        while text.len() + 5 < model.max_positions().min(70) {
            let new = answer(&text, Some(&mut cached));
            turns.push((text.clone(), new.clone()));
            if cached.reused() > 0 {
                // What is new, with tokens before it that fill the smallest bucket.
                assert_eq!(text.len() - cached.reused(), 16, "{name}");
                kept += 1;
            }
            text.extend(new);
            if turns.len() == 4 {
                // Not what the model had said.
                let last = text.len() - 4;
                text[last] = (text[last] + 1) % 20;
            }
            text.extend([12, 5, 6, 13 + turns.len() as u32, 9, 8, 7, 5, 6]);
        }
        for (text, new) in &turns {
            assert_eq!(&answer(text, None), new, "{name}: {} tokens", text.len());
        }
        println!("{name}: {} turns", turns.len());
    }
    assert!(seen.len() >= 12 && kept >= 25, "{seen:?}, {kept} turns");
}

#[test]
fn texts_end_where_they_should() {
    let (_, dir) = golden_cases()
        .into_iter()
        .find(|(name, _)| name == "llama")
        .unwrap();
    let mut values = hf::read_object(&dir.join("config.json")).unwrap();
    values.insert("max_position_embeddings".into(), 14.into());
    let model =
        xtrain_models::build(Config::new(values, "config.json"), HeadKind::CausalLm).unwrap();
    let stored = StoredTensors::open(&dir).unwrap();
    let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
    parameters::load(&mut session, &*model, &stored).unwrap();
    let (prompts, _) = own_prompts(&dir);
    let mut continued = |prompts: &[Vec<u32>], eos: &[u32], most: usize| {
        let request = Request {
            prompts,
            max_new_tokens: NEW,
            eos,
            sampling: Sampling::GREEDY,
            use_cache: true,
        };
        let mut count = 0;
        let new = generate(&mut session, &*model, &request, None, &mut |text, _| {
            count += usize::from(text == 0);
            text != 0 || count < most
        });
        new.map_err(|error| error.to_string())
    };
    let all = continued(&prompts, &[], 100).unwrap();
    let lengths: Vec<usize> = all.iter().map(Vec::len).collect();
    assert_eq!(lengths, [8, 8, 3], "the last prompt leaves three positions");
    let eos = all[1][2];
    let ended = continued(&prompts, &[eos], 100).unwrap();
    let end = all[1].iter().position(|id| *id == eos).unwrap();
    assert_eq!(ended[1], all[1][..end]);
    let stopped = continued(&prompts, &[], 2).unwrap();
    assert_eq!((stopped[0].len(), &stopped[1]), (2, &all[1]));
    for (prompt, word) in [(vec![], "no tokens"), (vec![1; 14], "14 positions")] {
        let error = continued(&[prompt], &[], 100).unwrap_err();
        assert!(error.contains(word), "{error}");
    }
}

/// A folder with a model that has seen a step of training.
struct Saved {
    dir: tempfile::TempDir,
}

impl Saved {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(
            dir.path().join("train.txt"),
            &data_text("play.txt")[..20_000],
        )
        .unwrap();
        let mut command = xtrain();
        command
            .dir(dir.path())
            .args([
                "train",
                "clm",
                "--model_type",
                "gpt2",
                "--disable_tqdm",
                "--do_train",
            ])
            .args([
                "--config_overrides",
                "n_layer=2,n_head=2,n_embd=32,n_positions=64",
            ])
            .args([
                "--block_size",
                "32",
                "--max_steps",
                "1",
                "--cache_dir",
                "cache",
            ])
            .args(["--train_file", "train.txt", "--output_dir", "out"])
            .arg("--tokenizer_name")
            .arg(data_dir().join("gpt2"));
        command.run().succeeded();
        Saved { dir }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn generate(&self, words: &[&str]) -> String {
        let run = self.command(words).run();
        run.succeeded();
        run.stdout
    }

    fn command(&self, words: &[&str]) -> crate::support::Command {
        let mut command = xtrain();
        command
            .dir(self.dir.path())
            .args([
                "generate",
                "--model_name_or_path",
                "out",
                "--cache_dir",
                "cache",
            ])
            .args(words);
        command
    }

    /// What is printed when standard input is a pipe with this text.
    fn piped(&self, words: &[&str], input: &str) -> std::process::Output {
        let mut process = self.command(words).process();
        let mut child = process
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        child.wait_with_output().unwrap()
    }
}

#[test]
fn generates_as_a_user_runs_it() {
    let saved = Saved::new();
    let greedy = ["--max_new_tokens", "6", "--do_sample", "false"];
    let of = |prompt: &str| saved.generate(&[&greedy[..], &["--prompt", prompt]].concat());
    let prompts = ["First Citizen:", "We are"];
    fs::write(saved.dir.path().join("prompts.txt"), prompts.join("\n")).unwrap();
    let both = saved.generate(&[&greedy[..], &["--prompt_file", "prompts.txt"]].concat());
    let expected = format!(
        "--- prompt 1\n{}--- prompt 2\n{}",
        of(prompts[0]),
        of(prompts[1])
    );
    assert_eq!(both, expected);
    assert!(of(prompts[0]).starts_with(prompts[0]));

    let sampled = [
        "--max_new_tokens",
        "6",
        "--top_p",
        "0.9",
        "--num_return_sequences",
        "2",
        "--prompt",
        "We",
    ];
    let two = saved.generate(&sampled);
    assert_eq!(two, saved.generate(&sampled), "by its seed");
    let texts: Vec<&str> = two.split("--- prompt 1, continuation ").skip(1).collect();
    assert_eq!(texts.len(), 2, "{two}");
    assert_ne!(texts[0][2..], texts[1][2..], "they are drawn apart");

    // What leaves no position for a token is refused before it is shown.
    let long = "We are ".repeat(64);
    let refused = saved
        .command(&[&greedy[..], &["--prompt", &long]].concat())
        .run();
    assert_eq!((refused.code, &*refused.stdout), (Some(1), ""));
    assert!(refused.stderr.contains("positions"), "{}", refused.stderr);

    // A conversation, first without a template.
    let chat = [&greedy[..], &["--chat", "--system_prompt", "Be short."]].concat();
    let refused = saved.piped(&chat, "Hello");
    let message = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{message}");
    assert!(
        message.contains("no chat template") && message.contains("hint:"),
        "{message}"
    );
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
    fs::write(saved.out().join("chat_template.jinja"), template).unwrap();
    let piped = saved.piped(&chat, "Hello\n");
    assert_eq!(
        piped.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&piped.stderr)
    );
    let rendered = "system: Be short.\nuser: Hello\nassistant:";
    let continued = of(rendered);
    assert_eq!(
        String::from_utf8(piped.stdout).unwrap(),
        continued[rendered.len()..],
        "the answer is what the template's text goes on with"
    );
    let typed = saved.generate(&[&chat[..], &["--prompt", "Hello"]].concat());
    assert_eq!(typed, continued[rendered.len()..]);
}

/// transformers' renderings of released templates.
/// Nothing that is asked for takes the machine's memory, or a time that grows with it, before it is
/// refused.
#[test]
fn what_is_too_much_is_refused_by_its_number() {
    let saved = Saved::new();
    let write = |name: &str, text: &[u8]| fs::write(saved.dir.path().join(name), text).unwrap();
    write("long", &[b"the ".repeat(2 << 20), b"\n".to_vec()].concat());
    write("many", &b"a\n".repeat(30 << 20));
    write("latin", b"the\ncaf\xe9\n");
    let sparse = fs::File::create(saved.dir.path().join("sparse")).unwrap();
    sparse.set_len(100 << 30).unwrap();
    let zeros = || Stdio::from(fs::File::open("/dev/zero").unwrap());
    let nothing = Stdio::null;
    type Case<'c> = (&'c [&'c str], fn() -> Stdio, &'c [&'c str]);
    let cases: [Case; 7] = [
        (
            &["--prompt", "a", "--num_return_sequences", "10000000"],
            nothing,
            &["10000000 texts", "lower --num_return_sequences"],
        ),
        (
            &[
                "--prompt",
                "a",
                "--num_return_sequences",
                "18446744073709551615",
            ],
            nothing,
            &["num_return_sequences", "18446744073709551615"],
        ),
        (
            &["--prompt_file", "long"],
            nothing,
            &["long: line 1 has more than 4.0 MiB"],
        ),
        (
            &["--prompt_file", "many", "--num_return_sequences", "100000"],
            nothing,
            &["3145728000000 texts"],
        ),
        (
            &["--prompt_file", "latin"],
            nothing,
            &["latin: line 2 is not UTF-8", "iconv"],
        ),
        (
            &["--prompt_file", "sparse"],
            nothing,
            &["more than the 64.0 MiB"],
        ),
        (
            &["--chat"],
            zeros as fn() -> Stdio,
            &["standard input has more than 4.0 MiB"],
        ),
    ];
    for (words, stdin, expected) in cases {
        let mut process = saved.command(words).limit_time(60).process();
        let output = process.stdin(stdin()).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        println!("{words:?}: {message}");
        assert!(matches!(output.status.code(), Some(1 | 2)), "{message}");
        assert_eq!(message.matches("error: ").count(), 1, "{message}");
        for words in expected {
            assert!(message.contains(words), "{words}: {message}");
        }
    }
    // A shell's pipe is read like a file.
    let greedy = ["--max_new_tokens", "3", "--do_sample", "false"];
    let piped = saved.piped(
        &[&greedy[..], &["--prompt_file", "/dev/stdin"]].concat(),
        "We are\n",
    );
    assert_eq!(
        String::from_utf8_lossy(&piped.stdout),
        saved.generate(&[&greedy[..], &["--prompt", "We are"]].concat())
    );
}

#[test]
fn conversations_are_rendered_as_transformers_does() {
    let mut chats = golden_dirs()
        .into_iter()
        .map(|golden| golden.join("newer/chat"));
    let Some(chat) = chats.find(|chat| chat.exists()) else {
        xtrain_test_groups::Group::Shared.skip("there is no ../shared/golden/newer/chat");
        return;
    };
    let rendered = hf::read_object(&chat.join("rendered.json")).unwrap();
    let conversations: Vec<Vec<Message>> = rendered["conversations"]
        .as_array()
        .unwrap()
        .iter()
        .map(|turns| {
            let turns = turns.as_array().unwrap().iter();
            turns
                .map(|turn| {
                    Message::new(
                        turn["role"].as_str().unwrap(),
                        turn["content"].as_str().unwrap(),
                    )
                })
                .collect()
        })
        .collect();
    let mut texts = 0;
    for record in rendered["records"].as_array().unwrap() {
        let name = record["template"].as_str().unwrap();
        let dir = tempfile::tempdir().unwrap();
        copy_tokenizer("byte_bpe", dir.path());
        fs::write(
            dir.path().join("tokenizer_config.json"),
            "{\"bos_token\": null, \"eos_token\": null}",
        )
        .unwrap();
        let template = chat.join(format!("templates/{name}.jinja"));
        fs::copy(template, dir.path().join("chat_template.jinja")).unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let template = ChatTemplate::of(&tokenizer).unwrap().unwrap();
        let conversation = &conversations[record["conversation"].as_u64().unwrap() as usize];
        let asks = record["add_generation_prompt"] == true;
        let found = template.render(conversation, asks, &Variables::default());
        match (record["text"].as_str(), found) {
            (Some(text), Ok(found)) => {
                texts += 1;
                assert_eq!(found.text, text, "{name}");
            }
            (None, Err(error)) => {
                // An undefined value has other words.
                let error = error.to_string();
                let theirs = record["error"].as_str().unwrap();
                assert!(
                    error.contains(theirs) || theirs.contains("undefined"),
                    "{error}"
                );
            }
            (text, found) => panic!("{name}: {found:?} where transformers gives {text:?}"),
        }
    }
    assert!(texts > 50);
}

/// Weights go out as they came in, or as they were asked for, and come back from torch's files.
#[test]
fn weights_keep_the_type_that_they_were_loaded_in() {
    let saved = Saved::new();
    let dtypes = |dir: &str| -> BTreeSet<String> {
        let weights = StoredTensors::open(&saved.dir.path().join(dir)).unwrap();
        let types = weights
            .iter()
            .map(|tensor| format!("{:?}", tensor.shape.dtype));
        types.collect()
    };
    let train = |from: &str, to: &str, more: &[&str]| {
        let mut command = xtrain();
        command
            .dir(saved.dir.path())
            .args([
                "train",
                "clm",
                "--disable_tqdm",
                "--do_train",
                "--model_name_or_path",
                from,
            ])
            .args([
                "--block_size",
                "32",
                "--max_steps",
                "1",
                "--cache_dir",
                "cache",
            ])
            .args(["--train_file", "train.txt", "--output_dir", to])
            .args(more);
        command.run().succeeded();
    };
    train(
        "out",
        "brain",
        &["--save_dtype", "bfloat16", "--save_steps", "1"],
    );
    assert_eq!(dtypes("brain"), BTreeSet::from(["BF16".to_string()]));
    assert_eq!(
        dtypes("brain/checkpoint-1"),
        BTreeSet::from(["F32".to_string()])
    );
    let config = hf::read_object(&saved.dir.path().join("brain/config.json")).unwrap();
    assert_eq!(config["torch_dtype"], "bfloat16");
    train("brain", "again", &["--save_steps", "1"]);
    assert_eq!(dtypes("again"), BTreeSet::from(["BF16".to_string()]));
    // A checkpoint's configuration says what its tensors are, or others would round them.
    let of_checkpoint = saved.dir.path().join("again/checkpoint-1/config.json");
    assert_eq!(
        hf::read_object(&of_checkpoint).unwrap()["torch_dtype"],
        "float32"
    );
    train("brain", "asked", &["--torch_dtype", "float32"]);
    assert_eq!(dtypes("asked"), BTreeSet::from(["F32".to_string()]));
    train("brain", "wide", &["--save_dtype", "float32"]);
    assert_eq!(dtypes("wide"), BTreeSet::from(["F32".to_string()]));
}

#[test]
fn a_sliding_window_sees_more_than_blocks_do() {
    let saved = Saved::new();
    fs::write(
        saved.dir.path().join("valid.txt"),
        &data_text("play.txt")[20_000..26_000],
    )
    .unwrap();
    let eval = |more: &[&str]| -> serde_json::Value {
        let mut command = xtrain();
        command
            .dir(saved.dir.path())
            .args([
                "eval",
                "clm",
                "--disable_tqdm",
                "--json",
                "--model_name_or_path",
                "out",
            ])
            .args([
                "--validation_file",
                "valid.txt",
                "--block_size",
                "32",
                "--cache_dir",
                "cache",
            ])
            .args(more);
        let run = command.run();
        run.succeeded();
        serde_json::from_str(run.stdout.trim()).unwrap()
    };
    let tokens = Tokenizer::load(&saved.out())
        .unwrap()
        .encode(&data_text("play.txt")[20_000..26_000])
        .unwrap()
        .len();
    let loss = |found: &serde_json::Value| found["eval_loss"].as_f64().unwrap();
    let [blocks, windows] = [eval(&[]), eval(&["--stride", "8"])];
    assert!(
        (loss(&blocks) - loss(&windows)).abs() < 0.3,
        "{blocks} {windows}"
    );
    assert_ne!(loss(&blocks), loss(&windows));
    let number = |key: &str| windows[key].as_f64().unwrap();
    let examples = number("eval_samples_per_second") * number("eval_runtime");
    let expected = (tokens - 32).div_ceil(8) + 1;
    assert_eq!(examples.round() as usize, expected, "{windows}");
    // Windows of one batch size or another have the same mean.
    let one = eval(&["--stride", "8", "--per_device_eval_batch_size", "3"]);
    assert!(
        (loss(&one) - loss(&windows)).abs() < 1e-5,
        "{one} {windows}"
    );
}
