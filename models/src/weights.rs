//! How a model reaches its parameters while it records a step, and what it says about each.
//!
//! A layer asks for a weight where it uses it, with its axes, sizes and initialization. [`Weights`]
//! answers in one of two ways: in [`declare`](crate::declare)'s abstract trace it notes what is
//! asked for and gives a placeholder; in a step it gives the tensor and checks its shape.

use crate::axis::Axis;
use crate::declaration::{AdaptableModule, Recorder};
use crate::error::{Error, Result};
use crate::lora::Adapter;
use crate::parameter::{Init, ParameterSpec};
use crate::quantization::QuantizedMatrix;
use std::collections::HashMap;
use std::sync::Arc;
use xtrain_graphs::{DType, DropoutRng, ScopeGuard, Tensor, Trace};

/// A parameter as a recorded step has it.
#[derive(Clone)]
pub enum Weight {
    /// All of it.
    Whole(Tensor),
    /// Sharded along `dim` over the replicas of a group; it is all-gathered where it is used.
    Sharded {
        /// What this replica holds.
        shard: Tensor,
        /// The sharded dimension.
        dim: usize,
        /// The replicas that hold one parameter together.
        groups: Arc<[Vec<u32>]>,
    },
    /// Held in few bits; its values are computed where it is used, in each place by itself.
    Quantized {
        /// The codes.
        codes: Box<Weight>,
        /// What belongs to them, in the order of [`ParameterSpec::arrays`].
        others: Vec<Weight>,
        /// How codes stand for values.
        matrix: QuantizedMatrix,
        /// The parameter's sizes.
        dims: Vec<usize>,
        /// The type that values are rounded to.
        dtype: DType,
    },
    /// One for each stage of a pipeline that uses it, by the stage.
    OfStages(Vec<(usize, Weight)>),
}

impl Weight {
    /// A parameter of the arrays that hold it ([`ParameterSpec::arrays`]), in their order.
    ///
    /// # Panics
    /// If there is none.
    pub fn of(parameter: &ParameterSpec, mut arrays: Vec<Weight>, dtype: DType) -> Weight {
        let first = arrays.remove(0);
        match parameter.quantized {
            None => first,
            Some(matrix) => Weight::Quantized {
                codes: Box::new(first),
                others: arrays,
                matrix,
                dims: parameter.dims.clone(),
                dtype,
            },
        }
    }

    /// What the step holds of it, in the order of stages.
    pub fn held(&self) -> Vec<&Tensor> {
        match self {
            Weight::Whole(whole) => vec![whole],
            Weight::Sharded { shard, .. } => vec![shard],
            Weight::Quantized { codes, .. } => codes.held(),
            Weight::OfStages(weights) => weights
                .iter()
                .flat_map(|(_, weight)| weight.held())
                .collect(),
        }
    }

    /// The whole; where it has to be gathered or dequantized, not before `after` is there.
    fn whole(&self, after: Option<&Tensor>) -> Result<Tensor> {
        match (self, after) {
            (Weight::Whole(whole), _) => Ok(whole.clone()),
            (Weight::Sharded { shard, dim, groups }, Some(after)) => {
                Ok(shard.after(after)?.all_gather(groups, *dim)?)
            }
            (Weight::Sharded { shard, dim, groups }, None) => Ok(shard.all_gather(groups, *dim)?),
            (
                Weight::Quantized {
                    codes,
                    others,
                    matrix,
                    dims,
                    dtype,
                },
                after,
            ) => {
                let codes = match (&**codes, after) {
                    (Weight::Whole(codes), Some(after)) => codes.after(after)?,
                    (codes, after) => codes.whole(after)?,
                };
                let _scope = codes.trace().clone().scope("dequantize");
                let others = others.iter().map(|other| other.whole(after));
                let others = others.collect::<Result<Vec<Tensor>>>()?;
                Ok(matrix.matrix(dims, &codes, &others, *dtype)?)
            }
            (Weight::OfStages(weights), _) => {
                let (first, weight) = weights.first().expect("a stage at least");
                let stage = weight.held()[0].trace().stage().unwrap_or(*first);
                let here = weights.iter().find(|(of, _)| *of == stage);
                here.map_or(weight, |(_, weight)| weight).whole(after)
            }
        }
    }
}

/// Where weights come from.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// The parameters of a step, by name.
    Bound(&'a HashMap<String, Weight>),
    /// Placeholders.
    Declaring(&'a Recorder),
}

/// The model's parameters as tensors of one trace, seen from one module of the model.
#[derive(Clone)]
pub struct Weights<'a> {
    trace: &'a Trace,
    source: Source<'a>,
    prefix: String,
    /// The input of the layer that this is seen from.
    layer_input: Option<Tensor>,
    adapter: AdapterUse<'a>,
}

/// What is added to linear layers.
#[derive(Clone)]
enum AdapterUse<'a> {
    /// Nothing, as no model has said otherwise.
    None,
    /// Nothing, whatever a model says.
    Off,
    On(&'a Adapter, DropoutRng),
}

impl<'a> Weights<'a> {
    /// The parameters that a step has, by name.
    pub fn new(trace: &'a Trace, all: &'a HashMap<String, Weight>) -> Self {
        Weights::from_source(trace, Source::Bound(all))
    }

    pub(crate) fn declaring(trace: &'a Trace, recorder: &'a Recorder) -> Self {
        Weights::from_source(trace, Source::Declaring(recorder))
    }

    fn from_source(trace: &'a Trace, source: Source<'a>) -> Self {
        Weights {
            trace,
            source,
            prefix: String::new(),
            layer_input: None,
            adapter: AdapterUse::None,
        }
    }

    /// The same for the model that an adapter was added to: the adapter is switched off.
    pub fn without_adapter(&self) -> Weights<'a> {
        Weights {
            adapter: AdapterUse::Off,
            ..self.clone()
        }
    }

    /// The same with an adapter, whose dropout draws from `rng`, unless it is switched off.
    pub(crate) fn with_adapter<'b>(&self, adapter: &'b Adapter, rng: &DropoutRng) -> Weights<'b>
    where
        'a: 'b,
    {
        let adapter = match self.adapter {
            AdapterUse::Off => AdapterUse::Off,
            AdapterUse::None | AdapterUse::On(..) => AdapterUse::On(adapter, rng.clone()),
        };
        Weights {
            adapter,
            ..self.clone()
        }
    }

    /// What is added to layers here, and what its dropout draws from.
    pub(crate) fn adapter(&self) -> Option<(&Adapter, &DropoutRng)> {
        match &self.adapter {
            AdapterUse::On(adapter, rng) => Some((adapter, rng)),
            AdapterUse::None | AdapterUse::Off => None,
        }
    }

    /// The full name of this module.
    pub(crate) fn module(&self) -> &str {
        self.prefix.strip_suffix('.').unwrap_or(&self.prefix)
    }

    /// Notes that this module is a layer that can be adapted.
    pub(crate) fn note_adaptable(&self, module: AdaptableModule) {
        if let Source::Declaring(recorder) = self.source {
            recorder.note_adaptable(module);
        }
    }

    /// The trace that the step is recorded in.
    pub fn trace(&self) -> &'a Trace {
        self.trace
    }

    /// The weights of the module `name`, seen from the same place in the model path.
    pub(crate) fn below(&self, name: &str) -> Weights<'a> {
        Weights {
            prefix: format!("{}{name}.", self.prefix),
            ..self.clone()
        }
    }

    /// The weights of the module `name`, and the model path to go with them until the guard is
    /// dropped.
    pub fn enter(&self, name: &str) -> (Weights<'a>, ScopeGuard) {
        self.enter_at(name, name)
    }

    /// As [`Weights::enter`], with another model path.
    pub(crate) fn enter_at(&self, path: &str, name: &str) -> (Weights<'a>, ScopeGuard) {
        (self.below(name), self.trace.scope(path))
    }

    /// As [`Weights::enter`], for one of the layers that make up most of the model. Sharded
    /// parameters are gathered when its input `x` is there, not before, so that only a layer's are
    /// in memory at a time.
    pub fn enter_layer(&self, name: &str, x: &Tensor) -> (Weights<'a>, ScopeGuard) {
        self.enter_layer_with(name, name, x)
    }

    /// As [`Weights::enter_layer`], for a layer whose weights, below `name`, are other layers' too:
    /// the model path tells them apart.
    pub fn enter_layer_with(
        &self,
        path: &str,
        name: &str,
        x: &Tensor,
    ) -> (Weights<'a>, ScopeGuard) {
        if let Source::Declaring(recorder) = self.source {
            recorder.begin_layer(self.trace);
        }
        let weights = Weights {
            layer_input: Some(x.clone()),
            ..self.below(name)
        };
        (weights, self.trace.layer(path))
    }

    /// Children of this module that transformers registers before its others, in this order.
    /// Parameters are listed as torch lists them: a module's own before its children's, children in
    /// the order in which the forward pass first asks for them unless this says otherwise.
    pub fn registers_first(&self, children: &'static [&'static str]) {
        if let Source::Declaring(recorder) = self.source {
            recorder.registers_first(&self.prefix, children);
        }
    }

    /// A matrix that starts normal with the configuration's `initializer_range`.
    ///
    /// # Errors
    /// As every request: if the step has no such weight or one of another shape, or if the weight
    /// was asked for with another shape before.
    pub fn matrix(&self, name: &str, dims: [(Axis, usize); 2]) -> Result<Tensor> {
        self.request(name, &dims, |std| Init::Normal { std })
    }

    /// A matrix that starts normal with this standard deviation.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn matrix_with_std(
        &self,
        name: &str,
        dims: [(Axis, usize); 2],
        std: f64,
    ) -> Result<Tensor> {
        self.request(name, &dims, |_| Init::Normal { std })
    }

    /// An embedding table; the row of `padding_idx` starts at zero.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn table(
        &self,
        name: &str,
        dims: [(Axis, usize); 2],
        padding_idx: Option<usize>,
    ) -> Result<Tensor> {
        self.request(name, &dims, |std| match padding_idx {
            Some(row) => Init::NormalWithZeroRow { std, row },
            None => Init::Normal { std },
        })
    }

    /// A table of positions that starts as sines and cosines.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn sinusoids(&self, name: &str, dims: [(Axis, usize); 2]) -> Result<Tensor> {
        self.request(name, &dims, |_| Init::Sinusoids)
    }

    /// A bias; it starts at zero.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn bias(&self, name: &str, dim: (Axis, usize)) -> Result<Tensor> {
        self.request(name, &[dim], |_| Init::Zeros)
    }

    /// A matrix that starts uniform between `-bound` and `bound`.
    pub(crate) fn uniform(
        &self,
        name: &str,
        dims: [(Axis, usize); 2],
        bound: f64,
    ) -> Result<Tensor> {
        self.request(name, &dims, |_| Init::Uniform { bound })
    }

    /// A matrix that starts as a copy of the parameter of this full name.
    pub(crate) fn copied(
        &self,
        name: &str,
        dims: [(Axis, usize); 2],
        full_name: &str,
    ) -> Result<Tensor> {
        let parameter = full_name.to_string();
        self.request(name, &dims, |_| Init::CopyOf { parameter })
    }

    /// A matrix that starts as these rows of the parameter of this full name.
    pub(crate) fn rows_of(
        &self,
        name: &str,
        dims: [(Axis, usize); 2],
        full_name: &str,
        rows: &[usize],
    ) -> Result<Tensor> {
        let (parameter, rows) = (full_name.to_string(), rows.to_vec());
        self.request(name, &dims, |_| Init::RowsOf { parameter, rows })
    }

    /// A matrix that starts at zero.
    pub(crate) fn zeros(&self, name: &str, dims: [(Axis, usize); 2]) -> Result<Tensor> {
        self.request(name, &dims, |_| Init::Zeros)
    }

    /// A number for each output of this module's `weight`, whose dimension of inputs is `inputs`; it starts
    /// as the norm of what the output is made of.
    pub(crate) fn row_norms(
        &self,
        name: &str,
        dim: (Axis, usize),
        inputs: usize,
    ) -> Result<Tensor> {
        self.request(name, &[dim], |_| Init::RowNorms { inputs })
    }

    /// The weight of a norm; it starts at one.
    ///
    /// # Errors
    /// As [`Weights::matrix`].
    pub fn scale(&self, name: &str, dim: (Axis, usize)) -> Result<Tensor> {
        self.request(name, &[dim], |_| Init::Ones)
    }

    /// A weight that was asked for before, by its full name.
    ///
    /// # Errors
    /// If it was not.
    pub fn tied(&self, full_name: &str) -> Result<Tensor> {
        match self.source {
            Source::Bound(all) => self.bound(all, full_name),
            Source::Declaring(recorder) => recorder.tied(full_name),
        }
    }

    /// The weight `name` of this module, where that is another name for one that was asked for
    /// before ([`ParameterSpec::aliases`](crate::ParameterSpec::aliases)).
    ///
    /// # Errors
    /// As [`Weights::tied`].
    pub(crate) fn shared(&self, name: &str, full_name: &str) -> Result<Tensor> {
        let tensor = self.tied(full_name)?;
        self.note_alias(name, full_name);
        Ok(tensor)
    }

    /// As [`Weights::bias`] for the bias `full_name`, of which `name` of this module is another
    /// name.
    pub(crate) fn bias_named(
        &self,
        name: &str,
        full_name: &str,
        dim: (Axis, usize),
    ) -> Result<Tensor> {
        let at_root = Weights {
            prefix: String::new(),
            ..self.clone()
        };
        let tensor = at_root.bias(full_name, dim)?;
        self.note_alias(name, full_name);
        Ok(tensor)
    }

    fn note_alias(&self, name: &str, full_name: &str) {
        if let Source::Declaring(recorder) = self.source {
            recorder.note_alias(full_name, format!("{}{name}", self.prefix));
        }
    }

    fn bound(&self, all: &HashMap<String, Weight>, full_name: &str) -> Result<Tensor> {
        match all.get(full_name) {
            Some(weight) => weight.whole(self.layer_input.as_ref()),
            None => Err(Error::NoSuchWeight {
                name: full_name.to_string(),
            }),
        }
    }

    /// A parameter in its whole shape. `init` takes the configuration's `initializer_range`.
    fn request(
        &self,
        name: &str,
        dims: &[(Axis, usize)],
        init: impl FnOnce(f64) -> Init,
    ) -> Result<Tensor> {
        let name = format!("{}{name}", self.prefix);
        match self.source {
            Source::Declaring(recorder) => recorder.request(self.trace, name, dims, init),
            Source::Bound(all) => {
                let tensor = self.bound(all, &name)?;
                // Tensor parallelism pads a vocabulary that does not divide.
                let fits = |(found, (axis, size)): (&usize, &(Axis, usize))| {
                    found == size || *axis == Axis::Vocab && found > size
                };
                if tensor.rank() == dims.len() && tensor.dims().iter().zip(dims).all(fits) {
                    return Ok(tensor);
                }
                Err(Error::WeightShape {
                    name,
                    wanted: dims.iter().map(|(_, size)| *size).collect(),
                    found: tensor.dims().to_vec(),
                })
            }
        }
    }
}
