//! What a model's forward pass declares: recorded once in an abstract trace, it gives the list of
//! parameters, their axes, what each layer computes and uses, and the operations of a step.

use crate::axis::Axis;
use crate::error::{Error, Result};
use crate::parameter::{Init, ParameterSet, ParameterSpec};
use crate::quantization::{Quantization, QuantizedMatrix};
use std::cell::RefCell;
use std::collections::HashMap;
use xtrain_graphs::flops::{RecordedFlops, recorded};
use xtrain_graphs::{DType, InputRole, Shape, Tensor, Trace};

/// What one of the layers that make up most of a model computes and uses, with what comes before
/// the first and after the last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerDeclaration {
    /// Floating-point operations of the forward pass of one sequence of 128 tokens (or as many as
    /// the model takes).
    pub flops: f64,
    /// Names of the parameters that it uses.
    pub parameters: Vec<String>,
}

/// A linear layer or an embedding of tokens that a forward pass goes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdaptableModule {
    /// Its module's full name.
    pub name: String,
    /// Its matrix is `[in, out]`.
    pub is_conv1d: bool,
    /// It gives the model's logits.
    pub is_output: bool,
    /// Its matrix is another module's.
    pub is_tied: bool,
    pub has_bias: bool,
    /// It is a table of tokens.
    pub is_embedding: bool,
}

/// What the abstract trace shows.
pub(crate) struct Declaration {
    pub parameters: Vec<ParameterSpec>,
    /// Each once, in the order of their first use.
    pub linears: Vec<AdaptableModule>,
    pub layers: Vec<LayerDeclaration>,
    /// Forward operations of a token, but for attention's and the head's.
    per_token: f64,
    /// Forward operations of attention for each pair of tokens.
    per_pair: f64,
    /// Forward operations of the head for each row. A sequence classifier's one row for each
    /// sequence counts for nothing.
    head_per_row: f64,
}

impl Declaration {
    /// Notes which parameters are held in few bits, and that those are not trained: the matrices of all linear
    /// layers but the one that gives the model's outputs, those that are another module's too, and those that
    /// an adapter trains whole.
    pub fn quantize(&mut self, of: Quantization) {
        let layers = self.linears.iter();
        let layers = layers.filter(|layer| !layer.is_embedding && !layer.is_output);
        for layer in layers.filter(|layer| !layer.is_tied) {
            let name = format!("{}.weight", layer.name);
            let mut parameters = self.parameters.iter_mut();
            let matrix = parameters.find(|parameter| parameter.name == name);
            let is_own = |matrix: &&mut ParameterSpec| {
                matrix.aliases.is_empty() && matrix.set != ParameterSet::Adapter
            };
            if let Some(matrix) = matrix.filter(is_own) {
                matrix.trained = false;
                matrix.quantized = Some(QuantizedMatrix {
                    of,
                    is_conv1d: layer.is_conv1d,
                });
            }
        }
    }

    /// See [`crate::Model::step_flops`]: the backward pass computes two matmuls for each of the forward
    /// pass.
    pub fn step_flops(&self, batch: usize, tokens: usize) -> f64 {
        let rows = (batch * tokens) as f64;
        3.0 * rows * (self.per_token + self.per_pair * tokens as f64)
            + self.head_flops(batch * tokens)
    }

    /// The same where the weights of `base`, which is all this one has but for what was added to it, are not
    /// trained: their own gradients are not computed.
    pub fn step_flops_on(&self, base: &Declaration, batch: usize, tokens: usize) -> f64 {
        let rows = (batch * tokens) as f64;
        let unspent = rows * base.per_token + rows * base.head_per_row;
        self.step_flops(batch, tokens) - unspent
    }

    /// The part of [`Declaration::step_flops_on`] that is the head's.
    pub fn head_flops_on(&self, base: &Declaration, rows: usize) -> f64 {
        self.head_flops(rows) - rows as f64 * base.head_per_row
    }

    /// See [`crate::Model::head_flops`].
    pub fn head_flops(&self, rows: usize) -> f64 {
        3.0 * rows as f64 * self.head_per_row
    }
}

/// Parameters in the order in which torch lists a module tree: own tensors, then child by child.
/// `prefix` ends in a dot, or is empty at the root.
fn in_order(
    parameters: Vec<ParameterSpec>,
    prefix: &str,
    first: &HashMap<String, &'static [&'static str]>,
) -> Vec<ParameterSpec> {
    let mut ordered = Vec::new();
    let mut children: Vec<(String, Vec<ParameterSpec>)> = Vec::new();
    for parameter in parameters {
        match parameter.name[prefix.len()..].split_once('.') {
            None => ordered.push(parameter),
            Some((child, _)) => {
                let child = child.to_string();
                match children.iter_mut().find(|(known, _)| *known == child) {
                    Some((_, list)) => list.push(parameter),
                    None => children.push((child, vec![parameter])),
                }
            }
        }
    }
    let first_here = first.get(prefix).copied().unwrap_or_default();
    children.sort_by_key(|(child, _)| {
        let listed = first_here.iter().position(|name| name == child);
        listed.unwrap_or(first_here.len())
    });
    for (child, list) in children {
        ordered.extend(in_order(list, &format!("{prefix}{child}."), first));
    }
    ordered
}

/// Notes what a forward pass asks for.
pub(crate) struct Recorder(RefCell<Requests>);

struct Requests {
    /// The configuration's `initializer_range`.
    std: f64,
    /// In the order in which they were first asked for, with their placeholders.
    parameters: Vec<(ParameterSpec, Tensor)>,
    linears: Vec<AdaptableModule>,
    /// See [`crate::Weights::registers_first`].
    first: HashMap<String, &'static [&'static str]>,
    in_head: bool,
    layers: Vec<RecordedLayer>,
}

#[derive(Default)]
struct RecordedLayer {
    /// Its first node. What comes before the first layer counts as the first layer's.
    start: usize,
    parameters: Vec<String>,
}

impl Recorder {
    pub fn new(std: f64) -> Self {
        Recorder(RefCell::new(Requests {
            std,
            parameters: Vec::new(),
            linears: Vec::new(),
            first: HashMap::new(),
            in_head: false,
            layers: vec![RecordedLayer::default()],
        }))
    }

    /// What is asked for from here on belongs to the head.
    pub fn begin_head(&self) {
        self.0.borrow_mut().in_head = true;
    }

    /// Of the forward pass of one sequence of `tokens` tokens; `body_end` is the first node after
    /// the hidden states, `is_pooled` whether the head reads one row of each sequence.
    pub fn finish(
        self,
        trace: &Trace,
        tokens: usize,
        body_end: usize,
        is_pooled: bool,
    ) -> Declaration {
        let Requests {
            parameters,
            linears,
            first,
            layers,
            ..
        } = self.0.into_inner();
        let parameters = parameters.into_iter().map(|(spec, _)| spec).collect();
        let starts: Vec<usize> = layers.iter().map(|layer| layer.start).skip(1).collect();
        let bounds = [vec![0], starts, vec![trace.node_count()]].concat();
        let layers = layers
            .into_iter()
            .zip(bounds.windows(2))
            .map(|(layer, nodes)| LayerDeclaration {
                flops: recorded(trace, nodes[0]..nodes[1]).total(),
                parameters: layer.parameters,
            })
            .collect();
        let RecordedFlops { matmuls, attention } = recorded(trace, 0..body_end);
        let head = recorded(trace, body_end..trace.node_count()).total();
        let count = tokens as f64;
        Declaration {
            parameters: in_order(parameters, "", &first),
            linears,
            layers,
            per_token: matmuls / count,
            per_pair: attention / (count * count),
            head_per_row: if is_pooled { 0.0 } else { head / count },
        }
    }

    pub fn begin_layer(&self, trace: &Trace) {
        if trace.layers_entered() > 0 {
            self.0.borrow_mut().layers.push(RecordedLayer {
                start: trace.node_count(),
                parameters: Vec::new(),
            });
        }
    }

    /// Notes a layer that can be adapted; of the head's the last one gives the logits.
    pub fn note_adaptable(&self, linear: AdaptableModule) {
        let mut requests = self.0.borrow_mut();
        let in_head = requests.in_head;
        let is_known = |known: &AdaptableModule| known.name == linear.name;
        if requests.linears.iter().any(is_known) {
            return;
        }
        if in_head {
            let others = requests.linears.iter_mut();
            others.for_each(|other| other.is_output = false);
        }
        requests.linears.push(AdaptableModule {
            is_output: in_head,
            ..linear
        });
    }

    pub fn registers_first(&self, prefix: &str, children: &'static [&'static str]) {
        let mut requests = self.0.borrow_mut();
        requests.first.insert(prefix.to_string(), children);
    }

    pub fn request(
        &self,
        trace: &Trace,
        name: String,
        dims: &[(Axis, usize)],
        init: impl FnOnce(f64) -> Init,
    ) -> Result<Tensor> {
        let mut requests = self.0.borrow_mut();
        let (axes, dims): (Vec<Axis>, Vec<usize>) = dims.iter().copied().unzip();
        let known = requests
            .parameters
            .iter()
            .find(|(spec, _)| spec.name == name);
        let tensor = match known {
            Some((spec, tensor)) if spec.dims == dims && spec.axes == axes => tensor.clone(),
            Some((spec, _)) => {
                return Err(Error::WeightShape {
                    name,
                    wanted: dims,
                    found: spec.dims.clone(),
                });
            }
            None => {
                let shape = Shape::new(DType::F32, dims.clone());
                let tensor = trace.input(&name, shape, InputRole::State);
                let spec = ParameterSpec {
                    name: name.clone(),
                    // Biases and norms' weights are the only vectors.
                    decay: dims.len() > 1,
                    dims,
                    axes,
                    init: init(requests.std),
                    head: requests.in_head,
                    aliases: Vec::new(),
                    set: ParameterSet::Policy,
                    trained: true,
                    quantized: None,
                };
                requests.parameters.push((spec, tensor.clone()));
                tensor
            }
        };
        requests.note_use(&name);
        Ok(tensor)
    }

    pub fn tied(&self, full_name: &str) -> Result<Tensor> {
        let mut requests = self.0.borrow_mut();
        let known = requests
            .parameters
            .iter()
            .find(|(spec, _)| spec.name == full_name);
        let Some((_, tensor)) = known else {
            return Err(Error::NoSuchWeight {
                name: full_name.to_string(),
            });
        };
        let tensor = tensor.clone();
        requests.note_use(full_name);
        Ok(tensor)
    }

    /// `alias` is another name for a parameter that was asked for.
    pub fn note_alias(&self, full_name: &str, alias: String) {
        let mut requests = self.0.borrow_mut();
        let mut parameters = requests.parameters.iter_mut();
        let named = parameters.find(|(spec, _)| spec.name == full_name);
        if let Some((spec, _)) = named.filter(|(spec, _)| !spec.answers_to(&alias)) {
            spec.aliases.push(alias);
        }
    }
}

impl Requests {
    fn note_use(&mut self, name: &str) {
        let layer = self.layers.last_mut().expect("there is one from the start");
        if !layer.parameters.iter().any(|known| known == name) {
            layer.parameters.push(name.to_string());
        }
    }
}
