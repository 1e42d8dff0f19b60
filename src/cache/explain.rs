//! Why a graph is compiled though a similar one is stored: which named part of the key changed and,
//! if it was the graph, where in the model and by which setting.

use super::entry::{Header, Origin};
use super::key::{self, Key, describe_change};
use super::store::Listed;
use std::fmt;
use xtrain_graphs::op::Op;
use xtrain_graphs::{Graph, GraphNode};

/// The difference of two graphs with everything that decides about compiling.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Parts of the key that differ, in words; the graph's own come first.
    pub parts: Vec<String>,
    /// The first difference of the graphs in model terms.
    pub graph: Option<String>,
    /// Settings that differ: name, new value, old value.
    pub settings: Vec<(String, String, String)>,
}

impl Explanation {
    /// Compares two headers, and their graphs where both are at hand.
    pub fn new(
        old: (&Key, &Origin),
        new: (&Key, &Origin),
        graphs: Option<(&Graph, &Graph)>,
    ) -> Explanation {
        let changes = Key::changes(old.0, new.0);
        let graph_changed = changes.iter().any(|(name, ..)| *name == key::GRAPH);
        let follows = |name: &str| graph_changed && name == key::DONATION;
        let reported = changes.iter().filter(|(name, ..)| !follows(name));
        Explanation {
            parts: reported
                .map(|(name, old, new)| describe_change(name, old, new))
                .collect(),
            graph: graphs
                .filter(|_| graph_changed)
                .and_then(|(old, new)| first_difference(old, new)),
            // Settings explain a changed graph; by themselves they decide nothing.
            settings: if graph_changed {
                changed_settings(old.1, new.1)
            } else {
                Vec::new()
            },
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = self.parts.clone();
        if let (Some(difference), Some(first)) = (&self.graph, parts.first_mut()) {
            *first = format!("graph: {difference}");
        }
        if let (false, Some(first)) = (self.settings.is_empty(), parts.first_mut()) {
            let settings: Vec<_> = self
                .settings
                .iter()
                .map(|(name, new, old)| format!("{name} {new} was {old}"))
                .collect();
            first.push_str(&format!(" ({})", settings.join(", ")));
        }
        if parts.is_empty() {
            f.write_str("nothing differs")
        } else {
            f.write_str(&parts.join("; "))
        }
    }
}

/// Settings with different values, as `(name, new, old)`.
pub fn changed_settings(old: &Origin, new: &Origin) -> Vec<(String, String, String)> {
    const UNSET: &str = "not set";
    let names = new.settings.keys().chain(
        old.settings
            .keys()
            .filter(|name| !new.settings.contains_key(*name)),
    );
    let value = |origin: &Origin, name: &String| {
        origin
            .settings
            .get(name)
            .map_or(UNSET, String::as_str)
            .to_string()
    };
    names
        .map(|name| (name.clone(), value(new, name), value(old, name)))
        .filter(|(_, new, old)| new != old)
        .collect()
}

/// Whether a graph to be compiled is another version of the stored one: for the same purpose in the same
/// command with the same model on the same kind of device. The first compile of another model is none,
/// however similar the models are.
pub fn is_version(stored: &Header, key: &Key, phase: &str, origin: &Origin) -> bool {
    let device = key::DEVICE;
    stored.phase == phase
        && stored.origin.command == origin.command
        && stored.origin.model_type == origin.model_type
        && stored.origin.config_digest == origin.config_digest
        && stored.key.value(device) == key.value(device)
}

/// The stored graph that this one is most likely a changed version of: same purpose and kind of
/// model; then the fewest parts and settings that differ, then the last used.
pub fn nearest<'a>(
    entries: &'a [Listed],
    key: &Key,
    phase: &str,
    origin: &Origin,
) -> Option<(&'a str, &'a Header)> {
    let candidates = entries
        .iter()
        .filter_map(|listed| Some((listed, listed.header.as_ref().ok()?)));
    let alike = candidates.filter(|(_, header)| {
        header.phase == phase && header.origin.model_type == origin.model_type
    });
    let distance = |(listed, header): &(&Listed, &Header)| {
        let settings = changed_settings(&header.origin, origin).len();
        let parts = Key::changes(&header.key, key).len();
        (
            header.origin.command != origin.command,
            parts + settings,
            std::cmp::Reverse(listed.last_used),
        )
    };
    alike
        .min_by_key(distance)
        .map(|(listed, header)| (listed.id.as_str(), header))
}

/// Where two graphs first differ, in model terms; `None` for equal ones.
pub fn first_difference(old: &Graph, new: &Graph) -> Option<String> {
    for (old_node, new_node) in old.nodes.iter().zip(&new.nodes) {
        if let Some(difference) = node_difference(old, old_node, new, new_node) {
            return Some(difference);
        }
    }
    if old.nodes.len() != new.nodes.len() {
        let (longer, verb) = if new.nodes.len() > old.nodes.len() {
            (new, "is new")
        } else {
            (old, "is gone")
        };
        let node = &longer.nodes[old.nodes.len().min(new.nodes.len())];
        return Some(format!("{} {verb}", describe(longer, node)));
    }
    for (old_output, new_output) in old.outputs.iter().zip(&new.outputs) {
        if old_output != new_output {
            return Some(format!(
                "output {} was {}",
                new_output.name, old_output.name
            ));
        }
    }
    if old.outputs.len() == new.outputs.len() {
        // Names, roles or scopes that no node shows.
        (old != new).then(|| "names or roles of inputs".to_string())
    } else {
        Some(format!(
            "{} outputs were {}",
            new.outputs.len(),
            old.outputs.len()
        ))
    }
}

fn node_difference(
    old: &Graph,
    old_node: &GraphNode,
    new: &Graph,
    new_node: &GraphNode,
) -> Option<String> {
    let (old_place, new_place) = (place(old, old_node), place(new, new_node));
    let same_kind = old_node.op.name() == new_node.op.name() && old_place == new_place;
    if !same_kind {
        return Some(format!(
            "{} where there was {}",
            describe(new, new_node),
            describe(old, old_node)
        ));
    }
    if old_node.shape != new_node.shape {
        return Some(format!(
            "{} was {}",
            describe(new, new_node),
            old_node.shape
        ));
    }
    if old_node.op != new_node.op {
        let (old_op, new_op) = attributes(&old_node.op, &new_node.op);
        return Some(format!(
            "{} {} has {new_op} where it had {old_op}",
            new_place,
            new_node.op.name()
        ));
    }
    let what = if old_node.operands != new_node.operands {
        "other operands"
    } else if old_node.provenance != new_node.provenance {
        "another phase, stage or layer"
    } else {
        return None;
    };
    Some(format!("{} has {what}", describe(new, new_node)))
}

/// The input's name, or the model path.
fn place<'g>(graph: &'g Graph, node: &GraphNode) -> &'g str {
    let scope = graph
        .scopes
        .get(node.scope as usize)
        .map_or("", String::as_str);
    match node.op {
        Op::Input(index) => graph
            .inputs
            .get(index as usize)
            .map_or("", |input| &input.name),
        _ if scope.is_empty() => "the step",
        _ => scope,
    }
}

/// `h.3.attn.c_attn: dot f32[4,256]`, and for an input only its name and shape.
fn describe(graph: &Graph, node: &GraphNode) -> String {
    match node.op {
        Op::Input(_) => format!("{}: {}", place(graph, node), node.shape),
        _ => format!("{}: {} {}", place(graph, node), node.op.name(), node.shape),
    }
}

/// What differs in two operations of one kind, without what they share.
fn attributes(old: &Op, new: &Op) -> (String, String) {
    let pieces = |op: &Op| -> Vec<String> {
        let text = format!("{op:?}");
        let inner = text
            .split_once(['{', '('])
            .map_or(text.as_str(), |(_, inner)| inner);
        inner
            .trim_end_matches([')', '}', ' '])
            .split(", ")
            .map(|piece| piece.trim().to_string())
            .collect()
    };
    let (old, new) = (pieces(old), pieces(new));
    let without = |these: &[String], those: &[String]| {
        let own: Vec<&str> = these
            .iter()
            .filter(|piece| !those.contains(piece))
            .map(String::as_str)
            .collect();
        if own.is_empty() {
            these.join(", ")
        } else {
            own.join(", ")
        }
    };
    (without(&old, &new), without(&new, &old))
}

#[cfg(test)]
mod tests {
    use super::super::key::tests::key;
    use super::*;
    use xtrain_graphs::{DType, InputRole, Shape, Trace};

    /// A toy of `layers` layers of `width` on `batch` rows.
    fn graph(batch: usize, width: usize, layers: usize, slope: f64) -> Graph {
        let trace = Trace::new();
        let mut x = trace.input(
            "input",
            Shape::new(DType::F32, [batch, width]),
            InputRole::Feed,
        );
        for layer in 0..layers {
            let _scope = trace.scope(&format!("h.{layer}"));
            x = x
                .mul(&trace.full(slope, x.shape()).unwrap())
                .unwrap()
                .exp()
                .unwrap();
        }
        trace.output("y", &x);
        trace.finish("train").unwrap()
    }

    fn origin(settings: &[(&str, &str)]) -> Origin {
        let settings = settings
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        Origin {
            command: "train clm".into(),
            model_type: "gpt2".into(),
            settings,
            ..Default::default()
        }
    }

    #[test]
    fn the_first_difference_is_in_model_terms() {
        let base = graph(4, 8, 2, 0.5);
        assert_eq!(first_difference(&base, &base), None);
        let difference = |other: &Graph| first_difference(&base, other).unwrap();
        assert_eq!(
            difference(&graph(2, 8, 2, 0.5)),
            "input: f32[2,8] was f32[4,8]"
        );
        assert_eq!(
            difference(&graph(4, 16, 2, 0.5)),
            "input: f32[4,16] was f32[4,8]"
        );
        let layer = difference(&graph(4, 8, 3, 0.5));
        assert!(
            layer.starts_with("h.2: ") && layer.ends_with("is new"),
            "{layer}"
        );
        let layer = difference(&graph(4, 8, 1, 0.5));
        assert!(
            layer.starts_with("h.1: ") && layer.ends_with("is gone"),
            "{layer}"
        );
        let slope = difference(&graph(4, 8, 2, 0.25));
        assert!(
            slope.starts_with("h.0 constant has ")
                && slope.contains("0.25")
                && slope.contains("0.5"),
            "{slope}"
        );
    }

    #[test]
    fn causes_are_named_with_their_setting() {
        let (old, new) = (graph(4, 8, 2, 0.5), graph(2, 8, 2, 0.5));
        let (old_key, new_key) = (
            key(&[("graph", "a"), ("lowering", "1"), ("donation", "x")]),
            key(&[("graph", "b"), ("lowering", "1"), ("donation", "y")]),
        );
        let (old_origin, new_origin) = (
            origin(&[("batch", "4"), ("lr", "1")]),
            origin(&[("batch", "2"), ("lr", "1")]),
        );
        let explanation = Explanation::new(
            (&old_key, &old_origin),
            (&new_key, &new_origin),
            Some((&old, &new)),
        );
        assert_eq!(
            explanation.to_string(),
            "graph: input: f32[2,8] was f32[4,8] (batch 2 was 4)"
        );
        // Another compiler: settings that happen to differ as well did not cause it.
        let other = key(&[
            ("graph", "a"),
            ("lowering", "1"),
            ("donation", "x"),
            ("compiler", "9"),
        ]);
        let explanation = Explanation::new((&old_key, &old_origin), (&other, &new_origin), None);
        assert_eq!(explanation.to_string(), "compiler: `9` was `absent`");
        let same = Explanation::new((&old_key, &old_origin), (&old_key, &new_origin), None);
        assert_eq!(same.to_string(), "nothing differs");
    }
}
