//! What goes into an executable and what comes out: the shapes that every call is checked against.
//!
//! XLA's CPU client compares only the byte sizes of arguments, so an `s32[4]` given for an `f32[4]`
//! would run and give wrong numbers. The Rust side therefore holds types and dimensions itself, and
//! makes sure at compile time that they are the module's.

use super::bindings::*;
use crate::error::{Error, Result};
use crate::hlo::{self, PrimitiveType};
use xtrain_graphs::{DType, Shape};

/// Inputs and outputs of an executable, on each of its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    pub inputs: Vec<Shape>,
    pub outputs: Vec<Shape>,
}

impl Signature {
    pub fn new(inputs: impl Into<Vec<Shape>>, outputs: impl Into<Vec<Shape>>) -> Self {
        Signature {
            inputs: inputs.into(),
            outputs: outputs.into(),
        }
    }

    /// The signature that a serialized HloModuleProto itself declares; a tuple result is one output
    /// for each of its elements.
    pub fn of_module(module: &[u8]) -> Result<Signature> {
        let shape = program_shape(module)?;
        let all = |shapes: &[hlo::Shape]| -> Result<Vec<Shape>> {
            let convert = |s: &hlo::Shape| {
                known(s).ok_or_else(|| Error::ModuleBytes {
                    reason: format!("it has an input or output of type {}", text(s)),
                })
            };
            shapes.iter().map(convert).collect()
        };
        Ok(Signature {
            inputs: all(&shape.parameters)?,
            outputs: all(&outputs(&shape))?,
        })
    }

    /// Fails unless the module declares exactly this signature.
    pub(super) fn check_module(&self, module: &[u8]) -> Result<()> {
        let shape = program_shape(module)?;
        check_side("input", &shape.parameters, &self.inputs)?;
        check_side("output", &outputs(&shape), &self.outputs)
    }

    /// As `check_module`, for inputs alone.
    pub(super) fn check_module_inputs(&self, module: &[u8]) -> Result<()> {
        check_side("input", &program_shape(module)?.parameters, &self.inputs)
    }

    /// Fails unless a compiled executable's outputs, as its plugin reports them, are this
    /// signature's.
    pub(super) fn check_outputs(
        &self,
        types: &[PJRT_Buffer_Type],
        dims: &[Vec<i64>],
    ) -> Result<()> {
        if types.len() != self.outputs.len() {
            return Err(Error::SignatureCount {
                side: "output",
                module: types.len(),
                signature: self.outputs.len(),
            });
        }
        for (index, shape) in self.outputs.iter().enumerate() {
            let same_dims = dims[index]
                .iter()
                .copied()
                .eq(shape.dims.iter().map(|&d| d as i64));
            if types[index] != buffer_type(shape.dtype) || !same_dims {
                let name = DTYPES
                    .iter()
                    .find(|(_, buffer, _)| *buffer == types[index])
                    .map(|(d, ..)| d.name());
                let module = format!("{}{:?}", name.unwrap_or("another type"), dims[index])
                    .replace(", ", ",");
                return Err(Error::SignatureShape {
                    side: "output",
                    index,
                    module,
                    signature: shape.clone(),
                });
            }
        }
        Ok(())
    }
}

fn program_shape(module: &[u8]) -> Result<hlo::ProgramShape> {
    let module = hlo::decode(module)?;
    module.host_program_shape.ok_or_else(|| Error::ModuleBytes {
        reason: "it has no program shape".into(),
    })
}

fn check_side(side: &'static str, module: &[hlo::Shape], signature: &[Shape]) -> Result<()> {
    if module.len() != signature.len() {
        return Err(Error::SignatureCount {
            side,
            module: module.len(),
            signature: signature.len(),
        });
    }
    for (index, (module, signature)) in module.iter().zip(signature).enumerate() {
        if known(module).as_ref() != Some(signature) {
            return Err(Error::SignatureShape {
                side,
                index,
                module: text(module),
                signature: signature.clone(),
            });
        }
    }
    Ok(())
}

/// Our types with their numbers in `PJRT_Buffer_Type` and in XLA's `PrimitiveType`.
const DTYPES: [(DType, PJRT_Buffer_Type, PrimitiveType); 11] = [
    (DType::Pred, PJRT_Buffer_Type_PRED, PrimitiveType::Pred),
    (DType::S8, PJRT_Buffer_Type_S8, PrimitiveType::S8),
    (DType::S32, PJRT_Buffer_Type_S32, PrimitiveType::S32),
    (DType::S64, PJRT_Buffer_Type_S64, PrimitiveType::S64),
    (DType::U8, PJRT_Buffer_Type_U8, PrimitiveType::U8),
    (DType::U32, PJRT_Buffer_Type_U32, PrimitiveType::U32),
    (DType::U64, PJRT_Buffer_Type_U64, PrimitiveType::U64),
    (DType::F16, PJRT_Buffer_Type_F16, PrimitiveType::F16),
    (DType::F32, PJRT_Buffer_Type_F32, PrimitiveType::F32),
    (DType::F64, PJRT_Buffer_Type_F64, PrimitiveType::F64),
    (DType::BF16, PJRT_Buffer_Type_BF16, PrimitiveType::Bf16),
];

/// The type's number in the C interface.
pub(super) fn buffer_type(dtype: DType) -> PJRT_Buffer_Type {
    DTYPES
        .iter()
        .find(|(d, ..)| *d == dtype)
        .map(|(_, buffer, _)| *buffer)
        .expect("the table lists every DType")
}

/// Dimensions as the C interface takes them.
pub(super) fn dims_i64(shape: &Shape) -> Vec<i64> {
    shape.dims.iter().map(|&d| d as i64).collect()
}

/// PJRT returns one buffer for each element of a tuple.
fn outputs(shape: &hlo::ProgramShape) -> Vec<hlo::Shape> {
    match &shape.result {
        Some(result) if result.element_type() == PrimitiveType::Tuple => {
            result.tuple_shapes.clone()
        }
        Some(result) => vec![result.clone()],
        None => Vec::new(),
    }
}

/// One of our shapes, unless its type is none of ours.
fn known(shape: &hlo::Shape) -> Option<Shape> {
    let (dtype, ..) = DTYPES
        .iter()
        .find(|(.., primitive)| *primitive == shape.element_type())?;
    let dims: std::result::Result<Vec<usize>, _> = shape
        .dimensions
        .iter()
        .map(|&d| usize::try_from(d))
        .collect();
    Some(Shape::new(*dtype, dims.ok()?))
}

fn text(shape: &hlo::Shape) -> String {
    match known(shape) {
        Some(shape) => shape.to_string(),
        None => format!(
            "XLA's primitive type {} with dimensions {:?}",
            shape.element_type, shape.dimensions
        ),
    }
}
