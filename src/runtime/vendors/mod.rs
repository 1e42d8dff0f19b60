//! What single vendors need beyond the PJRT C API.

pub mod conformance;
pub mod cuda_tools;
pub mod discover;
pub mod neuron;
pub mod nvidia_libraries;
pub mod visible;
