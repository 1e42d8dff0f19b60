//! What every format of tables reads a cell as.

use serde_json::Value;

/// The label of what has none: torch's losses and transformers pass over it.
pub const IGNORED: &str = "-100";

/// One cell of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Text(String),
    /// A number or truth value of a format that tells them from text, as it would be written.
    Number(String),
    /// A date or a time of a format that tells them from text.
    Time(String),
    /// The number of a class whose name the file declares.
    Class {
        number: i64,
        name: String,
    },
    /// Null, or no such key in this row.
    Missing,
    /// A list of cells, such as a sentence's words.
    List(Vec<Cell>),
    /// A structure: its fields by name, such as the role and content of a message.
    Fields(Vec<(String, Cell)>),
}

impl Cell {
    /// A number of a format that tells fractions from whole numbers, written so that it stays one.
    pub fn fraction(value: f64) -> Cell {
        Cell::Number(format!("{value:?}"))
    }

    /// The value that it was read from; a class is its number, as `datasets` has it.
    pub fn into_json(self) -> Value {
        match self {
            Cell::Text(text) | Cell::Time(text) => text.into(),
            // What is no number is one that JSON cannot write, such as NaN.
            Cell::Number(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
            Cell::Class { number, .. } => number.into(),
            Cell::Missing => Value::Null,
            Cell::List(cells) => cells.into_iter().map(Cell::into_json).collect(),
            Cell::Fields(fields) => {
                let fields = fields.into_iter();
                fields
                    .map(|(name, cell)| (name, cell.into_json()))
                    .collect()
            }
        }
    }

    /// Bytes of the longest text in it.
    pub fn longest_text(&self) -> usize {
        match self {
            Cell::Text(text) => text.len(),
            Cell::List(cells) => cells.iter().map(Cell::longest_text).max().unwrap_or(0),
            Cell::Fields(fields) => {
                let cells = fields.iter().map(|(_, cell)| cell.longest_text());
                cells.max().unwrap_or(0)
            }
            Cell::Number(_) | Cell::Time(_) | Cell::Class { .. } | Cell::Missing => 0,
        }
    }
}
