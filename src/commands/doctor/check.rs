//! One check of the doctor's report, and the graph that it compiles and runs.

use crate::Error;
use std::time::Instant;
use xtrain_cache::AotCache;
use xtrain_engine::failed;
use xtrain_graphs::{DType, Graph, InputRole, Shape, Trace};
use xtrain_runtime::Client;
use xtrain_trainer as trainer;
use xtrain_trainer::session::Session;

/// The name of the graph that is compiled and run.
const GRAPH_NAME: &str = "doctor";

/// One line of the report.
pub(super) struct Check {
    pub name: &'static str,
    pub found: Result<String, String>,
    /// Tells something and decides nothing.
    pub is_note: bool,
}

/// A check failed on which the next ones build; its line is in the report.
pub(super) struct Failed;

/// The lines so far, in the order in which a run would meet what they are about.
#[derive(Default)]
pub(super) struct Report {
    pub checks: Vec<Check>,
}

impl Report {
    /// A line that decides nothing.
    pub fn note(&mut self, name: &'static str, found: impl Into<String>) {
        self.checks.push(Check {
            name,
            found: Ok(found.into()),
            is_note: true,
        });
    }

    /// A line that decides about the outcome, but not about what is looked at next; whether it went
    /// well.
    pub fn line(&mut self, name: &'static str, found: Result<String, Error>) -> bool {
        let found = found.map_err(|error| error.one_line());
        let is_ok = found.is_ok();
        self.checks.push(Check {
            name,
            found,
            is_note: false,
        });
        is_ok
    }

    /// A line on which the next ones build.
    pub fn check(
        &mut self,
        name: &'static str,
        found: Result<String, Error>,
    ) -> Result<(), Failed> {
        if self.line(name, found) {
            Ok(())
        } else {
            Err(Failed)
        }
    }

    /// What the next lines need; a line only where it is not to be had.
    pub fn need<T>(&mut self, name: &'static str, found: Result<T, Error>) -> Result<T, Failed> {
        found.map_err(|error| {
            self.line(name, Err(error));
            Failed
        })
    }

    /// The last ones: the device opens, and computes.
    pub fn device(
        &mut self,
        opened: trainer::Result<Session>,
        describe: impl FnOnce(&Client) -> String,
    ) -> Result<Session, Failed> {
        let opened = opened.map_err(failed("opening the device"));
        let mut session = self.need("device", opened)?;
        self.line("device", Ok(describe(session.client())));
        self.check("compile and run", compile_and_run(&mut session))?;
        Ok(session)
    }
}

/// The graph of [`compile_and_run`].
pub fn sum_of_squares() -> trainer::Result<Graph> {
    let trace = Trace::new();
    let x = trace.input("x", operand_shape(), InputRole::Feed);
    trace.output("sum", &x.mul(&x)?.sum_all()?);
    Ok(trace.finish(GRAPH_NAME)?)
}

/// Compiles it for a device that is not attached.
pub fn compile_only(cache: &mut AotCache) -> trainer::Result<String> {
    let checked = cache.check(&sum_of_squares()?)?;
    Ok(format!("in {:.2} s", checked.ready_time.as_secs_f64()))
}

fn operand_shape() -> Shape {
    Shape::new(DType::F32, [4])
}

/// A small graph with a known answer.
fn compile_and_run(session: &mut Session) -> Result<String, Error> {
    let sum = |session: &mut Session| -> trainer::Result<Vec<f32>> {
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
    if found[..] != [30.0] {
        let problem = format!("1 + 4 + 9 + 16 came out as {found:?}");
        return Err(Error::failed(problem));
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(format!("1 + 4 + 9 + 16 = 30 in {seconds:.2} s"))
}
