//! One check of the doctor's report, and the graph that it compiles and runs.

use crate::cache::TargetCache;
use crate::commands::Error;
use crate::engine::failed;
use crate::trainer::session::Session;
use std::time::Instant;
use xtrain_graphs::{DType, Graph, InputRole, Shape, Trace};

/// The name of the graph that is compiled and run.
const GRAPH_NAME: &str = "doctor";

/// One line of the report.
pub(super) struct Check {
    pub name: &'static str,
    pub found: Result<String, String>,
    /// Tells something and decides nothing.
    pub is_note: bool,
}

/// The graph of [`compile_and_run`].
pub fn sum_of_squares() -> crate::trainer::Result<Graph> {
    let trace = Trace::new();
    let x = trace.input("x", operand_shape(), InputRole::Feed);
    trace.output("sum", &x.mul(&x)?.sum_all()?);
    Ok(trace.finish(GRAPH_NAME)?)
}

/// Compiles it for a device that is not attached.
pub fn compile_only(cache: &mut TargetCache) -> crate::trainer::Result<String> {
    let checked = cache.check(&sum_of_squares()?)?;
    Ok(format!("in {:.2} s", checked.ready_time.as_secs_f64()))
}

fn operand_shape() -> Shape {
    Shape::new(DType::F32, [4])
}

/// A small graph with a known answer.
pub fn compile_and_run(session: &mut Session) -> Result<String, Error> {
    let sum = |session: &mut Session| -> crate::trainer::Result<Vec<f32>> {
        let mut recording = session.begin();
        let values = [1.0f32, 2.0, 3.0, 4.0];
        let x = recording.feed_host("x", bytemuck::cast_slice(&values), &operand_shape())?;
        recording.fetch("sum", &x.mul(&x)?.sum_all()?);
        Ok(recording
            .mark_step(GRAPH_NAME)?
            .fetched("sum")
            .download_to()?)
    };
    let start = Instant::now();
    let found = sum(session).map_err(failed("compiling and running a small graph"))?;
    match found[..] == [30.0] {
        true => Ok(format!(
            "1 + 4 + 9 + 16 = 30 in {:.2} s",
            start.elapsed().as_secs_f64()
        )),
        false => Err(Error::failed(format!(
            "1 + 4 + 9 + 16 came out as {found:?}"
        ))),
    }
}
