//! What files import from each other, read from their text: `use` trees with braces, `pub use`,
//! `super::`, and paths in the code.

use super::{root, rust_files};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module path: `["crate", "trainer", "step"]`.
type Module = Vec<String>;

/// One file of a crate, without its tests.
struct File {
    path: PathBuf,
    /// With strings and comments removed.
    code: String,
    /// What `use` brings in: the name, where it comes from, and whether it is a child's that others
    /// may take from here (`pub use`).
    uses: Vec<Use>,
}

struct Use {
    name: String,
    path: Module,
    reexports: bool,
}

/// The files of one crate by module.
pub struct Crate {
    files: BTreeMap<Module, File>,
}

impl Crate {
    /// Reads a crate's folder of sources.
    pub fn read(src: &str) -> Crate {
        let src = root().join(src);
        let mut files = BTreeMap::new();
        let mut test_only = BTreeSet::new();
        for path in rust_files(&src) {
            let module = module_of(&src, &path);
            let code = code_of(&fs::read_to_string(&path).unwrap());
            let (code, tests) = without_tests(&code);
            test_only.extend(
                tests
                    .into_iter()
                    .map(|name| [module.clone(), vec![name]].concat()),
            );
            let (uses, code) = uses_of(&code, &module);
            files.insert(module, File { path, code, uses });
        }
        files.retain(|module, _| !test_only.iter().any(|test| module.starts_with(test)));
        Crate { files }
    }

    /// Each file's imports, as modules of this crate: a path means the file that defines its item,
    /// through any number of re-exports.
    ///
    /// A module file that only lists its children (`mod`, `pub use`) does not use them. It does
    /// when its own code names them.
    pub fn imports(&self) -> BTreeMap<&Module, BTreeSet<&Module>> {
        let mut all = BTreeMap::new();
        for (module, file) in &self.files {
            let used = file
                .uses
                .iter()
                .filter(|used| !used.reexports)
                .map(|used| used.path.clone());
            let named = paths_in(&file.code, module);
            let found = used.chain(named).filter_map(|path| self.definer(path, 8));
            all.insert(module, found.filter(|found| *found != module).collect());
        }
        all
    }

    /// The file that defines what a path names.
    fn definer(&self, path: Module, most: usize) -> Option<&Module> {
        let length = (1..=path.len())
            .rev()
            .find(|n| self.files.contains_key(&path[..*n]))?;
        let (module, file) = self.files.get_key_value(&path[..length])?;
        let Some(name) = path.get(length).filter(|_| most > 0) else {
            return Some(module);
        };
        let from = file
            .uses
            .iter()
            .find(|used| used.name == *name && used.path != path);
        // Re-exported from another of our crates.
        if from.is_some_and(|used| used.path.iter().any(|part| part.starts_with("xtrain_"))) {
            return None;
        }
        let onwards = match from {
            Some(used) => self.definer([&used.path[..], &path[length + 1..]].concat(), most - 1),
            None => {
                let mut globs = file.uses.iter().filter(|used| used.name == "*");
                globs.find_map(|used| {
                    let (found, glob) = self.files.get_key_value(&used.path)?;
                    let child = [&used.path[..], &path[length..]].concat();
                    if self.files.contains_key(&child[..=used.path.len()]) {
                        self.definer(child, most - 1)
                    } else {
                        defines(&glob.code, name).then_some(found)
                    }
                })
            }
        };
        Some(onwards.unwrap_or(module))
    }

    fn path(&self, module: &Module) -> String {
        let path = &self.files[module].path;
        path.strip_prefix(root()).unwrap().display().to_string()
    }

    /// Groups of files that import each other in a circle.
    pub fn circles(&self) -> Vec<Vec<String>> {
        let imports = self.imports();
        let reach = |from: &Module| {
            let (mut found, mut todo) = (BTreeSet::new(), vec![from.clone()]);
            while let Some(next) = todo.pop() {
                for to in &imports[&next] {
                    if found.insert((*to).clone()) {
                        todo.push((*to).clone());
                    }
                }
            }
            found
        };
        let reached: BTreeMap<&Module, BTreeSet<Module>> = self
            .files
            .keys()
            .map(|module| (module, reach(module)))
            .collect();
        let mut seen = BTreeSet::new();
        let mut circles = Vec::new();
        for (module, found) in &reached {
            if seen.contains(*module) || !found.contains(*module) {
                continue;
            }
            let circle = found
                .iter()
                .filter(|other| reached[other].contains(*module));
            let circle: Vec<&Module> = circle.collect();
            seen.extend(circle.iter().copied().cloned());
            circles.push(circle.into_iter().map(|module| self.path(module)).collect());
        }
        circles
    }
}

/// Every path that a text names, from the root of a crate, where it stands in `module`.
pub fn paths(text: &str, module: &[&str]) -> Vec<String> {
    let module: Module = module.iter().map(|part| part.to_string()).collect();
    let code = code_of(text);
    let (uses, code) = uses_of(&code, &module);
    let uses = uses.into_iter().map(|used| used.path);
    uses.chain(paths_in(&code, &module))
        .map(|path| path.join("::"))
        .collect()
}

fn module_of(src: &Path, path: &Path) -> Module {
    let inside = path.strip_prefix(src).unwrap().with_extension("");
    let parts = inside.iter().map(|part| part.to_str().unwrap().to_string());
    let mut module: Module = std::iter::once("crate".to_string()).chain(parts).collect();
    if ["mod", "lib"].contains(&module.last().unwrap().as_str()) {
        module.pop();
    }
    module
}

/// A file's code: without comments, strings, characters and tests.
pub fn tested_code(text: &str) -> String {
    without_tests(&code_of(text)).0
}

/// The patterns of all arms of `match` that have no guard.
pub fn patterns(code: &str) -> Vec<&str> {
    let ends = code.match_indices("=>").map(|(end, _)| end);
    ends.filter_map(|end| {
        let mut depth = 0;
        let start = code[..end].rfind(|c| {
            depth += i32::from(matches!(c, ')' | ']')) - i32::from(matches!(c, '(' | '['));
            depth < 0 || depth == 0 && matches!(c, '{' | '}' | ';' | ',')
        });
        let arm = &code[start.map_or(0, |at| at + 1)..end];
        (!arm.contains(" if ")).then_some(arm.trim())
    })
    .collect()
}

/// The text without comments, strings and characters.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let bytes: Vec<char> = text.chars().collect();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            '/' if bytes.get(at + 1) == Some(&'/') => {
                while at < bytes.len() && bytes[at] != '\n' {
                    at += 1;
                }
            }
            'r' if matches!(bytes.get(at + 1), Some('"' | '#'))
                && !code.ends_with(|c: char| c.is_alphanumeric() || c == '_') =>
            {
                let hashes = bytes[at + 1..].iter().take_while(|c| **c == '#').count();
                if bytes.get(at + 1 + hashes) != Some(&'"') {
                    code.push(bytes[at]);
                    at += 1;
                    continue;
                }
                at += hashes + 2;
                let ends = |at: usize| {
                    bytes[at] == '"' && bytes[at + 1..].iter().take(hashes).all(|c| *c == '#')
                };
                while at < bytes.len() && !ends(at) {
                    at += 1;
                }
                at += hashes + 1;
            }
            '"' => {
                at += 1;
                while at < bytes.len() && bytes[at] != '"' {
                    at += if bytes[at] == '\\' { 2 } else { 1 };
                }
                at += 1;
            }
            '\'' if bytes.get(at + 1) == Some(&'\\') => {
                at += 3;
                while at < bytes.len() && bytes[at] != '\'' {
                    at += 1;
                }
                at += 1;
            }
            '\'' if bytes.get(at + 2) == Some(&'\'') => at += 3,
            c => {
                code.push(c);
                at += 1;
            }
        }
    }
    code
}

/// The code without what `#[cfg(test)]` stands before, and the modules that it declares in files.
fn without_tests(code: &str) -> (String, Vec<String>) {
    let (mut kept, mut files, mut rest) = (String::new(), Vec::new(), code);
    while let Some((before, after)) = rest.split_once("#[cfg(test)]") {
        kept.push_str(before);
        let end = after.find([';', '{']).unwrap_or(after.len());
        let item = after[..end].trim();
        if after[end..].starts_with(';') {
            files.extend(
                item.rsplit_once("mod ")
                    .map(|(_, name)| name.trim().to_string()),
            );
            rest = &after[end + 1..];
            continue;
        }
        let (mut depth, mut close) = (0, after.len());
        for (at, c) in after.char_indices().skip_while(|(at, _)| *at < end) {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if depth == 0 {
                close = at + 1;
                break;
            }
        }
        rest = &after[close..];
    }
    kept.push_str(rest);
    (kept, files)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Every path that `use` names, with the braces taken apart, and the code without them.
fn uses_of(code: &str, module: &Module) -> (Vec<Use>, String) {
    let (mut found, mut others, mut end) = (Vec::new(), String::new(), 0);
    for (at, _) in code.match_indices("use ") {
        let before = code[..at].trim_end_matches([' ', '\t']);
        let line = &before[before.rfind('\n').map_or(0, |at| at + 1)..];
        let visibility = line.trim();
        if !(visibility.is_empty() || visibility.starts_with("pub")) {
            continue;
        }
        let Some(tree) = code[at + 4..].split(';').next() else {
            continue;
        };
        others.push_str(&code[end..at]);
        end = at + 4 + tree.len();
        let tree: String = tree.split_whitespace().collect::<Vec<_>>().join(" ");
        for path in taken_apart(&tree) {
            let (path, name) = match path.split_once(" as ") {
                Some((path, name)) => (path.to_string(), Some(name.to_string())),
                None => (path, None),
            };
            let mut path: Module = path
                .split("::")
                .map(|part| part.trim().to_string())
                .collect();
            if path.last().is_some_and(|last| last == "self") {
                path.pop();
            }
            let name = name.unwrap_or_else(|| path.last().cloned().unwrap_or_default());
            if name == "*" {
                path.pop();
            }
            let path = absolute(path, module);
            // What a file takes from elsewhere it uses, whoever may see it there.
            let reexports = !visibility.is_empty() && path.starts_with(module);
            found.push(Use {
                name,
                path,
                reexports,
            });
        }
    }
    others.push_str(&code[end..]);
    (found, others)
}

/// `a::{b, c::{d, e}}` as `a::b`, `a::c::d`, `a::c::e`.
fn taken_apart(tree: &str) -> Vec<String> {
    let Some((before, inside)) = tree.split_once('{') else {
        return vec![tree.trim().to_string()];
    };
    let inside = &inside[..inside.rfind('}').unwrap_or(inside.len())];
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in inside.char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c == ',' && depth == 0 {
            parts.push(&inside[start..at]);
            start = at + 1;
        }
    }
    parts.push(&inside[start..]);
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
    parts
        .flat_map(taken_apart)
        .map(|rest| format!("{}{rest}", before.trim()))
        .collect()
}

/// A path as it reads from the crate's root; one without a prefix may name a child.
fn absolute(path: Module, module: &Module) -> Module {
    match path.first().map(String::as_str) {
        Some("crate") => path,
        Some("self") if path.get(1).is_some_and(|next| next == "super") => {
            absolute(path[1..].to_vec(), module)
        }
        Some("self") => [&module[..], &path[1..]].concat(),
        Some("super") => {
            let up = path.iter().take_while(|part| *part == "super").count();
            let base = &module[..module.len().saturating_sub(up).max(1)];
            [base, &path[up..]].concat()
        }
        _ => [&module[..], &path[..]].concat(),
    }
}

/// Paths in the code itself that begin at the root, above, or with a child.
fn paths_in(code: &str, module: &Module) -> Vec<Module> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("::") {
        let first = &rest[..at];
        let start = first.rfind(|c| !is_word(c)).map_or(0, |at| at + 1);
        let mut path = vec![first[start..].to_string()];
        rest = &rest[at..];
        while let Some(next) = rest.strip_prefix("::") {
            let end = next.find(|c| !is_word(c)).unwrap_or(next.len());
            if end == 0 {
                rest = next;
                break;
            }
            path.push(next[..end].to_string());
            rest = &next[end..];
        }
        if !path[0].is_empty() && path[0].starts_with(|c: char| c.is_ascii_lowercase()) {
            found.push(absolute(path, module));
        }
    }
    found
}

/// Whether a file's code declares an item of this name.
fn defines(code: &str, name: &str) -> bool {
    [
        "fn", "struct", "enum", "trait", "const", "static", "type", "mod",
    ]
    .iter()
    .any(|kind| {
        let item = format!("{kind} {name}");
        code.match_indices(&item)
            .any(|(at, _)| !code[at + item.len()..].starts_with(is_word))
    })
}
