//! Several examples in a row: which lie where, as TRL's `pack_dataset` puts them, and the rows that
//! they become.

use std::collections::{BTreeMap, VecDeque};

use super::rows::{Row, flag};

/// Examples that are packed among one another: `datasets.map`'s batch size, on which TRL's rows depend.
pub const GROUP: usize = 1000;

/// How examples are put into rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PackingStrategy {
    /// Best fit decreasing; what is longer than a row is cut.
    Bfd,
    /// The same, but what is longer than a row is split into several examples.
    BfdSplit,
    /// One behind the other, cut where a row is full: what an example is does not matter.
    Wrapped,
}

impl PackingStrategy {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            PackingStrategy::Bfd => "bfd",
            PackingStrategy::BfdSplit => "bfd_split",
            PackingStrategy::Wrapped => "wrapped",
        }
    }
}

/// A part of an example in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its number among those that are packed together.
    pub example: usize,
    /// Of its first token.
    pub start: usize,
    /// Tokens.
    pub length: usize,
}

/// The rows of at most `room` tokens that examples of these lengths become; empty ones are left out.
pub fn layout(lengths: &[usize], room: usize, strategy: PackingStrategy) -> Vec<Vec<Piece>> {
    let whole = lengths.iter().enumerate().map(|(example, &length)| Piece {
        example,
        start: 0,
        length,
    });
    let whole = whole.filter(|piece| piece.length > 0);
    match strategy {
        PackingStrategy::Bfd => {
            let cut = whole.map(|piece| Piece {
                length: piece.length.min(room),
                ..piece
            });
            best_fit(cut.collect(), room)
        }
        PackingStrategy::BfdSplit => {
            let parts = whole.flat_map(|piece| {
                let starts = (0..piece.length).step_by(room);
                starts.map(move |start| Piece {
                    start,
                    length: room.min(piece.length - start),
                    ..piece
                })
            });
            best_fit(parts.collect(), room)
        }
        PackingStrategy::Wrapped => wrap(whole, room),
    }
}

/// Longest first, in their order among equals, each to the row with the least room that suffices: among
/// those to the one that has had that room longest. Rows are in the order in which they were opened.
fn best_fit(mut pieces: Vec<Piece>, room: usize) -> Vec<Vec<Piece>> {
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.length));
    let mut rows: Vec<Vec<Piece>> = Vec::new();
    // The open rows by their room.
    let mut open: BTreeMap<usize, VecDeque<usize>> = BTreeMap::new();
    for piece in pieces {
        let fitting = open.range_mut(piece.length..).next();
        let (row, left) = match fitting {
            Some((&left, of_room)) => {
                let row = of_room.pop_front().expect("a room without rows is removed");
                if of_room.is_empty() {
                    open.remove(&left);
                }
                (row, left)
            }
            None => {
                rows.push(Vec::new());
                (rows.len() - 1, room)
            }
        };
        rows[row].push(piece);
        if left > piece.length {
            let of_room = open.entry(left - piece.length).or_default();
            of_room.push_back(row);
        }
    }
    rows
}

fn wrap(whole: impl Iterator<Item = Piece>, room: usize) -> Vec<Vec<Piece>> {
    let mut rows: Vec<Vec<Piece>> = Vec::new();
    let mut left = 0;
    for piece in whole {
        let mut start = 0;
        while start < piece.length {
            if left == 0 {
                rows.push(Vec::new());
                left = room;
            }
            let length = left.min(piece.length - start);
            let row = rows.last_mut().expect("one is opened above");
            row.push(Piece {
                start,
                length,
                ..piece
            });
            (start, left) = (start + length, left - length);
        }
    }
    rows
}

/// The rows of at most `room` tokens that examples become. Where a row has the first token of an
/// example, nothing before it is there to predict it by, so it does not count in the loss. Rows in
/// which nothing counts are left out.
pub fn pack(examples: &[Row], room: usize, strategy: PackingStrategy) -> Vec<Row> {
    let lengths: Vec<usize> = examples.iter().map(|row| row.ids.len()).collect();
    let rows = layout(&lengths, room, strategy).into_iter();
    let rows = rows.map(|pieces| {
        let (mut ids, mut flags) = (Vec::new(), Vec::new());
        for piece in pieces {
            let (row, place) = (&examples[piece.example], ids.len());
            let part = piece.start..piece.start + piece.length;
            ids.extend_from_slice(&row.ids[part.clone()]);
            flags.extend_from_slice(&row.flags[part]);
            if place == 0 || strategy != PackingStrategy::Wrapped {
                flags[place] = flags[place] & !flag::COUNTED | flag::STARTS;
            }
        }
        Row {
            flags: flags.into(),
            ..Row::of_ids(&ids)
        }
    });
    let counts = |row: &Row| row.flags.iter().any(|flags| flags & flag::COUNTED != 0);
    rows.filter(counts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(lengths: &[usize], room: usize, strategy: PackingStrategy) -> Vec<Vec<[usize; 3]>> {
        let rows = layout(lengths, room, strategy).into_iter();
        let place = |piece: Piece| [piece.example, piece.start, piece.length];
        rows.map(|row| row.into_iter().map(place).collect())
            .collect()
    }

    #[test]
    fn each_strategy_puts_examples_where_trl_does() {
        let lengths = [5, 0, 9, 3, 4];
        assert_eq!(
            places(&lengths, 8, PackingStrategy::Bfd),
            [vec![[2, 0, 8]], vec![[0, 0, 5], [3, 0, 3]], vec![[4, 0, 4]]]
        );
        assert_eq!(
            places(&lengths, 8, PackingStrategy::BfdSplit),
            [
                vec![[2, 0, 8]],
                vec![[0, 0, 5], [3, 0, 3]],
                vec![[4, 0, 4], [2, 8, 1]]
            ]
        );
        assert_eq!(
            places(&lengths, 8, PackingStrategy::Wrapped),
            [
                vec![[0, 0, 5], [2, 0, 3]],
                vec![[2, 3, 6], [3, 0, 2]],
                vec![[3, 2, 1], [4, 0, 4]]
            ]
        );
        assert!(places(&[0, 0], 8, PackingStrategy::Wrapped).is_empty());
    }

    #[test]
    fn the_first_token_of_an_example_is_nobodys_to_predict() {
        let example = |ids: &[u32], flags: &[u8]| Row {
            flags: flags.into(),
            ..Row::of_ids(ids)
        };
        let c = flag::COUNTED;
        let examples = [
            example(&[1, 2, 3], &[c, c, c]),
            example(&[4, 5], &[c, c]),
            // Of this one nothing but the first token counts.
            example(&[6, 7, 8, 9, 10], &[c, 0, 0, 0, 0]),
        ];
        let s = flag::STARTS;
        let rows = pack(&examples, 5, PackingStrategy::Bfd);
        assert_eq!(rows, [example(&[1, 2, 3, 4, 5], &[s, c, c, s, c])]);
        let rows = pack(&examples, 5, PackingStrategy::Wrapped);
        assert_eq!(rows, [example(&[1, 2, 3, 4, 5], &[s, c, c, c, c])]);
    }
}
