//! The calls of targets' own libraries: the CPU plugin's kernels (`native/cpp/kernels`), and cuDNN as
//! XLA:GPU knows it. The passes and `nn/` record them.

mod attention;
mod cpu_kernel;
mod cross_entropy;
mod fused_attention;
mod gelu;
mod matmul;
mod norm;
mod one_pass;
mod spec;

use serde::{Deserialize, Serialize};

pub use attention::*;
pub use cpu_kernel::*;
pub use cross_entropy::*;
pub use fused_attention::*;
pub use gelu::*;
pub use matmul::*;
pub use norm::*;
pub use one_pass::*;
pub use spec::{CallSpec, Emission, Library};

/// One of the calls, by its attributes.
pub trait CallKind: CallSpec + Sized {
    /// What `call` is, if it is of this kind.
    fn of(call: &Call) -> Option<&Self>;

    /// The call with these attributes.
    fn into_call(self) -> Call;
}

macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($kind:ty);)*) => {
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
        }

        $(impl CallKind for $kind {
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
    Matmul(KernelMatmul);
    /// Attention or its gradients by the CPU plugin (`nn/kernel_attention.rs`).
    Attention(KernelAttention);
    /// Several element-wise results at once by the CPU plugin (`passes/one_pass.rs`).
    OnePass(OnePass);
    /// A part of cross-entropy by the CPU plugin (`nn/loss.rs`).
    CrossEntropy(KernelCrossEntropy);
    /// A normalization or its gradients by the CPU plugin (`nn/norm.rs`).
    Norm(KernelNorm);
    /// A GELU or its gradient by the CPU plugin (`nn/gelu.rs`).
    Gelu(KernelGelu);
    /// Attention or its gradients by cuDNN (`nn/fused_attention.rs`).
    FusedAttention(FusedAttention);
}
