//! The operations that neuronx-cc is known to take, with the element types of their operands.
//!
//! Sources, by their short names: *list*: operators of the compiler's release notes
//! (aws-neuron-sdk, release-notes/components/compiler.rst); *census*: opcodes of 52 modules that
//! torch-neuronx compiled; *nkipy*: what AWS's own emitter of HLO uses; *codes*: pages of the
//! compiler's error codes; *jax*: its list of known issues in JAX; *types*: its page of data types;
//! *runtime*: the collectives that its runtime has. They were read, not tried: there was no such
//! device.

/// Element types by their numbers in XLA's `PrimitiveType`.
pub(super) mod element {
    use crate::hlo::PrimitiveType;

    pub const PRED: i32 = PrimitiveType::Pred as i32;
    pub const S32: i32 = PrimitiveType::S32 as i32;
    pub const S64: i32 = PrimitiveType::S64 as i32;
    pub const U8: i32 = PrimitiveType::U8 as i32;
    pub const U32: i32 = PrimitiveType::U32 as i32;
    pub const U64: i32 = PrimitiveType::U64 as i32;
    pub const F16: i32 = PrimitiveType::F16 as i32;
    pub const F32: i32 = PrimitiveType::F32 as i32;
    pub const F64: i32 = PrimitiveType::F64 as i32;
    pub const TUPLE: i32 = PrimitiveType::Tuple as i32;
    pub const C64: i32 = PrimitiveType::C64 as i32;
    pub const BF16: i32 = PrimitiveType::Bf16 as i32;
    pub const TOKEN: i32 = PrimitiveType::Token as i32;
    pub const C128: i32 = PrimitiveType::C128 as i32;
    pub const F8E5M2: i32 = PrimitiveType::F8e5m2 as i32;
    pub const F8E4M3FN: i32 = PrimitiveType::F8e4m3fn as i32;
    pub const F8E4M3: i32 = PrimitiveType::F8e4m3 as i32;

    pub fn name(element: i32) -> String {
        PrimitiveType::try_from(element).map_or_else(
            |_| format!("element type {element}"),
            |known| known.as_str_name().to_lowercase(),
        )
    }
}

use element::{BF16, F8E4M3, F8E5M2, F16, F32, PRED, S32, U8, U32};

/// Operations with what their operands may be made of.
pub(super) struct Row {
    pub opcodes: &'static [&'static str],
    pub types: &'static [i32],
    pub source: &'static str,
}

const FLOATS: &[i32] = &[F32, BF16, F16];
/// Of a product. The narrow ones are trn2's; the rule about types says so.
const FACTORS: &[i32] = &[F32, BF16, F16, F8E5M2, F8E4M3];
const NUMBERS: &[i32] = &[F32, BF16, F16, S32, U32];
const INTEGERS: &[i32] = &[S32, U32];
const WORDS: &[i32] = &[PRED, S32, U32];
const ALL: &[i32] = &[F32, BF16, F16, S32, U32, U8, PRED, F8E5M2, F8E4M3];

const fn row(opcodes: &'static [&'static str], types: &'static [i32], source: &'static str) -> Row {
    Row {
        opcodes,
        types,
        source,
    }
}

/// By what they take. What is not here is not known to compile.
pub(super) const NEURON: &[Row] = &[
    row(&["parameter", "opt-barrier"], ALL, "census"),
    row(
        &[
            "constant",
            "tuple",
            "get-tuple-element",
            "broadcast",
            "compare",
            "concatenate",
            "convert",
            "custom-call",
            "dynamic-update-slice",
            "gather",
            "pad",
            "reshape",
            "reverse",
            "select",
            "slice",
            "transpose",
        ],
        ALL,
        "list",
    ),
    row(&["iota"], &[S32, U32, F32], "list"),
    row(
        &[
            "abs", "add", "clamp", "maximum", "minimum", "multiply", "negate", "reduce", "sign",
            "subtract",
        ],
        NUMBERS,
        "list",
    ),
    row(&["all-gather"], FLOATS, "list; runtime"),
    row(
        &["all-reduce"],
        FLOATS,
        "list; integers only through f32: codes EVRF061",
    ),
    row(&["all-to-all"], FLOATS, "nkipy; runtime"),
    row(&["and", "not"], WORDS, "list"),
    row(
        &[
            "atan2",
            "batch-norm-grad",
            "batch-norm-inference",
            "batch-norm-training",
            "ceil",
            "cosine",
            "divide",
            "exponential",
            "floor",
            "log",
            "power",
            "rng",
            "rsqrt",
            "select-and-scatter",
            "sine",
            "sqrt",
            "tanh",
        ],
        FLOATS,
        "list",
    ),
    row(&["bitcast-convert"], &[F32, S32, U32], "list"),
    row(&["collective-permute"], FLOATS, "runtime"),
    row(&["convolution"], FLOATS, "nkipy"),
    row(&["copy"], ALL, "nkipy"),
    row(
        &["dot"],
        FACTORS,
        "list; integers only through f32: codes EVRF035",
    ),
    row(&["logistic"], FLOATS, "census"),
    row(&["or", "xor"], WORDS, "nkipy"),
    row(
        &["reduce-scatter"],
        FLOATS,
        "census; integers only through f32: codes EVRF063",
    ),
    row(&["reduce-window"], FLOATS, "codes EVRF017"),
    row(
        &["rng-bit-generator", "shift-right-logical"],
        INTEGERS,
        "list",
    ),
    row(
        &["scatter"],
        FLOATS,
        "list; integers only through f32: codes EVRF060",
    ),
    row(&["shift-right-arithmetic"], &[S32], "codes EVRF022"),
];

/// Operations that are known not to compile, or to go wrong, with what is known of them.
pub(super) const REFUSED: &[(&str, &str, &str)] = &[
    (
        "while",
        "loops are refused unless their trip count is static, and then unrolled: write the layers out",
        "jax",
    ),
    (
        "conditional",
        "is refused: compute both branches and select",
        "jax",
    ),
    (
        "sort",
        "is refused with most comparators, and a sort before a slice becomes a top-k that is wrong",
        "jax; aws-neuron-sdk#1339",
    ),
    (
        "topk",
        "is refused for integers and not known for floats without its custom call",
        "codes EVRF013",
    ),
    (
        "reduce-precision",
        "is refused: convert there and back",
        "jax",
    ),
    ("triangular-solve", "is refused", "codes EVRF001"),
    ("cholesky", "is refused", "codes EVRF001"),
    (
        "fft",
        "is refused, as all complex numbers are",
        "codes EVRF004",
    ),
    ("infeed", "is refused: feed parameters", "codes EUOC002"),
    ("outfeed", "is refused: return outputs", "codes EUOC002"),
    (
        "send",
        "is known to fail: gather between two neighbours instead",
        "aws-neuron-sdk#1189",
    ),
    (
        "recv",
        "is known to fail: gather between two neighbours instead",
        "aws-neuron-sdk#1189",
    ),
    (
        "collective-broadcast",
        "is done as an all-gather: write that",
        "runtime",
    ),
];

/// Targets of custom calls that the compiler knows (codes EHCA005). Their operands are documented
/// nowhere.
pub(super) const CUSTOM_CALLS: &[&str] = &[
    "AwsNeuronErf",
    "AwsNeuronGelu",
    "AwsNeuronGeluApprxTanh",
    "AwsNeuronGeluBackward",
    "AwsNeuronSilu",
    "AwsNeuronSiluBackward",
    "AwsNeuronRmsNorm",
    "AwsNeuronSoftmax",
    "AwsNeuronSoftmaxBackward",
    "AwsNeuronCollectiveMatmul",
    "AwsNeuronIntMatmult",
    "AwsNeuronArgMax",
    "AwsNeuronArgMin",
    "AwsNeuronTopK",
    "AwsNeuronDropoutMaskV1",
    "AwsNeuronCustomNativeKernel",
    "AwsNeuronCustomOp",
    "AwsNeuronDevicePrint",
    "AwsNeuronLNCShardingConstraint",
    "AwsNeuronTransferWithStaticRing",
    "AwsNeuronModuleMarkerStart-Forward",
    "AwsNeuronModuleMarkerEnd-Forward",
    "AwsNeuronModuleMarkerStart-Backward",
    "AwsNeuronModuleMarkerEnd-Backward",
    "ResizeNearest",
    "ResizeBilinear",
    "ResizeNearestGrad",
    "NeuronBoundaryMarker-Start",
    "NeuronBoundaryMarker-End",
];
