//! Where in a step an instruction of a compiled module belongs, by the path in its metadata:
//! `train/backward/transformer.h.3.mlp/gelu`.

use xtrain_graphs::BACKWARD;

/// Scopes behind the backward pass.
const UPDATE: [&str; 4] = ["exchange", "optimizer", "accumulate", "outputs"];

/// A part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPhase {
    /// The model and the loss.
    Forward,
    /// Gradients, with what is recomputed for them.
    Backward,
    /// The optimizer, and what a step gives.
    Update,
}

/// The phase of a path; `None` for a path that the compiler made up.
pub fn phase(path: &str) -> Option<StepPhase> {
    let (_, path) = path.split_once('/')?;
    let first = path.split('/').next().filter(|first| !first.is_empty())?;
    Some(if first.starts_with(BACKWARD) {
        StepPhase::Backward
    } else if UPDATE.iter().any(|other| first.starts_with(other)) {
        StepPhase::Update
    } else {
        StepPhase::Forward
    })
}

/// The layer of a path, `transformer.h.3`, or the module where it is in none; `None` where the path has
/// no more than the operation.
pub fn layer(path: &str) -> Option<String> {
    let (path, _operation) = path.rsplit_once('/')?;
    let mut scopes = path.split('/').skip(1).map(|scope| {
        // A parameter's own scope in the update: `optimizer.wte.weight`.
        let (outer, inner) = scope.split_once('.').unwrap_or((scope, ""));
        let is_outer = outer == BACKWARD || UPDATE.contains(&outer);
        if is_outer { inner } else { scope }
    });
    let module = scopes.find(|scope| !scope.is_empty())?;
    let module = module.trim_end_matches(".weight").trim_end_matches(".bias");
    let mut layer = Vec::new();
    for part in module.split('.') {
        layer.push(part);
        if part.bytes().all(|b| b.is_ascii_digit()) {
            break;
        }
    }
    Some(layer.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_a_phase_and_a_layer() {
        use StepPhase::{Backward, Forward, Update};
        for (path, phase_of, layer_of) in [
            (
                "train/transformer.h.3.mlp/gelu",
                Some(Forward),
                Some("transformer.h.3"),
            ),
            (
                "train/backward/model.layers.12/add",
                Some(Backward),
                Some("model.layers.12"),
            ),
            (
                "train/backward/lm_head/dot",
                Some(Backward),
                Some("lm_head"),
            ),
            (
                "train/optimizer.transformer.h.0.ln_1.weight/mul",
                Some(Update),
                Some("transformer.h.0"),
            ),
            (
                "train/optimizer.transformer.wte.weight/mul",
                Some(Update),
                Some("transformer.wte"),
            ),
            ("train/optimizer/sqrt", Some(Update), None),
            ("train/exchange/all-reduce", Some(Update), None),
            ("train/loss/exp", Some(Forward), Some("loss")),
            ("train/add", Some(Forward), None),
            ("", None, None),
            ("train", None, None),
        ] {
            assert_eq!(phase(path), phase_of, "{path}");
            assert_eq!(layer(path).as_deref(), layer_of, "{path}");
        }
    }
}
