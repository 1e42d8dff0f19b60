//! XLM-RoBERTa (Conneau et al. 2020) as transformers' `modeling_xlm_roberta.py` computes it: RoBERTa
//! with a vocabulary of a hundred languages.

use crate::encoder::sizes;
use crate::family::Family;
use crate::roberta;

pub(crate) const FAMILY: Family = Family {
    name: "XLM-RoBERTa",
    model_type: "xlm-roberta",
    // The released base model.
    defaults: &[
        r#"{
          "architectures": ["XLMRobertaForMaskedLM"], "model_type": "xlm-roberta",
          "vocab_size": 250002
        }"#,
        roberta::FAMILY.defaults[0],
        roberta::FAMILY.defaults[1],
    ],
    class_prefix: "XLMRoberta",
    lora_targets: Some(&["query", "value"]),
    is_adapted_by_vllm: false,
    presets: || {
        vec![
            ("xlm-roberta-base", sizes(768, 12, 12)),
            ("xlm-roberta-large", sizes(1024, 24, 16)),
        ]
    },
    build: |mut config, read, head| {
        // As `XLMRobertaConfig` has it.
        if !config.values().contains_key("vocab_size") {
            config.set("vocab_size", 30522);
        }
        (roberta::FAMILY.build)(config, read, head)
    },
    ..roberta::FAMILY
};

#[cfg(test)]
mod tests {
    use crate::HeadKind;
    use crate::testing::elements;

    #[test]
    fn presets_have_the_published_parameter_counts() {
        // The published sizes, 270 M and 550 M, are of rounded vocabularies.
        for (name, count) in [
            ("xlm-roberta-base", 278_295_186),
            ("xlm-roberta-large", 560_142_482),
        ] {
            assert_eq!(elements(name, HeadKind::MaskedLm), count, "{name}");
        }
    }
}
