//! `xtrain compile`: compiles and stores every graph that a training run with the same flags will
//! use. With `--check` and `--export` nothing is compiled, and neither the device nor its plugin
//! has to be there (`compile/modules.rs`). For a GPU that is not attached (`--target`): `target`.

mod modules;

use super::{Error, Outcome, target};
use xtrain_cache::CompiledGraph;
use xtrain_config::CompilePlan;
use xtrain_engine::Run;
use xtrain_report::units::bytes;
use xtrain_report::{errln, outln};

pub fn run(
    CompilePlan {
        train: plan,
        jobs,
        check,
        export,
    }: CompilePlan,
) -> Result<Outcome, Error> {
    if check || export.is_some() {
        return modules::run(plan, check, export.as_deref());
    }
    if plan.target.is_some() {
        return target::compile(plan);
    }
    if plan.cache.dir.is_none() {
        return Err(Error::failed(
            "there is nowhere to keep the graphs: --compile_cache is false",
        ));
    }
    let mut run = Run::without_data(plan)?;
    run.resolve_auto_batch(None)?;
    run.compile(jobs, &mut print)?;
    errln!("{}", run.session.cache().stats());
    Ok(Outcome::Done)
}

fn print(graph: &CompiledGraph) {
    let how = if graph.loaded {
        "was stored already, loaded"
    } else {
        "compiled"
    };
    let peak = graph.memory().map_or(String::new(), |m| {
        format!(", {} at the peak", bytes(m.peak() as u64))
    });
    outln!(
        "{:12} {}  {how} in {:.1} s{peak}",
        graph.name,
        &graph.id[..12],
        graph.ready_time.as_secs_f64()
    );
}
