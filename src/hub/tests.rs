//! Names to files, against a Hub on the loopback interface: what is asked for, what is kept, and
//! what every refusal says.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::test_server::{Fault, TestHub};
use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn settings(hub: &TestHub, cache: &Path) -> HubSettings {
    HubSettings {
        endpoint: Some(hub.url.clone()),
        cache_dir: cache.join("hub"),
        token: None,
        offline: false,
        quiet: true,
        patience: Duration::from_secs(10),
    }
}

/// Bytes that compress and repeat badly enough to notice a mix-up.
fn bytes(length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

fn model_files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("README.md", b"a model".to_vec()),
        ("config.json", b"{\"model_type\": \"bert\"}".to_vec()),
        ("model.safetensors", bytes(50_000)),
        ("tokenizer.json", bytes(3_000)),
        ("vocab.txt", b"[PAD]\n".to_vec()),
        ("onnx/model.onnx", bytes(10)),
    ]
}

fn start() -> (TestHub, tempfile::TempDir) {
    let hub = TestHub::start();
    hub.add("models/org/tiny", "main", COMMIT, &model_files());
    (hub, tempfile::tempdir().unwrap())
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("an error is expected").to_string()
}

/// Files below a directory that are real ones, not links.
fn real_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap())
    {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => found.extend(real_files(&entry.path())),
            kind if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}

#[test]
fn a_model_is_fetched_once_and_then_found() {
    let (server, dir) = start();
    let hub = Hub::new(settings(&server, dir.path())).unwrap();
    let path = hub.model("org/tiny", None).unwrap();
    assert!(path.ends_with(format!("hub/models--org--tiny/snapshots/{COMMIT}")));
    for (name, content) in model_files() {
        let wanted = !["README.md", "onnx/model.onnx"].contains(&name);
        assert_eq!(
            fs::read(path.join(name)).ok(),
            wanted.then_some(content),
            "{name}"
        );
    }
    // The layout that Python programs use: blobs by checksum, links to them, a reference for the
    // branch.
    let repository = dir.path().join("hub/models--org--tiny");
    assert_eq!(
        fs::read_to_string(repository.join("refs/main")).unwrap(),
        COMMIT
    );
    assert_eq!(fs::read_dir(repository.join("blobs")).unwrap().count(), 4);
    assert!(path.join("config.json").is_symlink());
    let first = server.requests().len();
    assert_eq!(hub.model("org/tiny", None).unwrap(), path);
    assert_eq!(
        server.requests().len(),
        first + 1,
        "only the branch's commit is asked for again"
    );
    assert_eq!(hub.tokenizer("org/tiny", None).unwrap(), path);
    // A redirect is followed for large files only.
    assert!(
        server
            .requests()
            .iter()
            .any(|line| line.contains("/cdn/") && line.contains("model.safetensors whole"))
    );
    assert!(
        !server
            .requests()
            .iter()
            .any(|line| line.contains("/cdn/") && line.contains("config.json"))
    );
}

#[test]
fn offline_uses_the_cache_alone() {
    let (server, dir) = start();
    let path = Hub::new(settings(&server, dir.path()))
        .unwrap()
        .model("org/tiny", None)
        .unwrap();
    let asked = server.requests().len();
    let offline = Hub::new(HubSettings {
        offline: true,
        ..settings(&server, dir.path())
    })
    .unwrap();
    assert_eq!(offline.model("org/tiny", None).unwrap(), path);
    assert_eq!(offline.model("org/tiny", Some(COMMIT)).unwrap(), path);
    let error = message(offline.model("org/other", None));
    assert!(
        error.contains("model org/other (revision main) is not in the cache")
            && error.contains("HF_HUB_OFFLINE"),
        "{error}"
    );
    let error = message(
        offline
            .snapshot(Kind::Model, "org/tiny", None)
            .unwrap()
            .fetch("README.md"),
    );
    assert!(error.contains("its file README.md is missing"), "{error}");
    assert_eq!(server.requests().len(), asked);
    // A Hub that is away is no reason to stop when the cache has it all; when it has not, the
    // reason is reported.
    let settings = HubSettings {
        endpoint: Some("http://127.0.0.1:9".to_string()),
        ..settings(&server, dir.path())
    };
    let away = Hub::new(settings).unwrap();
    assert_eq!(away.model("org/tiny", None).unwrap(), path);
    let error = message(away.model("org/other", None));
    assert!(
        error.contains("http://127.0.0.1:9") && error.contains("cannot be reached for org/other"),
        "{error}"
    );
}

#[test]
fn a_revision_is_pinned_and_a_branch_moves_as_a_whole() {
    let (server, dir) = start();
    let other = "fedcba9876543210fedcba9876543210fedcba98";
    let mut files = model_files();
    files[1].1 = b"{\"model_type\": \"roberta\"}".to_vec();
    server.add("models/org/tiny", "v2/beta", other, &files);
    let hub = Hub::new(settings(&server, dir.path())).unwrap();
    let main = hub.model("org/tiny", None).unwrap();
    let pinned = hub.model("org/tiny", Some("v2/beta")).unwrap();
    assert!(pinned.ends_with(other));
    assert!(
        fs::read_to_string(pinned.join("config.json"))
            .unwrap()
            .contains("roberta")
    );
    assert!(
        fs::read_to_string(main.join("config.json"))
            .unwrap()
            .contains("bert")
    );
    // What the two have in common is stored once.
    assert_eq!(
        fs::read_dir(dir.path().join("hub/models--org--tiny/blobs"))
            .unwrap()
            .count(),
        5
    );
    // The branch moves on: all files come from its new commit.
    server.add("models/org/tiny", "main", other, &files);
    assert_eq!(hub.model("org/tiny", None).unwrap(), pinned);
    let error = message(hub.model("org/tiny", Some("v9")));
    assert!(
        error.contains("no model org/tiny at revision v9"),
        "{error}"
    );
}

#[test]
fn what_broke_off_is_gone_on_with() {
    let (server, dir) = start();
    server.fault("model.safetensors", Fault::BreaksOff(2));
    let hub = Hub::new(settings(&server, dir.path())).unwrap();
    let path = hub.model("org/tiny", None).unwrap();
    assert_eq!(
        fs::read(path.join("model.safetensors")).unwrap(),
        bytes(50_000)
    );
    let starts: Vec<String> = server
        .requests()
        .into_iter()
        .filter(|line| line.contains("/cdn/") && !line.ends_with("probe"))
        .filter(|line| line.contains("model.safetensors"))
        .collect();
    assert_eq!(
        starts
            .iter()
            .map(|line| line.rsplit(' ').next().unwrap())
            .collect::<Vec<_>>(),
        ["whole", "25000", "37500"]
    );
}

#[test]
fn a_transfer_that_keeps_breaking_off_is_told_and_resumed_by_the_next_run() {
    let (server, dir) = start();
    server.fault("model.safetensors", Fault::BreaksOff(3));
    let hub = Hub::new(settings(&server, dir.path())).unwrap();
    let error = message(hub.model("org/tiny", None));
    assert!(
        error.contains("model.safetensors of org/tiny was interrupted after 43750 of 50000 bytes"),
        "{error}"
    );
    // Nothing half-made is where anyone would look for it.
    assert!(
        !dir.path()
            .join("hub/models--org--tiny/snapshots")
            .join(COMMIT)
            .join("model.safetensors")
            .exists()
    );
    let before = server.requests().len();
    let path = hub.model("org/tiny", None).unwrap();
    assert_eq!(
        fs::read(path.join("model.safetensors")).unwrap(),
        bytes(50_000)
    );
    assert!(
        server.requests()[before..]
            .iter()
            .any(|line| line.ends_with("model.safetensors from 43750"))
    );
    assert!(
        real_files(&dir.path().join("hub/.xtrain-incoming"))
            .iter()
            .all(|file| file.metadata().unwrap().len() < 100)
    );
}

#[test]
fn damage_is_noticed_and_never_kept() {
    for file in ["model.safetensors", "vocab.txt"] {
        let (server, dir) = start();
        server.fault(file, Fault::Damaged(1));
        let hub = Hub::new(settings(&server, dir.path())).unwrap();
        let path = hub.model("org/tiny", None).unwrap();
        let wanted = model_files()
            .into_iter()
            .find(|(name, _)| *name == file)
            .unwrap()
            .1;
        assert_eq!(
            fs::read(path.join(file)).unwrap(),
            wanted,
            "{file}: the second transfer was whole"
        );

        let (server, dir) = start();
        server.fault(file, Fault::Damaged(99));
        let hub = Hub::new(settings(&server, dir.path())).unwrap();
        let error = message(hub.model("org/tiny", None));
        assert!(
            error.contains(&format!(
                "{file} of org/tiny arrived damaged twice (checksum"
            )),
            "{error}"
        );
        let repository = dir.path().join("hub/models--org--tiny");
        assert!(
            real_files(&repository)
                .iter()
                .all(|found| fs::read(found).unwrap() != wanted)
        );
        assert!(
            !repository
                .join("snapshots")
                .join(COMMIT)
                .join(file)
                .exists()
        );
    }
}

#[test]
fn a_server_without_ranges_does_not_spoil_a_file() {
    let (server, dir) = start();
    server.fault("model.safetensors", Fault::WholeAfterBreak(1));
    let hub = Hub::new(settings(&server, dir.path())).unwrap();
    let path = hub.model("org/tiny", None).unwrap();
    assert_eq!(
        fs::read(path.join("model.safetensors")).unwrap(),
        bytes(50_000)
    );
}

#[test]
fn gated_repositories_want_the_right_token() {
    let (server, dir) = start();
    server.protect("models/org/tiny", "hf_right");
    let with = |token: Option<&str>| {
        Hub::new(HubSettings {
            token: token.map(str::to_string),
            ..settings(&server, dir.path())
        })
        .unwrap()
        .model("org/tiny", None)
    };
    let error = message(with(None));
    assert!(
        error.contains("does not let org/tiny be read without a token")
            && error.contains("HF_TOKEN"),
        "{error}"
    );
    let error = message(with(Some("hf_wrong")));
    assert!(
        error.contains("does not let this token read org/tiny") && !error.contains("hf_wrong"),
        "{error}"
    );
    assert!(with(Some("hf_right")).is_ok());
}

#[test]
fn what_is_not_there_is_told() {
    let (server, dir) = start();
    server.add(
        "models/org/old",
        "main",
        COMMIT,
        &[("config.json", b"{}".to_vec()), ("tf_model.h5", bytes(10))],
    );
    server.add(
        "models/org/pickled",
        "main",
        COMMIT,
        &[
            ("config.json", b"{}".to_vec()),
            ("pytorch_model.bin", bytes(10)),
        ],
    );
    server.add(
        "models/org/bare",
        "main",
        COMMIT,
        &[("README.md", b"x".to_vec())],
    );
    let hub = Hub::new(settings(&server, dir.path())).unwrap();
    let error = message(hub.model("org/none", None));
    assert!(
        error.contains("has no model org/none at revision main") && error.contains(&server.url),
        "{error}"
    );
    let error = message(hub.model("org/old", None));
    assert!(
        error.contains("no model.safetensors (it has tf_model.h5)")
            && error.contains("save_pretrained"),
        "{error}"
    );
    let pickled = hub.model("org/pickled", None).unwrap();
    assert!(pickled.join("pytorch_model.bin").exists());
    assert!(
        message(hub.model("org/bare", None))
            .contains("org/bare at revision main has no file config.json")
    );
    assert!(message(hub.tokenizer("org/bare", None)).contains("org/bare has no tokenizer files"));
    for name in ["", "a/b/c", "../x", "with space", "-x", "org/"] {
        assert!(
            message(hub.model(name, None)).contains("nor a name on the Hub"),
            "{name}"
        );
    }
}

#[test]
fn shards_come_with_their_index() {
    let (server, dir) = start();
    let index =
        br#"{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors", "c": "../../x"}}"#;
    let files = [
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.to_vec()),
        ("model-00001-of-00002.safetensors", bytes(2_000)),
        ("model-00002-of-00002.safetensors", bytes(3_000)),
    ];
    server.add("models/org/big", "main", COMMIT, &files);
    let path = Hub::new(settings(&server, dir.path()))
        .unwrap()
        .model("org/big", None)
        .unwrap();
    assert_eq!(fs::read_dir(path).unwrap().count(), 4);
}

#[test]
fn data_sets_come_from_their_own_files_or_the_converted_ones() {
    let (server, dir) = start();
    let own = [
        ("data/train-00000-of-00002.parquet", bytes(20)),
        ("data/train-00001-of-00002.parquet", bytes(30)),
        ("data/test-00000-of-00001.parquet", bytes(40)),
    ];
    server.add("datasets/org/own", "main", COMMIT, &own);
    let script = [("glue.py", b"x".to_vec()), ("README.md", b"y".to_vec())];
    server.add("datasets/org/script", "main", COMMIT, &script);
    let converted = [
        ("sst2/train/0000.parquet", bytes(50)),
        ("sst2/validation/0000.parquet", bytes(60)),
        ("cola/train/0000.parquet", bytes(70)),
    ];
    server.add(
        "datasets/org/script",
        "refs/convert/parquet",
        "89abcdef",
        &converted,
    );
    server.add("datasets/org/nothing", "main", COMMIT, &script);
    let hub = Hub::new(settings(&server, dir.path())).unwrap();
    let sizes = |files: &[PathBuf]| {
        files
            .iter()
            .map(|file| fs::metadata(file).unwrap().len())
            .collect::<Vec<_>>()
    };
    let found = hub.dataset("org/own", None, None, false).unwrap();
    assert_eq!(
        (
            sizes(&found.train),
            sizes(&found.validation),
            sizes(&found.test)
        ),
        (vec![20, 30], vec![], vec![40])
    );
    let found = hub
        .dataset("org/script", Some("sst2"), None, false)
        .unwrap();
    assert_eq!(
        (sizes(&found.train), sizes(&found.validation)),
        (vec![50], vec![60])
    );
    assert!(
        message(hub.dataset("org/script", None, None, false))
            .contains("--dataset_config_name: cola, sst2")
    );
    assert!(
        message(hub.dataset("org/script", Some("mnli"), None, false))
            .contains("no configuration \"mnli\"")
    );
    assert!(
        message(hub.dataset("org/nothing", None, None, false))
            .contains("no parquet, CSV, JSON or text files")
    );
    assert!(message(hub.dataset("org/gone", None, None, false)).contains("no data set org/gone"));
    let offline = Hub::new(HubSettings {
        offline: true,
        ..settings(&server, dir.path())
    })
    .unwrap();
    assert_eq!(
        offline
            .dataset("org/script", Some("sst2"), None, false)
            .unwrap(),
        found
    );
}

#[test]
fn settings_follow_the_variables_of_huggingface_hub() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("token"), " hf_from_file\n").unwrap();
    let home = dir.path().display().to_string();
    let read = |pairs: &[(&str, &str)]| {
        HubSettings::from_env(|name| {
            pairs
                .iter()
                .find(|(found, _)| *found == name)
                .map(|(_, value)| value.to_string())
        })
    };
    let usual = read(&[("HOME", "home")]);
    assert_eq!(usual.cache_dir, Path::new("home/.cache/huggingface/hub"));
    assert_eq!(
        (usual.endpoint, usual.token, usual.offline),
        (None, None, false)
    );
    let set = read(&[
        ("HF_HOME", &home),
        ("HF_ENDPOINT", "http://mirror:8080/"),
        ("HF_HUB_OFFLINE", "1"),
    ]);
    assert_eq!(
        (set.cache_dir, set.endpoint),
        (
            dir.path().join("hub"),
            Some("http://mirror:8080".to_string())
        )
    );
    assert_eq!(
        (set.token.as_deref(), set.offline),
        (Some("hf_from_file"), true)
    );
    let set = read(&[
        ("HF_HOME", &home),
        ("HF_TOKEN", "hf_own"),
        ("HF_HUB_CACHE", "/c"),
    ]);
    assert_eq!(
        (set.token.as_deref(), set.cache_dir.as_path()),
        (Some("hf_own"), Path::new("/c"))
    );
    assert!(
        !format!("{set:?}").contains("hf_own"),
        "a token is not for logs"
    );
}

#[test]
fn a_hub_that_says_nothing_is_given_up() {
    let (server, dir) = start();
    let settings = HubSettings {
        patience: Duration::from_millis(400),
        ..settings(&server, dir.path())
    };
    server.fault("model.safetensors", Fault::Silent(5));
    let error = message(Hub::new(settings.clone()).unwrap().model("org/tiny", None));
    assert!(
        error.contains("model.safetensors of org/tiny was interrupted after 0 of 50000 bytes"),
        "{error}"
    );
    assert!(
        error.contains("nothing or next to nothing came for 0.4 s")
            && error.contains("HF_HUB_DOWNLOAD_TIMEOUT"),
        "{error}"
    );
    // A listener that nobody serves takes connections all the same.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = Some(format!("http://{}", deaf.local_addr().unwrap()));
    let hub = Hub::new(HubSettings {
        endpoint,
        ..settings
    })
    .unwrap();
    let error = message(hub.model("org/other", None));
    assert!(
        error.contains("did not answer for 0.4 s") && error.contains("org/other"),
        "{error}"
    );
}

#[test]
fn empty_files_are_fetched_like_others() {
    let (server, dir) = start();
    let files = [
        ("config.json", b"{}".to_vec()),
        ("model.safetensors", bytes(2000)),
        ("vocab.txt", Vec::new()),
    ];
    server.add("models/org/empty", "main", COMMIT, &files);
    let path = Hub::new(settings(&server, dir.path()))
        .unwrap()
        .model("org/empty", None)
        .unwrap();
    assert_eq!(fs::read(path.join("vocab.txt")).unwrap(), b"");
    assert!(path.join("vocab.txt").is_symlink());
}
