//! How the stand-in answers calls that push: to create, to ask how files are sent, to store them, to commit.

use super::*;

/// Status, a header, and the body.
pub(super) type Said = (u16, Option<(&'static str, String)>, Value);

fn said(status: u16, body: Value) -> Said {
    (status, None, body)
}

impl State {
    pub(super) fn fault(&mut self, path: &str) -> Option<PushFault> {
        let mut faults = self.push_faults.iter_mut();
        let found = faults.find(|(part, times, _)| *times > 0 && path.contains(part.as_str()))?;
        found.1 -= 1;
        Some(found.2)
    }

    /// Answers a call that pushes.
    pub(super) fn push(&mut self, request: &Request, body: Vec<u8>, base: &str) -> Said {
        let path = request.path.trim_start_matches('/').replace("%2F", "/");
        // Addresses that carry their own rights take no token: it would be given away.
        let signed = path
            .split_once('/')
            .filter(|(head, _)| ["lfs", "part"].contains(head));
        if let Some((head, rest)) = signed {
            return match &request.token {
                Some(_) => said(400, json!({"error": "a token where none belongs"})),
                None => self.store(head, rest, &request.method, body),
            };
        }
        let account = self.account.as_ref();
        let Some(account) = account.filter(|own| Some(&own.token) == request.token.as_ref()) else {
            return said(401, json!({"error": "Invalid credentials"}));
        };
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        if path == "api/repos/create" {
            let name = value["name"].as_str().unwrap();
            let organization = value["organization"].as_str().unwrap_or(&account.name);
            let url = format!("{base}/{organization}/{name}");
            if organization != account.name {
                return said(403, json!({"error": "no right to create there"}));
            }
            let key = format!("models/{organization}/{name}@main");
            if self.repositories.contains_key(&key) {
                return said(
                    409,
                    json!({"error": "You already created this", "url": url}),
                );
            }
            let private = value["visibility"] == "private";
            let repository = Repository {
                commit: "0".repeat(40),
                token: private.then(|| account.token.clone()),
                ..Default::default()
            };
            self.repositories.insert(key, repository);
            return said(200, json!({"url": url}));
        }
        if let Some((_, digest)) = path.split_once("verify/") {
            let size = self.objects.get(digest).map(Vec::len);
            let is_there = size.is_some() && value["size"].as_u64() == size.map(|n| n as u64);
            return said(if is_there { 200 } else { 404 }, Value::Null);
        }
        let writable = format!("{}/", account.name);
        if let Some(name) = path.strip_suffix(".git/info/lfs/objects/batch") {
            assert!(
                self.repositories
                    .contains_key(&format!("models/{name}@main"))
            );
            return said(
                200,
                json!({"transfer": "basic", "objects": self.addresses(&value, base)}),
            );
        }
        let parts: Vec<&str> = path.splitn(6, '/').collect();
        let ["api", "models", organization, name, what, revision] = parts[..] else {
            return said(404, Value::Null);
        };
        let name = format!("{organization}/{name}");
        let key = format!("models/{name}@{revision}");
        if !self.repositories.contains_key(&key) {
            return said(404, json!({"error": "Repository not found"}));
        }
        if !name.starts_with(&writable) {
            return said(403, json!({"error": "no right to write there"}));
        }
        match what {
            "preupload" => said(200, self.modes(&key, &value)),
            "commit" => {
                let lines = body
                    .split(|byte| *byte == b'\n')
                    .filter(|line| !line.is_empty());
                let lines = lines
                    .map(|line| serde_json::from_slice(line).unwrap())
                    .collect();
                self.commit(&key, lines);
                said(
                    200,
                    json!({"commitUrl": base, "commitOid": self.repositories[&key].commit}),
                )
            }
            _ => said(404, Value::Null),
        }
    }

    /// How each file is stored: weights as large ones, and what the branch has of it.
    fn modes(&self, key: &str, asked: &Value) -> Value {
        let of_file = |file: &Value| {
            let path = file["path"].as_str().unwrap();
            let large = path.ends_with(".safetensors") && file["size"] != 0;
            let there = self.repositories[key].files.get(path).map(|bytes| {
                if large {
                    hex(&Sha256::digest(bytes))
                } else {
                    hex(&Sha1::digest(
                        [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat(),
                    ))
                }
            });
            let mode = if large { "lfs" } else { "regular" };
            json!({"path": path, "uploadMode": mode, "shouldIgnore": path == "ignored.txt", "oid": there})
        };
        let files: Vec<Value> = asked["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(of_file)
            .collect();
        json!({"files": files})
    }

    /// Where large files go that have not come yet.
    fn addresses(&self, asked: &Value, base: &str) -> Vec<Value> {
        let of_object = |object: &Value| {
            let (digest, size) = (
                object["oid"].as_str().unwrap(),
                object["size"].as_u64().unwrap(),
            );
            if self.objects.contains_key(digest) {
                return object.clone();
            }
            let mut header = json!({});
            if let Some(part) = self.part_size.filter(|part| size as usize > *part) {
                header["chunk_size"] = part.to_string().into();
                for number in 1..=(size as usize).div_ceil(part) {
                    header[number.to_string()] = format!("{base}/part/{digest}/{number}").into();
                }
            }
            json!({"oid": digest, "size": size, "actions": {
                "upload": {"href": format!("{base}/lfs/{digest}"), "header": header},
                "verify": {"href": format!("{base}/verify/{digest}")},
            }})
        };
        asked["objects"]
            .as_array()
            .unwrap()
            .iter()
            .map(of_object)
            .collect()
    }

    /// Takes a large file, a part of one, or the word that all parts are there.
    fn store(&mut self, head: &str, rest: &str, method: &str, body: Vec<u8>) -> Said {
        if head == "part" {
            let (digest, number) = rest.split_once('/').unwrap();
            let number: usize = number.parse().unwrap();
            self.parts.insert((digest.to_string(), number), body);
            return (
                200,
                Some(("ETag", format!("\"part-{number}\""))),
                Value::Null,
            );
        }
        let whole = match method {
            "PUT" => body,
            _ => {
                let done: Value = serde_json::from_slice(&body).unwrap();
                let parts = done["parts"].as_array().unwrap().iter();
                let of_part = |part: &Value| {
                    let number = part["partNumber"].as_u64().unwrap() as usize;
                    assert_eq!(part["etag"], format!("\"part-{number}\""));
                    self.parts[&(rest.to_string(), number)].clone()
                };
                parts.flat_map(of_part).collect()
            }
        };
        if hex(&Sha256::digest(&whole)) != rest {
            return said(400, json!({"error": "another file than was announced"}));
        }
        self.objects.insert(rest.to_string(), whole);
        said(200, Value::Null)
    }

    fn commit(&mut self, key: &str, lines: Vec<Value>) {
        let (mut message, mut paths) = (String::new(), Vec::new());
        let files = &mut self.repositories.get_mut(key).unwrap().files;
        for line in lines {
            let value = &line["value"];
            let path = value["path"].as_str().unwrap_or_default().to_string();
            match line["key"].as_str().unwrap() {
                "header" => message = value["summary"].as_str().unwrap().to_string(),
                "file" => {
                    let content = value["content"].as_str().unwrap();
                    let bytes = base64::engine::general_purpose::STANDARD
                        .decode(content)
                        .unwrap();
                    files.insert(path.clone(), bytes);
                    paths.push(path);
                }
                "lfsFile" => {
                    let bytes = &self.objects[value["oid"].as_str().unwrap()];
                    assert_eq!(value["size"].as_u64(), Some(bytes.len() as u64));
                    files.insert(path.clone(), bytes.clone());
                    paths.push(format!("{path}*"));
                }
                other => panic!("{other}"),
            }
        }
        let count = self.commits.len() + 1;
        self.repositories.get_mut(key).unwrap().commit = format!("{count:040}");
        let to = key.trim_start_matches("models/").to_string();
        self.commits.push(Commit { to, message, paths });
    }
}
