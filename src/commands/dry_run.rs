//! `--dry_run`: the resolved plan of a training run, with its graphs compiled and their memory
//! known, and nothing else done.

use super::{Error, Outcome};
use serde_json::{Value, json};
use xtrain_config::{ModelSource, RunPlan};
use xtrain_data::Set;
use xtrain_engine::Run;
use xtrain_engine::model::{parameter_count, trained_count};
use xtrain_engine::precompile::PlannedGraph;
use xtrain_engine::target::AotTarget;
use xtrain_engine::task::TaskData;
use xtrain_graphs::optim::Schedule;
use xtrain_models::Model;
use xtrain_parallel::schedule::bubble;
use xtrain_parallel::{Axis, Placements, Stages};
use xtrain_report::scaling::Exchange;
use xtrain_report::table::Table;
use xtrain_report::units::{bytes, exact, flop};
use xtrain_report::{out, outln};
use xtrain_trainer::feed::BatchShape;
use xtrain_trainer::fit::Footprint;
use xtrain_trainer::run_loop::RunLength;
use xtrain_trainer::settings::{Checkpointing, WeightStorage};
use xtrain_trainer::step::TrainStep;
use xtrain_trainer::trained::Trained;

/// Prints a run's plan: of a run here, or on a card that is not attached.
pub(super) fn run(plan: RunPlan) -> Result<Outcome, Error> {
    let mut run = match plan.target {
        Some(_) => Run::for_planning(plan)?,
        None => Run::prepare(plan)?,
    };
    let mut target = AotTarget::of(&run)?;
    run.resolve_auto_batch(target.as_mut())?;
    if *run.plan.train.flags.json {
        print_json(&mut run, target.as_mut())?;
    } else {
        print(&mut run, target.as_mut())?;
    }
    Ok(Outcome::Done)
}

/// Prints the plan on standard output.
fn print(run: &mut Run, mut target: Option<&mut AotTarget>) -> Result<(), Error> {
    let known = run.length()?;
    let exchanged = run.exchanged()?;
    let mut table = Table::pairs();
    describe_model(&mut table, run);
    if let Some((length, schedule)) = known {
        describe_training(&mut table, run, &length, &schedule, exchanged);
    }
    if let Some(data) = &run.validation {
        table.heading("evaluation");
        describe_data(&mut table, data, &run.task);
    }
    out!("{}", table.render());
    print_graphs(run, target.as_deref_mut())?;
    print_memory(run, target)?;
    outln!(
        "\ndry run: nothing was trained or written to {}",
        run.plan.train.output_dir.display()
    );
    Ok(())
}

/// The model: its size, what of it is trained and how it is held.
fn describe_model(table: &mut Table, run: &Run) {
    let model = &*run.loaded.model;
    table.heading("model");
    table.pair("configuration", configuration(&run.plan, model));
    table.pair("parameters", exact(parameter_count(model)));
    if run.loaded.trained != Trained::All {
        let count = exact(trained_count(model));
        table.pair("trained", format!("{count} ({})", run.loaded.trained));
    }
    if let Some(quantization) = model.config().quantization() {
        let parameters = model.parameters().into_iter();
        let held = parameters.filter(|parameter| parameter.quantized.is_some());
        let held: u64 = held.map(|parameter| parameter.elements() as u64).sum();
        table.pair("quantized", format!("{}: {quantization}", exact(held)));
    }
    if let Some(adapter) = model.adapter() {
        let count = exact(trained_count(model));
        table.pair("trained", format!("{count}: {adapter}"));
    }
    let (rows, ids) = (model.vocab_size(), run.tokenizer.id_bound());
    table.pair("vocabulary", format!("{rows} (tokenizer: {ids})"));
    let (length, positions) = (run.task.length(), model.max_positions());
    table.pair(
        "longest example",
        format!("{length} of {positions} positions"),
    );
    if let Some(labels) = run.task.labels() {
        table.pair("labels", labels.names().join(", "));
    }
}

/// The training: its data, steps, work, and what its devices hold and exchange.
fn describe_training(
    table: &mut Table,
    run: &Run,
    length: &RunLength,
    schedule: &Schedule,
    exchanged: Vec<Exchange>,
) {
    let (plan, settings) = (&run.plan, &run.plan.train);
    let model = &*run.loaded.model;
    let (mesh, shards) = (settings.mesh, settings.mesh.batch_shards());
    let examples = settings.examples_per_step();
    table.heading("training");
    match &run.train {
        Some(data) => describe_data(table, data, &run.task),
        None => {
            let source = plan.task.source();
            let files = source.train_files.len();
            let buffer = exact(source.streaming.unwrap_or_default() as u64);
            let text = format!("streamed from {files} files, {buffer} rows in the buffer");
            table.pair("text", text);
        }
    }
    let groups = match (mesh.tensor > 1 || mesh.stage > 1, shards) {
        (true, 1) => " group of devices",
        (true, _) => " groups of devices",
        (false, 1) => " device",
        (false, _) => " devices",
    };
    table.pair(
        "examples per step",
        format!(
            "{examples} = {} per device x {} accumulated x {shards}{groups}",
            settings.per_device_train_batch_size, *settings.flags.gradient_accumulation_steps,
        ),
    );
    let shapes = run.shapes().train;
    let longest = shapes.last().map_or(0, |shape| shape.tokens);
    let most = if shapes.len() > 1 { "up to " } else { "" };
    let tokens = exact((examples * longest) as u64);
    table.pair("tokens per step", format!("{most}{tokens}"));
    if run.train.is_some() {
        table.pair("steps per epoch", exact(length.updates_per_epoch));
    }
    let tf32 = if plan.device.settings.tf32 {
        ", those of f32 in TF32"
    } else {
        ""
    };
    table.pair("matrix products", format!("{}{tf32}", settings.precision));
    let weights = match settings.optimizer.storage {
        WeightStorage::F32 => None,
        WeightStorage::Bf16WithMasters => Some("bfloat16, with float32 copies"),
        WeightStorage::Bf16 => Some("bfloat16, as is the optimizer's state"),
    };
    if let Some(weights) = weights {
        table.pair("weights", weights);
    }
    if settings.checkpointing != Checkpointing::Off {
        let kept = format!("activations ({})", settings.checkpointing);
        table.pair("computed twice", kept);
    }
    if *settings.flags.sequence_parallel {
        let part = format!("norms, dropout and residuals of 1/{} of them", mesh.tensor);
        table.pair("tokens", format!("{part} on each device"));
    }
    let (steps, warmup) = (exact(length.max_steps), schedule.warmup);
    table.pair("optimizer steps", format!("{steps} ({warmup} of warm-up)"));
    let largest = shapes.iter().map(|shape| work(model, shape));
    let microbatches = *settings.flags.gradient_accumulation_steps * shards;
    let work = flop(largest.fold(0.0, f64::max) * microbatches as f64);
    table.pair("work per step", format!("{most}{work}"));
    let placements = run.session.placements();
    if let Some(stages) = placements.stages() {
        let step = run.execution().recorded_step(model, &run.task.objective);
        describe_stages(table, plan, stages, &step, placements);
    }
    for axis in Axis::ALL {
        if let Some(groups) = mesh.groups(&[axis]) {
            table.pair(format!("{axis} groups"), format!("{groups:?}"));
        }
    }
    for Exchange {
        kind,
        axis,
        bytes: size,
    } in exchanged
    {
        let exchanged = format!("{most}{} in {kind} over {axis}", bytes(size));
        table.pair("exchanged per step", exchanged);
    }
}

/// Compiles the graphs, and prints a table of them with their memory.
fn print_graphs(run: &mut Run, target: Option<&mut AotTarget>) -> Result<(), Error> {
    let mut table = Table::new("llrrrr");
    table.row([
        "graph",
        "fingerprint",
        "ready in",
        "arguments",
        "temporaries",
        "peak per device",
    ]);
    let graphs = run.planned(target)?;
    for graph in &graphs {
        let memory = graph.memory;
        let cached = if graph.loaded { " (cached)" } else { "" };
        table.row([
            graph.name.clone(),
            graph.fingerprint.to_string()[..12].to_string(),
            format!("{:.1} s{cached}", graph.ready_time.as_secs_f64()),
            bytes(memory.argument_bytes as u64),
            bytes(memory.temp_bytes as u64),
            bytes(memory.peak() as u64),
        ]);
    }
    out!("\n{}", table.render());
    print_bounds(&graphs);
    Ok(())
}

/// Prints what a device holds: by stage in a pipeline, and against a budget where one is given.
fn print_memory(run: &mut Run, target: Option<&mut AotTarget>) -> Result<(), Error> {
    let is_pipeline = run.plan.train.mesh.stage > 1;
    if is_pipeline || run.plan.memory.is_some() {
        let found = run.footprints(target)?;
        if is_pipeline {
            let mut table = Table::pairs();
            table.heading("memory per device, with the microbatches under way");
            for one in &found {
                let (peak, state) = (bytes(one.peak), bytes(one.state));
                let text = format!("{peak}, {state} of it state (in {})", one.graph);
                table.pair(format!("stage {}", one.stage), text);
            }
            out!("\n{}", table.render());
        }
        if let Some(memory) = run.plan.memory {
            let most = Footprint::largest(found);
            let verdict = if most.peak <= memory {
                "fits"
            } else {
                "does not fit"
            };
            let (memory, peak) = (bytes(memory), bytes(most.peak));
            outln!(
                "\n{verdict} into {memory} a device: {peak} at the peak (in `{}`)",
                most.graph
            );
        }
    }
    Ok(())
}

/// Where the model's configuration comes from, with what `--config_overrides` changes in it.
fn configuration(plan: &RunPlan, model: &dyn Model) -> String {
    let source = model.config().source();
    let changes: Vec<String> = match &plan.model {
        ModelSource::Scratch { overrides, .. } => {
            let shown = |value: &Value| value.as_str().map_or(value.to_string(), str::to_string);
            let pairs = overrides.iter();
            pairs
                .map(|(name, value)| format!("{name}={}", shown(value)))
                .collect()
        }
        ModelSource::Pretrained { .. } => Vec::new(),
    };
    if changes.is_empty() {
        source.to_string()
    } else {
        format!("{source} with {}", changes.join(","))
    }
}

/// The stages of a pipeline: what each has and needs.
fn describe_stages(
    table: &mut Table,
    plan: &RunPlan,
    stages: &Stages,
    train_step: &TrainStep,
    placements: &Placements,
) {
    let settings = &plan.train;
    let microbatches = *settings.flags.gradient_accumulation_steps;
    for stage in 0..stages.count() {
        let layers = stages.layers(stage);
        let state = bytes(train_step.state_bytes(microbatches > 1, placements, stage));
        let text = format!(
            "layers {} to {}, {:.0} % of the work, {state} of weights and moments per device",
            layers.start,
            layers.end - 1,
            100.0 * stages.work(stage)
        );
        table.pair(format!("stage {stage}"), text);
    }
    let schedule = *settings.flags.pipeline_schedule;
    let bubble = bubble(stages.count(), microbatches, schedule);
    let advice = if bubble > 0.25 {
        "; more --gradient_accumulation_steps make it less"
    } else {
        ""
    };
    let waiting = format!("stages wait {:.0} % of the time{advice}", 100.0 * bubble);
    let text = format!("{schedule}, {microbatches} microbatches: {waiting}");
    table.pair("schedule", text);
}

/// How long the graphs take at least, where the card's rates are known.
fn print_bounds(graphs: &[PlannedGraph]) {
    let bounds = graphs
        .iter()
        .filter_map(|graph| Some((graph, graph.bounds?)));
    let mut table = Table::pairs();
    let mut has_any = false;
    for (graph, bounds) in bounds {
        if !has_any {
            table.heading("least time of an execution (see docs/cuda.md)");
        }
        has_any = true;
        table.pair(&graph.name, bounds.text());
    }
    if has_any {
        out!("\n{}", table.render());
    }
}

/// The plan as one line of JSON on standard output, for programs.
fn print_json(run: &mut Run, mut target: Option<&mut AotTarget>) -> Result<(), Error> {
    let exchanged = run.exchanged()?;
    let planned = run.planned(target.as_deref_mut())?;
    let graphs = planned.iter().map(|graph| {
        let memory = graph.memory;
        let bounds = graph.bounds.map(|bounds| bounds.json());
        json!({
            "name": graph.name,
            "fingerprint": graph.fingerprint.to_string(),
            "argument_bytes": memory.argument_bytes,
            "temp_bytes": memory.temp_bytes,
            "peak_bytes_per_device": memory.peak(),
            "bounds": bounds,
        })
    });
    let (settings, model) = (&run.plan.train, &*run.loaded.model);
    let groups: serde_json::Map<_, _> = Axis::ALL
        .iter()
        .filter_map(|axis| Some((axis.to_string(), json!(settings.mesh.groups(&[*axis])?))))
        .collect();
    let mut plan = json!({
        "parameters": parameter_count(model),
        "trained_parameters": trained_count(model),
        "devices": settings.mesh.devices(),
        "examples_per_step": settings.examples_per_step(),
        "groups": groups,
        "exchanged_per_step": exchanged.iter().map(Exchange::json).collect::<Vec<_>>(),
        "graphs": graphs.collect::<Vec<_>>(),
    });
    if let Some(memory) = run.plan.memory {
        let peak = Footprint::largest(run.footprints(target)?).peak;
        plan["memory_bytes"] = json!(memory);
        plan["peak_bytes_of_run"] = json!(peak);
        plan["fits"] = json!(peak <= memory);
    }
    outln!("{plan}");
    Ok(())
}

/// Floating-point operations of a batch.
fn work(model: &dyn Model, shape: &BatchShape) -> f64 {
    let skipped = shape.rows * shape.tokens - shape.head_rows();
    model.step_flops(shape.rows, shape.tokens) - model.head_flops(skipped)
}

fn describe_data(table: &mut Table, set: &Set, task: &TaskData) {
    let lengths: Vec<String> = set.lengths().iter().map(usize::to_string).collect();
    let totals = set.rows.totals();
    let what = if task.labels().is_some() {
        "rows"
    } else {
        "lines"
    };
    let (lines, tokens) = (exact(totals.lines), exact(totals.tokens));
    table.pair("text", format!("{lines} {what}, {tokens} tokens"));
    let (examples, lengths) = (exact(set.len() as u64), lengths.join(" or "));
    table.pair("examples", format!("{examples} of {lengths} tokens"));
}
