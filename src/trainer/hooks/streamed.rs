//! State that is read back while it is written: a few tensors are in host memory at a time, not all
//! of a model and its optimizer. What is written in the background is read before, from a copy.

use crate::error::{Error, Result};
use crate::session::Session;
use crate::session::parameters::{
    HostTensor, download, download_groups, is_finite, read_together, take_part_in_download,
};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use xtrain_checkpoint::weights::convert_floats;
use xtrain_checkpoint::{Fetch, Pace, TensorRef, pace, written_order};
use xtrain_graphs::{DType, Shape};

/// Names of tensors that are written together, into files of at most this many bytes.
pub type Written<'n> = (&'n [String], u64);

/// Looks at every value before it is written. A loss can be finite and the update that it leads to not:
/// the loop, which looks at losses, would see it a step later.
#[derive(Clone)]
pub struct Check {
    /// That of whoever writes.
    pub pace: Pace,
    /// The step whose state it is.
    pub step: u64,
    /// The sentence on the last good checkpoint.
    pub kept: String,
}

impl Check {
    pub fn is_finite(&self, tensor: &HostTensor) -> bool {
        let mut pieces = tensor.bytes.chunks(pace::PIECE);
        pieces.all(|piece| self.pace.work(|| is_finite(&tensor.shape, piece)))
    }

    /// Refuses what is not worth saving.
    pub fn check(&self, tensor: &HostTensor) -> Result<()> {
        if self.is_finite(tensor) {
            return Ok(());
        }
        Err(Error::NotWorthSaving {
            step: self.step,
            tensor: tensor.name.clone(),
            kept: self.kept.clone(),
        })
    }
}

/// What tensors are read from while they are written.
pub trait Source {
    fn read(&mut self, names: &[String]) -> Result<Vec<HostTensor>>;

    /// For the sake of the other processes.
    fn take_part(&mut self, names: &[String]) -> Result<()>;
}

impl Source for &mut Session {
    fn read(&mut self, names: &[String]) -> Result<Vec<HostTensor>> {
        download(self, names)
    }

    fn take_part(&mut self, names: &[String]) -> Result<()> {
        take_part_in_download(self, names)
    }
}

/// Of a copy, which has been read.
pub struct Copied;

impl Source for Copied {
    fn read(&mut self, _names: &[String]) -> Result<Vec<HostTensor>> {
        Ok(Vec::new())
    }

    fn take_part(&mut self, _names: &[String]) -> Result<()> {
        Ok(())
    }
}

/// Tensors of a session on their way into files, in the order in which these hold them. Where parts
/// are in other processes, all processes have to stream the same lists: those that do not write by
/// [`take_part`].
pub struct Streamed<S> {
    /// As they are written.
    shapes: HashMap<String, Shape>,
    reader: RefCell<Reader<S>>,
}

struct Reader<S> {
    source: S,
    /// What is read at a time, and not yet.
    waiting: VecDeque<Vec<String>>,
    read: VecDeque<HostTensor>,
    check: Check,
    /// What floats are written as; `None`: as they are.
    dtype: Option<DType>,
    failure: Option<Error>,
}

/// References to tensors without their bytes.
fn unread<'n>(
    shapes: &HashMap<String, Shape>,
    names: &'n [String],
    from: &'n dyn Fetch,
) -> Result<Vec<TensorRef<'n>>> {
    let reference = |name: &'n String| {
        let shape = shapes.get(name);
        let shape = shape.ok_or_else(|| Error::NoState { name: name.clone() })?;
        Ok(TensorRef::fetched(name.as_str(), shape.clone(), from))
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

/// Names of tensors that are read together, in the order of writing, and the shapes of all.
type Groups = (Vec<Vec<String>>, HashMap<String, Shape>);

/// What is read at a time, in the order of writing, and the shapes that the lists' tensors are written in:
/// those they have as a whole, floats in `dtype` if that is given.
fn groups(session: &Session, lists: &[Written], dtype: Option<DType>) -> Result<Groups> {
    let (mut groups, mut shapes) = (Vec::new(), HashMap::new());
    for (names, max_bytes) in lists {
        for name in *names {
            let held = session.shape(name);
            let held = held.ok_or_else(|| Error::NoState { name: name.clone() })?;
            let whole = session.placements().whole(name, held);
            let written = match dtype {
                Some(dtype) if whole.dtype.is_float() => whole.with_dtype(dtype),
                _ => whole,
            };
            shapes.insert(name.clone(), written);
        }
        let order = written_order(&unread(&shapes, names, &Nothing)?, *max_bytes);
        groups.extend(read_together(session, &order));
    }
    Ok((groups, shapes))
}

impl<'s> Streamed<&'s mut Session> {
    /// `check` says of each tensor whether it may be written; floats are written as `dtype`, if that
    /// is given.
    ///
    /// # Errors
    /// If the session has no such state.
    pub fn new(
        session: &'s mut Session,
        lists: &[Written],
        check: Check,
        dtype: Option<DType>,
    ) -> Result<Self> {
        let (waiting, shapes) = groups(session, lists, dtype)?;
        Ok(Streamed {
            shapes,
            reader: RefCell::new(Reader {
                source: session,
                waiting: waiting.into(),
                read: VecDeque::new(),
                check,
                dtype,
                failure: None,
            }),
        })
    }

    /// Reads everything, to be written when the session goes on.
    ///
    /// # Errors
    /// If the step that computes it failed.
    pub fn copy(self) -> Result<Streamed<Copied>> {
        let reader = self.reader.into_inner();
        let read = download_groups(reader.source, &Vec::from(reader.waiting))?;
        Ok(Streamed {
            shapes: self.shapes,
            reader: RefCell::new(Reader {
                source: Copied,
                waiting: VecDeque::new(),
                read: read.into(),
                check: reader.check,
                dtype: reader.dtype,
                failure: None,
            }),
        })
    }
}

impl<S: Source> Streamed<S> {
    /// One of the lists, to be written.
    ///
    /// # Errors
    /// If it has no such tensor.
    pub fn tensors<'n>(&'n self, names: &'n [String]) -> Result<Vec<TensorRef<'n>>> {
        unread(&self.shapes, names, self)
    }

    /// Takes part in reading what was not written, for the sake of the other processes.
    ///
    /// # Errors
    /// What kept a tensor from being written.
    pub fn finish(self) -> Result<()> {
        let mut reader = self.reader.into_inner();
        for names in reader.waiting {
            reader.source.take_part(&names)?;
        }
        reader.failure.map_or(Ok(()), Err)
    }
}

impl<S: Source> Reader<S> {
    fn next(&mut self, name: &str) -> Result<Vec<u8>> {
        while self.read.is_empty()
            && let Some(names) = self.waiting.pop_front()
        {
            self.read.extend(self.source.read(&names)?);
        }
        match self.read.pop_front() {
            Some(tensor) if tensor.name == name => {
                self.check.check(&tensor)?;
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

impl<S: Source> Fetch for Streamed<S> {
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
    for names in groups(session, lists, dtype)?.0 {
        take_part_in_download(session, &names)?;
    }
    Ok(())
}
