//! Chat templates of others, as a user meets them: what costs too much is one message.

use crate::support::{copy_tokenizer, xtrain};
use serde_json::json;
use std::fs;
use std::time::{Duration, Instant};

/// Each kind of cost in a process of its own; `bin/soak templates` tries hundreds.
#[test]
fn hostile_templates_are_one_message() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    copy_tokenizer("byte_bpe", &path("tokenizer"));
    let turn = |role: &str| json!({"role": role, "content": "a few words"});
    let row = json!({"messages": [turn("user"), turn("assistant")]});
    fs::write(path("chats.jsonl"), format!("{row}\n").repeat(4)).unwrap();
    let grown = |by: &str, times: usize, used: &str| {
        format!(
            "{{% set n = namespace(s=['x'], t=['x']) %}}{{% for i in range({times}) %}}{{% set n.s = {by} %}}{{% set n.t = {} %}}{{% endfor %}}{{{{ {used} }}}}",
            by.replace("n.s", "n.t")
        )
    };
    let nested = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
    let cases = [
        (nested.to_string(), "steps"),
        (grown("n.s ~ n.s", 60, "n.s"), "steps"),
        (grown("[n.s, n.s]", 60, "n.s == n.t"), "steps"),
        (grown("[n.s]", 90_000, "n.s ~ ''"), "too deeply"),
        (
            "{% set n = namespace() %}{% set n.a = n %}{{ n }}".to_string(),
            "too deeply",
        ),
        (
            format!("{{{{ {}1 }}}}", "not ".repeat(90_000)),
            "too deeply",
        ),
        (
            format!("{{{{ 1{} }}}}", " + 1".repeat(90_000)),
            "too deeply",
        ),
        ("{{ '{:100000000000}'.format(1) }}".to_string(), "steps"),
        (
            "{{ 'a' | indent(100000000000) ~ 'a\nb' | indent(100000000000) }}".to_string(),
            "steps",
        ),
        (
            "{{ messages | tojson(indent=18446744073709551615) }}".to_string(),
            "steps",
        ),
        ("{{ 'x' * 300000 }}".to_string(), "writes more than"),
        (
            "{{ raise_exception('no\n' * 10000) }}".to_string(),
            "no no no",
        ),
    ];
    for (template, words) in cases {
        fs::write(path("tokenizer/chat_template.jinja"), &template).unwrap();
        let start = Instant::now();
        let run = xtrain()
            .dir(dir.path())
            .args("train sft --disable_tqdm --model_type gpt2 --config_overrides n_embd=32,n_layer=1,n_head=2,n_positions=64 --train_file chats.jsonl --tokenizer_name tokenizer --max_steps 1 --output_dir out".split(' '))
            .env("XTRAIN_CACHE_DIR", path("cache"))
            .run();
        let shown: String = template.chars().take(100).collect();
        let text = &run.stderr;
        assert_eq!(run.code, Some(1), "{shown}: {text}");
        let errors = text.lines().filter(|line| line.starts_with("error:"));
        assert_eq!(errors.count(), 1, "{shown}: {text}");
        assert!(
            text.contains(words) && text.contains("chat_template.jinja"),
            "{shown}: {text}"
        );
        assert!(text.len() < 2000, "{shown}: {text}");
        let seconds = start.elapsed();
        assert!(seconds < Duration::from_secs(60), "{shown}: {seconds:?}");
    }
    // A row that is skipped is not one for which the template does not end.
    fs::write(path("tokenizer/chat_template.jinja"), nested).unwrap();
    let skipping = xtrain()
        .dir(dir.path())
        .args("train sft --disable_tqdm --on_bad_row skip --model_type gpt2 --config_overrides n_embd=32,n_layer=1,n_head=2,n_positions=64 --train_file chats.jsonl --tokenizer_name tokenizer --max_steps 1 --output_dir out".split(' '))
        .env("XTRAIN_CACHE_DIR", path("cache"))
        .run();
    assert_eq!(skipping.code, Some(1), "{}", skipping.stderr);
    assert!(
        skipping.stderr.contains("chats.jsonl:1"),
        "{}",
        skipping.stderr
    );
}
