//! What model paths say of a node: `backward/stage.1/transformer.h.3.attn` is the pass, the
//! pipeline's stage, the module.

use crate::grad::{BACKWARD, RECOMPUTE};

/// The modules in which gradients are summed up and used.
const UPDATE: [&str; 2] = ["optimizer", "accumulate"];

/// A model path without what stands in front of it.
pub(super) fn module(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

pub(super) fn is_of_update(path: &str) -> bool {
    module(path)
        .split('.')
        .next()
        .is_some_and(|first| UPDATE.contains(&first))
}

/// Whether a node was recorded by the backward pass, as a gradient or to compute something once
/// more.
pub(super) fn is_backward(path: &str) -> bool {
    path.split('/')
        .any(|part| part == BACKWARD || part == RECOMPUTE)
}

/// Whether a node computes something once more for the backward pass.
pub(super) fn is_recomputed(path: &str) -> bool {
    path.split('/').any(|part| part == RECOMPUTE)
}
