//! Batches in order, prepared ahead of the step by worker threads.
//!
//! Batch n belongs to worker n mod W, each worker has a short queue of its own, and the consumer
//! takes from the queues in turn: order needs no sorting, and memory stays bounded. What "prepared"
//! means is the caller's: the hook runs in the worker and usually puts the batch on the device. An
//! error or a panic in a worker arrives in its batch's place, and ends the loader.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use thiserror::Error;

use super::batch::Batch;
use super::queue::{Receiver, Sender, queue};
use super::sampler::{BatchPlan, Order, Position, group_by_length};
use super::set::Set;
use xtrain_report::panics;

/// Batches that each worker may hold ready, besides the one it is preparing.
pub(super) const AHEAD: usize = 4;

#[derive(Debug, Error)]
pub enum LoaderError<E> {
    /// The hook's own error.
    #[error("batch {} of epoch {}: {source}", position.batch, position.epoch)]
    Prepare { position: Position, source: E },

    #[error("batch {} of epoch {}: {source}", position.batch, position.epoch)]
    Read {
        position: Position,
        source: Box<super::Error>,
    },

    #[error("a data worker panicked at batch {} of epoch {}: {message}", position.batch, position.epoch)]
    Panicked { position: Position, message: String },

    #[error("cannot start a data worker thread: {source}; lower --dataloader_num_workers")]
    Spawn { source: std::io::Error },

    #[error("a data worker ended without a word before batch {} of epoch {}", position.batch, position.epoch)]
    Gone { position: Position },
}

/// What to load: the rows, how they become batches, from where, and until which epoch (not
/// included).
#[derive(Clone, Debug)]
pub struct LoadSpec {
    pub set: Set,
    pub plan: BatchPlan,
    pub start: Position,
    pub end_epoch: u64,
}

impl LoadSpec {
    /// One pass in the plan's order, as evaluation wants it.
    pub fn one_pass(set: Set, plan: BatchPlan) -> LoadSpec {
        LoadSpec {
            set,
            plan,
            start: Position::default(),
            end_epoch: 1,
        }
    }
}

type Item<T, E> = Result<T, LoaderError<E>>;
type Prepare<T, E> = dyn Fn(Batch) -> Result<T, E> + Send + Sync;

/// What consumer and workers share.
struct Source<T, E> {
    spec: LoadSpec,
    prepare: Box<Prepare<T, E>>,
    /// Orders of the epochs in use: workers may be on both sides of an epoch's end.
    orders: Mutex<VecDeque<(u64, Arc<Vec<u32>>)>>,
}

impl<T, E> Source<T, E> {
    fn order(&self, epoch: u64) -> Arc<Vec<u32>> {
        // A panic cannot leave the queue half changed, so a poisoned lock is as good as any.
        let mut orders = self
            .orders
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, order)) = orders.iter().find(|(known, _)| *known == epoch) {
            return order.clone();
        }
        let BatchPlan {
            order,
            rows,
            batch_size,
            ..
        } = self.spec.plan;
        let mut rows = order.epoch(rows, epoch);
        if matches!(order, Order::Grouped { .. }) {
            let length = |row: u32| self.spec.set.length(row as usize);
            group_by_length(&mut rows, length, batch_size);
        }
        let order = Arc::new(rows);
        if orders.len() == 2 {
            orders.pop_front();
        }
        orders.push_back((epoch, order.clone()));
        order
    }

    fn make(&self, position: Position) -> Item<T, E> {
        let work = || {
            let order = self.order(position.epoch);
            let rows = self.spec.plan.batch(&order, position.batch);
            let batch = self
                .spec
                .set
                .batch(rows, self.spec.plan.batch_size, position);
            let batch = batch.map_err(|source| LoaderError::Read {
                position,
                source: Box::new(source),
            })?;
            (self.prepare)(batch).map_err(|source| LoaderError::Prepare { position, source })
        };
        match panics::guarded(work) {
            Ok(made) => made,
            Err(message) => Err(LoaderError::Panicked { position, message }),
        }
    }

    /// Moves `steps` batches on; `None` at the end.
    fn advance(&self, mut position: Position, steps: usize) -> Option<Position> {
        for _ in 0..steps {
            position = self.spec.plan.next(position);
        }
        (position.epoch < self.spec.end_epoch).then_some(position)
    }
}

/// Iterates over prepared batches. Dropping it stops the workers and waits for them.
pub struct Loader<T, E = super::Error> {
    source: Arc<Source<T, E>>,
    /// Of the batch that comes next; `None` after the last one or an error.
    next: Option<Position>,
    /// Batches handed out so far.
    count: usize,
    queues: Vec<Receiver<Item<T, E>>>,
    threads: Vec<JoinHandle<()>>,
}

impl<T: Send + 'static, E: Send + 'static> Loader<T, E> {
    /// Starts `workers` threads (0: batches are prepared in the caller's thread as they are asked
    /// for).
    pub fn new(
        spec: LoadSpec,
        workers: usize,
        prepare: impl Fn(Batch) -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Loader<T, E>, LoaderError<E>> {
        let start = (spec.start.epoch < spec.end_epoch).then_some(spec.start);
        let source = Arc::new(Source {
            spec,
            prepare: Box::new(prepare),
            orders: Mutex::default(),
        });
        let mut loader = Loader {
            source,
            next: start,
            count: 0,
            queues: Vec::new(),
            threads: Vec::new(),
        };
        let Some(start) = start else {
            return Ok(loader);
        };
        for worker in 0..workers {
            let Some(first) = loader.source.advance(start, worker) else {
                break;
            };
            let (sender, receiver) = queue(AHEAD);
            let source = loader.source.clone();
            let thread = std::thread::Builder::new()
                .name(format!("data-{worker}"))
                .spawn(move || run_worker(&source, first, workers, &sender))
                .map_err(|source| LoaderError::Spawn { source })?;
            loader.queues.push(receiver);
            loader.threads.push(thread);
        }
        Ok(loader)
    }

    /// Position of the batch that the next call returns; what a checkpoint saves.
    pub fn position(&self) -> Option<Position> {
        self.next
    }
}

fn run_worker<T, E>(
    source: &Source<T, E>,
    first: Position,
    workers: usize,
    queue: &Sender<Item<T, E>>,
) {
    let mut next = Some(first);
    while let Some(position) = next {
        let item = source.make(position);
        let failed = item.is_err();
        // A closed queue means that the loader was dropped.
        if !queue.send(item) || failed {
            return;
        }
        next = source.advance(position, workers);
    }
}

impl<T, E> Iterator for Loader<T, E> {
    type Item = Item<T, E>;

    fn next(&mut self) -> Option<Item<T, E>> {
        let position = self.next?;
        let item = match self.queues.len() {
            0 => self.source.make(position),
            workers => self.queues[self.count % workers]
                .receive()
                .unwrap_or(Err(LoaderError::Gone { position })),
        };
        self.count += 1;
        self.next = if item.is_ok() {
            self.source.advance(position, 1)
        } else {
            None
        };
        Some(item)
    }
}

impl<T, E> Drop for Loader<T, E> {
    fn drop(&mut self) {
        // Closing the queues wakes workers that wait for room; one that is busy stops after its
        // batch.
        self.queues.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // A panic was already delivered as an error.
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Row;
    use crate::sampler::Order;
    use crate::samples::Blocks;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    fn spec(rows: usize, batch_size: usize, start: Position, end_epoch: u64) -> LoadSpec {
        let ids: Vec<u32> = (0..rows as u32 * 4).collect();
        let blocks: Vec<Row> = ids.chunks(4).map(Row::of_ids).collect();
        let set = Set::in_memory(&blocks, Arc::new(Blocks(4))).unwrap();
        let plan = BatchPlan::new(rows, batch_size, false, Order::Shuffled { seed: 5 }).unwrap();
        LoadSpec {
            set,
            plan,
            start,
            end_epoch,
        }
    }

    fn all(spec: LoadSpec, workers: usize) -> Vec<Batch> {
        let loader = Loader::new(spec, workers, |batch| {
            // Uneven work, so that a loader that took batches as they come would be caught.
            std::thread::sleep(Duration::from_micros(if batch.index_in_epoch % 3 == 0 {
                500
            } else {
                0
            }));
            Ok::<_, super::super::Error>(batch)
        });
        loader.unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn the_same_batches_in_the_same_order_with_any_number_of_workers() {
        let one = all(spec(22, 4, Position::default(), 3), 0);
        assert_eq!(one.len(), 18);
        assert_eq!(one.iter().map(|b| b.examples).sum::<usize>(), 66);
        for workers in [1, 2, 3, 5, 40] {
            assert_eq!(
                all(spec(22, 4, Position::default(), 3), workers),
                one,
                "{workers} workers"
            );
        }
    }

    #[test]
    fn any_start_continues_the_same_sequence() {
        let one = all(spec(22, 4, Position::default(), 3), 0);
        let mut position = Position::default();
        for skipped in 0..=one.len() {
            for workers in [0, 2] {
                assert_eq!(
                    all(spec(22, 4, position, 3), workers),
                    one[skipped..],
                    "from {position:?}"
                );
            }
            position = spec(22, 4, position, 3).plan.next(position);
        }
    }

    #[test]
    fn work_is_done_ahead_but_not_without_bound() {
        let made = Arc::new(AtomicUsize::new(0));
        let count = made.clone();
        let prepare = move |batch: Batch| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok::<_, String>(batch.index_in_epoch)
        };
        let mut loader = Loader::new(spec(1000, 1, Position::default(), 1000), 2, prepare).unwrap();
        assert_eq!(loader.next().unwrap().unwrap(), 0);
        assert_eq!(loader.position(), Some(Position { epoch: 0, batch: 1 }));
        std::thread::sleep(Duration::from_millis(100));
        let ahead = made.load(Ordering::SeqCst);
        assert!((3..=1 + 2 * (AHEAD + 1)).contains(&ahead), "{ahead}");
        drop(loader); // returns: the workers stop although a thousand epochs are left
        assert!(made.load(Ordering::SeqCst) <= ahead + 2);
    }

    #[test]
    fn errors_and_panics_arrive_in_their_place() {
        for workers in [0, 1, 3] {
            let prepare = |batch: Batch| match batch.index_in_epoch {
                5 => Err("no device memory".to_string()),
                n => Ok(n),
            };
            let mut loader =
                Loader::new(spec(10, 1, Position::default(), 1), workers, prepare).unwrap();
            let good: Vec<_> = loader.by_ref().take(5).map(Result::unwrap).collect();
            assert_eq!(good, [0, 1, 2, 3, 4]);
            assert_eq!(
                loader.next().unwrap().unwrap_err().to_string(),
                "batch 5 of epoch 0: no device memory"
            );
            assert!(loader.next().is_none());

            let prepare = |batch: Batch| {
                assert!(batch.index_in_epoch != 3, "boom");
                Ok::<_, String>(())
            };
            let mut loader =
                Loader::new(spec(10, 1, Position::default(), 1), workers, prepare).unwrap();
            assert!(loader.by_ref().take(3).all(|item| item.is_ok()));
            let error = loader.next().unwrap().unwrap_err();
            assert!(
                matches!(&error, LoaderError::Panicked { message, .. } if message.contains("boom")),
                "{error}"
            );
        }
    }

    #[test]
    fn an_empty_range_yields_nothing() {
        assert!(all(spec(4, 2, Position { epoch: 1, batch: 0 }, 1), 2).is_empty());
    }
}
