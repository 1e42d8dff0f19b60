//! Chat templates: how a model's conversations become text. A template is Jinja that comes with the
//! tokenizer, as `chat_template.jinja` or in `tokenizer_config.json`; it is rendered as
//! transformers' `apply_chat_template` renders it.

mod python;

use super::error::{Error, Result};
use super::tokenizer::{CHAT_TEMPLATE as FILE, Tokenizer};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value as Jinja};
use serde::Serialize;
use serde_json::{Map, Value};
use std::time::{SystemTime, UNIX_EPOCH};

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    pub content: String,
}

impl Message {
    /// A turn of this role.
    pub fn new(role: &str, content: impl Into<String>) -> Message {
        Message {
            role: role.to_string(),
            content: content.into(),
        }
    }
}

/// Settings that name tokens, which templates know by these names.
const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// The name that a template has within its environment.
const TEMPLATE: &str = "chat";

/// A model's template.
pub struct ChatTemplate {
    /// Holds it, parsed, as [`TEMPLATE`].
    environment: Environment<'static>,
    /// Where it was found, for messages.
    place: String,
    /// Special tokens by name (`bos_token`).
    tokens: Map<String, Value>,
}

impl ChatTemplate {
    /// The template that comes with a tokenizer; `None` where there is none.
    ///
    /// # Errors
    /// If it is no text or no valid Jinja, or there are several of which none is the default.
    pub fn of(tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>> {
        let config = tokenizer.config();
        let bad = |place: &str, reason: &str| Error::ChatTemplate {
            place: place.to_string(),
            reason: reason.to_string(),
        };
        let setting = config.get("chat_template");
        let setting = setting.filter(|value| !value.is_null());
        let (source, place) = match (tokenizer.file(FILE), setting) {
            (Some(bytes), _) => {
                let source = String::from_utf8(bytes.to_vec());
                (source.map_err(|_| bad(FILE, "it is not UTF-8"))?, FILE)
            }
            (None, Some(value)) => {
                const PLACE: &str = "chat_template of tokenizer_config.json";
                let is_default = |entry: &&Value| entry["name"] == "default";
                let source = match value {
                    Value::Array(list) => list.iter().find(is_default).map(|it| &it["template"]),
                    text => Some(text),
                };
                let source = source.and_then(Value::as_str);
                let wanted = "it is neither a text nor a list with one named default";
                (source.ok_or_else(|| bad(PLACE, wanted))?.to_string(), PLACE)
            }
            (None, None) => return Ok(None),
        };
        let mut tokens = Map::new();
        let special: Map<String, Value> = tokenizer
            .file("special_tokens_map.json")
            .and_then(|file| serde_json::from_slice(file).ok())
            .unwrap_or_default();
        for key in SPECIAL_TOKENS {
            let value = config.get(key).or_else(|| special.get(key));
            let value = value.map(|value| match value {
                Value::Object(token) => token.get("content").cloned().unwrap_or_default(),
                other => other.clone(),
            });
            if let Some(Value::String(token)) = value {
                tokens.insert(key.into(), token.into());
            }
        }
        ChatTemplate::new(&source, place, tokens).map(Some)
    }

    fn new(source: &str, place: &str, tokens: Map<String, Value>) -> Result<ChatTemplate> {
        let mut environment = environment();
        let added = environment.add_template_owned(TEMPLATE, without_generation_tags(source));
        added.map_err(|error| Error::ChatTemplate {
            place: place.to_string(),
            reason: error.to_string(),
        })?;
        Ok(ChatTemplate {
            environment,
            place: place.to_string(),
            tokens,
        })
    }

    /// What decides how it writes a conversation.
    pub fn key(&self) -> Value {
        let source = self.environment.get_template(TEMPLATE);
        let source = source.expect("it was added when the template was made");
        serde_json::json!([source.source(), self.tokens])
    }

    /// The text of a conversation; with `add_generation_prompt` it ends where the assistant's answer
    /// begins.
    ///
    /// # Errors
    /// If the template uses what is not supported, or raises an error itself, as where roles do not
    /// alternate.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let mut context = self.tokens.clone();
        // There are none, which templates may ask for by `is not none`.
        for key in ["tools", "documents"] {
            context.insert(key.into(), Value::Null);
        }
        let messages = serde_json::to_value(messages).expect("roles and contents are texts");
        context.insert("messages".into(), messages);
        context.insert("add_generation_prompt".into(), add_generation_prompt.into());
        let template = self.environment.get_template(TEMPLATE);
        let rendered = template.and_then(|template| template.render(Serde(context)));
        rendered.map_err(|error| Error::ChatTemplate {
            place: self.place.clone(),
            reason: match error.detail() {
                // The template's own words.
                Some(detail) if error.kind() == ErrorKind::InvalidOperation => detail.to_string(),
                _ => error.to_string(),
            },
        })
    }
}

/// Jinja as transformers sets it up.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    environment.set_syntax(syntax.expect("the delimiters are Jinja's own"));
    // Texts are no HTML.
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    python::extend(&mut environment);
    environment.add_function(
        "raise_exception",
        |reason: String| -> std::result::Result<Jinja, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, reason))
        },
    );
    environment.add_function("strftime_now", |format: String| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        strftime(&format, now.map_or(0, |since| since.as_secs()))
    });
    environment
}

/// `{% generation %}` marks the assistant's words, for training; here it is a block that is always
/// taken.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else {
            break;
        };
        let tag = &rest[start..start + length + 2];
        text.push_str(&rest[..start]);
        text.push_str(&match tag.trim_matches(['{', '%', '}', '-', '+']).trim() {
            "generation" => tag.replace("generation", "if true"),
            "endgeneration" => tag.replace("endgeneration", "endif"),
            _ => tag.to_string(),
        });
        rest = &rest[start + length + 2..];
    }
    text.push_str(rest);
    text
}

/// The date and time, in UTC, by a format of C's `strftime`; of its letters those that name days,
/// months, years and times.
fn strftime(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    // The epoch was a Thursday.
    const DAYS: [&str; 7] = [
        "Thursday",
        "Friday",
        "Saturday",
        "Sunday",
        "Monday",
        "Tuesday",
        "Wednesday",
    ];
    let leaps = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(leaps(year)) {
        day -= 365 + u64::from(leaps(year));
        year += 1;
    }
    let day_of_year = day;
    let mut month = 0;
    let lengths = |month: usize| match month {
        1 => 28 + u64::from(leaps(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    };
    while day >= lengths(month) {
        day -= lengths(month);
        month += 1;
    }
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let mut kind = letters.next();
        // glibc's mark for a number without zeros before it.
        let is_short = kind == Some('-');
        if is_short {
            kind = letters.next();
        }
        let number = |number: u64, width: usize| {
            if is_short {
                number.to_string()
            } else {
                format!("{number:0width$}")
            }
        };
        let hour = match time / 3600 % 12 {
            0 => 12,
            hour => hour,
        };
        text.push_str(&match kind {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month as u64 + 1, 2),
            Some('B') => MONTHS[month].to_string(),
            Some('b') => MONTHS[month][..3].to_string(),
            Some('d') => number(day + 1, 2),
            Some('e') => format!("{:2}", day + 1),
            Some('j') => number(day_of_year + 1, 3),
            Some('A') => DAYS[(days % 7) as usize].to_string(),
            Some('a') => DAYS[(days % 7) as usize][..3].to_string(),
            Some('H') => number(time / 3600, 2),
            Some('I') => number(hour, 2),
            Some('p') => if time < 43_200 { "AM" } else { "PM" }.to_string(),
            Some('M') => number(time / 60 % 60, 2),
            Some('S') => number(time % 60, 2),
            Some('F') => strftime("%Y-%m-%d", seconds),
            Some('D' | 'x') => strftime("%m/%d/%y", seconds),
            Some('T' | 'X') => strftime("%H:%M:%S", seconds),
            Some('%') | None => "%".to_string(),
            Some(other) => format!("%{other}"),
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &[Message]) -> Result<String> {
        let template = ChatTemplate::new(source, FILE, Map::new())?;
        template.render(messages, true)
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
    fn dates_are_those_of_the_calendar() {
        let of = |seconds| strftime("%A %d %B %Y, %a %b %y %m %H:%M:%S %%", seconds);
        assert_eq!(of(0), "Thursday 01 January 1970, Thu Jan 70 01 00:00:00 %");
        assert_eq!(
            of(951_782_399),
            "Monday 28 February 2000, Mon Feb 00 02 23:59:59 %"
        );
        assert_eq!(
            of(951_782_400),
            "Tuesday 29 February 2000, Tue Feb 00 02 00:00:00 %"
        );
        assert_eq!(
            of(1_735_689_599),
            "Tuesday 31 December 2024, Tue Dec 24 12 23:59:59 %"
        );
        let of = |seconds| strftime("%-d.%-m.%Y|%e|%j|%I %-I %p|%F %D %T|%-y|%q", seconds);
        assert_eq!(
            of(1_772_409_845),
            "2.3.2026| 2|061|12 12 AM|2026-03-02 03/02/26 00:04:05|26|%q"
        );
    }
}
