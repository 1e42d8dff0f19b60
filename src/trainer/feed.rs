//! What a step is fed: a batch on the device, its shape for compiling ahead, and both as tensors of
//! a recording. Feeds go by their names; which there are is the objective's.
//!
//! Letters: B rows of one replica, T tokens, N = B * T, K positions that have a label.

use super::mesh_devices::Buffers;
use super::session::{Feeds, Recording};
use std::sync::Arc;
use xtrain_graphs::DType;
use xtrain_models::{
    ATTENTION_MASK, Feed, HostLabels, INPUT_IDS, Inputs, LABELS, Objective, POSITION_IDS,
    POSITIONS, TOKEN_TYPE_IDS,
};

/// A batch that is on the devices, each replica's rows on its own; shapes are those of one replica.
#[derive(Clone)]
pub struct DeviceBatch {
    /// By name, in the order in which a step declares them. Every batch has [`INPUT_IDS`].
    pub feeds: Vec<(&'static str, Buffers)>,
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
    /// Full rows `s32[B, T]` with what an objective is fed besides, at the start of a run.
    pub fn of(input_ids: Buffers, others: Vec<(&'static str, Buffers)>) -> Self {
        let dims = &input_ids[0].shape().dims;
        let shards = input_ids.len();
        let rows = dims[0] * shards;
        DeviceBatch {
            shards,
            examples: rows,
            tokens: rows * dims[1],
            feeds: std::iter::once((INPUT_IDS, input_ids))
                .chain(others)
                .collect(),
            host_labels: None,
            variant: None,
            epoch: 0,
            batch_in_epoch: 0,
        }
    }

    /// The same with labels.
    pub fn full(input_ids: Buffers, labels: Buffers) -> Self {
        DeviceBatch::of(input_ids, vec![(LABELS, labels)])
    }

    /// What a step is fed of it.
    pub fn to_feeds(&self) -> Feeds {
        let mut feeds = Feeds::begin();
        for (name, value) in &self.feeds {
            feeds.add(name, value.clone());
        }
        feeds
    }

    /// The feed of this name, if it has one.
    pub fn feed(&self, name: &str) -> Option<&Buffers> {
        let mut feeds = self.feeds.iter();
        feeds
            .find(|(known, _)| *known == name)
            .map(|(_, buffers)| buffers)
    }

    /// Tokens of all replicas with padding.
    pub fn padded_tokens(&self) -> usize {
        let [b, t] = self.size();
        self.shards * b * t
    }

    /// B and T.
    ///
    /// # Panics
    /// If it has no token ids.
    pub fn size(&self) -> [usize; 2] {
        let ids = self.feed(INPUT_IDS).expect("every batch has token ids");
        let dims = &ids[0].shape().dims;
        [dims[0], dims[1]]
    }

    /// Rows of one part that the head computes logits for.
    pub fn head_rows(&self) -> usize {
        let [b, t] = self.size();
        let positions = self.feed(POSITIONS);
        positions.map_or(b * t, |positions| positions[0].shape().elements())
    }
}

/// The shape of a kind of batch: all that its graph depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchShape {
    /// B
    pub rows: usize,
    /// T
    pub tokens: usize,
    /// In the order in which a step declares them.
    pub feeds: Vec<Feed>,
    /// Where a run has batches of several shapes, what the names of this one's graphs end in: the
    /// length.
    pub variant: Option<Arc<str>>,
}

impl BatchShape {
    /// Token ids, and what an objective is fed of `rows` rows of `tokens` tokens.
    pub fn of(objective: &dyn Objective, rows: usize, tokens: usize) -> BatchShape {
        let ids = Feed::new(INPUT_IDS, DType::S32, [rows, tokens]);
        let others = objective.feeds(rows, tokens);
        BatchShape {
            rows,
            tokens,
            feeds: std::iter::once(ids).chain(others).collect(),
            variant: None,
        }
    }

    /// The same with what another objective is fed, of the same rows.
    pub fn fed_to(&self, objective: &dyn Objective) -> BatchShape {
        let own = BatchShape::of(objective, self.rows, self.tokens).feeds;
        let of_models = [ATTENTION_MASK, TOKEN_TYPE_IDS, POSITION_IDS];
        let others = self.feeds.iter();
        let others = others
            .filter(|feed| of_models.contains(&feed.name))
            .cloned();
        BatchShape {
            feeds: own.into_iter().chain(others).collect(),
            ..self.clone()
        }
    }

    /// The same with `pred[B, T]` that says which tokens are attended.
    pub fn with_attention_mask(mut self) -> BatchShape {
        let dims = [self.rows, self.tokens];
        self.feeds
            .push(Feed::new(ATTENTION_MASK, DType::Pred, dims));
        self
    }

    /// The same with the place of each token in its own example.
    pub fn with_position_ids(mut self) -> BatchShape {
        let dims = [self.rows, self.tokens];
        self.feeds.push(Feed::new(POSITION_IDS, DType::S32, dims));
        self
    }

    /// The same with the tokens' segments.
    pub fn with_token_type_ids(mut self) -> BatchShape {
        let dims = [self.rows, self.tokens];
        self.feeds.push(Feed::new(TOKEN_TYPE_IDS, DType::S32, dims));
        self
    }

    /// Rows that the head computes logits for.
    pub fn head_rows(&self) -> usize {
        let mut feeds = self.feeds.iter();
        let positions = feeds.find(|feed| feed.name == POSITIONS);
        positions.map_or(self.rows * self.tokens, |feed| feed.shape.elements())
    }
}

/// A graph's name in plans, logs and the cache: what it does and, where there are several, for
/// which batches.
pub fn graph_name(what: &str, variant: Option<&str>) -> String {
    variant.map_or(what.to_string(), |variant| format!("{what}.{variant}"))
}

/// Declares a device batch as feeds.
pub fn feed_batch(recording: &mut Recording, batch: &DeviceBatch) -> Inputs {
    let feeds = batch.feeds.iter();
    let inputs: Inputs = feeds
        .map(|(name, buffers)| (*name, recording.feed(name, buffers.clone())))
        .collect();
    inputs.divided(recording.mesh().batch_groups())
}

/// Declares the feeds of batches of one shape, for compiling ahead.
pub fn abstract_batch(recording: &mut Recording, shape: &BatchShape) -> Inputs {
    let feeds = shape.feeds.iter();
    let inputs: Inputs = feeds
        .map(|feed| (feed.name, recording.feed_abstract(feed.name, &feed.shape)))
        .collect();
    inputs.divided(recording.mesh().batch_groups())
}
