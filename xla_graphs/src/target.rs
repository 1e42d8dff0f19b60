//! What a device's compiler can lower and how. Passes ask the target; nothing else in the program branches on the device.

use serde::{Deserialize, Serialize};

/// The kind of compiler that a graph is lowered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Target {
    Cpu,
}

impl Target {
    pub fn name(self) -> &'static str {
        match self {
            Target::Cpu => "cpu",
        }
    }
}
