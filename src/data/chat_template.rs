//! Chat templates: how a model's conversations become text. A template is Jinja that comes with the
//! tokenizer, as `chat_template.jinja` or in `tokenizer_config.json`; it is rendered as
//! transformers' `apply_chat_template` renders it.

use super::error::{Error, Result};
use super::tokenizer::{CHAT_TEMPLATE as FILE, Tokenizer};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
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

/// A model's template.
pub struct ChatTemplate {
    source: String,
    /// Where it was found, for messages.
    place: String,
    /// Special tokens by name (`bos_token`).
    tokens: Map<String, Value>,
}

impl ChatTemplate {
    /// The template that comes with a tokenizer; `None` where there is none.
    ///
    /// # Errors
    /// If it is no text, or there are several of which none is the default.
    pub fn of(tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>> {
        let config = tokenizer.config();
        let bad = |place: &str, reason: &str| Error::ChatTemplate {
            place: place.to_string(),
            reason: reason.to_string(),
        };
        let (source, place) = match (tokenizer.file(FILE), config.get("chat_template")) {
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
        Ok(Some(ChatTemplate {
            source,
            place: place.to_string(),
            tokens,
        }))
    }

    /// The text of a conversation; with `add_generation_prompt` it ends where the assistant's answer
    /// begins.
    ///
    /// # Errors
    /// If the template is not valid Jinja, uses what is not supported, or raises an error itself, as
    /// where roles do not alternate.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let mut context = self.tokens.clone();
        // There are none, which templates may ask for by `is not none`.
        for key in ["tools", "documents"] {
            context.insert(key.into(), Value::Null);
        }
        let messages = serde_json::to_value(messages).expect("roles and contents are texts");
        context.insert("messages".into(), messages);
        context.insert("add_generation_prompt".into(), add_generation_prompt.into());
        let environment = environment();
        let source = without_generation_tags(&self.source);
        let rendered = environment.template_from_str(&source);
        let rendered = rendered.and_then(|template| template.render(Serde(context)));
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
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
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
    environment.add_filter(
        "tojson",
        |value: Jinja, options: Kwargs| -> std::result::Result<String, minijinja::Error> {
            let failed = |error: serde_json::Error| {
                minijinja::Error::new(ErrorKind::BadSerialization, error.to_string())
            };
            let indent: Option<usize> = options.get("indent")?;
            options.assert_all_used()?;
            let value = serde_json::to_value(&value).map_err(failed)?;
            Ok(python_json(&value, indent, 0))
        },
    );
    environment
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False, indent=indent)` lays it out, at a depth.
fn python_json(value: &Value, indent: Option<usize>, depth: usize) -> String {
    let (open, items, close) = match value {
        Value::Array(list) if !list.is_empty() => {
            let items = list.iter().map(|item| python_json(item, indent, depth + 1));
            ("[", items.collect::<Vec<_>>(), "]")
        }
        Value::Object(map) if !map.is_empty() => {
            let item = |(key, value): (&String, &Value)| {
                let key = Value::from(key.as_str());
                format!("{key}: {}", python_json(value, indent, depth + 1))
            };
            ("{", map.iter().map(item).collect(), "}")
        }
        other => return other.to_string(),
    };
    match indent {
        None => format!("{open}{}{close}", items.join(", ")),
        Some(indent) => {
            let line = |depth: usize| format!("\n{}", " ".repeat(indent * depth));
            let between = format!(",{}", line(depth + 1));
            format!(
                "{open}{}{}{}{close}",
                line(depth + 1),
                items.join(&between),
                line(depth)
            )
        }
    }
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
        text.push_str(&match letters.next() {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{:02}", month + 1),
            Some('B') => MONTHS[month].to_string(),
            Some('b') => MONTHS[month][..3].to_string(),
            Some('d') => format!("{:02}", day + 1),
            Some('A') => DAYS[(days % 7) as usize].to_string(),
            Some('a') => DAYS[(days % 7) as usize][..3].to_string(),
            Some('H') => format!("{:02}", time / 3600),
            Some('M') => format!("{:02}", time / 60 % 60),
            Some('S') => format!("{:02}", time % 60),
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
        let template = ChatTemplate {
            source: source.to_string(),
            place: FILE.to_string(),
            tokens: Map::new(),
        };
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
    }
}
