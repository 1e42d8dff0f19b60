//! What the tests' command lines name.

use super::{Invocation, UsageError, from_args};
use std::ffi::OsString;
use std::path::PathBuf;

/// A directory with `model/`, `tokenizer.json`, `train.txt`, `valid.txt`, `empty/`, `old/` (the
/// output of an earlier run) and `old_without/` (files of something else).
pub struct Fixture(tempfile::TempDir);

impl Fixture {
    pub fn new() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        for name in ["model", "old/checkpoint-10", "empty", "old_without"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let fixture = Fixture(dir);
        for name in [
            "model/config.json",
            "tokenizer.json",
            "train.txt",
            "train.csv",
            "valid.csv",
            "valid.txt",
            "old/config.json",
            "old/checkpoint-10/training_state.json",
            "old_without/notes",
        ] {
            fixture.write(name, "{}");
        }
        fixture
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// The words of a line in which `@/` stands for the directory and a first word `CLM`, `MLM` or
    /// `CLS` for a legal training run of that task.
    pub fn words(&self, line: &str) -> Vec<OsString> {
        const REST: &str =
            "--tokenizer_name @/tokenizer.json --train_file @/train.txt --output_dir @/new";
        let here = format!("{}/", self.0.path().display());
        let line = line
            .replace("CLM", &format!("train clm --model_type gpt2 {REST}"))
            .replace("MLM", &format!("train mlm --model_type bert {REST}"))
            .replace("CLS", &format!("train cls --model_type bert {REST}"));
        std::iter::once("xtrain")
            .chain(line.split_whitespace())
            .map(|word| word.replace("@/", &here).into())
            .collect()
    }

    /// What the program makes of the line.
    pub fn invoke(&self, line: &str) -> Result<Invocation, UsageError> {
        from_args(self.words(line))
    }

    /// The text with `@/` for the directory again.
    pub fn relative(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.0.path().display()), "@/")
    }
}
