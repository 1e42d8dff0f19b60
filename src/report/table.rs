//! Aligned text tables: the plan that `--dry_run` prints, results, lists.

use super::printable::one_line;
use std::fmt::Display;

enum Row {
    Heading(String),
    Cells(Vec<String>),
}

/// Rows of cells under optional headings; columns are as wide as their widest cell.
pub struct Table {
    /// As [`Table::new`] has it.
    align: &'static str,
    rows: Vec<Row>,
}

impl Table {
    /// A letter for each column, as LaTeX's tabular has it: `l` for text on the left of its width,
    /// `r` for text on the right. Further columns are on the left.
    pub fn new(align: &'static str) -> Table {
        Table {
            align,
            rows: Vec::new(),
        }
    }

    /// Names on the left, values beside them: a plan.
    pub fn pairs() -> Table {
        Table::new("ll")
    }

    /// A row of a name and its value.
    pub fn pair(&mut self, name: impl Display, value: impl Display) -> &mut Table {
        self.row([name.to_string(), value.to_string()])
    }

    /// A line of its own above the rows that follow, which are indented.
    pub fn heading(&mut self, text: impl Into<String>) -> &mut Table {
        let text = one_line(&text.into()).into_owned();
        self.rows.push(Row::Heading(text));
        self
    }

    /// A row; missing cells are empty, surplus ones are aligned left. Others' text is one line in its
    /// cell, as wide as it is shown.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) -> &mut Table {
        let cell = |cell: T| one_line(&cell.into()).into_owned();
        self.rows
            .push(Row::Cells(cells.into_iter().map(cell).collect()));
        self
    }

    /// The text, each line ended; no line ends in blanks.
    pub fn render(&self) -> String {
        let mut widths: Vec<usize> = Vec::new();
        for row in &self.rows {
            if let Row::Cells(cells) = row {
                for (i, cell) in cells.iter().enumerate() {
                    let width = cell.chars().count();
                    match widths.get_mut(i) {
                        Some(widest) => *widest = width.max(*widest),
                        None => widths.push(width),
                    }
                }
            }
        }
        let indent = if self.rows.iter().any(|row| matches!(row, Row::Heading(_))) {
            "  "
        } else {
            ""
        };
        let mut text = String::new();
        for row in &self.rows {
            match row {
                Row::Heading(heading) => text.push_str(heading),
                Row::Cells(cells) => {
                    let mut line = String::from(indent);
                    for (i, cell) in cells.iter().enumerate() {
                        let gap = " ".repeat(widths[i] - cell.chars().count());
                        let between = if i == 0 { "" } else { "  " };
                        if self.align[i.min(self.align.len())..].starts_with('r') {
                            line.extend([between, &gap, cell]);
                        } else {
                            line.extend([between, cell, &gap]);
                        }
                    }
                    text.push_str(line.trim_end());
                }
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new("lr");
        table
            .heading("Batch")
            .row(["examples", "8"])
            .row(["tokens", "1,024", "per microbatch"]);
        table.heading("Größe").row(["ä"]);
        assert_eq!(
            table.render(),
            "Batch\n  examples      8\n  tokens    1,024  per microbatch\nGröße\n  ä\n"
        );
    }

    #[test]
    fn what_others_wrote_stays_in_its_cell() {
        let mut table = Table::pairs();
        table.pair("a\n\x1b[2J", "b").pair("c", "d");
        assert_eq!(table.render(), "a\\n\\u001b[2J  b\nc             d\n");
    }

    #[test]
    fn without_headings_there_is_no_indent() {
        let mut table = Table::pairs();
        table.pair("device", "cpu").pair("model", "gpt2");
        assert_eq!(table.render(), "device  cpu\nmodel   gpt2\n");
    }
}
