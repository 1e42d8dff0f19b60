//! What can go wrong with tasks, as a user meets it: exit code 2 for what was typed, 1 for the
//! rest, one message that names the place and says what to do, and nothing lost that was there
//! before.

use crate::support::{Run, copy_tokenizer, snapshot, xtrain};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;
use xtrain::checkpoint::{TensorRef, write_safetensors};
use xtrain_graphs::{DType, Shape};
use xtrain_models::HeadKind;

/// A directory with tables, texts, two tokenizers, and small saved models of every kind.
struct Workplace(TempDir);

const SIZES: &str = "hidden_size=32,num_hidden_layers=1,num_attention_heads=2,intermediate_size=64,max_position_embeddings=64";
const CLS: &str = "train cls --disable_tqdm --model_type bert --tokenizer_name wordpiece --train_file train.csv --max_seq_length 16 \
                   --max_steps 1 --output_dir out";
const MLM: &str = "train mlm --disable_tqdm --model_type bert --tokenizer_name wordpiece --train_file train.txt --max_seq_length 16 \
                   --max_steps 1 --output_dir out";
const PREDICT: &str = "predict cls --disable_tqdm --model_name_or_path classifier --tokenizer_name wordpiece --test_file test.csv \
                       --max_seq_length 16";
const EVAL: &str = "eval cls --disable_tqdm --model_name_or_path classifier --tokenizer_name wordpiece --validation_file valid.csv \
                    --max_seq_length 16";

impl Workplace {
    fn new() -> Workplace {
        let place = Workplace(tempfile::tempdir().unwrap());
        for name in ["wordpiece", "byte_bpe"] {
            copy_tokenizer(name, &place.path(name));
        }
        let table = |rows: usize| -> String {
            let row = |i: usize| format!("this film is number {i},{}\n", ["no", "yes"][i % 2]);
            std::iter::once("text,label\n".to_string())
                .chain((0..rows).map(row))
                .collect()
        };
        place.write("train.csv", table(40));
        place.write("valid.csv", table(6));
        place.write("test.csv", "text\nis this a film\nno it is not\n");
        place.write(
            "train.txt",
            (0..400)
                .map(|i| format!("Line {i} is a line of text.\n"))
                .collect::<String>(),
        );
        place.save(
            "classifier",
            "bert",
            HeadKind::SequenceClassification { labels: 2 },
        );
        place.set("classifier", "id2label", json!({"0": "no", "1": "yes"}));
        place.set("classifier", "label2id", json!({"no": 0, "yes": 1}));
        place.save("masked", "bert", HeadKind::MaskedLm);
        place.save("causal", "gpt2", HeadKind::CausalLm);
        place
    }

    /// A small model with weights that are all the same.
    fn save(&self, name: &str, model_type: &str, task: HeadKind) {
        let mut config = xtrain_models::default_config(model_type).unwrap();
        let sizes = match model_type {
            "gpt2" => "n_embd=32,n_layer=1,n_head=2,n_positions=64",
            _ => SIZES,
        };
        config.set("vocab_size", 1000);
        for (key, value) in sizes.split(',').filter_map(|part| part.split_once('=')) {
            config.set(key, value.parse::<u64>().unwrap());
        }
        let model = xtrain_models::build(config, task).unwrap();
        fs::create_dir(self.path(name)).unwrap();
        self.write(
            &format!("{name}/config.json"),
            serde_json::to_string_pretty(model.config().values()).unwrap(),
        );
        let tensors: Vec<(String, Shape)> = model
            .parameters()
            .into_iter()
            .map(|p| (p.name, Shape::new(DType::F32, p.dims)))
            .collect();
        let largest = tensors
            .iter()
            .map(|(_, shape)| shape.bytes())
            .max()
            .unwrap();
        let bytes: Vec<u8> = 0.01f32.to_le_bytes().repeat(largest / 4);
        let refs: Vec<_> = tensors
            .iter()
            .map(|(name, shape)| {
                TensorRef::new(name.as_str(), shape.clone(), &bytes[..shape.bytes()])
            })
            .collect();
        write_safetensors(
            &mut fs::File::create(self.path(name).join("model.safetensors")).unwrap(),
            &refs,
        )
        .unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    /// Changes one key of a model's configuration.
    fn set(&self, model: &str, key: &str, value: Value) {
        let path = self.path(model).join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config[key] = value;
        fs::write(path, config.to_string()).unwrap();
    }

    fn run(&self, line: &str) -> Run {
        let mut command = xtrain();
        command
            .dir(self.0.path())
            .args(line.split_whitespace())
            .env("XTRAIN_CACHE_DIR", self.path("cache"));
        if line.contains("--model_type bert") && !line.contains("--config_overrides") {
            command.args(["--config_overrides", SIZES]);
        }
        command.run()
    }

    fn snapshot(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        snapshot(self.0.path())
    }
}

type Case = (
    &'static str,
    fn(&Workplace),
    &'static str,
    i32,
    &'static [&'static str],
);

#[track_caller]
fn check(cases: &[Case]) {
    let mut wrong = Vec::new();
    for (name, break_it, line, code, words) in cases {
        let place = Workplace::new();
        break_it(&place);
        let before = place.snapshot();
        let run = place.run(
            &line
                .replace("CLS", CLS)
                .replace("MLM", MLM)
                .replace("PREDICT", PREDICT)
                .replace("EVAL", EVAL),
        );
        let text = &run.stderr;
        println!("{name}: {}", text.trim_end());
        let errors = text
            .lines()
            .filter(|line| line.starts_with("error: "))
            .count();
        let message = text
            .split_once("error: ")
            .map_or("", |(_, message)| message);
        let missing: Vec<_> = words
            .iter()
            .filter(|word| !message.contains(**word))
            .collect();
        let signs = ["panicked", "a defect of xtrain", "Error {"];
        if run.code != Some(*code)
            || errors != 1
            || !missing.is_empty()
            || signs.iter().any(|sign| text.contains(sign))
        {
            wrong.push(format!(
                "{name}: code {:?}, without {missing:?}: {text}",
                run.code
            ));
        }
        let after = place.snapshot();
        for (path, content) in &before {
            assert!(
                after.get(path) == Some(content),
                "{name}: {} was changed or lost",
                path.display()
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rows_of_another_training_are_named() {
    let pairs = |place: &Workplace| {
        let row = json!({"prompt": "a", "chosen": "b", "rejected": "c"});
        place.write("pairs.jsonl", format!("{row}\n").repeat(4));
    };
    const PAIRS: &str = "--model_name_or_path causal --tokenizer_name byte_bpe --train_file pairs.jsonl --output_dir out";
    for task in ["sft", "clm"] {
        let place = Workplace::new();
        pairs(&place);
        let run = place.run(&format!("train {task} {PAIRS}"));
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains("preference pairs"), "{}", run.stderr);
    }
}

#[test]
fn tables_that_cannot_be_used() {
    check(&[
        (
            "no such text column",
            |_| (),
            "CLS --text_column_name tweet",
            2,
            &["train.csv", "tweet", "text", "label"],
        ),
        (
            "no such label column",
            |_| (),
            "CLS --label_column_name class",
            2,
            &["train.csv", "class", "text, label"],
        ),
        (
            "no such pair column",
            |_| (),
            "CLS --text_pair_column_name second",
            2,
            &["train.csv", "second"],
        ),
        (
            "label not in the map",
            |p| p.write("valid.csv", "text,label\na film,maybe\n"),
            "CLS --do_train --do_eval --validation_file valid.csv",
            1,
            &["valid.csv:2", "maybe", "no, yes"],
        ),
        (
            "label not of the model",
            |p| p.write("valid.csv", "text,label\na film,maybe\n"),
            "EVAL",
            1,
            &["valid.csv:2", "maybe", "no, yes"],
        ),
        (
            "no label",
            |p| p.write("train.csv", "text,label\na film,no\nanother,\nthird,yes\n"),
            "CLS",
            1,
            &["train.csv:3", "label"],
        ),
        (
            "NaN label",
            |p| {
                p.write(
                    "train.csv",
                    "text,label\na film,no\nanother,nan\nthird,yes\n",
                )
            },
            "CLS",
            1,
            &["train.csv:3", "NaN"],
        ),
        (
            "empty text",
            |p| p.write("train.csv", "text,label\n,no\nanother,yes\n"),
            "CLS",
            1,
            &["train.csv:2", "empty"],
        ),
        (
            "one label only",
            |p| p.write("train.csv", "text,label\na film,no\n"),
            "CLS",
            2,
            &["one label only", "at least two"],
        ),
        (
            "nothing is left of bad rows",
            |p| p.write("train.csv", "text,label\n,no\n,yes\n"),
            "CLS --on_bad_row skip",
            1,
            &["train.csv"],
        ),
        (
            "test file missing",
            |_| (),
            "PREDICT --test_file none.csv",
            2,
            &["--test_file", "none.csv does not exist"],
        ),
        (
            "tsv without its column",
            |p| p.write("test.tsv", "a\tb\n1\t2\n"),
            "PREDICT --test_file test.tsv",
            2,
            &["test.tsv", "a, b"],
        ),
    ]);
}

#[test]
fn lengths_and_padding_that_do_not_go() {
    check(&[
        (
            "longer than the positions",
            |_| (),
            "CLS --max_seq_length 128",
            2,
            &["128", "64 positions", "set --max_seq_length 64 or less"],
        ),
        (
            "mlm longer than the positions",
            |_| (),
            "MLM --max_seq_length 65",
            2,
            &["65", "64 positions", "--max_seq_length 64"],
        ),
        (
            "bucket longer than examples",
            |_| (),
            "CLS --pad_to_bucket 8,32",
            2,
            &["--pad_to_bucket 32", "--max_seq_length is 16"],
        ),
        (
            "bucket is no number",
            |_| (),
            "CLS --pad_to_bucket 8,x",
            2,
            &["`x` is not a length", "32,64,128"],
        ),
        (
            "two ways to pad",
            |_| (),
            "CLS --pad_to_bucket 8 --pad_to_max_length",
            2,
            &["two ways to pad"],
        ),
        (
            "nothing to pad",
            |_| (),
            "MLM --pad_to_bucket 8",
            2,
            &["nothing to pad", "--line_by_line"],
        ),
        (
            "no mask token",
            |_| (),
            "MLM --tokenizer_name byte_bpe",
            1,
            &["mask"],
        ),
        (
            "nothing masked",
            |_| (),
            "MLM --mlm_probability 0",
            2,
            &["--mlm_probability is 0"],
        ),
        (
            "more than all masked",
            |_| (),
            "MLM --mlm_probability 1.5",
            2,
            &["mlm_probability", "from 0 to 1"],
        ),
        (
            "the model pads with another token",
            |p| p.set("masked", "pad_token_id", json!(7)),
            "train cls --model_name_or_path masked --tokenizer_name wordpiece --train_file train.csv --max_seq_length 16 --output_dir out",
            2,
            &["pads with token 0", "pad_token_id is 7"],
        ),
        (
            "a padding token that is not there",
            |p| p.set("causal", "pad_token_id", json!(5000)),
            "train cls --model_name_or_path causal --tokenizer_name byte_bpe --train_file train.csv --max_seq_length 16 --output_dir out",
            1,
            &["`pad_token_id` is 5000", "no such token"],
        ),
    ]);
}

#[test]
fn models_that_do_not_go_with_the_task() {
    check(&[
        (
            "decoder for mlm",
            |_| (),
            "MLM --model_type gpt2",
            2,
            &["gpt2 is a decoder", "use the task clm"],
        ),
        (
            "encoder for clm",
            |_| (),
            "train clm --config_name roberta-base --tokenizer_name wordpiece --train_file train.txt --output_dir out",
            2,
            &["roberta-base is an encoder", "use the task mlm"],
        ),
        (
            "saved decoder for mlm",
            |_| (),
            "train mlm --model_name_or_path causal --tokenizer_name wordpiece --train_file train.txt --output_dir out",
            2,
            &[
                "--model_name_or_path: causal (gpt2) is a decoder",
                "use the task clm",
            ],
        ),
        (
            "no classifier",
            |_| (),
            "PREDICT --model_name_or_path masked",
            2,
            &["BertForMaskedLM", "no labels to give", "train cls"],
        ),
        (
            "vocabularies differ",
            |p| {
                let mut tokenizer: Value =
                    serde_json::from_slice(&fs::read(p.path("wordpiece/tokenizer.json")).unwrap())
                        .unwrap();
                tokenizer["model"]["vocab"]["another"] = json!(1000);
                p.write("wordpiece/tokenizer.json", tokenizer.to_string());
            },
            "EVAL",
            1,
            &[
                "the tokenizer has 1001 tokens",
                "the model's vocabulary has 1000",
            ],
        ),
        (
            "a file that torch.save has not written",
            |p| {
                fs::rename(
                    p.path("masked/model.safetensors"),
                    p.path("masked/pytorch_model.bin"),
                )
                .unwrap()
            },
            "train cls --model_name_or_path masked --tokenizer_name wordpiece --train_file train.csv --max_seq_length 16 --output_dir out",
            1,
            &["pytorch_model.bin", "safe_serialization=True"],
        ),
        (
            "a part of the weights is missing",
            |p| {
                fs::rename(
                    p.path("masked/model.safetensors"),
                    p.path("masked/model-00001-of-00002.safetensors"),
                )
                .unwrap();
                let map =
                    json!({"bert.embeddings.LayerNorm.bias": "model-00002-of-00002.safetensors"});
                p.write(
                    "masked/model.safetensors.index.json",
                    json!({"weight_map": map}).to_string(),
                );
            },
            "train cls --model_name_or_path masked --tokenizer_name wordpiece --train_file train.csv --max_seq_length 16 --output_dir out",
            1,
            &["model-00002-of-00002.safetensors"],
        ),
        (
            "labels without order",
            |p| p.set("classifier", "id2label", json!({"0": "no", "7": "yes"})),
            "EVAL",
            1,
            &["id2label", "0, 1, 2"],
        ),
        (
            "regression",
            |p| p.set("classifier", "problem_type", json!("regression")),
            "EVAL",
            1,
            &["problem_type", "regression"],
        ),
        (
            "labels that nobody knows",
            |_| (),
            "compile cls --model_type bert --tokenizer_name wordpiece --max_seq_length 16 --do_train",
            2,
            &["the labels are not known", "--labels no,yes"],
        ),
        (
            "a label named twice",
            |_| (),
            "CLS --labels no,yes,no",
            2,
            &["--labels", "twice"],
        ),
        (
            "a single label",
            |_| (),
            "CLS --labels no",
            2,
            &["--labels: there is only one label"],
        ),
    ]);
}

#[test]
fn best_models_that_cannot_be_found() {
    check(&[
        (
            "no evaluation",
            |_| (),
            "CLS --load_best_model_at_end",
            2,
            &["--load_best_model_at_end", "--eval_strategy is no"],
        ),
        (
            "no checkpoint of an evaluation",
            |_| (),
            "CLS --load_best_model_at_end --eval_strategy epoch",
            2,
            &[
                "--eval_strategy is epoch, --save_strategy steps",
                "add --save_strategy epoch",
            ],
        ),
        (
            "no evaluation of a checkpoint",
            |_| (),
            "CLS --load_best_model_at_end --eval_strategy steps --eval_steps 20 --save_steps 30",
            2,
            &["--save_steps 30 is no multiple of --eval_steps 20"],
        ),
        (
            "no such metric",
            |_| (),
            "CLS --metric_for_best_model eval_f1_maybe --eval_strategy epoch",
            2,
            &["no metric `f1_maybe`"],
        ),
        (
            "patience without evaluations",
            |_| (),
            "CLS --early_stopping_patience 2",
            2,
            &["--early_stopping_patience", "--eval_strategy"],
        ),
        (
            "threshold without patience",
            |_| (),
            "CLS --early_stopping_threshold 0.1 --eval_strategy epoch",
            2,
            &["--early_stopping_patience"],
        ),
        (
            "nothing to predict",
            |_| (),
            "CLS --do_train --do_predict",
            2,
            &["--do_predict", "--test_file"],
        ),
        (
            "predict without a model",
            |_| (),
            "predict cls --test_file test.csv",
            2,
            &[
                "needs a model",
                "--model_name_or_path DIR",
                "classifier's training",
            ],
        ),
        (
            "predict without rows",
            |_| (),
            "predict cls --model_name_or_path classifier --tokenizer_name wordpiece",
            2,
            &["nothing to label", "--test_file"],
        ),
        (
            "predictions into a directory",
            |_| (),
            "PREDICT --output_file classifier",
            2,
            &["--output_file", "is a directory"],
        ),
    ]);
}
