//! How the devices of a tensor-parallel group shard a model's weights: along the axes that
//! [`Axis`](crate::Axis) names for it.

use crate::axis::Axis;
use crate::error::{Error, Result};
use crate::model::Model;
use std::collections::HashMap;
use xtrain_graphs::passes::partition::ShardSpec;

/// How `degree` devices shard the model's parameters; what is not named is replicated. A vocabulary
/// need not divide: its tables are padded with rows of zeros, which no token has, and their logits
/// take no part (`loss.rs`). Where there are fewer key/value heads than devices, every device
/// has their weights whole and uses those of its query heads.
///
/// # Errors
/// If heads, key/value heads or intermediate sizes do not divide; the message names the degrees
/// that do.
pub fn tensor_shard_specs(model: &dyn Model, degree: usize) -> Result<HashMap<String, ShardSpec>> {
    if degree <= 1 {
        return Ok(HashMap::new());
    }
    let info = model.info();
    let mut specs = HashMap::new();
    let divides_kv = |degree: usize| info.kv_heads.is_multiple_of(degree);
    // What has to divide.
    let mut sizes = vec![info.heads];
    let mut grouped = false;
    for parameter in model.parameters() {
        let is_sharded = |axis: &Axis| axis.is_tensor_parallel();
        let Some(dim) = parameter.axes.iter().position(is_sharded) else {
            continue;
        };
        let axis = parameter.axes[dim];
        if axis.has_grouped_heads() {
            grouped = true;
            if !divides_kv(degree) {
                continue;
            }
        }
        let blocks = axis.blocks();
        let units = parameter.units();
        if units.is_empty() {
            return Err(Error::QuantizedRows {
                name: parameter.name.clone(),
                dims: parameter.dims.clone(),
            });
        }
        if axis != Axis::Vocab && !axis.has_grouped_heads() {
            sizes.push(units[dim] / blocks);
        }
        specs.insert(parameter.name.clone(), ShardSpec { dim, blocks });
    }
    let kv_fits =
        |degree: usize| divides_kv(degree) || grouped && degree.is_multiple_of(info.kv_heads);
    let divides =
        |degree: usize| kv_fits(degree) && sizes.iter().all(|size| size.is_multiple_of(degree));
    if divides(degree) {
        return Ok(specs);
    }
    let legal: Vec<String> = (1..=info.heads)
        .filter(|degree| divides(*degree))
        .map(|degree| degree.to_string())
        .collect();
    Err(Error::TensorDegree {
        degree,
        heads: info.heads,
        legal: legal.join(", "),
    })
}
