//! The readers on a module that XLA:GPU has optimized: the training step of a GPT-2 of one layer, 128 wide
//! with 2 heads and 1000 words, 4 x 128 tokens in bf16, compiled for an H200 by jax-cuda13-pjrt 0.11.2.
//! Of each instruction the fields are kept that are read.

use super::kernels::{self, Kernel, KernelClass};
use super::{aliased_parameters, live_buffers, parameter_count, stats};
use std::io::Read;

const MODULE: &[u8] = include_bytes!("recorded/gpt2_step_h200.pb.gz");

fn module() -> Vec<u8> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(MODULE)
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}

#[test]
fn kernels_of_a_recorded_step_are_classed() {
    let module = module();
    let kernels = kernels::of(&module).unwrap();
    let of = |class| kernels.iter().filter(move |kernel| kernel.class == class);
    let counts = KernelClass::ALL.map(|class| of(class).count());
    assert_eq!(counts, [0, 15, 0, 2, 35, 27, 14, 0, 0]);
    // The products of a layer's 12 x 128 x 128 weights and of the logits, one forward and two backward.
    let tokens = 4.0 * 128.0;
    // Of one of the logits' XLA makes 1024 columns.
    let padding = 2.0 * tokens * 128.0 * 24.0;
    let products = 6.0 * tokens * (12.0 * 128.0 * 128.0 + 128.0 * 1000.0) + padding;
    let flops = |class| of(class).map(|kernel| kernel.work.low).sum::<f64>();
    assert_eq!(flops(KernelClass::TritonMatmul), products);
    // Half of the scores are masked; two products forward, five backward.
    assert_eq!(flops(KernelClass::Attention), 7.0 * tokens * 128.0 * 128.0);
    assert!(kernels.iter().all(|kernel| kernel.work.wide == 0.0));
    let count = |is: fn(&&Kernel) -> bool| kernels.iter().filter(is).count();
    assert_eq!(count(|kernel| kernel.sums_columns), 24);
    assert_eq!(count(|kernel| kernel.only_converts), 12);
    assert_eq!(count(|kernel| !kernel.operand_work.is_empty()), 0);
    let stats = stats::of(&module).unwrap();
    assert_eq!((stats.triton_gemms, stats.attention_calls), (15, 2));
    assert_eq!(
        stats.bytes,
        kernels.iter().map(|kernel| kernel.bytes).sum::<f64>()
    );
}

#[test]
fn a_recorded_step_takes_all_of_its_state() {
    let module = module();
    assert_eq!(parameter_count(&module).unwrap(), 52);
    // 16 parameters, each with two moments.
    assert_eq!(aliased_parameters(&module).unwrap().len(), 48);
}

/// The compiler's own account of temporaries is 9.0 MiB.
#[test]
fn memory_over_a_recorded_schedule_has_the_compilers_peak() {
    let profile = live_buffers::profile(&module()).unwrap();
    let held = profile.held();
    assert_eq!(held.len(), profile.op_names.len());
    let (at, most) = (0..held.len())
        .map(|at| (at, held[at]))
        .max_by_key(|(_, held)| *held)
        .unwrap();
    let compiler = 9.0 * 1024.0 * 1024.0;
    assert!((most as f64 / compiler - 1.0).abs() < 0.2, "{most}");
    assert!(
        profile.op_names[at].starts_with("train/backward/"),
        "{}",
        profile.op_names[at]
    );
    let peak = live_buffers::peak(&module()).unwrap();
    assert_eq!(peak.bytes, most);
    assert_eq!(
        peak.buffers.iter().map(|buffer| buffer.bytes).sum::<u64>(),
        most
    );
    assert!(
        peak.buffers
            .windows(2)
            .all(|pair| pair[0].bytes >= pair[1].bytes)
    );
}
