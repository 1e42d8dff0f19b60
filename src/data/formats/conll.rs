//! CoNLL columns: a word a line, its columns separated by blanks, the word first and its label
//! last; a blank line ends a sentence, and `-DOCSTART-` lines are passed over.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::input::{BYTE_ORDER_MARK, Bookmark};
use super::text::Lines;
use crate::data::error::{Error, Place, Result};

/// Words with their labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Sentence {
    /// The line of its first word.
    pub place: Place,
    pub words: Vec<String>,
    /// `None` for a word that stands alone on its line.
    pub labels: Vec<Option<String>>,
}

/// Sentences of a file, streaming.
pub struct ConllReader {
    lines: Lines,
    path: std::path::PathBuf,
}

impl ConllReader {
    /// Opens a file; raw bytes read are added to `count`.
    ///
    /// # Errors
    /// The file cannot be read or is empty.
    pub fn open(path: &Path, count: Arc<AtomicU64>) -> Result<ConllReader> {
        Ok(ConllReader {
            lines: Lines::open_counted(path, count)?,
            path: path.to_path_buf(),
        })
    }

    /// Where the next sentence begins.
    pub fn bookmark(&self) -> Bookmark {
        self.lines.bookmark()
    }

    /// Resumes at a bookmark of the same file.
    ///
    /// # Errors
    /// The file cannot be read, or ends before the bookmark.
    pub fn resume(&mut self, bookmark: &Bookmark) -> Result<()> {
        self.lines.resume(bookmark, Arc::default())
    }

    fn read(&mut self) -> Result<Option<Sentence>> {
        let mut sentence: Option<Sentence> = None;
        loop {
            let line = self.lines.next().transpose()?;
            let number = self.lines.bookmark().lines;
            let mut text = line.as_deref().unwrap_or_default();
            if number == 1 {
                text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
            }
            let mut columns = text.split_whitespace();
            match (columns.next(), &mut sentence) {
                (Some("-DOCSTART-"), _) => {}
                (Some(word), _) => {
                    let sentence = sentence.get_or_insert_with(|| Sentence {
                        place: Place::line(&self.path, number),
                        words: Vec::new(),
                        labels: Vec::new(),
                    });
                    sentence.words.push(word.to_string());
                    sentence.labels.push(columns.last().map(str::to_string));
                }
                (None, Some(_)) => return Ok(sentence),
                (None, None) if line.is_none() => return Ok(None),
                (None, None) => {}
            }
        }
    }
}

impl Iterator for ConllReader {
    type Item = Result<Sentence>;

    fn next(&mut self) -> Option<Result<Sentence>> {
        self.read().transpose()
    }
}

/// The error for a word without a label.
pub fn no_label(sentence: &Sentence, word: usize) -> Error {
    Error::BadRow {
        place: sentence.place.clone(),
        reason: format!(
            "word {} of the sentence, {:?}, stands alone on its line; its label is expected in the \
             last column",
            word + 1,
            sentence.words[word]
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_not_of_the_first_word() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.conll");
        std::fs::write(&path, "\u{feff}EU B-ORG\n").unwrap();
        let mut reader = ConllReader::open(&path, Arc::default()).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().words, ["EU"]);
    }

    #[test]
    fn sentences_end_at_blank_lines_and_documents_have_no_words() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.conll");
        let text = "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nPeter B-PER\r\nlone\n";
        std::fs::write(&path, text).unwrap();
        let mut reader = ConllReader::open(&path, Arc::default()).unwrap();
        let first = reader.next().unwrap().unwrap();
        assert_eq!(first.words, ["EU", "rejects"]);
        assert_eq!(first.labels, [Some("B-ORG".into()), Some("O".into())]);
        assert!(first.place.to_string().ends_with("x.conll:3"));
        let bookmark = reader.bookmark();
        let second = reader.next().unwrap().unwrap();
        assert_eq!(second.words, ["Peter", "lone"]);
        assert_eq!(second.labels, [Some("B-PER".into()), None]);
        assert!(
            no_label(&second, 1)
                .to_string()
                .contains("x.conll:7: word 2")
        );
        assert!(reader.next().is_none());
        let mut again = ConllReader::open(&path, Arc::default()).unwrap();
        again.resume(&bookmark).unwrap();
        assert_eq!(again.next().unwrap().unwrap(), second);
    }
}
