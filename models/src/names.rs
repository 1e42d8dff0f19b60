//! Weight names: lists of parameters as Hugging Face has them, and the variants that checkpoints
//! use.

use crate::weights::{Init, ParameterSpec, StoredName};

/// A list of parameters under construction, in the order in which Hugging Face registers them.
pub(crate) struct Specs {
    normal: Init,
    in_head: bool,
    list: Vec<ParameterSpec>,
}

impl Specs {
    /// Matrices start normal with this standard deviation.
    pub fn new(std: f64) -> Self {
        Specs {
            normal: Init::Normal { std },
            in_head: false,
            list: Vec::new(),
        }
    }

    /// What is added from here on belongs to the task's head.
    pub fn begin_head(&mut self) {
        self.in_head = true;
    }

    /// Matrices decay; biases and LayerNorm weights, the only vectors, do not.
    pub fn add(&mut self, name: impl Into<String>, dims: &[usize], init: Init) {
        self.list.push(ParameterSpec {
            name: name.into(),
            dims: dims.to_vec(),
            init,
            decay: dims.len() > 1,
            head: self.in_head,
        });
    }

    /// `name.weight [out, in]`
    pub fn matrix(&mut self, name: &str, dims: [usize; 2]) {
        self.add(format!("{name}.weight"), &dims, self.normal);
    }

    /// An embedding table; the row of `padding` starts at zero.
    pub fn table(&mut self, name: &str, dims: [usize; 2], padding: Option<usize>) {
        let init = match (self.normal, padding) {
            (Init::Normal { std }, Some(row)) => Init::NormalWithZeroRow { std, row },
            (normal, _) => normal,
        };
        self.add(format!("{name}.weight"), &dims, init);
    }

    /// `name.weight [out, in]` and `name.bias [out]`
    pub fn linear(&mut self, name: &str, dims: [usize; 2]) {
        self.matrix(name, dims);
        self.add(format!("{name}.bias"), &dims[..1], Init::Zeros);
    }

    /// `name.weight [in, out]` and `name.bias [out]`: GPT-2's layout; `init` is the weight's, where
    /// it is not the usual one.
    pub fn conv1d(&mut self, name: &str, dims: [usize; 2], init: Option<Init>) {
        self.add(format!("{name}.weight"), &dims, init.unwrap_or(self.normal));
        self.add(format!("{name}.bias"), &dims[1..], Init::Zeros);
    }

    pub fn layer_norm(&mut self, name: &str, width: usize) {
        self.add(format!("{name}.weight"), &[width], Init::Ones);
        self.add(format!("{name}.bias"), &[width], Init::Zeros);
    }

    pub fn finish(self) -> Vec<ParameterSpec> {
        self.list
    }
}

/// Tensors that checkpoints of a family carry besides a model's own parameters, by the beginnings
/// of their names below the base (`bert.`) or without one.
pub(crate) struct OtherTensors<'a> {
    /// Buffers and copies of tied tensors.
    pub not_needed: &'a [&'a str],
    /// Heads, of whatever task; those of the model's own task are among its parameters.
    pub heads: &'a [&'a str],
}

/// What a checkpoint's tensor is to a model with these parameters. `base` is the prefix that a bare
/// model's names lack (`bert`).
pub(crate) fn stored_name(
    name: &str,
    base: &str,
    parameters: &[ParameterSpec],
    others: OtherTensors,
) -> StoredName {
    // Checkpoints that came from TensorFlow call a LayerNorm's weight and bias gamma and beta.
    let modern = match (name.strip_suffix(".gamma"), name.strip_suffix(".beta")) {
        (Some(stem), _) => format!("{stem}.weight"),
        (_, Some(stem)) => format!("{stem}.bias"),
        _ => name.to_string(),
    };
    for candidate in [format!("{base}.{modern}"), modern] {
        if parameters.iter().any(|p| p.name == candidate) {
            return StoredName::Parameter(candidate);
        }
    }
    let inner = name
        .strip_prefix(base)
        .and_then(|rest| rest.strip_prefix('.'))
        .unwrap_or(name);
    let begins = |starts: &[&str]| starts.iter().any(|start| inner.starts_with(start));
    match () {
        () if begins(others.not_needed) => StoredName::NotNeeded,
        () if begins(others.heads) => StoredName::OtherHead,
        () => StoredName::Unknown,
    }
}
