//! The page as Markdown.

use super::report::Report;
use super::tables::{Section, sections};
use crate::printable;
use std::fmt::Write;

/// The page as Markdown.
pub fn markdown(report: &Report) -> String {
    let mut text = format!("# {}\n", printable::markdown(&report.title()));
    for section in sections(report) {
        let Section {
            title,
            notes,
            header,
            rows,
        } = section;
        let _ = write!(text, "\n## {title}\n\n");
        if !rows.is_empty() {
            let line = |cells: &[String]| {
                let cells = cells.iter().map(|cell| printable::markdown(cell));
                let cells: Vec<String> = cells.collect();
                format!("| {} |\n", cells.join(" | "))
            };
            text.push_str(&line(&header));
            text.push_str(&format!("|{}\n", "---|".repeat(header.len())));
            rows.iter().for_each(|row| text.push_str(&line(row)));
        }
        for note in notes {
            let _ = write!(text, "\n{}\n", printable::markdown(&note));
        }
    }
    text
}
