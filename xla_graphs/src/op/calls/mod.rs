//! The calls of targets' own libraries: the CPU plugin's kernels (`native/cpp/kernels`), and cuDNN as
//! XLA:GPU knows it. The passes and `nn/` record them.

mod attention;
mod cpu_kernel;
mod cross_entropy;
mod fused_attention;
mod gemv;
mod matmul;
mod norm;
mod one_pass;
mod spec;

use serde::{Deserialize, Serialize};

pub use attention::*;
pub use cpu_kernel::*;
pub use cross_entropy::*;
pub use fused_attention::*;
pub use gemv::*;
pub use matmul::*;
pub use norm::*;
pub use one_pass::*;
pub use spec::{CallSpec, Emission, Library};

/// One of the calls, by its attributes.
pub trait CallKind: CallSpec + Sized {
    /// Its number in a [`CallSet`].
    const NUMBER: u32;

    /// What `call` is, if it is of this kind.
    fn of(call: &Call) -> Option<&Self>;

    /// The call with these attributes.
    fn into_call(self) -> Call;
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($kind:ty) of $library:ident;)*) => {
        /// A call of a target's own library. The order is part of the canonical format: append.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Call {
            $($(#[$doc])* $name($kind),)*
        }

        impl Call {
            /// What is known of it.
            pub fn spec(&self) -> &dyn CallSpec {
                match self {
                    $(Call::$name(call) => call,)*
                }
            }

            /// Whose call it is.
            pub fn library(&self) -> Library {
                match self {
                    $(Call::$name(_) => Library::$library,)*
                }
            }
        }

        /// The numbers of the kinds.
        enum Number {
            $($name,)*
        }

        /// By their numbers.
        const KINDS: &[(&str, Library)] = &[$((stringify!($name), Library::$library),)*];

        $(impl CallKind for $kind {
            const NUMBER: u32 = Number::$name as u32;

            fn of(call: &Call) -> Option<&Self> {
                match call {
                    Call::$name(call) => Some(call),
                    _ => None,
                }
            }

            fn into_call(self) -> Call {
                Call::$name(self)
            }
        })*
    };
}

calls! {
    /// A matmul by the CPU plugin (`passes/cpu_kernels.rs`).
    Matmul(KernelMatmul) of Plugin;
    /// Attention or its gradients by the CPU plugin (`nn/kernel_attention.rs`).
    Attention(KernelAttention) of Plugin;
    /// Several element-wise results at once by the CPU plugin (`passes/one_pass`).
    OnePass(OnePass) of Plugin;
    /// A part of cross-entropy by the CPU plugin (`nn/loss.rs`).
    CrossEntropy(KernelCrossEntropy) of Plugin;
    /// A normalization or its gradients by the CPU plugin (`nn/norm.rs`).
    Norm(KernelNorm) of Plugin;
    /// Attention or its gradients by cuDNN (`nn/fused_attention.rs`).
    FusedAttention(FusedAttention) of Cudnn;
    /// A product of a few rows with a weight by the CPU plugin (`passes/gemv.rs`).
    Gemv(KernelGemv) of Plugin;
}

/// Some kinds of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallSet(u32);

impl CallSet {
    /// No kind.
    pub const NONE: CallSet = CallSet(0);

    /// All kinds of a library's.
    pub fn all_of(library: Library) -> CallSet {
        let kinds = KINDS.iter().enumerate();
        let own = kinds.filter(|(_, (_, of))| *of == library);
        CallSet(own.map(|(number, _)| 1u32 << number).sum())
    }

    /// One kind.
    pub fn only<K: CallKind>() -> CallSet {
        CallSet(1u32 << K::NUMBER)
    }

    /// The others, if this is one of them.
    pub fn without<K: CallKind>(self) -> CallSet {
        CallSet(self.0 & !(1u32 << K::NUMBER))
    }

    /// Whether this kind is one of them.
    pub fn has<K: CallKind>(self) -> bool {
        self.0 & 1u32 << K::NUMBER != 0
    }

    /// Their names, for people.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let kinds = KINDS.iter().enumerate();
        kinds.filter_map(move |(number, (name, _))| (self.0 & 1u32 << number != 0).then_some(*name))
    }
}
