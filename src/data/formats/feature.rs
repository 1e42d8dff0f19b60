//! Cells as the notes of `datasets` say that they are.

use super::cell::{Cell, IGNORED};
use super::json_value::cell_of_json;
use crate::features::Feature;

/// A cell as this feature says that it is.
///
/// # Errors
/// The cell is text that should be the name of a class, and is not.
pub(super) fn apply(feature: &Feature, cell: Cell) -> Result<Cell, String> {
    match (feature, cell) {
        (_, Cell::Missing) => Ok(Cell::Missing),
        (Feature::Classes(names), Cell::Number(number)) => Ok(class(number, names)),
        (Feature::Classes(names), Cell::Text(name)) => {
            let known = names.iter().position(|known| *known == name);
            match known {
                Some(number) => Ok(Cell::Class {
                    number: number as i64,
                    name,
                }),
                None => name
                    .parse::<i64>()
                    .ok()
                    .filter(|number| (0..names.len() as i64).contains(number))
                    .map(|number| class(number.to_string(), names))
                    .ok_or_else(|| format!("{name:?} is not among its classes")),
            }
        }
        (Feature::Json, Cell::Text(text)) => {
            // What is no JSON is the text itself.
            Ok(cell_of_json(&text).unwrap_or(Cell::Text(text)))
        }
        (Feature::Text, Cell::Number(number)) if number.parse::<i64>().is_ok() => {
            Ok(Cell::Text(number))
        }
        (Feature::Text, Cell::Number(number)) => Err(format!(
            "it is {number} where text is declared; write it in the form that is meant"
        )),
        (Feature::Float, Cell::Number(number)) => Ok(match number.parse::<i64>() {
            Ok(whole) => Cell::fraction(whole as f64),
            Err(_) => Cell::Number(number),
        }),
        (Feature::List(inside), Cell::List(cells)) => {
            let cells = cells.into_iter().map(|cell| apply(inside, cell));
            Ok(Cell::List(cells.collect::<Result<_, _>>()?))
        }
        // `Sequence` of a structure: written as one structure of lists.
        (Feature::List(inside), cell @ Cell::Fields(_)) => apply_to_lists(inside, cell),
        (Feature::Fields(features), Cell::Fields(cells)) => {
            let with = |(name, cell): (String, Cell)| {
                let feature = features.iter().find(|(known, _)| *known == name);
                let cell = match feature {
                    Some((_, feature)) => apply(feature, cell)?,
                    None => cell,
                };
                Ok((name, cell))
            };
            let cells = cells.into_iter().map(with);
            Ok(Cell::Fields(cells.collect::<Result<_, String>>()?))
        }
        (_, cell) => Ok(cell),
    }
}

fn apply_to_lists(feature: &Feature, cell: Cell) -> Result<Cell, String> {
    let (Feature::Fields(features), Cell::Fields(cells)) = (feature, cell) else {
        return Err("it is a structure where a list is declared".to_string());
    };
    let with = |(name, cell): (String, Cell)| {
        let feature = features.iter().find(|(known, _)| *known == name);
        let cell = match feature {
            Some((_, feature)) => apply(&Feature::List(Box::new(feature.clone())), cell)?,
            None => cell,
        };
        Ok((name, cell))
    };
    let cells = cells.into_iter().map(with);
    Ok(Cell::Fields(cells.collect::<Result<_, String>>()?))
}

/// The class of a number.
fn class(number: String, names: &[String]) -> Cell {
    let Ok(found) = number.parse::<i64>() else {
        return Cell::Number(number);
    };
    if number == IGNORED {
        return Cell::Number(number);
    }
    // `datasets` writes -1 where a class is not known.
    if found < 0 {
        return Cell::Missing;
    }
    match names.get(found as usize) {
        Some(name) => Cell::Class {
            number: found,
            name: name.clone(),
        },
        None => Cell::Number(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_become_classes_and_structures_by_their_feature() {
        let names = Feature::Classes(vec!["a".into(), "b".into()]);
        let class = |number: i64, name: &str| Cell::Class {
            number,
            name: name.into(),
        };
        let number = |text: &str| Cell::Number(text.into());
        assert_eq!(apply(&names, number("1")), Ok(class(1, "b")));
        assert_eq!(apply(&names, Cell::Text("b".into())), Ok(class(1, "b")));
        assert_eq!(apply(&names, Cell::Text("0".into())), Ok(class(0, "a")));
        assert_eq!(apply(&names, number("-1")), Ok(Cell::Missing));
        assert_eq!(apply(&names, number("-100")), Ok(number("-100")));
        assert!(apply(&names, Cell::Text("c".into())).is_err());
        let list = Feature::List(Box::new(Feature::Json));
        let cell = Cell::List(vec![Cell::Text("{\"a\": 1}".into()), Cell::Missing]);
        let wanted = Cell::List(vec![
            Cell::Fields(vec![("a".into(), number("1"))]),
            Cell::Missing,
        ]);
        assert_eq!(apply(&list, cell), Ok(wanted));
        assert_eq!(
            apply(&Feature::Text, number("7")),
            Ok(Cell::Text("7".into()))
        );
        assert!(apply(&Feature::Text, number("7.5")).is_err());
        assert_eq!(apply(&Feature::Float, number("7")), Ok(number("7.0")));
        let text = Cell::Text("{".into());
        assert_eq!(apply(&Feature::Json, text.clone()), Ok(text));
    }
}
