//! How the next token is chosen of the logits, on the host: transformers' processors in its order
//! (repetition penalty, temperature, top_k, top_p, min_p), then a draw.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token.
    pub temperature: f64,
    /// Only the k likeliest tokens are candidates; 0 means all.
    pub top_k: usize,
    /// Only the likeliest tokens that together reach this probability are candidates.
    pub top_p: f64,
    /// Only tokens with at least this share of the likeliest one's probability are candidates.
    pub min_p: f64,
    /// Logits of tokens that the text has are divided by this, or multiplied where they are negative
    /// (Keskar et al. 2019).
    pub repetition_penalty: f64,
    pub seed: u64,
}

impl Sampling {
    /// The likeliest token each time.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        seed: 0,
    };

    /// The random numbers of one text of a batch: they do not depend on which others are in it.
    pub(super) fn rng(&self, text: usize) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(text as u64);
        rng
    }

    /// The token after `text`, given the logits of all tokens; `None` where these give no
    /// probabilities: one is NaN or infinite, or all are minus infinity.
    pub(super) fn choose(
        &self,
        logits: &mut [f32],
        text: &[u32],
        rng: &mut ChaCha8Rng,
    ) -> Option<u32> {
        self.penalize(logits, text);
        let most = (logits.iter()).fold(f32::NEG_INFINITY, |most, logit| most.max(*logit));
        if !most.is_finite() || logits.iter().any(|logit| logit.is_nan()) {
            return None;
        }
        if self.temperature <= 0.0 {
            return Some(likeliest(logits));
        }
        let (candidates, weights) = self.candidates(logits);
        let mut left = rng.random::<f64>() * weights.iter().sum::<f64>();
        for (&token, weight) in candidates.iter().zip(&weights) {
            left -= weight;
            if left < 0.0 {
                return Some(token);
            }
        }
        Some(candidates[weights.len() - 1])
    }

    fn penalize(&self, logits: &mut [f32], text: &[u32]) {
        if self.repetition_penalty == 1.0 {
            return;
        }
        let mut seen = text.to_vec();
        seen.sort_unstable();
        seen.dedup();
        let penalty = self.repetition_penalty as f32;
        for token in seen {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = if *logit < 0.0 {
                    *logit * penalty
                } else {
                    *logit / penalty
                };
            }
        }
    }

    /// Tokens that may be drawn, with their weights: as many of the first as there are weights.
    fn candidates(&self, logits: &[f32]) -> (Vec<u32>, Vec<f64>) {
        let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
        // Likeliest first; equal logits by id, so that the choice is the same everywhere.
        let order = |a: &u32, b: &u32| {
            logits[*b as usize]
                .total_cmp(&logits[*a as usize])
                .then(a.cmp(b))
        };
        if self.top_k > 0 && self.top_k < tokens.len() {
            tokens.select_nth_unstable_by(self.top_k - 1, order);
            tokens.truncate(self.top_k);
        }
        tokens.sort_unstable_by(order);
        let best = f64::from(logits[tokens[0] as usize]);
        let weight =
            |token: &u32| ((f64::from(logits[*token as usize]) - best) / self.temperature).exp();
        let mut weights: Vec<f64> = tokens.iter().map(weight).collect();
        if self.top_p < 1.0 {
            let wanted = self.top_p * weights.iter().sum::<f64>();
            let mut before = 0.0;
            let reach = weights.iter().position(|weight| {
                let is_enough = before >= wanted;
                before += weight;
                is_enough
            });
            weights.truncate(reach.unwrap_or(weights.len()).max(1));
        }
        // The likeliest one's weight is 1.
        let likely = weights.iter().position(|weight| *weight < self.min_p);
        weights.truncate(likely.unwrap_or(weights.len()).max(1));
        (tokens, weights)
    }
}

/// The first of the tokens with the largest logit.
fn likeliest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if logit.total_cmp(&logits[best]).is_gt() {
            best = token;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Sampling = Sampling {
        temperature: 1.0,
        ..Sampling::GREEDY
    };

    /// Probabilities 0.5, 0.25, 0.125, 0.125 of tokens 2, 0, 1, 3.
    fn logits() -> Vec<f32> {
        [0.25f32, 0.125, 0.5, 0.125].map(f32::ln).to_vec()
    }

    fn kept(sampling: Sampling) -> Vec<u32> {
        let (tokens, weights) = sampling.candidates(&logits());
        tokens[..weights.len()].to_vec()
    }

    #[test]
    fn candidates_are_those_of_transformers() {
        assert_eq!(kept(PLAIN), [2, 0, 1, 3]);
        assert_eq!(kept(Sampling { top_k: 2, ..PLAIN }), [2, 0]);
        // As TopPLogitsWarper: the token that reaches the share is kept.
        for (top_p, tokens) in [
            (0.0, &[2][..]),
            (0.4, &[2]),
            (0.6, &[2, 0]),
            (0.8, &[2, 0, 1]),
            (0.9, &[2, 0, 1, 3]),
        ] {
            assert_eq!(kept(Sampling { top_p, ..PLAIN }), tokens, "top_p {top_p}");
        }
        for (min_p, tokens) in [
            (0.2, &[2, 0, 1, 3][..]),
            (0.3, &[2, 0]),
            (0.6, &[2]),
            (1.0, &[2]),
        ] {
            assert_eq!(kept(Sampling { min_p, ..PLAIN }), tokens, "min_p {min_p}");
        }
        // The share is of the k that are left.
        let both = Sampling {
            top_k: 2,
            top_p: 0.6,
            ..PLAIN
        };
        assert_eq!(kept(both), [2]);
    }

    /// `sampling.json`: the probabilities of all tokens after transformers' processors.
    #[test]
    fn probabilities_are_those_of_transformers() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/data/golden/newer/sampling.json"
        );
        let cases: Vec<serde_json::Value> =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        for case in &cases {
            let number = |key: &str| case[key].as_f64().unwrap();
            let list = |key: &str| -> Vec<f64> {
                let values = case[key].as_array().unwrap().iter();
                values.map(|value| value.as_f64().unwrap()).collect()
            };
            let sampling = Sampling {
                temperature: number("temperature"),
                top_k: number("top_k") as usize,
                top_p: number("top_p"),
                min_p: number("min_p"),
                repetition_penalty: number("repetition_penalty"),
                seed: 0,
            };
            let mut logits: Vec<f32> = list("logits").iter().map(|x| *x as f32).collect();
            let text: Vec<u32> = list("text").iter().map(|id| *id as u32).collect();
            sampling.penalize(&mut logits, &text);
            let (tokens, weights) = sampling.candidates(&logits);
            let sum: f64 = weights.iter().sum();
            let mut found = vec![0.0; logits.len()];
            for (token, weight) in tokens.iter().zip(&weights) {
                found[*token as usize] = weight / sum;
            }
            for (found, expected) in found.iter().zip(list("probabilities")) {
                assert!((found - expected).abs() < 1e-6, "{case}: {found}");
            }
        }
        assert!(cases.len() >= 100);
    }

    #[test]
    fn repeated_tokens_lose() {
        let penalty = Sampling {
            repetition_penalty: 2.0,
            ..Sampling::GREEDY
        };
        let mut rng = penalty.rng(0);
        let mut logits = vec![3.0, 2.0, -1.0, -1.5];
        assert_eq!(penalty.choose(&mut logits, &[0, 0, 2], &mut rng), Some(1));
        assert_eq!(logits, [1.5, 2.0, -2.0, -1.5]);
    }

    /// torch refuses to draw from these ("probability tensor contains either `inf`, `nan`"); minus infinity
    /// is a token that cannot come.
    #[test]
    fn nothing_is_chosen_of_logits_that_overflowed() {
        const LOW: f32 = f32::NEG_INFINITY;
        for sampling in [PLAIN, Sampling::GREEDY, Sampling { top_k: 1, ..PLAIN }] {
            let choose =
                |mut logits: Vec<f32>| sampling.choose(&mut logits, &[1], &mut PLAIN.rng(0));
            for broken in [
                vec![0.0, f32::NAN, 1.0],
                vec![f32::NAN, 5.0],
                vec![2.0, f32::INFINITY, 1.0],
                vec![LOW; 3],
            ] {
                assert_eq!(choose(broken.clone()), None, "{broken:?}");
            }
            assert_eq!(choose(vec![LOW, 3.0, LOW]), Some(1));
        }
        let penalty = Sampling {
            repetition_penalty: 1e-39,
            ..PLAIN
        };
        assert_eq!(
            penalty.choose(&mut [1.0, 2.0], &[1], &mut PLAIN.rng(0)),
            None
        );
    }

    #[test]
    fn draws_follow_the_probabilities_and_the_seed() {
        let mut counts = [0usize; 4];
        let mut rng = PLAIN.rng(0);
        for _ in 0..4000 {
            let token = PLAIN.choose(&mut logits(), &[], &mut rng).unwrap();
            counts[token as usize] += 1;
        }
        for (token, expected) in [(2, 2000.0), (0, 1000.0), (1, 500.0), (3, 500.0)] {
            let found = counts[token] as f64;
            assert!((found - expected).abs() < 120.0, "{token}: {counts:?}");
        }
        let draws = |text| -> Vec<u32> {
            let mut rng = PLAIN.rng(text);
            (0..20)
                .map(|_| PLAIN.choose(&mut logits(), &[], &mut rng).unwrap())
                .collect()
        };
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
    }
}
