//! The report of `--kernels` on a module that another program has lowered, compiled for a card that need
//! not be attached: `tests/beside_jax.py` holds JAX's step beside xtrain's with it.
//!
//! ```sh
//! XTRAIN_CUDA_PLUGIN=.../xla_cuda_plugin.so cargo run --release --example foreign_module -- step.pb h100
//! ```

use std::error::Error;
use xtrain::cache::CacheSettings;
use xtrain::engine::kernels::{Compiled, report};
use xtrain::trainer::cuda;
use xtrain::trainer::device::DeviceSettings;
use xtrain::trainer::gpu::Gpu;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, card, form @ ..] = &words[..] else {
        return Err(
            "usage: foreign_module FILE CARD [--json]; FILE is a serialized HloModuleProto".into(),
        );
    };
    let gpu =
        Gpu::named(card).ok_or_else(|| format!("{card} is none of {}", Gpu::NAMES.join(", ")))?;
    let settings = DeviceSettings::default();
    let compiler = cuda::describe(gpu, &settings, CacheSettings::in_memory())?;
    let compiled = compiler.compile_module(&std::fs::read(file)?)?;
    let report = report(&Compiled {
        title: format!("{file} for {card}"),
        module: &compiled.module,
        graph: None,
        memory: Some(compiled.memory),
        launches: compiled.launches,
        gpu: Some(gpu),
    })?;
    match form {
        [form] if form == "--json" => println!("{}", report.json()),
        _ => print!("{}", report.text()),
    }
    Ok(())
}
