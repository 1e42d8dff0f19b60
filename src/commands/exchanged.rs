//! What a run's replicas hand each other in an optimizer step, from its graphs: nothing is run or compiled.

use super::Error;
use super::model::failed;
use crate::parallel::{Axis, Mesh};
use crate::report::scaling::Exchange;
use crate::trainer::ahead::{RunShapes, record_steps};
use crate::trainer::pipeline::sent;
use crate::trainer::session::Session;
use crate::trainer::step::Stepper;
use xtrain_graphs::{Graph, Target, passes, work};
use xtrain_models::Model;

/// Kind by kind and axis by axis; of batches of several shapes, the most.
pub(super) fn exchanged(
    session: &mut Session,
    model: &dyn Model,
    stepper: &Stepper,
    shapes: &RunShapes,
) -> Result<Vec<Exchange>, Error> {
    let mesh = session.mesh();
    if mesh.devices() == 1 {
        return Ok(Vec::new());
    }
    let training = RunShapes { eval: Vec::new(), ..shapes.clone() };
    let steps = record_steps(session, model, stepper, &training).map_err(failed("recording the graphs"))?;
    let mut totals: Vec<Exchange> = Vec::new();
    for (accumulates, repeats) in [(true, shapes.accumulation as u64 - 1), (false, 1)] {
        let of_phase = steps.iter().filter(|(name, _)| is_step(name) && name.starts_with("accumulate") == accumulates);
        let mut most: Vec<Exchange> = Vec::new();
        for (_, graphs) in of_phase {
            for stage in 0..mesh.stage as u32 {
                for found in in_stage(mesh, graphs.iter().filter(|graph| graph.stage == stage))? {
                    into(&mut most, found, |most, bytes| *most = bytes.max(*most));
                }
            }
            let copies = Exchange { kind: "copies".into(), axis: "stages".into(), bytes: sent(graphs) };
            into(&mut most, copies, |most, bytes| *most = bytes.max(*most));
        }
        for found in most {
            into(&mut totals, Exchange { bytes: found.bytes * repeats, ..found }, |total, bytes| *total += bytes);
        }
    }
    totals.retain(|exchange| exchange.bytes > 0);
    Ok(totals)
}

/// What one stage's replicas exchange in its graphs.
fn in_stage<'g>(mesh: Mesh, graphs: impl Iterator<Item = &'g Graph>) -> Result<Vec<Exchange>, Error> {
    let axes: Vec<Vec<Axis>> = [Axis::ALL.map(|axis| vec![axis]).to_vec(), vec![vec![Axis::Data, Axis::Shard]]].concat();
    let mut all: Vec<Exchange> = Vec::new();
    for graph in graphs {
        // As it is emitted: equal nodes are one by then.
        let prepared = passes::prepare(graph, Target::Cpu).map_err(failed("preparing the graphs"))?;
        for found in work::exchanged(&prepared) {
            let axis = axes.iter().find(|axes| mesh.groups(axes).as_ref() == Some(&found.groups));
            let axis = axis.map_or("all".to_string(), |axes| axes.iter().map(Axis::to_string).collect::<Vec<_>>().join(" x "));
            let found = Exchange { kind: found.kind.to_string(), axis, bytes: found.bytes };
            into(&mut all, found, |total, bytes| *total += bytes);
        }
    }
    Ok(all)
}

fn is_step(name: &str) -> bool {
    ["accumulate", "update", "train"].contains(&name.split('.').next().unwrap_or_default())
}

/// Joins what was found with what is known of the same kind and axis.
fn into(known: &mut Vec<Exchange>, found: Exchange, join: impl Fn(&mut u64, u64)) {
    match known.iter_mut().find(|known| known.kind == found.kind && known.axis == found.axis) {
        Some(known) => join(&mut known.bytes, found.bytes),
        None => known.push(found),
    }
}
