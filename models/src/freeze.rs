//! Which of a model's parameters are trained.

use crate::error::{Error, Result};
use crate::model::Model;
use crate::parameter::ParameterSpec;
use std::collections::BTreeSet;

/// Trains what is left without the parameters for which `is_frozen`: their values stay as they are,
/// and a step has no gradient and no optimizer state for them. All are trained unless this is
/// called, once, before anything reads the model's parameters.
///
/// # Errors
/// If all are frozen, or it was called before.
pub fn freeze(model: &dyn Model, is_frozen: impl Fn(&ParameterSpec) -> bool) -> Result<()> {
    let parameters = model.parameters();
    let frozen: BTreeSet<String> = parameters
        .iter()
        .filter(|parameter| !parameter.trained || is_frozen(parameter))
        .map(|parameter| parameter.name.clone())
        .collect();
    if frozen.len() == parameters.len() {
        return Err(Error::AllFrozen {
            parameters: parameters.len(),
        });
    }
    let set = model.info().frozen.set(frozen);
    set.map_err(|_| Error::FrozenTwice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HeadKind, build, default_config};

    #[test]
    fn a_choice_is_made_once_and_leaves_something_to_train() {
        let model = build(default_config("gpt2").unwrap(), HeadKind::CausalLm).unwrap();
        let error = freeze(&*model, |_| true).unwrap_err();
        assert!(matches!(error, Error::AllFrozen { .. }), "{error}");
        freeze(&*model, |parameter| !parameter.name.contains("ln_f")).unwrap();
        let parameters = model.parameters();
        let trained = parameters.iter().filter(|parameter| parameter.trained);
        let names: Vec<&str> = trained.map(|parameter| parameter.name.as_str()).collect();
        assert_eq!(names, ["transformer.ln_f.weight", "transformer.ln_f.bias"]);
        let error = freeze(&*model, |_| false).unwrap_err();
        assert!(matches!(error, Error::FrozenTwice), "{error}");
    }

    /// As transformers' state_dict lists them.
    #[test]
    fn tied_weights_answer_to_both_names() {
        for (model_type, head, aliases) in [
            ("gpt2", HeadKind::CausalLm, &["lm_head.weight"][..]),
            ("gemma", HeadKind::CausalLm, &["lm_head.weight"]),
            (
                "bert",
                HeadKind::MaskedLm,
                &[
                    "cls.predictions.decoder.weight",
                    "cls.predictions.decoder.bias",
                ],
            ),
            (
                "roberta",
                HeadKind::MaskedLm,
                &["lm_head.decoder.weight", "lm_head.decoder.bias"],
            ),
            (
                "albert",
                HeadKind::MaskedLm,
                &["predictions.decoder.weight", "predictions.decoder.bias"],
            ),
            (
                "distilbert",
                HeadKind::MaskedLm,
                &["vocab_projector.weight"],
            ),
            ("modernbert", HeadKind::MaskedLm, &["decoder.weight"]),
            ("gpt_neox", HeadKind::CausalLm, &[]),
            ("gpt2", HeadKind::SequenceClassification { labels: 2 }, &[]),
        ] {
            let model = build(default_config(model_type).unwrap(), head).unwrap();
            let parameters = model.parameters();
            let found: Vec<&str> = parameters
                .iter()
                .flat_map(|parameter| &parameter.aliases)
                .map(String::as_str)
                .collect();
            assert_eq!(found, aliases, "{model_type}");
        }
    }
}
