//! The matmul peak: the FLOP/s that the device reaches on one large matmul in a precision, measured, not
//! looked up. On a CPU with kernels of our own it is what these were measured at when they were chosen.

use crate::error::Result;
use crate::session::{Recording, Session};
use std::time::{Duration, Instant};
use xtrain_cache::CacheSettings;
use xtrain_graphs::op::CpuKernel;
use xtrain_graphs::{DType, Precision, Shape, Target, Tensor};

/// The graph's name in plans, logs and the cache.
pub const GRAPH_NAME: &str = "ceiling";

/// Rows and columns of the product: large enough that the library's blocking is at its best, small
/// enough for 0.1 s a run.
const SIZE: usize = 2048;
/// Runs; the fastest counts, since everything else on the machine only makes it slower.
const LEAST_RUNS: usize = 2;
const MOST_RUNS: usize = 5;

fn operand_shape() -> Shape {
    Shape::new(DType::F32, [SIZE, SIZE])
}

fn record(recording: &mut Recording, a: &Tensor, b: &Tensor, precision: Precision) -> Result<()> {
    recording.set_precision(precision);
    recording.fetch("product", &a.matmul(b)?);
    Ok(())
}

/// The product's graph, for compiling ahead.
///
/// # Errors
/// None of its own.
pub fn record_abstract(recording: &mut Recording, precision: Precision) -> Result<()> {
    let (a, b) = (
        recording.feed_abstract("a", &operand_shape()),
        recording.feed_abstract("b", &operand_shape()),
    );
    record(recording, &a, &b, precision)
}

/// The target's own kernel for matmuls in a precision, with the threads that it has.
fn own_kernel(target: Target, precision: Precision) -> Option<(CpuKernel, u16)> {
    let Target::Cpu(kernels) = target else {
        return None;
    };
    let kernel = match precision.low() {
        None => kernels.f32,
        Some(DType::BF16) => kernels.bf16,
        Some(_) => None,
    };
    Some((kernel?, kernels.threads))
}

/// Whether a run on this target has to measure its peak.
pub fn is_unknown(target: Target, precision: Precision) -> bool {
    own_kernel(target, precision).is_none()
}

/// The peak of a run in TFLOP/s: as its kernel was measured, else as measured now, in a moment.
///
/// # Errors
/// As [`measure_tflops`].
pub fn tflops(session: &mut Session, precision: Precision, cache: &CacheSettings) -> Result<f64> {
    /// A training run wants to begin.
    const PATIENCE: Duration = Duration::from_millis(200);
    if let Some((kernel, threads)) = own_kernel(session.cache().target(), precision) {
        let speeds = cache.kernel_speeds()?;
        if let Some(speed) = speeds.iter().find(|speed| speed.kernel == kernel) {
            let threads = f64::from(threads.max(1)) * session.client().processes() as f64;
            return Ok(speed.gflops * threads / 1e3);
        }
    }
    measure_tflops(session, precision, PATIENCE)
}

/// Floating-point operations per second of all replicas together, in units of 10^12. Stops
/// measuring when `patience` is over: a bench wants the best figure, a training run wants to begin.
///
/// # Errors
/// If the graph does not compile or run.
pub fn measure_tflops(
    session: &mut Session,
    precision: Precision,
    patience: Duration,
) -> Result<f64> {
    // A compiler at work would lower the figure.
    session.cache_mut().settle();
    let began = Instant::now();
    let shape = operand_shape();
    let operand = session.upload(bytemuck::cast_slice(&vec![1.0f32; SIZE * SIZE]), &shape)?;
    let mut best = f64::INFINITY;
    for run in 0..MOST_RUNS {
        if run >= LEAST_RUNS && began.elapsed() > patience {
            break;
        }
        let mut recording = session.begin();
        let a = recording.feed("a", operand.clone());
        let b = recording.feed("b", operand.clone());
        record(&mut recording, &a, &b, precision)?;
        let start = Instant::now();
        let marked = recording.mark_step(GRAPH_NAME)?;
        marked
            .replicas("product")
            .iter()
            .try_for_each(|product| product.wait_ready())?;
        best = best.min((start.elapsed() - marked.host_time.compile).as_secs_f64());
    }
    Ok(2.0 * (SIZE as f64).powi(3) * session.mesh().devices() as f64 / best / 1e12)
}
