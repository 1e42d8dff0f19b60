//! The field's own words: phrases that paraphrase a term which readers know stay out of messages,
//! documentation and comments.

use std::fs;
use std::path::{Path, PathBuf};

/// Phrases without a legitimate use here, each with what to write.
const PHRASES: [(&str, &str); 19] = [
    ("told", "reported, passed, given, printed"),
    ("so many", "N, this many"),
    ("put together", "gathered, collated, built"),
    ("put in parts", "sharded"),
    ("lie in parts", "are sharded"),
    ("lies in parts", "is sharded"),
    ("computed once more", "recomputed"),
    ("gone on with", "resumed"),
    ("goes on with", "resumes"),
    ("go on with", "resume"),
    ("goes on from", "resumes from, continues from"),
    ("is said", "is reported, is printed"),
    ("is not there", "is missing, was not found"),
    ("heard of", "no heartbeat from"),
    ("what is there", "name the thing"),
    (
        "that is not there",
        "missing, not attached, that you don't have",
    ),
    (
        "that are not there",
        "missing, not attached, that you don't have",
    ),
    ("look-up", "lookup"),
    ("comes to", "reaches, is"),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "md") {
            found.push(path);
        }
    }
}

/// String literals and comments of Rust source, line by line; all else is blank.
fn prose(source: &str) -> String {
    let mut prose = String::new();
    let mut rest = source.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '/' if rest.peek() == Some(&'/') => {
                while let Some(c) = rest.next_if(|c| *c != '\n') {
                    prose.push(c);
                }
            }
            // A quote as a character.
            '\'' if rest.peek() == Some(&'"') => drop(rest.next()),
            '"' => {
                while let Some(c) = rest.next().filter(|c| *c != '"') {
                    prose.push(c);
                    if c == '\\' {
                        prose.extend(rest.next());
                    }
                }
                prose.push(' ');
            }
            '\n' => prose.push('\n'),
            _ => {}
        }
    }
    prose
}

/// The lines of a file that have one of the phrases, as whole words.
fn offences(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let text = if path.extension().is_some_and(|e| e == "rs") {
        prose(&text)
    } else {
        text
    };
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.to_lowercase();
        for (phrase, instead) in PHRASES {
            let is_word = |(at, _): &(usize, &str)| {
                let letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                !letter(line[..*at].chars().last())
                    && !letter(line[at + phrase.len()..].chars().next())
            };
            if line.match_indices(phrase).any(|hit| is_word(&hit)) {
                let path = path.strip_prefix(root()).unwrap().display();
                found.push(format!(
                    "{path}:{}: `{phrase}`; write: {instead}",
                    number + 1
                ));
            }
        }
    }
    found
}

#[test]
fn messages_and_documents_use_the_fields_words() {
    let mut all = vec![root().join("README.md")];
    for dir in ["src", "bin", "models/src", "xla_graphs", "docs"] {
        files(&root().join(dir), &mut all);
    }
    // The laboratory diary keeps what was written on the day.
    all.retain(|path| !path.starts_with(root().join("docs/log")));
    assert!(all.len() > 200, "only {} files were found", all.len());
    let found: Vec<String> = all.iter().flat_map(|path| offences(path)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn phrases_are_found_in_strings_and_comments_only() {
    let source = "let told = '\"'; // so many\nfail(\"a \\\" look-up\", told);\n";
    assert_eq!(prose(source), "/ so many\na \\\" look-up \n");
}
