//! Which nodes belong to which layer, by their model paths, and what layers hand on.

use super::Origin;
use crate::graph::Graph;
use crate::passes::paths::{is_backward, is_of_update, is_recomputed};
use crate::trace::NodeId;
use std::collections::BTreeMap;

/// Layers that are looked at together, at most.
const MOST_TOGETHER: usize = 8;

/// Layers of one kind in one direction: forward, or backward.
pub(super) struct Family {
    /// What stands before the layer's number in model paths.
    path: String,
    is_backward: bool,
    /// The nodes of each, by its number.
    layers: Vec<Vec<NodeId>>,
}

/// What a loop could be made of: in each iteration, the nodes that are handed on to the next one,
/// and others that are wanted.
#[derive(Debug)]
pub(super) struct Groups {
    /// By what is handed on, then by iteration.
    pub carried: Vec<Vec<NodeId>>,
    /// By what is wanted, then by iteration.
    pub wanted: Vec<Vec<NodeId>>,
    /// The model path of the loop.
    pub path: String,
}

/// Where a model path has its layer's number: what is before it, the number.
fn layer_of(path: &str) -> Option<(&str, usize)> {
    let start = path.rfind('/').map_or(0, |slash| slash + 1);
    let mut at = start;
    for part in path[start..].split('.') {
        if let Ok(number) = part.parse() {
            return Some((&path[..at], number));
        }
        at += part.len() + 1;
    }
    None
}

/// A model path for all iterations of a loop.
pub(super) fn of_all_layers(path: &str) -> String {
    match layer_of(path) {
        None => path.to_string(),
        Some((before, _)) => {
            let rest = &path[before.len()..];
            let after = rest.find('.').map_or("", |dot| &rest[dot..]);
            format!("{before}*{after}")
        }
    }
}

/// All layers that follow each other, those of a forward pass before those of its backward pass.
pub(super) fn families(graph: &Graph) -> Vec<Family> {
    let mut all: BTreeMap<(bool, &str), BTreeMap<usize, Vec<NodeId>>> = BTreeMap::new();
    for (id, node) in graph.nodes.iter().enumerate() {
        let path = &graph.scopes[node.scope as usize];
        let Some((before, layer)) = layer_of(path) else {
            continue;
        };
        if is_recomputed(path) || is_of_update(path) || node.operands.is_empty() {
            continue;
        }
        all.entry((is_backward(path), before))
            .or_default()
            .entry(layer)
            .or_default()
            .push(id as NodeId);
    }
    let follow = |layers: &BTreeMap<usize, Vec<NodeId>>| {
        layers
            .keys()
            .zip(layers.keys().skip(1))
            .all(|(a, b)| a + 1 == *b)
    };
    // A piece of a pipeline may have single nodes of another one's layers.
    let hand_on = |layers: &BTreeMap<usize, Vec<NodeId>>, is_backward: bool| {
        layers
            .iter()
            .zip(layers.values().skip(1))
            .all(|((number, layer), next)| {
                let (from, to) = if is_backward {
                    (*number + 1, layer)
                } else {
                    (*number, next)
                };
                let from = &layers[&from];
                let mut read = to.iter().flat_map(|&id| &graph.nodes[id as usize].operands);
                read.any(|operand| from.binary_search(operand).is_ok())
            })
    };
    all.into_iter()
        .filter(|((is_backward, _), layers)| {
            layers.len() > 1 && follow(layers) && hand_on(layers, *is_backward)
        })
        .map(|((is_backward, path), layers)| Family {
            path: path.to_string(),
            is_backward,
            layers: layers.into_values().collect(),
        })
        .collect()
}

impl Family {
    pub fn name(&self) -> String {
        format!("{}*", self.path)
    }

    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Loops that could be, the best first: all layers, all but the first or the last; one by one,
    /// or several in each iteration (where they alternate, or are computed once more together).
    pub fn candidates(&self, graph: &Graph, origins: &[Origin]) -> impl Iterator<Item = Groups> {
        let sizes = (1..=MOST_TOGETHER).flat_map(|together| {
            let rest = self.layers.len() % together;
            let ends = [(0, 0), (rest, 0), (0, rest), (1, 0), (0, 1), (1, 1)];
            ends.map(|(first, last)| (together, first, last))
        });
        sizes.flat_map(move |(together, first, last)| {
            let count = self.layers.len().saturating_sub(first + last);
            if count / together < 2 || !count.is_multiple_of(together) {
                return Vec::new();
            }
            // In the order of iterations, in which `first` and `last` count.
            let mut layers: Vec<&Vec<NodeId>> = self.layers.iter().collect();
            if self.is_backward {
                layers.reverse();
            }
            let iterations = layers[first..first + count].chunks(together).map(|group| {
                let mut nodes: Vec<NodeId> = group.iter().copied().flatten().copied().collect();
                nodes.retain(|id| !origins[*id as usize].is_free());
                nodes.sort_unstable();
                nodes
            });
            let iterations: Vec<Vec<NodeId>> = iterations.collect();
            [false, true]
                .into_iter()
                .filter_map(|last| groups(graph, &iterations, last, self.name()))
                .collect()
        })
    }
}

/// What iterations with these nodes hand on; `None` if they do not hand on the same. With
/// `only_last`, what each of them makes last of that: of two layers that share parameters nothing
/// else tells what both read from what one hands to the other.
fn groups(
    graph: &Graph,
    iterations: &[Vec<NodeId>],
    only_last: bool,
    path: String,
) -> Option<Groups> {
    let mut iteration_of: Vec<Option<usize>> = vec![None; graph.nodes.len()];
    for (iteration, nodes) in iterations.iter().enumerate() {
        nodes
            .iter()
            .for_each(|&id| iteration_of[id as usize] = Some(iteration));
    }
    // The last iteration that reads each node, and whether anything else does.
    let mut last_reader: Vec<usize> = vec![0; graph.nodes.len()];
    let mut is_wanted = vec![false; graph.nodes.len()];
    for (id, node) in graph.nodes.iter().enumerate() {
        for &operand in &node.operands {
            match iteration_of[id] {
                Some(iteration) => {
                    last_reader[operand as usize] = last_reader[operand as usize].max(iteration)
                }
                None => is_wanted[operand as usize] = true,
            }
        }
    }
    graph
        .outputs
        .iter()
        .for_each(|output| is_wanted[output.node as usize] = true);
    let count = iterations.len();
    let handed: Vec<Vec<NodeId>> = (0..count - 1)
        .map(|iteration| {
            let is_handed = |id: &&NodeId| last_reader[**id as usize] == iteration + 1;
            let all: Vec<NodeId> = iterations[iteration]
                .iter()
                .filter(is_handed)
                .copied()
                .collect();
            if only_last {
                all.last().copied().into_iter().collect()
            } else {
                all
            }
        })
        .collect();
    if handed.iter().any(|nodes| nodes.len() != handed[0].len()) {
        return None;
    }
    let mut carried = in_rows(graph, &handed);
    if carried.is_empty() || carried.len() != handed[0].len() {
        return None;
    }
    // What the last iteration would hand on stands as far from its end as in the one before: at the
    // beginning there may be nodes that several layers share, which are recorded with the first.
    let [before, last] = [&iterations[count - 2], &iterations[count - 1]];
    for row in &mut carried {
        let place = before
            .binary_search(row.last()?)
            .expect("handed on by this iteration");
        row.push(*last.get((last.len() + place).checked_sub(before.len())?)?);
    }
    let results: Vec<Vec<NodeId>> = iterations
        .iter()
        .map(|nodes| {
            nodes
                .iter()
                .copied()
                .filter(|id| is_wanted[*id as usize])
                .collect()
        })
        .collect();
    let wanted = in_rows(graph, &results);
    Some(Groups {
        carried,
        wanted,
        path,
    })
}

/// Nodes of each iteration side by side: those that are alike in operation, shape and module, if
/// all iterations have as many of them.
fn in_rows(graph: &Graph, iterations: &[Vec<NodeId>]) -> Vec<Vec<NodeId>> {
    let mut kinds: BTreeMap<(String, String, String), Vec<Vec<NodeId>>> = BTreeMap::new();
    for (iteration, nodes) in iterations.iter().enumerate() {
        for &id in nodes {
            let node = &graph.nodes[id as usize];
            let path = of_all_layers(&graph.scopes[node.scope as usize]);
            let kind = kinds
                .entry((path, node.op.name(), node.shape.to_string()))
                .or_default();
            kind.resize(iterations.len(), Vec::new());
            kind[iteration].push(id);
        }
    }
    let even = kinds
        .into_values()
        .filter(|nodes| nodes.iter().all(|of| of.len() == nodes[0].len()));
    even.flat_map(|nodes| {
        (0..nodes[0].len())
            .map(|n| nodes.iter().map(|of| of[n]).collect())
            .collect::<Vec<_>>()
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_tell_layers() {
        assert_eq!(layer_of("h.3.attn"), Some(("h.", 3)));
        assert_eq!(
            layer_of("backward/stage.1/bert.encoder.layer.11"),
            Some(("backward/stage.1/bert.encoder.layer.", 11))
        );
        assert_eq!((layer_of("stage.0/wte"), layer_of("")), (None, None));
        assert_eq!(
            of_all_layers("backward/h.3.attn.c_proj"),
            "backward/h.*.attn.c_proj"
        );
        assert_eq!(
            (of_all_layers("h.3"), of_all_layers("ln_f")),
            ("h.*".to_string(), "ln_f".to_string())
        );
    }
}
