//! What a step is fed: a batch on the device, its shape for compiling ahead, and both as tensors of
//! a recording.
//!
//! Letters: B rows of one replica, T tokens, N = B * T, K positions that have a label.

use super::session::{Buffers, INPUT_IDS, Recording};
use ndarray::{Array1, Array2};
use std::sync::Arc;
use xtrain_graphs::{DType, Shape, Tensor};
use xtrain_models::{Labels, TokenBatch};

/// A batch that is on the devices, each replica's rows on its own; shapes are those of one replica.
#[derive(Clone)]
pub struct DeviceBatch {
    /// `s32[B, T]`
    pub input_ids: Buffers,
    /// `s32[B, T]`, `s32[K]` with `masked_positions`, `s32[B]` for a classifier, or `f32[B]` for a
    /// regression; -100 (among numbers [`xtrain_models::IGNORED_NUMBER`]) = no loss.
    pub labels: Buffers,
    /// `s32[K]`: of masked language modelling, the positions among N that `labels` are of; `None` when
    /// all have one.
    pub masked_positions: Option<Buffers>,
    /// `pred[B, T]`; `None` when every token is attended.
    pub attention_mask: Option<Buffers>,
    /// `s32[B, T]`; `None` when every token is in segment 0.
    pub token_type_ids: Option<Buffers>,
    /// The labels of all replicas, for metrics; those of rows that only fill the batch, too. `None`
    /// where nothing on the host asks for them.
    pub host_labels: Option<HostLabels>,
    /// Replicas that the batch is cut for, those of other processes included.
    pub shards: usize,
    /// Rows of all replicas that are not padding.
    pub examples: usize,
    /// Tokens of all replicas that are not padding.
    pub tokens: usize,
    /// What tells this batch's graph from others of the run (see [`BatchShape::variant`]).
    pub variant: Option<Arc<str>>,
    /// The epoch that the batch belongs to, from 0.
    pub epoch: u64,
    /// Its place in the epoch, from 0.
    pub batch_in_epoch: u64,
}

impl DeviceBatch {
    /// Tokens of all replicas with padding.
    pub fn padded_tokens(&self) -> usize {
        let dims = &self.input_ids[0].shape().dims;
        self.shards * dims.iter().product::<usize>()
    }

    /// Full rows `s32[B, T]` and a label for each token, at the start of a run.
    pub fn full(input_ids: Buffers, labels: Buffers) -> Self {
        let dims = &input_ids[0].shape().dims;
        let shards = input_ids.len();
        let rows = dims[0] * shards;
        DeviceBatch {
            shards,
            examples: rows,
            tokens: rows * dims[1],
            input_ids,
            labels,
            masked_positions: None,
            attention_mask: None,
            token_type_ids: None,
            host_labels: None,
            variant: None,
            epoch: 0,
            batch_in_epoch: 0,
        }
    }

    /// B and T.
    pub fn size(&self) -> [usize; 2] {
        let dims = &self.input_ids[0].shape().dims;
        [dims[0], dims[1]]
    }

    /// Rows of one part that the head computes logits for.
    pub fn head_rows(&self) -> usize {
        let [b, t] = self.size();
        self.masked_positions
            .as_ref()
            .map_or(b * t, |positions| positions[0].shape().elements())
    }
}

/// What is to be predicted of a batch, on the host; -100 where nothing is, among numbers
/// [`xtrain_models::IGNORED_NUMBER`].
#[derive(Clone, Debug, PartialEq)]
pub enum HostLabels {
    /// `s32[B, T]`: a label for each token; of a causal language model before the shift.
    Tokens(Array2<i32>),
    /// `s32[B]`: a class for each sequence.
    Classes(Array1<i32>),
    /// `f32[B]`: a number for each sequence.
    Numbers(Array1<f32>),
}

impl HostLabels {
    /// The labels of tokens; `None` of sequences.
    pub fn tokens(&self) -> Option<&Array2<i32>> {
        match self {
            HostLabels::Tokens(labels) => Some(labels),
            HostLabels::Classes(_) | HostLabels::Numbers(_) => None,
        }
    }
}

/// The shape of a kind of batch: all that its graph depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchShape {
    /// B
    pub rows: usize,
    /// T
    pub tokens: usize,
    /// What the labels are, and of which shape.
    pub labels: LabelShape,
    /// The batch has an attention mask, `[B, T]`.
    pub attention_mask: bool,
    /// The batch has token type ids, `s32[B, T]`.
    pub token_type_ids: bool,
    /// Where a run has batches of several shapes, what the names of this one's graphs end in: the
    /// length.
    pub variant: Option<Arc<str>>,
}

/// Shape and type of the labels of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelShape {
    /// `[B, T]`
    Tokens,
    /// K labels with their positions.
    Positions(usize),
    /// `[B]`
    Classes,
    /// `f32[B]`
    Numbers,
}

/// A graph's name in plans, logs and the cache: what it does and, where there are several, for
/// which batches.
pub fn graph_name(what: &str, variant: Option<&str>) -> String {
    variant.map_or(what.to_string(), |variant| format!("{what}.{variant}"))
}

/// A batch as tensors of a recording.
pub struct BatchInputs {
    /// Token ids `s32[B, T]` with masks and types, as models take them.
    pub tokens: TokenBatch,
    /// What the loss compares with.
    pub labels: Labels,
}

/// The feed of [`DeviceBatch::masked_positions`]. The name is part of recorded graphs, and so of their
/// fingerprints.
const MASKED_POSITIONS: &str = "places";

impl BatchInputs {
    /// Declares the feeds of a batch: its arrays by what `feed` makes of them.
    fn of<T>(
        arrays: [(&'static str, Option<T>); 5],
        mut feed: impl FnMut(&'static str, T) -> Tensor,
    ) -> BatchInputs {
        let [
            input_ids,
            ids,
            masked_positions,
            attention_mask,
            token_type_ids,
        ] = arrays.map(|(name, array)| array.map(|array| feed(name, array)));
        BatchInputs {
            tokens: TokenBatch {
                input_ids: input_ids.expect("every batch has tokens"),
                attention_mask,
                token_type_ids,
                cache: None,
            },
            labels: Labels {
                ids: ids.expect("every batch has labels"),
                masked_positions,
            },
        }
    }
}

/// Declares a device batch as feeds.
pub fn feed_batch(recording: &mut Recording, batch: &DeviceBatch) -> BatchInputs {
    let arrays = [
        (INPUT_IDS, Some(&batch.input_ids)),
        ("labels", Some(&batch.labels)),
        (MASKED_POSITIONS, batch.masked_positions.as_ref()),
        ("attention_mask", batch.attention_mask.as_ref()),
        ("token_type_ids", batch.token_type_ids.as_ref()),
    ];
    BatchInputs::of(arrays, |name, buffers| {
        recording.feed(name, buffers.clone())
    })
}

/// Declares the feeds of batches of one shape, for compiling ahead.
pub fn abstract_batch(recording: &mut Recording, shape: &BatchShape) -> BatchInputs {
    let grid = Shape::new(DType::S32, [shape.rows, shape.tokens]);
    let (labels, positions) = match shape.labels {
        LabelShape::Tokens => (grid.clone(), None),
        LabelShape::Positions(positions) => {
            let list = Shape::new(DType::S32, [positions]);
            (list.clone(), Some(list))
        }
        LabelShape::Classes => (Shape::new(DType::S32, [shape.rows]), None),
        LabelShape::Numbers => (Shape::new(DType::F32, [shape.rows]), None),
    };
    let mask = grid.with_dtype(DType::Pred);
    let arrays = [
        (INPUT_IDS, Some(grid.clone())),
        ("labels", Some(labels)),
        (MASKED_POSITIONS, positions),
        ("attention_mask", shape.attention_mask.then_some(mask)),
        ("token_type_ids", shape.token_type_ids.then_some(grid)),
    ];
    BatchInputs::of(arrays, |name, shape| recording.feed_abstract(name, &shape))
}
