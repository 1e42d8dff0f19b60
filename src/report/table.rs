//! Aligned text tables: the plan that `--dry_run` prints, results, lists.

/// Where a column's text stands in its width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Align {
    Left,
    Right,
}

enum Row {
    Heading(String),
    Cells(Vec<String>),
}

/// Rows of cells under optional headings; columns are as wide as their widest cell.
pub struct Table {
    align: Vec<Align>,
    rows: Vec<Row>,
}

impl Table {
    pub fn new(align: &[Align]) -> Table {
        Table {
            align: align.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Names on the left, values beside them: a plan.
    pub fn pairs() -> Table {
        Table::new(&[Align::Left, Align::Left])
    }

    /// A line of its own above the rows that follow, which are indented.
    pub fn heading(&mut self, text: impl Into<String>) -> &mut Table {
        self.rows.push(Row::Heading(text.into()));
        self
    }

    /// A row; missing cells are empty, surplus ones are aligned left.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) -> &mut Table {
        self.rows
            .push(Row::Cells(cells.into_iter().map(Into::into).collect()));
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
                        match self.align.get(i) {
                            Some(Align::Right) => line.extend([between, &gap, cell]),
                            _ => line.extend([between, cell, &gap]),
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
        let mut table = Table::new(&[Align::Left, Align::Right]);
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
    fn without_headings_there_is_no_indent() {
        let mut table = Table::pairs();
        table.row(["device", "cpu"]).row(["model", "gpt2"]);
        assert_eq!(table.render(), "device  cpu\nmodel   gpt2\n");
    }
}
