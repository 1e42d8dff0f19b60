//! How a model is dealt out to the stages of a pipeline: recorded once with every layer as a stage
//! of its own, it shows what each layer computes and which parameters it uses.

use crate::parallel::Stages;
use crate::parallel::stages::LayerCost;
use crate::trainer::error::{Error, Result};
use crate::trainer::session::parameters::parameter_shape;
use std::collections::HashMap;
use std::sync::Arc;
use xtrain_graphs::op::Op;
use xtrain_graphs::{DType, InputRole, Randomness, Shape, Stage, Target, Trace, passes, work};
use xtrain_models::{HeadKind, Model, ParameterSpec, TokenBatch, Weight, Weights, loss};

/// Tokens of the sequence that layers are compared by.
const TOKENS: usize = 128;

/// The stages of a model, `None` for one stage.
///
/// # Errors
/// If the model has fewer layers than stages.
pub fn plan(model: &dyn Model, count: usize) -> Result<Option<Arc<Stages>>> {
    if count == 1 {
        return Ok(None);
    }
    let layers = layer_costs(model)?;
    match Stages::balanced(&layers, count) {
        Some(stages) => Ok(Some(Arc::new(stages))),
        None => Err(Error::TooManyStages {
            stages: count,
            layers: layers.len(),
        }),
    }
}

fn layer_costs(model: &dyn Model) -> Result<Vec<LayerCost>> {
    let parameters = model.parameters();
    let layers = {
        let trace = Trace::new();
        record(&trace, model, &parameters)?;
        trace.layers_entered()
    };
    let trace = Trace::new();
    let each: Vec<usize> = (0..layers.max(1)).collect();
    let stages = trace.stages_by_layer(&each);
    record(&trace, model, &parameters)?;
    drop(stages);
    let graph = trace.cut("layers")?;
    let written_out = passes::prepare(&graph, Target::Cpu)?;
    let mut costs = vec![LayerCost::default(); layers];
    for (layer, cost) in costs.iter_mut().enumerate() {
        let stage = Some(Stage::One(layer as u32));
        let products = work::products_of(&written_out, |from| from.stage == stage);
        cost.work = products.low + products.wide;
    }
    let elements: HashMap<&str, usize> = parameters
        .iter()
        .map(|p| (p.name.as_str(), p.dims.iter().product()))
        .collect();
    let mut seen: Vec<String> = Vec::new();
    for node in &graph.nodes {
        let Some(Stage::One(layer)) = node.provenance.stage else {
            continue;
        };
        let Some(cost) = costs.get_mut(layer as usize) else {
            continue;
        };
        for &operand in &node.operands {
            let Op::Input(index) = graph.nodes[operand as usize].op else {
                continue;
            };
            let input = &graph.inputs[index as usize];
            if input.role != InputRole::State || cost.parameters.contains(&input.name) {
                continue;
            }
            cost.parameters.push(input.name.clone());
            if !seen.contains(&input.name) {
                cost.elements += elements[input.name.as_str()] as f64;
                seen.push(input.name.clone());
            }
        }
    }
    Ok(costs)
}

/// The loss of one sequence.
fn record(trace: &Trace, model: &dyn Model, parameters: &[ParameterSpec]) -> Result<()> {
    let tokens = TOKENS.min(model.max_positions());
    let grid = Shape::new(DType::S32, [1, tokens]);
    let input_ids = trace.input("input_ids", grid.clone(), InputRole::Feed);
    let labels_shape = match model.head_kind() {
        HeadKind::REGRESSION => Shape::new(DType::F32, [1]),
        HeadKind::SequenceClassification { .. } => Shape::new(DType::S32, [1]),
        HeadKind::CausalLm | HeadKind::MaskedLm | HeadKind::TokenClassification { .. } => grid,
    };
    let labels = trace.input("labels", labels_shape, InputRole::Feed);
    let state = |p: &ParameterSpec| {
        (
            p.name.clone(),
            Weight::Whole(trace.input(&p.name, parameter_shape(p), InputRole::State)),
        )
    };
    let weights: HashMap<String, Weight> = parameters.iter().map(state).collect();
    let batch = TokenBatch {
        input_ids,
        attention_mask: None,
        token_type_ids: None,
    };
    let loss = loss(
        model,
        &Weights::new(trace, &weights),
        &batch,
        &labels.into(),
        &Randomness::off(),
    )?;
    trace.output("loss", &loss.sum);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtrain_models::{build, default_config, preset};

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
