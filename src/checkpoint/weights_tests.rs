//! Files that are read as they were written, and what is said of damaged and foreign ones.

use super::*;
use crate::tensors::{TensorRef, write_safetensors};

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn file(tensors: &[TensorRef<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    write_safetensors(&mut out, tensors).unwrap();
    out
}

fn f32s(dims: &[usize]) -> Shape {
    Shape::new(DType::F32, dims)
}

/// A look at a mapped page that is gone would be SIGBUS.
#[test]
fn a_file_that_is_cut_short_after_it_was_opened_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(WEIGHTS_FILE);
    let values = bytes(&vec![1.0; 10_000]);
    fs::write(
        &path,
        file(&[TensorRef::new("w", f32s(&[10_000]), &values)]),
    )
    .unwrap();
    let weights = Weights::open(&path).unwrap();
    assert_eq!(weights.read_f32("w").unwrap().1, vec![1.0; 10_000]);
    let cut = File::options().write(true).open(&path).unwrap();
    cut.set_len(100).unwrap();
    let message = weights.read_f32("w").unwrap_err().to_string();
    assert!(message.contains("is cut short"), "{message}");
}

#[test]
fn new_rows_are_the_mean_of_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let values: Vec<u8> = [1f32, 2.0, 3.0, 6.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let tensors = [
        TensorRef::new("table", Shape::new(DType::F32, [2, 2]), &values),
        TensorRef::new("bias", Shape::new(DType::F32, [2]), &values[..8]),
        TensorRef::new("other", Shape::new(DType::F32, [2]), &values[8..]),
    ];
    let mut file = std::fs::File::create(&path).unwrap();
    write_safetensors(&mut file, &tensors).unwrap();
    let weights = Weights::open(&path).unwrap();
    let names = ["table", "bias"].map(str::to_string);
    let longer = weights.lengthened(&names, 4);
    let table = vec![1.0, 2.0, 3.0, 6.0, 2.0, 4.0, 2.0, 4.0];
    assert_eq!(longer.read_f32("table").unwrap(), (vec![4, 2], table));
    assert_eq!(
        longer.read_f32("bias").unwrap(),
        (vec![4], vec![1.0, 2.0, 1.5, 1.5])
    );
    assert_eq!(longer.read_f32("other").unwrap(), (vec![2], vec![3.0, 6.0]));
    assert_eq!(
        weights.lengthened(&names, 1).read_f32("bias").unwrap().0,
        [2]
    );
}

#[test]
fn writes_what_it_reads_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b, flags) = (
        bytes(&[1.0, -0.0, f32::NAN, 4.0]),
        bytes(&[5.0]),
        [1u8, 0, 1],
    );
    let mut tensors = vec![
        TensorRef::new("z.flags", Shape::new(DType::Pred, [3]), &flags),
        TensorRef::new("h.0.weight", f32s(&[2, 2]), &a),
        TensorRef::new("bias", f32s(&[]), &b),
        TensorRef::new("empty", f32s(&[0, 3]), &[]),
    ];
    let one = file(&tensors);
    tensors.reverse();
    assert_eq!(one, file(&tensors));

    fs::write(dir.path().join(WEIGHTS_FILE), &one).unwrap();
    let weights = Weights::open(dir.path()).unwrap();
    let names: Vec<_> = weights.iter().map(|t| t.name.to_string()).collect();
    assert_eq!(names, ["bias", "empty", "h.0.weight", "z.flags"]);
    assert_eq!(weights.get("h.0.weight").unwrap().bytes, a);
    assert_eq!(
        weights.get("z.flags").unwrap().shape,
        Shape::new(DType::Pred, [3])
    );
    // The reference implementation agrees, metadata included.
    let (_, metadata) = SafeTensors::read_metadata(&one).unwrap();
    assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
}

#[test]
fn floats_convert_and_nothing_else_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.safetensors");
    let half: Vec<u8> = [1.5f32, -2.0]
        .iter()
        .flat_map(|v| f16::from_f32(*v).to_le_bytes())
        .collect();
    let brain: Vec<u8> = [1.5f32, -2.0]
        .iter()
        .flat_map(|v| bf16::from_f32(*v).to_le_bytes())
        .collect();
    let double: Vec<u8> = [1.5f64, -2.0]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    let tensors = [
        TensorRef::new("half", Shape::new(DType::F16, [2]), &half),
        TensorRef::new("brain", Shape::new(DType::BF16, [2]), &brain),
        TensorRef::new("double", Shape::new(DType::F64, [2]), &double),
        TensorRef::new("int", Shape::new(DType::S32, [2]), &double[..8]),
    ];
    fs::write(&path, file(&tensors)).unwrap();
    let weights = Weights::open(&path).unwrap();
    for name in ["half", "brain", "double"] {
        assert_eq!(
            weights.read_f32(name).unwrap(),
            (vec![2], vec![1.5, -2.0]),
            "{name}"
        );
    }
    let error = weights.read("int", &f32s(&[2])).unwrap_err().to_string();
    assert!(
        error.contains("tensor int is s32[2]") && error.contains("f32[2]"),
        "{error}"
    );
    assert!(weights.read("half", &f32s(&[1, 2])).is_err());
    assert!(
        weights
            .read("none", &f32s(&[2]))
            .unwrap_err()
            .to_string()
            .contains("none")
    );
}

#[test]
fn every_difference_is_listed_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(WEIGHTS_FILE);
    let data = bytes(&[0.0; 6]);
    let tensors =
        ["a", "b", "c", "attn.bias"].map(|name| TensorRef::new(name, f32s(&[2, 3]), &data));
    fs::write(&path, file(&tensors)).unwrap();
    let weights = Weights::open(&path).unwrap();
    let (good, turned, other) = (f32s(&[2, 3]), f32s(&[3, 2]), f32s(&[1]));
    let wanted = [("a", &good), ("b", &turned), ("wte.weight", &other)];
    let error = weights
        .check(wanted, |name| name.ends_with("attn.bias"))
        .unwrap_err()
        .to_string();
    for part in [
        "model.safetensors",
        "missing (1):\n    wte.weight",
        "unexpected (1):\n    c",
        "b: the model wants f32[3,2], the file has f32[2,3]",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert!(!error.contains("attn.bias"));
    let many: Vec<_> = (0..40).map(|i| format!("h.{i:02}")).collect();
    let error = weights
        .check(many.iter().map(|n| (n.as_str(), &good)), |_| true)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("missing (40)") && error.contains("and 24 more"),
        "{error}"
    );
}

#[test]
fn any_cut_is_an_error_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(WEIGHTS_FILE);
    let data = bytes(&[1.0; 6]);
    let whole = file(&[TensorRef::new("a", f32s(&[2, 3]), &data)]);
    for cut in 0..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let error = Weights::open(&path).unwrap_err();
        assert!(
            matches!(error, Error::Truncated { .. }),
            "cut at {cut}: {error}"
        );
    }
    let mut long = whole.clone();
    long.push(0);
    fs::write(&path, long).unwrap();
    assert!(
        Weights::open(&path)
            .unwrap_err()
            .to_string()
            .contains("1 bytes follow")
    );
    fs::write(&path, "<html>404 this is not a tensor file at all</html>").unwrap();
    assert!(matches!(
        Weights::open(&path).unwrap_err(),
        Error::NotSafetensors { .. }
    ));
}

#[test]
fn random_damage_never_panics() {
    use rand_chacha::rand_core::{Rng, SeedableRng};
    let data = bytes(&[1.0; 6]);
    let whole = file(&[
        TensorRef::new("a", f32s(&[2, 3]), &data),
        TensorRef::new("b", f32s(&[6]), &data),
    ]);
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
    for _ in 0..2000 {
        let mut copy = whole.clone();
        let at = rng.next_u32() as usize % copy.len();
        copy[at] = rng.next_u32() as u8;
        let mut tensors = BTreeMap::new();
        if read_header(Path::new("x"), &copy, 0, &mut tensors).is_ok() {
            assert!(tensors.values().all(|entry| entry.end <= copy.len()));
        }
    }
}

#[test]
fn shards_are_found_through_their_index() {
    let dir = tempfile::tempdir().unwrap();
    let data = bytes(&[1.0; 2]);
    for (shard, tensor) in [
        ("model-00001-of-00002.safetensors", "a"),
        ("model-00002-of-00002.safetensors", "b"),
    ] {
        fs::write(
            dir.path().join(shard),
            file(&[TensorRef::new(tensor, f32s(&[2]), &data)]),
        )
        .unwrap();
    }
    let index = |map: Value| {
        let json = serde_json::json!({"metadata": {"total_size": 16}, "weight_map": map});
        fs::write(dir.path().join(WEIGHTS_INDEX_FILE), json.to_string()).unwrap();
        Weights::open(dir.path())
    };
    let (one, two) = (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    );
    assert_eq!(
        index(serde_json::json!({"a": one, "b": two}))
            .unwrap()
            .len(),
        2
    );
    let error = index(serde_json::json!({"a": two, "b": two}))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("no tensor a") && error.contains(two),
        "{error}"
    );
    let error = index(serde_json::json!({"a": "model-00003-of-00002.safetensors"}))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("names model-00003-of-00002.safetensors, which is not beside it"),
        "{error}"
    );
    assert!(
        index(serde_json::json!({"a": "../x"}))
            .unwrap_err()
            .to_string()
            .contains("plain file name")
    );
}

#[test]
fn pointers_of_git_lfs_are_no_weights() {
    let dir = tempfile::tempdir().unwrap();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    for name in ["pytorch_model.bin", "model.safetensors"] {
        fs::write(dir.path().join(name), pointer).unwrap();
        let error = Weights::open(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains(name) && error.contains("git lfs pull"),
            "{error}"
        );
    }
}

#[test]
fn other_formats_are_refused_with_the_way_to_convert() {
    let dir = tempfile::tempdir().unwrap();
    assert!(
        Weights::open(dir.path())
            .unwrap_err()
            .to_string()
            .starts_with("no model.safetensors in")
    );
    fs::write(dir.path().join("tf_model.h5"), "x").unwrap();
    let error = Weights::open(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("tf_model.h5") && error.contains("save_pretrained()"),
        "{error}"
    );
    fs::write(dir.path().join("pytorch_model.bin"), "x").unwrap();
    let error = Weights::open(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("pytorch_model.bin") && error.contains("safe_serialization=True"),
        "{error}"
    );
    assert!(
        Weights::open(&dir.path().join("none"))
            .unwrap_err()
            .to_string()
            .contains("none")
    );
}
