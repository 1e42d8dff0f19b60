//! Files that are mixed by weights. Which file the next sample comes from is drawn as
//! `datasets.interleave_datasets` draws it, by NumPy's generator, so that the order is the same.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::error::{Error, Result};
use super::samples::{Recipe, Sample, Samples};
use super::settings::{Mixture, OnBadRow, Stopping};

/// NumPy's `default_rng(seed)`: PCG64 (XSL-RR, 128 bits of state), seeded by a SeedSequence.
/// Source: O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms".
struct Pcg64 {
    state: u128,
    increment: u128,
}

impl Pcg64 {
    const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

    fn new(seed: u64) -> Pcg64 {
        let words = seed_sequence(seed);
        let wide = |high: usize| u128::from(words[high]) << 64 | u128::from(words[high + 1]);
        let mut generator = Pcg64 {
            state: 0,
            increment: wide(2) << 1 | 1,
        };
        generator.step();
        generator.state = generator.state.wrapping_add(wide(0));
        generator.step();
        generator
    }

    fn step(&mut self) {
        let product = self.state.wrapping_mul(Pcg64::MULTIPLIER);
        self.state = product.wrapping_add(self.increment);
    }

    /// Uniform in 0..1, 53 bits.
    fn unit(&mut self) -> f64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        let bits = folded.rotate_right((self.state >> 122) as u32);
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The first four words of NumPy's `SeedSequence(seed)`.
fn seed_sequence(seed: u64) -> [u64; 4] {
    let mut constant = 0x43b0_d7e5_u32;
    let mut hashed = |value: u32| {
        let value = value ^ constant;
        constant = constant.wrapping_mul(0x931e_8875);
        let value = value.wrapping_mul(constant);
        value ^ value >> 16
    };
    let mut pool = [seed as u32, (seed >> 32) as u32, 0, 0].map(&mut hashed);
    for source in 0..4 {
        for target in (0..4).filter(|target| *target != source) {
            let left = pool[target].wrapping_mul(0xca01_f9dd);
            let mixed = left.wrapping_sub(hashed(pool[source]).wrapping_mul(0x4973_f715));
            pool[target] = mixed ^ mixed >> 16;
        }
    }
    let mut constant = 0x8b51_f9dd_u32;
    let mut word = |at: usize| {
        let value = pool[at % 4] ^ constant;
        constant = constant.wrapping_mul(0x58f3_8ded);
        let value = value.wrapping_mul(constant);
        u64::from(value ^ value >> 16)
    };
    std::array::from_fn(|pair| {
        let low = word(2 * pair);
        low | word(2 * pair + 1) << 32
    })
}

/// Draws of a file's number, as `Generator.choice(p=weights)` has them.
struct Draws {
    generator: Pcg64,
    /// Sums of the weights up to each.
    sums: Vec<f64>,
}

impl Draws {
    fn new(weights: &[f64], seed: u64) -> Draws {
        let mut sum = 0.0;
        let sums: Vec<f64> = (weights.iter())
            .map(|weight| {
                sum += weight;
                sum
            })
            .collect();
        Draws {
            generator: Pcg64::new(seed),
            sums: sums.into_iter().map(|one| one / sum).collect(),
        }
    }

    fn next(&mut self) -> usize {
        let at = self.generator.unit();
        let found = self.sums.partition_point(|sum| *sum <= at);
        found.min(self.sums.len() - 1)
    }
}

/// One file of a mixture.
struct Part<'a> {
    file: &'a [PathBuf],
    samples: Samples<'a>,
    /// The sample that comes next.
    next: Option<Sample>,
    /// Each of its samples was there.
    is_exhausted: bool,
    /// Bad rows that were left out in earlier passes.
    skipped: u64,
}

/// Samples of several files, mixed. It ends at an error.
pub struct Mixed<'a> {
    parts: Vec<Part<'a>>,
    draws: Draws,
    stopping: Stopping,
    recipe: &'a dyn Recipe,
    on_bad_row: OnBadRow,
    bytes_read: Arc<AtomicU64>,
    rows: u64,
    has_failed: bool,
}

impl<'a> Mixed<'a> {
    /// # Errors
    /// A file cannot be read, or has no sample.
    pub fn new(
        files: &'a [PathBuf],
        mixture: &Mixture,
        seed: u64,
        recipe: &'a dyn Recipe,
        on_bad_row: OnBadRow,
    ) -> Result<Mixed<'a>> {
        let bytes_read = Arc::default();
        let part = |file: &'a PathBuf| {
            let file = std::slice::from_ref(file);
            let mut samples = Samples::counted(file, recipe, on_bad_row, Arc::clone(&bytes_read));
            let next = samples.next().transpose()?;
            let next = next.ok_or_else(|| Error::NoRows {
                what: file[0].display().to_string(),
            })?;
            Ok(Part {
                file,
                samples,
                next: Some(next),
                is_exhausted: false,
                skipped: 0,
            })
        };
        Ok(Mixed {
            parts: files.iter().map(part).collect::<Result<_>>()?,
            draws: Draws::new(&mixture.weights, seed),
            stopping: mixture.stopping,
            recipe,
            on_bad_row,
            bytes_read,
            rows: 0,
            has_failed: false,
        })
    }

    /// Raw bytes read so far, in all passes.
    pub fn bytes_read(&self) -> Arc<AtomicU64> {
        self.bytes_read.clone()
    }

    /// Bad rows left out so far, in all passes.
    pub fn skipped(&self) -> u64 {
        let parts = self.parts.iter();
        parts
            .map(|part| part.skipped + part.samples.skipped())
            .sum()
    }

    fn is_at_end(&self) -> bool {
        let mut parts = self.parts.iter();
        match self.stopping {
            Stopping::FirstExhausted => parts.any(|part| part.is_exhausted),
            Stopping::AllExhausted => parts.all(|part| part.is_exhausted),
        }
    }

    /// The next sample of a file, which begins anew after its last one.
    fn take(&mut self, number: usize) -> Result<Sample> {
        let part = &mut self.parts[number];
        let sample = part.next.take().expect("a part always has its next sample");
        part.next = part.samples.next().transpose()?;
        if part.next.is_none() {
            part.is_exhausted = true;
            part.skipped += part.samples.skipped();
            let (recipe, bytes) = (self.recipe, self.bytes_read.clone());
            part.samples = Samples::counted(part.file, recipe, self.on_bad_row, bytes);
            part.next = part.samples.next().transpose()?;
        }
        Ok(sample)
    }
}

impl Iterator for Mixed<'_> {
    type Item = Result<Sample>;

    fn next(&mut self) -> Option<Result<Sample>> {
        if self.has_failed || self.is_at_end() {
            return None;
        }
        let file = self.draws.next();
        let taken = self.take(file);
        self.has_failed = taken.is_err();
        let index = self.rows;
        self.rows += 1;
        Some(taken.map(|sample| Sample {
            index,
            file,
            ..sample
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, BatchRows};
    use crate::samples::{EncodedGroup, SampleFile};
    use crate::settings::TableSettings;
    use crate::texts::TextFile;
    use std::path::Path;

    /// The numbers are NumPy's: `default_rng(42).choice(3, size=24, p=[.7, .2, .1])` and `.random()`.
    #[test]
    fn draws_are_those_of_numpy() {
        let mut draws = Draws::new(&[0.7, 0.2, 0.1], 42);
        let drawn: Vec<usize> = (0..24).map(|_| draws.next()).collect();
        let numpy = [
            1, 0, 1, 0, 0, 2, 1, 1, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 2, 1,
        ];
        assert_eq!(drawn, numpy);
        let mut generator = Pcg64::new((1 << 40) + 7);
        assert_eq!(generator.unit(), 0.829812891829413);
        assert_eq!(generator.unit(), 0.25530515834910417);
    }

    #[derive(Debug)]
    struct Lines;

    impl Recipe for Lines {
        fn open(&self, path: &Path, count: Arc<AtomicU64>) -> Result<Box<dyn SampleFile>> {
            let file = TextFile::open(path, &TableSettings::default(), false, count)?;
            Ok(Box::new(file))
        }

        fn group(&self) -> usize {
            1
        }

        fn encode(&self, _samples: &[Sample]) -> Result<EncodedGroup> {
            Ok(EncodedGroup::default())
        }

        fn length(&self) -> usize {
            1
        }

        fn label(&self, _rows: &BatchRows<'_>, _batch: &mut Batch) {}
    }

    /// As `interleave_datasets` of these lines with the probabilities 0.7, 0.2, 0.1 and seed 42 has them.
    #[test]
    fn a_mixture_ends_with_its_first_file_or_with_its_last() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, lines: usize| {
            let path = dir.path().join(format!("{name}.txt"));
            let text: String = (0..lines).map(|line| format!("{name}{line}\n")).collect();
            std::fs::write(&path, text).unwrap();
            path
        };
        let files = [file("a", 3), file("b", 4), file("c", 2)];
        let mixed = |stopping| {
            let weights = vec![0.7, 0.2, 0.1];
            let mixture = Mixture { weights, stopping };
            let all = Mixed::new(&files, &mixture, 42, &Lines, OnBadRow::Error).unwrap();
            let texts = all.map(|sample| sample.unwrap().texts[0].clone());
            texts.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(mixed(Stopping::FirstExhausted), "b0 a0 b1 a1 a2");
        assert_eq!(
            mixed(Stopping::AllExhausted),
            "b0 a0 b1 a1 a2 c0 b2 b3 a0 a1 a2 c1"
        );
        let empty = [files[0].clone(), file("none", 0)];
        let mixture = Mixture {
            weights: vec![0.5, 0.5],
            stopping: Stopping::FirstExhausted,
        };
        let error = Mixed::new(&empty, &mixture, 0, &Lines, OnBadRow::Error);
        assert!(error.is_err());
    }
}
