//! The thread that reads a stream and prepares its batches ahead of the step.

use std::sync::Arc;
use std::thread::JoinHandle;

use thiserror::Error;

use super::super::batch::Batch;
use super::super::error;
use super::super::loader::AHEAD;
use super::super::queue::{Receiver, Sender, queue};
use super::StreamSpec;
use super::shuffle::Stream;
use super::state::StreamPosition;
use xtrain_report::panics;

#[derive(Debug, Error)]
pub enum StreamError<E> {
    #[error(transparent)]
    Read(error::Error),

    /// The hook's own error.
    #[error("batch {number} of the stream: {source}")]
    Prepare { number: u64, source: E },

    #[error("the thread that reads the stream panicked at batch {number}: {message}")]
    Panicked { number: u64, message: String },

    #[error("cannot start a thread to read the stream: {0}")]
    Spawn(std::io::Error),

    #[error("the thread that reads the stream ended without a word")]
    Gone,
}

type Item<T, E> = Result<(T, StreamPosition), StreamError<E>>;

/// Prepared batches, each with the stream's position after it. Dropping it stops the thread and
/// waits for it.
pub struct StreamLoader<T, E> {
    queue: Option<Receiver<Item<T, E>>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static, E: Send + 'static> StreamLoader<T, E> {
    /// Starts to read at `from`, `rows` rows a batch; the first batch has the number `number`.
    pub fn new(
        spec: Arc<StreamSpec>,
        from: Option<StreamPosition>,
        rows: usize,
        number: u64,
        prepare: impl Fn(Batch) -> Result<T, E> + Send + 'static,
    ) -> Result<StreamLoader<T, E>, StreamError<E>> {
        let (sender, receiver) = queue(AHEAD);
        let work = move || run(&spec, from, rows, number, &prepare, &sender);
        let thread = std::thread::Builder::new()
            .name("stream".to_string())
            .spawn(work)
            .map_err(StreamError::Spawn)?;
        Ok(StreamLoader {
            queue: Some(receiver),
            thread: Some(thread),
        })
    }
}

fn run<T, E>(
    spec: &Arc<StreamSpec>,
    mut from: Option<StreamPosition>,
    rows: usize,
    mut number: u64,
    prepare: &dyn Fn(Batch) -> Result<T, E>,
    queue: &Sender<Item<T, E>>,
) {
    let mut stream = None;
    loop {
        let work = || -> Item<T, E> {
            let stream = match &mut stream {
                Some(stream) => stream,
                none => {
                    none.insert(Stream::new(spec.clone(), from.take()).map_err(StreamError::Read)?)
                }
            };
            let rows = (0..rows)
                .map(|_| stream.next_row())
                .collect::<error::Result<Vec<_>>>()
                .map_err(StreamError::Read)?;
            let batch = spec.batch(&rows, number).map_err(StreamError::Read)?;
            let prepared =
                prepare(batch).map_err(|source| StreamError::Prepare { number, source })?;
            Ok((prepared, stream.position()))
        };
        let item = panics::guarded(work)
            .unwrap_or_else(|message| Err(StreamError::Panicked { number, message }));
        let failed = item.is_err();
        // A closed queue means that the loader was dropped.
        if !queue.send(item) || failed {
            return;
        }
        number += 1;
    }
}

impl<T, E> Iterator for StreamLoader<T, E> {
    type Item = Item<T, E>;

    /// Has no end but an error.
    fn next(&mut self) -> Option<Item<T, E>> {
        let item = self
            .queue
            .as_ref()?
            .receive()
            .unwrap_or(Err(StreamError::Gone));
        if item.is_err() {
            self.queue = None;
        }
        Some(item)
    }
}

impl<T, E> Drop for StreamLoader<T, E> {
    fn drop(&mut self) {
        // Closing the queue wakes the thread if it waits for room.
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // A panic was already delivered as an error.
        }
    }
}
