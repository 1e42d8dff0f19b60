//! `--dry_run`: the resolved plan of a training run, with its graphs compiled and their memory known, and nothing else done.

use super::Error;
use super::compile::stepper;
use super::model::failed;
use super::task::TaskData;
use super::train::{Prepared, layout, stream_length};
use crate::config::TrainPlan;
use crate::data::Collator;
use crate::parallel::{Axis, Mesh, Placements, Stages};
use crate::report::table::{Align, Table};
use crate::report::units::{bytes, count, exact};
use crate::trainer::ahead::{RunShapes, compile_all, record_steps};
use crate::trainer::feed::{BatchShape, LabelShape};
use crate::trainer::fit::footprints;
use crate::trainer::pipeline::{bubble, sent};
use crate::trainer::session::Session;
use crate::trainer::settings::Checkpointing;
use crate::trainer::step::Stepper;
use xtrain_graphs::{Target, passes, work};
use xtrain_models::Model;

/// Prints the plan on standard output.
pub(super) fn print(plan: &TrainPlan, prepared: &mut Prepared) -> Result<(), Error> {
    let settings = &plan.train;
    let shapes = prepared.shapes(plan);
    let model = &*prepared.loaded.model;
    let parameters: usize = model.parameters().iter().map(|p| p.dims.iter().product::<usize>()).sum();
    let mut table = Table::pairs();
    table.heading("model");
    table.row(["configuration", model.config().source()]);
    table.row(["parameters".to_string(), exact(parameters as u64)]);
    table.row(["vocabulary".to_string(), format!("{} (tokenizer: {})", model.vocab_size(), prepared.tokenizer.id_bound())]);
    table.row(["longest example".to_string(), format!("{} of {} positions", prepared.task.length, model.max_positions())]);
    if let Some(labels) = &prepared.task.labels {
        table.row(["labels".to_string(), labels.names().join(", ")]);
    }
    let known = match (&prepared.train, &prepared.stream) {
        (Some(data), _) => layout(plan, data).map(|(_, length, schedule)| Some((length, schedule)))?,
        (None, Some(_)) => Some(stream_length(plan)),
        (None, None) => None,
    };
    if let Some((length, schedule)) = known {
        let examples = settings.examples_per_step();
        table.heading("training");
        match &prepared.train {
            Some(data) => describe_data(&mut table, data, &prepared.task),
            None => {
                let source = plan.task.source();
                let files = source.train_files.len();
                let buffer = exact(source.streaming.unwrap_or_default() as u64);
                table.row(["text".to_string(), format!("streamed from {files} files, {buffer} rows in the buffer")]);
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
                    Mesh { tensor: 2.., .. } | Mesh { stage: 2.., .. } if settings.mesh.batch_shards() == 1 =>
                        " group of devices",
                    Mesh { tensor: 2.., .. } | Mesh { stage: 2.., .. } => " groups of devices",
                    mesh if mesh.batch_shards() == 1 => " device",
                    _ => " devices",
                }
            ),
        ]);
        let lengths = prepared.task.form(prepared.train.as_ref().as_slice()).lengths;
        let longest = lengths.last().copied().unwrap_or_default();
        let most = if lengths.len() > 1 { "up to " } else { "" };
        table.row(["tokens per step".to_string(), format!("{most}{}", exact((examples * longest) as u64))]);
        if prepared.train.is_some() {
            table.row(["steps per epoch".to_string(), exact(length.updates_per_epoch)]);
        }
        let tf32 = if plan.device.settings.tf32 { ", those of f32 in TF32" } else { "" };
        table.row(["matrix products".to_string(), format!("{}{tf32}", settings.precision)]);
        if settings.checkpointing != Checkpointing::Off {
            table.row(["computed twice".to_string(), format!("activations ({})", settings.checkpointing)]);
        }
        table.row(["optimizer steps".to_string(), format!("{} ({} of warm-up)", exact(length.max_steps), schedule.warmup)]);
        let largest = shapes.train.iter().map(|shape| work(model, shape)).fold(0.0, f64::max);
        let work = count(largest * (settings.gradient_accumulation_steps * settings.mesh.batch_shards()) as f64);
        table.row(["work per step".to_string(), format!("{most}{work}FLOP")]);
        if let Some(stages) = prepared.session.placements().stages() {
            describe_stages(&mut table, plan, stages, &stepper(plan, model), prepared.session.placements());
        }
        for axis in Axis::ALL {
            if let Some(groups) = settings.mesh.groups(&[axis]) {
                table.row([format!("{axis} groups"), format!("{groups:?}")]);
            }
        }
        for (what, size) in exchanged(plan, &mut prepared.session, model, &shapes)? {
            table.row(["exchanged per step".to_string(), format!("{most}{} in {what}", bytes(size))]);
        }
    }
    if let Some(data) = &prepared.validation {
        table.heading("evaluation");
        describe_data(&mut table, data, &prepared.task);
    }
    print!("{}", table.render());

    let stepper = stepper(plan, model);
    let compiled =
        compile_all(&mut prepared.session, model, &stepper, &shapes, 1, &mut |_| ()).map_err(failed("compiling the graphs"))?;
    let mut table = Table::new(&[Align::Left, Align::Left, Align::Right, Align::Right, Align::Right, Align::Right]);
    table.row(["graph", "fingerprint", "ready in", "arguments", "temporaries", "peak per device"]);
    for graph in compiled {
        let memory = graph.memory().map_err(failed("reading the compiler's memory statistics"))?;
        table.row([
            graph.name.clone(),
            graph.fingerprint.to_string()[..12].to_string(),
            format!("{:.1} s{}", graph.ready_time.as_secs_f64(), if graph.loaded { " (cached)" } else { "" }),
            bytes(memory.argument_bytes as u64),
            bytes(memory.temp_bytes as u64),
            bytes(memory.peak() as u64),
        ]);
    }
    print!("\n{}", table.render());
    if settings.mesh.stage > 1 {
        let batch = settings.per_device_train_batch_size;
        let found =
            footprints(&mut prepared.session, None, model, &stepper, &shapes, batch).map_err(failed("reading the memory"))?;
        let mut table = Table::pairs();
        table.heading("memory per device, with the microbatches under way");
        for footprint in found {
            let (peak, state) = (bytes(footprint.peak), bytes(footprint.state));
            table.row([format!("stage {}", footprint.stage), format!("{peak}, {state} of it state (in {})", footprint.graph)]);
        }
        print!("\n{}", table.render());
    }
    println!("\ndry run: nothing was trained or written to {}", settings.output_dir.display());
    Ok(())
}

/// What replicas hand each other in an optimizer step, kind by kind and axis by axis, in bytes; of batches of several shapes, the most.
fn exchanged(
    plan: &TrainPlan,
    session: &mut Session,
    model: &dyn Model,
    shapes: &RunShapes,
) -> Result<Vec<(String, u64)>, Error> {
    let mesh = plan.train.mesh;
    if mesh.devices() == 1 {
        return Ok(Vec::new());
    }
    let training = RunShapes { eval: Vec::new(), ..shapes.clone() };
    let steps = record_steps(session, model, &stepper(plan, model), &training).map_err(failed("recording the graphs"))?;
    let axes: Vec<Vec<Axis>> = [Axis::ALL.map(|axis| vec![axis]).to_vec(), vec![vec![Axis::Data, Axis::Shard]]].concat();
    let mut totals: Vec<(String, u64)> = Vec::new();
    for (accumulates, repeats) in [(true, plan.train.gradient_accumulation_steps as u64 - 1), (false, 1)] {
        let of_phase = steps.iter().filter(|(name, _)| is_step(name) && name.starts_with("accumulate") == accumulates);
        let mut most: Vec<(String, u64)> = Vec::new();
        for (_, graphs) in of_phase {
            // By kind, axis and stage.
            let mut found: Vec<(String, u32, u64)> = Vec::new();
            for graph in graphs {
                // As it is emitted: equal nodes are one by then.
                let prepared = passes::prepare(graph, Target::Cpu).map_err(failed("preparing the graphs"))?;
                for exchange in work::exchanged(&prepared) {
                    let axis = axes.iter().find(|axes| mesh.groups(axes).as_ref() == Some(&exchange.groups));
                    let axis =
                        axis.map_or("all".to_string(), |axes| axes.iter().map(Axis::to_string).collect::<Vec<_>>().join(" x "));
                    let what = format!("{} over {axis}", exchange.kind);
                    match found.iter_mut().find(|(known, stage, _)| *known == what && *stage == graph.stage) {
                        Some((.., bytes)) => *bytes += exchange.bytes,
                        None => found.push((what, graph.stage, exchange.bytes)),
                    }
                }
            }
            found.into_iter().for_each(|(what, _, bytes)| keep_largest(&mut most, what, bytes));
            keep_largest(&mut most, "copies between stages".into(), sent(graphs));
        }
        for (what, bytes) in most {
            match totals.iter_mut().find(|(known, _)| *known == what) {
                Some((_, total)) => *total += bytes * repeats,
                None => totals.push((what, bytes * repeats)),
            }
        }
    }
    totals.retain(|(_, bytes)| *bytes > 0);
    Ok(totals)
}

/// The stages of a pipeline: what each has and needs.
fn describe_stages(table: &mut Table, plan: &TrainPlan, stages: &Stages, stepper: &Stepper, placements: &Placements) {
    let settings = &plan.train;
    let microbatches = settings.gradient_accumulation_steps;
    for stage in 0..stages.count() {
        let layers = stages.layers(stage);
        let state = stepper.state_bytes(microbatches > 1, placements, stage);
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
    let advice = if bubble > 0.25 { "; more --gradient_accumulation_steps make it less" } else { "" };
    table.row([
        "schedule".to_string(),
        format!(
            "{}, {microbatches} microbatches: stages wait {:.0} % of the time{advice}",
            settings.pipeline_schedule,
            100.0 * bubble
        ),
    ]);
}

fn is_step(name: &str) -> bool {
    ["accumulate", "update", "train"].contains(&name.split('.').next().unwrap_or_default())
}

fn keep_largest(found: &mut Vec<(String, u64)>, what: String, bytes: u64) {
    match found.iter_mut().find(|(known, _)| *known == what) {
        Some((_, most)) => *most = bytes.max(*most),
        None => found.push((what, bytes)),
    }
}

/// Floating-point operations of a batch.
fn work(model: &dyn Model, shape: &BatchShape) -> f64 {
    let tokens = shape.rows * shape.tokens;
    let skipped = match shape.labels {
        LabelShape::Places(places) => tokens - places,
        LabelShape::Tokens | LabelShape::Classes => 0,
    };
    model.step_flops(shape.rows, shape.tokens) - model.head_flops(skipped)
}

fn describe_data(table: &mut Table, set: &Collator, task: &TaskData) {
    let lengths: Vec<String> = task.form(&[set]).lengths.iter().map(usize::to_string).collect();
    let totals = set.totals();
    let what = if task.labels.is_some() { "rows" } else { "lines" };
    table.row(["text".to_string(), format!("{} {what}, {} tokens", exact(totals.lines), exact(totals.tokens))]);
    table.row(["examples".to_string(), format!("{} of {} tokens", exact(set.len() as u64), lengths.join(" or "))]);
}
