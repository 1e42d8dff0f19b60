//! The text that `xtrain quickstart` trains on: short stories about a fixed set of people in a
//! fixed world. Everyone keeps their trade, town, pet and favourite colour, sums come out right,
//! days follow each other and weather has consequences, so a small model has rules to find, and a
//! reader can tell at once whether it found them.

/// 420 KB of ASCII: stories with an empty line between.
pub const TEXT: &str = include_str!("quickstart/corpus.txt");
