//! `--dry_run`: the resolved plan of a training run, with its graphs compiled and their memory
//! known, and nothing else done.

use super::Error;
use crate::config::TrainPlan;
use crate::data::Set;
use crate::engine::task::TaskData;
use crate::engine::{Run, failed};
use crate::parallel::schedule::bubble;
use crate::parallel::{Axis, Mesh, Placements, Stages};
use crate::report::scaling::Exchange;
use crate::report::table::{Align, Table};
use crate::report::units::{bytes, count, exact};
use crate::trainer::feed::{BatchShape, LabelShape};
use crate::trainer::settings::Checkpointing;
use crate::trainer::step::TrainStep;
use serde_json::json;
use xtrain_models::Model;

/// Prints the plan on standard output.
pub(super) fn print(run: &mut Run) -> Result<(), Error> {
    let known = run.length()?;
    let shapes = run.shapes();
    let exchanged = run.exchanged()?;
    let execution = run.execution();
    let (plan, settings) = (&run.plan, &run.plan.train);
    let model = &*run.loaded.model;
    let parameters: usize = model
        .parameters()
        .iter()
        .map(|p| p.dims.iter().product::<usize>())
        .sum();
    let mut table = Table::pairs();
    table.heading("model");
    table.row(["configuration", model.config().source()]);
    table.row(["parameters".to_string(), exact(parameters as u64)]);
    table.row([
        "vocabulary".to_string(),
        format!(
            "{} (tokenizer: {})",
            model.vocab_size(),
            run.tokenizer.id_bound()
        ),
    ]);
    table.row([
        "longest example".to_string(),
        format!(
            "{} of {} positions",
            run.task.length(),
            model.max_positions()
        ),
    ]);
    if let Some(labels) = run.task.labels() {
        table.row(["labels".to_string(), labels.names().join(", ")]);
    }
    if let Some((length, schedule)) = known {
        let examples = settings.examples_per_step();
        table.heading("training");
        match &run.train {
            Some(data) => describe_data(&mut table, data, &run.task),
            None => {
                let source = plan.task.source();
                let files = source.train_files.len();
                let buffer = exact(source.streaming.unwrap_or_default() as u64);
                table.row([
                    "text".to_string(),
                    format!("streamed from {files} files, {buffer} rows in the buffer"),
                ]);
            }
        }
        table.row([
            "examples per step".to_string(),
            format!(
                "{examples} = {} per device x {} accumulated x {}{}",
                settings.per_device_train_batch_size,
                settings.gradient_accumulation_steps,
                settings.mesh.batch_shards(),
                match settings.mesh {
                    Mesh { tensor: 2.., .. } | Mesh { stage: 2.., .. }
                        if settings.mesh.batch_shards() == 1 =>
                        " group of devices",
                    Mesh { tensor: 2.., .. } | Mesh { stage: 2.., .. } => " groups of devices",
                    mesh if mesh.batch_shards() == 1 => " device",
                    _ => " devices",
                }
            ),
        ]);
        let lengths = run.task.form(run.train.as_ref().as_slice()).lengths;
        let longest = lengths.last().copied().unwrap_or_default();
        let most = if lengths.len() > 1 { "up to " } else { "" };
        table.row([
            "tokens per step".to_string(),
            format!("{most}{}", exact((examples * longest) as u64)),
        ]);
        if run.train.is_some() {
            table.row([
                "steps per epoch".to_string(),
                exact(length.updates_per_epoch),
            ]);
        }
        let tf32 = if plan.device.settings.tf32 {
            ", those of f32 in TF32"
        } else {
            ""
        };
        table.row([
            "matrix products".to_string(),
            format!("{}{tf32}", settings.precision),
        ]);
        if settings.checkpointing != Checkpointing::Off {
            table.row([
                "computed twice".to_string(),
                format!("activations ({})", settings.checkpointing),
            ]);
        }
        if settings.sequence_parallel {
            let share = format!(
                "norms, dropout and residuals of 1/{} of them on each device",
                settings.mesh.tensor
            );
            table.row(["tokens".to_string(), share]);
        }
        table.row([
            "optimizer steps".to_string(),
            format!(
                "{} ({} of warm-up)",
                exact(length.max_steps),
                schedule.warmup
            ),
        ]);
        let largest = shapes
            .train
            .iter()
            .map(|shape| work(model, shape))
            .fold(0.0, f64::max);
        let work = count(
            largest * (settings.gradient_accumulation_steps * settings.mesh.batch_shards()) as f64,
        );
        table.row(["work per step".to_string(), format!("{most}{work}FLOP")]);
        if let Some(stages) = run.session.placements().stages() {
            describe_stages(
                &mut table,
                plan,
                stages,
                &execution.recorded_step(model),
                run.session.placements(),
            );
        }
        for axis in Axis::ALL {
            if let Some(groups) = settings.mesh.groups(&[axis]) {
                table.row([format!("{axis} groups"), format!("{groups:?}")]);
            }
        }
        for Exchange {
            kind,
            axis,
            bytes: size,
        } in exchanged
        {
            table.row([
                "exchanged per step".to_string(),
                format!("{most}{} in {kind} over {axis}", bytes(size)),
            ]);
        }
    }
    if let Some(data) = &run.validation {
        table.heading("evaluation");
        describe_data(&mut table, data, &run.task);
    }
    print!("{}", table.render());

    let compiled = run.compile(1, &mut |_| ())?;
    let mut table = Table::new(&[
        Align::Left,
        Align::Left,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Right,
    ]);
    table.row([
        "graph",
        "fingerprint",
        "ready in",
        "arguments",
        "temporaries",
        "peak per device",
    ]);
    for graph in compiled {
        let memory = graph
            .memory()
            .map_err(failed("reading the compiler's memory statistics"))?;
        table.row([
            graph.name.clone(),
            graph.fingerprint.to_string()[..12].to_string(),
            format!(
                "{:.1} s{}",
                graph.ready_time.as_secs_f64(),
                if graph.loaded { " (cached)" } else { "" }
            ),
            bytes(memory.argument_bytes as u64),
            bytes(memory.temp_bytes as u64),
            bytes(memory.peak() as u64),
        ]);
    }
    print!("\n{}", table.render());
    if run.plan.train.mesh.stage > 1 {
        let found = run.footprints()?;
        let mut table = Table::pairs();
        table.heading("memory per device, with the microbatches under way");
        for footprint in found {
            let (peak, state) = (bytes(footprint.peak), bytes(footprint.state));
            table.row([
                format!("stage {}", footprint.stage),
                format!("{peak}, {state} of it state (in {})", footprint.graph),
            ]);
        }
        print!("\n{}", table.render());
    }
    if let Some(memory) = run.plan.memory {
        let found = run.footprints()?;
        let most = found
            .into_iter()
            .max_by_key(|one| one.peak)
            .expect("a plan has graphs");
        let verdict = if most.peak <= memory {
            "fits"
        } else {
            "does not fit"
        };
        println!(
            "\n{verdict} into {} a device: {} at the peak (in `{}`)",
            bytes(memory),
            bytes(most.peak),
            most.graph
        );
    }
    println!(
        "\ndry run: nothing was trained or written to {}",
        run.plan.train.output_dir.display()
    );
    Ok(())
}

/// The stages of a pipeline: what each has and needs.
fn describe_stages(
    table: &mut Table,
    plan: &TrainPlan,
    stages: &Stages,
    train_step: &TrainStep,
    placements: &Placements,
) {
    let settings = &plan.train;
    let microbatches = settings.gradient_accumulation_steps;
    for stage in 0..stages.count() {
        let layers = stages.layers(stage);
        let state = train_step.state_bytes(microbatches > 1, placements, stage);
        table.row([
            format!("stage {stage}"),
            format!(
                "layers {} to {}, {:.0} % of the work, {} of weights and moments per device",
                layers.start,
                layers.end - 1,
                100.0 * stages.work(stage),
                bytes(state)
            ),
        ]);
    }
    let bubble = bubble(stages.count(), microbatches, settings.pipeline_schedule);
    let advice = if bubble > 0.25 {
        "; more --gradient_accumulation_steps make it less"
    } else {
        ""
    };
    table.row([
        "schedule".to_string(),
        format!(
            "{}, {microbatches} microbatches: stages wait {:.0} % of the time{advice}",
            settings.pipeline_schedule,
            100.0 * bubble
        ),
    ]);
}

/// The plan as one line of JSON on standard output, for programs.
pub(super) fn print_json(run: &mut Run) -> Result<(), Error> {
    let exchanged = run.exchanged()?;
    let compiled = run.compile(1, &mut |_| ())?;
    let settings = &run.plan.train;
    let parameters: usize = run
        .loaded
        .model
        .parameters()
        .iter()
        .map(|p| p.dims.iter().product::<usize>())
        .sum();
    let groups: serde_json::Map<_, _> = Axis::ALL
        .iter()
        .filter_map(|axis| Some((axis.to_string(), json!(settings.mesh.groups(&[*axis])?))))
        .collect();
    let mut graphs = Vec::new();
    for graph in compiled {
        let memory = graph
            .memory()
            .map_err(failed("reading the compiler's memory statistics"))?;
        graphs.push(json!({
            "name": graph.name,
            "fingerprint": graph.fingerprint.to_string(),
            "argument_bytes": memory.argument_bytes,
            "temp_bytes": memory.temp_bytes,
            "peak_bytes_per_device": memory.peak(),
        }));
    }
    let mut plan = json!({
        "parameters": parameters,
        "devices": settings.mesh.devices(),
        "examples_per_step": settings.examples_per_step(),
        "groups": groups,
        "exchanged_per_step": exchanged.iter().map(Exchange::json).collect::<Vec<_>>(),
        "graphs": graphs,
    });
    if let Some(memory) = run.plan.memory {
        let found = run.footprints()?;
        let peak = found.iter().map(|one| one.peak).max().unwrap_or(0);
        plan["memory_bytes"] = json!(memory);
        plan["peak_bytes_of_run"] = json!(peak);
        plan["fits"] = json!(peak <= memory);
    }
    println!("{plan}");
    Ok(())
}

/// Floating-point operations of a batch.
fn work(model: &dyn Model, shape: &BatchShape) -> f64 {
    let tokens = shape.rows * shape.tokens;
    let skipped = match shape.labels {
        LabelShape::Positions(positions) => tokens - positions,
        LabelShape::Tokens | LabelShape::Classes | LabelShape::Numbers => 0,
    };
    model.step_flops(shape.rows, shape.tokens) - model.head_flops(skipped)
}

fn describe_data(table: &mut Table, set: &Set, task: &TaskData) {
    let lengths: Vec<String> = task
        .form(&[set])
        .lengths
        .iter()
        .map(usize::to_string)
        .collect();
    let totals = set.rows.totals();
    let what = if task.labels().is_some() {
        "rows"
    } else {
        "lines"
    };
    table.row([
        "text".to_string(),
        format!(
            "{} {what}, {} tokens",
            exact(totals.lines),
            exact(totals.tokens)
        ),
    ]);
    table.row([
        "examples".to_string(),
        format!(
            "{} of {} tokens",
            exact(set.len() as u64),
            lengths.join(" or ")
        ),
    ]);
}
