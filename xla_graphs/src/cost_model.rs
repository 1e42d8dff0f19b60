//! The cost model of the CPU plugin's calls: from which sizes on a call beats XLA's own loops, and of all
//! targets how large blocks of logits are. How a call divides its work is the plugin's half
//! (`native/cpp/kernels/cost_model.h`).
//!
//! A call costs about 5 microseconds beside its work: threads are woken, operands packed in a buffer of
//! their own. It pays where it saves more. What it saves is a share of XLA's time, which the numbers below
//! were measured as (docs/log/performance.md); with more threads both take less time, and a call does not
//! cost less, so that the least size of a matmul grows with them. Loops over elements that small are one
//! thread's with XLA as well.

use crate::dtype::DType;
use crate::op::KernelMatmul;
use crate::target::{CpuKernels, CudaTarget, NeuronChip, Target};

/// What the least sizes depend on, of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CostModel {
    /// That compute.
    pub threads: usize,
    /// Multiply-adds that a thread does in the time that a call costs: 5 microseconds at 110 GFLOP/s.
    pub call_products: usize,
    /// Elements that a loop of one thread takes in that time and as long again, reading and writing f32 at
    /// 25 GB/s.
    pub call_elements: usize,
    /// Bytes of logits in f32 that may stand side by side.
    pub logit_bytes: usize,
}

impl CostModel {
    /// Of the CPU that a target describes. Everything was measured with two threads, and one does as they do.
    pub fn of(kernels: CpuKernels) -> CostModel {
        CostModel {
            threads: usize::from(kernels.threads).max(2),
            call_products: 1 << 18,
            call_elements: 1 << 14,
            logit_bytes: 256 << 20,
        }
    }

    /// Whether a kernel beats XLA's dot. XLA's f32 dot reads and writes arrays that lie as it wants them, so
    /// that a kernel saves a quarter of its time; it copies others, and converts bf16: half of it.
    pub fn matmul_pays(&self, call: &KernelMatmul) -> bool {
        let [p, q, m, n, k] = call.sizes;
        let lies_right = call.a_strides[3] == 1 && call.b_strides[3] == 1 && call.c_strides[2] == n;
        let (narrowest, shortest, share) = if call.kernel.dtype() == DType::F32 && lies_right {
            (128, 40, 4)
        } else {
            (16, 32, 2)
        };
        let least = share * self.threads * self.call_products;
        m.min(n) >= narrowest && k >= shortest && p * q * m * n * k >= least
    }

    /// Whether AMX's tiles of 32 x 32 have enough to do that packing all operands for them pays.
    pub fn fills_tiles(&self, call: &KernelMatmul) -> bool {
        let [_, _, m, n, k] = call.sizes;
        m.min(n) >= 64 && m * n >= 1 << 15 && k >= 128
    }

    /// Whether a matmul by ones beats XLA's sum of `rows` rows of `width` bf16.
    pub fn sum_by_ones_pays(&self, rows: usize, width: usize) -> bool {
        rows >= 64 && width >= 64
    }

    /// Whether a call over elements, such as a GELU's, beats XLA's loop.
    pub fn elements_pay(&self, elements: usize) -> bool {
        elements >= self.call_elements
    }

    /// The same of a normalization of rows of this width.
    pub fn norm_pays(&self, elements: usize, width: usize) -> bool {
        self.elements_pay(elements) && width >= 16
    }

    /// The same of a cross-entropy, which XLA reads three times and calls once.
    pub fn cross_entropy_pays(&self, logits: usize) -> bool {
        logits >= 4 * self.call_elements
    }

    /// Whether a call of attention beats operations, for queries and keys of one head.
    pub fn attention_pays(&self, queries: usize, keys: usize) -> bool {
        queries >= 16 && keys >= 16
    }

    /// Rows of a block of logits `[rows, vocabulary]`; `None` where all of them are one. A matmul of fewer than
    /// 512 rows spends its time on packing the weight, each block is compiled by itself, and its rows are
    /// whole tiles.
    pub fn cpu_logit_block(&self, rows: usize, vocabulary: usize) -> Option<usize> {
        const LEAST_ROWS: usize = 512;
        const TILE_ROWS: usize = 32;
        let least = LEAST_ROWS.max(self.logit_bytes / DType::F32.size() / vocabulary.max(1));
        even_block(rows, least, TILE_ROWS)
    }
}

/// Rows of each of at most 16 blocks of at least `least` rows, as even as whole tiles are; `None` where all
/// rows are one block.
fn even_block(rows: usize, least: usize, tile_rows: usize) -> Option<usize> {
    const MOST_BLOCKS: usize = 16;
    let block = least.max(rows.div_ceil(MOST_BLOCKS));
    (rows > block).then(|| {
        let even = rows.div_ceil(rows.div_ceil(block));
        even.next_multiple_of(tile_rows)
    })
}

/// Rows of a block of logits `[rows, vocabulary]` on a target; `None` where all of them are one. `trains`: whether
/// the head's weight has a gradient.
pub(crate) fn logit_block(
    target: Target,
    rows: usize,
    vocabulary: usize,
    trains: bool,
) -> Option<usize> {
    match target {
        Target::Cpu(kernels) if kernels.bf16.is_some() || kernels.f32.is_some() => {
            CostModel::of(kernels).cpu_logit_block(rows, vocabulary)
        }
        Target::Cpu(_) => None,
        Target::Cuda(CudaTarget { capability, .. }) => {
            // Of an H100's 989 TFLOP/s at 3.35 TB/s, and an A100's 312 at 2.04 (data sheets), 60% of the
            // peak as in estimates.
            let flops_per_byte = if capability >= 90 { 177.0 } else { 92.0 };
            accelerator_block(rows, vocabulary, trains, flops_per_byte, 0.03)
        }
        Target::Neuron(chip) => {
            // Of a core's 95 TFLOP/s at 0.41 TB/s (trn1), 83 at 0.36 (trn2), 84 at 0.61 (trn3). Its 16 to 24
            // GB are worth more time.
            let flops_per_byte = match chip {
                NeuronChip::Trn1 | NeuronChip::Trn2 => 139.0,
                NeuronChip::Trn3 => 82.0,
            };
            accelerator_block(rows, vocabulary, trains, flops_per_byte, 0.1)
        }
    }
}

/// Each block reads the head's weight again, forward and backward, in 16 bits, and reads and writes the f32
/// sum of its gradient, if it trains: 12 bytes for each of its numbers, for which it does 6 FLOPs a row; 4 bytes
/// and 4 FLOPs where it does not train. The fewest rows with which that costs at most `share` of the products'
/// time, and no fewer than make 256 MiB of logits.
fn accelerator_block(
    rows: usize,
    vocabulary: usize,
    trains: bool,
    flops_per_byte: f64,
    share: f64,
) -> Option<usize> {
    const LEAST_BYTES: usize = 256 << 20;
    const TILE_ROWS: usize = 128;
    let bytes_per_flop = if trains { 2.0 } else { 1.0 };
    let affordable = (bytes_per_flop * flops_per_byte / share).ceil() as usize;
    let least = affordable.max(LEAST_BYTES / DType::F32.size() / vocabulary.max(1));
    even_block(rows, least, TILE_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{CpuKernel, MatmulStart};
    use crate::shape::Shape;

    fn model(threads: u16) -> CostModel {
        CostModel::of(CpuKernels {
            threads,
            ..CpuKernels::default()
        })
    }

    /// `[m, k]` by `[k, n]`, or, `across`, `[k, m]`.
    fn matmul(kernel: CpuKernel, [m, n, k]: [usize; 3], across: bool) -> KernelMatmul {
        let a = if across { [0, 0, 1, m] } else { [0, 0, k, 1] };
        KernelMatmul {
            kernel,
            sizes: [1, 1, m, n, k],
            a_strides: a,
            b_strides: [0, 0, n, 1],
            c_strides: [0, 0, n, 1],
            start: MatmulStart::Zero,
            sums: None,
            shape: Shape::new(DType::F32, [m, n]),
        }
    }

    #[test]
    fn the_least_matmul_grows_with_the_threads() {
        let right = |side| matmul(CpuKernel::Avx512F32, [side, side, side], false);
        let across = |side| matmul(CpuKernel::Avx512F32, [side, side, side], true);
        let low = |side| matmul(CpuKernel::Avx512Bf16, [side, side, side], false);
        // The side from which on each form pays.
        let least = |threads, form: &dyn Fn(usize) -> KernelMatmul| {
            let pays = |side: &usize| model(threads).matmul_pays(&form(*side));
            (1..2000).find(pays).unwrap()
        };
        for (threads, sides) in [
            (1, [128, 102, 102]),
            (2, [128, 102, 102]),
            (8, [204, 162, 162]),
            (32, [323, 256, 256]),
            (64, [407, 323, 323]),
        ] {
            let found = [
                least(threads, &right),
                least(threads, &across),
                least(threads, &low),
            ];
            assert_eq!(found, sides, "{threads} threads");
        }
        // Slower calls.
        let slow = CostModel {
            call_products: 1 << 20,
            ..model(2)
        };
        assert!(!slow.matmul_pays(&right(200)) && slow.matmul_pays(&right(204)));
        // However large the product is, what is narrow or short stays XLA's.
        for sizes in [[127, 1 << 20, 64], [1 << 12, 1 << 12, 39]] {
            let call = matmul(CpuKernel::Avx512F32, sizes, false);
            assert!(!model(2).matmul_pays(&call), "{sizes:?}");
        }
    }

    #[test]
    fn tiles_and_loops_have_least_sizes() {
        let fills = |sizes| model(2).fills_tiles(&matmul(CpuKernel::AmxF32, sizes, false));
        assert!(fills([64, 512, 128]) && fills([182, 182, 128]));
        assert!(!fills([63, 4096, 128]) && !fills([64, 511, 128]) && !fills([512, 512, 127]));
        let tiny = CostModel {
            call_elements: 100,
            ..model(2)
        };
        assert!(tiny.elements_pay(100) && !tiny.elements_pay(99));
        assert!(tiny.norm_pays(100, 16) && !tiny.norm_pays(100, 15) && !tiny.norm_pays(99, 16));
        assert!(tiny.cross_entropy_pays(400) && !tiny.cross_entropy_pays(399));
        let model = model(64);
        assert!(model.attention_pays(16, 16) && !model.attention_pays(15, 16));
        assert!(model.sum_by_ones_pays(64, 64) && !model.sum_by_ones_pays(64, 63));
    }

    #[test]
    fn blocks_of_logits_are_even_and_of_whole_tiles() {
        let blocks = |rows, vocabulary| model(2).cpu_logit_block(rows, vocabulary);
        assert_eq!(blocks(1024, 50_257), None);
        assert_eq!(blocks(2048, 50_257), Some(1024));
        assert_eq!(blocks(2048, 150_000), Some(512));
        // No more than 16.
        assert_eq!(blocks(1 << 15, 1 << 20), Some(2048));
        let large = CostModel {
            logit_bytes: 1 << 40,
            ..model(2)
        };
        assert_eq!(large.cpu_logit_block(1 << 15, 150_000), None);
    }

    #[test]
    fn blocks_of_logits_on_accelerators_are_as_small_as_they_are_cheap() {
        let card = |capability| {
            Target::Cuda(CudaTarget {
                capability,
                ..CudaTarget::default()
            })
        };
        let trn1 = Target::Neuron(NeuronChip::Trn1);
        // Llama 3.2 under LoRA, 2 x 4096: 3,067 rows.
        assert_eq!(logit_block(card(80), 8 << 10, 128_256, false), Some(2_816));
        for (target, rows, vocabulary, block) in [
            // GPT-2 small, 32 x 1024; 11,800 rows are affordable on 9.0, 6,134 on 8.0, 2,780 on trn1.
            (card(90), 32 << 10, 50_257, Some(11_008)),
            (card(80), 32 << 10, 50_257, Some(5_504)),
            (trn1, 8 << 10, 50_257, Some(2_816)),
            (card(90), 11_800, 50_257, None),
            (card(90), 11_801, 50_257, Some(6_016)),
            // Few words.
            (card(90), 32 << 10, 2_000, None),
            // No more than 16.
            (trn1, 1 << 20, 50_257, Some(1 << 16)),
            (Target::CPU, 32 << 10, 50_257, None),
        ] {
            assert_eq!(
                logit_block(target, rows, vocabulary, true),
                block,
                "{target}: {rows} x {vocabulary}"
            );
        }
    }
}
