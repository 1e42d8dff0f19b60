//! Damaged messages of peers.

use crate::wire::tests::{read_frames, sample_frames};
use xtrain_fuzz::{JSON, Target};

const TARGETS: &[Target] = &[Target {
    name: "frames",
    file: "frames",
    seeds: sample_frames,
    words: JSON,
    read: |_, bytes| read_frames(bytes),
}];

xtrain_fuzz::tests!(TARGETS);
