//! State that is read back while it is written: a few tensors are in host memory at a time, not all
//! of a model and its optimizer.

use crate::error::{Error, Result};
use crate::session::Session;
use crate::session::parameters::{HostTensor, download, read_together, take_part_in_download};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use xtrain_checkpoint::weights::convert_floats;
use xtrain_checkpoint::{Fetch, TensorRef, written_order};
use xtrain_graphs::DType;

/// Names of tensors that are written together, into files of at most this many bytes.
pub type Written<'n> = (&'n [String], u64);

/// Tensors of a session on their way into files, in the order in which these hold them. Where parts
/// are in other processes, all processes have to stream the same lists: those that do not write by
/// [`take_part`].
pub struct Streamed<'s> {
    reader: RefCell<Reader<'s>>,
}

struct Reader<'s> {
    session: &'s mut Session,
    /// What is read at a time, and not yet.
    waiting: VecDeque<Vec<String>>,
    read: VecDeque<HostTensor>,
    check: &'s dyn Fn(&HostTensor) -> Result<()>,
    /// What floats are written as; `None`: as they are.
    dtype: Option<DType>,
    failure: Option<Error>,
}

/// References to tensors without their bytes: the shapes they have as a whole, floats in `dtype` if
/// that is given.
fn unread<'n>(
    session: &Session,
    names: &'n [String],
    from: &'n dyn Fetch,
    dtype: Option<DType>,
) -> Result<Vec<TensorRef<'n>>> {
    let reference = |name: &'n String| {
        let held = session
            .shape(name)
            .ok_or_else(|| Error::NoState { name: name.clone() })?;
        let whole = session.placements().whole(name, held);
        let written = match dtype {
            Some(dtype) if whole.dtype.is_float() => whole.with_dtype(dtype),
            _ => whole,
        };
        Ok(TensorRef::fetched(name.as_str(), written, from))
    };
    names.iter().map(reference).collect()
}

/// For lists that are only put into order.
struct Nothing;

impl Fetch for Nothing {
    fn fetch(&self, name: &str) -> io::Result<Vec<u8>> {
        Err(io::Error::other(format!("{name} is not read here")))
    }
}

/// What is read at a time, in the order of writing.
fn groups(
    session: &Session,
    lists: &[Written],
    dtype: Option<DType>,
) -> Result<VecDeque<Vec<String>>> {
    let mut groups = VecDeque::new();
    for (names, max_bytes) in lists {
        let order = written_order(&unread(session, names, &Nothing, dtype)?, *max_bytes);
        groups.extend(read_together(session, &order));
    }
    Ok(groups)
}

impl<'s> Streamed<'s> {
    /// `check` says of each tensor whether it may be written; floats are written as `dtype`, if that
    /// is given.
    ///
    /// # Errors
    /// If the session has no such state.
    pub fn new(
        session: &'s mut Session,
        lists: &[Written],
        check: &'s dyn Fn(&HostTensor) -> Result<()>,
        dtype: Option<DType>,
    ) -> Result<Self> {
        let waiting = groups(session, lists, dtype)?;
        Ok(Streamed {
            reader: RefCell::new(Reader {
                session,
                waiting,
                read: VecDeque::new(),
                check,
                dtype,
                failure: None,
            }),
        })
    }

    /// One of the lists, to be written.
    ///
    /// # Errors
    /// If the session has no such state.
    pub fn tensors<'n>(&'n self, names: &'n [String]) -> Result<Vec<TensorRef<'n>>> {
        let reader = self.reader.borrow();
        unread(reader.session, names, self, reader.dtype)
    }

    /// Takes part in reading what was not written, for the sake of the other processes.
    ///
    /// # Errors
    /// What kept a tensor from being written.
    pub fn finish(self) -> Result<()> {
        let reader = self.reader.into_inner();
        for names in reader.waiting {
            take_part_in_download(reader.session, &names)?;
        }
        reader.failure.map_or(Ok(()), Err)
    }
}

impl Reader<'_> {
    fn next(&mut self, name: &str) -> Result<Vec<u8>> {
        while self.read.is_empty()
            && let Some(names) = self.waiting.pop_front()
        {
            self.read.extend(download(self.session, &names)?);
        }
        match self.read.pop_front() {
            Some(tensor) if tensor.name == name => {
                (self.check)(&tensor)?;
                let converted = self
                    .dtype
                    .filter(|dtype| *dtype != tensor.shape.dtype)
                    .and_then(|dtype| convert_floats(&tensor.bytes, tensor.shape.dtype, dtype));
                Ok(converted.unwrap_or(tensor.bytes))
            }
            _ => Err(Error::NoState {
                name: name.to_string(),
            }),
        }
    }
}

impl Fetch for Streamed<'_> {
    fn fetch(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut reader = self.reader.borrow_mut();
        reader.next(name).map_err(|error| {
            let words = error.to_string();
            reader.failure = Some(error);
            io::Error::other(words)
        })
    }
}

/// What a process does while another one streams the same lists.
pub fn take_part(session: &mut Session, lists: &[Written], dtype: Option<DType>) -> Result<()> {
    for names in groups(session, lists, dtype)? {
        take_part_in_download(session, &names)?;
    }
    Ok(())
}
