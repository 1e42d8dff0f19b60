//! Which rows come when: the order of an epoch and the batches within it.
//!
//! The order is a function of (seed, epoch) alone. Nothing is carried from one epoch to the next,
//! so a run that resumes at (epoch, batch) sees just what the uninterrupted one would have seen.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::error::{Error, Result};

/// Rows in file order, or shuffled anew in every epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Order {
    Sequential,
    Shuffled {
        seed: u64,
    },
    /// Shuffled, then rows of about the same length together ([`group_by_length`]).
    Grouped {
        seed: u64,
    },
}

impl Order {
    /// All row numbers below `rows` in the order of an epoch.
    pub fn epoch(self, rows: usize, epoch: u64) -> Vec<u32> {
        let rows = u32::try_from(rows)
            .expect("row numbers are 32 bit; a text that large is streamed, not shuffled");
        let mut order: Vec<u32> = (0..rows).collect();
        if let Order::Shuffled { seed } | Order::Grouped { seed } = self {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&seed.to_le_bytes());
            key[8..16].copy_from_slice(&epoch.to_le_bytes());
            key[16..].copy_from_slice(b"xtrain row order");
            let mut rng = ChaCha8Rng::from_seed(key);
            // Fisher-Yates, spelled out: a library's shuffle may draw differently in its next
            // version, and then an old checkpoint would resume into another order.
            for i in (1..order.len()).rev() {
                order.swap(i, below(&mut rng, i as u64 + 1) as usize);
            }
        }
        order
    }
}

/// Batches that are sorted together; fewer in a small set, as in transformers' sampler.
const GROUPED_BATCHES: usize = 50;

/// Sorts a shuffled order by length within stretches of many batches, the longest first, so that a
/// batch has rows of about the same length and needs little padding. The longest row of all comes
/// first: a batch that does not fit into memory shows at once.
pub fn group_by_length(order: &mut [u32], length: impl Fn(u32) -> usize, batch_size: usize) {
    let batches = (order.len() / (4 * batch_size)).clamp(1, GROUPED_BATCHES);
    for stretch in order.chunks_mut(batches * batch_size) {
        // Stable, so that rows of one length stay shuffled.
        stretch.sort_by_key(|row| std::cmp::Reverse(length(*row)));
    }
    let longest = (0..order.len()).rev().max_by_key(|at| length(order[*at]));
    if let Some(longest) = longest {
        order.swap(0, longest);
    }
}

/// Uniform in `0..bound`: the high half of a product, drawing again in the rare case that would
/// favour some values.
pub fn below(rng: &mut impl Rng, bound: u64) -> u64 {
    loop {
        let product = u128::from(rng.next_u64()) * u128::from(bound);
        if product as u64 >= bound.wrapping_neg() % bound {
            return (product >> 64) as u64;
        }
    }
}

/// A place in the data: batch `batch` (from 0) of epoch `epoch` (from 0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub epoch: u64,
    pub batch: usize,
}

/// How rows become batches, the same in every epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchPlan {
    pub rows: usize,
    pub batch_size: usize,
    /// Leave out the rows at an epoch's end that do not fill a batch, rather than pad them with
    /// masked rows.
    pub drop_last: bool,
    pub order: Order,
}

impl BatchPlan {
    /// Refuses a plan without a single batch.
    pub fn new(rows: usize, batch_size: usize, drop_last: bool, order: Order) -> Result<BatchPlan> {
        let plan = BatchPlan {
            rows,
            batch_size,
            drop_last,
            order,
        };
        if batch_size == 0 {
            return Err(Error::Zero {
                what: "per_device_batch_size",
            });
        }
        if plan.batches_per_epoch() == 0 {
            return Err(Error::NoBatch { rows, batch_size });
        }
        Ok(plan)
    }

    pub fn batches_per_epoch(&self) -> usize {
        if self.drop_last {
            self.rows / self.batch_size
        } else {
            self.rows.div_ceil(self.batch_size)
        }
    }

    /// Rows that an epoch leaves out; to be reported, never silent.
    pub fn dropped_rows(&self) -> usize {
        if self.drop_last {
            self.rows % self.batch_size
        } else {
            0
        }
    }

    /// The rows of a batch, out of an epoch's order.
    pub fn batch<'a>(&self, order: &'a [u32], batch: usize) -> &'a [u32] {
        let start = batch * self.batch_size;
        &order[start..order.len().min(start + self.batch_size)]
    }

    /// The position after `position`.
    pub fn next(&self, position: Position) -> Position {
        if position.batch + 1 < self.batches_per_epoch() {
            Position {
                batch: position.batch + 1,
                ..position
            }
        } else {
            Position {
                epoch: position.epoch + 1,
                batch: 0,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_a_permutation_of_its_own() {
        let order = Order::Shuffled { seed: 42 };
        let epochs: Vec<_> = (0..3).map(|epoch| order.epoch(1000, epoch)).collect();
        for epoch in &epochs {
            let mut sorted = epoch.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, Order::Sequential.epoch(1000, 7));
        }
        assert_ne!(epochs[0], epochs[1]);
        assert_ne!(epochs[0], Order::Shuffled { seed: 43 }.epoch(1000, 0));
        assert_eq!(epochs[2], order.epoch(1000, 2));
        assert_eq!(order.epoch(0, 0), Vec::<u32>::new());
    }

    #[test]
    fn rows_of_one_length_come_together() {
        let lengths: Vec<usize> = (0..1000).map(|row| 1 + row * 37 % 101).collect();
        let length = |row: u32| lengths[row as usize];
        let mut order = Order::Grouped { seed: 3 }.epoch(1000, 1);
        assert_eq!(order, Order::Shuffled { seed: 3 }.epoch(1000, 1));
        group_by_length(&mut order, length, 8);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, Order::Sequential.epoch(1000, 0));
        assert_eq!(length(order[0]), 101);
        // Padding to a batch's longest row: a random order would pad about 70 % more.
        let padded: usize = order
            .chunks(8)
            .map(|batch| batch.len() * batch.iter().map(|row| length(*row)).max().unwrap())
            .sum();
        let tokens: usize = lengths.iter().sum();
        assert!(
            padded as f64 / (tokens as f64) < 1.1,
            "{padded} of {tokens}"
        );
    }

    #[test]
    fn the_order_never_changes_with_a_library() {
        // Checkpoints of earlier versions depend on these numbers.
        assert_eq!(Order::Shuffled { seed: 42 }.epoch(10, 3), PINNED);
    }

    const PINNED: [u32; 10] = [3, 6, 9, 7, 2, 8, 0, 1, 4, 5];

    #[test]
    fn each_row_is_equally_likely_anywhere() {
        let mut counts = [[0u32; 5]; 5];
        for epoch in 0..20_000 {
            for (place, row) in (Order::Shuffled { seed: 1 })
                .epoch(5, epoch)
                .into_iter()
                .enumerate()
            {
                counts[place][row as usize] += 1;
            }
        }
        // 4000 expected, standard deviation 57.
        assert!(
            counts.iter().flatten().all(|n| (3740..4260).contains(n)),
            "{counts:?}"
        );
    }

    #[test]
    fn batches_cover_every_row_once() {
        let plan = BatchPlan::new(10, 4, false, Order::Shuffled { seed: 9 }).unwrap();
        let order = plan.order.epoch(plan.rows, 1);
        let batches: Vec<_> = (0..plan.batches_per_epoch())
            .map(|b| plan.batch(&order, b))
            .collect();
        assert_eq!(
            batches.iter().map(|b| b.len()).collect::<Vec<_>>(),
            [4, 4, 2]
        );
        assert_eq!(batches.concat(), order);
        assert_eq!(
            plan.next(Position { epoch: 1, batch: 2 }),
            Position { epoch: 2, batch: 0 }
        );
        let dropping = BatchPlan {
            drop_last: true,
            ..plan
        };
        assert_eq!(
            (
                dropping.batches_per_epoch(),
                dropping.dropped_rows(),
                plan.dropped_rows()
            ),
            (2, 2, 0)
        );
        assert!(
            BatchPlan::new(3, 4, true, Order::Sequential)
                .unwrap_err()
                .to_string()
                .contains("3 rows")
        );
        assert!(BatchPlan::new(3, 0, true, Order::Sequential).is_err());
    }
}
