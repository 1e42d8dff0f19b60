//! Data as people bring it to fine-tuning, run by the real program: folders, mixtures, rows of several
//! shapes, sets of token ids, and the preview of what a training sees.

use crate::packing::{bench, chats};
use crate::parallel::assert_same_run;
use crate::tasks::{Bench, GPTJ, numbers};
use serde_json::{Value, json};
use std::fs;

/// A small model for runs of a few steps; what they read is not in here.
const MODEL: &str = "--model_type llama --config_overrides hidden_size=32,intermediate_size=64,num_hidden_layers=2,\
    num_attention_heads=4,num_key_value_heads=2,max_position_embeddings=96,vocab_size=1000,pad_token_id=0,attention_dropout=0.0 \
    --tokenizer_name byte_bpe --learning_rate 1e-3 --adam_epsilon 1e-4 --logging_steps 1 --disable_tqdm --save_strategy no";

/// Writes rows as JSON lines.
fn write(bench: &Bench, name: &str, rows: impl IntoIterator<Item = Value>) {
    let rows = rows.into_iter();
    let text: String = rows.map(|row| format!("{row}\n")).collect();
    fs::write(bench.path(name), text).unwrap();
}

/// The losses of a run of three steps.
fn losses(bench: &Bench, dir: &str, line: &str) -> Vec<f64> {
    let line = format!("{line} {MODEL} --max_steps 3 --output_dir {dir}");
    bench.run(&line).succeeded();
    numbers(&bench.records(dir), "loss")
}

/// A folder with `train.jsonl` and `valid.jsonl` is all that a training needs: rows, length, padding and packing
/// follow from its files, and a line says what was chosen.
#[test]
fn a_folder_is_enough() {
    let bench = bench();
    losses(
        &bench,
        "base",
        "train sft --train_file chats.jsonl --max_length 64",
    );
    fs::create_dir(bench.path("set")).unwrap();
    fs::write(bench.path("set/train.jsonl"), chats(120)).unwrap();
    fs::write(bench.path("set/valid.jsonl"), chats(24)).unwrap();
    let run = bench.run(
        "train sft --model_name_or_path base --train_file set --use_peft --lora_target_modules q_proj --do_train --do_eval --max_steps 2 \
         --disable_tqdm --output_dir out",
    );
    run.succeeded();
    for part in [
        "note: set: train.jsonl to train on, valid.jsonl to evaluate on\n",
        "note: rows of set/train.jsonl are conversations (messages)\n",
        "note: chosen by the data: max_seq_length 64 (all 120 examples have up to ",
    ] {
        assert!(run.stderr.contains(part), "{part} is not in {}", run.stderr);
    }
    assert_eq!(bench.json("out/all_results.json")["eval_samples"], 24);
    // Flags win.
    let run = bench.run(&format!(
        "train sft {MODEL} --train_file set --max_length 32 --packing --max_steps 1 --output_dir other"
    ));
    run.succeeded();
    assert!(
        !run.stderr.contains("chosen by the data") && run.stderr.contains("rows of 32"),
        "{}",
        run.stderr
    );
}

/// A mixture is the same on two devices and after a resume, and a line has the share of each file.
#[test]
fn a_mixture_is_the_same_on_two_devices_and_after_a_resume() {
    let bench = bench();
    fs::write(bench.path("a.jsonl"), chats(90)).unwrap();
    let texts = (0..40).map(|i| json!({"messages": [{"role": "user", "content": "tea"}, {"role": "assistant", "content": format!("seven {i}")}]}));
    write(&bench, "b.jsonl", texts);
    let train = |dir: &str, more: &str| {
        let model = MODEL.replace("--disable_tqdm --save_strategy no", "");
        let run = bench.run(&format!(
            "train sft {model} --train_file a.jsonl:0.75 b.jsonl:0.25 --max_length 64 --max_steps 6 --cache_dir cache --output_dir {dir} {more}"
        ));
        run.succeeded();
        run
    };
    let saving = "--save_strategy steps --save_steps 3";
    let one = train("one", &format!("--per_device_train_batch_size 4 {saving}"));
    let line = one
        .stderr
        .lines()
        .find(|line| line.contains("a mixture of "));
    let line = line.unwrap_or_else(|| panic!("{}", one.stderr));
    assert!(
        line.contains("a.jsonl gives 7")
            && line.contains("b.jsonl gives 2")
            && line.contains("% of the tokens"),
        "{line}"
    );
    train(
        "two",
        &format!("--per_device_train_batch_size 2 --data_parallel 2 {saving}"),
    );
    assert_same_run(&bench, "two", "one");
    let resume = format!(
        "--per_device_train_batch_size 4 {saving} --resume_from_checkpoint one/checkpoint-3"
    );
    train("resumed", &resume);
    assert_eq!(
        bench.bytes("resumed/model.safetensors"),
        bench.bytes("one/model.safetensors")
    );
    // The same as a table of a settings file; files that end begin anew.
    let settings = json!({"train_file": {"a.jsonl": 0.75, "b.jsonl": 0.25}, "stopping_strategy": "all_exhausted"});
    fs::write(bench.path("mix.json"), settings.to_string()).unwrap();
    let model = MODEL.replace("--disable_tqdm", "");
    let run = bench.run(&format!(
        "train sft {model} --config mix.json --max_length 64 --max_steps 1 --cache_dir cache --output_dir table"
    ));
    run.succeeded();
    assert!(run.stderr.contains("a mixture of "), "{}", run.stderr);
}

/// Instructions and ShareGPT's conversations train as the conversations that they mean.
#[test]
fn rows_of_every_shape_train_as_what_they_mean() {
    let bench = bench();
    let turns = |i: usize| (format!("say tea {i}"), format!("seven lamp {i}"));
    let rows = |row: &dyn Fn(String, String) -> Value| -> Vec<Value> {
        (0..24)
            .map(turns)
            .map(|(asked, said)| row(asked, said))
            .collect()
    };
    write(
        &bench,
        "pairs.jsonl",
        rows(
            &|asked, said| json!({"prompt": [{"role": "user", "content": format!("{asked}\nquiet")}], "completion": [{"role": "assistant", "content": said}]}),
        ),
    );
    write(
        &bench,
        "alpaca.jsonl",
        rows(&|asked, said| json!({"instruction": asked, "input": "quiet", "output": said})),
    );
    write(
        &bench,
        "messages.jsonl",
        rows(
            &|asked, said| json!({"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]}),
        ),
    );
    write(
        &bench,
        "sharegpt.jsonl",
        rows(
            &|asked, said| json!({"conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": said}]}),
        ),
    );
    let of = |name: &str| {
        losses(
            &bench,
            &format!("out-{name}"),
            &format!("train sft --train_file {name}.jsonl --max_length 64"),
        )
    };
    assert_eq!(of("alpaca"), of("pairs"));
    assert_eq!(of("sharegpt"), of("messages"));
    let said = bench.run(&format!(
        "train sft {MODEL} --train_file sharegpt.jsonl --assistant_only_loss --max_length 64 --max_steps 1 --output_dir said"
    ));
    said.succeeded();
    assert!(
        said.stderr.contains("conversations (conversations) of ShareGPT, whose human and gpt are the user and the assistant"),
        "{}",
        said.stderr
    );
}

/// Sets of ids train as the texts that they are of, from every format; ids beyond the vocabulary are named.
#[test]
fn sets_of_ids_train_as_their_texts() {
    let bench = bench();
    let ids = |row: usize| (0..64).map(move |at| ((row * 37 + at * at) % 990) as u16);
    let all: Vec<u16> = (0..20).flat_map(ids).collect();
    let raw: Vec<u8> = all.iter().flat_map(|id| id.to_le_bytes()).collect();
    fs::write(bench.path("ids.bin"), &raw).unwrap();
    let mut header = format!(
        "{{'descr': '<u2', 'fortran_order': False, 'shape': ({},), }}",
        all.len()
    );
    header.push_str(&" ".repeat(127 - 10 - header.len()));
    header.push('\n');
    let mut numpy = b"\x93NUMPY\x01\x00".to_vec();
    numpy.extend((header.len() as u16).to_le_bytes());
    numpy.extend(header.as_bytes());
    numpy.extend(&raw);
    fs::write(bench.path("ids.npy"), numpy).unwrap();
    let rows = || (0..20).map(|row| ids(row).collect::<Vec<u16>>());
    write(
        &bench,
        "ids.jsonl",
        rows().map(|ids| json!({"input_ids": ids, "labels": ids})),
    );
    let clm = |name: &str| {
        losses(
            &bench,
            &format!("out-{name}"),
            &format!(
                "train clm --train_file {name} --block_size 32 --validation_split_percentage 0"
            ),
        )
    };
    let raw = clm("ids.bin");
    assert!(raw.iter().all(|loss| loss.is_finite()) && raw.len() == 3);
    assert_eq!(clm("ids.npy"), raw);
    assert_eq!(clm("ids.jsonl"), raw);
    // Each row an example of its own, of which half counts.
    let halves = rows().map(|ids| {
        let label = |(at, id): (usize, &u16)| if at < 32 { -100 } else { i64::from(*id) };
        let labels: Vec<i64> = ids.iter().enumerate().map(label).collect();
        json!({"input_ids": ids, "labels": labels})
    });
    write(&bench, "halves.jsonl", halves);
    let preview = bench.run(&format!(
        "data preview sft {MODEL} --train_file halves.jsonl --max_length 64 --json"
    ));
    preview.succeeded();
    let found: Value = serde_json::from_str(preview.stdout.trim()).unwrap();
    assert_eq!(found["counts"]["trained"], 20 * 32);
    write(
        &bench,
        "beyond.jsonl",
        [
            json!({"input_ids": [1, 2]}),
            json!({"input_ids": [1, 1000]}),
        ],
    );
    let run = bench.run(&format!(
        "train sft {MODEL} --train_file beyond.jsonl --max_steps 1 --output_dir none"
    ));
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(
        run.stderr.contains("beyond.jsonl:2")
            && run
                .stderr
                .contains("input_ids[1] is 1000: the model's vocabulary has ids from 0 to 999"),
        "{}",
        run.stderr
    );
}

/// The preview shows the tokens of the training, those that count marked, after template, packing and truncation.
#[test]
fn the_preview_shows_what_a_training_sees() {
    let bench = bench();
    let line = format!(
        "data preview sft {MODEL} --train_file chats.jsonl --assistant_only_loss --max_length 64"
    );
    let run = bench.run(&line);
    run.succeeded();
    let examples: Vec<&str> = run
        .stdout
        .lines()
        .filter(|line| line.starts_with("example "))
        .collect();
    assert_eq!(examples.len(), 3, "{}", run.stdout);
    let shown = run.stdout.lines().nth(1).unwrap().replace('|', "");
    // The first conversation of the file, as its template writes it.
    let first: Value = serde_json::from_str(chats(1).trim()).unwrap();
    let text = |turn: usize| {
        first["messages"][turn]["content"]
            .as_str()
            .unwrap()
            .to_string()
    };
    let end = "<|endoftext|>".replace('|', "");
    // A token may begin with the space before a word.
    let (before, trained) = shown.split_once("[[").unwrap();
    let (trained, after) = trained.split_once("]]").unwrap();
    assert_eq!(trained.trim_start(), format!("{}{end}", text(1)));
    assert_eq!(before.trim_end(), format!("Q: {}\\nA:", text(0)));
    assert!(["", "\\n"].contains(&after), "{after}");
    assert!(
        run.stdout.contains("trained") && run.stdout.contains("padding"),
        "{}",
        run.stdout
    );
    assert!(!bench.path("out").exists());
    let json = |more: &str| -> Value {
        let run = bench.run(&format!("{line} --json {more}"));
        run.succeeded();
        serde_json::from_str(run.stdout.trim()).unwrap()
    };
    let (apart, packed) = (json(""), json("--packing --preview 99"));
    assert_eq!(apart["counts"]["examples"], 120);
    assert_eq!(apart["counts"]["trained"], packed["counts"]["trained"]);
    assert!(packed["counts"]["rows"].as_u64() < Some(120));
    assert!(packed["counts"]["padding"].as_u64() < apart["counts"]["padding"].as_u64());
    // A row that holds one example alone may come first.
    let starts = |row: &Value| {
        let tokens = row.as_array().unwrap().iter();
        tokens.filter(|token| token["position"] == 0).count()
    };
    let rows = packed["examples"].as_array().unwrap();
    assert!(rows.iter().any(|row| starts(&row[0]) > 1));
}

#[test]
fn a_model_is_fine_tuned_on_conversations_and_answers() {
    let bench = Bench::new();
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token if m.role == 'assistant' }}\n{% endfor %}\
                    {% if add_generation_prompt %}<assistant>{% endif %}";
    fs::write(bench.path("byte_bpe/chat_template.jinja"), template).unwrap();
    let colours = ["red", "green", "blue"];
    let chats = (0..60).map(|i| {
        let (thing, colour) = (["roses", "grass", "the sky"][i % 3], colours[i % 3]);
        let turn = |role: &str, content: String| json!({"role": role, "content": content});
        let messages = [
            turn("user", format!("What is {thing}?")),
            turn("assistant", colour.to_string()),
        ];
        format!("{}\n", json!({"messages": messages}))
    });
    fs::write(bench.path("chats.jsonl"), chats.collect::<String>()).unwrap();
    let data = "--assistant_only_loss --max_seq_length 32 --pad_to_bucket 16,32 --disable_tqdm";
    bench
        .run(&format!(
            "train sft {GPTJ} {data} --tokenizer_name byte_bpe --train_file chats.jsonl --validation_file chats.jsonl \
             --do_train --do_eval --per_device_train_batch_size 12 --max_steps 60 --learning_rate 1e-2 --save_strategy no \
             --output_dir out"
        ))
        .succeeded();
    assert_eq!(
        bench.json("out/data_settings.json"),
        json!({"max_seq_length": "32", "assistant_only_loss": "true"})
    );
    let results = bench.json("out/all_results.json");
    let accuracy = results["eval_accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.95, "{results}");
    assert!(results["perplexity"].is_number(), "{results}");
    // The same whatever the batch is padded to; the training's turns count.
    let eval = bench.run(
        "eval sft --json --disable_tqdm --model_name_or_path out --validation_file chats.jsonl \
         --pad_to_max_length --max_seq_length 64 --per_device_eval_batch_size 7",
    );
    eval.succeeded();
    assert!(
        eval.stderr
            .contains("note: as in training: --assistant_only_loss true (out/data_settings.json)"),
        "{}",
        eval.stderr
    );
    let again: Value = serde_json::from_str(eval.stdout.trim()).unwrap();
    let close = |key: &str| (again[key].as_f64().unwrap() - results[key].as_f64().unwrap()).abs();
    assert!(
        close("eval_loss") < 1e-4 && close("eval_accuracy") == 0.0,
        "{again} {results}"
    );
    for (thing, colour) in [("grass", "green"), ("roses", "red")] {
        let mut answer = bench.command(
            "generate --model_name_or_path out --chat --do_sample false --max_new_tokens 8",
        );
        let answer = answer
            .args(["--prompt", &format!("What is {thing}?")])
            .run();
        answer.succeeded();
        assert!(
            answer.stdout.trim().ends_with(colour),
            "{thing}: {}",
            answer.stdout
        );
    }
}
