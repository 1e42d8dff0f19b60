//! What every format of tables reads a cell as.

/// One cell of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Text(String),
    /// A number or truth value of a format that tells them from text, as it would be written.
    Number(String),
    /// The number of a class whose name the file declares.
    Class {
        number: i64,
        name: String,
    },
    /// Null, or no such key in this row.
    Missing,
    /// A list of cells, such as a sentence's words.
    List(Vec<Cell>),
    /// Anything else, by what it is.
    Other(&'static str),
}
