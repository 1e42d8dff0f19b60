//! Which part of its files' examples a set takes.

use super::error::Result;
use super::sampler::Order;

/// Which of the files' examples, in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    All,
    /// The first ones.
    First(f64),
    After(f64),
    /// A random choice by this seed.
    Chosen(f64, u64),
    NotChosen(f64, u64),
}

/// The examples of a share, by their numbers.
pub enum Kept {
    /// From the first number up to, not including, the second.
    Range(usize, usize),
    /// Those that are true.
    Marked(Vec<bool>),
}

impl Kept {
    pub fn contains(&self, index: usize) -> bool {
        match self {
            Kept::Range(start, end) => (*start..*end).contains(&index),
            Kept::Marked(marked) => marked.get(index).copied().unwrap_or(false),
        }
    }
}

impl Share {
    /// The examples to use; `count` finds how many there are, and is called only if it matters.
    pub fn kept(self, count: impl FnOnce() -> Result<u64>) -> Result<Kept> {
        // `datasets` rounds a percentage of lines as Python does: to nearest, halves to even.
        let border = |percent: f64, examples: u64| {
            (percent * examples as f64 / 100.0).round_ties_even() as usize
        };
        Ok(match self {
            Share::All => Kept::Range(0, usize::MAX),
            Share::First(percent) => Kept::Range(0, border(percent, count()?)),
            Share::After(percent) => Kept::Range(border(percent, count()?), usize::MAX),
            Share::Chosen(percent, seed) | Share::NotChosen(percent, seed) => {
                let examples = count()?;
                let chosen = matches!(self, Share::Chosen(..));
                let mut marked = vec![!chosen; examples as usize];
                // An epoch's order that no epoch has: the choice must not be the first batches of
                // the first epoch.
                let order = Order::Shuffled { seed }.epoch(examples as usize, u64::MAX);
                for index in &order[..border(percent, examples)] {
                    marked[*index as usize] = chosen;
                }
                Kept::Marked(marked)
            }
        })
    }
}
