//! The documentation as readers meet it: links lead to pages and headings, the site's summary has every
//! page, and the commands of tutorials run, one block after the other in an empty directory, and
//! print what the pages show.
//!
//! In the pages of [`PAGES`]:
//! - A fenced block `sh` is run by bash. `<!-- test: WORDS -->` on the line before appends words to its
//!   last command, such as `--max_steps 2`, so that a test takes seconds. With `<!-- run by FILE -->`
//!   another test runs it.
//! - A block without a language that follows is what was printed: each of its lines is found in the
//!   output, in this order, whatever the numbers are. `...` stands for words, or alone for lines.
//!   What a model of a few steps says otherwise is a block `text`, which nothing is compared with.
//! - A block with `<!-- from FILE -->` before it is an excerpt of that file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

use crate::processes::has_gloo;

/// A test for each page whose commands are run.
macro_rules! pages {
    ($($test:ident: $page:literal,)*) => {
        const PAGES: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $test() {
                commands_run($page);
            }
        )*
    };
}

pages! {
    start: "start.md",
    errors: "errors.md",
    a_compiled_graph: "compiled-graph.md",
    from_the_training_compiler: "tutorials/training-compiler.md",
    from_a_trainium_script: "tutorials/trainium-script.md",
    from_model_parallel: "tutorials/model-parallel.md",
    from_smddp: "tutorials/smddp.md",
    from_trl_and_peft: "tutorials/trl-and-peft.md",
    an_own_loop: "tutorials/own-loop.md",
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files below a directory with one of these extensions.
fn files(dir: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_dir() {
            files(&path, extensions, found);
        } else if extension.is_some_and(|extension| extensions.contains(&extension)) {
            found.push(path);
        }
    }
}

/// The pages of the site, and those beside it that readers of the repository meet.
fn documents() -> Vec<PathBuf> {
    let beside = [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
    ];
    let mut all: Vec<PathBuf> = beside.iter().map(|name| root().join(name)).collect();
    files(&root().join("docs"), &["md"], &mut all);
    all
}

/// A fenced block.
struct Block {
    /// Of its first line.
    line: usize,
    language: String,
    text: String,
    /// The comment on the line before it.
    note: Option<String>,
}

/// The lines of a page that are in no fenced block, with their numbers, and the blocks.
fn parts(page: &str) -> (Vec<(usize, &str)>, Vec<Block>) {
    let (mut prose, mut blocks) = (Vec::new(), Vec::new());
    let mut open: Option<Block> = None;
    let mut note = None;
    for (number, line) in page.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (open.take(), fence) {
            (None, Some(language)) => {
                open = Some(Block {
                    line: number + 2,
                    language: language.to_string(),
                    text: String::new(),
                    note: note.take(),
                });
            }
            (Some(block), Some(_)) => blocks.push(block),
            (Some(mut block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {
                let comment = line.trim().strip_prefix("<!-- ");
                let comment = comment.and_then(|rest| rest.strip_suffix(" -->"));
                note = comment.map(str::to_string);
                prose.push((number + 1, line));
            }
        }
    }
    (prose, blocks)
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let letter = |c: char| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    };
    let text = heading.trim_start_matches('#').trim();
    text.to_lowercase().chars().filter_map(letter).collect()
}

fn anchors(page: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(page).unwrap();
    let (prose, _) = parts(&text);
    let headings = prose.iter().filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| anchor(line)).collect()
}

/// The targets of the links on a line.
fn targets(line: &str) -> Vec<&str> {
    let after = |(at, found): (usize, &'static str)| {
        let is_code = line[..at].matches('`').count() % 2 == 1;
        let rest = &line[at + found.len()..];
        rest.split_once(')')
            .map(|(target, _)| target)
            .filter(|_| !is_code)
    };
    line.match_indices("](")
        .filter_map(|(at, _)| after((at, "](")))
        .collect()
}

/// A path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(part),
        }
    }
    plain
}

/// What is wrong with a link of a page, if anything is.
fn fault(page: &Path, target: &str) -> Option<&'static str> {
    let is_elsewhere = ["https://", "http://", "mailto:"]
        .iter()
        .any(|scheme| target.starts_with(scheme));
    if is_elsewhere {
        return None;
    }
    let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
    let path = match file {
        "" => page.to_path_buf(),
        file => plain(&page.with_file_name("").join(file)),
    };
    let docs = root().join("docs");
    if !path.exists() {
        Some("there is no such file")
    } else if page.starts_with(&docs) && !path.starts_with(&docs) {
        Some("the site has pages of docs/ alone; name the file without a link")
    } else if !fragment.is_empty() && !anchors(&path).contains(fragment) {
        Some("the page has no such heading")
    } else {
        None
    }
}

#[test]
fn links_lead_to_pages_and_headings() {
    let (mut faults, mut count) = (Vec::new(), 0);
    for page in documents() {
        let text = fs::read_to_string(&page).unwrap();
        let (prose, _) = parts(&text);
        for (number, line) in prose {
            for target in targets(line) {
                count += 1;
                if let Some(fault) = fault(&page, target) {
                    let page = page.strip_prefix(root()).unwrap().display();
                    faults.push(format!("{page}:{number}: {target}: {fault}"));
                }
            }
        }
    }
    assert!(count > 150, "only {count} links were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn faulty_links_are_found() {
    let page = root().join("docs/log/runs.md");
    let of = |target| fault(&page, target).is_some();
    assert!(!of("../report.md#trackers") && !of("https://example.org/x#y") && !of("tasks.md"));
    assert!(of("report.md") && of("../report.md#nothing") && of("../../README.md"));
    let line = "see [`a`](b.md) and ``[c](d)`` and `[e](f.md)`, [g](h.md#i)";
    assert_eq!(targets(line), ["b.md", "d", "h.md#i"]);
    assert_eq!(
        anchor("## `xtrain top out`, 80 columns"),
        "xtrain-top-out-80-columns"
    );
}

/// The site shows what its summary lists.
#[test]
fn the_summary_has_every_page_once() {
    let docs = root().join("docs");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    let mut listed: Vec<PathBuf> = summary
        .lines()
        .flat_map(targets)
        .map(PathBuf::from)
        .collect();
    let mut pages = Vec::new();
    files(&docs, &["md"], &mut pages);
    let own = |path: PathBuf| path.strip_prefix(&docs).unwrap().to_path_buf();
    let mut pages: Vec<PathBuf> = pages.into_iter().map(own).collect();
    pages.retain(|page| page != Path::new("SUMMARY.md"));
    listed.sort();
    pages.sort();
    assert_eq!(listed, pages);
    let tutorials = pages.iter().filter(|page| page.starts_with("tutorials"));
    for page in tutorials {
        let is_run = PAGES.iter().any(|run| Path::new(run) == page);
        assert!(is_run, "{} is no page of tests/site.rs", page.display());
    }
}

/// The names in quotes that begin with `prefix`, in code that is not a test's.
fn names_in_code(prefix: &str) -> BTreeMap<String, PathBuf> {
    let mut sources = Vec::new();
    for dir in ["src", "bin", "xla_graphs/native/cpp"] {
        files(&root().join(dir), &["rs", "cc", "h"], &mut sources);
    }
    let is_test = |path: &PathBuf| {
        let path = path.to_string_lossy();
        path.contains("tests") || path.contains("fixture")
    };
    sources.retain(|path| !is_test(&path.strip_prefix(root()).unwrap().to_path_buf()));
    let mut names = BTreeMap::new();
    for path in sources {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for quoted in code.split('"').filter(|word| word.starts_with(prefix)) {
            let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            if quoted.chars().all(is_name) {
                names.insert(quoted.to_string(), path.clone());
            }
        }
    }
    names
}

/// docs/environment.md declares every variable of xtrain's own, and none that nothing reads.
#[test]
fn the_page_of_variables_is_complete() {
    let page = fs::read_to_string(root().join("docs/environment.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|line| line.split('|').nth(1));
    let listed: BTreeSet<&str> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    let read = names_in_code("");
    assert!(
        listed.len() > 30,
        "only {} variables are listed",
        listed.len()
    );
    for name in &listed {
        let is_build = name.starts_with("XTRAIN_BUILD_");
        assert!(is_build || read.contains_key(*name), "nothing reads {name}");
    }
    for (name, path) in names_in_code("XTRAIN_") {
        let is_for_tests = ["XTRAIN_TEST_", "XTRAIN_WRITE_"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        let path = path.display();
        assert!(
            is_for_tests || listed.contains(&*name),
            "docs/environment.md lacks {name}, which {path} reads"
        );
    }
}

/// docs/errors.md explains messages that exist.
#[test]
fn the_page_of_errors_quotes_messages() {
    let page = fs::read_to_string(root().join("docs/errors.md")).unwrap();
    let mut sources = Vec::new();
    for dir in ["src", "xla_graphs/src", "models/src"] {
        files(&root().join(dir), &["rs"], &mut sources);
    }
    let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
    let sources: Vec<String> = sources.iter().map(read).collect();
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let mut count = 0;
    for cell in rows.filter_map(|line| line.split('|').nth(1)) {
        for quoted in cell.split('`').skip(1).step_by(2) {
            let exists = sources.iter().any(|source| source.contains(quoted));
            assert!(exists, "no message has: {quoted}");
            count += 1;
        }
    }
    assert!(count > 30, "only {count} messages are explained");
}

/// The commands of `xtrain` on a page, in blocks and within sentences.
fn commands_on(page: &str) -> Vec<String> {
    let (prose, blocks) = parts(page);
    let spans = prose
        .iter()
        .flat_map(|(_, line)| line.split('`').skip(1).step_by(2));
    let joined = blocks.iter().map(|block| block.text.replace("\\\n", " "));
    let lines: Vec<String> = joined
        .flat_map(|text| text.lines().map(str::to_string).collect::<Vec<_>>())
        .collect();
    let lines = lines
        .iter()
        .map(|line| line.trim().trim_start_matches("$ "));
    let all = spans.chain(lines);
    all.filter(|text| text.starts_with("xtrain "))
        .map(str::to_string)
        .collect()
}

/// The names of the flags in a text, with `_` for `-`.
fn flag_names(text: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    let words = text.split(|c: char| !is_name(c));
    let names = words.filter_map(|word| word.strip_prefix("--"));
    names
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect()
}

fn known_flags() -> BTreeSet<String> {
    let reference = fs::read_to_string(root().join("docs/flags.md")).unwrap();
    flag_names(&reference).into_iter().collect()
}

/// Manifests are YAML, and give xtrain flags that exist. Engines' own keys were compared with their
/// schemas by hand.
#[test]
fn manifests_parse() {
    let known = known_flags();
    let mut count = 0;
    for page in documents() {
        let text = fs::read_to_string(&page).unwrap();
        let (_, blocks) = parts(&text);
        for block in blocks.iter().filter(|block| block.language == "yaml") {
            let place = format!("{}:{}", page.display(), block.line);
            let manifest: serde_json::Value = serde_saphyr::from_str(&block.text)
                .unwrap_or_else(|error| panic!("{place}: {error}"));
            assert!(manifest.is_object(), "{place} is no mapping");
            for name in flag_names(&block.text) {
                assert!(known.contains(&name), "{place}: --{name}");
            }
            count += 1;
        }
    }
    assert!(count >= 4, "only {count} manifests were found");
}

/// No page tells readers to type a flag that does not exist.
#[test]
fn commands_of_all_pages_have_flags_that_exist() {
    // The first is a mistake that docs/errors.md shows.
    const OTHERS: [&str; 2] = ["learning_rte", "help"];
    let known = known_flags();
    let (mut unknown, mut count) = (Vec::new(), 0);
    for page in documents() {
        // These lines are of other programs, too.
        if page.ends_with("command-lines.md") {
            continue;
        }
        for command in commands_on(&fs::read_to_string(&page).unwrap()) {
            count += 1;
            for name in flag_names(&command) {
                if !known.contains(&name) && !OTHERS.contains(&&*name) {
                    unknown.push(format!("{}: --{name} in {command}", page.display()));
                }
            }
        }
    }
    assert!(count > 150, "only {count} commands were found");
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
}

/// Words of a line; those with digits, which differ from run to run, are `#` without the unit that
/// follows.
fn shape(line: &str) -> Vec<&str> {
    const UNITS: [&str; 9] = ["s", "s,", "ms", "min", "B", "KiB", "MiB", "GiB", "ms,"];
    let mut shape: Vec<&str> = Vec::new();
    for word in line.split_whitespace() {
        if word.contains(|c: char| c.is_ascii_digit()) {
            shape.push("#");
        } else if !(shape.last() == Some(&"#") && UNITS.contains(&word)) {
            shape.push(word);
        }
    }
    shape
}

/// Whether a line of a page is this line of the output.
fn shows(shown: &str, printed: &str) -> bool {
    let (shown, printed) = (shape(shown), shape(printed));
    let gap = shown.iter().position(|word| word.starts_with("..."));
    let Some(gap) = gap else {
        return shown == printed;
    };
    let (head, tail) = (&shown[..gap], &shown[gap + 1..]);
    head.len() + tail.len() <= printed.len() && printed.starts_with(head) && printed.ends_with(tail)
}

#[test]
fn output_is_compared_but_for_its_numbers() {
    let printed = "step  2/2   loss 6.94  12 ms/step, peak 1.5 MiB in out/checkpoint-2";
    assert!(shows(
        "step 40/400 loss 4.4948 405 ms/step, peak 2 GiB in out/checkpoint-40",
        printed
    ));
    assert!(shows("step 40/400 ... out/checkpoint-40", printed));
    assert!(!shows("step 40/400 loss 4.4948 405 ms/step", printed));
    assert!(!shows("step 40/400 ... of out/checkpoint-40", printed));
}

/// What a block prints on both streams.
fn run(block: &Block, page: &str, dir: &Path) -> String {
    let words = block
        .note
        .as_deref()
        .and_then(|note| note.strip_prefix("test: "));
    let program = Path::new(env!("CARGO_BIN_EXE_xtrain")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut script = format!("exec 2>&1\n{}", block.text.trim_end());
    if let Some(words) = words {
        script = format!("{script} {words}");
    }
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .current_dir(dir)
        .env("PATH", format!("{}:{path}", program.display()))
        .env(
            "XTRAIN_CACHE_DIR",
            Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"),
        )
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "docs/{page}:{}: {}\n{printed}",
        block.line,
        output.status
    );
    printed
}

/// Runs the commands of a page, and compares what they print with what it shows.
fn commands_run(page: &str) {
    let text = fs::read_to_string(root().join("docs").join(page)).unwrap();
    let (_, blocks) = parts(&text);
    if text.contains("xtrain launch") && !has_gloo() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut last: Option<String> = None;
    let mut count = 0;
    for block in &blocks {
        let file = |word| {
            block
                .note
                .as_deref()
                .and_then(|note| note.strip_prefix(word))
        };
        if let Some(name) = file("from ") {
            let whole = fs::read_to_string(root().join(name)).unwrap();
            is_excerpt(block, &whole, page);
        } else if let Some(name) = file("run by ") {
            let test = fs::read_to_string(root().join(name)).unwrap();
            let words: Vec<&str> = block.text.split_whitespace().collect();
            let example = words.windows(2).find(|pair| pair[0] == "--example");
            let example = format!("\"{}\"", example.expect("an example")[1]);
            assert!(test.contains(&example), "{name} does not run {example}");
            last = None;
        } else if block.language == "sh" {
            last = Some(run(block, page, dir.path()));
            count += 1;
        } else if let Some(printed) = last.take().filter(|_| block.language.is_empty()) {
            is_printed(block, &printed, page);
        }
    }
    assert!(
        count > 0 || text.contains("<!-- run by "),
        "docs/{page} has no commands"
    );
}

/// Panics unless each line of the block is in the output, in this order.
fn is_printed(block: &Block, printed: &str, page: &str) {
    let mut lines = printed.lines();
    for (i, shown) in block.text.lines().enumerate() {
        let is_gap = shown.trim().is_empty() || shown.trim() == "...";
        assert!(
            is_gap || lines.any(|line| shows(shown, line)),
            "docs/{page}:{}: nothing prints, or not in this order:\n{shown}\nbut\n{printed}",
            block.line + i
        );
    }
}

/// Panics unless each line of the block is in the file, in this order.
fn is_excerpt(block: &Block, file: &str, page: &str) {
    let mut lines = file.lines().map(str::trim);
    for (i, shown) in block.text.lines().map(str::trim).enumerate() {
        let is_gap = shown.is_empty() || shown == "// ...";
        assert!(
            is_gap || lines.any(|line| line == shown),
            "docs/{page}:{}: the file has not, or not in this order:\n{shown}",
            block.line + i
        );
    }
}
