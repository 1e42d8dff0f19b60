//! What neuronx-cc refuses or gets wrong beside single opcodes, one rule each, with the place where
//! AWS or a user says so. Only the first rule that an instruction breaks is reported.

use super::ranges::{self, Range};
use super::table::{CUSTOM_CALLS, NEURON, REFUSED, element};
use crate::hlo::{self, Instruction, Module, Shape};
use std::collections::HashMap;
use xtrain_graphs::NeuronChip as Chip;

/// An instruction in its module.
pub(super) struct Checked<'m> {
    pub module: &'m Module,
    pub chip: Chip,
    pub instructions: &'m HashMap<i64, &'m Instruction>,
    pub ranges: &'m HashMap<i64, Range>,
    pub this: &'m Instruction,
}

/// What of an instruction breaks a rule, in words.
type Broken = Option<String>;

pub struct Rule {
    /// What has to hold.
    pub name: &'static str,
    pub source: &'static str,
    pub(super) broken: fn(&Checked) -> Broken,
}

const fn rule(name: &'static str, source: &'static str, broken: fn(&Checked) -> Broken) -> Rule {
    Rule {
        name,
        source,
        broken,
    }
}

/// In the order in which they are tried.
pub const RULES: &[Rule] = &[
    rule("shapes are static", "codes EMOD025", dynamic_shape),
    rule("no complex numbers", "codes EVRF004", complex),
    rule("no 64-bit floats", "codes ESPP004", f64),
    rule(
        "narrow floats are those of the chip",
        "codes EVRF051, EVRF052; types",
        narrow_float,
    ),
    rule(
        "no operation that is known to be refused",
        "see its row",
        refused,
    ),
    rule("constants stay below 2^32", "codes ESFH002", large_constant),
    rule("no 64-bit integers", "codes ESFH002; types", wide_integer),
    rule("reductions have one operand", "jax", variadic_reduce),
    rule(
        "reductions start at a constant and add, multiply or compare",
        "list",
        reduction,
    ),
    rule(
        "random bits come from the default generator",
        "codes EVRF006",
        random_algorithm,
    ),
    rule("products have at most rank 4", "census", product_rank),
    rule(
        "windows are not dilated at both ends",
        "codes EVRF010, EVRF011, EVRF017 to EVRF019",
        windows,
    ),
    rule(
        "custom calls are those that the compiler knows",
        "codes EVRF015, EHCA005",
        custom_call,
    ),
    rule(
        "updates of a slice are at a constant place",
        "list",
        dynamic_update,
    ),
    rule(
        "gathered dimensions are not indexed ones",
        "list",
        gather_dimensions,
    ),
    rule(
        "indices lie inside of the table",
        "jax; nrt status 1006; codes EVRF031, EVRF056",
        indices,
    ),
    rule(
        "no barrier where state is donated",
        "optimum-neuron PR 754",
        barrier,
    ),
    rule(
        "collectives have equal groups of neighbours",
        "runtime",
        groups,
    ),
    rule("a permutation is a ring", "runtime", ring),
    rule("at most 12 sets of groups", "runtime", communicators),
    rule(
        "operations and element types are known",
        "list, census, nkipy",
        unknown,
    ),
];

/// Sets of replica groups that a module may have; 16 since SDK 2.32.
const COMMUNICATORS: usize = 12;
/// Two batch dimensions.
const PRODUCT_RANK: usize = 4;

impl<'m> Checked<'m> {
    fn operand(&self, index: usize) -> Option<&'m Instruction> {
        self.instructions
            .get(self.this.operand_ids.get(index)?)
            .copied()
    }

    fn shape(&self) -> Option<&'m Shape> {
        self.this.shape.as_ref()
    }

    fn is(&self, opcodes: &[&str]) -> bool {
        opcodes.contains(&self.this.opcode.as_str())
    }

    /// The element types of the result, of all parts of a tuple.
    fn elements(&self) -> Vec<i32> {
        match self.shape() {
            Some(shape) if shape.element_type == element::TUPLE => {
                shape.tuple_shapes.iter().map(|s| s.element_type).collect()
            }
            Some(shape) => vec![shape.element_type],
            None => Vec::new(),
        }
    }

    fn has(&self, elements: &[i32]) -> Option<i32> {
        self.elements()
            .into_iter()
            .find(|found| elements.contains(found))
    }
}

fn dynamic_shape(c: &Checked) -> Broken {
    let is_dynamic = |shape: &Shape| shape.is_dynamic_dimension.contains(&true);
    let shape = c.shape()?;
    (is_dynamic(shape) || shape.tuple_shapes.iter().any(is_dynamic))
        .then(|| "a dimension that is known only at run time".into())
}

fn complex(c: &Checked) -> Broken {
    c.has(&[element::C64, element::C128])
        .map(|found| format!("{} is not supported", element::name(found)))
}

fn f64(c: &Checked) -> Broken {
    c.has(&[element::F64])
        .map(|_| "f64 is not supported: use f32".into())
}

fn narrow_float(c: &Checked) -> Broken {
    let refused: &[i32] = match c.chip {
        Chip::Trn1 => &[element::F8E4M3FN, element::F8E5M2, element::F8E4M3],
        Chip::Trn2 => &[element::F8E4M3FN],
        Chip::Trn3 => &[element::F8E4M3],
    };
    c.has(refused)
        .map(|found| format!("{} does not exist on {}", element::name(found), c.chip))
}

fn refused(c: &Checked) -> Broken {
    let (opcode, why, source) = REFUSED
        .iter()
        .find(|(opcode, ..)| *opcode == c.this.opcode)?;
    Some(format!("{opcode} {why} [{source}]"))
}

fn large_constant(c: &Checked) -> Broken {
    let (low, high) = ranges::literal(c.this)?;
    let worst = if high.unsigned_abs() > low.unsigned_abs() {
        high
    } else {
        low
    };
    (worst.unsigned_abs() > 1 << 32).then(|| format!("the constant {worst} is beyond 2^32"))
}

fn wide_integer(c: &Checked) -> Broken {
    let found = element::name(c.has(&[element::S64, element::U64])?);
    Some(match c.chip {
        Chip::Trn1 => format!("{found} is cut down to 32 bits on trn1"),
        chip => format!(
            "{found} is cut down to 32 bits on {chip} unless --native-int64 is given, which it is not"
        ),
    })
}

fn variadic_reduce(c: &Checked) -> Broken {
    (c.is(&["reduce", "reduce-window"]) && c.this.operand_ids.len() > 2).then(|| {
        format!(
            "a reduction of {} operands at once",
            c.this.operand_ids.len() / 2
        )
    })
}

fn reduction(c: &Checked) -> Broken {
    if !c.is(&["reduce"]) {
        return None;
    }
    if c.operand(1).is_some_and(|start| start.opcode != "constant") {
        return Some("a reduction that does not start at a constant".into());
    }
    let body = hlo::computation(c.module, *c.this.called_computation_ids.first()?)?;
    let root = body
        .instructions
        .iter()
        .find(|instruction| instruction.id == body.root_id)?;
    let known =
        ["add", "multiply", "maximum", "minimum", "and", "or"].contains(&root.opcode.as_str());
    (!known).then(|| format!("a reduction with {}", root.opcode))
}

fn random_algorithm(c: &Checked) -> Broken {
    (c.is(&["rng-bit-generator"]) && c.this.rng_algorithm != 0).then(|| {
        let name = if c.this.rng_algorithm == 1 {
            "rng_three_fry"
        } else {
            "rng_philox"
        };
        format!("{name} is not supported, rng_default is")
    })
}

fn product_rank(c: &Checked) -> Broken {
    let rank = |i: usize| {
        c.operand(i)
            .and_then(|x| x.shape.as_ref())
            .map_or(0, |shape| shape.dimensions.len())
    };
    let rank = rank(0).max(rank(1));
    (c.is(&["dot"]) && rank > PRODUCT_RANK)
        .then(|| format!("a product of rank {rank}; known are at most {PRODUCT_RANK}"))
}

fn windows(c: &Checked) -> Broken {
    let dimensions = &c.this.window.as_ref()?.dimensions;
    let base = dimensions.iter().any(|d| d.base_dilation > 1);
    let window = dimensions.iter().any(|d| d.window_dilation > 1);
    match c.this.opcode.as_str() {
        "reduce-window" if base || window => Some("a reduction over a dilated window".into()),
        "convolution" if base && window => {
            Some("a convolution that dilates its input and its window".into())
        }
        _ => None,
    }
}

fn custom_call(c: &Checked) -> Broken {
    let target = c.this.custom_call_target.as_str();
    (c.is(&["custom-call"]) && !CUSTOM_CALLS.contains(&target))
        .then(|| format!("the custom call `{target}` is unknown"))
}

fn dynamic_update(c: &Checked) -> Broken {
    let moves = (2..c.this.operand_ids.len())
        .any(|i| c.operand(i).is_none_or(|index| index.opcode != "constant"));
    (c.is(&["dynamic-update-slice"]) && moves)
        .then(|| "a slice is updated at a place that is computed".into())
}

fn gather_dimensions(c: &Checked) -> Broken {
    let numbers = c.this.gather_dimension_numbers.as_ref()?;
    let indexed = numbers
        .offset_dims
        .iter()
        .any(|dim| numbers.start_index_map.contains(dim));
    (c.is(&["gather"]) && indexed)
        .then(|| "a gather whose offset dimensions are indexed ones".into())
}

/// The indices of a gather or scatter have to be inside of the table for every input of the module.
fn indices(c: &Checked) -> Broken {
    let dims: &[i64] = match c.this.opcode.as_str() {
        "gather" => &c.this.gather_dimension_numbers.as_ref()?.start_index_map,
        "scatter" => {
            &c.this
                .scatter_dimension_numbers
                .as_ref()?
                .scatter_dims_to_operand_dims
        }
        _ => return None,
    };
    let table = c.operand(0)?.shape.as_ref()?;
    let index = c.operand(1)?;
    let size = |dim: i64| {
        c.this
            .gather_slice_sizes
            .get(dim as usize)
            .copied()
            .unwrap_or(1)
    };
    let last = dims
        .iter()
        .map(|&dim| {
            table
                .dimensions
                .get(dim as usize)
                .map_or(0, |n| n - size(dim))
        })
        .min()?;
    let range = *c.ranges.get(&index.id)?;
    if 0 <= range.0 && range.1 <= last {
        return None;
    }
    Some(
        if ranges::everything(index) == Some(range) || range.1 - range.0 >= i64::from(i32::MAX) {
            format!(
                "an index outside of the table stops the run: clamp indices to 0 to {last} first"
            )
        } else {
            format!(
                "the indices go from {} to {}, the table from 0 to {last}",
                range.0, range.1
            )
        },
    )
}

fn barrier(c: &Checked) -> Broken {
    let donates = c
        .module
        .input_output_alias
        .as_ref()
        .is_some_and(|aliases| !aliases.entries.is_empty());
    (c.is(&["opt-barrier"]) && donates)
        .then(|| "a barrier in a module that donates state ended in \"read after write on aliased buffer\"".into())
}

const COLLECTIVES: &[&str] = &["all-reduce", "all-gather", "reduce-scatter", "all-to-all"];

fn groups(c: &Checked) -> Broken {
    let groups = hlo::replica_groups(c.this);
    if !c.is(COLLECTIVES) || groups.is_empty() {
        return None;
    }
    let size = groups[0].replica_ids.len();
    if let Some(other) = groups.iter().find(|group| group.replica_ids.len() != size) {
        return Some(format!(
            "groups of {size} and of {} in one collective",
            other.replica_ids.len()
        ));
    }
    // Rings of every n-th core are made for data parallelism over groups of n; within a group the
    // distance is the same.
    let strided = |ids: &[i64]| {
        ids.windows(2)
            .all(|pair| pair[1] - pair[0] == ids[1] - ids[0] && pair[1] > pair[0])
    };
    groups
        .iter()
        .any(|group| !strided(&group.replica_ids))
        .then(|| "a group whose cores are not evenly spaced".into())
}

fn ring(c: &Checked) -> Broken {
    let pairs = &c.this.source_target_pairs;
    if !c.is(&["collective-permute"]) {
        return None;
    }
    let mut sources: Vec<i64> = pairs.iter().map(|pair| pair.source).collect();
    let mut targets: Vec<i64> = pairs.iter().map(|pair| pair.target).collect();
    sources.sort_unstable();
    targets.sort_unstable();
    (sources != targets)
        .then(|| "a permutation with holes: each core that sends must receive".into())
}

/// Reported at the last collective, so that it is reported once.
fn communicators(c: &Checked) -> Broken {
    if !c.is(COLLECTIVES) {
        return None;
    }
    let collectives = hlo::entry(c.module)?
        .instructions
        .iter()
        .filter(|instruction| COLLECTIVES.contains(&instruction.opcode.as_str()));
    let (mut sets, mut last) = (Vec::new(), None);
    for instruction in collectives {
        let set: Vec<&[i64]> = hlo::replica_groups(instruction)
            .iter()
            .map(|group| &group.replica_ids[..])
            .collect();
        if !sets.contains(&set) {
            sets.push(set);
        }
        last = Some(instruction.id);
    }
    (last == Some(c.this.id) && sets.len() > COMMUNICATORS).then(|| {
        format!(
            "the module has {} sets of groups, the runtime makes communicators for {COMMUNICATORS}",
            sets.len()
        )
    })
}

/// The table of operations. Sources say what they make; of all others it is the operands that
/// count.
fn unknown(c: &Checked) -> Broken {
    let opcode = c.this.opcode.as_str();
    let Some(row) = NEURON.iter().find(|row| row.opcodes.contains(&opcode)) else {
        return Some(format!(
            "{opcode} is not among the operations that neuronx-cc is known to take"
        ));
    };
    let operands = (0..c.this.operand_ids.len()).filter(|&i| !has_own_type(opcode, i));
    let taken =
        operands.filter_map(|i| c.operand(i)?.shape.as_ref().map(|shape| shape.element_type));
    let makes = [
        "parameter",
        "constant",
        "iota",
        "convert",
        "rng-bit-generator",
    ]
    .contains(&opcode);
    let made = c.elements().into_iter().filter(|_| makes);
    let nested = |found: &i32| *found != element::TUPLE && *found != element::TOKEN;
    let found = taken
        .chain(made)
        .filter(nested)
        .find(|found| !row.types.contains(found))?;
    Some(format!(
        "{opcode} is not known to take {} ({})",
        element::name(found),
        row.source
    ))
}

/// Whether an operand is no data: a predicate, an index, a generator's state.
fn has_own_type(opcode: &str, operand: usize) -> bool {
    match opcode {
        "select" | "rng-bit-generator" => operand == 0,
        "gather" | "scatter" => operand == 1,
        "dynamic-update-slice" => operand > 1,
        _ => false,
    }
}
