//! What reads files and messages of others, fed with damaged ones: it may refuse them, and must
//! neither panic nor take long nor much memory. Seeded, so that input N of a seed is always the same.
//! For tests only.
//!
//! Each crate lists its readers as [`Target`]s in a file `fuzz.rs` of its own. A short run of each is a
//! test; `bin/soak fuzz TARGET --minutes N` runs one for long. What was found lies in
//! `fuzz/corpus/TARGET` and is tried first, every time.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, panic};

/// An input takes at most so much processor time, whatever else runs on the machine, and the whole
/// process so much memory.
const SECONDS: u64 = 5;
const MEMORY: u64 = 1 << 30;

/// A reader of others' bytes.
pub struct Target {
    pub name: &'static str,
    /// What the file is called that the input is written to.
    pub file: &'static str,
    /// Good inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Pieces that such inputs are made of.
    pub words: &'static [&'static str],
    /// Reads an input, from the file or from memory.
    pub read: fn(&Path, &[u8]),
}

/// The tests of a crate's targets: a short one of each, and that of `bin/soak fuzz`.
#[macro_export]
macro_rules! tests {
    ($targets:expr) => {
        #[test]
        fn damaged_input_is_refused_by_every_reader() {
            $crate::try_shortly($targets);
        }

        #[test]
        #[ignore = "slow: ten seconds of each target, or what bin/soak fuzz asks for"]
        fn soak() {
            $crate::soak($targets);
        }
    };
}

/// Pieces of JSON.
pub const JSON: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    "null",
    "true",
    "-1",
    "0",
    "1e308",
    "18446744073709551615",
    "\\u0000",
    "\\ud800",
    "[[[[[[[[",
    "9223372036854775807",
    "\"\"",
    "{\"a\":1}",
    "1e-320",
    "0.5",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file of `tests/data`.
pub fn of_tests(file: &str) -> Vec<u8> {
    fs::read(root().join("tests/data").join(file)).expect("the repository's own test data")
}

/// Processor time that all threads of this process used so far.
fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock exists on every system that xtrain runs on, and `time` is valid for the
    // write.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A damaged copy of one of the seeds.
fn mutated(rng: &mut ChaCha8Rng, seeds: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut pick = |below: usize| (rng.next_u64() % below.max(1) as u64) as usize;
    let mut bytes = seeds[pick(seeds.len())].clone();
    for _ in 0..[1, 1, 2, 4, 16][pick(5)] {
        let at = pick(bytes.len() + 1);
        let length = 1 << pick(8);
        let end = (at + pick(length)).min(bytes.len());
        match pick(10) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..end)),
            2 | 3 if at < bytes.len() => bytes[at] ^= 1 << pick(8),
            4 if at < bytes.len() => {
                bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'"', b'-', b'9'][pick(8)]
            }
            5 => {
                let piece = bytes[at..end].to_vec();
                let to = pick(bytes.len() + 1);
                let pieces = piece.repeat([1, 1, 2, 50][pick(4)]);
                drop(bytes.splice(to..to, pieces));
            }
            6 => {
                let other = &seeds[pick(seeds.len())];
                let from = pick(other.len() + 1);
                let length = 1 << pick(10);
                let to = (from + pick(length)).min(other.len());
                drop(bytes.splice(at..end, other[from..to].iter().copied()));
            }
            7 => {
                // A number in one of the sizes that headers have.
                let number = [0, 1, 255, 1 << 16, 1 << 31, 1 << 32, 1 << 62, u64::MAX][pick(8)];
                let width = [1, 2, 4, 8][pick(4)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
            }
            8 => {
                let word = words[pick(words.len())].bytes();
                drop(bytes.splice(at..end, word));
            }
            _ => {
                // Another value for one of the numbers or words between punctuation.
                let is_word =
                    |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'.' || *byte == b'-';
                let start = bytes[at..].iter().position(is_word).map_or(at, |n| at + n);
                let length = bytes[start..]
                    .iter()
                    .take_while(|byte| is_word(byte))
                    .count();
                let word = words[pick(words.len())].bytes();
                drop(bytes.splice(start..start + length, word));
            }
        }
    }
    bytes
}

/// Feeds one input; what is wrong with how the target took it.
fn try_input(target: &Target, path: &Path, bytes: &[u8]) -> Option<String> {
    fs::write(path, bytes).expect("the temporary folder takes it");
    let began = cpu_time();
    let result = panic::catch_unwind(|| (target.read)(path, bytes));
    let seconds = (cpu_time() - began).as_secs();
    if let Err(payload) = result {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        return Some(format!("panics: {}", text.unwrap_or_default()));
    }
    (seconds >= SECONDS).then(|| format!("takes {seconds} s"))
}

/// The most memory that this process has had.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Tries the corpus, then inputs of a seed until `done`; how many were tried.
fn run(target: &Target, seed: u64, first: u64, done: impl Fn(u64) -> bool, keep: &Path) -> u64 {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join(target.file);
    let corpus = root().join("fuzz/corpus").join(target.name);
    let found: Vec<Vec<u8>> = fs::read_dir(corpus)
        .into_iter()
        .flatten()
        .map(|file| fs::read(file.unwrap().path()).unwrap())
        .collect();
    let mut seeds = (target.seeds)();
    for (index, bytes) in seeds.iter().chain(&found).enumerate() {
        let wrong = try_input(target, &path, bytes);
        assert!(wrong.is_none(), "{} corpus {index}: {wrong:?}", target.name);
    }
    seeds.extend(found);
    let before = peak_memory();
    let mut number = first;
    while !done(number) {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&number.to_le_bytes());
        let bytes = mutated(&mut ChaCha8Rng::from_seed(key), &seeds, target.words);
        let mut wrong = try_input(target, &path, &bytes);
        if number.is_multiple_of(32) && peak_memory() > before + MEMORY {
            wrong = wrong.or_else(|| Some(format!("has taken {} MiB", peak_memory() >> 20)));
        }
        if let Some(wrong) = wrong {
            let kept = keep.join(format!("{}-{seed}-{number}", target.name));
            fs::write(&kept, &bytes).unwrap();
            panic!(
                "{} input {number} of seed {seed} {wrong}; it is {}",
                target.name,
                kept.display()
            );
        }
        number += 1;
    }
    number - first
}

/// Tries each target for a moment.
pub fn try_shortly(targets: &[Target]) {
    for target in targets {
        let began = Instant::now();
        let done = |number| number >= 300 || began.elapsed() > Duration::from_secs(3);
        run(target, 1, 0, done, &env::temp_dir());
    }
}

/// Tries the targets that `bin/soak fuzz` asks for, as it sets in what is read here; without it, each
/// for ten seconds.
pub fn soak(targets: &[Target]) {
    let number = |name: &str, default: u64| -> u64 {
        env::var(name).map_or(default, |value| value.parse().expect(name))
    };
    let wanted = env::var("XTRAIN_FUZZ_TARGET").unwrap_or_default();
    let keep = env::var_os("XTRAIN_FUZZ_KEEP").map_or_else(env::temp_dir, PathBuf::from);
    let (seed, seconds) = (
        number("XTRAIN_FUZZ_SEED", 0),
        number("XTRAIN_FUZZ_SECONDS", 10),
    );
    for target in targets
        .iter()
        .filter(|target| ["", target.name].contains(&wanted.as_str()))
    {
        let began = Instant::now();
        let done = |_| began.elapsed() > Duration::from_secs(seconds);
        let tried = run(target, seed, number("XTRAIN_FUZZ_FIRST", 0), done, &keep);
        println!(
            "fuzz {}: {tried} inputs of seed {seed} in {seconds} s, {} MiB at most",
            target.name,
            peak_memory() >> 20
        );
    }
}
