//! What the classes build on: a model with its vocabulary, whichever file it is of.

use serde_json::Value;

/// The model inside of a tokenizer, with its vocabulary as `tokenizer.json` writes it.
pub(super) enum Model {
    Bpe {
        vocab: Value,
        merges: Value,
    },
    WordPiece {
        vocab: Value,
    },
    Unigram {
        vocab: Value,
        unk: usize,
        byte_fallback: bool,
    },
    /// A BPE of a sentencepiece model, with what that says of unknown characters.
    Pieces {
        vocab: Value,
        merges: Value,
        unk: String,
        byte_fallback: bool,
    },
    Words,
}

impl Model {
    pub fn kind(&self) -> &'static str {
        match self {
            Model::Bpe { .. } | Model::Pieces { .. } => "a BPE",
            Model::WordPiece { .. } => "a WordPiece model",
            Model::Unigram { .. } => "a unigram model",
            Model::Words => "a list of words",
        }
    }
}

/// A vocabulary and what comes with it.
pub(super) struct Vocabulary {
    pub model: Model,
    /// How a sentencepiece model normalizes, as a normalizer of `tokenizer.json`.
    pub charsmap: Option<Value>,
    /// Tokens of a sentencepiece model that are not pieces of text.
    pub pieces: Option<Vec<Value>>,
    /// Special tokens that the file names.
    pub named: Vec<(&'static str, String)>,
    /// The definition without its vocabulary; `None` of earlier files.
    pub frame: Option<Value>,
}

impl Vocabulary {
    /// Of a model alone.
    pub fn of(model: Model) -> Vocabulary {
        Vocabulary {
            model,
            charsmap: None,
            pieces: None,
            named: Vec::new(),
            frame: None,
        }
    }
}
