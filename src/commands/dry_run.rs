//! `--dry_run`: the resolved plan of a training run, with its graphs compiled and their memory known, and nothing else done.

use super::Error;
use super::compile::stepper;
use super::model::failed;
use super::task::TaskData;
use super::train::{Prepared, layout, stream_length};
use crate::config::TrainPlan;
use crate::data::Collator;
use crate::parallel::{Axis, Mesh};
use crate::report::table::{Align, Table};
use crate::report::units::{bytes, count, exact};
use crate::trainer::ahead::{RunShapes, compile_all, record_all};
use crate::trainer::feed::{BatchShape, LabelShape};
use crate::trainer::session::Session;
use crate::trainer::settings::Checkpointing;
use xtrain_graphs::{Graph, Target, passes, work};
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
                    Mesh { tensor: 2.., .. } if settings.mesh.batch_shards() == 1 => " group of devices",
                    Mesh { tensor: 2.., .. } => " groups of devices",
                    mesh if mesh.replicas() == 1 => " device",
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
    if mesh.replicas() == 1 {
        return Ok(Vec::new());
    }
    let training = RunShapes { eval: Vec::new(), ..shapes.clone() };
    let graphs = record_all(session, model, &stepper(plan, model), &training).map_err(failed("recording the graphs"))?;
    let axes: Vec<Vec<Axis>> = [Axis::ALL.map(|axis| vec![axis]).to_vec(), vec![vec![Axis::Data, Axis::Shard]]].concat();
    let mut totals: Vec<(String, u64)> = Vec::new();
    for (accumulates, repeats) in [(true, plan.train.gradient_accumulation_steps as u64 - 1), (false, 1)] {
        let of_phase = graphs.iter().filter(|graph| is_step(graph) && graph.name.starts_with("accumulate") == accumulates);
        let mut most: Vec<(String, u64)> = Vec::new();
        for graph in of_phase {
            // As it is emitted: equal nodes are one by then.
            let prepared = passes::prepare(graph, Target::Cpu).map_err(failed("preparing the graphs"))?;
            for found in work::exchanged(&prepared) {
                let axis = axes.iter().find(|axes| mesh.groups(axes).as_ref() == Some(&found.groups));
                let axis =
                    axis.map_or("all".to_string(), |axes| axes.iter().map(Axis::to_string).collect::<Vec<_>>().join(" x "));
                keep_largest(&mut most, format!("{} over {axis}", found.kind), found.bytes);
            }
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

fn is_step(graph: &Graph) -> bool {
    ["accumulate", "update", "train"].iter().any(|name| graph.name.split('.').next() == Some(name))
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
        LabelShape::Tokens | LabelShape::Classes | LabelShape::Numbers => 0,
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
