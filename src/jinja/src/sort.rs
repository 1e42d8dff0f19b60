//! `sorted()`.

use crate::error::Result;
use crate::value::Value;

/// Items in ascending order, as `sorted` has them. Keys stand before the items.
pub(crate) fn sorted(mut items: Vec<(Value, Value)>, is_reversed: bool) -> Result<Vec<Value>> {
    // Equal ones keep their order in either direction.
    if is_reversed {
        items.reverse();
    }
    let mut sorted = merge_sorted(items)?;
    if is_reversed {
        sorted.reverse();
    }
    Ok(sorted.into_iter().map(|(_, item)| item).collect())
}

/// A stable sort whose comparison may fail.
fn merge_sorted(mut items: Vec<(Value, Value)>) -> Result<Vec<(Value, Value)>> {
    if items.len() < 2 {
        return Ok(items);
    }
    let right = merge_sorted(items.split_off(items.len() / 2))?;
    let left = merge_sorted(items)?;
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some((a, _)), Some((b, _))) = (left.peek(), right.peek()) {
        let takes_right = b.order(a, "<")? == Some(std::cmp::Ordering::Less);
        merged.extend(if takes_right {
            right.next()
        } else {
            left.next()
        });
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}
