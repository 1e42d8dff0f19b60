//! The class of transformers that reads a tokenizer's files, which decides what of them counts: one
//! takes `tokenizer.json` as it stands, others take its vocabulary and build the rest by settings.

use serde_json::{Map, Value};

/// Classes with rules of their own, and the one that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// `TokenizersBackend`, formerly `PreTrainedTokenizerFast`: `tokenizer.json` as it stands.
    Plain,
    Gpt2,
    CodeGen,
    Roberta,
    Qwen2,
    GptNeoX,
    Gemma,
    Llama,
    Bert,
    DistilBert,
    Albert,
    XlmRoberta,
}

/// A class's names, without `Fast`.
const BUILT: [(&str, Class); 24] = [
    ("PreTrainedTokenizerFast", Class::Plain),
    ("PreTrainedTokenizer", Class::Plain),
    ("TokenizersBackend", Class::Plain),
    ("GPT2Tokenizer", Class::Gpt2),
    ("CodeGenTokenizer", Class::CodeGen),
    ("RobertaTokenizer", Class::Roberta),
    ("BartTokenizer", Class::Roberta),
    ("LEDTokenizer", Class::Roberta),
    ("MvpTokenizer", Class::Roberta),
    ("LongformerTokenizer", Class::Roberta),
    ("Qwen2Tokenizer", Class::Qwen2),
    ("GPTNeoXTokenizer", Class::GptNeoX),
    ("GemmaTokenizer", Class::Gemma),
    ("LlamaTokenizer", Class::Llama),
    ("Phi3Tokenizer", Class::Llama),
    ("BertTokenizer", Class::Bert),
    ("LxmertTokenizer", Class::Bert),
    ("MobileBertTokenizer", Class::Bert),
    ("SqueezeBertTokenizer", Class::Bert),
    ("ElectraTokenizer", Class::Bert),
    ("LayoutLMTokenizer", Class::Bert),
    ("DistilBertTokenizer", Class::DistilBert),
    ("AlbertTokenizer", Class::Albert),
    ("XLMRobertaTokenizer", Class::XlmRoberta),
];

/// Classes of transformers 5.23 whose rules are not built here, without `Fast`. transformers takes a
/// name that it does not know for [`Class::Plain`].
const NOT_BUILT: [&str; 79] = [
    "BarthezTokenizer",
    "BartphoTokenizer",
    "BertGenerationTokenizer",
    "BertJapaneseTokenizer",
    "BertTokenizerLegacy",
    "BertweetTokenizer",
    "BigBirdTokenizer",
    "BioGptTokenizer",
    "BlenderbotSmallTokenizer",
    "BlenderbotTokenizer",
    "ByT5Tokenizer",
    "CLIPTokenizer",
    "CTRLTokenizer",
    "CamembertTokenizer",
    "CanineTokenizer",
    "ClvpTokenizer",
    "CodeLlamaTokenizer",
    "CohereTokenizer",
    "ConvBertTokenizer",
    "CpmAntTokenizer",
    "CpmTokenizer",
    "DPRContextEncoderTokenizer",
    "DPRQuestionEncoderTokenizer",
    "DPRReaderTokenizer",
    "DebertaTokenizer",
    "DebertaV2Tokenizer",
    "DiaTokenizer",
    "EsmTokenizer",
    "EsmcTokenizer",
    "FNetTokenizer",
    "FSMTTokenizer",
    "FastSpeech2ConformerTokenizer",
    "FlaubertTokenizer",
    "FunnelTokenizer",
    "GPTNeoXJapaneseTokenizer",
    "GPTSw3Tokenizer",
    "HerbertTokenizer",
    "LasrTokenizer",
    "LayoutLMv2Tokenizer",
    "LayoutLMv3Tokenizer",
    "LayoutXLMTokenizer",
    "LukeTokenizer",
    "M2M100Tokenizer",
    "MBart50Tokenizer",
    "MBartTokenizer",
    "MLukeTokenizer",
    "MPNetTokenizer",
    "MarianTokenizer",
    "MarkupLMTokenizer",
    "MgpstrTokenizer",
    "MyT5Tokenizer",
    "NllbTokenizer",
    "NougatTokenizer",
    "OpenAIGPTTokenizer",
    "PLBartTokenizer",
    "PegasusTokenizer",
    "PerceiverTokenizer",
    "PhobertTokenizer",
    "ProphetNetTokenizer",
    "Qwen3_5Tokenizer",
    "ReformerTokenizer",
    "RemBertTokenizer",
    "RoCBertTokenizer",
    "RoFormerTokenizer",
    "SeamlessM4TTokenizer",
    "SiglipTokenizer",
    "Siglip2Tokenizer",
    "Speech2TextTokenizer",
    "SpeechT5Tokenizer",
    "SplinterTokenizer",
    "T5Tokenizer",
    "TapasTokenizer",
    "Tipsv2Tokenizer",
    "UdopTokenizer",
    "VitsTokenizer",
    "WhisperTokenizer",
    "XGLMTokenizer",
    "XLMTokenizer",
    "XLNetTokenizer",
];

/// The class that transformers registers for a `model_type`; `None` where it has none of its own.
fn registered(model_type: &str) -> Option<&'static str> {
    Some(match model_type {
        "albert" => "AlbertTokenizer",
        "bert" | "distilbert" | "electra" | "convbert" | "megatron-bert" | "nomic_bert" => {
            "BertTokenizer"
        }
        "roberta" | "roberta-prelayernorm" | "bart" | "longformer" => "RobertaTokenizer",
        "xlm-roberta" => "XLMRobertaTokenizer",
        "gpt2" | "gpt_neo" | "gptj" | "codegen" | "opt" | "phi" | "starcoder2" | "jais2" => {
            "GPT2Tokenizer"
        }
        "gpt_neox" | "mamba" | "mamba2" | "mpt" | "olmo" | "olmoe" | "rwkv" => "GPTNeoXTokenizer",
        "gemma" | "gemma2" | "gemma3" | "gemma3_text" | "gemma3n" | "gemma3n_text"
        | "recurrent_gemma" => "GemmaTokenizer",
        "qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe" | "qwen3_next" => "Qwen2Tokenizer",
        "deberta" => "DebertaTokenizer",
        "deberta-v2" => "DebertaV2Tokenizer",
        "mpnet" => "MPNetTokenizer",
        "camembert" => "CamembertTokenizer",
        "t5" | "mt5" => "T5Tokenizer",
        "xlnet" => "XLNetTokenizer",
        "cohere" | "cohere2" => "CohereTokenizer",
        "mistral" | "mistral3" | "mixtral" | "ministral" | "ministral3" => MISTRAL,
        "granite" | "granitemoe" | "gpt_bigcode" | "stablelm" | "olmo2" | "olmo3" | "glm"
        | "glm4" | "phi3" | "phimoe" | "modernbert" | "modernbert-decoder" | "nemotron"
        | "persimmon" => PLAIN,
        _ => return None,
    })
}

const PLAIN: &str = "TokenizersBackend";
/// Reads Mistral's own files where its library is there, else it is [`PLAIN`].
const MISTRAL: &str = "MistralCommonBackend";

/// Model types whose directories name a wrong class so often that transformers takes the registered
/// one.
fn names_wrong_classes(model_type: &str) -> bool {
    matches!(
        model_type,
        "phi3" | "phimoe" | "qwen2" | "modernbert" | "modernbert-decoder" | "nemotron"
    )
}

/// What a directory's files say of its class.
pub(super) struct Named<'a> {
    /// tokenizer_config.json.
    pub config: &'a Map<String, Value>,
    /// config.json.
    pub model: &'a Map<String, Value>,
    pub definition: Option<&'a [u8]>,
}

impl Named<'_> {
    fn text<'b>(map: &'b Map<String, Value>, key: &str) -> Option<&'b str> {
        map.get(key)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
    }

    /// The class, as `AutoTokenizer` finds it; `None` where nothing names one. `Err` names one that
    /// is not built.
    pub fn class(&self) -> Result<Option<Class>, String> {
        let model_type = Self::text(self.model, "model_type").unwrap_or_default();
        let registered = registered(model_type);
        let told = Self::text(self.config, "tokenizer_class");
        let by_either = told.or(Self::text(self.model, "tokenizer_class"));
        let has_own_code = self.has_own_code();
        if let (Some(name), false) = (by_either, has_own_code) {
            if stem(name) == "LlamaTokenizer"
                && registered != Some(MISTRAL)
                && !names_wrong_classes(model_type)
                && self.is_byte_level()
            {
                return Ok(Some(Class::Plain));
            }
            if let Some(registered) = registered
                && registered != stem(name)
            {
                if [PLAIN, MISTRAL].contains(&registered) {
                    return Ok(Some(Class::Plain));
                }
                let chosen = if names_wrong_classes(model_type) {
                    registered
                } else {
                    name
                };
                return class_of(chosen).map(Some);
            }
        }
        let usual = if has_own_code { told } else { by_either };
        match (usual, registered) {
            (Some(name), None) if has_own_code && class_of(name) == Ok(Class::Plain) => {
                Err(format!("{name}, whose code is a file of Python beside it"))
            }
            (Some(name), _) => class_of(name).map(Some),
            (None, Some(name)) => class_of(name).map(Some),
            (None, None) if !model_type.is_empty() => Ok(Some(Class::Plain)),
            (None, None) => Ok(None),
        }
    }

    /// Whether `auto_map` names a class that comes as code beside the files, which transformers only
    /// runs where it has none of its own.
    fn has_own_code(&self) -> bool {
        match self.config.get("auto_map") {
            Some(Value::Array(_)) => true,
            Some(Value::Object(map)) => map.get("AutoTokenizer").is_some_and(|it| !it.is_null()),
            _ => false,
        }
    }

    fn is_byte_level(&self) -> bool {
        const MARK: &[u8] = b"\"ByteLevel\"";
        self.definition
            .is_some_and(|text| text.windows(MARK.len()).any(|window| window == MARK))
    }
}

fn stem(name: &str) -> &str {
    name.strip_suffix("Fast").unwrap_or(name)
}

fn class_of(name: &str) -> Result<Class, String> {
    let known = BUILT
        .iter()
        .find(|(known, _)| *known == name || *known == stem(name));
    match known {
        Some((_, class)) => Ok(*class),
        None if NOT_BUILT.contains(&stem(name)) => Err(name.to_string()),
        None => Ok(Class::Plain),
    }
}

impl Class {
    /// The name that makes transformers choose it.
    pub fn name(self) -> &'static str {
        match self {
            Class::Plain => "PreTrainedTokenizerFast",
            Class::Gpt2 => "GPT2Tokenizer",
            Class::CodeGen => "CodeGenTokenizer",
            Class::Roberta => "RobertaTokenizer",
            Class::Qwen2 => "Qwen2Tokenizer",
            Class::GptNeoX => "GPTNeoXTokenizer",
            Class::Gemma => "GemmaTokenizer",
            Class::Llama => "LlamaTokenizer",
            Class::Bert => "BertTokenizer",
            Class::DistilBert => "DistilBertTokenizer",
            Class::Albert => "AlbertTokenizer",
            Class::XlmRoberta => "XLMRobertaTokenizer",
        }
    }

    /// Special tokens of directories that name none.
    pub fn usual_tokens(self) -> &'static [(&'static str, &'static str)] {
        const END: &str = "<|endoftext|>";
        match self {
            Class::Plain => &[],
            Class::Gpt2 | Class::CodeGen => {
                &[("bos_token", END), ("eos_token", END), ("unk_token", END)]
            }
            Class::GptNeoX => &[
                ("bos_token", END),
                ("eos_token", END),
                ("unk_token", END),
                ("pad_token", "<|padding|>"),
            ],
            Class::Qwen2 => &[("eos_token", END), ("unk_token", END), ("pad_token", END)],
            Class::Roberta | Class::XlmRoberta => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
                ("sep_token", "</s>"),
                ("pad_token", "<pad>"),
                ("cls_token", "<s>"),
                ("mask_token", "<mask>"),
            ],
            Class::Gemma => &[
                ("bos_token", "<bos>"),
                ("eos_token", "<eos>"),
                ("unk_token", "<unk>"),
                ("pad_token", "<pad>"),
                ("mask_token", "<mask>"),
            ],
            Class::Llama => &[
                ("bos_token", "<s>"),
                ("eos_token", "</s>"),
                ("unk_token", "<unk>"),
            ],
            Class::Bert | Class::DistilBert => &[
                ("unk_token", "[UNK]"),
                ("sep_token", "[SEP]"),
                ("pad_token", "[PAD]"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
            Class::Albert => &[
                ("bos_token", "[CLS]"),
                ("eos_token", "[SEP]"),
                ("unk_token", "<unk>"),
                ("sep_token", "[SEP]"),
                ("pad_token", "<pad>"),
                ("cls_token", "[CLS]"),
                ("mask_token", "[MASK]"),
            ],
        }
    }

    /// Whether padding goes before texts where nothing says so.
    pub fn pads_left(self) -> bool {
        matches!(self, Class::Gemma | Class::Llama)
    }

    /// Whether models get segments where nothing says so.
    pub fn has_segments(self) -> bool {
        self == Class::Bert
    }
}
