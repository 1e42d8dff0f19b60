//! Tables whose rows become samples, one each.

use std::sync::Arc;

use xtrain_data::formats::input::Bookmark;
use xtrain_data::formats::table::{Row, Table};
use xtrain_data::{Result, Sample, SampleFile};

/// What makes a sample of a row.
pub(super) trait RowReader: Send {
    /// The sample of a row of the columns that were chosen; `names` are those of all columns.
    ///
    /// # Errors
    /// The row is unusable.
    fn sample(&self, names: &[String], row: Row) -> Result<Sample>;

    /// Whether its samples are pairs of texts.
    fn has_pairs(&self) -> bool {
        false
    }
}

/// One open table.
pub(super) struct TableFile<R> {
    pub table: Table,
    pub reader: R,
}

impl<R: RowReader> SampleFile for TableFile<R> {
    fn bookmark(&self) -> Bookmark {
        self.table.bookmark()
    }

    fn resume(&mut self, bookmark: &Bookmark) -> Result<()> {
        self.table.resume(bookmark, Arc::default())
    }

    fn next(&mut self) -> Option<Result<Sample>> {
        let row = self.table.next()?;
        Some(row.and_then(|row| self.reader.sample(self.table.columns(), row)))
    }

    fn has_pairs(&self) -> bool {
        self.reader.has_pairs()
    }
}
