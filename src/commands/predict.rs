//! `xtrain predict cls`: labels the rows of a table, into a CSV file.

use super::{Error, Outcome};
use crate::checkpoint::atomic;
use crate::config::PredictPlan;
use crate::data::cls::TestRow;
use crate::engine::task::TaskData;
use crate::engine::{failed, predict};
use crate::report::csv;
use crate::trainer::metrics::{argmax, softmax};
use std::io::Write;
use std::path::Path;

pub fn run(plan: PredictPlan) -> Result<Outcome, Error> {
    let (task, predictions) = predict(&plan)?;
    save(
        &predictions,
        &task,
        plan.include_text,
        plan.output_file.as_deref(),
    )?;
    Ok(Outcome::Done)
}

/// Writes the CSV file: `index`, the texts if they are wanted, `prediction`, and of classes a
/// probability for each.
pub fn save(
    logits: &[f32],
    task: &TaskData,
    with_text: bool,
    path: Option<&Path>,
) -> Result<(), Error> {
    let rows = task.test_rows()?;
    let scored = if task.estimates() {
        vec![]
    } else {
        task.label_names()
    };
    let table = table(logits, &scored, &rows, with_text);
    match path {
        Some(path) => {
            atomic::write_bytes(path, table.as_bytes())
                .map_err(failed("saving the predictions"))?;
            println!("labelled {} rows: {}", rows.len(), path.display());
        }
        // Whoever read the output went away: there is nobody to tell.
        None => drop(std::io::stdout().write_all(table.as_bytes())),
    }
    Ok(())
}

/// `labels`: none of a regression, whose logits are the predictions.
fn table(logits: &[f32], labels: &[String], rows: &[TestRow], with_text: bool) -> String {
    let pairs = with_text && rows.iter().any(|row| row.pair.is_some());
    let mut header = vec!["index".to_string()];
    header.extend(with_text.then(|| "text".into()));
    header.extend(pairs.then(|| "text_pair".into()));
    header.push("prediction".into());
    header.extend(labels.iter().map(|label| format!("score_{label}")));
    let mut table = csv::line(&header);
    for (row, logits) in rows.iter().zip(logits.chunks(labels.len().max(1))) {
        let mut fields = vec![row.index.to_string()];
        fields.extend(with_text.then(|| row.text.clone()));
        fields.extend(pairs.then(|| row.pair.clone().unwrap_or_default()));
        match labels {
            [] => fields.push(logits[0].to_string()),
            _ => {
                fields.push(labels[argmax(logits)].clone());
                fields.extend(softmax(logits).iter().map(|score| format!("{score:.6}")));
            }
        }
        table.push_str(&csv::line(&fields));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_likeliest_label_and_a_score_for_each() {
        let labels = ["no".to_string(), "yes, really".to_string()];
        let rows = [
            TestRow {
                index: 0,
                text: "a \"b\", c".to_string(),
                pair: None,
            },
            TestRow {
                index: 4,
                text: "d".to_string(),
                pair: Some("e".to_string()),
            },
        ];
        let logits = [0.0, 0.0, -1.0, 1.0];
        assert_eq!(
            table(&logits, &labels, &rows, true),
            "index,text,text_pair,prediction,score_no,\"score_yes, really\"\n0,\"a \"\"b\"\", c\",,no,0.500000,0.500000\n\
             4,d,e,\"yes, really\",0.119203,0.880797\n"
        );
        assert_eq!(
            table(&[0.25, -3.5], &[], &rows, false),
            "index,prediction\n0,0.25\n4,-3.5\n"
        );
        assert!(
            table(&logits, &labels, &rows, false)
                .ends_with("4,\"yes, really\",0.119203,0.880797\n")
        );
    }
}
