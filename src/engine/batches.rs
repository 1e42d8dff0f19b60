//! From a set to batches on the device: which shapes there are, what is uploaded, in which order.

use super::error::Error;
use std::collections::BTreeMap;
use std::sync::Arc;
use xtrain_data::batch::{Batch, HostLabels};
use xtrain_data::loader::{LoadSpec, Loader};
use xtrain_data::sampler::{BatchPlan, Order};
use xtrain_data::set::Set;
use xtrain_data::stream::{StreamLoader, StreamPosition, StreamSpec};
use xtrain_graphs::{DType, Shape};
use xtrain_models::{
    ATTENTION_MASK, Feed, IGNORED_LABEL, INPUT_IDS, LABELS, LabelledShare, Objective, POSITION_IDS,
    POSITIONS, TOKEN_TYPE_IDS,
};
use xtrain_parallel::Mesh;
use xtrain_report::memory;
use xtrain_report::units::bytes;
use xtrain_runtime::Client;
use xtrain_trainer as trainer;
use xtrain_trainer::error_in_batch;
use xtrain_trainer::feed::{BatchShape, DeviceBatch};
use xtrain_trainer::mesh_devices::{Buffers, local_devices};

/// What a run's batches look like.
#[derive(Clone, Debug)]
pub struct BatchForm {
    /// Every T, from short to long.
    pub lengths: Vec<usize>,
    /// Whether the run can have batches of other lengths, so that names tell them apart.
    pub named: bool,
    /// Says what they are fed besides what models read.
    pub objective: Arc<dyn Objective>,
    /// Batches have an attention mask, `[B, T]`: they can have padding.
    pub attention_mask: bool,
    /// Batches have the place of each token in its own example, `[B, T]`: rows are packed.
    pub position_ids: bool,
    /// Batches have token type ids, `[B, T]`: rows are pairs of texts, and the model reads them.
    pub token_type_ids: bool,
    /// Whose replicas each batch is cut for: contiguous rows in their order, as accelerate deals out
    /// consecutive batches. Each stage of a pipeline gets the whole batch.
    pub mesh: Mesh,
}

impl BatchForm {
    /// Refuses batches of `rows` rows on each replica that this machine's memory cannot hold.
    ///
    /// # Errors
    /// If one of them is too large, with `flag` as what sets the number of rows.
    pub fn check_rows(&self, rows: usize, flag: &str) -> Result<(), Error> {
        /// Of ids, mask and labels of a token on the host.
        const TOKEN_BYTES: u64 = 12;
        let tokens = self.lengths.iter().copied().max().unwrap_or(0);
        let rows = (rows as u64).saturating_mul(self.mesh.batch_shards() as u64);
        let each = self.objective.rows() as u64;
        let needed = rows
            .saturating_mul(each)
            .saturating_mul(tokens as u64)
            .saturating_mul(TOKEN_BYTES);
        let limit = memory::machine().unwrap_or(u64::MAX).min(1 << 40);
        if needed <= limit {
            return Ok(());
        }
        Err(Error::usage(
            format!(
                "{flag}: a batch of {rows} sequences of {tokens} tokens takes {} of memory, of which this machine has {}",
                bytes(needed),
                bytes(limit)
            ),
            format!("lower {flag}"),
        ))
    }

    /// What tells batches of this length from others.
    fn variant(&self, tokens: usize) -> Option<Arc<str>> {
        self.named.then(|| tokens.to_string().into())
    }

    /// The shapes of batches of `examples` examples a replica, which decide about graphs.
    pub fn shapes(&self, examples: usize) -> Vec<BatchShape> {
        let rows = examples * self.objective.rows();
        let shape = |tokens: &usize| {
            let mut shape = BatchShape::of(&*self.objective, rows, *tokens);
            if self.attention_mask {
                shape = shape.with_attention_mask();
            }
            if self.token_type_ids {
                shape = shape.with_token_type_ids();
            }
            if self.position_ids {
                shape = shape.with_position_ids();
            }
            shape.variant = self.variant(*tokens);
            shape
        };
        self.lengths.iter().map(shape).collect()
    }

    /// Uploads a host batch; runs in the loader's threads, ahead of the step.
    ///
    /// # Errors
    /// If the device refuses the upload, or its memory is full.
    pub fn upload(&self, client: &Client, batch: Batch) -> trainer::Result<DeviceBatch> {
        let (all_rows, tokens) = batch.input_ids.dim();
        let shards = self.mesh.batch_shards();
        let rows = all_rows / shards;
        let put = Upload {
            client,
            mesh: self.mesh,
        };
        let mut variant = self.variant(tokens);
        let mut feeds = vec![(INPUT_IDS, put.array(DType::S32, &batch.input_ids)?)];
        let shapes = self.objective.feeds(rows, tokens);
        let room = shapes.iter().find(|feed| feed.name == POSITIONS);
        let numbers = shapes.iter().filter_map(|feed| {
            let mut known = batch.numbers.iter();
            known.find(|(name, _)| *name == feed.name)
        });
        match (&batch.labels, room) {
            (HostLabels::Tokens(labels), Some(Feed { shape, .. })) => {
                let room = shape.elements();
                let all = labels.as_slice().expect("batches are contiguous");
                let distance = self.objective.label_distance();
                let chosen: Option<Vec<_>> = all
                    .chunks(rows * tokens)
                    .map(|shard| labelled(shard, tokens, distance, room))
                    .collect();
                if let Some(chosen) = chosen {
                    let (chosen, ids): (Vec<_>, Vec<_>) = chosen.into_iter().unzip();
                    feeds.push((LABELS, put.rows(DType::S32, &ids.concat(), &[room])?));
                    feeds.push((POSITIONS, put.rows(DType::S32, &chosen.concat(), &[room])?));
                } else {
                    // Overflow (about one batch in a million, of data that were sampled a rare one): use
                    // the graph with logits for every token.
                    variant =
                        Some(variant.map_or("all".into(), |length| format!("{length}.all").into()));
                    feeds.push((LABELS, put.array(DType::S32, labels)?));
                }
            }
            (HostLabels::Tokens(labels), None) => {
                feeds.push((LABELS, put.array(DType::S32, labels)?));
            }
            (HostLabels::Classes(labels), _) => {
                feeds.push((LABELS, put.array(DType::S32, labels)?));
            }
            (HostLabels::Numbers(labels), _) => {
                feeds.push((LABELS, put.array(DType::F32, labels)?));
            }
        }
        for (name, numbers) in numbers {
            feeds.push((*name, put.array(DType::F32, numbers)?));
        }
        if let Some(mask) = &batch.attention_mask {
            feeds.push((ATTENTION_MASK, put.array(DType::Pred, mask)?));
        }
        if let Some(types) = &batch.token_type_ids {
            feeds.push((TOKEN_TYPE_IDS, put.array(DType::S32, types)?));
        }
        if let Some(positions) = &batch.position_ids {
            feeds.push((POSITION_IDS, put.array(DType::S32, positions)?));
        }
        Ok(DeviceBatch {
            feeds,
            host_labels: Some(batch.labels),
            shards,
            examples: batch.examples,
            tokens: batch.tokens,
            variant,
            epoch: batch.epoch,
            batch_in_epoch: batch.index_in_epoch as u64,
        })
    }

    /// Batches on the device, prepared by `workers` threads ahead of the step.
    ///
    /// # Errors
    /// If a batch cannot be prepared or uploaded; later items are errors of later batches.
    pub fn device_batches(
        &self,
        client: &Client,
        spec: LoadSpec,
        workers: usize,
    ) -> trainer::Result<impl Iterator<Item = trainer::Result<DeviceBatch>> + use<>> {
        let (form, client) = (self.clone(), client.clone());
        let loader = Loader::new(spec, workers, move |batch| form.upload(&client, batch))
            .map_err(error_in_batch)?;
        Ok(loader.map(|item| item.map_err(error_in_batch)))
    }

    /// Batches of a stream, `rows` rows each, read from a position on; the first has the number
    /// `number`. Each comes with the position after it.
    ///
    /// # Errors
    /// If the position is not in the stream, or a batch cannot be read or uploaded.
    pub fn stream_batches(
        &self,
        client: &Client,
        spec: Arc<StreamSpec>,
        from: Option<StreamPosition>,
        rows: usize,
        number: u64,
    ) -> trainer::Result<impl Iterator<Item = trainer::Result<(DeviceBatch, StreamPosition)>> + use<>>
    {
        let (form, client) = (self.clone(), client.clone());
        let loader = StreamLoader::new(spec, from, rows, number, move |batch| {
            form.upload(&client, batch)
        });
        Ok(loader
            .map_err(error_in_batch)?
            .map(|item| item.map_err(error_in_batch)))
    }

    /// One pass over a set, in order, `batch_size` rows a replica, the last batch padded.
    ///
    /// # Errors
    /// If a batch cannot be prepared or uploaded.
    pub fn one_pass(
        &self,
        client: &Client,
        set: &Set,
        batch_size: usize,
        workers: usize,
    ) -> trainer::Result<Box<dyn Iterator<Item = trainer::Result<DeviceBatch>>>> {
        let plan = BatchPlan::new(
            set.len(),
            batch_size * self.mesh.batch_shards(),
            false,
            Order::Sequential,
        )
        .map_err(error_in_batch)?;
        Ok(Box::new(self.device_batches(
            client,
            LoadSpec::one_pass(set.clone(), plan),
            workers,
        )?))
    }
}

/// The positions that predict a label, `distance` before it in a row of `tokens`, and the labels; filled
/// up to `room` with positions that predict none. `None` if there is too little.
fn labelled(
    labels: &[i32],
    tokens: usize,
    distance: usize,
    room: usize,
) -> Option<(Vec<i32>, Vec<i32>)> {
    let ignored = IGNORED_LABEL as i32;
    let (mut positions, mut ids): (Vec<i32>, Vec<i32>) = predicted(labels, tokens, distance)
        .map(|(place, label)| ((place - distance) as i32, label))
        .unzip();
    if positions.len() > room {
        return None;
    }
    positions.resize(room, 0);
    ids.resize(room, ignored);
    Some((positions, ids))
}

/// The labels of rows of `tokens` that something `distance` before them in their row predicts, with
/// their places.
fn predicted(
    labels: &[i32],
    tokens: usize,
    distance: usize,
) -> impl Iterator<Item = (usize, i32)> + '_ {
    let places = labels.iter().copied().enumerate();
    places
        .filter(move |(place, label)| *label != IGNORED_LABEL as i32 && place % tokens >= distance)
}

/// Batches that are looked at for how many labels there are.
const SAMPLED: usize = 256;

/// At most which share of the tokens have a label, by the length of a batch's rows, as its first batches
/// have it: the most that one of them has, and what five standard deviations above the mean are, which
/// some batch in three million passes.
///
/// # Errors
/// If a batch cannot be made.
pub fn labelled_shares(
    set: &Set,
    plan: BatchPlan,
    shards: usize,
    objective: &dyn Objective,
) -> trainer::Result<Vec<LabelledShare>> {
    let distance = objective.label_distance();
    let count = move |batch: Batch| -> trainer::Result<(usize, Vec<f64>)> {
        let Some(labels) = batch.labels.tokens() else {
            return Ok((0, Vec::new()));
        };
        let tokens = labels.ncols();
        let all = labels.as_slice().expect("batches are contiguous");
        let shard = (all.len() / shards).max(1);
        let shares = all
            .chunks(shard)
            .map(|labels| predicted(labels, tokens, distance).count() as f64 / labels.len() as f64);
        Ok((tokens, shares.collect()))
    };
    let spec = LoadSpec::one_pass(set.clone(), plan);
    let mut found: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for item in Loader::new(spec, 0, count)
        .map_err(error_in_batch)?
        .take(SAMPLED)
    {
        let (tokens, shares) = item.map_err(error_in_batch)?;
        found.entry(tokens).or_default().extend(shares);
    }
    let share = |(tokens, shares): (usize, Vec<f64>)| LabelledShare {
        tokens,
        share: most_likely(&shares),
    };
    Ok(found.into_iter().map(share).collect())
}

/// What hardly any further number will be above, if it is like these.
fn most_likely(numbers: &[f64]) -> f64 {
    let count = numbers.len().max(1) as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let squares = numbers.iter().map(|number| (number - mean).powi(2));
    let deviation = (squares.sum::<f64>() / count).sqrt();
    let most = numbers.iter().copied().fold(0.0, f64::max);
    most.max(mean + 5.0 * deviation).min(1.0)
}

/// Puts host arrays on the devices, each replica's part on its own; what belongs to other processes
/// is left to them.
struct Upload<'c> {
    client: &'c Client,
    mesh: Mesh,
}

impl Upload<'_> {
    /// An array whose first dimension is the rows of all replicas.
    fn array<T: bytemuck::NoUninit, D: ndarray::Dimension>(
        &self,
        dtype: DType,
        array: &ndarray::Array<T, D>,
    ) -> trainer::Result<Buffers> {
        let mut dims = array.shape().to_vec();
        dims[0] /= self.mesh.batch_shards();
        self.rows(
            dtype,
            array.as_slice().expect("batches are contiguous"),
            &dims,
        )
    }

    /// The parts' values one after another, `dims` each; each part goes to all replicas that share
    /// it.
    fn rows<T: bytemuck::NoUninit>(
        &self,
        dtype: DType,
        values: &[T],
        dims: &[usize],
    ) -> trainer::Result<Buffers> {
        let shape = Shape::new(dtype, dims);
        let devices = self.mesh.devices();
        let local = local_devices(self.client, devices);
        let parts = values
            .chunks(shape.elements().max(1))
            .flat_map(|part| std::iter::repeat_n(part, self.mesh.tensor));
        let parts: Vec<&[T]> = parts.collect();
        let parts = parts.iter().copied().cycle().take(devices);
        let own = parts.skip(local.start).take(local.len()).enumerate();
        own.map(|(device, part)| {
            Ok(self
                .client
                .upload(bytemuck::cast_slice(part), &shape, device)?)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtrain_models::MaskedToken;

    #[test]
    fn positions_are_filled_up() {
        assert_eq!(
            labelled(&[-100, 7, -100, 0], 4, 0, 3),
            Some((vec![1, 3, 0], vec![7, 0, -100]))
        );
        assert_eq!(labelled(&[-100, 7, -100, 0], 4, 0, 1), None);
        // Predicted by the token before; nothing is before the first of a row.
        assert_eq!(
            labelled(&[5, 7, -100, 0], 2, 1, 3),
            Some((vec![0, 2, 0], vec![7, 0, -100]))
        );
    }

    #[test]
    fn shares_have_room_for_the_batches_to_come() {
        assert_eq!(most_likely(&[0.25]), 0.25);
        assert_eq!(most_likely(&[0.2, 0.4]), 0.8);
        assert_eq!(most_likely(&[0.5, 1.0]), 1.0);
        assert_eq!(most_likely(&[]), 0.0);
    }

    #[test]
    fn names_tell_lengths_apart_where_there_are_several() {
        let form = |lengths: &[usize]| BatchForm {
            lengths: lengths.to_vec(),
            named: lengths.len() > 1,
            objective: Arc::new(MaskedToken {
                share: Some(0.15),
                ..Default::default()
            }),
            attention_mask: true,
            position_ids: false,
            token_type_ids: false,
            mesh: Mesh::single(),
        };
        let variants = |form: BatchForm| {
            form.shapes(8)
                .into_iter()
                .map(|shape| shape.variant)
                .collect::<Vec<_>>()
        };
        assert_eq!(variants(form(&[128])), [None]);
        assert_eq!(
            variants(form(&[64, 128])),
            [Some("64".into()), Some("128".into())]
        );
        assert_eq!(form(&[128]).shapes(8)[0].head_rows(), 216);
    }
}
