//! Files that torch wrote (`tests/data/make_torch.py`), and pickles that want to do harm.

use super::*;
use crate::Weights;
use crate::pickle::{MOST_INSTRUCTIONS, op};
use std::path::PathBuf;
use xtrain_graphs::Shape;

fn path(name: &str) -> PathBuf {
    let data =
        PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/data/torch");
    data.join(format!("{name}.bin"))
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap()
}

#[test]
fn state_dicts_of_torch_are_read() {
    for name in ["zip", "old", "four"] {
        let weights = Weights::open(&path(name)).unwrap();
        let names: Vec<_> = weights
            .iter()
            .map(|tensor| tensor.name.to_string())
            .collect();
        let expected = [
            "a.weight", "brain", "flag", "half", "ids", "param", "scalar", "tied", "view",
        ];
        assert_eq!(names, expected, "{name}");
        let six = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        for tensor in ["a.weight", "tied", "half", "brain"] {
            let found = weights.read_f32(tensor).unwrap();
            assert_eq!(found, (vec![2, 3], six.to_vec()), "{name} {tensor}");
        }
        assert_eq!(
            weights.read_f32("view").unwrap(),
            (vec![4], vec![2.0, 3.0, 4.0, 5.0])
        );
        assert_eq!(weights.read_f32("scalar").unwrap(), (vec![], vec![2.5]));
        assert_eq!(
            weights.read_f32("param").unwrap(),
            (vec![2], vec![1.0, 2.0])
        );
        let ids = weights.get("ids").unwrap();
        assert_eq!(ids.shape, Shape::new(DType::S64, [2]));
        assert_eq!(ids.bytes[..8], 7u64.to_le_bytes());
        assert_eq!(weights.get("flag").unwrap().bytes, [1, 0]);
    }
}

#[test]
fn elements_are_read_by_their_strides_and_dicts_within_a_checkpoint() {
    let weights = Weights::open(&path("turned")).unwrap();
    let turned = (vec![3, 2], vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(weights.read_f32("t").unwrap(), turned);
    let (dims, values) = weights.read_f32("turned twice").unwrap();
    assert_eq!(dims, [4, 2, 3]);
    assert_eq!(values[..7], [1.0, 5.0, 9.0, 13.0, 17.0, 21.0, 2.0]);
    let part = (vec![2, 2], vec![2.0, 3.0, 8.0, 9.0]);
    assert_eq!(weights.read_f32("part").unwrap(), part);
    for name in ["wrapped", "wrapped_old"] {
        let weights = Weights::open(&path(name)).unwrap();
        assert_eq!(
            (weights.len(), weights.read_f32("t").unwrap()),
            (1, turned.clone())
        );
    }
    // As scripts with torch_xla save it, beside a config.json.
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(path("turned"), dir.path().join("checkpoint.pt")).unwrap();
    assert_eq!(Weights::open(dir.path()).unwrap().len(), 3);
}

#[test]
fn what_is_no_state_dict_is_refused_by_name() {
    for (name, words) in [
        ("evil", ["posix.system", "nothing of it was run"]),
        ("evil_old", ["posix.system", "nothing of it was run"]),
        ("repeated", ["repeats elements", "contiguous"]),
        ("nested", ["under \"model\"", "torch.save(torch.load"]),
    ] {
        let message = Weights::open(&path(name)).unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
        assert!(message.contains(&format!("{name}.bin")), "{message}");
    }
    let zip = file("zip");
    for cut in (0..zip.len()).step_by(37) {
        assert!(tensors(&zip[..cut]).is_err(), "cut at {cut}");
    }
    let old = file("old");
    for cut in 0..old.len() {
        assert!(tensors(&old[..cut]).is_err(), "cut at {cut}");
    }
}

/// What a pickle of these instructions gives.
fn run(instructions: &[u8]) -> Result<Value> {
    Machine::new(instructions).run()
}

#[test]
fn hostile_pickles_end_in_a_sentence() {
    let text = |text: &str| [&[op::SHORT_UNICODE, text.len() as u8], text.as_bytes()].concat();
    let stacked = [text("os"), text("system"), vec![op::STACK_GLOBAL, op::STOP]].concat();
    let deep = [
        vec![op::EMPTY_TUPLE],
        vec![op::TUPLE1; 1_000_000],
        vec![op::STOP],
    ]
    .concat();
    let lists = [
        vec![op::EMPTY_LIST; 100_000],
        vec![op::APPEND; 99_999],
        vec![op::STOP],
    ]
    .concat();
    // t = (t, t), again and again: in Python 2^1000 entries.
    let bomb = [op::PUT, 0, op::GET, 0, op::TUPLE2].repeat(1000);
    let bomb = [vec![op::EMPTY_TUPLE], bomb, vec![op::STOP]].concat();
    for (pickle, word) in [
        (&b"cos\nsystem\n."[..], "os.system"),
        (
            b"c__builtin__\neval\n(X\x01\x00\x00\x001tR.",
            "__builtin__.eval",
        ),
        (&stacked, "os.system"),
        // INST, OBJ, NEWOBJ, EXT1 and the like make objects in other ways.
        (b"(ios\nsystem\n.", "instruction"),
        (b"(o.", "instruction"),
        (b"\x81.", "instruction"),
        (b"\x82\x01.", "instruction"),
        (&deep, "deep"),
        (&lists, "deep"),
        (&bomb, "deep"),
        (b"R.", "missing"),
        (b"(.", "missing"),
        (b"t.", "mark"),
        (b"h\x05.", "not made"),
        (b"]q\x00h\x00.", "two places"),
        (b"Na.", "no list"),
        (b"NNNs.", "no dict"),
        (b"NNb.", "attributes"),
        (b"X\xff\xff\xff\xffabc", "cut short"),
        (b"cno newline", "cut short"),
        (b"X\x01\x00\x00\x00\xff.", "utf-8"),
        (b"NQ.", "storage"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R.", "not known"),
        (b"", "cut short"),
    ] {
        let shown = &pickle[..pickle.len().min(40)];
        match run(pickle) {
            Err(message) => assert!(message.contains(word), "{shown:?}: {message}"),
            Ok(value) => panic!("{shown:?} gives {value:?}"),
        }
    }
}

/// Values take far more memory than the instructions that make them.
#[test]
fn floods_of_instructions_end_early() {
    for code in [
        op::EMPTY_DICT,
        op::EMPTY_LIST,
        op::EMPTY_TUPLE,
        op::NONE,
        op::MARK,
        op::FLOAT,
    ] {
        let flood = vec![code; 2 * MOST_INSTRUCTIONS];
        let message = run(&flood).unwrap_err();
        let is_float = code == op::FLOAT;
        assert!(is_float || message.contains("instructions"), "{message}");
    }
    let pairs = [op::EMPTY_DICT, op::MEMOIZE].repeat(MOST_INSTRUCTIONS);
    assert!(run(&pairs).unwrap_err().contains("instructions"));
}

#[test]
fn damage_never_panics_and_stays_within_the_file() {
    use rand_chacha::rand_core::{Rng, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
    for name in ["zip", "old", "four", "turned", "wrapped_old"] {
        let whole = file(name);
        for _ in 0..3000 {
            let mut copy = whole.clone();
            for _ in 0..1 + rng.next_u32() % 3 {
                let at = rng.next_u32() as usize % copy.len();
                copy[at] = rng.next_u32() as u8;
            }
            for tensor in tensors(&copy).into_iter().flatten() {
                assert!(tensor.1.bytes.end <= copy.len());
                let size: usize = tensor.1.dims.iter().product::<usize>() * tensor.1.dtype.size();
                let strides = tensor.1.strides.is_some();
                assert!(!strides || tensor.1.dense(&copy).len() == size);
            }
        }
    }
}
