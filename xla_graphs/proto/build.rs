//! Generates Rust types from `xla.fds`, the descriptors of XLA's protobufs. `native/build.rs` gets
//! them from the XLA library and reports when the two differ. Neither protoc nor XLA's headers are
//! needed here.

use prost::Message;
use std::fs;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=xla.fds");
    let bytes = fs::read("xla.fds").expect("the file is part of the crate");
    let set = prost_types::FileDescriptorSet::decode(&bytes[..])
        .expect("native/build.rs wrote valid descriptors");
    prost_build::Config::new()
        // Ordered maps: equal messages must have equal bytes, or graphs would not be cached.
        .btree_map(["."])
        .include_file("proto.rs")
        .compile_fds(set)
        .expect("prost generates from XLA's descriptors");
}
