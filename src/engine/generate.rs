//! Continuing prompts, and conversations.

use super::error::{Error, failed};
use super::execution::Execution;
use super::model::{LoadedModel, ModelConfig, origin};
use serde_json::{Map, Value};
use xtrain_config::{GeneratePlan, GenerationFlags};
use xtrain_data::Tokenizer;
use xtrain_data::chat_template::{ChatTemplate, Message, Variables};
use xtrain_data::tokenizer::TextStream;
use xtrain_models::HeadKind;
use xtrain_report::errln;
use xtrain_trainer::generate::{
    CachedText, Request, Sampling, check_memory, check_prompts, generate,
};
use xtrain_trainer::parameters::Head;
use xtrain_trainer::session::Session;

/// A saved causal language model that is ready to continue texts.
pub struct Generator {
    tokenizer: Tokenizer,
    loaded: LoadedModel,
    session: Session,
    settings: Settings,
    sequences: usize,
    /// What is kept of a conversation's turns.
    conversation: CachedText,
}

/// How texts go on, from flags and generation_config.json.
struct Settings {
    max_new_tokens: usize,
    sampling: Sampling,
    eos: Vec<u32>,
    stop_strings: Vec<String>,
}

/// Keys of generation_config.json that change what is generated and are not implemented, with the
/// value that changes nothing; null and empty lists change nothing either.
const UNBUILT: [(&str, f64); 20] = [
    ("num_beams", 1.0),
    ("penalty_alpha", 0.0),
    ("dola_layers", 0.0),
    ("guidance_scale", 1.0),
    ("typical_p", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("top_h", 0.0),
    ("no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("exponential_decay_length_penalty", 0.0),
    ("min_length", 0.0),
    ("min_new_tokens", 0.0),
    ("bad_words_ids", 0.0),
    ("sequence_bias", 0.0),
    ("suppress_tokens", 0.0),
    ("begin_suppress_tokens", 0.0),
    ("forced_bos_token_id", -1.0),
    ("forced_eos_token_id", -1.0),
    ("watermarking_config", 0.0),
];

/// Refuses a generation_config.json that asks for what is not implemented.
fn refuse_unbuilt(file: &Map<String, Value>) -> Result<(), Error> {
    for (key, neutral) in UNBUILT {
        let changes_nothing = |value: &Value| match value {
            Value::Null => true,
            Value::Array(list) => list.is_empty(),
            value => value.as_f64() == Some(neutral),
        };
        if let Some(value) = file.get(key).filter(|value| !changes_nothing(value)) {
            return Err(Error::usage(
                format!("generation_config.json: `{key}` = {value} is not implemented"),
                "remove the key from the file to generate without it",
            ));
        }
    }
    Ok(())
}

impl Settings {
    /// `file` is generation_config.json's, `model` config.json's.
    fn of(
        flags: &GenerationFlags,
        file: &Map<String, Value>,
        model: &Map<String, Value>,
        tokenizer: &Tokenizer,
        seed: u64,
    ) -> Result<Settings, Error> {
        refuse_unbuilt(file)?;
        let wrong = |key: &str| {
            let value = &file[key];
            Error::usage(
                format!("generation_config.json: `{key}` = {value} is not valid"),
                format!("correct the file, or add --{key}"),
            )
        };
        let number = |key: &str, flag: Option<f64>, usual: f64| match (flag, file.get(key)) {
            (Some(value), _) => Ok(value),
            (None, None | Some(Value::Null)) => Ok(usual),
            (None, Some(value)) => value
                .as_f64()
                .filter(|value| *value >= 0.0)
                .ok_or_else(|| wrong(key)),
        };
        let share = |key: &str, flag: Option<f64>, usual: f64| match number(key, flag, usual)? {
            value if value <= 1.0 => Ok(value),
            _ => Err(wrong(key)),
        };
        let count = |key: &str, flag: Option<usize>, usual: usize| match number(
            key,
            flag.map(|value| value as f64),
            usual as f64,
        )? {
            value if value.fract() == 0.0 => Ok(value as usize),
            _ => Err(wrong(key)),
        };
        let says_sampling = flags.temperature.is_some()
            || flags.top_k.is_some()
            || flags.top_p.is_some()
            || flags.min_p.is_some();
        let in_file = match file.get("do_sample") {
            None | Some(Value::Null) => None,
            Some(value) => Some(value.as_bool().ok_or_else(|| wrong("do_sample"))?),
        };
        let samples = flags
            .do_sample
            .unwrap_or(says_sampling || in_file.unwrap_or(true));
        let temperature = number("temperature", flags.temperature, 1.0)?;
        let sampling = Sampling {
            temperature: if samples { temperature } else { 0.0 },
            top_k: count("top_k", flags.top_k, 50)?,
            top_p: share("top_p", flags.top_p, 1.0)?,
            min_p: share("min_p", flags.min_p, 0.0)?,
            repetition_penalty: number("repetition_penalty", flags.repetition_penalty, 1.0)?,
            seed,
        };
        if sampling.repetition_penalty == 0.0 {
            return Err(wrong("repetition_penalty"));
        }
        let eos = match ids("generation_config.json", file)? {
            found if !found.is_empty() => found,
            _ => {
                let mut found = ids("config.json", model)?;
                found.extend(tokenizer.eos_id());
                found
            }
        };
        let mut stop_strings = flags.stop_strings.clone();
        if stop_strings.is_empty() {
            let texts = match file.get("stop_strings") {
                None | Some(Value::Null) => Vec::new(),
                Some(Value::Array(texts)) => texts.iter().map(Value::as_str).collect(),
                Some(text) => vec![text.as_str()],
            };
            let texts: Option<Vec<&str>> = texts.into_iter().collect();
            let texts = texts.ok_or_else(|| wrong("stop_strings"))?.into_iter();
            stop_strings = texts
                .filter(|text| !text.is_empty())
                .map(Into::into)
                .collect();
        }
        Ok(Settings {
            max_new_tokens: count("max_new_tokens", flags.max_new_tokens, 50)?.max(1),
            sampling,
            eos,
            stop_strings,
        })
    }
}

/// `eos_token_id`: a token id, or a list of them; one below zero is none.
fn ids(file: &str, values: &Map<String, Value>) -> Result<Vec<u32>, Error> {
    let key = "eos_token_id";
    let list = match values.get(key) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list.clone(),
        Some(value) => vec![value.clone()],
    };
    let id = |value: &Value| match value.as_i64()? {
        ..0 => Some(None),
        id => u32::try_from(id).ok().map(Some),
    };
    let read: Option<Vec<Option<u32>>> = list.iter().map(id).collect();
    let found = read.ok_or_else(|| {
        Error::usage(
            format!("{file}: `{key}` = {} is not valid", values[key]),
            "it must be the number of a token, or a list of such numbers",
        )
    })?;
    Ok(found.into_iter().flatten().collect())
}

impl Generator {
    /// Loads what a plan names.
    ///
    /// # Errors
    /// If something cannot be read, or the device cannot be opened.
    pub fn open(plan: &GeneratePlan) -> Result<Generator, Error> {
        let tokenizer =
            Tokenizer::load(&plan.tokenizer).map_err(failed("loading the tokenizer"))?;
        let loaded =
            ModelConfig::read(&plan.model, None)?.build(HeadKind::CausalLm, Head::Saved)?;
        tokenizer
            .check_vocab(loaded.model.vocab_size())
            .map_err(failed("matching tokenizer and model"))?;
        let settings = Settings::of(
            &plan.generation,
            &loaded.generation_config(),
            loaded.model.config().values(),
            &tokenizer,
            plan.seed,
        )?;
        let shapes = [("continuations", plan.num_return_sequences.to_string())];
        let origin = origin("generate", &*loaded.model, &shapes);
        let execution = Execution::new(&plan.device, &plan.cache, &plan.train);
        let mut session = execution.session(&*loaded.model, origin)?;
        loaded.place(&mut session, plan.seed)?;
        Ok(Generator {
            tokenizer,
            loaded,
            session,
            settings,
            sequences: plan.num_return_sequences,
            conversation: CachedText::default(),
        })
    }

    /// Continues prompts side by side, each as often as the plan wants, and gives the texts with
    /// their prompts, prompt by prompt. Where there is one text only, `show` is given it piece by
    /// piece while it grows.
    ///
    /// # Errors
    /// If a prompt has no tokens or too many, or the device fails.
    pub fn continue_all(
        &mut self,
        prompts: &[&str],
        show: &mut dyn FnMut(&str),
    ) -> Result<Vec<String>, Error> {
        // Before each is tokenized: there may be any number.
        self.check_memory(prompts.len(), [1, 1])?;
        let mut encoded = Vec::new();
        for prompt in prompts {
            let ids = self.tokenizer.encode_with_special_tokens(prompt);
            encoded.push(ids.map_err(failed("tokenizing the prompt"))?);
        }
        check_prompts(&*self.loaded.model, &encoded).map_err(failed("generating"))?;
        let decode = |ids: &Vec<u32>| self.tokenizer.decode(ids, true);
        let mut texts = encoded
            .iter()
            .map(decode)
            .collect::<Result<Vec<_>, _>>()
            .map_err(failed("decoding the prompt"))?;
        let ahead = match (&texts[..], self.sequences) {
            ([text], 1) => text,
            _ => "",
        };
        self.conversation = CachedText::default();
        let new = self.generate(&encoded, false, ahead, show)?;
        let mut all = Vec::new();
        for (prompt, new) in texts.drain(..).zip(new.chunks(self.sequences)) {
            all.extend(new.iter().map(|new| format!("{prompt}{new}")));
        }
        Ok(all)
    }

    /// The assistant's answer in a conversation, which `show` is given piece by piece. Of a
    /// conversation that goes on as the template wrote it before, only what is new is computed.
    ///
    /// # Errors
    /// If the model has no chat template or it fails, or as [`Generator::continue_all`].
    pub fn answer(
        &mut self,
        conversation: &[Message],
        show: &mut dyn FnMut(&str),
    ) -> Result<String, Error> {
        let template = ChatTemplate::of(&self.tokenizer).map_err(failed("reading the template"))?;
        let template = template.ok_or_else(|| {
            Error::usage(
                "the model has no chat template: it is not made for conversations",
                "use --prompt TEXT without --chat, or a model with chat_template.jinja or a chat_template in tokenizer_config.json",
            )
        })?;
        let text = template.render(conversation, true, &Variables::default());
        let text = text.map_err(failed("rendering the conversation"))?;
        // The template has written all special tokens.
        let prompt = self.tokenizer.encode(&text.text);
        let prompt = prompt.map_err(failed("tokenizing the conversation"))?;
        let answers = self.generate(&[prompt], true, "", show)?;
        Ok(answers.into_iter().next().unwrap_or_default())
    }

    /// Refuses prompts of these lengths in tokens that do not fit side by side.
    fn check_memory(&self, prompts: usize, tokens: [usize; 2]) -> Result<(), Error> {
        let texts = prompts.saturating_mul(self.sequences);
        let (model, most) = (&*self.loaded.model, self.settings.max_new_tokens);
        check_memory(&self.session, model, texts, tokens, most).map_err(failed("generating"))
    }

    /// The new texts, prompt by prompt; a single one is shown while it grows, after the text `ahead`.
    fn generate(
        &mut self,
        prompts: &[Vec<u32>],
        is_conversation: bool,
        ahead: &str,
        show: &mut dyn FnMut(&str),
    ) -> Result<Vec<String>, Error> {
        let lengths = || prompts.iter().map(Vec::len);
        let tokens = [lengths().min(), lengths().max()].map(Option::unwrap_or_default);
        self.check_memory(prompts.len(), tokens)?;
        let repeated = prompts
            .iter()
            .flat_map(|prompt| std::iter::repeat_n(prompt.clone(), self.sequences));
        let rows: Vec<Vec<u32>> = repeated.collect();
        let stops = &self.settings.stop_strings;
        let mut readers: Vec<Reader> = rows
            .iter()
            .map(|prompt| Reader::new(TextStream::after(&self.tokenizer, prompt), stops))
            .collect();
        let is_single = rows.len() == 1;
        // Up to the second token graphs are compiled, of which lines tell: a text begins after them.
        let (mut held, mut tokens) = (ahead.to_string(), 0);
        let mut problem = None;
        let request = Request {
            prompts: &rows,
            max_new_tokens: self.settings.max_new_tokens,
            eos: &self.settings.eos,
            sampling: self.settings.sampling,
            use_cache: true,
        };
        let model = &*self.loaded.model;
        let cached = is_conversation.then_some(&mut self.conversation);
        let new = generate(
            &mut self.session,
            model,
            &request,
            cached,
            &mut |row, token| {
                match readers[row].push(token) {
                    Ok(text) if is_single => {
                        held.push_str(text);
                        tokens += 1;
                        if tokens > 1 && !held.is_empty() {
                            show(&std::mem::take(&mut held));
                        }
                    }
                    Ok(_) => {}
                    Err(error) => problem = Some(error),
                }
                problem.is_none() && !readers[row].is_stopped
            },
        )
        .map_err(failed("generating"))?;
        for reader in &mut readers {
            match reader.finish() {
                Ok(text) if is_single => show(&(std::mem::take(&mut held) + text)),
                Ok(_) => {}
                Err(error) => problem = Some(error),
            }
        }
        if let Some(error) = problem {
            return Err(failed("decoding")(error));
        }
        let positions = model.max_positions();
        let is_cut = |(prompt, new): (&Vec<u32>, &Vec<u32>)| {
            prompt.len() + new.len() == positions && new.len() < request.max_new_tokens
        };
        if rows.iter().zip(&new).any(is_cut) {
            errln!("note: the model has {positions} positions; a text ends there");
        }
        Ok(readers.into_iter().map(|reader| reader.text).collect())
    }
}

/// The text of one continuation, up to a stop string.
struct Reader<'a> {
    stream: TextStream<'a>,
    stops: &'a [String],
    /// What is certain, of which no end may be the beginning of a stop string.
    text: String,
    /// What may be.
    held: String,
    is_stopped: bool,
}

impl<'a> Reader<'a> {
    fn new(stream: TextStream<'a>, stops: &'a [String]) -> Self {
        Reader {
            stream,
            stops,
            text: String::new(),
            held: String::new(),
            is_stopped: false,
        }
    }

    /// Adds a token; gives the text that became certain.
    fn push(&mut self, token: u32) -> Result<&str, xtrain_data::Error> {
        let piece = self.stream.push(token)?;
        Ok(self.read(&piece, false))
    }

    /// What was held back.
    fn finish(&mut self) -> Result<&str, xtrain_data::Error> {
        if self.is_stopped {
            return Ok("");
        }
        let piece = self.stream.finish()?;
        Ok(self.read(&piece, true))
    }

    fn read(&mut self, piece: &str, is_last: bool) -> &str {
        self.held.push_str(piece);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop));
        let certain = match found.min() {
            Some(start) => {
                self.is_stopped = true;
                start
            }
            None if is_last => self.held.len(),
            None => {
                let may_begin = |start: &usize| {
                    let end = &self.held[*start..];
                    self.stops.iter().any(|stop| stop.starts_with(end))
                };
                let mut starts = self.held.char_indices().map(|(start, _)| start);
                starts.find(may_begin).unwrap_or(self.held.len())
            }
        };
        let before = self.text.len();
        self.text.push_str(&self.held[..certain]);
        self.held.drain(..certain);
        &self.text[before..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use xtrain_data::tokenizer::train_byte_bpe;

    fn tokenizer() -> Tokenizer {
        train_byte_bpe(&["a b a b a b"], 258).unwrap()
    }

    fn settings(flags: GenerationFlags, file: Value) -> Result<Settings, Error> {
        let model = json!({"eos_token_id": 7});
        Settings::of(
            &flags,
            file.as_object().unwrap(),
            model.as_object().unwrap(),
            &tokenizer(),
            3,
        )
    }

    #[test]
    fn wrong_types_in_the_file_are_named() {
        for (key, value) in [
            ("stop_strings", json!(5)),
            ("stop_strings", json!(["a", 5])),
            ("stop_strings", json!({"a": "b"})),
            ("stop_strings", json!([null])),
            ("max_new_tokens", json!(9.5)),
            ("top_k", json!("9")),
        ] {
            let wrong = settings(GenerationFlags::default(), json!({key: value}));
            let message = wrong.map(|_| ()).unwrap_err().to_string();
            let wanted = format!("generation_config.json: `{key}` = {value} is not valid");
            assert!(message.contains(&wanted), "{message}");
        }
        let flags = GenerationFlags {
            stop_strings: vec!["y".into()],
            ..GenerationFlags::default()
        };
        settings(flags, json!({"stop_strings": 5})).unwrap();
        settings(GenerationFlags::default(), json!({"stop_strings": null})).unwrap();
    }

    #[test]
    fn flags_win_over_the_file() {
        let file = json!({
            "do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "eos_token_id": [5, 6],
            "max_new_tokens": 9, "stop_strings": ["x"], "min_p": null
        });
        let found = settings(GenerationFlags::default(), file.clone()).unwrap();
        assert_eq!(
            found.sampling,
            Sampling {
                temperature: 0.6,
                top_k: 20,
                top_p: 0.9,
                min_p: 0.0,
                repetition_penalty: 1.0,
                seed: 3
            }
        );
        assert_eq!((found.max_new_tokens, &found.eos[..]), (9, &[5, 6][..]));
        assert_eq!(found.stop_strings, ["x"]);
        let flags = GenerationFlags {
            max_new_tokens: Some(4),
            do_sample: Some(false),
            top_k: Some(1),
            stop_strings: vec!["y".into()],
            ..GenerationFlags::default()
        };
        let found = settings(flags, file).unwrap();
        assert_eq!((found.sampling.temperature, found.sampling.top_k), (0.0, 1));
        assert_eq!(
            (found.max_new_tokens, &found.stop_strings[..]),
            (4, &["y".to_string()][..])
        );
        // Asking for a temperature asks for sampling.
        let greedy = json!({"do_sample": false});
        let found = settings(GenerationFlags::default(), greedy.clone()).unwrap();
        assert_eq!(found.sampling.temperature, 0.0);
        let warm = GenerationFlags {
            temperature: Some(0.5),
            ..GenerationFlags::default()
        };
        assert_eq!(settings(warm, greedy).unwrap().sampling.temperature, 0.5);
        // Of a model without the file, config.json's and the tokenizer's end a text.
        let found = settings(GenerationFlags::default(), json!({})).unwrap();
        assert_eq!(found.eos, [7, tokenizer().eos_id().unwrap()]);
        for (file, key) in [
            (json!({"num_beams": 4}), "num_beams"),
            (json!({"suppress_tokens": [3]}), "suppress_tokens"),
            (json!({"forced_eos_token_id": 0}), "forced_eos_token_id"),
        ] {
            let error = settings(GenerationFlags::default(), file);
            let message = error.err().unwrap().to_string();
            assert!(message.contains(key), "{message}");
        }
        let neutral = json!({"num_beams": 1, "suppress_tokens": [], "typical_p": 1.0, "forced_eos_token_id": null});
        assert!(settings(GenerationFlags::default(), neutral).is_ok());
        let with_none = settings(GenerationFlags::default(), json!({"eos_token_id": [-1, 5]}));
        assert_eq!(with_none.unwrap().eos, [5]);
        for (file, key, value) in [
            (json!({"top_p": "high"}), "top_p", "high"),
            (json!({"min_p": 1.5}), "min_p", "1.5"),
            (json!({"do_sample": "yes"}), "do_sample", "yes"),
            (json!({"eos_token_id": [5, "x"]}), "eos_token_id", "x"),
            (json!({"eos_token_id": 5.5}), "eos_token_id", "5.5"),
        ] {
            let error = settings(GenerationFlags::default(), file);
            let message = error.err().unwrap().to_string();
            assert!(
                message.contains(key) && message.contains(value),
                "{message}"
            );
        }
    }

    #[test]
    fn texts_end_before_stop_strings() {
        let tokenizer = tokenizer();
        let stops = ["\nUser:".to_string(), "END".to_string()];
        let read = |text: &str| {
            let mut reader = Reader::new(TextStream::after(&tokenizer, &[]), &stops);
            let mut shown = Vec::new();
            for id in tokenizer.encode(text).unwrap() {
                shown.push(reader.push(id).unwrap().to_string());
                if reader.is_stopped {
                    break;
                }
            }
            shown.push(reader.finish().unwrap().to_string());
            assert_eq!(shown.concat(), reader.text);
            (reader.text, reader.is_stopped)
        };
        assert_eq!(
            read("ab\nUse it. EN"),
            ("ab\nUse it. EN".to_string(), false)
        );
        assert_eq!(read("ab\nUser: c"), ("ab".to_string(), true));
        assert_eq!(read("é\n\nUser: END"), ("é\n".to_string(), true));
        assert_eq!(read("END"), (String::new(), true));
    }
}
