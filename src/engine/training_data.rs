//! Where training batches come from: a set that was read ahead, or a stream.

use super::batches::BatchForm;
use super::error::{Error, failed};
use super::resume::Start;
use super::run::Run;
use super::task::TaskData;
use std::sync::Arc;
use xtrain_data::Set;
use xtrain_data::loader::LoadSpec;
use xtrain_data::sampler::{BatchPlan, Position};
use xtrain_data::stream::{BUFFER_FILE, StreamPosition, StreamSpec};
use xtrain_report::progress::say;
use xtrain_runtime::Client;
use xtrain_trainer as trainer;
use xtrain_trainer::feed::DeviceBatch;
use xtrain_trainer::run_loop::Batches;
use xtrain_trainer::run_state::DataPosition;

/// The rows that a run trains on.
pub enum TrainingData {
    Set { set: Box<Set>, plan: BatchPlan },
    Stream(Arc<StreamSpec>),
}

impl TrainingData {
    /// Those of a run.
    ///
    /// # Errors
    /// If the set has no batch.
    ///
    /// # Panics
    /// If the run has no training data.
    pub fn of(run: &Run) -> Result<TrainingData, Error> {
        if let Some(stream) = &run.stream {
            return Ok(TrainingData::Stream(stream.clone()));
        }
        let set = run.train.as_ref();
        let set = set.expect("a run that trains has training data");
        Ok(TrainingData::Set {
            plan: run.batch_plan(set)?,
            set: Box::new(set.clone()),
        })
    }

    /// Whether the rows are read while the run trains.
    pub fn is_stream(&self) -> bool {
        matches!(self, TrainingData::Stream(_))
    }

    /// Number of rows; a stream's is not known.
    pub fn examples(&self) -> Option<usize> {
        match self {
            TrainingData::Set { set, .. } => Some(set.len()),
            TrainingData::Stream(_) => None,
        }
    }

    /// Identifies what the batches hold in each epoch.
    pub fn fingerprint(&self, task: &TaskData) -> String {
        match self {
            TrainingData::Set { set, .. } => task.fingerprint(set),
            TrainingData::Stream(stream) => stream.fingerprint(),
        }
    }

    /// Batches of `rows` rows from a start on, which `workers` threads bring to the devices ahead
    /// of the step.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn batches(
        self,
        form: &BatchForm,
        client: &Client,
        rows: usize,
        workers: usize,
        start: &Start,
    ) -> Result<TrainingBatches, Error> {
        let starting = failed("starting the data workers");
        let batches: Box<PositionedBatches> = match self {
            TrainingData::Set { set, plan } => {
                let spec = LoadSpec {
                    set: *set,
                    plan,
                    start: Position {
                        epoch: start.progress.next_epoch,
                        batch: start.progress.next_batch as usize,
                    },
                    end_epoch: u64::MAX,
                };
                let batches = form.device_batches(client, spec, workers);
                let batches = batches.map_err(starting)?;
                Box::new(batches.map(|batch| Ok((batch?, None))))
            }
            TrainingData::Stream(spec) => {
                let (from, next) = (start.stream.clone(), start.progress.next_batch);
                let batches = form.stream_batches(client, spec, from, rows, next);
                let batches = batches.map_err(starting)?;
                Box::new(batches.map(|item| item.map(|(batch, after)| (batch, Some(after)))))
            }
        };
        Ok(TrainingBatches {
            batches,
            position: start.stream.clone(),
        })
    }
}

/// Batches, each with the position in the stream after it.
type PositionedBatches =
    dyn Iterator<Item = trainer::Result<(DeviceBatch, Option<StreamPosition>)>>;

/// A run's batches on the devices.
pub struct TrainingBatches {
    batches: Box<PositionedBatches>,
    /// In a stream, after the last batch that was taken.
    position: Option<StreamPosition>,
}

impl TrainingBatches {
    /// Warns of the rows of a stream that were left out.
    pub fn warn_of_skipped_rows(&self) {
        let skipped = self.position.as_ref().map_or(0, StreamPosition::skipped);
        if skipped > 0 {
            let rows = if skipped == 1 { "row was" } else { "rows were" };
            say(&format!(
                "warning: {skipped} bad {rows} left out of the stream (--on_bad_row skip)"
            ));
        }
    }
}

impl Iterator for TrainingBatches {
    type Item = trainer::Result<DeviceBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.batches.next()?;
        Some(item.map(|(batch, after)| {
            if after.is_some() {
                self.position = after;
            }
            batch
        }))
    }
}

impl Batches for TrainingBatches {
    fn position(&self) -> Option<DataPosition> {
        let saved = self.position.as_ref()?.save();
        Some(DataPosition {
            state: saved.state,
            files: vec![(BUFFER_FILE.to_string(), saved.buffer)],
        })
    }
}
