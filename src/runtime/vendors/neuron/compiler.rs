//! The options of neuronx-cc. The plugin runs it as a child process and appends `NEURON_CC_FLAGS` to
//! its command, so every option that changes code stands there explicitly: defaults have changed
//! between versions (`--auto-cast` did), and what is explicit can be part of the cache's key.
//!
//! An option comes from our flag, else from the user's own `NEURON_CC_FLAGS`, else from the
//! defaults below. The first two may not contradict each other.

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;
use xtrain_graphs::NeuronChip;

/// The variable that the plugin reads.
pub const VARIABLE: &str = "NEURON_CC_FLAGS";

/// What the command line says of the compiler; `None` where it says nothing. The texts are those of
/// neuronx-cc.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeuronSettings {
    /// `--target`: the chip to compile for; else that of this instance, else trn1.
    pub chip: Option<NeuronChip>,
    pub optlevel: Option<&'static str>,
    pub auto_cast: Option<&'static str>,
    pub auto_cast_type: Option<&'static str>,
    pub model_type: Option<&'static str>,
    /// Round from f32 to narrower types at random, inside the chip. The runtime's, not the
    /// compiler's.
    pub stochastic_rounding: bool,
}

pub const OPTLEVELS: &[&str] = &["1", "2", "3"];
pub const AUTO_CASTS: &[&str] = &["none", "matmult", "all"];
pub const AUTO_CAST_TYPES: &[&str] = &["bf16", "fp16", "tf32", "fp8_e4m3"];
pub const MODEL_TYPES: &[&str] = &["transformer", "generic", "unet-inference"];

/// An option of ours: neuronx-cc's name, other spellings, our flag, and the default.
struct Known {
    name: &'static str,
    other: &'static [&'static str],
    flag: &'static str,
    default: Option<&'static str>,
}

const TARGET: &str = "--target";
const LOGICAL_CORES: &str = "--lnc";

const fn known_as(
    name: &'static str,
    other: &'static [&'static str],
    flag: &'static str,
    default: Option<&'static str>,
) -> Known {
    Known {
        name,
        other,
        flag,
        default,
    }
}

/// In the order in which they are written.
const KNOWN: [Known; 6] = [
    known_as(TARGET, &[], "target", None),
    known_as(
        "--model-type",
        &[],
        "neuron_model_type",
        Some("transformer"),
    ),
    known_as("--optlevel", &["-O"], "neuron_optlevel", Some("2")),
    known_as("--auto-cast", &[], "neuron_auto_cast", Some("none")),
    known_as(
        "--auto-cast-type",
        &[],
        "neuron_auto_cast_type",
        Some("bf16"),
    ),
    known_as(LOGICAL_CORES, &["--logical-nc-config"], "", None),
];

/// Flags of the Python wrapper around older plugins, which neuronx-cc itself does not know, and
/// whether a value follows.
const WRAPPER: [(&str, bool); 5] = [
    ("--cache_dir", true),
    ("--no_cache", false),
    ("--retry_failed_compilation", false),
    ("--log_level", true),
    ("--dump", true),
];

/// The compiler's options, decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiler {
    pub chip: NeuronChip,
    /// Each option with its value, in one order whatever the user's was.
    options: Vec<(&'static str, String)>,
    /// What else the user's variable says, as it stood there.
    rest: Vec<String>,
    /// Words of the user's variable that were left out.
    pub dropped: Vec<String>,
}

impl Compiler {
    /// Decides the options. `user` is the user's `NEURON_CC_FLAGS`, `found` the chip of this
    /// instance if it has one, `cores` the physical cores per logical one if the environment says.
    pub fn new(
        settings: &NeuronSettings,
        user: &str,
        found: Option<NeuronChip>,
        cores: Option<&str>,
    ) -> Result<Compiler> {
        let mut given = Given::read(user)?;
        let typed = |name: &str| match name {
            TARGET => settings.chip.map(|chip| chip.to_string()),
            "--model-type" => settings.model_type.map(str::to_string),
            "--optlevel" => settings.optlevel.map(str::to_string),
            "--auto-cast" => settings.auto_cast.map(str::to_string),
            "--auto-cast-type" => settings.auto_cast_type.map(str::to_string),
            _ => cores.map(str::to_string),
        };
        let mut options = Vec::new();
        let mut chip = settings.chip.or(found).unwrap_or(NeuronChip::Trn1);
        for known in &KNOWN {
            let (typed, written) = (typed(known.name), given.options.remove(known.name));
            if let (Some(typed), Some(written)) = (&typed, &written)
                && !same(known.name, typed, written)
            {
                let ours = match known.flag {
                    "" => format!("NEURON_LOGICAL_NC_CONFIG is {typed}"),
                    flag => format!("--{flag} is {typed}"),
                };
                return Err(contradiction(
                    user,
                    format!("says {} {written}, but {ours}", known.name),
                    "leave one of them out",
                ));
            }
            if let (TARGET, Some(written)) = (known.name, &written) {
                chip = chip_named(written).ok_or_else(|| {
                    contradiction(
                        user,
                        format!("asks for the target {written}"),
                        "xtrain lowers for trn1, trn2 and trn3",
                    )
                })?;
            }
            let value = written.or(typed).or_else(|| match known.name {
                TARGET => Some(chip.to_string()),
                // The runtime's own default on trn2 and later; the two have to agree, and trn1 has no choice.
                LOGICAL_CORES => (chip != NeuronChip::Trn1).then(|| "2".to_string()),
                _ => known.default.map(str::to_string),
            });
            options.extend(value.map(|value| (known.name, value)));
        }
        Ok(Compiler {
            chip,
            options,
            rest: given.rest,
            dropped: given.dropped,
        })
    }

    /// The value of `NEURON_CC_FLAGS`.
    pub fn flags(&self) -> String {
        let options = self
            .options
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        options
            .chain(self.rest.iter().map(|word| quoted(word)))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Physical cores per logical one, if there is a choice.
    pub fn logical_cores(&self) -> Option<&str> {
        self.options
            .iter()
            .find(|(name, _)| *name == LOGICAL_CORES)
            .map(|(_, value)| value.as_str())
    }

    /// The command that compiles a module by hand, as the plugin would: both files relative to
    /// where it is run.
    pub fn command(&self, module: &Path, output: &Path) -> String {
        format!(
            "neuronx-cc compile {} --framework XLA {} --output {} --verbose=35",
            quoted(&module.to_string_lossy()),
            self.flags(),
            quoted(&output.to_string_lossy())
        )
    }
}

/// trn1n and inf2 have trn1's cores.
fn chip_named(target: &str) -> Option<NeuronChip> {
    match target {
        "trn1" | "trn1n" | "inf2" => Some(NeuronChip::Trn1),
        "trn2" => Some(NeuronChip::Trn2),
        "trn3" => Some(NeuronChip::Trn3),
        _ => None,
    }
}

fn same(option: &str, typed: &str, written: &str) -> bool {
    typed == written || (option == TARGET && chip_named(typed) == chip_named(written))
}

fn contradiction(value: &str, problem: String, fix: &str) -> Error {
    Error::Contradiction {
        variable: VARIABLE,
        value: value.into(),
        problem,
        fix: fix.into(),
    }
}

/// The user's words, sorted out.
#[derive(Default)]
struct Given {
    options: BTreeMap<&'static str, String>,
    rest: Vec<String>,
    dropped: Vec<String>,
}

impl Given {
    fn read(text: &str) -> Result<Given> {
        let mut given = Given::default();
        let words = words(text).ok_or_else(|| {
            contradiction(text, "has a quote that does not end".into(), "close it")
        })?;
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            if let Some((_, takes_value)) = WRAPPER
                .iter()
                .find(|(name, _)| word.split('=').next() == Some(*name))
            {
                let value = (*takes_value && !word.contains('='))
                    .then(|| words.next())
                    .flatten();
                given
                    .dropped
                    .extend([Some(word), value].into_iter().flatten());
                continue;
            }
            match known(&word) {
                Some((name, Some(value))) => drop(given.options.insert(name, value)),
                Some((name, None)) => {
                    let value = words.next().ok_or_else(|| {
                        contradiction(
                            text,
                            format!("ends with {word}, which needs a value"),
                            "add it",
                        )
                    })?;
                    given.options.insert(name, value);
                }
                None => given.rest.push(word),
            }
        }
        Ok(given)
    }
}

/// The option of ours that a word is, with the value that is part of it: `-O1`, `--optlevel=1`,
/// `--optlevel`.
fn known(word: &str) -> Option<(&'static str, Option<String>)> {
    KNOWN.iter().find_map(|known| {
        std::iter::once(known.name)
            .chain(known.other.iter().copied())
            .find_map(|name| {
                let rest = word.strip_prefix(name)?;
                match rest.strip_prefix('=') {
                    Some(value) => Some((known.name, Some(value.to_string()))),
                    None if rest.is_empty() => Some((known.name, None)),
                    None if name == "-O" => Some((known.name, Some(rest.to_string()))),
                    None => None,
                }
            })
    })
}

/// Splits at blanks, as a shell does: quotes keep a word together, a backslash takes the next
/// character as it is. `None` for a quote that does not end.
fn words(text: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match (c, quote) {
            (c, Some(end)) if c == end => quote = None,
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(characters.next()),
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_string()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiler(settings: NeuronSettings, user: &str) -> std::result::Result<Compiler, String> {
        Compiler::new(&settings, user, None, None).map_err(|e| e.to_string())
    }

    #[test]
    fn everything_that_changes_code_is_explicit() {
        let plain = compiler(NeuronSettings::default(), "").unwrap();
        assert_eq!(
            plain.flags(),
            "--target=trn1 --model-type=transformer --optlevel=2 --auto-cast=none --auto-cast-type=bf16"
        );
        let found =
            Compiler::new(&NeuronSettings::default(), "", Some(NeuronChip::Trn2), None).unwrap();
        assert_eq!(found.chip, NeuronChip::Trn2);
        assert!(
            found.flags().starts_with("--target=trn2 ") && found.flags().ends_with(" --lnc=2"),
            "{}",
            found.flags()
        );
        let chosen = NeuronSettings {
            chip: Some(NeuronChip::Trn1),
            optlevel: Some("1"),
            auto_cast: Some("matmult"),
            auto_cast_type: Some("tf32"),
            model_type: Some("generic"),
            ..Default::default()
        };
        let expected = "--target=trn1 --model-type=generic --optlevel=1 --auto-cast=matmult --auto-cast-type=tf32";
        assert_eq!(
            Compiler::new(&chosen, "", Some(NeuronChip::Trn2), None)
                .unwrap()
                .flags(),
            expected
        );
    }

    #[test]
    fn the_users_variable_is_kept_in_one_form() {
        let flags = |user: &str| compiler(NeuronSettings::default(), user).unwrap().flags();
        for user in [
            "-O1 --model-type generic",
            "--optlevel=1 --model-type=generic",
            "  --model-type 'generic' -O 1 ",
        ] {
            assert_eq!(
                flags(user),
                "--target=trn1 --model-type=generic --optlevel=1 --auto-cast=none --auto-cast-type=bf16"
            );
        }
        assert!(flags("--target trn1n").starts_with("--target=trn1n "));
        assert!(flags("--target trn3").ends_with(" --lnc=2"));
        assert_eq!(
            compiler(NeuronSettings::default(), "--target=trn2")
                .unwrap()
                .chip,
            NeuronChip::Trn2
        );
        let other =
            "--internal-hlo2tensorizer-options='--verify-hlo --x' --enable-saturate-infinity";
        assert!(flags(other).ends_with(
            "'--internal-hlo2tensorizer-options=--verify-hlo --x' --enable-saturate-infinity"
        ));
        // What is composed composes to itself.
        assert_eq!(flags(&flags(other)), flags(other));
        let wrapped = compiler(
            NeuronSettings::default(),
            "--retry_failed_compilation --cache_dir /x --dump=/y -O3",
        )
        .unwrap();
        assert_eq!(
            wrapped.dropped,
            [
                "--retry_failed_compilation",
                "--cache_dir",
                "/x",
                "--dump=/y"
            ]
        );
        assert!(wrapped.flags().contains("--optlevel=3") && !wrapped.flags().contains("/x"));
    }

    #[test]
    fn contradictions_are_refused_and_agreement_is_not() {
        let settings = NeuronSettings {
            model_type: Some("transformer"),
            chip: Some(NeuronChip::Trn1),
            ..Default::default()
        };
        let refused = |user: &str| compiler(settings, user).unwrap_err();
        let message = refused("--model-type=generic");
        assert!(
            message.contains("NEURON_CC_FLAGS")
                && message.contains("--neuron_model_type is transformer"),
            "{message}"
        );
        assert!(refused("--target=trn2").contains("--target is trn1"));
        assert!(compiler(settings, "--model-type transformer --target=trn1n").is_ok());
        assert!(
            compiler(NeuronSettings::default(), "--target=gpu")
                .unwrap_err()
                .contains("lowers for trn1, trn2 and trn3")
        );
        assert!(
            compiler(NeuronSettings::default(), "--model-type")
                .unwrap_err()
                .contains("needs a value")
        );
        assert!(
            compiler(NeuronSettings::default(), "--x='y")
                .unwrap_err()
                .contains("quote")
        );
        let cores = Compiler::new(
            &NeuronSettings::default(),
            "--lnc=1 --target=trn2",
            None,
            Some("2"),
        )
        .unwrap_err()
        .to_string();
        assert!(cores.contains("NEURON_LOGICAL_NC_CONFIG is 2"), "{cores}");
    }

    #[test]
    fn the_command_can_be_pasted() {
        let command = compiler(NeuronSettings::default(), "")
            .unwrap()
            .command(Path::new("a b/x.pb"), Path::new("x.neff"));
        assert!(
            command.starts_with("neuronx-cc compile 'a b/x.pb' --framework XLA --target=trn1 "),
            "{command}"
        );
        assert!(
            command.ends_with(" --output x.neff --verbose=35"),
            "{command}"
        );
    }
}
