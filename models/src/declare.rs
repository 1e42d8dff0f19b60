//! The abstract trace: a model's forward pass recorded once, without values.

use crate::batch::TokenBatch;
use crate::declaration::{Declaration, Recorder};
use crate::error::Result;
use crate::head::HeadKind;
use crate::model::Model;
use crate::weights::Weights;
use xtrain_graphs::{DType, DropoutRng, InputRole, Shape, Trace};

/// Tokens of the abstract trace's one sequence, by which layers are compared.
const TOKENS: usize = 128;

/// Records the model's forward pass in an abstract trace and keeps in its [`ModelInfo`](crate::ModelInfo) what it
/// asks for. [`build`](crate::build) does so; a model of one's own needs it before anything reads
/// its parameters.
///
/// # Errors
/// If the forward pass cannot be recorded or asks for one weight in two shapes.
pub fn declare(model: &dyn Model) -> Result<()> {
    let declaration = record(model)?;
    // A second declaration of the same model would be the same.
    let _ = model.info().declaration.set(declaration);
    Ok(())
}

fn record(model: &dyn Model) -> Result<Declaration> {
    let info = model.info();
    let trace = Trace::new();
    let tokens = TOKENS.min(info.max_positions);
    let ids = Shape::new(DType::S32, [1, tokens]);
    let batch = TokenBatch::new(trace.input("input_ids", ids, InputRole::Feed));
    let recorder = Recorder::new(info.initializer_range);
    let weights = Weights::declaring(&trace, &recorder);
    let off = DropoutRng::off();
    let mut rows = model.hidden(&weights, &batch, &off)?;
    let body_end = trace.node_count();
    let is_pooled = matches!(info.head, HeadKind::SequenceClassification { .. });
    if is_pooled {
        rows = model.pool(&rows, &batch)?;
    }
    recorder.begin_head();
    model.head(&weights, &rows, &off)?;
    let mut declaration = recorder.finish(&trace, tokens, body_end, is_pooled);
    if let Some(adapter) = model.adapter() {
        let parameters = declaration.parameters.iter_mut();
        parameters.for_each(|parameter| adapter.mark(parameter));
    }
    if let Some(quantization) = info.config.quantization() {
        declaration.quantize(quantization);
    }
    Ok(declaration)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::Axis::{Embed, Heads, KvHeads, Vocab};
    use crate::config::Config;
    use crate::error::Error;
    use crate::layers::{self, AttentionKind, split_heads};
    use crate::linear::Linear;
    use crate::model::ModelInfo;
    use crate::tensor_parallel::tensor_shard_specs;
    use crate::weights::Weight;
    use serde_json::json;
    use std::collections::HashMap;
    use xtrain_graphs::Tensor;

    /// A model of one's own: one layer of attention with two key/value heads for four query heads,
    /// and a tied head.
    struct Tiny(ModelInfo);

    impl Tiny {
        fn new() -> Self {
            let sizes = json!({
                "vocab_size": 10,
                "hidden_size": 8,
                "num_attention_heads": 4,
                "max_position_embeddings": 16,
            });
            let config = Config::literal(sizes, "a test");
            let info = ModelInfo::read(config.clone(), &config, HeadKind::CausalLm).unwrap();
            let model = Tiny(ModelInfo {
                kv_heads: 2,
                ..info
            });
            declare(&model).unwrap();
            model
        }
    }

    impl Model for Tiny {
        fn info(&self) -> &ModelInfo {
            &self.0
        }

        fn hidden(
            &self,
            weights: &Weights,
            batch: &TokenBatch,
            rng: &DropoutRng,
        ) -> Result<Tensor> {
            let (weights, _scope) = weights.enter("body");
            let table = weights.table("embed.weight", [(Vocab, 10), (Embed, 8)], None)?;
            let x = layers::embedding(&table, &batch.input_ids, None)?;
            let (weights, _scope) = weights.enter_layer("layer.0", &x);
            weights.registers_first(&["v"]);
            let heads = |name, to, heads| {
                split_heads(
                    &weights.linear(name, &x, Linear::new(Embed, to).without_bias())?,
                    batch,
                    heads,
                )
            };
            let q = heads("q", (Heads, 8), 4)?;
            let k = heads("k", (KvHeads, 4), 2)?;
            let v = heads("v", (KvHeads, 4), 2)?;
            let kind = AttentionKind {
                scale: 1.0,
                causal: true,
                window: None,
                soft_cap: None,
                dropout: 0.0,
            };
            let out = layers::attention(&q, &k, &v, batch, rng, kind)?;
            Ok(out.add(&weights.bias("bias", (Embed, 8))?)?)
        }

        fn head(&self, weights: &Weights, hidden: &Tensor, _: &DropoutRng) -> Result<Tensor> {
            let tied = Linear::new(Embed, (Vocab, 10))
                .without_bias()
                .tied_to("body.embed.weight");
            weights.linear("head", hidden, tied)
        }
    }

    #[test]
    fn parameters_are_listed_as_torch_lists_a_module_tree() {
        let names: Vec<String> = Tiny::new()
            .parameters()
            .into_iter()
            .map(|p| p.name)
            .collect();
        assert_eq!(
            names,
            [
                "body.embed.weight",
                "body.layer.0.bias",
                "body.layer.0.v.weight",
                "body.layer.0.q.weight",
                "body.layer.0.k.weight",
            ]
        );
    }

    #[test]
    fn operations_and_uses_come_of_the_trace() {
        let model = Tiny::new();
        let (weights, scores, head) = (8 * 8 + 2 * 8 * 4, 2 * 8, 8 * 10);
        let (rows, tokens) = (8, 4);
        let expected = 6 * rows * (weights + scores * tokens + head);
        assert_eq!(model.step_flops(2, 4), expected as f64);
        assert_eq!(model.head_flops(5), (6 * 5 * head) as f64);
        let [layer] = model.layers() else {
            panic!("one layer: {:?}", model.layers());
        };
        assert_eq!(layer.parameters.len(), 5, "the tied table counts once");
        assert_eq!(
            layer.flops,
            (2 * 16 * (weights + scores * 16 + head)) as f64
        );
    }

    #[test]
    fn key_value_heads_have_to_divide() {
        let model = Tiny::new();
        assert_eq!(tensor_shard_specs(&model, 2).unwrap().len(), 4);
        // Four devices share two key/value heads, which all of them have.
        assert_eq!(tensor_shard_specs(&model, 4).unwrap().len(), 2);
        match tensor_shard_specs(&model, 3).unwrap_err() {
            Error::TensorDegree { legal, .. } => assert_eq!(legal, "1, 2, 4"),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_step_has_to_have_what_the_forward_pass_asks_for() {
        let trace = Trace::new();
        let shape = Shape::new(DType::F32, [4, 2]);
        let table = trace.input("table", shape, InputRole::State);
        let all = HashMap::from([("table".to_string(), Weight::Whole(table))]);
        let weights = Weights::new(&trace, &all);
        assert!(weights.matrix("table", [(Embed, 4), (Embed, 2)]).is_ok());
        assert!(
            weights
                .table("table", [(Vocab, 3), (Embed, 2)], None)
                .is_ok(),
            "a padded vocabulary"
        );
        for dims in [[(Embed, 3), (Embed, 2)], [(Vocab, 5), (Embed, 2)]] {
            let error = weights.matrix("table", dims).unwrap_err();
            assert!(matches!(error, Error::WeightShape { .. }), "{error}");
        }
        let error = weights.bias("none", (Embed, 2)).unwrap_err();
        assert!(matches!(error, Error::NoSuchWeight { .. }), "{error}");
    }
}
