//! Lazy tensor traces, autodiff, optimizers and passes.

mod dtype;
mod shape;

pub use dtype::DType;
pub use shape::Shape;
