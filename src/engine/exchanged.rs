//! What a run's replicas hand each other in an optimizer step, from its graphs: nothing is run or
//! compiled.

use xtrain_graphs::{Graph, Target, flops, passes};
use xtrain_parallel::{Axis, Mesh};
use xtrain_report::scaling::Exchange;
use xtrain_trainer::Result;
use xtrain_trainer::ahead::{Ahead, Steps};
use xtrain_trainer::pipeline::sent;

/// Kind by kind and axis by axis; of batches of several shapes, the most.
///
/// # Errors
/// If a graph cannot be recorded.
pub fn exchanged(ahead: &mut Ahead) -> Result<Vec<Exchange>> {
    let (mesh, accumulation) = (ahead.session.mesh(), ahead.shapes.accumulation);
    if mesh.devices() == 1 {
        return Ok(Vec::new());
    }
    let mut training = Ahead {
        session: ahead.session,
        step: ahead.step,
        shapes: &ahead.shapes.of_training(),
        metrics: ahead.metrics,
    };
    let target = training.session.cache().target();
    Ok(of_steps(
        &emitted(&mut training, target)?,
        mesh,
        accumulation,
    ))
}

/// The run's graphs as they are emitted for a target: equal nodes are one by then. Layers are always
/// written out.
///
/// # Errors
/// If a graph cannot be recorded.
pub fn emitted(ahead: &mut Ahead, target: Target) -> Result<Steps> {
    let mut steps = ahead.steps()?;
    for graph in steps.iter_mut().flat_map(|(_, graphs)| graphs) {
        *graph = passes::lower(graph, target)?;
    }
    Ok(steps)
}

/// The same as [`exchanged`], of graphs that are there.
pub fn of_steps(steps: &Steps, mesh: Mesh, accumulation: usize) -> Vec<Exchange> {
    let mut totals: Vec<Exchange> = Vec::new();
    for (accumulates, repeats) in [(true, accumulation as u64 - 1), (false, 1)] {
        let of_phase = steps
            .iter()
            .filter(|(name, _)| is_step(name) && name.starts_with("accumulate") == accumulates);
        let mut most: Vec<Exchange> = Vec::new();
        for (_, graphs) in of_phase {
            for stage in 0..mesh.stage as u32 {
                for found in in_stage(mesh, graphs.iter().filter(|graph| graph.stage == stage)) {
                    into(&mut most, found, |most, bytes| *most = bytes.max(*most));
                }
            }
            let copies = Exchange {
                kind: "copies".into(),
                axis: STAGES.into(),
                bytes: sent(graphs),
            };
            into(&mut most, copies, |most, bytes| *most = bytes.max(*most));
        }
        for found in most {
            into(
                &mut totals,
                Exchange {
                    bytes: found.bytes * repeats,
                    ..found
                },
                |total, bytes| *total += bytes,
            );
        }
    }
    totals.retain(|exchange| exchange.bytes > 0);
    totals
}

/// Where copies go.
const STAGES: &str = "stages";

/// Bytes that each device sends for these exchanges, in rings: of n devices each hands on all but
/// an n-th of what is gathered or scattered, and twice that of what is summed. Of copies between
/// stages, the mean of all stages.
pub fn sent_by_device(exchanged: &[Exchange], mesh: Mesh) -> u64 {
    let of = |exchange: &Exchange| {
        if exchange.axis == STAGES {
            return exchange.bytes / mesh.stage as u64;
        }
        let is_along = |axis: &Axis| {
            exchange
                .axis
                .split(BETWEEN)
                .any(|name| name == axis.to_string())
        };
        let along: usize = Axis::ALL
            .into_iter()
            .filter(is_along)
            .map(|axis| mesh.size(axis))
            .product();
        let n = if along == 1 { mesh.replicas() } else { along } as u64;
        let times = if exchange.kind == "all-reduce" { 2 } else { 1 };
        times * exchange.bytes * (n - 1) / n
    };
    exchanged.iter().map(of).sum()
}

/// Stands between the names of axes.
const BETWEEN: &str = " x ";

/// What one stage's replicas exchange in its graphs.
fn in_stage<'g>(mesh: Mesh, graphs: impl Iterator<Item = &'g Graph>) -> Vec<Exchange> {
    let axes: Vec<Vec<Axis>> = [
        Axis::ALL.map(|axis| vec![axis]).to_vec(),
        vec![vec![Axis::Data, Axis::Shard]],
    ]
    .concat();
    let mut all: Vec<Exchange> = Vec::new();
    for found in graphs.flat_map(flops::exchanged) {
        let axis = axes
            .iter()
            .find(|axes| mesh.groups(axes).as_ref() == Some(&found.groups));
        let axis = axis.map_or("all".to_string(), |axes| {
            axes.iter()
                .map(Axis::to_string)
                .collect::<Vec<_>>()
                .join(BETWEEN)
        });
        let found = Exchange {
            kind: found.kind.to_string(),
            axis,
            bytes: found.bytes,
        };
        into(&mut all, found, |total, bytes| *total += bytes);
    }
    all
}

/// Whether a graph of this name is one of an optimizer step's.
pub fn is_step(name: &str) -> bool {
    ["accumulate", "update", "train"].contains(&name.split('.').next().unwrap_or_default())
}

/// Joins what was found with what is known of the same kind and axis.
fn into(known: &mut Vec<Exchange>, found: Exchange, join: impl Fn(&mut u64, u64)) {
    match known
        .iter_mut()
        .find(|known| known.kind == found.kind && known.axis == found.axis)
    {
        Some(known) => join(&mut known.bytes, found.bytes),
        None => known.push(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_hand_on_all_but_a_part() {
        let mesh = Mesh {
            stage: 2,
            data: 2,
            shard: 4,
            tensor: 2,
        };
        let sent = |kind: &str, axis: &str| {
            sent_by_device(
                &[Exchange {
                    kind: kind.into(),
                    axis: axis.into(),
                    bytes: 8000,
                }],
                mesh,
            )
        };
        assert_eq!(sent("all-gather", "shard"), 6000);
        assert_eq!(sent("reduce-scatter", "data"), 4000);
        assert_eq!(sent("all-reduce", "tensor"), 8000);
        assert_eq!(sent("all-reduce", "data x shard"), 14_000);
        assert_eq!(sent("all-reduce", "all"), 15_000);
        assert_eq!(sent("copies", "stages"), 4000);
    }
}
