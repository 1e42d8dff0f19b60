//! What models declare, for every family, preset and head: parameters, their sharding, operations
//! and stages, against a committed snapshot. `XTRAIN_UPDATE_SNAPSHOTS=1` writes it anew; a
//! difference in it is a difference in checkpoints, memory or reported FLOP/s.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use xtrain::parallel::Mesh;
use xtrain::trainer::parameters::parameter_shape;
use xtrain::trainer::settings::OptimizerSettings;
use xtrain::trainer::step::placements;
use xtrain_graphs::DType;
use xtrain_graphs::optim::ADAMW;
use xtrain_graphs::passes::partition::ShardSpec;
use xtrain_models::{
    HeadKind, MODEL_TYPES, Model, ParameterSpec, build, preset, presets, tensor_shard_specs,
};

/// The presets whose parameters and stages are listed in full; of the others a line each.
const IN_FULL: [&str; 11] = [
    "gpt2",
    "gpt-neo-125m",
    "gpt-j-6b",
    "bert-base-uncased",
    "roberta-base",
    "albert-base-v2",
    "distilbert-base-uncased",
    "ModernBERT-base",
    "Qwen3-0.6B",
    "gemma-2-2b",
    "Phi-3-mini-4k-instruct",
];

/// A parameter on one line, with its shards along the tensor axis at degrees 2 and 4 as
/// `dimension/blocks`.
fn line(parameter: &ParameterSpec, specs: &[Option<HashMap<String, ShardSpec>>; 2]) -> String {
    let shards = specs.each_ref().map(|specs| match specs {
        Some(specs) => match specs.get(&parameter.name) {
            Some(spec) => format!("{}/{}", spec.dim, spec.blocks),
            None => "whole".to_string(),
        },
        None => "-".to_string(),
    });
    let ParameterSpec {
        dims,
        init,
        decay,
        head,
        ..
    } = parameter;
    let decay = if *decay { " decay" } else { "" };
    let head = if *head { " head" } else { "" };
    format!("{dims:?} {init:?}{decay}{head} tp {}", shards.join(" "))
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The name with layer numbers as `N`.
fn of_any_layer(name: &str) -> String {
    let part = |part: &str| match part.parse::<usize>() {
        Ok(_) => "N".to_string(),
        Err(_) => part.to_string(),
    };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

fn describe(name: &str, model: &dyn Model) -> String {
    let parameters = model.parameters();
    let specs = [2, 4].map(|degree| tensor_shard_specs(model, degree).ok());
    let lines: Vec<String> = parameters
        .iter()
        .map(|p| format!("{} {}", p.name, line(p, &specs)))
        .collect();
    let elements: usize = parameters
        .iter()
        .map(|p| p.dims.iter().product::<usize>())
        .sum();
    let mut text = format!(
        "{name} | {:?}: {} parameters, {elements} elements, list {:016x}, step {:?} {:?}, head {:?}\n",
        model.head_kind(),
        parameters.len(),
        hash(&lines.join("\n")),
        model.step_flops(2, 128),
        model.step_flops(3, 40),
        model.head_flops(7),
    );
    if !IN_FULL.contains(&name) {
        return text;
    }
    let mut collapsed: Vec<(String, usize)> = Vec::new();
    for parameter in parameters.iter() {
        let entry = format!(
            "{} {}",
            of_any_layer(&parameter.name),
            line(parameter, &specs)
        );
        match collapsed.iter_mut().find(|(known, _)| *known == entry) {
            Some((_, count)) => *count += 1,
            None => collapsed.push((entry, 1)),
        }
    }
    for (entry, count) in collapsed {
        writeln!(text, "    {count} x {entry}").unwrap();
    }
    for mesh in [
        Mesh {
            tensor: 2,
            ..Mesh::single()
        },
        Mesh {
            shard: 2,
            ..Mesh::single()
        },
        Mesh {
            stage: 2,
            ..Mesh::single()
        },
        Mesh {
            tensor: 2,
            shard: 2,
            stage: 4,
            ..Mesh::single()
        },
    ] {
        let optimizer = OptimizerSettings::constant(ADAMW, 1e-3).build();
        let placed = placements(model, &*optimizer, mesh, false).unwrap();
        for stage in 0..mesh.stage {
            let held: u64 = parameters
                .iter()
                .map(|p| placed.held_bytes(&p.name, &parameter_shape(p, DType::F32), stage))
                .sum();
            write!(text, "    {mesh}: stage {stage} holds {held} bytes").unwrap();
            if let Some(stages) = placed.stages() {
                let (layers, work) = (stages.layers(stage), stages.work(stage));
                write!(text, ", layers {layers:?}, work {work:?}").unwrap();
            }
            text.push('\n');
        }
    }
    text
}

#[test]
fn declarations_are_as_before() {
    let mut text = String::new();
    for name in presets() {
        let config = preset(name).unwrap();
        let heads = [
            HeadKind::of(&config).unwrap(),
            HeadKind::SequenceClassification { labels: 3 },
            HeadKind::TokenClassification { labels: 5 },
        ];
        for head in heads {
            match build(config.clone(), head) {
                Ok(model) => text += &describe(name, &*model),
                Err(error) => writeln!(text, "{name} | {head:?}: {error}").unwrap(),
            }
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/declarations.txt");
    if std::env::var_os("XTRAIN_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    for (found, expected) in text.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(text.lines().count(), expected.lines().count());
}

/// A family is named in the file that declares it and in the list, nowhere else: what readers need
/// of it they get from the models crate.
#[test]
fn families_are_named_in_one_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut directories = vec![root.join("src"), root.join("models/src")];
    let mut seen = 0;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap().to_string_lossy().to_string();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            // transformers' table of model types and tokenizer classes, of which few are families here.
            let is_list = path == root.join("models/src/lib.rs")
                || path == root.join("src/data/tokenizer/class.rs");
            if is_list || stem.ends_with("tests") || path.extension().is_none_or(|e| e != "rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let is_code = |line: &&str| !line.trim_start().starts_with("//");
            let code: Vec<&str> = code.lines().filter(is_code).collect();
            let code = code.join("\n");
            let declares_families = code.contains(": Family = Family {");
            for name in MODEL_TYPES.into_iter().chain(presets()) {
                assert!(
                    declares_families || !code.contains(&format!("{name:?}")),
                    "{} names {name:?}: read it from xtrain_models",
                    path.display()
                );
            }
            seen += 1;
        }
    }
    assert!(seen > 100, "only {seen} files were read");
}
