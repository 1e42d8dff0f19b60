//! The kernels of the CPU plugin's own, by instruction set and type.

use crate::dtype::DType;
use serde::{Deserialize, Serialize};

/// A kernel of the CPU plugin's own (`native/cpp/kernels`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CpuKernel {
    /// Products of bf16 on AMX's tiles; f32 operands are rounded.
    AmxBf16,
    /// Products of f32 on AMX's tiles, each as products of the three bf16 that add up to it. What is too
    /// small for tiles, and attention, has [`CpuKernel::Avx512F32`].
    AmxF32,
    /// Products of f32 on AVX-512.
    Avx512F32,
    /// Products of pairs of bf16 on AVX-512; f32 operands are rounded.
    Avx512Bf16,
    /// Products of bf16 as f32 on AVX-512, widened where they are packed; f32 operands are rounded.
    Avx512WidenedBf16,
    /// Products of f32 on AVX2.
    Avx2F32,
    /// Products of bf16 as f32 on AVX2, widened where they are packed; f32 operands are rounded.
    Avx2WidenedBf16,
}

impl CpuKernel {
    /// All of them; of one type first what most processors that execute it multiply fastest by.
    pub const ALL: [CpuKernel; 7] = [
        CpuKernel::AmxBf16,
        CpuKernel::Avx512Bf16,
        CpuKernel::Avx512WidenedBf16,
        CpuKernel::Avx2WidenedBf16,
        CpuKernel::AmxF32,
        CpuKernel::Avx512F32,
        CpuKernel::Avx2F32,
    ];

    /// The type of the products: bf16 or f32. A kernel for bf16 takes and gives f32 too.
    pub fn dtype(self) -> DType {
        match self {
            CpuKernel::AmxBf16
            | CpuKernel::Avx512Bf16
            | CpuKernel::Avx512WidenedBf16
            | CpuKernel::Avx2WidenedBf16 => DType::BF16,
            CpuKernel::AmxF32 | CpuKernel::Avx512F32 | CpuKernel::Avx2F32 => DType::F32,
        }
    }

    /// As the plugin's calls number it.
    pub fn number(self) -> i64 {
        match self {
            CpuKernel::AmxBf16 => 0,
            CpuKernel::Avx512F32 => 1,
            CpuKernel::Avx512Bf16 => 2,
            CpuKernel::Avx2F32 => 3,
            CpuKernel::AmxF32 => 4,
            CpuKernel::Avx512WidenedBf16 => 5,
            CpuKernel::Avx2WidenedBf16 => 6,
        }
    }

    /// Its name, as people write it.
    pub fn name(self) -> &'static str {
        match self {
            CpuKernel::AmxBf16 => "amx-bf16",
            CpuKernel::AmxF32 => "amx-f32",
            CpuKernel::Avx512F32 => "avx512-f32",
            CpuKernel::Avx512Bf16 => "avx512-bf16",
            CpuKernel::Avx512WidenedBf16 => "avx512-widened-bf16",
            CpuKernel::Avx2F32 => "avx2-f32",
            CpuKernel::Avx2WidenedBf16 => "avx2-widened-bf16",
        }
    }

    /// What stands in for it where its tiles are of no use; of others themselves.
    pub fn without_tiles(self) -> CpuKernel {
        match self {
            CpuKernel::AmxF32 => CpuKernel::Avx512F32,
            other => other,
        }
    }

    /// What attention of its type is built on.
    pub fn of_attention(self) -> Option<CpuKernel> {
        match self.without_tiles() {
            CpuKernel::Avx2F32 | CpuKernel::Avx2WidenedBf16 => None,
            kernel => Some(kernel),
        }
    }
}
