//! A Hub that lies: nothing that it answers decides a path, a size, a time or who gets the token, and
//! each lie is one message.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::test_server::TestHub;
use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_secret";
/// Git's name of `CONFIG`.
const CONFIG: &str = "{}";
const CONFIG_TAG: &str = "9e26dfeeb6e641a33dae4961196235bdb965b21b";

fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("config.json", CONFIG.into()),
        ("model.safetensors", vec![7; 5000]),
    ]
}

fn settings(hub: &TestHub, dir: &Path) -> HubSettings {
    HubSettings {
        endpoint: Some(hub.url.clone()),
        cache_dir: dir.join("hub"),
        token: Some(TOKEN.into()),
        offline: false,
        quiet: true,
        patience: Duration::from_secs(5),
    }
}

/// A Hub with a model and a directory with a file that is nobody's to change.
fn start() -> (TestHub, tempfile::TempDir, PathBuf) {
    let hub = TestHub::start();
    hub.account("me", TOKEN);
    hub.add("models/org/tiny", "main", COMMIT, &files());
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("victim")).unwrap();
    let victim = dir.path().join("victim/config.json");
    fs::write(&victim, "a victim").unwrap();
    (hub, dir, victim)
}

fn raw(status: &str, headers: &[(&str, &str)], body: &str) -> String {
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
}

/// The head of `config.json`.
fn head(etag: &str, commit: &str, more: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nETag: {etag}\r\nX-Repo-Commit: {commit}\r\n{more}\r\n"
    )
}

/// Everything below a directory, by path, with the bytes of files; the cache's own part aside.
fn outside(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("hub") {
            found.extend(outside(&path));
        }
        found.insert(path.clone(), fs::read(&path).unwrap_or_default());
    }
    found
}

/// The error of a download, which is one line and leaves everything outside of the cache alone.
fn refusal(hub: &TestHub, dir: &Path, victim: &Path) -> String {
    fs::create_dir_all(dir.join("hub")).unwrap();
    let before = outside(dir);
    let result = Hub::new(settings(hub, dir))
        .unwrap()
        .model("org/tiny", None);
    let error = result.map(drop).unwrap_err().to_string();
    assert!(error.lines().count() == 1 && error.len() < 700, "{error}");
    assert!(!error.contains(TOKEN), "{error}");
    assert_eq!(outside(dir), before, "{error}");
    assert_eq!(fs::read(victim).unwrap(), b"a victim", "{error}");
    error
}

#[test]
fn no_etag_and_no_commit_is_a_path() {
    let (_, _dir, victim) = start();
    let absolute = victim.display().to_string();
    let long = "a".repeat(10_000);
    for evil in [
        absolute.as_str(),
        "../../../victim/config.json",
        "..",
        ".",
        "",
        "a/b",
        &long,
    ] {
        // In the first answer and in the second, which once was believed.
        for method in ["HEAD", "GET"] {
            let (hub, own, _) = start();
            let quoted = format!("\"{evil}\"");
            let answer = head(&quoted, COMMIT, "Content-Length: 2\r\n") + CONFIG;
            hub.reply(&format!("{method} /org/tiny/resolve"), 1, answer);
            let error = refusal(&hub, own.path(), &own.path().join("victim/config.json"));
            assert!(
                error.contains("the ETag") && error.contains("no digest"),
                "{error}"
            );
        }
    }
    for evil in [
        absolute.as_str(),
        "/victim",
        "../../victim",
        "main",
        &"f".repeat(40),
    ] {
        for method in ["HEAD", "GET"] {
            let (hub, own, victim) = start();
            let answer = head(CONFIG_TAG, evil, "Content-Length: 2\r\n") + CONFIG;
            hub.reply(&format!("{method} /org/tiny/resolve"), 1, answer);
            let error = refusal(&hub, own.path(), &victim);
            assert!(error.contains("config.json is of commit"), "{error}");
        }
        let (hub, own, victim) = start();
        let info = format!("{{\"sha\": \"{evil}\", \"siblings\": []}}");
        hub.reply("GET /api/models", 1, raw("200 OK", &[], &info));
        let error = refusal(&hub, own.path(), &victim);
        let is_commit = evil.len() == 40 && !evil.contains('/');
        assert!(is_commit || error.contains("is no commit"), "{error}");
    }
    assert_eq!(fs::read(victim).unwrap(), b"a victim");
}

#[test]
fn names_of_files_stay_within_the_snapshot() {
    let (hub, dir, victim) = start();
    let absolute = victim.display().to_string();
    let names = [
        absolute.as_str(),
        "../../../victim/config.json",
        "a/../../../../victim/train.jsonl",
        "a\\..\\train.jsonl",
        "data/train\u{1b}[2J.jsonl",
    ];
    let siblings: Vec<_> = names
        .iter()
        .map(|name| serde_json::json!({"rfilename": name}))
        .collect();
    let info = serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string();
    for path in ["GET /api/models", "GET /api/datasets"] {
        hub.reply(path, 9, raw("200 OK", &[], &info));
    }
    let own = Hub::new(settings(&hub, dir.path())).unwrap();
    let snapshot = own.snapshot(Kind::Model, "org/tiny", None).unwrap();
    assert_eq!(snapshot.files(), [""; 0]);
    for name in names {
        let error = snapshot.fetch(name).unwrap_err().to_string();
        assert!(error.contains("has no file"), "{error}");
    }
    let error = own.dataset("org/set", None, None, false).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no parquet, CSV, JSON or text files")
    );
    // A revision is a path too, and the user's.
    for revision in ["../../victim", "/victim", "a b", ""] {
        let error = own.model("org/tiny", Some(revision)).unwrap_err();
        assert!(error.to_string().contains("no branch, tag or commit"));
    }
    assert_eq!(fs::read(&victim).unwrap(), b"a victim");
}

#[test]
fn the_token_is_for_the_endpoint_alone() {
    let foreign = TestHub::start();
    foreign.add("models/org/tiny", "main", COMMIT, &files());
    for request in ["GET /api/models", "HEAD /org/tiny", "GET /org/tiny"] {
        let (hub, dir, _) = start();
        for (path, answer) in [
            ("GET /api/models", "/api/models/org/tiny/revision/main"),
            (
                "HEAD /org/tiny",
                "/org/tiny/resolve/0123456789abcdef0123456789abcdef01234567/config.json",
            ),
            (
                "GET /org/tiny",
                "/org/tiny/resolve/0123456789abcdef0123456789abcdef01234567/config.json",
            ),
        ] {
            if path == request {
                let to = format!("{}{answer}", foreign.url);
                hub.reply(
                    path,
                    1,
                    raw("307 Temporary Redirect", &[("Location", &to)], ""),
                );
            }
        }
        let own = Hub::new(settings(&hub, dir.path())).unwrap();
        own.config("org/tiny", None).unwrap();
        assert!(hub.tokens().iter().any(|line| line.starts_with(request)));
    }
    assert_eq!(foreign.requests().len(), 3, "each redirect was followed");
    assert_eq!(foreign.tokens(), [""; 0]);
    // Nor once a redirect has led away, even back to it.
    let (hub, dir, victim) = start();
    let back = format!("{}/back", hub.url);
    foreign.reply("/away", 1, raw("302 Found", &[("Location", &back)], ""));
    let away = format!("{}/away", foreign.url);
    hub.reply(
        "GET /api/models",
        1,
        raw("302 Found", &[("Location", &away)], ""),
    );
    refusal(&hub, dir.path(), &victim);
    assert!(hub.requests().iter().any(|line| line.starts_with("/back")));
    assert!(!hub.tokens().iter().any(|line| line.contains("/back")));
    assert_eq!(foreign.tokens(), [""; 0]);
}

#[test]
fn no_more_is_written_than_was_announced() {
    let (hub, dir, victim) = start();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let endless = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
        chunk.repeat(100)
    );
    hub.reply("GET /cdn/org/tiny", 9, endless);
    let error = refusal(&hub, dir.path(), &victim);
    assert!(
        error.contains("more bytes of model.safetensors than were announced"),
        "{error}"
    );
    let mut bytes = 0;
    let mut left = vec![dir.path().join("hub")];
    while let Some(path) = left.pop() {
        match fs::read_dir(&path) {
            Ok(entries) => left.extend(entries.map(|entry| entry.unwrap().path())),
            Err(_) => bytes += fs::symlink_metadata(&path).unwrap().len(),
        }
    }
    assert!(bytes < 1000, "{bytes} bytes are in the cache");
    // Nor is room taken that there is not.
    let (hub, dir, victim) = start();
    let huge = format!("X-Linked-Size: {}\r\n", u64::MAX / 2);
    hub.reply("HEAD /org/tiny", 9, head(CONFIG_TAG, COMMIT, &huge));
    let error = refusal(&hub, dir.path(), &victim);
    assert!(error.contains("the disk has room for"), "{error}");
}

#[test]
fn answers_that_are_none_are_named() {
    let tag = format!("ETag: {CONFIG_TAG}\r\n");
    let commit = format!("X-Repo-Commit: {COMMIT}\r\n");
    let ok = "HTTP/1.1 200 OK\r\nConnection: close\r\n";
    let deep = "[".repeat(500_000);
    let loop_to = "/org/tiny/resolve/again/config.json";
    let moved = |to: &str| raw("302 Found", &[("Location", to)], "");
    let info = "GET /api/models";
    let asked = "HEAD /org/tiny";
    let sent = "GET /org/tiny";
    let cases: Vec<(&str, String, &str)> = vec![
        (info, raw("200 OK", &[], &deep), "its JSON"),
        (info, raw("200 OK", &[], "<html>"), "its JSON"),
        (
            info,
            format!("{ok}Content-Length: 99999999999\r\n\r\n"),
            "more than 33554432 bytes",
        ),
        (info, raw("204 No Content", &[], ""), "status 204"),
        (info, raw("304 Not Modified", &[], ""), "status 304"),
        (info, "SSH-2.0-x\r\n".into(), "no HTTP"),
        (
            asked,
            raw("302 Found", &[], ""),
            "a redirect (302) without an address",
        ),
        (asked, raw("304 Not Modified", &[], ""), "status 304"),
        (asked, raw("300 Multiple Choices", &[], ""), "status 300"),
        (asked, raw("204 No Content", &[], ""), "status 204"),
        (
            asked,
            raw("500 Error", &[], ""),
            "status 500 for org/tiny; try again later",
        ),
        (asked, raw("418 Teapot", &[], ""), "status 418 for org/tiny"),
        (
            asked,
            moved("file:///etc/passwd"),
            "\"file:///etc/passwd\" is neither http:// nor https://",
        ),
        (asked, moved("http://"), "the address \"http://\" is none"),
        (asked, moved("http://a:b@127.0.0.1/"), "has a user in it"),
        (
            asked,
            format!("{ok}Content-Length: 2\r\n{tag}\r\n"),
            "no X-Repo-Commit for config.json",
        ),
        (
            asked,
            format!("{ok}Content-Length: 2\r\n{commit}\r\n"),
            "no ETag for config.json",
        ),
        (
            asked,
            format!("{ok}{commit}{tag}\r\n"),
            "no size for config.json",
        ),
        (
            asked,
            format!("{ok}{commit}{tag}X-Linked-Size: +2\r\n\r\n"),
            "\"+2\" is no size",
        ),
        (
            asked,
            format!("{ok}{commit}{tag}ETag: x\r\nContent-Length: 2\r\n\r\n"),
            "ETag has several values",
        ),
        (
            sent,
            raw("302 Found", &[], ""),
            "a redirect (302) without an address",
        ),
        (sent, raw("304 Not Modified", &[], ""), "status 304"),
        (sent, raw("204 No Content", &[], ""), "status 204"),
        (
            sent,
            raw("206 Partial Content", &[], CONFIG),
            "the range \"\" where bytes 0-1/2",
        ),
        (
            sent,
            raw("200 OK", &[], "{} and more"),
            "11 bytes of config.json where 2 are left",
        ),
        (sent, head(&"f".repeat(40), COMMIT, ""), "has the ETag ffff"),
    ];
    for (request, answer, part) in cases {
        let (hub, dir, victim) = start();
        hub.reply(request, 9, answer);
        let error = refusal(&hub, dir.path(), &victim);
        assert!(error.contains(part), "{request}: {part:?} in {error}");
    }
    let (hub, dir, victim) = start();
    hub.reply("/org/tiny/resolve", 99, moved(loop_to));
    let error = refusal(&hub, dir.path(), &victim);
    assert!(error.contains("more than 10 redirects"), "{error}");
}

#[test]
fn what_crawls_is_given_up() {
    for (request, answer) in [
        ("GET /api/models", raw("200 OK", &[], &"{}".repeat(500))),
        ("HEAD /org/tiny", raw("200 OK", &[], &"{}".repeat(500))),
        ("GET /cdn/org/tiny", raw("200 OK", &[], &"x".repeat(5000))),
    ] {
        let (hub, dir, _) = start();
        hub.reply(request, 9, answer);
        hub.crawl(Duration::from_millis(20));
        let own = Hub::new(HubSettings {
            patience: Duration::from_millis(500),
            ..settings(&hub, dir.path())
        });
        let began = Instant::now();
        let error = own
            .unwrap()
            .model("org/tiny", None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("0.5 s"), "{request}: {error}");
        assert!(began.elapsed() < Duration::from_secs(4), "{request}");
    }
}

fn pushed(hub: &TestHub, dir: &Path, patience: Duration) -> String {
    let mut repository = Repository::create(
        &HubSettings {
            patience,
            ..settings(hub, dir)
        },
        "me/model",
        None,
        None,
    )
    .unwrap();
    repository.pause = Duration::from_millis(1);
    let additions: Vec<Addition> = files()
        .into_iter()
        .map(|(name, content)| {
            let path = dir.join(name);
            fs::write(&path, content).unwrap();
            Addition::open(name, &path).unwrap()
        })
        .collect();
    let result = repository.commit(&additions, "first");
    let error = result
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(
        !error.contains(TOKEN) && error.lines().count() < 2,
        "{error}"
    );
    error
}

/// The answer to the question where the weights go.
fn batch(upload: &serde_json::Value, verify: &str) -> String {
    use sha2::Digest;
    let digest = xtrain_checkpoint::hash::hex(&sha2::Sha256::digest(&files()[1].1));
    let actions = serde_json::json!({"upload": upload, "verify": {"href": verify}});
    let object = serde_json::json!({"oid": digest, "size": 5000, "actions": actions});
    let body = serde_json::json!({"objects": [object]}).to_string();
    raw("200 OK", &[], &body)
}

#[test]
fn upload_addresses_that_are_none_fail_once() {
    for (address, part) in [
        ("", "the address \"\" is none"),
        ("store", "\"store\" is none"),
        ("file:///etc/passwd", "is neither http:// nor https://"),
        ("ftp://127.0.0.1/x", "is neither http:// nor https://"),
        ("http://127.0.0.1:99999/x", "is none"),
        ("http://user:word@127.0.0.1/x", "has a user in it"),
    ] {
        for is_part in [false, true] {
            let (hub, dir, _) = start();
            let parts = serde_json::json!({"chunk_size": "5000", "1": address});
            let upload = if is_part {
                serde_json::json!({"href": format!("{}/lfs/x", hub.url), "header": parts})
            } else {
                serde_json::json!({"href": address})
            };
            hub.reply("objects/batch", 9, batch(&upload, &hub.url));
            let began = Instant::now();
            let error = pushed(&hub, dir.path(), Duration::from_secs(5));
            assert!(error.contains(part), "{address}: {error}");
            assert!(began.elapsed() < Duration::from_secs(1));
            let calls = hub.requests();
            let asked = calls.iter().filter(|line| line.contains("batch")).count();
            let puts = calls.iter().filter(|line| line.starts_with("PUT")).count();
            assert_eq!((asked, puts), (1, 0), "{address}");
        }
    }
    let (hub, dir, _) = start();
    hub.reply(
        "PUT /lfs",
        99,
        raw("307 Temporary Redirect", &[("Location", "/lfs/again")], ""),
    );
    let error = pushed(&hub, dir.path(), Duration::from_secs(5));
    assert!(error.contains("more than 3 redirects"), "{error}");
    let puts = hub.requests();
    assert_eq!(
        puts.iter().filter(|line| line.starts_with("PUT")).count(),
        4
    );
}

#[test]
fn uploads_elsewhere_come_without_the_token() {
    let (hub, dir, _) = start();
    let foreign = TestHub::start();
    let to = |path: &str| format!("{}/{path}", foreign.url);
    let upload = serde_json::json!({"href": to("lfs/x")});
    foreign.reply("PUT /lfs/x", 1, raw("200 OK", &[], ""));
    foreign.reply("POST /verify", 1, raw("200 OK", &[], ""));
    hub.reply("objects/batch", 1, batch(&upload, &to("verify")));
    // The weights are not with this Hub: it is asked to take the rest.
    hub.reply(
        "/commit/",
        1,
        raw("200 OK", &[], &format!("{{\"commitOid\": \"{COMMIT}\"}}")),
    );
    assert_eq!(pushed(&hub, dir.path(), Duration::from_secs(5)), "");
    assert_eq!(foreign.requests(), ["PUT /lfs/x", "POST /verify"]);
    assert_eq!(foreign.tokens(), [""; 0]);
    // What is sent with the token is not sent on.
    for call in ["/preupload/", "objects/batch", "/commit/"] {
        let (hub, dir, _) = start();
        let away = raw("307 Temporary Redirect", &[("Location", &to("x"))], "");
        hub.reply(call, 9, away);
        let error = pushed(&hub, dir.path(), Duration::from_secs(5));
        assert!(
            error.contains("of what was sent to another host"),
            "{error}"
        );
    }
    assert_eq!(foreign.requests().len(), 2);
}

#[test]
fn answers_to_a_push_that_are_none_are_named() {
    let json = |text: &str| raw("200 OK", &[], text);
    let deep = json(&"{\"files\":".repeat(100_000));
    let modes = |text: &str| json(&format!("{{\"files\": [{text}]}}"));
    let cases: Vec<(&str, String, &str)> = vec![
        ("/preupload/", raw("204 No Content", &[], ""), "its JSON"),
        ("/preupload/", deep, "its JSON: invalid type"),
        ("/preupload/", json("{}"), "its JSON: missing field `files`"),
        ("/preupload/", modes(""), "no upload mode for config.json"),
        (
            "/preupload/",
            raw("304 Not Modified", &[], ""),
            "status 304",
        ),
        (
            "/preupload/",
            raw("302 Found", &[], ""),
            "a redirect (302) without an address",
        ),
        (
            "objects/batch",
            json("{\"objects\": []}"),
            "no upload address for model.safetensors",
        ),
        (
            "/commit/",
            json("{}"),
            "its JSON: missing field `commitOid`",
        ),
        ("/commit/", json("{\"commitOid\": \"../x\"}"), "no commit"),
        ("/commit/", raw("201 Created", &[], ""), "its JSON"),
        (
            "PUT /lfs/",
            raw("303 See Other", &[("Location", "/x")], ""),
            "a redirect (303) of what",
        ),
        (
            "PUT /lfs/",
            raw("418 Teapot", &[], "{\"error\": \"\\u001b[2J\"}"),
            "status 418:  [2J",
        ),
    ];
    for (call, answer, part) in cases {
        let (hub, dir, _) = start();
        hub.reply(call, 9, answer);
        let error = pushed(&hub, dir.path(), Duration::from_secs(5));
        assert!(error.contains(part), "{call}: {part:?} in {error}");
        let calls = hub.requests();
        let calls = calls.iter().filter(|line| line.contains(call)).count();
        assert_eq!(calls, 1, "{call}: {error}");
    }
    // The name of a repository is the one that was asked for.
    for url in ["http://x/them/other", "http://x/../model", "x"] {
        let (hub, dir, _) = start();
        let made = format!("{{\"url\": \"{url}\"}}");
        hub.reply("repos/create", 1, raw("200 OK", &[], &made));
        let result = Repository::create(&settings(&hub, dir.path()), "model", None, None);
        let error = result.err().expect(url).to_string();
        assert!(error.contains("no address of the repository"), "{error}");
    }
    // One that never answers is not waited for again and again.
    let (hub, dir, _) = start();
    let slow = raw("200 OK", &[], &"x".repeat(1000));
    hub.reply("/preupload/", 99, slow);
    hub.crawl(Duration::from_millis(50));
    let began = Instant::now();
    let error = pushed(&hub, dir.path(), Duration::from_millis(200));
    assert!(error.contains("no answer for 0.6 s"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(3));
}
