//! Devices as training opens them: which plugin serves one, its client's and compiler's options,
//! what it reaches at most, and NVIDIA cards that modules are compiled for without having one.

pub mod cuda;
pub mod device;
mod distributed_options;
pub mod gpu;
pub mod matmul_peak;
