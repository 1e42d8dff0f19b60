//! What a run's replicas hand each other in an optimizer step, from its graphs: nothing is run or compiled.

use super::Error;
use super::model::failed;
use crate::parallel::Axis;
use crate::report::scaling::Exchange;
use crate::trainer::ahead::{RunShapes, record_all};
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
    if mesh.replicas() == 1 {
        return Ok(Vec::new());
    }
    let training = RunShapes { eval: Vec::new(), ..shapes.clone() };
    let graphs = record_all(session, model, stepper, &training).map_err(failed("recording the graphs"))?;
    let axes: Vec<Vec<Axis>> = [Axis::ALL.map(|axis| vec![axis]).to_vec(), vec![vec![Axis::Data, Axis::Shard]]].concat();
    let mut totals: Vec<Exchange> = Vec::new();
    for (accumulates, repeats) in [(true, shapes.accumulation as u64 - 1), (false, 1)] {
        let of_phase = graphs.iter().filter(|graph| is_step(graph) && graph.name.starts_with("accumulate") == accumulates);
        let mut most: Vec<Exchange> = Vec::new();
        for graph in of_phase {
            // As it is emitted: equal nodes are one by then.
            let prepared = passes::prepare(graph, Target::Cpu).map_err(failed("preparing the graphs"))?;
            for found in work::exchanged(&prepared) {
                let axis = axes.iter().find(|axes| mesh.groups(axes).as_ref() == Some(&found.groups));
                let axis =
                    axis.map_or("all".to_string(), |axes| axes.iter().map(Axis::to_string).collect::<Vec<_>>().join(" x "));
                let found = Exchange { kind: found.kind.to_string(), axis, bytes: found.bytes };
                into(&mut most, found, |most, bytes| *most = bytes.max(*most));
            }
        }
        for found in most {
            into(&mut totals, Exchange { bytes: found.bytes * repeats, ..found }, |total, bytes| *total += bytes);
        }
    }
    totals.retain(|exchange| exchange.bytes > 0);
    Ok(totals)
}

fn is_step(graph: &Graph) -> bool {
    ["accumulate", "update", "train"].iter().any(|name| graph.name.split('.').next() == Some(name))
}

/// Joins what was found with what is known of the same kind and axis.
fn into(known: &mut Vec<Exchange>, found: Exchange, join: impl Fn(&mut u64, u64)) {
    match known.iter_mut().find(|known| known.kind == found.kind && known.axis == found.axis) {
        Some(known) => join(&mut known.bytes, found.bytes),
        None => known.push(found),
    }
}
