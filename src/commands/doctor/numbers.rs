//! Compares with the host the results that a new compiler could get wrong in silence: words of the random
//! generator, whose products of 32 bits some units compute in f32, and products with one-hot
//! matrices, which stand for lookups and their gradients.

use crate::Error;
use std::time::Instant;
use xtrain_engine::failed;
use xtrain_graphs::{DType, Shape, Target, random_words, words_of};
use xtrain_trainer as trainer;
use xtrain_trainer::session::Session;

/// Words that are compared: rows and places in them.
const WORDS: [u32; 2] = [10, 100];
const KEY: [u32; 2] = [0x1234_5678, 0x9ABC_DEF0];
const STREAM: u32 = 3;
const BITS: &str = "doctor_words";

/// Of the table and of what is added to its rows.
const ROWS: usize = 64;
const WIDTH: usize = 16;
const ONE_HOT: &str = "doctor_one_hot";

/// A thousand random words, bit by bit.
pub(super) fn words(session: &mut Session) -> Result<String, Error> {
    let start = Instant::now();
    let target = session.cache().target();
    let compute = |session: &mut Session| -> trainer::Result<Vec<f32>> {
        let mut recording = session.begin();
        let key = recording.feed_host(
            "key",
            bytemuck::cast_slice(&KEY),
            &Shape::new(DType::U32, [2]),
        )?;
        let words = random_words(&key, WORDS, STREAM)?;
        // f32 has no room for 32 bits: each half travels by itself.
        let trace = words.trace();
        let low = trace.full(65_535.0, words.shape())?;
        let sixteen = trace.full(16.0, words.shape())?;
        let halves = [words.shift_right_logical(&sixteen)?, words.and(&low)?];
        for (name, half) in ["high", "low"].iter().zip(halves) {
            recording.fetch(name, &half.convert(DType::F32)?);
        }
        let outputs = recording.mark_step(BITS)?;
        let mut found: Vec<f32> = outputs.fetched("high").download_to()?;
        found.extend(outputs.fetched("low").download_to::<f32>()?);
        Ok(found)
    };
    let found = compute(session).map_err(failed("computing random words"))?;
    differences(&found, target)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(format!("1,000 words as on the host in {seconds:.2} s"))
}

/// `found`: the upper halves of all words, then the lower ones.
fn differences(found: &[f32], target: Target) -> Result<(), Error> {
    let wanted = words_of(target, KEY, STREAM, WORDS);
    let (high, low) = found.split_at(found.len() / 2);
    let found: Vec<u32> = (high.iter().zip(low))
        .map(|(high, low)| (*high as u32) << 16 | *low as u32)
        .collect();
    let mut differing = found.iter().zip(&wanted).filter(|(a, b)| a != b);
    match differing.next() {
        None if found.len() == wanted.len() => Ok(()),
        None => Err(Error::failed(format!("there are {} words", found.len()))),
        Some((first, want)) => Err(Error::failed(format!(
            "{} of 1,000 random words differ from the host's, the first is {first:#010x} and should be {want:#010x}: the compiler does \
             not compute products of u32 exactly, and dropout's masks are not what they should be",
            differing.count() + 1
        ))),
    }
}

/// A lookup and the sum of rows by their ids, some of which are outside of the table: small whole numbers,
/// so that every order of adding gives the same.
pub(super) fn one_hot(session: &mut Session) -> Result<String, Error> {
    let start = Instant::now();
    let ids: Vec<i32> = (0..96).map(|i| i * 7 % (ROWS as i32 + 3) - 1).collect();
    let updates: Vec<f32> = (0..ids.len() * WIDTH).map(|i| (i % 5) as f32).collect();
    let table: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i % 11) as f32).collect();
    let compute = |session: &mut Session| -> trainer::Result<[Vec<f32>; 2]> {
        let mut recording = session.begin();
        let mut feed = |name: &str, bytes: &[u8], dtype, dims: &[usize]| {
            recording.feed_host(name, bytes, &Shape::new(dtype, dims))
        };
        let id = feed("ids", bytemuck::cast_slice(&ids), DType::S32, &[ids.len()])?;
        let update = feed(
            "updates",
            bytemuck::cast_slice(&updates),
            DType::F32,
            &[ids.len(), WIDTH],
        )?;
        let table = feed(
            "table",
            bytemuck::cast_slice(&table),
            DType::F32,
            &[ROWS, WIDTH],
        )?;
        recording.fetch("sums", &table.scatter_add_rows(&id, &update)?);
        recording.fetch("rows", &table.take_rows(&id)?);
        let outputs = recording.mark_step(ONE_HOT)?;
        let read = |name| outputs.fetched(name).download_to();
        Ok([read("sums")?, read("rows")?])
    };
    let [sums, rows] = compute(session).map_err(failed("looking rows up"))?;
    let mut wanted = table.clone();
    let mut taken = Vec::new();
    for (i, &id) in ids.iter().enumerate() {
        let edge = id.clamp(0, ROWS as i32 - 1) as usize * WIDTH;
        taken.extend_from_slice(&table[edge..edge + WIDTH]);
        if (0..ROWS as i32).contains(&id) {
            for j in 0..WIDTH {
                wanted[edge + j] += updates[i * WIDTH + j];
            }
        }
    }
    for (found, wanted, what) in [
        (sums, wanted, "rows that are added up by a one-hot product"),
        (rows, taken, "rows that are looked up by clamped ids"),
    ] {
        let differing = found.iter().zip(&wanted).filter(|(a, b)| a != b).count();
        if differing > 0 || found.len() != wanted.len() {
            return Err(Error::failed(format!(
                "{what}: {differing} of {} numbers differ from the host's",
                wanted.len()
            )));
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(format!(
        "{} rows added up and looked up as on the host in {seconds:.2} s",
        ids.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtrain_graphs::NeuronChip;

    #[test]
    fn a_wrong_bit_is_seen() {
        let target = Target::Neuron(NeuronChip::Trn1);
        let words = words_of(target, KEY, STREAM, WORDS);
        let halves = |words: &[u32]| -> Vec<f32> {
            let high = words.iter().map(|word| (word >> 16) as f32);
            high.chain(words.iter().map(|word| (word & 0xffff) as f32))
                .collect()
        };
        assert!(differences(&halves(&words), target).is_ok());
        let mut wrong = words.clone();
        wrong[7] ^= 1 << 31;
        wrong[999] ^= 1;
        let error = differences(&halves(&wrong), target).unwrap_err();
        assert!(error.one_line().starts_with("2 of 1,000"), "{error:?}");
        assert!(differences(&halves(&words[..900]), target).is_err());
    }
}
