//! Expressions and templates beside what Jinja2 makes of them (`tests/data/make_templates.py`).

use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use xtrain_jinja::{Error, Template};

const STEPS: u64 = 10_000_000;

/// The text, with what stood between generation tags where there is any; or why there is none.
fn rendered(source: &str, variables: &Map<String, Value>) -> Result<Value, Error> {
    let rendered = Template::parse(source)?.render(variables, STEPS)?;
    let pairs = rendered.generations.iter();
    let pairs: Vec<Value> = pairs.map(|it| json!([it.start, it.end])).collect();
    Ok(if pairs.is_empty() {
        json!(rendered.text)
    } else {
        json!([rendered.text, pairs])
    })
}

/// What came of the comparison.
#[derive(Default)]
struct Counts {
    equal: usize,
    refused_by_both: usize,
    /// Jinja2 gives a text, and this engine says that it lacks something.
    not_built: Vec<String>,
    wrong: Vec<String>,
}

impl Counts {
    fn add(&mut self, source: &str, found: Result<Value, Error>, wanted: &Value) {
        match found {
            Ok(found) if found == *wanted => self.equal += 1,
            Err(_) if wanted.is_null() => self.refused_by_both += 1,
            Err(error) if error.to_string().contains("not implemented") => {
                self.not_built.push(format!("{source}: {error}"));
            }
            other => {
                let other = other.map_err(|error| error.to_string());
                self.wrong
                    .push(format!("{source}\n   found  {other:?}\n   wanted {wanted}"));
            }
        }
    }

    /// Nothing differs, and little is refused.
    fn check(&self, what: &str, least: usize, most_not_built: usize) {
        let Counts {
            equal,
            refused_by_both,
            not_built,
            wrong,
        } = self;
        println!(
            "{what}: {equal} equal, {refused_by_both} refused by both, {} not built",
            not_built.len()
        );
        for it in not_built {
            println!("   not built: {it}");
        }
        assert!(
            wrong.is_empty(),
            "{what}: {} differ\n{}",
            wrong.len(),
            wrong.join("\n")
        );
        assert!(*equal >= least, "{what}: {equal}");
        assert!(not_built.len() <= most_not_built, "{what}: {not_built:#?}");
    }
}

fn golden() -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = root.join("../../tests/data/golden/templates.json");
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

fn map(value: &Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

#[test]
fn expressions_and_statements_are_jinjas() {
    let golden = golden();
    let mut variables = map(&golden["variables"]);
    for key in ["tools", "documents"] {
        variables.entry(key).or_insert(Value::Null);
    }
    variables.insert("messages".into(), json!([]));
    variables.insert("add_generation_prompt".into(), json!(false));
    let mut expressions = Counts::default();
    for (expression, wanted) in map(&golden["expressions"]) {
        let source = format!("{{{{ {expression} }}}}");
        expressions.add(&expression, rendered(&source, &variables), &wanted);
    }
    let mut syntax = Counts::default();
    for (source, wanted) in map(&golden["syntax"]) {
        syntax.add(&source, rendered(&source, &variables), &wanted);
    }
    expressions.check("expressions", 2000, 40);
    syntax.check("statements", 140, 3);
}

#[test]
fn formats_of_released_models_are_jinjas() {
    let golden = golden();
    let mut counts = Counts::default();
    let formats = map(&golden["formats"]);
    assert!(formats.len() >= 60, "{}", formats.len());
    for (name, format) in formats {
        let source = format["source"].as_str().unwrap();
        let conversations = golden["conversations"].as_array().unwrap();
        for (number, conversation) in conversations.iter().enumerate() {
            let mut variables = map(&golden["tokens"]);
            for key in ["tools", "documents"] {
                variables.insert(key.into(), Value::Null);
            }
            variables.insert("add_generation_prompt".into(), json!(false));
            variables.extend(map(conversation));
            let messages = conversation["messages"].as_array().unwrap();
            let messages: Vec<Value> = messages.iter().map(with_reasoning).collect();
            variables.insert("messages".into(), messages.into());
            let found = rendered(source, &variables);
            counts.add(
                &format!("{name}, {number}"),
                found,
                &format["texts"][number],
            );
        }
    }
    counts.check("formats", 200, 0);
}

/// transformers' other names of a message's reasoning.
fn with_reasoning(message: &Value) -> Value {
    let mut message = map(message);
    let names = ["reasoning_content", "thinking", "reasoning"];
    if let Some(reasoning) = names.iter().find_map(|name| message.get(*name).cloned()) {
        let mut all = map(&json!({"thinking": reasoning}));
        all.extend(std::mem::take(&mut message));
        all.insert("reasoning_content".into(), reasoning);
        message = all;
    }
    message.into()
}
