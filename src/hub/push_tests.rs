//! Commits to a Hub on the loopback interface: what arrives, and what every refusal says.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::test_server::{Commit, PushFault, TestHub};
use super::*;

const TOKEN: &str = "hf_secret";

fn start() -> (TestHub, HubSettings) {
    let hub = TestHub::start();
    hub.account("me", TOKEN);
    let settings = HubSettings {
        endpoint: Some(hub.url.clone()),
        cache_dir: "none".into(),
        token: Some(TOKEN.into()),
        offline: false,
        quiet: true,
        patience: Duration::from_secs(10),
    };
    (hub, settings)
}

fn create(settings: &HubSettings, name: &str) -> Result<Repository> {
    let mut repository = Repository::create(settings, name, None, None)?;
    repository.pause = Duration::from_millis(1);
    Ok(repository)
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

/// Weights, a text, nothing and what the repository ignores.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("config.json", b"{}".to_vec()),
        ("empty.safetensors", Vec::new()),
        ("ignored.txt", b"x".to_vec()),
        ("model.safetensors", bytes(250_000)),
        ("runs/log.jsonl", bytes(3000)),
    ]
}

fn additions(dir: &Path) -> Vec<Addition> {
    let open = |(name, content): (&str, Vec<u8>)| {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        Addition::open(name, &path).unwrap()
    };
    files().into_iter().map(open).collect()
}

fn message<T>(result: Result<T>) -> String {
    result.err().expect("an error is expected").to_string()
}

#[test]
fn commits_hold_regular_and_large_files_and_only_what_is_new() {
    let (server, settings) = start();
    let dir = tempfile::tempdir().unwrap();
    let repository = Repository::create(&settings, "model", Some(true), None).unwrap();
    assert_eq!(repository.name(), "me/model");
    assert_eq!(repository.url(), format!("{}/me/model", server.url));
    assert!(server.is_private("models/me/model"));
    let files_of = || server.files("models/me/model", "main");
    assert!(repository.commit(&additions(dir.path()), "first").unwrap());
    let there: Vec<_> = files()
        .into_iter()
        .filter(|(name, _)| *name != "ignored.txt")
        .collect();
    let there: Vec<_> = there
        .into_iter()
        .map(|(name, bytes)| (name.to_string(), bytes))
        .collect();
    assert_eq!(files_of().into_iter().collect::<Vec<_>>(), there);
    // In parts of which the last is shorter; the same weights twice are uploaded once.
    server.parts_of(100_000);
    fs::write(dir.path().join("new.safetensors"), bytes(250_001)).unwrap();
    let mut second = additions(dir.path());
    second.push(Addition::open("new.safetensors", &dir.path().join("new.safetensors")).unwrap());
    second.push(Addition::open("copy.safetensors", &dir.path().join("model.safetensors")).unwrap());
    assert!(repository.commit(&second, "second").unwrap());
    assert_eq!(files_of()["new.safetensors"], bytes(250_001));
    let puts = server
        .requests()
        .into_iter()
        .filter(|line| line.starts_with("PUT"));
    assert_eq!(puts.count(), 1 + 3);
    assert!(
        !repository.commit(&second, "third").unwrap(),
        "nothing is new"
    );
    let commit = |message: &str, paths: &[&str]| Commit {
        to: "me/model@main".into(),
        message: message.into(),
        paths: paths.iter().map(|path| path.to_string()).collect(),
    };
    let first = [
        "config.json",
        "empty.safetensors",
        "model.safetensors*",
        "runs/log.jsonl",
    ];
    let second = ["new.safetensors*", "copy.safetensors*"];
    assert_eq!(
        server.commits(),
        [commit("first", &first), commit("second", &second)]
    );
}

#[test]
fn what_grows_is_committed_as_it_was() {
    let (server, settings) = start();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.safetensors");
    fs::write(&path, bytes(1000)).unwrap();
    let growing = Addition::open("events.safetensors", &path).unwrap();
    fs::write(dir.path().join("gone.txt"), "gone").unwrap();
    let gone = Addition::open("gone.txt", &dir.path().join("gone.txt")).unwrap();
    fs::remove_file(dir.path().join("gone.txt")).unwrap();
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut file, b"more").unwrap();
    let repository = create(&settings, "model").unwrap();
    repository.commit(&[growing, gone], "both").unwrap();
    let files = server.files("models/me/model", "main");
    assert_eq!(files["events.safetensors"], bytes(1000));
    assert_eq!(files["gone.txt"], b"gone");
    // One that became shorter is not what was announced.
    let shrinking = Addition::open("events.safetensors", &path).unwrap();
    fs::write(&path, "short").unwrap();
    assert!(
        message(repository.commit(&[shrinking], "none")).contains("cannot read events.safetensors")
    );
}

#[test]
fn an_existing_repository_is_pushed_to_and_a_branch_must_exist() {
    let (server, settings) = start();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    server.add(
        "models/me/old",
        "main",
        commit,
        &[("README.md", b"old".to_vec())],
    );
    server.add("models/me/old", "dev/1", commit, &[]);
    let dir = tempfile::tempdir().unwrap();
    let repository = create(&settings, "me/old").unwrap();
    repository.commit(&additions(dir.path()), "new").unwrap();
    assert_eq!(server.files("models/me/old", "main")["README.md"], b"old");
    let branch = Repository::create(&settings, "me/old", None, Some("dev/1")).unwrap();
    branch.commit(&additions(dir.path()), "branch").unwrap();
    assert_eq!(server.commits()[1].to, "me/old@dev/1");
    let missing = Repository::create(&settings, "me/old", None, Some("none"));
    assert!(message(missing).contains("no me/old with a branch none"));
    // A token that may write, but not make repositories.
    server.push_fault("repos/create", 1, PushFault::Status(403));
    assert_eq!(create(&settings, "me/old").unwrap().name(), "me/old");
}

#[test]
fn every_refusal_says_what_to_do_and_nothing_says_the_token() {
    let (server, settings) = start();
    let dir = tempfile::tempdir().unwrap();
    let offline = HubSettings {
        offline: true,
        ..settings.clone()
    };
    assert!(message(create(&offline, "model")).contains("HF_HUB_OFFLINE"));
    let nobody = HubSettings {
        token: None,
        ..settings.clone()
    };
    assert!(message(create(&nobody, "model")).contains("set HF_TOKEN or --hub_token"));
    let wrong = HubSettings {
        token: Some("hf_old".into()),
        ..settings.clone()
    };
    assert!(message(create(&wrong, "model")).contains("(401): it is wrong or expired"));
    assert!(message(create(&settings, "others/model")).contains("write to others/model (403)"));
    let repository = create(&settings, "model").unwrap();
    for (path, times, status, part) in [
        (
            "preupload",
            1,
            404,
            "branch main that this token may write to (404)",
        ),
        ("/commit/", 1, 409, "another change to me/model"),
        (
            "objects/batch",
            1,
            422,
            "refuses the push to me/model: status 422: the stand-in says 422 to Some(\"***\")",
        ),
        ("/lfs/", 6, 503, "status 503"),
    ] {
        server.push_fault(path, times, PushFault::Status(status));
        let error = message(repository.commit(&additions(dir.path()), "none"));
        assert!(
            error.contains(part) && !error.contains(TOKEN),
            "{path}: {error}"
        );
    }
    assert_eq!(server.commits(), []);
    assert!(
        repository
            .commit(&additions(dir.path()), "at last")
            .unwrap()
    );
}

#[test]
fn broken_connections_are_made_again() {
    let (server, settings) = start();
    let dir = tempfile::tempdir().unwrap();
    let repository = create(&settings, "model").unwrap();
    server.push_fault("preupload", 2, PushFault::Reset);
    server.push_fault("objects/batch", 1, PushFault::Status(502));
    server.push_fault("/lfs/", 2, PushFault::Reset);
    server.push_fault("/commit/", 1, PushFault::Reset);
    assert!(repository.commit(&additions(dir.path()), "first").unwrap());
    assert_eq!(server.commits().len(), 1);
    assert_eq!(
        server.files("models/me/model", "main")["model.safetensors"],
        bytes(250_000)
    );
    fs::write(dir.path().join("config.json"), "{\"a\": 1}").unwrap();
    let changed = Addition::open("config.json", &dir.path().join("config.json")).unwrap();
    server.push_fault("/commit/", 6, PushFault::Reset);
    let error = message(repository.commit(&[changed], "second"));
    assert!(
        error.contains("broke 6 times in pushing me/model"),
        "{error}"
    );
    assert_eq!(server.commits().len(), 1);
    // Nobody is there.
    drop(server);
    let began = Instant::now();
    let mut gone = repository;
    gone.pause = Duration::from_millis(1);
    assert!(message(gone.commit(&additions(dir.path()), "third")).contains("broke 6 times"));
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn names_are_checked_as_huggingface_hub_checks_them() {
    for name in ["foo", "foo/bar", "123", "Foo-BAR_foo.bar123"] {
        assert!(is_new_name(name), "{name}");
    }
    for name in [
        "",
        "datasets/foo/bar",
        ".repo_id",
        "foo--bar",
        "foo.git",
        "a..b",
        "a b",
        "-a",
    ] {
        assert!(!is_new_name(name), "{name}");
    }
}
