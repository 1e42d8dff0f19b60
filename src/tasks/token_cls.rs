//! Token classification, as run_ner prepares it: a sentence's words with a label each, of which the
//! first piece is labelled; seqeval's precision, recall and F1 over the entities that the labels
//! spell.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use xtrain_report::errln;

use serde_json::{Map, Value, json};
use xtrain_models::{HeadKind, IGNORED_LABEL, Objective, TokenLabel};

mod entities;

use super::columns::{LabelUse, name};
use super::{Context, Labelled, Length, Predicted, Predicting, Task};
use entities::Entities;
use xtrain_data::formats::cell::{Cell, IGNORED};
use xtrain_data::formats::conll::{ConllReader, Sentence, no_label};
use xtrain_data::formats::input::Bookmark;
use xtrain_data::formats::table::{Format, Row as TableRow, Table};
use xtrain_data::padding::Padding;
use xtrain_data::sequences::WordEncoder;
use xtrain_data::settings::{OnBadRow, PaddingSettings, SourceSettings};
use xtrain_data::{
    Batch, BatchRows, EncodedGroup, Error, HostLabels, Label, LabelMap, Recipe, Result, Row,
    Sample, SampleFile,
};
use xtrain_trainer::evaluate::Metrics;

/// The columns of words and of labels, in the order they are looked for.
const WORDS: [&str; 2] = ["tokens", "words"];
const LABELS: [&str; 2] = ["ner_tags", "labels"];

fn encoder(context: &Context) -> Result<WordEncoder> {
    let length = Some(context.length);
    WordEncoder::new(&context.tokenizer, length, context.spaces_words)
}

/// Sentences that a thread takes at a time.
const GROUP: usize = 256;

/// Classification of words.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenClsDataSettings {
    /// Files or Hub data set, and the columns or keys of the text.
    pub source: SourceSettings,
    /// `None`: `ner_tags` or `labels`.
    pub label_column: Option<String>,
    /// Longer sentences are truncated. `None`: the tokenizer's maximum length, at most 1024 and at
    /// most the model's positions.
    pub max_seq_length: Option<usize>,
    /// To which length rows are padded.
    pub padding: PaddingSettings,
    /// The labels in order, if the user named them. `None`: those of the model or of the training
    /// set, sorted.
    pub labels: Option<LabelMap>,
    /// Every piece of a word has its label (`I-X` after a first piece with `B-X`), not the first
    /// alone.
    pub label_all_tokens: bool,
    /// The scores of each kind of entity beside those of all, under run_ner's names.
    pub entity_level_metrics: bool,
}

impl Task for TokenClsDataSettings {
    fn name(&self) -> &'static str {
        "token-cls"
    }

    fn pipeline_tag(&self) -> &'static str {
        "token-classification"
    }

    fn source(&self) -> &SourceSettings {
        &self.source
    }

    fn check_file(&self, path: &Path, needs_labels: bool) -> Result<()> {
        WordFile::open(path, self, needs_labels, Arc::default()).map(drop)
    }

    fn length(&self, tokenizer_limit: Option<usize>, positions: usize) -> Result<Length> {
        Length::of_rows(self.max_seq_length, 1024, tokenizer_limit, positions)
    }

    fn padding(&self) -> Option<&PaddingSettings> {
        Some(&self.padding)
    }

    fn head(&self, labels: Option<&LabelMap>) -> HeadKind {
        HeadKind::TokenClassification {
            labels: labels.map_or(0, LabelMap::len),
        }
    }

    fn objective(&self, _labels: Option<&LabelMap>, smoothing: f64) -> Arc<dyn Objective> {
        Arc::new(TokenLabel { smoothing })
    }

    fn labelled(&self) -> Option<&dyn Labelled> {
        Some(self)
    }

    fn predicting(&self) -> Option<&dyn Predicting> {
        Some(self)
    }

    fn recipe(&self, context: &Context, needs_labels: bool) -> Result<Arc<dyn Recipe>> {
        let labels = context.run_labels();
        let inside = |name: &str| {
            let kind = name.strip_prefix("B-")?;
            labels.map.id(&format!("I-{kind}"))
        };
        let continued = labels.map.names().iter().enumerate();
        Ok(Arc::new(LabelledWords {
            labels: LabelUse {
                glue: None,
                labels: labels.clone(),
                needed: needs_labels,
            },
            continued: continued
                .map(|(id, name)| Label::class(inside(name).unwrap_or(id) as u32))
                .collect(),
            encoder: encoder(context)?,
            length: context.length,
            padding: Padding::of(&self.padding, context.length, &context.tokenizer)?,
            settings: self.clone(),
        }))
    }

    fn set_key(&self, context: &Context, needs_labels: bool) -> Value {
        let labels = context.run_labels();
        json!({
            "max_length": context.length,
            "spaces": context.spaces_words,
            "label": self.label_column,
            "labels": labels.map.key(),
            "numbers": labels.given,
            "needed": needs_labels,
            "all_tokens": self.label_all_tokens,
            "left": context.tokenizer.truncates_left,
        })
    }

    fn stream_key(&self, context: &Context) -> String {
        format!(
            "token-cls {:?} {} {:?} {:?}",
            self.label_column,
            self.label_all_tokens,
            context.run_labels().map.key(),
            self.padding
        )
    }

    fn splits_at_random(&self) -> bool {
        true
    }

    fn is_of_a_label(&self, metric: &str) -> bool {
        let scores = ["_precision", "_recall", "_f1", "_number"];
        self.entity_level_metrics && scores.iter().any(|score| metric.ends_with(score))
    }

    fn metrics(&self, labels: Option<&LabelMap>) -> Box<dyn Metrics> {
        let names = labels.map_or(&[][..], LabelMap::names);
        Box::new(Entities::new(names, self.entity_level_metrics))
    }
}

impl Labelled for TokenClsDataSettings {
    fn class(&self) -> &'static str {
        "ForTokenClassification"
    }

    fn named(&self) -> Option<&LabelMap> {
        self.labels.as_ref()
    }

    /// The labels that occur, sorted; or the classes that a parquet file declares, in their order.
    fn of_data(&self) -> Result<LabelMap> {
        let files = &self.source.train_files;
        if files.is_empty() {
            return Err(Error::NoFile { what: "train" });
        }
        if self.source.streaming.is_some() {
            let reason = "finding them would read the whole stream; name them, in order, with --labels O,B-PER,I-PER";
            return Err(Error::Labels {
                reason: reason.to_string(),
            });
        }
        let mut found = BTreeSet::new();
        for path in files {
            let mut file = WordFile::open(path, self, true, Arc::default())?;
            if let Some(names) = file.class_names() {
                return LabelMap::declared(names.to_vec());
            }
            while let Some(sentence) = file.read(true) {
                match sentence {
                    Ok(sentence) => found.extend(sentence.labels.into_iter().flatten()),
                    // It is counted when the sets are made.
                    Err(error)
                        if error.is_bad_row() && self.source.table.on_bad_row == OnBadRow::Skip => {
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        LabelMap::of_data(found.iter().map(String::as_str))
    }
}

impl Predicting for TokenClsDataSettings {
    fn prediction_file(&self) -> &'static str {
        if self.writes_columns() {
            "predictions.conll"
        } else {
            "predictions.jsonl"
        }
    }

    /// The words with their labels, as the test files have them: CoNLL columns, or a JSON object a
    /// sentence. Words beyond the maximum length have no label: `_`, or null.
    fn predictions(&self, predicted: &Predicted<'_>) -> String {
        let context = predicted.context;
        let labels = &context.run_labels().map;
        let encoder = encoder(context).expect("the test set was made with it");
        let (mut text, mut unlabelled) = (String::new(), 0);
        // Words with spaces would be several.
        let words = predicted.samples.iter().flat_map(|sample| &sample.texts);
        let has_spaces =
            |word: &String| word.is_empty() || word.contains(|c: char| c.is_ascii_whitespace());
        let separator = if words.into_iter().any(has_spaces) {
            '\t'
        } else {
            ' '
        };
        for (sample, output) in predicted.samples.iter().zip(predicted.outputs) {
            let encoded = encoder.encode(&sample.texts);
            let (sequence, words) = encoded.expect("the test set has its tokens");
            let start = if context.tokenizer.pads_left() {
                output.len() - words.len()
            } else {
                0
            };
            let mut tags: Vec<Option<&str>> = vec![None; sample.texts.len()];
            for (i, word) in words.iter().enumerate() {
                let is_first = sequence.flags[i] == 0;
                if let (Some(word), true) = (word, is_first) {
                    tags[*word as usize] = labels.name(output[start + i] as usize);
                }
            }
            unlabelled += tags.iter().filter(|tag| tag.is_none()).count();
            if self.writes_columns() {
                for (word, tag) in sample.texts.iter().zip(&tags) {
                    text.push_str(&format!("{word}{separator}{}\n", tag.unwrap_or("_")));
                }
            } else {
                let named = self.source.table.text_column.as_deref();
                let label = self.label_column.as_deref().unwrap_or(LABELS[0]);
                let mut line = Map::new();
                line.insert(named.unwrap_or(WORDS[0]).to_string(), json!(sample.texts));
                line.insert(label.to_string(), json!(tags));
                text.push_str(&Value::Object(line).to_string());
            }
            text.push('\n');
        }
        if unlabelled > 0 {
            errln!(
                "note: {unlabelled} words have no label: they begin beyond {} tokens (--max_seq_length), or have none",
                context.length
            );
        }
        text
    }
}

impl TokenClsDataSettings {
    /// Whether predictions are CoNLL columns, as all test files are.
    fn writes_columns(&self) -> bool {
        let files = &self.source.test_files;
        files.iter().all(|path| Format::of(path) == Format::Text)
    }
}

/// One open file of words with labels.
enum WordFile {
    Columns(ConllReader),
    Table {
        table: Box<Table>,
        words: usize,
        labels: Option<usize>,
    },
}

impl WordFile {
    fn open(
        path: &Path,
        settings: &TokenClsDataSettings,
        needs_labels: bool,
        count: Arc<AtomicU64>,
    ) -> Result<WordFile> {
        if Format::of(path) == Format::Text {
            return Ok(WordFile::Columns(ConllReader::open(path, count)?));
        }
        let mut table = Table::open(path, &settings.source.table, count)?;
        let named = settings.source.table.text_column.as_deref();
        let words = table.column("text_column_name", named, &WORDS);
        let named = settings.label_column.as_deref();
        let labels = table.column("label_column_name", named, &LABELS);
        let (words, labels) = match (words, labels) {
            (Ok(words), labels) if labels.is_ok() || !needs_labels => (words, labels.ok()),
            (words, labels) => {
                let labels = labels.err().filter(|_| needs_labels);
                return Err(table.no_column(words.err().into_iter().chain(labels)));
            }
        };
        table.choose(std::iter::once(words).chain(labels).collect())?;
        Ok(WordFile::Table {
            table: Box::new(table),
            words,
            labels,
        })
    }

    /// The classes that the file declares, in their order.
    fn class_names(&self) -> Option<&[String]> {
        match self {
            WordFile::Columns(_) => None,
            WordFile::Table { table, labels, .. } => table.class_names((*labels)?),
        }
    }

    fn read(&mut self, needs_labels: bool) -> Option<Result<Sentence>> {
        match self {
            WordFile::Columns(reader) => {
                let sentence = reader.next()?;
                Some(sentence.and_then(|sentence| {
                    match sentence.labels.iter().position(Option::is_none) {
                        Some(word) if needs_labels => Err(no_label(&sentence, word)),
                        _ => Ok(without_ignored(sentence)),
                    }
                }))
            }
            WordFile::Table {
                table,
                words,
                labels,
            } => {
                let row = table.next()?;
                let column = |column: usize| table.columns()[column].as_str();
                let (words, labels) = (column(*words), labels.map(column));
                let sentence = row.and_then(|row| sentence(row, words, labels, needs_labels));
                Some(sentence.map(without_ignored))
            }
        }
    }
}

/// A sentence whose words without a label have none, as run_ner's data has them that it aligned itself.
fn without_ignored(mut sentence: Sentence) -> Sentence {
    for label in &mut sentence.labels {
        label.take_if(|label| label.trim() == IGNORED);
    }
    sentence
}

/// The sentence of a table's row, whose columns of words and labels have these names.
fn sentence(
    row: TableRow,
    words: &str,
    labels: Option<&str>,
    needs_labels: bool,
) -> Result<Sentence> {
    let place = row.place.clone();
    let bad = |reason: String| Error::BadRow {
        place: place.clone(),
        reason,
    };
    let mut cells = row.cells.into_iter();
    let Some(Cell::List(found)) = cells.next() else {
        return Err(bad(format!("column {words:?} is no list of words")));
    };
    let word = |cell: Cell| match cell {
        Cell::Text(word) => Ok(word),
        // run_ner's tokenizer takes text alone.
        Cell::Number(word) => Err(bad(format!(
            "column {words:?} has the number {word} where a word is expected; write it in quotes"
        ))),
        _ => Err(bad(format!(
            "column {words:?} has an element that is no word"
        ))),
    };
    let found = found.into_iter().map(word).collect::<Result<Vec<_>>>()?;
    if found.is_empty() {
        return Err(bad(format!("column {words:?} has no words")));
    }
    let tags = match (labels, cells.next()) {
        (Some(_), Some(Cell::List(tags))) if tags.len() != found.len() => {
            return Err(bad(format!(
                "{} words, but {} labels; each word needs one",
                found.len(),
                tags.len()
            )));
        }
        (Some(labels), Some(Cell::List(tags))) => tags
            .iter()
            .map(|tag| match name(tag) {
                Ok(tag) => Ok(Some(tag)),
                Err(_) if !needs_labels => Ok(None),
                Err(what) => Err(bad(format!("column {labels:?}: {what}"))),
            })
            .collect::<Result<Vec<_>>>()?,
        (Some(labels), _) if needs_labels => {
            return Err(bad(format!("column {labels:?} is no list of labels")));
        }
        _ => vec![None; found.len()],
    };
    Ok(Sentence {
        place: row.place,
        words: found,
        labels: tags,
    })
}

/// One open file whose labels are looked up.
struct Sentences {
    file: WordFile,
    labels: LabelUse,
}

impl Sentences {
    fn sample(&self, sentence: Sentence) -> Result<Sample> {
        let label = |name: &Option<String>| {
            let found = name.as_deref().map(|name| self.labels.find(name));
            found.unwrap_or(Ok(None)).map_err(|reason| Error::BadRow {
                place: sentence.place.clone(),
                reason,
            })
        };
        Ok(Sample {
            labels: sentence.labels.iter().map(label).collect::<Result<_>>()?,
            texts: sentence.words,
            ..Sample::default()
        })
    }
}

impl SampleFile for Sentences {
    fn bookmark(&self) -> Bookmark {
        match &self.file {
            WordFile::Columns(reader) => reader.bookmark(),
            WordFile::Table { table, .. } => table.bookmark(),
        }
    }

    fn resume(&mut self, bookmark: &Bookmark) -> Result<()> {
        match &mut self.file {
            WordFile::Columns(reader) => reader.resume(bookmark),
            WordFile::Table { table, .. } => table.resume(bookmark, Arc::default()),
        }
    }

    fn next(&mut self) -> Option<Result<Sample>> {
        let sentence = self.file.read(self.labels.needed)?;
        Some(sentence.and_then(|sentence| self.sample(sentence)))
    }
}

/// Sentences with a label for each word.
#[derive(Debug)]
struct LabelledWords {
    settings: TokenClsDataSettings,
    labels: LabelUse,
    /// By a label's id, the label of the pieces after a word's first one.
    continued: Vec<Label>,
    encoder: WordEncoder,
    length: usize,
    padding: Padding,
}

impl LabelledWords {
    fn row(&self, sample: &Sample, group: &mut EncodedGroup) -> Result<Row> {
        let (sequence, words) = self.encoder.encode(&sample.texts)?;
        group.tokens += sequence.ids.len() as u64;
        group.truncated += u64::from(sequence.truncated);
        let label = |(word, flags): (&Option<u32>, &u8)| {
            let label = sample.labels[(*word)? as usize]?;
            match (*flags == 0, self.settings.label_all_tokens) {
                (true, _) => Some(label),
                (false, true) => Some(self.continued[label.as_class() as usize]),
                (false, false) => None,
            }
        };
        let labels = words.iter().zip(&sequence.flags).map(label);
        let token_labels = labels.map(Label::to_bits).collect();
        Ok(Row {
            token_labels,
            ..sequence.into_row(None)
        })
    }
}

impl Recipe for LabelledWords {
    fn open(&self, path: &Path, count: Arc<AtomicU64>) -> Result<Box<dyn SampleFile>> {
        Ok(Box::new(Sentences {
            file: WordFile::open(path, &self.settings, self.labels.needed, count)?,
            labels: self.labels.clone(),
        }))
    }

    fn group(&self) -> usize {
        GROUP
    }

    fn encode(&self, samples: &[Sample]) -> Result<EncodedGroup> {
        let mut group = EncodedGroup::default();
        for sample in samples {
            let row = self.row(sample, &mut group)?;
            group.rows.push(row);
        }
        Ok(group)
    }

    fn length(&self) -> usize {
        self.length
    }

    fn padding(&self) -> Option<&Padding> {
        Some(&self.padding)
    }

    fn label(&self, rows: &BatchRows<'_>, batch: &mut Batch) {
        let length = batch.input_ids.ncols();
        let HostLabels::Tokens(labels) = &mut batch.labels else {
            unreachable!("a batch begins with a label for each token")
        };
        for (example, mut labels) in rows.examples.iter().zip(labels.outer_iter_mut()) {
            let columns = rows.columns(length, example.token_labels.len());
            for (column, bits) in columns.zip(&*example.token_labels) {
                let label = Label::from_bits(*bits);
                labels[column] = label.map_or(IGNORED_LABEL as i32, Label::as_class);
                batch.targets += usize::from(label.is_some());
            }
        }
    }
}

#[cfg(test)]
#[path = "token_cls_tests.rs"]
mod tests;
