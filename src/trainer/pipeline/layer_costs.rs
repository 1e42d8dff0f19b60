//! How a model is dealt out to the stages of a pipeline, by what its layers compute and which
//! parameters they use.

use crate::error::{Error, Result};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use xtrain_models::Model;
use xtrain_parallel::Stages;
use xtrain_parallel::stages::LayerCost;

/// The stages of a model, `None` for one stage.
///
/// # Errors
/// If the model has fewer layers than stages.
pub fn plan(model: &dyn Model, count: usize) -> Result<Option<Arc<Stages>>> {
    if count == 1 {
        return Ok(None);
    }
    let layers = layer_costs(model);
    match Stages::balanced(&layers, count) {
        Some(stages) => Ok(Some(Arc::new(stages))),
        None => Err(Error::TooManyStages {
            stages: count,
            layers: layers.len(),
        }),
    }
}

fn layer_costs(model: &dyn Model) -> Vec<LayerCost> {
    let elements: HashMap<String, usize> = model
        .parameters()
        .into_iter()
        .map(|p| (p.name, p.dims.iter().product()))
        .collect();
    let mut seen = HashSet::new();
    let mut cost = |layer: &xtrain_models::LayerDeclaration| LayerCost {
        work: layer.flops,
        elements: layer
            .parameters
            .iter()
            .filter(|name| seen.insert((*name).clone()))
            .map(|name| elements[name] as f64)
            .sum(),
        parameters: layer.parameters.clone(),
    };
    model.layers().iter().map(&mut cost).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtrain_models::{HeadKind, build, default_config, preset};

    #[test]
    fn gpt2_is_dealt_out_with_its_embedding_in_two_stages() {
        let model = build(preset("gpt2").unwrap(), HeadKind::CausalLm).unwrap();
        let stages = plan(&*model, 4).unwrap().unwrap();
        assert_eq!(stages.users("transformer.wte.weight"), [0, 3], "tied");
        assert_eq!(stages.users("transformer.wpe.weight"), [0]);
        assert_eq!(stages.users("transformer.ln_f.weight"), [3]);
        let layers: Vec<usize> = (0..4).map(|stage| stages.layers(stage).len()).collect();
        assert_eq!(layers.iter().sum::<usize>(), 12);
        assert!(
            layers[3] < layers[1],
            "the last stage has the head: {layers:?}"
        );
        let message = plan(&*model, 13).unwrap_err().to_string();
        assert!(message.contains("12 layers"), "{message}");
    }

    #[test]
    fn shared_parameters_are_in_every_stage() {
        let model = build(default_config("albert").unwrap(), HeadKind::MaskedLm).unwrap();
        let stages = plan(&*model, 3).unwrap().unwrap();
        let shared = "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight";
        assert_eq!(stages.users(shared), [0, 1, 2]);
        assert_eq!(
            stages.layers(0).len() + stages.layers(1).len() + stages.layers(2).len(),
            12
        );
    }
}
