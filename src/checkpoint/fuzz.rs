//! Damaged files of weights.

use crate::weights::Weights;
use serde_json::json;
use std::path::Path;
use xtrain_fuzz::{Target, of_tests};

const TARGETS: &[Target] = &[
    Target {
        name: "safetensors",
        file: "model.safetensors",
        seeds: safetensors,
        words: &[
            "F32",
            "BF16",
            "\"dtype\"",
            "\"shape\"",
            "\"data_offsets\"",
            "__metadata__",
            "[0,0]",
            "[4,2]",
            "-1",
            "18446744073709551615",
        ],
        read: |path, _| weights(path, "w"),
    },
    Target {
        name: "torch",
        file: "pytorch_model.bin",
        seeds: || {
            ["torch/zip.bin", "torch/old.bin", "torch/four.bin"]
                .map(of_tests)
                .into()
        },
        words: &[
            "PK\u{3}\u{4}",
            "PK\u{1}\u{2}",
            "data.pkl",
            "\u{80}\u{2}",
            "ctorch\nFloatStorage\n",
            "cos\nsystem\n",
            "(",
            "t",
            "R",
            "Q",
            "}",
            "\u{7f}\u{7f}\u{7f}\u{7f}",
        ],
        read: |path, _| weights(path, "a.weight"),
    },
];

fn safetensors() -> Vec<Vec<u8>> {
    let header = json!({
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]},
        "b": {"dtype": "BF16", "shape": [3], "data_offsets": [32, 38]},
    });
    let header = header.to_string().into_bytes();
    vec![[&(header.len() as u64).to_le_bytes(), &header[..], &[7; 38]].concat()]
}

fn weights(path: &Path, name: &str) {
    if let Ok(weights) = Weights::open(path) {
        for tensor in weights.iter().take(20) {
            let _ = format!("{:?}", tensor.name);
        }
        let _ = weights.read_f32(name);
    }
}

xtrain_fuzz::tests!(TARGETS);
