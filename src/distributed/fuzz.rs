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

#[test]
fn damaged_input_is_refused_by_every_reader() {
    xtrain_fuzz::try_shortly(TARGETS);
}

/// Of `bin/soak fuzz`.
#[test]
#[ignore = "slow: ten seconds of each target, or what bin/soak fuzz asks for"]
fn soak() {
    xtrain_fuzz::soak(TARGETS);
}
