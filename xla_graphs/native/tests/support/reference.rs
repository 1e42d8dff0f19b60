//! Plain scalar formulas in f64 that the graph's results are compared with, written from the
//! definitions and not from the graph layer's code.

/// erf to about 1e-15: the Maclaurin series in the middle, a continued fraction for erfc outside.
pub fn erf(x: f64) -> f64 {
    let z = x.abs();
    let value = if z < 2.5 {
        let (mut term, mut sum) = (z, z);
        for n in 1..200 {
            term *= -z * z / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else if z > 6.5 {
        1.0
    } else {
        // erfc(z) = exp(-z^2) / sqrt(pi) / (z + 1/2 / (z + 1 / (z + 3/2 / (z + ...)))), from the
        // inside out.
        let tail = (1..200).rev().fold(z, |tail, k| z + k as f64 / 2.0 / tail);
        1.0 - (-z * z).exp() / std::f64::consts::PI.sqrt() / tail
    };
    value.copysign(x)
}

pub fn gelu_erf(x: f64) -> f64 {
    x * 0.5 * (1.0 + erf(x / 2f64.sqrt()))
}

pub fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

pub fn softmax(row: &[f64]) -> Vec<f64> {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exp: Vec<f64> = row.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = exp.iter().sum();
    exp.iter().map(|e| e / sum).collect()
}

pub fn layer_norm(row: &[f64], gamma: &[f64], beta: &[f64], eps: f64) -> Vec<f64> {
    let n = row.len() as f64;
    let mean = row.iter().sum::<f64>() / n;
    let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    row.iter()
        .zip(gamma)
        .zip(beta)
        .map(|((x, g), b)| (x - mean) / (variance + eps).sqrt() * g + b)
        .collect()
}

/// Loss of one row, 0 for the ignored label.
pub fn cross_entropy(logits: &[f64], label: i64, ignore: i64) -> f64 {
    if label == ignore {
        return 0.0;
    }
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|x| (x - max).exp()).sum();
    max + sum.ln() - logits[label as usize]
}

/// What attention is made of, for one batch entry and head: `q[T][D]`, `k[S][D]`, `v[S][D]`.
pub struct Attention<'a> {
    pub q: &'a [Vec<f64>],
    pub k: &'a [Vec<f64>],
    pub v: &'a [Vec<f64>],
    pub scale: f64,
    pub soft_cap: Option<f64>,
    /// Whether query t sees key s.
    pub visible: &'a dyn Fn(usize, usize) -> bool,
    /// Whether key s counts for query t if that sees no key at all.
    pub counts_unseen: &'a dyn Fn(usize, usize) -> bool,
    /// The factor on probability (t, s): 0 or 1 / (1 - rate).
    pub dropout: &'a dyn Fn(usize, usize) -> f64,
}

impl Attention<'_> {
    pub fn output(&self) -> Vec<Vec<f64>> {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
        let row = |(t, q): (usize, &Vec<f64>)| {
            let sees_nothing = !(0..self.k.len()).any(|s| (self.visible)(t, s));
            let score = |(s, k): (usize, &Vec<f64>)| {
                if sees_nothing && (self.counts_unseen)(t, s) {
                    // transformers adds the lowest finite number, which leaves a row without keys
                    // uniform over those that it was added to once.
                    0.0
                } else if (self.visible)(t, s) {
                    let score = self.scale * dot(q, k);
                    self.soft_cap
                        .map_or(score, |cap| cap * (score / cap).tanh())
                } else {
                    f64::NEG_INFINITY
                }
            };
            let scores: Vec<f64> = self.k.iter().enumerate().map(score).collect();
            let p = softmax(&scores);
            (0..self.v[0].len())
                .map(|d| {
                    (0..self.v.len())
                        .map(|s| p[s] * (self.dropout)(t, s) * self.v[s][d])
                        .sum()
                })
                .collect()
        };
        self.q.iter().enumerate().map(row).collect()
    }
}

/// Threefry-2x32 as Random123 defines it, over plain integers, with any number of rounds.
pub fn threefry2x32(key: [u32; 2], counter: [u32; 2], rounds: usize) -> [u32; 2] {
    const DISTANCES: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];
    let schedule = [key[0], key[1], 0x1BD1_1BDA ^ key[0] ^ key[1]];
    let mut x = [
        counter[0].wrapping_add(key[0]),
        counter[1].wrapping_add(key[1]),
    ];
    for round in 0..rounds {
        x[0] = x[0].wrapping_add(x[1]);
        x[1] = x[1].rotate_left(DISTANCES[round % 8]) ^ x[0];
        if (round + 1) % 4 == 0 {
            let s = (round + 1) / 4;
            x[0] = x[0].wrapping_add(schedule[s % 3]);
            x[1] = x[1]
                .wrapping_add(schedule[(s + 1) % 3])
                .wrapping_add(s as u32);
        }
    }
    x
}
