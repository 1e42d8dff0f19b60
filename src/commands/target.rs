//! `--target`: a run's graphs compiled for a GPU that is not attached. The report holds what would
//! otherwise need one: whether everything compiles, what memory it takes, which
//! kernels it becomes, and how long it has to take at least.

use super::{Error, Outcome, doctor, kernels};
use std::time::Duration;
use xtrain_cache::CheckedGraph;
use xtrain_config::RunPlan;
use xtrain_engine::fit::Breakdown;
use xtrain_engine::kernels::{Compiled, report};
use xtrain_engine::target::AotTarget;
use xtrain_engine::{Run, failed};
use xtrain_graphs::{Graph, UnfusedDropout};
use xtrain_report::table::Table;
use xtrain_report::units::{bytes, flop};
use xtrain_report::{errln, out};
use xtrain_runtime::hlo::launch_stats::Launches;
use xtrain_runtime::hlo::stats::{self, HloStats};
use xtrain_trainer::ahead::Ahead;
use xtrain_trainer::device::DeviceSettings;
use xtrain_trainer::fit::{each, of_graph};
use xtrain_trainer::gpu::{Estimate, Gpu, PEAK_SHARE, Work};
use xtrain_trainer::matmul_peak;

/// `xtrain compile --target`: every graph of the run, with what is known of it.
pub(super) fn compile(plan: RunPlan) -> Result<Outcome, Error> {
    let flags = plan.train.flags.clone();
    kernels::check(&flags)?;
    let mut run = Run::for_recording(plan)?;
    let mut target = AotTarget::of(&run)?.expect("called for plans with a target");
    run.resolve_auto_batch(Some(&mut target))?;
    let steps = run.record()?;
    let execution = run.execution();
    let step_of_run = execution.recorded_step(&*run.loaded.model, &run.task.objective);
    // What only measures or checks a card is of no interest before there is one; it may have to be
    // lowered here for it, though.
    let (measuring, steps): (Vec<_>, Vec<_>) = steps
        .into_iter()
        .partition(|(name, _)| name == matmul_peak::GRAPH_NAME);
    for graph in measuring.iter().flat_map(|step| &step.1) {
        target
            .graphs
            .lower(graph, target.graphs.target())
            .map_err(failed("lowering the graphs"))?;
    }
    // The doctor asks the card for nothing.
    let check = doctor::sum_of_squares().map_err(failed("recording the doctor's check"))?;
    let unasked = DeviceSettings::default().cuda_target(target.gpu.capability());
    target
        .graphs
        .lower(&check, unasked)
        .map_err(failed("lowering the doctor's check"))?;
    let shapes = run.shapes();
    let ahead = Ahead {
        session: &mut run.session,
        step: &step_of_run,
        shapes: &shapes,
        metrics: Some(&*run.task.metrics()),
    };
    let usable = target.gpu.usable_memory(run.plan.train.mesh.devices());
    let mut reports = Vec::new();
    for (step, graph) in each(&steps) {
        let checked = target
            .graphs
            .check(graph)
            .map_err(failed("compiling the graphs"))?;
        let facts = stats::of(&checked.module).map_err(failed("reading the compiled module"))?;
        let found = of_graph(&ahead, step, graph, checked.memory);
        let placements = ahead.session.placements();
        let split = Breakdown::of(&step_of_run, placements, &found, &checked.module)?;
        let mut table = heading(&checked, target.gpu);
        memory_rows(&mut table, graph, &split, found.peak, usable, target.gpu);
        kernel_rows(&mut table, &facts);
        if let Some(unfused) = UnfusedDropout::of(graph, target.graphs.target()) {
            let scores = bytes(unfused.score_bytes);
            let row = format!("{}, with {scores} of scores in float32", unfused.attentions);
            table.pair("  written out for dropout", row);
        }
        launch_row(&mut table, checked.launches);
        let tf32 = run.plan.device.settings.tf32;
        let work = Work {
            low_flops: checked.work.low,
            f32_flops: checked.work.wide,
            tf32,
            bytes: facts.bytes,
        };
        work_rows(&mut table, work, target.gpu.estimate(work), target.gpu);
        if !*flags.json {
            out!("{}", table.render());
        }
        if *flags.kernels {
            reports.push(report(&Compiled {
                title: title(&checked, target.gpu),
                module: &checked.module,
                graph: Some(graph),
                memory: Some(checked.memory),
                launches: checked.launches,
                gpu: Some(target.gpu),
            })?);
        }
    }
    if *flags.kernels {
        kernels::print(&reports, &flags)?;
    }
    describe(&target);
    Ok(Outcome::Done)
}

/// What the card's compiler did, on standard error, with what its results are not.
pub(super) fn describe(target: &AotTarget) {
    let (compiled, took) = target.graphs.compiled();
    let (name, seconds) = (target.gpu.name(), took.as_secs_f64());
    errln!("graphs compiled for {name} {compiled}, seconds compiling {seconds:.1}");
    errln!(
        "this was a compile check: kernels were chosen without measuring on a card, and no run loads them. A run on the card compiles \
         and tunes its own."
    );
}

fn heading(checked: &CheckedGraph, gpu: Gpu) -> Table {
    let how = if checked.loaded {
        "was stored already"
    } else {
        "compiled"
    };
    let seconds = checked.ready_time.as_secs_f64();
    let mut table = Table::pairs();
    table.heading(format!("{}  {how} in {seconds:.1} s", title(checked, gpu)));
    table
}

fn title(checked: &CheckedGraph, gpu: Gpu) -> String {
    format!("{} for {} {}", checked.name, gpu.name(), &checked.id[..12])
}

fn memory_rows(
    table: &mut Table,
    graph: &Graph,
    split: &Breakdown,
    peak: u64,
    usable: u64,
    gpu: Gpu,
) {
    let state = graph.aliases().count();
    let verdict = if peak > usable { ": DOES NOT FIT" } else { "" };
    table.pair(
        "memory at the peak",
        format!("{} of {}{verdict}", bytes(peak), bytes(gpu.memory())),
    );
    for (name, n) in split.rows() {
        table.pair(format!("  {name}"), bytes(n));
    }
    table.pair(
        "donated state",
        format!("{state} of {} inputs", graph.inputs.len()),
    );
}

fn kernel_rows(table: &mut Table, facts: &HloStats) {
    let products = format!(
        "{} cuBLAS calls, {} Triton fusions, {} others",
        facts.gemm_calls, facts.triton_gemms, facts.plain_products
    );
    table.pair(
        "attention",
        format!("{} cuDNN calls", facts.attention_calls),
    );
    table.pair("matrix products", products);
    if facts.tf32_products + facts.exact_products > 0 {
        table.pair(
            "  of them f32",
            format!(
                "{} in TF32, {} exact",
                facts.tf32_products, facts.exact_products
            ),
        );
    }
    if !facts.epilogues.is_empty() {
        let all: Vec<String> = facts
            .epilogues
            .iter()
            .map(|(name, n)| format!("{n} {name}"))
            .collect();
        table.pair("  fused behind them", all.join(", "));
    }
    table.pair(
        "other fusions",
        format!(
            "{}, {} by Triton",
            facts.fusions + facts.triton_fusions,
            facts.triton_fusions
        ),
    );
    table.pair(
        "copies, transposes",
        format!("{}, {}", facts.copies, facts.transposes),
    );
    for (target, n) in &facts.other_calls {
        table.pair(format!("calls of {target}"), n);
    }
}

fn launch_row(table: &mut Table, launches: Option<Launches>) {
    if let Some(Launches {
        command_buffers,
        inside,
        outside,
    }) = launches
    {
        let buffers = format!("{command_buffers} with {inside} launches, {outside} outside");
        table.pair("command buffers", buffers);
    }
}

fn work_rows(table: &mut Table, work: Work, estimate: Estimate, gpu: Gpu) {
    let milliseconds = |d: Duration| format!("{:.1} ms", d.as_secs_f64() * 1e3);
    let wide_form = if work.tf32 {
        "f32, multiplied as TF32"
    } else {
        "f32"
    };
    let flops = match (work.low_flops, work.f32_flops) {
        (low, 0.0) => format!("{} in 16 bits", flop(low)),
        (0.0, wide) => format!("{} in {wide_form}", flop(wide)),
        (low, wide) => format!("{} in 16 bits, {} in {wide_form}", flop(low), flop(wide)),
    };
    let share = format!("{:.0}% of the card's peak", PEAK_SHARE * 100.0);
    table.pair(
        "products",
        format!("{flops}: {} at {share}", milliseconds(estimate.products)),
    );
    let bandwidth = format!("{}/s", bytes(gpu.bandwidth() as u64));
    table.pair(
        "memory traffic",
        format!(
            "{}: {} at {bandwidth}",
            bytes(work.bytes as u64),
            milliseconds(estimate.memory)
        ),
    );
    let bound = if estimate.is_product_bound() {
        "products"
    } else {
        "memory traffic"
    };
    table.pair(
        "estimated time",
        format!(
            "{}, the longer of the two ({bound})",
            milliseconds(estimate.time())
        ),
    );
}
