//! What a compiled module holds at its peak: the answer of `xtrain_xla_live_buffers`, in the form
//! in which it crosses the C boundary. The analysis itself needs XLA's protobufs and lives in
//! `native/src/live.rs`.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// A temporary that is alive at the peak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveBuffer {
    pub bytes: u64,
    /// As HLO writes it, without the layout: `f32[8,256,3072]`.
    pub shape: String,
    /// `train/h.3.mlp/gelu`, of the instruction that writes it; empty where the compiler made it
    /// up.
    pub op_name: String,
    /// The HLO opcode.
    pub opcode: String,
}

/// The temporaries of a module where they are most. Arguments and results that are donated into
/// each other are not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peak {
    /// Sum over `buffers`. The compiler's own figure is a little off it: it lets some operations
    /// write over their operands, and its allocations have gaps.
    pub bytes: u64,
    /// The instruction that runs then, as [`LiveBuffer::op_name`].
    pub at: String,
    /// Largest first.
    pub buffers: Vec<LiveBuffer>,
}

impl Peak {
    /// The bytes that cross the C boundary (postcard).
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("plain data, and a Vec always has room")
    }

    /// Decodes [`Peak::to_bytes`].
    ///
    /// # Errors
    /// If they are none.
    pub fn from_bytes(bytes: &[u8]) -> Result<Peak> {
        postcard::from_bytes(bytes).map_err(|e| Error::Decode {
            message: e.to_string(),
        })
    }
}
