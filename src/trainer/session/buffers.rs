//! Values on devices.

use std::sync::Arc;
use xtrain_runtime::Buffer;

/// A value on the devices: one buffer for each device of this process, or each that belongs to one
/// stage, in their order, all of one shape.
pub type Buffers = Arc<[Buffer]>;
