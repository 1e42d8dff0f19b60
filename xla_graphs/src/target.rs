//! What a device's compiler can lower and how. Passes ask the target; nothing else in the program
//! branches on the device.

use crate::dtype::DType;
use crate::op::{CallSet, CpuKernel, Library, OnePass};
use serde::{Deserialize, Serialize};

/// The kind of compiler that a graph is lowered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Target {
    /// XLA:CPU, with these kernels of the plugin's own.
    Cpu(CpuKernels),
    /// XLA:GPU.
    Cuda(CudaTarget),
    /// neuronx-cc.
    Neuron(NeuronChip),
}

/// What the CPU plugin computes by kernels of its own; nothing: all is XLA's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CpuKernels {
    /// Matmuls of bf16.
    pub bf16: Option<CpuKernel>,
    /// Matmuls of f32.
    pub f32: Option<CpuKernel>,
    /// Everything else that it computes.
    pub calls: CallSet,
    /// That compute; with 0 as with the two that everything was measured with.
    pub threads: u16,
}

impl CpuKernels {
    /// For each type of matmul the best kernel that `is_here`; what every processor executes.
    pub fn best(is_here: impl Fn(CpuKernel) -> bool) -> Self {
        let best = |dtype| {
            let mut all = CpuKernel::ALL.into_iter();
            all.find(|&kernel| kernel.dtype() == dtype && is_here(kernel))
        };
        CpuKernels {
            bf16: best(DType::BF16),
            f32: best(DType::F32),
            calls: CallSet::all_of(Library::Plugin),
            threads: 0,
        }
    }
}

/// A card, and what is asked of its compiler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CudaTarget {
    /// Compute capability without its point: 90 for an H200's 9.0.
    pub capability: u16,
    /// Whether attention may become calls of cuDNN, which a stand-in for a card does not have.
    pub fused_attention: bool,
    /// Whether those calls may drop out, with masks of cuDNN's own.
    pub fused_dropout: bool,
    /// Whether matmuls of f32 may round their operands to TF32, with 10 bits of mantissa for 23.
    pub tf32: bool,
}

/// Generations of AWS's accelerators, by the `--target` of neuronx-cc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NeuronChip {
    /// trn1 and inf2: NeuronCore-v2.
    Trn1,
    /// trn2: NeuronCore-v3.
    Trn2,
    /// trn3: NeuronCore-v4.
    Trn3,
}

/// As neuronx-cc's `--target` has it.
impl std::fmt::Display for NeuronChip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NeuronChip::Trn1 => "trn1",
            NeuronChip::Trn2 => "trn2",
            NeuronChip::Trn3 => "trn3",
        })
    }
}

/// For people: what of a target decides about code.
impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Cpu(CpuKernels {
                bf16,
                f32,
                calls,
                threads,
            }) => {
                f.write_str("cpu")?;
                if *threads > 2 {
                    write!(f, " of {threads} threads")?;
                }
                let mut kernels: Vec<&str> = Vec::new();
                for kernel in [bf16, f32].into_iter().flatten() {
                    kernels.push(kernel.name());
                    if kernel.without_tiles() != *kernel {
                        kernels.push(kernel.without_tiles().name());
                    }
                }
                match &kernels[..] {
                    [] => {}
                    [only] => write!(f, ", matmuls by {only}")?,
                    [most @ .., last] => {
                        write!(f, ", matmuls by {} and {last}", most.join(", "))?;
                    }
                }
                let calls: Vec<&str> = calls.names().collect();
                match &calls[..] {
                    [] => Ok(()),
                    calls => write!(f, ", calls {}", calls.join(", ")),
                }
            }
            Target::Neuron(chip) => write!(f, "neuron {chip}"),
            Target::Cuda(CudaTarget {
                capability,
                fused_attention,
                fused_dropout,
                tf32,
            }) => {
                let attention = match (fused_attention, fused_dropout) {
                    (false, _) => "attention written out",
                    (true, false) => "attention by cuDNN",
                    (true, true) => "attention and its dropout by cuDNN",
                };
                let products = if *tf32 { "in TF32" } else { "exact" };
                write!(
                    f,
                    "cuda {}.{}, {attention}, f32 products {products}",
                    capability / 10,
                    capability % 10
                )
            }
        }
    }
}

impl Target {
    /// The CPU with everything XLA's.
    pub const CPU: Target = Target::Cpu(CpuKernels {
        bf16: None,
        f32: None,
        calls: CallSet::NONE,
        threads: 0,
    });

    /// As `--device` names it.
    pub fn name(self) -> &'static str {
        match self {
            Target::Cpu(_) => "cpu",
            Target::Cuda(_) => "cuda",
            Target::Neuron(_) => "neuron",
        }
    }

    /// XLA's CPU multiplies fast only where the left operand contracts its last dimension.
    pub(crate) fn transposes_matmuls(self) -> bool {
        matches!(self, Target::Cpu(_))
    }

    /// Whether rows may be added by scatter and single elements picked by gather. Neuron's own
    /// emitters avoid scatter-add, and a gather outside of its table stops the run there: sums over
    /// a comparison with an iota do the same without indices.
    pub(crate) fn indexes(self) -> bool {
        !self.is_neuron()
    }

    /// Whether updates of parameters are passes of the CPU plugin's.
    pub(crate) fn has_passes(self) -> bool {
        matches!(self, Target::Cpu(kernels) if kernels.calls.has::<OnePass>())
    }

    /// Whether shifts to the left exist, on which Threefry's rotations are built. neuronx-cc calls
    /// threefry "not completely supported".
    pub(crate) fn has_threefry(self) -> bool {
        !self.is_neuron()
    }

    /// Whether `erf`, `log1p` and `is-finite` are operations of the compiler's.
    pub(crate) fn has_special_functions(self) -> bool {
        !self.is_neuron()
    }

    /// Whether an `opt-barrier` may stand in a module. neuronx-cc once ended modules with a barrier
    /// and donated state in "read after write on aliased buffer".
    pub(crate) fn takes_barriers(self) -> bool {
        !self.is_neuron()
    }

    /// Whether an `opt-barrier` is there until instructions are put in order. XLA's CPU drops it
    /// before that.
    pub(crate) fn keeps_barriers(self) -> bool {
        matches!(self, Target::Cuda { .. })
    }

    /// Whether values can wait in the host's memory. XLA's CPU takes no such placement, and its
    /// values are there already; Neuron's plugin shows no memory but its own.
    pub(crate) fn has_host_memory(self) -> bool {
        matches!(self, Target::Cuda { .. })
    }

    /// The largest head of an attention that the target has as one call; `None` where it has no
    /// such call. cuDNN's begin with compute capability 8.0; beyond 128 they are tried on 9.0 only.
    pub(crate) fn fused_attention_head(self) -> Option<usize> {
        match self {
            Target::Cuda(CudaTarget {
                capability: 90..,
                fused_attention: true,
                ..
            }) => Some(256),
            Target::Cuda(CudaTarget {
                capability: 80..,
                fused_attention: true,
                ..
            }) => Some(128),
            _ => None,
        }
    }

    /// Whether a call of attention may draw its own dropout masks.
    pub(crate) fn fuses_dropout(self) -> bool {
        matches!(
            self,
            Target::Cuda(CudaTarget {
                fused_dropout: true,
                ..
            })
        )
    }

    /// Whether matmuls of f32 have to be marked as exact, since the compiler would otherwise round
    /// their operands.
    pub(crate) fn marks_exact_matmuls(self) -> bool {
        matches!(self, Target::Cuda(CudaTarget { tf32: false, .. }))
    }

    /// Whether computing a function of elements twice takes no longer than reading its results. A card's kernels of
    /// elements wait for memory.
    pub(crate) fn recomputes_elements(self) -> bool {
        matches!(self, Target::Cuda { .. })
    }

    /// Whether modules are handed over as StableHLO first. Of AWS's plugin since 3.0 that is the
    /// only form that others are known to use; all before it took HLO.
    pub fn prefers_stablehlo(self) -> bool {
        self.is_neuron()
    }

    /// Whether donated memory has to be reused by the compiler's promise. Neuron's modules are
    /// written so by everybody; XLA's own compilers do it wherever they can.
    pub fn requires_aliases(self) -> bool {
        self.is_neuron()
    }

    fn is_neuron(self) -> bool {
        matches!(self, Target::Neuron(_))
    }
}
