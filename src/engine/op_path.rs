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

/// The layer of a path, `transformer.h.3`, or the module where it is in none; `None` where the path says
/// neither.
pub fn layer(path: &str) -> Option<String> {
    let outer = |part: &&str| *part != BACKWARD && !UPDATE.contains(part);
    let module = path.split('/').skip(1).find(outer)?;
    let mut layer = Vec::new();
    for part in module.split('.') {
        layer.push(part);
        if part.bytes().all(|b| b.is_ascii_digit()) {
            break;
        }
    }
    Some(layer.join(".")).filter(|layer| !layer.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_a_phase_and_a_layer() {
        for (path, wanted) in [
            (
                "train/transformer.h.3.mlp/gelu",
                Some((StepPhase::Forward, "transformer.h.3")),
            ),
            (
                "train/backward/model.layers.12/add",
                Some((StepPhase::Backward, "model.layers.12")),
            ),
            (
                "train/backward/lm_head/dot",
                Some((StepPhase::Backward, "lm_head")),
            ),
            (
                "train/optimizer/transformer.h.0.ln_1.weight/mul",
                Some((StepPhase::Update, "transformer.h.0")),
            ),
            ("train/loss/exp", Some((StepPhase::Forward, "loss"))),
            ("", None),
            ("train", None),
        ] {
            let found = phase(path).zip(layer(path));
            let wanted = wanted.map(|(phase, layer)| (phase, layer.to_string()));
            assert_eq!(found, wanted, "{path}");
        }
    }
}
