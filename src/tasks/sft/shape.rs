//! What rows hold, recognized by a table's columns: conversations, prompts with completions, texts,
//! instructions, or tokens that come ready made.

use crate::chats::usual_role;
use xtrain_data::formats::cell::Cell;
use xtrain_data::formats::table::Table;
use xtrain_data::tokens::TokenColumns;
use xtrain_data::{Error, Result};

/// The columns of whole examples, in the order they are looked for; a file with both a prompt and
/// a completion has those instead.
const EXAMPLES: [&str; 3] = ["messages", "conversations", "text"];
/// Those of conversations.
pub(super) const CONVERSATIONS: [&str; 2] = ["messages", "conversations"];
const PROMPT: &str = "prompt";
const COMPLETION: &str = "completion";
/// Alpaca's columns.
const INSTRUCTION: &str = "instruction";
const INPUT: &str = "input";
const OUTPUT: &str = "output";
const SYSTEM: &str = "system";
/// Earlier turns, as LLaMA-Factory has them beside Alpaca's columns.
const HISTORY: &str = "history";
/// Those that a template reads besides the messages.
const VARIABLES: [&str; 3] = ["tools", "documents", "chat_template_kwargs"];

/// What a row holds, by the numbers of its columns.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    /// Ids, as TRL takes a set that has them for tokenized.
    Tokens(TokenColumns),
    Pair {
        prompt: usize,
        completion: usize,
    },
    /// A conversation or a text.
    Whole(usize),
    /// Alpaca's: the user's turn is the instruction, with the input on a line of its own, and the
    /// assistant's the output.
    Instruction {
        instruction: usize,
        output: usize,
        input: Option<usize>,
        system: Option<usize>,
    },
}

/// Which columns hold an example.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    pub shape: Shape,
    /// Tools, documents, further variables.
    pub variables: [Option<usize>; 3],
}

impl Columns {
    /// Those of a table; `named` is the column of whole examples that the user wants.
    ///
    /// # Errors
    /// There are none that sft reads.
    pub fn of(table: &Table, named: Option<&str>) -> Result<Columns> {
        // A dump of TRL's arguments names it, whatever the file has.
        let named = named.filter(|name| *name != "text" || table.find(Some(name), &[]).is_some());
        let find = |name: &str| table.find(None, &[name]);
        let both = |first, second| Some((find(first)?, find(second)?));
        let variables = VARIABLES.map(find);
        let of = |shape| Columns { shape, variables };
        if named.is_none() {
            if let Some(columns) = TokenColumns::of(table)? {
                return Ok(Columns {
                    shape: Shape::Tokens(columns),
                    variables: [None; 3],
                });
            }
            if let Some((prompt, completion)) = both(PROMPT, COMPLETION) {
                return Ok(of(Shape::Pair { prompt, completion }));
            }
        }
        let whole = table.column("text_column_name", named, &EXAMPLES);
        match (whole, both(INSTRUCTION, OUTPUT)) {
            (Ok(column), _) => Ok(of(Shape::Whole(column))),
            (Err(_), Some((instruction, output))) if named.is_none() => {
                if find(HISTORY).is_some() {
                    return Err(Error::BadTable {
                        path: table.path().to_path_buf(),
                        reason: format!(
                            "it has the column {HISTORY:?} beside {INSTRUCTION:?}: write conversations of several turns as messages"
                        ),
                    });
                }
                Ok(of(Shape::Instruction {
                    instruction,
                    output,
                    input: find(INPUT),
                    system: find(SYSTEM),
                }))
            }
            (Err(missing), _) => Err(table.no_column([missing])),
        }
    }

    /// The columns to choose: those of the shape, then the variables.
    pub fn chosen(&self) -> Vec<usize> {
        let mut chosen = match &self.shape {
            Shape::Tokens(columns) => columns.chosen(),
            Shape::Pair { prompt, completion } => vec![*prompt, *completion],
            Shape::Whole(column) => vec![*column],
            Shape::Instruction {
                instruction,
                output,
                input,
                system,
            } => {
                let more = [*input, *system].into_iter().flatten();
                [*instruction, *output].into_iter().chain(more).collect()
            }
        };
        chosen.extend(self.variables.into_iter().flatten());
        chosen
    }

    /// What a user should know of how rows are read; `first` are the cells of a row.
    pub fn description(&self, table: &Table, first: &[Cell]) -> String {
        let name = |column: usize| table.columns()[column].as_str();
        match &self.shape {
            Shape::Tokens(columns) => format!("tokens ({})", columns.names(table)),
            Shape::Pair { .. } => match first.first() {
                Some(Cell::List(turns)) => {
                    format!(
                        "prompts with completions, both conversations{}",
                        roles(turns)
                    )
                }
                _ => "prompts with completions".to_string(),
            },
            Shape::Whole(column) => match first.first() {
                Some(Cell::List(turns)) => {
                    format!("conversations ({}){}", name(*column), roles(turns))
                }
                _ => format!("texts ({})", name(*column)),
            },
            Shape::Instruction { input, system, .. } => {
                let user = match input {
                    Some(_) => "instruction and, on a line of its own, input are the user's turn",
                    None => "instruction is the user's turn",
                };
                let system = if system.is_some() {
                    ", system is the system's message"
                } else {
                    ""
                };
                format!("instructions (Alpaca): {user}, output the assistant's{system}")
            }
        }
    }
}

/// The part of the note on rows that names the roles in ShareGPT's conversations.
fn roles(turns: &[Cell]) -> &'static str {
    let field = |turn: &Cell, wanted: &str| match turn {
        Cell::Fields(fields) => {
            let found = fields.iter().find(|(name, _)| name == wanted);
            found.map(|(_, value)| value.clone())
        }
        _ => None,
    };
    let mut names = turns.iter().filter_map(|turn| field(turn, "from"));
    let is_sharegpt = names.any(|name| match name {
        Cell::Text(name) => usual_role(&name) != name,
        _ => false,
    });
    if is_sharegpt {
        " of ShareGPT, whose human and gpt are the user and the assistant"
    } else {
        ""
    }
}
