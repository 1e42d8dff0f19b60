//! Logits of answers that are large never exist whole: losses and gradients are those of smaller batches.

use crate::preferences::{Bench, HostRow, answers};
use crate::support::max_difference;
use std::sync::Arc;
use xtrain::cache::CacheSettings;
use xtrain::parallel::Mesh;
use xtrain::trainer::ahead::{Ahead, RunShapes};
use xtrain::trainer::device;
use xtrain::trainer::feed::BatchShape;
use xtrain::trainer::settings::OptimizerSettings;
use xtrain::trainer::step::TrainStep;
use xtrain_graphs::optim::{ADAMW, Schedule};
use xtrain_models::{HeadKind, Model, Objective, OddsRatio, PairLoss, Preference, REFERENCE};

const VOCABULARY: usize = 80_000;
const TOKENS: usize = 288;

fn model() -> Box<dyn Model> {
    let mut config = xtrain_models::preset("gpt2").unwrap();
    let sizes = [
        ("n_layer", 1),
        ("n_embd", 8),
        ("n_head", 2),
        ("n_positions", TOKENS),
        ("vocab_size", VOCABULARY),
    ];
    for (key, value) in sizes {
        config.set(key, value);
    }
    xtrain_models::build(config, HeadKind::CausalLm).unwrap()
}

/// What is learned from pairs, with and without a reference.
fn objectives() -> [Arc<dyn Objective>; 2] {
    let preference = Preference {
        losses: vec![(PairLoss::Sigmoid, 1.0)],
        use_weighting: true,
        ..Preference::default()
    };
    let orpo = OddsRatio {
        beta: 0.1,
        dropout: false,
    };
    [Arc::new(preference), Arc::new(orpo)]
}

/// A recorded step has no array of all tokens and all words; in a batch of half as many there is one.
#[test]
fn a_step_has_no_logits_of_all_tokens() {
    let model = model();
    for objective in objectives() {
        let largest = |rows: usize| {
            let mut session = device::open_cpu(Mesh::single(), CacheSettings::in_memory()).unwrap();
            let settings = OptimizerSettings::constant(ADAMW, 1e-3);
            let schedule = Schedule::constant(1e-3);
            let step = TrainStep::new(&*model, objective.clone(), settings, schedule, 1);
            let batch = BatchShape::of(&*objective, rows, TOKENS).with_attention_mask();
            let shapes = RunShapes {
                train: vec![batch],
                eval: Vec::new(),
                accumulation: 1,
                of_reference: false,
            };
            let mut ahead = Ahead {
                session: &mut session,
                step: &step,
                shapes: &shapes,
                metrics: None,
            };
            let graphs = ahead.graphs().unwrap();
            let nodes = graphs.iter().flat_map(|graph| &graph.nodes);
            let of_words = nodes.filter(|node| node.shape.dims.last() == Some(&VOCABULARY));
            of_words.map(|node| node.shape.dims[0]).max().unwrap()
        };
        assert_eq!(largest(2), 2 * TOKENS);
        assert_eq!(largest(4), 2 * TOKENS, "logits are made in two blocks");
    }
}

/// Two pairs in one batch, whose logits are made in blocks, against each pair by itself.
#[test]
fn blocks_of_logits_change_no_loss_and_no_gradient() {
    let row = |seed: usize, prompt: usize| HostRow {
        ids: (0..TOKENS - seed)
            .map(|i| ((i * 7919 + seed * 104_729) % VOCABULARY) as i32)
            .collect(),
        prompt,
    };
    let rows = [row(1, 40), row(2, 40), row(3, 90), row(4, 90)];
    let mut bench = Bench::random(model(), TOKENS);
    for objective in objectives() {
        let mut summed = |rows: &[HostRow]| {
            let mut batch = answers(rows.to_vec());
            if objective.reference().is_some() {
                batch.numbers.push((REFERENCE, vec![-2000.0; rows.len()]));
            }
            bench.summed(&*objective, &batch)
        };
        // The cross-entropy of ORPO is a mean over the tokens of a batch, so that pairs have to be alike.
        let pairs = if objective.reference().is_some() {
            rows.clone()
        } else {
            let [first, second, ..] = rows.clone();
            [first.clone(), second.clone(), first, second]
        };
        let (loss, gradients) = summed(&pairs);
        let (first, expected) = summed(&pairs[..2]);
        let (second, more) = summed(&pairs[2..]);
        let sum = first + second;
        assert!(
            (loss - sum).abs() < 1e-4 * sum.abs().max(1.0),
            "{loss}, not {sum}"
        );
        for ((found, one), two) in gradients.iter().zip(&expected).zip(&more) {
            let sums: Vec<f32> = one.iter().zip(two).map(|(one, two)| one + two).collect();
            let largest = sums.iter().fold(0f32, |most, x| most.max(x.abs()));
            let difference = max_difference(found, &sums);
            assert!(
                difference <= 1e-4 * largest.max(1e-3),
                "{difference:e} of {largest:e}"
            );
        }
    }
}
