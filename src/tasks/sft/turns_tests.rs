//! The turns of long conversations beside those that all messages before them give.

use super::*;
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use xtrain_data::chat_template::{ChatTemplate, Variables};
use xtrain_data::{Place, Tokenizer};

fn template(source: &str) -> (tempfile::TempDir, ChatTemplate) {
    let dir = tempfile::tempdir().unwrap();
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let tokenizer = root.join("tests/data/gpt2/tokenizer.json");
    fs::copy(tokenizer, dir.path().join("tokenizer.json")).unwrap();
    let config = r#"{"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}"#;
    fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    fs::write(dir.path().join("chat_template.jinja"), source).unwrap();
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    let template = ChatTemplate::of(&tokenizer).unwrap().unwrap();
    (dir, template)
}

fn conversation(messages: usize, has_system: bool) -> Vec<Message> {
    let system = has_system.then(|| Message::new("system", "Be brief."));
    let turn = |i: usize| {
        let role = ["user", "assistant"][i % 2];
        let texts = ["yes", " two  words ", "", "ünï\n\n", "yes", "<b>", "a\nb\n"];
        Message::new(role, format!("{}{}", texts[i % 7], i % 5))
    };
    system.into_iter().chain((0..messages).map(turn)).collect()
}

/// Templates without and with generation tags, of this repository and, where they are, published
/// ones.
fn templates() -> Vec<(String, String)> {
    const PLAIN: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
    const TAGS: &str = "{% for m in messages %}<{{ m.role }}>\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<end>{% endgeneration %}\
                        {% else %}{{ m.content }}<end>{% endif %}\n{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}";
    const ALTERNATES: &str = "{{ 'S' }}{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}\
                              {% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}\
                              {% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]{% else %} {{ m.content | trim }}</s>{% endif %}{% endfor %}";
    let mut all: Vec<_> = [("plain", PLAIN), ("tags", TAGS), ("alternates", ALTERNATES)]
        .map(|(name, text)| (name.to_string(), text.to_string()))
        .into();
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let golden = std::env::var_os("XTRAIN_GOLDEN_DIR")
        .map_or_else(|| root.join("../shared/golden"), PathBuf::from);
    let published = fs::read_dir(golden.join("newer/chat/templates"));
    for entry in published.into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        all.push((name, fs::read_to_string(path).unwrap()));
    }
    all
}

#[test]
fn long_conversations_have_the_turns_that_all_messages_give() {
    let bad = |reason: String| Error::BadRow {
        place: Place::line(Path::new("f"), 1),
        reason,
    };
    for (name, source) in templates() {
        let (_dir, template) = template(&source);
        for has_system in [false, true] {
            let turns = conversation(70, has_system);
            let written = Cell::new(0);
            let write = |turns: &[Message], asks: bool| {
                written.set(written.get() + turns.len());
                template
                    .render(turns, asks, &Variables::default())
                    .map(|it| it.text)
            };
            let Ok(whole) = template
                .render(&turns, false, &Variables::default())
                .map(|it| it.text)
            else {
                // Some refuse a system's message.
                assert!(has_system, "{name}");
                continue;
            };
            let conversation = Conversation {
                turns: &turns,
                whole: &whole,
                write: &write,
                rule: Rule::default(),
                end: "<|endoftext|>",
                bad: &bad,
            };
            let answers = (0..turns.len()).filter(|turn| turns[*turn].role() == "assistant");
            let all: Result<Vec<_>> = answers.map(|turn| conversation.answer(turn)).collect();
            let cost_of_all = written.replace(0);
            let found = conversation.answers(0);
            match (found, all) {
                (Ok(found), Ok(all)) => {
                    assert_eq!(found, all, "{name}");
                    let cost = written.get();
                    assert!(
                        cost < 24 * turns.len() && cost < cost_of_all,
                        "{name}: {cost} messages written, {cost_of_all} with all before each"
                    );
                }
                (Err(found), Err(all)) => assert_eq!(found.to_string(), all.to_string(), "{name}"),
                (found, all) => panic!("{name}: {found:?}, {all:?}"),
            }
        }
    }
}

/// A template that writes differently depending on what is far away is asked about every turn.
#[test]
fn templates_that_look_far_back_are_asked_about_every_turn() {
    const COUNTS: &str = "{% for m in messages %}{{ m.role }}{{ loop.index }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant{{ messages | length + 1 }}: {% endif %}";
    let (_dir, template) = template(COUNTS);
    let turns = conversation(60, false);
    let write = |turns: &[Message], asks: bool| {
        template
            .render(turns, asks, &Variables::default())
            .map(|it| it.text)
    };
    let whole = write(&turns, false).unwrap();
    let conversation = Conversation {
        turns: &turns,
        whole: &whole,
        write: &write,
        rule: Rule::default(),
        end: "",
        bad: &|reason| panic!("{reason}"),
    };
    let found = conversation.answers(0).unwrap();
    let all: Vec<_> = (0..60).skip(1).step_by(2).collect();
    let all: Result<Vec<_>> = all
        .into_iter()
        .map(|turn| conversation.answer(turn))
        .collect();
    assert_eq!(found, all.unwrap());
}

/// The text of four messages with the assistant's own in brackets, by a template and a rule; or why there is none.
fn bracketed(source: &str, rule: Rule, messages: &[(&str, &str)]) -> Result<String> {
    let (_dir, template) = template(source);
    let turns: Vec<Message> = (messages.iter())
        .map(|(role, content)| Message::new(role, *content))
        .collect();
    let write = |turns: &[Message], asks: bool| {
        let text = template.render(turns, asks, &Variables::default());
        text.map(|it| it.text)
    };
    let whole = write(&turns, false)?;
    let conversation = Conversation {
        turns: &turns,
        whole: &whole,
        write: &write,
        rule,
        end: "<|endoftext|>",
        bad: &|reason| Error::BadRow {
            place: Place::line(Path::new("f"), 1),
            reason,
        },
    };
    let marked = conversation.marked(0)?;
    let mut text = marked.text;
    for answer in marked.answers.iter().rev() {
        text.insert(answer.end, ']');
        text.insert(answer.start, '[');
    }
    Ok(text)
}

const TWO: [(&str, &str); 5] = [
    ("user", "q"),
    ("assistant", "a"),
    ("user", "r"),
    ("assistant", "b"),
    ("user", "s"),
];

/// What a template writes around turns decides where they begin and end.
#[test]
fn turns_are_all_that_the_template_writes_of_them() {
    const THINKS: &str = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and loop.last %}\
                          <think></think>{% endif %}{{ m.content }}<end>\n{% endfor %}{% if add_generation_prompt %}<assistant><think>\n{% endif %}";
    const ENDS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% else %}{{ eos_token }}{% endif %}";
    const LAST: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if loop.last and m.role == 'assistant' %}<return>{% else %}<end>{% endif %}{% endfor %}\
                        {% if add_generation_prompt %}<assistant>{% endif %}";
    const FORGETS: &str = "{% for m in messages %}{{ m.role }}: {{ m.content if loop.last or m.role == 'user' else '...' }}\n{% endfor %}";
    let usual = Rule::default();
    // Each turn as it is where it is the last one.
    assert_eq!(
        bracketed(THINKS, usual, &TWO).unwrap(),
        "<user>q<end>\n<assistant>[<think></think>a<end>\n]<user>r<end>\n<assistant>[<think></think>b<end>\n]<user>s<end>\n"
    );
    // What ends every text is the last turn's alone.
    assert_eq!(
        bracketed(ENDS, usual, &TWO[..4]).unwrap(),
        "<user>q<end>\n<assistant>[a<end>\n]<user>r<end>\n<assistant>[b<end>\n<|endoftext|>]"
    );
    // The last turn ends with another mark.
    assert_eq!(
        bracketed(LAST, usual, &TWO[..4]).unwrap(),
        "<user>q<end><assistant>[a<end>]<user>r<end><assistant>[b<return>]"
    );
    let of_message = Rule {
        begin: Begin::Message,
        ..usual
    };
    assert_eq!(
        bracketed(LAST, of_message, &TWO[..2]).unwrap(),
        "<user>q<end>[<assistant>a<return>]"
    );
    let error = bracketed(FORGETS, usual, &TWO[..3])
        .unwrap_err()
        .to_string();
    assert!(error.contains("otherwise once others follow"), "{error}");
}
