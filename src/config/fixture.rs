//! What the tests' command lines name.

use super::{Invocation, UsageError, from_args};
use std::ffi::OsString;
use std::path::PathBuf;

/// A directory with `model/` (a classifier, as far as its configuration tells), `tokenizer.json`,
/// `train.txt` and `valid.txt`, tables `train.csv` and `valid.csv`, `empty/`, `old/` (the output of an
/// earlier run), `old_without/` (files of something else), `blocked/` (a file where a checkpoint belongs) and
/// `adapter/` (an adapter alone).
pub struct Fixture(tempfile::TempDir);

impl Fixture {
    pub fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "model",
            "old/checkpoint-10",
            "empty",
            "old_without",
            "blocked",
            "adapter",
        ] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let fixture = Fixture(dir);
        for name in [
            "model/model.safetensors",
            "model/tokenizer.json",
            "tokenizer.json",
            "train.txt",
            "valid.txt",
            "old/config.json",
            "old/checkpoint-10/training_state.json",
            "old_without/notes",
            "blocked/checkpoint-5",
            "adapter/adapter_config.json",
        ] {
            fixture.write(name, "{}");
        }
        let classifier = serde_json::json!({
            "model_type": xtrain_models::MODEL_TYPES[0],
            "architectures": ["GPT2ForSequenceClassification"],
            "id2label": {"0": "no", "1": "yes"},
        });
        fixture.write("model/config.json", &classifier.to_string());
        for name in ["train.csv", "valid.csv"] {
            fixture.write(name, "text,label\nGood.,yes\nBad.,no\n");
        }
        fixture
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// The words of a line in which `@/` stands for the directory and a first word `CLM`, `MLM`, `SFT` or
    /// `CLS` for a legal training run of that task.
    pub fn words(&self, line: &str) -> Vec<OsString> {
        const REST: &str =
            "--tokenizer_name @/tokenizer.json --output_dir @/new --train_file @/train";
        let here = format!("{}/", self.0.path().display());
        let line = line
            .replace("CLM", &format!("train clm --model_type gpt2 {REST}.txt"))
            .replace("MLM", &format!("train mlm --model_type bert {REST}.txt"))
            .replace("SFT", &format!("train sft --model_type gpt2 {REST}.csv"))
            .replace("CLS", &format!("train cls --model_type bert {REST}.csv"));
        std::iter::once("xtrain")
            .chain(line.split_whitespace())
            .map(|word| word.replace("@/", &here).into())
            .collect()
    }

    /// What the program makes of the line.
    pub fn invoke(&self, line: &str) -> Result<Invocation, UsageError> {
        from_args(self.words(line))
    }

    /// The text as snapshots have it: with `@/` for the directory again, and of long lists of
    /// choices the first, so that a new choice, such as an optimizer or a family, is declared in one
    /// place and changes no snapshot.
    pub fn relative(&self, text: &str) -> String {
        let text = text.replace(&format!("{}/", self.0.path().display()), "@/");
        text.split_inclusive('\n').map(shortened).collect()
    }
}

/// A line with `, ...` for all but the first of more than [`MOST_LISTED`] words in a list.
fn shortened(line: &str) -> String {
    let parts: Vec<&str> = line.split(", ").collect();
    let is_word = |part: &str| !part.trim_end().contains(char::is_whitespace);
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < parts.len() {
        kept.push(parts[at].to_string());
        at += 1;
        let words = parts[at..].iter().take_while(|part| is_word(part)).count();
        if words + 1 > MOST_LISTED {
            // What ends the list, without the comma.
            let last = parts[at + words - 1];
            let end = &last[last.trim_end_matches(['`', ')', '\n']).len()..];
            kept.push(format!("...{end}"));
            at += words;
        }
    }
    kept.join(", ")
}

/// How many words of a list snapshots have.
const MOST_LISTED: usize = 10;
