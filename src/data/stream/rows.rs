//! Groups of texts to rows: several groups at a time on as many threads, handed on in order.

use std::collections::VecDeque;
use std::sync::Arc;

use rayon::ThreadPool;
use rayon::prelude::*;

use super::super::error::{Error, Result};
use super::super::rows::Row;
use super::super::samples::Sample;
use super::StreamSpec;
use super::feed::{Cursor, Feed};

struct Group {
    /// Before its first text.
    start: Cursor,
    rows: Vec<Row>,
}

/// Rows in the order of the files, pass after pass.
pub(super) struct Rows {
    spec: Arc<StreamSpec>,
    pool: ThreadPool,
    feed: Feed,
    ready: VecDeque<Group>,
    /// Rows of the first group that were given.
    taken: usize,
    /// Rows of this pass that were given.
    in_pass: u64,
    /// The files of this pass are read to their end.
    at_end: bool,
}

impl Rows {
    /// Goes on where `cursor`, `taken` and `in_pass` say, as [`Rows::place`] gave them.
    pub fn new(spec: Arc<StreamSpec>, cursor: Cursor, taken: usize, in_pass: u64) -> Result<Rows> {
        let threads = spec
            .source
            .preprocessing_num_workers
            .map_or_else(rayon::current_num_threads, |n| n.max(1));
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("tokenize-{i}"))
            .build();
        let pool = pool.map_err(|error| Error::Io {
            doing: "start threads to tokenize",
            path: "the stream".into(),
            source: std::io::Error::other(error),
        })?;
        let feed = Feed::new(spec.clone(), cursor)?;
        Ok(Rows {
            spec,
            pool,
            feed,
            ready: VecDeque::new(),
            taken,
            in_pass,
            at_end: false,
        })
    }

    /// Where the next row is: the text at which its group begins, the rows before it in that group
    /// and in the pass.
    pub fn place(&self) -> (Cursor, usize, u64) {
        let start = self
            .ready
            .front()
            .map_or_else(|| self.feed.cursor(), |group| group.start.clone());
        (start, self.taken, self.in_pass)
    }

    /// The pass that the next texts are of.
    pub fn pass(&self) -> u64 {
        self.feed.cursor().pass
    }

    pub fn begin_next_pass(&mut self) {
        self.feed.begin_next_pass();
        self.ready.clear();
        (self.taken, self.in_pass, self.at_end) = (0, 0, false);
    }

    /// The next row, `None` at the end of the pass.
    pub fn next(&mut self) -> Result<Option<Row>> {
        let most = self
            .spec
            .source
            .max_train_samples
            .map_or(u64::MAX, |most| most as u64);
        if self.in_pass >= most {
            return Ok(None);
        }
        loop {
            if let Some(group) = self.ready.front() {
                if let Some(row) = group.rows.get(self.taken) {
                    let row = row.clone();
                    self.taken += 1;
                    self.in_pass += 1;
                    return Ok(Some(row));
                }
                self.taken -= group.rows.len().min(self.taken);
                self.ready.pop_front();
                continue;
            }
            if self.at_end {
                return Ok(None);
            }
            self.read_round()?;
        }
    }

    /// Reads and tokenizes a group for each thread.
    fn read_round(&mut self) -> Result<()> {
        let size = self.spec.recipe.group();
        let mut round = Vec::new();
        while round.len() < self.pool.current_num_threads() && !self.at_end {
            self.feed.open_next()?;
            let start = self.feed.cursor();
            let mut samples = Vec::with_capacity(size);
            while samples.len() < size {
                match self.feed.next()? {
                    Some(sample) => samples.push(sample),
                    None => {
                        self.at_end = true;
                        break;
                    }
                }
            }
            if !samples.is_empty() {
                round.push((start, samples));
            }
        }
        let recipe = &self.spec.recipe;
        let work = |(start, samples): (Cursor, Vec<Sample>)| {
            let rows = recipe.encode(&samples)?.rows;
            Ok(Group { start, rows })
        };
        let groups = self.pool.install(|| {
            round
                .into_par_iter()
                .map(work)
                .collect::<Result<Vec<Group>>>()
        })?;
        self.ready.extend(groups);
        Ok(())
    }
}
