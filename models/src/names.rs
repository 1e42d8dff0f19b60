//! Weight names: lists of parameters as Hugging Face has them, and the variants that checkpoints use.

use crate::weights::{Init, ParameterSpec, StoredName};

/// A list of parameters under construction, in the order in which Hugging Face registers them.
pub(crate) struct Specs {
    normal: Init,
    list: Vec<ParameterSpec>,
}

impl Specs {
    /// Matrices start normal with this standard deviation.
    pub fn new(std: f64) -> Self {
        Specs { normal: Init::Normal { std }, list: Vec::new() }
    }

    /// Matrices decay; biases and LayerNorm weights, the only vectors, do not.
    pub fn add(&mut self, name: impl Into<String>, dims: &[usize], init: Init) {
        self.list.push(ParameterSpec { name: name.into(), dims: dims.to_vec(), init, decay: dims.len() > 1 });
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

    pub fn layer_norm(&mut self, name: &str, width: usize) {
        self.add(format!("{name}.weight"), &[width], Init::Ones);
        self.add(format!("{name}.bias"), &[width], Init::Zeros);
    }

    pub fn finish(self) -> Vec<ParameterSpec> {
        self.list
    }
}

/// What a checkpoint's tensor is to a model with these parameters. `base` is the prefix that a bare model's names lack
/// (`bert`); `not_needed` are beginnings of names, below the base or not, of buffers, tied copies and other heads.
pub(crate) fn stored_name(name: &str, base: &str, parameters: &[ParameterSpec], not_needed: &[&str]) -> StoredName {
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
    let inner = name.strip_prefix(base).and_then(|rest| rest.strip_prefix('.')).unwrap_or(name);
    match not_needed.iter().any(|start| inner.starts_with(start)) {
        true => StoredName::NotNeeded,
        false => StoredName::Unknown,
    }
}
