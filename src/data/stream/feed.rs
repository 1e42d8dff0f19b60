//! The texts of a stream's files, and where each of them is.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::super::error::{Error, Result};
use super::super::formats::input::{Bookmark, identity};
use super::super::sampler::Order;
use super::super::samples::{Sample, SampleFile};
use super::super::settings::OnBadRow;
use super::StreamSpec;

/// Where a feed stands: what comes next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Cursor {
    /// Passes over the files before this one.
    pub pass: u64,
    /// Files of this pass before this one.
    pub file: usize,
    /// In that file; `None` before its start.
    pub bookmark: Option<Bookmark>,
    /// What that file is, once it is open.
    pub identity: Option<Arc<str>>,
    /// Bad rows left out so far, in all passes.
    pub skipped: u64,
}

/// Texts of all files, pass after pass.
pub(super) struct Feed {
    spec: Arc<StreamSpec>,
    cursor: Cursor,
    /// The files of this pass, by their numbers.
    order: Vec<u32>,
    open: Option<Box<dyn SampleFile>>,
}

impl Feed {
    /// Begins at the start, or goes on at a cursor. A file that is another one now is an error.
    pub fn new(spec: Arc<StreamSpec>, cursor: Cursor) -> Result<Feed> {
        let order = order(&spec, cursor.pass);
        let mut feed = Feed {
            spec,
            order,
            open: None,
            cursor,
        };
        let (Some(was), Some(bookmark)) = (feed.cursor.identity.clone(), feed.cursor.bookmark)
        else {
            return Ok(feed);
        };
        let path = feed
            .path()
            .expect("a cursor with a bookmark is within a pass")
            .to_path_buf();
        let now = identity(&path)?;
        if *was != *now {
            return Err(Error::OtherFile {
                path,
                was: was.to_string(),
                now,
            });
        }
        let mut open = feed.spec.recipe.open(&path, Arc::default())?;
        open.resume(&bookmark)?;
        feed.open = Some(open);
        Ok(feed)
    }

    fn path(&self) -> Option<&Path> {
        let number = *self.order.get(self.cursor.file)?;
        Some(&self.spec.source.train_files[number as usize])
    }

    /// Where the next text is.
    pub fn cursor(&self) -> Cursor {
        Cursor {
            bookmark: self
                .open
                .as_ref()
                .map(|open| open.bookmark())
                .or(self.cursor.bookmark),
            ..self.cursor.clone()
        }
    }

    /// Goes over the files anew, in the next pass's order.
    pub fn begin_next_pass(&mut self) {
        self.cursor = Cursor {
            pass: self.cursor.pass + 1,
            skipped: self.cursor.skipped,
            ..Cursor::default()
        };
        self.order = order(&self.spec, self.cursor.pass);
        self.open = None;
    }

    /// Opens the next file if none is open, so that the cursor says which file the next text is in.
    pub fn open_next(&mut self) -> Result<()> {
        if let (None, Some(path)) = (&self.open, self.path()) {
            let open = self.spec.recipe.open(path, Arc::default())?;
            self.cursor.identity = Some(identity(path)?.into());
            self.open = Some(open);
        }
        Ok(())
    }

    /// The next text, `None` at the end of the pass.
    pub fn next(&mut self) -> Result<Option<Sample>> {
        loop {
            self.open_next()?;
            let Some(open) = &mut self.open else {
                return Ok(None);
            };
            match open.next() {
                Some(Ok(sample)) => return Ok(Some(sample)),
                Some(Err(error))
                    if error.is_bad_row()
                        && self.spec.source.table.on_bad_row == OnBadRow::Skip =>
                {
                    self.cursor.skipped += 1;
                }
                Some(Err(error)) => return Err(error),
                None => {
                    self.open = None;
                    (self.cursor.bookmark, self.cursor.identity) = (None, None);
                    self.cursor.file += 1;
                }
            }
        }
    }
}

/// The order of the files in a pass, as `datasets` shuffles its shards: a function of seed and pass
/// alone.
fn order(spec: &StreamSpec, pass: u64) -> Vec<u32> {
    let source = &spec.source;
    let order = if spec.buffer == 0 {
        Order::Sequential
    } else {
        Order::Shuffled { seed: source.seed }
    };
    order.epoch(source.train_files.len(), pass)
}
