//! CoNLL columns: a word a line, the word first and its label last. Where a line has tabs they
//! separate its columns, so that words may hold spaces; else spaces do. A blank line ends a sentence,
//! and `-DOCSTART-` lines and comments are passed over.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::input::{BYTE_ORDER_MARK, Bookmark};
use super::text::Lines;
use crate::error::{Error, Place, Result};

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
    /// Tabs separate the columns of its first line with a word: then spaces never do.
    has_tabs: bool,
}

impl ConllReader {
    /// Opens a file; raw bytes read are added to `count`.
    ///
    /// # Errors
    /// The file cannot be read or is empty, or its first column counts the words.
    pub fn open(path: &Path, count: Arc<AtomicU64>) -> Result<ConllReader> {
        let mut reader = ConllReader {
            lines: Lines::open_counted(path, Arc::default())?,
            path: path.to_path_buf(),
            has_tabs: false,
        };
        reader.has_tabs = reader.looks_tabbed()?;
        reader.lines = Lines::open_counted(path, Arc::default())?;
        reader.refuse_counted_words()?;
        reader.lines = Lines::open_counted(path, count)?;
        Ok(reader)
    }

    fn looks_tabbed(&mut self) -> Result<bool> {
        for line in &mut self.lines {
            let line = line?;
            let text = line.trim_start_matches(BYTE_ORDER_MARK);
            let is_passed_over =
                text.trim().is_empty() || text.starts_with(DOCUMENT) || text.starts_with('#');
            if !is_passed_over || text.contains('\t') {
                return Ok(text.contains('\t'));
            }
        }
        Ok(false)
    }

    /// CoNLL-U and its like number the words in the first column: their words are elsewhere.
    fn refuse_counted_words(&mut self) -> Result<()> {
        let Ok(Some(first)) = self.read() else {
            return Ok(());
        };
        let is_counted = |(i, word): (usize, &String)| *word == (i + 1).to_string();
        if first.words.len() < 3 || !first.words.iter().enumerate().all(is_counted) {
            return Ok(());
        }
        Err(Error::BadTable {
            path: self.path.clone(),
            reason: "the first column counts the words, as in CoNLL-U; leave it out, so that the word comes first and its label last".to_string(),
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
            let is_comment = sentence.is_none()
                && self.has_tabs
                && text.starts_with('#')
                && !text.contains('\t');
            let (first, label) = if is_comment {
                (Some(DOCUMENT), None)
            } else {
                columns(text, self.has_tabs)
            };
            match (first, &mut sentence) {
                (Some(DOCUMENT), _) => {}
                (Some(word), _) => {
                    let sentence = sentence.get_or_insert_with(|| Sentence {
                        place: Place::line(&self.path, number),
                        words: Vec::new(),
                        labels: Vec::new(),
                    });
                    sentence.words.push(word.to_string());
                    sentence.labels.push(label.map(str::to_string));
                }
                (None, Some(_)) => return Ok(sentence),
                (None, None) if line.is_none() => return Ok(None),
                (None, None) => {}
            }
        }
    }
}

/// What stands for no words.
const DOCUMENT: &str = "-DOCSTART-";

/// The first column and, if there are more, the last; nothing of a blank line.
fn columns(line: &str, has_tabs: bool) -> (Option<&str>, Option<&str>) {
    let line = line.trim_end_matches(['\n', '\r']);
    let is_blank = |c: char| c.is_ascii_whitespace();
    if has_tabs || line.contains('\t') {
        if line.trim_matches(' ').is_empty() {
            return (None, None);
        }
        let mut columns = line.split('\t');
        let word = columns.next();
        let label = columns
            .next_back()
            .map(|label| label.trim_matches(is_blank));
        return (word, label.filter(|label| !label.is_empty()));
    }
    let mut columns = line.split_ascii_whitespace();
    (columns.next(), columns.last())
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
    fn tabs_keep_words_whole_and_comments_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.conll");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            ConllReader::open(&path, Arc::default())?.collect::<Result<Vec<_>>>()
        };
        let words = |text: &str| -> Vec<Vec<String>> {
            let sentences = read(text).unwrap();
            sentences
                .into_iter()
                .map(|sentence| sentence.words)
                .collect()
        };
        let text = "# id = 1\nNew York\tNN\tB-LOC\nis\t\tO\n\n\u{a0}\tO\nin the\n";
        assert_eq!(
            words(text),
            [vec!["New York", "is"], vec!["\u{a0}", "in the"]]
        );
        let labels = &read(text).unwrap()[1].labels;
        assert_eq!(*labels, [Some("O".to_string()), None]);
        assert_eq!(words("a\u{a0}b  NN O\n#  O\n"), [vec!["a\u{a0}b", "#"]]);
        let error = read("# text\n1\ta\tO\n2\tb\tO\n3\tc\tO\n").unwrap_err();
        assert!(error.to_string().contains("counts the words"), "{error}");
    }

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
