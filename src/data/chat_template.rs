//! Chat templates: how a model's conversations become text. A template is Jinja that comes with the
//! tokenizer, as `chat_template.jinja` or in `tokenizer_config.json`; it is rendered as
//! transformers' `apply_chat_template` renders it.
//!
//! A template is a program of somebody else. The engine counts its steps, and the program
//! renders in a process of its own ([`worker`]), whose memory, stack and time are bounded: operations
//! within one step can cost any amount of them.

mod engine;
mod python;
pub mod worker;

use super::error::{Error, Result};
use super::tokenizer::{CHAT_TEMPLATE as FILE, Tokenizer};
use engine::{Engine, Failure, Request};
use serde::Serialize;
use serde_json::{Map, Value};
use std::sync::{Mutex, PoisonError};
use worker::Worker;

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

/// Bytes of the longest template. Published ones have less than 50,000.
const LONGEST_SOURCE: usize = 1 << 20;

/// What a rendering may cost whatever the conversation: steps of the engine and bytes of text.
/// Published templates take less than 2,000 steps and write less than 10,000 bytes besides the
/// messages.
const STEPS: u64 = 1_000_000;
const OUTPUT: usize = 256 << 10;

/// What each message adds to them. Some templates look at every other message for each.
const STEPS_PER_MESSAGE: u64 = 20_000;
const OUTPUT_PER_MESSAGE: usize = 1 << 10;

/// What each byte of the messages adds to the bytes of text: as JSON a byte becomes six.
const OUTPUT_PER_BYTE: usize = 8;

/// A model's template as it was read: not parsed yet.
struct Source {
    /// Without generation tags.
    text: String,
    /// Where it was found, for messages.
    place: &'static str,
    /// Special tokens by name (`bos_token`).
    tokens: Map<String, Value>,
}

impl Source {
    /// The template that comes with a tokenizer; `None` where there is none.
    fn of(tokenizer: &Tokenizer) -> Result<Option<Source>> {
        let config = tokenizer.config();
        let bad = |place: &str, reason: &str| Error::ChatTemplate {
            place: place.to_string(),
            reason: reason.to_string(),
        };
        let setting = config.get("chat_template");
        let setting = setting.filter(|value| !value.is_null());
        let (source, place) = match (tokenizer.file(FILE), setting) {
            (Some(bytes), _) => {
                let source = std::str::from_utf8(bytes);
                let source = source.map_err(|_| bad(FILE, "it is not UTF-8"))?;
                (source.to_string(), FILE)
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
        Source::new(&source, place, tokens).map(Some)
    }

    fn new(source: &str, place: &'static str, tokens: Map<String, Value>) -> Result<Source> {
        if source.len() > LONGEST_SOURCE {
            return Err(Error::ChatTemplate {
                place: place.to_string(),
                reason: format!("it has {} bytes, more than {LONGEST_SOURCE}", source.len()),
            });
        }
        Ok(Source {
            text: engine::without_generation_tags(source),
            place,
            tokens,
        })
    }

    fn key(&self) -> Value {
        serde_json::json!([self.text, self.tokens])
    }
}

/// Where a template is rendered.
enum Renderer {
    /// Within this process, bounded in steps only: of tests.
    Here(Box<Engine>),
    /// In a process of its own; `None`: it ended, and the next rendering starts another.
    Apart(Option<Worker>),
}

/// A model's template.
pub struct ChatTemplate {
    source: Source,
    renderer: Mutex<Renderer>,
}

impl ChatTemplate {
    /// The template that comes with a tokenizer; `None` where there is none.
    ///
    /// # Errors
    /// If it is no text or no valid Jinja, or there are several of which none is the default.
    pub fn of(tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>> {
        Source::of(tokenizer)?.map(ChatTemplate::new).transpose()
    }

    /// What decides how a tokenizer's template writes a conversation; `None` where there is no
    /// template that can be read.
    pub fn key(tokenizer: &Tokenizer) -> Option<Value> {
        let source = Source::of(tokenizer).ok().flatten();
        source.map(|source| source.key())
    }

    fn new(source: Source) -> Result<ChatTemplate> {
        let renderer = if worker::is_available() {
            Worker::start(&source.text, &source.tokens).map(|worker| Renderer::Apart(Some(worker)))
        } else {
            Engine::new(source.text.clone(), source.tokens.clone())
                .map(|engine| Renderer::Here(Box::new(engine)))
        };
        let renderer = renderer.map_err(|failure| error(&source, failure))?;
        Ok(ChatTemplate {
            renderer: Mutex::new(renderer),
            source,
        })
    }

    /// The text of a conversation; with `add_generation_prompt` it ends where the assistant's answer
    /// begins.
    ///
    /// # Errors
    /// If the template uses what is not supported, or raises an error itself, as where roles do not
    /// alternate; or if it costs more than a conversation of this size may.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let bytes = |message: &Message| message.role.len() + message.content.len();
        let bytes: usize = messages.iter().map(bytes).sum();
        let request = Request {
            messages: serde_json::to_value(messages).expect("roles and contents are texts"),
            add_generation_prompt,
            steps: STEPS + STEPS_PER_MESSAGE * messages.len() as u64 + bytes as u64,
            output: OUTPUT + OUTPUT_PER_MESSAGE * messages.len() + OUTPUT_PER_BYTE * bytes,
        };
        let mut renderer = self.renderer.lock().unwrap_or_else(PoisonError::into_inner);
        let rendered = match &mut *renderer {
            Renderer::Here(engine) => engine.render(request),
            Renderer::Apart(worker) => self.render_apart(worker, request),
        };
        rendered.map_err(|failure| match failure {
            Failure::Unbounded(reason) => {
                let conversation = format!("a conversation of {} messages", messages.len());
                let reason = format!("{reason} for {conversation} and {bytes} bytes");
                error(&self.source, Failure::Unbounded(reason))
            }
            refused => error(&self.source, refused),
        })
    }

    fn render_apart(
        &self,
        worker: &mut Option<Worker>,
        request: Request,
    ) -> Result<String, Failure> {
        let mut running = match worker.take() {
            Some(running) => running,
            None => Worker::start(&self.source.text, &self.source.tokens)?,
        };
        let rendered = running.render(request);
        *worker = (!running.has_ended()).then_some(running);
        rendered
    }
}

fn error(source: &Source, failure: Failure) -> Error {
    let place = source.place.to_string();
    match failure {
        Failure::Refused(reason) => Error::ChatTemplate { place, reason },
        Failure::Unbounded(reason) => Error::EndlessTemplate { place, reason },
    }
}

#[cfg(test)]
mod tests {
    use super::engine::strftime;
    use super::*;

    fn render(source: &str, messages: &[Message]) -> Result<String> {
        let template = ChatTemplate::new(Source::new(source, FILE, Map::new())?)?;
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
        let of = |seconds| strftime("%-d.%-m.%Y|%e|%j|%I %-I %p|%F %D %T|%-y|%E!", seconds);
        assert_eq!(
            of(1_772_409_845),
            "2.3.2026| 2|061|12 12 AM|2026-03-02 03/02/26 00:04:05|26|%E!"
        );
        // Formats of others are not trusted.
        for odd in ["%", "%#z", "100 %!", "%-", "é%"] {
            assert_eq!(strftime(odd, 0), odd);
        }
    }
}
