//! Where a node comes from, for passes. The model path ([`Trace::scope`](crate::Trace::scope)) is
//! for people: HLO metadata, messages and `cache explain` show it, and nothing decides by it.

use serde::{Deserialize, Serialize};

/// The part of a training step that records a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// The model and the loss.
    #[default]
    Forward,
    /// A gradient.
    Backward,
    /// A forward node, recomputed for the backward pass.
    Recompute,
    /// Gradients are accumulated, or applied to the parameters.
    Update,
}

impl Phase {
    /// Whether the backward pass recorded the node.
    pub fn is_backward(self) -> bool {
        matches!(self, Phase::Backward | Phase::Recompute)
    }
}

/// Which stage of a pipeline computes a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// The stage of this number, from 0.
    One(u32),
    /// Every stage that uses the value.
    Every,
}

/// What a trace knows of a node beyond its operation. The gradient of a node has the node's
/// provenance but for the phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Provenance {
    /// The part of the step that recorded it.
    pub phase: Phase,
    /// `None`: there is no pipeline, or the operands decide.
    pub stage: Option<Stage>,
    /// The layer, counted from 0 in the order in which layers are entered.
    pub layer: Option<u32>,
    /// autocast leaves the node, and its gradient, in f32.
    pub in_f32: bool,
    /// The backward pass computes the node again rather than keep it.
    pub is_cheap: bool,
}
