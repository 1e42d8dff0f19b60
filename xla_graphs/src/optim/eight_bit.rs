//! Optimizers whose moments are in 8 bits between steps (Dettmers et al. 2021, arXiv:2110.02861): a code for
//! each element and a scale for each block of 256 ([`BlockCodes`](crate::op::BlockCodes)). A step decodes
//! them, updates in f32 as the rule in 32 bits does, and encodes the new moments; the parameter moves by
//! those before they are encoded.
//!
//! What keeps 32 bits is what does in bitsandbytes under transformers' Trainer or in torchao.

use super::adamw::AdamW;
use super::lion::Lion;
use super::{
    ArgumentReader, Hyperparameters, Optimizer, OptimizerKind, ParameterInfo, StateSpec, Update,
    Updated,
};
use crate::block_codes::{BLOCK, block_dims};
use crate::dtype::DType;
use crate::error::Result;
use crate::op::DynamicMap;
use crate::trace::Tensor;

/// AdamW as of bitsandbytes: `--optim adamw_bnb_8bit` and its aliases. Nothing is paged.
pub const ADAMW_8BIT: OptimizerKind = OptimizerKind {
    name: "adamw_8bit",
    choices: &["adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit"],
    new: |hyper, _| EightBit::boxed(AdamW(*hyper), BITSANDBYTES),
};

/// AdamW as of torchao: `--optim adamw_torch_8bit`.
pub const ADAMW_TORCH_8BIT: OptimizerKind = OptimizerKind {
    name: "adamw_torch_8bit",
    choices: &["adamw_torch_8bit"],
    new: adamw_of_torchao,
};

/// Lion as of bitsandbytes: `--optim lion_8bit`.
pub const LION_8BIT: OptimizerKind = OptimizerKind {
    name: "lion_8bit",
    choices: &["lion_8bit", "paged_lion_8bit"],
    new: |hyper, _| EightBit::boxed(Lion(*hyper), BITSANDBYTES),
};

/// Parameters of fewer elements keep 32 bits.
const LEAST_ELEMENTS: usize = 4096;

/// What a library does with parameters and scales.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Library {
    /// Embeddings keep 32 bits: the Trainer asks it of bitsandbytes.
    keeps_embeddings: bool,
    /// So does what does not divide into blocks.
    keeps_remainders: bool,
    /// What is kept is f32, whatever else the run holds its state in.
    keeps_f32: bool,
    /// The least scale.
    floor: f64,
}

const BITSANDBYTES: Library = Library {
    keeps_embeddings: true,
    keeps_remainders: false,
    keeps_f32: true,
    floor: 0.0,
};

const TORCHAO: Library = Library {
    keeps_embeddings: false,
    keeps_remainders: true,
    keeps_f32: false,
    floor: 1e-12,
};

/// The moments that can be in 8 bits: their names, those of their codes and scales, and their map.
const MOMENTS: [(&str, &str, &str, DynamicMap); 2] = [
    (
        "exp_avg",
        "exp_avg_codes",
        "exp_avg_scales",
        DynamicMap::Signed,
    ),
    (
        "exp_avg_sq",
        "exp_avg_sq_codes",
        "exp_avg_sq_scales",
        DynamicMap::Unsigned,
    ),
];

/// A rule that is element by element, with its moments in 8 bits.
#[derive(Debug)]
struct EightBit<O> {
    rule: O,
    library: Library,
}

fn adamw_of_torchao(hyper: &Hyperparameters, args: &mut ArgumentReader) -> Box<dyn Optimizer> {
    let block = args.optional_count("block_size", 1);
    if let Some(other) = block.filter(|block| *block != BLOCK as u64) {
        args.refuse(format!("block_size must be {BLOCK}, found `{other}`"));
    }
    if args.flag("bf16_stochastic_round", false) {
        args.refuse("bf16_stochastic_round must be false: weights are rounded to the nearest");
    }
    EightBit::boxed(AdamW(*hyper), TORCHAO)
}

impl<O: Optimizer> EightBit<O> {
    fn boxed(rule: O, library: Library) -> Box<dyn Optimizer>
    where
        O: 'static,
    {
        Box::new(EightBit { rule, library })
    }

    /// Whether the moments of a parameter are in 8 bits.
    fn encodes(&self, parameter: ParameterInfo) -> bool {
        let elements: usize = parameter.dims.iter().product();
        let is_divided = elements.is_multiple_of(BLOCK) || !self.library.keeps_remainders;
        let is_kept = self.library.keeps_embeddings && parameter.is_embedding;
        elements >= LEAST_ELEMENTS && is_divided && !is_kept
    }
}

/// What stands for a moment: names of codes and scales, and their map.
fn coding_of(moment: &StateSpec) -> (&'static str, &'static str, DynamicMap) {
    let known = MOMENTS.iter().find(|(name, ..)| *name == moment.name);
    let (_, codes, scales, map) = known.expect("a moment that can be in 8 bits");
    (codes, scales, *map)
}

/// The codes and scales that stand for a moment of a parameter of these sizes.
fn coded(moment: &StateSpec, dims: &[usize]) -> [StateSpec; 2] {
    let (codes, scales, _) = coding_of(moment);
    let blocks = block_dims(dims);
    [
        StateSpec {
            dtype: Some(DType::U8),
            ..StateSpec::zeros(codes, dims)
        },
        StateSpec {
            name: scales,
            along: (0..blocks.len()).collect(),
            dims: blocks,
            dtype: Some(DType::F32),
            per_block: true,
            initial: Some(0.0),
        },
    ]
}

impl<O: Optimizer> Optimizer for EightBit<O> {
    fn state(&self, parameter: ParameterInfo) -> Vec<StateSpec> {
        let moments = self.rule.state(parameter);
        if self.encodes(parameter) {
            let all = moments.iter().map(|moment| coded(moment, parameter.dims));
            return all.flatten().collect();
        }
        let kept = moments.into_iter().map(|moment| StateSpec {
            dtype: self.library.keeps_f32.then_some(DType::F32),
            ..moment
        });
        kept.collect()
    }

    fn scalars(&self, learning_rate: f64, step: u64) -> Vec<f64> {
        self.rule.scalars(learning_rate, step)
    }

    fn counters(&self) -> &'static [&'static str] {
        self.rule.counters()
    }

    fn next_counters(&self, counters: &[Tensor]) -> Result<Vec<Tensor>> {
        self.rule.next_counters(counters)
    }

    fn counted_scalars(&self, rate: &Tensor, counters: &[Tensor]) -> Result<Vec<Tensor>> {
        self.rule.counted_scalars(rate, counters)
    }

    fn update(&self, update: &Update) -> Result<Updated> {
        if !self.encodes(update.info) {
            return self.rule.update(update);
        }
        let moments = self.rule.state(update.info);
        let padded = Padded::of(update);
        let (pairs, _) = update.state.as_chunks::<2>();
        let decoded = moments.iter().zip(pairs).map(|(moment, [codes, scales])| {
            let (.., map) = coding_of(moment);
            padded.fill(&padded.cut(codes)?.decode_blocks(scales, map)?)
        });
        let decoded = decoded.collect::<Result<Vec<Tensor>>>()?;
        let new = self.rule.update(&Update {
            state: &decoded,
            ..*update
        })?;
        let mut state = Vec::new();
        for ((moment, [_, old]), new) in moments.iter().zip(pairs).zip(&new.state) {
            let new = padded.cut(new)?;
            let scales = new.block_scales(old.dims(), self.library.floor)?;
            let (.., map) = coding_of(moment);
            let codes = new.encode_blocks(&scales, map)?;
            state.extend([padded.fill(&codes)?, scales]);
        }
        Ok(Updated {
            parameter: new.parameter,
            state,
        })
    }
}

/// What a tensor axis has padded a parameter with, where its rows are no whole blocks: the blocks are
/// those of the parameter.
struct Padded {
    rows: usize,
    true_rows: usize,
}

impl Padded {
    fn of(update: &Update) -> Self {
        let (rows, true_rows) = (update.parameter.dims()[0], update.info.dims[0]);
        let is_by_rows = block_dims(update.info.dims).len() > 1;
        // Of a shard there are fewer.
        if rows <= true_rows || is_by_rows {
            return Padded {
                rows,
                true_rows: rows,
            };
        }
        Padded { rows, true_rows }
    }

    fn cut(&self, x: &Tensor) -> Result<Tensor> {
        if self.rows == self.true_rows {
            return Ok(x.clone());
        }
        let mut ends = x.dims().to_vec();
        ends[0] = self.true_rows;
        x.slice(&vec![0; ends.len()], &ends)
    }

    fn fill(&self, x: &Tensor) -> Result<Tensor> {
        if self.rows == self.true_rows {
            return Ok(x.clone());
        }
        let none = vec![0; x.dims().len()];
        let mut after = none.clone();
        after[0] = self.rows - self.true_rows;
        x.pad(&none, &after)
    }
}
