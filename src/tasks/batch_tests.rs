//! What batches look like, task by task.

use super::bad_inputs::{letters, settings};
use super::clm::ClmDataSettings;
use super::test_support::{collator, context};
use super::*;
use ndarray::{arr1, arr2};
use xtrain_data::padding::Padding;
use xtrain_data::rows::flag;
use xtrain_data::settings::PaddingSettings;
use xtrain_data::{Error, HostLabels, Label, Position, Row, Rows};

const AT: Position = Position { epoch: 2, batch: 5 };

/// Examples `[1]`, `[1, 2]`, ... of classes 0, 1, ...; the last token of each is of the second
/// text.
fn examples(lengths: &[u32]) -> Rows {
    Rows::in_memory(None, |writer| {
        for (class, length) in lengths.iter().enumerate() {
            let ids: Vec<u32> = (1..=*length).collect();
            let mut flags = vec![0; *length as usize];
            flags[*length as usize - 1] = flag::SECOND;
            writer
                .push(&Row {
                    ids: ids.into(),
                    flags: flags.into(),
                    label: Some(Label::class(class as u32)),
                    token_labels: [].into(),
                })
                .map_err(Error::io("write", std::path::Path::new("x")))?;
        }
        Ok(())
    })
    .unwrap()
}

/// Pairs of texts with these numbers of tokens, of five classes, padded by a tokenizer of letters.
fn pairs(padding: PaddingSettings, side: &str, length: usize, tokens: &[u32]) -> Set {
    let dir = tempfile::tempdir().unwrap();
    let mut task = settings(dir.path(), &[]);
    task.padding = padding;
    let folder = dir.path().join("letters");
    letters(dir.path());
    let config = serde_json::json!({"padding_side": side, "model_max_length": 512});
    std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    let tokenizer = Tokenizer::load(&folder).unwrap();
    let names = (0..5).map(|class| class.to_string()).collect();
    let labels = LabelMap::new(names).unwrap();
    collator(&task, &tokenizer, Some(&labels), length, examples(tokens)).unwrap()
}

#[test]
fn a_short_causal_batch_is_padded_with_rows_that_do_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let task = ClmDataSettings {
        source: SourceSettings::default(),
        block_size: None,
        stride: None,
    };
    let context = context(&task, &letters(dir.path()), 3, None);
    let rows = Rows::in_memory(Some(3), |rows| {
        let ids: Vec<u32> = (0..12).collect();
        let mut blocks = ids.chunks(3).map(Row::of_ids);
        let written = blocks.try_for_each(|row| rows.push(&row));
        written.map_err(Error::io("write", std::path::Path::new("x")))
    })
    .unwrap();
    let collator = Set::new(rows, task.recipe(&context, true).unwrap());
    let batch = collator.batch(&[3, 1], 4, AT).unwrap();
    assert_eq!(
        batch.input_ids,
        arr2(&[[9, 10, 11], [3, 4, 5], [0, 0, 0], [0, 0, 0]])
    );
    assert_eq!(
        batch.labels,
        HostLabels::Tokens(arr2(&[[9, 10, 11], [3, 4, 5], [-100; 3], [-100; 3]]))
    );
    assert_eq!((batch.examples, batch.tokens, batch.targets), (2, 6, 4));
    assert_eq!(
        (batch.epoch, batch.index_in_epoch, collator.lengths()),
        (2, 5, vec![3])
    );
    assert!(batch.attention_mask.is_none());
}

#[test]
fn classes_are_padded_to_the_bucket_of_the_longest_row() {
    let padding = PaddingSettings {
        pad_to_max_length: false,
        pad_to_bucket: vec![3],
    };
    let collator = pairs(padding, "right", 5, &[1, 3, 4]);
    let batch = collator.batch(&[1, 0], 3, AT).unwrap();
    assert_eq!(batch.input_ids, arr2(&[[1, 2, 3], [1, 0, 0], [1, 2, 3]]));
    assert_eq!(
        batch.attention_mask,
        Some(arr2(&[[true; 3], [true, false, false], [true; 3]]))
    );
    assert_eq!(
        batch.token_type_ids,
        Some(arr2(&[[0, 0, 1], [1, 0, 0], [0, 0, 1]]))
    );
    assert_eq!(batch.labels, HostLabels::Classes(arr1(&[1, 0, -100])));
    assert_eq!((batch.examples, batch.tokens, batch.targets), (2, 4, 2));
    assert_eq!(
        collator.batch(&[2], 1, AT).unwrap().input_ids,
        arr2(&[[1, 2, 3, 4, 0]])
    );
    assert_eq!(collator.lengths(), [3, 5]);
}

#[test]
fn padding_on_the_left_moves_everything_with_it() {
    let padding = PaddingSettings {
        pad_to_max_length: true,
        pad_to_bucket: vec![2],
    };
    let collator = pairs(padding, "left", 4, &[2]);
    let batch = collator.batch(&[0], 1, AT).unwrap();
    assert_eq!(batch.input_ids, arr2(&[[0, 0, 1, 2]]));
    assert_eq!(
        batch.attention_mask,
        Some(arr2(&[[false, false, true, true]]))
    );
    assert_eq!(batch.token_type_ids, Some(arr2(&[[0, 0, 0, 1]])));
}

#[test]
fn lengths_nobody_chose_are_powers_of_two_up_to_the_longest_example() {
    let padding = |max| Padding::new(&PaddingSettings::default(), max, 0, false).unwrap();
    assert_eq!(padding(100).lengths_for(100), [16, 32, 64, 100]);
    assert_eq!(padding(128).lengths_for(33), [16, 32, 64]);
    assert_eq!(padding(10).lengths_for(3), [10]);
    for bucket in [0, 65] {
        let settings = PaddingSettings {
            pad_to_max_length: false,
            pad_to_bucket: vec![bucket],
        };
        let error = Padding::new(&settings, 64, 0, false)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!("--pad_to_bucket {bucket}")) && error.contains("64"),
            "{error}"
        );
    }
}
