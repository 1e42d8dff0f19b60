//! A stream's position: numbers for the checkpoint's `training_state.json`, and the rows that wait
//! in the buffer as a safetensors file beside it.

use std::borrow::Cow;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use xtrain_graphs::{DType, Shape};

use super::super::error::{Error, Result};
use super::super::rows::Row;
use super::SavedPosition;
use super::feed::Cursor;
use crate::Label;
use xtrain_checkpoint::{TensorRef, Weights, write_safetensors};

/// Beside the checkpoint's other files.
pub const BUFFER_FILE: &str = "stream_buffer.safetensors";

/// All that the rows to come depend on, besides the files and the settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamPosition {
    /// Where the group of texts begins that the next row comes from.
    pub(super) cursor: Cursor,
    /// Rows of that group that were given.
    pub(super) taken: usize,
    /// Rows of this pass that were given.
    pub(super) in_pass: u64,
    /// Random words drawn in this pass.
    pub(super) draws: u64,
    /// The pass's files are read, and the buffer is being emptied.
    pub(super) draining: bool,
    #[serde(skip)]
    pub(super) buffer: Vec<Row>,
}

impl StreamPosition {
    /// Bad rows left out so far.
    pub fn skipped(&self) -> u64 {
        self.cursor.skipped
    }

    /// For a checkpoint.
    pub fn save(&self) -> SavedPosition {
        let rows = &self.buffer;
        let ids: Vec<u32> = rows
            .iter()
            .flat_map(|row| row.ids.iter().copied())
            .collect();
        let flags: Vec<u8> = rows
            .iter()
            .flat_map(|row| row.flags.iter().copied())
            .collect();
        let lengths: Vec<u32> = rows.iter().map(|row| row.ids.len() as u32).collect();
        let classes: Vec<i32> = rows
            .iter()
            .map(|row| Label::to_bits(row.label) as i32)
            .collect();
        let token_labels: Vec<u32> = rows
            .iter()
            .flat_map(|row| row.token_labels.iter().copied())
            .collect();
        let mut buffer = Vec::new();
        let mut tensors = vec![
            tensor("ids", DType::U32, ids.len(), bytemuck::cast_slice(&ids)),
            tensor("flags", DType::U8, flags.len(), &flags),
            tensor(
                "lengths",
                DType::U32,
                lengths.len(),
                bytemuck::cast_slice(&lengths),
            ),
            tensor(
                "classes",
                DType::S32,
                classes.len(),
                bytemuck::cast_slice(&classes),
            ),
        ];
        if !token_labels.is_empty() {
            let bytes = bytemuck::cast_slice(&token_labels);
            tensors.push(tensor(
                "token_labels",
                DType::U32,
                token_labels.len(),
                bytes,
            ));
        }
        write_safetensors(&mut buffer, &tensors).expect("a vector takes all that is written");
        SavedPosition {
            state: serde_json::to_value(self).expect("plain numbers and texts"),
            buffer,
        }
    }

    /// Reads what [`StreamPosition::save`] gave, out of a checkpoint.
    pub fn load(checkpoint: &Path, state: Option<&Value>) -> Result<StreamPosition> {
        let path = checkpoint.join(BUFFER_FILE);
        let bad = |reason: &str| Error::BadPosition {
            path: checkpoint.to_path_buf(),
            reason: reason.to_string(),
        };
        let state = state.ok_or_else(|| bad("it was saved by a run that did not stream"))?;
        let mut position: StreamPosition =
            serde_json::from_value(state.clone()).map_err(|error| bad(&error.to_string()))?;
        let saved = Weights::open(&path)?;
        let words = |name: &str| -> Result<Vec<u32>> {
            let tensor = saved
                .get(name)
                .ok_or_else(|| bad(&format!("{BUFFER_FILE} has no {name}")))?;
            Ok(tensor
                .bytes
                .chunks_exact(4)
                .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
                .collect())
        };
        let (ids, lengths, classes) = (words("ids")?, words("lengths")?, words("classes")?);
        let flags = saved
            .get("flags")
            .map_or(Cow::default(), |tensor| Cow::Borrowed(tensor.bytes));
        let token_labels = if saved.get("token_labels").is_some() {
            words("token_labels")?
        } else {
            Vec::new()
        };
        let tokens: usize = lengths.iter().map(|length| *length as usize).sum();
        if tokens != ids.len()
            || classes.len() != lengths.len()
            || !(flags.is_empty() || flags.len() == tokens)
            || !(token_labels.is_empty() || token_labels.len() == tokens)
        {
            return Err(bad(&format!(
                "the lengths in {BUFFER_FILE} do not fit its rows"
            )));
        }
        let mut at = 0;
        for (length, class) in lengths.into_iter().zip(classes) {
            let range = at..at + length as usize;
            at = range.end;
            let flags = if flags.is_empty() {
                [].into()
            } else {
                flags[range.clone()].into()
            };
            position.buffer.push(Row {
                ids: ids[range.clone()].into(),
                flags,
                label: Label::from_bits(class),
                token_labels: token_labels.get(range).unwrap_or_default().into(),
            });
        }
        Ok(position)
    }
}

fn tensor<'a>(name: &'static str, dtype: DType, length: usize, bytes: &'a [u8]) -> TensorRef<'a> {
    TensorRef::new(name, Shape::new(dtype, [length]), bytes)
}
