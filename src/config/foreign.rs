//! Names that other programs have (transformers' older scripts, TRL, PEFT, Axolotl, LLaMA-Factory,
//! nanoGPT, launchers of PyTorch), each with what it is here: a flag, a command, or a sentence. What
//! is not supported yet is named as such, since the name that looks most like it would not help.

use super::command::sets::{
    ALL, BENCH, EVAL, GENERATE, LAUNCH, PREDICT, REPORT, TRAIN, TRAIN_EVAL,
};
use super::command::{self, CommandName, Commands, TaskName};
use serde::Deserialize;
use std::path::Path;
use std::sync::LazyLock;

/// The names and their meanings are data.
static TABLE: LazyLock<Table> = LazyLock::new(|| {
    toml::from_str(include_str!("foreign.toml")).expect("the table is the program's own")
});

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    flags: Vec<Row>,
    /// Flags of torchrun, accelerate and deepspeed.
    launchers: Vec<Row>,
    programs: Vec<Row>,
    tasks: Vec<Row>,
    /// Words in the place of a command.
    verbs: Vec<Row>,
}

/// Names with their meaning: one of the fields that may lack.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// Between blanks.
    names: String,
    /// A set of commands, for whose flags the row is.
    commands: Option<String>,
    /// The first of these flags that the command takes.
    #[serde(default)]
    flag: Vec<String>,
    task: Option<String>,
    /// The advice, as a sentence.
    instead: Option<String>,
}

impl Row {
    fn has(&self, name: &str) -> bool {
        self.names.split_whitespace().any(|known| known == name)
    }

    fn commands(&self) -> Option<Commands> {
        Some(match self.commands.as_deref()? {
            "all" => ALL,
            "bench" => BENCH,
            "eval" => EVAL,
            "generate" => GENERATE,
            "launch" => LAUNCH,
            "predict" => PREDICT,
            "report" => REPORT,
            "train" => TRAIN,
            "train_eval" => TRAIN_EVAL,
            _ => return None,
        })
    }

    fn task(&self) -> Option<TaskName> {
        let train = format!("train {}", self.task.as_ref()?);
        let found = command::COMMANDS.iter().find(|info| info.words == train);
        found?.id.task()
    }
}

/// The advice of the first row that has a name.
fn instead(rows: &'static [Row], name: &str) -> Option<&'static str> {
    rows.iter().find(|row| row.has(name))?.instead.as_deref()
}

/// The meaning of another program's flag.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Meaning {
    /// This flag is meant.
    Flag(&'static str),
    /// The advice, as a sentence.
    Text(&'static str),
}

fn same(name: &str) -> String {
    name.replace('-', "_").to_ascii_lowercase()
}

/// For a flag that a command does not take: its meaning here. `taken` gives the flag of the command that
/// has a name, if it is built.
pub fn of_flag(
    name: &str,
    command: CommandName,
    taken: impl Fn(&str) -> Option<&'static str>,
) -> Option<Meaning> {
    let name = same(name);
    let is_for = |row: &&Row| row.commands().is_some_and(|set| set.contains(command));
    let mut rows = TABLE
        .flags
        .iter()
        .filter(|row| row.has(&name))
        .filter(is_for);
    rows.find_map(|row| match &row.instead {
        Some(text) => Some(Meaning::Text(text)),
        None => row
            .flag
            .iter()
            .find_map(|flag| taken(flag))
            .map(Meaning::Flag),
    })
}

/// For a flag that only launchers of PyTorch have: the advice.
pub fn of_launcher(name: &str) -> Option<&'static str> {
    instead(&TABLE.launchers, &same(name))
}

/// For a program's name, perhaps with its path: the command that does the same.
pub fn of_program(word: &str) -> Option<&'static str> {
    instead(&TABLE.programs, Path::new(word).file_name()?.to_str()?)
}

/// The task that a word means, or why there is none such.
pub fn of_task(word: &str) -> Option<Result<TaskName, &'static str>> {
    let word = same(word);
    let row = TABLE.tasks.iter().find(|row| row.has(&word))?;
    match &row.instead {
        Some(why) => Some(Err(why)),
        None => row.task().map(Ok),
    }
}

/// The advice for a word that is no command.
pub fn of_command(word: &str) -> Option<&'static str> {
    instead(&TABLE.verbs, &word.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::COMMANDS as KNOWN;
    use crate::lookup;
    use std::collections::BTreeSet;

    /// A row for a name that a command has would never be read, or name a flag that is missing.
    #[test]
    fn rows_name_flags_that_there_are_and_no_name_of_their_own_commands() {
        for row in &TABLE.flags {
            let commands = row.commands().expect(&row.names);
            let taking: Vec<_> = KNOWN
                .iter()
                .filter(|info| commands.contains(info.id))
                .collect();
            assert!(
                row.flag.is_empty() == row.instead.is_some(),
                "{}",
                row.names
            );
            for flag in &row.flag {
                let known = taking
                    .iter()
                    .any(|info| lookup::find(flag, info.id).is_some());
                assert!(known, "no command takes {flag}");
            }
            for name in row.names.split_whitespace() {
                assert_eq!(same(name), name);
                let unknown = taking
                    .iter()
                    .any(|info| lookup::find(name, info.id).is_none());
                assert!(unknown, "every command of the row takes {name}");
            }
        }
    }

    #[test]
    fn a_task_has_one_meaning() {
        let mut seen = BTreeSet::new();
        for row in &TABLE.tasks {
            assert!(
                row.task().is_some() != row.instead.is_some(),
                "{}",
                row.names
            );
            for name in row.names.split_whitespace() {
                assert!(seen.insert(name), "{name}");
            }
        }
        let others = [&TABLE.launchers, &TABLE.programs, &TABLE.verbs];
        assert!(
            others
                .into_iter()
                .flatten()
                .all(|row| row.instead.is_some())
        );
    }

    #[test]
    fn what_trl_and_peft_have_is_a_flag_or_named_as_not_built() {
        let sft = CommandName::Train(TaskName::Sft);
        // SFTConfig, DPOConfig, ModelConfig and ScriptArguments of TRL, LoraConfig of PEFT.
        let names = "packing packing_strategy padding_free eval_packing completion_only_loss \
            assistant_only_loss loss_type max_length truncation_mode chat_template_path \
            eos_token pad_token pad_to_multiple_of activation_offloading \
            router_aux_loss_coef dataset_text_field dataset_num_proc shuffle_dataset \
            use_peft lora_r lora_alpha lora_dropout lora_target_modules \
            lora_target_parameters lora_modules_to_save lora_task_type use_rslora use_dora \
            load_in_8bit load_in_4bit bnb_4bit_quant_type bnb_4bit_quant_storage \
            use_bnb_nested_quant dtype attn_implementation model_revision trust_remote_code \
            loss_weights beta f_divergence_type label_smoothing ld_alpha \
            precompute_ref_log_probs precompute_ref_batch_size sync_ref_model use_weighting \
            max_prompt_length max_completion_length rpo_alpha reference_free num_generations \
            use_vllm vllm_importance_sampling_correction dataset_name dataset_config \
            dataset_train_split dataset_test_split dataset_streaming target_modules \
            modules_to_save";
        for name in names.split_whitespace() {
            let known = lookup::find(name, sft).is_some();
            assert!(known || lookup::foreign(name, sft).is_some(), "{name}");
        }
    }
}
