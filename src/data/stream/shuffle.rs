//! The stream as a whole: rows drawn from a buffer, without end.
//!
//! As `datasets`' `shuffle(buffer_size)`: once the buffer is full, each row that arrives takes the
//! place of one that is drawn; what is left when the files end is shuffled and given before the
//! next pass begins, so that a pass gives each row once.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::super::error::{Error, Result};
use super::super::rows::Row;
use super::super::sampler::below;
use super::StreamSpec;
use super::rows::Rows;
use super::state::StreamPosition;

/// Rows without end, in an order that is a function of the files, the settings and the seed.
pub struct Stream {
    spec: Arc<StreamSpec>,
    rows: Rows,
    buffer: Vec<Row>,
    rng: ChaCha8Rng,
    /// The pass's files are read, and the buffer is being emptied.
    draining: bool,
}

impl Stream {
    /// Begins at the start, or goes on at a position.
    pub fn new(spec: Arc<StreamSpec>, from: Option<StreamPosition>) -> Result<Stream> {
        let from = from.unwrap_or_default();
        let mut rng = random(&spec, from.cursor.pass);
        rng.set_word_pos(from.draws.into());
        let rows = Rows::new(spec.clone(), from.cursor, from.taken, from.in_pass)?;
        Ok(Stream {
            spec,
            rows,
            buffer: from.buffer,
            rng,
            draining: from.draining,
        })
    }

    /// Where the stream stands: all that the rows to come depend on.
    pub fn position(&self) -> StreamPosition {
        let (cursor, taken, in_pass) = self.rows.place();
        let draws = self.rng.get_word_pos() as u64;
        StreamPosition {
            cursor,
            taken,
            in_pass,
            draws,
            draining: self.draining,
            buffer: self.buffer.clone(),
        }
    }

    /// The next row.
    pub fn next_row(&mut self) -> Result<Row> {
        loop {
            if self.draining {
                if let Some(row) = self.buffer.pop() {
                    return Ok(row);
                }
                self.draining = false;
                self.rows.begin_next_pass();
                self.rng = random(&self.spec, self.rows.pass());
                continue;
            }
            match self.rows.next()? {
                Some(row) if self.spec.buffer == 0 => return Ok(row),
                Some(row) if self.buffer.len() < self.spec.buffer => self.buffer.push(row),
                Some(row) => {
                    let place = below(&mut self.rng, self.buffer.len() as u64) as usize;
                    return Ok(std::mem::replace(&mut self.buffer[place], row));
                }
                None => {
                    if self.rows.place().2 == 0 {
                        return Err(self.empty());
                    }
                    for i in (1..self.buffer.len()).rev() {
                        self.buffer
                            .swap(i, below(&mut self.rng, i as u64 + 1) as usize);
                    }
                    self.draining = true;
                }
            }
        }
    }

    /// A pass over all files gave no row: the next one would not either.
    fn empty(&self) -> Error {
        let files = self
            .spec
            .source
            .train_files
            .iter()
            .map(|path| path.display().to_string())
            .collect::<Vec<_>>()
            .join(", ");
        Error::NoRows {
            what: format!(
                "{files}, cut into rows of {} tokens within each 1000 lines,",
                self.spec.recipe.length()
            ),
        }
    }
}

/// The draws of a pass.
fn random(spec: &StreamSpec, pass: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&spec.source.seed.to_le_bytes());
    key[8..16].copy_from_slice(&pass.to_le_bytes());
    key[16..].copy_from_slice(b"xtrain streaming");
    ChaCha8Rng::from_seed(key)
}
