//! How the devices of a tensor-parallel group divide a model's weights between them, as Megatron-LM
//! does (Shoeybi et al. 2019): of each pair of matrices the first by its outputs, the second by its
//! inputs; attention by heads; embeddings and heads by the vocabulary.

use crate::error::{Error, Result};
use crate::{Model, family};
use std::collections::HashMap;
use xtrain_graphs::passes::partition::Cut;

/// Endings of parameters' names and how they are cut. Families list theirs.
pub(crate) type Cuts = &'static [(&'static str, Cut)];

/// Along one dimension.
pub(crate) const fn along(dim: usize) -> Cut {
    Cut { dim, blocks: 1 }
}

/// Along one dimension of which each of so many equal blocks is divided.
pub(crate) const fn blocks(dim: usize, blocks: usize) -> Cut {
    Cut { dim, blocks }
}

/// How `parts` devices divide the model's parameters; what is not named is whole on each. A
/// vocabulary need not divide: its tables are filled up with rows of zeros, which no token has, and
/// their logits take no part ([`crate::loss`]).
///
/// # Errors
/// If heads or inner widths do not divide; it names the degrees that do.
pub fn tensor_cuts(model: &dyn Model, parts: usize) -> Result<HashMap<String, Cut>> {
    if parts <= 1 {
        return Ok(HashMap::new());
    }
    let cuts = family(model.config())?.cuts;
    let vocabulary = model.vocab_size();
    let mut found = HashMap::new();
    // What has to divide.
    let mut sizes = vec![model.about().heads];
    for parameter in model.parameters() {
        let Some((_, cut)) = cuts
            .iter()
            .find(|(ending, _)| parameter.name.ends_with(ending))
        else {
            continue;
        };
        let size = parameter.dims[cut.dim] / cut.blocks;
        if size != vocabulary || cut.dim > 0 {
            sizes.push(size);
        }
        found.insert(parameter.name, *cut);
    }
    let divides = |degree: usize| sizes.iter().all(|size| size.is_multiple_of(degree));
    if divides(parts) {
        return Ok(found);
    }
    let legal: Vec<String> = (1..=model.about().heads)
        .filter(|degree| divides(*degree))
        .map(|degree| degree.to_string())
        .collect();
    Err(Error::TensorDegree {
        degree: parts,
        heads: model.about().heads,
        legal: legal.join(", "),
    })
}
