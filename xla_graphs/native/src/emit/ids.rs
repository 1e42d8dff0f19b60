//! Ids of a module's computations and instructions.

use crate::proto::xla as pb;

/// An instruction's id has its computation's in the upper half; XLA tells computations and
/// instructions apart by the lower half.
pub(super) fn local(id: i64) -> i64 {
    id & i64::from(u32::MAX)
}

/// The computation's part of an instruction's id.
pub(super) fn only_computation(id: i64) -> i64 {
    id >> 32
}

/// Ids that a module does not use yet.
pub(super) struct Ids(i64);

impl Ids {
    pub fn after(module: &pb::HloModuleProto) -> Self {
        let of = |c: &pb::HloComputationProto| {
            c.instructions
                .iter()
                .map(|i| local(i.id))
                .chain([local(c.id)])
                .max()
        };
        Ids(module.computations.iter().filter_map(of).max().unwrap_or(0))
    }

    /// For an instruction of a computation, or with 0 for a computation.
    pub fn within(&mut self, computation: i64) -> i64 {
        self.0 += 1;
        computation << 32 | self.0
    }
}
