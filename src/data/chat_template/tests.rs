//! What templates are given, and what is wrong with them. How they are rendered is compared with
//! Jinja2 in `src/jinja/tests/golden.rs`.

use super::*;
use serde_json::Map;

const FILE: &str = "chat_template.jinja";

fn render_with(source: &str, messages: &[Message], variables: &Variables) -> Result<Rendered> {
    let source = Source::new("default", source, FILE, &Map::new())?;
    Template::new(source)?.render(messages, true, variables)
}

fn render(source: &str, messages: &[Message]) -> Result<String> {
    render_with(source, messages, &Variables::default()).map(|it| it.text)
}

#[test]
fn templates_say_what_is_wrong() {
    let hi = [Message::new("user", "hi")];
    let error = render("{{ raise_exception('roles must alternate') }}", &hi).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("chat_template.jinja") && message.contains("roles must alternate"),
        "{message}"
    );
    for broken in [
        "{% for",
        "{{ none.x.y }}",
        "{{ messages | no_such }}",
        "{{ bos_token + 'x' }}",
    ] {
        let message = render(broken, &hi).unwrap_err().to_string();
        assert!(message.contains("chat_template.jinja"), "{message}");
    }
}

#[test]
fn values_are_written_as_python_does() {
    let message = [Message::new("user", "\"<é>\n")];
    let text = "{{ messages | tojson }}|{{ messages[0] | tojson(indent=2) }}|{{ tools is none }}{{ tools is defined }}{{ no_such }}|{% if documents is not none %}some{% endif %}";
    let expected = "[{\"role\": \"user\", \"content\": \"\\\"<é>\\n\"}]|{\n  \"role\": \"user\",\n  \"content\": \"\\\"<é>\\n\"\n}|TrueTrue|";
    assert_eq!(render(text, &message).unwrap(), expected);
}

/// Expressions with what Jinja and transformers make of them.
#[test]
fn methods_and_filters_are_pythons() {
    let hi = [Message::new("user", "hi")];
    for (expression, expected) in [
        ("'a</think>b</think>c'.rsplit('</think>', 1)[-1]", "c"),
        ("'a,b,c'.rsplit(',', maxsplit=1)|join('|')", "a,b|c"),
        ("'a,b,c'.rsplit(',')|join('|')", "a|b|c"),
        ("' a b  c '.rsplit()|join('|')", "a|b|c"),
        ("' a b  c '.rsplit(none, 1)|join('|')", " a b|c"),
        ("'a,b,c'.split(',', maxsplit=1)|join('|')", "a|b,c"),
        ("'a,b,c'.split(sep=',', maxsplit=-1)|join('|')", "a|b|c"),
        ("' a b  c '.split(none, 1)|join('|')", "a|b  c "),
        (
            "'abcabc'.removeprefix('abc') ~ 'abx'.removesuffix('x')",
            "abcab",
        ),
        ("'a=b=c'.partition('=')|join('|')", "a|=|b=c"),
        ("'a=b=c'.rpartition('=')|join('|')", "a=b|=|c"),
        ("'abc'.rpartition('=')|join('|')", "||abc"),
        ("'été'.index('é') ~ 'été'.rindex('é')", "02"),
        ("'7'.zfill(3) ~ '-7'.zfill(4)", "007-007"),
        (
            "'ab'.ljust(4, '.') ~ 'ab'.rjust(3) ~ 'ab'.center(7, '*')",
            "ab.. ab***ab**",
        ),
        ("'aBc'.swapcase() ~ 'AB'.casefold()", "AbCab"),
        (
            "[1, 2, 3].index(2) ~ [1].copy()[0] ~ {'a': 4}.copy().a",
            "114",
        ),
        (
            "none is iterable ~ 'a' is iterable ~ 'a' is sequence ~ {} is sequence ~ 1 is sequence",
            "FalseTrueTrueTrueFalse",
        ),
        (
            "{'b': 1, 'a': [1, 2]}|tojson(separators=(',', ':'), sort_keys=true)",
            "{\"a\":[1,2],\"b\":1}",
        ),
        (
            "'é🙂'|tojson(ensure_ascii=true) ~ 'é'|tojson(ensure_ascii=false)",
            "\"\\u00e9\\ud83d\\ude42\"\"é\"",
        ),
        (
            "[1, [2]]|tojson(indent=1, separators=(';', ': '))",
            "[\n 1;\n [\n  2\n ]\n]",
        ),
    ] {
        let found = render(&format!("{{{{ {expression} }}}}"), &hi).unwrap();
        assert_eq!(found, expected, "{expression}");
    }
    for expression in [
        "'abc'.index('x')",
        "[1].index(2)",
        "'a'.split('')",
        "'a'.rsplit(',', 1, 2)",
        "'a'.ljust(99999999999)",
        "'a'|tojson(separators=[','])",
        "'a'.no_such()",
    ] {
        let message = render(&format!("{{{{ {expression} }}}}"), &hi);
        assert!(message.is_err(), "{expression}: {message:?}");
    }
}

#[test]
fn marks_of_training_are_transparent() {
    let text = "{% for m in messages %}\n<a>{%- generation -%}  {{ m.content }} {%endgeneration%}{% endfor %}{{ add_generation_prompt }}";
    assert_eq!(
        render(text, &[Message::new("user", "<hi>")]).unwrap(),
        "<a><hi> True"
    );
}

#[test]
fn messages_are_given_as_they_stand() {
    let fields = json!({"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "Ann", "weight": 1.0, "none": null, "thinking": "hm"});
    let message = Message::of(fields.as_object().unwrap().clone());
    let text = "{{ messages[0].name }} {{ messages[0].content[0].text }} {{ messages[0].weight }} {{ messages[0].none is defined }} {{ messages[0].reasoning_content }}";
    assert_eq!(render(text, &[message]).unwrap(), "Ann hi 1.0 False hm");
}

#[test]
fn a_rows_variables_reach_the_template() {
    let of = |tools: Value, documents: Value, more: Value| Variables::of(tools, documents, more);
    let tool = json!([{"name": "look"}]);
    let variables = of(
        tool.to_string().into(),
        json!([{"title": "T"}]),
        json!({"mode": "a", "padding": false, "tokenize": null}),
    );
    let hi = [Message::new("user", "hi")];
    let text = "{{ tools[0].name }} {{ documents[0].title }} {{ mode }}{{ padding is defined }}";
    let rendered = render_with(text, &hi, &variables.unwrap()).unwrap();
    assert_eq!(rendered.text, "look T aFalse");
    for (tools, documents, more, named) in [
        (json!("no json"), Value::Null, Value::Null, "tools is text"),
        (
            json!({"a": 1}),
            Value::Null,
            Value::Null,
            "tools is an object",
        ),
        (json!(["f"]), Value::Null, Value::Null, "tools[0]"),
        (Value::Null, json!(["d"]), Value::Null, "documents[0]"),
        (
            Value::Null,
            Value::Null,
            json!("{}"),
            "chat_template_kwargs is text",
        ),
        (
            Value::Null,
            Value::Null,
            json!({"chat_template": "x"}),
            "chat_template = \"x\"",
        ),
        (
            Value::Null,
            Value::Null,
            json!({"continue_final_message": true}),
            "continue_final_message",
        ),
    ] {
        let refused = of(tools, documents, more).unwrap_err();
        assert!(refused.contains(named), "{refused}");
    }
}

/// Those that a class has by itself, too, and the one that was chosen for padding.
#[test]
fn special_tokens_are_the_tokenizers() {
    let dir = tempfile::tempdir().unwrap();
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let file = |name: &str| dir.path().join(name);
    let definition = root.join("tests/data/gpt2/tokenizer.json");
    std::fs::copy(definition, file("tokenizer.json")).unwrap();
    let config = json!({"tokenizer_class": "GPT2Tokenizer"}).to_string();
    std::fs::write(file("tokenizer_config.json"), config).unwrap();
    let template = "{{ bos_token }}{{ eos_token }} {{ pad_token }}";
    std::fs::write(file(FILE), template).unwrap();
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    let text = |tokenizer: &Tokenizer| {
        let template = ChatTemplate::of(tokenizer).unwrap().unwrap();
        let hi = [Message::new("user", "hi")];
        template
            .render(&hi, false, &Variables::default())
            .unwrap()
            .text
    };
    assert_eq!(text(&tokenizer), "<|endoftext|><|endoftext|> ");
    let padded = tokenizer.with_pad_token("<|endoftext|>").unwrap();
    assert_eq!(text(&padded), "<|endoftext|><|endoftext|> <|endoftext|>");
}

/// The one named `tool_use` writes conversations with tools.
#[test]
fn templates_are_chosen_by_tools() {
    let dir = tempfile::tempdir().unwrap();
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let file = |name: &str| dir.path().join(name);
    let definition = root.join("tests/data/gpt2/tokenizer.json");
    std::fs::copy(definition, file("tokenizer.json")).unwrap();
    let of = |name: &str, template: &str| json!({"name": name, "template": template});
    let save = |templates: Vec<Value>| {
        let config = json!({"chat_template": templates}).to_string();
        std::fs::write(file("tokenizer_config.json"), config).unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        ChatTemplate::of(&tokenizer).unwrap().unwrap()
    };
    let both = save(vec![
        of("default", "plain"),
        of("tool_use", "tools"),
        of("rag", "{{"),
    ]);
    let hi = [Message::new("user", "hi")];
    let none = Variables::default();
    let empty = Variables {
        tools: Some(json!([])),
        ..Variables::default()
    };
    assert_eq!(both.render(&hi, false, &none).unwrap().text, "plain");
    assert_eq!(both.render(&hi, false, &empty).unwrap().text, "tools");
    let tools_alone = save(vec![of("tool_use", "tools"), of("rag", "x")]);
    assert_eq!(
        tools_alone.render(&hi, false, &empty).unwrap().text,
        "tools"
    );
    let refused = tools_alone
        .render(&hi, false, &none)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("tool_use, rag"), "{refused}");
}
