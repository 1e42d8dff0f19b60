//! Names that other programs have (transformers' older scripts, TRL, PEFT, Axolotl, LLaMA-Factory,
//! nanoGPT, launchers of PyTorch), each with what it is here: a flag, a command, or a sentence. What
//! is not built yet is named as such, since the name that looks most like it would not help.

mod commands;
mod flags;

use super::command::{CommandName, TaskName};
use commands::{COMMANDS, OF_PROGRAMS, TASKS};
use flags::{FLAGS, Here, OF_LAUNCHERS};
use std::path::Path;

/// What is known about a flag of another program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Meaning {
    /// This flag is meant.
    Flag(&'static str),
    /// What to do instead.
    Text(&'static str),
}

fn same(name: &str) -> String {
    name.replace('-', "_").to_ascii_lowercase()
}

/// Whether a list of names with blanks between has this one.
fn has(names: &str, name: &str) -> bool {
    names.split_whitespace().any(|known| known == name)
}

/// For a flag that a command does not take: what it is here. `taken` gives the flag of the command that
/// has a name, if it is built.
pub fn of_flag(
    name: &str,
    command: CommandName,
    taken: impl Fn(&str) -> Option<&'static str>,
) -> Option<Meaning> {
    let name = same(name);
    let mut rows = FLAGS
        .iter()
        .filter(|(commands, _, names)| commands.contains(command) && has(names, &name));
    rows.find_map(|(_, here, _)| match here {
        Here::Flag(flags) => flags.iter().find_map(|flag| taken(flag)).map(Meaning::Flag),
        Here::Text(text) => Some(Meaning::Text(text)),
    })
}

/// For a flag that only launchers of PyTorch have: what does the same here.
pub fn of_launcher(name: &str) -> Option<&'static str> {
    let name = same(name);
    let found = OF_LAUNCHERS.iter().find(|(names, _)| has(names, &name));
    found.map(|(_, what)| *what)
}

/// For a program's name, perhaps with its path: the command that does the same.
pub fn of_program(word: &str) -> Option<&'static str> {
    let name = Path::new(word).file_name()?.to_str()?;
    let found = OF_PROGRAMS.iter().find(|(names, _)| has(names, name));
    found.map(|(_, command)| *command)
}

/// The task that a word means, or why there is none such.
pub fn of_task(word: &str) -> Option<Result<TaskName, &'static str>> {
    let word = same(word);
    let found = TASKS.iter().find(|(_, names)| has(names, &word));
    found.map(|(task, _)| *task)
}

/// What to do instead of a command that there is not.
pub fn of_command(word: &str) -> Option<&'static str> {
    let word = word.to_ascii_lowercase();
    let found = COMMANDS.iter().find(|(names, _)| has(names, &word));
    found.map(|(_, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::command::COMMANDS as KNOWN;
    use crate::config::lookup;
    use std::collections::BTreeSet;

    /// A row for a name that a command has would never be read, or name a flag that is missing.
    #[test]
    fn rows_name_flags_that_there_are_and_no_name_of_their_own_commands() {
        for (commands, here, names) in FLAGS {
            let taking: Vec<_> = KNOWN
                .iter()
                .filter(|info| commands.contains(info.id))
                .collect();
            if let Here::Flag(flags) = here {
                for flag in *flags {
                    let known = taking
                        .iter()
                        .any(|info| lookup::find(flag, info.id).is_some());
                    assert!(known, "no command takes {flag}");
                }
            }
            for name in names.split_whitespace() {
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
        for name in TASKS.iter().flat_map(|(_, names)| names.split_whitespace()) {
            assert!(seen.insert(name), "{name}");
        }
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
