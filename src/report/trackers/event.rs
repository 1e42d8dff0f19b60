//! TensorBoard's event files: the messages of `event.proto` and `summary.proto` that scalars, texts
//! and hyperparameters need, and the records (TFRecord: length, checksum, message, checksum) that
//! they are written in.

use crc_fast::CrcAlgorithm;
use prost::Message;
use std::collections::BTreeMap;
use std::io;

/// `tensorflow.Event`.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    #[prost(int64, tag = "2")]
    pub step: i64,
    #[prost(oneof = "What", tags = "3, 5, 7")]
    pub what: Option<What>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum What {
    /// The first event of a file.
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
    #[prost(message, tag = "7")]
    SessionLog(SessionLog),
}

/// A start, from which on everything that an earlier file has of this step and later ones is void.
#[derive(Clone, PartialEq, Message)]
pub struct SessionLog {
    #[prost(int32, tag = "1")]
    pub status: i32,
}

/// `SessionLog.START`.
pub const SESSION_START: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Value {
    #[prost(string, tag = "1")]
    pub tag: String,
    #[prost(float, optional, tag = "2")]
    pub simple_value: Option<f32>,
    #[prost(message, optional, tag = "8")]
    pub tensor: Option<Tensor>,
    #[prost(message, optional, tag = "9")]
    pub metadata: Option<Metadata>,
}

/// `TensorProto`, of texts.
#[derive(Clone, PartialEq, Message)]
pub struct Tensor {
    #[prost(int32, tag = "1")]
    pub dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<Shape>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub string_val: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Shape {
    #[prost(message, repeated, tag = "2")]
    pub dim: Vec<Dim>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Dim {
    #[prost(int64, tag = "1")]
    pub size: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    #[prost(message, optional, tag = "1")]
    pub plugin: Option<Plugin>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Plugin {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(bytes = "vec", tag = "2")]
    pub content: Vec<u8>,
}

/// `tensorboard.hparams.HParamsPluginData`.
#[derive(Clone, PartialEq, Message)]
pub struct HParams {
    #[prost(message, optional, tag = "3")]
    pub start: Option<HParamsStart>,
    #[prost(message, optional, tag = "4")]
    pub end: Option<HParamsEnd>,
}

#[derive(Clone, PartialEq, Message)]
pub struct HParamsStart {
    #[prost(btree_map = "string, message", tag = "1")]
    pub hparams: BTreeMap<String, Parameter>,
    #[prost(double, tag = "5")]
    pub start_seconds: f64,
}

#[derive(Clone, PartialEq, Message)]
pub struct HParamsEnd {
    /// 1: it succeeded, 2: it failed.
    #[prost(int32, tag = "1")]
    pub status: i32,
    #[prost(double, tag = "2")]
    pub end_seconds: f64,
}

/// `google.protobuf.Value`.
#[derive(Clone, PartialEq, Message)]
pub struct Parameter {
    #[prost(oneof = "ParameterKind", tags = "2, 3, 4")]
    pub kind: Option<ParameterKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ParameterKind {
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(bool, tag = "4")]
    Bool(bool),
}

const DT_FLOAT: i32 = 1;
const DT_STRING: i32 = 7;

impl Value {
    pub fn scalar(tag: String, value: f64) -> Value {
        Value {
            tag,
            simple_value: Some(value as f32),
            ..Value::default()
        }
    }

    /// A text as the text plugin shows it, which is Markdown.
    pub fn text(tag: &str, text: String) -> Value {
        let shape = Shape {
            dim: vec![Dim { size: 1 }],
        };
        Value {
            tag: format!("{tag}/text_summary"),
            tensor: Some(Tensor {
                dtype: DT_STRING,
                shape: Some(shape),
                string_val: vec![text.into_bytes()],
            }),
            // An empty content is the plugin's version 0.
            metadata: Some(Metadata::of("text", Vec::new())),
            simple_value: None,
        }
    }

    /// Data of the hyperparameter plugin.
    pub fn hparams(tag: &str, data: &HParams) -> Value {
        let shape = Shape {
            dim: vec![Dim { size: 0 }],
        };
        Value {
            tag: format!("_hparams_/{tag}"),
            tensor: Some(Tensor {
                dtype: DT_FLOAT,
                shape: Some(shape),
                string_val: Vec::new(),
            }),
            metadata: Some(Metadata::of("hparams", data.encode_to_vec())),
            simple_value: None,
        }
    }
}

impl Metadata {
    fn of(plugin: &str, content: Vec<u8>) -> Metadata {
        Metadata {
            plugin: Some(Plugin {
                name: plugin.to_string(),
                content,
            }),
        }
    }
}

/// Appends an event as a record.
pub fn append(bytes: &mut Vec<u8>, event: &Event) {
    let message = event.encode_to_vec();
    let length = (message.len() as u64).to_le_bytes();
    bytes.extend(length);
    bytes.extend(masked_crc32c(&length).to_le_bytes());
    bytes.extend(&message);
    bytes.extend(masked_crc32c(&message).to_le_bytes());
}

/// The events of a file, up to a record that is not whole, as a killed process may leave one.
///
/// # Errors
/// If a whole record has a wrong checksum or is no event.
pub fn read(mut bytes: &[u8]) -> io::Result<Vec<Event>> {
    let damaged = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_string());
    let mut events = Vec::new();
    while let Some((head, rest)) = bytes.split_at_checked(12) {
        let length: [u8; 8] = head[..8].try_into().expect("eight of twelve bytes");
        if masked_crc32c(&length).to_le_bytes() != head[8..] {
            return Err(damaged("a record's length has a wrong checksum"));
        }
        let length = usize::try_from(u64::from_le_bytes(length));
        let length = length.map_err(|_| damaged("a record is too long"))?;
        let Some((message, rest)) = rest.split_at_checked(length) else {
            break;
        };
        let Some((checksum, rest)) = rest.split_at_checked(4) else {
            break;
        };
        if masked_crc32c(message).to_le_bytes() != checksum {
            return Err(damaged("a record has a wrong checksum"));
        }
        events.push(Event::decode(message).map_err(|error| damaged(&error.to_string()))?);
        bytes = rest;
    }
    Ok(events)
}

/// TFRecord's checksum: CRC-32C, rotated so that checksums of checksums stay good ones.
fn masked_crc32c(bytes: &[u8]) -> u32 {
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnolis() {
        // The check value of CRC-32C in the catalogue of CRC algorithms.
        let unmasked = masked_crc32c(b"123456789").wrapping_sub(0xa282_ead8);
        assert_eq!(unmasked.rotate_left(15), 0xe306_9283);
    }

    #[test]
    fn records_are_read_back_up_to_one_that_is_not_whole() {
        let event = |step| Event {
            wall_time: 1.5,
            step,
            what: Some(What::Summary(Summary {
                value: vec![
                    Value::scalar("train/loss".into(), 2.5),
                    Value::text("args", "{}".into()),
                ],
            })),
        };
        let mut bytes = Vec::new();
        append(&mut bytes, &event(1));
        let first = bytes.len();
        append(&mut bytes, &event(2));
        assert_eq!(read(&bytes).unwrap(), [event(1), event(2)]);
        for length in [first, first + 5, first + 12, bytes.len() - 1] {
            assert_eq!(read(&bytes[..length]).unwrap(), [event(1)], "{length}");
        }
        bytes[first - 1] ^= 1;
        assert!(read(&bytes).is_err());
    }
}
