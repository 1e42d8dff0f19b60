//! Weights in one file or, beyond a size, in several with an index, cut and named as transformers'
//! `save_pretrained` does.

use super::tensors::{TensorRef, file_order};
use super::weights::WEIGHTS_FILE;
use serde_json::{Map, Value, json};

/// Which tensors go into which file.
pub struct Shards<'a> {
    /// Names, and tensors by place.
    pub files: Vec<(String, Vec<TensorRef<'a>>)>,
    /// What `model.safetensors.index.json` says, if there is more than one file.
    pub index: Option<Value>,
}

/// Fills files in the order of the tensors; one that is larger than `max_bytes` gets a file of its
/// own.
pub fn split<'a>(tensors: &[TensorRef<'a>], max_bytes: u64) -> Shards<'a> {
    let mut groups: Vec<Vec<TensorRef<'a>>> = Vec::new();
    let mut filled = 0;
    for tensor in tensors {
        let bytes = tensor.shape.bytes() as u64;
        match groups.last_mut() {
            Some(group) if filled + bytes <= max_bytes => group.push(tensor.clone()),
            _ => {
                groups.push(vec![tensor.clone()]);
                filled = 0;
            }
        }
        filled += bytes;
    }
    if groups.len() <= 1 {
        return Shards {
            files: vec![(WEIGHTS_FILE.to_string(), tensors.to_vec())],
            index: None,
        };
    }
    let count = groups.len();
    let name = |number: usize| format!("model-{:05}-of-{count:05}.safetensors", number + 1);
    let files: Vec<_> = groups
        .into_iter()
        .enumerate()
        .map(|(number, group)| (name(number), group))
        .collect();
    let places = files.iter().flat_map(|(file, group)| {
        group
            .iter()
            .map(move |tensor| (tensor.name.as_ref(), file.as_str()))
    });
    let weight_map = weight_map(places);
    let elements: usize = tensors.iter().map(|tensor| tensor.shape.elements()).sum();
    let bytes: usize = tensors.iter().map(|tensor| tensor.shape.bytes()).sum();
    let index = json!({
        "metadata": {"total_parameters": elements, "total_size": bytes},
        "weight_map": weight_map,
    });
    Shards {
        files,
        index: Some(index),
    }
}

/// The order in which tensors are written into files of at most `max_shard_size` bytes.
pub fn written_order(tensors: &[TensorRef<'_>], max_shard_size: u64) -> Vec<String> {
    let files = split(tensors, max_shard_size).files;
    let in_order = files.iter().flat_map(|(_, tensors)| file_order(tensors));
    in_order.map(|tensor| tensor.name.to_string()).collect()
}

/// Which file each tensor is in, by the tensors' names, as an index says it.
pub(super) fn weight_map<'p>(
    places: impl Iterator<Item = (&'p str, &'p str)>,
) -> Map<String, Value> {
    let mut map: Vec<(&str, &str)> = places.collect();
    map.sort_unstable();
    map.into_iter()
        .map(|(tensor, file)| (tensor.to_string(), file.into()))
        .collect()
}

/// Whether a file name is one that [`split`] gives to a part of the weights.
pub fn is_part(name: &str) -> bool {
    let middle = name
        .strip_prefix("model-")
        .and_then(|rest| rest.strip_suffix(".safetensors"));
    let number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    middle
        .and_then(|middle| middle.split_once("-of-"))
        .is_some_and(|(part, count)| number(part) && number(count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use xtrain_graphs::{DType, Shape};

    #[test]
    fn files_are_filled_in_order_and_named_as_transformers_names_them() {
        let bytes = [0u8; 400];
        let tensor = |name: &'static str, n: usize| {
            TensorRef::new(name, Shape::new(DType::F32, [n]), &bytes[..4 * n])
        };
        let tensors = [
            tensor("b", 10),
            tensor("a", 10),
            tensor("big", 100),
            tensor("c", 1),
        ];
        let shards = split(&tensors, 80);
        let files: Vec<_> = shards
            .files
            .iter()
            .map(|(name, group)| {
                (
                    name.as_str(),
                    group.iter().map(|t| &*t.name).collect::<Vec<_>>(),
                )
            })
            .collect();
        assert_eq!(
            files,
            [
                ("model-00001-of-00003.safetensors", vec!["b", "a"]),
                ("model-00002-of-00003.safetensors", vec!["big"]),
                ("model-00003-of-00003.safetensors", vec!["c"]),
            ]
        );
        assert!(
            files.iter().all(|(name, _)| is_part(name))
                && !is_part(WEIGHTS_FILE)
                && !is_part("model-1-of-2.safetensors")
        );
        let index = shards.index.unwrap();
        assert_eq!(
            index["metadata"],
            json!({"total_parameters": 121, "total_size": 484})
        );
        assert_eq!(
            index["weight_map"]["big"],
            "model-00002-of-00003.safetensors"
        );
        let whole = split(&tensors, 484);
        assert_eq!(
            (whole.files.len(), whole.files[0].0.as_str(), whole.index),
            (1, WEIGHTS_FILE, None)
        );
    }
}
