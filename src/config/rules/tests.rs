//! Each rule refuses a command line that breaks it and no rule before it.

use super::*;
use crate::command_line::{Parsed, parse};
use crate::config_file;
use crate::fixture::Fixture;
use std::collections::BTreeSet;

/// Rules that only the environment of a launched process can break; `tests/processes.rs` and
/// `tests/cli.rs` have their cases.
const OF_THE_ENVIRONMENT: [&str; 5] = [
    "directories_of_the_environment_are_here",
    "environment_is_consistent",
    "devices_divide_between_processes",
    "automatic_batch_needs_one_process",
    "comparison_is_one_process",
];

/// Cases: a rule, and below it a command line that it refuses and a part of its sentence.
fn cases() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let lines: Vec<&str> = include_str!("cases.txt").lines().collect();
    let is_rule = |line: &str| !line.starts_with(' ');
    let cases = lines.chunk_by(move |_, next| !is_rule(next));
    let cases: Vec<_> = cases
        .map(|case| match case {
            [rule, line, sentence] => (*rule, line.trim(), sentence.trim()),
            other => panic!("a case has a rule, a line and a sentence: {other:?}"),
        })
        .collect();
    cases.into_iter()
}

fn flags(fixture: &Fixture, line: &str) -> Flags {
    match parse(fixture.words(line)).unwrap() {
        Parsed::Flags(flags) => {
            let mut flags = config_file::read(*flags);
            crate::train_files::apply(&mut flags);
            flags
        }
        Parsed::Text(text) => panic!("{line} prints {text}"),
    }
}

#[test]
fn every_rule_refuses_its_case() {
    let fixture = Fixture::new();
    let mut seen = BTreeSet::from(OF_THE_ENVIRONMENT);
    for (rule, line, sentence) in cases() {
        let flags = flags(&fixture, line);
        let refusal = of(&flags).find_map(|rule| Some((rule.name, (rule.check)(&flags).err()?)));
        let (name, error) = refusal.unwrap_or_else(|| panic!("{line} is legal"));
        assert_eq!(name, rule, "{line}: {error}");
        assert!(error.to_string().contains(sentence), "{line}: {error}");
        assert!(!error.hint().unwrap().is_empty(), "{line}");
        seen.insert(name);
    }
    let all: BTreeSet<&str> = RULES.iter().map(|rule| rule.name).collect();
    assert_eq!(seen, all);
}

#[test]
fn what_is_legal_passes() {
    let fixture = Fixture::new();
    for line in [
        "CLM",
        "MLM",
        "CLS",
        "SFT --packing --packing_strategy bfd-requeue --padding_free --eval_packing false --pad_to_bucket 32",
        "CLM --output_dir @/old --overwrite_output_dir",
        "CLM --output_dir @/empty",
        "train clm --model_name_or_path @/model --train_file @/train.txt --output_dir @/old --do_eval",
        "CLM --optim sgd --optim_args momentum=0.9,nesterov=yes",
        "CLM --optim sgd --optim_args momentum=0.9,nesterov=1",
        "CLM --output_dir @/old --resume_from_checkpoint @/old/checkpoint-10",
        "CLM --output_dir @/old --resume_from_checkpoint auto",
        "CLM --output_dir @/old_without --resume_from_checkpoint auto",
        "CLM --output_dir @/new --resume_from_checkpoint auto",
        "bench --model_type bert",
        "quickstart",
    ] {
        assert_eq!(check(&flags(&fixture, line)), Ok(()), "{line}");
    }
}

/// Whoever follows a refusal's advice about a model's name is not refused for that again.
#[test]
fn every_model_that_a_refusal_offers_is_accepted_there() {
    let fixture = Fixture::new();
    let known: BTreeSet<&str> = xtrain_models::MODEL_TYPES
        .into_iter()
        .chain(xtrain_models::presets())
        .collect();
    let rest = "--tokenizer_name @/tokenizer.json --train_file @/train.csv --output_dir @/new";
    let mut seen = 0;
    for task in ["clm", "mlm", "cls", "token-cls"] {
        for flag in ["model_type", "config_name"] {
            let told = |name: &str| -> String {
                let Err(error) = fixture.invoke(&format!("train {task} --{flag} {name} {rest}"))
                else {
                    return String::new();
                };
                let each = error
                    .each()
                    .filter(|error| error.to_string().contains(flag));
                each.map(|error| format!("{error} {}\n", error.hint().unwrap_or_default()))
                    .collect()
            };
            for wrong in ["nonsense", "bert", "gpt2", "brt", "gpt2-smal", "bert-min"] {
                let text = told(wrong);
                let is_name = |c: char| c.is_alphanumeric() || "_-.".contains(c);
                let words = text
                    .split(|c: char| !is_name(c))
                    .map(|word| word.trim_matches('.'));
                for offered in words.filter(|word| *word != wrong && known.contains(word)) {
                    let refused = told(offered);
                    assert!(
                        refused.is_empty(),
                        "train {task} --{flag} {wrong} offers {offered}: {refused}"
                    );
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 50, "{seen} names were offered");
}
