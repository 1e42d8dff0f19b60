//! Timing generated tokens, beside the rate at which the processor reads memory: a token of a few texts reads
//! every weight once, and nothing else of its work takes as long.

use super::bench::model;
use super::error::{Error, failed};
use super::execution::Execution;
use super::model::origin;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::hint::black_box;
use std::time::{Duration, Instant};
use xtrain_cache::Machine;
use xtrain_config::{BenchPlan, Device};
use xtrain_models::{HeadKind, Model};
use xtrain_report::memory::peak_rss;
use xtrain_trainer::generate::{Request, Sampling, generate};

/// Words that are read to measure the rate of reading: more than any cache holds.
const WORDS: usize = 1 << 26;

/// Times the tokens of a plan; the results by name, as `xtrain bench --generate --json` prints them.
///
/// # Errors
/// If the model cannot be read, or a token cannot be computed.
pub fn bench_generation(plan: &BenchPlan) -> Result<Value, Error> {
    let flags = &plan.train.flags;
    let (loaded, _) = model(plan)?;
    let model = &*loaded.model;
    let head = HeadKind::of(model.config()).map_err(failed("reading the model's configuration"))?;
    if head == HeadKind::MaskedLm || *flags.profile || plan.train.mesh.devices() > 1 {
        return Err(Error::usage(
            "--generate measures a language model that continues texts, on one device and without --profile",
            "take a decoder, and leave the other flags out",
        ));
    }
    let (rows, tokens) = (*flags.batch, *flags.seq);
    let (warmup, steps) = (*flags.warmup, *flags.steps);
    if tokens + warmup + steps >= model.max_positions() {
        let problem = format!(
            "--seq {tokens} and {} new tokens are more than the model's {} positions",
            warmup + steps + 1,
            model.max_positions()
        );
        return Err(Error::usage(problem, "lower --seq, --steps or --warmup"));
    }
    let execution = Execution::new(&plan.device, &plan.cache, &plan.train);
    let shapes = [("continuations", rows.to_string())];
    let mut session = execution.session(model, origin("generate", model, &shapes))?;
    loaded.place(&mut session, *flags.seed)?;
    let mut rng = ChaCha8Rng::seed_from_u64(*flags.seed);
    let mut token = || rng.random_range(0..model.vocab_size() as u32);
    let mut text = |_| (0..tokens).map(|_| token()).collect();
    let prompts: Vec<Vec<u32>> = (0..rows).map(&mut text).collect();
    // One more: the prompt gives the first.
    let request = Request {
        prompts: &prompts,
        max_new_tokens: 1 + warmup + steps,
        eos: &[],
        sampling: Sampling::GREEDY,
        use_cache: true,
    };
    let mut run = || -> Result<Vec<Instant>, Error> {
        let mut times = vec![Instant::now()];
        let mut note = |row: usize, _: u32| {
            if row == 0 {
                times.push(Instant::now());
            }
            true
        };
        let generated = generate(&mut session, model, &request, None, &mut note);
        generated.map_err(failed("generating"))?;
        Ok(times)
    };
    // Compiles; the second time is measured.
    run()?;
    let times = run()?;
    let milliseconds = |times: &[Instant]| {
        let spans = times.windows(2).map(|pair| pair[1] - pair[0]);
        let mut spans: Vec<f64> = spans
            .map(|span: Duration| span.as_secs_f64() * 1e3)
            .collect();
        spans.sort_by(f64::total_cmp);
        spans
    };
    let prefill = milliseconds(&times[..2])[0];
    let each = milliseconds(&times[1 + warmup..]);
    let median = each[each.len() / 2];
    let mut results = json!({
        "precision": plan.train.eval_precision.to_string(),
        "prefill_ms": prefill,
        "prefill_tokens_per_s": (rows * tokens) as f64 / prefill * 1e3,
        "token_ms_median": median,
        "token_ms_min": each[0],
        "token_ms_max": each[each.len() - 1],
        "tokens_per_s": rows as f64 / median * 1e3,
        "peak_rss_mb": peak_rss().map_or(0.0, |bytes| bytes as f64 / 1e6),
    });
    if plan.device.kind == Device::Cpu {
        let threads = plan.device.settings.cpu_threads;
        let weights = weight_bytes(model, plan.train.optimizer.storage.weights().size());
        let kept = rows as u64 * kept_bytes(model, tokens + warmup + steps / 2);
        let read = (weights + kept) as f64 / 1e6;
        let rate = reading_rate(threads.unwrap_or_else(Machine::physical_cores));
        results["read_mb"] = json!(read);
        results["read_gb_per_s"] = json!(read / median);
        results["memory_gb_per_s"] = json!(rate);
        results["fraction_of_memory"] = json!(read / median / rate);
    }
    Ok(results)
}

/// Bytes of the weights that a token is multiplied with: six operations of a step for each.
fn weight_bytes(model: &dyn Model, each: usize) -> u64 {
    (model.step_flops(1, 1) / 6.0) as u64 * each as u64
}

/// Bytes of a text's keys and values, in f32, after that many tokens.
fn kept_bytes(model: &dyn Model, tokens: usize) -> u64 {
    let info = model.info();
    let kept = 2 * model.layers().len() * info.kv_heads * info.head_dim;
    (4 * kept * tokens) as u64
}

/// Gigabytes a second at which these threads read memory together: the best of five times.
fn reading_rate(threads: usize) -> f64 {
    let words: Vec<u64> = (0..WORDS as u64).collect();
    let sum = |part: &[u64]| {
        let sums = part.chunks_exact(8).fold([0u64; 8], |mut sums, words| {
            sums.iter_mut()
                .zip(words)
                .for_each(|(sum, word)| *sum ^= word);
            sums
        });
        black_box(sums);
    };
    let read = || {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for part in words.chunks(WORDS.div_ceil(threads)) {
                scope.spawn(move || sum(part));
            }
        });
        begun.elapsed().as_secs_f64()
    };
    let best = (0..5).map(|_| read()).fold(f64::INFINITY, f64::min);
    (8 * WORDS) as f64 / best / 1e9
}
