//! The random stream against scalar Threefry, and dropout's statistics.

use crate::support::reference::threefry2x32;
use crate::support::{Value, evaluate};
use xtrain_graphs::op::Op;
use xtrain_graphs::{DType, DropoutRng, NeuronChip, Target, Tensor, passes};

const KEY: [u32; 2] = [0x1234_5678, 0x9ABC_DEF0];

fn key() -> Value {
    Value::new(DType::U32, &[2], &KEY.map(f64::from))
}

/// The word of an element: its stream, its row through all shards and its place in the row.
fn word(stream: u32, row: u32, place: u32) -> u32 {
    threefry2x32([KEY[0], KEY[1].wrapping_add(stream)], [place, row], 13)[0]
}

/// Random123's published answers for Threefry-2x32 with 13 rounds (`kat_vectors`): checks the
/// scalar reference itself.
#[test]
fn the_scalar_generator_gives_the_known_answers() {
    assert_eq!(threefry2x32([0, 0], [0, 0], 13), [0x9d1c_5ec6, 0x8bd5_0731]);
    assert_eq!(
        threefry2x32([u32::MAX; 2], [u32::MAX; 2], 13),
        [0xfd36_d048, 0x2d17_272c]
    );
    assert_eq!(
        threefry2x32([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3], 13),
        [0xba3e_4725, 0xf27d_669e]
    );
    // 20 rounds, the generator's usual number.
    assert_eq!(threefry2x32([0, 0], [0, 0], 20), [0x6b20_0159, 0x99ba_4efe]);
}

/// Masks are thresholds on the words, so enough of them pin the words: at rate r an element is kept
/// iff its word >= r 2^32.
#[test]
fn masks_follow_the_scalar_generator() {
    let dims = [3usize, 5, 2];
    let rates = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9];
    let got = evaluate(&[key()], |_, x| {
        let random = DropoutRng::keyed(x[0].clone());
        rates
            .iter()
            .map(|&rate| Ok(random.keep_mask(&dims, rate)?.expect("a rate above 0")))
            .collect()
    });
    for (place, (got, rate)) in got.iter().zip(rates).enumerate() {
        // Ten elements a row.
        let word = |i: u32| word(place as u32, i / 10, i % 10);
        let want: Vec<f64> = (0..30)
            .map(|i| f64::from(u8::from(f64::from(word(i)) >= rate * 2f64.powi(32))))
            .collect();
        assert_eq!(got.numbers(), want, "place {place}, rate {rate}");
    }
}

/// All 32 bits of the words: bisect each word with thresholds that differ by one.
#[test]
fn words_are_exact() {
    let dims = [4usize];
    let words: Vec<u32> = (0..4).map(|i| word(0, i, 0)).collect();
    // keep_mask's threshold is floor(rate 2^32), and rates k / 2^32 are exact in f64. A fresh trace
    // each time: place 0.
    for (i, &word) in words.iter().enumerate() {
        for (threshold, kept) in [(word, 1.0), (word.wrapping_add(1), 0.0)] {
            let rate = f64::from(threshold) / 2f64.powi(32);
            let got = evaluate(&[key()], |_, x| {
                Ok(vec![
                    DropoutRng::keyed(x[0].clone())
                        .keep_mask(&dims, rate)?
                        .expect("a rate above 0"),
                ])
            });
            assert_eq!(got[0].numbers()[i], kept, "word {i} = {word:#x}");
        }
    }
}

/// What the host computes to compare a device with is what graphs compute, of both generators.
#[test]
fn the_hosts_words_are_the_graphs() {
    for target in [Target::CPU, Target::Neuron(NeuronChip::Trn1)] {
        let graph = crate::support::trace(&[key()], |_, x| {
            Ok(vec![xtrain_graphs::random_words(&x[0], [10, 100], 3)?])
        });
        let program = crate::support::compile_for(&graph.unwrap(), target);
        let got = program.run(&[key()]).remove(0).numbers().to_vec();
        let host = xtrain_graphs::words_of(target, KEY, 3, [10, 100]);
        let host: Vec<f64> = host.into_iter().map(f64::from).collect();
        assert_eq!(got, host, "{target}");
    }
}

/// Shards of a batch whose masks have more than 2^32 elements together draw masks of their own: a linear
/// index of 32 bits would begin again at shard 2^22 of 2^10 elements each. Only what the shards hold is made.
#[test]
fn shards_beyond_2_to_the_32_elements_differ() {
    let dims = [2usize, 8, 64];
    let run = |shard: u32, target: Target| {
        let key = [KEY[0], KEY[1], shard].map(f64::from);
        let key = Value::new(DType::U32, &[3], &key);
        let graph = crate::support::trace(std::slice::from_ref(&key), |_, x| {
            let rng = DropoutRng::keyed(x[0].clone());
            Ok(vec![rng.keep_mask(&dims, 0.5)?.expect("a rate above 0")])
        });
        let program = crate::support::compile_for(&graph.unwrap(), target);
        program.run(&[key]).remove(0).numbers().to_vec()
    };
    for shard in [0, 1, 1 << 22, (1 << 22) + 1, 1 << 30] {
        let want: Vec<f64> = (0..1024)
            .map(|i| word(0, shard * 2 + i / 512, i % 512))
            .map(|word| f64::from(u8::from(word >= 1 << 31)))
            .collect();
        assert_eq!(run(shard, Target::CPU), want, "shard {shard}");
    }
    // The other generator is one of integers that XLA's CPU has too.
    let neuron = Target::Neuron(NeuronChip::Trn1);
    let masks: Vec<Vec<f64>> = [0, 1, 1 << 22].map(|shard| run(shard, neuron)).into();
    for (i, mask) in masks.iter().enumerate() {
        let kept: f64 = mask.iter().sum();
        // Five standard deviations of 1024 coins.
        assert!((kept - 512.0).abs() < 80.0, "{kept}");
        for other in &masks[..i] {
            let same = mask.iter().zip(other).filter(|(a, b)| a == b).count() as f64;
            assert!((same - 512.0).abs() < 80.0, "{same} of 1024 alike");
        }
    }
}

/// A row of more than 2^32 elements is cut into rows of its heads, or of their queries: lowered, not
/// computed here.
#[test]
fn masks_of_any_size_are_lowered() {
    for dims in [[2usize, 3, 1 << 16, 1 << 16], [1, 1 << 20, 1 << 20, 64]] {
        for target in [Target::CPU, Target::Neuron(NeuronChip::Trn1)] {
            let graph = crate::support::trace(&[key()], |_, x| {
                let rng = DropoutRng::keyed(x[0].clone());
                Ok(vec![rng.keep_mask(&dims, 0.5)?.expect("a rate above 0")])
            });
            passes::lower(&graph.unwrap(), target).unwrap();
        }
    }
}

#[test]
fn masks_have_the_right_mean_and_are_independent() {
    let n = 200_000usize;
    let rate = 0.1;
    let got = evaluate(&[key()], |_, x| {
        let random = DropoutRng::keyed(x[0].clone());
        let mask = |dims: &[usize]| Ok(random.keep_mask(dims, rate)?.expect("a rate above 0"));
        Ok::<Vec<Tensor>, xtrain_graphs::Error>(vec![mask(&[n])?, mask(&[n])?])
    });
    let (a, b) = (got[0].numbers(), got[1].numbers());
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    // Five standard deviations of the mean of n coins: 5 sqrt(0.09 / n) = 0.0034.
    let bound = 5.0 * (rate * (1.0 - rate) / n as f64).sqrt();
    assert!(
        (mean(&a) - 0.9).abs() < bound && (mean(&b) - 0.9).abs() < bound,
        "{} {}",
        mean(&a),
        mean(&b)
    );
    let variance = mean(&a.iter().map(|x| (x - 0.9).powi(2)).collect::<Vec<_>>());
    assert!((variance - 0.09).abs() < 0.8 * bound, "{variance}");
    // Two places, and neighbours within one mask, are uncorrelated.
    let covariance = |x: &[f64], y: &[f64]| {
        mean(
            &x.iter()
                .zip(y)
                .map(|(x, y)| (x - 0.9) * (y - 0.9))
                .collect::<Vec<_>>(),
        )
    };
    let bound = 5.0 * 0.09 / (n as f64).sqrt();
    assert!(covariance(&a, &b).abs() < bound);
    assert!(covariance(&a[1..], &a[..n - 1]).abs() < bound);
}

#[test]
fn another_step_or_seed_is_another_mask() {
    let run = |key: [f64; 2]| {
        let key = Value::new(DType::U32, &[2], &key);
        evaluate(&[key], |_, x| {
            Ok(vec![
                DropoutRng::keyed(x[0].clone())
                    .keep_mask(&[256], 0.5)?
                    .unwrap(),
            ])
        })
        .remove(0)
    };
    assert_eq!(run([1.0, 5.0]), run([1.0, 5.0]));
    assert_ne!(run([1.0, 5.0]), run([1.0, 6.0]));
    assert_ne!(run([1.0, 5.0]), run([2.0, 5.0]));
}

#[test]
fn dropout_scales_what_it_keeps() {
    let x = Value::new(DType::F32, &[10_000], &[3.0; 10_000]);
    let got = evaluate(&[x, key()], |_, x| {
        let random = DropoutRng::keyed(x[1].clone());
        Ok(vec![
            random.dropout(&x[0], 0.25)?,
            random.dropout(&x[0], 0.0)?,
            random.dropout(&x[0], 1.0)?,
        ])
    });
    let dropped = got[0].numbers();
    assert!(dropped.iter().all(|&x| x == 0.0 || x == 4.0));
    let kept = dropped.iter().filter(|&&x| x != 0.0).count() as f64 / 1e4;
    // Five standard deviations: 5 sqrt(0.1875 / 10^4).
    assert!((kept - 0.75).abs() < 0.022, "{kept}");
    assert_eq!(got[1].numbers(), [3.0; 10_000]);
    assert_eq!(got[2].numbers(), [0.0; 10_000]);
}

/// NEFTune: uniform between -m and m with m = alpha / sqrt(tokens x hidden size), from the same
/// words as everything random.
#[test]
fn embedding_noise_is_uniform_and_follows_the_scalar_generator() {
    let (tokens, hidden_size, alpha) = (50usize, 8usize, 5.0);
    let x = Value::new(DType::F32, &[100, hidden_size], &[1.0; 800]);
    let got = evaluate(&[x, key()], |_, x| {
        let random = DropoutRng::keyed(x[1].clone());
        let noisy = random.clone().with_embedding_noise(alpha);
        Ok(vec![
            noisy.add_embedding_noise(&x[0], tokens)?,
            random.add_embedding_noise(&x[0], tokens)?,
        ])
    });
    let most = alpha / ((tokens * hidden_size) as f64).sqrt();
    let noise: Vec<f64> = got[0].numbers().iter().map(|x| x - 1.0).collect();
    for (i, noise) in noise.iter().enumerate() {
        let word = f64::from(word(0, (i / hidden_size) as u32, (i % hidden_size) as u32));
        let want = 2.0 * most * word / 2f64.powi(32) - most;
        assert!((noise - want).abs() < 1e-6, "{i}: {noise} {want}");
    }
    // Five standard deviations of the mean of 800 uniform numbers.
    let mean = noise.iter().sum::<f64>() / 800.0;
    assert!(mean.abs() < 5.0 * most / 2400f64.sqrt(), "{mean}");
    assert_eq!(got[1].numbers(), [1.0; 800]);
}

#[test]
fn without_a_key_nothing_is_recorded() {
    let x = Value::scalar(DType::F32, 1.0);
    let graph = crate::support::trace(&[x], |_, x| {
        assert!(DropoutRng::off().keep_mask(&[4], 0.5)?.is_none());
        Ok(vec![DropoutRng::off().dropout(&x[0], 0.5)?])
    });
    assert!(matches!(graph.unwrap().nodes[..], [ref only] if only.op == Op::Input(0)));
}
