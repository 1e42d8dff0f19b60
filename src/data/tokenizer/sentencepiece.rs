//! Models of the sentencepiece library (sentencepiece_model.proto), as transformers' classes take
//! them: pieces, merges and what normalizes.

use std::collections::HashMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use prost::encoding::{self, DecodeContext};
use prost::{DecodeError, Message};
use serde_json::{Map, Value, json};

use super::bounds;
use super::class::Class;
use super::vocabulary::{Model, Vocabulary};

/// Only what a tokenizer is made of.
#[derive(Clone, PartialEq, Message)]
struct SentencePieceModel {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<Trainer>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<Normalizer>,
}

#[derive(Clone, PartialEq, Message)]
struct Piece {
    #[prost(string, optional, tag = "1")]
    piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    /// 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Trainer {
    /// 1 unigram, 2 BPE, 3 word, 4 char.
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
    #[prost(bool, optional, tag = "35")]
    byte_fallback: Option<bool>,
    #[prost(int32, optional, tag = "40")]
    unk_id: Option<i32>,
    #[prost(int32, optional, tag = "41")]
    bos_id: Option<i32>,
    #[prost(int32, optional, tag = "42")]
    eos_id: Option<i32>,
    #[prost(string, optional, tag = "45")]
    unk_piece: Option<String>,
    #[prost(string, optional, tag = "46")]
    bos_piece: Option<String>,
    #[prost(string, optional, tag = "47")]
    eos_piece: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Normalizer {
    #[prost(bytes = "vec", optional, tag = "2")]
    precompiled_charsmap: Option<Vec<u8>>,
}

const UNIGRAM: i32 = 1;
const BPE: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// Bytes that may be compared to find merges. A large vocabulary takes a hundredth.
const MOST_WORK: usize = 1 << 30;

/// The vocabulary of a model's bytes for a class. `Err` says what it is not.
pub(super) fn read(bytes: &[u8], class: Class) -> Result<Vocabulary, String> {
    let no_model = |error| format!("no sentencepiece model: {error}");
    bounds::check_tokens(count_pieces(bytes).map_err(no_model)?)?;
    let file = SentencePieceModel::decode(bytes).map_err(no_model)?;
    let lengths = file.pieces.iter().map(|piece| piece.piece().len());
    bounds::check_length(lengths.max().unwrap_or(0))?;
    let trainer = file.trainer.clone().unwrap_or_default();
    let kind = trainer.model_type.unwrap_or(UNIGRAM);
    let wants_bpe = match class {
        Class::Albert | Class::XlmRoberta => false,
        Class::Plain => kind != UNIGRAM,
        _ => true,
    };
    if (kind, wants_bpe) != (UNIGRAM, false) && (kind, wants_bpe) != (BPE, true) {
        return Err(format!(
            "it is a sentencepiece model of another kind than its class {} reads (1 unigram, 2 BPE; here {kind})",
            class.name()
        ));
    }
    let unk = trainer.unk_piece.clone().unwrap_or("<unk>".into());
    let byte_fallback = trainer.byte_fallback();
    let model = if wants_bpe {
        let (vocab, merges) = bpe(&file.pieces)?;
        match class {
            Class::Plain => Model::Pieces {
                vocab,
                merges,
                unk,
                byte_fallback,
            },
            _ => Model::Bpe { vocab, merges },
        }
    } else {
        Model::Unigram {
            vocab: unigram(&file.pieces, class),
            unk: usize::try_from(trainer.unk_id.unwrap_or(0)).unwrap_or(0),
            byte_fallback,
        }
    };
    let charsmap = file
        .normalizer
        .unwrap_or_default()
        .precompiled_charsmap
        .unwrap_or_default();
    let charsmap = (!charsmap.is_empty()).then(
        || json!({"type": "Precompiled", "precompiled_charsmap": BASE64_STANDARD.encode(charsmap)}),
    );
    let is_named = |piece: &&Piece| [CONTROL, USER_DEFINED].contains(&piece.kind());
    let named = file.pieces.iter().filter(is_named).map(|piece| {
        json!({"__type": "AddedToken", "content": piece.piece(), "normalized": false, "special": piece.kind() == CONTROL})
    });
    Ok(Vocabulary {
        model,
        charsmap,
        pieces: Some(named.collect()),
        named: match class {
            Class::Plain => names(trainer),
            _ => Vec::new(),
        },
        frame: None,
    })
}

/// The pieces of a sentencepiece model, which may take far more memory than their bytes.
fn count_pieces(bytes: &[u8]) -> Result<usize, DecodeError> {
    let (mut rest, mut pieces) = (bytes, 0);
    while !rest.is_empty() {
        let (tag, kind) = encoding::decode_key(&mut rest)?;
        encoding::skip_field(kind, tag, &mut rest, DecodeContext::default())?;
        pieces += usize::from(tag == 1);
    }
    Ok(pieces)
}

/// The special tokens that a model's training named.
fn names(trainer: Trainer) -> Vec<(&'static str, String)> {
    let named = [
        (
            "bos_token",
            trainer.bos_id.unwrap_or(1),
            trainer.bos_piece,
            "<s>",
        ),
        (
            "eos_token",
            trainer.eos_id.unwrap_or(2),
            trainer.eos_piece,
            "</s>",
        ),
        (
            "unk_token",
            trainer.unk_id.unwrap_or(0),
            trainer.unk_piece,
            "<unk>",
        ),
    ];
    named
        .into_iter()
        .filter(|(_, id, _, _)| *id >= 0)
        .map(|(key, _, piece, usual)| (key, piece.unwrap_or(usual.into())))
        .collect()
}

/// Pieces with their scores; XLM-RoBERTa's begin with fairseq's own order and end with the mask.
fn unigram(pieces: &[Piece], class: Class) -> Value {
    let entries = pieces
        .iter()
        .map(|piece| json!([piece.piece(), piece.score()]));
    match class {
        Class::XlmRoberta => {
            let first = ["<s>", "<pad>", "</s>", "<unk>"];
            let first = first.into_iter().map(|token| json!([token, 0.0]));
            let last = json!(["<mask>", 0.0]);
            first.chain(entries.skip(3)).chain([last]).collect()
        }
        _ => entries.collect(),
    }
}

/// Pieces by their ids, and all ways to put one together of two others, in the order of the pieces.
fn bpe(pieces: &[Piece]) -> Result<(Value, Value), String> {
    // Each place of a piece is a way to cut it.
    let squares = pieces.iter().map(|piece| piece.piece().len().pow(2));
    if squares.sum::<usize>() > MOST_WORK {
        return Err("its pieces are far longer than words".to_string());
    }
    let ids: HashMap<&str, usize> = pieces
        .iter()
        .enumerate()
        .map(|(id, piece)| (piece.piece(), id))
        .collect();
    let mut seen = std::collections::HashSet::new();
    let mut merges: Vec<(usize, usize, usize, &str, &str)> = Vec::new();
    for piece in pieces.iter().map(Piece::piece) {
        if !seen.insert(piece) {
            continue;
        }
        let mut ways: Vec<(&str, &str)> = piece
            .char_indices()
            .skip(1)
            .map(|(at, _)| piece.split_at(at))
            .filter(|(left, right)| ids.contains_key(left) && ids.contains_key(right))
            .collect();
        ways.sort_by_key(|(left, right)| (ids[left], ids[right]));
        let id = ids[piece];
        merges.extend(
            ways.into_iter().map(|(left, right)| {
                (id, left.chars().count(), right.chars().count(), left, right)
            }),
        );
        bounds::check_tokens(merges.len())?;
    }
    merges.sort_by_key(|(id, left, right, _, _)| (*id, *left, *right));
    let vocab: Map<String, Value> = pieces
        .iter()
        .map(|piece| (piece.piece().to_string(), ids[piece.piece()].into()))
        .collect();
    let merges: Vec<Value> = merges
        .into_iter()
        .map(|(_, _, _, left, right)| json!([left, right]))
        .collect();
    Ok((vocab.into(), merges.into()))
}
