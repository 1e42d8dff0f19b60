//! Every operation's value against a plain formula on small inputs, as compiled for the CPU.
//! `numerics/` has one file per family; the tolerance stands beside each comparison: f32 rounding
//! times the few operations involved, unless said otherwise.

#[path = "numerics/block_codes.rs"]
mod block_codes;
#[path = "numerics/elementwise.rs"]
mod elementwise;
#[path = "numerics/kernels.rs"]
mod kernels;
#[path = "numerics/loops.rs"]
mod loops;
#[path = "numerics/nn.rs"]
mod nn;
#[path = "numerics/optim.rs"]
mod optim;
#[path = "numerics/passes.rs"]
mod passes;
#[path = "numerics/random.rs"]
mod random;
#[path = "numerics/shapes.rs"]
mod shapes;
mod support;
