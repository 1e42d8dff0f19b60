//! The only file that touches `XlaBuilder`: each primitive of the graph as HLO instructions.
//!
//! Depends on the graph being checked (`Graph::check`); what is still wrong then is reported with
//! the node at fault before or by XLA, never by an abort in C++. Instructions that XlaBuilder has
//! no call for go in as markers (`finish.rs`).

use super::finish::{NODE_MARKER, marker};
use super::{Error, barrier, call, collective};
use crate::proto::xla::HloInstructionProto;
use prost::Message;
use xla::{ElementType, Literal, XlaBuilder, XlaComputation, XlaOp};
use xtrain_graphs::op::{Binary, Comparison, DotDims, Op, Reduction, ReplicaGroups, Scalar, Unary};
use xtrain_graphs::{DType, Graph, GraphNode, Shape};

/// Emits the graph and returns XLA's serialized module, markers included.
pub(super) fn build(graph: &Graph) -> Result<Vec<u8>, Error> {
    let module_error = |message: String| Error::Module {
        graph: graph.name.clone(),
        message,
    };
    // The C interface takes zero-terminated names; xla-rs panics on a zero inside.
    let names = graph.inputs.iter().map(|i| &i.name).chain([&graph.name]);
    if let Some(name) = names.into_iter().find(|name| name.contains('\0')) {
        return Err(module_error(format!(
            "the name {name:?} contains a zero byte"
        )));
    }
    let builder = XlaBuilder::new(&graph.name);
    let mut values: Vec<XlaOp> = Vec::with_capacity(graph.nodes.len());
    for (id, node) in graph.nodes.iter().enumerate() {
        let emitter = Emitter {
            graph,
            builder: &builder,
            node,
            values: &values,
        };
        let value = builder
            .announce(id as u32)
            .map_err(Failure::from)
            .and_then(|()| emitter.emit())
            .map_err(|failure| Error::Graph(graph.invalid(node, failure.0)))?;
        values.push(value);
    }
    let module = || -> Result<Vec<u8>, Failure> {
        builder.announce(graph.nodes.len() as u32)?;
        let outputs: Vec<&XlaOp> = graph
            .outputs
            .iter()
            .map(|o| &values[o.node as usize])
            .collect();
        let root = builder.tuple(&outputs)?;
        for (_, input, output) in graph.aliases() {
            builder.setup_alias(output as i64, input as i64);
        }
        Ok(builder.build(&root)?.proto().to_bytes()?)
    };
    module().map_err(|failure| module_error(failure.0))
}

/// A sentence about what went wrong; the caller adds the place.
struct Failure(String);

impl From<xla::Error> for Failure {
    fn from(error: xla::Error) -> Self {
        match error {
            // Without the Rust backtrace that xla-rs appends.
            xla::Error::XlaError { msg, .. } => Failure(format!("XLA says: {msg}")),
            other => Failure(other.to_string()),
        }
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Failure(message)
    }
}

type Emitted = Result<XlaOp, Failure>;

/// Instructions of the module are grouped by node through a marker in front of each group.
trait Announce {
    fn announce(&self, node: u32) -> xla::Result<()>;
}

impl Announce for XlaBuilder {
    fn announce(&self, node: u32) -> xla::Result<()> {
        self.custom_call::<XlaOp>(
            NODE_MARKER,
            &[],
            ElementType::Pred,
            &[],
            &node.to_le_bytes(),
        )
        .map(drop)
    }
}

/// Emits one node.
struct Emitter<'a> {
    graph: &'a Graph,
    builder: &'a XlaBuilder,
    node: &'a GraphNode,
    values: &'a [XlaOp],
}

impl Emitter<'_> {
    fn operand(&self, index: usize) -> &XlaOp {
        &self.values[self.node.operands[index] as usize]
    }

    fn operand_shape(&self, index: usize) -> &Shape {
        &self.graph.nodes[self.node.operands[index] as usize].shape
    }

    /// All operands, and their shapes.
    fn operands(&self) -> (Vec<&XlaOp>, Vec<&Shape>) {
        let all = 0..self.node.operands.len();
        all.map(|index| (self.operand(index), self.operand_shape(index)))
            .unzip()
    }

    fn emit(&self) -> Emitted {
        let op = &self.node.op;
        let x = |index| self.operand(index);
        Ok(match op {
            Op::Input(index) => {
                let input = &self.graph.inputs[*index as usize];
                self.builder.parameter(
                    i64::from(*index),
                    element(input.shape.dtype),
                    &signed(&input.shape.dims),
                    &input.name,
                )?
            }
            Op::Constant { value, dtype } => self.scalar(*value, *dtype)?,
            Op::Iota { dims, dim, dtype } => {
                self.builder
                    .iota(element(*dtype), &signed(dims), *dim as i64)?
            }
            Op::Unary(op) => unary(*op, x(0))?,
            Op::Binary(op) => self.binary(*op, x(0), x(1))?,
            Op::Compare(order) => compare(*order, x(0), x(1))?,
            Op::Select => x(0).select(x(1), x(2))?,
            Op::Convert(dtype) => x(0).convert(element(*dtype).primitive_type())?,
            Op::Bitcast(_) => self.marker(marker::BITCAST_CONVERT, &[x(0)])?,
            Op::Reshape(dims) => x(0).reshape(&signed(dims))?,
            Op::Broadcast { dims, map } => x(0).broadcast_in_dim(&signed(dims), &signed(map))?,
            Op::Transpose(perm) => x(0).transpose(&signed(perm))?,
            Op::Slice { starts, limits } => self.slice(starts, limits)?,
            Op::Concat { dim } => {
                let rest: Vec<&XlaOp> = (1..self.node.operands.len()).map(x).collect();
                x(0).concat_in_dim(&rest, *dim as i64)?
            }
            Op::Pad { low, high } => {
                let config: Vec<_> = low
                    .iter()
                    .zip(high)
                    .map(|(&l, &h)| (l as i64, h as i64, 0))
                    .collect();
                x(0).pad(&self.builder.zero(element(self.node.shape.dtype))?, &config)?
            }
            Op::Reduce { kind, dims } => self.reduce(*kind, dims)?,
            Op::Dot { dims, dtype, .. } => dot(x(0), x(1), dims, *dtype)?,
            Op::TakeRows => self.take_rows()?,
            Op::ScatterAddRows => {
                let add = combiner(Reduction::Sum, self.node.shape.dtype)?;
                // Each update is one row (window dimension 1) at the row that its id names (operand
                // dimension 0).
                x(0).scatter(x(1), x(2), &add, &[1], &[0], &[0], 1)?
            }
            Op::Barrier => self.marker(marker::OPT_BARRIER, &[x(0)])?,
            Op::ToHost => self.marker(marker::TO_HOST, &[x(0)])?,
            Op::ToDevice => self.marker(marker::TO_DEVICE, &[x(0)])?,
            Op::BarrierAfter => {
                let shapes = [self.operand_shape(0), self.operand_shape(1)];
                let both = self.builder.tuple(&[x(0), x(1)])?;
                let barrier = self.instruction(&barrier::of_tuple(&shapes), &[&both])?;
                self.instruction(&barrier::first(shapes[0]), &[&barrier])?
            }
            Op::AllReduce(exchange) => self.collective(collective::ALL_REDUCE, exchange, 0)?,
            Op::AllReduceMax(exchange) => {
                self.collective(collective::ALL_REDUCE_MAX, exchange, 0)?
            }
            Op::AllGather { dim, exchange } => {
                self.collective(collective::ALL_GATHER, exchange, *dim)?
            }
            Op::ReduceScatter { dim, exchange } => {
                self.collective(collective::REDUCE_SCATTER, exchange, *dim)?
            }
            Op::DynamicSlice { dim, size } => self.dynamic_slice(*dim, *size)?,
            Op::DynamicUpdateSlice { dim } => self.dynamic_update_slice(*dim)?,
            Op::Call(call) => {
                let (values, shapes) = self.operands();
                self.instruction(&call::instruction(call, &shapes)?, &values)?
            }
            Op::GetTupleElement { index, shape } => {
                let call = &self.graph.nodes[self.node.operands[0] as usize];
                let shapes: Vec<&Shape> = call
                    .operands
                    .iter()
                    .map(|&o| &self.graph.nodes[o as usize].shape)
                    .collect();
                let part = match &call.op {
                    Op::Call(call) => call::result(call.spec(), &shapes, *index, shape)?,
                    op => return Err(format!("`{}` has no parts", op.name()).into()),
                };
                self.instruction(&part, &[x(0)])?
            }
            Op::PassStep(_) => return Err(format!("`{}` is in no pass", op.name()).into()),
            Op::Composite(_) => return Err(format!("`{}` is no primitive", op.name()).into()),
        })
    }

    /// A custom call with this node's result shape, which the finishing pass turns into the
    /// instruction that it names.
    fn marker(&self, name: &str, operands: &[&XlaOp]) -> Emitted {
        self.marker_with(name, operands, &[])
    }

    fn marker_with(&self, name: &str, operands: &[&XlaOp], attribute: &[u8]) -> Emitted {
        let shape = &self.node.shape;
        Ok(self.builder.custom_call(
            name,
            operands,
            element(shape.dtype),
            &signed(&shape.dims),
            attribute,
        )?)
    }

    fn collective(&self, name: &str, exchange: &ReplicaGroups, dim: usize) -> Emitted {
        self.marker_with(
            name,
            &[self.operand(0)],
            &collective::attribute(exchange, dim),
        )
    }

    fn dynamic_slice(&self, dim: usize, size: usize) -> Emitted {
        let mut sizes = signed(&self.operand_shape(0).dims);
        sizes[dim] = size as i64;
        let zero = self.builder.zero(ElementType::S32)?;
        let starts: Vec<&XlaOp> = (0..sizes.len())
            .map(|d| if d == dim { self.operand(1) } else { &zero })
            .collect();
        Ok(self.operand(0).dynamic_slice(&starts, &sizes)?)
    }

    fn dynamic_update_slice(&self, dim: usize) -> Emitted {
        let zero = self.builder.zero(ElementType::S32)?;
        let starts: Vec<&XlaOp> = (0..self.node.shape.rank())
            .map(|d| if d == dim { self.operand(2) } else { &zero })
            .collect();
        Ok(self
            .operand(0)
            .dynamic_update_slice(self.operand(1), &starts)?)
    }

    /// An instruction that the finishing pass takes over as it is: a call with several results, or
    /// one of them. To XlaBuilder it is a custom call with this node's shape.
    fn instruction(&self, instruction: &HloInstructionProto, operands: &[&XlaOp]) -> Emitted {
        let shape = &self.node.shape;
        let bytes = instruction.encode_to_vec();
        Ok(self.builder.custom_call(
            marker::INSTRUCTION,
            operands,
            element(shape.dtype),
            &signed(&shape.dims),
            &bytes,
        )?)
    }

    fn scalar(&self, value: Scalar, dtype: DType) -> Emitted {
        let bytes = scalar_bytes(value, dtype)?;
        let literal = Literal::create_from_shape_and_untyped_data(element(dtype), &[], &bytes)?;
        Ok(self.builder.constant_literal(&literal)?)
    }

    fn binary(&self, op: Binary, a: &XlaOp, b: &XlaOp) -> Emitted {
        Ok(match op {
            Binary::Add => a.add_(b)?,
            Binary::Sub => a.sub_(b)?,
            Binary::Mul => a.mul_(b)?,
            Binary::Div => a.div_(b)?,
            Binary::Max => a.max(b)?,
            Binary::Min => a.min(b)?,
            Binary::Pow => a.pow(b)?,
            Binary::Rem => a.rem_(b)?,
            Binary::And => a.and(b)?,
            Binary::Or => a.or(b)?,
            Binary::Xor => a.xor(b)?,
            Binary::ShiftLeft => self.marker(marker::SHIFT_LEFT, &[a, b])?,
            Binary::ShiftRightLogical => self.marker(marker::SHIFT_RIGHT_LOGICAL, &[a, b])?,
        })
    }

    /// xla-rs slices one dimension at a time; those that are kept whole cost nothing, and XLA
    /// merges the rest.
    fn slice(&self, starts: &[usize], limits: &[usize]) -> Emitted {
        let mut value = self.operand(0).clone();
        for (dim, &size) in self.operand_shape(0).dims.iter().enumerate() {
            if (starts[dim], limits[dim]) != (0, size) {
                value = value.slice_in_dim1(starts[dim] as i64, limits[dim] as i64, dim as i64)?;
            }
        }
        Ok(value)
    }

    fn reduce(&self, kind: Reduction, dims: &[usize]) -> Emitted {
        let dtype = self.node.shape.dtype;
        let start = match kind {
            Reduction::Sum => self.builder.zero(element(dtype))?,
            Reduction::Max => self.builder.min_value(element(dtype))?,
            Reduction::Min => self.builder.max_value(element(dtype))?,
        };
        Ok(self
            .operand(0)
            .reduce(start, combiner(kind, dtype)?, &signed(dims), false)?)
    }

    /// HLO's gather with slices of one whole row, the ids as starts along dimension 0.
    fn take_rows(&self) -> Emitted {
        let (table, ids) = (self.operand_shape(0), self.operand_shape(1));
        if table.dims[0] == 0 {
            return Err("the table has no rows".to_string().into());
        }
        let mut slice = signed(&table.dims);
        slice[0] = 1;
        let offset_dims: Vec<i64> = (ids.rank()..ids.rank() + table.rank() - 1)
            .map(|d| d as i64)
            .collect();
        Ok(self.operand(0).gather(
            self.operand(1),
            &offset_dims,
            &[0],
            &[0],
            Some(ids.rank() as i64),
            &slice,
        )?)
    }
}

fn unary(op: Unary, x: &XlaOp) -> xla::Result<XlaOp> {
    match op {
        Unary::Neg => x.neg(),
        Unary::Exp => x.exp(),
        Unary::Log => x.log(),
        Unary::Log1p => x.log1p(),
        Unary::Tanh => x.tanh(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => x.rsqrt(),
        Unary::Erf => x.erf(),
        Unary::Logistic => x.logistic(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Abs => x.abs(),
        Unary::Sign => x.sign(),
        Unary::Floor => x.floor(),
        Unary::Not => x.not(),
        Unary::IsFinite => x.is_finite(),
    }
}

fn compare(order: Comparison, a: &XlaOp, b: &XlaOp) -> xla::Result<XlaOp> {
    match order {
        Comparison::Eq => a.eq(b),
        Comparison::Ne => a.ne(b),
        Comparison::Lt => a.lt(b),
        Comparison::Le => a.le(b),
        Comparison::Gt => a.gt(b),
        Comparison::Ge => a.ge(b),
    }
}

fn dot(a: &XlaOp, b: &XlaOp, d: &DotDims, dtype: DType) -> xla::Result<XlaOp> {
    let [lhs, rhs] = [signed(&d.lhs_contracting), signed(&d.rhs_contracting)];
    let [lhs_batch, rhs_batch] = [signed(&d.lhs_batch), signed(&d.rhs_batch)];
    a.dot_general_with_type(
        b,
        &lhs,
        &rhs,
        &lhs_batch,
        &rhs_batch,
        element(dtype).primitive_type(),
    )
}

/// The computation of two scalars that a reduction or a scatter folds with.
fn combiner(kind: Reduction, dtype: DType) -> xla::Result<XlaComputation> {
    let builder = XlaBuilder::new(&format!("{kind:?}.{dtype}").to_lowercase());
    let a = builder.parameter(0, element(dtype), &[], "a")?;
    let b = builder.parameter(1, element(dtype), &[], "b")?;
    let folded = match (kind, dtype) {
        (Reduction::Sum, _) => a.add_(&b)?,
        (Reduction::Max, DType::Pred) => a.or(&b)?,
        (Reduction::Min, DType::Pred) => a.and(&b)?,
        (Reduction::Max, _) => a.max(&b)?,
        (Reduction::Min, _) => a.min(&b)?,
    };
    folded.build()
}

fn element(dtype: DType) -> ElementType {
    match dtype {
        DType::Pred => ElementType::Pred,
        DType::S8 => ElementType::S8,
        DType::S32 => ElementType::S32,
        DType::S64 => ElementType::S64,
        DType::U8 => ElementType::U8,
        DType::U32 => ElementType::U32,
        DType::U64 => ElementType::U64,
        DType::F16 => ElementType::F16,
        DType::BF16 => ElementType::Bf16,
        DType::F32 => ElementType::F32,
        DType::F64 => ElementType::F64,
    }
}

fn signed(dims: &[usize]) -> Vec<i64> {
    dims.iter().map(|&d| d as i64).collect()
}

/// A scalar's bytes as XLA keeps them on the host. A value that the type cannot hold is an error,
/// not a wrapped number.
fn scalar_bytes(value: Scalar, dtype: DType) -> Result<Vec<u8>, String> {
    macro_rules! integer {
        ($value:expr, $ty:ty) => {
            <$ty>::try_from($value)
                .map(|v| v.to_le_bytes().to_vec())
                .map_err(|_| format!("{} does not fit {dtype}", $value))
        };
    }
    match (value, dtype) {
        (Scalar::Bool(v), DType::Pred) => Ok(vec![u8::from(v)]),
        (Scalar::Float(v), DType::F16) => Ok(half::f16::from_f64(v.get()).to_le_bytes().to_vec()),
        (Scalar::Float(v), DType::BF16) => Ok(half::bf16::from_f64(v.get()).to_le_bytes().to_vec()),
        (Scalar::Float(v), DType::F32) => Ok((v.get() as f32).to_le_bytes().to_vec()),
        (Scalar::Float(v), DType::F64) => Ok(v.get().to_le_bytes().to_vec()),
        (Scalar::Int(v), DType::S8) => integer!(v, i8),
        (Scalar::Int(v), DType::S32) => integer!(v, i32),
        (Scalar::Int(v), DType::S64) => Ok(v.to_le_bytes().to_vec()),
        (Scalar::Int(v), DType::U8) => integer!(v, u8),
        (Scalar::Int(v), DType::U32) => integer!(v, u32),
        (Scalar::Int(v), DType::U64) => integer!(v, u64),
        _ => Err(format!("{value:?} is no value of {dtype}")),
    }
}
