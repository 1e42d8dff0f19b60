//! The machine's matrix-multiply ceiling: what the device reaches on one large f32 product, measured, not looked up.

use super::error::Result;
use super::session::Session;
use std::time::Instant;
use xtrain_graphs::{DType, Shape};

/// Rows and columns of the product: large enough that the library's blocking is at its best, small enough for 0.1 s a run.
const SIZE: usize = 2048;
/// Runs; the fastest counts, since everything else on the machine only makes it slower.
const RUNS: usize = 5;

/// Floating-point operations per second, in units of 10^12.
pub fn measure_tflops(session: &mut Session) -> Result<f64> {
    let shape = Shape::new(DType::F32, [SIZE, SIZE]);
    let operand = session.client().upload(bytemuck::cast_slice(&vec![1.0f32; SIZE * SIZE]), &shape, 0)?;
    let operand = std::sync::Arc::new(operand);
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let mut recording = session.begin();
        let a = recording.feed("a", operand.clone());
        let b = recording.feed("b", operand.clone());
        recording.fetch("product", &a.matmul(&b)?);
        let start = Instant::now();
        let marked = recording.mark_step("ceiling")?;
        marked.fetched["product"].wait_ready()?;
        best = best.min((start.elapsed() - marked.host_time.compile).as_secs_f64());
    }
    Ok(2.0 * (SIZE as f64).powi(3) / best / 1e12)
}
